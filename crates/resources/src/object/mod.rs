//! An object between its text and the model: kind, metadata and outcome.

mod kind;
mod meta;
mod options;
pub(crate) mod reserved;

use tortie_model::{DenyAction, Update};

use crate::spelling::suggestion;
use crate::tree::{Cursor, Map, Sink};
use crate::{FieldProblem, Position, Severity, SyntaxError};

pub use kind::{Kind, ObjectId};
pub(crate) use meta::{
    METADATA_FIELDS, Meta, STORED_METADATA, StoredMeta, check_labels, is_dns_label, is_dns_subdomain, is_label_name,
    is_label_value,
};
pub use options::{BlockSource, Options, PolicyNames, SyncerType, UnknownFields, UnknownSyncer};

/// Objects of the model that a resource stands for.
pub type Contributions = Vec<Update>;

/// Result of the conversion of a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is used. A resource may contribute nothing, such as a pod without addresses.
    Valid(Contributions),
    /// It cannot be used; [`Resource::problems`] says why.
    Invalid {
        /// A policy that denies the endpoints that the invalid one selects, for use without an
        /// earlier version. `None` if the resource is no policy, or its selector cannot be read.
        substitute: Option<Contributions>,
    },
    /// It is of an unknown kind.
    Unknown,
}

/// One resource of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Identity of the object; `None` if kind, namespace or name are unknown or invalid.
    pub id: Option<ObjectId>,
    /// Kind, namespace and name for messages, as far as they are known.
    pub subject: String,
    /// Position of its first character.
    pub position: Position,
    /// Result of its conversion.
    pub outcome: Outcome,
    /// Errors and warnings, in the order of reading.
    pub problems: Vec<FieldProblem>,
}

impl Resource {
    /// Returns an invalid resource for an object without readable text.
    #[must_use]
    pub fn unreadable(subject: impl Into<String>, error: SyntaxError) -> Self {
        let SyntaxError { position, message } = error;
        Self {
            id: None,
            subject: subject.into(),
            position,
            outcome: Outcome::Invalid { substitute: None },
            problems: vec![FieldProblem::new(Severity::Error, position, "", message)],
        }
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
    /// Returns the specification of a resource that may lack it. Fields other than those of every
    /// resource are reported.
    pub(crate) fn spec(&self, sink: &mut Sink) -> Option<Map<'n, '_>> {
        self.map.known(&["apiVersion", "kind", "metadata", "spec", "status"], sink);
        self.map.field("spec").and_then(|spec| spec.map(sink))
    }

    /// As [`Object::spec`], for a resource that needs a specification.
    pub(crate) fn required_spec(&self, sink: &mut Sink) -> Option<Map<'n, '_>> {
        let spec = self.spec(sink);
        if self.map.field("spec").is_none() {
            self.map.missing("spec", sink);
        }
        spec
    }

    /// Returns the action of a policy or tier on denied traffic, from its annotation. An unknown
    /// action is reported, and drops.
    pub(crate) fn deny_action(&self, sink: &mut Sink) -> Option<DenyAction> {
        let text = self.meta.annotation(DenyAction::ANNOTATION)?;
        let action = DenyAction::parse(text);
        if action.is_none() {
            let suggestion = suggestion(text, &["Drop", "Reject"]);
            let message = format!("`{text}` is neither Drop nor Reject, so that denied traffic is dropped{suggestion}");
            self.warn_of_annotation(DenyAction::ANNOTATION, &message, sink);
        }
        Some(action.unwrap_or(DenyAction::Drop))
    }

    /// Warns of an annotation at its position, or at the object if the annotation is part of the
    /// metadata that Calico keeps in another one.
    pub(crate) fn warn_of_annotation(&self, name: &str, message: &str, sink: &mut Sink) {
        let quiet = &mut Sink::default();
        if let Some(metadata) = self.map.field("metadata")
            && let Some(metadata) = metadata.map(quiet)
            && let Some(annotations) = metadata.field("annotations")
            && let Some(annotations) = annotations.map(quiet)
            && let Some(annotation) = annotations.field(name)
        {
            annotation.warn(sink, message);
        } else {
            self.root.warn(sink, format!("annotation {name}: {message}"));
        }
    }
}

/// Calls `then` with an object of this kind; its own `kind` is not read. `None` if the object has
/// no usable identity.
pub(crate) fn with_object<T>(
    root: Cursor<'_, '_>,
    kind: Kind,
    options: &Options,
    sink: &mut Sink,
    then: impl FnOnce(&Object<'_, '_>, &mut Sink) -> T,
) -> Option<T> {
    let map = root.map(sink)?;
    let meta = Meta::read(kind, map, None, None, sink)?;
    let id = ObjectId { name: meta.name.into(), namespace: meta.namespace.into(), kind };
    let object = Object { id, root, map, meta, options };
    Some(then(&object, sink))
}
