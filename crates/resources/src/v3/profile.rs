//! Profiles.

use std::sync::Arc;

use tortie_model::{Interner, Profile, ProfileName, ProfileRules, Update};

use super::rule::{RuleContext, rules};
use crate::object::reserved::{NAME_LABEL, NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX};
use crate::object::{Contributions, Object, check_labels, is_dns_subdomain};
use crate::scalar;
use crate::tree::{Cursor, Map, Sink};

/// Reads the labels that a `Profile` applies.
pub(crate) fn profile_labels(
    root: &Cursor<'_, '_>,
    map: Map<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> Profile {
    let spec = map.field("spec").and_then(|spec| spec.map(sink));
    let field = spec.as_ref().and_then(|spec| spec.field("labelsToApply"));
    let pairs = field.map(|labels| labels.text_map(sink)).unwrap_or_default();
    if let Some(field) = field {
        check_inherited(&pairs, field, sink);
    }
    Profile { labels: scalar::interned(root, pairs, labels, sink) }
}

/// Checks labels as those of resources, without the prefix for labels of a namespace or service
/// account. The name of a service account may be longer than a label value.
fn check_inherited(labels: &[(&str, &str)], cursor: Cursor<'_, '_>, sink: &mut Sink) {
    let account_name = format!("{SERVICE_ACCOUNT_PREFIX}{NAME_LABEL}");
    let bare: Vec<(&str, &str)> = labels
        .iter()
        .map(|(name, value)| {
            let bare = [NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX].iter().find_map(|prefix| name.strip_prefix(prefix));
            (bare.unwrap_or(name), if *name == account_name && is_dns_subdomain(value) { "" } else { *value })
        })
        .collect();
    check_labels(&bare, cursor, sink);
}

/// Rules of a profile for traffic from endpoints.
const OF_PROFILE: RuleContext<'static> =
    RuleContext { namespace: "", ingress: false, no_domains: Some("can only be part of a policy") };

/// Converts a `Profile` to its rules and its labels.
pub(crate) fn profile(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let spec = object.spec(sink);
    let profile = profile_labels(&object.root, object.map, labels, sink);
    let mut profile_rules = ProfileRules::default();
    if let Some(spec) = spec {
        spec.known(&["ingress", "egress", "labelsToApply"], sink);
        profile_rules.inbound = rules(spec, "ingress", RuleContext { ingress: true, ..OF_PROFILE }, sink);
        profile_rules.outbound = rules(spec, "egress", OF_PROFILE, sink);
    }
    let name = ProfileName::new(Arc::clone(&object.id.name));
    Some(vec![
        Update::ProfileRules(name.clone(), Some(object.root.valid(profile_rules, sink)?)),
        Update::Profile(name, Some(object.root.valid(profile, sink)?)),
    ])
}
