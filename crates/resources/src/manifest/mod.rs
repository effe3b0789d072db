//! Manifests: files of resources as people write them.

mod positions;

use std::path::Path;
use std::sync::Arc;

use tortie_model::{Interner, Update};

use crate::object::{Meta, Object, STORED_VERSION, StoredMeta};
use crate::tree::{Content, Cursor, Map, Node, Sink, UnknownField, parse_json, parse_yaml};
use crate::{FieldProblem, Lint, Severity, SyntaxError, felix, syncer, v3};

pub use crate::object::{
    BlockSource, Contributions, Kind, ObjectId, Options, Outcome, PolicyNames, Resource, SyncerType, UnknownFields,
};
pub use crate::tree::{ParameterCheck, RulePositions};
pub use positions::{ObjectPositions, PolicyPosition, object_positions, policy_positions};

/// How a manifest is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// YAML, any number of documents.
    Yaml,
    /// JSON, one document.
    Json,
}

impl Format {
    /// What the name of a file says: JSON if it ends in `.json`, else YAML.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        if file.extension().is_some_and(|end| end == "json") { Self::Json } else { Self::Yaml }
    }
}

/// Everything that a manifest holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// The resources in the order of the text, lists taken apart.
    pub resources: Vec<Resource>,
    /// The documents that could not be read at all: which objects they define is unknown.
    pub unreadable: Vec<SyntaxError>,
}

/// Reads a manifest and converts every resource in it.
#[must_use]
pub fn read(text: &str, format: Format, options: &Options, labels: &mut Interner) -> Manifest {
    let mut manifest = Manifest::default();
    manifest.unreadable = each_object(text, format, |node, implied| {
        manifest.resources.push(read_resource(Cursor::root(node), implied, options, labels, &mut None));
    });
    manifest
}

/// Reads a manifest as [`read`] does, and gives besides each of [`Manifest::resources`] what is written, whole, with what
/// follows for it from the list that it stands in.
#[must_use]
pub fn read_written(
    text: &str,
    format: Format,
    options: &Options,
    labels: &mut Interner,
) -> (Manifest, Vec<serde_json::Value>) {
    let mut manifest = Manifest::default();
    let mut written = Vec::new();
    manifest.unreadable = each_object(text, format, |node, implied| {
        manifest.resources.push(read_resource(Cursor::root(node), implied, options, labels, &mut None));
        let mut object = serde_json::Value::from(node);
        if let (Some(Implied::Text(api_version, kind)), Some(fields)) = (implied, object.as_object_mut())
            && !fields.contains_key("apiVersion")
            && !fields.contains_key("kind")
        {
            fields.insert("apiVersion".into(), api_version.into());
            fields.insert("kind".into(), kind.into());
        }
        written.push(object);
    });
    (manifest, written)
}

/// Takes a manifest apart into objects; returns why which documents could not be.
fn each_object(text: &str, format: Format, mut take: impl FnMut(&Node<'_>, Option<Implied<'_>>)) -> Vec<SyntaxError> {
    let mut unreadable = Vec::new();
    let mut document = |document: Result<Node<'_>, SyntaxError>| match document {
        Ok(node) => each_item(&node, None, &mut take),
        Err(error) => unreadable.push(error),
    };
    match format {
        Format::Yaml => parse_yaml(text).for_each(document),
        Format::Json if text.trim().is_empty() => {}
        Format::Json => document(parse_json(text)),
    }
    unreadable
}

/// Reads one object as a datastore or API server holds it: a JSON document of a kind that follows from where it was
/// found. `apiVersion` and `kind` may be absent, as in the items of an API server's list; an object of another kind is
/// invalid. [`Options::unknown_fields`] should be [`UnknownFields::Ignore`].
///
/// ```
/// use tortie_model::Interner;
/// use tortie_resources::manifest::{Kind, Options, Outcome, UnknownFields, read_object};
///
/// let options = Options { unknown_fields: UnknownFields::Ignore, ..Options::default() };
/// let item = r#"{"metadata": {"name": "shop", "uid": "7"}, "spec": {"finalizers": ["kubernetes"]}}"#;
/// let namespace = read_object(item, Kind::Namespace, &options, &mut Interner::new())?;
/// assert!(matches!(namespace.outcome, Outcome::Valid(_)));
/// # Ok::<(), tortie_resources::SyntaxError>(())
/// ```
///
/// # Errors
/// [`SyntaxError`] if the text is not JSON. [`Resource::unreadable`] makes of that what can be filed under the object
/// that should be there.
pub fn read_object(json: &str, kind: Kind, options: &Options, labels: &mut Interner) -> Result<Resource, SyntaxError> {
    let node = parse_json(json)?;
    let mut resource = read_resource(Cursor::root(&node), Some(Implied::Kind(kind)), options, labels, &mut None);
    if let Some(id) = resource.id.take_if(|id| id.kind != kind) {
        let what = format!("is of kind {}, found among those of kind {}", id.kind.as_str(), kind.as_str());
        let position = resource.position;
        resource.problems.push(FieldProblem::new(Severity::Error, position, "kind", what));
        resource.outcome = Outcome::Invalid { substitute: None };
    } else if resource.outcome == Outcome::Unknown {
        resource.outcome = Outcome::Invalid { substitute: None };
    }
    Ok(resource)
}

