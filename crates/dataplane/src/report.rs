//! Results of an apply.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tortie_ipsets::{CommandFailure, SetFailure, UpdateError};
use tortie_iptables::{Table, TableError, TableStats};
use tortie_model::{
    Direction, Family, HostEndpointName, InterfaceName, IpSetId, NamespacedName, PolicyId, ProfileName,
    WorkloadEndpointId,
};
use tortie_rules::RuleProblem;

use crate::device::FdbEntry;
use crate::domains::LearnerError;
use crate::kernel::Subsystem;
use crate::kernel_error::KernelError;
use crate::neighbour::{Neighbour, ProxyNeighbour};
use crate::route::Route;
use crate::routing_rule::RoutingRule;
use crate::sysctl_path::SysctlPath;
use crate::wireguard_device::WireguardKey;

/// Result of an apply.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ApplyReport {
    /// Whether anything was applied. If not, [`waiting_for`](Self::waiting_for) holds the reasons.
    /// If that is empty as well, the kernel is stopping.
    pub applied: bool,
    /// Reports that must arrive before anything is applied. Empty once they have.
    pub waiting_for: Vec<Awaited>,
    /// Everything that is out of sync, including problems that earlier applies reported.
    pub problems: Vec<DataplaneProblem>,
    /// Endpoints whose status changed.
    pub statuses: Vec<StatusChange>,
    /// Families whose policy is not in force, or not known to be. The kernel may hold older policy,
    /// or none.
    pub unenforced: Vec<Family>,
    /// Changed `WireGuard` public keys of this node, which the caller publishes to other nodes;
    /// `None` for a family that no longer has one.
    pub wireguard_keys: Vec<(Family, Option<WireguardKey>)>,
    /// Time from now until the next apply is due even without updates; `None` if no timer runs.
    pub next: Option<Duration>,
}

/// An event that must come before anything is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// [`DesiredUpdate::InSync`](tortie_model::desired::DesiredUpdate::InSync): the datastore has
    /// been read once.
    Datastore,
    /// [`Dataplane::on_links_in_sync`](crate::Dataplane::on_links_in_sync): the interfaces of the
    /// node are known.
    Links,
}

impl ApplyReport {
    /// Returns the report of an apply that did nothing.
    pub(crate) fn waiting(waiting_for: Vec<Awaited>) -> Self {
        Self { waiting_for, ..Self::default() }
    }

    /// Reports whether the kernel holds the whole desired state.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.applied && self.problems.is_empty()
    }

    /// Reports whether policy is in force in all families: no table failed as a whole, and no
    /// family's sets did. Single objects may have failed; a stand-in that denies replaces them.
    #[must_use]
    pub fn enforced(&self) -> bool {
        let whole = |problem: &DataplaneProblem| {
            matches!(problem, DataplaneProblem::Table(_) | DataplaneProblem::IpSetNames { .. })
        };
        self.applied && self.unenforced.is_empty() && !self.problems.iter().any(whole)
    }
}

