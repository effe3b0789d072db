//! Values in the form in which [`super::decode_text`] and Felix read them.

mod json;
mod resource;
mod rule;

use std::sync::Arc;

use tortie_model::{
    AdminState, DenyAction, EncapMode, EndpointPort, HostEndpoint, InterfaceName, IpPool, NatMapping, NetworkSet,
    Policy, ProfileName, ProfileRules, Protocol, QosControls, StagedAction, Tier, TierDefaultAction, Update, Wireguard,
    WorkloadEndpoint,
};

use json::{Object, number, object, shown, text};

/// Placeholder for the name of an interface without a usable one: it is invalid for an interface,
/// and readers refuse endpoints without any name.
const UNUSABLE_NAME: &str = "/";

/// Encodes a value in the datastore form that Felix reads (`SerializeValue` of
/// `libcalico-go/lib/backend/model/keys.go`): JSON, except that configuration parameters and the
/// ready flag are bare text. The path is [`crate::path::to_path`] of the key.
///
/// [`super::decode_text`] restores the value, except for values that no decoder produces: a policy
/// without any direction is restored with both, an empty name as an absent one, an infinite order
/// as the largest number.
///
/// Fields outside the model are not written. Compared with Calico's syncer for Felix, these are:
/// annotations of policies but [`DenyAction::ANNOTATION`], gateways of workload endpoints,
/// `disableBGPExport`, `assignment_mode` and the IP-in-IP interface of pools (written as their
/// defaults), and fields of Kubernetes and `projectcalico.org/v3` resources that are not part of
/// [`Update`]. The values of a `FelixConfiguration` for selected nodes are written as annotations,
/// which take precedence there.
///
/// Returns `None` if the object does not exist.
#[must_use]
pub fn encode(update: &Update) -> Option<Vec<u8>> {
    if let Some(text) = update.passthrough_text() {
        return Some(text.as_bytes().to_vec());
    }
    let mut out = String::with_capacity(256);
    match update {
        Update::GlobalConfig(_, text) | Update::HostConfig(_, text) => out.push_str(text.as_deref()?),
        Update::Ready(ready) => out.push_str(if (*ready)? { "true" } else { "false" }),
        update if update.exists() => object(&mut out, |object| write(object, update)),
        _ => return None,
    }
    Some(out.into_bytes())
}

fn write(out: &mut Object<'_>, update: &Update) {
    match update {
        Update::WorkloadEndpoint(_, Some(endpoint)) => workload_endpoint(out, endpoint),
        Update::HostEndpoint(_, Some(endpoint)) => host_endpoint(out, endpoint),
        Update::Policy(_, Some(policy)) => self::policy(out, policy),
        Update::Tier(_, Some(tier)) => self::tier(out, tier),
        Update::ProfileRules(_, Some(rules)) => profile_rules(out, rules),
        Update::Profile(name, Some(profile)) => resource::profile(out, name, profile),
        Update::NetworkSet(_, Some(set)) => network_set(out, set),
        Update::IpPool(_, Some(pool)) => ip_pool(out, pool),
        Update::ScopedConfig(name, Some(config)) => resource::scoped_config(out, name, config),
        Update::Node(name, Some(node)) => resource::node(out, name, node),
        Update::Wireguard(_, Some(wireguard)) => self::wireguard(out, wireguard),
        Update::Service(name, Some(service)) => resource::service(out, name, service),
        Update::EndpointSlice(name, Some(slice)) => resource::endpoint_slice(out, name, slice),
        Update::BgpConfiguration(name, Some(configuration)) => resource::bgp_configuration(out, name, configuration),
        // The value is not JSON, is JSON already, or is empty; see `encode`.
        _ => {}
    }
}

