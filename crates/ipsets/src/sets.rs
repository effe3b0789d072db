//! Desired state of the sets of one family.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use thiserror::Error;
use tortie_net::{Family, InvalidName, IpSetId, IpSetName};
use tortie_netfilter::{Member, MemberError, SetType, ip_set_name};

use crate::list::Listing;
use crate::plan::CommandFailure;
use crate::progress::{Progress, Reason};
use crate::spec::SetSpec;
use crate::tracker::Members;

#[cfg(test)]
mod tests;

/// Reason why a change of the desired state was refused, in whole or in part.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The set does not exist.
    #[error("IP set {0}: unknown")]
    UnknownSet(IpSetId),
    /// The id gives no valid name in the kernel; the set was not added.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Another set has the same name in the kernel; the set was not added.
    #[error("IP set {id}: has the same name in the kernel as {other}")]
    NameTaken {
        /// The set to be added.
        id: IpSetId,
        /// The set that has the name.
        other: IpSetId,
    },
    /// Invalid members were omitted; all others were accepted.
    #[error("IP set {id}: {count} members left out")]
    BadMembers {
        /// The set.
        id: IpSetId,
        /// Number of omitted members.
        count: usize,
        /// The error of the first of them.
        #[source]
        first: MemberError,
    },
}

/// Time and size budgets of the reconciler.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made to be filled in, with ..Default")]
pub struct Config {
    /// Maximum duration of a listing of all sets with members; above it, a background resync reads
    /// them one by one.
    pub list_all_limit: Duration,
    /// Time in a round for background reads of sets that are probably in sync; at least one set is
    /// read.
    pub background_budget: Duration,
    /// Number of members after which a restore text ends; the remaining members go into the next.
    pub members_per_restore: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            list_all_limit: Duration::from_millis(500),
            background_budget: Duration::from_millis(100),
            members_per_restore: 1 << 18,
        }
    }
}

/// Extent of a resync with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Resync {
    /// List the names now, and re-read the sets a few at a time, in between other work.
    Background,
    /// Discard the known state and read everything before the next write.
    Full,
}

impl From<Resync> for Reason {
    fn from(resync: Resync) -> Self {
        match resync {
            Resync::Background => Self::Background,
            Resync::Full => Self::Full,
        }
    }
}

/// Known state of a set in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Absent,
    /// The set exists and must be read before the next write.
    Unread,
    /// The set exists, but ipset cannot read it.
    Unreadable,
    Present(Listing),
}

/// Recent failures of a set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    pub(crate) failures: u32,
    pub(crate) last: Option<CommandFailure>,
    /// Earliest time of the next attempt.
    pub(crate) retry_at: Duration,
    pub(crate) list_failures: u32,
    /// The kernel refused to swap the existing set; it has to be destroyed first.
    pub(crate) swap_refused: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct SetState {
    pub(crate) id: IpSetId,
    pub(crate) desired: Option<SetSpec>,
    pub(crate) kernel: Kernel,
    pub(crate) members: Members,
    halves: Halves,
    pub(crate) health: Health,
}

/// The network of length 0 is stored as its two halves, each of which may also be desired itself.
#[derive(Clone, Copy, Debug, Default)]
struct Halves {
    whole: bool,
    own: [bool; 2],
}

/// Operation that a set needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Create,
    /// Add and delete members.
    Members,
    /// Fill a temporary set and swap.
    Swap,
    /// Destroy the existing set and create it again, since the kernel does not swap different
    /// types.
    Recreate,
}

impl SetState {
    fn new(id: IpSetId, set_type: SetType, kernel: Kernel) -> Self {
        Self {
            id,
            desired: None,
            kernel,
            members: Members::new(set_type),
            halves: Halves::default(),
            health: Health::default(),
        }
    }

