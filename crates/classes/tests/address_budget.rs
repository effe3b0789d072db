//! Policies are refused while the trees of all addresses would exceed their bound, in the namespace
//! with the most networks.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_classes::evaluate::{Missing, Packet, Settings, Verdict};
use tortie_classes::{Classes, Compiled};
use tortie_model::desired::{
    DesiredUpdate, IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, PortProtocol, RuleSets, Rules,
    TierPolicies, WorkloadEndpointState,
};
use tortie_model::{Cidr, Direction, PolicyId, PolicyKind, Protocol, Rule, RuleAction, TierName, WorkloadEndpointId};

const INGRESS: Direction = Direction::Ingress;
/// The namespaces of policies by number; the first is the platform.
const NAMESPACES: [&str; 3] = ["", "dev", "shop"];
const POLICIES: u8 = 6;
/// The last one has ports.
const SETS: u8 = 4;
const PORTS: u8 = SETS - 1;

fn policy_id(number: u8) -> PolicyId {
    let namespace = NAMESPACES[usize::from(number) % NAMESPACES.len()];
    let kind = if namespace.is_empty() { PolicyKind::GlobalNetworkPolicy } else { PolicyKind::NetworkPolicy };
    PolicyId::new(kind, namespace, format!("p{number}"))
}

fn workload_id(number: u8) -> WorkloadEndpointId {
    WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("w{number}").as_str().into(),
        endpoint: "eth0".into(),
    }
}

fn set_id(number: u8) -> tortie_model::IpSetId {
    format!("s:{number}").as_str().into()
}

/// A single address or, if odd, the network of 16 around it.
fn net(number: u8) -> Cidr {
    let address = Ipv4Addr::new(10, number / 16, number, 1);
    Cidr::new(address.into(), if number % 2 == 1 { 28 } else { 32 }).unwrap().masked()
}

fn members(set: u8, numbers: &BTreeSet<u8>) -> Members {
    if set == PORTS {
        let member =
            |number: &u8| IpPortMember::new(net(*number).address(), PortProtocol::Tcp, 80 + u16::from(*number % 2));
        Members::IpPorts(numbers.iter().map(member).collect())
    } else {
        Members::Nets(numbers.iter().map(|number| net(*number)).collect())
    }
}

/// The networks of a policy's rule, and its sets.
type PolicyOf = (BTreeSet<u8>, BTreeSet<u8>);

