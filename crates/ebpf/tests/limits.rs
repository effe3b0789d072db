//! A group that exceeds a limit denies everything until it takes less; the other groups are not
//! affected.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_ebpf::classes::evaluate::{Missing, Packet, Settings, Verdict};
use tortie_ebpf::classes::{Budget, Classes, GroupId};
use tortie_ebpf::{Closed, GroupRoots, Limits, Tables};
use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpointId,
};

const INGRESS: Direction = Direction::Ingress;

fn policy_id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", name)
}

fn source(number: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + u32::from(number))
}

fn set(number: u16) -> DesiredUpdate {
    let members = Members::Nets(vec![Cidr::host(source(number).into())]);
    DesiredUpdate::IpSet(IpSetUpdate { id: format!("s:{number}").as_str().into(), set_type: IpSetType::Net, members })
}

/// A policy with a rule for each set, which allows a separate port.
fn policy(name: &str, sets: impl Iterator<Item = u16>) -> DesiredUpdate {
    let one = |number: u16| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.destination.ports = [PortSpec::single(1000 + number)].into();
        let src = [format!("s:{number}").as_str().into()].into_iter().collect();
        (rule, RuleSets { src, ..RuleSets::default() })
    };
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = sets.map(one).unzip();
    let policy = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new(rules.into(), sets.into()).unwrap(),
        outbound: Rules::default(),
    };
    DesiredUpdate::Policy(policy_id(name), policy.into())
}

fn workload_id(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

fn workload(name: &str) -> DesiredUpdate {
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: [policy_id(name)].into(),
        egress: [].into(),
    };
    let state = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(workload_id(name), state)
}

/// Classes of two workloads, and tables that follow them.
struct Live {
    classes: Classes,
    tables: Tables,
}

impl Live {
    fn new(limits: Limits, large: impl Iterator<Item = u16>) -> Self {
        let mut live = Self { classes: Classes::new(Settings::default()), tables: Tables::with_limits(limits) };
        let sets = (0..400).map(set);
        let rest = [policy("large", large), policy("small", 0..2), workload("large"), workload("small")];
        live.send_updates(sets.chain(rest));
        live
    }

    fn send_updates(&mut self, updates: impl IntoIterator<Item = DesiredUpdate>) {
        updates.into_iter().for_each(|update| self.classes.apply(&update).unwrap());
        let _ = self.tables.update(&self.classes.flush());
        self.tables.reclaim();
    }

    /// Expects a workload's ingress group to be closed for this reason, and all other groups to
    /// decide like the policies.
    fn expect_closed(&mut self, expected: Option<&Closed>) {
        let follows = self.tables.closed().map(|(group, why)| (group, why.clone())).collect::<Vec<_>>();
        let compiled = self.classes.flush();
        let group = |name: &str, direction| compiled.workload_group(&workload_id(name), direction).unwrap();
        let closed: Vec<(GroupId, Closed)> =
            expected.map(|why| (group("large", INGRESS), why.clone())).into_iter().collect();
        assert_eq!(follows, closed);
        let is_closed = self.tables.group(group("large", INGRESS)) == Some(GroupRoots::CLOSED);
        assert_eq!(is_closed, expected.is_some());
        for name in ["large", "small"] {
            for direction in [INGRESS, Direction::Egress] {
                for (from, port) in (0..400).flat_map(|from| [(from, from), (from, 1), (from, 0)]) {
                    let client = (source(from).into(), 40000);
                    let packet = Packet::tcp(client, ([192, 0, 2, 1].into(), 1000 + port)).unwrap();
                    let decided = self.tables.decided(self.tables.decide(group(name, direction), direction, &packet));
                    let answer = compiled.workload(&workload_id(name), direction, &packet);
                    if expected.is_some() && (name, direction) == ("large", INGRESS) {
                        assert_eq!(decided, (Verdict::Deny, None), "{packet:?}");
                    } else {
                        let answer = answer.unwrap();
                        assert_eq!(decided, (answer.verdict, Some(&answer.decided_by)), "{name} {packet:?}");
                    }
                }
            }
        }
        // The lookups above flushed the classes, which must not count as a change.
        let _ = self.tables.update(&compiled);
        self.tables.reclaim();
    }

