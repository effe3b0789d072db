//! The state of the learner, as of its last successful commands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_dns::{Cluster, Scope, Settings};
use tortie_model::{DomainPattern, IpSetId};
use tortie_netfilter::DomainSetPart;

use super::scopes::{LearningScope, Scopes};
use crate::domains::LearnerCommand;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Told {
    has_settings: bool,
    has_cluster: bool,
    sets: BTreeMap<IpSetId, Arc<[DomainPattern]>>,
    scopes: BTreeMap<Scope, LearningScope>,
    in_doubt: InDoubt,
}

/// Objects of failed commands, of which any part may be in effect.
#[derive(Debug, Default)]
struct InDoubt {
    sets: BTreeSet<IpSetId>,
    /// With owners that a scope may have besides the last one told, at most two.
    scopes: BTreeMap<Scope, BTreeSet<u64>>,
}

type Existing<'a> = BTreeMap<&'a IpSetId, &'a Arc<[DomainPattern]>>;

impl Told {
    pub(super) fn cluster_changed(&mut self) {
        self.has_cluster = false;
    }

    /// Reports whether the learner has neither sets nor scopes.
    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
            && self.scopes.is_empty()
            && self.in_doubt.sets.is_empty()
            && self.in_doubt.scopes.is_empty()
    }

    pub(super) fn has_set(&self, id: &IpSetId) -> bool {
        self.sets.contains_key(id)
    }

    /// Reports whether the learner may write to a part of a set.
    pub(super) fn writes_to(&self, id: &IpSetId, part: DomainSetPart) -> bool {
        let is_of = |(scope, told): (&Scope, &LearningScope)| match part {
            DomainSetPart::Interfaces(shard) => *scope != Scope::Host && told.shard == shard,
            DomainSetPart::Host => *scope == Scope::Host,
        };
        self.sets.contains_key(id) && self.scopes.iter().any(is_of)
    }

    /// Returns the learning scopes that may still have the members of another endpoint.
    pub(super) fn unemptied(&self, scopes: &Scopes) -> impl Iterator<Item = Scope> {
        let has_others = |scope: &Scope, wanted: &LearningScope| {
            let told = self.scopes.get(scope).map(|told| told.owner);
            let in_doubt = self.in_doubt.scopes.get(scope).into_iter().flatten().copied();
            in_doubt.chain(told).any(|owner| owner != wanted.owner)
        };
        scopes.iter().filter(move |(scope, wanted)| has_others(scope, wanted)).map(|(scope, _)| scope)
    }

    /// Returns the scope as the learner has it, unless that is in doubt.
    fn scope(&self, scope: Scope) -> Option<&LearningScope> {
        self.scopes.get(&scope).filter(|_| !self.in_doubt.scopes.contains_key(&scope))
    }

    /// Returns the commands that must precede new chains. An endpoint keeps the sets of its former
    /// policies until these have been replaced; another endpoint gets an empty scope.
    pub(super) fn before(
        &self,
        settings: &Settings,
        cluster: &Cluster,
        existing: &Existing<'_>,
        scopes: &Scopes,
    ) -> Vec<LearnerCommand> {
        let mut commands = Vec::new();
        commands.extend((!self.has_settings).then(|| LearnerCommand::SetSettings(settings.clone())));
        commands.extend((!self.has_cluster).then(|| LearnerCommand::SetCluster(cluster.clone())));
        let gone =
            self.scopes.iter().filter(|(scope, told)| !scopes.has(**scope) && !scopes.is_ending(**scope, told.owner));
        commands.extend(gone.map(|(scope, _)| LearnerCommand::RemoveScope(*scope)));
        commands.extend(self.changed_sets(existing));
        commands.extend(scopes.iter().filter_map(|(scope, wanted)| {
            let told = self.scope(scope);
            if told == Some(wanted) {
                return None;
            }
            let mut next = wanted.clone();
            if let Some(told) = self.scopes.get(&scope).filter(|told| told.owner == wanted.owner) {
                next.sets.extend(told.sets.iter().cloned());
            }
            (told != Some(&next)).then(|| set_scope(scope, &next))
        }));
        commands
    }

    /// Returns the commands that may follow only when the new chains are in the kernel.
    pub(super) fn after(&self, existing: &Existing<'_>, scopes: &Scopes) -> Vec<LearnerCommand> {
        let mut commands: Vec<LearnerCommand> = self.changed_sets(existing).collect();
        let differing = scopes.iter().filter(|(scope, wanted)| self.scope(*scope) != Some(wanted));
        commands.extend(differing.map(|(scope, wanted)| set_scope(scope, wanted)));
        let known: BTreeSet<&Scope> = self.scopes.keys().chain(self.in_doubt.scopes.keys()).collect();
        let gone = known.into_iter().filter(|scope| scopes.get(**scope).is_none());
        commands.extend(gone.map(|scope| LearnerCommand::RemoveScope(*scope)));
        let known: BTreeSet<&IpSetId> = self.sets.keys().chain(&self.in_doubt.sets).collect();
        let gone = known.into_iter().filter(|id| !existing.contains_key(id));
        commands.extend(gone.map(|id| LearnerCommand::RemoveDomains(id.clone())));
        commands
    }

    /// Returns the patterns of a set as the learner has it, unless that is in doubt.
    fn set(&self, id: &IpSetId) -> Option<&Arc<[DomainPattern]>> {
        self.sets.get(id).filter(|_| !self.in_doubt.sets.contains(id))
    }

    /// Returns a command for each set that is new or has other patterns than before.
    fn changed_sets<'a>(&self, existing: &'a Existing<'a>) -> impl Iterator<Item = LearnerCommand> {
        // Lists may be long, so their text is not compared in each apply.
        let is_told = |told: &Arc<[DomainPattern]>, patterns| Arc::ptr_eq(told, patterns);
        let changed =
            existing.iter().filter(move |(id, patterns)| !self.set(id).is_some_and(|told| is_told(told, patterns)));
        changed.map(|(id, patterns)| LearnerCommand::SetDomains { set: (*id).clone(), patterns: Arc::clone(patterns) })
    }

    /// Notes that the learner has failed to apply these commands, or a part of them.
    pub(super) fn note_failed(&mut self, commands: Vec<LearnerCommand>) {
        for command in commands {
            match command {
                LearnerCommand::SetSettings(_) => self.has_settings = false,
                LearnerCommand::SetCluster(_) => self.has_cluster = false,
                LearnerCommand::SetDomains { set, .. } | LearnerCommand::RemoveDomains(set) => {
                    self.in_doubt.sets.insert(set);
                }
                LearnerCommand::SetScope { scope, owner, .. } => {
                    let owners = self.in_doubt.scopes.entry(scope).or_default();
                    // Any endpoint differs from one of two.
                    if owners.len() < 2 {
                        owners.insert(owner);
                    }
                }
                LearnerCommand::RemoveScope(scope) => drop(self.in_doubt.scopes.entry(scope).or_default()),
            }
        }
    }

    /// Notes that the learner has applied a command.
    pub(super) fn note(&mut self, command: LearnerCommand) {
        match &command {
            LearnerCommand::SetSettings(_) | LearnerCommand::SetCluster(_) => {}
            LearnerCommand::SetDomains { set, .. } | LearnerCommand::RemoveDomains(set) => {
                self.in_doubt.sets.remove(set);
            }
            LearnerCommand::SetScope { scope, .. } | LearnerCommand::RemoveScope(scope) => {
                self.in_doubt.scopes.remove(scope);
            }
        }
        match command {
            LearnerCommand::SetSettings(_) => self.has_settings = true,
            LearnerCommand::SetCluster(_) => self.has_cluster = true,
            LearnerCommand::SetDomains { set, patterns } => {
                self.sets.insert(set, patterns);
            }
            LearnerCommand::RemoveDomains(set) => {
                self.sets.remove(&set);
            }
            LearnerCommand::SetScope { scope, owner, namespace, shard, sets } => {
                let sets = sets.into_iter().collect();
                self.scopes.insert(scope, LearningScope { owner, namespace, shard, sets });
            }
            LearnerCommand::RemoveScope(scope) => {
                self.scopes.remove(&scope);
            }
        }
    }
}

fn set_scope(scope: Scope, learning: &LearningScope) -> LearnerCommand {
    let LearningScope { owner, namespace, shard, sets } = learning;
    let (namespace, sets) = (Arc::clone(namespace), sets.iter().cloned().collect());
    LearnerCommand::SetScope { scope, owner: *owner, namespace, shard: *shard, sets }
}
