//! Format of the recorded cases of Felix's tests of its eBPF programs, and their conversion to
//! updates.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use tortie_evaluate::{DecidedBy, Explanation, Packet, Payload, RuleOutcome, RuleStep, Step};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpPortMember, IpSetType, IpSetUpdate, Members, Policy, PortProtocol, Profile,
    RuleSets, Rules, SetIds, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Family, HostEndpoint, HostEndpointName, NamedProtocol, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol,
    Rule, RuleAction, TierDefaultAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};

/// Protocols with ports.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Number of rule ids that Felix records for a packet.
const RECORDED_IDS: usize = 32;

#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) id: String,
    ip_version: u8,
    ip_sets: BTreeMap<String, Vec<String>>,
    pub(crate) rules: Policies,
    pub(crate) packets: Vec<RecordedPacket>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Policies {
    pub(crate) host_interface: bool,
    pub(crate) xdp: bool,
    pub(crate) suppress_normal_host_policy: bool,
    tiers: Vec<Tier>,
    pub(crate) host_pre_dnat_tiers: Vec<Tier>,
    pub(crate) host_forward_tiers: Vec<Tier>,
    host_normal_tiers: Vec<Tier>,
    profiles: Vec<Named>,
    host_profiles: Vec<Named>,
    no_profile_match_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Tier {
    end_action: String,
    end_rule_id: Option<String>,
    policies: Vec<Named>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Named {
    rules: Vec<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RecordedPacket {
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
    pub(crate) from_host: bool,
    #[serde(default)]
    pub(crate) to_host: bool,
    pub(crate) verdict: String,
    /// The matching rules, in order, as far as Felix records them.
    pub(crate) rule_ids: Option<Vec<String>>,
}

impl Case {
    /// Parses a line. Recorded ICMP packets have protocol 1 between IPv6 addresses too; they, and
    /// the rules about them, become `ICMPv6` unless another part of the case uses that protocol.
    pub(crate) fn parse(line: &str) -> Self {
        let mut case: Self = serde_json::from_str(line).unwrap();
        let named = case.rules.all_rules().flat_map(|rule| [rule.get("protocol"), rule.get("not_protocol")]);
        let of_rules = named.flatten().map(|value| protocol(value).number());
        let mut all: Vec<u8> = of_rules.collect();
        all.extend(case.packets.iter().map(|packet| packet.proto));
        if case.ip_version == 6 && !all.contains(&ICMPV6) {
            for packet in &mut case.packets {
                packet.proto = if packet.proto == ICMP { ICMPV6 } else { packet.proto };
            }
            for rule in case.rules.all_rules_mut() {
                for name in ["protocol", "not_protocol"] {
                    if let Some(value) = rule.get_mut(name)
                        && protocol(value).number() == ICMP
                    {
                        *value = Value::from(ICMPV6);
                    }
                }
            }
        }
        for packet in &case.packets {
            assert_eq!(packet.src.is_ipv4(), case.ip_version == 4);
        }
        case
    }
}

impl Policies {
    fn lists(&self) -> impl Iterator<Item = &Named> {
        let tiers = [&self.tiers, &self.host_pre_dnat_tiers, &self.host_forward_tiers, &self.host_normal_tiers];
        let policies = tiers.into_iter().flatten().flat_map(|tier| &tier.policies);
        policies.chain(&self.profiles).chain(&self.host_profiles)
    }

    fn all_rules(&self) -> impl Iterator<Item = &BTreeMap<String, Value>> {
        self.lists().flat_map(|named| &named.rules)
    }

    fn all_rules_mut(&mut self) -> impl Iterator<Item = &mut BTreeMap<String, Value>> {
        let Self { tiers, host_pre_dnat_tiers, host_forward_tiers, host_normal_tiers, profiles, host_profiles, .. } =
            self;
        let tiers = [tiers, host_pre_dnat_tiers, host_forward_tiers, host_normal_tiers];
        let policies = tiers.into_iter().flatten().flat_map(|tier| &mut tier.policies);
        policies.chain(profiles).chain(host_profiles).flat_map(|named| &mut named.rules)
    }
}

impl RecordedPacket {
    fn to(&self, destination: IpAddr, port: Option<u16>) -> Packet {
        let payload = match (self.icmp_type, self.sport, port) {
            (Some(icmp_type), ..) => Payload::Icmp { icmp_type, code: self.icmp_code.unwrap_or_default() },
            (None, Some(source), Some(destination)) if WITH_PORTS.contains(&self.proto) => {
                Payload::Ports { source, destination }
            }
            _ => Payload::Other,
        };
        Packet::new(self.src, destination, self.proto, payload).unwrap()
    }

    pub(crate) fn packet(&self) -> Packet {
        self.to(self.dst, self.dport)
    }

    pub(crate) fn before_nat(&self) -> Packet {
        self.to(self.pre_nat_dst.unwrap_or(self.dst), self.pre_nat_dport.or(self.dport))
    }
}

pub(crate) fn pod() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

pub(crate) fn host() -> HostEndpointName {
    HostEndpointName::new("host")
}

/// Parses a protocol by name or number, which may be written as text.
fn protocol(value: &Value) -> Protocol {
    let number = |number: u64| Protocol::Number(u8::try_from(number).unwrap());
    match value.as_str() {
        Some(text) => NamedProtocol::from_name(text).map_or_else(
            || number(text.parse().unwrap_or_else(|_| panic!("no protocol is called {text}"))),
            Protocol::Named,
        ),
        None => number(value.as_u64().unwrap_or_else(|| panic!("{value} is no protocol"))),
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
    let (mut rule, mut of) = (Rule::new(RuleAction::Unspecified), RuleSets::default());
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

/// Splits a rule by protocol. Rules of Felix's programs may match ports and ICMP messages of any
/// protocol, which policies cannot: they become one rule for each protocol that has them.
fn by_protocol((rule, of): (Rule, RuleSets)) -> Vec<(Rule, RuleSets)> {
    let sides = [&rule.source, &rule.destination];
    let has_ports = sides.iter().any(|side| !side.ports.is_empty() || !side.extras.not_ports.is_empty());
    let has_icmp = rule.extras.icmp_type.is_some() || rule.extras.not_icmp_type.is_some();
    let protocols: &[u8] = match rule.protocol {
        None if has_ports => &WITH_PORTS,
        None if has_icmp => &[ICMP, ICMPV6],
        _ => return vec![(rule, of)],
    };
    let with = |number: &u8| (Rule { protocol: Some(Protocol::Number(*number)), ..rule.clone() }, of.clone());
    protocols.iter().map(with).collect()
}

/// Returns rules, and the recorded id of each.
fn rules(named: &Named) -> (Rules, Vec<String>) {
    let (mut all, mut ids) = (Vec::new(), Vec::new());
    for written in &named.rules {
        let id = match written.get("match_id") {
            Some(Value::String(id)) => id.clone(),
            Some(id) => id.to_string(),
            None => NO_ID.to_owned(),
        };
        for rule in by_protocol(rule(written)) {
            all.push(rule);
            ids.push(id.clone());
        }
    }
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = all.into_iter().unzip();
    (Rules::new(rules.into(), sets.into()).unwrap(), ids)
}

fn ip_set(id: &str, members: &[String]) -> DesiredUpdate {
    // Members of other protocols are omitted: no packet has a port of these that a set can match.
    let member = |text: &String| {
        let (address, port) = text.split_once(',')?;
        let (name, port) = port.split_once(':')?;
        let protocol = PortProtocol::of(protocol(&Value::from(name)))?;
        let address: Cidr = address.parse().unwrap();
        Some(IpPortMember::new(address.address(), protocol, port.parse().unwrap()))
    };
    let has_ports = members.iter().any(|member| member.contains(','));
    let (set_type, members) = if has_ports {
        assert!(members.iter().all(|member| member.contains(',')), "{id} has members with and without ports");
        (IpSetType::IpAndPort, Members::IpPorts(members.iter().filter_map(member).collect()))
    } else {
        (IpSetType::Net, Members::Nets(members.iter().map(|net| net.parse().unwrap()).collect()))
    };
    DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type, members })
}

/// Recorded id for a decision without id.
const NO_ID: &str = "0";

/// The recorded ids of rules.
#[derive(Debug, Default)]
pub(crate) struct RuleIds {
    policies: BTreeMap<PolicyId, Vec<String>>,
    profiles: BTreeMap<ProfileName, Vec<String>>,
    ends_of_tiers: BTreeMap<TierName, String>,
    end_of_profiles: Option<String>,
}

impl RuleIds {
    /// Returns the id of the deciding rule; `None` if no rule decided.
    pub(crate) fn of(&self, by: &DecidedBy) -> Option<String> {
        Some(match by {
            DecidedBy::PolicyRule { policy, index, .. } => self.policies[policy][*index].clone(),
            DecidedBy::ProfileRule { profile, index } => self.profiles[profile][*index].clone(),
            DecidedBy::EndOfTier { tier } => self.ends_of_tiers[tier].clone(),
            DecidedBy::EndOfProfiles => self.end_of_profiles.clone().unwrap_or_else(|| NO_ID.to_owned()),
            _ => return None,
        })
    }

    /// Returns the ids of the matching rules of an explanation, in order.
    pub(crate) fn trail(&self, explanation: &Explanation) -> Vec<String> {
        let matched = |rules: &[RuleStep], ids: &[String]| -> Vec<String> {
            let matched = rules.iter().filter(|rule| rule.outcome == RuleOutcome::Matched);
            matched.filter(|rule| rule.action != RuleAction::Log).map(|rule| ids[rule.index].clone()).collect()
        };
        let step = |step: &Step| match step {
            Step::Policy { policy, rules, .. } => matched(rules, &self.policies[policy]),
            Step::Profile { profile, rules, .. } => matched(rules, &self.profiles[profile]),
            Step::EndOfTier { tier, .. } => vec![self.ends_of_tiers[tier].clone()],
            Step::EndOfProfiles => self.of(&DecidedBy::EndOfProfiles).into_iter().collect(),
            _ => Vec::new(),
        };
        explanation.steps.iter().flat_map(step).collect()
    }
}

/// Returns the recorded part of a trail.
pub(crate) fn recorded(trail: &[String]) -> &[String] {
    trail.get(..RECORDED_IDS).unwrap_or(trail)
}

/// Updates for a node, policies before objects that refer to them.
pub(crate) struct Messages {
    pub(crate) updates: Vec<DesiredUpdate>,
    pub(crate) ids: RuleIds,
}

impl Messages {
    pub(crate) fn of(case: &Case) -> Self {
        let updates = case.ip_sets.iter().map(|(id, members)| ip_set(id, members)).collect();
        let policies = &case.rules;
        let ids = RuleIds { end_of_profiles: policies.no_profile_match_id.clone(), ..RuleIds::default() };
        let mut messages = Self { updates, ids };
        let (tiers, normal) = (messages.tiers("w", &policies.tiers), messages.tiers("n", &policies.host_normal_tiers));
        let forward_tiers = messages.tiers("f", &policies.host_forward_tiers);
        let pre_dnat_tiers = messages.tiers("d", &policies.host_pre_dnat_tiers);
        let (profiles, of_host) =
            (messages.profiles("w", &policies.profiles), messages.profiles("h", &policies.host_profiles));
        let endpoint = WorkloadEndpoint { profiles: profiles.into(), ..WorkloadEndpoint::default() };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers, ..WorkloadEndpointState::default() };
        messages.updates.push(DesiredUpdate::WorkloadEndpoint(pod(), state));
        let endpoint =
            HostEndpoint { iface: Some("eth0".parse().unwrap()), profiles: of_host.into(), ..HostEndpoint::default() };
        // XDP programs run before conntrack.
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
        messages.updates.push(DesiredUpdate::HostEndpoint(host(), state));
        messages
    }

    fn tiers(&mut self, of: &str, tiers: &[Tier]) -> TierList {
        let tier = |(number, tier): (usize, &Tier)| {
            let mut ids = Vec::new();
            for (policy, named) in tier.policies.iter().enumerate() {
                let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("{of}{number}.{policy}"));
                let (inbound, match_ids) = rules(named);
                let (source, outbound) = (std::sync::Arc::default(), Rules::default());
                let policy = Policy { source, selector: "all()".into(), inbound, outbound };
                self.ids.policies.insert(id.clone(), match_ids);
                self.updates.push(DesiredUpdate::Policy(id.clone(), policy.into()));
                ids.push(id);
            }
            let pass = tier.end_action == "pass";
            let name = TierName::new(format!("{of}{number}"));
            let end_id = tier.end_rule_id.clone().unwrap_or_else(|| NO_ID.to_owned());
            self.ids.ends_of_tiers.insert(name.clone(), end_id);
            TierPolicies {
                name,
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
            let (inbound, match_ids) = rules(named);
            let profile = Profile { inbound, outbound: Rules::default() };
            self.ids.profiles.insert(name.clone(), match_ids);
            self.updates.push(DesiredUpdate::Profile(name.clone(), profile.into()));
            names.push(name);
        }
        names
    }
}