    fn end(mut self) {
        let all = ["large", "small"];
        self.send_updates(all.map(|name| DesiredUpdate::WorkloadEndpointRemove(workload_id(name))));
        self.send_updates(all.map(|name| DesiredUpdate::PolicyRemove(policy_id(name))));
        self.send_updates((0..400).map(|number| DesiredUpdate::IpSetRemove(format!("s:{number}").as_str().into())));
        assert!(self.tables.is_empty());
    }
}

#[test]
fn a_group_of_too_many_cells_denies_alone() {
    let limits = Limits { cells: 1000, ..Limits::default() };
    let mut live = Live::new(limits, 0..40);
    // 41 rows and one of IPv6, and 41 columns and some between protocols.
    let too_many = live.tables.closed().next().map(|(_, why)| why.clone());
    assert!(matches!(too_many, Some(Closed::TooManyCells(1000..3000))), "{too_many:?}");
    assert!(too_many.as_ref().unwrap().to_string().contains("too many cells"));
    live.expect_closed(too_many.as_ref());
    live.send_updates([policy("large", 0..10)]);
    live.expect_closed(None);
    live.send_updates([policy("large", 0..40)]);
    live.expect_closed(too_many.as_ref());
    live.end();
}

#[test]
fn a_group_that_is_too_much_work_denies_alone() {
    // There are so many cells that none are kept, and lines are computed.
    let limits = Limits { work: 2000, ..Limits::default() };
    let mut live = Live::new(limits, 0..300);
    let too_many = live.tables.closed().next().map(|(_, why)| why.clone());
    assert!(matches!(too_many, Some(Closed::TooManyCells(90_000..))), "{too_many:?}");
    live.expect_closed(too_many.as_ref());
    live.send_updates([policy("large", 0..100)]);
    live.expect_closed(None);
    live.end();
    let mut all = Live::new(Limits::default(), 0..300);
    all.expect_closed(None);
}

#[test]
fn a_group_about_classes_beyond_those_that_there_may_be_denies_alone() {
    // Sets without a rule make no classes: those of the two families and of ten sets exist, one for
    // each.
    let limits = Limits { classes: 8, ..Limits::default() };
    let mut live = Live::new(limits, 0..10);
    let too_many = Closed::TooManyClasses(8);
    assert!(too_many.to_string().contains("8 address classes"));
    live.expect_closed(Some(&too_many));
    live.send_updates([policy("large", 0..3)]);
    live.expect_closed(None);
    // An address gets a specific class in tables that stay.
    live.send_updates([policy("large", (0..3).chain([200, 201, 202, 203]))]);
    live.expect_closed(Some(&too_many));
    live.send_updates([policy("large", 0..3)]);
    live.expect_closed(None);
    live.end();
}

#[test]
fn changing_classes_close_the_groups_that_depend_on_them() {
    let mut live = Live::new(Limits { classes: 8, ..Limits::default() }, 0..5);
    live.expect_closed(None);
    let nets =
        |numbers: &[u16]| Members::Nets(numbers.iter().map(|number| Cidr::host(source(*number).into())).collect());
    let mut closed_of = [0, 0];
    // Addresses join sets and leave them. An address in a second set has another class, with the
    // same row in tables that do not depend on that set.
    let joins: [(u16, &[u16]); 5] = [(4, &[5, 6, 7, 8]), (3, &[5]), (2, &[6]), (0, &[7]), (1, &[8])];
    let leaves = [joins[3], joins[4], joins[1], joins[2]];
    for (joining, (set, addresses)) in
        joins.iter().map(|join| (true, join)).chain(leaves.iter().map(|leave| (false, leave)))
    {
        let (some, none) = (nets(addresses), nets(&[]));
        let (added, removed) = if joining { (some, none) } else { (none, some) };
        let id = format!("s:{set}").as_str().into();
        live.classes.apply(&DesiredUpdate::IpSetDelta(IpSetDelta { id, added, removed })).unwrap();
        let compiled = live.classes.flush();
        let _ = live.tables.update(&compiled);
        for (name, times) in ["large", "small"].into_iter().zip(&mut closed_of) {
            let group = compiled.workload_group(&workload_id(name), INGRESS).unwrap();
            let why = live.tables.closed().find(|(closed, _)| *closed == group).map(|(_, why)| why.clone());
            assert!(matches!(why, None | Some(Closed::TooManyClasses(8))), "{why:?}");
            *times += usize::from(why.is_some());
            for (from, port) in (0..10).flat_map(|from| (0..5).map(move |port| (from, port))) {
                let client = (source(from).into(), 40000);
                let packet = Packet::tcp(client, ([192, 0, 2, 1].into(), 1000 + port)).unwrap();
                let decided = live.tables.decided(live.tables.decide(group, INGRESS, &packet));
                let answer = compiled.workload(&workload_id(name), INGRESS, &packet).unwrap();
                let expected = (answer.verdict, Some(&answer.decided_by));
                assert_eq!(decided, if why.is_some() { (Verdict::Deny, None) } else { expected }, "{name} {packet:?}");
            }
        }
    }
    let [large, small] = closed_of;
    assert!(large >= small && (1..9).contains(&small), "{closed_of:?}");
    live.end();
}

