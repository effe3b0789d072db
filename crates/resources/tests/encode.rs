//! Encoded values decode to the same values, and have the same contents as Calico's encoding.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value as Json;
use tortie_model::{
    AddressSource, AdminState, BgpConfiguration, Cidr, ConfigName, DenyAction, DomainPattern, EncapMode, EndpointPort,
    EndpointSlice, EndpointSlicePort, EntityExtras, EntityMatch, Family, HostConfigKey, HostEndpoint, HostEndpointKey,
    HostInterface, HttpMatch, HttpPath, InterfaceName, Interner, IpPool, Key, Labels, List, Mac, NamedProtocol,
    NamespacedName, NatMapping, NetworkSet, Node, NodeAddress, NodeAddressKind, NodeBgp, NodeTunnels, Order,
    OriginalMatch, Policy, PolicyId, PolicyKind, PolicyTypes, PortSpec, Profile, ProfileName, ProfileRules, Protocol,
    QosControls, Rule, RuleAction, RuleExtras, ScopedConfig, Service, ServiceAccountMatch, ServicePort, StagedAction,
    Tier, TierDefaultAction, TrafficPolicy, Update, Valid, Wireguard, WorkloadEndpoint, WorkloadEndpointKey,
    WorkloadExtras,
};
use tortie_resources::path;
use tortie_resources::v1::{self, Decoded};
use tortie_selector::Selector;

fn shared() -> impl Strategy<Value = Arc<str>> {
    any::<String>().prop_map(Arc::from)
}

fn name() -> impl Strategy<Value = Arc<str>> {
    "[a-z%/é\"\\\\\n.-]{1,8}".prop_map(Arc::from)
}

fn word() -> impl Strategy<Value = Arc<str>> {
    "[a-z][a-z0-9.-]{0,6}[a-z]".prop_map(Arc::from)
}

fn interface() -> impl Strategy<Value = InterfaceName> {
    word().prop_map(|name| name.parse().expect("an interface name"))
}

fn boxed<T: std::fmt::Debug>(items: impl Strategy<Value = T>) -> impl Strategy<Value = Box<[T]>> {
    vec(items, 0..4).prop_map(Into::into)
}

fn shared_list<T: std::fmt::Debug>(items: impl Strategy<Value = T>) -> impl Strategy<Value = Arc<[T]>> {
    vec(items, 0..3).prop_map(Into::into)
}

fn pairs() -> impl Strategy<Value = Box<[(Arc<str>, Arc<str>)]>> {
    btree_map(shared(), shared(), 0..3).prop_map(|pairs| pairs.into_iter().collect())
}

fn labels(names: impl Strategy<Value = Arc<str>>) -> impl Strategy<Value = Labels> {
    btree_map(names, word(), 0..4).prop_map(|pairs| Labels::from_pairs(pairs).expect("short"))
}

fn v4() -> impl Strategy<Value = IpAddr> {
    any::<[u8; 4]>().prop_map(IpAddr::from)
}

fn v6() -> impl Strategy<Value = IpAddr> {
    any::<[u8; 16]>().prop_map(IpAddr::from)
}

fn net4() -> impl Strategy<Value = Cidr> {
    (v4(), 0..=32u8).prop_map(|(address, length)| Cidr::new(address, length).expect("fits"))
}

fn net6() -> impl Strategy<Value = Cidr> {
    (v6(), 0..=128u8).prop_map(|(address, length)| Cidr::new(address, length).expect("fits"))
}

fn net() -> impl Strategy<Value = Cidr> {
    prop_oneof![net4(), net6()]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    const NAMED: [NamedProtocol; 6] = [
        NamedProtocol::Tcp,
        NamedProtocol::Udp,
        NamedProtocol::Icmp,
        NamedProtocol::Icmpv6,
        NamedProtocol::Sctp,
        NamedProtocol::UdpLite,
    ];
    prop_oneof![(0..NAMED.len()).prop_map(|at| Protocol::Named(NAMED[at])), (1..=255u8).prop_map(Protocol::Number)]
}

fn port_spec() -> impl Strategy<Value = PortSpec> {
    prop_oneof![
        (1..=65535u16, 1..=65535u16).prop_map(|(a, b)| PortSpec::Range { first: a.min(b), last: a.max(b) }),
        (1..=65535u16).prop_map(PortSpec::single),
        word().prop_map(PortSpec::Named),
    ]
}

