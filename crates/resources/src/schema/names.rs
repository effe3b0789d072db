//! Names of resources, labels and annotations.

use crate::object::{check_labels, is_dns_label, is_dns_subdomain, is_label_name};
use crate::stored::ResourceKind;
use crate::tree::{Map, Sink};

/// Prefixes of policies that stand for those of another orchestrator.
const OF_OTHERS: [&str; 2] = ["knp.default.", "ossg.default."];
/// Bound of the names and values of all annotations of an object, in bytes.
const MOST_ANNOTATIONS: usize = 256 << 10;

/// Returns the rule that a name breaks, which the API has for names of this kind.
pub(super) fn broken_rule(kind: ResourceKind, name: &str) -> Option<&'static str> {
    use ResourceKind::{
        GlobalNetworkPolicy, NetworkPolicy, Profile, StagedGlobalNetworkPolicy, StagedNetworkPolicy, Tier,
        WorkloadEndpoint,
    };
    match kind {
        // The readers know these composed names.
        Profile | WorkloadEndpoint => None,
        _ if !is_dns_subdomain(name) => {
            Some("it must be a DNS subdomain: lower-case letters, digits, `-` and single `.`, at most 253")
        }
        Tier => (!is_dns_label(name)).then_some("it must be lower-case letters, digits and `-`, at most 63"),
        NetworkPolicy | StagedNetworkPolicy if OF_OTHERS.iter().any(|prefix| name.starts_with(prefix)) => None,
        NetworkPolicy | StagedNetworkPolicy | GlobalNetworkPolicy | StagedGlobalNetworkPolicy => {
            (name.split('.').count() > 2).then_some("the name of a policy has at most one `.`")
        }
        _ => None,
    }
}

/// Checks the labels and annotations of an object.
pub(super) fn check_pairs(metadata: Map<'_, '_>, sink: &mut Sink) {
    if let Some(labels) = metadata.field("labels") {
        check_labels(&labels.text_map(sink), labels, sink);
    }
    let Some(annotations) = metadata.field("annotations") else { return };
    let pairs = annotations.text_map(sink);
    for (name, _) in pairs.iter().filter(|(name, _)| !is_label_name(&name.to_ascii_lowercase())) {
        annotations.error(sink, format!("`{name}` is not the name of an annotation"));
    }
    if pairs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MOST_ANNOTATIONS {
        annotations.error(sink, format!("must have at most {MOST_ANNOTATIONS} bytes"));
    }
}
