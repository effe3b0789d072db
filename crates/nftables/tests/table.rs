//! Transactions that a table writes.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Family, IpSetId, IpSetName};
use tortie_netfilter::{
    Action, Chain, ChainName, ChainProblem, HookPosition, InPlace, Layout, MapKey, MapKind, MapVerdict, MarkBits,
    Matches, Member, NflogPrefix, Origin, Rule, SetType, Side, StandIn, Table as Layer, kernel_chain,
};
use tortie_nftables::fake::FakeKernel;
use tortie_nftables::{Command, CommitError, Features, Plan, Table, TableConfig, TableId};

const V4: TableId = TableId::calico(Family::V4);

fn name(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

fn member(text: &str) -> Member {
    Member::parse(SetType::HashNet, Family::V4, text).unwrap().unwrap()
}

struct Lab {
    table: Table,
    kernel: FakeKernel,
    now: Duration,
}

const SET: &str = "cali40s:clients";

impl Lab {
    /// FORWARD leads to a chain that accepts a set and drops all other packets.
    fn new() -> Self {
        let mut lab = Self::empty(TableConfig::new(V4));
        lab.hook(true);
        lab.set(&["10.0.0.0/8", "192.0.2.1/32"]);
        lab.policy(&[Action::Accept, Action::Drop]);
        lab
    }

    fn empty(config: TableConfig) -> Self {
        let table = Table::new(config, Features::ALL);
        Self { table, kernel: FakeKernel::new(V4), now: Duration::ZERO }
    }

    fn hook(&mut self, leads_to_policy: bool) {
        let jump = leads_to_policy.then(|| Rule::new(Action::Jump(name("cali-FORWARD"))));
        let rules = jump.into_iter().collect();
        self.table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, rules);
    }

    fn set(&mut self, members: &[&str]) {
        let members = members.iter().map(|text| member(text));
        self.table
            .replace_set(&IpSetId::from("s:clients"), IpSetName::new(SET).unwrap(), SetType::HashNet, members)
            .unwrap();
    }

    fn policy(&mut self, actions: &[Action]) {
        let rule = |action: &Action| {
            let clients = Matches::new().ip_set(Side::Source, IpSetName::new(SET).unwrap());
            Rule { opens: Some(0).filter(|_| *action == Action::Accept), ..Rule::when(clients, action.clone()) }
        };
        self.table.update_chain(Layer::Filter, Chain::new(name("cali-FORWARD"), actions.iter().map(rule).collect()));
    }

    fn apply(&mut self) -> Vec<String> {
        let before = self.kernel.transactions.len();
        self.kernel.apply(&mut self.table, &mut self.now).unwrap();
        let made = &self.kernel.transactions[before..];
        made.iter().flat_map(|made| made.to_string().lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }
}

#[test]
fn all_changes_are_one_transaction_after_that_of_new_sets() {
    let mut lab = Lab::new();
    let lines = lab.apply();
    let of_sets = lab.kernel.transactions[0].to_string();
    assert!(of_sets.contains("add element") && !of_sets.contains("chain"), "{of_sets}");
    assert_eq!(lab.kernel.transactions.len(), 2);
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:?}"));
    assert!(at("add table") < at("add set ip calico cali40s-clients"));
    assert!(
        at("add element ip calico cali40s-clients { 10.0.0.0/8 }") < at("ip saddr @cali40s-clients counter accept")
    );
    assert!(at("add chain ip calico filter-cali-FORWARD") < at("counter jump filter-cali-FORWARD"));
    assert_eq!(lines.iter().filter(|line| line.contains(" hook ")).count(), 14);
    assert_eq!(lab.apply(), [""; 0]);
    // Another process with the same desired state writes nothing either.
    let mut other = Lab::new();
    std::mem::swap(&mut other.kernel, &mut lab.kernel);
    assert_eq!(other.apply(), [""; 0]);
}

