//! Members of IP sets.

use std::sync::Arc;

use tortie_labelindex::{CountedSelector, MemberIndex, Overlap, SetChange, SetDefinition};
use tortie_model::{
    Cidr, HostEndpointKey, Hostname, IpSetId, NetworkSetName, Node, WorkloadEndpointKey, selects_nodes,
};
use tortie_selector::Selector;

/// Possible members of IP sets, on any node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ItemId {
    Workload(WorkloadEndpointKey),
    /// Boxed: these are few, and must not make the many larger.
    Other(Box<OtherItem>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum OtherItem {
    Host(HostEndpointKey),
    NetworkSet(NetworkSetName),
}

impl ItemId {
    pub(crate) fn workload(&self) -> Option<&WorkloadEndpointKey> {
        match self {
            Self::Workload(key) => Some(key),
            Self::Other(_) => None,
        }
    }
}

/// Endpoints and network sets of the cluster against the IP sets of this node's rules.
pub(crate) type Items = MemberIndex<ItemId>;

/// All possible members of IP sets of selectors: nodes, for selectors that need a label of a node,
/// otherwise endpoints and network sets. There are two indexes, so that `all()` and `!has(app)`
/// match no node.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) items: Items,
    nodes: MemberIndex<Hostname>,
}

/// A selector whose members are counted in one of the two indexes.
#[derive(Debug)]
pub(crate) enum Counted {
    Items(CountedSelector),
    Nodes(CountedSelector),
}

impl Members {
    pub(crate) fn new(overlap: Overlap) -> Self {
        Self { items: MemberIndex::new(overlap), nodes: MemberIndex::new(overlap) }
    }

    /// Records a node; `None` removes it. Its members are all its addresses, those of its tunnels
    /// included: packets have any of these, depending on their way.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) {
        match node {
            Some(node) => {
                let nets = node.own_addresses().map(Cidr::host);
                self.nodes.set_item(name.clone(), &node.selectable_labels(), &Arc::default(), &(), nets, &[]);
            }
            None => {
                self.nodes.remove_item(name);
            }
        }
    }

    pub(crate) fn add_set(&mut self, id: &IpSetId, definition: SetDefinition) {
        if selects_nodes(&definition.selector) {
            self.nodes.add_set(id, definition);
        } else {
            self.items.add_set(id, definition);
        }
    }

    pub(crate) fn remove_set(&mut self, id: &IpSetId, definition: &SetDefinition) {
        if selects_nodes(&definition.selector) {
            self.nodes.remove_set(id);
        } else {
            self.items.remove_set(id);
        }
    }

    /// Appends the changes of sets since the last flush; see [`MemberIndex::flush`].
    pub(crate) fn flush(&mut self, out: &mut Vec<SetChange>) {
        self.items.flush(out);
        self.nodes.flush(out);
    }

    /// Returns an upper bound on the number of members of one set.
    pub(crate) fn net_count(&self) -> u64 {
        self.items.net_count().max(self.nodes.net_count())
    }

    /// Brings counts up to date; see [`MemberIndex::settle`].
    pub(crate) fn settle(&mut self) {
        self.items.settle();
        self.nodes.settle();
    }

    pub(crate) fn count_selector(&mut self, selector: &Selector) -> Counted {
        if selects_nodes(selector) {
            Counted::Nodes(self.nodes.count_selector(selector))
        } else {
            Counted::Items(self.items.count_selector(selector))
        }
    }

    pub(crate) fn release_count(&mut self, counted: Counted) {
        match counted {
            Counted::Items(counted) => self.items.release_count(counted),
            Counted::Nodes(counted) => self.nodes.release_count(counted),
        }
    }

    pub(crate) fn count(&self, counted: &Counted) -> u64 {
        match counted {
            Counted::Items(counted) => self.items.count(counted),
            Counted::Nodes(counted) => self.nodes.count(counted),
        }
    }

    /// Reports whether the index of nodes holds no data.
    pub(crate) fn has_no_nodes(&self) -> bool {
        self.nodes.is_empty()
    }
}
