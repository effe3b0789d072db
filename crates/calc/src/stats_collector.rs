//! Counts of the cluster's objects (`felix/calc/stats_collector.go`).

use ahash::{AHashMap, AHashSet};
use tortie_model::Hostname;

/// Endpoints and nodes of the whole cluster, counted incrementally.
#[derive(Debug, Default)]
pub(crate) struct StatsCollector {
    pub(crate) workload_endpoints: usize,
    pub(crate) host_endpoints: usize,
    nodes: AHashSet<Hostname>,
    /// Number of nodes and endpoints that name each host.
    mentions: AHashMap<Box<str>, usize>,
}

impl StatsCollector {
    /// Returns the number of different hosts that are named.
    pub(crate) fn hosts(&self) -> usize {
        self.mentions.len()
    }

    pub(crate) fn mentions(&self, host: &str) -> bool {
        self.mentions.contains_key(host)
    }

    /// Returns the named hosts, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.mentions.keys().map(|host| &**host)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.workload_endpoints == 0 && self.host_endpoints == 0 && self.mentions.is_empty() && self.nodes.is_empty()
    }

    pub(crate) fn workload_came(&mut self, host: &str) {
        self.workload_endpoints += 1;
        self.mention(host);
    }

    pub(crate) fn workload_went(&mut self, host: &str) {
        self.workload_endpoints -= 1;
        self.forget(host);
    }

    pub(crate) fn host_endpoint_came(&mut self, host: &str) {
        self.host_endpoints += 1;
        self.mention(host);
    }

    pub(crate) fn host_endpoint_went(&mut self, host: &str) {
        self.host_endpoints -= 1;
        self.forget(host);
    }

    /// Records whether a node exists; repetitions are harmless.
    pub(crate) fn node(&mut self, name: &Hostname, exists: bool) {
        if exists && self.nodes.insert(name.clone()) {
            self.mention(name.as_str());
        } else if !exists && self.nodes.remove(name) {
            self.forget(name.as_str());
        }
    }

    fn mention(&mut self, host: &str) {
        match self.mentions.get_mut(host) {
            Some(count) => *count += 1,
            None => {
                self.mentions.insert(host.into(), 1);
            }
        }
    }

    fn forget(&mut self, host: &str) {
        if let Some(count) = self.mentions.get_mut(host) {
            *count -= 1;
            if *count == 0 {
                self.mentions.remove(host);
            }
        }
    }
}
