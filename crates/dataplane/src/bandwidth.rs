//! Bandwidth limits of workloads (`felix/dataplane/linux/qos_controls.go`).
//!
//! Packets to a workload leave by its interface, which has a token bucket. Packets from a workload
//! are redirected to a dedicated `ifb` device, which has one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sha2::{Digest as _, Sha512};
use tortie_model::desired::WorkloadEndpointState;
use tortie_model::{InterfaceName, QosControls};

use crate::device::{Device, DeviceChange, DeviceKind};
use crate::kernel::Links;
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::qdisc::{Qdisc, QdiscChange, QdiscKind, TokenBucket};
use crate::report::{BandwidthProblem, DataplaneProblem};

/// Name prefix of the devices that limit packets from workloads; a hash of the interface's name
/// follows.
pub(crate) const IFB_PREFIX: &str = "bwcali";
const IFB: &str = "ifb";
/// Maximum time that a packet may wait, in milliseconds.
const LATENCY_MS: u64 = 25;
/// Ticks of the packet scheduler in a microsecond (`/proc/net/psched`), the same on every kernel
/// since 2.6.31.
const TICKS_PER_MICROSECOND: f64 = 15.625;
const ETHERNET_HEADER: u32 = 14;

impl TokenBucket {
    /// Returns the bucket for rates in bits a second, `burst` in bits, and `min_burst` in bytes.
    /// `None` without a rate.
    fn new(rate: i64, burst: i64, peak_rate: i64, min_burst: i64, mtu: u32) -> Option<Self> {
        let positive = |value: i64| u64::try_from(value).unwrap_or(0);
        let rate = positive(rate) / 8;
        if rate == 0 {
            return None;
        }
        let peak_rate = positive(peak_rate) / 8;
        let min_burst = match peak_rate {
            0 => 0,
            _ => u32::try_from(positive(min_burst)).unwrap_or(u32::MAX).max(mtu.saturating_add(ETHERNET_HEADER)),
        };
        let buffer = ticks(positive(burst) / 8, rate).max(1);
        let mut limit = waiting(rate, buffer);
        if peak_rate != 0 {
            limit = limit.min(waiting(peak_rate, ticks(u64::from(min_burst), peak_rate)));
        }
        Some(Self { rate, buffer, limit: limit.max(1), peak_rate, min_burst })
    }

    fn is_like(&self, other: &Self) -> bool {
        let comparable = |bucket: &Self| Self { min_burst: 0, ..*bucket };
        comparable(self) == comparable(other)
    }
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts saturate"
)]
fn ticks(bytes: u64, rate: u64) -> u32 {
    let microseconds = (bytes as f64 * 1e6 / rate as f64) as u32;
    (f64::from(microseconds) * TICKS_PER_MICROSECOND) as u32
}

/// Returns the queue limit by Felix's formula. It adds ticks to bytes, which makes the queue
/// longer, never shorter.
fn waiting(rate: u64, buffer: u32) -> u32 {
    u32::try_from((rate.saturating_mul(LATENCY_MS) / 1000).saturating_add(u64::from(buffer))).unwrap_or(u32::MAX)
}

fn kernel_problem(operation: &'static str) -> impl FnOnce(KernelError) -> BandwidthProblem {
    move |error| BandwidthProblem::Kernel { operation, error }
}

/// Limits of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limits(QosControls);

impl Limits {
    fn ingress(&self, mtu: u32) -> Option<TokenBucket> {
        let Self(qos) = self;
        let (rate, burst) = (qos.ingress_bandwidth, qos.ingress_burst);
        TokenBucket::new(rate, burst, qos.ingress_peakrate, qos.ingress_minburst, mtu)
    }

    fn egress(&self, mtu: u32) -> Option<TokenBucket> {
        let Self(qos) = self;
        TokenBucket::new(qos.egress_bandwidth, qos.egress_burst, qos.egress_peakrate, qos.egress_minburst, mtu)
    }
}

/// The limits of all workload interfaces.
#[derive(Debug, Default)]
pub(crate) struct Bandwidth {
    wanted: BTreeMap<InterfaceName, Limits>,
    /// Interfaces that may deviate from their desired limits.
    dirty: BTreeSet<InterfaceName>,
    failures: BTreeMap<InterfaceName, BandwidthProblem>,
    checked: Option<Duration>,
    retry_at: Option<Duration>,
    /// Whether leftover devices, which no interface needs, have been removed.
    swept: bool,
}

impl Bandwidth {
    /// Notes the endpoint of an interface.
    pub(crate) fn on_owner(&mut self, interface: InterfaceName, owner: Option<&WorkloadEndpointState>) {
        let qos = owner.and_then(|state| state.endpoint.extras.as_ref()?.qos.as_ref());
        let limits = qos.filter(|qos| qos.ingress_bandwidth > 0 || qos.egress_bandwidth > 0).cloned().map(Limits);
        // Until the sweep is done, each interface is searched for limits of an earlier process.
        if self.wanted.get(&interface) != limits.as_ref() || !self.swept {
            self.dirty.insert(interface);
        }
        match limits {
            Some(limits) => self.wanted.insert(interface, limits),
            None => self.wanted.remove(&interface),
        };
    }

