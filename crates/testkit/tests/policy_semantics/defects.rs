//! Defects of Felix's eBPF programs (`bpf/polprog`) that Tortie's do not have: a test for each
//! defect, which it names.

use std::net::IpAddr;

use tortie_classes::{Budget, Classes};
use tortie_ebpf::{Closed, DecisionId, Tables};
use tortie_evaluate::{DecidedBy, Evaluator, Packet, Payload, Settings, Verdict};
use tortie_model::desired::{
    DesiredUpdate, Policy, Profile, RuleSets, Rules, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    AdminState, Cidr, Direction, NamedProtocol, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, Rule,
    RuleAction, TierDefaultAction, TierName, WorkloadEndpoint,
};

use crate::scenario::workload_id;
use crate::tables::{Kernel, Machine, memory};

const INGRESS: Direction = Direction::Ingress;
const UDP_LITE: Protocol = Protocol::Named(NamedProtocol::UdpLite);

fn rules(rules: &[Rule]) -> Rules {
    Rules::new(rules.into(), vec![RuleSets::default(); rules.len()].into()).unwrap()
}

fn rule(action: RuleAction, protocol: Protocol) -> Rule {
    Rule { protocol: Some(protocol), ..Rule::new(action) }
}

/// Returns a rule about all protocols except one.
fn but(action: RuleAction, protocol: Protocol) -> Rule {
    let mut rule = Rule::new(action);
    rule.extras.not_protocol = Some(protocol);
    rule
}

fn policy_id(tier: usize) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("policy{tier}"))
}

fn policy(tier: usize, inbound: &[Rule]) -> DesiredUpdate {
    let policy = Policy {
        source: std::sync::Arc::default(),
        selector: "all()".into(),
        inbound: rules(inbound),
        outbound: Rules::default(),
    };
    DesiredUpdate::Policy(policy_id(tier), policy.into())
}

/// Returns a workload with a tier for each list of rules, and with a profile.
fn workload(tiers: &[&[Rule]], profile: &[Rule]) -> Vec<DesiredUpdate> {
    let name = ProfileName::new("profile");
    let mut updates: Vec<DesiredUpdate> =
        tiers.iter().enumerate().map(|(number, inbound)| policy(number, inbound)).collect();
    let of_profile = Profile { inbound: rules(profile), outbound: Rules::default() };
    updates.push(DesiredUpdate::Profile(name.clone(), of_profile.into()));
    let tier = |number| TierPolicies {
        name: TierName::new(format!("tier{number}")),
        default_action: Some(TierDefaultAction::Deny),
        ingress: [policy_id(number)].into(),
        egress: [].into(),
    };
    let tiers: TierList = (0..tiers.len()).map(tier).collect();
    let endpoint = WorkloadEndpoint { profiles: [name].into(), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers, computed: None };
    updates.push(DesiredUpdate::WorkloadEndpoint(workload_id(AdminState::Active), state));
    updates
}

fn by_rule(tier: usize, index: usize) -> DecidedBy {
    DecidedBy::PolicyRule { tier: TierName::new(format!("tier{tier}")), policy: policy_id(tier), index }
}

fn ends(is_v4: bool) -> (IpAddr, IpAddr) {
    let address = |text: &str| text.parse().unwrap();
    if is_v4 { (address("10.1.0.1"), address("10.9.9.9")) } else { (address("fd00::1"), address("fd00::2")) }
}

fn packet(is_v4: bool, protocol: u8, payload: Payload) -> Packet {
    let (source, destination) = ends(is_v4);
    Packet::new(source, destination, protocol, payload).unwrap()
}

fn udp_lite() -> Packet {
    packet(true, 136, Payload::Ports { source: 1000, destination: 80 })
}

/// Returns an IPv6 echo request.
fn echo() -> Packet {
    packet(false, 58, Payload::Icmp { icmp_type: 128, code: 0 })
}

fn tcp() -> Packet {
    packet(true, 6, Payload::Ports { source: 1000, destination: 80 })
}

fn tcp_v6() -> Packet {
    packet(false, 6, Payload::Ports { source: 1000, destination: 80 })
}

