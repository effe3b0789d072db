//! Choice of the node that answers for an address of a load balancer: a consistent hash ring, which
//! is the same on every node (Calico's `lib/datastructures/hashring`).

use std::collections::BTreeSet;

use tortie_model::Hostname;
use twox_hash::XxHash3_64;

/// Number of points of each node on the ring.
const POINTS: u32 = 100;

/// Nodes that may answer. The ring is built on first use.
#[derive(Debug, Default)]
pub(super) struct NodeRing {
    nodes: BTreeSet<Hostname>,
    points: Option<BTreeSet<(u64, Hostname)>>,
}

impl NodeRing {
    /// Adds a node. Returns whether it is new.
    pub(super) fn insert(&mut self, node: &Hostname) -> bool {
        let is_new = self.nodes.insert(node.clone());
        if let Some(points) = self.points.as_mut().filter(|_| is_new) {
            points.extend(points_of(node));
        }
        is_new
    }

    /// Removes a node. Returns whether it was present.
    pub(super) fn remove(&mut self, node: &Hostname) -> bool {
        let was_there = self.nodes.remove(node);
        if let Some(points) = self.points.as_mut().filter(|_| was_there) {
            points_of(node).for_each(|point| {
                points.remove(&point);
            });
        }
        was_there
    }

    /// Returns the node that answers for an address, given its spelling; `None` without nodes.
    pub(super) fn owner(&mut self, address: &str) -> Option<&Hostname> {
        let Self { nodes, points } = self;
        let points = points.get_or_insert_with(|| nodes.iter().flat_map(points_of).collect());
        let from = (point(address, 0), Hostname::from(""));
        points.range(from..).next().or_else(|| points.first()).map(|(_, node)| node)
    }
}

fn points_of(node: &Hostname) -> impl Iterator<Item = (u64, Hostname)> {
    (0..POINTS).map(|number| (point(node.as_str(), number), node.clone()))
}

fn point(name: &str, number: u32) -> u64 {
    let mut bytes = Vec::with_capacity(name.len() + 5);
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&number.to_le_bytes());
    XxHash3_64::oneshot(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from a sort of all points, hashed with the reference implementation
    /// of xxHash.
    #[test]
    fn owners_are_those_of_the_original() {
        let long = "x".repeat(253);
        let mut ring = NodeRing::default();
        let others = ["ip-10-0-17-4.eu-central-1.compute.internal", long.as_str()];
        // Some nodes join before the ring is built, the others after, and two leave again.
        for name in ["node-0", "node-1", "gone-1", "node-2"] {
            assert!(ring.insert(&name.into()));
        }
        assert!(ring.owner("10.0.0.1").is_some());
        for name in ["node-3", "node-4", "gone-2"].into_iter().chain(others) {
            assert!(ring.insert(&name.into()) && !ring.insert(&name.into()));
        }
        for name in ["gone-1", "gone-2"] {
            assert!(ring.remove(&name.into()) && !ring.remove(&name.into()));
        }
        let known = [
            ("10.0.0.0", "node-2"),
            ("10.0.0.1", others[0]),
            ("10.0.0.2", others[0]),
            ("10.0.0.3", "node-4"),
            ("10.0.0.4", others[1]),
            ("10.0.0.5", "node-0"),
            ("10.0.0.6", "node-2"),
            ("10.0.0.7", "node-1"),
            ("fd00::0", "node-2"),
            ("fd00::1", "node-3"),
            ("fd00::2", "node-1"),
            ("fd00::5", others[1]),
            ("192.168.100.200", others[0]),
        ];
        for (address, wanted) in known {
            assert_eq!(ring.owner(address).map(Hostname::as_str), Some(wanted), "{address}");
        }
        assert_eq!(NodeRing::default().owner("10.0.0.1"), None);
    }
}
