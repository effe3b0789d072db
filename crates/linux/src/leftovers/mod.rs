//! Removal of objects that are not in use: Felix's programs and maps of its eBPF mode, `WireGuard`
//! devices, rules and routes, and bandwidth limits, and the nftables tables of Felix or of another
//! back end of Tortie.

mod at_work;
mod iptables;
mod pins;
mod services;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tortie_dataplane::{
    Device, DeviceChange, DeviceKind, QdiscChange, QdiscKind, Route, RouteChange, RouteKind, RouteProtocol,
    RouteTableIndex,
};
use tortie_model::{Family, InterfaceName, with_causes};
use tortie_nftables::TableId;

pub use at_work::felix_at_work;
pub use iptables::{LeftInIptables, left_in_iptables};

use crate::exec::Runner;
use crate::netlink::{LinkState, Netlink, NetlinkError, Nftables};

/// Tables of Felix's nftables mode, and the table that all its modes have
/// (`felix/dataplane/linux/int_dataplane.go`).
const TABLES: [TableId; 3] = [TableId::calico(Family::V4), TableId::calico(Family::V6), TableId::CALICO_ARP];
/// Devices of Felix's eBPF mode (`felix/dataplane/linux/dataplanedefs`).
const BPF_DEVICES: [&str; 4] = ["bpfin.cali", "bpfout.cali", "bpfnatin", "bpfnatout"];
const IPIP_DEVICE: &str = "tunl0";
const IFB_PREFIX: &str = "bwcali";
/// Maximum number of routes that are removed at once.
const ROUTES_AT_ONCE: usize = 128;
/// Beginning of the names of Felix's programs.
const PROGRAM_PREFIX: &str = "cali";

/// Parameters of the search for Felix's objects.
#[derive(Clone, Debug)]
pub struct Leftovers {
    /// Mount point of the BPF file system; `None` to leave pinned objects alone.
    pub bpf_directory: Option<PathBuf>,
    /// Beginnings of the names of workload interfaces, `InterfacePrefix`.
    pub workload_prefixes: Vec<String>,
    /// The priority of `WireGuard`'s routing rules, `WireguardRoutingRulePriority`.
    pub rule_priority: u32,
    /// The names of `WireGuard`'s devices, `WireguardInterfaceName` and `WireguardInterfaceNameV6`.
    pub wireguard_devices: [InterfaceName; 2],
    /// Protocol of the routes in its tables, `DeviceRouteProtocol`.
    pub route_protocol: RouteProtocol,
}

/// Returns the directory of pinned eBPF objects. They belong to the machine: there is none outside
/// the network namespace of the first process.
#[must_use]
pub fn bpf_directory() -> Option<PathBuf> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let is_first = namespace("self").is_some_and(|own| namespace("1") == Some(own));
    is_first.then(|| "/sys/fs/bpf".into())
}

/// Removal of Felix's enforcement once policy is in force for the first time.
#[derive(Debug)]
pub struct TakeOver {
    leftovers: Leftovers,
    netlink_timeout: Duration,
    /// Nftables tables that are in use.
    kept: Vec<TableId>,
    runner: Runner,
    /// Whether Services may fail.
    without_services: bool,
}

impl TakeOver {
    /// Prepares the removal. The nftables tables `kept` are in use and stay.
    #[must_use]
    pub fn new(leftovers: Leftovers, netlink_timeout: Duration, kept: Vec<TableId>, runner: Runner) -> Self {
        Self { leftovers, netlink_timeout, kept, runner, without_services: false }
    }

    /// Removes eBPF programs of Felix even if no other program translates Services.
    #[must_use]
    pub fn without_services(self, without_services: bool) -> Self {
        Self { without_services, ..self }
    }

    /// Returns the reason why Felix's dataplane must stay: its eBPF programs translate Services,
    /// and no kube-proxy is found.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        if self.without_services {
            return None;
        }
        self.leftovers.needed_by_services(&self.runner, self.netlink_timeout)
    }

    /// Removes the enforcement of Felix's nftables or eBPF mode, and logs it.
    pub fn run(self) {
        let removed = match Netlink::open(self.netlink_timeout) {
            Ok(mut netlink) => {
                let mut removed = Removed::default();
                remove_tables(&self.kept, self.netlink_timeout, &mut removed);
                self.leftovers.remove_programs_of_felix(&mut netlink, &mut removed);
                removed
            }
            Err(error) => Removed { objects: Vec::new(), problems: vec![with_causes(&error)] },
        };
        for object in removed.objects {
            tracing::info!(leftover = %object, "a leftover of Felix or another back end is removed");
        }
        for problem in removed.problems {
            tracing::warn!(%problem, "leftovers of Felix or another back end cannot be removed");
        }
    }
}

