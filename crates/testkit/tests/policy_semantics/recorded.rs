//! Policies, packets and verdicts of the original's own tests of its eBPF programs: `tortie-evaluate`, the tables of `tortie-ebpf`
//! and the program in the kernel give the same verdicts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use tortie_classes::{Classes, Compiled};
use tortie_ebpf::Tables;
use tortie_evaluate::{Evaluator, Layer, Packet, Payload, Settings, Verdict};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpPortMember, IpSetType, IpSetUpdate, Members, Policy, PortProtocol, Profile,
    RuleSets, Rules, SetIds, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, Family, HostEndpoint, HostEndpointName, IfaceName, PolicyId, PolicyKind, PortSpec, ProfileName,
    Protocol, Rule, RuleAction, TierDefaultAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};
use tortie_testkit::golden;

use crate::tables::Kernel;

#[derive(Debug, Deserialize)]
struct Case {
    id: String,
    ip_version: u8,
    ip_sets: BTreeMap<String, Vec<String>>,
    rules: Policies,
    packets: Vec<RecordedPacket>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Policies {
    host_interface: bool,
    xdp: bool,
    suppress_normal_host_policy: bool,
    tiers: Vec<Tier>,
    host_pre_dnat_tiers: Vec<Tier>,
    host_forward_tiers: Vec<Tier>,
    host_normal_tiers: Vec<Tier>,
    profiles: Vec<Named>,
    host_profiles: Vec<Named>,
}

#[derive(Debug, Deserialize)]
struct Tier {
    end_action: String,
    policies: Vec<Named>,
}

#[derive(Debug, Deserialize)]
struct Named {
    rules: Vec<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct RecordedPacket {
    proto: u8,
    src: IpAddr,
    dst: IpAddr,
    sport: Option<u16>,
    dport: Option<u16>,
    icmp_type: Option<u8>,
    icmp_code: Option<u8>,
    pre_nat_dst: Option<IpAddr>,
    pre_nat_dport: Option<u16>,
    #[serde(default)]
    from_host: bool,
    #[serde(default)]
    to_host: bool,
    verdict: String,
}

impl RecordedPacket {
    fn to(&self, destination: IpAddr, port: Option<u16>) -> Packet {
        let payload = match (self.icmp_type, self.sport, port) {
            (Some(icmp_type), ..) => Payload::Icmp { icmp_type, code: self.icmp_code.unwrap_or_default() },
            (None, Some(source), Some(destination)) if matches!(self.proto, 6 | 17) => {
                Payload::Ports { source, destination }
            }
            _ => Payload::Other,
        };
        Packet::new(self.src, destination, self.proto, payload).unwrap()
    }

    fn packet(&self) -> Packet {
        self.to(self.dst, self.dport)
    }

