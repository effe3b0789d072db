//! The metadata of a resource.

use crate::object::Kind;
use crate::object::reserved::{PLATFORM_LABELS, is_labelled_by_users, is_reserved};
use crate::tree::{Content, Cursor, Map, Node, Sink, parse_json};
use crate::{FieldProblem, Lint};

/// Relevant parts of `metadata`.
pub(crate) struct Meta<'n> {
    pub(crate) name: &'n str,
    /// Empty for a cluster-scoped object.
    pub(crate) namespace: &'n str,
    pub(crate) labels: Vec<(&'n str, &'n str)>,
    pub(crate) annotations: Vec<(&'n str, &'n str)>,
    /// Prefix from which the API server generated the name.
    pub(crate) generate_name: Option<&'n str>,
    /// Whether the object is being deleted.
    pub(crate) deleting: bool,
}

pub(crate) const STORED_METADATA: &str = "projectcalico.org/metadata";

/// Error of metadata that is kept in an annotation.
#[derive(Debug, thiserror::Error)]
#[error("is not valid metadata: {0}")]
struct MetadataError(FieldProblem);

/// The metadata of a resource of Calico that is kept in an annotation, because the metadata of a
/// `crd.projectcalico.org/v1` object is the API server's
/// (`libcalico-go/lib/backend/k8s/resources/resources.go`).
pub(crate) struct StoredMeta<'n>(Node<'n>);

impl<'n> StoredMeta<'n> {
    /// Returns the metadata in the annotation; `None` if there is no such annotation. Metadata that
    /// no API server accepts is an error.
    pub(crate) fn find(kind: Kind, map: Map<'n, '_>, sink: &mut Sink) -> Option<Self> {
        let mut quiet = Sink::default();
        let metadata = map.field("metadata")?.map(&mut quiet)?;
        let annotations = metadata.field("annotations")?.map(&mut quiet)?;
        let field = annotations.field(STORED_METADATA)?;
        match parse_json(field.text(&mut quiet)?) {
            Ok(node) if matches!(node.content, Content::Map(_)) => {
                let stored = Self(node);
                if let Err(error) = stored.check(kind, metadata.text_or_empty("namespace", &mut quiet)) {
                    field.error(sink, error.to_string());
                    return None;
                }
                Some(stored)
            }
            // The labels, and the name of a policy, are unknown then.
            _ => {
                field.error(sink, "is not JSON of metadata");
                None
            }
        }
    }

    /// Checks name, namespace and annotations, which the API server does not check: an object of
    /// one namespace must not pass for one of another.
    fn check(&self, kind: Kind, namespace: &str) -> Result<(), MetadataError> {
        let mut own = Sink::default();
        let Some(map) = Cursor::root(&self.0).map(&mut own) else { return Ok(()) };
        if let Some(field) = map.field("name")
            && !field.text(&mut own).is_none_or(str::is_empty)
        {
            check_name(kind, field.text(&mut own).unwrap_or_default(), field, &mut own);
        }
        if let Some(field) = map.field("namespace")
            && let Some(stored) = field.text(&mut own)
            && !matches!((stored, namespace), ("", _) | ("default", ""))
            && stored != namespace
        {
            field.error(&mut own, format!("is {stored:?}, but the object is in namespace `{namespace}`"));
        }
        for name in ["labels", "annotations"] {
            for (name, _) in map.field(name).map(|pairs| pairs.text_map(&mut own)).unwrap_or_default() {
                if !is_label_name(name) {
                    map.error(&mut own, format!("{name:?} is not a valid name of a label or annotation"));
                }
            }
        }
        own.problems.into_list().into_iter().next().map_or(Ok(()), |problem| Err(MetadataError(problem)))
    }

    /// Returns the name of a policy; `None` if the object has the name of the resource.
    pub(crate) fn name(&self) -> Option<&str> {
        let mut quiet = Sink::default();
        let name = Cursor::root(&self.0).map(&mut quiet)?.text("name", &mut quiet)?;
        (!name.is_empty()).then_some(name)
    }
}

/// Fields of `metadata` in the Kubernetes API.
pub(crate) const METADATA_FIELDS: [&str; 16] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
    "selfLink",
    "clusterName",
];

