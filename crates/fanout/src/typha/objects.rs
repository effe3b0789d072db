//! What a server's updates come to, also where they cannot be used.

use std::collections::{BTreeMap, HashMap};

use tortie_datastore::{Cover, InputProblem};
use tortie_model::{Key, LabelInterner, Update, Value};
use tortie_resources::v1::DecodeError;
use tortie_resources::{Position, Problem, Severity, path};

use super::messages::SerializedUpdate;
use super::update::{Reading, read_update};

/// The objects that a server tells of, as far as they have to be remembered: those that something else is put in place
/// of when they cannot be read. Pure.
///
/// A value that cannot be read does not open what was closed: the last good one stays. (The original deletes the object.)
/// Workload endpoints, services and their slices are too many to be kept; they are deleted.
#[derive(Debug, Default)]
pub(super) struct Objects {
    labels: LabelInterner,
    /// Whether objects are wanted that are only passed on.
    relayed: bool,
    /// Counts connections.
    generation: u64,
    good: HashMap<Key, (u64, Value)>,
    problems: BTreeMap<Key, (u64, InputProblem)>,
    changed: bool,
    updates: usize,
}

/// After how many updates label names that are not used any more are forgotten.
const SHRINK: usize = 100_000;

impl Objects {
    pub(super) fn new(relayed: bool) -> Self {
        Self { relayed, ..Self::default() }
    }

    /// A server begins to tell everything.
    pub(super) fn begin(&mut self) {
        self.generation += 1;
    }

    /// A server has told everything.
    pub(super) fn end(&mut self) {
        let current = self.generation;
        self.good.retain(|_, (generation, _)| *generation == current);
        let before = self.problems.len();
        self.problems.retain(|_, (generation, _)| *generation == current);
        self.changed |= self.problems.len() != before;
    }

    /// What follows from updates.
    pub(super) fn read(&mut self, updates: &[SerializedUpdate]) -> Vec<Update> {
        self.updates += updates.len();
        if self.updates >= SHRINK {
            self.updates = 0;
            self.labels.shrink();
        }
        updates.iter().filter_map(|update| self.read_one(update)).collect()
    }

    fn read_one(&mut self, update: &SerializedUpdate) -> Option<Update> {
        if !self.relayed && path::is_relayed(&update.key) {
            return None;
        }
        match read_update(update, &mut self.labels) {
            Reading::Ignored => {
                tracing::debug!(path = update.key, "an object of no known kind");
                None
            }
            Reading::Update(update) => {
                self.changed |= self.problems.remove(&update.key).is_some();
                match &update.value {
                    Some(value) if is_kept(&update.key) => {
                        self.good.insert(update.key.clone(), (self.generation, value.clone()));
                    }
                    _ => drop(self.good.remove(&update.key)),
                }
                Some(update)
            }
            Reading::Bad(error) => Some(self.cover(&update.key, error)),
        }
    }

    fn cover(&mut self, path: &str, error: DecodeError) -> Update {
        let deletion = error.deletion();
        let good = self.good.get_mut(&deletion.key);
        let cover = if good.is_some() { Cover::LastGood } else { Cover::Nothing };
        let update = match good {
            Some((generation, value)) => {
                *generation = self.generation;
                Update::set(deletion.key, value.clone())
            }
            None => deletion,
        };
        let DecodeError { field, reason, .. } = error;
        let problem = Problem { severity: Severity::Error, position: Position::default(), field, what: reason };
        let problem = InputProblem { file: None, subject: path.to_owned(), problem, cover };
        tracing::warn!(%problem, "an object of the server cannot be used as it is");
        self.problems.insert(update.key.clone(), (self.generation, problem));
        self.changed = true;
        update
    }

    /// All problems, if they are not what they were when this was last asked.
    pub(super) fn changed_problems(&mut self) -> Option<Vec<InputProblem>> {
        std::mem::take(&mut self.changed).then(|| self.problems.values().map(|(_, problem)| problem.clone()).collect())
    }
}

