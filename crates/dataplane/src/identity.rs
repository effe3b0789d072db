//! Identity of a problem, for comparison between applies.

use std::fmt;

use tortie_ipsets::SetError;
use tortie_iptables::{ChainProblem, Table, TableError};
use tortie_model::Family;

use crate::report::{DataplaneProblem, word};

/// The defect and its object, without counters, times and output of programs. The identity stays
/// the same for as long as the problem lasts, while its text may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProblemIdentity {
    kind: &'static str,
    object: String,
}

impl ProblemIdentity {
    fn new(kind: &'static str, object: impl fmt::Display) -> Self {
        Self { kind, object: object.to_string() }
    }

    /// Returns the defect.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the object that has the defect.
    #[must_use]
    pub fn object(&self) -> &str {
        &self.object
    }
}

impl fmt::Display for ProblemIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.object)
    }
}

impl DataplaneProblem {
    /// Returns the identity of the problem.
    #[must_use]
    pub fn identity(&self) -> ProblemIdentity {
        let (kind, object) = match self {
            Self::Rule { family, problem } => {
                ("rule cannot be expressed", format!("{family} {} rule {}", problem.owner, rule(problem)))
            }
            Self::Chain { family, table, problem, .. } => return chain_identity(*family, *table, problem),
            Self::Reduced { family, owner, direction, .. } => {
                ("policy reduced for want of IP sets", format!("{family} {owner} {}", word(*direction)))
            }
            Self::Table(error) => return table_identity(error),
            Self::Nftables(error) => return nftables_identity(error),
            Self::Arp(problem) => return arp_identity(problem),
            Self::NftablesSet { family, problem, .. } => {
                ("IP set cannot be written", format!("{family} IP set {}", problem.id))
            }
            Self::IpSet { family, failure, .. } => {
                let is_overfull = matches!(failure.error, SetError::TooManyMembers { .. });
                let kind = if is_overfull { "IP set overfull" } else { "IP set cannot be written" };
                (kind, format!("{family} IP set {}", failure.id))
            }
            Self::IpSetNames { family, .. } => ("IP sets cannot be listed", family.to_string()),
            Self::IpSetUpdate { id, .. } => ("IP set update cannot be used", id.to_string()),
            Self::Endpoint { owner, error } => ("endpoint cannot be programmed", format!("{owner}: {error}")),
            Self::Network { origin, text } => ("not a network", format!("{origin}: {text}")),
            Self::Routes { family, .. } => ("routes cannot be read", family.to_string()),
            Self::Route { route, .. } => {
                ("route cannot be changed", format!("{} metric {}", route.key.destination, route.key.metric))
            }
            Self::RoutingRules { family, .. } => ("routing rules cannot be read", family.to_string()),
            Self::RoutingRule { rule, .. } => (
                "routing rule cannot be changed",
                format!("{} {} to table {}", rule.family, rule.priority, rule.table.0),
            ),
            Self::Neighbours { family, .. } => ("neighbours cannot be read", family.to_string()),
            Self::Neighbour { neighbour, .. } => {
                ("neighbour cannot be set", format!("{} on interface {}", neighbour.address, neighbour.interface))
            }
            Self::Subnets { interface, .. } => ("addresses cannot be read", interface.to_string()),
            Self::ProxyNeighbours { family, .. } => ("answered addresses cannot be listed", family.to_string()),
            Self::ProxyNeighbour { neighbour, .. } => (
                "requests for address not answered",
                format!("{} on interface {}", neighbour.address, neighbour.interface),
            ),
            Self::Device { name, .. } => ("device out of sync", name.to_string()),
            Self::FdbEntries { interface, .. } => {
                ("forwarding entries cannot be read", format!("interface {interface}"))
            }
            Self::FdbEntry { entry, .. } => {
                ("forwarding entry cannot be changed", format!("{} on interface {}", entry.mac, entry.interface))
            }
            Self::Conntrack { address, .. } => ("conntrack entries cannot be deleted", address.to_string()),
            Self::BridgesNotFiltered(family) => ("bridges without policy", family.to_string()),
            Self::Bandwidth { interface, .. } => ("bandwidth not limited as wanted", interface.to_string()),
            Self::PeerAddress { interface, .. } => ("address for BGP peer out of sync", interface.to_string()),
            Self::WorkloadInterfaces(_) => ("workloads cannot be looked for", String::new()),
            Self::Programs(problem) => ("eBPF programs", problem.object.clone()),
            Self::MissingSubsystem { subsystem, .. } => ("subsystem missing", subsystem.to_string()),
            Self::Learner(_) => ("learner of DNS answers out of sync", String::new()),
            Self::DnsService(service) => ("trusted DNS service missing", service.to_string()),
            Self::Sysctl { path, .. } => ("sysctl cannot be written", path.to_string()),
        };
        ProblemIdentity::new(kind, object)
    }
}

fn rule(problem: &tortie_rules::RuleProblem) -> String {
    format!("{} {}", word(problem.direction), problem.index)
}

fn chain_identity(family: Family, table: Table, problem: &ChainProblem) -> ProblemIdentity {
    let (kind, chain) = match problem {
        ChainProblem::Undefined { chain } => ("chain not defined", chain),
        ChainProblem::Refused { chain, .. } => ("chain refused", chain),
        ChainProblem::OverBudget { chain, .. } => ("chain over the table budget", chain),
        ChainProblem::Undeletable { chain, .. } => ("chain cannot be deleted", chain),
        ChainProblem::WrongOwner { chain } => ("chain not ours", chain),
        other => return ProblemIdentity::new("chain", other),
    };
    ProblemIdentity::new(kind, format_args!("{family} table {table} chain {chain}"))
}

fn arp_identity(problem: &ChainProblem) -> ProblemIdentity {
    match problem {
        ChainProblem::Refused { chain, .. } => {
            let table = tortie_nftables::TableId::CALICO_ARP;
            ProblemIdentity::new("chain refused", format_args!("table {table} chain {chain}"))
        }
        other => ProblemIdentity::new("chain", other),
    }
}

fn nftables_identity(error: &tortie_nftables::TableError) -> ProblemIdentity {
    let (kind, table) = match error {
        tortie_nftables::TableError::Read { table, .. } => ("table cannot be read", table),
        tortie_nftables::TableError::Write { table, .. } => ("table cannot be written", table),
        other => return ProblemIdentity::new("table", other),
    };
    ProblemIdentity::new(kind, format_args!("nftables table {table}"))
}

fn table_identity(error: &TableError) -> ProblemIdentity {
    match error {
        TableError::Save { table, family, .. } => {
            ProblemIdentity::new("table cannot be read", format_args!("{family} table {table}"))
        }
        TableError::Restore { table, family, .. } => {
            ProblemIdentity::new("table cannot be written", format_args!("{family} table {table}"))
        }
        TableError::Refused { table, family, chain, .. } => {
            ProblemIdentity::new("chain refused", format_args!("{family} table {table} chain {chain}"))
        }
        TableError::Undefined { table, family, chain } => {
            ProblemIdentity::new("chain not defined", format_args!("{family} table {table} chain {chain}"))
        }
        other => ProblemIdentity::new("table", other),
    }
}

#[cfg(test)]
mod tests;
