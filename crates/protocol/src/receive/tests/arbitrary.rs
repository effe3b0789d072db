//! Generators of updates that contain only fields of the protocol, in the form that decoding
//! produces.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use tortie_model::desired::{
    ComputedFields, ConfigUpdate, DesiredUpdate, Encapsulation, HostEndpointState, HostMetadata, IpPortMember,
    IpSetDelta, IpSetType, IpSetUpdate, LiveMigrationRole, Members, Policy, PoolType, PortProtocol, Profile, Route,
    RouteTypes, RuleSets, Rules, SetIds, SkipRedirect, TierList, TierPolicies, TunnelTypes, Vtep, VtepAddresses,
    WireguardPeer, WorkloadEndpointState,
};
use tortie_model::{
    AdminState, BgpConfiguration, Cidr, EncapMode, EntityExtras, EntityMatch, Family, HostEndpoint, HostEndpointName,
    HostInterface, Hostname, HttpMatch, HttpPath, IpPool, IpSetId, Labels, List, Mac, NamedProtocol, NamespacedName,
    NatMapping, OriginalMatch, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, QosControls, Rule, RuleAction,
    RuleExtras, Service, ServiceAccountMatch, ServicePort, TierDefaultAction, TierName, WorkloadEndpoint,
    WorkloadEndpointId, WorkloadExtras,
};

pub(super) fn update() -> impl Strategy<Value = DesiredUpdate> {
    prop_oneof![sets(), policies(), endpoints(), others(), more_others(), routes()]
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-zA-Z0-9./ä_-]{0,8}".prop_map(Arc::from)
}

fn filled() -> impl Strategy<Value = Arc<str>> {
    "[a-z0-9.-]{1,8}".prop_map(Arc::from)
}

fn list() -> impl Strategy<Value = Box<[Arc<str>]>> {
    vec(text(), 0..3).prop_map(Into::into)
}

fn labels() -> impl Strategy<Value = Labels> {
    btree_map(filled(), text(), 0..3).prop_map(|map| Labels::from_pairs(map).unwrap())
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn net() -> impl Strategy<Value = Cidr> {
    (address(), 0u8..=128)
        .prop_map(|(address, length)| Cidr::new(address, length).unwrap_or_else(|| Cidr::host(address)))
}

fn nets() -> impl Strategy<Value = Box<[Cidr]>> {
    vec(net(), 0..3).prop_map(Into::into)
}

fn ip_port() -> impl Strategy<Value = IpPortMember> {
    let protocol = prop_oneof![Just(PortProtocol::Tcp), Just(PortProtocol::Udp), Just(PortProtocol::Sctp)];
    (address(), protocol, any::<u16>()).prop_map(|(address, protocol, port)| IpPortMember::new(address, protocol, port))
}

fn namespaced() -> impl Strategy<Value = NamespacedName> {
    (text(), filled()).prop_map(|(namespace, name)| NamespacedName::new(namespace, name))
}

fn sets() -> BoxedStrategy<DesiredUpdate> {
    let id = || text().prop_map(IpSetId::new);
    let of_nets = (id(), any::<bool>(), btree_set(net(), 0..5)).prop_map(|(id, ip, members)| IpSetUpdate {
        id,
        set_type: if ip { IpSetType::Ip } else { IpSetType::Net },
        members: Members::Nets(members.into_iter().collect()),
    });
    let of_ports = (id(), btree_set(ip_port(), 0..5)).prop_map(|(id, members)| IpSetUpdate {
        id,
        set_type: IpSetType::IpAndPort,
        members: Members::IpPorts(members.into_iter().collect()),
    });
    // Bit mask of the removed members.
    let split = |bits: u8, count: usize| (0..count).map(move |i| bits >> (i % 8) & 1 == 1);
    let net_delta = (id(), btree_set(net(), 0..5), any::<u8>()).prop_map(move |(id, members, bits)| {
        let (removed, added): (Vec<_>, Vec<_>) = zip_split(members, |n| split(bits, n).collect());
        IpSetDelta { id, added: Members::Nets(added), removed: Members::Nets(removed) }
    });
    let port_delta = (id(), btree_set(ip_port(), 1..5), any::<u8>()).prop_map(move |(id, members, bits)| {
        let (removed, added): (Vec<_>, Vec<_>) = zip_split(members, |n| split(bits, n).collect());
        IpSetDelta { id, added: Members::IpPorts(added), removed: Members::IpPorts(removed) }
    });
    prop_oneof![
        of_nets.prop_map(DesiredUpdate::IpSet),
        of_ports.prop_map(DesiredUpdate::IpSet),
        net_delta.prop_map(DesiredUpdate::IpSetDelta),
        port_delta.prop_map(DesiredUpdate::IpSetDelta),
        id().prop_map(DesiredUpdate::IpSetRemove),
    ]
    .boxed()
}

fn zip_split<T>(members: BTreeSet<T>, split: impl Fn(usize) -> Vec<bool>) -> (Vec<T>, Vec<T>) {
    let flags = split(members.len());
    let (first, second): (Vec<_>, Vec<_>) = members.into_iter().zip(flags).partition(|(_, flag)| *flag);
    let alone = |both: Vec<(T, bool)>| both.into_iter().map(|(member, _)| member).collect();
    (alone(first), alone(second))
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        any::<u8>().prop_map(Protocol::Number),
        // The names `icmp` and `icmpv6` imply a family, which `rule` sets accordingly.
        prop_oneof![
            Just(NamedProtocol::Tcp),
            Just(NamedProtocol::Udp),
            Just(NamedProtocol::Sctp),
            Just(NamedProtocol::UdpLite),
            Just(NamedProtocol::Icmp),
            Just(NamedProtocol::Icmpv6),
        ]
        .prop_map(Protocol::Named),
    ]
}

