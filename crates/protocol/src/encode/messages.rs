//! The messages of `felix.ToDataplane`, one function each.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::desired::{
    ConfigSource, ConfigUpdate, DesiredUpdate, Encapsulation, HostEndpointState, HostMetadata, IpSetDelta, IpSetType,
    IpSetUpdate, LiveMigrationRole, Members, Policy, Profile, QosPolicy, Rules, TierPolicies, WireguardPeer,
    WorkloadEndpointState, is_domain_set,
};
use tortie_model::{
    AdminState, BgpConfiguration, Cidr, Direction, HostEndpointName, Hostname, IpPool, Labels, NamespacedName,
    NatMapping, PolicyId, ProfileName, QosControls, Service, WorkloadEndpointId,
};

use super::rule::rule;
use super::rule_id::{RuleIdSeed, rule_ids};
use super::{Message, routes};

/// Writes the envelope; `false` if the protocol has no message for `update`.
pub(super) fn to_dataplane<M: Message>(m: &mut M, update: &DesiredUpdate, sequence_number: u64) -> bool {
    // The number of this envelope field lies between those of the payloads. Parsers accept fields
    // in any order, so it comes first.
    m.long(15, "sequence_number", sequence_number.cast_signed());
    match update {
        DesiredUpdate::DatastoreNotReady => return false,
        // The protocol has no such sets, and a client that ignores one would match all addresses.
        DesiredUpdate::IpSet(IpSetUpdate { id, .. })
        | DesiredUpdate::IpSetDelta(IpSetDelta { id, .. })
        | DesiredUpdate::IpSetRemove(id)
            if is_domain_set(id) =>
        {
            return false;
        }
        DesiredUpdate::InSync => m.message(1, "in_sync", |_| {}),
        DesiredUpdate::IpSet(set) => m.message(2, "ipset_update", |m| ip_set(m, set)),
        DesiredUpdate::IpSetDelta(delta) => m.message(3, "ipset_delta_update", |m| ip_set_delta(m, delta)),
        DesiredUpdate::IpSetRemove(id) => m.message(4, "ipset_remove", |m| m.text(1, "id", id.as_str())),
        DesiredUpdate::Profile(name, value) => m.message(5, "active_profile_update", |m| profile(m, name, value)),
        DesiredUpdate::ProfileRemove(name) => m.message(6, "active_profile_remove", |m| profile_id(m, name)),
        DesiredUpdate::Policy(id, value) => m.message(7, "active_policy_update", |m| policy(m, id, value)),
        DesiredUpdate::PolicyRemove(id) => m.message(8, "active_policy_remove", |m| {
            m.message(1, "id", |m| policy_id(m, id));
        }),
        DesiredUpdate::HostEndpoint(id, state) => m.message(9, "host_endpoint_update", |m| host_endpoint(m, id, state)),
        DesiredUpdate::HostEndpointRemove(id) => m.message(10, "host_endpoint_remove", |m| host_endpoint_id(m, id)),
        DesiredUpdate::WorkloadEndpoint(id, state) => m.message(11, "workload_endpoint_update", |m| {
            workload_id(m, id);
            m.message(5, "endpoint", |m| workload_endpoint(m, state));
        }),
        DesiredUpdate::WorkloadEndpointRemove(id) => m.message(12, "workload_endpoint_remove", |m| workload_id(m, id)),
        DesiredUpdate::Config(update) => m.message(13, "config_update", |m| config(m, update)),
        DesiredUpdate::Host(name, host) => m.message(14, "host_metadata_update", |m| host_metadata(m, name, host)),
        DesiredUpdate::HostRemove(name) => m.message(18, "host_metadata_remove", |m| hostname(m, name)),
        DesiredUpdate::IpPool(pool) => m.message(16, "ipam_pool_update", |m| ip_pool(m, pool)),
        DesiredUpdate::IpPoolRemove(cidr) => m.message(17, "ipam_pool_remove", |m| m.text(1, "id", &pool_id(*cidr))),
        DesiredUpdate::ServiceAccount(id, labels) => m.message(19, "service_account_update", |m| {
            service_account_id(m, id);
            label_map(m, 2, labels);
        }),
        DesiredUpdate::ServiceAccountRemove(id) => {
            m.message(20, "service_account_remove", |m| service_account_id(m, id));
        }
        DesiredUpdate::Namespace(name, labels) => m.message(21, "namespace_update", |m| {
            namespace_id(m, name);
            label_map(m, 2, labels);
        }),
        DesiredUpdate::NamespaceRemove(name) => m.message(22, "namespace_remove", |m| namespace_id(m, name)),
        DesiredUpdate::Route(dst, to) => m.message(23, "route_update", |m| routes::route(m, *dst, to)),
        DesiredUpdate::RouteRemove(dst) => m.message(24, "route_remove", |m| m.shown(2, "dst", dst)),
        DesiredUpdate::Vtep(node, vtep) => m.message(25, "vtep_update", |m| routes::vtep(m, node, vtep)),
        DesiredUpdate::VtepRemove(node) => m.message(26, "vtep_remove", |m| m.text(1, "node", node.as_str())),
        DesiredUpdate::Wireguard(host, peer) => m.message(27, "wireguard_endpoint_update", |m| {
            wireguard(m, host, peer, ["public_key", "interface_ipv4_addr"]);
        }),
        DesiredUpdate::WireguardRemove(host) => m.message(28, "wireguard_endpoint_remove", |m| hostname(m, host)),
        DesiredUpdate::BgpConfiguration(bgp) => m.message(29, "global_bgp_config_update", |m| bgp_config(m, bgp)),
        DesiredUpdate::Encapsulation(encap) => m.message(30, "encapsulation", |m| encapsulation(m, *encap)),
        DesiredUpdate::Service(id, service) => m.message(31, "service_update", |m| service_update(m, id, service)),
        DesiredUpdate::ServiceRemove(id) => m.message(32, "service_remove", |m| service_id(m, id)),
        DesiredUpdate::WireguardV6(host, peer) => m.message(33, "wireguard_endpoint_v6_update", |m| {
            wireguard(m, host, peer, ["public_key_v6", "interface_ipv6_addr"]);
        }),
        DesiredUpdate::WireguardV6Remove(host) => m.message(34, "wireguard_endpoint_v6_remove", |m| hostname(m, host)),
    }
    true
}