#[test]
fn a_member_is_a_line() {
    let mut lab = Lab::new();
    lab.apply();
    lab.set(&["10.0.0.0/8", "192.0.2.1/32", "192.0.2.2/32"]);
    assert_eq!(lab.apply(), ["add element ip calico cali40s-clients { 192.0.2.2/32 }"]);
    // A network inside another one is not written.
    lab.set(&["10.0.0.0/8", "10.1.0.0/16", "192.0.2.1/32", "192.0.2.2/32"]);
    assert_eq!(lab.apply(), [""; 0]);
    lab.set(&["10.1.0.0/16", "192.0.2.1/32", "192.0.2.2/32"]);
    assert_eq!(
        lab.apply(),
        [
            "delete element ip calico cali40s-clients { 10.0.0.0/8 }",
            "add element ip calico cali40s-clients { 10.1.0.0/16 }"
        ]
    );
}

#[test]
fn rules_before_a_change_stay() {
    let mut lab = Lab::new();
    lab.policy(&[Action::Accept, Action::Accept, Action::Drop]);
    lab.apply();
    lab.policy(&[Action::Accept, Action::Drop, Action::Drop]);
    // Their handles are unknown before the table has been read.
    let lines = lab.apply();
    assert_eq!((lines.len(), lines[0].as_str()), (4, "flush chain ip calico filter-cali-FORWARD"));
    lab.table.invalidate();
    lab.apply();
    lab.policy(&[Action::Accept, Action::Drop, Action::Accept, Action::Drop]);
    let lines = lab.apply();
    assert!(lines[0].starts_with("replace rule ip calico filter-cali-FORWARD handle "), "{lines:?}");
    assert!(lines[1].starts_with("add rule ip calico filter-cali-FORWARD "), "{lines:?}");
    assert_eq!(lines.len(), 2);
    lab.table.invalidate();
    lab.apply();
    lab.policy(&[Action::Accept]);
    let lines = lab.apply();
    // Fewer commands than deletion of the other three.
    assert_eq!((lines.len(), lines[0].as_str()), (2, "flush chain ip calico filter-cali-FORWARD"));
}

#[test]
fn objects_are_removed_in_order_of_dependency() {
    let mut lab = Lab::new();
    lab.apply();
    lab.table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, Vec::new());
    lab.table.remove_chain(Layer::Filter, name("cali-FORWARD"));
    lab.table.remove_set(IpSetName::new(SET).unwrap());
    assert_eq!(
        lab.apply(),
        [
            "flush chain ip calico filter-FORWARD",
            "flush chain ip calico filter-cali-FORWARD",
            "delete chain ip calico filter-cali-FORWARD",
            "delete set ip calico cali40s-clients"
        ]
    );
}

#[test]
fn rules_in_the_kernel_are_kept_as_hashes_and_compiled_again() {
    let mut lab = Lab::new();
    let first = lab.apply();
    let commands = lab.kernel.transactions.iter().flat_map(|made| &made.commands);
    let users: Vec<usize> = commands
        .filter_map(|command| match command {
            Command::AddRule { chain, rule } if chain.as_str() == "filter-cali-FORWARD" => {
                Some(Arc::strong_count(rule))
            }
            _ => None,
        })
        .collect();
    // The transaction and the kernel, but not the table.
    assert_eq!(users, [2, 2]);
    let rules = |lines: &[String]| -> Vec<String> {
        lines.iter().filter(|line| line.starts_with("add rule ip calico filter-cali-FORWARD")).cloned().collect()
    };
    meddle(&mut lab, Command::FlushChain { chain: tortie_nftables::LayeredName::new(Layer::Filter, "cali-FORWARD") });
    lab.table.invalidate();
    let again = lab.apply();
    assert_eq!(again, rules(&first));
}

#[test]
fn a_deleted_table_is_made_again_with_its_sets_at_once() {
    let mut lab = Lab::new();
    let first = lab.apply();
    lab.kernel.delete_table();
    lab.table.invalidate();
    assert_eq!(lab.apply(), first);
    assert_eq!(lab.table.stats().clobbered, 17 + 1 - 2);
}

