//! What an apply reports.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tortie_ipsets::{CommandFailure, SetFailure, UpdateError};
use tortie_iptables::{Table, TableError, TableStats};
use tortie_model::{
    Direction, Family, HostEndpointName, InterfaceName, IpSetId, PolicyId, ProfileName, WorkloadEndpointId,
};
use tortie_rules::RuleProblem;

use crate::device::FdbEntry;
use crate::kernel::Subsystem;
use crate::kernel_error::KernelError;
use crate::neighbour::{Neighbour, ProxyNeighbour};
use crate::route::Route;
use crate::routing_rule::RoutingRule;
use crate::sysctl_path::SysctlPath;
use crate::wireguard_device::WireguardKey;

/// What became of an apply.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ApplyReport {
    /// Whether anything was applied. If not, [`waiting_for`](Self::waiting_for) says why; if that is empty as well, the kernel is
    /// stopping.
    pub applied: bool,
    /// Reports that must arrive before anything is applied. Empty once they have.
    pub waiting_for: Vec<Awaited>,
    /// All that is out of sync, those things included that earlier applies reported.
    pub problems: Vec<DataplaneProblem>,
    /// Endpoints whose status changed.
    pub statuses: Vec<StatusChange>,
    /// Families whose policy is not in force, or not known to be: what is in the kernel may be older, or nothing.
    pub unenforced: Vec<Family>,
    /// This node's keys of `WireGuard` that others should be told; `None` for a family in which it has none any more.
    pub wireguard_keys: Vec<(Family, Option<WireguardKey>)>,
    /// How long from now the next apply is wanted, updates or none; never if `None`.
    pub next: Option<Duration>,
}

/// A report without which nothing is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// [`DesiredUpdate::InSync`](tortie_model::desired::DesiredUpdate::InSync): the datastore has been read once.
    Datastore,
    /// [`Dataplane::on_links_in_sync`](crate::Dataplane::on_links_in_sync): the interfaces of the node are known.
    Links,
}

impl ApplyReport {
    /// Nothing was applied.
    pub(crate) fn waiting(waiting_for: Vec<Awaited>) -> Self {
        Self { waiting_for, ..Self::default() }
    }

    /// Whether everything that is wanted is in the kernel.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.applied && self.problems.is_empty()
    }

    /// Whether policy is in force in all families: no table, and no family's sets, failed as a whole. Single objects may
    /// have failed; something that denies is in their place.
    #[must_use]
    pub fn enforced(&self) -> bool {
        let whole = |problem: &DataplaneProblem| {
            matches!(problem, DataplaneProblem::Table(_) | DataplaneProblem::IpSetNames { .. })
        };
        self.applied && self.unenforced.is_empty() && !self.problems.iter().any(whole)
    }
}

