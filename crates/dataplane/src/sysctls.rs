//! Sysctls of the node and of workload interfaces (`configureInterface` in
//! `felix/dataplane/linux/endpoint_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_model::Family;

use crate::kernel::Sysctls;
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::report::DataplaneProblem;
use crate::sysctl_path::SysctlPath;

/// Strict reverse path filter, in case the kernel's default cannot be read.
const STRICT: &str = "1";
const OFF: &str = "0";
const ON: &str = "1";

/// Importance of a sysctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// The interface is not configured without it.
    Needed,
    /// A failed write is not reported.
    Optional,
}

/// A desired sysctl.
#[derive(Debug)]
struct DesiredSysctl {
    path: String,
    value: String,
    weight: Weight,
    /// Its family; `None` without one, or if policy is not enforced in that family.
    family: Option<Family>,
}

/// Sysctls of the node and of workload interfaces that are up. They are written when first desired.
/// Later they are read again periodically, since other processes may change them.
#[derive(Debug)]
pub(crate) struct SysctlSettings {
    families: Vec<Family>,
    ip_forwarding: bool,
    refresh_interval: Option<Duration>,
    /// A sysctl of the node may deviate from its desired value.
    node_pending: bool,
    /// The node's default for interfaces, read once.
    rp_filter: Option<String>,
    /// Workload interfaces with an endpoint, and whether the endpoint may use foreign source
    /// addresses.
    interfaces: BTreeMap<InterfaceName, bool>,
    /// Interfaces of which a sysctl may deviate from its desired value.
    pending: BTreeSet<InterfaceName>,
    last_read: Option<Duration>,
    retry_at: Option<Duration>,
    repaired: u64,
}

impl SysctlSettings {
    pub(crate) fn new(families: Vec<Family>, ip_forwarding: bool, refresh_interval: Option<Duration>) -> Self {
        Self {
            families,
            ip_forwarding,
            refresh_interval,
            node_pending: true,
            rp_filter: None,
            interfaces: BTreeMap::new(),
            pending: BTreeSet::new(),
            last_read: None,
            retry_at: None,
            repaired: 0,
        }
    }

    /// Notes whether the endpoint of an interface may use foreign source addresses; `None` without
    /// an endpoint.
    pub(crate) fn on_owner(&mut self, interface: InterfaceName, may_spoof: Option<bool>) {
        match may_spoof {
            Some(may_spoof) => {
                if self.interfaces.insert(interface, may_spoof) != Some(may_spoof) {
                    self.pending.insert(interface);
                }
            }
            None => {
                self.interfaces.remove(&interface);
                self.pending.remove(&interface);
            }
        }
    }

