//! Namespaces and service accounts, which become profiles.

use tortie_model::{Interner, Profile, ProfileName, ProfileRules, Update, Valid};

use crate::object::reserved::{NAME_LABEL, NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX};
use crate::object::{Contributions, Object};
use crate::scalar;
use crate::tree::Sink;

/// The label that holds a namespace's name.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";

/// Returns the labels of a namespace, with the one that the API server sets.
fn namespace_labels<'o>(object: &'o Object<'_, '_>) -> Vec<(&'o str, &'o str)> {
    let own = object.meta.labels.iter().copied().filter(|(label, _)| *label != METADATA_NAME);
    own.chain([(METADATA_NAME, &*object.id.name)]).collect()
}

/// Converts a `Namespace` to a profile that allows everything, for endpoints that no policy
/// selects.
pub(crate) fn namespace(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let own = namespace_labels(object);
    profile(object, &own, format!("kns.{}", object.id.name), NAMESPACE_PREFIX, ProfileRules::allow_all(), labels, sink)
}

/// Converts a `ServiceAccount` to a profile with labels alone.
pub(crate) fn service_account(
    object: &Object<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> Option<Contributions> {
    let name = format!("ksa.{}.{}", object.id.namespace, object.id.name);
    let own = &object.meta.labels;
    profile(object, own, name, SERVICE_ACCOUNT_PREFIX, ProfileRules::none(), labels, sink)
}

fn profile(
    object: &Object<'_, '_>,
    own: &[(&str, &str)],
    name: String,
    prefix: &str,
    rules: Valid<ProfileRules>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> Option<Contributions> {
    let own = own.iter().map(|(label, value)| (format!("{prefix}{label}"), *value));
    let pairs = own.chain([(format!("{prefix}{NAME_LABEL}"), &*object.id.name)]);
    let profile = Profile { labels: scalar::interned(&object.root, pairs, labels, sink) };
    let name = ProfileName::new(name);
    Some(vec![
        Update::ProfileRules(name.clone(), Some(rules)),
        Update::Profile(name, Some(object.root.valid(profile, sink)?)),
    ])
}