#[test]
fn a_refused_opening_is_left_out_until_the_kernel_takes_it() {
    let mut lab = Lab::new();
    lab.kernel.refuse = Some(Arc::new(|command| match command {
        Command::AddRule { rule, .. } | Command::ReplaceRule { rule, .. } if rule.shown.text.ends_with("accept") => {
            Some("Operation not supported".to_owned())
        }
        _ => None,
    }));
    let lines = lab.apply();
    assert!(!lines.iter().any(|line| line.contains("accept")) && lines.iter().any(|line| line.contains("drop")));
    let problems = lab.table.problems();
    let [(Layer::Filter, ChainProblem::Refused { in_place: InPlace::Reduced { left_out: 1 }, error, .. })] =
        &problems[..]
    else {
        panic!("{problems:?}");
    };
    assert_eq!(error.0, "Operation not supported");
    assert!(matches!(lab.table.plan(lab.now), Plan::Done { problems: 1, .. }));
    // It is retried, and the rest is in force meanwhile.
    lab.now += Duration::from_secs(2);
    lab.apply();
    assert_eq!(lab.table.problems().len(), 1);
    lab.kernel.refuse = None;
    lab.now += Duration::from_secs(30);
    assert!(lab.apply().iter().any(|line| line.contains("accept")));
    assert_eq!(lab.table.problems(), []);
    assert!(matches!(lab.table.plan(lab.now), Plan::Done { problems: 0, .. }));
}

#[test]
fn a_refused_chain_drops_alone() {
    let mut lab = Lab::new();
    lab.kernel.refuse = Some(Arc::new(|command| match command {
        Command::AddRule { rule, .. } if rule.shown.text.contains("@cali40s-clients") => Some("no".to_owned()),
        _ => None,
    }));
    let lines = lab.apply();
    let rules: Vec<&String> =
        lines.iter().filter(|line| line.contains("add rule ip calico filter-cali-FORWARD")).collect();
    assert_eq!(rules.len(), 1);
    assert!(rules[0].contains(" counter drop "), "{rules:?}");
    assert!(lines.iter().any(|line| line.contains("jump filter-cali-FORWARD")));
}

#[test]
fn a_chain_that_is_led_to_but_not_defined_drops() {
    let mut lab = Lab::new();
    lab.table.remove_chain(Layer::Filter, name("cali-FORWARD"));
    assert!(lab.apply().iter().any(|line| line.contains("filter-cali-FORWARD counter drop")));
    assert_eq!(lab.table.problems(), [(Layer::Filter, ChainProblem::Undefined { chain: name("cali-FORWARD") })]);
    lab.policy(&[Action::Accept]);
    assert!(lab.apply().iter().any(|line| line.contains("counter accept")));
    assert_eq!(lab.table.problems(), []);
}

#[test]
fn failures_without_a_reason_are_retried_and_finally_reported() {
    let mut lab = Lab::new();
    lab.kernel.failures = 3;
    lab.kernel.read_failures = 1;
    assert!(!lab.apply().is_empty());
    lab.policy(&[Action::Drop]);
    lab.kernel.failures = 100;
    let error = lab.kernel.apply(&mut lab.table, &mut lab.now).unwrap_err();
    assert_eq!(error.to_string(), "cannot write table ip calico: injected failure");
    lab.kernel.failures = 0;
    assert!(!lab.apply().is_empty());
}

#[test]
fn maps_jump_to_chains_and_keep_them() {
    let mut lab = Lab::new();
    lab.apply();
    let (map, to) = (name("cali-from-wl-dispatch"), name("cali-fw-cali1"));
    let interface = MapKey::Interface("cali1".parse().unwrap());
    lab.table.define_map(Layer::Filter, map, MapKind::Interface);
    assert_eq!(lab.apply(), ["add map ip calico filter-cali-from-wl-dispatch { type ifname : verdict ; }"]);
    // A map without members is remembered.
    assert_eq!(lab.apply(), [""; 0]);
    lab.table.update_chain(Layer::Filter, Chain::new(to, vec![Rule::new(Action::Return)]));
    lab.table.set_verdict(Layer::Filter, map, interface, Some(MapVerdict::Goto(to)));
    let lines = lab.apply();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[2], "add element ip calico filter-cali-from-wl-dispatch { cali1 : goto filter-cali-fw-cali1 }");
    lab.table.set_verdict(Layer::Filter, map, interface, None);
    let lines = lab.apply();
    assert_eq!(lines[0], "delete element ip calico filter-cali-from-wl-dispatch { cali1 : goto filter-cali-fw-cali1 }");
    assert_eq!(lines.last().unwrap(), "delete chain ip calico filter-cali-fw-cali1");
}

