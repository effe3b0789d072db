//! What the dataplane needs of the outside.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tortie_model::{Cidr, Family, IfaceName, Mac};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

use crate::device::{Device, DeviceChange, FdbEntry};
use crate::proxy_neighbours::{ProxyNeighbour, ProxyNeighbourChange};
use crate::qdisc::{Qdisc, QdiscChange};
use crate::route::{Route, RouteChange, RouteTableIndex};
use crate::routing_rule::{RoutingRule, RoutingRuleChange};
use crate::wireguard_device::{WireguardChange, WireguardDevice};

/// The outside: programs, routes, neighbours, sysctls, connection tracking and the clock of one network namespace.
///
/// All calls block; what goes wrong is a value. Nothing else in this crate has effects, and all of them happen within
/// [`Dataplane::apply`](crate::Dataplane::apply) and [`cleanup`](fn@crate::cleanup); what is counted is read within
/// [`Dataplane::rule_counts`](crate::Dataplane::rule_counts).
pub trait Kernel {
    /// Runs all commands, side by side if possible, and tells how each ended, in the same order. An outcome that is
    /// missing counts as a program that could not be run.
    fn run(&mut self, commands: Vec<KernelCommand>) -> Vec<CommandOutcome>;

    /// The generation of the nftables ruleset: the number of transactions committed in this namespace by anybody, modulo
    /// 2^32. `None` if it cannot be told; then more is read than need be.
    fn ruleset_generation(&mut self) -> Option<u32> {
        None
    }

