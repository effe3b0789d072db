//! Namespaces and service accounts, which the datastore has as profiles
//! (`felix/calc/profile_decoder.go`).

use tortie_model::{Labels, NamespacedName, PrefixStripper, ProfileName};

use crate::sequencer::Sequencer;

const NAMESPACE_LABEL_PREFIX: &str = "pcns.";
const SERVICE_ACCOUNT_LABEL_PREFIX: &str = "pcsa.";

/// See the module.
#[derive(Debug)]
pub(crate) struct ProfileDecoder {
    namespace_labels: PrefixStripper,
    service_account_labels: PrefixStripper,
    /// In the order of arrival since the last flush.
    changes: Vec<Change>,
}

/// Change of a profile's labels.
#[derive(Debug)]
struct Change {
    name: ProfileName,
    labels: Option<Labels>,
    /// Whether it existed at the last flush.
    existed: bool,
}

impl Default for ProfileDecoder {
    fn default() -> Self {
        Self {
            namespace_labels: PrefixStripper::new(NAMESPACE_LABEL_PREFIX),
            service_account_labels: PrefixStripper::new(SERVICE_ACCOUNT_LABEL_PREFIX),
            changes: Vec::new(),
        }
    }
}

impl ProfileDecoder {
    /// Records the inherited labels of a profile; `None` removes them. `existed` is whether the
    /// profile existed at the last flush.
    pub(crate) fn on_profile(&mut self, name: &ProfileName, labels: Option<&Labels>, existed: bool) {
        if namespace(name.as_str()).is_some() || service_account(name.as_str()).is_some() {
            self.changes.push(Change { name: name.clone(), labels: labels.cloned(), existed });
        }
    }

    /// Sends the namespaces and service accounts that have changed since the last flush.
    #[expect(clippy::expect_used, reason = "chunks have at least one entry")]
    pub(crate) fn flush(&mut self, sequencer: &mut Sequencer) {
        let mut changes = std::mem::take(&mut self.changes);
        // Stable, so that the last change of a profile stays the last; and fast for nearly sorted
        // names.
        changes.sort_by(|a, b| a.name.cmp(&b.name));
        sequencer.namespaces.reserve(changes.len());
        for of_one in changes.chunk_by_mut(|a, b| a.name == b.name) {
            let existed = of_one.iter().any(|change| change.existed);
            let Change { name, labels, .. } = of_one.last_mut().expect("chunks are not empty");
            let labels = labels.take();
            if labels.is_none() && !existed {
                continue;
            }
            if let Some(account) = service_account(name.as_str()) {
                let labels = labels.map(|labels| self.service_account_labels.strip(&labels));
                sequencer.service_accounts.push((account, labels));
            } else if let Some(namespace) = namespace(name.as_str()) {
                let labels = labels.map(|labels| self.namespace_labels.strip(&labels));
                sequencer.namespaces.push((namespace.into(), labels));
            }
        }
        // Names of profiles have a dot where these have a boundary.
        sequencer.service_accounts.sort_by(|a, b| a.0.cmp(&b.0));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Parses a name of the form `kns.NAMESPACE`.
fn namespace(profile: &str) -> Option<&str> {
    profile.strip_prefix("kns.")
}

/// Parses a name of the form `ksa.NAMESPACE.NAME`; the name may contain dots.
fn service_account(profile: &str) -> Option<NamespacedName> {
    let (namespace, name) = profile.strip_prefix("ksa.")?.split_once('.')?;
    Some(NamespacedName::new(namespace, name))
}

#[cfg(test)]
mod tests;