/// Checks the verdict of the evaluator, the tables in Rust, the program in `rbpf` and the one in
/// the kernel for a packet to the workload.
fn expect(kernel: &Kernel, updates: &[DesiredUpdate], expected: &[(Packet, Verdict, DecidedBy)]) {
    let (mut evaluator, mut classes) = (Evaluator::new(Settings::default()), Classes::new(Settings::default()));
    // More than a node has by default.
    classes.set_budget(Budget { group: 4 << 30, node: 8 << 30 });
    for update in updates {
        evaluator.apply(update).unwrap();
        classes.apply(update).unwrap();
    }
    let compiled = classes.flush();
    let mut tables = Tables::new(&compiled);
    assert_eq!(tables.closed().collect::<Vec<_>>(), []);
    let machine = Machine::of(&mut tables, kernel);
    let id = workload_id(AdminState::Active);
    let group = compiled.workload_group(&id, INGRESS).unwrap();
    for (packet, verdict, by) in expected {
        let expected = (*verdict, Some(by));
        let answer = evaluator.workload(&id, INGRESS, packet).unwrap();
        assert_eq!((answer.verdict, Some(&answer.decided_by)), expected, "{packet:?} by the evaluator");
        let in_rbpf = machine.run(packet.family(), memory(&tables, group, INGRESS, packet));
        let found = [
            tables.decide(group, INGRESS, packet),
            DecisionId::from_cell(u32::try_from(in_rbpf).unwrap()),
            kernel.decide(&tables, group, INGRESS, packet),
        ];
        assert_eq!(found.map(|decision| tables.decided(decision)), [expected; 3], "{packet:?}");
    }
}

/// `protocolToNumber` knows four names; all others become protocol 0, which no packet has.
#[test]
fn defect_rules_that_allow_icmpv6_or_udplite_by_name_never_match() {
    let allow = [rule(RuleAction::Allow, UDP_LITE), rule(RuleAction::Allow, Protocol::ICMPV6)];
    let end = || DecidedBy::EndOfTier { tier: TierName::new("tier0") };
    expect(
        &Kernel::new(),
        &workload(&[&allow], &[]),
        &[
            (udp_lite(), Verdict::Allow, by_rule(0, 0)),
            (echo(), Verdict::Allow, by_rule(0, 1)),
            (tcp(), Verdict::Deny, end()),
            (tcp_v6(), Verdict::Deny, end()),
        ],
    );
}

/// The same names in a denying rule: denied packets pass.
#[test]
fn defect_rules_that_deny_icmpv6_or_udplite_by_name_allow_everything() {
    let deny =
        [rule(RuleAction::Deny, UDP_LITE), rule(RuleAction::Deny, Protocol::ICMPV6), Rule::new(RuleAction::Allow)];
    expect(
        &Kernel::new(),
        &workload(&[&deny], &[]),
        &[
            (udp_lite(), Verdict::Deny, by_rule(0, 0)),
            (echo(), Verdict::Deny, by_rule(0, 1)),
            (tcp(), Verdict::Allow, by_rule(0, 2)),
            (tcp_v6(), Verdict::Allow, by_rule(0, 2)),
        ],
    );
}

/// The same names excluded by a rule: it matches the excluded protocol as well.
#[test]
fn defect_rules_that_exclude_icmpv6_or_udplite_by_name_match_everything() {
    let end = || DecidedBy::EndOfTier { tier: TierName::new("tier0") };
    let kernel = Kernel::new();
    for (protocol, excluded, other) in [(UDP_LITE, udp_lite(), tcp()), (Protocol::ICMPV6, echo(), tcp_v6())] {
        for named in [protocol, Protocol::Number(protocol.number())] {
            let (denied, allowed) = (Verdict::Deny, Verdict::Allow);
            let all_but = workload(&[&[but(RuleAction::Allow, named)]], &[]);
            expect(&kernel, &all_but, &[(excluded, denied, end()), (other, allowed, by_rule(0, 0))]);
            let none_but = workload(&[&[but(RuleAction::Deny, named), Rule::new(RuleAction::Allow)]], &[]);
            expect(&kernel, &none_but, &[(excluded, allowed, by_rule(0, 1)), (other, denied, by_rule(0, 0))]);
        }
    }
}

/// In `writeProfile`, a log rule has no label to continue at: the generator panics.
#[test]
fn defect_a_log_rule_in_a_profile_ends_the_process() {
    let profile = [rule(RuleAction::Log, Protocol::TCP), Rule::new(RuleAction::Log), rule(RuleAction::Allow, UDP_LITE)];
    let allowed = DecidedBy::ProfileRule { profile: ProfileName::new("profile"), index: 2 };
    expect(
        &Kernel::new(),
        &workload(&[], &profile),
        &[(udp_lite(), Verdict::Allow, allowed), (tcp(), Verdict::Deny, DecidedBy::EndOfProfiles)],
    );
}