/// Something that is out of sync, while everything else is in force. [`identity`](Self::identity) tells whether it is the
/// same as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataplaneProblem {
    /// A rule of a policy or profile cannot be expressed.
    #[error("{family}")]
    Rule {
        /// Where the rule would be.
        family: Family,
        /// The rule, and what became of it.
        #[source]
        problem: RuleProblem,
    },
    /// A chain is not in the kernel as wanted; something that denies is in its place.
    #[error("{}: {family} table {table}", OwnerList(.owners))]
    Chain {
        /// Its family.
        family: Family,
        /// Its table.
        table: Table,
        /// What is wrong with it.
        #[source]
        problem: tortie_iptables::ChainProblem,
        /// What the chain is made from; empty for chains that depend on the configuration only.
        owners: Vec<Owner>,
    },
    /// A chain of a policy or profile lets less through than it should, because IP sets are not in the kernel as they
    /// should be.
    #[error("{owner}: {family} {}: {reduction}, because of {}", word(*.direction), SetList(.sets))]
    Reduced {
        /// In which family.
        family: Family,
        /// The policy or profile.
        owner: Owner,
        /// In which direction.
        direction: Direction,
        /// The sets.
        sets: Vec<IpSetId>,
        /// What is not in force.
        reduction: Reduction,
    },
    /// A table cannot be brought to what it should be; the kernel keeps what it had.
    #[error(transparent)]
    Table(TableError),
    /// A table of nftables cannot be brought to what it should be; the kernel keeps what it had.
    #[error(transparent)]
    Nftables(tortie_nftables::TableError),
    /// A chain of the table of ARP packets is not in the kernel as wanted: the node may answer requests of a workload for the
    /// workload's own address.
    #[error("table arp calico-arp")]
    Arp(#[source] tortie_iptables::ChainProblem),
    /// The kernel refuses to give a set of nftables what it should hold; it is left as it is.
    #[error("{}: {family}", OwnerList(.users))]
    NftablesSet {
        /// Its family.
        family: Family,
        /// What is wrong.
        #[source]
        problem: tortie_nftables::SetProblem,
        /// The policies and profiles that use it.
        users: Vec<Owner>,
    },
    /// An IP set does not hold what it should.
    #[error("{}: {family}", OwnerList(.users))]
    IpSet {
        /// Its family.
        family: Family,
        /// What is wrong.
        #[source]
        failure: SetFailure,
        /// The policies and profiles that use it.
        users: Vec<Owner>,
    },
    /// The names of the IP sets cannot be listed.
    #[error("{family} IP sets cannot be listed")]
    IpSetNames {
        /// Their family.
        family: Family,
        /// What ipset said.
        #[source]
        failure: CommandFailure,
    },
    /// An IP set was sent with an id or with members that the kernel would not take, or a change of one that is not
    /// known; what can be taken is.
    #[error("IP set {id}")]
    IpSetUpdate {
        /// Which set.
        id: IpSetId,
        /// What is wrong.
        #[source]
        error: UpdateError,
    },
    /// An endpoint cannot be programmed, in whole or in part.
    #[error("{owner}")]
    Endpoint {
        /// Which endpoint.
        owner: Owner,
        /// What is wrong.
        #[source]
        error: EndpointProblem,
    },
    /// A network that is no network; it is left out.
    #[error("{what}: `{text}` is not an address or network")]
    Network {
        /// Where it was given.
        what: &'static str,
        /// What was given.
        text: String,
    },
    /// The routing table cannot be read.
    #[error("{family} routes cannot be read")]
    Routes {
        /// Its family.
        family: Family,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// A route cannot be made or removed.
    #[error("route {} metric {}", .route.key.destination, .route.key.metric)]
    Route {
        /// The route.
        route: Route,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// Routing rules cannot be read.
    #[error("{family} routing rules cannot be read")]
    RoutingRules {
        /// Their family.
        family: Family,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// A routing rule cannot be made or removed.
    #[error("{} routing rule {} to table {}", .rule.family, .rule.priority, .rule.table.0)]
    RoutingRule {
        /// The rule.
        rule: RoutingRule,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// Neighbour entries cannot be read.
    #[error("{family} neighbours cannot be read")]
    Neighbours {
        /// Their family.
        family: Family,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// A neighbour entry cannot be set.
    #[error("neighbour {}", .neighbour.address)]
    Neighbour {
        /// The entry.
        neighbour: Neighbour,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// The subnets of an interface cannot be read.
    #[error("addresses of {interface} cannot be read")]
    Subnets {
        /// Its name.
        interface: InterfaceName,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// It cannot be told which addresses are answered for in the subnets of the node.
    #[error("{family} addresses that are answered for cannot be listed")]
    ProxyNeighbours {
        /// Their family.
        family: Family,
        /// What is wrong.
        #[source]
        error: KernelError,
    },
    /// Requests for an address in a subnet of the node are not answered as they should be, or it was not announced.
    #[error("requests for {} on interface {}", .neighbour.address, .neighbour.interface)]
    ProxyNeighbour {
        /// The address, and where.
        neighbour: ProxyNeighbour,
        /// What is wrong.
        #[source]
        error: KernelError,
    },
    /// A tunnel device is out of sync.
    #[error("device {name}")]
    Device {
        /// Its name.
        name: InterfaceName,
        /// What is wrong.
        #[source]
        error: DeviceProblem,
    },
    /// Forwarding entries of a tunnel device cannot be read.
    #[error("forwarding entries of interface {interface} cannot be read")]
    FdbEntries {
        /// The index of the device.
        interface: u32,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// A forwarding entry of a tunnel device cannot be set or removed.
    #[error("forwarding entry {} to {}", .entry.mac, .entry.destination)]
    FdbEntry {
        /// The entry.
        entry: FdbEntry,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
    /// The connections of whoever had an address cannot be forgotten; until they are, nobody else gets it.
    #[error("the connections of {address} cannot be forgotten, {}; tried again", Waiting(.waiting.as_ref()))]
    Conntrack {
        /// The address.
        address: IpAddr,
        /// The endpoint that waits for it.
        waiting: Option<WorkloadEndpointId>,
        /// What went wrong.
        #[source]
        error: KernelError,
    },
    /// Workloads share a bridge within which the kernel asks no rules: policy between them is not in force, and they can
    /// use each other's addresses.
    #[error("{} policy between workloads that share a bridge is not in force: load br_netfilter and set net.bridge.{} to 1", .0, call_sysctl(*.0))]
    BridgesNotFiltered(Family),
    /// It cannot be found out where addresses of workloads are; those that were found stay where they are.
    #[error("workloads cannot be looked for")]
    Places(#[source] KernelError),
    /// A limit of bandwidth is not in force, or was not removed.
    #[error("bandwidth of {interface}")]
    Bandwidth {
        /// The workload's interface.
        interface: InterfaceName,
        /// What is wrong.
        #[source]
        error: BandwidthProblem,
    },
    /// Something about the programs that enforce policy, as their owner told
    /// ([`Dataplane::set_policy_in_force`](crate::Dataplane::set_policy_in_force)).
    #[error("{0}")]
    Programs(ProgramProblem),
    /// The kernel lacks a subsystem that the configuration or the desired state needs; features that depend on it are
    /// left out.
    #[error("the kernel lacks {subsystem}, needed for {}", .needed_for.join(", "))]
    MissingSubsystem {
        /// The subsystem.
        subsystem: Subsystem,
        /// The features that need it.
        needed_for: Vec<&'static str>,
    },
    /// A sysctl cannot be written.
    #[error("sysctl {path}")]
    Sysctl {
        /// The sysctl.
        path: SysctlPath,
        /// What the kernel said.
        #[source]
        error: KernelError,
    },
}

impl DataplaneProblem {
    /// Whether, as long as this lasts, the kernel enforces something else than policy says: it denies more than it
    /// should, or keeps what it had before.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        use tortie_iptables::ChainProblem::{Refused, Undefined};
        match self {
            Self::Reduced { .. } | Self::Table(_) | Self::IpSetNames { .. } | Self::BridgesNotFiltered(_) => true,
            Self::Chain { problem, .. } => matches!(problem, Refused { .. } | Undefined { .. }),
            Self::Nftables(error) => !error.table().is_arp,
            Self::Programs(problem) => problem.is_degraded,
            _ => false,
        }
    }
}

/// Something that is wrong with programs that enforce policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever owns the programs makes it")]
pub struct ProgramProblem {
    /// What is wrong, with which object; as long as it lasts, in the same words.
    pub object: String,
    /// Why.
    pub why: String,
    /// Whether something else is enforced than policy says, for as long as it lasts.
    pub is_degraded: bool,
}

impl fmt::Display for ProgramProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)
    }
}

/// What is not in force of a chain whose IP sets are not as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduction {
    /// These of its rules, counted from 0, which allow or log.
    LeftOut(Vec<usize>),
    /// All of it: everything is denied.
    Closed,
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("everything is denied"),
            Self::LeftOut(rules) => {
                let numbers: Vec<String> = rules.iter().map(ToString::to_string).collect();
                let (noun, verb) = if rules.len() == 1 { ("rule", "is") } else { ("rules", "are") };
                write!(f, "{noun} {} {verb} left out", numbers.join(", "))
            }
        }
    }
}

/// Why an endpoint cannot be programmed, in whole or in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointProblem {
    /// It has no interface, or one whose name is none; nothing is programmed.
    #[error("no interface of a usable name is given")]
    NoInterface,
    /// Its interface has the name of a folder of sysctls; nothing is programmed.
    #[error("`{0}` cannot be the name of an interface")]
    BadInterface(InterfaceName),
    /// Another endpoint has the same interface; this one waits until that one is gone.
    #[error("interface {interface} belongs to {other}")]
    Shadowed {
        /// The interface.
        interface: InterfaceName,
        /// The endpoint that has it.
        other: WorkloadEndpointId,
    },
    /// Its interface does not look like a workload's: it gets neither routes nor sysctls, and no rule leads to it.
    #[error("interface {0} has none of the prefixes of workload interfaces")]
    ForeignInterface(InterfaceName),
    /// No interface of this node leads to its address; what comes from or goes to that is denied.
    #[error("no interface of this node leads to {0}, so that its packets are denied")]
    NotFound(IpAddr),
    /// It was found on an interface that does not look like a workload's; policy is in force, but unknown workloads there
    /// are not denied.
    #[error(
        "interface {0} has none of the prefixes of workload interfaces, so that unknown workloads there are let through"
    )]
    UnguardedInterface(InterfaceName),
    /// It asks for something that is not done for workloads that are told apart by address.
    #[error("{0} has no effect on workloads that are told apart by address")]
    WithoutEffect(&'static str),
    /// It asks for something that takes chains, where programs enforce policy.
    #[error("{0} has no effect where eBPF programs enforce policy")]
    NotByPrograms(&'static str),
    /// Its policy decides about packets of tunnels between nodes, which chains would let through before it.
    #[error("its policy must let packets of tunnels between nodes through, where eBPF programs enforce it")]
    TunnelsByPolicy,
    /// Another endpoint has the same address; this one waits until that one is gone.
    #[error("address {address} belongs to {other}")]
    SharedAddress {
        /// The address.
        address: IpAddr,
        /// The endpoint that has it.
        other: WorkloadEndpointId,
    },
    /// Untracked policy for all interfaces cannot be programmed.
    #[error("untracked policy does not apply to all interfaces at once")]
    UntrackedForAll,
}

/// Why a tunnel device is out of sync.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceProblem {
    /// The kernel does not return the current state, or refuses a change of it.
    #[error("{what}")]
    Kernel {
        /// The operation that failed.
        what: &'static str,
        /// The error of the kernel.
        #[source]
        error: KernelError,
    },
    /// No interface of this node has the address that tunnel packets are to leave by.
    #[error("no interface has the node's address {0}")]
    NoParent(IpAddr),
    /// There is a device of another kind by its name, which is left alone.
    #[error("there is a device of another kind by this name")]
    Foreign,
    /// This node has no address for tunnels, or none of its own that tunnel packets could leave by.
    #[error("this node has no tunnel address")]
    NoAddress,
}

/// Why a limit is not in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BandwidthProblem {
    /// The kernel does not return the current state, or refuses a change of it.
    #[error("{what}")]
    Kernel {
        /// The operation that failed.
        what: &'static str,
        /// The error of the kernel.
        #[source]
        error: KernelError,
    },
    /// A queueing discipline or filter of another program is on the interface; it stays.
    #[error("another program has `{0}` there, which is left alone")]
    Foreign(String),
}