    /// What there is of a table of nftables; `None` if nothing is.
    ///
    /// # Errors
    /// If it cannot be read. Only asked where [`DataplaneConfig::nftables`](crate::DataplaneConfig) says so.
    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        let _ = table;
        Err(KernelError::Unsupported)
    }

    /// Of a table of nftables its rules with what they have counted, and perhaps more; `None` if there are none.
    ///
    /// # Errors
    /// If they cannot be read.
    fn count_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.read_nftables(table)
    }

    /// Makes all changes of a table of nftables, or none.
    ///
    /// # Errors
    /// What the kernel refuses, as far as it says so.
    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        let _ = transaction;
        Err(CommitError::Failed("not supported".to_owned()))
    }

    /// All routes of a table of a family, of every type and protocol.
    ///
    /// # Errors
    /// If the table cannot be read. A family or table that the kernel does not have has no routes.
    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError>;

    /// The routes of a table of a family that leave by one interface. It should cost no more than these.
    ///
    /// # Errors
    /// If they cannot be read. A family that the kernel does not have, and an interface that is not there, have none.
    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError>;

    /// Changes routes in a table, in this order, and tells what became of each; an outcome that is missing counts
    /// as a failure. A change that fails does not stop those behind it. [`KernelError::NotFound`] stands for a route or an
    /// interface that is not there.
    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>>;

    /// The routing rules of a family that lead to a table. A kernel without `WireGuard` need not know any.
    ///
    /// # Errors
    /// If they cannot be read. A family that the kernel does not have has none.
    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        let _ = (family, table);
        Ok(Vec::new())
    }

    /// Makes or removes a routing rule.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] for one that is to be removed and not there,
    /// [`KernelError::Exists`] for one that is there already.
    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        let _ = change;
        Err(KernelError::Unsupported)
    }

    /// All permanent neighbour entries of a family: ARP or neighbour discovery.
    ///
    /// # Errors
    /// If they cannot be read. A family that the kernel does not have has none.
    fn neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError>;

    /// The permanent forwarding entries of a device, but those that multicast and unknown frames take. A kernel of which nobody wants
    /// tunnels need not know any, nor the devices and addresses below.
    ///
    /// # Errors
    /// If they cannot be read.
    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError> {
        let _ = interface;
        Ok(Vec::new())
    }

    /// Changes neighbour and forwarding entries, in this order, and tells what became of each; an outcome that is missing
    /// counts as a failure. [`KernelError::NotFound`] stands for an entry or an interface that is not there.
    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>>;

    /// What requests of others are answered for in a family, because [`Kernel::change_proxy_neighbours`] said so. Nothing else
    /// is known of: not what others have the kernel answer for, nor what an earlier process answered.
    ///
    /// # Errors
    /// If it cannot be told.
    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError> {
        let _ = family;
        Err(KernelError::Unsupported)
    }

    /// Answers requests for addresses of others, by ARP or neighbour discovery, with the Ethernet address of the interface
    /// that they come by, until this ends or is told otherwise. Tells what became of each; an outcome that is missing counts
    /// as a failure. [`KernelError::NotFound`] stands for an address or an interface that is not there.
    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>> {
        vec![Err(KernelError::Unsupported); changes.len()]
    }

    /// Tells everybody behind the interfaces that these addresses are here, and what became of each attempt; an outcome that is
    /// missing counts as a failure. [`KernelError::NotFound`] stands for an interface that is not there.
    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>> {
        vec![Err(KernelError::Unsupported); neighbours.len()]
    }

    /// The device of this name; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        let _ = name;
        Ok(None)
    }

    /// The addresses of a device in a family, with their prefix lengths.
    ///
    /// # Errors
    /// If they cannot be read. A device that is not there has none.
    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        let _ = (interface, family);
        Ok(Vec::new())
    }

    /// Changes a device or its addresses.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] for what is to be changed or removed and not there,
    /// [`KernelError::Exists`] for what is there already.
    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        let _ = change;
        Err(KernelError::Unsupported)
    }

    /// Has checksums of packets that are sent computed before the device with this index and name gets them; does nothing if they
    /// are already.
    ///
    /// # Errors
    /// If that fails. Only asked where [`TunnelsConfig::checksum_offload_broken`](crate::TunnelsConfig) says so.
    fn disable_checksum_offload(&mut self, interface: u32, name: &IfaceName) -> Result<(), KernelError> {
        let _ = (interface, name);
        Err(KernelError::Unsupported)
    }

    /// The value of a sysctl, without the line end.
    ///
    /// # Errors
    /// If it cannot be read; [`KernelError::NotFound`] if there is none of that name.
    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError>;

    /// Writes an existing sysctl.
    ///
    /// # Errors
    /// If it cannot be written; [`KernelError::NotFound`] if there is none of that name.
    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError>;

    /// Forgets all connections that come from this address, or whose replies do.
    ///
    /// # Errors
    /// If that fails. That there were none is no error.
    fn flush_conntrack(&mut self, address: IpAddr) -> Result<(), KernelError>;

    /// Addresses for which [`Kernel::mark_flush`] was called last with `true`, also by a process that has ended. The marks
    /// last as long as the connections do: until the network namespace goes.
    ///
    /// # Errors
    /// If they cannot be read.
    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError>;

    /// Marks an address whose connections are still to be forgotten, or takes the mark away, where no packet notices.
    ///
    /// # Errors
    /// If the kernel refuses. That an address to unmark has no mark is no error.
    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError>;

    /// All queueing disciplines. A kernel of which nobody wants limits of bandwidth need not know any.
    ///
    /// # Errors
    /// If they cannot be read.
    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        Ok(Vec::new())
    }

    /// Changes a queueing discipline, or where the packets of an interface go.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] for what is to be removed and not there.
    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        let _ = change;
        Err(KernelError::Failed("not supported".to_owned()))
    }

    /// Where the filters of an interface's ingress qdisc send packets, by indices of interfaces; `None` for a filter that
    /// does something else.
    ///
    /// # Errors
    /// If they cannot be read.
    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        let _ = interface;
        Ok(Vec::new())
    }

    /// The `WireGuard` device with this index.
    ///
    /// # Errors
    /// If it cannot be read; [`KernelError::NotFound`] if there is none.
    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        let _ = interface;
        Err(KernelError::Unsupported)
    }

    /// Changes a `WireGuard` device. If that fails, some of it may have been done.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        let _ = (interface, change);
        Err(KernelError::Unsupported)
    }

    /// Has the packets that a device receives handled by threads of their own (`/sys/class/net/*/threaded`), or not.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] if it knows of no such threads, or of no such device.
    fn set_threaded(&mut self, device: &IfaceName, is_threaded: bool) -> Result<(), KernelError> {
        let _ = (device, is_threaded);
        Err(KernelError::Unsupported)
    }

    /// Where these addresses are on this node: the interface that leads to each, and its port behind which the address is if
    /// that is a bridge. Each comes with where it was found before, which holds for as long as its interface leads to the
    /// address and its port belongs to the bridge. `None` for an address that is not directly behind an interface of this
    /// node, or not known to be; then the kernel is made to find out.
    ///
    /// # Errors
    /// If it cannot be found out. Only asked where workloads are told apart by address.
    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError> {
        let _ = addresses;
        Err(KernelError::Failed("not supported".to_owned()))
    }

    /// Lets time pass; less of it if [`Kernel::is_stopping`] becomes true.
    fn sleep(&mut self, duration: Duration);

    /// Whether the program is to end. Then nothing more is begun: what has been done is consistent, and the rest is left.
    fn is_stopping(&mut self) -> bool {
        false
    }

    /// The time since a fixed moment; never runs backwards.
    fn now(&mut self) -> Duration;
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCommand {
    /// Its name, to be found in the search path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it reads from its standard input.
    pub input: String,
}