fn is_kept(key: &Key) -> bool {
    !matches!(key, Key::WorkloadEndpoint(_) | Key::Service(_) | Key::EndpointSlice(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(key: &str, value: &str) -> SerializedUpdate {
        SerializedUpdate { key: key.into(), value: value.into(), ..SerializedUpdate::default() }
    }

    const POLICY: &str = "/calico/v1/policy/GlobalNetworkPolicy//p";
    const GOOD: &str = r#"{"selector":"all()","types":["ingress"]}"#;
    const BAD: &str = r#"{"selector":"all()","order":"first"}"#;
    const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26";
    const ENDPOINT: &str = "/calico/v1/host/h/workload/k8s/ns%2fpod/endpoint/eth0";

    #[test]
    fn a_policy_that_cannot_be_read_stays_as_it_was() {
        let mut objects = Objects::default();
        objects.begin();
        let good = objects.read(&[update(POLICY, GOOD)]);
        assert_eq!(objects.changed_problems(), None);
        assert_eq!(objects.read(&[update(POLICY, BAD)]), good);
        let problems = objects.changed_problems().unwrap();
        assert_eq!(problems[0].to_string(), format!("{POLICY}: order: must be a number, is text"));
        assert_eq!(problems[0].cover, Cover::LastGood);
        // Over a new connection as well.
        objects.begin();
        assert_eq!(objects.read(&[update(POLICY, BAD)]), good);
        objects.end();
        objects.begin();
        assert_eq!(objects.read(&[update(POLICY, BAD)]), good);
        // Until it is deleted, which a connection that does not tell of it means, too.
        objects.begin();
        objects.end();
        assert_eq!(objects.changed_problems(), Some(Vec::new()));
        objects.begin();
        assert_eq!(objects.read(&[update(POLICY, BAD)])[0].value, None);
        assert_eq!(objects.changed_problems().unwrap()[0].cover, Cover::Nothing);
        assert_eq!(objects.read(&[update(POLICY, GOOD)]), good);
        assert_eq!(objects.changed_problems(), Some(Vec::new()));
    }

    #[test]
    fn other_keys_are_dropped_and_other_values_deleted() {
        let mut objects = Objects::default();
        objects.begin();
        let updates = objects.read(&[
            update("/calico/v9/what", "{}"),
            update(BLOCK, "{}"),
            update(ENDPOINT, r#"{"name":"cali1"}"#),
            update(ENDPOINT, "\u{1}"),
            update("/calico/v1/config/LogSeverityScreen", ""),
        ]);
        let values: Vec<bool> = updates.iter().map(|update| update.value.is_some()).collect();
        assert_eq!(values, [true, false, false]);
    }

    #[test]
    fn what_is_only_passed_on_is_taken_by_who_wants_it() {
        let value = r#"{"cidr":"10.0.0.0/26","affinity":"host:h"}"#;
        assert_eq!(Objects::default().read(&[update(BLOCK, value), update(BLOCK, "")]), []);
        let mut objects = Objects::new(true);
        let read = objects.read(&[update(BLOCK, value), update(BLOCK, "{"), update(BLOCK, "")]);
        let texts: Vec<Option<&str>> = read
            .iter()
            .map(|update| match &update.value {
                Some(Value::Relayed(text)) => Some(&**text),
                other => other.as_ref().map(|_| panic!("{other:?}")),
            })
            .collect();
        assert_eq!(texts, [Some(value), Some(value), None]);
    }

    #[test]
    fn policies_under_keys_of_older_releases() {
        let mut objects = Objects::default();
        let updates = objects.read(&[update("/calico/v1/policy/tier/sec/policy/ns%2fknp.default.web", GOOD)]);
        let Some(Value::Policy(policy)) = &updates[0].value else { panic!("{updates:?}") };
        assert_eq!((policy.tier.as_str(), policy.selector.as_str()), ("sec", "all()"));
        assert_eq!(format!("{:?}", updates[0].key).matches("KubernetesNetworkPolicy").count(), 1);
    }
}
