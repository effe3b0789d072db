//! Traits for the kernel of a node, one for each subsystem.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tortie_iptables::{Table, TableSnapshot};
use tortie_model::{Cidr, Family, InterfaceName};
use tortie_netfilter::{Command, Outcome};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

use crate::device::{Device, DeviceChange, FdbEntry};
use crate::domains::DomainLearner;
use crate::kernel_error::KernelError;
use crate::neighbour::{AddressPlace, Neighbour, NeighbourChange, ProxyNeighbour, ProxyNeighbourChange};
use crate::qdisc::{Qdisc, QdiscChange};
use crate::route::{Route, RouteChange, RouteTableIndex};
use crate::routing_rule::{RoutingRule, RoutingRuleChange};
use crate::sysctl_path::SysctlPath;
use crate::wireguard_device::{WireguardChange, WireguardDevice};

/// The kernel behind one network namespace: netfilter and a clock, and any of the other subsystems.
///
/// All calls block; errors are values. Nothing else in this crate has effects, and all of them
/// happen within [`Dataplane::apply`](crate::Dataplane::apply) and [`cleanup`](fn@crate::cleanup);
/// counters are read within [`Dataplane::rule_counts`](crate::Dataplane::rule_counts).
///
/// A kernel that lacks a subsystem neither implements its trait nor overrides its method here. If
/// the configuration or the desired state needs that subsystem, each apply reports a
/// [`DataplaneProblem::MissingSubsystem`](crate::DataplaneProblem::MissingSubsystem); workload
/// endpoints are not up if [routes](crate::RoutesConfig::enabled) need it.
///
/// ```
/// # use std::time::Duration;
/// # use tortie_dataplane::{Clock, Outcome, Kernel, Command, KernelError, Netfilter};
/// # use tortie_nftables::{CommitError, TableId, Transaction, wire::Snapshot};
/// struct Tables(Duration);
///
/// impl Kernel for Tables {}
///
/// impl Clock for Tables {
///     fn now(&mut self) -> Duration {
///         self.0
///     }
///     // ...
/// #   fn sleep(&mut self, duration: Duration) {
/// #       self.0 += duration;
/// #   }
/// }
///
/// impl Netfilter for Tables {
///     fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
///         commands.iter().map(|_| Outcome::success("")).collect()
///     }
///     // ...
/// #   fn ruleset_generation(&mut self) -> Option<u32> {
/// #       None
/// #   }
/// #   fn read_nftables(&mut self, _: TableId) -> Result<Option<Snapshot>, KernelError> {
/// #       Ok(None)
/// #   }
/// #   fn commit_nftables(&mut self, _: &Transaction) -> Result<(), CommitError> {
/// #       Ok(())
/// #   }
/// }
/// ```
pub trait Kernel: Netfilter {
    /// Returns the sysctls, if this kernel has them.
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        None
    }

    /// Returns connection tracking, if this kernel has it; a kernel with routing does.
    fn conntrack(&mut self) -> Option<&mut dyn Conntrack> {
        self.routing().map(|routing| routing as &mut dyn Conntrack)
    }

    /// Returns routes and routing rules, if this kernel has them.
    fn routing(&mut self) -> Option<&mut dyn Routing> {
        None
    }

    /// Returns devices, if this kernel has them.
    fn links(&mut self) -> Option<&mut dyn Links> {
        None
    }

    /// Returns neighbour entries, if this kernel has them.
    fn neighbours(&mut self) -> Option<&mut dyn Neighbours> {
        None
    }

    /// Returns the keeper of domain sets. Without one, rules with domain names are left out and
    /// named; endpoints are up nevertheless.
    fn domains(&mut self) -> Option<&mut dyn DomainLearner> {
        None
    }
}

/// A subsystem that a [`Kernel`] may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subsystem {
    /// [`Sysctls`].
    Sysctls,
    /// [`Conntrack`].
    Conntrack,
    /// [`Routing`].
    Routing,
    /// [`Links`].
    Links,
    /// [`Neighbours`].
    Neighbours,
}

impl Subsystem {
    /// Reports whether a kernel has the subsystem.
    pub(crate) fn is_in(self, kernel: &mut dyn Kernel) -> bool {
        match self {
            Self::Sysctls => kernel.sysctls().is_some(),
            Self::Conntrack => kernel.conntrack().is_some(),
            Self::Routing => kernel.routing().is_some(),
            Self::Links => kernel.links().is_some(),
            Self::Neighbours => kernel.neighbours().is_some(),
        }
    }
}

impl fmt::Display for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sysctls => "sysctls",
            Self::Conntrack => "connection tracking",
            Self::Routing => "routing",
            Self::Links => "devices",
            Self::Neighbours => "neighbour entries",
        })
    }
}