/// Commits a change to the table, as another process would.
fn meddle(lab: &mut Lab, command: Command) {
    let mut transaction = tortie_nftables::Transaction::new(V4);
    transaction.commands.push(command);
    lab.kernel.commit(&transaction).unwrap();
    lab.kernel.transactions.pop();
}

#[test]
fn refusals_due_to_foreign_changes_count_against_no_object() {
    let chain = tortie_nftables::LayeredName::new(Layer::Filter, "cali-FORWARD");
    let set = tortie_nftables::SetName::new(IpSetName::new(SET).unwrap());
    type Meddle = fn(tortie_nftables::LayeredName, tortie_nftables::SetName) -> Command;
    let changes: [(&str, Meddle); 4] = [
        ("the table is deleted", |_, _| Command::DeleteTable),
        ("a member is gone", |_, set| Command::DeleteElements {
            set,
            kind: tortie_nftables::SetKind::Networks,
            elements: vec![member("10.0.0.0/8")],
        }),
        ("a member is there", |_, set| Command::AddElements {
            set,
            kind: tortie_nftables::SetKind::Networks,
            elements: vec![member("172.16.0.0/12")],
        }),
        ("a rule is gone", |chain, _| Command::FlushChain { chain }),
    ];
    for (case, change) in changes {
        let mut lab = Lab::new();
        lab.policy(&[Action::Accept, Action::Accept, Action::Drop]);
        lab.apply();
        lab.table.invalidate();
        lab.apply();
        let reads = lab.table.stats().reads;
        meddle(&mut lab, change(chain.clone(), set));
        // Part of the other process's change.
        lab.set(&["172.16.5.0/24", "192.0.2.1/32"]);
        lab.policy(&[Action::Accept, Action::Drop]);
        lab.apply();
        assert_eq!((lab.table.problems(), lab.table.set_problems().count()), (Vec::new(), 0), "{case}");
        let stats = lab.table.stats();
        assert_eq!((stats.commit_errors, stats.reads), (1, reads + 1), "{case}");
        let mut fresh = Lab::new();
        fresh.set(&["172.16.5.0/24", "192.0.2.1/32"]);
        fresh.apply();
        assert_eq!(lab.kernel.dump(), fresh.kernel.dump(), "{case}");
    }
}

#[test]
fn a_table_deleted_between_read_and_write_counts_against_no_object() {
    let mut lab = Lab::new();
    lab.apply();
    lab.policy(&[Action::Drop]);
    lab.table.invalidate();
    assert_eq!(lab.table.plan(lab.now), Plan::Read);
    let read = lab.kernel.read();
    lab.table.on_read(lab.now, read);
    let Plan::Commit(transaction) = lab.table.plan(lab.now) else { panic!("nothing to write") };
    lab.kernel.delete_table();
    let result = lab.kernel.commit(&transaction);
    assert!(matches!(result, Err(CommitError::Refused(_))));
    lab.table.on_committed(lab.now, result);
    lab.apply();
    assert_eq!((lab.table.problems(), lab.table.set_problems().count()), (Vec::new(), 0));
    let mut fresh = Lab::new();
    fresh.policy(&[Action::Drop]);
    fresh.apply();
    assert_eq!(lab.kernel.dump(), fresh.kernel.dump());
}

