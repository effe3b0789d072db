//! A group whose table is over budget denies everything and names its policies; other groups are
//! built as usual.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::net::Ipv4Addr;
use std::sync::Arc;

use tortie_classes::evaluate::{Missing, Packet, Settings, Verdict};
use tortie_classes::{Budget, Classes, Compiled, GroupId};
use tortie_model::desired::{DesiredUpdate, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState};
use tortie_model::{
    Cidr, Direction, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpointId,
};

const INGRESS: Direction = Direction::Ingress;

/// A policy of the namespace before the slash, of `dev` without one.
fn policy_id(name: &str) -> PolicyId {
    let (namespace, name) = name.split_once('/').unwrap_or(("dev", name));
    PolicyId::new(PolicyKind::NetworkPolicy, namespace, name)
}

fn source(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0b00_0000 + number)
}

/// Rules that each allow a different address and port.
fn distinct(count: u32) -> Vec<Rule> {
    let one = |number: u32| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.source.nets = [Cidr::host(source(number).into())].into();
        rule.destination.ports = [PortSpec::single(u16::try_from(number % 65_535 + 1).unwrap())].into();
        rule
    };
    (0..count).map(one).collect()
}

fn policy(name: &str, rules: Vec<Rule>) -> DesiredUpdate {
    let sets = vec![RuleSets::default(); rules.len()];
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

/// A workload that policies govern in this order.
fn workload(name: &str, policies: &[&str]) -> DesiredUpdate {
    let ingress = policies.iter().map(|name| policy_id(name)).collect();
    let tier = TierPolicies { name: TierName::default_tier(), default_action: None, ingress, egress: [].into() };
    let state = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(workload_id(name), state)
}

fn apply(classes: &mut Classes, updates: impl IntoIterator<Item = DesiredUpdate>) {
    updates.into_iter().for_each(|update| classes.apply(&update).unwrap());
}

fn group(compiled: &Compiled<'_>, name: &str) -> GroupId {
    compiled.workload_group(&workload_id(name), INGRESS).unwrap()
}

/// Why a workload is denied everything.
fn refusal(compiled: &Compiled<'_>, name: &str) -> Option<Missing> {
    compiled.table(group(compiled, name)).unwrap().err()
}

fn verdict(compiled: &Compiled<'_>, name: &str, from: u32, port: u16) -> Verdict {
    let packet = Packet::tcp((source(from).into(), 40_000), ([192, 0, 2, 1].into(), port)).unwrap();
    compiled.workload(&workload_id(name), INGRESS, &packet).unwrap().verdict
}

fn is_right(compiled: &Compiled<'_>, name: &str, rules: u32) {
    for number in 0..rules + 2 {
        let port = u16::try_from(number + 1).unwrap();
        let expected = if number < rules { Verdict::Allow } else { Verdict::Deny };
        assert_eq!(verdict(compiled, name, number, port), expected, "{name} {number}");
        assert_eq!(verdict(compiled, name, number, port + 1), Verdict::Deny, "{name} {number}");
    }
}

#[test]
fn one_namespace_of_many_rules_is_refused_before_its_cost_is_spent() {
    let budget = Budget { group: 21 << 20, node: 512 << 20 };
    let mut classes = Classes::new(Settings::default());
    classes.set_budget(budget);
    apply(&mut classes, (0..6).map(|n| policy(&format!("r{n}"), distinct(10_000 - n))));
    apply(&mut classes, [policy("small", distinct(5)), workload("calm", &["small"])]);
    apply(&mut classes, [workload("loud", &["r0", "r1", "r2", "r3", "r4", "r5"])]);
    let compiled = classes.flush();
    let why = refusal(&compiled, "loud").unwrap();
    let policies = ["r0", "r1", "r2"].map(policy_id).to_vec();
    assert_eq!(why, Missing::TableBudget { limit: budget.group, policies });
    assert!(why.to_string().contains("22020096 bytes; policies with the most rules: "), "{why}");
    is_right(&compiled, "calm", 5);
    assert!(classes.table_bytes() < 100_000, "{}", classes.table_bytes());
    // A change of policy rebuilds the group.
    apply(&mut classes, (0..6).map(|n| policy(&format!("r{n}"), distinct(5))));
    let compiled = classes.flush();
    assert_eq!(refusal(&compiled, "loud"), None);
    is_right(&compiled, "loud", 5);
}

#[test]
fn many_large_groups_leave_room_for_each_small_one() {
    let budget = Budget { group: 2 << 20, node: 4 << 20 };
    let mut classes = Classes::new(Settings::default());
    classes.set_budget(budget);
    let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    for name in &names {
        apply(&mut classes, [policy(name, distinct(800)), workload(name, &[name])]);
    }
    apply(&mut classes, [policy("small", distinct(5)), workload("calm", &["small"])]);
    let compiled = classes.flush();
    let refused = names.iter().filter(|name| refusal(&compiled, name).is_some()).count();
    assert!((1..20).contains(&refused), "{refused}");
    is_right(&compiled, "calm", 5);
    assert!(classes.table_bytes() <= budget.node);
    // Free room is used.
    apply(&mut classes, names.iter().take(15).map(|name| DesiredUpdate::WorkloadEndpointRemove(workload_id(name))));
    classes.flush();
    let compiled = classes.flush();
    for name in names.iter().skip(15) {
        assert_eq!(refusal(&compiled, name), None, "{name}");
        assert_eq!(verdict(&compiled, name, 799, 800), Verdict::Allow);
    }
}

/// The workloads among these that are denied everything.
fn refused<'a>(compiled: &Compiled<'_>, names: &[&'a str]) -> Vec<&'a str> {
    names.iter().copied().filter(|name| refusal(compiled, name).is_some()).collect()
}

#[test]
fn the_largest_group_of_the_largest_namespace_is_refused() {
    let sizes = [("dev/a", 800), ("dev/b", 700), ("dev/c", 600), ("shop/d", 810), ("shop/e", 300)];
    let names = sizes.map(|(name, _)| name);
    let bytes = |of: &[(&str, u32)]| {
        let mut classes = Classes::new(Settings::default());
        of.iter()
            .for_each(|(name, rules)| apply(&mut classes, [policy(name, distinct(*rules)), workload(name, &[name])]));
        classes.flush();
        classes.table_bytes()
    };
    // One of the three of `dev` is too many; those of `shop` take less than half.
    let budget = Budget { group: 4 << 20, node: bytes(&sizes) - 1 };
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 0, 4, 2, 1]] {
        let mut classes = Classes::new(Settings::default());
        classes.set_budget(budget);
        for place in order {
            let (name, rules) = sizes[place];
            apply(&mut classes, [policy(name, distinct(rules)), workload(name, &[name])]);
            classes.flush();
            assert!(classes.table_bytes() <= budget.node);
        }
        let compiled = classes.flush();
        assert_eq!(refused(&compiled, &names), ["dev/a"], "{order:?}");
        assert!(
            matches!(refusal(&compiled, "dev/a"), Some(Missing::TableBudget { limit, .. }) if limit == budget.node)
        );
        is_right(&compiled, "shop/d", 810);
        // A removed group makes room for the group that waits.
        apply(&mut classes, [DesiredUpdate::WorkloadEndpointRemove(workload_id("dev/c"))]);
        assert_eq!(refused(&classes.flush(), &["dev/a", "dev/b", "shop/d", "shop/e"]), [""; 0]);
        // A smaller bound refuses again.
        classes.set_budget(Budget { group: 4 << 20, node: budget.node / 2 });
        classes.flush();
        assert!(classes.table_bytes() <= budget.node / 2);
    }
}

