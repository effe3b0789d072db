//! Random states and packets from a small universe, so that rules often match.

use std::{net::IpAddr, sync::Arc};

use proptest::{
    collection::vec,
    option,
    prelude::{BoxedStrategy, Just, Strategy, any},
    prop_oneof,
    sample::{select, subsequence},
};
use tortie_model::{
    AdminState, Cidr, DenyAction, EntityExtras, EntityMatch, Family, HostEndpoint, HostEndpointName, IpSetId,
    NamedProtocol, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, Rule, RuleAction, TierDefaultAction,
    WorkloadEndpoint, WorkloadEndpointId,
    desired::{
        HostEndpointState, IpPortMember, Members, Policy, PortProtocol, Profile, RuleSets, Rules, SetIds, TierList,
        TierPolicies, WorkloadEndpointState,
    },
};
use tortie_testkit::{
    evaluator::DesiredState,
    packet::{Packet, Payload},
};

pub(crate) const WORKLOAD_INTERFACE: &str = "cali0123456789a";
pub(crate) const HOST_INTERFACE: &str = "eth0";
const NET_SETS: [&str; 4] = ["s:a", "s:b", "s:c", "svcnoport:d"];
const PORT_SETS: [&str; 4] = ["n:a", "n:b", "svc:c", "n:d"];
const PORTS: std::ops::RangeInclusive<u16> = 1..=30;

/// A state of a node, and packets to evaluate.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) state: DesiredState,
    pub(crate) packets: Vec<Packet>,
}

/// Returns the id of the workload in one of its two administrative states.
pub(crate) fn workload_id(state: AdminState) -> WorkloadEndpointId {
    let endpoint = if state == AdminState::Active { "up" } else { "down" };
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "ns/pod".into(), endpoint: endpoint.into() }
}

pub(crate) fn host_name() -> HostEndpointName {
    "host".into()
}

fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 0, 0, last].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

fn families() -> impl Strategy<Value = Family> + Clone {
    select(&Family::ALL[..])
}

fn addresses(family: Family) -> impl Strategy<Value = IpAddr> {
    (0..8u8).prop_map(move |last| address(family, last))
}

fn cidrs() -> impl Strategy<Value = Cidr> {
    let hidden_bits = prop_oneof![4 => 0..3u8, 1 => Just(3), 1 => Just(u8::MAX)];
    (families(), 0..8u8, hidden_bits).prop_map(|(family, last, hidden)| {
        let prefix_len = family.max_prefix_len().saturating_sub(hidden);
        Cidr::new(address(family, last), prefix_len).unwrap()
    })
}

fn nets() -> BoxedStrategy<Box<[Cidr]>> {
    let some = |count| vec(cidrs(), count).prop_map(Vec::into_boxed_slice);
    prop_oneof![5 => Just([].into()), 2 => some(1..2), 3 => some(2..5)].boxed()
}

fn not_nets() -> BoxedStrategy<Box<[Cidr]>> {
    let some = |count| vec(cidrs(), count).prop_map(Vec::into_boxed_slice);
    prop_oneof![8 => Just([].into()), 1 => some(1..2), 1 => some(2..4)].boxed()
}

fn port_lists(none: u32) -> BoxedStrategy<Box<[PortSpec]>> {
    let spec = (PORTS, prop_oneof![3 => Just(0), 1 => 1..4u16])
        .prop_map(|(first, more)| PortSpec::Range { first, last: first + more });
    prop_oneof![
        none => Just(Vec::new()),
        2 => vec(spec.clone(), 1..4),
        1 => vec(spec, 16..24),
    ]
    .prop_map(Vec::into_boxed_slice)
    .boxed()
}

fn set_ids(ids: &'static [&'static str], often: u32) -> BoxedStrategy<SetIds> {
    let some = subsequence(ids, 1..=ids.len().min(2)).prop_map(|ids| ids.into_iter().map(IpSetId::from).collect());
    prop_oneof![(20 - often) => Just(SetIds::new()), often => some].boxed()
}

fn sides() -> impl Strategy<Value = EntityMatch> {
    (nets(), not_nets(), port_lists(6), port_lists(20)).prop_map(|(nets, not_nets, ports, not_ports)| EntityMatch {
        nets: nets.into(),
        ports: ports.into(),
        extras: EntityExtras { not_nets: not_nets.into(), not_ports: not_ports.into(), ..EntityExtras::default() }
            .into(),
        ..EntityMatch::default()
    })
}

