//! Defined chains and their reachability.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::chain::Chain;
use crate::name::ChainName;

/// Chains by name, with the number of references to each from rules that are themselves reachable.
///
/// A chain without references is kept but not programmed. Definitions may come in any order,
/// children before or after parents.
#[derive(Debug)]
pub struct ChainGraph {
    /// Reports whether a chain is one of ours, which must be defined here.
    is_ours: fn(ChainName) -> bool,
    nodes: BTreeMap<ChainName, Node>,
    /// Chains whose reachability or definition changed since [`ChainGraph::take_changed`].
    changed: BTreeSet<ChainName>,
}

#[derive(Debug, Default)]
struct Node {
    definition: Option<Arc<Chain>>,
    references: usize,
}

impl ChainGraph {
    /// Returns a graph without chains. Jumps to chains for which `is_ours` is false do not count as
    /// references.
    #[must_use]
    pub const fn new(is_ours: fn(ChainName) -> bool) -> Self {
        Self { is_ours, nodes: BTreeMap::new(), changed: BTreeSet::new() }
    }

    /// Defines a chain and replaces its earlier definition, if any.
    pub fn define(&mut self, chain: Arc<Chain>) {
        let name = chain.name;
        self.set(name, Some(chain));
    }

    /// Removes a definition. A name that is not defined is ignored.
    pub fn undefine(&mut self, name: ChainName) {
        self.set(name, None);
    }

    fn set(&mut self, name: ChainName, definition: Option<Arc<Chain>>) {
        let is_ours = self.is_ours;
        let node = self.nodes.entry(name).or_default();
        let new = children(definition.as_deref(), is_ours);
        let old = std::mem::replace(&mut node.definition, definition);
        if node.references > 0 {
            self.changed.insert(name);
            // This order keeps shared children reachable throughout.
            self.reference(new);
            self.release(children(old.as_deref(), is_ours));
        }
        self.remove_if_unused(name);
    }

    /// Adds a reference to each of `chains`.
    pub fn reference(&mut self, mut chains: Vec<ChainName>) {
        while let Some(name) = chains.pop() {
            let node = self.nodes.entry(name).or_default();
            node.references += 1;
            if node.references == 1 {
                chains.extend(children(node.definition.as_deref(), self.is_ours));
                self.changed.insert(name);
            }
        }
    }

    /// Removes a reference from each of `chains`.
    ///
    /// # Panics
    /// If one of them has none.
    #[expect(clippy::expect_used, reason = "removal of a reference that was not added is an error of the caller")]
    pub fn release(&mut self, mut chains: Vec<ChainName>) {
        while let Some(name) = chains.pop() {
            let node = self.nodes.get_mut(&name).expect("a released chain was referenced");
            node.references = node.references.checked_sub(1).expect("a released chain was referenced");
            if node.references == 0 {
                chains.extend(children(node.definition.as_deref(), self.is_ours));
                self.changed.insert(name);
                self.remove_if_unused(name);
            }
        }
    }

    fn remove_if_unused(&mut self, name: ChainName) {
        let unused = |node: &Node| node.references == 0 && node.definition.is_none();
        if self.nodes.get(&name).is_some_and(unused) {
            self.nodes.remove(&name);
        }
    }

    /// Reports whether a reachable rule or an added reference refers to a chain.
    #[must_use]
    pub fn is_reachable(&self, name: ChainName) -> bool {
        self.nodes.get(&name).is_some_and(|node| node.references > 0)
    }

    /// Returns the definition of a chain.
    #[must_use]
    pub fn definition(&self, name: ChainName) -> Option<&Arc<Chain>> {
        self.nodes.get(&name)?.definition.as_ref()
    }

    /// Iterates over the defined chains, reachable or not.
    pub fn definitions(&self) -> impl Iterator<Item = &Arc<Chain>> {
        self.nodes.values().filter_map(|node| node.definition.as_ref())
    }

    /// Iterates over the referenced chains, defined or not.
    pub fn reachable(&self) -> impl Iterator<Item = ChainName> {
        self.nodes.iter().filter(|(_, node)| node.references > 0).map(|(name, _)| *name)
    }

    /// Returns the chains that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<ChainName> {
        std::mem::take(&mut self.changed)
    }
}

/// Returns the targets of the rules of `chain` that are ours, once per rule.
fn children(chain: Option<&Chain>, is_ours: fn(ChainName) -> bool) -> Vec<ChainName> {
    chain.into_iter().flat_map(Chain::targets).filter(|name| is_ours(*name)).collect()
}
