//! Policies and profiles, compiled.

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;
use tortie_evaluate::Missing;
use tortie_model::desired::Rules;
use tortie_model::{Direction, IpSetId, PolicyId, ProfileName, RuleAction};

use crate::addresses::Addresses;
use crate::budget::{Budget, clauses};
use crate::clause::{CompiledRule, Compiler};
use crate::cuts::Cuts;
use crate::ids::{GroupId, OwnerId, Slab};
use crate::line::{L4_END, PORTS_END};
use crate::program::{CompiledRules, RuleSource};
use crate::sets::{NetLists, Sets};

mod compilation;
mod refusals;

use compilation::{Compilation, Replaced};
use refusals::{Refusal, Room};

/// Policy or profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum OwnerKey {
    Policy(PolicyId),
    Profile(ProfileName),
}

impl OwnerKey {
    fn missing(&self) -> Missing {
        match self {
            Self::Policy(id) => Missing::Policy(id.clone()),
            Self::Profile(name) => Missing::Profile(name.clone()),
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Policy(id) => &id.namespace,
            Self::Profile(_) => "",
        }
    }

    /// Returns the error of rules that become more clauses than fit into `limit` bytes.
    fn over(&self, limit: usize) -> Missing {
        Missing::TableBudget { limit, policies: self.policy().into_iter().cloned().collect() }
    }

    fn policy(&self) -> Option<&PolicyId> {
        match self {
            Self::Policy(id) => Some(id),
            Self::Profile(_) => None,
        }
    }
}

/// A policy or profile that was sent, or that groups refer to.
#[derive(Clone, Debug)]
struct Owner {
    key: OwnerKey,
    /// Inbound and outbound.
    rules: Option<[Rules; 2]>,
    compiled: [Compilation; 2],
    groups: AHashMap<GroupId, Direction>,
    is_pending: bool,
    refusal: Option<Refusal>,
}

/// The rules of a policy for one direction.
pub(crate) struct PolicyRules<'a> {
    pub(crate) policy: &'a PolicyId,
    pub(crate) direction: Direction,
    pub(crate) rules: &'a Rules,
    /// Those that can match.
    pub(crate) compiled: &'a [CompiledRule],
}

