//! History of user-written resources of an API server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tortie_model::with_causes;
use tortie_resources::custom;
use tortie_resources::manifest::Kind;
use tortie_resources::stored::{ObjectError, ResourceKey, ResourceKind};
use tortie_revisions::history::{HistorySettings, HistoryWriter, Origin, resource_path};

use super::config::KubeConfig;
use super::reflector::{Event, ObjectMeta};
use super::store::key_of_object;

/// Namespace and name of an object.
type ObjectName = (String, String);

/// Passes received objects to the history.
#[derive(Debug)]
pub(super) struct Recording {
    config: KubeConfig,
    settings: HistorySettings,
    writer: Writer,
    /// Existing objects, by the kind of their list.
    known: BTreeMap<ResourceKind, BTreeMap<ObjectName, ResourceKey>>,
    /// Objects that existed before a list and have not occurred in it yet.
    missing: BTreeMap<ResourceKind, BTreeSet<ObjectName>>,
    is_whole: bool,
}

#[derive(Debug)]
enum Writer {
    /// Not needed yet.
    Waiting,
    Started(HistoryWriter),
    /// It could not be started; that has been logged.
    Failed,
}

impl Recording {
    pub(super) fn new(config: KubeConfig, settings: HistorySettings) -> Self {
        let (known, missing) = (BTreeMap::new(), BTreeMap::new());
        Self { config, settings, writer: Writer::Waiting, known, missing, is_whole: false }
    }

    /// Processes an event of a list of this kind.
    pub(super) fn handle_event(&mut self, kind: Kind, event: &Event) {
        let Some(kind) = ResourceKind::in_kubernetes(kind).filter(is_recorded) else { return };
        match event {
            Event::Begin => {
                self.start();
                let places = self.known.get(&kind).map(|known| known.keys().cloned().collect());
                self.missing.insert(kind, places.unwrap_or_default());
            }
            Event::Item(object) | Event::Changed(object) => self.set(kind, object),
            Event::End => {
                for place in self.missing.remove(&kind).unwrap_or_default() {
                    self.remove(kind, &place);
                }
            }
            Event::Deleted(ObjectMeta { namespace, name, .. }) => {
                self.remove(kind, &(namespace.clone(), name.clone()));
            }
            Event::NotInstalled | Event::Unavailable(_) | Event::Available => {}
        }
    }

    /// Notes that every kind has been listed.
    pub(super) fn complete(&mut self) {
        self.start();
        if let (Writer::Started(writer), false) = (&mut self.writer, self.is_whole) {
            writer.end_list();
        }
        self.is_whole = true;
    }

    /// Starts the writer. This happens after the first response, when the server is known.
    fn start(&mut self) {
        if !matches!(self.writer, Writer::Waiting) {
            return;
        }
        let writer = match self.config.fixed() {
            Ok(fixed) => HistoryWriter::start(Origin::Kubernetes(fixed.server), self.settings.clone(), as_written),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "no history of the resources is kept");
                None
            }
        };
        self.writer = writer.map_or(Writer::Failed, |mut writer| {
            writer.begin_list();
            Writer::Started(writer)
        });
    }

    fn see(&mut self, key: &ResourceKey, value: Option<&[u8]>) {
        if let Writer::Started(writer) = &mut self.writer {
            writer.see(key, value);
        }
    }

    fn set(&mut self, kind: ResourceKind, text: &str) {
        let Some(meta) = ObjectMeta::read(text) else { return };
        let object = serde_json::from_str::<Value>(text).ok();
        let Some(key) = object.and_then(|object| key_of_object(kind, &object)) else { return };
        let place = (meta.namespace, meta.name);
        if let Some(missing) = self.missing.get_mut(&kind) {
            missing.remove(&place);
        }
        let before = self.known.entry(kind).or_default().insert(place, key.clone());
        if let Some(other) = before.filter(|before| *before != key) {
            self.see(&other, None);
        }
        self.see(&key, Some(text.as_bytes()));
    }

    fn remove(&mut self, kind: ResourceKind, place: &ObjectName) {
        let removed = self.known.get_mut(&kind).and_then(|known| known.remove(place));
        if let Some(key) = removed {
            self.see(&key, None);
        }
    }
}

fn is_recorded(kind: &ResourceKind) -> bool {
    let namespace = if kind.is_namespaced() { "n" } else { "" };
    ResourceKey::new(*kind, namespace, "n").is_ok_and(|key| resource_path(&key).is_some())
}

/// Converts an object of the API server, of either API of Calico's kinds, to the form that a user
/// would write.
fn as_written(key: &ResourceKey, object: Value) -> Result<Value, ObjectError> {
    let is_annotated = object.get("apiVersion").is_some_and(|version| version == custom::API_VERSION);
    if is_annotated { custom::from_custom(key, object) } else { custom::from_plain(key, object) }
}
