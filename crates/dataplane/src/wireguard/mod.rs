//! Encrypted tunnels to other nodes in one family (`felix/wireguard`): the device, its peers, a
//! dedicated routing table, and the routing rule that leads to that table.
//!
//! Packets that the device sends to other nodes have a mark and bypass that table. All other
//! packets use it: networks of peers lead to the device, and everything else continues with the
//! main table.

mod peers;

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_model::desired::{HostMetadata, Route, WireguardPeer};
use tortie_model::{Cidr, Family, Hostname, InterfaceName};
use tortie_netfilter::delta::Delta;

use crate::config::{DataplaneConfig, RoutesConfig};
use crate::device::DeviceKind;
use crate::kernel::{Kernel, Links, Subsystem, Sysctls};
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::report::{DataplaneProblem, DeviceProblem};
use crate::route::RouteTableIndex;
use crate::routes::{Ownership, RouteTable};
use crate::routing_rule::RoutingRule;
use crate::routing_rules::RoutingRules;
use crate::sysctl_path::SysctlPath;
use crate::tunnel_device::{DesiredDevice, DeviceSpec, TunnelDevice};
use crate::wireguard_device::{DevicePeer, PeerChange, WireguardChange, WireguardKey};

use peers::{PeerSettings, Peers};

/// Kernel's name for this kind of device.
const KIND: &str = "wireguard";
/// Sysctl by which the reverse path lookup of a packet considers its mark.
const VALID_MARK: &str = "net/ipv4/conf/all/src_valid_mark";

/// `WireGuard` of one family.
#[derive(Debug)]
pub(crate) struct Wireguard {
    family: Family,
    is_enabled: bool,
    settings: Settings,
    nodes: Peers,
    device: TunnelDevice,
    peers: Delta<WireguardKey, DevicePeer>,
    /// State of the device as last read; `None` if it may have changed since.
    observed: Option<Observed>,
    last_read: Option<Duration>,
    failure: Option<Failure>,
    rules: RoutingRules,
    /// Whether everything that the rule leads to has existed once.
    is_ready: bool,
    routes: RouteTable,
    published: Option<PublishedKey>,
}

#[derive(Debug)]
struct Settings {
    routes: RoutesConfig,
    table: RouteTableIndex,
    priority: u32,
    mark: u32,
    port: u16,
    mtu: u32,
    encrypts_hosts: bool,
    has_threads: bool,
}

/// Observed state of the device, besides its peers.
#[derive(Debug)]
struct Observed {
    interface: u32,
    key: Option<WireguardKey>,
    port: u16,
    mark: u32,
    /// Whether threaded reception has been set as desired.
    has_set_threads: bool,
}

#[derive(Debug)]
struct Failure {
    at: Duration,
    problem: DataplaneProblem,
}

/// Last published key of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PublishedKey {
    key: Option<WireguardKey>,
    /// Key in the datastore at that time.
    in_datastore: Option<WireguardKey>,
}

impl Wireguard {
    /// Returns `None` if no table is configured for its routes.
    pub(crate) fn new(family: Family, config: &DataplaneConfig) -> Option<Self> {
        let table = config.wireguard.table?;
        let of_rules = &config.rules.wireguard;
        let tunnel = of_rules.tunnel(family);
        let mark = config.rules.marks.wireguard.map_or(0, tortie_iptables::MarkBits::get);
        let name = tunnel.interface;
        let peers = PeerSettings {
            device: name,
            port: tunnel.port,
            keep_alive: config.wireguard.keep_alive,
            encrypts_hosts: of_rules.encrypt_host_traffic,
        };
        Some(Self {
            family,
            is_enabled: tunnel.enabled && mark != 0,
            settings: Settings {
                routes: config.routes.clone(),
                table,
                priority: config.wireguard.rule_priority,
                mark,
                port: tunnel.port,
                mtu: config.wireguard.mtu(family),
                encrypts_hosts: of_rules.encrypt_host_traffic,
                has_threads: config.wireguard.has_threads,
            },
            nodes: Peers::new(family, config.hostname.clone(), peers, config.routes.clone()),
            device: TunnelDevice::new(name, family).of_kind(DeviceKind::Other(KIND.to_owned())),
            peers: Delta::new(),
            observed: None,
            last_read: None,
            failure: None,
            rules: RoutingRules::new(family, table),
            is_ready: false,
            routes: RouteTable::own(table, family, config.routes.clone()),
            published: None,
        })
    }