fn ports() -> impl Strategy<Value = List<PortSpec>> {
    let range = (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortSpec::Range { first: a.min(b), last: a.max(b) });
    vec(range, 0..3).prop_map(Into::into)
}

fn side() -> impl Strategy<Value = EntityMatch> {
    let selector = || option::of(filled().prop_map(|value| format!("a == '{value}'").parse().unwrap()));
    let accounts =
        (list(), selector()).prop_map(|(names, selector)| ServiceAccountMatch { names: names.into(), selector });
    let original = (selector(), selector(), selector(), accounts).prop_map(
        |(selector, namespace_selector, not_selector, service_accounts)| OriginalMatch {
            selector,
            namespace_selector,
            not_selector,
            service_accounts,
        },
    );
    (nets(), nets(), ports(), ports(), option::of(namespaced()), original).prop_map(
        |(nets, not_nets, ports, not_ports, service, original)| EntityMatch {
            nets: nets.into(),
            ports,
            extras: EntityExtras {
                not_nets: not_nets.into(),
                not_ports,
                service: service.map(Box::new),
                original,
                ..EntityExtras::default()
            }
            .into(),
            ..EntityMatch::default()
        },
    )
}

fn icmp() -> impl Strategy<Value = (Option<u8>, Option<u8>)> {
    prop_oneof![
        Just((None, None)),
        any::<u8>().prop_map(|icmp_type| (Some(icmp_type), None)),
        any::<(u8, u8)>().prop_map(|(icmp_type, code)| (Some(icmp_type), Some(code))),
    ]
}

fn http() -> impl Strategy<Value = HttpMatch> {
    let path = prop_oneof![text().prop_map(HttpPath::Exact), text().prop_map(HttpPath::Prefix)];
    (list(), vec(path, 0..3)).prop_map(|(methods, paths)| HttpMatch { methods, paths: paths.into() })
}