    pub(crate) fn need(&self, family: Family) -> Need {
        let Some(spec) = self.desired else {
            return Need::Nothing;
        };
        match self.kernel {
            Kernel::Unread => Need::Nothing,
            Kernel::Absent => Need::Create,
            Kernel::Unreadable if spec.has_foreign_members() => Need::Nothing,
            Kernel::Unreadable if self.health.swap_refused => Need::Recreate,
            Kernel::Unreadable => Need::Swap,
            Kernel::Present(listing) if spec.has_foreign_members() => {
                if listing.is_swappable(&spec, family) {
                    Need::Nothing
                } else {
                    Need::Recreate
                }
            }
            Kernel::Present(listing) if listing.is_exactly(&spec, family) => {
                let room = self.members.in_sync_len() < spec.max_elements();
                let add = self.members.missing_len() > 0 && room;
                if add || self.members.surplus_len() > 0 { Need::Members } else { Need::Nothing }
            }
            Kernel::Present(listing) if listing.is_swappable(&spec, family) => Need::Swap,
            Kernel::Present(_) => Need::Recreate,
        }
    }

    /// Records that the kernel holds `member`, in a set of this type.
    pub(crate) fn observe(&mut self, set_type: Option<SetType>, member: Member) {
        let is_of_set = |spec: &SetSpec| !spec.has_foreign_members() && Some(spec.set_type()) == set_type;
        if self.desired.as_ref().is_some_and(is_of_set) {
            self.members.observe(member);
        }
    }

    pub(crate) fn is_overfull(&self) -> bool {
        self.desired.is_some_and(|spec| self.members.desired_len() > spec.max_elements())
    }

    fn edit(&mut self, member: Member, wanted: bool) {
        let net = match member {
            Member::Net(net) if self.stores_no_zero_prefix() => Some(net.cidr()),
            _ => None,
        };
        match net {
            Some(net) if net.prefix_len() == 0 => {
                self.halves.whole = wanted;
                for (half, own) in net.split_default_route().zip(self.halves.own) {
                    self.track(half.into(), wanted || own);
                }
            }
            Some(net) if net.prefix_len() == 1 => {
                let [lower, upper] = &mut self.halves.own;
                *(if net.bits() == 0 { lower } else { upper }) = wanted;
                self.track(member, wanted || self.halves.whole);
            }
            _ => self.track(member, wanted),
        }
    }

    fn stores_no_zero_prefix(&self) -> bool {
        self.desired.is_some_and(|spec| spec.set_type() == SetType::HashNet)
    }

    fn track(&mut self, member: Member, wanted: bool) {
        if wanted {
            self.members.add_desired(member);
        } else {
            self.members.unwant(member);
        }
    }

    fn unwant_all(&mut self) {
        self.members.unwant_all();
        self.halves = Halves::default();
    }
}

/// The IP sets of one family: desired, observed and pending state.
///
/// The [crate documentation](crate) shows the use. All changes of the desired state are cheap, and
/// changes that cancel out before the next plan cause no write.
#[derive(Clone, Debug)]
pub struct IpSets {
    pub(crate) family: Family,
    pub(crate) config: Config,
    /// Desired sets, and those no longer desired whose members are still known.
    pub(crate) sets: BTreeMap<IpSetName, SetState>,
    /// Sets that may need to be written.
    pub(crate) dirty: BTreeSet<IpSetName>,
    /// Desired sets with more members than the maximum.
    pub(crate) overfull: BTreeSet<IpSetName>,
    /// Our sets in the kernel that are not desired, including temporary ones.
    pub(crate) to_destroy: BTreeSet<IpSetName>,
    /// Sets that could not be destroyed; retried after the next listing.
    pub(crate) not_destroyed: BTreeSet<IpSetName>,
    /// Sets to be read before the next write.
    pub(crate) must_read: BTreeSet<IpSetName>,
    /// Sets to be read in the background.
    pub(crate) may_read: VecDeque<IpSetName>,
    pub(crate) next_temporary: u64,
    pub(crate) wanted: usize,
    pub(crate) progress: Progress,
}

impl IpSets {
    /// Returns an instance without desired sets, which reads the kernel in full first.
    #[must_use]
    pub fn new(family: Family, config: Config) -> Self {
        Self {
            family,
            config,
            sets: BTreeMap::new(),
            dirty: BTreeSet::new(),
            overfull: BTreeSet::new(),
            to_destroy: BTreeSet::new(),
            not_destroyed: BTreeSet::new(),
            must_read: BTreeSet::new(),
            may_read: VecDeque::new(),
            next_temporary: 0,
            wanted: 0,
            progress: Progress::new(),
        }
    }