fn ip_set<M: Message>(m: &mut M, set: &IpSetUpdate) {
    m.text(1, "id", set.id.as_str());
    members(m, 2, "members", &set.members);
    m.choice(3, "type", set_type(set.set_type));
}

fn ip_set_delta<M: Message>(m: &mut M, delta: &IpSetDelta) {
    m.text(1, "id", delta.id.as_str());
    members(m, 2, "added_members", &delta.added);
    members(m, 3, "removed_members", &delta.removed);
}

fn set_type(set_type: IpSetType) -> (i64, &'static str) {
    match set_type {
        IpSetType::Ip => (0, "IP"),
        IpSetType::IpAndPort => (1, "IP_AND_PORT"),
        // A set of domains, which is not sent, would be one of networks without members.
        IpSetType::Net | IpSetType::Domains => (2, "NET"),
    }
}

fn members<M: Message>(m: &mut M, number: u32, name: &'static str, members: &Members) {
    match members {
        Members::Nets(nets) => m.texts(number, name, nets),
        Members::IpPorts(members) => m.texts(number, name, members),
        Members::Domains(_) => {}
    }
}

fn policy_id<M: Message>(m: &mut M, id: &PolicyId) {
    m.text(2, "name", &id.name);
    m.text(3, "namespace", &id.namespace);
    m.text(4, "kind", id.kind.as_str());
}

/// Writes rules without those that the protocol cannot express: by domains alone.
fn rules<M: Message>(m: &mut M, number: u32, name: &'static str, rules: &Rules, seed: RuleIdSeed<'_>) {
    let with_ids = rules.iter().zip(rule_ids(rules, seed)).filter(|(view, _)| !view.is_by_domains_only());
    m.messages(number, name, with_ids, |m, (view, id)| {
        rule(m, view);
        m.text(201, "rule_id", &id);
    });
}

fn profile_id<M: Message>(m: &mut M, name: &ProfileName) {
    m.message(1, "id", |m| m.text(1, "name", name.as_str()));
}