fn rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![
        Just(RuleAction::Unspecified),
        Just(RuleAction::Allow),
        Just(RuleAction::Deny),
        Just(RuleAction::Log),
        Just(RuleAction::NextTier),
    ];
    let family = option::of(prop_oneof![Just(Family::V4), Just(Family::V6)]);
    let protocols = (option::of(protocol()), option::of(protocol()));
    let rest = (option::of(http()), btree_map(text(), text(), 0..3));
    (action, family, protocols, (icmp(), icmp()), (side(), side()), rest).prop_map(
        |(action, family, (protocol, not_protocol), (icmp, not_icmp), (source, destination), (http, annotations))| {
            Rule {
                action,
                ip_version: family.or(match protocol {
                    Some(Protocol::Named(NamedProtocol::Icmp)) => Some(Family::V4),
                    Some(Protocol::Named(NamedProtocol::Icmpv6)) => Some(Family::V6),
                    _ => None,
                }),
                protocol,
                source,
                destination,
                extras: RuleExtras {
                    not_protocol,
                    icmp_type: icmp.0,
                    icmp_code: icmp.1,
                    not_icmp_type: not_icmp.0,
                    not_icmp_code: not_icmp.1,
                    http: http.map(Box::new),
                    annotations: annotations.into_iter().collect(),
                }
                .into(),
            }
        },
    )
}

fn rule_sets() -> impl Strategy<Value = RuleSets> {
    vec(vec(text().prop_map(IpSetId::new), 0..3), 9..=9).prop_map(|ids| {
        let mut ids = ids.into_iter().map(SetIds::from);
        let mut next = || ids.next().unwrap();
        RuleSets {
            src: next(),
            src_named_ports: next(),
            not_src: next(),
            not_src_named_ports: next(),
            dst: next(),
            dst_named_ports: next(),
            dst_ip_ports: next(),
            not_dst: next(),
            not_dst_named_ports: next(),
            dst_domains: SetIds::new(),
        }
    })
}

fn rules() -> impl Strategy<Value = (Arc<[Rule]>, Rules)> {
    let of_services = |(rule, mut sets): (Rule, RuleSets)| {
        for (side, sets) in [(&rule.source, &mut sets.src), (&rule.destination, &mut sets.dst_ip_ports)] {
            if side.extras.service.is_some() && sets.is_empty() {
                sets.push(IpSetId::new("service"));
            }
        }
        (rule, sets)
    };
    vec((rule(), rule_sets()).prop_map(of_services), 0..3).prop_map(|both| {
        let (rules, sets): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        let rules: Arc<[Rule]> = rules.into();
        (Arc::clone(&rules), Rules::new(rules, sets.into()).unwrap())
    })
}

fn policy_id() -> impl Strategy<Value = PolicyId> {
    let kind = prop_oneof![
        Just(PolicyKind::GlobalNetworkPolicy),
        Just(PolicyKind::KubernetesNetworkPolicy),
        Just(PolicyKind::Other("Other".into()))
    ];
    (kind, text(), text()).prop_map(|(kind, namespace, name)| PolicyId::new(kind, namespace, name))
}

fn policies() -> BoxedStrategy<DesiredUpdate> {
    let attributes = (option::of(filled()), filled(), text(), any::<[bool; 3]>());
    let policy = (attributes, rules(), rules()).prop_map(
        |((namespace, tier, selector, [untracked, pre_dnat, needed_on_every_node]), inbound, outbound)| {
            let source = tortie_model::Policy {
                namespace,
                tier: TierName::new(tier),
                inbound: inbound.0,
                outbound: outbound.0,
                untracked,
                pre_dnat,
                needed_on_every_node,
                ..tortie_model::Policy::default()
            };
            Policy { source: Arc::new(source), selector, inbound: inbound.1, outbound: outbound.1 }
        },
    );
    let profile =
        (rules(), rules()).prop_map(|(inbound, outbound)| Profile { inbound: inbound.1, outbound: outbound.1 });
    let profile_name = || text().prop_map(ProfileName::new);
    prop_oneof![
        (policy_id(), policy).prop_map(|(id, policy)| DesiredUpdate::Policy(id, Arc::new(policy))),
        policy_id().prop_map(DesiredUpdate::PolicyRemove),
        (profile_name(), profile).prop_map(|(name, profile)| DesiredUpdate::Profile(name, Arc::new(profile))),
        profile_name().prop_map(DesiredUpdate::ProfileRemove),
    ]
    .boxed()
}

