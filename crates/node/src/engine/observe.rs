//! Metrics and log lines of the loop's work.

use std::time::Instant;

use tortie_calc::GraphStats;
use tortie_dataplane::{DataplaneStats, LinkEvent, StatusChange};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, Update};

use crate::metrics::{ActiveLocal, CalculationMetrics, IptablesCounts, Metrics, TableCounts};

pub(super) fn count_update(update: &Update, metrics: &mut Metrics) {
    let kind = match update {
        Update::WorkloadEndpoint(..) => "model.WorkloadEndpointKey",
        Update::HostEndpoint(..) => "model.HostEndpointKey",
        Update::Policy(..) => "model.PolicyKey",
        Update::Tier(..) => "model.TierKey",
        Update::ProfileRules(..) => "model.ProfileRulesKey",
        Update::NetworkSet(..) => "model.NetworkSetKey",
        Update::IpPool(..) => "model.IPPoolKey",
        Update::GlobalConfig(..) => "model.GlobalConfigKey",
        Update::HostConfig(..) => "model.HostConfigKey",
        Update::Ready(_) => "model.ReadyFlagKey",
        Update::Wireguard(..) => "model.WireguardKey",
        Update::Profile(..)
        | Update::ScopedConfig(..)
        | Update::Node(..)
        | Update::Service(..)
        | Update::EndpointSlice(..)
        | Update::BgpConfiguration(..)
        | Update::BgpPeer(..)
        | Update::LiveMigration(..)
        | Update::SyncerObject(..) => "model.ResourceKey",
        Update::Block(..) => "model.BlockKey",
    };
    *metrics.datastore.updates_processed.entry(kind).or_default() += 1;
}

pub(super) fn count_message(update: &DesiredUpdate, metrics: &mut Metrics) {
    let kind = match update {
        DesiredUpdate::DatastoreNotReady => "DatastoreNotReady",
        DesiredUpdate::Config(_) => "ConfigUpdate",
        DesiredUpdate::InSync => "InSync",
        DesiredUpdate::IpSet(_) => "IPSetUpdate",
        DesiredUpdate::IpSetDelta(_) => "IPSetDeltaUpdate",
        DesiredUpdate::IpSetRemove(_) => "IPSetRemove",
        DesiredUpdate::Policy(..) => "ActivePolicyUpdate",
        DesiredUpdate::PolicyRemove(_) => "ActivePolicyRemove",
        DesiredUpdate::Profile(..) => "ActiveProfileUpdate",
        DesiredUpdate::ProfileRemove(_) => "ActiveProfileRemove",
        DesiredUpdate::WorkloadEndpoint(..) => "WorkloadEndpointUpdate",
        DesiredUpdate::WorkloadEndpointRemove(_) => "WorkloadEndpointRemove",
        DesiredUpdate::HostEndpoint(..) => "HostEndpointUpdate",
        DesiredUpdate::HostEndpointRemove(_) => "HostEndpointRemove",
        DesiredUpdate::ServiceAccount(..) => "ServiceAccountUpdate",
        DesiredUpdate::ServiceAccountRemove(_) => "ServiceAccountRemove",
        DesiredUpdate::Namespace(..) => "NamespaceUpdate",
        DesiredUpdate::NamespaceRemove(_) => "NamespaceRemove",
        DesiredUpdate::Route(..) => "RouteUpdate",
        DesiredUpdate::RouteRemove(_) => "RouteRemove",
        DesiredUpdate::Vtep(..) => "VXLANTunnelEndpointUpdate",
        DesiredUpdate::VtepRemove(_) => "VXLANTunnelEndpointRemove",
        DesiredUpdate::Wireguard(..) => "WireguardEndpointUpdate",
        DesiredUpdate::WireguardRemove(_) => "WireguardEndpointRemove",
        DesiredUpdate::WireguardV6(..) => "WireguardEndpointV6Update",
        DesiredUpdate::WireguardV6Remove(_) => "WireguardEndpointV6Remove",
        DesiredUpdate::Host(..) => "HostMetadataUpdate",
        DesiredUpdate::HostRemove(_) => "HostMetadataRemove",
        DesiredUpdate::IpPool(_) => "IPAMPoolUpdate",
        DesiredUpdate::IpPoolRemove(_) => "IPAMPoolRemove",
        DesiredUpdate::Encapsulation(_) => "Encapsulation",
        DesiredUpdate::BgpConfiguration(_) => "GlobalBGPConfigUpdate",
        DesiredUpdate::Service(..) => "ServiceUpdate",
        DesiredUpdate::ServiceRemove(_) => "ServiceRemove",
    };
    *metrics.dataplane.messages.entry(kind).or_default() += 1;
    metrics.calculation.output_events += 1;
}

