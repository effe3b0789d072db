//! Next step before a connection, derived from the known facts. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tortie_cli::servers::Candidate;

/// The keys of a device, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceKeys {
    /// Its own; `None` if there is no device, or none with a key.
    pub(super) own: Option<String>,
    /// Those of its peers.
    pub(super) peers: BTreeSet<String>,
}

/// A key in the datastore: empty if there is none, an error if it cannot be read.
pub(super) type PublishedKey = Result<String, Unreadable>;

/// Marker for a requested value that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// Known facts about one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// This node's name.
    pub(super) node: String,
    /// Whether this node is to encrypt; `None` if the datastore's part of the configuration is
    /// unknown and the node's own does not enable encryption.
    pub(super) is_enabled: Option<bool>,
    /// Whether traffic between the nodes themselves is encrypted.
    pub(super) encrypts_hosts: bool,
    /// Whether no server has been connected to since the start, or since the engine released the
    /// kernel.
    pub(super) is_start: bool,
    /// Whether no server has been connected for so long that encryption may be the reason.
    pub(super) is_cut_off: bool,
    /// The servers that are addressed in this family.
    pub(super) candidates: Vec<Candidate>,
    /// The device; `None` if it has not been read.
    pub(super) device: Option<DeviceKeys>,
    /// This node's key in the datastore; `None` if it has not been read.
    pub(super) own_key: Option<PublishedKey>,
    /// The keys of other nodes in the datastore that have been read.
    pub(super) node_keys: BTreeMap<String, PublishedKey>,
}

/// Next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the device.
    ReadDevice,
    /// Read this node's key in the datastore.
    ReadOwnKey,
    /// Read the keys of these nodes in the datastore.
    ReadKeysOf(BTreeSet<String>),
    /// Connect to any of these.
    Connect(Vec<Candidate>),
    /// Remove device and published key, so that no node encrypts to this one; then connect to any
    /// server.
    Remove(Reason),
}

/// Reason for the removal of device and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// This node is not to encrypt.
    NotEnabled,
    /// There is no device, or it has no key or no peers.
    NoDevice,
    /// The published key is not that of the device.
    OtherKey,
    /// Each server is on a node whose key the device does not know.
    NoServer,
    /// No server could be reached for a long time.
    CutOff,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotEnabled => "it is not enabled",
            Self::NoDevice => "its device has no key or no peers",
            Self::OtherKey => "the datastore has another key than the device",
            Self::NoServer => "all servers are on nodes that encrypt with keys the device does not know",
            Self::CutOff => "no server could be reached for a long time",
        })
    }
}

impl Facts {
    pub(super) fn next(&self) -> Step {
        let all = || Step::Connect(self.candidates.clone());
        let repair = |reason| if self.is_start { Step::Remove(reason) } else { all() };
        match self.is_enabled {
            None => return all(),
            Some(false) => return repair(Reason::NotEnabled),
            Some(true) if !self.encrypts_hosts => return all(),
            Some(true) => {}
        }
        if self.is_cut_off {
            return Step::Remove(Reason::CutOff);
        }
        let Some(device) = &self.device else { return Step::ReadDevice };
        let Some(own) = device.own.as_ref().filter(|_| !device.peers.is_empty()) else {
            return repair(Reason::NoDevice);
        };
        match &self.own_key {
            None => return Step::ReadOwnKey,
            Some(Err(Unreadable)) => return all(),
            Some(Ok(key)) if key != own => return repair(Reason::OtherKey),
            Some(Ok(_)) => {}
        }
        let unknown: BTreeSet<String> =
            self.remote_nodes().filter(|node| !self.node_keys.contains_key(*node)).cloned().collect();
        if !unknown.is_empty() {
            return Step::ReadKeysOf(unknown);
        }
        let reachable: Vec<Candidate> =
            self.candidates.iter().filter(|candidate| self.is_reachable(candidate, device)).cloned().collect();
        if reachable.is_empty() && !self.candidates.is_empty() {
            return Step::Remove(Reason::NoServer);
        }
        Step::Connect(reachable)
    }

    fn remote_nodes(&self) -> impl Iterator<Item = &String> {
        self.candidates.iter().filter_map(|candidate| candidate.node.as_ref()).filter(|node| **node != self.node)
    }

    /// Reports whether answers of a server can be received. Other nodes know this node's key, so
    /// that a node with a key encrypts its answers, and a device that does not know that key drops
    /// them. In doubt, the server counts as reachable.
    fn is_reachable(&self, candidate: &Candidate, device: &DeviceKeys) -> bool {
        let key = candidate.node.as_ref().filter(|node| **node != self.node).and_then(|node| self.node_keys.get(node));
        match key {
            None | Some(Err(Unreadable)) => true,
            Some(Ok(key)) => key.is_empty() || device.peers.contains(key),
        }
    }
}

#[cfg(test)]
mod tests;
