//! Hash map with cheap clones.

use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashTable;

/// Largest number of entries of a leaf.
const MOST: usize = 64;
/// Children with at most this number of entries in total are joined to one leaf.
const FEW: usize = 16;
/// Bits of a hash that select the children on the way from the root. A leaf uses the others to find
/// an entry.
const CHOOSING: std::ops::Range<u32> = 20..56;
const BITS: u32 = 4;
const CHILDREN: usize = 1 << BITS;

/// Map of entries by key.
///
/// A clone shares all entries. A change copies the nodes on its way from the root that are shared:
/// at most 64 entries, and 16 pointers at each level, regardless of the number of entries and
/// clones.
#[derive(Clone, Debug)]
pub(crate) struct SharedMap<K, V> {
    root: Arc<Node<K, V>>,
    len: usize,
    hasher: RandomState,
}

#[derive(Clone, Debug)]
enum Node<K, V> {
    Leaf(HashTable<(K, V)>),
    Branch(Box<[Arc<Self>; CHILDREN]>),
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { root: Arc::new(Node::Leaf(HashTable::new())), len: 0, hasher: RandomState::default() }
    }
}

impl<K, V> SharedMap<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<K: Clone + Eq + Hash, V: Clone> SharedMap<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let hash = self.hasher.hash_one(key);
        let (mut node, mut bit) = (&*self.root, CHOOSING.start);
        loop {
            match node {
                Node::Leaf(entries) => return entries.find(hash, |(other, _)| other == key).map(|(_, value)| value),
                Node::Branch(children) => node = child::<Arc<_>>(children, hash, bit),
            }
            bit += BITS;
        }
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        // A key without a value copies no node.
        self.get(key)?;
        let hash = self.hasher.hash_one(key);
        let (mut node, mut bit) = (&mut self.root, CHOOSING.start);
        loop {
            match Arc::make_mut(node) {
                Node::Leaf(entries) => {
                    return entries.find_mut(hash, |(other, _)| other == key).map(|(_, value)| value);
                }
                Node::Branch(children) => node = child_mut(children, hash, bit),
            }
            bit += BITS;
        }
    }

    /// Sets a value, and returns the former one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.hasher.hash_one(&key);
        let before = Node::insert(&mut self.root, &self.hasher, (hash, CHOOSING.start), (key, value));
        self.len += usize::from(before.is_none());
        before
    }

    /// Removes and returns a value.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        // A key without a value copies no node.
        self.get(key)?;
        let hash = self.hasher.hash_one(key);
        let removed = Node::remove(&mut self.root, &self.hasher, (hash, CHOOSING.start), key);
        self.len -= usize::from(removed.is_some());
        removed
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Node<K, V> {
    fn insert(node: &mut Arc<Self>, hasher: &RandomState, (hash, bit): (u64, u32), entry: (K, V)) -> Option<V> {
        let node = Arc::make_mut(node);
        match node {
            Self::Branch(children) => Self::insert(child_mut(children, hash, bit), hasher, (hash, bit + BITS), entry),
            Self::Leaf(entries) => {
                if let Some((_, value)) = entries.find_mut(hash, |(key, _)| *key == entry.0) {
                    return Some(mem::replace(value, entry.1));
                }
                entries.insert_unique(hash, entry, |(key, _)| hasher.hash_one(key));
                if entries.len() > MOST && CHOOSING.contains(&bit) {
                    *node = Self::split(mem::take(entries), hasher, bit);
                }
                None
            }
        }
    }

    fn remove(node: &mut Arc<Self>, hasher: &RandomState, (hash, bit): (u64, u32), key: &K) -> Option<V> {
        let node = Arc::make_mut(node);
        match node {
            Self::Leaf(entries) => {
                let entry = entries.find_entry(hash, |(other, _)| other == key).ok()?;
                let ((_, value), _) = entry.remove();
                Some(value)
            }
            Self::Branch(children) => {
                let removed = Self::remove(child_mut(children, hash, bit), hasher, (hash, bit + BITS), key);
                let entries = children.iter().map(|child| child.leaf_len()).sum::<Option<usize>>();
                if entries.is_some_and(|entries| entries <= FEW) {
                    *node = Self::joined(children, hasher);
                }
                removed
            }
        }
    }

    /// Returns the number of entries of a leaf; `None` for a branch.
    fn leaf_len(&self) -> Option<usize> {
        match self {
            Self::Leaf(entries) => Some(entries.len()),
            Self::Branch(_) => None,
        }
    }

    fn split(entries: HashTable<(K, V)>, hasher: &RandomState, bit: u32) -> Self {
        let mut parts: [HashTable<(K, V)>; CHILDREN] = std::array::from_fn(|_| HashTable::new());
        for entry in entries {
            let hash = hasher.hash_one(&entry.0);
            child_mut(&mut parts, hash, bit).insert_unique(hash, entry, |(key, _)| hasher.hash_one(key));
        }
        Self::Branch(Box::new(parts.map(|part| Arc::new(Self::Leaf(part)))))
    }

    /// Returns one leaf with all entries of these leaves.
    fn joined(leaves: &[Arc<Self>; CHILDREN], hasher: &RandomState) -> Self {
        let mut all = HashTable::new();
        for leaf in leaves {
            if let Self::Leaf(entries) = &**leaf {
                for entry in entries {
                    all.insert_unique(hasher.hash_one(&entry.0), entry.clone(), |(key, _)| hasher.hash_one(key));
                }
            }
        }
        Self::Leaf(all)
    }
}

#[expect(clippy::indexing_slicing, reason = "four bits are less than sixteen")]
fn child<T>(children: &[T; CHILDREN], hash: u64, bit: u32) -> &T {
    &children[place(hash, bit)]
}

#[expect(clippy::indexing_slicing, reason = "four bits are less than sixteen")]
fn child_mut<T>(children: &mut [T; CHILDREN], hash: u64, bit: u32) -> &mut T {
    &mut children[place(hash, bit)]
}

fn place(hash: u64, bit: u32) -> usize {
    ((hash >> bit) & 0xf) as usize
}

#[cfg(test)]
mod tests;
