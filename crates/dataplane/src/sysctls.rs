//! Sysctls of the node and of workload interfaces (`configureInterface` in
//! `felix/dataplane/linux/endpoint_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_model::Family;

use crate::kernel::{Kernel, KernelError, SysctlPath};
use crate::links::Links;
use crate::report::Problem;

/// A strict reverse path filter, should the kernel not tell what its default is.
const STRICT: &str = "1";
const OFF: &str = "0";
const ON: &str = "1";

/// How much it matters that a sysctl is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// The interface is not configured without it.
    Needed,
    /// Nothing is reported if it cannot be written.
    Optional,
}

/// Sysctls that are written when the node starts, and when a workload interface comes up.
#[derive(Debug)]
pub(crate) struct Sysctls {
    families: Vec<Family>,
    ip_forwarding: bool,
    node_done: bool,
    /// The node's own default for interfaces, as it was at start.
    rp_filter: Option<String>,
    /// Workload interfaces with an endpoint, and whether it may use foreign source addresses.
    interfaces: BTreeMap<InterfaceName, bool>,
    /// Those that are to be configured.
    dirty: BTreeSet<InterfaceName>,
    retry_at: Option<Duration>,
}

impl Sysctls {
    pub(crate) fn new(families: Vec<Family>, ip_forwarding: bool) -> Self {
        Self {
            families,
            ip_forwarding,
            node_done: false,
            rp_filter: None,
            interfaces: BTreeMap::new(),
            dirty: BTreeSet::new(),
            retry_at: None,
        }
    }

    /// Takes note of the endpoint that an interface has now: whether it may use foreign source addresses.
    pub(crate) fn on_owner(&mut self, interface: InterfaceName, may_spoof: Option<bool>) {
        match may_spoof {
            Some(may_spoof) => {
                if self.interfaces.insert(interface, may_spoof) != Some(may_spoof) {
                    self.dirty.insert(interface);
                }
            }
            None => {
                self.interfaces.remove(&interface);
                self.dirty.remove(&interface);
            }
        }
    }

    /// An interface came, went, or changed its state; a new one has the kernel's defaults.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) {
        if self.interfaces.contains_key(&interface) {
            self.dirty.insert(interface);
        }
    }

    /// Whether an interface that is up still waits to be configured.
    pub(crate) fn is_pending(&self, interface: InterfaceName) -> bool {
        self.dirty.contains(&interface)
    }

    /// When something has to be done although nothing changes.
    pub(crate) fn next(&self, now: Duration, retry_interval: Duration) -> Option<Duration> {
        self.retry_at.map(|failed| (failed + retry_interval).saturating_sub(now))
    }

    pub(crate) fn apply(&mut self, kernel: &mut dyn Kernel, links: &Links, problems: &mut Vec<Problem>) {
        let mut failed = false;
        if !self.node_done {
            self.node_done = self.configure_node(kernel, problems);
            failed |= !self.node_done;
        }
        for interface in self.dirty.clone() {
            // Once it is up, the news comes.
            if !links.is_up(interface.as_str()) {
                continue;
            }
            if self.configure(interface, kernel, problems) {
                self.dirty.remove(&interface);
            } else {
                failed = true;
            }
        }
        self.retry_at = failed.then(|| kernel.now());
    }

    fn configure_node(&self, kernel: &mut dyn Kernel, problems: &mut Vec<Problem>) -> bool {
        let mut wanted = vec![("net/netfilter/nf_conntrack_acct", Weight::Optional)];
        if self.ip_forwarding {
            wanted.extend(self.families.iter().map(|family| match family {
                Family::V4 => ("net/ipv4/ip_forward", Weight::Needed),
                Family::V6 => ("net/ipv6/conf/all/forwarding", Weight::Needed),
            }));
        }
        wanted.into_iter().fold(true, |ok, (path, weight)| ensure(path.to_owned(), ON, weight, kernel, problems) && ok)
    }

    /// Returns whether the interface is as it should be.
    fn configure(&mut self, interface: InterfaceName, kernel: &mut dyn Kernel, problems: &mut Vec<Problem>) -> bool {
        let Some(may_spoof) = self.interfaces.get(&interface).copied() else { return true };
        let rp_filter = if may_spoof { OFF.to_owned() } else { self.default_rp_filter(kernel) };
        let v4 = |name: &str| format!("net/ipv4/conf/{interface}/{name}");
        let v6 = |name: &str| format!("net/ipv6/conf/{interface}/{name}");
        // A workload must never advertise itself as the host's router, whether or not IPv6 is enforced.
        let mut wanted = vec![(v6("accept_ra"), OFF, Weight::Optional)];
        if self.families.contains(&Family::V4) {
            wanted.extend([
                (v4("route_localnet"), ON, Weight::Needed),
                (format!("net/ipv4/neigh/{interface}/proxy_delay"), OFF, Weight::Optional),
                (v4("proxy_arp"), ON, Weight::Needed),
                (v4("forwarding"), ON, Weight::Needed),
                (v4("rp_filter"), &rp_filter, Weight::Needed),
            ]);
        }
        if self.families.contains(&Family::V6) {
            wanted.extend([(v6("proxy_ndp"), ON, Weight::Needed), (v6("forwarding"), ON, Weight::Needed)]);
        }
        wanted.into_iter().all(|(path, value, weight)| ensure(path, value, weight, kernel, problems))
    }

    fn default_rp_filter(&mut self, kernel: &mut dyn Kernel) -> String {
        let read = |path: SysctlPath| kernel.read_sysctl(&path).ok();
        let path = SysctlPath::new("net/ipv4/conf/default/rp_filter").ok();
        self.rp_filter
            .get_or_insert_with(|| {
                path.and_then(read).map_or_else(|| STRICT.to_owned(), |value| value.trim().to_owned())
            })
            .clone()
    }
}

/// Writes a sysctl unless it has the value already. Returns whether it has it now, or need not.
fn ensure(path: String, value: &str, weight: Weight, kernel: &mut dyn Kernel, problems: &mut Vec<Problem>) -> bool {
    let path = match SysctlPath::new(path) {
        Ok(path) => path,
        Err(error) => {
            tracing::error!(%error, "A sysctl has no path");
            return weight == Weight::Optional;
        }
    };
    if kernel.read_sysctl(&path).is_ok_and(|current| current.trim() == value) {
        return true;
    }
    let error = match kernel.write_sysctl(&path, value) {
        Ok(()) => return true,
        Err(error) => error,
    };
    match (weight, &error) {
        (Weight::Optional, _) => {
            tracing::debug!(%path, %error, "A sysctl that can be done without cannot be written");
            true
        }
        // The interface is gone; the news will come.
        (Weight::Needed, KernelError::NotFound) => {
            tracing::debug!(%path, "There is no such sysctl");
            false
        }
        (Weight::Needed, _) => {
            problems.push(Problem::Sysctl { path, error });
            false
        }
    }
}