/// What is known of an object's kind without reading it.
#[derive(Clone, Copy)]
enum Implied<'n> {
    /// The `apiVersion` and the `kind` of the items of a list.
    Text(&'n str, &'n str),
    /// It was found where there are only such.
    Kind(Kind),
}

/// Takes an object, or each of a list. The API server leaves out of the items of a list what follows from the list: that
/// is `implied`.
fn each_item<'n>(
    node: &'n Node<'n>,
    implied: Option<Implied<'n>>,
    take: &mut impl FnMut(&Node<'_>, Option<Implied<'_>>),
) {
    match list(node) {
        Some((implied, items)) => items.iter().for_each(|item| each_item(item, implied, take)),
        None => take(node, implied),
    }
}

/// The items of a list, and what it says of their kind.
fn list<'n>(node: &'n Node<'n>) -> Option<(Option<Implied<'n>>, &'n [Node<'n>])> {
    let Content::Map(entries) = &node.content else { return None };
    let field = |name: &str| entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node.content);
    let Some(Content::Text(kind)) = field("kind") else { return None };
    let of = kind.strip_suffix("List")?;
    let items = match field("items")? {
        Content::List(items) => &**items,
        Content::Null => &[],
        _ => return None,
    };
    match field("apiVersion") {
        Some(Content::Text(api_version)) if !of.is_empty() => Some((Some(Implied::Text(api_version, of)), items)),
        _ => Some((None, items)),
    }
}

fn read_resource(
    root: Cursor<'_, '_>,
    implied: Option<Implied<'_>>,
    options: &Options,
    labels: &mut Interner,
    rules: &mut Option<RulePositions>,
) -> Resource {
    let mut sink = Sink {
        parameters: options.parameters,
        lints: options.lints,
        rule_positions: rules.take(),
        ..Sink::begin(labels)
    };
    if options.unknown_fields == UnknownFields::Ignore {
        sink.unknown_fields = UnknownField::Ignored;
    }
    let position = root.position();
    let (id, subject, outcome) = match root.map(&mut sink) {
        None => (None, "document".to_owned(), Outcome::Invalid { substitute: None }),
        Some(map) => convert(root, map, implied, options, labels, &mut sink),
    };
    sink.end(labels);
    *rules = sink.rule_positions.take();
    let mut share = |updates: Contributions| updates.into_iter().map(|update| labels.share(update)).collect();
    let outcome = match outcome {
        Outcome::Valid(contributions) => Outcome::Valid(share(contributions)),
        Outcome::Invalid { substitute: Some(substitute) } => Outcome::Invalid { substitute: Some(share(substitute)) },
        other => other,
    };
    Resource { id, subject, position, outcome, problems: sink.problems.into_list() }
}