/// An object that is out of sync, while everything else is in force. [`identity`](Self::identity)
/// is equal for two reports of the same problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataplaneProblem {
    /// A rule of a policy or profile cannot be expressed.
    #[error("{family}")]
    Rule {
        /// Family of the rule.
        family: Family,
        /// The rule and its treatment.
        #[source]
        problem: RuleProblem,
    },
    /// A chain is not in the kernel as desired. A stand-in replaces it: that of a limit beside eBPF
    /// programs lets packets pass, all others deny.
    #[error("{}: {family} table {table}", OwnerList(.owners))]
    Chain {
        /// Its family.
        family: Family,
        /// Its table.
        table: Table,
        /// The defect.
        #[source]
        problem: tortie_iptables::ChainProblem,
        /// Objects that the chain is rendered from; empty for chains that depend on the
        /// configuration only.
        owners: Vec<Owner>,
    },
    /// A chain of a policy or profile allows less than desired, because IP sets are not in the
    /// kernel as desired.
    #[error("{owner}: {family} {}: {reduction}, because of {}", word(*.direction), SetList(.sets))]
    Reduced {
        /// Family of the chain.
        family: Family,
        /// The policy or profile.
        owner: Owner,
        /// Direction of the chain.
        direction: Direction,
        /// The sets.
        sets: Vec<IpSetId>,
        /// The part that is not in force.
        reduction: Reduction,
    },
    /// An iptables table cannot be brought to its desired state; the kernel keeps the previous one.
    #[error(transparent)]
    Table(TableError),
    /// An nftables table cannot be brought to its desired state; the kernel keeps the previous one.
    #[error(transparent)]
    Nftables(tortie_nftables::TableError),
    /// A chain of the table for ARP packets is not in the kernel as desired: the node may answer
    /// requests of a workload for the workload's own address.
    #[error("table arp calico-arp")]
    Arp(#[source] tortie_iptables::ChainProblem),
    /// The kernel refuses the desired content of an nftables set; the set stays as it is.
    #[error("{}: {family}", OwnerList(.users))]
    NftablesSet {
        /// Its family.
        family: Family,
        /// The defect.
        #[source]
        problem: tortie_nftables::SetProblem,
        /// The policies and profiles that use it.
        users: Vec<Owner>,
    },
    /// An IP set does not hold the desired members.
    #[error("{}: {family}", OwnerList(.users))]
    IpSet {
        /// Its family.
        family: Family,
        /// The defect.
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
        /// Output of ipset.
        #[source]
        failure: CommandFailure,
    },
    /// The dataplane received an IP set whose id or members the kernel does not support, or a
    /// change of an unknown set. The valid members are used.
    #[error("IP set {id}")]
    IpSetUpdate {
        /// Id of the set.
        id: IpSetId,
        /// The defect.
        #[source]
        error: UpdateError,
    },
    /// An endpoint cannot be programmed, in whole or in part.
    #[error("{owner}")]
    Endpoint {
        /// The endpoint.
        owner: Owner,
        /// The defect.
        #[source]
        error: EndpointProblem,
    },
    /// A text that is not an address or network; it is left out.
    #[error("{origin}: `{text}` is not an address or network")]
    Network {
        /// Source of the text.
        origin: &'static str,
        /// The text.
        text: String,
    },
    /// The routing table cannot be read.
    #[error("{family} routes cannot be read")]
    Routes {
        /// Its family.
        family: Family,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// A route cannot be added or removed.
    #[error("route {} metric {}", .route.key.destination, .route.key.metric)]
    Route {
        /// The route.
        route: Route,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// Routing rules cannot be read.
    #[error("{family} routing rules cannot be read")]
    RoutingRules {
        /// Their family.
        family: Family,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// A routing rule cannot be added or removed.
    #[error("{} routing rule {} to table {}", .rule.family, .rule.priority, .rule.table.0)]
    RoutingRule {
        /// The rule.
        rule: RoutingRule,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// Neighbour entries cannot be read.
    #[error("{family} neighbours cannot be read")]
    Neighbours {
        /// Their family.
        family: Family,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// A neighbour entry cannot be set.
    #[error("neighbour {}", .neighbour.address)]
    Neighbour {
        /// The entry.
        neighbour: Neighbour,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// The subnets of an interface cannot be read.
    #[error("addresses of {interface} cannot be read")]
    Subnets {
        /// Its name.
        interface: InterfaceName,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// The addresses for which the node answers in its own subnets cannot be listed.
    #[error("{family} addresses that are answered for cannot be listed")]
    ProxyNeighbours {
        /// Their family.
        family: Family,
        /// The defect.
        #[source]
        error: KernelError,
    },
    /// The node does not answer requests for an address in one of its subnets as desired, or did
    /// not announce the address.
    #[error("requests for {} on interface {}", .neighbour.address, .neighbour.interface)]
    ProxyNeighbour {
        /// The address and its interface.
        neighbour: ProxyNeighbour,
        /// The defect.
        #[source]
        error: KernelError,
    },
    /// A tunnel device is out of sync.
    #[error("device {name}")]
    Device {
        /// Its name.
        name: InterfaceName,
        /// The defect.
        #[source]
        error: DeviceProblem,
    },
    /// Forwarding entries of a tunnel device cannot be read.
    #[error("forwarding entries of interface {interface} cannot be read")]
    FdbEntries {
        /// The index of the device.
        interface: u32,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// A forwarding entry of a tunnel device cannot be set or removed.
    #[error("forwarding entry {} to {}", .entry.mac, .entry.destination)]
    FdbEntry {
        /// The entry.
        entry: FdbEntry,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
    /// The conntrack entries of an address's previous owner cannot be deleted; until they are, no
    /// other endpoint gets the address.
    #[error("conntrack entries of {address} cannot be deleted; {}; will retry", WaitingEndpoint(.waiting.as_ref()))]
    Conntrack {
        /// The address.
        address: IpAddr,
        /// The endpoint that waits for it.
        waiting: Option<WorkloadEndpointId>,
        /// The error.
        #[source]
        error: KernelError,
    },
    /// Workloads share a bridge whose internal traffic bypasses netfilter: policy between them is
    /// not in force, and they can spoof each other's addresses.
    #[error("{} policy between workloads that share a bridge is not in force: load br_netfilter and set net.bridge.{} to 1", .0, call_sysctl(*.0))]
    BridgesNotFiltered(Family),
    /// The interfaces of workload addresses cannot be determined; addresses that were found keep
    /// their interfaces.
    #[error("workloads cannot be looked for")]
    WorkloadInterfaces(#[source] KernelError),
    /// A bandwidth limit is not in force, or was not removed.
    #[error("bandwidth of {interface}")]
    Bandwidth {
        /// The workload's interface.
        interface: InterfaceName,
        /// The defect.
        #[source]
        error: BandwidthProblem,
    },
    /// The address that a workload peers with by BGP cannot be set, or was not removed.
    #[error("address for the BGP peer at {interface}")]
    PeerAddress {
        /// The workload's interface.
        interface: InterfaceName,
        /// The kernel's error.
        #[source]
        error: KernelError,
    },
    /// A problem of the eBPF programs that enforce policy, as their owner reported it
    /// ([`Dataplane::set_policy_in_force`](crate::Dataplane::set_policy_in_force)).
    #[error("{0}")]
    Programs(ProgramProblem),
    /// The kernel lacks a subsystem that the configuration or the desired state needs; features
    /// that depend on it are left out.
    #[error("the kernel lacks {subsystem}, needed for {}", .needed_for.join(", "))]
    MissingSubsystem {
        /// The subsystem.
        subsystem: Subsystem,
        /// The features that need it.
        needed_for: Vec<&'static str>,
    },
    /// The learner of DNS answers did not apply all commands: connections to learned addresses may
    /// be denied.
    #[error("members of domain sets")]
    Learner(#[source] LearnerError),
    /// A trusted DNS service does not exist: answers of its servers open nothing.
    #[error("trusted DNS service {0} does not exist")]
    DnsService(NamespacedName),
    /// A sysctl cannot be written.
    #[error("sysctl {path}")]
    Sysctl {
        /// The sysctl.
        path: SysctlPath,
        /// Error of the kernel.
        #[source]
        error: KernelError,
    },
}

impl DataplaneProblem {
    /// Reports whether the kernel deviates from policy while this problem lasts: it denies more
    /// than desired, or keeps the previous state.
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

    /// Reports whether it concerns chains or their sets. These enforce no policy where eBPF
    /// programs do.
    #[must_use]
    pub const fn is_of_chains(&self) -> bool {
        matches!(self, Self::Chain { .. } | Self::Table(_) | Self::Nftables(_) | Self::IpSetNames { .. })
    }
}

/// A problem of the eBPF programs that enforce policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "made by the owner of the programs")]
pub struct ProgramProblem {
    /// The defect and its object; constant for as long as the problem lasts.
    pub object: String,
    /// Reason; may change while the problem lasts.
    pub why: String,
    /// Whether the enforced rules deviate from policy while the problem lasts.
    pub is_degraded: bool,
}

impl fmt::Display for ProgramProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)
    }
}

/// The part of a chain that is not in force because its IP sets are not as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduction {
    /// These rules, counted from 0, which allow or log.
    LeftOut(Vec<usize>),
    /// Sets of domains in these rules, counted from 0, which allow other destinations as before.
    WithoutDomains(Vec<usize>),
    /// All of it: the chain denies everything.
    Closed,
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("everything is denied"),
            Self::LeftOut(rules) => {
                let verb = if rules.len() == 1 { "is" } else { "are" };
                write!(f, "{} {verb} left out", numbered(rules))
            }
            Self::WithoutDomains(rules) => {
                let verb = if rules.len() == 1 { "allows" } else { "allow" };
                write!(f, "{} {verb} no destination by name", numbered(rules))
            }
        }
    }
}

fn numbered(rules: &[usize]) -> String {
    let numbers: Vec<String> = rules.iter().map(ToString::to_string).collect();
    let noun = if rules.len() == 1 { "rule" } else { "rules" };
    format!("{noun} {}", numbers.join(", "))
}

/// Reason why an endpoint cannot be programmed, in whole or in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointProblem {
    /// It has no interface, or an invalid interface name; nothing is programmed.
    #[error("no interface of a usable name is given")]
    NoInterface,
    /// Its interface has the name of a sysctl directory; nothing is programmed.
    #[error("`{0}` cannot be the name of an interface")]
    BadInterface(InterfaceName),
    /// Another endpoint has the same interface; this one waits until the other is removed.
    #[error("interface {interface} belongs to {other}")]
    Shadowed {
        /// The interface.
        interface: InterfaceName,
        /// The endpoint that has it.
        other: WorkloadEndpointId,
    },
    /// Its interface has none of the workload prefixes: it gets neither routes nor sysctls, and no
    /// rule leads to it.
    #[error("interface {0} has none of the prefixes of workload interfaces")]
    ForeignInterface(InterfaceName),
    /// No interface of this node leads to its address; packets from and to the address are denied.
    #[error("no interface of this node leads to {0}, so that its packets are denied")]
    NotFound(IpAddr),
    /// Its address was found on an interface that has none of the workload prefixes. Policy is in
    /// force, but unknown workloads on that interface are not denied.
    #[error(
        "interface {0} has none of the prefixes of workload interfaces, so that unknown workloads there are allowed"
    )]
    UnguardedInterface(InterfaceName),
    /// It uses a feature that is not supported for workloads that are identified by address.
    #[error("{0} has no effect on workloads that are identified by address")]
    WithoutEffect(&'static str),
    /// Its policy would decide about packets of tunnels between nodes, which netfilter chains
    /// accept before policy.
    #[error("its policy must allow packets of tunnels between nodes, because eBPF programs enforce it")]
    TunnelsByPolicy,
    /// The learner of DNS answers has failed to remove the addresses of the former endpoint of its
    /// interface; this one is denied.
    #[error(
        "addresses that the former endpoint of {0} has resolved cannot be removed from domain sets, so that all its packets \
         are denied"
    )]
    Unemptied(InterfaceName),
    /// Another endpoint has the same address; this one waits until the other is removed.
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

/// Reason why a tunnel device is out of sync.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceProblem {
    /// The kernel does not return the current state, or refuses a change of it.
    #[error("{operation}")]
    Kernel {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the kernel.
        #[source]
        error: KernelError,
    },
    /// No interface of this node has the source address of the tunnel packets.
    #[error("no interface has the node's address {0}")]
    NoParent(IpAddr),
    /// A device of another kind has its name; that device is left alone.
    #[error("there is a device of another kind by this name")]
    Foreign,
    /// This node has no tunnel address, or no node address that tunnel packets could leave by.
    #[error("this node has no tunnel address")]
    NoAddress,
}

/// Reason why a bandwidth limit is not in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BandwidthProblem {
    /// The kernel does not return the current state, or refuses a change of it.
    #[error("{operation}")]
    Kernel {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the kernel.
        #[source]
        error: KernelError,
    },
    /// A queueing discipline or filter of another program is on the interface; it stays.
    #[error("another program has `{0}` there, which is left alone")]
    Foreign(String),
}