    pub(crate) fn on_link(&mut self, interface: InterfaceName) {
        if self.wanted.contains_key(&interface) {
            self.dirty.insert(interface);
        }
    }

    /// Clears all pending work, because the kernel has no devices that could be limited.
    pub(crate) fn leave(&mut self) {
        self.dirty.clear();
    }

    /// Reports whether any workload has a limit.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    pub(crate) fn next(&self, now: Duration, refresh: Option<Duration>) -> Option<Duration> {
        let check = self.checked.zip(refresh).filter(|_| !self.wanted.is_empty()).map(|(last, every)| last + every);
        check.into_iter().chain(self.retry_at).min().map(|at| at.saturating_sub(now))
    }

    /// Brings all limits that may deviate to their desired values.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Links,
        links: &KnownLinks,
        refresh: Option<Duration>,
        retry: Duration,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let now = kernel.now();
        if self.next(now, refresh).is_some_and(|wait| wait.is_zero()) {
            self.retry_at = None;
            self.dirty.extend(self.wanted.keys().chain(self.failures.keys()));
        }
        if !self.dirty.is_empty() && !kernel.is_stopping() {
            self.checked = Some(now);
            match kernel.qdiscs() {
                Ok(qdiscs) => self.reconcile_all(kernel, links, &qdiscs),
                Err(error) => {
                    let found = kernel_problem("qdiscs cannot be read")(error);
                    self.failures.extend(self.dirty.iter().map(|interface| (*interface, found.clone())));
                }
            }
            self.retry_at = (!self.failures.is_empty()).then_some(now + retry);
        }
        problems.extend(
            self.failures
                .iter()
                .map(|(interface, error)| DataplaneProblem::Bandwidth { interface: *interface, error: error.clone() }),
        );
    }

    fn reconcile_all(&mut self, kernel: &mut dyn Links, links: &KnownLinks, qdiscs: &[Qdisc]) {
        for interface in std::mem::take(&mut self.dirty) {
            self.failures.remove(&interface);
            let limits = self.wanted.get(&interface);
            let result = match links.get(interface) {
                // The limits vanish with the interface, but not the `ifb` device.
                None if limits.is_none() => remove_ifb(kernel, ifb_name(interface)),
                None => Ok(()),
                Some(link) => reconcile(kernel, interface, link.index, limits, qdiscs),
            };
            if let Err(problem) = result {
                self.failures.insert(interface, problem);
            }
        }
        let mut swept = true;
        if !self.swept {
            let needed: BTreeSet<InterfaceName> = self.wanted.keys().copied().map(ifb_name).collect();
            let is_left = |name: &InterfaceName| name.as_str().starts_with(IFB_PREFIX) && !needed.contains(name);
            for name in links.iter().map(|(name, _)| name).filter(is_left) {
                swept &= remove_ifb(kernel, name).is_ok();
            }
        }
        self.swept = swept;
    }
}

fn reconcile(
    kernel: &mut dyn Links,
    interface: InterfaceName,
    index: u32,
    limits: Option<&Limits>,
    qdiscs: &[Qdisc],
) -> Result<(), BandwidthProblem> {
    let Some(device) = kernel.device(interface.as_str()).map_err(kernel_problem("the interface cannot be read"))?
    else {
        return Ok(());
    };
    if device.index != index {
        // A link event with the new index follows.
        return Ok(());
    }
    let to_workload = set_bucket(kernel, index, limits.and_then(|limits| limits.ingress(device.mtu)), qdiscs);
    let from_workload = match limits.and_then(|limits| limits.egress(device.mtu)) {
        Some(bucket) => redirect(kernel, interface, &device, bucket, qdiscs),
        None => stop_redirecting(kernel, interface, &device, qdiscs),
    };
    to_workload.and(from_workload)
}

/// Makes the root of an interface a token bucket, or removes ours.
fn set_bucket(
    kernel: &mut dyn Links,
    index: u32,
    wanted: Option<TokenBucket>,
    qdiscs: &[Qdisc],
) -> Result<(), BandwidthProblem> {
    let root = qdiscs.iter().find(|qdisc| qdisc.interface == index && qdisc.is_root).map(|qdisc| &qdisc.kind);
    match (root, wanted) {
        (Some(QdiscKind::Bucket(found)), Some(wanted)) if found.is_like(&wanted) => Ok(()),
        (Some(QdiscKind::Bucket(_)), None) => ignore_missing(kernel.change_qdisc(&QdiscChange::DeleteRoot(index)))
            .map_err(kernel_problem("a limit cannot be removed")),
        (_, None) => Ok(()),
        (Some(QdiscKind::Other(name)), Some(_)) => Err(BandwidthProblem::Foreign(name.clone())),
        (_, Some(wanted)) => {
            kernel.change_qdisc(&QdiscChange::SetBucket(index, wanted)).map_err(kernel_problem("a limit cannot be set"))
        }
    }
}