#[test]
fn out_of_memory_leaves_the_state_unchanged() {
    let mut lab = Lab::new();
    lab.kernel.out_of_memory = 3;
    assert!(!lab.apply().is_empty());
    let in_force = lab.kernel.dump();
    lab.policy(&[Action::Drop]);
    lab.set(&["192.0.2.7/32"]);
    lab.kernel.out_of_memory = 50;
    for _ in 0..5 {
        let error = lab.kernel.apply(&mut lab.table, &mut lab.now).unwrap_err();
        assert_eq!(error.to_string(), "cannot write table ip calico: Cannot allocate memory");
        assert_eq!((lab.table.problems(), lab.table.set_problems().count()), (Vec::new(), 0));
        assert_eq!(lab.kernel.dump(), in_force);
    }
    lab.kernel.out_of_memory = 0;
    lab.apply();
    let after = lab.kernel.dump();
    assert!(
        after.iter().any(|line| line.contains("192.0.2.7/32")) && !after.iter().any(|line| line.contains("accept"))
    );
}

#[test]
fn a_refused_base_chain_is_written_as_soon_as_the_kernel_accepts_it() {
    let mut lab = Lab::new();
    lab.kernel.refuse = Some(Arc::new(|command| match command {
        Command::AddRule { chain, .. } if chain.as_str() == "filter-FORWARD" => Some("Too many links".to_owned()),
        _ => None,
    }));
    for _ in 0..3 {
        // Nothing leads to policy: that must not count as success.
        let error = lab.kernel.apply(&mut lab.table, &mut lab.now).unwrap_err();
        assert_eq!(error.to_string(), "cannot write table ip calico: Too many links");
        assert!(lab.kernel.dump().iter().any(|line| line.contains("filter-cali-FORWARD") || line.contains(SET)));
        lab.now += Duration::from_secs(3);
    }
    lab.kernel.refuse = None;
    lab.now += Duration::from_secs(30);
    lab.apply();
    assert_eq!(lab.table.problems(), []);
    let mut fresh = Lab::new();
    fresh.apply();
    assert_eq!(lab.kernel.dump(), fresh.kernel.dump());
}

#[test]
fn a_sparse_table_has_only_base_chains_with_rules_and_is_gone_without_content() {
    let mut lab = Lab::empty(TableConfig { is_sparse: true, ..TableConfig::new(V4) });
    assert_eq!(lab.apply(), [""; 0]);
    lab.policy(&[Action::Accept]);
    for _ in 0..2 {
        lab.hook(true);
        lab.set(&["10.0.0.0/8"]);
        let made = lab.apply();
        let bases: Vec<&String> = made.iter().filter(|line| line.contains(" hook ")).collect();
        assert!(bases.len() == 1 && bases[0].contains("filter-FORWARD"), "{made:?}");
        assert_eq!(lab.apply(), [""; 0]);
        lab.hook(false);
        lab.table.remove_set(IpSetName::new(SET).unwrap());
        assert_eq!(lab.apply(), ["flush chain ip calico filter-FORWARD", "delete table ip calico"]);
        assert_eq!((lab.apply(), lab.kernel.dump()), (vec![], vec![]));
    }
}

/// A packet on its way through the former chains must still find the elements of their maps.
#[test]
fn packets_leave_former_chains_before_these_are_removed() {
    let mut former = Lab::new();
    let map = (Layer::Filter, name("cali-from-wl-dispatch"));
    let interface = MapKey::Interface("cali1".parse().unwrap());
    former.table.set_verdict(map.0, map.1, interface, Some(MapVerdict::Accept));
    former.apply();
    for has_others in [false, true] {
        let mut lab = Lab::empty(TableConfig { is_sparse: true, ..TableConfig::new(V4) });
        lab.kernel = former.kernel.clone();
        if has_others {
            let rules = vec![Rule::new(Action::Masquerade { ports: None })];
            lab.table.set_hook(Layer::Nat, kernel_chain::POSTROUTING, HookPosition::Append, rules);
        }
        lab.apply();
        let made: Vec<String> = lab.kernel.transactions.iter().rev().take(2).map(ToString::to_string).collect();
        let flush = "flush chain ip calico filter-FORWARD\n";
        assert!(made[1].contains(flush) && !made[1].contains("delete"), "{made:?}");
        assert!(made[0].contains("delete ") && !made[0].contains(flush), "{made:?}");
        let dump = lab.kernel.dump();
        assert!(!dump.iter().any(|line| line.contains("filter-") || line.contains("set ")), "{dump:?}");
        assert_eq!(dump.len(), if has_others { 3 } else { 0 }, "{dump:?}");
    }
}

