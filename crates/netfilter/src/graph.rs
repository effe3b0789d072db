//! The chains that somebody defined, and which of them are reachable.

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
    /// Which chains are ours, so that somebody should have defined them.
    is_ours: fn(ChainName) -> bool,
    nodes: BTreeMap<ChainName, Node>,
    /// Reachable or not any more, redefined or not any more.
    changed: BTreeSet<ChainName>,
}

#[derive(Debug, Default)]
struct Node {
    definition: Option<Arc<Chain>>,
    references: usize,
}

impl ChainGraph {
    /// Without chains; rules that lead to chains that are not ours are no references.
    #[must_use]
    pub const fn new(is_ours: fn(ChainName) -> bool) -> Self {
        Self { is_ours, nodes: BTreeMap::new(), changed: BTreeSet::new() }
    }

    /// Defines a chain, in place of its earlier definition if there is one.
    pub fn define(&mut self, chain: Arc<Chain>) {
        let name = chain.name;
        self.set(name, Some(chain));
    }

    /// Takes a definition back. A name that is not defined is fine.
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
            // In this order nothing that stays becomes unreachable in between.
            self.reference(new);
            self.release(children(old.as_deref(), is_ours));
        }
        self.forget_if_unused(name);
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

    /// Takes a reference from each of `chains`.
    ///
    /// # Panics
    /// If one of them has none.
    #[expect(
        clippy::expect_used,
        reason = "as with any count: a reference that was not added is a mistake of the caller"
    )]
    pub fn release(&mut self, mut chains: Vec<ChainName>) {
        while let Some(name) = chains.pop() {
            let node = self.nodes.get_mut(&name).expect("a released chain was referenced");
            node.references = node.references.checked_sub(1).expect("a released chain was referenced");
            if node.references == 0 {
                chains.extend(children(node.definition.as_deref(), self.is_ours));
                self.changed.insert(name);
                self.forget_if_unused(name);
            }
        }
    }

    fn forget_if_unused(&mut self, name: ChainName) {
        let unused = |node: &Node| node.references == 0 && node.definition.is_none();
        if self.nodes.get(&name).is_some_and(unused) {
            self.nodes.remove(&name);
        }
    }

    /// Whether something refers to a chain.
    #[must_use]
    pub fn is_reachable(&self, name: ChainName) -> bool {
        self.nodes.get(&name).is_some_and(|node| node.references > 0)
    }

    /// The definition of a chain.
    #[must_use]
    pub fn definition(&self, name: ChainName) -> Option<&Arc<Chain>> {
        self.nodes.get(&name)?.definition.as_ref()
    }

    /// Defined chains, reachable or not.
    pub fn definitions(&self) -> impl Iterator<Item = &Arc<Chain>> {
        self.nodes.values().filter_map(|node| node.definition.as_ref())
    }

    /// The chains that something refers to, defined or not.
    pub fn reachable(&self) -> impl Iterator<Item = ChainName> {
        self.nodes.iter().filter(|(_, node)| node.references > 0).map(|(name, _)| *name)
    }

    /// The chains that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<ChainName> {
        std::mem::take(&mut self.changed)
    }
}

/// The chains of ours that the rules of `chain` lead to, once per rule.
fn children(chain: Option<&Chain>, is_ours: fn(ChainName) -> bool) -> Vec<ChainName> {
    chain.into_iter().flat_map(Chain::targets).filter(|name| is_ours(*name)).collect()
}