    /// Sets the addresses of a node; `None` for a removed node.
    pub(crate) fn on_host(&mut self, node: &Hostname, host: Option<&HostMetadata>) {
        self.nodes.on_host(node, host);
    }

    /// Sets or removes the `WireGuard` identity of a node in the family.
    pub(crate) fn on_peer(&mut self, family: Family, node: &Hostname, peer: Option<&WireguardPeer>) {
        if family == self.family {
            self.nodes.on_peer(node, peer);
        }
    }

    /// Sets or removes the owner and type of a network.
    pub(crate) fn on_route(&mut self, net: Cidr, route: Option<&Route>) {
        if self.is_enabled && net.family() == self.family {
            self.nodes.on_route(net, route);
        }
    }

    /// Notes that an interface appeared, disappeared or changed its state. Returns whether it is
    /// the device.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) -> bool {
        let is_device = self.on_addresses(interface);
        if is_device {
            self.observed = None;
            self.routes.on_link(interface);
        }
        is_device
    }

    /// Notes that the addresses of an interface changed. Returns whether it is the device.
    pub(crate) fn on_addresses(&mut self, interface: InterfaceName) -> bool {
        let is_device = interface == self.device.name();
        if is_device {
            self.device.on_link();
        }
        is_device
    }

    /// Updates the desired device, peers and routes.
    pub(crate) fn complete(&mut self) {
        if !self.is_enabled {
            self.device.set(DesiredDevice::Absent);
            return;
        }
        self.device.set(DesiredDevice::Present(DeviceSpec {
            kind: DeviceKind::Other(KIND.to_owned()),
            mac: None,
            mtu: self.settings.mtu,
            address: self.nodes.own_address(),
            no_checksum_offload: false,
        }));
        self.nodes.complete(&mut self.peers, &mut self.routes);
    }

    /// Returns the subsystems that `WireGuard` needs.
    pub(crate) fn needs(&self) -> &'static [Subsystem] {
        match (self.is_enabled, self.sets_valid_mark()) {
            (false, _) => &[],
            (true, false) => &[Subsystem::Links, Subsystem::Routing],
            (true, true) => &[Subsystem::Links, Subsystem::Routing, Subsystem::Sysctls],
        }
    }

    /// Brings the kernel to the desired state. The routing rule is added last and removed first.
    pub(crate) fn apply(&mut self, kernel: &mut dyn Kernel, links: &KnownLinks, problems: &mut Vec<DataplaneProblem>) {
        let refresh = self.settings.routes.refresh_interval;
        if !self.is_enabled
            && let Some(routing) = kernel.routing()
        {
            self.rules.apply(routing, refresh, problems);
        }
        let before = problems.len();
        if let Some(devices) = kernel.links() {
            self.device.apply(devices, problems);
        }
        let is_up = self.is_enabled && self.configure(kernel, links, problems);
        let Some(routing) = kernel.routing() else { return };
        let ownership = ownership(&self.settings.routes, self.device.name(), links);
        self.routes.apply(routing, links, &ownership, &BTreeSet::new(), problems);
        if is_up && problems.len() == before && !routing.is_stopping() {
            self.is_ready = true;
            self.rules.set(Some(self.rule()));
        }
        if self.is_ready {
            self.rules.apply(routing, refresh, problems);
        }
    }

    /// Returns the time until the next refresh, retry or check.
    pub(crate) fn next(&self, now: Duration, retry: Duration, links: &KnownLinks) -> Option<Duration> {
        let refresh = self.settings.routes.refresh_interval;
        let read = refresh.zip(self.last_read).filter(|_| self.observed.is_some()).map(|(every, last)| last + every);
        let retried = self.failure.as_ref().map(|failure| failure.at + retry);
        let own = read.into_iter().chain(retried).min().map(|at| at.saturating_sub(now));
        let ownership = ownership(&self.settings.routes, self.device.name(), links);
        let routes = self.routes.next(now, retry, &ownership);
        let rules = self.rules.next(now, retry, refresh);
        [own, routes, rules, self.device.next(now)].into_iter().flatten().min()
    }

    /// Returns this node's public key if it has to be published. The key is `None` if the node does
    /// not take part, or no longer.
    pub(crate) fn take_key(&mut self) -> Option<(Family, Option<WireguardKey>)> {
        let key = match &self.observed {
            _ if !self.is_enabled || self.device.is_unsupported() => None,
            observed => Some(observed.as_ref()?.key?),
        };
        let now = PublishedKey { key, in_datastore: self.nodes.own_key() };
        let is_changed = match self.published {
            None => true,
            Some(published) => {
                published.key != key || (now.in_datastore != key && now.in_datastore != published.in_datastore)
            }
        };
        self.published = Some(now);
        is_changed.then_some((self.family, key))
    }

    fn rule(&self) -> RoutingRule {
        RoutingRule {
            family: self.family,
            priority: self.settings.priority,
            mark: self.settings.mark,
            mask: self.settings.mark,
            is_inverted: true,
            table: self.settings.table,
            has_more: false,
        }
    }

    /// Brings key, port, mark and peers of the device to the desired state, once it is up. Returns
    /// whether it succeeded.
    fn configure(&mut self, kernel: &mut dyn Kernel, links: &KnownLinks, problems: &mut Vec<DataplaneProblem>) -> bool {
        self.failure = None;
        let Some(link) = links.get(self.device.name()).filter(|link| link.is_up) else {
            self.observed = None;
            return false;
        };
        if kernel.is_stopping() {
            return false;
        }
        let now = kernel.now();
        let refresh = self.settings.routes.refresh_interval;
        let is_due = refresh.zip(self.last_read).is_some_and(|(every, last)| now >= last + every);
        let must_read = is_due || self.observed.as_ref().is_none_or(|observed| observed.interface != link.index);
        let is_marked = if must_read && self.sets_valid_mark() {
            let Some(sysctls) = kernel.sysctls() else { return false };
            set_valid_mark(sysctls)
        } else {
            Ok(())
        };
        let Some(devices) = kernel.links() else { return false };
        let result = is_marked.and_then(|()| self.reconcile(devices, link.index, must_read, now));
        if let Err(problem) = result {
            self.observed = None;
            self.failure = Some(Failure { at: now, problem: *problem });
        }
        problems.extend(self.failure.iter().map(|failure| failure.problem.clone()));
        self.failure.is_none()
    }

    /// Reports whether a strict reverse path filter would drop replies to packets with the mark.
    const fn sets_valid_mark(&self) -> bool {
        self.settings.encrypts_hosts && matches!(self.family, Family::V4)
    }

    fn reconcile(
        &mut self,
        kernel: &mut dyn Links,
        interface: u32,
        must_read: bool,
        now: Duration,
    ) -> Result<(), Box<DataplaneProblem>> {
        if must_read {
            self.read(kernel, interface)?;
            self.last_read = Some(now);
        }
        self.write(kernel, interface)?;
        self.set_threads(kernel)
    }

    fn read(&mut self, kernel: &mut dyn Links, interface: u32) -> Result<(), Box<DataplaneProblem>> {
        let device = kernel.wireguard(interface).map_err(|error| self.problem("its peers cannot be read", error))?;
        let (key, port, mark) = (device.public_key, device.port, device.mark);
        self.observed = Some(Observed { interface, key, port, mark, has_set_threads: false });
        self.peers.replace_observed(device.peers);
        Ok(())
    }

    fn write(&mut self, kernel: &mut dyn Links, interface: u32) -> Result<(), Box<DataplaneProblem>> {
        let Some(observed) = &self.observed else { return Ok(()) };
        let change = WireguardChange {
            new_key: observed.key.is_none(),
            port: Some(self.settings.port).filter(|port| *port != observed.port),
            mark: Some(self.settings.mark).filter(|mark| *mark != observed.mark),
            peers: self.peer_changes(),
        };
        if change.is_empty() {
            return Ok(());
        }
        let result = kernel.change_wireguard(interface, &change);
        result.map_err(|error| self.problem("its peers cannot be set", error))?;
        for peer in &change.peers {
            match peer {
                PeerChange::Remove(key) => self.peers.confirm_removed(key),
                PeerChange::Replace(key, _) | PeerChange::Update { key, .. } => self.peers.confirm_written(key),
            }
        }
        if let Some(observed) = &mut self.observed {
            (observed.port, observed.mark) = (self.settings.port, self.settings.mark);
        }
        if change.new_key {
            // The private key is known to the kernel only, which derives the public key.
            self.read(kernel, interface)?;
            if self.observed.as_ref().is_some_and(|observed| observed.key.is_none()) {
                return Err(self.problem("it has no key", KernelError::NotFound));
            }
        }
        Ok(())
    }

    fn peer_changes(&self) -> Vec<PeerChange> {
        let removals = self.peers.pending_removals().map(|(key, _)| PeerChange::Remove(*key));
        let writes = self.peers.pending_writes().map(|(key, write)| match write.observed {
            Some(old) if old.allowed.is_subset(&write.desired.allowed) => PeerChange::Update {
                key: *key,
                endpoint: write.desired.endpoint.filter(|endpoint| old.endpoint != Some(*endpoint)),
                keep_alive: write.desired.keep_alive,
                added: write.desired.allowed.difference(&old.allowed).copied().collect(),
            },
            _ => PeerChange::Replace(*key, write.desired.clone()),
        });
        removals.chain(writes).collect()
    }

    /// Sets threaded reception, which the kernel accepts only while the device has peers.
    fn set_threads(&mut self, kernel: &mut dyn Links) -> Result<(), Box<DataplaneProblem>> {
        let is_set = self.observed.as_ref().is_some_and(|observed| observed.has_set_threads);
        if is_set || self.peers.desired_len() == 0 {
            return Ok(());
        }
        let has_threads = self.settings.has_threads;
        match kernel.set_threaded(self.device.name(), has_threads) {
            // A kernel without support for threaded reception does not use it.
            Err(KernelError::NotFound) if !has_threads => {}
            result => result.map_err(|error| self.problem("its threads cannot be set", error))?,
        }
        if let Some(observed) = &mut self.observed {
            observed.has_set_threads = true;
        }
        Ok(())
    }

    fn problem(&self, operation: &'static str, error: KernelError) -> Box<DataplaneProblem> {
        let name = self.device.name();
        Box::new(DataplaneProblem::Device { name, error: DeviceProblem::Kernel { operation, error } })
    }
}

fn set_valid_mark(kernel: &mut dyn Sysctls) -> Result<(), Box<DataplaneProblem>> {
    let Ok(path) = SysctlPath::new(VALID_MARK) else { return Ok(()) };
    let is_set = kernel.read_sysctl(&path).is_ok_and(|value| value == "1");
    let result = if is_set { Ok(()) } else { kernel.write_sysctl(&path, "1") };
    result.map_err(|error| Box::new(DataplaneProblem::Sysctl { path, error }))
}

fn ownership<'a>(config: &'a RoutesConfig, device: InterfaceName, links: &'a KnownLinks) -> Ownership<'a> {
    Ownership { links, workload_prefixes: &[], config, bgp_peers: [false; 2], device: Some(device) }
}
