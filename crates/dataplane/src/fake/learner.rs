//! A learner that remembers its commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_dns::{Cluster, Scope, Settings};
use tortie_model::{DomainPattern, IpSetId};

use crate::domains::{DomainLearner, LearnerCommand, LearnerError, Shard};

/// A learner in memory. It learns nothing.
#[derive(Clone, Debug, Default)]
pub struct FakeLearner {
    /// The settings.
    pub settings: Option<Settings>,
    /// Pools and nodes.
    pub cluster: Option<Cluster>,
    /// The patterns of each set.
    pub sets: BTreeMap<IpSetId, Arc<[DomainPattern]>>,
    /// Owner, shard and sets of each scope.
    pub scopes: BTreeMap<Scope, (u64, Shard, Vec<IpSetId>)>,
    /// All commands since the test emptied the list.
    pub commands: Vec<LearnerCommand>,
    /// Number of following calls that fail without an effect.
    pub failures: usize,
    /// Whether it ends before the next apply of the dataplane, and loses everything.
    pub ends: bool,
}

impl DomainLearner for FakeLearner {
    fn has_ended(&mut self) -> bool {
        let has_ended = self.ends;
        if has_ended {
            *self = Self::default();
        }
        has_ended
    }

    fn apply(&mut self, commands: Vec<LearnerCommand>) -> Result<(), LearnerError> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(LearnerError::Ended);
        }
        for command in &commands {
            match command.clone() {
                LearnerCommand::SetSettings(settings) => self.settings = Some(settings),
                LearnerCommand::SetCluster(cluster) => self.cluster = Some(cluster),
                LearnerCommand::SetDomains { set, patterns } => drop(self.sets.insert(set, patterns)),
                LearnerCommand::RemoveDomains(set) => drop(self.sets.remove(&set)),
                LearnerCommand::SetScope { scope, owner, shard, sets, .. } => {
                    self.scopes.insert(scope, (owner, shard, sets));
                }
                LearnerCommand::RemoveScope(scope) => drop(self.scopes.remove(&scope)),
            }
        }
        self.commands.extend(commands);
        Ok(())
    }
}
