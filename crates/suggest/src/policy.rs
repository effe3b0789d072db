//! Suggested policies, before they are written in one of the forms.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_model::{Cidr, Direction};

use crate::labels::PodSelector;
use crate::owner::Owner;
use crate::record::EdgePort;

/// Peer of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Peer {
    /// Pods of a namespace; `None` is the policy's own.
    Pods {
        /// The namespace.
        namespace: Option<Arc<str>>,
        /// Selector of the pods.
        selector: PodSelector,
    },
    /// Addresses.
    Block {
        /// The network.
        net: Cidr,
        /// Parts that do not belong to it, sorted.
        except: Vec<Cidr>,
    },
}

/// Port of a rule with its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "there are no other attributes")]
pub struct RulePort {
    /// Number of the protocol.
    pub protocol: u8,
    /// The port.
    pub port: EdgePort,
}

/// Remark on a peer or port of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Mark {
    /// A single connection was seen.
    SeenOnce,
    /// All connections were on one day, and the record has more.
    OneDay,
    /// The flows had no replies.
    OneWay,
    /// The network stands for so many addresses.
    Widened(usize),
    /// Nothing was seen; it is the companion of another port.
    NotSeen,
}

/// An allow rule: all its peers at all its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuggestedRule {
    /// The peers, with the remarks that hold at all ports.
    pub peers: BTreeMap<Peer, BTreeSet<Mark>>,
    /// The ports; a remark holds for all peers.
    pub ports: BTreeMap<RulePort, BTreeSet<Mark>>,
}

/// A policy for the pods of an owner, or of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuggestedPolicy {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The owner; `None` for a policy of a whole namespace.
    pub owner: Option<Owner>,
    /// Selector of its pods.
    pub selector: PodSelector,
    /// Rules for traffic to the pods; `None` if the policy does not isolate this direction.
    pub ingress: Option<Vec<SuggestedRule>>,
    /// Rules for traffic from the pods.
    pub egress: Option<Vec<SuggestedRule>>,
}

impl SuggestedPolicy {
    /// Returns the rules of a direction.
    #[must_use]
    pub fn rules(&self, direction: Direction) -> Option<&[SuggestedRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// A peer at a port, with its remarks.
pub(crate) type Openings = BTreeMap<RulePort, BTreeMap<Peer, BTreeSet<Mark>>>;

/// Groups openings to rules: ports with equal peers are one rule. The rules allow exactly the
/// openings.
pub(crate) fn grouped(openings: &Openings) -> Vec<SuggestedRule> {
    let mut by_peers: BTreeMap<Vec<&Peer>, Vec<RulePort>> = BTreeMap::new();
    for (port, peers) in openings {
        by_peers.entry(peers.keys().collect()).or_default().push(*port);
    }
    let mut rules: Vec<SuggestedRule> = by_peers
        .into_iter()
        .map(|(peers, ports)| {
            let marks = |port: &RulePort, peer: &Peer| {
                openings.get(port).and_then(|peers| peers.get(peer)).cloned().unwrap_or_default()
            };
            let of_port = |port: &RulePort| common(peers.iter().map(|peer| marks(port, peer)), Mark::is_of_port);
            let of_peer = |peer: &Peer| common(ports.iter().map(|port| marks(port, peer)), |mark| !mark.is_of_port());
            SuggestedRule {
                peers: peers.iter().map(|peer| ((*peer).clone(), of_peer(peer))).collect(),
                ports: ports.iter().map(|port| (*port, of_port(port))).collect(),
            }
        })
        .collect();
    rules.sort_by(|a, b| a.ports.keys().cmp(b.ports.keys()));
    rules
}

impl Mark {
    fn is_of_port(&self) -> bool {
        *self == Self::NotSeen
    }
}

/// Returns the remarks of some kind that all sets have.
fn common(sets: impl Iterator<Item = BTreeSet<Mark>>, keep: impl Fn(&Mark) -> bool) -> BTreeSet<Mark> {
    let all = sets.reduce(|all, one| &all & &one).unwrap_or_default();
    all.into_iter().filter(keep).collect()
}