/// All policies and profiles, with the IP sets and lists of networks that their rules use.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    owners: Slab<OwnerId, Owner>,
    ids: AHashMap<OwnerKey, OwnerId>,
    set_users: AHashMap<IpSetId, AHashSet<OwnerId>>,
    lists: NetLists,
    /// Points at which rules of policies and profiles distinguish packets.
    pub(crate) l4: Cuts,
    pub(crate) source_ports: Cuts,
    pending: Vec<OwnerId>,
    /// Whether rules of policies are compiled that only log.
    logs: bool,
    /// Whether rules match learned addresses.
    learns: bool,
    /// Networks of atoms after the last refusal of a policy for inherited atoms; `None` if none is
    /// refused.
    refused_at: Option<usize>,
    room: Room,
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self {
            owners: Slab::default(),
            ids: AHashMap::new(),
            set_users: AHashMap::new(),
            lists: NetLists::default(),
            l4: Cuts::new(L4_END),
            source_ports: Cuts::new(PORTS_END),
            pending: Vec::new(),
            logs: false,
            learns: false,
            refused_at: None,
            room: Room::default(),
        }
    }

    /// Reports whether a policy of some group has a rule that only logs.
    pub(crate) fn has_logs(&self) -> bool {
        self.policies().any(|policy| policy.rules.iter().any(|rule| rule.action() == RuleAction::Log))
    }

    /// Also compiles policy rules that only log, which are left out otherwise.
    pub(crate) fn compile_logs(&mut self) {
        self.logs = true;
        let is_log = |rules: &Rules| rules.iter().any(|rule| rule.action() == RuleAction::Log);
        let logging = self.owners.iter().filter(|(_, owner)| owner.rules.iter().flatten().any(is_log));
        let logging: Vec<OwnerId> = logging.map(|(id, _)| id).collect();
        logging.into_iter().for_each(|id| self.set_pending(id));
    }

    /// Compiles rules by domain name from now on.
    pub(crate) fn set_learns(&mut self) {
        self.learns = true;
        self.recompile();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owners.len() == 0
            && self.ids.is_empty()
            && self.set_users.is_empty()
            && self.lists.is_empty()
            && self.l4.is_empty()
            && self.source_ports.is_empty()
    }

    /// Marks all policies and profiles for compilation, for another budget.
    pub(crate) fn recompile(&mut self) {
        self.retry_inherited();
        let all: Vec<OwnerId> = self.owners.iter().map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.set_pending(id));
    }

    /// Replaces the rules, inbound and outbound; `None` removes them.
    pub(crate) fn set(&mut self, key: &OwnerKey, rules: Option<[Rules; 2]>) {
        let id = self.id(key);
        let owner = self.owners.at_mut(id);
        let before = std::mem::replace(&mut owner.rules, rules);
        let refusal = owner.refusal.take();
        if refusal == Some(Refusal::Room) {
            // It stays refused until the next division of the tries, so that its networks need not
            // be added to them before.
            owner.refusal = refusal.filter(|_| owner.rules.is_some());
            self.room.is_stale |= refusals::nets_differ(before.as_ref(), owner.rules.as_ref());
        }
        for set in sets(before.as_ref()) {
            if let Some(users) = self.set_users.get_mut(set) {
                users.remove(&id);
                if users.is_empty() {
                    self.set_users.remove(set);
                }
            }
        }
        for set in sets(owner.rules.as_ref()) {
            self.set_users.entry(set.clone()).or_default().insert(id);
        }
        self.set_edited(id);
    }

    /// Marks the rules with this set for compilation.
    pub(crate) fn set_changed(&mut self, id: &IpSetId) {
        let users: Vec<OwnerId> = self.set_users.get(id).into_iter().flatten().copied().collect();
        users.into_iter().for_each(|owner| self.set_pending(owner));
    }

    pub(crate) fn add_group(&mut self, key: &OwnerKey, group: GroupId, direction: Direction) {
        let id = self.id(key);
        self.owners.at_mut(id).groups.insert(group, direction);
    }

    pub(crate) fn remove_group(&mut self, key: &OwnerKey, group: GroupId) {
        let id = self.id(key);
        let owner = self.owners.at_mut(id);
        owner.groups.remove(&group);
        if owner.rules.is_none() && owner.groups.is_empty() {
            self.set_pending(id);
        }
    }

    /// The groups that a policy or profile has a part in, in no order.
    pub(crate) fn groups_of(&self, key: &OwnerKey) -> impl Iterator<Item = GroupId> + '_ {
        let owner = self.ids.get(key).map(|id| self.owners.at(*id));
        owner.into_iter().flat_map(|owner| owner.groups.keys().copied())
    }

    /// Returns the policies of all groups, with all their rules and those that can match, for each
    /// direction.
    pub(crate) fn policies(&self) -> impl Iterator<Item = PolicyRules<'_>> {
        self.owners.iter().filter(|(_, owner)| !owner.groups.is_empty()).flat_map(|(_, owner)| {
            let policy = owner.key.policy();
            let directions = [Direction::Ingress, Direction::Egress].into_iter().zip(owner.rules.iter().flatten());
            let rules = directions.zip(&owner.compiled);
            rules.filter_map(move |((direction, rules), compiled)| {
                let compiled = compiled.rules().as_deref().ok()?;
                let governs = owner.groups.values().any(|of| *of == direction);
                governs.then_some(PolicyRules { policy: policy?, direction, rules, compiled })
            })
        })
    }

    fn id(&mut self, key: &OwnerKey) -> OwnerId {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        let missing = || Compilation::failed(key.missing());
        let id = self.owners.insert(Owner {
            key: key.clone(),
            rules: None,
            compiled: [missing(), missing()],
            groups: AHashMap::new(),
            is_pending: false,
            refusal: None,
        });
        self.ids.insert(key.clone(), id);
        id
    }

    /// Marks all rules of a policy or profile for compilation.
    fn set_pending(&mut self, id: OwnerId) {
        self.owners.at_mut(id).compiled.iter_mut().for_each(Compilation::forget_source);
        self.set_edited(id);
    }

    /// Marks the rules of a policy or profile for compilation that differ from the last ones.
    fn set_edited(&mut self, id: OwnerId) {
        if !std::mem::replace(&mut self.owners.at_mut(id).is_pending, true) {
            self.pending.push(id);
        }
    }

    /// Compiles pending policies and profiles, and returns the groups to rebuild.
    pub(crate) fn flush(&mut self, sets: &mut Sets, addresses: &mut Addresses, budget: Budget) -> AHashSet<GroupId> {
        self.admit_sets(sets, addresses);
        let mut groups = self.compile_pending(sets, addresses, budget);
        let shrunk = sets.take_shrunk();
        if self.refused_at.is_some_and(|at| shrunk > 0 || addresses.wide() < at) {
            self.retry_inherited();
            self.admit_sets(sets, addresses);
            groups.extend(self.compile_pending(sets, addresses, budget));
        }
        while self.refuse_inherited(sets, addresses, budget) {
            self.settle_sets(sets, addresses);
            groups.extend(self.compile_pending(sets, addresses, budget));
            self.refused_at = Some(addresses.wide());
        }
        if self.room.must_divide(shrunk, addresses) {
            if self.divide_room(sets, addresses) {
                groups.extend(self.compile_pending(sets, addresses, budget));
            }
            addresses.set_divided();
        }
        groups
    }

    fn compile_pending(&mut self, sets: &Sets, addresses: &mut Addresses, budget: Budget) -> AHashSet<GroupId> {
        let mut groups = AHashSet::new();
        for id in std::mem::take(&mut self.pending) {
            let owner = self.owners.at_mut(id);
            owner.is_pending = false;
            let [inbound, outbound] = &mut owner.compiled;
            let replaced: [Replaced; 2] = match (&owner.rules, owner.refusal) {
                (Some(_), Some(refusal)) => {
                    let limit = if refusal == Refusal::Room { self.room.blocks } else { budget.group };
                    [inbound, outbound].map(|rules| rules.fail(refusal.error(&owner.key, limit)))
                }
                (Some([new_inbound, new_outbound]), None) => {
                    let logs = self.logs && matches!(owner.key, OwnerKey::Policy(_));
                    let over = owner.key.over(budget.policy());
                    let (lists, used) = (&mut self.lists, SmallVec::new());
                    let learns = self.learns;
                    let mut compiler =
                        Compiler { sets, lists, addresses, used, logs, learns, room: 0, over, widest: 0 };
                    [(inbound, new_inbound), (outbound, new_outbound)].map(|(rules, new)| {
                        compiler.room = clauses(budget);
                        rules.compile(new, &mut compiler)
                    })
                }
                (None, _) => [inbound, outbound].map(|rules| rules.fail(owner.key.missing())),
            };
            for clause in owner.compiled.iter().zip(&replaced).flat_map(|(new, replaced)| new.added_clauses(replaced)) {
                self.l4.cut(&clause.l4);
                self.source_ports.cut(&clause.source_port);
            }
            for clause in replaced.iter().flat_map(Replaced::removed_clauses) {
                self.l4.uncut(&clause.l4);
                self.source_ports.uncut(&clause.source_port);
            }
            replaced.iter().flat_map(|replaced| &replaced.lists).for_each(|list| self.lists.release(list, addresses));
            let [inbound, outbound] = replaced.map(|replaced| replaced.is_other);
            let is_other = |direction: Direction| match direction {
                Direction::Ingress => inbound,
                Direction::Egress => outbound,
            };
            groups.extend(owner.groups.iter().filter(|(_, direction)| is_other(**direction)).map(|(group, _)| *group));
            if owner.rules.is_none() && owner.groups.is_empty() {
                self.ids.remove(&owner.key);
                self.owners.remove(id);
            }
        }
        groups
    }

    fn compiled(&self, key: &OwnerKey, direction: Direction) -> CompiledRules {
        let id = self.ids.get(key).ok_or_else(|| key.missing())?;
        let [inbound, outbound] = &self.owners.at(*id).compiled;
        match direction {
            Direction::Ingress => inbound.rules().clone(),
            Direction::Egress => outbound.rules().clone(),
        }
    }
}

impl RuleSource for Owners {
    fn policy(&self, id: &PolicyId, direction: Direction) -> CompiledRules {
        self.compiled(&OwnerKey::Policy(id.clone()), direction)
    }

    fn profile(&self, name: &ProfileName, direction: Direction) -> CompiledRules {
        self.compiled(&OwnerKey::Profile(name.clone()), direction)
    }
}

fn sets(rules: Option<&[Rules; 2]>) -> impl Iterator<Item = &IpSetId> {
    rules.into_iter().flatten().flat_map(|rules| rules.iter().flat_map(|view| view.sets.iter()))
}
