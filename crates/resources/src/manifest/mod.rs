//! Manifests: files of resources in their user-visible form.

mod positions;
mod unknown;

use std::path::Path;
use std::sync::Arc;

use tortie_model::{Interner, Update};

use crate::object::{Meta, Object, StoredMeta};
use crate::stored::{self, ResourceKind};
use crate::tree::{Content, Cursor, Map, Node, Sink, UnknownField, parse_json, parse_yaml};
use crate::{FieldProblem, Severity, SyntaxError, felix, schema, switches, syncer, v3};

pub use crate::object::{
    BlockSource, Contributions, Kind, ObjectId, Options, Outcome, PolicyNames, Resource, SyncerType, UnknownFields,
};
pub use crate::tree::{ParameterCheck, ParameterRemark, RulePositions};
pub use positions::{ObjectPositions, PolicyPosition, object_positions, policy_positions};
pub use unknown::skipped;

/// Format of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// YAML with any number of documents, each an object or a list of objects.
    Yaml,
    /// JSON with one document, an object or a list of objects.
    Json,
}

impl Format {
    /// Returns the format by file name: JSON if it ends in `.json`, else YAML.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        if file.extension().is_some_and(|end| end == "json") { Self::Json } else { Self::Yaml }
    }
}

/// Contents of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// The resources in the order of the text; lists are split into their items.
    pub resources: Vec<Resource>,
    /// The documents that could not be read at all; their objects are unknown.
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

/// Reads a manifest like [`read`]. For each of [`Manifest::resources`] it also returns the complete
/// object as written, with the fields that follow from its list. An object of another kind of
/// Calico's API is invalid if a word in it has another meaning for calicoctl, such as `no` as text.
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
        if let Some(resource) = manifest.resources.last_mut() {
            unknown::refuse_switches(node, implied, resource);
        }
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

/// Splits a manifest into objects. Returns the errors of unreadable documents.
fn each_object(text: &str, format: Format, mut take: impl FnMut(&Node<'_>, Option<Implied<'_>>)) -> Vec<SyntaxError> {
    let mut unreadable = Vec::new();
    let mut document = |document: Result<Node<'_>, SyntaxError>| match document {
        Ok(node) => match &node.content {
            // `calicoctl get` prints a list without a kind, and its items may be lists of a kind.
            Content::List(items) => items.iter().for_each(|item| each_item(item, None, &mut take)),
            _ => each_item(&node, None, &mut take),
        },
        Err(error) => unreadable.push(error),
    };
    match format {
        Format::Yaml => parse_yaml(text).for_each(document),
        Format::Json if text.trim().is_empty() => {}
        Format::Json => document(parse_json(text)),
    }
    unreadable
}

/// Reads one object of a datastore or API server: a JSON document whose kind follows from its
/// place. `apiVersion` and `kind` may be absent, as in the items of a list of the API server. An
/// object of another kind is invalid. [`Options::unknown_fields`] should be
/// [`UnknownFields::Ignore`].
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
/// [`SyntaxError`] if the text is not JSON. [`Resource::unreadable`] converts it to an invalid
/// resource for the expected object.
pub fn read_object(json: &str, kind: Kind, options: &Options, labels: &mut Interner) -> Result<Resource, SyntaxError> {
    let node = parse_json(json)?;
    let mut resource = read_resource(Cursor::root(&node), Some(Implied::Kind(kind)), options, labels, &mut None);
    if let Some(id) = resource.id.take_if(|id| id.kind != kind) {
        let message = format!("is of kind {}, found among those of kind {}", id.kind.as_str(), kind.as_str());
        let position = resource.position;
        resource.problems.push(FieldProblem::new(Severity::Error, position, "kind", message));
        resource.outcome = Outcome::Invalid { substitute: None };
    } else if resource.outcome == Outcome::Unknown {
        resource.outcome = Outcome::Invalid { substitute: None };
    }
    Ok(resource)
}

/// Kind of an object that follows from its context.
#[derive(Clone, Copy)]
enum Implied<'n> {
    /// `apiVersion` and `kind` of the items of a list.
    Text(&'n str, &'n str),
    /// Kind of all objects in the same place.
    Kind(Kind),
}

/// Passes an object, or each item of a list, to `take`. The API server omits from list items the
/// fields that follow from the list; `implied` has them.
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

