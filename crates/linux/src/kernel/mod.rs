//! Linux kernel behind the dataplane: [`LinuxKernel`], and the detection of iptables
//! ([`detect`](fn@detect)) before a dataplane is set up.

mod checksums;
mod conntrack;
mod detect;
mod limits;
mod read_ahead;
mod responder;
mod sysctl;
mod threads;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tortie_dataplane::{
    AddressPlace, CallTimes, Clock, Command, CommandStatus, Conntrack, Device, DeviceChange, DomainLearner, FdbEntry,
    Kernel, KernelError, Links, Measured, Neighbour, NeighbourChange, Neighbours, Netfilter, Outcome, ProxyNeighbour,
    ProxyNeighbourChange, Qdisc, QdiscChange, Route, RouteChange, RouteTableIndex, Routing, RoutingRule,
    RoutingRuleChange, SysctlPath, Sysctls, WireguardChange, WireguardDevice,
};
use tortie_iptables::{Table, TableSnapshot};
use tortie_model::{Cause, Cidr, Family, InterfaceName, Mac, with_causes};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

pub use checksums::checksum_offload_broken;
pub use detect::{DetectError, Detected, IptablesSetup, detect};
pub use limits::TimeLimits;

use crate::exec::{ExecError, Finished, Job, Runner};
use crate::iptables_legacy;
use crate::netlink::{Netlink, NetlinkError, Nftables, WireguardNetlink, ethtool};
use read_ahead::ReadAhead;
use responder::Responder;
use sysctl::SysctlTree;

/// Maximum number of durations of one kind that are kept until they are taken; a caller may never
/// take them.
const KEPT_TIMES: usize = 1000;

/// The kernel behind the network namespace of the thread that uses it.
///
/// ```no_run
/// use tortie_linux::kernel::LinuxKernel;
/// use tortie_dataplane::{RouteTableIndex, Routing};
/// use tortie_model::Family;
///
/// let mut kernel = LinuxKernel::new(std::time::Duration::from_secs(10));
/// for route in kernel.routes(Family::V4, RouteTableIndex::MAIN)? {
///     println!("{} by interface {:?}", route.key.destination, route.target.interface);
/// }
/// # Ok::<(), tortie_dataplane::KernelError>(())
/// ```
#[derive(Debug)]
pub struct LinuxKernel {
    started: Instant,
    runner: Runner,
    limits: TimeLimits,
    netlink_timeout: Duration,
    /// Opened when needed, and again after any error but a refusal.
    netlink: Option<Netlink>,
    /// The same for `WireGuard`.
    wireguard: Option<WireguardNetlink>,
    /// The same for nftables, with the error of the last query of the generation.
    nftables: Option<Nftables>,
    nftables_failure: Option<String>,
    read_ahead: ReadAhead,
    /// Started with the first address to answer for.
    responder: Option<Responder>,
    sysctls: SysctlTree,
    domains: Option<Domains>,
    times: CallTimes,
}

/// Keeper of domain sets.
struct Domains(Box<dyn DomainLearner + Send>);

impl fmt::Debug for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Domains")
    }
}

impl LinuxKernel {
    /// Creates it without opening anything. The kernel must answer within `netlink_timeout`
    /// (`NetlinkTimeoutSecs`).
    #[must_use]
    pub fn new(netlink_timeout: Duration) -> Self {
        Self {
            started: Instant::now(),
            runner: Runner::default(),
            limits: TimeLimits::default(),
            netlink_timeout,
            netlink: None,
            wireguard: None,
            nftables: None,
            nftables_failure: None,
            read_ahead: ReadAhead::default(),
            responder: None,
            sysctls: SysctlTree::new(PathBuf::from("/proc/sys")),
            domains: None,
            times: CallTimes::default(),
        }
    }

    /// Uses this runner, whose stop request ends all waits.
    #[must_use]
    pub fn with_runner(self, runner: Runner) -> Self {
        Self { runner, ..self }
    }

    /// Uses the settings in this directory instead of `/proc/sys`.
    #[must_use]
    pub fn with_sysctls(self, directory: PathBuf) -> Self {
        Self { sysctls: SysctlTree::new(directory), ..self }
    }

    /// Uses other time limits for programs than the default.
    #[must_use]
    pub fn with_limits(self, limits: TimeLimits) -> Self {
        Self { limits, ..self }
    }