fn rule_sets() -> impl Strategy<Value = RuleSets> {
    let side = || (set_ids(&NET_SETS, 4), set_ids(&PORT_SETS, 3), set_ids(&NET_SETS, 1), set_ids(&PORT_SETS, 1));
    (side(), side(), set_ids(&PORT_SETS[2..3], 1)).prop_map(|(source, destination, dst_ip_ports)| RuleSets {
        src: source.0,
        src_named_ports: source.1,
        not_src: source.2,
        not_src_named_ports: source.3,
        dst: destination.0,
        dst_named_ports: destination.1,
        dst_ip_ports,
        not_dst: destination.2,
        not_dst_named_ports: destination.3,
        dst_domains: SetIds::new(),
    })
}

#[derive(Debug, Clone)]
enum Protocols {
    Any,
    Only(Protocol),
    Not(Protocol),
    Both(Protocol, Protocol),
    Icmp { protocol: Protocol, number: Option<u8>, code: Option<u8>, negated: bool },
}

fn protocols() -> impl Strategy<Value = Protocols> {
    use NamedProtocol::{Icmp, Icmpv6, Sctp, Tcp, Udp, UdpLite};
    let named = |name| Protocol::Named(name);
    let with_ports = move || {
        select(vec![named(Tcp), named(Udp), named(Sctp), named(UdpLite), Protocol::Number(6), Protocol::Number(136)])
    };
    let icmp = || select(vec![named(Icmp), named(Icmpv6), Protocol::Number(1), Protocol::Number(58)]);
    let messages = (icmp(), option::of(0..3u8), option::of(0..2u8), any::<bool>());
    let messages = messages.prop_map(|(protocol, number, code, negated)| {
        let code = code.filter(|_| number.is_some());
        Protocols::Icmp { protocol, number, code, negated }
    });
    let any = || prop_oneof![3 => with_ports(), 1 => icmp()];
    prop_oneof![
        4 => Just(Protocols::Any),
        8 => with_ports().prop_map(Protocols::Only),
        1 => prop_oneof![Just(Protocol::Number(47)), icmp()].prop_map(Protocols::Only),
        2 => any().prop_map(Protocols::Not),
        1 => (any(), any()).prop_map(|(only, not)| Protocols::Both(only, not)),
        2 => messages,
    ]
}

/// Returns rules that need three or four match blocks and match little else, so that packets reach
/// the last block.
fn wide_rules() -> impl Strategy<Value = (Rule, RuleSets)> {
    let ports = || {
        let spec = PORTS.prop_map(PortSpec::single);
        prop_oneof![1 => Just(Vec::new()), 3 => vec(spec, 16..24)].prop_map(Vec::into_boxed_slice)
    };
    let side = || {
        (vec(cidrs(), 2..5), ports()).prop_map(|(nets, ports)| EntityMatch {
            nets: nets.into(),
            ports: ports.into(),
            ..EntityMatch::default()
        })
    };
    let actions = select(vec![RuleAction::Allow, RuleAction::Deny, RuleAction::NextTier]);
    (actions, side(), side()).prop_map(|(action, source, destination)| {
        let protocol = Some(Protocol::Named(NamedProtocol::Tcp));
        (Rule { protocol, source, destination, ..Rule::new(action) }, RuleSets::default())
    })
}

fn any_rules() -> impl Strategy<Value = (Rule, RuleSets)> {
    prop_oneof![4 => mixed_rules(), 1 => wide_rules()]
}

fn mixed_rules() -> impl Strategy<Value = (Rule, RuleSets)> {
    use RuleAction::{Allow, Deny, Log, NextTier, Unspecified};
    let actions = prop_oneof![
        6 => Just(Allow), 4 => Just(Deny), 3 => Just(NextTier), 1 => Just(Log), 1 => Just(Unspecified)
    ];
    let versions = prop_oneof![6 => Just(None), 1 => families().prop_map(Some)];
    (actions, versions, protocols(), sides(), sides(), rule_sets()).prop_map(
        |(action, ip_version, protocols, source, destination, sets)| {
            let mut rule = Rule { ip_version, source, destination, ..Rule::new(action) };
            match protocols {
                Protocols::Any => {}
                Protocols::Only(only) => rule.protocol = Some(only),
                Protocols::Not(not) => rule.extras.not_protocol = Some(not),
                Protocols::Both(only, not) => (rule.protocol, rule.extras.not_protocol) = (Some(only), Some(not)),
                Protocols::Icmp { protocol, number, code, negated } => {
                    rule.protocol = Some(protocol);
                    if negated {
                        (rule.extras.not_icmp_type, rule.extras.not_icmp_code) = (number, code);
                    } else {
                        (rule.extras.icmp_type, rule.extras.icmp_code) = (number, code);
                    }
                }
            }
            // Ports need a protocol that has ports, as validation ensures.
            if !rule.protocol.is_some_and(Protocol::supports_ports) {
                for side in [&mut rule.source, &mut rule.destination] {
                    side.ports = [].into();
                    side.extras.not_ports = [].into();
                }
            }
            (rule, sets)
        },
    )
}

