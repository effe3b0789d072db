//! Conversion of the recorded JSON to Tortie's types.

use std::sync::{Arc, LazyLock};

use serde_json::Value;
use tortie_iptables::{InterfaceName, MarkBits, PortRange};
use tortie_model::desired::{self, RuleSets, Rules};
use tortie_model::{
    Cidr, Direction, EntityExtras, EntityMatch, Family, List, NamedProtocol, Policy, PolicyId, PolicyKind, PortSpec,
    ProfileName, Protocol, QosControls, Rule, RuleAction, TierDefaultAction, TierName,
};
use tortie_rules::{
    AllowAction, DenyAction, EndpointToHostAction, FailsafePort, IpvsConfig, LogConfig, Marks, NatConfig,
    NftablesConfig, OpenStackConfig, PacketFilter, PolicyGroup, RulesConfig, TierGroups, TunnelConfig,
};
use tortie_testkit::golden;

pub(super) fn rules_json() -> Option<&'static Value> {
    static JSON: LazyLock<Option<Value>> = LazyLock::new(|| recorded("rules.json.gz"));
    JSON.as_ref()
}

pub(super) fn names_json() -> Option<&'static Value> {
    static JSON: LazyLock<Option<Value>> = LazyLock::new(|| recorded("names.json.gz"));
    JSON.as_ref()
}

