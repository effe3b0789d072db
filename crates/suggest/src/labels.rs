//! Labels by which selectors pick the pods of an owner.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels of a pod by name.
pub type LabelMap = BTreeMap<Arc<str>, Arc<str>>;

/// Labels that name the application of a pod, best first.
const KNOWN: [&str; 10] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app",
    "k8s-app",
    "name",
    "app.kubernetes.io/component",
    "component",
    "role",
    "tier",
    "track",
];

/// Labels that controllers, charts and releases set: they change when the same workload is rolled
/// out again.
const NEVER: [&str; 18] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "job-name",
    "controller-uid",
    "job-completion-index",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "version",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "chart",
    "heritage",
    "kubernetes.io/metadata.name",
];

/// Prefixes of labels that the platform derives from the place of a pod.
const NEVER_PREFIXES: [&str; 2] = ["topology.kubernetes.io/", "projectcalico.org/"];

/// Rank of a label among the known ones, best first; `None` for any other.
pub(crate) fn rank(key: &str) -> Option<usize> {
    KNOWN.iter().position(|known| *known == key)
}

/// Reports whether no suggested selector may have this label.
pub(crate) fn is_excluded(key: &str) -> bool {
    NEVER.contains(&key) || NEVER_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Reports whether a text has only letters, digits and `-_./`, as names and labels of Kubernetes
/// do. Selectors and names of policies have no other texts, as these could change their meaning.
pub(crate) fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'))
}

/// A selector of pods in one namespace: labels with their values, and labels that must be absent.
/// The empty selector picks all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct PodSelector {
    /// Labels and their values.
    pub equal: LabelMap,
    /// Labels that picked pods lack, sorted.
    pub absent: Vec<Arc<str>>,
}

impl PodSelector {
    /// Reports whether the selector picks a pod with these labels.
    ///
    /// ```
    /// use tortie_suggest::{LabelMap, PodSelector};
    ///
    /// let web: LabelMap = [("app".into(), "web".into())].into();
    /// assert!(PodSelector::default().picks(&web));
    /// ```
    #[must_use]
    pub fn picks(&self, labels: &LabelMap) -> bool {
        self.equal.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.absent.iter().all(|key| !labels.contains_key(key))
    }
}
