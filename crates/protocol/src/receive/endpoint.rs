//! Workload and host endpoints.

use std::sync::Arc;

use tortie_model::desired::{
    ComputedFields, DesiredUpdate, HostEndpointState, LiveMigrationRole, QosPolicy, SkipRedirect, TierList,
    TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    AddressSource, AdminState, HostEndpoint, HostEndpointName, NatMapping, ProfileName, QosControls, TierDefaultAction,
    TierName, WorkloadEndpoint, WorkloadEndpointId, WorkloadExtras,
};

use super::flaw::{Flaw, Unusable, address, addresses, all, bad, number, parsed, required};
use super::policy::policy_id;
use super::{felix, in_object};

pub(super) fn workload_update(update: felix::WorkloadEndpointUpdate) -> Result<DesiredUpdate, Unusable> {
    let id = required("id", update.id).map(workload_id).map_err(in_object("a workload endpoint"))?;
    let message = update.endpoint.unwrap_or_default();
    let state = workload(message).map_err(in_object(format_args!("workload endpoint {id}")))?;
    Ok(DesiredUpdate::WorkloadEndpoint(id, state))
}

pub(super) fn workload_remove(remove: felix::WorkloadEndpointRemove) -> Result<DesiredUpdate, Unusable> {
    let id = required("id", remove.id).map_err(in_object("the removal of a workload endpoint"))?;
    Ok(DesiredUpdate::WorkloadEndpointRemove(workload_id(id)))
}

pub(super) fn host_update(update: felix::HostEndpointUpdate) -> Result<DesiredUpdate, Unusable> {
    let id = required("id", update.id).map_err(in_object("a host endpoint"))?;
    let id = HostEndpointName::new(id.endpoint_id);
    let message = update.endpoint.unwrap_or_default();
    let state = host(message).map_err(in_object(format_args!("host endpoint {id}")))?;
    Ok(DesiredUpdate::HostEndpoint(id, state))
}

pub(super) fn host_remove(remove: felix::HostEndpointRemove) -> Result<DesiredUpdate, Unusable> {
    let id = required("id", remove.id).map_err(in_object("the removal of a host endpoint"))?;
    Ok(DesiredUpdate::HostEndpointRemove(HostEndpointName::new(id.endpoint_id)))
}

fn workload_id(id: felix::WorkloadEndpointId) -> WorkloadEndpointId {
    WorkloadEndpointId {
        orchestrator: id.orchestrator_id.into(),
        workload: id.workload_id.into(),
        endpoint: id.endpoint_id.into(),
    }
}

fn workload(mut message: felix::WorkloadEndpoint) -> Result<WorkloadEndpointState, Flaw> {
    let extras = WorkloadExtras {
        ipv4_nat: nats("ipv4_nat", &message.ipv4_nat)?,
        ipv6_nat: nats("ipv6_nat", &message.ipv6_nat)?,
        allowed_source_prefixes: all("allow_spoofed_source_prefixes", &message.allow_spoofed_source_prefixes)?,
        annotations: std::mem::take(&mut message.annotations)
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect(),
        qos: qos(message.qos_controls, &message.qos_policies)?,
        address_source: AddressSource::Platform,
    };
    let computed = computed(&mut message)?;
    let endpoint = WorkloadEndpoint {
        state: if message.state == "active" { AdminState::Active } else { AdminState::Inactive },
        // An invalid name counts as no interface, so that other endpoints are not affected.
        iface: message.name.parse().ok(),
        // Felix's parser also accepts MAC addresses of other lengths than Ethernet's. They count as
        // none here: only static ARP entries depend on them.
        mac: message.mac.parse().ok(),
        profiles: profiles(message.profile_ids),
        ipv4_nets: all("ipv4_nets", &message.ipv4_nets)?,
        ipv6_nets: all("ipv6_nets", &message.ipv6_nets)?,
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
        ..WorkloadEndpoint::default()
    };
    Ok(WorkloadEndpointState {
        endpoint: Arc::new(endpoint),
        tiers: tiers(message.tiers),
        computed: (computed != ComputedFields::default()).then(|| Box::new(computed)),
    })
}

fn host(message: felix::HostEndpoint) -> Result<HostEndpointState, Flaw> {
    let endpoint = HostEndpoint {
        iface: (!message.name.is_empty()).then(|| parsed("name", &message.name)).transpose()?,
        expected_ipv4: addresses("expected_ipv4_addrs", &message.expected_ipv4_addrs)?,
        expected_ipv6: addresses("expected_ipv6_addrs", &message.expected_ipv6_addrs)?,
        profiles: profiles(message.profile_ids),
        dscp: dscp(&message.qos_policies)?,
        ..HostEndpoint::default()
    };
    Ok(HostEndpointState {
        endpoint: Arc::new(endpoint),
        tiers: tiers(message.tiers),
        untracked_tiers: tiers(message.untracked_tiers),
        pre_dnat_tiers: tiers(message.pre_dnat_tiers),
        forward_tiers: tiers(message.forward_tiers),
        qos_policies: qos_policies(message.qos_policies),
    })
}

