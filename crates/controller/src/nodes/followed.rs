//! Followed Kubernetes objects, and the fields of nodes that the controller uses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Observed;
use crate::json::field;

/// Namespace (empty for nodes) and name of an object.
type Names = (Box<str>, Box<str>);

/// All objects of a kind.
#[derive(Debug)]
pub(super) struct FollowedObjects<F> {
    objects: BTreeMap<Names, F>,
    /// A list was complete once.
    synced: bool,
    /// During a list: known objects that the list has not contained so far.
    unmentioned: Option<BTreeSet<Names>>,
    /// An object of the list has no usable name, so no object counts as missing.
    is_incomplete: bool,
}

impl<F> Default for FollowedObjects<F> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), synced: false, unmentioned: None, is_incomplete: false }
    }
}

impl<F: PartialEq> FollowedObjects<F> {
    /// Records an event. Returns the changed objects with their earlier facts.
    pub(super) fn observe(&mut self, observed: Observed<'_>, read: impl Fn(&Value) -> F) -> Vec<(Names, Option<F>)> {
        match observed {
            Observed::ListBegins => {
                self.unmentioned = Some(self.objects.keys().cloned().collect());
                self.is_incomplete = false;
                Vec::new()
            }
            Observed::Listed(json) | Observed::Changed(json) => {
                let object: Value = serde_json::from_str(json).unwrap_or_default();
                let text = |name: &str| field(&object, &["metadata", name]).as_str().unwrap_or_default();
                if text("name").is_empty() {
                    self.is_incomplete = true;
                    return Vec::new();
                }
                let names: Names = (text("namespace").into(), text("name").into());
                if let Some(unmentioned) = &mut self.unmentioned {
                    unmentioned.remove(&names);
                }
                let facts = read(&object);
                if self.objects.get(&names) == Some(&facts) {
                    return Vec::new();
                }
                let before = self.objects.insert(names.clone(), facts);
                vec![(names, before)]
            }
            Observed::ListEnds => {
                self.synced = true;
                let gone = self.unmentioned.take().unwrap_or_default();
                if self.is_incomplete {
                    return Vec::new();
                }
                gone.into_iter().filter_map(|names| self.remove(names)).collect()
            }
            Observed::Deleted { namespace, name } => self.remove((namespace.into(), name.into())).into_iter().collect(),
        }
    }

    fn remove(&mut self, names: Names) -> Option<(Names, Option<F>)> {
        let before = self.objects.remove(&names)?;
        Some((names, Some(before)))
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&F> {
        self.objects.get(&(namespace.into(), name.into()))
    }

    /// Reports whether a list was complete once.
    pub(super) fn synced(&self) -> bool {
        self.synced
    }

    /// Reports whether every object that is not known does not exist.
    pub(super) fn is_complete(&self) -> bool {
        self.synced && !self.is_incomplete
    }
}

/// Label that shows whether a node uses Calico already during a migration from Flannel.
const MIGRATION_LABEL: &str = "projectcalico.org/node-network-during-migration";

/// Labels and migration state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeFacts {
    /// `None` if they are invalid.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Its addresses are being migrated from Flannel.
    pub(super) migrates: bool,
}

impl NodeFacts {
    pub(super) fn read(node: &Value) -> Self {
        let labels = match field(node, &["metadata", "labels"]) {
            Value::Null => Some(BTreeMap::new()),
            Value::Object(labels) => {
                labels.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
            }
            _ => None,
        };
        // `NodeNetworkCalico` of `kube-controllers/pkg/controllers/flannelmigration`.
        let network = field(node, &["metadata", "labels", MIGRATION_LABEL]);
        Self { labels, migrates: !network.is_null() && network != "calico" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_name_prevents_deletions() {
        let mut followed = FollowedObjects::default();
        let read = |_: &Value| ();
        followed.observe(Observed::Changed(r#"{"metadata": {"name": "a"}}"#), read);
        followed.observe(Observed::ListBegins, read);
        followed.observe(Observed::Listed("{}"), read);
        assert_eq!(followed.observe(Observed::ListEnds, read), []);
        assert!(followed.synced() && !followed.is_complete() && followed.get("", "a").is_some());
        followed.observe(Observed::ListBegins, read);
        assert_eq!(followed.observe(Observed::ListEnds, read).len(), 1);
        assert!(followed.is_complete() && followed.get("", "a").is_none());
    }
}