/// Result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// A line for each removed object.
    pub objects: Vec<String>,
    /// A line for each object that could not be removed.
    pub problems: Vec<String>,
}

impl Removed {
    fn note<E: Error>(&mut self, object: String, result: Result<(), E>) {
        match result {
            Ok(()) => self.objects.push(object),
            Err(error) => self.problems.push(format!("{object} cannot be removed: {}", with_causes(&error))),
        }
    }

    fn unread<T: Default, E: Error>(&mut self, description: &str, result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| {
            self.problems.push(format!("{description} cannot be read: {}", with_causes(&error)));
            T::default()
        })
    }
}

impl Leftovers {
    /// Removes eBPF programs that enforce policy, or hide packets from its enforcement, and the
    /// objects that they need. Must follow the enforcement of policy by other means.
    fn remove_programs_of_felix(&self, netlink: &mut Netlink, removed: &mut Removed) {
        let links = removed.unread("network interfaces", netlink.links());
        self.remove_programs(netlink, &links, removed);
        if let Some(directory) = &self.bpf_directory {
            pins::remove(directory, removed);
        }
        for name in BPF_DEVICES {
            let is_ours = |device: &Device| matches!(&device.kind, DeviceKind::Other(kind) if kind == "veth");
            remove_device(netlink, name, is_ours, removed);
        }
    }

    /// Returns the reason why Felix's eBPF programs must stay: they translate Services, and no
    /// kube-proxy is found.
    #[must_use]
    pub fn needed_by_services(&self, runner: &Runner, netlink_timeout: Duration) -> Option<String> {
        let pins = self.bpf_directory.as_deref()?;
        services::depend_on_felix(pins, runner, netlink_timeout)
    }

    /// Removes all of Felix's objects.
    pub fn remove_all(&self, netlink: &mut Netlink, netlink_timeout: Duration) -> Removed {
        let mut removed = Removed::default();
        remove_tables(&[], netlink_timeout, &mut removed);
        self.remove_programs_of_felix(netlink, &mut removed);
        for name in self.wireguard_devices.iter().map(InterfaceName::as_str) {
            let is_ours = |device: &Device| matches!(&device.kind, DeviceKind::Other(kind) if kind == "wireguard");
            remove_device(netlink, name, is_ours, &mut removed);
        }
        self.remove_rules(netlink, &mut removed);
        remove_ipip_addresses(netlink, &mut removed);
        self.remove_limits(netlink, &mut removed);
        removed
    }

