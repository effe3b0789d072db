//! The chains that somebody defined, and which of them are reachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Chain, ChainName, is_own_chain};

/// Chains by name, with the number of references to each from rules that are themselves reachable.
///
/// A chain without references is kept but not programmed. Definitions may come in any order,
/// children before or after parents.
#[derive(Debug, Default)]
pub(super) struct ChainGraph {
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
    pub(super) fn define(&mut self, chain: Arc<Chain>) {
        let name = chain.name;
        self.set(name, Some(chain));
    }

    pub(super) fn undefine(&mut self, name: ChainName) {
        self.set(name, None);
    }

    fn set(&mut self, name: ChainName, definition: Option<Arc<Chain>>) {
        let node = self.nodes.entry(name).or_default();
        let new = definition.as_deref().map(children).unwrap_or_default();
        let old = std::mem::replace(&mut node.definition, definition);
        if node.references > 0 {
            self.changed.insert(name);
            // In this order nothing that stays becomes unreachable in between.
            self.reference(new);
            self.release(old.as_deref().map(children).unwrap_or_default());
        }
        self.forget_if_unused(name);
    }

    /// Adds a reference to each of `chains`.
    pub(super) fn reference(&mut self, mut chains: Vec<ChainName>) {
        while let Some(name) = chains.pop() {
            let node = self.nodes.entry(name).or_default();
            node.references += 1;
            if node.references == 1 {
                chains.extend(node.definition.as_deref().map(children).unwrap_or_default());
                self.changed.insert(name);
            }
        }
    }

    /// Takes a reference from each of `chains`.
    pub(super) fn release(&mut self, mut chains: Vec<ChainName>) {
        while let Some(name) = chains.pop() {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            node.references = node.references.saturating_sub(1);
            if node.references == 0 {
                chains.extend(node.definition.as_deref().map(children).unwrap_or_default());
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

    pub(super) fn is_reachable(&self, name: ChainName) -> bool {
        self.nodes.get(&name).is_some_and(|node| node.references > 0)
    }

    pub(super) fn definition(&self, name: ChainName) -> Option<&Arc<Chain>> {
        self.nodes.get(&name)?.definition.as_ref()
    }

    /// Defined chains, reachable or not.
    pub(super) fn definitions(&self) -> impl Iterator<Item = &Arc<Chain>> {
        self.nodes.values().filter_map(|node| node.definition.as_ref())
    }

    pub(super) fn reachable(&self) -> impl Iterator<Item = ChainName> {
        self.nodes.iter().filter(|(_, node)| node.references > 0).map(|(name, _)| *name)
    }

    /// The chains that changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<ChainName> {
        std::mem::take(&mut self.changed)
    }
}

/// The chains of ours that the rules of `chain` lead to, once per rule.
fn children(chain: &Chain) -> Vec<ChainName> {
    chain.targets().filter(|name| is_own_chain(name.as_str())).collect()
}