fn profile<M: Message>(m: &mut M, name: &ProfileName, profile: &Profile) {
    profile_id(m, name);
    m.message(2, "profile", |m| {
        rules(m, 1, "inbound_rules", &profile.inbound, RuleIdSeed::Profile(name, Direction::Ingress));
        rules(m, 2, "outbound_rules", &profile.outbound, RuleIdSeed::Profile(name, Direction::Egress));
    });
}

fn policy<M: Message>(m: &mut M, id: &PolicyId, policy: &Policy) {
    let source = &policy.source;
    m.message(1, "id", |m| policy_id(m, id));
    m.message(2, "policy", |m| {
        rules(m, 1, "inbound_rules", &policy.inbound, RuleIdSeed::Policy(id, Direction::Ingress));
        rules(m, 2, "outbound_rules", &policy.outbound, RuleIdSeed::Policy(id, Direction::Egress));
        m.flag(3, "untracked", source.untracked);
        m.flag(4, "pre_dnat", source.pre_dnat);
        m.text(5, "namespace", source.namespace.as_deref().unwrap_or_default());
        m.text(6, "original_selector", &policy.selector);
        m.texts(7, "perf_hints", source.needed_on_every_node.then_some("AssumeNeededOnEveryNode"));
        m.text(8, "tier", source.tier.as_str());
    });
}

fn tiers<M: Message>(m: &mut M, number: u32, name: &'static str, tiers: &[TierPolicies]) {
    m.messages(number, name, tiers, |m, tier| {
        m.text(1, "name", tier.name.as_str());
        m.messages(2, "ingress_policies", tier.ingress.iter(), policy_id);
        m.messages(3, "egress_policies", tier.egress.iter(), policy_id);
        m.text(4, "default_action", tier.default_action.map_or("", |action| action.as_str()));
    });
}

fn workload_id<M: Message>(m: &mut M, id: &WorkloadEndpointId) {
    m.message(1, "id", |m| {
        m.text(2, "orchestrator_id", &id.orchestrator);
        m.text(3, "workload_id", &id.workload);
        m.text(4, "endpoint_id", &id.endpoint);
    });
}

fn nats<M: Message>(m: &mut M, number: u32, name: &'static str, mappings: &[NatMapping]) {
    m.messages(number, name, mappings, |m, nat| {
        m.shown(1, "ext_ip", nat.external);
        m.shown(2, "int_ip", nat.internal);
    });
}

fn workload_endpoint<M: Message>(m: &mut M, state: &WorkloadEndpointState) {
    let endpoint = &state.endpoint;
    let extras = endpoint.extras.as_deref();
    let qos = extras.and_then(|e| e.qos.as_ref());
    m.text(
        1,
        "state",
        match endpoint.state {
            AdminState::Active => "active",
            AdminState::Inactive => "inactive",
        },
    );
    m.text(2, "name", endpoint.iface.as_ref().map_or("", |iface| iface.as_str()));
    if let Some(mac) = endpoint.mac {
        m.shown(3, "mac", mac);
    }
    m.texts(4, "profile_ids", endpoint.profiles.iter());
    m.texts(5, "ipv4_nets", &endpoint.ipv4_nets);
    m.texts(6, "ipv6_nets", &endpoint.ipv6_nets);
    tiers(m, 7, "tiers", &state.tiers);
    if let Some(extras) = extras {
        nats(m, 8, "ipv4_nat", &extras.ipv4_nat);
        nats(m, 9, "ipv6_nat", &extras.ipv6_nat);
        m.texts(10, "allow_spoofed_source_prefixes", &extras.allowed_source_prefixes);
        m.map(11, "annotations", extras.annotations.iter().map(|(key, value)| (&**key, &**value)));
    }
    if let Some(qos) = qos {
        m.message(12, "qos_controls", |m| qos_controls(m, qos));
    }
    let dscp = qos.and_then(|qos| qos.dscp);
    let Some(computed) = state.computed.as_deref() else { return qos_policies(m, 15, dscp, &[]) };
    if let Some(peer) = &computed.local_bgp_peer {
        m.message(13, "local_bgp_peer", |m| m.text(1, "bgp_peer_name", peer));
    }
    if let Some(skip) = computed.skip_redirect {
        m.message(14, "skip_redir", |m| {
            m.flag(1, "Egress", skip.egress);
            m.flag(2, "Ingress", skip.ingress);
        });
    }
    qos_policies(m, 15, dscp, &computed.qos_policies);
    m.flag(16, "is_istio_ambient", computed.is_istio_ambient);
    m.choice(17, "live_migration_role", migration_role(computed.live_migration_role));
    m.text(18, "live_migration_uid", &computed.live_migration_uid);
    m.text(19, "live_migration_vmi_name", &computed.live_migration_vmi_name);
}

