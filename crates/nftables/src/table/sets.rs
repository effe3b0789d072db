//! The desired sets.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_net::{Cidr, Family, IpSetId};
use tortie_netfilter::{Member, SetType};

use crate::names::SetName;
use crate::set::{Networks, SetKind};

/// Reason why a change of a set was not accepted, or not completely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(clippy::exhaustive_enums, reason = "callers that define sets must handle all variants")]
pub enum UpdateError {
    /// There is no set with this id.
    #[error("set {0}: unknown")]
    UnknownSet(IpSetId),
    /// Two ids have one name.
    #[error("set {id}: has the same name in the kernel as {other}")]
    NameTaken {
        /// The set that was refused.
        id: IpSetId,
        /// The one that has the name.
        other: IpSetId,
    },
    /// Members that a set of this type cannot have; they were left out.
    #[error("set {id}: {count} members left out, the first: {first}")]
    BadMembers {
        /// The set.
        id: IpSetId,
        /// Number of these members.
        count: usize,
        /// The first of them.
        first: Member,
    },
}

/// A set that differs in the kernel from the desired one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("set {id}: {reason}")]
#[allow(clippy::exhaustive_structs, reason = "all that there is to say")]
pub struct SetProblem {
    /// The set.
    pub id: IpSetId,
    /// Its name in the kernel.
    pub name: SetName,
    /// The kernel's message.
    pub reason: String,
}

#[derive(Debug)]
pub(super) struct DesiredSet {
    id: IpSetId,
    pub(super) kind: SetKind,
    members: Members,
    /// Whether another program keeps the members in the kernel.
    pub(super) has_foreign_members: bool,
    /// Since the kernel was last compared with it.
    changed_members: ChangedMembers,
    /// Reason of the kernel's refusal, and time of the retry.
    refused: Option<(String, Duration)>,
}

/// Members that may differ in the kernel.
#[derive(Debug)]
pub(super) enum ChangedMembers {
    /// Any.
    All,
    /// Only these, of which some may be listed several times.
    Some(Vec<Member>),
}

#[derive(Debug)]
enum Members {
    /// Networks, of which some may contain others.
    Networks(Networks),
    Plain(BTreeSet<Member>),
}

impl Members {
    fn new(kind: SetKind) -> Self {
        if kind == SetKind::Networks { Self::Networks(Networks::default()) } else { Self::Plain(BTreeSet::new()) }
    }

    /// Adds or removes a member, and passes the resulting changes of the kernel's elements to
    /// `touch`.
    fn edit(&mut self, member: Member, is_wanted: bool, touch: impl FnMut(Member)) {
        match (self, member) {
            (Self::Networks(nets), Member::Net(net)) => {
                let net: Cidr = net.cidr();
                let change = if is_wanted { nets.insert(net) } else { nets.remove(net) };
                change.removed.into_iter().chain(change.added).map(Member::from).for_each(touch);
            }
            (Self::Plain(members), member) => {
                let has_changed = if is_wanted { members.insert(member) } else { members.remove(&member) };
                has_changed.then_some(member).into_iter().for_each(touch);
            }
            (Self::Networks(_), _) => {}
        }
    }

    fn has(&self, member: &Member) -> bool {
        match (self, member) {
            (Self::Networks(nets), Member::Net(net)) => nets.is_effective(net.cidr()),
            (Self::Plain(members), member) => members.contains(member),
            (Self::Networks(_), _) => false,
        }
    }

    /// Reports whether it is a member, inside of another or not.
    fn contains(&self, member: &Member) -> bool {
        match (self, member) {
            (Self::Networks(nets), Member::Net(net)) => nets.has(net.cidr()),
            (Self::Plain(members), member) => members.contains(member),
            (Self::Networks(_), _) => false,
        }
    }

    /// Returns all members, including those inside of others.
    fn all(&self) -> Box<dyn Iterator<Item = Member> + '_> {
        match self {
            Self::Networks(nets) => Box::new(nets.all().map(Member::from)),
            Self::Plain(members) => Box::new(members.iter().copied()),
        }
    }
}