impl fmt::Display for KernelCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Whether and how it ended.
    pub status: CommandStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
}

/// Whether and how a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    /// With this exit code.
    Code(i32),
    /// By a signal.
    Signal,
    /// It could not be started, fed, read or waited for, for this reason.
    NotRun(String),
}

impl CommandOutcome {
    /// A program that ended well.
    #[must_use]
    pub fn success(stdout: impl Into<Vec<u8>>) -> Self {
        Self { status: CommandStatus::Code(0), stdout: stdout.into(), stderr: String::new() }
    }

    /// A program that could not be run.
    #[must_use]
    pub fn not_run(why: impl Into<String>) -> Self {
        Self { status: CommandStatus::NotRun(why.into()), stdout: Vec::new(), stderr: String::new() }
    }

    /// Whether it ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == CommandStatus::Code(0)
    }
}

/// Why the kernel did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The object is not there (`ENOENT`, `ESRCH`, `ENODEV`).
    #[error("not found")]
    NotFound,
    /// There is one of that name already (`EEXIST`).
    #[error("it exists already")]
    Exists,
    /// The kernel does not know of such things (`EOPNOTSUPP`).
    #[error("the kernel does not support it")]
    Unsupported,
    /// The interface is down (`ENETDOWN`).
    #[error("the interface is down")]
    LinkDown,
    /// Anything else, in the words of the system.
    #[error("{0}")]
    Failed(String),
}

impl KernelError {
    /// A change of several of which the kernel's answer is missing.
    pub(crate) fn no_answer() -> Self {
        Self::Failed("no outcome was reported".to_owned())
    }
}

/// A change of what the kernel knows of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "whoever implements a kernel must know them all")]
pub enum NeighbourChange {
    /// Set a permanent neighbour entry, in place of what was there for this interface and address.
    Set(Neighbour),
    /// Remove the neighbour entry of this interface and address.
    Delete(Neighbour),
    /// Set a permanent forwarding entry, in place of what was there for this device and Ethernet address.
    SetFdb(FdbEntry),
    /// Remove this forwarding entry.
    DeleteFdb(FdbEntry),
}

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The index of the interface.
    pub interface: u32,
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: Mac,
}

/// The name of a sysctl as a path below `/proc/sys`, such as `net/ipv4/ip_forward`.
///
/// No part of it is empty, `.` or `..`, so that it never leads out of that directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SysctlPath(String);

impl SysctlPath {
    /// Checks and keeps a path.
    ///
    /// # Errors
    /// [`InvalidSysctlPath`] if a part is empty, `.` or `..`, or has a NUL byte.
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidSysctlPath> {
        let path = path.into();
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if path.split('/').all(is_plain) { Ok(Self(path)) } else { Err(InvalidSysctlPath(path)) }
    }

    /// The path below `/proc/sys`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SysctlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that cannot be a [`SysctlPath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the path of a sysctl")]
pub struct InvalidSysctlPath(pub String);

/// What leads to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever implements a kernel makes them")]
pub struct AddressPlace {
    /// The interface that packets to the address leave by.
    pub interface: IfaceName,
    /// If that is a bridge, its port behind which the address is.
    pub port: Option<IfaceName>,
    /// The index of the port, or else of the interface.
    pub index: u32,
}
