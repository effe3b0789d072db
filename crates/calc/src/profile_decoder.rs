//! Namespaces and service accounts, which the datastore has as profiles (`felix/calc/profile_decoder.go`).

use tortie_model::{NamespacedName, PrefixStripper, ProfileName};

use crate::profiles::{Profile, Profiles};
use crate::sequencer::Sequencer;

const NAMESPACE_LABEL_PREFIX: &str = "pcns.";
const SERVICE_ACCOUNT_LABEL_PREFIX: &str = "pcsa.";

/// See the module.
#[derive(Debug)]
pub(crate) struct ProfileDecoder {
    namespace_labels: PrefixStripper,
    service_account_labels: PrefixStripper,
    /// Profiles whose labels have changed since the last flush.
    changed: Vec<ProfileName>,
}

impl Default for ProfileDecoder {
    fn default() -> Self {
        Self {
            namespace_labels: PrefixStripper::new(NAMESPACE_LABEL_PREFIX),
            service_account_labels: PrefixStripper::new(SERVICE_ACCOUNT_LABEL_PREFIX),
            changed: Vec::new(),
        }
    }
}

impl ProfileDecoder {
    /// The profile has other labels now, or does not exist.
    pub(crate) fn on_profile(&mut self, name: &ProfileName) {
        if namespace(name.as_str()).is_some() || service_account(name.as_str()).is_some() {
            self.changed.push(name.clone());
        }
    }

    /// Says which namespaces and service accounts have changed since the last flush.
    pub(crate) fn flush(&mut self, profiles: &mut Profiles, sequencer: &mut Sequencer) {
        let mut changed = std::mem::take(&mut self.changed);
        if !changed.is_sorted() {
            changed.sort_unstable();
        }
        changed.dedup();
        for name in changed {
            let announce = |profile: &mut Profile| {
                let was_announced = std::mem::replace(&mut profile.is_announced, profile.labels.is_some());
                (was_announced || profile.is_announced).then(|| profile.labels.clone())
            };
            let Some(Some(labels)) = profiles.edit(&name, false, announce) else { continue };
            if let Some(account) = service_account(name.as_str()) {
                let labels = labels.map(|labels| self.service_account_labels.strip(&labels));
                sequencer.service_accounts.push((account, labels));
            } else if let Some(namespace) = namespace(name.as_str()) {
                let labels = labels.map(|labels| self.namespace_labels.strip(&labels));
                sequencer.namespaces.push((namespace.into(), labels));
            }
        }
        // Names of profiles put a dot where these have a boundary.
        sequencer.service_accounts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }
}

/// `kns.NAMESPACE`.
fn namespace(profile: &str) -> Option<&str> {
    profile.strip_prefix("kns.")
}

/// `ksa.NAMESPACE.NAME`; the name may contain dots.
fn service_account(profile: &str) -> Option<NamespacedName> {
    let (namespace, name) = profile.strip_prefix("ksa.")?.split_once('.')?;
    Some(NamespacedName::new(namespace, name))
}

#[cfg(test)]
mod tests;