    /// Notes that an interface appeared, disappeared or changed its state. A new one has the
    /// kernel's defaults.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) {
        if self.interfaces.contains_key(&interface) {
            self.pending.insert(interface);
        }
    }

    /// Clears all pending interfaces, because the kernel has no sysctls. If our routes are
    /// disabled, the program that owns the routes configures the interfaces.
    pub(crate) fn leave(&mut self) {
        self.pending.clear();
    }

    /// Reports whether an interface still waits to be configured.
    pub(crate) fn is_pending(&self, interface: InterfaceName) -> bool {
        self.pending.contains(&interface)
    }

    /// Returns the number of sysctls that another process changed and the dataplane restored.
    pub(crate) const fn repaired(&self) -> u64 {
        self.repaired
    }

    /// Returns the time until the next retry or check.
    pub(crate) fn next(&self, now: Duration, retry_interval: Duration) -> Option<Duration> {
        let retry = self.retry_at.map(|failed| failed + retry_interval);
        retry.into_iter().chain(self.refresh_at()).min().map(|at| at.saturating_sub(now))
    }

    fn refresh_at(&self) -> Option<Duration> {
        self.refresh_interval.zip(self.last_read).map(|(interval, last)| last + interval)
    }

    /// Writes the desired sysctls of the families in `open`, and leaves the others alone.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Sysctls,
        links: &KnownLinks,
        open: &BTreeSet<Family>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let now = kernel.now();
        let _span =
            tracing::debug_span!("sysctls", interfaces = self.interfaces.len(), pending = self.pending.len()).entered();
        let read_all = self.last_read.is_none() || self.refresh_at().is_some_and(|at| at <= now);
        if read_all {
            self.last_read = Some(now);
        }
        let mut failed = false;
        if self.node_pending || read_all {
            let outcome = self.reconcile(self.of_node(), !self.node_pending, open, kernel, problems);
            self.node_pending = outcome != Progress::Done;
            failed |= outcome == Progress::Failed;
        }
        let interfaces: Vec<(InterfaceName, bool)> = self.interfaces.iter().map(|(i, spoof)| (*i, *spoof)).collect();
        for (interface, may_spoof) in interfaces {
            let is_pending = self.pending.contains(&interface);
            // A link event follows when the interface is up.
            if !(is_pending || read_all) || !links.is_up(interface) {
                continue;
            }
            let rp_filter = if may_spoof { OFF.to_owned() } else { self.default_rp_filter(kernel) };
            match self.reconcile(self.of_interface(interface, &rp_filter), !is_pending, open, kernel, problems) {
                Progress::Done => {
                    self.pending.remove(&interface);
                }
                outcome => {
                    self.pending.insert(interface);
                    failed |= outcome == Progress::Failed;
                }
            }
        }
        self.retry_at = failed.then(|| kernel.now());
    }

    fn of_node(&self) -> Vec<DesiredSysctl> {
        let on =
            |path: &str, weight, family| DesiredSysctl { path: path.to_owned(), value: ON.to_owned(), weight, family };
        let mut sysctls = vec![on("net/netfilter/nf_conntrack_acct", Weight::Optional, None)];
        if self.ip_forwarding {
            sysctls.extend(self.families.iter().map(|family| match family {
                Family::V4 => on("net/ipv4/ip_forward", Weight::Needed, Some(*family)),
                Family::V6 => on("net/ipv6/conf/all/forwarding", Weight::Needed, Some(*family)),
            }));
        }
        sysctls
    }

    fn of_interface(&self, interface: InterfaceName, rp_filter: &str) -> Vec<DesiredSysctl> {
        let enforced = |family| self.families.contains(&family).then_some(family);
        let sysctl = |family, path: String, value: &str, weight| DesiredSysctl {
            path,
            value: value.to_owned(),
            weight,
            family: enforced(family),
        };
        let v4 = |name: &str, value: &str| {
            sysctl(Family::V4, format!("net/ipv4/conf/{interface}/{name}"), value, Weight::Needed)
        };
        let v6 = |name: &str, value: &str, weight| {
            sysctl(Family::V6, format!("net/ipv6/conf/{interface}/{name}"), value, weight)
        };
        // The host must never accept router advertisements of a workload, whether or not policy is
        // enforced for IPv6.
        let mut all = vec![v6("accept_ra", OFF, Weight::Optional)];
        if self.families.contains(&Family::V4) {
            let delay = format!("net/ipv4/neigh/{interface}/proxy_delay");
            all.extend([
                v4("route_localnet", ON),
                sysctl(Family::V4, delay, OFF, Weight::Optional),
                v4("proxy_arp", ON),
                v4("forwarding", ON),
                v4("rp_filter", rp_filter),
            ]);
        }
        if self.families.contains(&Family::V6) {
            all.extend([v6("proxy_ndp", ON, Weight::Needed), v6("forwarding", ON, Weight::Needed)]);
        }
        all
    }

    /// Writes all given sysctls, and continues with the rest if one fails. `were_right` is true if
    /// all had their values before.
    fn reconcile(
        &mut self,
        all: Vec<DesiredSysctl>,
        were_right: bool,
        open: &BTreeSet<Family>,
        kernel: &mut dyn Sysctls,
        problems: &mut Vec<DataplaneProblem>,
    ) -> Progress {
        let mut outcome = Progress::Done;
        for sysctl in all {
            let is_open = sysctl.family.map_or_else(|| !open.is_empty(), |family| open.contains(&family));
            if !is_open {
                outcome = outcome.max(Progress::Waits);
                continue;
            }
            match ensure(sysctl, kernel, problems) {
                SysctlOutcome::WasRight | SysctlOutcome::CanBeDoneWithout => {}
                SysctlOutcome::Written { path, found } => {
                    if were_right {
                        self.repaired += 1;
                        tracing::warn!(sysctl = %path, %found, "sysctl changed by another process; restored");
                    }
                }
                SysctlOutcome::Failed => outcome = Progress::Failed,
            }
        }
        outcome
    }

    fn default_rp_filter(&mut self, kernel: &mut dyn Sysctls) -> String {
        let read = |path: SysctlPath| kernel.read_sysctl(&path).ok();
        let path = SysctlPath::new("net/ipv4/conf/default/rp_filter").ok();
        self.rp_filter
            .get_or_insert_with(|| {
                path.and_then(read).map_or_else(|| STRICT.to_owned(), |value| value.trim().to_owned())
            })
            .clone()
    }
}

/// Result for several sysctls: the worst of their results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Done,
    /// Some sysctls belong to a family whose policy is not in force yet.
    Waits,
    Failed,
}

/// Result for one sysctl.
enum SysctlOutcome {
    WasRight,
    Written { path: SysctlPath, found: String },
    CanBeDoneWithout,
    Failed,
}

/// Writes a sysctl unless it has the value already.
fn ensure(sysctl: DesiredSysctl, kernel: &mut dyn Sysctls, problems: &mut Vec<DataplaneProblem>) -> SysctlOutcome {
    let DesiredSysctl { path, value, weight, .. } = sysctl;
    let path = match SysctlPath::new(path) {
        Ok(path) => path,
        Err(error) => {
            tracing::error!(%error, "invalid sysctl path; sysctl not set");
            return if weight == Weight::Optional { SysctlOutcome::CanBeDoneWithout } else { SysctlOutcome::Failed };
        }
    };
    let found = match kernel.read_sysctl(&path) {
        Ok(current) if current.trim() == value => return SysctlOutcome::WasRight,
        Ok(current) => current.trim().to_owned(),
        // Some sysctls can be written but not read.
        Err(_) => String::new(),
    };
    let error = match kernel.write_sysctl(&path, &value) {
        Ok(()) => return SysctlOutcome::Written { path, found },
        Err(error) => error,
    };
    match (weight, &error) {
        (Weight::Optional, _) => {
            tracing::debug!(%path, %error, "optional sysctl cannot be written");
            SysctlOutcome::CanBeDoneWithout
        }
        // The interface is gone; a link event follows.
        (Weight::Needed, KernelError::NotFound) => SysctlOutcome::Failed,
        (Weight::Needed, _) => {
            problems.push(DataplaneProblem::Sysctl { path, error });
            SysctlOutcome::Failed
        }
    }
}