#[derive(Debug, Default)]
pub(super) struct LinkBatches {
    states: usize,
    addresses: usize,
}

impl LinkBatches {
    pub(super) fn count(&mut self, event: &LinkEvent, metrics: &mut Metrics) {
        match event {
            LinkEvent::Up { name, .. } | LinkEvent::Down { name, .. } => {
                metrics.kernel.interfaces.insert(*name);
                self.states += 1;
            }
            LinkEvent::Gone { name } => {
                metrics.kernel.interfaces.remove(name);
                self.states += 1;
            }
            LinkEvent::Addresses { .. } => self.addresses += 1,
        }
    }

    pub(super) fn note(&mut self, metrics: &mut Metrics) {
        let Self { states, addresses } = std::mem::take(self);
        let now = Instant::now();
        metrics.dataplane.interface_batches.observe_size(states, now);
        metrics.dataplane.address_batches.observe_size(addresses, now);
    }
}

pub(super) fn graph(stats: &GraphStats, metrics: &mut CalculationMetrics) {
    metrics.active_local = ActiveLocal {
        endpoints: stats.local_endpoints as u64,
        policies: stats.active_policies as u64,
        selectors: stats.ip_sets as u64,
    };
    metrics.selector_evaluations = stats.evaluations;
    metrics.scans = stats.scans;
    metrics.cluster.hosts = stats.hosts as u64;
    metrics.cluster.workload_endpoints = stats.workload_endpoints as u64;
    metrics.cluster.host_endpoints = stats.host_endpoints as u64;
    metrics.cluster.policies = stats.policies as u64;
    metrics.cluster.profiles = stats.profiles as u64;
    metrics.cluster.tiers = stats.tiers as u64;
}

pub(super) fn dataplane(stats: &DataplaneStats, metrics: &mut Metrics) {
    metrics.dataplane.apply_failures = stats.failed_applies;
    let kernel = &mut metrics.kernel;
    kernel.iptables = IptablesCounts::default();
    kernel.tables.clear();
    for (family, table, stats) in &stats.tables {
        kernel.iptables.save_calls += stats.save_calls;
        kernel.iptables.save_errors += stats.save_errors;
        kernel.iptables.restore_calls += stats.restore_calls;
        kernel.iptables.restore_errors += stats.restore_errors;
        kernel.tables.push(TableCounts {
            ip_version: family.number(),
            table: table.as_str(),
            chains: stats.chains as u64,
            rules: stats.rules as u64,
            lines_executed: stats.lines_executed,
        });
    }
    kernel.nftables = stats.nftables.iter().map(|(table, stats)| (table.word(), *stats)).collect();
    kernel.ipset.calls = stats.ipset_calls;
    kernel.ipset.errors = stats.ipset_errors;
    kernel.ipset.lines_executed = stats.ipset_lines;
    let word = |family: &Family| match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    };
    kernel.ipsets = stats.ip_sets.iter().map(|(family, n)| (word(family), *n as u64)).collect();
    // 254 is the number of the kernel's main table.
    let table = |family: &Family| format!("IPv{}:254", family.number());
    kernel.sysctls_repaired = stats.sysctls_repaired;
    kernel.routes = stats.routes.iter().map(|(family, n)| (table(family), *n as u64)).collect();
}

pub(crate) fn log_status(change: &StatusChange) {
    match change {
        StatusChange::Workload(id, Some(status)) => {
            tracing::info!(endpoint = %id, status = status.as_str(), "workload endpoint");
        }
        StatusChange::Workload(id, None) => tracing::info!(endpoint = %id, "workload endpoint is gone"),
        StatusChange::Host(name, Some(status)) => {
            tracing::info!(endpoint = %name, status = status.as_str(), "host endpoint");
        }
        StatusChange::Host(name, None) => tracing::info!(endpoint = %name, "host endpoint is gone"),
    }
}
