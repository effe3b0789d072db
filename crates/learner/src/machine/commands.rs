//! Commands of the dataplane.

use std::collections::BTreeSet;

use tortie_dataplane::{LearnerCommand, Shard};
use tortie_dns::{Scope, Settings};
use tortie_linux::bpf::LEARNED_ENTRIES;
use tortie_model::IpSetId;

use super::Machine;
use super::scopes::{Learner, Place, part_of, placed};

/// Objects that commands name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) scopes: BTreeSet<Scope>,
    pub(crate) sets: BTreeSet<IpSetId>,
}

impl Objects {
    fn of(commands: &[LearnerCommand]) -> Self {
        let mut objects = Self::default();
        for command in commands {
            match command {
                LearnerCommand::SetSettings(_) | LearnerCommand::SetCluster(_) => {}
                LearnerCommand::SetDomains { set, .. } | LearnerCommand::RemoveDomains(set) => {
                    objects.sets.insert(set.clone());
                }
                LearnerCommand::SetScope { scope, .. } | LearnerCommand::RemoveScope(scope) => {
                    objects.scopes.insert(*scope);
                }
            }
        }
        objects
    }
}

/// Effect of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) objects: Objects,
    /// The commands are in force once this batch is done.
    pub(crate) needs: u64,
    /// A scope has a new owner: the cache is to be saved once the batch is done.
    pub(crate) has_new_owner: bool,
}

impl Machine {
    /// Applies commands in their order.
    pub(crate) fn apply(&mut self, commands: Vec<LearnerCommand>) -> Applied {
        let objects = Objects::of(&commands);
        let mut has_new_owner = false;
        for command in commands {
            match command {
                LearnerCommand::SetSettings(settings) => self.set_settings(settings),
                LearnerCommand::SetCluster(cluster) => self.learned.set_cluster(cluster),
                LearnerCommand::SetDomains { set, patterns } => {
                    self.learned.set_domains(&set, patterns);
                    self.sets.insert(set);
                }
                LearnerCommand::RemoveDomains(set) => {
                    self.sets.remove(&set);
                    self.forget_listed(&set);
                    self.learned.remove_domains(&set);
                    self.writes.forget_refused(&set);
                }
                LearnerCommand::SetScope { scope, owner, namespace, shard, sets } => {
                    has_new_owner |= self.set_scope(scope, owner, shard, sets);
                    self.learned.set_group(scope, &namespace);
                }
                LearnerCommand::RemoveScope(scope) => {
                    self.streams.remove_scope(scope);
                    self.learned.remove_scope(scope);
                    // The changes need the place of the scope.
                    self.note_changes();
                    self.scopes.remove(scope);
                }
            }
            // A set that is made anew meanwhile lacks the members that it had.
            self.note_changes();
        }
        self.forget_unused();
        Applied { objects, needs: self.writes.collected(), has_new_owner }
    }

    pub(super) fn set_settings(&mut self, mut settings: Settings) {
        settings.epoch = format!("{} {}", self.time_base, settings.epoch);
        if self.has_map {
            // Each scope has its share, since the map would refuse members of any.
            settings.limits.addresses = settings.limits.addresses.min(LEARNED_ENTRIES as usize);
        }
        self.learned.set_settings(settings);
    }

    /// Reports whether the scope has a new owner.
    fn set_scope(&mut self, scope: Scope, owner: u64, shard: Shard, sets: Vec<IpSetId>) -> bool {
        let before = self.scopes.get(scope).cloned();
        let wanted = Place { part: part_of(scope, shard), owner: if self.has_map { owner } else { 0 } };
        let is_new_owner = before.as_ref().is_none_or(|before| before.owner != owner);
        if is_new_owner {
            self.streams.remove_scope(scope);
        }
        let place = before.as_ref().map_or(wanted, |before| before.place);
        let (needs, budget) = before.map(|before| (before.needs, before.budget)).unwrap_or_default();
        self.scopes.insert(scope, Learner { owner, place, sets: sets.clone(), needs, budget });
        self.learned.set_scope(scope, owner, sets);
        self.note_changes();
        if place != wanted {
            self.move_members(scope, wanted);
        }
        is_new_owner
    }

    /// Moves the members of a scope to other sets of the kernel.
    fn move_members(&mut self, scope: Scope, place: Place) {
        let Some(learner) = self.scopes.get_mut(scope) else { return };
        let before = std::mem::replace(&mut learner.place, place);
        for set in &learner.sets {
            for member in self.learned.members(set).into_iter().filter(|member| member.scope == scope) {
                self.writes.note(placed(member.clone(), before), false);
                learner.needs = self.writes.note(placed(member, place), true);
            }
        }
    }
}