fn rules(rules: Vec<(Rule, RuleSets)>) -> Rules {
    let (rules, sets): (Vec<_>, Vec<_>) = rules.into_iter().unzip();
    Rules::new(rules.into(), sets.into()).unwrap()
}

fn policy_rules() -> impl Strategy<Value = Rules> {
    vec(any_rules(), 0..4).prop_map(rules)
}

fn policies() -> impl Strategy<Value = (PolicyKind, Policy)> {
    let kinds = prop_oneof![
        6 => Just(PolicyKind::GlobalNetworkPolicy), 1 => Just(PolicyKind::StagedGlobalNetworkPolicy)
    ];
    let selectors = select(vec!["all()", "has(a)"]);
    (kinds, selectors, policy_rules(), policy_rules()).prop_map(|(kind, selector, inbound, outbound)| {
        (kind, Policy { source: Arc::default(), selector: selector.into(), inbound, outbound })
    })
}

/// A tier: its default action, and its policies with the directions to which they apply.
type DraftTier = (Option<TierDefaultAction>, Vec<((PolicyKind, Policy), bool, bool)>);

fn tiers() -> impl Strategy<Value = DraftTier> {
    let ends = prop_oneof![
        2 => Just(Some(TierDefaultAction::Deny)), 2 => Just(Some(TierDefaultAction::Pass)), 1 => Just(None)
    ];
    let governs = || proptest::bool::weighted(0.8);
    (ends, vec((policies(), governs(), governs()), 0..8))
}

/// Returns some tiers; in one of four states only the profiles decide.
fn tier_lists() -> impl Strategy<Value = Vec<DraftTier>> {
    prop_oneof![3 => vec(tiers(), 0..4), 1 => Just(vec![passing_tier()])]
}

/// Returns a tier whose only policy passes everything.
fn passing_tier() -> DraftTier {
    let pass = Rule::new(RuleAction::NextTier);
    let all = || rules(vec![(pass.clone(), RuleSets::default())]);
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: all(), outbound: all() };
    (None, vec![((PolicyKind::GlobalNetworkPolicy, policy), true, true)])
}

fn packets() -> impl Strategy<Value = Packet> {
    let payloads = prop_oneof![
        8 => Just(6u8), 4 => Just(17), 2 => Just(132), 2 => Just(136), 3 => Just(1), 1 => Just(58), 1 => Just(47)
    ];
    families().prop_flat_map(move |family| {
        (addresses(family), addresses(family), payloads.clone(), PORTS, PORTS).prop_map(
            |(source, destination, protocol, first, second)| match protocol {
                1 => Packet::icmp(
                    source,
                    destination,
                    u8::try_from(first % 3).unwrap(),
                    u8::try_from(second % 2).unwrap(),
                ),
                // ICMP of the other family, which is treated as any protocol.
                58 => {
                    let protocol = if source.is_ipv4() { 58 } else { 1 };
                    Packet { source, destination, protocol, payload: Payload::Opaque }
                }
                47 => Packet { source, destination, protocol, payload: Payload::Opaque },
                _ => Packet::with_ports(protocol, (source, first), (destination, second)),
            },
        )
    })
}

fn members() -> impl Strategy<Value = (Vec<Members>, Vec<Members>)> {
    let protocols = select(vec![PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Sctp]);
    let member = (families().prop_flat_map(addresses), protocols, PORTS)
        .prop_map(|(address, protocol, port)| IpPortMember::new(address, protocol, port));
    (
        vec(vec(cidrs(), 0..6).prop_map(Members::Nets), NET_SETS.len()),
        vec(vec(member, 20..120).prop_map(Members::IpPorts), PORT_SETS.len()),
    )
}