fn redirect(
    kernel: &mut dyn Links,
    interface: InterfaceName,
    device: &Device,
    bucket: TokenBucket,
    qdiscs: &[Qdisc],
) -> Result<(), BandwidthProblem> {
    let incoming = qdiscs
        .iter()
        .find(|qdisc| qdisc.interface == device.index && matches!(qdisc.kind, QdiscKind::Ingress | QdiscKind::Clsact));
    if incoming.is_some_and(|qdisc| qdisc.kind == QdiscKind::Clsact) {
        return Err(BandwidthProblem::Foreign("clsact".to_owned()));
    }
    let ifb = make_ifb(kernel, ifb_name(interface), device.mtu)?;
    set_bucket(kernel, ifb.index, Some(bucket), qdiscs)?;
    if incoming.is_none() {
        kernel
            .change_qdisc(&QdiscChange::AddIngress(device.index))
            .map_err(kernel_problem("packets from it cannot be caught"))?;
    }
    let read = kernel_problem("filters cannot be read");
    match kernel.redirections(device.index).map_err(read)?[..] {
        [] => kernel
            .change_qdisc(&QdiscChange::Redirect { from: device.index, to: ifb.index })
            .map_err(kernel_problem("packets from it cannot be redirected")),
        [Some(to)] if to == ifb.index => Ok(()),
        _ => Err(BandwidthProblem::Foreign("a filter".to_owned())),
    }
}

fn stop_redirecting(
    kernel: &mut dyn Links,
    interface: InterfaceName,
    device: &Device,
    qdiscs: &[Qdisc],
) -> Result<(), BandwidthProblem> {
    let name = ifb_name(interface);
    let has_ingress = qdiscs.iter().any(|qdisc| qdisc.interface == device.index && qdisc.kind == QdiscKind::Ingress);
    let found = kernel.device(name.as_str()).map_err(kernel_problem("its device cannot be read"))?;
    if has_ingress && let Some(ifb) = &found {
        let redirections = kernel.redirections(device.index).map_err(kernel_problem("filters cannot be read"))?;
        if redirections.iter().all(|to| *to == Some(ifb.index)) {
            ignore_missing(kernel.change_qdisc(&QdiscChange::DeleteIngress(device.index)))
                .map_err(kernel_problem("a redirection cannot be removed"))?;
        }
    }
    if found.is_some() { remove_ifb(kernel, name) } else { Ok(()) }
}

fn make_ifb(kernel: &mut dyn Links, name: InterfaceName, mtu: u32) -> Result<Device, BandwidthProblem> {
    let is_ifb = |device: &Device| device.kind == DeviceKind::Other(IFB.to_owned());
    let read = || kernel_problem("its device cannot be read");
    let make = || kernel_problem("its device cannot be made");
    let device = match kernel.device(name.as_str()).map_err(read())? {
        Some(device) => device,
        None => {
            let kind = DeviceKind::Other(IFB.to_owned());
            match kernel.change_device(&DeviceChange::Create { name, mac: None, kind }) {
                Ok(()) | Err(KernelError::Exists) => {}
                Err(error) => return Err(make()(error)),
            }
            kernel.device(name.as_str()).map_err(read())?.ok_or_else(|| make()(KernelError::NotFound))?
        }
    };
    if !is_ifb(&device) {
        return Err(BandwidthProblem::Foreign(name.to_string()));
    }
    if device.mtu != mtu {
        kernel.change_device(&DeviceChange::SetMtu(device.index, mtu)).map_err(make())?;
    }
    if !device.is_up {
        kernel.change_device(&DeviceChange::SetUp(device.index)).map_err(make())?;
    }
    Ok(device)
}

fn remove_ifb(kernel: &mut dyn Links, name: InterfaceName) -> Result<(), BandwidthProblem> {
    let Some(device) = kernel.device(name.as_str()).map_err(kernel_problem("its device cannot be read"))? else {
        return Ok(());
    };
    if device.kind != DeviceKind::Other(IFB.to_owned()) {
        return Ok(());
    }
    let removed = ignore_missing(kernel.change_device(&DeviceChange::Delete(device.index)));
    removed.map_err(kernel_problem("its device cannot be removed"))
}

fn ignore_missing(result: Result<(), KernelError>) -> Result<(), KernelError> {
    match result {
        Err(KernelError::NotFound) => Ok(()),
        result => result,
    }
}

/// Returns the name of the device that limits packets from an interface: a prefix and the beginning
/// of a hash, as in Felix.
#[expect(clippy::expect_used, reason = "a prefix with digits behind it, as long as a name can be")]
fn ifb_name(interface: InterfaceName) -> InterfaceName {
    let hash = Sha512::digest(interface.as_str()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let name: String = format!("{IFB_PREFIX}{hash}").chars().take(InterfaceName::MAX_LEN).collect();
    name.parse().expect("a short word")
}

#[cfg(test)]
mod tests;