    /// Uses this keeper of domain sets; without one, no domain sets are made.
    #[must_use]
    pub fn with_domains(self, learner: Option<Box<dyn DomainLearner + Send>>) -> Self {
        Self { domains: learner.map(Domains), ..self }
    }

    /// Begins to read these nftables tables on one thread each. The first
    /// [`Netfilter::read_nftables`] of a table uses the result, unless the ruleset has changed
    /// since.
    #[must_use]
    pub fn reading_ahead(self, tables: &[TableId]) -> Self {
        Self { read_ahead: ReadAhead::begin(tables, self.netlink_timeout), ..self }
    }

    /// Adds the duration of a call to the total.
    fn timed<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        let begin = Instant::now();
        let result = call(self);
        self.times.spent += begin.elapsed();
        result
    }

    /// Keeps the duration that the call adds to the total, among those of its kind.
    fn timed_as<T>(
        &mut self,
        kind: impl FnOnce(&mut CallTimes) -> &mut Vec<Duration>,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let before = self.times.spent;
        let result = call(self);
        let took = self.times.spent.saturating_sub(before);
        let kept = kind(&mut self.times);
        if kept.len() < KEPT_TIMES {
            kept.push(took);
        }
        result
    }

    fn with_netlink<T>(&mut self, ask: impl FnOnce(&mut Netlink) -> Result<T, NetlinkError>) -> Result<T, KernelError> {
        self.timed(|kernel| {
            let mut netlink = match kernel.netlink.take() {
                Some(netlink) => netlink,
                None => Netlink::open(kernel.netlink_timeout).map_err(kernel_error)?,
            };
            let result = ask(&mut netlink);
            // After a refusal the socket is still usable; after any other error answers may still
            // arrive.
            if matches!(result, Ok(_) | Err(NetlinkError::Refused { .. })) {
                kernel.netlink = Some(netlink);
            }
            kernel.runner.note_progress();
            result.map_err(kernel_error)
        })
    }
}

impl LinuxKernel {
    fn with_nftables<T>(
        &mut self,
        ask: impl FnOnce(&mut Nftables) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        self.timed(|kernel| {
            let mut nftables = kernel.nftables.take().map_or_else(|| Nftables::open(kernel.netlink_timeout), Ok)?;
            let answer = ask(&mut nftables)?;
            // Not kept after a failure, since an answer may still arrive.
            kernel.nftables = Some(nftables);
            Ok(answer)
        })
    }

    fn with_wireguard<T>(
        &mut self,
        ask: impl FnOnce(&mut WireguardNetlink) -> Result<T, NetlinkError>,
    ) -> Result<T, KernelError> {
        self.timed(|kernel| {
            let mut wireguard = match kernel.wireguard.take() {
                Some(wireguard) => wireguard,
                None => match WireguardNetlink::open(kernel.netlink_timeout) {
                    Err(error) if error.is_not_found() => return Err(KernelError::Unsupported),
                    wireguard => wireguard.map_err(kernel_error)?,
                },
            };
            let result = ask(&mut wireguard);
            if matches!(result, Ok(_) | Err(NetlinkError::Refused { .. })) {
                kernel.wireguard = Some(wireguard);
            }
            kernel.runner.note_progress();
            result.map_err(kernel_error)
        })
    }

    /// Calls `act` with an address and the Ethernet address of its interface, which is queried
    /// unless `macs` has it.
    fn with_responder(
        &mut self,
        macs: &mut BTreeMap<u32, Result<Option<Mac>, KernelError>>,
        neighbour: ProxyNeighbour,
        act: impl FnOnce(&Responder, ProxyNeighbour, Option<Mac>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let interface = neighbour.interface;
        let mac = macs.entry(interface).or_insert_with(|| self.with_netlink(|netlink| netlink.mac(interface)));
        let mac = mac.clone()?;
        self.timed(|kernel| {
            let responder = match kernel.responder.take() {
                Some(responder) => responder,
                None => Responder::spawn()?,
            };
            act(kernel.responder.insert(responder), neighbour, mac)
        })
    }

    /// Returns the outcomes of `count` changes that go to the kernel together.
    fn change_all(
        &mut self,
        count: usize,
        change: impl FnOnce(&mut Netlink) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError>,
    ) -> Vec<Result<(), KernelError>> {
        match self.with_netlink(change) {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| outcome.map_err(kernel_error)).collect(),
            Err(error) => vec![Err(error); count],
        }
    }
}