/// Returns the items of a list, and the kind that follows from it.
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
        for_writing: options.for_writing,
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
    let written = version_and_kind(map, implied, sink);
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
            SyncerType::Felix => unknown::report(api_version, kind_name, root, map, sink),
            // The reader for Felix reports unknown kinds.
            _ => Outcome::Unknown,
        };
        check_for_writing(api_version, kind_name, root, sink);
        if outcome == Outcome::Unknown && sink.has_errors() {
            sink.problems.keep_errors();
            return (None, subject(Some(kind_name), map), INVALID);
        }
        return (None, subject(Some(kind_name), map), outcome);
    };
    if sink.unknown_fields == UnknownField::Ignored && kind.is_policy() {
        sink.unknown_fields = UnknownField::Warning;
    }
    unknown::lint_version(api_version, kind, map, sink);
    let stored = if kind.is_calico() { StoredMeta::find(kind, map, sink) } else { None };
    let implied_name = implied_name(kind, map);
    let Some(meta) = Meta::read(kind, map, implied_name.as_deref(), stored.as_ref(), sink) else {
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
    let contributions = contributions(&object, labels, sink);
    check_for_writing(api_version, kind_name, root, sink);
    let outcome = match contributions {
        Some(contributions) if !sink.has_errors() || v3::is_usable_config(kind, sink) => Outcome::Valid(contributions),
        _ => Outcome::Invalid { substitute: felix::substitute(&object) },
    };
    (Some(object.id), subject, outcome)
}

/// Returns the name that follows from the `spec` of a workload endpoint without a name.
fn implied_name(kind: Kind, map: Map<'_, '_>) -> Option<String> {
    let quiet = &mut Sink::default();
    let metadata = map.field("metadata")?.map(quiet)?;
    if kind != Kind::WorkloadEndpoint || !metadata.text_or_empty("name", quiet).is_empty() {
        return None;
    }
    let spec = map.field("spec")?.map(quiet)?;
    stored::name_by_spec(|field| spec.text_or_empty(field, &mut Sink::default())).ok()
}

/// Adds the errors of an object of Calico's API that is to be written.
fn check_for_writing(api_version: &str, kind: &str, root: Cursor<'_, '_>, sink: &mut Sink) {
    let kind = ResourceKind::from_name(kind).filter(|kind| kind.is_for_people());
    if let Some(kind) = kind.filter(|_| sink.for_writing && Kind::is_version_of_calico(api_version)) {
        let mut own = sink.apart();
        schema::check(kind, root, &mut own);
        sink.adopt_errors(own);
    }
}

/// Returns `apiVersion` and `kind` of an object: as written, or implied if it has neither.
fn version_and_kind<'n>(
    map: Map<'n, '_>,
    implied: Option<Implied<'n>>,
    sink: &mut Sink,
) -> (Option<&'n str>, Option<&'n str>) {
    let absent = map.field("apiVersion").is_none() && map.field("kind").is_none();
    match implied.filter(|_| absent) {
        Some(Implied::Text(api_version, kind)) => (Some(api_version), Some(kind)),
        Some(Implied::Kind(kind)) => (Some(kind.api_version()), Some(kind.as_str())),
        None => (map.text("apiVersion", sink), map.text("kind", sink)),
    }
}

fn contributions(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let contributions = match object.options.syncer {
        SyncerType::Felix => felix::contributions(object, labels, sink),
        _ => syncer::contributions(object, labels, sink),
    };
    // The API server checks the types of the other kinds.
    if object.id.kind.is_calico() && object.options.unknown_fields == UnknownFields::Refuse {
        match object.id.kind {
            Kind::FelixConfiguration => switches::check_configuration(object.root, sink),
            _ => switches::check(object.root, sink),
        }
    }
    contributions
}

/// Returns a description of an object without a usable identity: kind, namespace and name as far as
/// they are readable.
fn subject(kind: Option<&str>, map: Map<'_, '_>) -> String {
    let quiet = &mut Sink::default();
    let Some(kind) = kind else { return "document".to_owned() };
    let meta = map.field("metadata").and_then(|metadata| metadata.map(quiet));
    let [namespace, name] = ["namespace", "name"].map(|field| meta.and_then(|meta| meta.text(field, quiet)));
    [Some(kind), namespace, name].into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// Converts a Kubernetes node to the `Node` of `projectcalico.org/v3` that Calico sees; `None` if
/// it is invalid.
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
