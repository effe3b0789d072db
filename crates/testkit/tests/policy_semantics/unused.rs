//! Differential test: the rules that `tortie-classes` reports as unused are those for which
//! `tortie-evaluate` finds no packet, for any rules.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::{
    prelude::{Strategy, any},
    test_runner::TestCaseError,
};
use tortie_classes::{Classes, Compiled, L4Detail};
use tortie_evaluate::{DecidedBy, Evaluator, Explanation, Layer, Packet, Payload, RuleOutcome, Settings, Step};
use tortie_model::{
    AdminState, Direction, PolicyId, Rule, RuleAction,
    desired::{Members, Policy, RuleSets, Rules, TierList, TierPolicies},
};

use crate::{
    evaluate::{messages, settings},
    runner,
    scenario::{Scenario, host_name, scenarios, unenforceable, workload_id},
};

const LAYERS: [Layer; 4] = [Layer::Normal, Layer::Forward, Layer::Untracked, Layer::PreDnat];

/// Maximum number of packets for a complete evaluation.
const MAX_PACKETS: usize = 8000;
/// Number of packets evaluated if there are more.
const SOME_PACKETS: usize = 500;

type UsedRules = BTreeSet<(PolicyId, Direction, usize)>;

/// Returns an address of each class: at the edge of a network, or next to it.
fn addresses(compiled: &Compiled<'_>) -> Vec<IpAddr> {
    let mut found: BTreeMap<_, IpAddr> = BTreeMap::new();
    let mut add = |address: IpAddr| {
        found.entry(compiled.class_of(address)).or_insert(address);
    };
    for (net, _) in compiled.prefixes() {
        let (first, last) = (net.masked().address(), net.last_host().address());
        let [before, behind] = [(first, u128::MAX), (last, 1)].map(|(at, step)| match at {
            IpAddr::V4(at) => {
                IpAddr::V4(u32::from(at).wrapping_add(u32::try_from(step & u128::from(u32::MAX)).unwrap()).into())
            }
            IpAddr::V6(at) => IpAddr::V6(u128::from(at).wrapping_add(step).into()),
        });
        [first, last, before, behind].into_iter().for_each(&mut add);
    }
    add([192, 0, 2, 1].into());
    add("2001:db8::1".parse::<IpAddr>().unwrap());
    found.into_values().collect()
}

/// Returns a payload of each kind that rules distinguish.
fn payloads(compiled: &Compiled<'_>) -> Vec<(u8, Payload)> {
    let source_ports: Vec<u16> = compiled.source_port_classes().filter_map(|(port, _)| port).chain([0]).collect();
    let mut payloads = Vec::new();
    let mut starts: BTreeSet<(u8, u8, u16)> = BTreeSet::new();
    for (protocol, detail, _) in compiled.l4_classes() {
        starts.insert(match detail {
            L4Detail::Other => (protocol, 0, 0),
            L4Detail::Icmp { icmp_type, code } => (protocol, 1, u16::from_be_bytes([icmp_type, code])),
            L4Detail::Port(port) => (protocol, 2, port),
        });
        // A range that begins there may continue with packets of other kinds, and of the next
        // protocol.
        let next = protocol.saturating_add(1);
        starts.extend([protocol, next].into_iter().flat_map(|protocol| [0, 1, 2].map(|kind| (protocol, kind, 0))));
    }
    for (protocol, kind, number) in starts {
        let [icmp_type, code] = number.to_be_bytes();
        match kind {
            0 => payloads.push((protocol, Payload::Other)),
            1 => payloads.push((protocol, Payload::Icmp { icmp_type, code })),
            _ => payloads.extend(
                source_ports.iter().map(|source| (protocol, Payload::Ports { source: *source, destination: number })),
            ),
        }
    }
    payloads
}

/// Records the matching rules, and the policies whose end of tier decided.
fn note(explanation: &Explanation, direction: Direction, used: &mut UsedRules, denying: &mut BTreeSet<PolicyId>) {
    let mut in_tier: Vec<&PolicyId> = Vec::new();
    for step in &explanation.steps {
        let Step::Policy { policy, rules, staged, .. } = step else { continue };
        if !staged {
            in_tier.push(policy);
        }
        let matched = rules.iter().filter(|rule| rule.outcome == RuleOutcome::Matched);
        used.extend(matched.map(|rule| (policy.clone(), direction, rule.index)));
    }
    if let DecidedBy::EndOfTier { tier } = &explanation.answer.decided_by {
        let of_tier = |step: &Step| match step {
            Step::Policy { tier: of, policy, staged: false, .. } if of == tier => Some(policy.clone()),
            _ => None,
        };
        let mut policies = explanation.steps.iter().filter_map(of_tier);
        if let (Some(only), None) = (policies.next(), policies.next()) {
            denying.insert(only);
        }
    }
}

