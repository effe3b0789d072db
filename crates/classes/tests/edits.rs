//! Edits of a policy lead to the same state as its last version alone, whatever came before.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_classes::evaluate::{Packet, Settings};
use tortie_classes::{Budget, Classes, Compiled};
use tortie_model::desired::{
    DesiredUpdate, IpPortMember, IpSetType, IpSetUpdate, Members, Policy, PortProtocol, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpointId,
};

/// A rule of some kind, with numbers that choose its networks, sets and ports.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Draft {
    kind: u8,
    place: u8,
    port: u16,
}

impl Draft {
    fn rule(self) -> (Rule, RuleSets) {
        let action = match self.kind {
            0 | 4 | 5 | 6 => RuleAction::Allow,
            1 | 7 => RuleAction::Deny,
            2 => RuleAction::NextTier,
            _ => RuleAction::Log,
        };
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(action) };
        let mut sets = RuleSets::default();
        let ports = [PortSpec::Range { first: 80, last: self.port }];
        match self.kind {
            0 => rule.destination.ports = ports.into(),
            2 => rule.source.ports = ports.into(),
            // Never matches, but has networks.
            4 => rule.extras.not_protocol = Some(Protocol::TCP),
            5 => sets.src = [format!("s:{}", self.place).as_str().into()].into_iter().collect(),
            6 => sets.dst_named_ports = [format!("n:{}", self.place).as_str().into()].into_iter().collect(),
            _ => {}
        }
        if self.kind < 5 {
            rule.source.nets = [net(self.place)].into();
        }
        (rule, sets)
    }
}

fn net(place: u8) -> Cidr {
    Cidr::new(Ipv4Addr::new(10, 0, place, 0).into(), 24 - place % 3).unwrap()
}

fn rules(drafts: &[Draft]) -> Rules {
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = drafts.iter().map(|draft| draft.rule()).unzip();
    Rules::new(rules.into(), sets.into()).unwrap()
}

/// Desired state besides the workload.
#[derive(Clone, Debug, Default)]
struct State {
    inbound: Vec<Draft>,
    outbound: Vec<Draft>,
    /// IP sets by number, and those with ports.
    sets: BTreeMap<u8, u8>,
    port_sets: BTreeMap<u8, u16>,
    is_tight: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Insert(bool, usize, Draft),
    Remove(bool, usize),
    Replace(bool, usize, Draft),
    Set(u8, Option<u8>),
    PortSet(u8, Option<u16>),
    Tighten(bool),
}

fn id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web")
}

fn pod() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web-0".into(), endpoint: "eth0".into() }
}

fn workload() -> DesiredUpdate {
    let policies: Arc<[PolicyId]> = [id()].into();
    let name = TierName::default_tier();
    let tier = TierPolicies { name, default_action: None, ingress: Arc::clone(&policies), egress: policies };
    DesiredUpdate::WorkloadEndpoint(pod(), WorkloadEndpointState { tiers: [tier].into(), ..Default::default() })
}

fn set_update(number: u8, members: Option<u8>) -> DesiredUpdate {
    let id = format!("s:{number}").as_str().into();
    let Some(place) = members else { return DesiredUpdate::IpSetRemove(id) };
    let members = Members::Nets(vec![net(place), Cidr::host(Ipv4Addr::new(10, 0, place, 9).into())]);
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members })
}

fn port_set_update(number: u8, port: Option<u16>) -> DesiredUpdate {
    let id = format!("n:{number}").as_str().into();
    let Some(port) = port else { return DesiredUpdate::IpSetRemove(id) };
    let member = |port| IpPortMember::new(Ipv4Addr::new(10, 9, 9, number).into(), PortProtocol::Tcp, port);
    let members = Members::IpPorts(vec![member(port), member(port + 1), member(port + 7)]);
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::IpAndPort, members })
}

fn budget(is_tight: bool) -> Budget {
    if is_tight { Budget { group: 8 << 10, node: 64 << 10 } } else { Budget::default() }
}