#[test]
fn named_ports_of_both_sides_are_bounded_before_they_are_multiplied() {
    use tortie_model::desired::{IpPortMember, IpSetType, IpSetUpdate, Members, PortProtocol};
    let set = |id: &str| {
        let member = |port: u16| IpPortMember::new(source(1).into(), PortProtocol::Tcp, port);
        let members = Members::IpPorts((1..=4000).map(member).collect());
        DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type: IpSetType::IpAndPort, members })
    };
    let rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
    let named = |id: &str| [id.into()].into_iter().collect();
    let sets = RuleSets { src_named_ports: named("n:from"), dst_named_ports: named("n:to"), ..RuleSets::default() };
    let product = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new([rule].into(), [sets].into()).unwrap(),
        outbound: Rules::default(),
    };
    let mut classes = Classes::new(Settings::default());
    apply(&mut classes, [set("n:from"), set("n:to")]);
    apply(&mut classes, [DesiredUpdate::Policy(policy_id("product"), product.into()), workload("loud", &["product"])]);
    apply(&mut classes, [policy("shop/small", distinct(5)), workload("calm", &["shop/small"])]);
    let compiled = classes.flush();
    let limit = Budget::default().policy();
    let why = Missing::TableBudget { limit, policies: vec![policy_id("product")] };
    assert_eq!(refusal(&compiled, "loud"), Some(why));
    is_right(&compiled, "calm", 5);
}