fn profiles(names: Vec<String>) -> Arc<[ProfileName]> {
    names.into_iter().map(ProfileName::new).collect()
}

fn tiers(messages: Vec<felix::TierInfo>) -> TierList {
    let tier = |message: felix::TierInfo| TierPolicies {
        name: TierName::new(message.name),
        default_action: match message.default_action.as_str() {
            "Pass" => Some(TierDefaultAction::Pass),
            "Deny" => Some(TierDefaultAction::Deny),
            _ => None,
        },
        ingress: message.ingress_policies.into_iter().map(policy_id).collect(),
        egress: message.egress_policies.into_iter().map(policy_id).collect(),
    };
    messages.into_iter().map(tier).collect()
}

fn nats(field: &'static str, messages: &[felix::NatInfo]) -> Result<Box<[NatMapping]>, Flaw> {
    let mapping = |message: &felix::NatInfo| {
        Ok(NatMapping { external: address(field, &message.ext_ip)?, internal: address(field, &message.int_ip)? })
    };
    messages.iter().map(mapping).collect()
}

/// Returns the DSCP value of the first policy, regardless of its destination: dataplanes use no
/// other one.
fn dscp(policies: &[felix::QoSPolicy]) -> Result<Option<u8>, Flaw> {
    policies.first().map(|policy| number("qos_policies", policy.dscp)).transpose()
}

/// Returns the policies if a single DSCP value does not express them.
fn qos_policies(policies: Vec<felix::QoSPolicy>) -> Box<[QosPolicy]> {
    if matches!(&policies[..], [] | [_]) && policies.iter().all(|policy| policy.destination.is_empty()) {
        return [].into();
    }
    policies.into_iter().map(|policy| QosPolicy { destination: policy.destination.into(), dscp: policy.dscp }).collect()
}

fn computed(message: &mut felix::WorkloadEndpoint) -> Result<ComputedFields, Flaw> {
    Ok(ComputedFields {
        local_bgp_peer: message.local_bgp_peer.take().map(|peer| peer.bgp_peer_name.into()),
        skip_redirect: message
            .skip_redir
            .take()
            .map(|skip| SkipRedirect { egress: skip.egress, ingress: skip.ingress }),
        qos_policies: qos_policies(std::mem::take(&mut message.qos_policies)),
        is_istio_ambient: message.is_istio_ambient,
        live_migration_role: match felix::LiveMigrationRole::try_from(message.live_migration_role) {
            Ok(felix::LiveMigrationRole::NoRole) => None,
            Ok(felix::LiveMigrationRole::Source) => Some(LiveMigrationRole::Source),
            Ok(felix::LiveMigrationRole::Target) => Some(LiveMigrationRole::Target),
            Err(_) => return Err(bad("live_migration_role", message.live_migration_role)),
        },
        live_migration_uid: std::mem::take(&mut message.live_migration_uid).into(),
        live_migration_vmi_name: std::mem::take(&mut message.live_migration_vmi_name).into(),
        contest: None,
    })
}

fn qos(controls: Option<felix::QoSControls>, policies: &[felix::QoSPolicy]) -> Result<Option<QosControls>, Flaw> {
    let dscp = dscp(policies)?;
    if controls.is_none() && dscp.is_none() {
        return Ok(None);
    }
    let controls = controls.unwrap_or_default();
    Ok(Some(QosControls {
        ingress_bandwidth: controls.ingress_bandwidth,
        egress_bandwidth: controls.egress_bandwidth,
        ingress_burst: controls.ingress_burst,
        egress_burst: controls.egress_burst,
        ingress_packet_rate: controls.ingress_packet_rate,
        egress_packet_rate: controls.egress_packet_rate,
        ingress_max_connections: controls.ingress_max_connections,
        egress_max_connections: controls.egress_max_connections,
        ingress_peakrate: controls.ingress_peakrate,
        egress_peakrate: controls.egress_peakrate,
        ingress_minburst: controls.ingress_minburst,
        egress_minburst: controls.egress_minburst,
        ingress_packet_burst: controls.ingress_packet_burst,
        egress_packet_burst: controls.egress_packet_burst,
        dscp,
    }))
}
