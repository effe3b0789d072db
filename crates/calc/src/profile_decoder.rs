//! Namespaces and service accounts, which the datastore has as profiles (`felix/calc/profile_decoder.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::{Labels, NamespacedName, ProfileName};

use crate::sequencer::Sequencer;

const NAMESPACE_LABEL_PREFIX: &str = "pcns.";
const SERVICE_ACCOUNT_LABEL_PREFIX: &str = "pcsa.";

/// The profile hands down these labels, or does not exist.
pub(crate) fn on_profile(name: &ProfileName, labels: Option<&Labels>, sequencer: &mut Sequencer) {
    if let Some(account) = service_account(name.as_str()) {
        match labels {
            Some(labels) => {
                sequencer.service_accounts.update(account, without_prefix(labels, SERVICE_ACCOUNT_LABEL_PREFIX));
            }
            None => sequencer.service_accounts.remove(account),
        }
    } else if let Some(namespace) = name.as_str().strip_prefix("kns.") {
        match labels {
            Some(labels) => {
                sequencer.namespaces.update(namespace.into(), without_prefix(labels, NAMESPACE_LABEL_PREFIX));
            }
            None => sequencer.namespaces.remove(namespace.into()),
        }
    }
}

/// `ksa.NAMESPACE.NAME`; the name may contain dots.
fn service_account(profile: &str) -> Option<NamespacedName> {
    let (namespace, name) = profile.strip_prefix("ksa.")?.split_once('.')?;
    Some(NamespacedName::new(namespace, name))
}

fn without_prefix(labels: &Labels, prefix: &str) -> Arc<BTreeMap<Arc<str>, Arc<str>>> {
    let stripped = |key: &str| key.strip_prefix(prefix).unwrap_or(key).into();
    Arc::new(labels.iter().map(|(key, value)| (stripped(key), value.into())).collect())
}

#[cfg(test)]
mod tests;