fn profile_rules() -> impl Strategy<Value = Rules> {
    vec(prop_oneof![2 => any_rules(), 1 => plain_rules()], 0..5).prop_map(rules)
}

/// Returns rules that match only an address, so that many packets match and many do not.
fn plain_rules() -> impl Strategy<Value = (Rule, RuleSets)> {
    let actions = select(vec![RuleAction::Allow, RuleAction::Deny, RuleAction::NextTier]);
    (actions, vec(cidrs(), 0..2)).prop_map(|(action, nets)| {
        let source = EntityMatch { nets: nets.into(), ..EntityMatch::default() };
        (Rule { source, ..Rule::new(action) }, RuleSets::default())
    })
}

pub(crate) fn scenarios() -> impl Strategy<Value = Scenario> {
    let profiles = vec((profile_rules(), profile_rules()), 0..3);
    (members(), tier_lists(), profiles, vec(packets(), 12..13)).prop_map(|(members, tiers, profiles, packets)| {
        let mut state = DesiredState::default();
        let named = NET_SETS.into_iter().zip(members.0).chain(PORT_SETS.into_iter().zip(members.1));
        state.ip_sets = named.map(|(id, members)| (id.into(), members)).collect();
        let tiers: TierList =
            tiers.into_iter().enumerate().map(|(number, tier)| finish_tier(number, tier, &mut state)).collect();
        let mut names = Vec::new();
        for (number, (inbound, outbound)) in profiles.into_iter().enumerate() {
            let name = ProfileName::new(format!("profile{number}"));
            state.profiles.insert(name.clone(), Arc::new(Profile { inbound, outbound }));
            names.push(name);
        }
        add_endpoints(&mut state, &tiers, &names.into());
        Scenario { state, packets }
    })
}

/// Returns scenarios with an additional first tier whose policies have many short rules that differ
/// in one or two values.
pub(crate) fn repetitive_scenarios() -> impl Strategy<Value = Scenario> {
    use RuleAction::{Allow, Deny, Log, NextTier};
    let actions = prop_oneof![12 => Just(Allow), 1 => Just(Deny), 1 => Just(NextTier), 1 => Just(Log)];
    let protocols = prop_oneof![8 => Just(Some(6)), 1 => Just(Some(17)), 2 => Just(None)];
    let ports = prop_oneof![6 => vec((1..8u16).prop_map(PortSpec::single), 1..3), 1 => Just(Vec::new())];
    let range = (1..8u16).prop_map(|first| vec![PortSpec::Range { first, last: first + 3 }]);
    let ports = prop_oneof![12 => ports, 1 => range];
    let peers = prop_oneof![
        4 => select(&NET_SETS[..3]).prop_map(|id| (Vec::new(), Some(id))),
        3 => cidrs().prop_map(|net| (vec![net], None)),
        1 => Just((Vec::new(), None)),
    ];
    let rule =
        (actions, protocols, ports, peers, any::<bool>()).prop_map(|(action, protocol, ports, (nets, set), to)| {
            let mut rule = Rule { protocol: protocol.map(Protocol::Number), ..Rule::new(action) };
            let mut sets = RuleSets::default();
            rule.destination.ports = protocol.map_or(Vec::new(), |_| ports).into();
            let ids: SetIds = set.into_iter().map(IpSetId::from).collect();
            if to && rule.destination.ports.is_empty() {
                (rule.destination.nets, sets.dst) = (nets.into(), ids);
            } else {
                (rule.source.nets, sets.src) = (nets.into(), ids);
            }
            (rule, sets)
        });
    let policies = prop_oneof![2 => vec(vec(rule, 0..12), 1..6), 1 => any::<bool>().prop_flat_map(|to| vec(vec(rules_for_hosts(to), 8..14), 1..4))];
    let packets = vec((packets(), 1..9u16), 24..25);
    (scenarios(), policies, packets).prop_map(|(mut scenario, policies, packets)| {
        let policy = |rules: &Vec<_>| {
            let (inbound, outbound) = (self::rules(rules.clone()), self::rules(rules.clone()));
            let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound };
            ((PolicyKind::GlobalNetworkPolicy, policy), true, true)
        };
        let draft = (Some(TierDefaultAction::Pass), policies.iter().map(policy).collect());
        let first = finish_tier(99, draft, &mut scenario.state);
        let with_first =
            |tiers: &mut TierList| *tiers = [first.clone()].into_iter().chain(tiers.iter().cloned()).collect();
        scenario.state.workloads.values_mut().for_each(|endpoint| with_first(&mut endpoint.tiers));
        for host in scenario.state.hosts.values_mut() {
            let all = [&mut host.tiers, &mut host.forward_tiers, &mut host.untracked_tiers, &mut host.pre_dnat_tiers];
            all.into_iter().for_each(with_first);
        }
        scenario.packets = packets
            .into_iter()
            .map(|(packet, port)| match packet.payload {
                Payload::Ports { source, .. } => {
                    Packet { payload: Payload::Ports { source, destination: port }, ..packet }
                }
                _ => packet,
            })
            .collect();
        scenario
    })
}