/// What part of the desired state something is made from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "explanations of chains must handle every variant")]
pub enum Owner {
    /// A policy.
    Policy(PolicyId),
    /// A profile.
    Profile(ProfileName),
    /// A workload endpoint.
    Workload(WorkloadEndpointId),
    /// A host endpoint.
    Host(HostEndpointName),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(id) => write!(f, "policy {id}"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Workload(id) => write!(f, "workload endpoint {id}"),
            Self::Host(name) => write!(f, "host endpoint {name}"),
        }
    }
}

struct Waiting<'a>(Option<&'a WorkloadEndpointId>);

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "and workload endpoint {id} is not reached there until they are"),
            None => f.write_str("and no endpoint waits for it"),
        }
    }
}

pub(crate) const fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

const fn call_sysctl(family: Family) -> &'static str {
    match family {
        Family::V4 => "bridge-nf-call-iptables",
        Family::V6 => "bridge-nf-call-ip6tables",
    }
}

struct SetList<'a>(&'a [IpSetId]);

impl fmt::Display for SetList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "IP set " } else { "IP sets " })?;
        let ids: Vec<&str> = self.0.iter().map(IpSetId::as_str).collect();
        f.write_str(&ids.join(", "))
    }
}

struct OwnerList<'a>(&'a [Owner]);

