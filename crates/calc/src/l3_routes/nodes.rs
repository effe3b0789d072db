//! The nodes that routes depend on: those with an address, and those that claim a network or have a
//! route.

use std::borrow::Borrow;
use std::net::IpAddr;

use tortie_model::{Family, Hostname};

use super::node_info::NodeInfo;
use crate::slot_table::{Identified, Slot, SlotTable};

/// One address of each family.
type Addresses = [Option<IpAddr>; 2];

/// A node.
#[derive(Debug)]
struct NodeEntry {
    name: Hostname,
    info: Option<NodeInfo>,
    /// The addresses with which its routes were sent, if these may have changed.
    addresses_before: Option<Box<Addresses>>,
    /// Number of claims for the node.
    claims: u32,
    /// The networks of its routes that were sent, in no order.
    routes: Vec<Slot>,
}

impl NodeEntry {
    fn is_unused(&self) -> bool {
        self.info.is_none() && self.claims == 0 && self.routes.is_empty()
    }
}

impl Identified for NodeEntry {
    type Id = str;

    fn id(&self) -> &str {
        self.name.as_str()
    }
}

/// The nodes, by name and by slot.
#[derive(Debug)]
pub(super) struct Nodes {
    known: SlotTable<NodeEntry>,
    /// This node, which always exists.
    own: Slot,
    /// Nodes whose addresses may have changed since their routes were sent.
    readdressed: Vec<Slot>,
}

impl Nodes {
    pub(super) fn new(own: Hostname) -> Self {
        let mut known = SlotTable::default();
        let own = entry(&mut known, own);
        Self { known, own, readdressed: Vec::new() }
    }

    pub(super) fn own(&self) -> Slot {
        self.own
    }

    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        self.known.find(name).ok()
    }

    /// Returns the node with this name, created if necessary. The caller must release it if it is
    /// not used.
    pub(super) fn entry(&mut self, name: impl Borrow<str> + Into<Hostname>) -> Slot {
        entry(&mut self.known, name)
    }

    /// Forgets a node that is of no use.
    pub(super) fn release(&mut self, node: Slot) {
        if node != self.own
            && let Some(name) = self.known.get(node).filter(|known| known.is_unused()).map(|known| known.name.clone())
        {
            self.known.remove(name.as_str());
        }
    }

    pub(super) fn name(&self, node: Slot) -> Option<&Hostname> {
        self.known.get(node).map(|known| &known.name)
    }

    pub(super) fn info(&self, node: Slot) -> Option<&NodeInfo> {
        self.known.get(node)?.info.as_ref()
    }

    /// Replaces the data of a node. Returns the previous data.
    pub(super) fn set_info(&mut self, node: Slot, info: Option<NodeInfo>) -> Option<NodeInfo> {
        let known = self.known.at_mut(node);
        let old = std::mem::replace(&mut known.info, info);
        if known.addresses_before.is_none() && !known.routes.is_empty() {
            known.addresses_before = Some(Box::new(addresses(old.as_ref())));
            self.readdressed.push(node);
        }
        old
    }

    /// Reports whether the node's routes were sent with another address of this family.
    pub(super) fn is_readdressed(&self, node: Slot, family: Family) -> bool {
        self.known.get(node).is_some_and(|known| {
            let place = usize::from(family == Family::V6);
            let now = addresses(known.info.as_ref());
            known.addresses_before.as_deref().is_some_and(|before| before.get(place) != now.get(place))
        })
    }

    /// Records that all routes were sent with the current addresses.
    pub(super) fn flushed(&mut self) {
        for node in std::mem::take(&mut self.readdressed) {
            if let Some(known) = self.known.get_mut(node) {
                known.addresses_before = None;
            }
        }
    }

    /// Counts another claim for the node.
    pub(super) fn claimed(&mut self, node: Slot) {
        self.known.at_mut(node).claims += 1;
    }

    /// Removes a claim that [`Nodes::claimed`] counted.
    pub(super) fn unclaimed(&mut self, node: Slot) {
        self.known.at_mut(node).claims -= 1;
        self.release(node);
    }

    /// Returns the networks of the node's routes that were sent.
    pub(super) fn routes(&self, node: Slot) -> &[Slot] {
        self.known.get(node).map(|known| &*known.routes).unwrap_or_default()
    }

    /// Files a route. Returns its place.
    #[expect(clippy::expect_used, reason = "there are fewer than 2^32 slots")]
    pub(super) fn file(&mut self, node: Slot, net: Slot) -> u32 {
        let known = self.known.at_mut(node);
        let place = u32::try_from(known.routes.len()).expect("there are as many routes as slots at the most");
        known.routes.push(net);
        place
    }

    /// Removes the route at this place. Returns the route that has moved there.
    pub(super) fn take_out(&mut self, node: Slot, place: u32) -> Option<Slot> {
        let known = self.known.at_mut(node);
        let place = place as usize;
        known.routes.swap_remove(place);
        let moved = known.routes.get(place).copied();
        if known.routes.is_empty() {
            known.routes = Vec::new();
            self.release(node);
        }
        moved
    }

    /// Returns the data and routes of each node that has both.
    pub(super) fn with_routes(&self) -> impl Iterator<Item = (&NodeInfo, &[Slot])> {
        self.known.iter().filter_map(|known| Some((known.info.as_ref()?, &*known.routes)))
    }

    /// Reports whether nothing is filed except this node's name.
    pub(super) fn is_empty(&self) -> bool {
        self.known.len() == 1 && self.known.iter().all(NodeEntry::is_unused)
    }
}

fn entry(known: &mut SlotTable<NodeEntry>, name: impl Borrow<str> + Into<Hostname>) -> Slot {
    known.find(name.borrow()).unwrap_or_else(|hash| {
        let name = name.into();
        known.insert(hash, NodeEntry { name, info: None, addresses_before: None, claims: 0, routes: Vec::new() })
    })
}

fn addresses(info: Option<&NodeInfo>) -> Addresses {
    Family::ALL.map(|family| info.and_then(|info| info.address(family)))
}