fn workload_endpoint(out: &mut Object<'_>, endpoint: &WorkloadEndpoint) {
    out.text(
        "state",
        match endpoint.state {
            AdminState::Active => "active",
            AdminState::Inactive => "inactive",
        },
    );
    out.text("name", endpoint.iface.as_ref().map_or(UNUSABLE_NAME, InterfaceName::as_str));
    out.text("active_instance_id", "");
    match endpoint.mac {
        Some(mac) => out.shown_if("mac", Some(mac)),
        None => out.bare("mac", "null"),
    }
    out.list("profile_ids", &*endpoint.profiles, |out, name| text(out, name.as_str()));
    out.list("ipv4_nets", &endpoint.ipv4_nets, shown);
    out.list("ipv6_nets", &endpoint.ipv6_nets, shown);
    out.texts("labels", endpoint.labels.iter());
    out.list_if("ports", &endpoint.ports, port);
    out.text_if("generate_name", endpoint.generate_name.as_deref().unwrap_or_default());
    let Some(extras) = &endpoint.extras else { return };
    // Felix does not know this field and ignores it.
    out.text_if("addresses_claimed_by", endpoint.claimed_by().map_or("", |annotation| annotation));
    out.list_if("ipv4_nat", &extras.ipv4_nat, nat);
    out.list_if("ipv6_nat", &extras.ipv6_nat, nat);
    out.list_if("allow_spoofed_source_ips", &extras.allowed_source_prefixes, shown);
    annotations(out, &extras.annotations);
    if let Some(controls) = &extras.qos {
        qos(out, controls);
    }
}

fn host_endpoint(out: &mut Object<'_>, endpoint: &HostEndpoint) {
    out.shown_if("name", endpoint.iface);
    out.list_if("expected_ipv4_addrs", &endpoint.expected_ipv4, shown);
    out.list_if("expected_ipv6_addrs", &endpoint.expected_ipv6, shown);
    out.texts("labels", endpoint.labels.iter());
    profiles(out, &endpoint.profiles);
    out.list_if("ports", &endpoint.ports, port);
    if endpoint.dscp.is_some() {
        qos(out, &QosControls { dscp: endpoint.dscp, ..QosControls::default() });
    }
}

fn network_set(out: &mut Object<'_>, set: &NetworkSet) {
    if !set.nets.is_empty() {
        out.list("nets", &set.nets, |out, net| shown(out, &net));
    }
    out.texts("labels", set.labels.iter());
    profiles(out, &set.profiles);
    out.list_if("allowedEgressDomains", &set.domains, shown);
}

fn policy(out: &mut Object<'_>, policy: &Policy) {
    out.text_if("namespace", policy.namespace.as_deref().unwrap_or_default());
    out.text("tier", policy.tier.as_str());
    if let Some(order) = policy.order {
        out.field("order", |out| number(out, order.get()));
    }
    out.list_if("inbound_rules", &policy.inbound, rule::write);
    out.list_if("outbound_rules", &policy.outbound, rule::write);
    out.text("selector", policy.selector.text());
    out.flag_if("untracked", policy.untracked);
    out.flag_if("pre_dnat", policy.pre_dnat);
    out.flag_if("apply_on_forward", policy.apply_on_forward);
    let types = [(policy.types.ingress, "ingress"), (policy.types.egress, "egress")];
    out.list("types", types.into_iter().filter(|(governed, _)| *governed), |out, (_, name)| text(out, name));
    if policy.needed_on_every_node {
        out.list("performance_hints", ["AssumeNeededOnEveryNode"], text);
    }
    if let Some(action) = policy.staged_action {
        out.text(
            "staged_action",
            match action {
                StagedAction::Set => "Set",
                StagedAction::Learn => "Learn",
                StagedAction::Ignore => "Ignore",
            },
        );
    }
    deny_action(out, policy.deny_action);
}

/// Writes the action on denied traffic as the annotation from which it comes.
fn deny_action(out: &mut Object<'_>, action: Option<DenyAction>) {
    if let Some(action) = action {
        out.texts("annotations", [(DenyAction::ANNOTATION, action.as_str())]);
    }
}

