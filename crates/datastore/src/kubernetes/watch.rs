//! Resources in Kubernetes, followed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tortie_model::with_causes;
use tortie_resources::stored::{ResourceKey, ResourceKind};

use super::client::Client;
use super::reflector::{Event, ListWatch, ObjectMeta, Received, Reflector};
use super::resource::ApiResource;
use crate::store::{Known, ResourceWatch, StoreError, StoredResource, WatchEvent};

/// Converts an object to the resource that it represents; `None` if its names are invalid.
type ReadObject = dyn Fn(Value) -> Option<(ResourceKey, Result<StoredResource, StoreError>)>;

pub(super) struct KubernetesWatch {
    kind: ResourceKind,
    read: Box<ReadObject>,
    reflector: Reflector,
    known: Known,
    /// Keys by namespace and name of their objects: a policy's object may have another name.
    keys: BTreeMap<(String, String), ResourceKey>,
}

impl KubernetesWatch {
    pub(super) fn new(
        client: &Client,
        resource: ApiResource,
        kind: ResourceKind,
        namespace: Option<&str>,
        read: Box<ReadObject>,
    ) -> Self {
        let mut reflector = Reflector::new(client);
        reflector.add(ListWatch { namespace: namespace.unwrap_or_default().to_owned(), ..ListWatch::all(resource) });
        Self { kind, read, reflector, known: Known::default(), keys: BTreeMap::new() }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Begin => self.known.list_begins(),
            Event::Item(object) | Event::Changed(object) => self.take_object(&object),
            Event::End => self.known.list_ends(),
            Event::Deleted(meta) => {
                if let Some(key) = self.keys.remove(&(meta.namespace, meta.name)) {
                    self.known.remove(&key);
                }
            }
            Event::NotInstalled => {
                let why = format!("the API server has no {}: their definition is not installed", self.kind.plural());
                self.known.unavailable(why);
            }
            Event::Unavailable(error) => self.known.unavailable(with_causes(&error)),
            Event::Available => {}
        }
    }

    fn take_object(&mut self, text: &str) {
        let (Ok(object), Some(meta)) = (serde_json::from_str::<Value>(text), ObjectMeta::read(text)) else { return };
        // An object without a usable name cannot be read by its name.
        let Some((key, resource)) = (self.read)(object) else { return };
        self.keys.insert((meta.namespace, meta.name), key);
        let revision = meta.resource_version.parse().unwrap_or_default();
        match resource {
            Ok(resource) => self.known.set(resource),
            Err(StoreError::Unreadable { key, why }) => self.known.unreadable(key, revision, with_causes(&why)),
            Err(error) => self.known.unavailable(with_causes(&error)),
        }
    }
}

impl ResourceWatch for KubernetesWatch {
    fn next(&mut self, patience: Duration) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.known.pop() {
                return Some(event);
            }
            let Received::Event(_, event) = self.reflector.recv(Some(patience)) else { return None };
            self.take(event);
        }
    }
}