fn order() -> impl Strategy<Value = Option<Order>> {
    option::of(prop_oneof![any::<f64>(), Just(1000.0), Just(0.1)])
        .prop_map(|order| order.filter(|order| order.is_finite()).and_then(Order::new))
}

fn original() -> impl Strategy<Value = OriginalMatch> {
    let written = selector_of_rule;
    (written(), written(), written(), boxed(shared()), written()).prop_map(
        |(selector, namespace_selector, not_selector, names, accounts)| OriginalMatch {
            selector,
            namespace_selector,
            not_selector,
            service_accounts: ServiceAccountMatch { names: names.into(), selector: accounts },
        },
    )
}

fn selector_of_rule() -> impl Strategy<Value = Option<Selector>> {
    // Empty text restricts nothing, which no selector expresses.
    let written = selector().prop_filter("empty", |text| !text.is_empty());
    option::of(written.prop_map(|text| Selector::parse(&text).expect("valid")))
}

/// Valid selectors; others are refused.
fn selector() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("all()".to_owned()),
        word().prop_map(|word| format!("has({word})")),
        "[a-z/é ]{0,8}".prop_map(|value| format!("a == '{value}' && has(b)"))
    ]
    .prop_filter("a selector", |text| Selector::parse(text).is_ok())
}

fn side() -> impl Strategy<Value = EntityMatch> {
    (
        (boxed(net()), boxed(net())),
        (selector_of_rule(), selector_of_rule()),
        (boxed(port_spec()), boxed(port_spec())),
        option::of((shared(), name()).prop_map(|(namespace, name)| NamespacedName { namespace, name })),
        original(),
    )
        .prop_map(|((nets, not_nets), (selector, not_selector), (ports, not_ports), service, original)| {
            let extras = EntityExtras {
                not_nets: not_nets.into(),
                not_selector,
                not_ports: not_ports.into(),
                service: service.map(Box::new),
                original,
                ..EntityExtras::default()
            };
            EntityMatch { nets: nets.into(), selector, ports: ports.into(), extras: extras.into() }
        })
}

/// Removes the ports that do not match the protocol.
fn with_ports_of(protocol: Option<Protocol>, mut side: EntityMatch) -> EntityMatch {
    for ports in [&mut side.ports, &mut side.extras.not_ports] {
        let keep = |port: &PortSpec| match protocol {
            None => matches!(port, PortSpec::Named(_)),
            Some(protocol) => protocol.supports_ports(),
        };
        *ports = std::mem::take(ports).into_iter().filter(keep).collect();
    }
    side
}

fn http() -> impl Strategy<Value = HttpMatch> {
    let path = prop_oneof![name().prop_map(HttpPath::Exact), shared().prop_map(HttpPath::Prefix)];
    (boxed(shared()), boxed(path)).prop_map(|(methods, paths)| HttpMatch { methods, paths })
}

fn rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![
        Just(RuleAction::Unspecified),
        Just(RuleAction::Allow),
        Just(RuleAction::Deny),
        Just(RuleAction::Log),
        Just(RuleAction::NextTier),
    ];
    (
        (action, option::of(prop_oneof![Just(Family::V4), Just(Family::V6)])),
        (option::of(protocol()), option::of(protocol())),
        (option::of(0..=254u8), option::of(any::<u8>()), option::of(0..=254u8), option::of(any::<u8>())),
        (side(), side()),
        (option::of(http()), pairs()),
    )
        .prop_map(
            |((action, ip_version), (protocol, not_protocol), icmp, (source, destination), (http, annotations))| Rule {
                source: with_ports_of(protocol, source),
                destination: with_ports_of(protocol, destination),
                action,
                ip_version,
                protocol,
                extras: RuleExtras {
                    not_protocol,
                    icmp_type: icmp.0,
                    icmp_code: icmp.1,
                    not_icmp_type: icmp.2,
                    not_icmp_code: icmp.3,
                    http: http.map(Box::new),
                    annotations: annotations.into(),
                }
                .into(),
            },
        )
}

fn domains() -> impl Strategy<Value = List<DomainPattern>> {
    let name = prop_oneof!["[a-z0-9_-]{1,8}(\\.[a-z]{1,3}){0,2}", "(a\\.)?\\*(\\.[a-z]{1,3}){1,2}"];
    btree_set(name, 1..3).prop_map(|names| names.iter().map(|name| name.parse().expect("a domain")).collect())
}

