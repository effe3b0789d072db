//! Learned names of endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tortie_learner::{DnsLookup, LearnedName, LookupError, LookupQuery, Scope};

use crate::engine::inspect::{Endpoint, IpSet};

/// Largest number of addresses in one answer.
const MOST: usize = 10_000;
/// Timeout of an endpoint's names.
const PATIENCE: Duration = Duration::from_secs(2);

/// Names that endpoints have learned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedDomains {
    /// Learning endpoints, also those without a name.
    pub endpoints: Vec<EndpointDomains>,
    /// Number of further addresses beyond the bound of an answer, 10,000.
    pub left_out: usize,
}

/// Names that an endpoint has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointDomains {
    /// `workload`, or `host` for the host itself.
    pub kind: String,
    /// `NAMESPACE/POD` for pods, the node's name for the host.
    pub name: String,
    /// `ORCHESTRATOR/WORKLOAD/ENDPOINT`, the node's name for the host.
    pub id: String,
    /// Names in order.
    pub names: Vec<Domain>,
}

/// A learned name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The name.
    pub name: String,
    /// Its addresses in order.
    pub addresses: Vec<DomainAddress>,
    /// Domain sets of the endpoint that match the name.
    pub sets: Vec<String>,
    /// Policies with these sets.
    pub policies: Vec<String>,
    /// The beginning of the name that a rule of the endpoint matches, if none matches the name: the
    /// rest may be a search suffix.
    pub near_miss: Option<String>,
}

/// An address of a learned name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainAddress {
    /// The address.
    pub address: String,
    /// Rest of its lifetime, in whole seconds.
    pub remaining_seconds: u64,
}

/// Returns the names that these endpoints have learned, or only those with an address.
pub(super) fn learned(
    lookup: &DnsLookup,
    node: &str,
    (endpoints, sets): (&[Endpoint], &[IpSet]),
    address: Option<IpAddr>,
) -> Result<LearnedDomains, LookupError> {
    let users: BTreeMap<&str, &[String]> = sets.iter().map(|set| (&*set.id, &*set.users)).collect();
    let mut found = LearnedDomains::default();
    let mut seen = BTreeSet::new();
    let mut room = MOST;
    for endpoint in endpoints {
        let Some(scope) = scope_of(endpoint).filter(|scope| seen.insert(*scope)) else { continue };
        let Some(learned) = lookup.names(LookupQuery { scope, address, limit: room }, PATIENCE)? else { continue };
        room -= learned.names.iter().map(|name| name.addresses.len()).sum::<usize>().min(room);
        found.left_out += learned.left_out;
        let names = learned.names.into_iter().map(|name| domain(name, &users)).collect();
        let (kind, name, id) = match scope {
            Scope::Host => ("host", node, node),
            Scope::Interface(_) => ("workload", &*endpoint.name, &*endpoint.id),
        };
        found.endpoints.push(EndpointDomains { kind: kind.into(), name: name.into(), id: id.into(), names });
    }
    Ok(found)
}

/// Returns the scope that learns for an endpoint: all host endpoints are the host.
fn scope_of(endpoint: &Endpoint) -> Option<Scope> {
    match endpoint.kind.as_str() {
        "host" => Some(Scope::Host),
        _ => endpoint.interface.as_deref()?.parse().ok().map(Scope::Interface),
    }
}

fn domain(learned: LearnedName, users: &BTreeMap<&str, &[String]>) -> Domain {
    let policies = learned.sets.iter().filter_map(|set| users.get(set.as_str())).copied().flatten();
    let policies: BTreeSet<&String> = policies.collect();
    let address = |(address, remaining): (IpAddr, Duration)| DomainAddress {
        address: address.to_string(),
        remaining_seconds: remaining.as_secs(),
    };
    Domain {
        name: learned.name.to_string(),
        addresses: learned.addresses.into_iter().map(address).collect(),
        sets: learned.sets.iter().map(ToString::to_string).collect(),
        policies: policies.into_iter().cloned().collect(),
        near_miss: learned.near_miss.map(|name| name.to_string()),
    }
}
