//! Manifests: files of resources as people write them.

mod kind;
mod meta;

use std::sync::Arc;

use tortie_model::{Key, LabelInterner, Value};

use crate::tree::{Content, Cursor, Map, Node, Sink, parse_json, parse_yaml};
use crate::{Position, Problem, SyntaxError, k8s, v3};

pub use kind::{Kind, ObjectId};
pub(crate) use meta::{Meta, check_labels, is_label_name, is_label_value};

/// How a manifest is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// YAML, any number of documents.
    Yaml,
    /// JSON, one document.
    Json,
}

/// What conversion needs to know besides the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the names of workload interfaces begin with: the first entry of Felix's `InterfacePrefix`.
    pub interface_prefix: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { interface_prefix: "cali".into() }
    }
}

/// What a resource contributes to the datastore.
pub type Contributions = Vec<(Key, Value)>;

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
    pub problems: Vec<Problem>,
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
pub fn read(text: &str, format: Format, options: &Options, labels: &mut LabelInterner) -> Manifest {
    let mut manifest = Manifest::default();
    let mut take = |document: Result<Node<'_>, SyntaxError>| match document {
        Ok(node) => read_document(&node, options, labels, &mut manifest),
        Err(error) => manifest.unreadable.push(error),
    };
    match format {
        Format::Yaml => parse_yaml(text).for_each(take),
        Format::Json if text.trim().is_empty() => {}
        Format::Json => take(parse_json(text)),
    }
    manifest
}

fn read_document(node: &Node<'_>, options: &Options, labels: &mut LabelInterner, manifest: &mut Manifest) {
    let root = Cursor::root(node);
    if let Content::Map(entries) = root.content()
        && entries.iter().any(|e| e.key == "kind" && matches!(&e.node.content, Content::Text(k) if k.ends_with("List")))
        && let Some(items) = entries.iter().find(|e| e.key == "items")
        && let Content::List(items) = &items.node.content
    {
        for item in items {
            read_document(item, options, labels, manifest);
        }
        return;
    }
    manifest.resources.push(read_resource(root, options, labels));
}

/// A resource on its way to the model.
pub(crate) struct Object<'n, 'p> {
    pub(crate) id: ObjectId,
    pub(crate) root: Cursor<'n, 'p>,
    pub(crate) map: Map<'n, 'p>,
    pub(crate) meta: Meta<'n>,
    pub(crate) options: &'p Options,
}

fn read_resource(root: Cursor<'_, '_>, options: &Options, labels: &mut LabelInterner) -> Resource {
    let mut sink = Sink::default();
    let position = root.position();
    let (id, subject, outcome) = match root.map(&mut sink) {
        None => (None, "document".to_owned(), Outcome::Invalid { substitute: None }),
        Some(map) => convert(root, map, options, labels, &mut sink),
    };
    Resource { id, subject, position, outcome, problems: sink.problems }
}

fn convert(
    root: Cursor<'_, '_>,
    map: Map<'_, '_>,
    options: &Options,
    labels: &mut LabelInterner,
    sink: &mut Sink,
) -> (Option<ObjectId>, String, Outcome) {
    const INVALID: Outcome = Outcome::Invalid { substitute: None };
    let (Some(api_version), Some(kind_name)) = (map.text("apiVersion", sink), map.text("kind", sink)) else {
        for name in ["apiVersion", "kind"] {
            if map.field(name).is_none() {
                map.missing(name, sink);
            }
        }
        return (None, subject(map), INVALID);
    };
    let Some(kind) = Kind::find(api_version, kind_name) else {
        let outcome = unknown_kind(api_version, kind_name, map, sink);
        return (None, subject(map), outcome);
    };
    let Some(meta) = Meta::read(kind, map, sink) else {
        return (None, subject(map), INVALID);
    };
    let name: Arc<str> = if kind.is_policy() { v3::stored_policy_name(&meta, map) } else { meta.name.into() };
    let id = ObjectId { name, namespace: meta.namespace.into(), kind };
    let object = Object { id, root, map, meta, options };
    let subject = object.id.to_string();
    let contributions = contributions(&object, labels, sink);
    let outcome = match contributions {
        Some(contributions) if !sink.has_errors() => Outcome::Valid(contributions),
        _ => Outcome::Invalid { substitute: substitute(&object) },
    };
    (Some(object.id), subject, outcome)
}

/// What to call an object that has no usable identity: as much of kind, namespace and name as can be read.
fn subject(map: Map<'_, '_>) -> String {
    let quiet = &mut Sink::default();
    let Some(kind) = map.text("kind", quiet) else { return "document".to_owned() };
    let meta = map.field("metadata").and_then(|metadata| metadata.map(quiet));
    let [namespace, name] = ["namespace", "name"].map(|field| meta.and_then(|meta| meta.text(field, quiet)));
    [Some(kind), namespace, name].into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// A kind that means nothing here is no mistake, unless it looks like the misspelt name of a policy.
fn unknown_kind(api_version: &str, kind: &str, map: Map<'_, '_>, sink: &mut Sink) -> Outcome {
    let Some(field) = map.field("kind") else { return Outcome::Unknown };
    match Kind::policy_like(api_version, kind) {
        Some(near) => field.error(sink, format!("kind {kind} of {api_version} is not known; is {near} meant?")),
        None => {
            field.warn(sink, format!("kind {kind} of {api_version} is not known here and has no effect"));
        }
    }
    if sink.has_errors() { Outcome::Invalid { substitute: None } } else { Outcome::Unknown }
}

fn contributions(object: &Object<'_, '_>, labels: &mut LabelInterner, sink: &mut Sink) -> Option<Contributions> {
    match object.id.kind {
        Kind::NetworkPolicy
        | Kind::GlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedGlobalNetworkPolicy => v3::policy(object, sink),
        Kind::KubernetesNetworkPolicy | Kind::StagedKubernetesNetworkPolicy => k8s::network_policy(object, sink),
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
        _ => None,
    }
}

#[cfg(test)]
mod tests;