/// Clock of the kernel calls, and the request to stop. Every subsystem has it.
pub trait Clock {
    /// Returns the time since a fixed moment; never runs backwards.
    fn now(&mut self) -> Duration;

    /// Sleeps; ends early if [`is_stopping`](Self::is_stopping) becomes true.
    fn sleep(&mut self, duration: Duration);

    /// Reports whether this process is stopping. The dataplane then begins no further step;
    /// finished steps leave a consistent state.
    fn is_stopping(&mut self) -> bool {
        false
    }
}

/// Tables and IP sets: the iptables and ipset programs, and nftables transactions.
pub trait Netfilter: Clock {
    /// Runs all commands, concurrently if possible, and returns their outcomes in the same order. A
    /// missing outcome counts as a program that could not be run.
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome>;

    /// Reads tables of legacy iptables without running a program. Each is `None` if only
    /// `iptables-save` can read it; [`run`](Self::run) then runs that.
    fn read_legacy(&mut self, tables: &[(Family, Table)]) -> Vec<Option<TableSnapshot>> {
        tables.iter().map(|_| None).collect()
    }

    /// Returns the generation of the nftables ruleset: the number of transactions committed in this
    /// namespace by any process, modulo 2^32. `None` if the kernel does not report it; the
    /// dataplane then reads more than necessary.
    fn ruleset_generation(&mut self) -> Option<u32>;

    /// Returns the objects of an nftables table; `None` if the table does not exist.
    ///
    /// # Errors
    /// If it cannot be read. Only called if [`DataplaneConfig::nftables`](crate::DataplaneConfig)
    /// or [`DataplaneConfig::arp`](crate::DataplaneConfig) enables it.
    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError>;

    /// Returns the rules of an nftables table with their counters, and perhaps other objects;
    /// `None` if the table does not exist.
    ///
    /// # Errors
    /// If they cannot be read.
    fn count_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.read_nftables(table)
    }

    /// Makes all changes of an nftables table, or none.
    ///
    /// # Errors
    /// The changes that the kernel refuses, as far as it names them.
    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError>;
}

/// Sysctls below `/proc/sys`.
pub trait Sysctls: Clock {
    /// Returns the value of a sysctl, without the line end.
    ///
    /// # Errors
    /// If it cannot be read; [`KernelError::NotFound`] if it does not exist.
    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError>;

    /// Writes an existing sysctl.
    ///
    /// # Errors
    /// If it cannot be written; [`KernelError::NotFound`] if it does not exist.
    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError>;
}

/// Connection tracking, and marks of the addresses whose entries are still to be deleted.
pub trait Conntrack: Clock {
    /// Deletes all conntrack entries of connections that come from one of these addresses, or whose
    /// replies do. Returns the outcome of each address; a missing outcome counts as a failure. An
    /// address without connections is none. The kernel has no index of addresses, so the dataplane
    /// passes all of them at once.
    fn flush_conntrack(&mut self, addresses: &[IpAddr]) -> Vec<Result<(), KernelError>>;

    /// Returns the addresses for which [`mark_flush`](Self::mark_flush) was called last with
    /// `true`, also by a process that has ended. The marks last as long as the connections do:
    /// until the network namespace is deleted.
    ///
    /// # Errors
    /// If they cannot be read.
    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError>;

    /// Marks an address whose conntrack entries are still to be deleted, or removes the mark. No
    /// packet is affected.
    ///
    /// # Errors
    /// If the kernel refuses. Removing a missing mark is no error.
    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError>;
}

/// Routes and routing rules. An address that moves to another endpoint must lose its old
/// connections, so routing comes with connection tracking.
pub trait Routing: Conntrack {
    /// Returns all routes of a table of a family, of every type and protocol.
    ///
    /// # Errors
    /// If the table cannot be read. A family or table that the kernel does not have has no routes.
    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError>;

    /// Returns the routes of a table of a family that leave by one interface. The cost should
    /// depend on their number only.
    ///
    /// # Errors
    /// If they cannot be read. A family that the kernel lacks, and a missing interface, have none.
    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError>;

    /// Changes routes in a table, in this order, and returns the outcome of each; a missing outcome
    /// counts as a failure. A failed change does not stop those behind it.
    /// [`KernelError::NotFound`] stands for a missing route or interface.
    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>>;

    /// Returns the routing rules of a family that lead to a table.
    ///
    /// # Errors
    /// If they cannot be read. A family that the kernel does not have has none.
    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError>;

    /// Adds or removes a routing rule.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] for the removal of a missing one,
    /// [`KernelError::Exists`] for an addition of an existing one.
    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError>;
}

