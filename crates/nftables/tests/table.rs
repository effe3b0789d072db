//! What a table writes, and what it writes not.
#![allow(clippy::unwrap_used, reason = "a test may stop at what cannot be")]

use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Family, IpSetId, IpSetName};
use tortie_netfilter::{
    Action, Chain, ChainName, ChainProblem, HookPosition, InPlace, Matches, Member, Rule, SetType, Side,
    Table as Layer, kernel_chain,
};
use tortie_nftables::fake::FakeKernel;
use tortie_nftables::{Command, Features, Table, TableConfig, TableId};

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
    /// FORWARD leads to a chain that lets a set through and drops the rest.
    fn new() -> Self {
        let mut lab = Self {
            table: Table::new(TableConfig::new(V4), Features::ALL),
            kernel: FakeKernel::new(V4),
            now: Duration::ZERO,
        };
        lab.table.set_hook(
            Layer::Filter,
            kernel_chain::FORWARD,
            HookPosition::Insert,
            vec![Rule::new(Action::Jump(name("cali-FORWARD")))],
        );
        lab.set(&["10.0.0.0/8", "192.0.2.1/32"]);
        lab.policy(&[Action::Accept, Action::Drop]);
        lab
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
fn everything_is_one_transaction_and_nothing_is_none() {
    let mut lab = Lab::new();
    let lines = lab.apply();
    assert_eq!(lab.kernel.transactions.len(), 1);
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:?}"));
    assert!(at("add table") < at("add set ip calico cali40s-clients"));
    assert!(
        at("add element ip calico cali40s-clients { 10.0.0.0/8 }") < at("ip saddr @cali40s-clients counter accept")
    );
    assert!(at("add chain ip calico filter-cali-FORWARD") < at("counter jump filter-cali-FORWARD"));
    assert_eq!(lines.iter().filter(|line| line.contains(" hook ")).count(), 14);
    assert_eq!(lab.apply(), [""; 0]);
    // Nor does somebody else who wants the same write anything.
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
    // What is inside of another network is not told.
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
    // Their numbers are not known before the table has been read.
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
    // Less than to delete the other three.
    assert_eq!((lines.len(), lines[0].as_str()), (2, "flush chain ip calico filter-cali-FORWARD"));
}

#[test]
fn what_goes_is_taken_apart_in_order() {
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
        Command::AddRule { rule, .. } if rule.shown.text.ends_with("accept") => {
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
    // It is tried again, and the rest is in force meanwhile.
    lab.now += Duration::from_secs(2);
    lab.apply();
    assert_eq!(lab.table.problems().len(), 1);
    lab.kernel.refuse = None;
    lab.now += Duration::from_secs(30);
    assert!(lab.apply().iter().any(|line| line.contains("accept")));
    assert_eq!(lab.table.problems(), []);
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
fn failures_without_a_reason_are_tried_again_and_told_at_last() {
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
fn maps_lead_to_chains_and_keep_them_there() {
    let mut lab = Lab::new();
    lab.apply();
    let (map, to) = (name("cali-from-wl-dispatch"), name("cali-fw-cali1"));
    let interface = "cali1".parse().unwrap();
    lab.table.define_map(Layer::Filter, map);
    assert_eq!(lab.apply(), ["add map ip calico filter-cali-from-wl-dispatch { type ifname : verdict ; }"]);
    // A map without members is remembered.
    assert_eq!(lab.apply(), [""; 0]);
    lab.table.update_chain(Layer::Filter, Chain::new(to, vec![Rule::new(Action::Return)]));
    lab.table.lead(Layer::Filter, map, interface, Some(to));
    let lines = lab.apply();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[2], "add element ip calico filter-cali-from-wl-dispatch { cali1 : goto filter-cali-fw-cali1 }");
    lab.table.lead(Layer::Filter, map, interface, None);
    let lines = lab.apply();
    assert_eq!(lines[0], "delete element ip calico filter-cali-from-wl-dispatch { cali1 : goto filter-cali-fw-cali1 }");
    assert_eq!(lines.last().unwrap(), "delete chain ip calico filter-cali-fw-cali1");
}
