//! Desired, observed and pending state over keyed values.
//!
//! For drivers that write only the difference and learn of failures; not for comparing two maps
//! once.
//!
//! A driver that keeps state outside the process (IP set members, routes, …) equal to a desired
//! state needs three answers: the desired values, the present values, and the remaining writes.
//! `Delta` stores each key once, in exactly one of three ordered maps: in sync, to write, to
//! remove. So the remaining writes are known without a comparison, and always in key order.
//!
//! ```rust
//! use tortie_netfilter::delta::Delta;
//!
//! let mut routes: Delta<&str, u32> = Delta::new();
//! routes.set_desired("10.0.0.1/32", 7);
//! routes.set_desired("10.0.0.2/32", 8);
//! // The kernel was listed: one route is right already, one is left over.
//! routes.replace_observed([("10.0.0.1/32", 7), ("10.0.0.9/32", 9)]);
//!
//! let to_write: Vec<_> = routes.pending_writes().map(|(k, w)| (*k, *w.desired)).collect();
//! assert_eq!(to_write, [("10.0.0.2/32", 8)]);
//! let to_remove: Vec<_> = routes.pending_removals().map(|(k, _)| *k).collect();
//! assert_eq!(to_remove, ["10.0.0.9/32"]);
//!
//! // Completed writes are confirmed, one key at a time.
//! routes.confirm_written(&"10.0.0.2/32");
//! routes.confirm_removed(&"10.0.0.9/32");
//! assert!(routes.is_in_sync());
//! ```

use std::borrow::Borrow;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// Tracks the desired value of every key, the value last observed, and the remaining writes.
///
/// * *desired* is the value that should be outside; it changes with
///   [`set_desired`](Self::set_desired) and its siblings.
/// * *observed* is the value believed to be outside; it changes with
///   [`replace_observed`](Self::replace_observed), [`observe`](Self::observe) and the `confirm_…`
///   methods.
/// * *pending* follows from the two and is never set.
///
/// Every key is in exactly one map: when everything is in sync, the memory is that of one map, and
/// iterating over pending keys visits no others. All iteration is in key order, so the writes
/// depend on the state and not on its history.
///
/// For plain membership leave `V` out: `Delta<K>` is `Delta<K, ()>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta<K, V = ()> {
    /// Desired and observed alike.
    in_sync: BTreeMap<K, V>,
    /// Desired, and observed with another value or not at all.
    writes: BTreeMap<K, Write<V, Option<V>>>,
    /// Observed but not desired.
    removals: BTreeMap<K, V>,
}

/// A value that is still to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<V, O> {
    /// The value to write.
    pub desired: V,
    /// Observed value that it replaces; `None` if the key is absent.
    pub observed: O,
}

impl<K, V> Default for Delta<K, V> {
    fn default() -> Self {
        Self { in_sync: BTreeMap::new(), writes: BTreeMap::new(), removals: BTreeMap::new() }
    }
}

impl<K: Ord, V: PartialEq> Delta<K, V> {
    /// Returns a `Delta` without desired and observed keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the desired value of `key`. Returns whether it changed.
    pub fn set_desired(&mut self, key: K, value: V) -> bool {
        if let Some(write) = self.writes.get_mut(&key) {
            if write.desired == value {
                return false;
            }
            if write.observed.as_ref() == Some(&value) {
                self.writes.remove(&key);
                self.in_sync.insert(key, value);
            } else {
                write.desired = value;
            }
            return true;
        }
        let was_in_sync = self.in_sync.get(&key);
        if was_in_sync == Some(&value) {
            return false;
        }
        let observed = match was_in_sync {
            Some(_) => self.in_sync.remove(&key),
            None => self.removals.remove(&key),
        };
        self.file_desired(key, value, observed);
        true
    }