fn kernel_error(error: NetlinkError) -> KernelError {
    if error.is_not_found() {
        KernelError::NotFound
    } else if error.already_exists() {
        KernelError::Exists
    } else if error.is_unsupported() {
        KernelError::Unsupported
    } else if error.is_link_down() {
        KernelError::LinkDown
    } else {
        KernelError::Failed(Cause::new(error))
    }
}

impl Kernel for LinuxKernel {
    fn domains(&mut self) -> Option<&mut dyn DomainLearner> {
        let learner: &mut dyn DomainLearner = self.domains.as_mut()?.0.as_mut();
        Some(learner)
    }

    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        Some(self)
    }

    fn conntrack(&mut self) -> Option<&mut dyn Conntrack> {
        Some(self)
    }

    fn routing(&mut self) -> Option<&mut dyn Routing> {
        Some(self)
    }

    fn links(&mut self) -> Option<&mut dyn Links> {
        Some(self)
    }

    fn neighbours(&mut self) -> Option<&mut dyn Neighbours> {
        Some(self)
    }
}

impl Measured for LinuxKernel {
    fn take_call_times(&mut self) -> CallTimes {
        std::mem::take(&mut self.times)
    }
}

impl Clock for LinuxKernel {
    fn now(&mut self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&mut self, duration: Duration) {
        // The caller checks `is_stopping` after it.
        let _ = self.timed(|kernel| kernel.runner.stop().wait(duration));
    }

    fn is_stopping(&mut self) -> bool {
        self.runner.stop().is_set()
    }
}

impl Netfilter for LinuxKernel {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let jobs: Vec<Job> = commands
            .into_iter()
            .map(|Command { program, args, input }| {
                let limit = self.limits.of(&program);
                Job { program, args, input: input.into_bytes(), limit }
            })
            .collect();
        self.timed(|kernel| kernel.runner.run_all(&jobs)).into_iter().map(outcome).collect()
    }

    fn read_legacy(&mut self, tables: &[(Family, Table)]) -> Vec<Option<TableSnapshot>> {
        let read = self.timed(|_| iptables_legacy::read(tables));
        self.runner.note_progress();
        read
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        match self.with_nftables(Nftables::generation) {
            Ok(generation) => {
                self.nftables_failure = None;
                Some(generation)
            }
            Err(error) => {
                let error = with_causes(&error);
                if self.nftables_failure.as_ref() != Some(&error) {
                    tracing::warn!(%error, "nftables does not report its generation; tables are read at every check");
                    self.nftables_failure = Some(error);
                }
                None
            }
        }
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        let ahead = self.timed(|kernel| kernel.read_ahead.take(table, &kernel.runner));
        let ahead = ahead.map_err(|error| KernelError::Failed(Cause::new(error)))?;
        let read = |nftables: &mut Nftables| match ahead {
            Some((generation, snapshot)) if nftables.generation()? == generation => Ok(snapshot),
            _ => nftables.read(table),
        };
        let snapshot = self.with_nftables(read).map_err(kernel_error)?;
        self.runner.note_progress();
        Ok(snapshot)
    }

    fn count_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        let snapshot = self.with_nftables(|nftables| nftables.read_rules(table)).map_err(kernel_error)?;
        self.runner.note_progress();
        Ok(snapshot)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        let failed = |error: NetlinkError| CommitError::Failed(Cause::new(error));
        self.timed(|kernel| {
            let opened = kernel.nftables.take().map_or_else(|| Nftables::open(kernel.netlink_timeout), Ok);
            let mut nftables = opened.map_err(failed)?;
            let result = nftables.commit(transaction);
            // Without an answer, one may still arrive.
            if !matches!(result, Err(CommitError::Failed(_))) {
                kernel.nftables = Some(nftables);
            }
            kernel.runner.note_progress();
            result
        })
    }
}

impl Sysctls for LinuxKernel {
    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError> {
        self.timed(|kernel| kernel.sysctls.read(path))
    }

    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.sysctls.write(path, value))
    }
}