#[derive(Clone, Debug)]
enum Step {
    Policy(u8, Option<PolicyOf>),
    /// The members of a set as a whole.
    Set(u8, BTreeSet<u8>),
    Change(u8, BTreeSet<u8>, BTreeSet<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let some = || proptest::collection::btree_set(0..60_u8, 0..12);
    let policy = (some(), proptest::collection::btree_set(0..SETS, 0..3));
    prop_oneof![
        3 => (0..POLICIES, proptest::option::weighted(0.8, policy)).prop_map(|(number, of)| Step::Policy(number, of)),
        1 => (0..SETS, some()).prop_map(|(set, members)| Step::Set(set, members)),
        4 => (0..SETS, some(), some()).prop_map(|(set, added, removed)| Step::Change(set, added, removed)),
    ]
}

/// The state of a node, and the messages that produce it.
#[derive(Default)]
struct Model {
    policies: BTreeMap<u8, PolicyOf>,
    sets: BTreeMap<u8, BTreeSet<u8>>,
}

fn policy(number: u8, (nets, sets): &PolicyOf) -> DesiredUpdate {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.nets = nets.iter().map(|number| net(*number)).collect::<Vec<_>>().into();
    let of_nets = (!nets.is_empty()).then_some((rule, RuleSets::default()));
    let of_set = |set: &u8| {
        let named = [set_id(*set)].into_iter().collect();
        if *set == PORTS {
            let rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
            (rule, RuleSets { dst_ip_ports: named, ..RuleSets::default() })
        } else {
            (Rule::new(RuleAction::Allow), RuleSets { src: named, ..RuleSets::default() })
        }
    };
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = of_nets.into_iter().chain(sets.iter().map(of_set)).unzip();
    let inbound = Rules::new(rules.into(), sets.into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    DesiredUpdate::Policy(policy_id(number), policy.into())
}

fn workload(number: u8) -> DesiredUpdate {
    let ingress = [policy_id(number)].into();
    let tier = TierPolicies { name: TierName::default_tier(), default_action: None, ingress, egress: [].into() };
    let state = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(workload_id(number), state)
}

fn whole_set(set: u8, numbers: &BTreeSet<u8>) -> DesiredUpdate {
    let set_type = if set == PORTS { IpSetType::IpAndPort } else { IpSetType::Net };
    DesiredUpdate::IpSet(IpSetUpdate { id: set_id(set), set_type, members: members(set, numbers) })
}

impl Model {
    fn new() -> Self {
        Self { policies: BTreeMap::new(), sets: (0..SETS).map(|set| (set, BTreeSet::new())).collect() }
    }

    fn step(&mut self, step: &Step) -> Vec<DesiredUpdate> {
        match step {
            Step::Policy(number, Some(of)) => {
                self.policies.insert(*number, of.clone());
                vec![policy(*number, of), workload(*number)]
            }
            Step::Policy(number, None) => {
                self.policies.remove(number);
                let workload = DesiredUpdate::WorkloadEndpointRemove(workload_id(*number));
                vec![workload, DesiredUpdate::PolicyRemove(policy_id(*number))]
            }
            Step::Set(set, numbers) => {
                self.sets.insert(*set, numbers.clone());
                vec![whole_set(*set, numbers)]
            }
            Step::Change(set, added, removed) => {
                let of = self.sets.entry(*set).or_default();
                let removed: BTreeSet<u8> =
                    removed.difference(added).filter(|number| of.contains(number)).copied().collect();
                let added: BTreeSet<u8> = added.difference(of).copied().collect();
                of.retain(|number| !removed.contains(number));
                of.extend(&added);
                let (added, removed) = (members(*set, &added), members(*set, &removed));
                vec![DesiredUpdate::IpSetDelta(IpSetDelta { id: set_id(*set), added, removed })]
            }
        }
    }

    fn rebuilt(&self, blocks: usize) -> Classes {
        let mut classes = Classes::new(Settings::default());
        classes.set_address_blocks(blocks);
        let sets = self.sets.iter().map(|(set, members)| whole_set(*set, members));
        let policies = self.policies.iter().flat_map(|(number, of)| [policy(*number, of), workload(*number)]);
        sets.chain(policies).for_each(|update| classes.apply(&update).unwrap());
        classes
    }

    fn refused(&self, compiled: &Compiled<'_>) -> BTreeSet<u8> {
        let is_refused = |number: &u8| match why(compiled, *number) {
            Some(Missing::AddressBudget { policy, .. }) => policy == Some(policy_id(*number)),
            None => false,
            Some(other) => panic!("{other}"),
        };
        self.policies.keys().copied().filter(is_refused).collect()
    }
}

fn why(compiled: &Compiled<'_>, number: u8) -> Option<Missing> {
    compiled.table(compiled.workload_group(&workload_id(number), INGRESS).unwrap()).unwrap().err()
}

/// Number of blocks of the tries of all addresses that have a class.
fn blocks(compiled: &Compiled<'_>) -> usize {
    let mut beginnings = BTreeSet::new();
    for (net, _) in compiled.prefixes() {
        let bytes = net.bits().to_be_bytes();
        beginnings.extend((0..usize::from(net.prefix_len().div_ceil(8))).map(|depth| bytes[..depth].to_vec()));
    }
    beginnings.len()
}

fn verdict(compiled: &Compiled<'_>, number: u8, from: Cidr, to_port: u16) -> Verdict {
    let packet = Packet::tcp((from.address(), 40_000), (net(4).address(), to_port)).unwrap();
    compiled.workload(&workload_id(number), INGRESS, &packet).unwrap().verdict
}

fn run(limit: usize, steps: &[Vec<Step>]) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    let mut classes = model.rebuilt(limit);
    for batch in steps {
        let updates: Vec<DesiredUpdate> = batch.iter().flat_map(|step| model.step(step)).collect();
        updates.iter().for_each(|update| classes.apply(update).unwrap());
        let compiled = classes.flush();
        let mut fresh = model.rebuilt(limit);
        let fresh = fresh.flush();
        let refused = model.refused(&compiled);
        if model.refused(&fresh).is_empty() {
            prop_assert_eq!(&refused, &BTreeSet::new());
        }
        let unused = model.sets.keys().any(|set| !model.policies.values().any(|(_, sets)| sets.contains(set)));
        prop_assert!(unused || blocks(&compiled) <= limit, "{} blocks", blocks(&compiled));
        let mut unbounded = model.rebuilt(usize::MAX);
        let unbounded = unbounded.flush();
        for number in model.policies.keys().filter(|number| !refused.contains(number)) {
            for (from, port) in (0..60).flat_map(|from| [(net(from), 80), (net(from), 81)]) {
                let expected = verdict(&unbounded, *number, from, port);
                prop_assert_eq!(verdict(&compiled, *number, from, port), expected, "{} {} {}", number, from, port);
            }
        }
    }
    // No state is left.
    let gone = (0..POLICIES).flat_map(|number| model.step(&Step::Policy(number, None)));
    let sets = (0..SETS).map(|set| DesiredUpdate::IpSetRemove(set_id(set)));
    gone.chain(sets).collect::<Vec<_>>().iter().for_each(|update| classes.apply(update).unwrap());
    classes.flush();
    classes.flush();
    prop_assert!(classes.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn networks_stay_within_their_bound(
        limit in 5..60_usize,
        steps in proptest::collection::vec(proptest::collection::vec(step(), 1..4), 1..12),
    ) {
        run(limit, &steps)?;
    }
}

#[test]
fn only_the_namespace_with_too_many_networks_is_refused() {
    let mut model = Model::new();
    let mut classes = model.rebuilt(30);
    let many: BTreeSet<u8> = (0..60).step_by(2).collect();
    let few = BTreeSet::from([1, 3, 5]);
    let apply_step = |classes: &mut Classes, model: &mut Model, step: Step| {
        model.step(&step).iter().for_each(|update| classes.apply(update).unwrap());
        let compiled = classes.flush();
        model.refused(&compiled)
    };
    let none = BTreeSet::new();
    // Policy 1 is of `dev`, with a set; 2 of `shop`; 3 of the platform.
    assert_eq!(apply_step(&mut classes, &mut model, Step::Policy(1, Some((none.clone(), [0].into())))), none);
    assert_eq!(apply_step(&mut classes, &mut model, Step::Policy(2, Some((few.clone(), none.clone())))), none);
    assert_eq!(apply_step(&mut classes, &mut model, Step::Change(0, many.clone(), none.clone())), [1].into());
    let compiled = classes.flush();
    let error = why(&compiled, 1).unwrap().to_string();
    assert_eq!(error, "its networks exceed the budget of 30 blocks for addresses; policy: NetworkPolicy/dev/p1");
    assert_eq!(verdict(&compiled, 2, net(3), 80), Verdict::Allow);
    // Changes of other policies are in force. Additions to `dev` while it is refused count later.
    assert_eq!(apply_step(&mut classes, &mut model, Step::Policy(3, Some((few, none.clone())))), [1].into());
    assert_eq!(apply_step(&mut classes, &mut model, Step::Change(0, [7].into(), none.clone())), [1].into());
    assert_eq!(apply_step(&mut classes, &mut model, Step::Change(0, none.clone(), many)), none);
    let compiled = classes.flush();
    assert_eq!(verdict(&compiled, 1, net(7), 80), Verdict::Allow);
    assert_eq!(verdict(&compiled, 1, net(8), 80), Verdict::Deny);
}

#[test]
fn a_count_between_divisions_loses_no_change() {
    let some = |numbers: &[u8]| -> BTreeSet<u8> { numbers.iter().copied().collect() };
    let grows = |set: u8, by: &[u8]| Step::Change(set, some(by), BTreeSet::new());
    let policy = |number: u8, nets: &[u8], sets: &[u8]| Step::Policy(number, Some((some(nets), some(sets))));
    let steps = [
        vec![grows(0, &[0, 1, 7, 24, 52]), grows(1, &[11, 20, 47]), policy(3, &[9, 16, 37], &[])],
        vec![
            policy(1, &[22, 30, 39, 46], &[1]),
            grows(2, &[2, 21, 23, 28, 48]),
            grows(1, &[10, 12, 13, 15, 25, 26, 27, 32, 49]),
        ],
        vec![
            policy(4, &[5, 8, 14, 17, 31, 33, 34, 38], &[]),
            grows(1, &[3, 19, 35, 53]),
            policy(2, &[4, 18, 29, 40, 41, 42], &[]),
        ],
        // The networks of the refused policy are among these.
        vec![policy(2, &[3, 10, 18, 19, 32, 43], &[])],
    ];
    run(52, &steps).unwrap();
}