impl State {
    fn policy(&self) -> DesiredUpdate {
        let (inbound, outbound) = (rules(&self.inbound), rules(&self.outbound));
        DesiredUpdate::Policy(
            id(),
            Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound }.into(),
        )
    }

    /// Applies a step here and to classes that follow.
    fn step(&mut self, step: &Step, classes: &mut Classes) {
        let update = match step {
            Step::Insert(is_inbound, place, draft) => {
                let rules = self.side(*is_inbound);
                rules.insert(place % (rules.len() + 1), *draft);
                self.policy()
            }
            Step::Remove(is_inbound, place) => {
                let rules = self.side(*is_inbound);
                if !rules.is_empty() {
                    rules.remove(place % rules.len());
                }
                self.policy()
            }
            Step::Replace(is_inbound, place, draft) => {
                let rules = self.side(*is_inbound);
                let count = rules.len().max(1);
                if let Some(rule) = rules.get_mut(place % count) {
                    *rule = *draft;
                }
                self.policy()
            }
            Step::Set(number, members) => {
                match members {
                    Some(members) => self.sets.insert(*number, *members),
                    None => self.sets.remove(number),
                };
                set_update(*number, *members)
            }
            Step::PortSet(number, port) => {
                match port {
                    Some(port) => self.port_sets.insert(*number, *port),
                    None => self.port_sets.remove(number),
                };
                port_set_update(*number, *port)
            }
            Step::Tighten(is_tight) => {
                self.is_tight = *is_tight;
                classes.set_budget(budget(*is_tight));
                return;
            }
        };
        classes.apply(&update).unwrap();
    }

    fn side(&mut self, is_inbound: bool) -> &mut Vec<Draft> {
        if is_inbound { &mut self.inbound } else { &mut self.outbound }
    }

    /// Classes of this state alone.
    fn fresh(&self) -> Classes {
        let mut classes = Classes::new(Settings::default());
        classes.set_budget(budget(self.is_tight));
        let sets = self.sets.iter().map(|(number, members)| set_update(*number, Some(*members)));
        let port_sets = self.port_sets.iter().map(|(number, port)| port_set_update(*number, Some(*port)));
        let updates = sets.chain(port_sets).chain([self.policy(), workload()]);
        updates.for_each(|update| classes.apply(&update).unwrap());
        classes
    }
}

fn packets() -> impl Iterator<Item = (Direction, Packet)> {
    let addresses = (0..6_u8).flat_map(|place| [[10, 0, place, 9], [10, 0, place, 1], [10, 9, 9, place]]);
    addresses
        .flat_map(|address| {
            let address = Ipv4Addr::from(address).into();
            [79, 80, 81, 85, 87, 90, 99, 101].into_iter().flat_map(move |port| {
                let other = Ipv4Addr::new(192, 0, 2, 1).into();
                [(address, other), (other, address)].map(|(from, to)| Packet::tcp((from, port), (to, port)).unwrap())
            })
        })
        .flat_map(|packet| [(Direction::Ingress, packet), (Direction::Egress, packet)])
}

fn is_same(followed: &Compiled<'_>, fresh: &Compiled<'_>) -> Result<(), TestCaseError> {
    for (direction, packet) in packets() {
        let answers = [followed, fresh].map(|compiled| compiled.workload(&pod(), direction, &packet));
        prop_assert_eq!(&answers[0], &answers[1], "{:?} {:?}", direction, packet);
    }
    let cuts =
        |compiled: &Compiled<'_>| -> Vec<_> { compiled.l4_classes().map(|(of, detail, _)| (of, detail)).collect() };
    prop_assert_eq!(cuts(followed), cuts(fresh));
    let ports = |compiled: &Compiled<'_>| -> Vec<_> { compiled.source_port_classes().map(|(port, _)| port).collect() };
    prop_assert_eq!(ports(followed), ports(fresh));
    prop_assert_eq!(followed.prefix_count(), fresh.prefix_count());
    Ok(())
}

fn draft() -> impl Strategy<Value = Draft> {
    (0..8_u8, 0..5_u8, 80..100_u16).prop_map(|(kind, place, port)| Draft { kind, place, port })
}

fn step() -> impl Strategy<Value = Step> {
    let (place, inbound) = (any::<usize>, any::<bool>);
    prop_oneof![
        4 => (inbound(), place(), draft()).prop_map(|(inbound, place, draft)| Step::Insert(inbound, place, draft)),
        2 => (inbound(), place()).prop_map(|(inbound, place)| Step::Remove(inbound, place)),
        3 => (inbound(), place(), draft()).prop_map(|(inbound, place, draft)| Step::Replace(inbound, place, draft)),
        1 => (0..5_u8, prop::option::weighted(0.9, 0..5_u8)).prop_map(|(number, to)| Step::Set(number, to)),
        1 => (0..5_u8, prop::option::weighted(0.9, 80..95_u16)).prop_map(|(number, to)| Step::PortSet(number, to)),
        1 => inbound().prop_map(Step::Tighten),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn edits_lead_to_the_state_of_the_last_version(
        start in prop::collection::vec(draft(), 0..40),
        steps in prop::collection::vec((step(), any::<bool>()), 1..25),
    ) {
        let sets = (0..5).map(|number| (number, number)).collect();
        let port_sets = (0..5).map(|number| (number, 80 + u16::from(number))).collect();
        let mut state = State { inbound: start.clone(), outbound: start, sets, port_sets, is_tight: false };
        let mut followed = state.fresh();
        followed.flush();
        for (step, is_last) in &steps {
            state.step(step, &mut followed);
            if *is_last {
                is_same(&followed.flush(), &state.fresh().flush())?;
            }
        }
        is_same(&followed.flush(), &state.fresh().flush())?;
        for update in [DesiredUpdate::PolicyRemove(id()), DesiredUpdate::WorkloadEndpointRemove(pod())] {
            followed.apply(&update).unwrap();
        }
        for number in 0..5 {
            followed.apply(&set_update(number, None)).unwrap();
            followed.apply(&port_set_update(number, None)).unwrap();
        }
        followed.flush();
        prop_assert!(followed.is_empty());
    }
}
