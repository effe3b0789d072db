//! Number of the servers of a fan-out.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tortie_cli::typha_service::PORT_NAME;
use tortie_cli::{Failure, with_causes};
use tortie_datastore::kubernetes::{KubeConfig, ServiceEndpoints};
use tortie_fanout::server::Server;

/// Interval between counts of the servers (`K8sServicePollIntervalSecs`).
const POLL: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Eq)]
enum ServerCount {
    Servers(usize),
    Failed(String),
}

/// Counts the servers on a background thread, and passes the number to `server`, one of them, as
/// long as it exists (`typha/pkg/k8s`, `PollK8sForConnectionLimit`).
pub(super) fn follow(namespace: &str, service: &str, server: &Arc<Server>) -> Result<(), Failure> {
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
