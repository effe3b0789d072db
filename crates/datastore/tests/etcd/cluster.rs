//! Clusters for tests, and how to connect to them.

use std::time::Duration;

use tortie_datastore::store::etcd::{EtcdConfig, EtcdPace};
use tortie_lab::etcd::{Etcd, EtcdOptions};
use tortie_resources::stored::{ResourceKey, ResourceKind};

/// Everything ten times as fast as in earnest.
pub(crate) const PACE: EtcdPace = EtcdPace {
    connect: Duration::from_secs(2),
    request: Duration::from_secs(2),
    keep_alive: Duration::from_millis(300),
    keep_alive_answer: Duration::from_millis(500),
    shortest_pause: Duration::from_millis(20),
    longest_pause: Duration::from_millis(200),
};

pub(crate) fn config(url: &str) -> EtcdConfig {
    EtcdConfig { pace: PACE, ..url.parse().expect("a URL") }
}

pub(crate) fn start(options: EtcdOptions) -> Etcd {
    Etcd::start(options).expect("etcd, from Debian's etcd-server")
}

pub(crate) fn one() -> Etcd {
    start(EtcdOptions::default())
}

pub(crate) fn tls(etcd: &Etcd) -> EtcdConfig {
    let certificates = etcd.certificates().expect("certificates");
    EtcdConfig {
        ca_file: Some(certificates.ca.clone()),
        cert_file: Some(certificates.client.clone()),
        key_file: Some(certificates.client_key.clone()),
        ..config(&etcd.url())
    }
}

pub(crate) fn tier(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Tier, "", name).expect("a key")
}
