//! The nftables flow table, by which packets of established connections bypass all chains: its
//! interfaces, and the endpoints that are excluded from it
//! (`felix/dataplane/linux/flowtable_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_ipsets::{Member, SetType};
use tortie_iptables::InterfaceName;
use tortie_model::desired::{HostEndpointState, WorkloadEndpointState};
use tortie_model::{Cidr, Family, HostEndpointName, QosControls};
use tortie_rules::RulesConfig;
use tortie_rules::names::static_set;

use crate::config::InterfaceFilter;
use crate::links::KnownLinks;
use crate::managers::ip_sets::IpSetManager;
use crate::managers::overlay::Overlay;
use crate::output::Output;
use crate::tunnel_device::TunnelDevice;

/// Endpoint or server whose packets must pass the chains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Workload(InterfaceName),
    Host(HostEndpointName),
    /// DNS servers whose answers are read.
    DnsServers,
}

/// Interfaces and exclusions of the flow table. Only interfaces that are up are in it: the kernel
/// refuses the whole transaction if one is missing.
#[derive(Debug)]
pub(crate) struct FlowOffload {
    hosts: InterfaceFilter,
    excluded: BTreeMap<Source, Vec<Cidr>>,
    exclusions_changed: bool,
    links_changed: bool,
}

impl FlowOffload {
    /// `hosts` selects the host interfaces in the flow table.
    pub(crate) fn new(hosts: InterfaceFilter) -> Self {
        Self { hosts, excluded: BTreeMap::new(), exclusions_changed: true, links_changed: true }
    }

    /// Notes the endpoint of an interface.
    pub(crate) fn on_workload(&mut self, interface: InterfaceName, owner: Option<&WorkloadEndpointState>) {
        let is_excluded = |state: &&WorkloadEndpointState| {
            state.endpoint.extras.as_ref().and_then(|extras| extras.qos.as_ref()).is_some_and(needs_chains)
        };
        let nets = owner.filter(is_excluded).map(|state| state.endpoint.nets().collect());
        self.set(Source::Workload(interface), nets);
        self.links_changed = true;
    }

    pub(crate) fn on_host(&mut self, name: HostEndpointName, state: Option<&HostEndpointState>) {
        let nets = state.filter(|state| state.endpoint.dscp.is_some()).map(|state| {
            let endpoint = &state.endpoint;
            endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).copied().map(Cidr::host).collect()
        });
        self.set(Source::Host(name), nets);
    }

    /// Notes the trusted DNS servers of endpoints that learn.
    pub(crate) fn on_dns_servers(&mut self, servers: &BTreeSet<IpAddr>) {
        let nets = (!servers.is_empty()).then(|| servers.iter().copied().map(Cidr::host).collect());
        self.set(Source::DnsServers, nets);
    }

    /// Notes that an interface appeared, disappeared or changed its state. Returns whether it is a
    /// host interface of the flow table; others report workloads and tunnels.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) -> bool {
        self.links_changed = true;
        self.hosts.matches(interface.as_str())
    }

    fn set(&mut self, source: Source, nets: Option<Vec<Cidr>>) {
        if self.excluded.get(&source) == nets.as_ref() {
            return;
        }
        self.exclusions_changed = true;
        match nets {
            Some(nets) => self.excluded.insert(source, nets),
            None => self.excluded.remove(&source),
        };
    }

    pub(crate) fn complete(
        &mut self,
        workloads: impl Iterator<Item = InterfaceName>,
        links: &KnownLinks,
        overlays: &[Overlay],
        rules: &RulesConfig,
        sets: &mut IpSetManager,
        output: &mut Output,
    ) {
        if std::mem::take(&mut self.exclusions_changed) {
            let hosts = self.excluded.values().flatten().filter(|net| net.is_host());
            let members: Vec<Member> = hosts.map(|net| Member::from(net.masked())).collect();
            sets.set_static(static_set::NO_FLOW_OFFLOAD, SetType::HashIp, &members, output);
        }
        if !std::mem::take(&mut self.links_changed) {
            return;
        }
        let hosts = links.iter().map(|(name, _)| name).filter(|name| self.hosts.matches(name.as_str()));
        let shared: BTreeSet<InterfaceName> = hosts.chain(workloads).filter(|name| links.is_up(*name)).collect();
        for family_output in &mut output.families {
            let family = family_output.family;
            let overlay = overlays.iter().find(|overlay| overlay.family() == family);
            let tunnels = overlay.into_iter().flat_map(|overlay| tunnels(overlay, family, rules));
            let tunnels = tunnels.filter(|name| links.is_up(*name));
            let devices = shared.iter().copied().chain(tunnels).collect::<BTreeSet<_>>();
            family_output.nftables.iter_mut().for_each(|table| table.offload_between(devices.iter().copied()));
        }
    }
}

/// Reports whether the packets of an endpoint must pass the chains. Bandwidth limits do not require
/// it: they are enforced where packets enter and leave interfaces, with the flow table as well.
fn needs_chains(qos: &QosControls) -> bool {
    let counts =
        [qos.ingress_packet_rate, qos.egress_packet_rate, qos.ingress_max_connections, qos.egress_max_connections];
    qos.dscp.is_some() || counts.into_iter().any(|count| count != 0)
}

/// Returns the tunnel devices that packets of a family may take.
fn tunnels(overlay: &Overlay, family: Family, rules: &RulesConfig) -> impl Iterator<Item = InterfaceName> {
    let vxlan = rules.vxlan(family).enabled.then(|| overlay.vxlan.name());
    let ipip = overlay.ipip.as_ref().filter(|_| rules.ipip.enabled).map(TunnelDevice::name);
    let wireguard = rules.wireguard.tunnel(family);
    let wireguard = wireguard.enabled.then_some(wireguard.interface);
    [vxlan, ipip, wireguard].into_iter().flatten()
}
