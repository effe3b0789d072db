use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tortie_datastore::chance;
use tortie_datastore::kubernetes::{KubeConfig, ServiceEndpoint, ServiceEndpoints};
use tortie_fanout::DiscoveryError;
use tortie_fanout::server::Server;

use super::{Failure, with_causes};
use crate::servers::{Candidate, FindServers};

/// Name of the Service's port (`typha/pkg/discovery`).
const PORT_NAME: &str = "calico-typha";

/// Interval between counts of the servers (`K8sServicePollIntervalSecs`).
const POLL: Duration = Duration::from_secs(30);

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

#[derive(Debug, PartialEq, Eq)]
enum ServerCount {
    Servers(usize),
    Failed(String),
}

/// Counts the servers on a background thread, and passes the number to `server`, one of them, as
/// long as it exists (`typha/pkg/k8s`, `PollK8sForConnectionLimit`).
pub(super) fn count_servers(namespace: &str, service: &str, server: &Arc<Server>) -> Result<(), Failure> {
    let endpoints = ServiceEndpoints::new(KubeConfig::usual(), namespace, service, PORT_NAME);
    let endpoints = endpoints.map_err(Failure::io("the client of the API server"))?;
    let service = format!("{namespace}/{service}");
    let server = Arc::downgrade(server);
    let mut known = None;
    let mut count = move || {
        let Some(server) = server.upgrade() else { return false };
        let counted = match endpoints.list() {
            Ok(endpoints) => ServerCount::Servers(endpoints.len()),
            Err(error) => ServerCount::Failed(with_causes(&error)),
        };
        if known.as_ref() != Some(&counted) {
            match &counted {
                ServerCount::Servers(servers) => tracing::info!(service, servers, "counted the servers of the fan-out"),
                ServerCount::Failed(error) => {
                    tracing::warn!(service, error, "the servers of the fan-out cannot be counted");
                }
            }
        }
        // While the count is unknown, no client is sent elsewhere: there may be no other server.
        server.set_servers(match counted {
            ServerCount::Servers(servers) => servers,
            ServerCount::Failed(_) => 1,
        });
        known = Some(counted);
        true
    };
    let poll = move || {
        while count() {
            thread::sleep(POLL);
        }
    };
    thread::Builder::new().name("service".into()).spawn(poll).map_err(Failure::io("a thread"))?;
    Ok(())
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