fn migration_role(role: Option<LiveMigrationRole>) -> (i64, &'static str) {
    match role {
        None => (0, "NO_ROLE"),
        Some(LiveMigrationRole::Source) => (1, "SOURCE"),
        Some(LiveMigrationRole::Target) => (2, "TARGET"),
    }
}

fn qos_controls<M: Message>(m: &mut M, qos: &QosControls) {
    let fields = [
        ("IngressBandwidth", qos.ingress_bandwidth),
        ("EgressBandwidth", qos.egress_bandwidth),
        ("IngressBurst", qos.ingress_burst),
        ("EgressBurst", qos.egress_burst),
        ("IngressPacketRate", qos.ingress_packet_rate),
        ("EgressPacketRate", qos.egress_packet_rate),
        ("IngressMaxConnections", qos.ingress_max_connections),
        ("EgressMaxConnections", qos.egress_max_connections),
        ("IngressPeakrate", qos.ingress_peakrate),
        ("EgressPeakrate", qos.egress_peakrate),
        ("IngressMinburst", qos.ingress_minburst),
        ("EgressMinburst", qos.egress_minburst),
        ("IngressPacketBurst", qos.ingress_packet_burst),
        ("EgressPacketBurst", qos.egress_packet_burst),
    ];
    for (number, (name, value)) in (1..).zip(fields) {
        m.long(number, name, value);
    }
}

/// Writes the DSCP value of the endpoint, or the policies that replace it.
fn qos_policies<M: Message>(m: &mut M, number: u32, dscp: Option<u8>, others: &[QosPolicy]) {
    let own = dscp.filter(|_| others.is_empty()).map(|dscp| ("", i32::from(dscp)));
    let all = own.into_iter().chain(others.iter().map(|policy| (&*policy.destination, policy.dscp)));
    m.messages(number, "qos_policies", all, |m, (destination, dscp)| {
        m.text(1, "destination", destination);
        m.integer(2, "dscp", dscp.into());
    });
}

fn host_endpoint_id<M: Message>(m: &mut M, id: &HostEndpointName) {
    m.message(1, "id", |m| m.text(2, "endpoint_id", id.as_str()));
}

fn host_endpoint<M: Message>(m: &mut M, id: &HostEndpointName, state: &HostEndpointState) {
    host_endpoint_id(m, id);
    m.message(3, "endpoint", |m| {
        let endpoint = &state.endpoint;
        if let Some(interface) = endpoint.iface {
            m.shown(1, "name", interface);
        }
        m.texts(2, "profile_ids", endpoint.profiles.iter());
        tiers(m, 3, "tiers", &state.tiers);
        m.texts(4, "expected_ipv4_addrs", &endpoint.expected_ipv4);
        m.texts(5, "expected_ipv6_addrs", &endpoint.expected_ipv6);
        tiers(m, 6, "untracked_tiers", &state.untracked_tiers);
        tiers(m, 7, "pre_dnat_tiers", &state.pre_dnat_tiers);
        tiers(m, 8, "forward_tiers", &state.forward_tiers);
        qos_policies(m, 9, endpoint.dscp, &state.qos_policies);
    });
}

fn config<M: Message>(m: &mut M, update: &ConfigUpdate) {
    let raw = |map| {
        let map: &std::collections::BTreeMap<Arc<str>, Arc<str>> = map;
        map.clone()
    };
    let mut merged = raw(&update.global);
    merged.extend(raw(&update.selector));
    merged.extend(raw(&update.host));
    m.map(1, "config", merged.iter().map(|(key, value)| (&**key, &**value)));
    let sources = [
        (ConfigSource::DatastoreGlobal, "datastore (global)", &update.global),
        (ConfigSource::DatastorePerSelector, "datastore (per-node-selector)", &update.selector),
        (ConfigSource::DatastorePerHost, "datastore (per-host)", &update.host),
    ];
    let sources = sources.into_iter().map(|(source, name, raw)| (source as u32, (name, raw)));
    m.message_map(2, "source_to_raw_config", sources, |m, (name, raw)| {
        m.text(1, "source", name);
        m.map(2, "config", raw.iter().map(|(key, value)| (&**key, &**value)));
    });
}