fn tiers() -> impl Strategy<Value = TierList> {
    let action = option::of(prop_oneof![Just(TierDefaultAction::Deny), Just(TierDefaultAction::Pass)]);
    let ids = || vec(policy_id(), 0..3).prop_map(Arc::<[PolicyId]>::from);
    let tier = (text(), action, ids(), ids()).prop_map(|(name, default_action, ingress, egress)| TierPolicies {
        name: TierName::new(name),
        default_action,
        ingress,
        egress,
    });
    vec(tier, 0..3).prop_map(TierList::from)
}

fn profiles() -> impl Strategy<Value = Arc<[ProfileName]>> {
    vec(text().prop_map(ProfileName::new), 0..3).prop_map(Into::into)
}

fn extras() -> impl Strategy<Value = WorkloadExtras> {
    let nats = || {
        let nat = (address(), address()).prop_map(|(internal, external)| NatMapping { internal, external });
        vec(nat, 0..2).prop_map(Box::<[NatMapping]>::from)
    };
    let qos = (any::<[i64; 14]>(), option::of(0u8..64)).prop_map(|(n, dscp)| QosControls {
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
    });
    let annotations = btree_map(filled(), text(), 0..3).prop_map(|map| map.into_iter().collect());
    (nats(), nats(), nets(), annotations, option::of(qos)).prop_map(
        |(ipv4_nat, ipv6_nat, allowed_source_prefixes, annotations, qos)| WorkloadExtras {
            ipv4_nat,
            ipv6_nat,
            allowed_source_prefixes,
            annotations,
            qos,
            address_source: tortie_model::AddressSource::Platform,
        },
    )
}

fn computed() -> impl Strategy<Value = ComputedFields> {
    let skip = any::<(bool, bool)>().prop_map(|(egress, ingress)| SkipRedirect { egress, ingress });
    let role = prop_oneof![Just(LiveMigrationRole::Source), Just(LiveMigrationRole::Target)];
    (option::of(text()), option::of(skip), any::<bool>(), option::of(role), text(), text()).prop_map(
        |(local_bgp_peer, skip_redirect, is_istio_ambient, live_migration_role, uid, vmi_name)| ComputedFields {
            local_bgp_peer,
            skip_redirect,
            qos_policies: [].into(),
            is_istio_ambient,
            live_migration_role,
            live_migration_uid: uid,
            live_migration_vmi_name: vmi_name,
            contest: None,
        },
    )
}

fn workload_id() -> impl Strategy<Value = WorkloadEndpointId> {
    (text(), text(), text()).prop_map(|(orchestrator, workload, endpoint)| WorkloadEndpointId {
        orchestrator,
        workload,
        endpoint,
    })
}

