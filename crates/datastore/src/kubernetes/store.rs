//! What Calico keeps, read and written one by one where Kubernetes is the datastore.

use serde_json::{Value, json};
use tortie_resources::custom::{self, AddressKind};
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};
use tortie_resources::syncer::calico_node;
use tortie_store::{Listing, ResourceStore, StoreError, StoredResource, StoredText, TextChange, TextStore};

use super::client::Client;
use super::error::ApiError;
use super::resource::ApiResource;

const GROUP: &str = "crd.projectcalico.org";
const VERSION: &str = "v1";
/// How often a resource is written that others keep changing.
const TRIES: usize = 8;

/// Calico's resources as custom resources, `crd.projectcalico.org/v1`, and blocks of addresses, affinities and handles under
/// the paths that they have in etcd.
///
/// * Whatever is replaced or deleted is still at the version that was read, and the same object.
/// * Nodes are those of Kubernetes, and only read. Policies, profiles and workload endpoints are not to be had here.
/// * Texts are changed one at a time, and not made. They are marked as deleted before they are, so that nobody takes for
///   valid what somebody is about to delete (`DeleteKVP` of `libcalico-go/lib/backend/k8s/resources`).
#[derive(Clone, Debug)]
pub struct KubernetesStore {
    client: Client,
}

fn api_of(plural: &'static str) -> ApiResource {
    ApiResource::new(GROUP, VERSION, plural)
}

/// The kind of custom resource that resources of this kind are.
fn api_resource(kind: ResourceKind) -> Result<ApiResource, StoreError> {
    let is_other = matches!(kind, ResourceKind::Node | ResourceKind::Profile | ResourceKind::WorkloadEndpoint);
    if is_other || kind.has_tier() {
        return Err(StoreError::Refused(format!("{kind} is none that is written here")));
    }
    Ok(api_of(kind.plural()))
}

fn failed(error: &ApiError) -> StoreError {
    let is_final = error.is_refusal() || matches!(error.code(), Some(400 | 405 | 413 | 415 | 422));
    if is_final { StoreError::Refused(error.to_string()) } else { StoreError::Unavailable(error.to_string()) }
}

/// What is wrong with a resource; a conflict is for who knows the versions.
fn of_resource(key: &ResourceKey, error: &ApiError) -> StoreError {
    if error.is_not_found() { StoreError::NotFound(key.clone()) } else { failed(error) }
}

fn text_of<'o>(object: &'o Value, name: &str) -> &'o str {
    object.get("metadata").and_then(|metadata| metadata.get(name)).and_then(Value::as_str).unwrap_or_default()
}

fn version_of(object: &Value) -> Result<Revision, StoreError> {
    let version = text_of(object, "resourceVersion");
    version.parse().map_err(|_| StoreError::Refused(format!("the resourceVersion `{version}` is no number")))
}

fn read(key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
    let revision = version_of(&object)?;
    let object = custom::from_custom(key, object)
        .map_err(|error| StoreError::Unreadable { key: key.clone(), why: error.to_string() })?;
    Ok(StoredResource { key: key.clone(), revision, object })
}

impl KubernetesStore {
    /// Reads and writes by this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn object(&self, key: &ResourceKey) -> Result<Value, StoreError> {
        let found = self.client.get(api_resource(key.kind())?, key.namespace(), key.name());
        found.map_err(|error| of_resource(key, &error))
    }

    /// The object as it is if it is at this version.
    fn object_at(&self, key: &ResourceKey, expected: Revision) -> Result<Value, StoreError> {
        let object = self.object(key)?;
        let found = version_of(&object)?;
        if found == expected { Ok(object) } else { Err(StoreError::Conflict { key: key.clone(), expected, found }) }
    }

    /// Somebody was faster than a write based on this version.
    fn overtaken(&self, key: &ResourceKey, expected: Revision) -> StoreError {
        match self.object(key).and_then(|object| version_of(&object)) {
            Ok(found) => StoreError::Conflict { key: key.clone(), expected, found },
            Err(error) => error,
        }
    }

    fn replace(
        &self,
        key: &ResourceKey,
        object: Value,
        based_on: Revision,
        replace: impl FnOnce(ApiResource, &Value) -> Result<Value, ApiError>,
    ) -> Result<StoredResource, StoreError> {
        let before = self.object_at(key, based_on)?;
        let object = custom::to_custom(key, object, Some(&before))
            .map_err(|error| StoreError::Invalid { key: key.clone(), error })?;
        match replace(api_resource(key.kind())?, &object) {
            Ok(object) => read(key, object),
            Err(error) if error.is_conflict() => Err(self.overtaken(key, based_on)),
            Err(error) => Err(of_resource(key, &error)),
        }
    }
}