    fn before_nat(&self) -> Packet {
        self.to(self.pre_nat_dst.unwrap_or(self.dst), self.pre_nat_dport.or(self.dport))
    }
}

fn pod() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

fn host() -> HostEndpointName {
    HostEndpointName::new("host")
}

fn protocol(value: &Value) -> Protocol {
    match value.as_str() {
        Some("tcp") => Protocol::TCP,
        Some("udp") => Protocol::UDP,
        Some("icmp") => Protocol::ICMP,
        Some("sctp") => Protocol::SCTP,
        _ => Protocol::Number(u8::try_from(value.as_u64().unwrap()).unwrap()),
    }
}

fn list<'v, T>(value: &'v Value, of: impl Fn(&'v Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(of).collect()
}

fn nets(value: &Value) -> Vec<Cidr> {
    list(value, |net| net.as_str().unwrap().parse().unwrap())
}

fn ports(value: &Value) -> Vec<PortSpec> {
    let number = |value: &Value| u16::try_from(value.as_u64().unwrap()).unwrap();
    list(value, |range| PortSpec::Range { first: number(&range[0]), last: number(&range[1]) })
}

fn sets(value: &Value) -> SetIds {
    list(value, |set| set.as_str().unwrap().into()).into_iter().collect()
}

fn rule(written: &BTreeMap<String, Value>) -> (Rule, RuleSets) {
    let (mut rule, mut of) = (Rule::default(), RuleSets::default());
    let number = |value: &Value| u8::try_from(value.as_u64().unwrap()).unwrap();
    for (name, value) in written {
        match name.as_str() {
            "action" => {
                rule.action = match value.as_str().unwrap() {
                    "allow" => RuleAction::Allow,
                    "deny" => RuleAction::Deny,
                    "pass" => RuleAction::NextTier,
                    "log" => RuleAction::Log,
                    other => panic!("{other}"),
                }
            }
            "match_id" => {}
            "ip_version" => rule.ip_version = Some(if value == 4 { Family::V4 } else { Family::V6 }),
            "protocol" => rule.protocol = Some(protocol(value)),
            "not_protocol" => rule.extras.not_protocol = Some(protocol(value)),
            "src_net" => rule.source.nets = nets(value).into(),
            "dst_net" => rule.destination.nets = nets(value).into(),
            "not_src_net" => rule.source.extras.not_nets = nets(value).into(),
            "not_dst_net" => rule.destination.extras.not_nets = nets(value).into(),
            "src_ports" => rule.source.ports = ports(value).into(),
            "dst_ports" => rule.destination.ports = ports(value).into(),
            "not_src_ports" => rule.source.extras.not_ports = ports(value).into(),
            "not_dst_ports" => rule.destination.extras.not_ports = ports(value).into(),
            "icmp" => {
                rule.extras.icmp_type = Some(number(&value["type"]));
                rule.extras.icmp_code = value.get("code").map(number);
            }
            "not_icmp" => {
                rule.extras.not_icmp_type = Some(number(&value["type"]));
                rule.extras.not_icmp_code = value.get("code").map(number);
            }
            "src_ip_sets" => of.src = sets(value),
            "dst_ip_sets" => of.dst = sets(value),
            "not_src_ip_sets" => of.not_src = sets(value),
            "not_dst_ip_sets" => of.not_dst = sets(value),
            "dst_ip_port_sets" => of.dst_ip_ports = sets(value),
            "src_named_port_sets" => of.src_named_ports = sets(value),
            "dst_named_port_sets" => of.dst_named_ports = sets(value),
            "not_src_named_port_sets" => of.not_src_named_ports = sets(value),
            "not_dst_named_port_sets" => of.not_dst_named_ports = sets(value),
            other => panic!("{other}"),
        }
    }
    (rule, of)
}

/// Rules of the original's programs may ask for ports and ICMP messages of any protocol, which policies cannot: there they are
/// one rule for each protocol that the packets have.
fn by_protocol((rule, of): (Rule, RuleSets)) -> Vec<(Rule, RuleSets)> {
    let sides = [&rule.source, &rule.destination];
    let has_ports = sides.iter().any(|side| !side.ports.is_empty() || !side.extras.not_ports.is_empty());
    let has_icmp = rule.extras.icmp_type.is_some() || rule.extras.not_icmp_type.is_some();
    let protocols = match rule.protocol {
        None if has_ports => vec![Protocol::TCP, Protocol::UDP],
        None if has_icmp => vec![Protocol::ICMP],
        _ => return vec![(rule, of)],
    };
    let with = |protocol| (Rule { protocol: Some(protocol), ..rule.clone() }, of.clone());
    protocols.into_iter().map(with).collect()
}

fn rules(named: &Named) -> Rules {
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = named.rules.iter().map(rule).flat_map(by_protocol).unzip();
    Rules::new(rules.into(), sets.into()).unwrap()
}

fn ip_set(id: &str, members: &[String]) -> DesiredUpdate {
    let member = |text: &String| {
        let (address, port) = text.split_once(',')?;
        let (protocol, port) = port.split_once(':')?;
        let protocol = match protocol {
            "tcp" => PortProtocol::Tcp,
            "udp" => PortProtocol::Udp,
            other => panic!("{other}"),
        };
        let address: Cidr = address.parse().unwrap();
        Some(IpPortMember::new(address.address(), protocol, port.parse().unwrap()))
    };
    let with_ports: Vec<_> = members.iter().filter_map(member).collect();
    let (set_type, members) = if with_ports.is_empty() {
        (IpSetType::Net, Members::Nets(members.iter().map(|net| net.parse().unwrap()).collect()))
    } else {
        assert_eq!(with_ports.len(), members.len());
        (IpSetType::IpAndPort, Members::IpPorts(with_ports))
    };
    DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type, members })
}

/// What a node is told, policies before what refers to them.
struct Messages(Vec<DesiredUpdate>);

impl Messages {
    fn of(case: &Case) -> Self {
        let mut messages = Self(case.ip_sets.iter().map(|(id, members)| ip_set(id, members)).collect());
        let policies = &case.rules;
        let (tiers, normal) = (messages.tiers("w", &policies.tiers), messages.tiers("n", &policies.host_normal_tiers));
        let forward_tiers = messages.tiers("f", &policies.host_forward_tiers);
        let pre_dnat_tiers = messages.tiers("d", &policies.host_pre_dnat_tiers);
        let (profiles, of_host) =
            (messages.profiles("w", &policies.profiles), messages.profiles("h", &policies.host_profiles));
        let endpoint = WorkloadEndpoint { profiles: profiles.into(), ..WorkloadEndpoint::default() };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers, ..WorkloadEndpointState::default() };
        messages.0.push(DesiredUpdate::WorkloadEndpoint(pod(), state));
        let endpoint =
            HostEndpoint { iface: Some(IfaceName::new("eth0")), profiles: of_host.into(), ..HostEndpoint::default() };
        // What XDP runs comes before connection tracking.
        let (tiers, untracked_tiers) =
            if policies.xdp { (TierList::default(), normal) } else { (normal, TierList::default()) };
        let state = HostEndpointState {
            endpoint: endpoint.into(),
            tiers,
            untracked_tiers,
            pre_dnat_tiers,
            forward_tiers,
            ..HostEndpointState::default()
        };
        messages.0.push(DesiredUpdate::HostEndpoint(host(), state));
        messages
    }

    fn tiers(&mut self, of: &str, tiers: &[Tier]) -> TierList {
        let tier = |(number, tier): (usize, &Tier)| {
            let mut ids = Vec::new();
            for (policy, named) in tier.policies.iter().enumerate() {
                let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("{of}{number}.{policy}"));
                let policy = Policy {
                    source: std::sync::Arc::default(),
                    selector: "all()".into(),
                    inbound: rules(named),
                    outbound: Rules::default(),
                };
                self.0.push(DesiredUpdate::Policy(id.clone(), policy.into()));
                ids.push(id);
            }
            let pass = tier.end_action == "pass";
            TierPolicies {
                name: TierName::new(format!("{of}{number}")),
                default_action: Some(if pass { TierDefaultAction::Pass } else { TierDefaultAction::Deny }),
                ingress: ids.into(),
                egress: [].into(),
            }
        };
        tiers.iter().enumerate().map(tier).collect()
    }

    fn profiles(&mut self, of: &str, profiles: &[Named]) -> Vec<ProfileName> {
        let mut names = Vec::new();
        for (number, named) in profiles.iter().enumerate() {
            let name = ProfileName::new(format!("{of}{number}"));
            let profile = Profile { inbound: rules(named), outbound: Rules::default() };
            self.0.push(DesiredUpdate::Profile(name.clone(), profile.into()));
            names.push(name);
        }
        names
    }
}

