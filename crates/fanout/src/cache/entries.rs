//! An ordered map of entries by path that is cheap to clone.

use std::sync::Arc;

use super::Entry;

/// Maximum number of entries or children in a node of the tree.
const MOST: usize = 64;
/// Maximum size of two adjacent nodes that are merged.
const FEW: usize = 24;

/// Ordered map of entries by path.
///
/// A clone shares all nodes with its source. A later change copies the nodes on the path from the
/// root. It therefore costs a few nodes of at most 64 pointers, however many entries and clones
/// exist.
#[derive(Clone, Debug)]
pub struct Entries {
    root: Arc<Node>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Vec<Arc<Entry>>),
    /// Never empty.
    Branch(Vec<Child>),
}

#[derive(Clone, Debug)]
struct Child {
    /// Lower bound of the paths below. Unused in the first child.
    least: Arc<str>,
    node: Arc<Node>,
}

impl Default for Entries {
    fn default() -> Self {
        Self { root: Arc::new(Node::Leaf(Vec::new())), len: 0 }
    }
}

impl Entries {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the entry of this path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Arc<Entry>> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|entry| (*entry.path).cmp(path)).ok()?;
                    return entries.get(at);
                }
                Node::Branch(children) => node = &children.get(place(children, path))?.node,
            }
        }
    }

    /// Inserts an entry and returns the previous one of the same path.
    pub fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let (before, split) = Node::insert(&mut self.root, entry);
        if let Some(right) = split {
            let left = Child { least: "".into(), node: Arc::clone(&self.root) };
            self.root = Arc::new(Node::Branch(vec![left, right]));
        }
        self.len += usize::from(before.is_none());
        before
    }

    /// Removes an entry and returns it.
    pub fn remove(&mut self, path: &str) -> Option<Arc<Entry>> {
        // A missing path must not cause copies.
        self.get(path)?;
        let removed = Node::remove(&mut self.root, path)?;
        self.len -= 1;
        while let Node::Branch(children) = &*self.root
            && let [only] = children.as_slice()
        {
            self.root = Arc::clone(&only.node);
        }
        Some(removed)
    }

    /// Iterates over all entries in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.from("")
    }

    /// Iterates over the entries whose paths begin with `prefix`, in order.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        self.from(prefix).take_while(move |entry| entry.path.starts_with(prefix))
    }

    /// Iterates over the entries from `path` on.
    fn from(&self, path: &str) -> Iter<'_> {
        let mut iter = Iter { branches: Vec::new(), leaf: [].iter() };
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = entries.partition_point(|entry| &*entry.path < path);
                    iter.leaf = entries.get(at..).unwrap_or_default().iter();
                    return iter;
                }
                Node::Branch(children) => {
                    let mut rest = children.get(place(children, path)..).unwrap_or_default().iter();
                    let Some(first) = rest.next() else { return iter };
                    iter.branches.push(rest);
                    node = &first.node;
                }
            }
        }
    }
}

/// Returns the index of the child that has the path, if any child has it.
fn place(children: &[Child], path: &str) -> usize {
    children.get(1..).unwrap_or_default().partition_point(|child| &*child.least <= path)
}

impl Node {
    fn insert(node: &mut Arc<Self>, entry: Arc<Entry>) -> (Option<Arc<Entry>>, Option<Child>) {
        match Arc::make_mut(node) {
            Self::Leaf(entries) => match entries.binary_search_by(|other| other.path.cmp(&entry.path)) {
                Ok(at) => (entries.get_mut(at).map(|place| std::mem::replace(place, entry)), None),
                Err(at) => {
                    // Entries that come in order fill their nodes.
                    let keep = if at == entries.len() { MOST } else { MOST / 2 };
                    entries.insert(at, entry);
                    let split = (entries.len() > MOST).then(|| entries.split_off(keep)).and_then(|right| {
                        let least = Arc::clone(&right.first()?.path);
                        Some(Child { least, node: Arc::new(Self::Leaf(right)) })
                    });
                    (None, split)
                }
            },
            Self::Branch(children) => {
                let at = place(children, &entry.path);
                let Some(child) = children.get_mut(at) else { return (None, None) };
                let (before, split) = Self::insert(&mut child.node, entry);
                let Some(right) = split else { return (before, None) };
                let keep = if at + 1 == children.len() { MOST } else { MOST / 2 };
                children.insert(at + 1, right);
                let split = (children.len() > MOST).then(|| children.split_off(keep)).and_then(|right| {
                    let least = Arc::clone(&right.first()?.least);
                    Some(Child { least, node: Arc::new(Self::Branch(right)) })
                });
                (before, split)
            }
        }
    }

    fn remove(node: &mut Arc<Self>, path: &str) -> Option<Arc<Entry>> {
        match Arc::make_mut(node) {
            Self::Leaf(entries) => {
                let at = entries.binary_search_by(|entry| (*entry.path).cmp(path)).ok()?;
                Some(entries.remove(at))
            }
            Self::Branch(children) => {
                let at = place(children, path);
                let removed = Self::remove(&mut children.get_mut(at)?.node, path)?;
                merge(children, at);
                Some(removed)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Branch(children) => children.len(),
        }
    }
}

/// Merges a child that has become small with a small neighbour; thus no node stays empty next to
/// another.
fn merge(children: &mut Vec<Child>, at: usize) {
    let left = if at + 1 < children.len() { at } else { at.saturating_sub(1) };
    let (Some(a), Some(b)) = (children.get(left), children.get(left + 1)) else { return };
    let together = a.node.len() + b.node.len();
    let empty = a.node.len() == 0 || b.node.len() == 0;
    if together > FEW && !empty {
        return;
    }
    let Child { least, node } = children.remove(left + 1);
    let Some(a) = children.get_mut(left) else { return };
    match (Arc::make_mut(&mut a.node), Arc::unwrap_or_clone(node)) {
        (Node::Leaf(left), Node::Leaf(right)) => left.extend(right),
        (Node::Branch(left), Node::Branch(mut right)) => {
            // The first child of the right node is no longer first; it takes the node's lower
            // bound.
            if let Some(first) = right.first_mut() {
                first.least = least;
            }
            left.extend(right);
        }
        // All leaves are equally deep.
        (Node::Leaf(_), Node::Branch(_)) | (Node::Branch(_), Node::Leaf(_)) => {}
    }
}

struct Iter<'a> {
    branches: Vec<std::slice::Iter<'a, Child>>,
    leaf: std::slice::Iter<'a, Arc<Entry>>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Arc<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.leaf.next() {
                return Some(entry);
            }
            let mut rest = self.branches.pop()?;
            // This branch is exhausted; continue with its parent.
            let Some(child) = rest.next() else { continue };
            self.branches.push(rest);
            match &*child.node {
                Node::Leaf(entries) => self.leaf = entries.iter(),
                Node::Branch(children) => self.branches.push(children.iter()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