impl fmt::Display for OwnerList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else { return f.write_str("configuration") };
        write!(f, "{first}")?;
        others.iter().try_for_each(|owner| write!(f, ", {owner}"))
    }
}

/// How an endpoint is (`felix/dataplane/linux/endpoint_mgr.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "the three words that status readers know")]
pub enum EndpointStatus {
    /// Policy is in force and the interface can carry traffic.
    Up,
    /// Switched off, or its interface is down or not configured yet.
    Down,
    /// Policy cannot be put in force, or there is no such interface.
    Error,
}

impl EndpointStatus {
    /// `up`, `down` or `error`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Error => "error",
        }
    }
}

/// A status that changed; `None` for an endpoint that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are two kinds of endpoint")]
pub enum StatusChange {
    /// Of a workload endpoint.
    Workload(WorkloadEndpointId, Option<EndpointStatus>),
    /// Of a host endpoint.
    Host(HostEndpointName, Option<EndpointStatus>),
}

/// What a dataplane did so far and holds now, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataplaneStats {
    /// Applies that were let through.
    pub applies: u64,
    /// Applies that left problems behind (`felix_int_dataplane_failures`).
    pub failed_applies: u64,
    /// Each table.
    pub tables: Vec<(Family, Table, TableStats)>,
    /// Each table of nftables.
    pub nftables: Vec<(tortie_nftables::TableId, tortie_nftables::TableStats)>,
    /// The number of IP sets wanted (`felix_ipsets_calico`).
    pub ip_sets: Vec<(Family, usize)>,
    /// `ipset` calls (`felix_ipset_calls`).
    pub ipset_calls: u64,
    /// Those that failed (`felix_ipset_errors`).
    pub ipset_errors: u64,
    /// Lines handed to `ipset restore` (`felix_ipset_lines_executed`).
    pub ipset_lines: u64,
    /// The number of routes wanted (`felix_route_table_num_routes`).
    pub routes: Vec<(Family, usize)>,
    /// Routes made or removed.
    pub route_changes: u64,
    /// Sysctls that somebody else changed, and that were set back (`tortie_sysctls_repaired`).
    pub sysctls_repaired: u64,
}
