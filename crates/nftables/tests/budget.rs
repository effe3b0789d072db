//! The rules of chains whose layout is over budget are evaluated one after the other; other chains
//! keep their layout.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use tortie_net::{Budget, Cidr, Family, IpSetId, IpSetName};
use tortie_netfilter::{
    Action, Chain, ChainName, ChainPrefix, ChainProblem, HookPosition, Layout, MarkBits, Matches, Member, NetMember,
    Origin, PortList, Protocol, Rule, SetType, Side, Table as Layer, kernel_chain,
};
use tortie_nftables::fake::FakeKernel;
use tortie_nftables::{Features, Table, TableConfig, TableId};

const V4: TableId = TableId::calico(Family::V4);
const LAYER: Layer = Layer::Filter;

struct Bench {
    table: Table,
    kernel: FakeKernel,
    now: Duration,
    hooked: Vec<Rule>,
}

impl Bench {
    fn new(budget: Budget) -> Self {
        let config = TableConfig { layout: Layout::Fast, budget, ..TableConfig::new(V4) };
        let (table, kernel) = (Table::new(config, Features::ALL), FakeKernel::new(V4));
        let mut bench = Self { table, kernel, now: Duration::ZERO, hooked: Vec::new() };
        bench.set("peers", 64);
        bench
    }

    fn set(&mut self, name: &str, members: u32) {
        let id = IpSetId::from(name);
        self.table.replace_set(&id, set_name(name), SetType::HashNet, (0..members).map(member)).unwrap();
    }

    fn policy(&mut self, owner: &str, rules: Vec<Rule>) {
        self.table.update_chain(LAYER, Chain::new(policy(owner), rules));
    }

    /// FORWARD leads to a group of these policies.
    fn group(&mut self, name: &str, owners: &[&str]) {
        let includes = owners.iter().map(|owner| Rule::new(Action::Include(policy(owner))));
        self.table.update_chain(LAYER, Chain::new(group(name), includes.collect()));
        self.hooked.push(Rule::new(Action::Jump(group(name))));
        self.table.set_hook(LAYER, kernel_chain::FORWARD, HookPosition::Insert, self.hooked.clone());
    }

    fn apply(&mut self) {
        self.kernel.apply(&mut self.table, &mut self.now).unwrap();
    }

    /// Chains over budget, and the bound of each.
    fn over(&self) -> BTreeSet<(ChainName, usize)> {
        let problems = self.table.problems().into_iter();
        problems
            .map(|(_, problem)| match problem {
                ChainProblem::OverBudget { chain, limit } => (chain, limit),
                other => panic!("{other}"),
            })
            .collect()
    }

    /// Reports whether a policy has a separate chain in the kernel.
    fn is_led_to(&self, owner: &str) -> bool {
        self.table.kernel_name(LAYER, policy(owner)).is_some()
    }
}

fn policy(owner: &str) -> ChainName {
    ChainName::limited(ChainPrefix::new("cali-pi-"), owner)
}

fn group(name: &str) -> ChainName {
    ChainName::limited(ChainPrefix::new("cali-gi-"), name)
}

fn set_name(name: &str) -> IpSetName {
    IpSetName::new(&format!("cali40{name}")).unwrap()
}

fn member(number: u32) -> Member {
    Member::Net(NetMember::from(Cidr::host(Ipv4Addr::from_bits(0x0a00_0000 + number).into())))
}

fn rule(owner: &str, matches: Matches) -> Rule {
    let actions = [Action::SetMark(MarkBits::new(0x1_0000).unwrap()), Action::Return];
    let origin = Some(Origin { owner: owner.into(), part: Some(0) });
    Rule { origin, ..Rule::when(matches, Action::Several(actions.into())) }
}

/// Rules for one port each, which no two of have in common.
fn ports(owner: &str, count: u16) -> Vec<Rule> {
    let one = |number: u16| {
        let ports = PortList::single(1000 + number);
        let source = PortList::single(2000 + number);
        rule(owner, Matches::new().protocol(Protocol::TCP).source_ports(source).destination_ports(ports))
    };
    (0..count).map(one).collect()
}

/// Rules that all match members of one set, and each the same ports.
fn products(owner: &str, set: &str, count: u16, ports: u16) -> Vec<Rule> {
    let one = |number: u16| {
        let destination = (0..ports).map(|port| 1000 + 2 * port).map(PortList::single);
        let destination: Vec<_> = destination.flat_map(|list| list.ranges().to_vec()).collect();
        let source = PortList::single(2000 + number);
        let matches = Matches::new().protocol(Protocol::TCP).source_ports(source);
        let matches = matches.destination_ports(PortList::unsplit(&destination).unwrap());
        rule(owner, matches.ip_set(Side::Source, set_name(set)))
    };
    (0..count).map(one).collect()
}

const LOUD: &str = "NetworkPolicy/dev/loud";
const CALM: &str = "NetworkPolicy/prod/calm";

#[test]
fn copies_for_ports_and_members_are_refused_before_they_are_made() {
    let budget = Budget { group: 2 << 20, node: 64 << 20 };
    let mut bench = Bench::new(budget);
    bench.set("all", 2_000);
    // 16 maps of 2,000 addresses, each with 12 rules.
    bench.policy(LOUD, products(LOUD, "all", 12, 16));
    bench.policy(CALM, ports(CALM, 8));
    bench.group("loud", &[LOUD]);
    bench.group("calm", &[CALM]);
    bench.apply();
    assert_eq!(bench.over(), [(group("loud"), budget.group)].into());
    assert!(bench.is_led_to(LOUD) && !bench.is_led_to(CALM));
    assert!(bench.table.stats().maps > 0, "the calm group keeps its map");
    // Fewer addresses are laid out as usual.
    bench.policy(LOUD, products(LOUD, "peers", 12, 16));
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    assert!(!bench.is_led_to(LOUD));
}

