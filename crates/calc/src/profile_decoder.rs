//! Namespaces and service accounts, which the datastore has as profiles (`felix/calc/profile_decoder.go`).

use tortie_model::{Labels, NamespacedName, PrefixStripper, ProfileName};

use crate::sequencer::Sequencer;

const NAMESPACE_LABEL_PREFIX: &str = "pcns.";
const SERVICE_ACCOUNT_LABEL_PREFIX: &str = "pcsa.";

/// See the module.
#[derive(Debug)]
pub(crate) struct ProfileDecoder {
    namespace_labels: PrefixStripper,
    service_account_labels: PrefixStripper,
}

impl Default for ProfileDecoder {
    fn default() -> Self {
        Self {
            namespace_labels: PrefixStripper::new(NAMESPACE_LABEL_PREFIX),
            service_account_labels: PrefixStripper::new(SERVICE_ACCOUNT_LABEL_PREFIX),
        }
    }
}

impl ProfileDecoder {
    /// The profile hands down these labels, or does not exist.
    pub(crate) fn on_profile(&mut self, name: &ProfileName, labels: Option<&Labels>, sequencer: &mut Sequencer) {
        if let Some(account) = service_account(name.as_str()) {
            match labels {
                Some(labels) => sequencer.service_accounts.update(account, self.service_account_labels.strip(labels)),
                None => sequencer.service_accounts.remove(account),
            }
        } else if let Some(namespace) = name.as_str().strip_prefix("kns.") {
            match labels {
                Some(labels) => sequencer.namespaces.update(namespace.into(), self.namespace_labels.strip(labels)),
                None => sequencer.namespaces.remove(namespace.into()),
            }
        }
    }
}

/// `ksa.NAMESPACE.NAME`; the name may contain dots.
fn service_account(profile: &str) -> Option<NamespacedName> {
    let (namespace, name) = profile.strip_prefix("ksa.")?.split_once('.')?;
    Some(NamespacedName::new(namespace, name))
}

#[cfg(test)]
mod tests;