impl DesiredSet {
    pub(super) fn new(id: IpSetId, set_type: SetType) -> Self {
        let kind = SetKind::of(set_type);
        let (members, changed_members) = (Members::new(kind), ChangedMembers::All);
        Self { id, kind, members, has_foreign_members: false, changed_members, refused: None }
    }

    /// Leaves the members in the kernel to another program.
    pub(super) const fn leave_members(&mut self) {
        self.has_foreign_members = true;
    }

    pub(super) const fn id(&self) -> &IpSetId {
        &self.id
    }

    pub(super) fn problem(&self, name: SetName) -> Option<SetProblem> {
        let (reason, _) = self.refused.clone()?;
        Some(SetProblem { id: self.id.clone(), name, reason })
    }

    pub(super) fn replace(
        &mut self,
        family: Family,
        set_type: SetType,
        members: impl IntoIterator<Item = Member>,
    ) -> Result<(), UpdateError> {
        self.kind = SetKind::of(set_type);
        self.members = Members::new(self.kind);
        self.has_foreign_members = false;
        self.changed_members = ChangedMembers::All;
        self.edit(family, members, [])
    }

    /// Adds and removes members. Those of the other family are ignored.
    pub(super) fn edit(
        &mut self,
        family: Family,
        added: impl IntoIterator<Item = Member>,
        removed: impl IntoIterator<Item = Member>,
    ) -> Result<(), UpdateError> {
        self.refused = None;
        let (mut bad, mut count) = (None, 0);
        let changes =
            removed.into_iter().map(|member| (member, false)).chain(added.into_iter().map(|member| (member, true)));
        for (member, is_wanted) in changes {
            if member.family().is_some_and(|of| of != family) {
                continue;
            }
            if self.kind.takes(&member) {
                let changed_members = &mut self.changed_members;
                self.members.edit(member, is_wanted, |member| changed_members.add(member));
            } else {
                bad.get_or_insert(member);
                count += 1;
            }
        }
        bad.map_or(Ok(()), |first| Err(UpdateError::BadMembers { id: self.id.clone(), count, first }))
    }

    /// The kernel refuses it. Returns whether that is new.
    pub(super) fn refuse(&mut self, reason: String, retry_at: Duration) -> bool {
        self.changed_members = ChangedMembers::All;
        self.refused.replace((reason, retry_at)).is_none()
    }

    /// Whether it is left as it is, because the kernel refuses it.
    pub(super) const fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Time of the retry.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        self.refused.as_ref().map(|(_, at)| *at)
    }

    /// Starts a retry.
    pub(super) fn retry(&mut self) {
        self.refused = None;
    }

    /// Returns the members that may differ in the kernel.
    pub(super) const fn changed_members(&self) -> &ChangedMembers {
        &self.changed_members
    }

    /// Notes that the kernel's set equals the desired one.
    pub(super) fn settle(&mut self) {
        self.changed_members = ChangedMembers::Some(Vec::new());
    }

    /// Notes that the kernel's set is unknown.
    pub(super) fn doubt(&mut self) {
        self.changed_members = ChangedMembers::All;
    }

    /// Returns the members among these that change the set: with `is_wanted` those that it takes
    /// and does not have yet, otherwise those that it has.
    pub(super) fn that_change(&self, family: Family, members: &[Member], is_wanted: bool) -> Vec<Member> {
        let mut known = BTreeSet::new();
        let takes = |member: &&Member| {
            member.family().is_none_or(|of| of == family)
                && self.kind.takes(member)
                && self.members.contains(member) != is_wanted
        };
        members.iter().filter(takes).copied().filter(|member| known.insert(*member)).collect()
    }

    /// Whether the kernel is to have a member.
    pub(super) fn has(&self, member: &Member) -> bool {
        self.members.has(member)
    }

    /// Returns all desired members.
    pub(super) fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.members.all()
    }

    /// Returns the desired elements in the kernel: without networks inside others.
    pub(super) fn elements(&self) -> Box<dyn Iterator<Item = Member> + '_> {
        match &self.members {
            Members::Networks(nets) => Box::new(nets.effective().map(Member::from)),
            Members::Plain(members) => Box::new(members.iter().copied()),
        }
    }
}

impl ChangedMembers {
    fn add(&mut self, member: Member) {
        if let Self::Some(members) = self {
            members.push(member);
        }
    }
}
