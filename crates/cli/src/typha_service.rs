//! Typhas behind a Service of Kubernetes.

use tortie_datastore::chance;
use tortie_datastore::kubernetes::{KubeConfig, ServiceEndpoint, ServiceEndpoints};
use tortie_fanout::DiscoveryError;

use super::Failure;
use crate::servers::{Candidate, FindServers};

/// Name of the port of a Service of Typhas (`typha/pkg/discovery`).
pub const PORT_NAME: &str = "calico-typha";

/// Finds the Typhas behind a Service, those on this node first (`typha/pkg/discovery`).
#[derive(Debug)]
pub(super) struct TyphaService {
    endpoints: ServiceEndpoints,
    name: String,
    node: String,
}

impl TyphaService {
    /// Does not connect yet.
    pub(super) fn new(namespace: &str, service: &str, node: &str) -> Result<Self, Failure> {
        let endpoints = ServiceEndpoints::new(KubeConfig::usual(), namespace, service, PORT_NAME);
        let endpoints = endpoints.map_err(Failure::io("the client of the API server"))?;
        Ok(Self { endpoints, name: format!("{namespace}/{service}"), node: node.to_owned() })
    }
}

impl FindServers for TyphaService {
    fn find(&self) -> Result<Vec<Candidate>, DiscoveryError> {
        let endpoints = self.endpoints.list().map_err(|error| DiscoveryError::Unknown {
            place: format!("endpoints of Service {}", self.name),
            source: error.into(),
        })?;
        let servers = in_order(endpoints, &self.node, chance);
        if servers.is_empty() {
            return Err(DiscoveryError::NoServer { place: format!("Service {}", self.name) });
        }
        Ok(servers)
    }
}

/// Returns the ready endpoints in random order, those of this node first.
fn in_order(mut endpoints: Vec<ServiceEndpoint>, node: &str, random: impl Fn() -> f64) -> Vec<Candidate> {
    endpoints.retain(|endpoint| endpoint.ready);
    endpoints.sort_by_cached_key(|endpoint| {
        let is_remote = endpoint.node.as_deref() != Some(node);
        (is_remote, random().to_bits())
    });
    let candidate =
        |endpoint: ServiceEndpoint| Candidate { address: endpoint.address.to_string(), node: endpoint.node };
    endpoints.into_iter().map(candidate).collect()
}