fn convert(
    root: Cursor<'_, '_>,
    map: Map<'_, '_>,
    implied: Option<Implied<'_>>,
    options: &Options,
    labels: &mut Interner,
    sink: &mut Sink,
) -> (Option<ObjectId>, String, Outcome) {
    const INVALID: Outcome = Outcome::Invalid { substitute: None };
    let absent = map.field("apiVersion").is_none() && map.field("kind").is_none();
    let written = match implied.filter(|_| absent) {
        Some(Implied::Text(api_version, kind)) => (Some(api_version), Some(kind)),
        Some(Implied::Kind(kind)) => (Some(kind.api_version()), Some(kind.as_str())),
        None => (map.text("apiVersion", sink), map.text("kind", sink)),
    };
    let (Some(api_version), Some(kind_name)) = written else {
        for name in ["apiVersion", "kind"] {
            if map.field(name).is_none() {
                map.missing(name, sink);
            }
        }
        return (None, subject(written.1, map), INVALID);
    };
    let Some(kind) = Kind::find(api_version, kind_name).filter(|kind| options.takes(*kind)) else {
        let outcome = match options.syncer {
            SyncerType::Felix => unknown_kind(api_version, kind_name, map, sink),
            // Who reads for Felix says what is not known.
            _ => Outcome::Unknown,
        };
        return (None, subject(Some(kind_name), map), outcome);
    };
    if sink.unknown_fields == UnknownField::Ignored && kind.is_policy() {
        sink.unknown_fields = UnknownField::Warning;
    }
    lint_version(api_version, kind, map, sink);
    let stored = if kind.is_calico() { StoredMeta::find(kind, map, sink) } else { None };
    let Some(meta) = Meta::read(kind, map, stored.as_ref(), sink) else {
        return (None, subject(Some(kind_name), map), INVALID);
    };
    let name: Arc<str> = if kind.has_prefixed_names() {
        v3::stored_policy_name(&meta, stored.as_ref(), options.policy_names, map)
    } else {
        meta.name.into()
    };
    let id = ObjectId { name, namespace: meta.namespace.into(), kind };
    let object = Object { id, root, map, meta, options };
    let subject = object.id.to_string();
    let contributions = match options.syncer {
        SyncerType::Felix => felix::contributions(&object, labels, sink),
        _ => syncer::contributions(&object, labels, sink),
    };
    let outcome = match contributions {
        Some(contributions) if !sink.has_errors() || v3::is_usable_config(kind, sink) => Outcome::Valid(contributions),
        _ => Outcome::Invalid { substitute: felix::substitute(&object) },
    };
    (Some(object.id), subject, outcome)
}

/// Warns of the version in which the API server keeps objects that people write in another one.
fn lint_version(api_version: &str, kind: Kind, map: Map<'_, '_>, sink: &mut Sink) {
    if api_version == STORED_VERSION
        && !matches!(kind, Kind::IpamBlock | Kind::BlockAffinity)
        && let Some(field) = map.field("apiVersion")
    {
        let what = format!("is how the API server keeps it; people write `{}`", kind.api_version());
        field.lint(sink, Lint::DeprecatedVersion, what);
    }
}

/// What to call an object that has no usable identity: as much of kind, namespace and name as can be read.
fn subject(kind: Option<&str>, map: Map<'_, '_>) -> String {
    let quiet = &mut Sink::default();
    let Some(kind) = kind else { return "document".to_owned() };
    let meta = map.field("metadata").and_then(|metadata| metadata.map(quiet));
    let [namespace, name] = ["namespace", "name"].map(|field| meta.and_then(|meta| meta.text(field, quiet)));
    [Some(kind), namespace, name].into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// A kind that means nothing here is no mistake, unless it looks like the misspelt name of a policy.
fn unknown_kind(api_version: &str, kind: &str, map: Map<'_, '_>, sink: &mut Sink) -> Outcome {
    let (what, is_policy) = match Kind::policy_like(api_version, kind) {
        Some(near) => (format!("kind {kind} of {api_version} is not known; is {near} meant?"), true),
        None if Kind::is_policy_of_other_version(api_version, kind) => {
            let versions: Vec<&str> = Kind::policy_versions(kind).collect();
            let meant = versions.join(" or ");
            (format!("{kind} of {api_version} is not supported: nothing enforces it; is {meant} meant?"), true)
        }
        None => (format!("kind {kind} of {api_version} is not known here and has no effect"), false),
    };
    match (map.field("kind"), is_policy) {
        (Some(field), true) => field.error(sink, what),
        (Some(field), false) => field.warn(sink, what),
        // An item of a list.
        (None, true) => map.error(sink, what),
        (None, false) => map.warn(sink, what),
    }
    if sink.has_errors() { Outcome::Invalid { substitute: None } } else { Outcome::Unknown }
}

/// Calico's view of a node of Kubernetes: a `Node` of `projectcalico.org/v3`. `None` if it cannot be understood.
#[must_use]
pub fn calico_node(json: &str) -> Option<serde_json::Value> {
    let options = Options {
        syncer: SyncerType::TunnelIpAllocation,
        block_source: BlockSource::IpamBlocks,
        unknown_fields: UnknownFields::Ignore,
        ..Options::default()
    };
    let node = read_object(json, Kind::KubernetesNode, &options, &mut Interner::new()).ok()?;
    let Outcome::Valid(contributions) = node.outcome else { return None };
    contributions.iter().find_map(|update| match update {
        Update::SyncerObject(_, Some(object)) => serde_json::from_str(&object.text).ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