fn endpoints() -> BoxedStrategy<DesiredUpdate> {
    let iface = || "[a-z][a-z0-9.-]{0,14}".prop_map(|name| name.parse().unwrap());
    let host_interface = prop_oneof![Just(HostInterface::All), iface().prop_map(HostInterface::Named)];
    let of_family = |v6: bool| vec(net().prop_filter("family", move |net| (net.family() == Family::V6) == v6), 0..3);
    let attributes = (any::<bool>(), option::of(iface()), option::of(any::<[u8; 6]>().prop_map(Mac)));
    let workload = (attributes, profiles(), of_family(false), of_family(true), extras()).prop_map(
        |((active, iface, mac), profiles, ipv4_nets, ipv6_nets, extras)| WorkloadEndpoint {
            state: if active { AdminState::Active } else { AdminState::Inactive },
            iface,
            mac,
            profiles,
            ipv4_nets: ipv4_nets.into(),
            ipv6_nets: ipv6_nets.into(),
            extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
            ..WorkloadEndpoint::default()
        },
    );
    let workload = (workload, tiers(), computed()).prop_map(|(endpoint, tiers, computed)| WorkloadEndpointState {
        endpoint: Arc::new(endpoint),
        tiers,
        computed: (computed != ComputedFields::default()).then(|| Box::new(computed)),
    });
    let addresses = || vec(address(), 0..3).prop_map(Box::<[IpAddr]>::from);
    let host = (option::of(host_interface), addresses(), addresses(), profiles(), option::of(0u8..64)).prop_map(
        |(iface, expected_ipv4, expected_ipv6, profiles, dscp)| HostEndpoint {
            iface,
            expected_ipv4,
            expected_ipv6,
            profiles,
            dscp,
            ..HostEndpoint::default()
        },
    );
    let host = (host, [tiers(), tiers(), tiers(), tiers()]).prop_map(
        |(endpoint, [tiers, untracked_tiers, pre_dnat_tiers, forward_tiers])| HostEndpointState {
            endpoint: Arc::new(endpoint),
            tiers,
            untracked_tiers,
            pre_dnat_tiers,
            forward_tiers,
            qos_policies: [].into(),
        },
    );
    let host_name = || text().prop_map(HostEndpointName::new);
    prop_oneof![
        (workload_id(), workload).prop_map(|(id, state)| DesiredUpdate::WorkloadEndpoint(id, state)),
        workload_id().prop_map(DesiredUpdate::WorkloadEndpointRemove),
        (host_name(), host).prop_map(|(name, state)| DesiredUpdate::HostEndpoint(name, state)),
        host_name().prop_map(DesiredUpdate::HostEndpointRemove),
    ]
    .boxed()
}

fn others() -> BoxedStrategy<DesiredUpdate> {
    let raw = || btree_map(filled(), text(), 0..3);
    let config = (raw(), raw(), raw()).prop_map(|(global, selector, host)| ConfigUpdate { global, selector, host });
    let host = || text().prop_map(Hostname::new);
    let peer =
        || (text(), option::of(address())).prop_map(|(public_key, address)| WireguardPeer { public_key, address });
    let metadata = (text(), text(), text(), labels())
        .prop_map(|(ipv4_addr, ipv6_addr, as_number, labels)| HostMetadata { ipv4_addr, ipv6_addr, as_number, labels });
    prop_oneof![
        Just(DesiredUpdate::InSync),
        config.prop_map(DesiredUpdate::Config),
        (namespaced(), labels()).prop_map(|(id, labels)| DesiredUpdate::ServiceAccount(id, labels)),
        namespaced().prop_map(DesiredUpdate::ServiceAccountRemove),
        (text(), labels()).prop_map(|(name, labels)| DesiredUpdate::Namespace(name, labels)),
        text().prop_map(DesiredUpdate::NamespaceRemove),
        (host(), peer()).prop_map(|(host, peer)| DesiredUpdate::Wireguard(host, peer)),
        host().prop_map(DesiredUpdate::WireguardRemove),
        (host(), peer()).prop_map(|(host, peer)| DesiredUpdate::WireguardV6(host, peer)),
        host().prop_map(DesiredUpdate::WireguardV6Remove),
        (host(), metadata).prop_map(|(host, metadata)| DesiredUpdate::Host(host, metadata)),
        host().prop_map(DesiredUpdate::HostRemove),
    ]
    .boxed()
}