/// Rules for traffic from endpoints; some have domains.
fn egress_rule() -> impl Strategy<Value = Rule> {
    (rule(), option::weighted(0.2, domains())).prop_map(|(mut rule, domains)| {
        if let Some(domains) = domains {
            let ports = std::mem::take(&mut rule.destination.ports);
            rule.destination = EntityMatch { ports, ..EntityMatch::default() };
            rule.destination.extras.domains = domains;
            rule.action = RuleAction::Allow;
        }
        rule
    })
}

fn deny_action() -> impl Strategy<Value = DenyAction> {
    prop_oneof![Just(DenyAction::Drop), Just(DenyAction::Reject)]
}

fn policy() -> impl Strategy<Value = Policy> {
    let types = prop_oneof![
        Just(PolicyTypes::BOTH),
        Just(PolicyTypes { ingress: true, egress: false }),
        Just(PolicyTypes { ingress: false, egress: true }),
    ];
    let staged = prop_oneof![Just(StagedAction::Set), Just(StagedAction::Learn), Just(StagedAction::Ignore)];
    (
        (option::of(name()), word(), order(), selector(), types),
        (shared_list(rule()), shared_list(egress_rule())),
        any::<[bool; 4]>(),
        option::of(staged),
        option::of(deny_action()),
    )
        .prop_map(
            |((namespace, tier, order, selector, types), (inbound, outbound), flags, staged_action, deny_action)| {
                let has_domains = outbound.iter().any(|rule| !rule.destination.extras.domains.is_empty());
                Policy {
                    namespace,
                    tier: (&*tier).into(),
                    order,
                    selector: Selector::parse(&selector).expect("valid"),
                    types,
                    inbound,
                    outbound,
                    untracked: flags[0] && !has_domains,
                    pre_dnat: flags[1],
                    apply_on_forward: flags[2],
                    needed_on_every_node: flags[3],
                    staged_action,
                    deny_action,
                }
            },
        )
}

fn endpoint_port() -> impl Strategy<Value = EndpointPort> {
    let protocol = prop_oneof![Just(NamedProtocol::Tcp), Just(NamedProtocol::Udp), Just(NamedProtocol::Sctp)];
    (word(), protocol.prop_map(Protocol::Named), 1..=u16::MAX).prop_map(|(name, protocol, port)| EndpointPort {
        name,
        protocol,
        port,
    })
}

fn profiles() -> impl Strategy<Value = Arc<[ProfileName]>> {
    shared_list(word().prop_map(ProfileName::new))
}

fn qos() -> impl Strategy<Value = QosControls> {
    (any::<[i64; 14]>(), option::of(0..=63u8)).prop_map(|(n, dscp)| QosControls {
        ingress_bandwidth: n[0],
        egress_bandwidth: n[1],
        ingress_burst: n[2],
        egress_burst: n[3],
        ingress_packet_rate: n[4],
        egress_packet_rate: n[5],
        ingress_max_connections: n[6],
        egress_max_connections: n[7],
        ingress_peakrate: n[8],
        egress_peakrate: n[9],
        ingress_minburst: n[10],
        egress_minburst: n[11],
        ingress_packet_burst: n[12],
        egress_packet_burst: n[13],
        dscp,
    })
}

fn workload_endpoint() -> impl Strategy<Value = WorkloadEndpoint> {
    let nat =
        prop_oneof![(v4(), v4()), (v6(), v6())].prop_map(|(internal, external)| NatMapping { internal, external });
    let source = prop_oneof![Just(AddressSource::Platform), name().prop_map(AddressSource::Annotation)];
    let extras = (boxed(nat.clone()), boxed(nat), boxed(net()), pairs(), option::of(qos()), source).prop_map(
        |(ipv4_nat, ipv6_nat, allowed_source_prefixes, annotations, qos, address_source)| {
            let extras =
                WorkloadExtras { ipv4_nat, ipv6_nat, allowed_source_prefixes, annotations, qos, address_source };
            (extras != WorkloadExtras::default()).then(|| Box::new(extras))
        },
    );
    (
        (any::<bool>(), option::of(interface()), option::of(any::<[u8; 6]>().prop_map(Mac))),
        (vec(net4(), 0..3), vec(net6(), 0..3)),
        (profiles(), labels(shared()), boxed(endpoint_port())),
        (option::of(name()), prop_oneof![Just(None), extras]),
    )
        .prop_map(
            |((active, iface, mac), (ipv4_nets, ipv6_nets), (profiles, labels, ports), (generate_name, extras))| {
                WorkloadEndpoint {
                    state: if active { AdminState::Active } else { AdminState::Inactive },
                    iface,
                    mac,
                    profiles,
                    ipv4_nets: ipv4_nets.into(),
                    ipv6_nets: ipv6_nets.into(),
                    labels,
                    ports,
                    generate_name,
                    extras,
                }
            },
        )
}