/// Devices: their addresses, queueing disciplines, offloads and threads, and those of `WireGuard`.
pub trait Links: Clock {
    /// Returns the device of this name; `None` if it does not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError>;

    /// Returns the addresses of a device in a family, with their prefix lengths.
    ///
    /// # Errors
    /// If they cannot be read. A missing device has none.
    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError>;

    /// Changes a device or its addresses.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] for a change or removal of a missing
    /// object, [`KernelError::Exists`] for an addition of an existing one.
    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError>;

    /// Has checksums computed before packets reach the device with this index and name; does
    /// nothing if they are already.
    ///
    /// # Errors
    /// If that fails. Only called if
    /// [`TunnelsConfig::checksum_offload_broken`](crate::TunnelsConfig) is set.
    fn disable_checksum_offload(&mut self, interface: u32, name: InterfaceName) -> Result<(), KernelError>;

    /// Enables or disables threaded NAPI, which processes received packets of a device in dedicated
    /// threads (`/sys/class/net/*/threaded`).
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] if it does not support this, or if the
    /// device does not exist.
    fn set_threaded(&mut self, device: InterfaceName, is_threaded: bool) -> Result<(), KernelError>;

    /// Returns all queueing disciplines.
    ///
    /// # Errors
    /// If they cannot be read.
    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError>;

    /// Changes a queueing discipline, or the device to which incoming packets of an interface are
    /// redirected.
    ///
    /// # Errors
    /// If the kernel refuses; [`KernelError::NotFound`] for the removal of a missing one.
    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError>;

    /// Returns the interfaces to which the filters of an interface's ingress qdisc redirect
    /// packets, by index; `None` for a filter that does something else.
    ///
    /// # Errors
    /// If they cannot be read.
    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError>;

    /// Returns the `WireGuard` device with this index.
    ///
    /// # Errors
    /// If it cannot be read; [`KernelError::NotFound`] if it does not exist,
    /// [`KernelError::Unsupported`] if the kernel does not support `WireGuard`.
    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError>;

    /// Changes a `WireGuard` device. After an error, a part of the change may be in effect.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError>;
}

/// Neighbour and forwarding entries, proxied addresses, and the interfaces behind which addresses
/// are.
pub trait Neighbours: Clock {
    /// Returns all permanent neighbour entries of a family: ARP or neighbour discovery.
    ///
    /// # Errors
    /// If they cannot be read. A family that the kernel does not have has none.
    fn permanent_neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError>;

    /// Returns the permanent forwarding entries of a device, except those for multicast and unknown
    /// frames.
    ///
    /// # Errors
    /// If they cannot be read.
    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError>;

    /// Changes neighbour and forwarding entries, in this order, and returns the outcome of each; a
    /// missing outcome counts as a failure. [`KernelError::NotFound`] stands for a missing entry or
    /// interface.
    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>>;

    /// Returns the addresses of a family for which requests are answered because of
    /// [`change_proxy_neighbours`](Self::change_proxy_neighbours). Those for which other processes
    /// have the kernel answer, or for which an earlier process answered, are not among them.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError>;

    /// Starts or stops answering ARP or neighbour discovery requests for addresses of other hosts,
    /// with the MAC address of the interface by which they come. Answers end with this process.
    /// Returns the outcome of each change; a missing outcome counts as a failure.
    /// [`KernelError::NotFound`] stands for a missing address or interface.
    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>>;

    /// Announces these addresses behind the interfaces, and returns the outcome of each; a missing
    /// outcome counts as a failure. [`KernelError::NotFound`] stands for a missing interface.
    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>>;

    /// Returns the places of these addresses on this node: the interface that leads to each, and,
    /// if that is a bridge, the port behind which the address is. Each address comes with its last
    /// known place, which holds for as long as its interface leads to the address and its port
    /// belongs to the bridge. `None` for an address that is not directly behind an interface of
    /// this node, or not known to be; the implementation then has the kernel look for it.
    ///
    /// # Errors
    /// If they cannot be determined. Only called where workloads are identified by address.
    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError>;
}

/// A kernel that measures the duration of its calls.
pub trait Measured {
    /// Returns the durations of the calls since it was last called.
    fn take_call_times(&mut self) -> CallTimes;
}

/// Durations of kernel calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct CallTimes {
    /// Total duration of all calls.
    pub spent: Duration,
    /// Duration of each list of routes.
    pub route_lists: Vec<Duration>,
    /// Duration of each list of the routes of one interface.
    pub interface_lists: Vec<Duration>,
    /// Duration of each deletion of conntrack entries, of any number of addresses.
    pub conntrack_waits: Vec<Duration>,
}