#[test]
fn a_table_that_grows_past_the_bound_is_dropped() {
    use tortie_model::desired::{IpSetDelta, IpSetType, IpSetUpdate, Members};
    let set = |number: u32, members: Vec<Cidr>| {
        let id = format!("s:{number}").as_str().into();
        DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members: Members::Nets(members) })
    };
    let rule = |number: u32| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.destination.ports = [PortSpec::single(u16::try_from(1000 + number).unwrap())].into();
        let src = [format!("s:{number}").as_str().into()].into_iter().collect();
        (rule, RuleSets { src, ..RuleSets::default() })
    };
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = (0..12).map(rule).unzip();
    let asks = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new(rules.into(), sets.into()).unwrap(),
        outbound: Rules::default(),
    };
    let mut classes = Classes::new(Settings::default());
    classes.set_budget(Budget { group: 30_000, node: 1 << 20 });
    apply(&mut classes, (0..12).map(|number| set(number, Vec::new())));
    apply(&mut classes, [DesiredUpdate::Policy(policy_id("sets"), asks.into()), workload("grows", &["sets"])]);
    apply(&mut classes, [policy("small", distinct(5)), workload("calm", &["small"])]);
    assert_eq!(refusal(&classes.flush(), "grows"), None);
    // Each address is in different sets than the one before, so each has a row.
    for address in 0..4096 {
        for number in (0..12).filter(|number| address >> number & 1 == 1) {
            let id = format!("s:{number}").as_str().into();
            let added = Members::Nets(vec![Cidr::host(Ipv4Addr::from_bits(0x0c00_0000 + address).into())]);
            let delta = IpSetDelta { id, added, removed: Members::Nets(Vec::new()) };
            classes.apply(&DesiredUpdate::IpSetDelta(delta)).unwrap();
        }
    }
    let compiled = classes.flush();
    let group = group(&compiled, "grows");
    assert!(matches!(refusal(&compiled, "grows"), Some(Missing::TableBudget { limit: 30_000, .. })));
    assert!(compiled.changed_groups().contains(&group));
    is_right(&compiled, "calm", 5);
    assert!(classes.table_bytes() < 30_000);
    apply(&mut classes, ["grows", "calm"].map(|name| DesiredUpdate::WorkloadEndpointRemove(workload_id(name))));
    classes.flush();
    assert_eq!(classes.table_bytes(), 0);
}