fn host_endpoint() -> impl Strategy<Value = HostEndpoint> {
    (
        option::of(prop_oneof![Just(HostInterface::All), interface().prop_map(HostInterface::Named)]),
        (boxed(v4()), boxed(v6())),
        (labels(shared()), profiles(), boxed(endpoint_port())),
        option::of(0..=63u8),
    )
        .prop_map(|(iface, (expected_ipv4, expected_ipv6), (labels, profiles, ports), dscp)| HostEndpoint {
            iface,
            expected_ipv4,
            expected_ipv6,
            labels,
            profiles,
            ports,
            dscp,
        })
}

fn node() -> impl Strategy<Value = Node> {
    let kind = prop_oneof![
        Just(NodeAddressKind::CalicoNodeIp),
        Just(NodeAddressKind::InternalIp),
        Just(NodeAddressKind::ExternalIp),
    ];
    let other = Just(NodeAddress { address: "10.0.0.1".into(), kind: NodeAddressKind::Other });
    let address = prop_oneof![(shared(), kind).prop_map(|(address, kind)| NodeAddress { address, kind }), other];
    let number = option::of(any::<u32>().prop_map(|number| Arc::from(number.to_string())));
    let bgp = (shared(), shared(), number, any::<bool>()).prop_map(
        |(ipv4_address, ipv6_address, as_number, has_other_fields)| NodeBgp {
            ipv4_address,
            ipv6_address,
            as_number,
            has_other_fields,
        },
    );
    let tunnels = (option::of(v4()), option::of(v4()), option::of(v6()), option::of(v4()), option::of(v6())).prop_map(
        |(ipip, vxlan, vxlan_v6, wireguard, wireguard_v6)| NodeTunnels {
            ipip,
            vxlan,
            vxlan_v6,
            wireguard,
            wireguard_v6,
        },
    );
    let all = (option::of(bgp), boxed(address), tunnels, boxed(net()), labels(word()));
    all.prop_map(|(mut bgp, addresses, mut tunnels, pod_networks, labels)| {
        // The IP-in-IP address is one of the other fields of that section.
        match &mut bgp {
            Some(bgp) => bgp.has_other_fields |= tunnels.ipip.is_some(),
            None => tunnels.ipip = None,
        }
        let tunnels = (tunnels != NodeTunnels::default()).then(|| tunnels.into());
        Node { bgp, addresses, tunnels, pod_networks, labels }
    })
}

fn service() -> impl Strategy<Value = Service> {
    let numbers = ("TCP|UDP|SCTP|x", 0..=65535i32, 0..=65535i32);
    let port = (shared(), numbers).prop_map(|(name, (protocol, port, node_port))| ServicePort {
        name,
        protocol: protocol.into(),
        port,
        node_port,
    });
    let policy = || prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)];
    let addresses = (boxed(shared()), shared(), boxed(shared()), boxed(name()));
    (shared(), addresses, boxed(port), policy(), policy()).prop_map(
        |(service_type, addresses, ports, internal_traffic_policy, external_traffic_policy)| {
            let (cluster_ips, load_balancer_ip, external_ips, load_balancer_ingress_ips) = addresses;
            Service {
                service_type,
                cluster_ips,
                load_balancer_ip,
                external_ips,
                load_balancer_ingress_ips,
                ports,
                internal_traffic_policy,
                external_traffic_policy,
            }
        },
    )
}

fn endpoint_slice() -> impl Strategy<Value = EndpointSlice> {
    let protocol = prop_oneof![Just(NamedProtocol::Tcp), Just(NamedProtocol::Udp), Just(NamedProtocol::Sctp)];
    let port = (shared(), protocol, option::of(any::<u16>())).prop_map(|(name, protocol, port)| EndpointSlicePort {
        name,
        protocol,
        port,
    });
    (option::of(name()), boxed(prop_oneof![v4(), v6()]), boxed(port), 0..4_usize, 0..4_usize).prop_map(
        |(service, addresses, ports, not_ready, draining)| {
            let service = service.map(|name| NamespacedName::new("ns", name));
            // Addresses occur once.
            let addresses: BTreeSet<IpAddr> = addresses.iter().copied().collect();
            let not_ready: Box<[IpAddr]> = addresses.iter().copied().take(not_ready).collect();
            let draining = not_ready.iter().copied().take(draining).collect();
            EndpointSlice { service, addresses: addresses.into_iter().collect(), ports, not_ready, draining }
        },
    )
}

