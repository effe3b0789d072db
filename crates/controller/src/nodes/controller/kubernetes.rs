//! Kubernetes as the datastore: Calico nodes are Kubernetes nodes, and all other resources are
//! custom resources.

use serde_json::Value;
use tortie_resources::manifest::calico_node;

use super::{NodeController, StoredEvent};
use crate::Observed;
use crate::json::field;
use crate::nodes::custom::{CustomForm, CustomKind, EntryChange};

impl NodeController {
    /// Records an event of a custom resource. It has an effect only with
    /// [`Overrides::kubernetes_datastore`].
    ///
    /// [`Overrides::kubernetes_datastore`]: super::Overrides::kubernetes_datastore
    pub fn observe_custom(&mut self, kind: CustomKind, form: CustomForm, observed: Observed<'_>) {
        let Some(custom) = &mut self.custom else { return };
        for EntryChange { path, text } in custom.observe(kind, form, observed) {
            self.observe_stored(match &text {
                Some((text, revision)) => StoredEvent::Text { path: &path, text, revision: *revision },
                None => StoredEvent::Deleted { path: &path },
            });
        }
        self.note_sync();
    }

    /// Records that the API server does not have a kind, so that no objects of it exist.
    pub fn not_installed(&mut self, kind: CustomKind) {
        if let Some(custom) = &mut self.custom {
            custom.not_installed(kind);
            self.note_sync();
        }
    }

    fn note_sync(&mut self) {
        if !self.stored_synced && self.custom.as_ref().is_some_and(super::CustomResources::synced) {
            self.observe_stored(StoredEvent::ListEnds);
        }
    }

    /// Reports whether unknown nodes may exist.
    pub(super) fn may_have_more_nodes(&self) -> bool {
        self.custom.is_some() && !self.nodes.is_complete()
    }

    /// Records a Kubernetes node as a Calico node.
    pub(super) fn observe_node(&mut self, observed: Observed<'_>) {
        let (Observed::Listed(json) | Observed::Changed(json)) = observed else { return };
        let name = |object: &Value| field(object, &["metadata", "name"]).as_str().unwrap_or_default().to_owned();
        let (name, node) = match calico_node(json) {
            Some(node) => (name(&node), node),
            // An invalid node is recorded as null, so that the controller leaves it alone.
            None => (name(&serde_json::from_str(json).unwrap_or_default()), Value::Null),
        };
        if !name.is_empty() {
            self.set_node(&name, Some(node));
        }
    }
}