#[test]
fn classes_of_addresses_do_not_inherit_without_bound() {
    let wide = |first: u32, count: u32| -> Vec<Rule> {
        let one = |number: u32| {
            let mut rule = Rule::new(RuleAction::Allow);
            rule.source.nets =
                [Cidr::new(source(0).into(), 8).unwrap(), Cidr::host(source(2 * number + 1).into())].into();
            rule
        };
        (first..first + count).map(one).collect()
    };
    let budget = Budget { group: 8 << 20, node: 32 << 20 };
    let mut classes = Classes::new(Settings::default());
    classes.set_budget(budget);
    apply(
        &mut classes,
        [policy("loud", wide(0, 1_600)), policy("dev/quiet", wide(0, 20)), policy("shop/small", distinct(5))],
    );
    apply(
        &mut classes,
        [workload("loud", &["loud"]), workload("quiet", &["dev/quiet"]), workload("calm", &["shop/small"])],
    );
    // Each address of the one would inherit the atoms of all rules of the other.
    let compiled = classes.flush();
    let why = Missing::TableBudget { limit: budget.group, policies: vec![policy_id("loud")] };
    assert_eq!(refusal(&compiled, "loud"), Some(why));
    assert_eq!(verdict(&compiled, "quiet", 1, 1), Verdict::Allow);
    is_right(&compiled, "calm", 5);
    // Fewer rules fit again.
    apply(&mut classes, [policy("loud", wide(0, 200))]);
    let compiled = classes.flush();
    assert_eq!(refusal(&compiled, "loud"), None);
    assert_eq!(verdict(&compiled, "loud", 1, 1), Verdict::Allow);
    // Free room is used.
    apply(
        &mut classes,
        [policy("loud", wide(0, 1_300)), policy("shop/other", wide(5_000, 700)), workload("other", &["shop/other"])],
    );
    let compiled = classes.flush();
    assert!(refusal(&compiled, "loud").is_some());
    assert_eq!(refusal(&compiled, "other"), None);
    apply(&mut classes, [DesiredUpdate::PolicyRemove(policy_id("shop/other"))]);
    assert_eq!(refusal(&classes.flush(), "loud"), None);
    let owners = ["loud", "dev/quiet", "shop/small"].map(|name| DesiredUpdate::PolicyRemove(policy_id(name)));
    apply(&mut classes, owners);
    apply(
        &mut classes,
        ["loud", "quiet", "calm", "other"].map(|name| DesiredUpdate::WorkloadEndpointRemove(workload_id(name))),
    );
    classes.flush();
    classes.flush();
    assert!(classes.is_empty());
}

#[test]
fn networks_of_sets_are_inherited_within_the_same_bound() {
    use tortie_model::desired::{IpSetDelta, IpSetType, IpSetUpdate, Members};
    let id = |set: u32| format!("s:{set}").as_str().into();
    let members = |nets: Vec<Cidr>| Members::Nets(nets);
    let wide = || Cidr::new(source(0).into(), 8).unwrap();
    let whole = |set: u32| {
        let members = members(vec![wide(), Cidr::host(source(2 * set + 1).into())]);
        DesiredUpdate::IpSet(IpSetUpdate { id: id(set), set_type: IpSetType::Net, members })
    };
    let change = |set: u32, added: Vec<Cidr>, removed: Vec<Cidr>| {
        DesiredUpdate::IpSetDelta(IpSetDelta { id: id(set), added: members(added), removed: members(removed) })
    };
    let asks = |name: &str, asked: std::ops::Range<u32>| {
        let sets = |set: u32| RuleSets { src: [id(set)].into_iter().collect(), ..RuleSets::default() };
        let sets: Vec<RuleSets> = asked.map(sets).collect();
        let rules = vec![Rule::new(RuleAction::Allow); sets.len()];
        let inbound = Rules::new(rules.into(), sets.into()).unwrap();
        let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
        DesiredUpdate::Policy(policy_id(name), policy.into())
    };
    let budget = Budget { group: 8 << 20, node: 32 << 20 };
    let mut classes = Classes::new(Settings::default());
    classes.set_budget(budget);
    apply(&mut classes, (0..1_620).map(whole));
    apply(&mut classes, [asks("loud", 0..1_600), asks("quiet", 1_600..1_620), policy("shop/small", distinct(5))]);
    apply(
        &mut classes,
        [workload("loud", &["loud"]), workload("quiet", &["quiet"]), workload("calm", &["shop/small"])],
    );
    let compiled = classes.flush();
    let why = Missing::TableBudget { limit: budget.group, policies: vec![policy_id("loud")] };
    assert_eq!(refusal(&compiled, "loud"), Some(why));
    assert_eq!(verdict(&compiled, "quiet", 1_601, 1), Verdict::Allow);
    is_right(&compiled, "calm", 5);
    assert!(compiled.prefix_count() < 30);
    // A set that only the refused policy has keeps changing.
    apply(&mut classes, [change(7, vec![Cidr::host(source(5_000).into())], Vec::new())]);
    assert!(refusal(&classes.flush(), "loud").is_some());
    apply(&mut classes, (0..1_600).map(|set| change(set, Vec::new(), vec![wide()])));
    let compiled = classes.flush();
    assert_eq!(refusal(&compiled, "loud"), None);
    assert_eq!([5_000, 15, 16].map(|from| verdict(&compiled, "loud", from, 1)), {
        use Verdict::{Allow, Deny};
        [Allow, Allow, Deny]
    });
}
