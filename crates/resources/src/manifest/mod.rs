//! Manifests: files of resources as people write them.

mod kind;
mod meta;
mod positions;

use std::path::Path;
use std::sync::Arc;

use tortie_model::{Interner, Update};

use crate::tree::{Content, Cursor, Map, Node, Sink, UnknownField, parse_json, parse_yaml};
use crate::{FieldProblem, Lint, Position, Severity, SyntaxError, k8s, passthrough, syncer, v3};

pub use crate::passthrough::BlockSource;
pub use crate::syncer::SyncerType;
pub use kind::{Kind, ObjectId};
pub(crate) use meta::{
    Meta, STORED_METADATA, StoredMeta, check_labels, is_dns_subdomain, is_label_name, is_label_value,
};
pub use positions::{ObjectPositions, PolicyPosition, RulePositions, object_positions, policy_positions};

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

/// What conversion needs to know besides the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the names of workload interfaces begin with: the first entry of Felix's `InterfacePrefix`.
    pub interface_prefix: String,
    /// What becomes of fields that are not known.
    pub unknown_fields: UnknownFields,
    /// What the name of a policy is that no annotation tells.
    pub policy_names: PolicyNames,
    /// Which objects are read that are only passed on. Those that are not are of no known kind.
    pub block_source: BlockSource,
    /// For whom it is read: which kinds, and what is made of them.
    pub syncer: SyncerType,
    /// What the program has to say of parameters in a `FelixConfiguration`.
    pub parameters: ParameterCheck,
    /// Whether warnings advise against what is valid and that few people mean ([`Lint`]).
    pub lints: bool,
}

/// Judges the value of a parameter by its name, both as Felix writes them in text: what is wrong with it or has no effect,
/// and what is used instead. That becomes a warning at the parameter's field.
#[derive(Clone, Copy, Debug)]
pub struct ParameterCheck(pub fn(name: &str, value: &str) -> Option<String>);

impl Default for ParameterCheck {
    /// Has nothing to say.
    fn default() -> Self {
        Self(|_, _| None)
    }
}

impl PartialEq for ParameterCheck {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for ParameterCheck {}

/// Meaning of the prefix `default.` of a stored policy name, if no annotation has the name.
///
/// Older releases put the prefix before all such names, without an annotation into etcd
/// (`libcalico-go/lib/backend/model/keys.go`), with one that has no name into the API server
/// (`libcalico-go/lib/backend/k8s/resources/resources.go`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyNames {
    /// In files: part of the name in `projectcalico.org/v3`, a prefix in `crd.projectcalico.org/v1`.
    #[default]
    Written,
    /// In etcd: a prefix.
    Prefixed,
    /// The name as it is: in the API server, where `x` and `default.x` are two policies.
    Plain,
}

/// What becomes of fields that are not known.
///
/// Whoever writes a file wants to hear of a misspelt field before anything else happens. A datastore or API server has
/// accepted what it holds, and a newer version of it may have more fields than are known here: it must not take the whole
/// object out of force that it has one more. There is one exception, whatever the source: what a rule matches, its peers,
/// ports and selectors included, or what a label selector selects. A field that is not known there may narrow the match,
/// so to ignore it may allow more than was meant; the policy is invalid then, and fails closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownFields {
    /// For files: the object is invalid.
    #[default]
    Refuse,
    /// For datastores: a warning if the object is a policy, nothing otherwise.
    Ignore,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interface_prefix: "cali".into(),
            unknown_fields: UnknownFields::Refuse,
            policy_names: PolicyNames::Written,
            block_source: BlockSource::Omitted,
            syncer: SyncerType::Felix,
            parameters: ParameterCheck::default(),
            lints: false,
        }
    }
}

impl Options {
    /// Whether objects of this kind are read.
    #[must_use]
    pub fn takes(&self, kind: Kind) -> bool {
        self.syncer.takes(kind, self.block_source)
    }
}

/// What a resource contributes to the datastore: objects that exist.
pub type Contributions = Vec<Update>;

/// What became of a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is used. A resource may contribute nothing, such as a pod without addresses.
    Valid(Contributions),
    /// It cannot be used; [`Resource::problems`] says why.
    Invalid {
        /// What closes the gap while no earlier version is known: a policy that denies the endpoints that the invalid
        /// one selects. `None` if the resource is no policy, or its selector cannot be read.
        substitute: Option<Contributions>,
    },
    /// It is of a kind that means nothing here.
    Unknown,
}

/// One resource of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Which object it defines; `None` if kind, namespace or name are unknown or not valid.
    pub id: Option<ObjectId>,
    /// Kind, namespace and name for messages, as far as they are known.
    pub subject: String,
    /// Where it begins.
    pub position: Position,
    /// What became of it.
    pub outcome: Outcome,
    /// What is wrong with it, in the order of reading.
    pub problems: Vec<FieldProblem>,
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

