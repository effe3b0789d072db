//! What is to be done before a connection, as far as it is known what there is. Pure.

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

/// A key that the datastore has been asked for: empty if there is none, an error if it cannot be read.
pub(super) type PublishedKey = Result<String, Unreadable>;

/// What was asked for cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// What is known of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// This node's name.
    pub(super) node: String,
    /// Whether this node is to encrypt; `None` if the datastore's part of the configuration is unknown and the node's own
    /// does not ask for it.
    pub(super) is_enabled: Option<bool>,
    /// Whether what nodes themselves send each other is encrypted.
    pub(super) encrypts_hosts: bool,
    /// Nothing has been connected to since somebody began to keep device and key as they should be.
    pub(super) is_start: bool,
    /// No server has served for so long that encryption may be the reason.
    pub(super) is_cut_off: bool,
    /// The servers that are addressed in this family.
    pub(super) candidates: Vec<Candidate>,
    /// The device; `None` if it has not been looked at.
    pub(super) device: Option<DeviceKeys>,
    /// This node's key in the datastore; `None` if it has not been asked for.
    pub(super) own_key: Option<PublishedKey>,
    /// The keys of other nodes in the datastore, as far as they have been asked for.
    pub(super) node_keys: BTreeMap<String, PublishedKey>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look at the device.
    ReadDevice,
    /// Ask the datastore for this node's key.
    ReadOwnKey,
    /// Ask the datastore for the keys of these nodes.
    ReadKeysOf(BTreeSet<String>),
    /// Connect to any of these.
    Connect(Vec<Candidate>),
    /// Remove device and published key, so that nobody encrypts; then connect to any server.
    Remove(Reason),
}

/// Why device and key are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// This node is not to encrypt.
    NotEnabled,
    /// There is no device, or it has no key or no peers.
    NoDevice,
    /// Others know another key than the device has.
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

    /// Others know this node's key, so that a node with a key encrypts what it answers, and a device that does not know
    /// that key drops it. In doubt it is tried.
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