/// A rule that nftables cannot express.
fn of_a_bridge_port(action: Action) -> Rule {
    Rule::when(Matches::new().bridged(), action)
}

#[test]
fn an_inexpressible_base_chain_is_reported_and_stays_unchanged() {
    let mut lab = Lab::new();
    lab.apply();
    let before = lab.kernel.dump();
    let hook = |rule| (Layer::Filter, kernel_chain::FORWARD, HookPosition::Append, vec![rule]);
    let set = |lab: &mut Lab, (layer, chain, position, rules)| lab.table.set_hook(layer, chain, position, rules);
    set(&mut lab, hook(of_a_bridge_port(Action::Accept)));
    for _ in 0..2 {
        let error = lab.kernel.apply(&mut lab.table, &mut lab.now).unwrap_err();
        let expected = "cannot write table ip calico: nftables cannot match the bridge port of a packet";
        assert_eq!((error.to_string().as_str(), lab.kernel.dump()), (expected, before.clone()));
        lab.now += Duration::from_secs(30);
    }
    set(&mut lab, hook(Rule::new(Action::Drop)));
    assert!(lab.apply().iter().any(|line| line.contains("filter-FORWARD counter drop")));
    assert_eq!(lab.table.problems(), []);
}

#[test]
fn a_chain_with_an_inexpressible_stand_in_drops() {
    let mut lab = Lab::new();
    let stand_in = StandIn::Rules(vec![of_a_bridge_port(Action::Accept)]);
    lab.table.set_stand_in(Layer::Filter, name("cali-FORWARD"), stand_in);
    lab.table.update_chain(Layer::Filter, Chain::new(name("cali-FORWARD"), vec![of_a_bridge_port(Action::Drop)]));
    assert!(lab.apply().iter().any(|line| line.contains("filter-cali-FORWARD counter drop")));
    assert_eq!(lab.table.problems().len(), 1);
    lab.table.remove_chain(Layer::Filter, name("cali-FORWARD"));
    lab.apply();
    let drops = |line: &String| line.contains("filter-cali-FORWARD") && line.contains("counter drop");
    assert!(lab.kernel.dump().iter().any(drops), "{:?}", lab.kernel.dump());
}

#[test]
fn a_chain_with_a_refused_stand_in_is_written_as_soon_as_the_kernel_accepts_it() {
    let mut lab = Lab::new();
    lab.apply();
    lab.policy(&[Action::Drop]);
    lab.kernel.refuse = Some(Arc::new(|command| match command {
        Command::AddRule { chain, .. } | Command::ReplaceRule { chain, .. }
            if chain.as_str() == "filter-cali-FORWARD" =>
        {
            Some("no".to_owned())
        }
        _ => None,
    }));
    let before = lab.kernel.dump();
    lab.apply();
    assert_eq!((lab.table.problems().len(), lab.kernel.dump()), (1, before));
    lab.kernel.refuse = None;
    lab.now += Duration::from_secs(30);
    lab.apply();
    assert_eq!(lab.table.problems(), []);
    let mut fresh = Lab::new();
    fresh.policy(&[Action::Drop]);
    fresh.apply();
    assert_eq!(lab.kernel.dump(), fresh.kernel.dump());
}