/// Returns a packet for each combination of fields that a match can distinguish.
fn packets(compiled: &Compiled<'_>) -> Vec<Packet> {
    let (addresses, payloads) = (addresses(compiled), payloads(compiled));
    let mut packets = Vec::new();
    for source in &addresses {
        for destination in addresses.iter().filter(|address| address.is_ipv4() == source.is_ipv4()) {
            packets.extend(
                payloads
                    .iter()
                    .map(|(protocol, payload)| Packet::new(*source, *destination, *protocol, *payload).unwrap()),
            );
        }
    }
    packets
}

fn check(scenario: &Scenario, config: &tortie_rules::RulesConfig) -> Result<[usize; 3], TestCaseError> {
    // Checks before policies are not considered.
    let settings = Settings { vxlan_from_workloads: true, ipip_from_workloads: true, ..settings(config) };
    let mut evaluator = Evaluator::new(settings.clone());
    let mut classes = Classes::new(settings);
    for update in messages(&scenario.state) {
        evaluator.apply(&update).unwrap();
        classes.apply(&update).unwrap();
    }
    let compiled = classes.flush();
    let unused = compiled.unused();
    let (mut used, mut denying) = (UsedRules::new(), BTreeSet::new());
    let packets = packets(&compiled);
    // With more packets, only a sample is evaluated, which cannot show that a rule is unused.
    let is_all = packets.len() <= MAX_PACKETS;
    for packet in packets.iter().step_by(packets.len() / if is_all { MAX_PACKETS } else { SOME_PACKETS } + 1) {
        for direction in [Direction::Ingress, Direction::Egress] {
            let up = workload_id(AdminState::Active);
            let explained = evaluator.explain_workload(&up, direction, packet).unwrap();
            note(&explained, direction, &mut used, &mut denying);
            for layer in LAYERS {
                let explained = evaluator.explain_host(&host_name(), layer, direction, packet).unwrap();
                note(&explained, direction, &mut used, &mut denying);
            }
        }
    }
    let reported: UsedRules =
        unused.rules.iter().map(|rule| (rule.policy.clone(), rule.direction, rule.index)).collect();
    let (mut expected, mut idle, mut busy) = (UsedRules::new(), BTreeSet::new(), denying);
    for (id, direction) in governing(scenario) {
        let policy = &scenario.state.policies[&id];
        let rules = if direction == Direction::Ingress { &policy.inbound } else { &policy.outbound };
        for index in 0..rules.len() {
            let rule = (id.clone(), direction, index);
            idle.insert(id.clone());
            if used.contains(&rule) {
                busy.insert(id.clone());
            } else {
                expected.insert(rule);
            }
        }
    }
    idle.retain(|id| !busy.contains(id));
    if is_all {
        proptest::prop_assert_eq!(&reported, &expected);
        proptest::prop_assert_eq!(&unused.policies, &idle);
    } else {
        proptest::prop_assert!(reported.is_subset(&expected), "{:?}, {:?}", reported, expected);
        proptest::prop_assert!(unused.policies.is_subset(&idle), "{:?}, {:?}", unused.policies, idle);
    }
    let passing = |(id, direction, index): &&(PolicyId, Direction, usize)| {
        let policy = &scenario.state.policies[id];
        let rules = if *direction == Direction::Ingress { &policy.inbound } else { &policy.outbound };
        rules.iter().nth(*index).is_some_and(|rule| matches!(rule.action(), RuleAction::NextTier | RuleAction::Log))
    };
    Ok(if is_all { [reported.len(), reported.iter().filter(passing).count(), idle.len()] } else { [0; 3] })
}