#[test]
fn a_group_over_its_table_budget_denies_alone_and_names_its_policy() {
    let mut live = Live::new(Limits::default(), 0..400);
    live.expect_closed(None);
    let budget = Budget { group: 200 << 10, node: 1 << 20 };
    live.classes.set_budget(budget);
    live.send_updates([]);
    // The rules of one policy may take an eighth of the budget.
    let over = |limit| Closed::Missing(Missing::TableBudget { limit, policies: vec![policy_id("large")] });
    assert!(over(budget.policy()).to_string().contains("25600 bytes"), "{}", over(budget.policy()));
    assert!(over(budget.policy()).to_string().contains("shop/large"), "{}", over(budget.policy()));
    live.expect_closed(Some(&over(budget.policy())));
    live.send_updates([policy("large", 0..20)]);
    live.expect_closed(None);
    live.end();
}

#[test]
fn limits_outside_the_range_are_clamped() {
    let none = Limits { cells: u32::MAX, classes: 0, ..Limits::default() };
    let mut live = Live::new(none, 0..10);
    live.expect_closed(Some(&Closed::TooManyClasses(8)));
    let all = Limits { cells: u32::MAX, classes: u32::MAX, ..Limits::default() };
    let mut live = Live::new(all, 0..10);
    live.expect_closed(None);
}

#[test]
fn trees_of_addresses_stay_within_the_blocks_that_classes_count() {
    // Distant and adjacent networks of both families.
    let scattered = |number: u32| number.wrapping_mul(0x9e37_79b1);
    let v4 = (0..400).flat_map(|number| {
        let address = Ipv4Addr::from_bits(scattered(number));
        [
            (address, 32),
            (address, 20 + u8::try_from(number % 8).unwrap()),
            (Ipv4Addr::from_bits(0x0a00_0000 + number), 32),
        ]
    });
    let v4 = v4.map(|(address, length)| Cidr::new(address.into(), length).unwrap().masked());
    let v6 = (0..400).flat_map(|number| {
        let far = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(scattered(number)) << 40);
        let near = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(number));
        [(far, 128), (far, 40 + u8::try_from(number % 64).unwrap()), (near, 128)]
    });
    let v6 = v6.map(|(address, length)| Cidr::new(address.into(), length).unwrap().masked());
    let nets: Vec<Cidr> = v4.chain(v6).collect();
    let members = |nets: &[Cidr]| {
        let members = Members::Nets(nets.to_vec());
        DesiredUpdate::IpSet(IpSetUpdate { id: "s:0".into(), set_type: IpSetType::Net, members })
    };
    let mut live = Live::new(Limits::default(), 0..1);
    let is_refused = |live: &Live| live.tables.closed().count() > 0;
    let mut tight = 0;
    for count in [0, 1, 10, 100, 700, nets.len()] {
        // Find the smallest bound, approximately, under which nothing is refused.
        let (mut low, mut high) = (0, 1 << 15);
        live.send_updates([members(&nets[..count])]);
        while high - low > 8 {
            let middle = usize::midpoint(low, high);
            live.classes.set_address_blocks(middle);
            live.send_updates([]);
            if is_refused(&live) { low = middle } else { high = middle }
        }
        live.classes.set_address_blocks(high);
        live.send_updates([]);
        assert!(!is_refused(&live));
        let taken = live.tables.block_count();
        assert!(taken as u64 <= high as u64 + live.tables.charged_blocks(), "{count}: {taken} of {high}");
        tight += usize::from(taken > high / 2);
        live.classes.set_address_blocks(usize::MAX);
        live.send_updates([]);
    }
    assert!(tight >= 3, "the bound is far from the blocks that are taken");
}
