//! Small numbers that name things, and values by them.

use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use ahash::AHashMap;

/// A small number that identifies an object.
pub(crate) trait Id: Copy + Eq + Hash + Ord {
    fn new(number: u32) -> Self;
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $visibility:vis $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $visibility struct $name(u32);

        impl Id for $name {
            fn new(number: u32) -> Self {
                Self(number)
            }
            fn number(self) -> u32 {
                self.0
            }
        }
    )*};
}

ids! {
    /// A set of addresses: an IP set, a port of an IP set, or a list of networks of rules.
    pub(crate) AtomId
    /// A network that is a member of atoms.
    pub(crate) EntryId
    /// Networks that are members of the same atoms, below the same network.
    pub(crate) BucketId
    /// Addresses that are in the same atoms.
    pub ClassId
    /// A policy or profile.
    pub(crate) OwnerId
    /// Endpoints with equal policies, in one direction.
    pub GroupId
    /// A row of one end of a table: address classes that are the same to all rules of a group.
    pub Row
    /// Outcomes of a row against a row, for all columns.
    pub(crate) LineId
    /// Settings of nodes that apply to workloads or host endpoints besides policies. 0: the common
    /// settings.
    pub(crate) SettingsId
    /// Workloads that no rule distinguishes, in a matrix.
    pub EndpointClassId
    /// Rulings of one end of connections on packets of one peer, in a
    /// [`Reachability`](crate::Reachability).
    pub RulingsId
    /// An address with the sets of domains that have it for some endpoints.
    pub LearnedId
    /// Packets that are the same to all rules by protocol, destination port and ICMP message, or by
    /// source port.
    pub L4ClassId
}

macro_rules! public_numbers {
    ($($name:ident)*) => {$(
        impl $name {
            /// The number. Numbers are small, and free ones are reused.
            #[must_use]
            pub fn number(self) -> u32 {
                self.0
            }
        }
    )*};
}

public_numbers!(ClassId EndpointClassId GroupId L4ClassId Row RulingsId);

/// The number of the thing at this place of a list.
#[expect(clippy::expect_used, reason = "2^32 objects do not fit into memory")]
pub(crate) fn number_of(place: usize) -> u32 {
    u32::try_from(place).expect("there are fewer than 2^32 objects")
}

/// Values by id; ids of removed values are reused.
#[derive(Clone, Debug)]
pub(crate) struct Slab<K, T> {
    slots: Vec<Option<T>>,
    free: Vec<K>,
}

impl<K, T> Default for Slab<K, T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<K: Id, T> Slab<K, T> {
    #[expect(clippy::indexing_slicing, reason = "free ids are places of slots")]
    pub(crate) fn insert(&mut self, value: T) -> K {
        if let Some(id) = self.free.pop() {
            self.slots[id.number() as usize] = Some(value);
            return id;
        }
        let id = K::new(number_of(self.slots.len()));
        self.slots.push(Some(value));
        id
    }

    #[expect(clippy::expect_used, reason = "as with any index: an id that is not in use is a mistake of this crate")]
    pub(crate) fn remove(&mut self, id: K) -> T {
        let value = self.slots.get_mut(id.number() as usize).and_then(Option::take);
        let value = value.expect("ids are dropped together with their values");
        self.free.push(id);
        value
    }

    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.slots.get(id.number() as usize)?.as_ref()
    }

    /// The value of an id in use.
    #[expect(clippy::expect_used, reason = "as with any index: an id that is not in use is a mistake of this crate")]
    pub(crate) fn at(&self, id: K) -> &T {
        self.get(id).expect("ids are dropped together with their values")
    }

    /// The value of an id in use.
    #[expect(clippy::expect_used, reason = "as with any index: an id that is not in use is a mistake of this crate")]
    pub(crate) fn at_mut(&mut self, id: K) -> &mut T {
        let slot = self.slots.get_mut(id.number() as usize).and_then(Option::as_mut);
        slot.expect("ids are dropped together with their values")
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Numbers are below.
    pub(crate) fn extent(&self) -> usize {
        self.slots.len()
    }

    /// Every id in use with its value, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots.iter().zip(0..).filter_map(|(slot, number)| Some((K::new(number), slot.as_ref()?)))
    }
}

/// Interned lists, by id, with the number of their users.
#[derive(Clone, Debug)]
pub(crate) struct Interned<K, T> {
    ids: AHashMap<Arc<[T]>, K>,
    lists: Slab<K, (Arc<[T]>, u32)>,
    id: PhantomData<K>,
}

impl<K, T> Default for Interned<K, T> {
    fn default() -> Self {
        Self { ids: AHashMap::new(), lists: Slab::default(), id: PhantomData }
    }
}

impl<K: Id, T: Copy + Eq + Hash> Interned<K, T> {
    /// Adds a user of the list. Returns its id, and whether it is new.
    pub(crate) fn acquire(&mut self, list: &[T]) -> (K, bool) {
        if let Some(id) = self.ids.get(list).copied() {
            let (_, users) = self.lists.at_mut(id);
            *users += 1;
            return (id, false);
        }
        let list: Arc<[T]> = list.into();
        let id = self.lists.insert((Arc::clone(&list), 1));
        self.ids.insert(list, id);
        (id, true)
    }

    /// Removes a user. Returns whether it was the last one; the list stays until it is
    /// [removed](Self::remove_unused).
    #[expect(clippy::expect_used, reason = "users are added before they are taken away")]
    pub(crate) fn release(&mut self, id: K) -> bool {
        let (_, users) = self.lists.at_mut(id);
        *users = users.checked_sub(1).expect("a list has a user to take away");
        *users == 0
    }

    /// Removes and returns the list, if it has no users.
    pub(crate) fn remove_unused(&mut self, id: K) -> Option<Arc<[T]>> {
        self.lists.get(id).filter(|(_, users)| *users == 0)?;
        let (list, _) = self.lists.remove(id);
        self.ids.remove(&list);
        Some(list)
    }

    pub(crate) fn find(&self, list: &[T]) -> Option<K> {
        self.ids.get(list).copied()
    }

    /// Empty if there is no such list.
    pub(crate) fn get(&self, id: K) -> &[T] {
        self.lists.get(id).map_or(&[], |(list, _)| list)
    }

    pub(crate) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Numbers are below.
    pub(crate) fn extent(&self) -> usize {
        self.lists.extent()
    }

    /// Every id in use with its list, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &[T])> {
        self.lists.iter().map(|(id, (list, _))| (id, &**list))
    }
}