impl<'n> Meta<'n> {
    /// Reads the metadata; `None` if the object cannot be identified. `stored` is the result of
    /// [`StoredMeta::find`].
    pub(crate) fn read(
        kind: Kind,
        map: Map<'n, '_>,
        implied_name: Option<&'n str>,
        stored: Option<&'n StoredMeta<'n>>,
        sink: &mut Sink,
    ) -> Option<Self> {
        let Some(field) = map.field("metadata") else {
            map.missing("metadata", sink);
            return None;
        };
        let metadata = field.map(sink)?;
        metadata.expect_only(&METADATA_FIELDS, sink);
        let (text, name) = match (metadata.field("name"), implied_name) {
            (_, Some(implied)) => (implied, field),
            (Some(name), None) => (name.text(sink)?, name),
            (None, None) => {
                metadata.missing("name", sink);
                return None;
            }
        };
        let named = check_name(kind, text, name, sink);
        let mut labels = metadata.field("labels").map(|labels| labels.text_map(sink)).unwrap_or_default();
        let mut annotations = metadata.field("annotations").map(|field| field.text_map(sink)).unwrap_or_default();
        if let Some(stored) = stored.and_then(|stored| Cursor::root(&stored.0).map(sink)) {
            for (name, into) in [("labels", &mut labels), ("annotations", &mut annotations)] {
                let pairs = stored.field(name).map(|field| field.text_map(sink)).unwrap_or_default();
                into.retain(|(name, _)| pairs.iter().all(|(stored, _)| stored != name));
                into.extend(pairs);
            }
        }
        remove_reserved(kind, &mut labels, &metadata, sink);
        if !labels.is_empty() {
            check_labels(&labels, metadata.field("labels").or_else(|| metadata.field("annotations"))?, sink);
        }
        let namespace = namespace(kind, &metadata, sink);
        if !named {
            return None;
        }
        Some(Self {
            name: text,
            namespace: namespace?,
            labels,
            annotations,
            generate_name: metadata.text("generateName", sink).filter(|name| !name.is_empty()),
            deleting: metadata.field("deletionTimestamp").is_some(),
        })
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&'n str> {
        self.annotations.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }
}

/// Removes the labels that only the platform may set, with a warning for each.
fn remove_reserved<'n>(kind: Kind, labels: &mut Vec<(&'n str, &'n str)>, metadata: &Map<'n, '_>, sink: &mut Sink) {
    if !is_labelled_by_users(kind) {
        return;
    }
    let written = metadata.field("labels").and_then(|written| written.map(&mut Sink::default()));
    labels.retain(|(name, _)| {
        let is_kept = !is_reserved(kind, name);
        // The CNI plugin writes these labels to each endpoint; the platform's values replace them.
        let is_replaced = kind == Kind::WorkloadEndpoint && PLATFORM_LABELS.contains(name);
        if !is_kept && !is_replaced {
            let message = "is reserved for the platform; it is ignored";
            match written.as_ref().and_then(|written| written.field(name)) {
                Some(label) => label.warn(sink, message),
                None => metadata.warn(sink, format!("label `{name}` {message}")),
            }
        }
        is_kept
    });
}

fn namespace<'n>(kind: Kind, metadata: &Map<'n, '_>, sink: &mut Sink) -> Option<&'n str> {
    let Some(field) = metadata.field("namespace") else {
        if !kind.is_namespaced() {
            return Some("");
        }
        metadata.lint(sink, Lint::NamespaceOmitted, "names no namespace: `default` is meant then");
        return Some("default");
    };
    let text = field.text(sink)?;
    if !kind.is_namespaced() {
        if !text.is_empty() {
            field.warn(sink, format!("has no meaning: {} belongs to no namespace", kind.as_str()));
        }
        return Some("");
    }
    if text.is_empty() {
        return Some("default");
    }
    if !is_dns_label(text) {
        // The name becomes part of selectors, so anything but a name is an error.
        field.error(sink, format!("`{text}` is not the name of a namespace"));
        return None;
    }
    Some(text)
}

/// Checks a name like the API server: labels with dots between them, at most 253 characters.
fn check_name(kind: Kind, name: &str, cursor: Cursor<'_, '_>, sink: &mut Sink) -> bool {
    let message = if name.is_empty() {
        "must not be empty".to_owned()
    } else if !is_dotted(name) || name.len() > max_name(kind) {
        format!("`{name}` is not a name: letters in lower case, digits, `-` and `.`, at most {}", max_name(kind))
    } else if matches!(kind, Kind::Tier | Kind::Namespace) && !is_dns_label(name) {
        format!("`{name}` must not have a `.` and be at most 63 characters long")
    } else {
        return true;
    };
    cursor.error(sink, message);
    false
}

/// Returns the length limit of a name. Names composed of other names are longer:
/// `ksa.NAMESPACE.ACCOUNT`, `NODE-k8s-POD-eth0` with doubled hyphens.
fn max_name(kind: Kind) -> usize {
    match kind {
        Kind::Profile => 4 + 63 + 1 + 253,
        Kind::WorkloadEndpoint => 1024,
        _ => 253,
    }
}

pub(crate) fn is_dns_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= 63 && plain(*first) && plain(*last) && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && is_dotted(text)
}

fn is_dotted(text: &str) -> bool {
    let long_label = |label: &str| {
        // Calico does not limit the parts of a name, only the whole.
        let plain = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = label.as_bytes();
        plain(bytes.first())
            && plain(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    text.split('.').all(long_label)
}

/// Reports whether a text is a label name: an optional DNS subdomain and a slash, then at most 63
/// characters.
pub(crate) fn is_label_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Reports whether a text is a label value: at most 63 of `A-Za-z0-9_.-`, beginning and ending with
/// a letter or digit; or empty.
pub(crate) fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return true };
    bytes.len() <= 63
        && first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

pub(crate) fn check_labels(labels: &[(&str, &str)], cursor: Cursor<'_, '_>, sink: &mut Sink) {
    for (name, value) in labels {
        if !is_label_name(name) {
            cursor.error(sink, format!("`{name}` is not a valid label name"));
        }
        if !is_label_value(value) {
            cursor.error(sink, format!("`{value}` is not a value for label `{name}`"));
        }
    }
}
