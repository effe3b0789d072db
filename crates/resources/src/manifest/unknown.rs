//! Objects of unknown and of obsolete kinds.

use std::collections::BTreeMap;

use super::{Implied, version_and_kind};
use crate::object::{Kind, Outcome, Resource, STORED_VERSION};
use crate::stored::ResourceKind;
use crate::tree::{Cursor, Map, Node, Sink, UnknownField};
use crate::{Lint, switches};

/// Kinds that an API no longer has: `apiVersion`, `kind`, and the message that names the successor.
/// The first are policies that nothing enforces, which is an error.
const OBSOLETE_POLICIES: [(&str, &str, &str); 5] = [
    (
        "extensions/v1beta1",
        "NetworkPolicy",
        "is obsolete (Kubernetes 1.16 removed it), and nothing enforces it; write `networking.k8s.io/v1`",
    ),
    ("v1", "policy", CALICO_V1),
    ("v1", "profile", CALICO_V1),
    ("v1", "hostEndpoint", CALICO_V1),
    ("v1", "workloadEndpoint", CALICO_V1),
];
const CALICO_V1: &str = "is obsolete (of calicoctl before 3.0), and nothing enforces it; write `projectcalico.org/v3`, in which \
                         `policy` is GlobalNetworkPolicy";
const OBSOLETE: [(&str, &str, &str); 7] = [
    (
        "discovery.k8s.io/v1beta1",
        "EndpointSlice",
        "is obsolete (Kubernetes 1.25 removed it); write `discovery.k8s.io/v1`",
    ),
    ("policy/v1beta1", "PodSecurityPolicy", POD_SECURITY),
    ("extensions/v1beta1", "PodSecurityPolicy", POD_SECURITY),
    ("v1", "bgpPeer", "is obsolete (of calicoctl before 3.0); write BGPPeer of `projectcalico.org/v3`"),
    ("v1", "ipPool", "is obsolete (of calicoctl before 3.0); write IPPool of `projectcalico.org/v3`"),
    ("v1", "node", "is obsolete (of calicoctl before 3.0); write Node of `projectcalico.org/v3`"),
    ("v1", "tier", "is obsolete (of calicoctl before 3.0); write Tier of `projectcalico.org/v3`"),
];
const POD_SECURITY: &str = "is obsolete (Kubernetes 1.25 removed it) and has no effect; its successor is Pod Security Admission, \
                            by labels `pod-security.kubernetes.io/enforce` of namespaces";