fn more_others() -> BoxedStrategy<DesiredUpdate> {
    let mode = || prop_oneof![Just(EncapMode::Never), Just(EncapMode::Always), Just(EncapMode::CrossSubnet)];
    let pool = (net(), mode(), mode(), any::<bool>(), list()).prop_map(
        |(cidr, ipip_mode, vxlan_mode, masquerade, allowed_uses)| IpPool {
            cidr,
            ipip_mode,
            vxlan_mode,
            masquerade,
            disabled: false,
            allowed_uses,
        },
    );
    let encapsulation = any::<[bool; 4]>().prop_map(|[ipip, vxlan, vxlan_v6, no_encap]| Encapsulation {
        ipip,
        vxlan,
        vxlan_v6,
        no_encap,
    });
    let bgp =
        (list(), list(), list(), text(), text()).prop_map(|(cluster, external, balancer, v4, v6)| BgpConfiguration {
            service_cluster_cidrs: cluster,
            service_external_cidrs: external,
            service_load_balancer_cidrs: balancer,
            local_workload_peering_ip_v4: v4,
            local_workload_peering_ip_v6: v6,
        });
    let protocol = prop_oneof![Just("TCP"), Just("UDP"), Just("SCTP")].prop_map(Arc::from);
    let port = (protocol, any::<i32>(), any::<i32>()).prop_map(|(protocol, port, node_port)| ServicePort {
        name: "".into(),
        protocol,
        port,
        node_port,
    });
    let service = (text(), list(), text(), list(), list(), vec(port, 0..3)).prop_map(
        |(service_type, cluster_ips, load_balancer_ip, external_ips, load_balancer_ingress_ips, ports)| Service {
            service_type,
            cluster_ips,
            load_balancer_ip,
            external_ips,
            load_balancer_ingress_ips,
            ports: ports.into(),
            ..Service::default()
        },
    );
    prop_oneof![
        pool.prop_map(|pool| DesiredUpdate::IpPool(Arc::new(pool))),
        net().prop_map(DesiredUpdate::IpPoolRemove),
        encapsulation.prop_map(DesiredUpdate::Encapsulation),
        bgp.prop_map(|bgp| DesiredUpdate::BgpConfiguration(Arc::new(bgp))),
        (namespaced(), service).prop_map(|(id, service)| DesiredUpdate::Service(id, Arc::new(service))),
        namespaced().prop_map(DesiredUpdate::ServiceRemove),
    ]
    .boxed()
}

fn routes() -> BoxedStrategy<DesiredUpdate> {
    let host = || text().prop_map(Hostname::new);
    let pool_type =
        prop_oneof![Just(PoolType::None), Just(PoolType::NoEncap), Just(PoolType::Vxlan), Just(PoolType::IpIp)];
    let types = (0u8..64).prop_map(|bits| RouteTypes::from_bits(bits).unwrap());
    let tunnels = any::<[bool; 3]>().prop_map(|[ipip, vxlan, wireguard]| TunnelTypes { ipip, vxlan, wireguard });
    let node = (option::of(filled().prop_map(Hostname::new)), option::of(address()));
    let route = (pool_type, types, tunnels, node, any::<[bool; 4]>()).prop_map(
        |(pool_type, types, tunnels, (node, node_address), [same_subnet, nat_outgoing, local_workload, borrowed])| {
            Route { pool_type, types, node, node_address, same_subnet, nat_outgoing, local_workload, borrowed, tunnels }
        },
    );
    let addresses = || {
        let parts = (any::<[u8; 6]>(), address(), address());
        option::of(parts.prop_map(|(mac, tunnel, parent)| VtepAddresses { mac: Mac(mac), tunnel, parent }))
    };
    let vtep = (addresses(), addresses()).prop_map(|(v4, v6)| Vtep { v4, v6 });
    prop_oneof![
        (net(), route).prop_map(|(dst, route)| DesiredUpdate::Route(dst, route)),
        net().prop_map(DesiredUpdate::RouteRemove),
        (host(), vtep).prop_map(|(node, vtep)| DesiredUpdate::Vtep(node, vtep)),
        host().prop_map(DesiredUpdate::VtepRemove),
    ]
    .boxed()
}
