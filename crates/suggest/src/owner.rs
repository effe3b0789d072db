//! Workloads that pods belong to.

use std::fmt;
use std::sync::Arc;

use crate::labels::LabelMap;

/// Kind of a workload, as far as the name and the labels of a pod show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OwnerKind {
    /// Its pods have a `pod-template-hash`.
    Deployment,
    /// Its pods have an ordinal.
    StatefulSet,
    /// Its pods have a `job-name`, with the time of the run at its end.
    CronJob,
    /// Its pods have another `job-name`.
    Job,
    /// The names of its pods were generated from a prefix, as for a `DaemonSet`.
    Generated,
    /// A pod by itself.
    Pod,
}

impl OwnerKind {
    /// Returns the kind in lower case, as in names of policies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::StatefulSet => "statefulset",
            Self::CronJob => "cronjob",
            Self::Job => "job",
            Self::Generated => "generated",
            Self::Pod => "pod",
        }
    }
}

/// Identity of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Owner {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The kind.
    pub kind: OwnerKind,
}

impl fmt::Display for Owner {
    /// Writes `namespace/kind/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind.as_str(), self.name)
    }
}

/// Shortest number that a `CronJob` appends to the names of its Jobs: minutes since 1970.
const CRON_DIGITS: usize = 8;

impl Owner {
    /// Returns the owner of a pod, by its name, its labels, and the prefix from which its name was
    /// generated (`generateName`).
    ///
    /// ```
    /// use tortie_suggest::{LabelMap, Owner};
    ///
    /// let labels: LabelMap = [("pod-template-hash".into(), "6d4cf56db6".into())].into();
    /// let owner = Owner::of_pod("shop", "web-6d4cf56db6-x2x9z", &labels, Some("web-6d4cf56db6-"));
    /// assert_eq!(owner.to_string(), "shop/deployment/web");
    /// ```
    #[must_use]
    pub fn of_pod(namespace: &str, pod: &str, labels: &LabelMap, generate_name: Option<&str>) -> Self {
        let (kind, name) = kind_and_name(pod, labels, generate_name.filter(|prefix| !prefix.is_empty()));
        Self { namespace: namespace.into(), name: name.into(), kind }
    }
}

impl Owner {
    /// Returns the first owner of a namespace in order; with an empty one, the first of all.
    pub(crate) fn first_of(namespace: &str) -> Self {
        Self { namespace: namespace.into(), name: "".into(), kind: OwnerKind::Deployment }
    }
}

fn kind_and_name<'n>(pod: &'n str, labels: &'n LabelMap, generated: Option<&'n str>) -> (OwnerKind, &'n str) {
    let label = |key: &str| labels.get(key).map(|value| &**value).filter(|value| !value.is_empty());
    let is_ordinal = ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"]
        .iter()
        .any(|key| labels.contains_key(*key));
    if is_ordinal && let Some(name) = without_digits(pod, 1) {
        return (OwnerKind::StatefulSet, name);
    }
    if let Some(job) = label("batch.kubernetes.io/job-name").or_else(|| label("job-name")) {
        return without_digits(job, CRON_DIGITS).map_or((OwnerKind::Job, job), |name| (OwnerKind::CronJob, name));
    }
    let Some(generated) = generated else { return (OwnerKind::Pod, pod) };
    let prefix = generated.trim_end_matches('-');
    let of_template = label("pod-template-hash").and_then(|hash| prefix.strip_suffix(hash)?.strip_suffix('-'));
    of_template
        .filter(|name| !name.is_empty())
        .map_or((OwnerKind::Generated, prefix), |name| (OwnerKind::Deployment, name))
}

/// Returns a name without `-` and at least so many digits at its end.
fn without_digits(name: &str, least: usize) -> Option<&str> {
    let (rest, digits) = name.rsplit_once('-')?;
    let is_number = digits.len() >= least && digits.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pod: &str, labels: &[(&str, &str)], generated: Option<&str>, expected: &str) {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        assert_eq!(Owner::of_pod("n", pod, &labels, generated).to_string(), format!("n/{expected}"));
    }

    #[test]
    fn owners_follow_from_names_and_labels() {
        let hash = [("pod-template-hash", "7c9")];
        check("web-7c9-abcde", &hash, Some("web-7c9-"), "deployment/web");
        check("7c9-abcde", &hash, Some("7c9-"), "generated/7c9");
        check("agent-abcde", &[("controller-revision-hash", "1")], Some("agent-"), "generated/agent");
        check("db-2", &[("statefulset.kubernetes.io/pod-name", "db-2")], Some("db-"), "statefulset/db");
        check("db-x", &[("apps.kubernetes.io/pod-index", "2")], None, "pod/db-x");
        check("copy-29012345-abcde", &[("job-name", "copy-29012345")], Some("copy-29012345-"), "cronjob/copy");
        check("copy-2901-abcde", &[("batch.kubernetes.io/job-name", "copy-2901")], None, "job/copy-2901");
        check("alone", &[], None, "pod/alone");
        check("alone", &[("job-name", "")], Some(""), "pod/alone");
    }
}