/// Reports an unknown kind. It is a warning, unless the kind resembles a policy or is a policy of
/// an unsupported version.
pub(super) fn report(
    api_version: &str,
    kind: &str,
    root: Cursor<'_, '_>,
    map: Map<'_, '_>,
    sink: &mut Sink,
) -> Outcome {
    let of = |table: &[(&str, &str, &'static str)]| {
        table.iter().find(|(api, name, _)| (*api, *name) == (api_version, kind)).map(|(.., message)| *message)
    };
    let obsolete = |message: &str| format!("{kind} of {api_version} {message}");
    let error = match (of(&OBSOLETE_POLICIES), Kind::policy_like(api_version, kind)) {
        (Some(message), _) => Some(obsolete(message)),
        (None, Some(near)) => Some(format!("kind {kind} of {api_version} is not known; is {near} meant?")),
        _ if Kind::is_policy_of_other_version(api_version, kind) => {
            let versions: Vec<&str> = Kind::policy_versions(kind).collect();
            let alternatives = versions.join(" or ");
            Some(format!("{kind} of {api_version} is not supported: nothing enforces it; is {alternatives} meant?"))
        }
        _ => None,
    };
    // The object may be an item of a list, without a kind of its own.
    let field = map.field("kind").unwrap_or(root);
    match (error, of(&OBSOLETE)) {
        (Some(message), _) => field.error(sink, message),
        (None, Some(message)) => field.warn(sink, obsolete(message)),
        (None, None) => {
            let message = format!("kind {kind} of {api_version} is not known here and has no effect");
            if is_of_other_programs(api_version, kind) {
                field.warn_as(sink, Lint::UnusedKind, message);
            } else {
                field.warn(sink, message);
            }
        }
    }
    if Kind::is_version_of_calico(api_version) && sink.unknown_fields == UnknownField::Error {
        let mut own = sink.apart();
        switches::check(root, &mut own);
        sink.adopt(own, true);
    }
    if sink.has_errors() { Outcome::Invalid { substitute: None } } else { Outcome::Unknown }
}

/// Reports whether a kind is certainly meant for other programs: no misspelt or outdated name of a
/// known one, and no policy for network traffic.
fn is_of_other_programs(api_version: &str, kind: &str) -> bool {
    if kind.contains("NetworkPolicy") {
        return false;
    }
    if Kind::is_version_of_calico(api_version) {
        return ResourceKind::from_name(kind).is_some() || kind.starts_with("IPAM");
    }
    !Kind::resembles_known(api_version, kind)
}

/// Warns of a version that users should not write: that of storage, or one with a successor.
pub(super) fn lint_version(api_version: &str, kind: Kind, map: Map<'_, '_>, sink: &mut Sink) {
    let Some(field) = map.field("apiVersion") else { return };
    let message = match kind {
        Kind::AdminNetworkPolicy => OF_ADMIN.to_owned(),
        Kind::BaselineAdminNetworkPolicy => OF_BASELINE.to_owned(),
        Kind::IpamBlock | Kind::BlockAffinity => return,
        _ if api_version != STORED_VERSION => return,
        _ => format!("is how the API server keeps it; people write `{}`", kind.api_version()),
    };
    field.lint(sink, Lint::DeprecatedVersion, message);
}

const OF_ADMIN: &str = "is obsolete; the successor of this kind is ClusterNetworkPolicy of `policy.networking.k8s.io/v1alpha2`, with `tier: Admin`";
const OF_BASELINE: &str = "is obsolete; the successor of this kind is ClusterNetworkPolicy of \
                           `policy.networking.k8s.io/v1alpha2`, with `tier: Baseline`";

/// Makes an object of a kind of Calico's API that is only stored invalid, if calicoctl reads a word
/// in it as a boolean and Tortie as text.
pub(super) fn refuse_switches(node: &Node<'_>, implied: Option<Implied<'_>>, resource: &mut Resource) {
    let root = Cursor::root(node);
    let quiet = &mut Sink::default();
    let api_version = root.map(quiet).and_then(|map| version_and_kind(map, implied, quiet).0).unwrap_or_default();
    if resource.outcome != Outcome::Unknown || !Kind::is_version_of_calico(api_version) {
        return;
    }
    let mut sink = Sink::default();
    switches::check(root, &mut sink);
    if sink.has_errors() {
        let errors = sink.problems.into_list();
        resource.problems.retain(|problem| errors.iter().all(|error| error.field != problem.field));
        resource.problems.extend(errors);
        resource.outcome = Outcome::Invalid { substitute: None };
    }
}

/// Returns a line about objects of kinds without any effect, such as `12 Deployments, 3 Ingresses
/// skipped`, by their kinds; `None` if there are none.
///
/// ```
/// use tortie_resources::manifest::skipped;
///
/// let kinds = ["Ingress", "Deployment", "Deployment", "NetworkAttachmentDefinition", "ClusterPolicy", "ClusterPolicy"];
/// let text = "2 ClusterPolicies, 2 Deployments, 1 Ingress, 1 NetworkAttachmentDefinition skipped";
/// assert_eq!(skipped(kinds).as_deref(), Some(text));
/// assert_eq!(skipped([]), None);
/// ```
#[must_use]
pub fn skipped<'k>(kinds: impl IntoIterator<Item = &'k str>) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut others = 0;
    for kind in kinds {
        let is_plain = kind.len() <= LONGEST_KIND && kind.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_plain && (counts.contains_key(kind) || counts.len() < MOST_KINDS) {
            *counts.entry(kind).or_default() += 1;
        } else {
            others += 1;
        }
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut parts: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{count} {}", named(kind, *count))).collect();
    if others > 0 {
        parts.push(format!("{others} of other kinds"));
    }
    (!parts.is_empty()).then(|| format!("{} skipped", parts.join(", ")))
}

/// Maximum number of kinds that are named, and of characters of a name. Other kinds are counted
/// together, as are those whose names are no words.
const MOST_KINDS: usize = 20;
const LONGEST_KIND: usize = 63;

fn named(kind: &str, count: usize) -> String {
    let is_vowel = |letter: char| "aeiou".contains(letter);
    match kind.strip_suffix('y') {
        _ if count == 1 || kind == "Endpoints" => kind.to_owned(),
        Some(stem) if !stem.ends_with(is_vowel) => format!("{stem}ies"),
        _ if kind.ends_with(['s', 'x', 'z']) || kind.ends_with("ch") || kind.ends_with("sh") => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_bounded_and_has_words_only() {
        let kinds: Vec<String> = (0..1_000).map(|number| format!("Kind{number:04}")).collect();
        let text = skipped(kinds.iter().map(String::as_str)).unwrap();
        assert!(text.starts_with("1 Kind0000, ") && text.ends_with(", 980 of other kinds skipped"), "{text}");
        let long = "x".repeat(5_000);
        assert_eq!(skipped(["A\nB", &long, "Ingress"]).as_deref(), Some("1 Ingress, 2 of other kinds skipped"));
    }
}