/// Returns deciding rules that match one address of a side, mostly of a single host, so that many
/// of them follow each other.
fn rules_for_hosts(to: bool) -> impl Strategy<Value = (Rule, RuleSets)> {
    let actions =
        prop_oneof![4 => Just(RuleAction::Allow), 2 => Just(RuleAction::Deny), 1 => Just(RuleAction::NextTier)];
    let hosts = (prop_oneof![4 => Just(Family::V4), 1 => Just(Family::V6)], 0..8u8);
    let hosts = hosts.prop_map(|(family, last)| Cidr::host(address(family, last)));
    let peers = prop_oneof![
        20 => hosts.prop_map(|net| (vec![net], None)),
        2 => select(&NET_SETS[..3]).prop_map(|id| (Vec::new(), Some(id))),
        1 => cidrs().prop_map(|net| (vec![net], None)),
    ];
    (actions, peers, prop_oneof![9 => Just(false), 1 => Just(true)]).prop_map(
        move |(action, (nets, set), has_range)| {
            let mut rule = Rule::new(action);
            let mut sets = RuleSets::default();
            if has_range {
                rule.protocol = Some(Protocol::Number(6));
                rule.destination.ports = vec![PortSpec::Range { first: 2, last: 6 }].into();
            }
            let ids: SetIds = set.into_iter().map(IpSetId::from).collect();
            if to {
                (rule.destination.nets, sets.dst) = (nets.into(), ids);
            } else {
                (rule.source.nets, sets.src) = (nets.into(), ids);
            }
            (rule, sets)
        },
    )
}

fn finish_tier(number: usize, (default_action, policies): DraftTier, state: &mut DesiredState) -> TierPolicies {
    let (mut ingress, mut egress) = (Vec::new(), Vec::new());
    // The actions on denied traffic, which no verdict depends on, follow from the places, so that
    // they do not change the other values.
    let denying_with = |place: usize| [None, Some(DenyAction::Reject), Some(DenyAction::Drop)][place % 3];
    for (position, ((kind, mut policy), to, from)) in policies.into_iter().enumerate() {
        let deny_action = denying_with(number + position);
        policy.source = tortie_model::Policy { deny_action, ..tortie_model::Policy::clone(&policy.source) }.into();
        let id = PolicyId::new(kind, "", format!("tier{number}.policy{position}"));
        ingress.extend(to.then(|| id.clone()));
        egress.extend(from.then(|| id.clone()));
        state.policies.insert(id, Arc::new(policy));
    }
    let name = format!("tier{number}").as_str().into();
    let default_action = default_action.map(|end| end.denying_with(denying_with(number + 1)));
    TierPolicies { name, default_action, ingress: ingress.into(), egress: egress.into() }
}

fn add_endpoints(state: &mut DesiredState, tiers: &TierList, profiles: &Arc<[ProfileName]>) {
    for admin_state in [AdminState::Active, AdminState::Inactive] {
        let endpoint = WorkloadEndpoint {
            state: admin_state,
            iface: Some(WORKLOAD_INTERFACE.parse().unwrap()),
            profiles: Arc::clone(profiles),
            ..WorkloadEndpoint::default()
        };
        let endpoint = WorkloadEndpointState { endpoint: Arc::new(endpoint), tiers: Arc::clone(tiers), computed: None };
        state.workloads.insert(workload_id(admin_state), endpoint);
    }
    let endpoint = HostEndpoint {
        iface: Some(HOST_INTERFACE.parse().unwrap()),
        profiles: Arc::clone(profiles),
        ..HostEndpoint::default()
    };
    let host = HostEndpointState {
        endpoint: Arc::new(endpoint),
        tiers: Arc::clone(tiers),
        untracked_tiers: Arc::clone(tiers),
        pre_dnat_tiers: Arc::clone(tiers),
        forward_tiers: Arc::clone(tiers),
        qos_policies: [].into(),
    };
    state.hosts.insert(host_name(), host);
}