    /// Removes `key` from the desired state. Returns whether it was desired.
    pub fn remove_desired<Q>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        if let Some((key, value)) = self.in_sync.remove_entry(key) {
            self.removals.insert(key, value);
            return true;
        }
        let Some((key, write)) = self.writes.remove_entry(key) else {
            return false;
        };
        if let Some(observed) = write.observed {
            self.removals.insert(key, observed);
        }
        true
    }

    /// Returns the desired value of `key`.
    #[must_use]
    pub fn desired<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.in_sync.get(key).or_else(|| self.writes.get(key).map(|write| &write.desired))
    }

    /// Iterates over the desired keys and values, in key order.
    pub fn iter_desired(&self) -> impl Iterator<Item = (&K, &V)> {
        merge(self.in_sync.iter(), self.writes.iter().map(|(key, write)| (key, &write.desired)))
    }

    /// Returns the number of desired keys.
    #[must_use]
    pub fn desired_len(&self) -> usize {
        self.in_sync.len() + self.writes.len()
    }

    /// Replaces the observed state by a complete listing; of equal keys the last counts.
    pub fn replace_observed(&mut self, observed: impl IntoIterator<Item = (K, V)>) {
        self.removals.clear();
        let mut desired = std::mem::take(&mut self.in_sync);
        desired.extend(std::mem::take(&mut self.writes).into_iter().map(|(key, write)| (key, write.desired)));
        self.rebuild(desired, observed.into_iter().collect());
    }

    /// Records that `key` was observed with `value`.
    pub fn observe(&mut self, key: K, value: V) {
        if let Some((key, desired)) = self.take_desired(&key) {
            self.file_desired(key, desired, Some(value));
        } else {
            self.removals.insert(key, value);
        }
    }

    /// Records that `key` was observed to be absent.
    pub fn observe_absent<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        if let Some((key, desired)) = self.take_desired(key) {
            self.file_desired(key, desired, None);
        } else {
            self.removals.remove(key);
        }
    }

    /// Returns the observed value of `key`.
    #[must_use]
    pub fn observed<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.in_sync
            .get(key)
            .or_else(|| self.removals.get(key))
            .or_else(|| self.writes.get(key).and_then(|write| write.observed.as_ref()))
    }

    /// Iterates over the observed keys and values, in key order.
    pub fn iter_observed(&self) -> impl Iterator<Item = (&K, &V)> {
        let replaced = self.writes.iter().filter_map(|(key, write)| Some((key, write.observed.as_ref()?)));
        merge(merge(self.in_sync.iter(), self.removals.iter()), replaced)
    }

    /// Returns the pending writes, in key order.
    pub fn pending_writes(&self) -> impl Iterator<Item = (&K, Write<&V, Option<&V>>)> {
        self.writes.iter().map(|(key, write)| {
            let write = Write { desired: &write.desired, observed: write.observed.as_ref() };
            (key, write)
        })
    }

    /// Returns the keys to remove with their observed values, in key order.
    pub fn pending_removals(&self) -> impl Iterator<Item = (&K, &V)> {
        self.removals.iter()
    }

    /// Reports whether nothing is pending.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.writes.is_empty() && self.removals.is_empty()
    }

    /// Reports whether no key is desired or observed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_sync.is_empty() && self.is_in_sync()
    }

    /// Records that the pending write of `key` is done. Without one this does nothing.
    pub fn confirm_written<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        if let Some((key, write)) = self.writes.remove_entry(key) {
            self.in_sync.insert(key, write.desired);
        }
    }

    /// Records that the pending removal of `key` is done. Without one this does nothing.
    pub fn confirm_removed<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.removals.remove(key);
    }

    fn take_desired<Q>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.in_sync.remove_entry(key).or_else(|| {
            let (key, write) = self.writes.remove_entry(key)?;
            Some((key, write.desired))
        })
    }

    fn file_desired(&mut self, key: K, desired: V, observed: Option<V>) {
        if observed.as_ref() == Some(&desired) {
            self.in_sync.insert(key, desired);
        } else {
            self.writes.insert(key, Write { desired, observed });
        }
    }

    fn rebuild(&mut self, desired: BTreeMap<K, V>, mut observed: BTreeMap<K, V>) {
        for (key, value) in desired {
            let seen = observed.remove(&key);
            self.file_desired(key, value, seen);
        }
        self.removals = observed;
    }
}

/// Merges two iterators that are sorted by key and share none.
fn merge<'a, K: Ord + 'a, V: 'a>(
    left: impl Iterator<Item = (&'a K, &'a V)>,
    right: impl Iterator<Item = (&'a K, &'a V)>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some((l, _)), Some((r, _))) if l > r => right.next(),
        (Some(_), _) => left.next(),
        (None, _) => right.next(),
    })
}