    /// Removes `tc` and XDP programs. Programs of other software, and the qdiscs that they use,
    /// stay.
    fn remove_programs(&self, netlink: &mut Netlink, links: &[LinkState], removed: &mut Removed) {
        let qdiscs = removed.unread("qdiscs", netlink.qdiscs());
        let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, link.name.as_str())).collect();
        for qdisc in qdiscs.iter().filter(|qdisc| qdisc.kind == QdiscKind::Clsact) {
            // The interface is newer than the list, so it has no programs of Felix.
            let Some(name) = names.get(&qdisc.interface) else { continue };
            let filters = removed.unread("filters", netlink.clsact_filters(qdisc.interface));
            let is_felix = |program: &Option<String>| program.as_deref().is_some_and(|p| p.starts_with(PROGRAM_PREFIX));
            let (ours, others): (Vec<_>, Vec<_>) = filters.into_iter().partition(|filter| is_felix(&filter.program));
            if ours.is_empty() {
                continue;
            }
            if others.is_empty() {
                let result = netlink.change_qdisc(&QdiscChange::DeleteIngress(qdisc.interface));
                removed.note(format!("eBPF programs of {name}"), unless_missing(result));
                continue;
            }
            for filter in ours {
                let program = filter.program.clone().unwrap_or_default();
                let result = netlink.delete_filter(&filter);
                removed.note(format!("eBPF program {program} of {name}"), unless_missing(result));
            }
        }
        let has_xdp = |link: &&LinkState| {
            self.bpf_directory.as_ref().is_some_and(|pins| pins::has_xdp_program(pins, link.name.as_str()))
        };
        for link in links.iter().filter(has_xdp) {
            match netlink.detach_xdp(link.index) {
                Ok(true) => removed.objects.push(format!("XDP program of {}", link.name)),
                Ok(false) => {}
                Err(error) => {
                    let error = with_causes(&error);
                    removed.problems.push(format!("XDP program of {} cannot be removed: {error}", link.name));
                }
            }
        }
    }

    /// Removes routing rules to tables of `WireGuard`, and Calico's routes outside of the main
    /// table.
    fn remove_rules(&self, netlink: &mut Netlink, removed: &mut Removed) {
        for family in Family::ALL {
            let result = netlink.remove_wireguard_rules(family, self.rule_priority);
            for table in removed.unread("routing rules", result) {
                removed.objects.push(format!("{family} routing rule to table {table}"));
                self.remove_throw_routes(netlink, family, RouteTableIndex(table), removed);
            }
            let count = removed.unread("routes", netlink.remove_routes_outside_main(family));
            if count > 0 {
                removed.objects.push(format!("{count} {family} routes outside of the main table"));
            }
        }
    }

    /// Removes routes by which packets leave a table of `WireGuard` again. Routes by its device
    /// were removed with the device.
    fn remove_throw_routes(
        &self,
        netlink: &mut Netlink,
        family: Family,
        table: RouteTableIndex,
        removed: &mut Removed,
    ) {
        let routes = removed.unread("routes", netlink.routes(family, table));
        let throws = routes
            .into_iter()
            .filter(|Route { target, .. }| target.kind == RouteKind::Throw && target.protocol == self.route_protocol);
        let changes: Vec<RouteChange> = throws.map(RouteChange::Delete).collect();
        for batch in changes.chunks(ROUTES_AT_ONCE) {
            for outcome in removed.unread("routes", netlink.change_routes(table, batch)) {
                if let Err(error) = unless_missing(outcome) {
                    let error = with_causes(&error);
                    removed.problems.push(format!("a route of table {} cannot be removed: {error}", table.0));
                }
            }
        }
    }

    /// Removes token buckets of workload interfaces, and the devices that limit traffic from
    /// workloads.
    fn remove_limits(&self, netlink: &mut Netlink, removed: &mut Removed) {
        let links = removed.unread("network interfaces", netlink.links());
        let limiters: Vec<&LinkState> =
            links.iter().filter(|link| link.name.as_str().starts_with(IFB_PREFIX)).collect();
        let is_limiter = |index: u32| limiters.iter().any(|link| link.index == index);
        let is_workload = |link: &&LinkState| {
            self.workload_prefixes.iter().any(|prefix| link.name.as_str().starts_with(prefix.as_str()))
        };
        let qdiscs = removed.unread("qdiscs", netlink.qdiscs());
        for link in links.iter().filter(is_workload) {
            for qdisc in qdiscs.iter().filter(|qdisc| qdisc.interface == link.index) {
                match qdisc.kind {
                    QdiscKind::Bucket(_) => {
                        let result = netlink.change_qdisc(&QdiscChange::DeleteRoot(link.index));
                        removed.note(format!("bandwidth limit of {}", link.name), unless_missing(result));
                    }
                    QdiscKind::Ingress => {
                        let redirections = removed.unread("filters", netlink.redirections(link.index));
                        let is_ours =
                            !redirections.is_empty() && redirections.iter().all(|to| to.is_some_and(is_limiter));
                        if is_ours {
                            let result = netlink.change_qdisc(&QdiscChange::DeleteIngress(link.index));
                            removed.note(format!("redirection of {}", link.name), unless_missing(result));
                        }
                    }
                    _ => {}
                }
            }
        }
        for link in limiters {
            let is_ours = |device: &Device| matches!(&device.kind, DeviceKind::Other(kind) if kind == "ifb");
            remove_device(netlink, link.name.as_str(), is_ours, removed);
        }
    }
}

fn remove_tables(kept: &[TableId], timeout: Duration, removed: &mut Removed) {
    // Without nftables there are no such tables.
    let Ok(mut nftables) = Nftables::open(timeout) else { return };
    for table in TABLES.into_iter().filter(|table| !kept.contains(table)) {
        match nftables.delete(table) {
            Ok(false) => {}
            result => removed.note(format!("nftables table {table}"), result.map(drop)),
        }
    }
}

fn remove_device(netlink: &mut Netlink, name: &str, is_ours: impl Fn(&Device) -> bool, removed: &mut Removed) {
    let found = removed.unread(&format!("device {name}"), netlink.device(name));
    if let Some(device) = found.filter(is_ours) {
        let result = netlink.change_device(&DeviceChange::Delete(device.index));
        removed.note(format!("device {name}"), unless_missing(result));
    }
}

/// Removes the addresses only: the device itself belongs to the kernel.
fn remove_ipip_addresses(netlink: &mut Netlink, removed: &mut Removed) {
    let found = removed.unread(IPIP_DEVICE, netlink.device(IPIP_DEVICE));
    let Some(device) = found.filter(|device| device.kind == DeviceKind::Ipip) else { return };
    for address in removed.unread("addresses of tunl0", netlink.addresses(device.index, Family::V4)) {
        let result = netlink.change_device(&DeviceChange::DeleteAddress(device.index, address));
        removed.note(format!("address {address} of {IPIP_DEVICE}"), unless_missing(result));
    }
}

fn unless_missing(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