/// Reduces a scenario to few policies and ports, optionally without source ports, so that all
/// distinguishable packets can be evaluated.
fn small(mut scenario: Scenario, has_source_ports: bool) -> Scenario {
    let few = |tiers: &TierList| -> TierList {
        let few = |policies: &Arc<[PolicyId]>| policies.iter().take(2).cloned().collect();
        let tier = |tier: &TierPolicies| {
            let (ingress, egress) = (few(&tier.ingress), few(&tier.egress));
            TierPolicies { ingress, egress, ..tier.clone() }
        };
        tiers.iter().take(2).map(tier).collect()
    };
    for members in scenario.state.ip_sets.values_mut() {
        if let Members::IpPorts(ports) = members {
            ports.truncate(3);
        }
    }
    for policy in scenario.state.policies.values_mut() {
        let few = |rules: &Rules| {
            let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = rules
                .iter()
                .take(3)
                .map(|view| {
                    let (mut rule, mut sets) = (view.rule.clone(), view.sets.clone());
                    if !has_source_ports {
                        (rule.source.ports, rule.source.extras.not_ports) = Default::default();
                        (sets.src_named_ports, sets.not_src_named_ports) = Default::default();
                    }
                    for side in [&mut rule.source, &mut rule.destination] {
                        side.ports = side.ports.iter().take(1).cloned().collect::<Vec<_>>().into();
                        side.extras.not_ports = side.extras.not_ports.iter().take(1).cloned().collect();
                    }
                    (rule, sets)
                })
                .unzip();
            Rules::new(rules.into(), sets.into()).unwrap()
        };
        let (inbound, outbound) = (few(&policy.inbound), few(&policy.outbound));
        *policy = Arc::new(Policy { inbound, outbound, ..Policy::clone(policy) });
    }
    for state in scenario.state.workloads.values_mut() {
        state.tiers = few(&state.tiers);
    }
    for state in scenario.state.hosts.values_mut() {
        for tiers in [&mut state.tiers, &mut state.forward_tiers, &mut state.untracked_tiers, &mut state.pre_dnat_tiers]
        {
            *tiers = few(tiers);
        }
    }
    scenario
}

/// Repeats each tier's first policy as its second.
fn repeated(mut scenario: Scenario) -> Scenario {
    for tier in 0..2 {
        let named = |number: usize| move |id: &&PolicyId| *id.name == *format!("tier{tier}.policy{number}");
        let [first, second] = [0, 1].map(|number| scenario.state.policies.keys().find(named(number)).cloned());
        if let (Some(first), Some(second)) = (first, second) {
            let policy = Arc::clone(&scenario.state.policies[&first]);
            scenario.state.policies.insert(second, policy);
        }
    }
    scenario
}

/// Returns the policies that affect the evaluated endpoints.
fn governing(scenario: &Scenario) -> BTreeSet<(PolicyId, Direction)> {
    let hosts = scenario.state.hosts.values();
    let of_hosts =
        hosts.flat_map(|host| [&host.tiers, &host.forward_tiers, &host.untracked_tiers, &host.pre_dnat_tiers]);
    let tiers = scenario.state.workloads.values().map(|workload| &workload.tiers).chain(of_hosts);
    let of_tier = |tier: &TierPolicies| {
        let of =
            |ids: &Arc<[PolicyId]>, direction| ids.iter().map(move |id| (id.clone(), direction)).collect::<Vec<_>>();
        [of(&tier.ingress, Direction::Ingress), of(&tier.egress, Direction::Egress)].concat()
    };
    tiers.flat_map(|tiers| tiers.iter()).flat_map(of_tier).collect()
}

fn run(config: &tortie_rules::RulesConfig, spoil: bool) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let strategy = (scenarios(), unenforceable(), any::<bool>()).prop_map(|(scenario, spoils, repeats)| {
        let scenario = small(if spoil { scenario.spoilt(&spoils) } else { scenario }, !repeats);
        if repeats { repeated(scenario) } else { scenario }
    });
    let found = Cell::new([0; 3]);
    let result = runner(cases, 200).run(&strategy, |scenario| {
        let more = check(&scenario, config)?;
        let so_far = found.get();
        found.set([0, 1, 2].map(|place| so_far[place] + more[place]));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    println!("{:?} rules, passing or logging ones, and policies come to nothing", found.get());
    assert!(found.get().iter().all(|count| *count > 0), "{found:?}");
}

#[test]
fn unused_rules_are_those_that_no_packet_reaches() {
    run(&crate::chains::config(), false);
}

#[test]
fn unused_odd_rules_are_those_that_no_packet_reaches() {
    run(&crate::chains::config(), true);
}
