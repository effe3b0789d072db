//! The BGP peers of this node that are workloads on it (`felix/calc/active_bpgpeer_calculator.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::{BgpPeer, Hostname, Labels, Node, PeerNodes};
use tortie_selector::Selector;

/// See the module.
#[derive(Debug)]
pub(super) struct BgpPeers {
    hostname: Hostname,
    node_labels: Option<Labels>,
    peers: BTreeMap<Arc<str>, Arc<BgpPeer>>,
}

impl BgpPeers {
    pub(super) fn new(hostname: Hostname) -> Self {
        Self { hostname, node_labels: None, peers: BTreeMap::new() }
    }

    /// Records a peer; `None` removes it. Returns the selector of its workloads, if any.
    pub(super) fn on_peer(&mut self, name: &Arc<str>, peer: Option<Arc<BgpPeer>>) -> Option<Selector> {
        match peer {
            Some(peer) => {
                let workloads = self.workloads(&peer);
                self.peers.insert(Arc::clone(name), peer);
                workloads
            }
            None => {
                self.peers.remove(name);
                None
            }
        }
    }

    /// Records a node; `None` removes it. If this node's labels have changed, returns the selector
    /// of workloads for each peer.
    pub(super) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) -> Vec<(Arc<str>, Option<Selector>)> {
        let labels = node.map(|node| &node.labels);
        if *name != self.hostname || labels == self.node_labels.as_ref() {
            return Vec::new();
        }
        self.node_labels = labels.cloned();
        self.peers.iter().map(|(name, peer)| (Arc::clone(name), self.workloads(peer))).collect()
    }

    /// Returns the selector of the peer's workloads, if the peer belongs to this node. An unknown
    /// node has no labels, and can be selected for that.
    fn workloads(&self, peer: &BgpPeer) -> Option<Selector> {
        let is_ours = match &peer.nodes {
            PeerNodes::Named(name) => *name == self.hostname,
            PeerNodes::Selected(selector) => match &self.node_labels {
                Some(labels) => selector.matches(labels),
                None => selector.matches(&Labels::default()),
            },
            PeerNodes::Nobody => false,
        };
        peer.local_workloads.clone().filter(|_| is_ours)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.node_labels.is_none()
    }
}
