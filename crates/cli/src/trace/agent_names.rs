//! Names that endpoints of this node have resolved, from its agent.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, json};
use tortie_analysis::trace::EnforcementPoint;
use tortie_model::{DomainName, Hostname};
use tortie_node::local_api::{Client, ClientError, EndpointDomains, LearnedDomains, Status};

use crate::with_causes;

/// Answers of the agent of this node, each asked for once.
pub(super) struct AgentNames {
    socket: PathBuf,
    /// The agent's node; `None` until it is asked for.
    node: Option<Option<String>>,
    known: HashMap<(String, IpAddr), Option<Arc<[DomainName]>>>,
}

impl AgentNames {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, node: None, known: HashMap::new() }
    }

    /// Returns the names by which an endpoint knows an address; `None` if no agent of its node
    /// answers here.
    pub(super) fn names(
        &mut self,
        node: &Hostname,
        endpoint: &EnforcementPoint,
        address: IpAddr,
    ) -> Option<Arc<[DomainName]>> {
        let id = match endpoint {
            EnforcementPoint::Workload(id) | EnforcementPoint::WorkloadToHost(id) => id.to_string(),
            EnforcementPoint::Host(name, _) => name.to_string(),
            _ => return None,
        };
        let socket = &self.socket;
        let agent = self.node.get_or_insert_with(|| note(node_of(socket)).flatten());
        if agent.as_deref() != Some(node.as_str()) {
            return None;
        }
        let key = (id, address);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let names = note(ask(socket, &key.0, address));
        self.known.insert(key, names.clone());
        names
    }
}

/// Returns the node of the agent; `None` if none runs.
fn node_of(socket: &std::path::Path) -> Result<Option<String>, ClientError> {
    let mut client = match Client::connect(socket) {
        Err(ClientError::NoAgent { .. } | ClientError::Denied { .. }) => return Ok(None),
        client => client?,
    };
    client.call::<Status>("Status", Map::new()).map(|status| Some(status.node))
}

/// An endpoint that does not learn has no names.
fn ask(socket: &std::path::Path, endpoint: &str, address: IpAddr) -> Result<Arc<[DomainName]>, ClientError> {
    let parameters = [("name", json!(endpoint)), ("address", json!(address.to_string()))];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    let found: LearnedDomains = Client::connect(socket)?.call("Domains", parameters)?;
    let names = found.endpoints.iter().flat_map(|EndpointDomains { names, .. }| names);
    // The agent has parsed each of them.
    Ok(names.filter_map(|domain| domain.name.parse().ok()).collect())
}

/// Without an answer the verdict is printed for both cases.
fn note<T>(answer: Result<T, ClientError>) -> Option<T> {
    answer.inspect_err(|error| eprintln!("names that endpoints have resolved: {}", with_causes(error))).ok()
}