/// Somebody who can be asked about an endpoint: about the workload, or a layer of the host.
type Ask<'a> = dyn Fn(Option<Layer>, &Packet) -> Verdict + 'a;

/// In the order in which the original's program does it.
fn verdict(policies: &Policies, packet: &RecordedPacket, ask: &Ask<'_>) -> &'static str {
    if policies.xdp {
        return match ask(Some(Layer::Untracked), &packet.before_nat()) {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
            Verdict::Undecided => "no_match",
        };
    }
    let behind_nat = packet.packet();
    let before_nat = match policies.host_pre_dnat_tiers.is_empty() {
        true => Verdict::Undecided,
        false => ask(Some(Layer::PreDnat), &packet.before_nat()),
    };
    let by_host = match (before_nat, packet.to_host || packet.from_host) {
        (Verdict::Undecided, true) if policies.suppress_normal_host_policy => Verdict::Allow,
        (Verdict::Undecided, true) => ask(Some(Layer::Normal), &behind_nat),
        (Verdict::Undecided, false) => ask(Some(Layer::Forward), &behind_nat),
        (decided, _) => decided,
    };
    // The host's policies govern nothing on a workload's interface unless there are some.
    let is_governed = policies.host_interface || !policies.host_forward_tiers.is_empty();
    match by_host {
        Verdict::Deny if is_governed => "deny",
        _ if policies.host_interface => "allow",
        _ if ask(None, &behind_nat) == Verdict::Allow => "allow",
        _ => "deny",
    }
}

fn group(compiled: &Compiled<'_>, layer: Option<Layer>) -> tortie_classes::GroupId {
    match layer {
        Some(layer) => compiled.host_group(&host(), layer, Direction::Ingress).unwrap(),
        None => compiled.workload_group(&pod(), Direction::Ingress).unwrap(),
    }
}

#[test]
fn verdicts_are_those_of_the_original() {
    let Some(text) = golden::text(env!("CARGO_MANIFEST_DIR"), "ebpf_policy_cases.jsonl.gz") else { return };
    // Without failsafe ports, which the original has in another program.
    let settings = Settings::default();
    let kernel = Kernel::new();
    let (mut cases, mut packets) = (0, 0);
    let mut different = Vec::new();
    for line in text.lines().skip(1) {
        let case: Case = serde_json::from_str(line).unwrap();
        let (mut evaluator, mut classes) = (Evaluator::new(settings.clone()), Classes::new(settings.clone()));
        for update in Messages::of(&case).0 {
            evaluator.apply(&update).unwrap();
            classes.apply(&update).unwrap();
        }
        let compiled = classes.flush();
        let mut tables = Tables::new(&compiled);
        kernel.write_new(&mut tables);
        for packet in &case.packets {
            assert_eq!(packet.src.is_ipv4(), case.ip_version == 4);
            let evaluated = |layer: Option<Layer>, packet: &Packet| match layer {
                Some(layer) => {
                    evaluator.explain_host(&host(), layer, Direction::Ingress, packet).unwrap().answer.verdict
                }
                None => evaluator.explain_workload(&pod(), Direction::Ingress, packet).unwrap().answer.verdict,
            };
            let in_kernel = |layer: Option<Layer>, packet: &Packet| {
                let decision = kernel.decide(&tables, group(&compiled, layer), Direction::Ingress, packet);
                tables.decided(decision).0
            };
            let found = [verdict(&case.rules, packet, &evaluated), verdict(&case.rules, packet, &in_kernel)];
            if found != [&*packet.verdict; 2] {
                different.push(format!("{}: {found:?} {packet:?}", case.id));
            }
            packets += 1;
        }
        cases += 1;
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    golden::assert_count("cases and packets", (cases, packets), (68, 406));
}