impl ResourceStore for KubernetesStore {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        if key.kind() != ResourceKind::Node {
            return read(key, self.object(key)?);
        }
        let node = self.client.get(ApiResource::NODES, "", key.name()).map_err(|error| of_resource(key, &error))?;
        let revision = version_of(&node)?;
        let object = calico_node(&node.to_string())
            .ok_or_else(|| StoreError::Unreadable { key: key.clone(), why: "is no valid node".into() })?;
        Ok(StoredResource { key: key.clone(), revision, object })
    }

    /// The version is that of the newest resource.
    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        let objects = self.client.list(api_resource(kind)?, namespace.unwrap_or_default(), "");
        let mut listing = Listing::default();
        for object in objects.map_err(|error| failed(&error))? {
            let (namespace, name) = (text_of(&object, "namespace"), text_of(&object, "name"));
            let namespace = if kind.is_namespaced() { namespace } else { "" };
            let Ok(key) = ResourceKey::new(kind, namespace, name) else { continue };
            match read(&key, object) {
                Ok(resource) => {
                    listing.revision = listing.revision.max(resource.revision);
                    listing.resources.push(resource);
                }
                Err(StoreError::Unreadable { key, why }) => listing.unreadable.push((key, why)),
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    /// Name, uid and time of creation are the API server's.
    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        let object =
            custom::to_custom(key, object, None).map_err(|error| StoreError::Invalid { key: key.clone(), error })?;
        match self.client.create(api_resource(key.kind())?, key.namespace(), &object) {
            Ok(object) => read(key, object),
            Err(error) if error.is_already_exists() => Err(StoreError::AlreadyExists(key.clone())),
            // That there is no such kind is no reason to say that there is no such resource.
            Err(error) => Err(failed(&error)),
        }
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.replace(key, object, based_on, |api, object| self.client.replace(api, key.namespace(), key.name(), object))
    }

    fn update_status(
        &self,
        key: &ResourceKey,
        object: Value,
        based_on: Revision,
    ) -> Result<StoredResource, StoreError> {
        self.replace(key, object, based_on, |api, object| {
            self.client.replace_status(api, key.namespace(), key.name(), object)
        })
    }

    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        for _ in 0..TRIES {
            let written = match self.object(key).and_then(|before| version_of(&before)) {
                Ok(version) => self.update(key, object.clone(), version),
                Err(StoreError::NotFound(_)) => self.create(key, object.clone()),
                Err(error) => return Err(error),
            };
            match written {
                Err(StoreError::NotFound(_) | StoreError::AlreadyExists(_) | StoreError::Conflict { .. }) => {}
                other => return other,
            }
        }
        Err(StoreError::Unavailable(format!("{key}: others keep changing it")))
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        let object = match version {
            Some(version) => self.object_at(key, version)?,
            None => self.object(key)?,
        };
        let read_at = version_of(&object)?;
        let version = version.map(|_| text_of(&object, "resourceVersion"));
        let (api, uid) = (api_resource(key.kind())?, text_of(&object, "uid"));
        match self.client.delete_object(api, key.namespace(), key.name(), uid, version) {
            Ok(()) => Ok(()),
            Err(error) if error.is_conflict() => Err(self.overtaken(key, read_at)),
            Err(error) => Err(of_resource(key, &error)),
        }
    }
}

/// What a write was overtaken by is for who reads again: nothing was changed.
fn unless_overtaken<T>(result: Result<T, ApiError>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

impl KubernetesStore {
    fn address_object(&self, kind: AddressKind, name: &str) -> Result<Option<Value>, StoreError> {
        match self.client.get(api_of(kind.plural()), "", name) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }
}

impl TextStore for KubernetesStore {
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        let Some((kind, name)) = AddressKind::at(path) else { return Ok(None) };
        let object = self.address_object(kind, &name)?;
        // Names do not tell all paths apart.
        let Some(object) = object.filter(|object| kind.path(object) == Ok(Some(path.to_owned()))) else {
            return Ok(None);
        };
        let text = object.get("spec").unwrap_or(&Value::Null).to_string();
        Ok(Some(StoredText { path: path.to_owned(), text, revision: version_of(&object)? }))
    }

    fn is_transactional(&self) -> bool {
        false
    }

    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError> {
        let [TextChange { path, expected: Some(expected), text }] = changes else {
            return Err(StoreError::Refused("only one text is changed at a time, and none made".into()));
        };
        let place = AddressKind::at(path);
        let (kind, name) = place.ok_or_else(|| StoreError::Refused(format!("{path}: is not kept in Kubernetes")))?;
        let Some(mut object) = self.address_object(kind, &name)? else { return Ok(None) };
        if version_of(&object)? != *expected {
            return Ok(None);
        }
        let api = api_of(kind.plural());
        let spec = match (text, object.get("spec")) {
            (Some(text), _) => serde_json::from_str(text)
                .map_err(|error| StoreError::Refused(format!("{path}: the text is no JSON: {error}")))?,
            (None, spec) => {
                let mut spec = spec.cloned().unwrap_or_else(|| json!({}));
                if let Some(fields) = spec.as_object_mut() {
                    fields.insert("deleted".into(), kind.deletion_mark());
                }
                spec
            }
        };
        if let Some(fields) = object.as_object_mut() {
            fields.insert("spec".into(), spec);
        }
        let Some(written) = unless_overtaken(self.client.replace(api, "", &name, &object))? else { return Ok(None) };
        let revision = version_of(&written)?;
        if text.is_some() {
            return Ok(Some(revision));
        }
        let (uid, version) = (text_of(&written, "uid"), text_of(&written, "resourceVersion"));
        match self.client.delete_object(api, "", &name, uid, Some(version)) {
            Err(error) if error.is_not_found() => Ok(Some(revision)),
            other => Ok(unless_overtaken(other)?.map(|()| revision)),
        }
    }
}