/// Object of the desired state that a chain or problem belongs to.
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

struct WaitingEndpoint<'a>(Option<&'a WorkloadEndpointId>);

impl fmt::Display for WaitingEndpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "workload endpoint {id} stays unreachable there until they are"),
            None => f.write_str("no endpoint waits for it"),
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

/// Status of an endpoint (`felix/dataplane/linux/endpoint_mgr.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "the three words that status readers know")]
pub enum EndpointStatus {
    /// Policy is in force and the interface can carry traffic.
    Up,
    /// Switched off, or its interface is down or not configured yet.
    Down,
    /// Policy cannot be put in force, or the interface does not exist.
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

/// A changed status; `None` for an endpoint that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are two kinds of endpoint")]
pub enum StatusChange {
    /// Of a workload endpoint.
    Workload(WorkloadEndpointId, Option<EndpointStatus>),
    /// Of a host endpoint.
    Host(HostEndpointName, Option<EndpointStatus>),
}

/// Counters and current sizes of a dataplane, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataplaneStats {
    /// Completed applies.
    pub applies: u64,
    /// Applies that left problems behind (`felix_int_dataplane_failures`).
    pub failed_applies: u64,
    /// Counters of each iptables table.
    pub tables: Vec<(Family, Table, TableStats)>,
    /// Counters of each nftables table.
    pub nftables: Vec<(tortie_nftables::TableId, tortie_nftables::TableStats)>,
    /// Number of desired IP sets (`felix_ipsets_calico`).
    pub ip_sets: Vec<(Family, usize)>,
    /// `ipset` calls (`felix_ipset_calls`).
    pub ipset_calls: u64,
    /// Failed `ipset` calls (`felix_ipset_errors`).
    pub ipset_errors: u64,
    /// Lines passed to `ipset restore` (`felix_ipset_lines_executed`).
    pub ipset_lines: u64,
    /// Number of desired routes (`felix_route_table_num_routes`).
    pub routes: Vec<(Family, usize)>,
    /// Routes added or removed.
    pub route_changes: u64,
    /// Sysctls that another process changed and the dataplane restored (`tortie_sysctls_repaired`).
    pub sysctls_repaired: u64,
}
