//! The API server of Kubernetes as a datastore, against one that misbehaves.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "the tests run a server, and end if that fails")]

mod client;
mod documented_kinds;
mod reflector;
mod source;
mod store;
mod suite;
#[path = "../support/syncer_reader.rs"]
mod syncer_reader;
mod syncers;

use std::time::Duration;

use tortie_datastore::kubernetes::{Client, KubeConfig, Timing};
use tortie_lab::apiserver::ApiServer;

fn client(server: &ApiServer) -> Client {
    Client::new(KubeConfig::file(server.kubeconfig())).expect("a thread")
}

/// As patient as a test can be.
fn timing() -> Timing {
    Timing {
        page: 7,
        watch: Duration::from_secs(60),
        idle: Duration::from_secs(60),
        resync: Duration::from_millis(20),
        poll: Duration::from_millis(50),
        retry: (Duration::from_millis(10), Duration::from_millis(100)),
        missing: (Duration::from_millis(50), Duration::from_millis(100)),
    }
}