fn tier(out: &mut Object<'_>, tier: &Tier) {
    if let Some(order) = tier.order {
        out.field("order", |out| number(out, order.get()));
    }
    out.text_if("defaultAction", tier.default_action.map_or("", |action| action.as_str()));
    deny_action(out, tier.default_action.and_then(TierDefaultAction::deny_action));
}

fn profile_rules(out: &mut Object<'_>, rules: &ProfileRules) {
    out.list_if("inbound_rules", &rules.inbound, rule::write);
    out.list_if("outbound_rules", &rules.outbound, rule::write);
}

fn ip_pool(out: &mut Object<'_>, pool: &IpPool) {
    out.shown_if("cidr", Some(pool.cidr));
    out.text("ipip", if pool.ipip_mode == EncapMode::Never { "" } else { "tunl0" });
    out.text("ipip_mode", pool.ipip_mode.as_str());
    out.text("vxlan_mode", pool.vxlan_mode.as_str());
    out.bare("masquerade", pool.masquerade);
    out.bare("ipam", !pool.disabled);
    out.bare("disabled", pool.disabled);
    out.bare("disableBGPExport", false);
    out.text("assignment_mode", "Automatic");
    out.list_if("allowed_uses", &pool.allowed_uses, |out, allowed| text(out, allowed));
}

fn wireguard(out: &mut Object<'_>, wireguard: &Wireguard) {
    out.shown_if("interfaceIPv4Addr", wireguard.ipv4_address);
    out.text_if("publicKey", &wireguard.public_key);
    out.shown_if("interfaceIPv6Addr", wireguard.ipv6_address);
    out.text_if("publicKeyV6", &wireguard.public_key_v6);
}

fn profiles(out: &mut Object<'_>, names: &[ProfileName]) {
    out.list_if("profile_ids", names, |out, name| text(out, name.as_str()));
}

fn port(out: &mut String, port: &EndpointPort) {
    object(out, |object| {
        object.text("name", &port.name);
        object.field("protocol", |out| protocol(out, port.protocol));
        object.bare("port", port.port);
    });
}

fn protocol(out: &mut String, protocol: Protocol) {
    match protocol {
        Protocol::Named(name) => text(out, name.as_str()),
        Protocol::Number(given) => number(out, given.into()),
    }
}

fn nat(out: &mut String, nat: &NatMapping) {
    object(out, |object| {
        object.shown_if("int_ip", Some(nat.internal));
        object.shown_if("ext_ip", Some(nat.external));
    });
}

fn annotations(out: &mut Object<'_>, pairs: &[(Arc<str>, Arc<str>)]) {
    if !pairs.is_empty() {
        out.texts("annotations", pairs.iter().map(|(name, value)| (&**name, &**value)));
    }
}

fn qos(out: &mut Object<'_>, qos: &QosControls) {
    out.object("qosControls", |out| {
        out.count_if("ingressBandwidth", qos.ingress_bandwidth);
        out.count_if("egressBandwidth", qos.egress_bandwidth);
        out.count_if("ingressBurst", qos.ingress_burst);
        out.count_if("egressBurst", qos.egress_burst);
        out.count_if("ingressPacketRate", qos.ingress_packet_rate);
        out.count_if("egressPacketRate", qos.egress_packet_rate);
        out.count_if("ingressMaxConnections", qos.ingress_max_connections);
        out.count_if("egressMaxConnections", qos.egress_max_connections);
        out.count_if("ingressPeakrate", qos.ingress_peakrate);
        out.count_if("egressPeakrate", qos.egress_peakrate);
        out.count_if("ingressMinburst", qos.ingress_minburst);
        out.count_if("egressMinburst", qos.egress_minburst);
        out.count_if("ingressPacketBurst", qos.ingress_packet_burst);
        out.count_if("egressPacketBurst", qos.egress_packet_burst);
        out.bare_if("dscp", qos.dscp);
    });
}