fn label_map<M: Message>(m: &mut M, number: u32, labels: &Labels) {
    m.map(number, "labels", labels.iter());
}

fn hostname<M: Message>(m: &mut M, name: &Hostname) {
    m.text(1, "hostname", name.as_str());
}

fn host_metadata<M: Message>(m: &mut M, name: &Hostname, host: &HostMetadata) {
    hostname(m, name);
    m.text(2, "ipv4_addr", &host.ipv4_addr);
    m.text(3, "ipv6_addr", &host.ipv6_addr);
    m.text(4, "asnumber", &host.as_number);
    label_map(m, 5, &host.labels);
}

fn pool_id(cidr: Cidr) -> String {
    cidr.to_string().replacen('/', "-", 1)
}

fn ip_pool<M: Message>(m: &mut M, pool: &IpPool) {
    m.text(1, "id", &pool_id(pool.cidr));
    m.message(2, "pool", |m| {
        m.shown(1, "cidr", pool.cidr);
        m.flag(2, "masquerade", pool.masquerade);
        m.text(3, "ipip_mode", pool.ipip_mode.as_str());
        m.text(4, "vxlan_mode", pool.vxlan_mode.as_str());
        m.texts(5, "allowed_uses", &pool.allowed_uses);
    });
}

fn service_account_id<M: Message>(m: &mut M, id: &NamespacedName) {
    m.message(1, "id", |m| {
        m.text(1, "namespace", &id.namespace);
        m.text(2, "name", &id.name);
    });
}

fn namespace_id<M: Message>(m: &mut M, name: &str) {
    m.message(1, "id", |m| m.text(1, "name", name));
}

fn wireguard<M: Message>(m: &mut M, host: &Hostname, peer: &WireguardPeer, [key, address]: [&'static str; 2]) {
    hostname(m, host);
    m.text(2, key, &peer.public_key);
    m.text(3, address, &peer.address.as_ref().map(IpAddr::to_string).unwrap_or_default());
}

fn bgp_config<M: Message>(m: &mut M, bgp: &BgpConfiguration) {
    m.texts(1, "service_cluster_cidrs", &bgp.service_cluster_cidrs);
    m.texts(2, "service_external_cidrs", &bgp.service_external_cidrs);
    m.texts(3, "service_loadbalancer_cidrs", &bgp.service_load_balancer_cidrs);
    m.text(4, "local_workload_peering_ip_v4", &bgp.local_workload_peering_ip_v4);
    m.text(5, "local_workload_peering_ip_v6", &bgp.local_workload_peering_ip_v6);
}

fn encapsulation<M: Message>(m: &mut M, encap: Encapsulation) {
    m.flag(1, "ipip_enabled", encap.ipip);
    m.flag(2, "vxlan_enabled", encap.vxlan);
    m.flag(3, "vxlan_enabled_v6", encap.vxlan_v6);
    m.flag(4, "no_encap_enabled", encap.no_encap);
}

fn service_id<M: Message>(m: &mut M, id: &NamespacedName) {
    m.text(1, "name", &id.name);
    m.text(2, "namespace", &id.namespace);
}

fn service_update<M: Message>(m: &mut M, id: &NamespacedName, service: &Service) {
    service_id(m, id);
    m.text(3, "type", &service.service_type);
    m.texts(4, "cluster_ips", &service.cluster_ips);
    m.text(5, "loadbalancer_ip", &service.load_balancer_ip);
    m.texts(6, "external_ips", &service.external_ips);
    m.messages(7, "ports", &service.ports, |m, port| {
        let protocol = match &*port.protocol {
            "UDP" => "UDP",
            "SCTP" => "SCTP",
            _ => "TCP",
        };
        m.text(1, "Protocol", protocol);
        m.integer(2, "Port", port.port.into());
        m.integer(3, "NodePort", port.node_port.into());
    });
    m.texts(8, "loadbalancer_ingress_ips", &service.load_balancer_ingress_ips);
}