fn scoped_config() -> impl Strategy<Value = ScopedConfig> {
    let selector = prop_oneof![Just("all()"), Just("!all()"), Just("has(a) && b in {'x', 'y'}"), Just("")]
        .prop_map(|text| Selector::parse(text).expect("a selector"));
    // From the year 0 to the year 9999.
    (selector, -62_167_219_200..253_402_300_800i64, btree_map(name(), shared(), 0..4)).prop_map(
        |(selector, created, parameters)| ScopedConfig {
            selector,
            created,
            parameters: parameters.into_iter().map(|(name, value)| (ConfigName::new(name), value)).collect(),
        },
    )
}

fn bgp_configuration() -> impl Strategy<Value = BgpConfiguration> {
    (boxed(name()), boxed(name()), boxed(name()), shared(), shared()).prop_map(
        |(cluster, external, balancer, v4, v6)| BgpConfiguration {
            service_cluster_cidrs: cluster,
            service_external_cidrs: external,
            service_load_balancer_cidrs: balancer,
            local_workload_peering_ip_v4: v4,
            local_workload_peering_ip_v6: v6,
        },
    )
}

fn ip_pool() -> impl Strategy<Value = IpPool> {
    let mode = prop_oneof![Just(EncapMode::Never), Just(EncapMode::Always), Just(EncapMode::CrossSubnet)];
    (net(), mode.clone(), mode, any::<[bool; 2]>(), boxed(shared())).prop_map(
        |(cidr, ipip_mode, vxlan_mode, [masquerade, disabled], allowed_uses)| IpPool {
            cidr,
            ipip_mode,
            vxlan_mode,
            masquerade,
            disabled,
            allowed_uses,
        },
    )
}

fn update() -> impl Strategy<Value = Update> {
    let ends = prop_oneof![
        Just(TierDefaultAction::Deny),
        deny_action().prop_map(TierDefaultAction::DenyWith),
        Just(TierDefaultAction::Pass)
    ];
    let tier = (order(), option::of(ends)).prop_map(|(order, default_action)| Tier { order, default_action });
    let wireguard = (option::of(v4()), shared(), option::of(v6()), shared()).prop_map(
        |(ipv4_address, public_key, ipv6_address, public_key_v6)| Wireguard {
            ipv4_address,
            public_key,
            ipv6_address,
            public_key_v6,
        },
    );
    prop_oneof![
        (name(), workload_endpoint()).prop_map(|(name, value)| Update::WorkloadEndpoint(
            WorkloadEndpointKey::new("node", "k8s", &name, "eth0"),
            Some(Valid::stored(value).expect("valid"))
        )),
        (name(), host_endpoint()).prop_map(|(name, value)| Update::HostEndpoint(
            HostEndpointKey { host: "node".into(), name: (&*name).into() },
            Some(Valid::stored(value).expect("valid"))
        )),
        (name(), policy()).prop_map(|(name, value)| Update::Policy(
            PolicyId::new(PolicyKind::NetworkPolicy, "ns", name),
            Some(Valid::stored(value).expect("valid"))
        )),
        (name(), tier).prop_map(|(name, value)| Update::Tier((&*name).into(), Some(value))),
        (name(), shared_list(rule()), shared_list(rule())).prop_map(|(name, inbound, outbound)| Update::ProfileRules(
            (&*name).into(),
            Some(Valid::stored(ProfileRules { inbound, outbound }).expect("valid"))
        )),
        (name(), labels(word())).prop_map(|(name, labels)| Update::Profile(
            (&*name).into(),
            Some(Valid::stored(Profile { labels }).expect("valid"))
        )),
        (name(), boxed(net()), labels(shared()), (profiles(), option::of(domains()))).prop_map(
            |(name, nets, labels, (profiles, domains))| {
                let domains = domains.unwrap_or_default();
                let nets = nets.into_vec().into();
                Update::NetworkSet(
                    (&*name).into(),
                    Some(Valid::stored(NetworkSet { nets, labels, profiles, domains }).expect("valid")),
                )
            }
        ),
        ip_pool().prop_map(|pool| Update::IpPool(pool.cidr.masked(), Some(pool.into()))),
        (word(), shared()).prop_map(|(name, value)| Update::GlobalConfig((&*name).into(), Some(value))),
        (word(), shared()).prop_map(|(name, value)| Update::HostConfig(
            HostConfigKey { host: "node".into(), name: (&*name).into() },
            Some(value)
        )),
        (name(), scoped_config()).prop_map(|(name, value)| Update::ScopedConfig((&*name).into(), Some(value.into()))),
        any::<bool>().prop_map(|ready| Update::Ready(Some(ready))),
        (name(), node())
            .prop_map(|(name, value)| Update::Node((&*name).into(), Some(Valid::stored(value).expect("valid")))),
        (name(), wireguard).prop_map(|(name, value)| Update::Wireguard((&*name).into(), Some(value.into()))),
        (name(), service())
            .prop_map(|(name, value)| Update::Service(NamespacedName::new("ns", name), Some(value.into()))),
        (name(), endpoint_slice())
            .prop_map(|(name, value)| Update::EndpointSlice(NamespacedName::new("ns", name), Some(value.into()))),
        (name(), bgp_configuration())
            .prop_map(|(name, value)| Update::BgpConfiguration((&*name).into(), Some(value.into()))),
    ]
}