/// FORWARD leads to policies with NFLOG prefixes, each with a separate set; the first set has these
/// members.
fn logged_policies(first: &[&str], policies: u16) -> Lab {
    let config = TableConfig { layout: Layout::Fast, ..TableConfig::new(V4) };
    let mut table = Table::new(config, Features::ALL);
    let hook = vec![Rule::new(Action::Jump(name("cali-pi-x")))];
    table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, hook);
    let mut lab = Lab { table, kernel: FakeKernel::new(V4), now: Duration::ZERO };
    for number in 0..policies {
        let own = format!("10.1.0.{number}/32");
        let members = if number == 0 { first.to_vec() } else { vec![own.as_str()] };
        lab.set_of(number, &members);
    }
    lab.update_logged_policies(policies);
    lab
}

impl Lab {
    fn set_of(&mut self, number: u16, members: &[&str]) {
        let (id, set) = (format!("s:{number}"), format!("cali40s:{number}"));
        let members = members.iter().map(|text| member(text));
        self.table.replace_set(&id.as_str().into(), IpSetName::new(&set).unwrap(), SetType::HashNet, members).unwrap();
    }

    fn update_logged_policies(&mut self, policies: u16) {
        let rule = |number: u16| {
            let set = IpSetName::new(&format!("cali40s:{number}")).unwrap();
            let prefix = NflogPrefix::new(&format!("API0|np/ns/{number}"));
            let mark = Action::SetMark(MarkBits::new(0x1_0000).unwrap());
            let actions = [mark, Action::Nflog { group: 1, prefix }, Action::Return];
            let origin = Some(Origin { owner: format!("NetworkPolicy/ns/{number}").into(), part: Some(0) });
            let matches = Matches::new().ip_set(Side::Source, set);
            Rule { origin, opens: Some(0), ..Rule::when(matches, Action::Several(actions.into())) }
        };
        let rules = (0..policies).map(rule).collect();
        self.table.update_chain(Layer::Filter, Chain::new(name("cali-pi-x"), rules));
    }

    fn made(&mut self) -> Vec<String> {
        let before = self.kernel.transactions.len();
        self.kernel.apply(&mut self.table, &mut self.now).unwrap();
        self.kernel.transactions[before..].iter().map(ToString::to_string).collect()
    }
}

#[test]
fn a_member_changes_one_address_after_its_chain_exists() {
    let mut lab = logged_policies(&["10.0.0.1/32"], 20);
    lab.made();
    assert!(lab.kernel.dump().iter().any(|line| line.contains("ip saddr vmap @")), "{:#?}", lab.kernel.dump());
    // An address in two sets.
    lab.set_of(0, &["10.0.0.1/32", "10.1.0.7/32"]);
    let made = lab.made();
    assert_eq!(made.len(), 2, "{made:?}");
    assert!(made[0].contains("add chain ") && made[0].contains("add rule ") && !made[0].contains("vmap"), "{made:?}");
    let elements = |verb: &str| {
        let lines = made[1].lines().filter(|line| line.starts_with(&format!("{verb} element")));
        lines.filter(|line| line.contains("10.1.0.7 : ")).count()
    };
    assert_eq!((elements("delete"), elements("add")), (1, 1), "{made:?}");
    // The element of the set, that of the map twice, and the unreferenced chain.
    assert_eq!(made[1].lines().count(), 5, "{made:?}");
    lab.set_of(0, &["10.0.0.1/32"]);
    let undone = lab.made();
    let mut other = logged_policies(&["10.0.0.1/32"], 20);
    std::mem::swap(&mut other.kernel, &mut lab.kernel);
    assert_eq!(other.made(), [""; 0], "{undone:?}");
}