/// A change by which a rule cannot be enforced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spoil {
    Nothing,
    Http,
    ProtocolZero,
    ExcludedProtocolZero,
    NoProtocol,
    IcmpWithoutProtocol,
    OtherIcmp,
    CodeWithoutType,
    EmptyPortRange,
    EmptyExcludedPortRange,
    ExcludesEverything,
    UnnamedSet,
    UnnamedPortSet,
    UnnamedExcludedSet,
}

/// Returns changes to the rules of a scenario, in turn.
pub(crate) fn unenforceable() -> impl Strategy<Value = Vec<Spoil>> {
    use Spoil::*;
    let spoils = vec![
        Http,
        ProtocolZero,
        ExcludedProtocolZero,
        NoProtocol,
        NoProtocol,
        IcmpWithoutProtocol,
        OtherIcmp,
        CodeWithoutType,
        EmptyPortRange,
        EmptyExcludedPortRange,
        ExcludesEverything,
        UnnamedSet,
        UnnamedPortSet,
        UnnamedExcludedSet,
    ];
    vec(prop_oneof![1 => Just(Nothing), 1 => select(spoils)], 1..30)
}

impl Scenario {
    /// Returns the scenario with rules that no source sends, since they cannot be enforced.
    pub(crate) fn spoilt(mut self, spoils: &[Spoil]) -> Self {
        let http_by_proxy = spoils.len().is_multiple_of(2);
        let mut spoils = spoils.iter().copied().cycle();
        let mut spoil_all = |rules: &Rules| {
            let changed = rules.iter().map(|view| {
                let (mut rule, mut sets) = (view.rule.clone(), view.sets.clone());
                spoil(&mut rule, &mut sets, spoils.next().unwrap_or(Spoil::Nothing));
                (rule, sets)
            });
            self::rules(changed.collect()).with_http_by_proxy(http_by_proxy)
        };
        for policy in self.state.policies.values_mut() {
            let (inbound, outbound) = (spoil_all(&policy.inbound), spoil_all(&policy.outbound));
            *policy = Arc::new(Policy { inbound, outbound, ..(**policy).clone() });
        }
        for profile in self.state.profiles.values_mut() {
            let (inbound, outbound) = (spoil_all(&profile.inbound), spoil_all(&profile.outbound));
            *profile = Arc::new(Profile { inbound, outbound });
        }
        self
    }
}

fn spoil(rule: &mut Rule, sets: &mut RuleSets, spoil: Spoil) {
    let with = |sets: &SetIds| sets.iter().cloned().chain([IpSetId::from("no name")]).collect();
    let with_empty = |ports: &[PortSpec]| {
        let empty = PortSpec::Range { first: 9, last: 3 };
        ports.iter().cloned().chain([empty]).collect::<Vec<_>>().into()
    };
    match spoil {
        Spoil::Nothing => {}
        Spoil::Http => rule.extras.http = Some(Box::default()),
        Spoil::ProtocolZero => rule.protocol = Some(Protocol::Number(0)),
        Spoil::ExcludedProtocolZero => rule.extras.not_protocol = Some(Protocol::Number(0)),
        Spoil::NoProtocol => rule.protocol = None,
        Spoil::IcmpWithoutProtocol => rule.extras.icmp_type = Some(1),
        Spoil::OtherIcmp => {
            rule.protocol = Some(Protocol::Number(58));
            rule.extras.not_icmp_type = Some(1);
        }
        Spoil::CodeWithoutType => {
            rule.extras.icmp_type = None;
            rule.extras.icmp_code = Some(1);
        }
        Spoil::EmptyPortRange => rule.source.ports = with_empty(&rule.source.ports),
        Spoil::EmptyExcludedPortRange => {
            rule.destination.extras.not_ports = with_empty(&rule.destination.extras.not_ports);
        }
        Spoil::ExcludesEverything => {
            rule.source.extras.not_nets = [Cidr::new(address(Family::V4, 0), 0).unwrap()].into();
        }
        Spoil::UnnamedSet => sets.src = with(&sets.src),
        Spoil::UnnamedPortSet => sets.dst_named_ports = with(&sets.dst_named_ports),
        Spoil::UnnamedExcludedSet => sets.not_dst = with(&sets.not_dst),
    }
}