impl Resource {
    /// What stands for an object that cannot be read at all.
    #[must_use]
    pub fn unreadable(subject: impl Into<String>, error: SyntaxError) -> Self {
        let SyntaxError { position, what } = error;
        Self {
            id: None,
            subject: subject.into(),
            position,
            outcome: Outcome::Invalid { substitute: None },
            problems: vec![FieldProblem::new(Severity::Error, position, "", what)],
        }
    }
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

/// The `apiVersion` under which the API server keeps Calico's own kinds.
pub(crate) const STORED_VERSION: &str = "crd.projectcalico.org/v1";

/// A resource on its way to the model.
pub(crate) struct Object<'n, 'p> {
    pub(crate) id: ObjectId,
    pub(crate) root: Cursor<'n, 'p>,
    pub(crate) map: Map<'n, 'p>,
    pub(crate) meta: Meta<'n>,
    pub(crate) options: &'p Options,
}

impl<'n> Object<'n, '_> {
    /// The specification, for a resource that may lack it; beside it there may be only what all resources have.
    pub(crate) fn spec(&self, sink: &mut Sink) -> Option<Map<'n, '_>> {
        self.map.known(&["apiVersion", "kind", "metadata", "spec", "status"], sink);
        self.map.field("spec").and_then(|spec| spec.map(sink))
    }

    /// As [`Object::spec`], for a resource that means nothing without it.
    pub(crate) fn required_spec(&self, sink: &mut Sink) -> Option<Map<'n, '_>> {
        let spec = self.spec(sink);
        if self.map.field("spec").is_none() {
            self.map.missing("spec", sink);
        }
        spec
    }
}

/// Does something with an object of this kind, whatever it says of its kind; `None` if the object has no usable identity.
pub(crate) fn with_object<T>(
    root: Cursor<'_, '_>,
    kind: Kind,
    options: &Options,
    sink: &mut Sink,
    then: impl FnOnce(&Object<'_, '_>, &mut Sink) -> T,
) -> Option<T> {
    let map = root.map(sink)?;
    let meta = Meta::read(kind, map, None, sink)?;
    let id = ObjectId { name: meta.name.into(), namespace: meta.namespace.into(), kind };
    let object = Object { id, root, map, meta, options };
    Some(then(&object, sink))
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
    if api_version == STORED_VERSION
        && !matches!(kind, Kind::IpamBlock | Kind::BlockAffinity)
        && let Some(field) = map.field("apiVersion")
    {
        let what = format!("is how the API server keeps it; people write `{}`", kind.api_version());
        field.lint(sink, Lint::DeprecatedVersion, what);
    }
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
        SyncerType::Felix => contributions(&object, labels, sink),
        _ => syncer::contributions(&object, labels, sink),
    };
    let outcome = match contributions {
        Some(contributions) if !sink.has_errors() || v3::is_usable_config(kind, sink) => Outcome::Valid(contributions),
        _ => Outcome::Invalid { substitute: substitute(&object) },
    };
    (Some(object.id), subject, outcome)
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

/// What a resource is for Felix; nothing if it is of no use to it.
pub(crate) fn contributions(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    match object.id.kind {
        Kind::NetworkPolicy
        | Kind::GlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedGlobalNetworkPolicy => v3::policy(object, sink),
        Kind::KubernetesNetworkPolicy | Kind::StagedKubernetesNetworkPolicy => k8s::network_policy(object, sink),
        Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy => {
            k8s::admin_policy(object, sink)
        }
        Kind::Tier => v3::tier(object, sink),
        Kind::Profile => v3::profile(object, labels, sink),
        Kind::NetworkSet | Kind::GlobalNetworkSet => v3::network_set(object, labels, sink),
        Kind::WorkloadEndpoint => v3::workload_endpoint(object, labels, sink),
        Kind::HostEndpoint => v3::host_endpoint(object, labels, sink),
        Kind::IpPool => v3::ip_pool(object, sink),
        Kind::Node => v3::calico_node(object, labels, sink),
        Kind::KubernetesNode => k8s::node(object, labels, sink),
        Kind::FelixConfiguration => v3::felix_configuration(object, sink),
        Kind::ClusterInformation => v3::cluster_information(object, sink),
        Kind::BgpConfiguration => v3::bgp_configuration_resource(object, sink),
        Kind::BgpPeer | Kind::LiveMigration => passthrough::resource(object, sink),
        Kind::IpamBlock => passthrough::ipam_block(object, sink),
        Kind::BgpFilter | Kind::BlockAffinity | Kind::CalicoNodeStatus => Some(Contributions::new()),
        Kind::VirtualMachineInstanceMigration => passthrough::virtual_machine_migration(object, sink),
        Kind::Namespace => k8s::namespace(object, labels, sink),
        Kind::ServiceAccount => k8s::service_account(object, labels, sink),
        Kind::Pod => k8s::pod(object, labels, sink),
        Kind::Service => k8s::service_resource(object, sink),
        Kind::EndpointSlice => k8s::endpoint_slice_resource(object, sink),
    }
}

fn substitute(object: &Object<'_, '_>) -> Option<Contributions> {
    match object.id.kind {
        Kind::NetworkPolicy | Kind::GlobalNetworkPolicy => v3::substitute_policy(object),
        Kind::KubernetesNetworkPolicy => k8s::substitute_policy(object),
        Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy => {
            k8s::substitute_admin_policy(object)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