fn text(update: &Update) -> String {
    String::from_utf8(v1::encode(update).expect("it exists")).expect("text")
}

fn round_trip(update: &Update) -> Update {
    let path = path::to_path(&update.key()).expect("a path");
    let text = text(update);
    match v1::decode_text(&path, Some(&text), &mut Interner::new()) {
        Ok(Decoded::Update(update)) => update,
        other => panic!("{text}\n{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn arbitrary_values_come_back(update in update()) {
        let back = round_trip(&update);
        prop_assert_eq!(back, update);
    }
}

#[derive(Deserialize)]
struct Line {
    key: String,
    value: Json,
}

fn lines() -> Vec<Line> {
    let mut text = String::new();
    let packed: &[u8] = include_bytes!("../testdata/values.jsonl.gz");
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

/// Collects the differences between Calico's encoding and this one, as paths without names and
/// indices.
fn compare(path: &str, theirs: &Json, ours: &Json, differences: &mut BTreeSet<String>) {
    match (theirs, ours) {
        (Json::Object(theirs), Json::Object(ours)) => {
            for (name, theirs) in theirs {
                let path = format!("{path}.{name}");
                match ours.get(name) {
                    Some(ours) => compare(&path, theirs, ours, differences),
                    None => drop(differences.insert(format!("not written: {path}"))),
                }
            }
            for name in ours.keys().filter(|name| !theirs.contains_key(*name)) {
                differences.insert(format!("added: {path}.{name}"));
            }
        }
        (Json::Array(theirs), Json::Array(ours)) if theirs.len() == ours.len() => {
            for (theirs, ours) in theirs.iter().zip(ours) {
                compare(&format!("{path}[]"), theirs, ours, differences);
            }
        }
        (Json::Number(theirs), Json::Number(ours)) if theirs.as_f64() == ours.as_f64() => {}
        (theirs, ours) if theirs == ours => {}
        (theirs, ours) => drop(differences.insert(format!("differs: {path}: {theirs} is written as {ours}"))),
    }
}

#[test]
fn values_written_by_calico_are_encoded_again() {
    let mut labels = Interner::new();
    let mut differences = BTreeSet::new();
    for Line { key: path, value: theirs } in lines() {
        let Ok(Decoded::Update(update)) = v1::decode(&path, Some(&theirs), &mut labels) else { continue };
        assert_eq!(round_trip(&update), update, "{path}");
        let text = text(&update);
        let kind = match update.key() {
            Key::GlobalConfig(_) | Key::HostConfig(_) | Key::Ready => {
                let theirs = theirs.as_str().map_or_else(|| theirs.to_string(), str::to_owned);
                assert_eq!(text, theirs, "{path}");
                continue;
            }
            key => format!("{key:?}").split('(').next().unwrap_or_default().to_owned(),
        };
        let ours: Json = serde_json::from_str(&text).expect("JSON");
        compare(&kind, &theirs, &ours, &mut differences);
    }
    let found: Vec<String> = differences.into_iter().collect();
    insta::assert_snapshot!(found.join("\n"));
}