/// 32,000 rules with protocol, network and port need 25 programs, more than the limit of 24: the
/// update of the jump map fails, and the old policy stays in force.
#[test]
fn defect_a_policy_of_more_rules_than_24_programs_hold_is_not_in_force() {
    const RULES: u16 = 32_000;
    let source = |number: u16| [10, number.to_be_bytes()[1], 0, 1];
    let rule = |number: u16| {
        let action = if number.is_multiple_of(3) { RuleAction::Deny } else { RuleAction::Allow };
        let mut rule = rule(action, Protocol::TCP);
        rule.source.nets = [Cidr::new(source(number).into(), 16).unwrap()].into();
        rule.destination.ports = [PortSpec::single(1000 + number)].into();
        rule
    };
    let all: Vec<Rule> = (0..RULES).map(rule).collect();
    let at = |rule: u16, from: u16| {
        let (_, destination) = ends(true);
        let packet = Packet::tcp((source(from).into(), 5), (destination, 1000 + rule)).unwrap();
        let verdict = if rule.is_multiple_of(3) { Verdict::Deny } else { Verdict::Allow };
        (packet, verdict, by_rule(0, rule.into()))
    };
    let mut expected: Vec<_> = [0, 1, 2, 255, 256, 15_000, 15_001, 31_998, 31_999].map(|rule| at(rule, rule)).into();
    let (packet, ..) = at(31_999, 1);
    expected.push((packet, Verdict::Deny, DecidedBy::EndOfTier { tier: TierName::new("tier0") }));
    expect(&Kernel::new(), &workload(&[&all], &[]), &expected);
}

/// Only the first 32 matching rules along the tiers are recorded, so that the deciding rule is
/// missing.
#[test]
fn defect_the_deciding_rule_behind_more_than_32_rules_is_not_recorded() {
    let pass = [Rule::new(RuleAction::NextTier)];
    let mut tiers = vec![&pass[..]; 40];
    let last = [rule(RuleAction::Allow, UDP_LITE), rule(RuleAction::Deny, Protocol::TCP)];
    tiers.push(&last);
    expect(
        &Kernel::new(),
        &workload(&tiers, &[]),
        &[(udp_lite(), Verdict::Allow, by_rule(40, 0)), (tcp(), Verdict::Deny, by_rule(40, 1))],
    );
}

/// If a new program does not load, the old one stays on the interface: packets that the change
/// denies still pass.
#[test]
fn defect_a_policy_that_cannot_be_in_force_leaves_the_one_before() {
    let mut classes = Classes::new(Settings::default());
    let id = workload_id(AdminState::Active);
    for update in workload(&[&[Rule::new(RuleAction::Allow)]], &[]) {
        classes.apply(&update).unwrap();
    }
    let compiled = classes.flush();
    let group = compiled.workload_group(&id, INGRESS).unwrap();
    // Exactly the required room.
    let max_blocks = u32::try_from(Tables::new(&compiled).charged_blocks()).unwrap();
    let mut tables = Tables::with_max_blocks(max_blocks);
    let _ = tables.update(&compiled);
    let kernel = Kernel::new();
    kernel.write_new(&mut tables);
    assert_eq!(tables.closed().collect::<Vec<_>>(), []);
    let verdict = |tables: &Tables| tables.decided(kernel.decide(tables, group, INGRESS, &tcp())).0;
    assert_eq!(verdict(&tables), Verdict::Allow);
    // More than there is room for.
    let ports = [80, 1000, 20_000, 40_000].map(|port| {
        let mut rule = rule(RuleAction::Deny, Protocol::TCP);
        rule.destination.ports = [PortSpec::single(port)].into();
        rule
    });
    classes.apply(&policy(0, &[&ports[..], &[Rule::new(RuleAction::Allow)]].concat())).unwrap();
    assert_eq!(tables.update(&classes.flush()), [group]);
    kernel.write_new(&mut tables);
    let needed = tables.charge(group).unwrap();
    assert!(needed > max_blocks.into());
    let why = Closed::NoBlocks { needed, limit: max_blocks };
    assert_eq!(tables.closed().collect::<Vec<_>>(), [(group, &why)]);
    assert_eq!(verdict(&tables), Verdict::Deny);
    assert_eq!(tables.decided(kernel.decide(&tables, group, INGRESS, &udp_lite())), (Verdict::Deny, None));
}