    /// The family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns the number of desired sets.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.wanted
    }

    /// Returns the number of our sets in the kernel that are not desired, as of the last listing:
    /// sets to be destroyed, and sets that could not be destroyed.
    #[must_use]
    pub fn unwanted(&self) -> usize {
        self.to_destroy.len() + self.not_destroyed.len()
    }

    /// Iterates over the desired sets with more members than the maximum, of which the kernel holds
    /// only a part.
    pub fn overfull(&self) -> impl Iterator<Item = &IpSetId> {
        // Not from `self.overfull`, which omits sets that are being read.
        self.sets.values().filter(|state| state.is_overfull()).map(|state| &state.id)
    }

    /// Reports whether no sets are desired.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.wanted == 0
    }

    /// Adds a desired set with exactly these members, or replaces it. Members of the
    /// other family are ignored.
    ///
    /// # Errors
    /// [`UpdateError::Name`] or [`UpdateError::NameTaken`] (and nothing changes), or
    /// [`UpdateError::BadMembers`] (and all others are accepted).
    pub fn add_or_replace(
        &mut self,
        id: &IpSetId,
        spec: SetSpec,
        members: impl IntoIterator<Item = impl Into<Member>>,
    ) -> Result<(), UpdateError> {
        let name = ip_set_name(self.family, id)?;
        if let Some(state) = self.sets.get(&name)
            && state.desired.is_some()
            && state.id != *id
        {
            return Err(UpdateError::NameTaken { id: id.clone(), other: state.id.clone() });
        }
        let is_there = self.to_destroy.remove(&name) | self.not_destroyed.remove(&name);
        let state = self.sets.entry(name).or_insert_with(|| {
            let kernel = if is_there {
                self.must_read.insert(name);
                Kernel::Unread
            } else {
                Kernel::Absent
            };
            SetState::new(id.clone(), spec.set_type(), kernel)
        });
        state.id = id.clone();
        let before = state.desired.replace(spec);
        if before.is_none() {
            self.wanted += 1;
        }
        if state.members.holds(spec.set_type()) {
            state.unwant_all();
        } else {
            // The kernel's members are of another kind; all of them go with the old set.
            state.members = Members::new(spec.set_type());
            state.halves = Halves::default();
        }
        let result = Self::edit(state, self.family, members, true);
        self.written_sets(&name);
        result
    }

    /// Adds desired members. Members of the other family are ignored.
    ///
    /// # Errors
    /// [`UpdateError::UnknownSet`], or [`UpdateError::BadMembers`] (and all others are accepted).
    pub fn add_members(
        &mut self,
        id: &IpSetId,
        members: impl IntoIterator<Item = impl Into<Member>>,
    ) -> Result<(), UpdateError> {
        self.edit_members(id, members, true)
    }

    /// Removes desired members. Members of the other family are ignored.
    ///
    /// # Errors
    /// [`UpdateError::UnknownSet`], or [`UpdateError::BadMembers`] (and all others are accepted).
    pub fn remove_members(
        &mut self,
        id: &IpSetId,
        members: impl IntoIterator<Item = impl Into<Member>>,
    ) -> Result<(), UpdateError> {
        self.edit_members(id, members, false)
    }

    /// Removes a desired set. A later [`plan_deletions`](Self::plan_deletions) destroys it.
    ///
    /// # Errors
    /// [`UpdateError::UnknownSet`].
    #[expect(clippy::expect_used, reason = "the set was found by its name")]
    pub fn remove(&mut self, id: &IpSetId) -> Result<(), UpdateError> {
        let name = self.desired_name(id)?;
        self.dirty.remove(&name);
        self.overfull.remove(&name);
        self.must_read.remove(&name);
        self.wanted -= 1;
        let state = self.sets.get_mut(&name).expect("a known set is present");
        state.desired = None;
        state.health = Health::default();
        state.unwant_all();
        if state.kernel != Kernel::Absent {
            self.to_destroy.insert(name);
        }
        if !matches!(state.kernel, Kernel::Present(_)) {
            // Its members are not known and need not be kept.
            self.sets.remove(&name);
        }
        Ok(())
    }

    /// Requests a resync with the kernel. Of several requests before the next plan the most
    /// extensive counts.
    pub fn queue_resync(&mut self, resync: Resync) {
        self.progress.want_listing(resync.into());
    }

    /// Returns the desired type and size of a set.
    #[must_use]
    pub fn spec(&self, id: &IpSetId) -> Option<SetSpec> {
        let name = self.desired_name(id).ok()?;
        self.sets.get(&name)?.desired
    }

    /// Returns the desired members of a set, in order.
    #[must_use]
    pub fn desired_members(&self, id: &IpSetId) -> Option<Vec<Member>> {
        let name = self.desired_name(id).ok()?;
        Some(self.sets.get(&name)?.members.desired())
    }

    /// Iterates over the ids of the desired sets, in the order of their names in the kernel.
    pub fn ids(&self) -> impl Iterator<Item = &IpSetId> {
        self.sets.values().filter(|state| state.desired.is_some()).map(|state| &state.id)
    }

    fn desired_name(&self, id: &IpSetId) -> Result<IpSetName, UpdateError> {
        let name = ip_set_name(self.family, id).ok();
        let is_known = |name: &IpSetName| self.sets.get(name).is_some_and(|s| s.desired.is_some() && s.id == *id);
        name.filter(is_known).ok_or_else(|| UpdateError::UnknownSet(id.clone()))
    }

    #[expect(clippy::expect_used, reason = "the set was found by its name")]
    fn edit_members(
        &mut self,
        id: &IpSetId,
        members: impl IntoIterator<Item = impl Into<Member>>,
        wanted: bool,
    ) -> Result<(), UpdateError> {
        let name = self.desired_name(id)?;
        let state = self.sets.get_mut(&name).expect("a known set is present");
        let result = Self::edit(state, self.family, members, wanted);
        self.written_sets(&name);
        result
    }

    #[expect(clippy::expect_used, reason = "only members of desired sets are edited")]
    fn edit(
        state: &mut SetState,
        family: Family,
        members: impl IntoIterator<Item = impl Into<Member>>,
        wanted: bool,
    ) -> Result<(), UpdateError> {
        let spec = state.desired.expect("the set is desired");
        let mut bad = None;
        let mut count = 0;
        for member in members {
            let member: Member = member.into();
            if member.family().is_some_and(|f| f != family) {
                continue;
            }
            match check(&spec, member) {
                Ok(()) => state.edit(member, wanted),
                Err(error) => {
                    count += 1;
                    bad.get_or_insert(error);
                }
            }
        }
        match bad {
            None => Ok(()),
            Some(first) => Err(UpdateError::BadMembers { id: state.id.clone(), count, first }),
        }
    }

    /// Records that the desired or the known state of the set has changed.
    pub(crate) fn written_sets(&mut self, name: &IpSetName) {
        let Some(state) = self.sets.get_mut(name) else {
            return;
        };
        // The new content may succeed where the last one failed.
        state.health.retry_at = Duration::ZERO;
        self.reconsider(name);
    }

    /// Updates the set's entries in `dirty` and `overfull`.
    pub(crate) fn reconsider(&mut self, name: &IpSetName) {
        let Some(state) = self.sets.get(name) else {
            self.dirty.remove(name);
            self.overfull.remove(name);
            return;
        };
        file(&mut self.dirty, name, state.need(self.family) != Need::Nothing);
        file(&mut self.overfull, name, state.is_overfull());
    }
}

fn file(set: &mut BTreeSet<IpSetName>, name: &IpSetName, belongs: bool) {
    if !belongs {
        set.remove(name);
    } else if !set.contains(name) {
        set.insert(*name);
    }
}

fn check(spec: &SetSpec, member: Member) -> Result<(), MemberError> {
    let set_type = spec.set_type();
    if spec.has_foreign_members() {
        return Err(MemberError::WrongKind { set_type, member });
    }
    member.check(set_type)?;
    match member {
        Member::Port(port) if !spec.has_port(port) => Err(MemberError::WrongKind { set_type, member }),
        _ => Ok(()),
    }
}