pub(super) fn recorded(name: &str) -> Option<Value> {
    let text = golden::text(env!("CARGO_MANIFEST_DIR"), name)?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Returns a list; it is empty if absent or `null`.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn strings(value: &Value) -> Vec<String> {
    list(value).iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a number, also if it is written as text; 0 if absent, as in protobuf JSON.
pub(super) fn number(value: &Value) -> i64 {
    value.as_str().map_or_else(|| value.as_i64().unwrap_or(0), |text| text.parse().unwrap())
}

fn small<T: TryFrom<i64>>(value: &Value) -> T {
    T::try_from(number(value)).ok().unwrap()
}

pub(super) fn family(version: &Value) -> Family {
    match number(version) {
        4 => Family::V4,
        6 => Family::V6,
        other => panic!("IP version {other}"),
    }
}

pub(super) fn interface(value: &Value) -> InterfaceName {
    text(value).parse().unwrap()
}

/// Returns the interface of an endpoint. One of the recorded names is too long for an interface,
/// and is cut.
pub(super) fn cut_interface(value: &Value) -> InterfaceName {
    let name = text(value);
    name.get(..InterfaceName::MAX_LEN).unwrap_or(name).parse().unwrap()
}

pub(super) fn config(json: &Value) -> RulesConfig {
    let on = |name: &str| json[name].as_bool().unwrap();
    let tunnel =
        |enabled, address: &str| TunnelConfig { enabled: on(enabled), has_address: !text(&json[address]).is_empty() };
    let failsafe = |name: &str| list(&json[name]).iter().map(failsafe_port).collect();
    let mark = |name: &str| u32::from_str_radix(text(&json[name]).trim_start_matches("0x"), 16).unwrap();

    let wireguard_on = on("WireguardEnabled") || on("WireguardEnabledV6");
    let marks = Marks::allocate(Marks::DEFAULT_MASK, wireguard_on, on("KubeIPVSSupportEnabled")).unwrap();
    assert_eq!(marks.accept.get(), mark("MarkAccept"));
    assert_eq!(marks.pass.get(), mark("MarkPass"));
    assert_eq!(marks.drop.get(), mark("MarkDrop"));
    assert_eq!(marks.scratch0.get(), mark("MarkScratch0"));
    assert_eq!(marks.scratch1.get(), mark("MarkScratch1"));
    assert_eq!(marks.endpoint.get(), mark("MarkEndpoint"));
    assert_eq!(marks.wireguard.map_or(0, MarkBits::get), mark("WireguardMark"));
    assert_eq!(marks.non_endpoint.map_or(0, MarkBits::get), mark("MarkNonCaliEndpoint"));

    let mut config = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap();
    config.marks = marks;
    config.workload_prefixes = list(&json["WorkloadIfacePrefixes"]).iter().map(interface).collect();
    config.deny = match text(&json["FilterDenyAction"]) {
        "DROP" => DenyAction::Drop,
        "REJECT" => DenyAction::Reject,
        other => panic!("{other}"),
    };
    let allow = |name: &str| match text(&json[name]) {
        "ACCEPT" => AllowAction::Accept,
        "RETURN" => AllowAction::Return,
        other => panic!("{other}"),
    };
    config.filter_allow = allow("FilterAllowAction");
    config.mangle_allow = allow("MangleAllowAction");
    config.endpoint_to_host = match text(&json["EndpointToHostAction"]) {
        "DROP" => EndpointToHostAction::Drop,
        "REJECT" => EndpointToHostAction::Reject,
        "ACCEPT" => EndpointToHostAction::Accept,
        "RETURN" => EndpointToHostAction::Return,
        other => panic!("{other}"),
    };
    config.service_loop = match text(&json["ServiceLoopPrevention"]) {
        "Drop" => Some(DenyAction::Drop),
        "Reject" => Some(DenyAction::Reject),
        "Disabled" => None,
        other => panic!("{other}"),
    };
    config.failsafe_inbound = failsafe("FailsafeInboundHostPorts");
    config.failsafe_outbound = failsafe("FailsafeOutboundHostPorts");
    config.deny_invalid_conntrack = !on("DisableConntrackInvalid");
    config.ipip = tunnel("IPIPEnabled", "IPIPTunnelAddress");
    config.vxlan_v4 = tunnel("VXLANEnabled", "VXLANTunnelAddress");
    config.vxlan_v6 = tunnel("VXLANEnabledV6", "VXLANTunnelAddressV6");
    config.vxlan_port = small(&json["VXLANPort"]);
    config.vxlan_from_workloads = on("AllowVXLANPacketsFromWorkloads");
    config.ipip_from_workloads = on("AllowIPIPPacketsFromWorkloads");
    config.wireguard.v4.enabled = on("WireguardEnabled");
    config.wireguard.v4.interface = interface(&json["WireguardInterfaceName"]);
    config.wireguard.v4.port = small(&json["WireguardListeningPort"]);
    config.wireguard.v6.enabled = on("WireguardEnabledV6");
    config.wireguard.v6.interface = interface(&json["WireguardInterfaceNameV6"]);
    config.wireguard.v6.port = small(&json["WireguardListeningPortV6"]);
    config.wireguard.encrypt_host_traffic = on("WireguardEncryptHostTraffic");
    config.openstack = on("OpenStackSpecialCasesEnabled").then(|| OpenStackConfig {
        metadata: Some((text(&json["OpenStackMetadataIP"]).parse().unwrap(), small(&json["OpenStackMetadataPort"]))),
    });
    config.log = LogConfig {
        prefix: text(&json["LogPrefix"]).to_owned(),
        limit: match text(&json["LogActionRateLimit"]) {
            "" => None,
            rate => Some((rate.parse().unwrap(), Some(small(&json["LogActionRateLimitBurst"])))),
        },
    };
    config.flow_logs = on("FlowLogsEnabled");
    config.nat = NatConfig {
        ports: Some(text(&json["NATPortRange"])).filter(|ports| *ports != "0").map(port_range),
        address: text(&json["NATOutgoingAddress"]).parse().ok(),
        exclude_hosts: text(&json["NATOutgoingExclusions"]) == "IPPoolsAndHostIPs",
        out_interface: text(&json["IptablesNATOutgoingInterfaceFilter"]).parse().ok(),
    };
    config.ipvs = on("KubeIPVSSupportEnabled").then(|| IpvsConfig {
        node_ports: list(&json["KubeNodePortRanges"]).iter().map(|ports| port_range(text(ports))).collect(),
    });
    config.istio_dscp = on("IstioAmbientModeEnabled").then(|| small(&json["IstioDSCPMark"]));
    if on("NFTablesEnabled") {
        let offload_flows = on("NFTablesFlowTableOffload");
        config.packet_filter = PacketFilter::Nftables(NftablesConfig { offload_flows, ..NftablesConfig::default() });
    }
    assert!(!on("BPFEnabled"));
    config
}

/// Parses `FIRST:LAST`, or one port.
fn port_range(text: &str) -> PortRange {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    PortRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
}

fn failsafe_port(json: &Value) -> FailsafePort {
    FailsafePort {
        protocol: NamedProtocol::from_name(text(&json["protocol"])).map(Protocol::Named).unwrap(),
        port: small(&json["port"]),
        net: text(&json["net"]).parse().ok(),
    }
}

pub(super) fn policy_id(json: &Value) -> PolicyId {
    PolicyId::new(PolicyKind::from_name(text(&json["kind"])), text(&json["namespace"]), text(&json["name"]))
}

/// Returns a policy as it would be rendered in `family`.
pub(super) fn policy(json: &Value, family: Family) -> desired::Policy {
    let source = Policy {
        tier: TierName::from(text(&json["tier"])),
        untracked: json["untracked"].as_bool().unwrap_or(false),
        ..Policy::default()
    };
    desired::Policy {
        source: Arc::new(source),
        selector: text(&json["original_selector"]).into(),
        inbound: rules(&json["inbound_rules"], family),
        outbound: rules(&json["outbound_rules"], family),
    }
}

pub(super) fn profile(json: &Value, family: Family) -> desired::Profile {
    desired::Profile {
        inbound: rules(&json["inbound_rules"], family),
        outbound: rules(&json["outbound_rules"], family),
    }
}

pub(super) fn rules(json: &Value, family: Family) -> Rules {
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = list(json).iter().map(|json| rule(json, family)).unzip();
    Rules::new(rules.into(), sets.into()).unwrap()
}

/// Converts a rule of the dataplane messages. The recording renders rules with a named ICMP
/// protocol in both families. In the model the name implies a family, so the rule gets `family` as
/// its IP version.
pub(super) fn rule(json: &Value, family: Family) -> (Rule, RuleSets) {
    let mut rule = Rule {
        ip_version: match text(&json["ip_version"]) {
            "" => None,
            "IPV4" => Some(Family::V4),
            "IPV6" => Some(Family::V6),
            other => panic!("{other}"),
        },
        protocol: protocol(&json["protocol"]),
        source: entity(json, "src"),
        destination: entity(json, "dst"),
        ..Rule::new(match text(&json["action"]) {
            "" => RuleAction::Unspecified,
            "allow" => RuleAction::Allow,
            "deny" => RuleAction::Deny,
            "log" => RuleAction::Log,
            "pass" | "next-tier" => RuleAction::NextTier,
            other => panic!("{other}"),
        })
    };
    rule.extras.not_protocol = protocol(&json["not_protocol"]);
    (rule.extras.icmp_type, rule.extras.icmp_code) = icmp(&json["icmp_type"], &json["icmp_type_code"]);
    (rule.extras.not_icmp_type, rule.extras.not_icmp_code) = icmp(&json["not_icmp_type"], &json["not_icmp_type_code"]);
    if let Some(annotations) = json["metadata"]["annotations"].as_object() {
        rule.extras.annotations =
            annotations.iter().map(|(key, value)| (key.as_str().into(), text(value).into())).collect();
    }
    if rule.ip_version.is_none()
        && matches!(rule.protocol, Some(Protocol::Named(NamedProtocol::Icmp | NamedProtocol::Icmpv6)))
    {
        rule.ip_version = Some(family);
    }
    let sets = |name: &str| list(&json[name]).iter().map(|id| text(id).into()).collect();
    let sets = RuleSets {
        src: sets("src_ip_set_ids"),
        src_named_ports: sets("src_named_port_ip_set_ids"),
        not_src: sets("not_src_ip_set_ids"),
        not_src_named_ports: sets("not_src_named_port_ip_set_ids"),
        dst: sets("dst_ip_set_ids"),
        dst_named_ports: sets("dst_named_port_ip_set_ids"),
        dst_ip_ports: sets("dst_ip_port_set_ids"),
        not_dst: sets("not_dst_ip_set_ids"),
        not_dst_named_ports: sets("not_dst_named_port_ip_set_ids"),
        dst_domains: desired::SetIds::new(),
    };
    (rule, sets)
}

fn entity(json: &Value, end: &str) -> EntityMatch {
    let nets =
        |name: String| -> List<Cidr> { list(&json[name]).iter().map(|net| text(net).parse().unwrap()).collect() };
    let ports = |name: String| -> List<PortSpec> {
        let range = |port: &Value| PortSpec::Range { first: small(&port["first"]), last: small(&port["last"]) };
        list(&json[name]).iter().map(range).collect()
    };
    EntityMatch {
        nets: nets(format!("{end}_net")),
        ports: ports(format!("{end}_ports")),
        extras: EntityExtras {
            not_nets: nets(format!("not_{end}_net")),
            not_ports: ports(format!("not_{end}_ports")),
            ..EntityExtras::default()
        }
        .into(),
        ..EntityMatch::default()
    }
}

fn protocol(json: &Value) -> Option<Protocol> {
    match (&json["name"], &json["number"]) {
        (Value::String(name), _) => Some(Protocol::Named(NamedProtocol::from_name(name).unwrap())),
        (_, Value::Number(_)) => Some(Protocol::Number(small(&json["number"]))),
        _ => None,
    }
}

fn icmp(number_only: &Value, with_code: &Value) -> (Option<u8>, Option<u8>) {
    if with_code.is_object() {
        (Some(small(&with_code["type"])), Some(small(&with_code["code"])))
    } else if number_only.is_null() {
        (None, None)
    } else {
        (Some(small(number_only)), None)
    }
}

pub(super) fn tiers(json: &Value) -> Vec<TierGroups> {
    let tier = |json: &Value| TierGroups {
        name: TierName::from(text(&json["name"])),
        default_action: match text(&json["default_action"]) {
            "Deny" => Some(TierDefaultAction::Deny),
            "Pass" => Some(TierDefaultAction::Pass),
            "" => None,
            other => panic!("{other}"),
        },
        ingress: groups(Direction::Ingress, &json["ingress_groups"]),
        egress: groups(Direction::Egress, &json["egress_groups"]),
    };
    list(json).iter().map(tier).collect()
}

fn groups(direction: Direction, json: &Value) -> Vec<PolicyGroup> {
    let group = |json: &Value| {
        let policies: Vec<PolicyId> = list(&json["policies"]).iter().map(policy_id).collect();
        let group = PolicyGroup::new(direction, text(&json["selector"]), policies);
        assert_eq!(group.chain_name().as_str(), text(&json["chain_name"]));
        assert_eq!(group.is_inlined(), json["inlined"].as_bool().unwrap());
        group
    };
    list(json).iter().map(group).collect()
}

pub(super) fn profiles(json: &Value) -> Vec<ProfileName> {
    list(json).iter().map(|name| text(name).into()).collect()
}

pub(super) fn qos(json: &Value) -> Option<QosControls> {
    let name = |field: &str| number(&json[field]);
    json.is_object().then(|| QosControls {
        ingress_packet_rate: name("IngressPacketRate"),
        ingress_packet_burst: name("IngressPacketBurst"),
        ingress_max_connections: name("IngressMaxConnections"),
        egress_packet_rate: name("EgressPacketRate"),
        egress_packet_burst: name("EgressPacketBurst"),
        egress_max_connections: name("EgressMaxConnections"),
        ..QosControls::default()
    })
}