impl Conntrack for LinuxKernel {
    fn flush_conntrack(&mut self, addresses: &[IpAddr]) -> Vec<Result<(), KernelError>> {
        self.timed_as(
            |times| &mut times.conntrack_waits,
            |kernel| kernel.timed(|kernel| conntrack::flush(addresses, kernel.netlink_timeout, &kernel.runner)),
        )
    }

    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError> {
        self.with_netlink(|netlink| netlink.marked_addresses(family))
    }

    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError> {
        match self.with_netlink(|netlink| netlink.mark_address(address, is_pending)) {
            Err(KernelError::NotFound) if !is_pending => Ok(()),
            result => result,
        }
    }
}

impl Routing for LinuxKernel {
    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError> {
        self.timed_as(
            |times| &mut times.route_lists,
            |kernel| kernel.with_netlink(|netlink| netlink.routes(family, table)),
        )
    }

    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError> {
        self.timed_as(
            |times| &mut times.interface_lists,
            |kernel| kernel.with_netlink(|netlink| netlink.routes_of(family, table, interface)),
        )
    }

    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>> {
        self.change_all(changes.len(), |netlink| netlink.change_routes(table, changes))
    }

    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        self.with_netlink(|netlink| netlink.routing_rules(family, table))
    }

    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.with_netlink(|netlink| netlink.change_routing_rule(change))
    }
}

impl Links for LinuxKernel {
    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        self.with_netlink(|netlink| netlink.device(name))
    }

    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        self.with_netlink(|netlink| netlink.addresses(interface, family))
    }

    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        self.with_netlink(|netlink| netlink.change_device(change))
    }

    fn disable_checksum_offload(&mut self, interface: u32, name: InterfaceName) -> Result<(), KernelError> {
        self.timed(|kernel| {
            let netlink = || ethtool::disable_checksum_offload(interface, kernel.netlink_timeout);
            let result = checksums::disable_offload(name, kernel.limits.probe, netlink, |job| kernel.runner.run(job));
            kernel.runner.note_progress();
            result
        })
    }

    fn set_threaded(&mut self, device: InterfaceName, is_threaded: bool) -> Result<(), KernelError> {
        self.timed(|_| threads::set(Path::new("/sys/class/net"), device, is_threaded))
    }

    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        self.with_netlink(Netlink::qdiscs)
    }

    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        self.with_netlink(|netlink| netlink.change_qdisc(change))
    }

    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        self.with_netlink(|netlink| netlink.redirections(interface))
    }

    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.with_wireguard(|wireguard| wireguard.device(interface))
    }

    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.with_wireguard(|wireguard| wireguard.change(interface, change))
    }
}

impl Neighbours for LinuxKernel {
    fn permanent_neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError> {
        self.with_netlink(|netlink| netlink.neighbours(family))
    }

    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError> {
        self.with_netlink(|netlink| netlink.fdb(interface))
    }

    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>> {
        self.change_all(changes.len(), |netlink| netlink.change_neighbours(changes))
    }

    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError> {
        Ok(self.responder.as_ref().map(|responder| responder.entries(family)).unwrap_or_default())
    }

    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>> {
        let mut macs = BTreeMap::new();
        let mut change = |change: &ProxyNeighbourChange| match *change {
            ProxyNeighbourChange::Add(neighbour) => self.with_responder(&mut macs, neighbour, Responder::add),
            ProxyNeighbourChange::Remove(neighbour) => {
                self.responder.as_ref().map_or(Err(KernelError::NotFound), |responder| responder.remove(neighbour))
            }
        };
        changes.iter().map(&mut change).collect()
    }

    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>> {
        let mut macs = BTreeMap::new();
        let mut announce = |neighbour| self.with_responder(&mut macs, neighbour, Responder::announce);
        neighbours.iter().copied().map(&mut announce).collect()
    }

    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError> {
        self.with_netlink(|netlink| netlink.locate(addresses))
    }
}

fn outcome(result: Result<Finished, ExecError>) -> Outcome {
    match result {
        Err(error) => Outcome::not_run(with_causes(&error)),
        Ok(Finished { status, stdout, stderr }) => Outcome {
            status: status.code().map_or(CommandStatus::Signal, CommandStatus::Code),
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        },
    }
}

#[cfg(test)]
mod tests;