#[test]
fn a_group_with_many_rules_jumps_to_the_chains_of_its_policies() {
    let budget = Budget { group: 1 << 20, node: 64 << 20 };
    let mut bench = Bench::new(budget);
    bench.policy(LOUD, ports(LOUD, 400));
    bench.policy(CALM, ports(CALM, 400));
    bench.group("both", &[LOUD, CALM]);
    bench.group("one", &[CALM]);
    bench.apply();
    let over = bench.over();
    assert!(over.contains(&(group("both"), budget.group)), "{over:?}");
    let shown = bench.kernel.read().unwrap().unwrap();
    let chain = shown.chains.iter().find(|(name, _)| name.as_str().ends_with(group("both").as_str())).unwrap().1;
    assert_eq!(chain.rules.len(), 4, "a jump to each, and a return on a verdict");
    bench.policy(LOUD, ports(LOUD, 4));
    bench.policy(CALM, ports(CALM, 4));
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    assert!(!bench.is_led_to(LOUD) && !bench.is_led_to(CALM));
}

#[test]
fn the_namespace_that_takes_the_most_gives_way() {
    let budget = Budget { group: 12 << 20, node: 12 << 20 };
    let mut bench = Bench::new(budget);
    let owners: Vec<String> = (0..8).map(|number| format!("NetworkPolicy/dev/p{number}")).collect();
    for (number, owner) in owners.iter().enumerate() {
        bench.policy(owner, ports(owner, 400));
        bench.group(&number.to_string(), &[owner]);
    }
    bench.policy(CALM, ports(CALM, 400));
    bench.group("calm", &[CALM]);
    bench.apply();
    let over = bench.over();
    assert!((1..8).contains(&over.len()), "{over:?}");
    assert!(!bench.is_led_to(CALM));
    assert!(over.iter().all(|(_, limit)| *limit == budget.node));
    // Free room is used.
    for owner in owners.iter().skip(2) {
        bench.policy(owner, ports(owner, 4));
    }
    bench.apply();
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
}

#[test]
fn a_layout_that_grows_with_members_is_given_up_at_the_bound() {
    let budget = Budget { group: 4 << 20, node: 64 << 20 };
    let mut bench = Bench::new(budget);
    bench.policy(LOUD, products(LOUD, "peers", 12, 16));
    bench.policy(CALM, products(CALM, "peers", 4, 2));
    bench.group("loud", &[LOUD]);
    bench.group("calm", &[CALM]);
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    let (id, name) = (IpSetId::from("peers"), set_name("peers"));
    bench.table.edit_set(&id, name, (64..2_000).map(member), []).unwrap();
    bench.apply();
    assert_eq!(bench.over(), [(group("loud"), budget.group)].into());
    assert_eq!(bench.table.set_members(name).unwrap().len(), 2_000);
    // The same members as at first, without a change of a policy.
    bench.table.edit_set(&id, name, [], (64..2_000).map(member)).unwrap();
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    assert!(!bench.is_led_to(LOUD));
}

/// A bench whose group is over budget because of 2,000 members of the set `all`.
fn over_by_members() -> Bench {
    let mut bench = Bench::new(Budget { group: 2 << 20, node: 64 << 20 });
    bench.set("all", 2_000);
    bench.policy(LOUD, products(LOUD, "all", 12, 16));
    bench.group("loud", &[LOUD]);
    bench.apply();
    assert_eq!(bench.over(), [(group("loud"), 2 << 20)].into());
    bench
}

#[test]
fn a_set_with_fewer_members_has_its_chains_laid_out_again() {
    let mut bench = over_by_members();
    bench.set("all", 64);
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    assert!(bench.table.stats().maps > 0 && !bench.is_led_to(LOUD));

    let mut bench = over_by_members();
    bench.table.edit_set(&IpSetId::from("all"), set_name("all"), [], (0..2_000).map(member)).unwrap();
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
}

#[test]
fn members_that_leave_bit_by_bit_cost_an_attempt_in_five_seconds() {
    let mut bench = over_by_members();
    let (id, name) = (IpSetId::from("all"), set_name("all"));
    let begun = bench.now;
    // The first attempt is immediate and fails.
    for number in (64..2_000).step_by(88) {
        bench.table.edit_set(&id, name, [], (number..number + 88).map(member)).unwrap();
        bench.apply();
    }
    assert_eq!((bench.over().len(), bench.now), (1, begun));
    let next = bench.kernel.apply(&mut bench.table, &mut bench.now).unwrap();
    assert_eq!(next, Some(Duration::from_secs(5)));
    bench.now += Duration::from_secs(5);
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    // No retry is pending.
    let next = bench.kernel.apply(&mut bench.table, &mut bench.now).unwrap();
    assert!(next > Some(Duration::from_secs(60)), "{next:?}");
}

#[test]
fn a_chain_takes_the_room_that_members_of_another_leave() {
    let budget = Budget { group: 6 << 20, node: 6 << 20 };
    let mut bench = Bench::new(budget);
    bench.set("all", 2_000);
    let [one, other] = ["NetworkPolicy/dev/a", "NetworkPolicy/dev/b"];
    for (owner, set) in [(one, "all"), (other, "peers")] {
        bench.policy(owner, products(owner, set, 12, 4));
        bench.group(owner, &[owner]);
    }
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
    // Both have room alone, and not together.
    bench.set("peers", 2_000);
    bench.apply();
    let over = bench.over();
    assert!(!over.is_empty() && over.iter().all(|(_, limit)| *limit == budget.node), "{over:?}");
    bench.set("peers", 64);
    bench.apply();
    assert_eq!(bench.over(), BTreeSet::new());
}