/// Rules that could be merged, and those that could be found by address, match such sets by name.
#[test]
fn sets_with_foreign_members_are_neither_joined_nor_dispatched() {
    let mark = || Action::SetMark(MarkBits::new(0x1_0000).unwrap());
    let prefix = |number: usize| NflogPrefix::new(&format!("API0|np/ns/{number}"));
    let merged = |_: usize| Action::Several([mark(), Action::Return].into());
    let logged =
        |number| Action::Several([mark(), Action::Nflog { group: 1, prefix: prefix(number) }, Action::Return].into());
    let actions: [(&dyn Fn(usize) -> Action, usize); 3] = [(&merged, 4), (&merged, 20), (&logged, 20)];
    for (action, count) in actions {
        let mut lab = logged_policies(&[], 0);
        let rule = |number: usize| {
            let set = IpSetName::new(&format!("cali40d:{number}.h")).unwrap();
            lab.table.define_foreign_set(&format!("d:{number}.h").as_str().into(), set, SetType::HashIp).unwrap();
            let origin = Some(Origin { owner: format!("NetworkPolicy/ns/{number}").into(), part: Some(0) });
            let matches = Matches::new().ip_set(Side::Destination, set);
            Rule { origin, opens: Some(0), ..Rule::when(matches, action(number)) }
        };
        let rules: Vec<Rule> = (0..count).map(rule).collect();
        lab.table.update_chain(Layer::Filter, Chain::new(name("cali-pi-x"), rules));
        lab.made();
        let dump = lab.kernel.dump();
        let by_name = |number| dump.iter().any(|line| line.contains(&format!("ip daddr @cali40d-{number}.h ")));
        assert!((0..count).all(by_name), "{count}: {dump:#?}");
    }
}

#[test]
fn a_map_is_removed_once_no_rule_uses_it() {
    let mut lab = logged_policies(&["10.0.0.1/32"], 20);
    lab.made();
    lab.update_logged_policies(4);
    let made = lab.made();
    assert_eq!(made.len(), 2, "{made:?}");
    assert!(!made[0].contains("map") && made[0].contains("add rule"), "{made:?}");
    assert!(made[1].contains("flush map") && made[1].contains("delete chain"), "{made:?}");
}

#[test]
fn a_rule_with_a_network_member_stays_behind_the_map() {
    let mut lab = logged_policies(&["10.0.0.1/32"], 20);
    lab.made();
    let counter = |lab: &Lab| {
        let dump = lab.kernel.dump();
        dump.iter().filter(|line| line.starts_with("add rule ip calico filter-cali-pi-x ")).count()
    };
    assert_eq!(counter(&lab), 1);
    lab.set_of(0, &["10.0.0.1/32", "10.1.0.0/24"]);
    lab.made();
    assert_eq!(counter(&lab), 2);
    lab.set_of(0, &["10.0.0.1/32"]);
    lab.made();
    let mut other = logged_policies(&["10.0.0.1/32"], 20);
    std::mem::swap(&mut other.kernel, &mut lab.kernel);
    assert_eq!(other.made(), [""; 0]);
}

/// The rules of an included chain stand in another one, which does not have their targets itself.
#[test]
fn targets_of_included_rules_are_in_the_table() {
    let mut lab = Lab::empty(TableConfig { layout: Layout::Fast, ..TableConfig::new(V4) });
    lab.hook(true);
    let filter = |table: &mut Table, chain, rules| table.update_chain(Layer::Filter, Chain::new(name(chain), rules));
    let origin = Some(Origin { owner: "Policy/x".into(), part: Some(0) });
    let policy = |last| {
        let actions = [Action::SetMark(MarkBits::new(0x4_0000).unwrap()), last];
        vec![Rule { origin: origin.clone(), ..Rule::new(Action::Several(actions.into())) }]
    };
    filter(&mut lab.table, "cali-FORWARD", vec![Rule::new(Action::Include(name("cali-pi-x")))]);
    filter(&mut lab.table, "cali-reject", vec![Rule::new(Action::Drop)]);
    for (last, is_needed) in [
        (Action::Drop, false),
        (Action::Goto(name("cali-reject")), true),
        (Action::Goto(name("cali-reject")), true),
        (Action::Drop, false),
    ] {
        filter(&mut lab.table, "cali-pi-x", policy(last));
        lab.kernel.apply(&mut lab.table, &mut lab.now).unwrap();
        let written = lab.kernel.read().unwrap().unwrap();
        let has = |chain: &str| written.chains.keys().any(|name| name.as_str() == chain);
        assert_eq!((has("filter-cali-reject"), has("filter-cali-pi-x")), (is_needed, false));
        assert!(lab.table.problems().is_empty());
    }
}
