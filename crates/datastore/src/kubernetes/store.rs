//! Single resources of Calico, read and written where Kubernetes is the datastore.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::store::{
    Listing, ResourceStore, ResourceWatch, StoreError, StoredResource, StoredText, TextChange, TextStore, Verb,
};
use serde_json::{Value, json};
use tortie_model::{Cause, with_causes};
use tortie_resources::custom::{self, AddressKind, policy_name};
use tortie_resources::manifest::calico_node;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use super::client::Client;
use super::discovery::discover;
use super::error::ApiError;
use super::kinds::{CalicoApi, api_resource, written_kinds};
use super::resource::ApiResource;
use super::watch::KubernetesWatch;

/// Attempts to write a resource that other clients keep changing.
const TRIES: usize = 8;
/// Duration after which the API of Calico's resources is discovered again.
const DISCOVERED: Duration = Duration::from_secs(60);

/// Calico's resources as custom resources, by `crd.projectcalico.org/v1` or `projectcalico.org/v3`,
/// and policies of Kubernetes. Texts are custom resources too: IPAM blocks, affinities and handles
/// have the paths that they have in etcd.
///
/// * An object is replaced or deleted only if it is still the same object at the version that was
///   read.
/// * Nodes are those of Kubernetes, and read-only. Profiles and workload endpoints are not
///   available.
/// * A policy has the name that its author gave it; older Calico releases give its object another
///   name.
/// * Texts are changed one at a time, and never created. Before a text is deleted it is marked as
///   deleted, so that no other process relies on it meanwhile (`DeleteKVP` of
///   `libcalico-go/lib/backend/k8s/resources`).
#[derive(Clone, Debug)]
pub struct KubernetesStore {
    client: Client,
    calico: CalicoChoice,
}

/// API of Calico's resources.
#[derive(Clone, Debug)]
enum CalicoChoice {
    /// That which the owner of the cell finds, once.
    Given(Arc<OnceLock<CalicoApi>>),
    /// That which the server had, and the time of its response.
    Discovered(Arc<Mutex<Option<(CalicoApi, Instant)>>>),
}

/// Text that is not the JSON of an object.
#[derive(Debug, thiserror::Error)]
#[error("{path}: the text is no JSON")]
struct TextError {
    path: String,
    #[source]
    error: serde_json::Error,
}

fn failed(error: &ApiError) -> StoreError {
    let is_final = error.is_refusal() || matches!(error.code(), Some(400 | 405 | 413 | 415 | 422));
    let cause = Cause::new(error.clone());
    if is_final { StoreError::Refused(cause) } else { StoreError::Unavailable(cause) }
}

/// Converts the error of a request for a resource, except a conflict, which the caller handles
/// because it knows the versions.
fn of_resource(key: &ResourceKey, error: &ApiError) -> StoreError {
    if error.is_not_found() { StoreError::NotFound(key.clone()) } else { of_write(key, error) }
}

/// Converts the error of a write. A retry does not help if the object is invalid, or its namespace
/// is gone.
fn of_write(key: &ResourceKey, error: &ApiError) -> StoreError {
    match error {
        ApiError::Status { code: 400 | 413 | 422, .. } => {
            StoreError::NotAccepted { key: key.clone(), why: error.to_string() }
        }
        error if is_no_namespace(error) => StoreError::NotAccepted { key: key.clone(), why: error.to_string() },
        error => failed(error),
    }
}

fn is_no_namespace(error: &ApiError) -> bool {
    matches!(error, ApiError::Status { code: 404, message, .. } if message.starts_with("namespaces "))
}

/// Returns the objects that Kubernetes has instead of a kind of Calico, for messages.
fn instead(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Node => "separate nodes, which are read-only here",
        ResourceKind::Profile => "namespaces and service accounts",
        _ => "pods",
    }
}

fn text_of<'o>(object: &'o Value, name: &str) -> &'o str {
    object.get("metadata").and_then(|metadata| metadata.get(name)).and_then(Value::as_str).unwrap_or_default()
}

fn version_of(object: &Value) -> Result<Revision, StoreError> {
    let version = text_of(object, "resourceVersion");
    version.parse().map_err(|_| StoreError::Refused(format!("the resourceVersion `{version}` is no number").into()))
}

impl KubernetesStore {
    /// Returns a store that uses this client. Calico's resources are unavailable until the cell has
    /// their API, as of [`Client::served_calico_api`].
    #[must_use]
    pub fn with_api(client: Client, api: Arc<OnceLock<CalicoApi>>) -> Self {
        Self { client, calico: CalicoChoice::Given(api) }
    }

    /// Returns a store that uses this client, and Calico's resources by the API that a
    /// [`super::KubernetesSource`] reads. It is discovered again after a minute, as a migration may
    /// have ended.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    pub fn discover(client: Client) -> Result<Self, StoreError> {
        let store = Self { client, calico: CalicoChoice::Discovered(Arc::default()) };
        store.calico()?;
        Ok(store)
    }

    fn calico(&self) -> Result<CalicoApi, StoreError> {
        let known = match &self.calico {
            CalicoChoice::Given(api) => {
                let unknown = || StoreError::Unavailable("the API of Calico's resources is not known yet".into());
                return api.get().copied().ok_or_else(unknown);
            }
            CalicoChoice::Discovered(known) => || known.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let before = *known();
        if let Some((api, _)) = before.filter(|(_, time)| time.elapsed() < DISCOVERED) {
            return Ok(api);
        }
        let served = discover(&self.client).map_err(|error| failed(&error))?;
        let before = before.map(|(api, _)| api);
        let found = served.api(before);
        if let Some(api) = found {
            *known() = Some((api, Instant::now()));
        }
        // A starting server may list no API for a moment.
        Ok(found.or(before).unwrap_or(CalicoApi::CrdV1))
    }

    /// Returns the user-written kinds that an agent reads.
    pub fn written_kinds() -> impl Iterator<Item = ResourceKind> {
        written_kinds()
    }

    fn api(&self, kind: ResourceKind) -> Result<ApiResource, StoreError> {
        let none = || {
            StoreError::Refused(format!("{kind} is not kept in Kubernetes, which has {} instead", instead(kind)).into())
        };
        api_resource(kind, self.calico()?).ok_or_else(none)
    }

    /// Reports whether objects of this kind keep Calico's metadata in an annotation.
    fn is_annotated(&self, kind: ResourceKind) -> Result<bool, StoreError> {
        Ok(!kind.is_of_kubernetes() && self.calico()? == CalicoApi::CrdV1)
    }

    fn read(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        let revision = version_of(&object)?;
        Ok(StoredResource { key: key.clone(), revision, object: self.resource(key, object)? })
    }

    /// Converts an object to the resource that it represents.
    fn resource(&self, key: &ResourceKey, object: Value) -> Result<Value, StoreError> {
        let read = if self.is_annotated(key.kind())? { custom::from_custom } else { custom::from_plain };
        read(key, object).map_err(|error| StoreError::Unreadable { key: key.clone(), why: Cause::new(error) })
    }

    /// Converts an object of a list.
    pub(super) fn listed(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        if key.kind() == ResourceKind::Node { read_node(key, &object) } else { self.read(key, object) }
    }

    fn written(&self, key: &ResourceKey, object: Value, before: Option<&Value>) -> Result<Value, StoreError> {
        let write = if self.is_annotated(key.kind())? { custom::to_custom } else { custom::to_plain };
        write(key, object, before).map_err(|error| StoreError::Invalid { key: key.clone(), error })
    }

    fn object(&self, key: &ResourceKey) -> Result<Value, StoreError> {
        let api = self.api(key.kind())?;
        let get = |name: &str| self.client.get(api, key.namespace(), name).map_err(|error| of_resource(key, &error));
        if !(key.kind().has_tier() && self.is_annotated(key.kind())?) {
            return get(key.name());
        }
        for name in [key.name(), &format!("default.{}", key.name())] {
            match get(name) {
                Ok(object) if policy_name(&object) == key.name() => return Ok(object),
                Ok(_) | Err(StoreError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::NotFound(key.clone()))
    }

    /// Creates an object; returns it as the server stored it.
    fn created(&self, key: &ResourceKey, object: Value) -> Result<Value, StoreError> {
        let object = self.written(key, object, None)?;
        match self.client.create(self.api(key.kind())?, key.namespace(), &object) {
            Ok(object) => Ok(object),
            Err(error) if error.is_already_exists() => Err(StoreError::AlreadyExists(key.clone())),
            // A missing kind is not reported as a missing resource.
            Err(error) if error.is_not_found() && !is_no_namespace(&error) => Err(StoreError::NoKind(key.kind())),
            Err(error) => Err(of_write(key, &error)),
        }
    }

    /// Reads an object; an error if it is at another version.
    fn object_at(&self, key: &ResourceKey, expected: Revision) -> Result<Value, StoreError> {
        let object = self.object(key)?;
        let found = version_of(&object)?;
        if found == expected { Ok(object) } else { Err(StoreError::Conflict { key: key.clone(), expected, found }) }
    }

    /// Returns the conflict of a write based on this version, after another client changed the
    /// object.
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
        replace: impl FnOnce(ApiResource, &str, &Value) -> Result<Value, ApiError>,
    ) -> Result<StoredResource, StoreError> {
        let before = self.object_at(key, based_on)?;
        let object = self.written(key, object, Some(&before))?;
        match replace(self.api(key.kind())?, text_of(&before, "name"), &object) {
            Ok(object) => self.read(key, object),
            Err(error) if error.is_conflict() => Err(self.overtaken(key, based_on)),
            Err(error) => Err(of_resource(key, &error)),
        }
    }
}

impl ResourceStore for KubernetesStore {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        if key.kind() != ResourceKind::Node {
            return self.read(key, self.object(key)?);
        }
        let node = self.client.get(ApiResource::NODES, "", key.name()).map_err(|error| of_resource(key, &error))?;
        read_node(key, &node)
    }

    /// Lists resources; the version of the listing is that of the newest resource.
    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        let is_node = kind == ResourceKind::Node;
        let api = if is_node { ApiResource::NODES } else { self.api(kind)? };
        let objects = match self.client.list(api, namespace.unwrap_or_default(), "") {
            // A missing kind of Kubernetes is optional and not installed.
            Err(error) if error.is_not_found() && kind.is_of_kubernetes() => Vec::new(),
            Err(error) if error.is_not_found() => return Err(StoreError::NoKind(kind)),
            objects => objects.map_err(|error| failed(&error))?,
        };
        let mut listing = Listing::default();
        for object in objects {
            // An object without a usable name cannot be read by its name.
            let Some(key) = key_of_object(kind, &object) else { continue };
            match self.listed(&key, object) {
                Ok(resource) => {
                    listing.revision = listing.revision.max(resource.revision);
                    listing.resources.push(resource);
                }
                Err(StoreError::Unreadable { key, why }) => listing.unreadable.push((key, with_causes(&why))),
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    fn watch(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Box<dyn ResourceWatch>, StoreError> {
        let is_node = kind == ResourceKind::Node;
        let api = if is_node { ApiResource::NODES } else { self.api(kind)? };
        // The API is that of the watched objects, even if another one follows it.
        let calico = match self.calico() {
            Ok(api) => CalicoChoice::Given(Arc::new(OnceLock::from(api))),
            Err(_) if kind.is_of_kubernetes() || is_node => self.calico.clone(),
            Err(error) => return Err(error),
        };
        let store = Self { client: self.client.clone(), calico };
        let read = move |object| {
            let key = key_of_object(kind, &object)?;
            let resource = store.listed(&key, object);
            Some((key, resource))
        };
        Ok(Box::new(KubernetesWatch::new(&self.client, api, kind, namespace, Box::new(read))))
    }

    /// Creates a resource, with name, UID and creation time set by the API server.
    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.read(key, self.created(key, object)?)
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.replace(key, object, based_on, |api, name, object| self.client.replace(api, key.namespace(), name, object))
    }

    fn update_status(
        &self,
        key: &ResourceKey,
        object: Value,
        based_on: Revision,
    ) -> Result<StoredResource, StoreError> {
        self.replace(key, object, based_on, |api, name, object| {
            self.client.replace_status(api, key.namespace(), name, object)
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
        Err(StoreError::Unavailable(format!("{key}: others keep changing it").into()))
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        let object = match version {
            Some(version) => self.object_at(key, version)?,
            None => self.object(key)?,
        };
        let read_at = version_of(&object)?;
        let version = version.map(|_| text_of(&object, "resourceVersion"));
        let (api, uid) = (self.api(key.kind())?, text_of(&object, "uid"));
        match self.client.delete_object(api, key.namespace(), text_of(&object, "name"), uid, version) {
            Ok(()) => Ok(()),
            Err(error) if error.is_conflict() => Err(self.overtaken(key, read_at)),
            Err(error) => Err(of_resource(key, &error)),
        }
    }

    /// Uses a dry run of the server, which checks schemas, admission and permissions.
    fn dry_run(
        &self,
        key: &ResourceKey,
        object: Option<&Value>,
        based_on: Option<Revision>,
    ) -> Result<Option<Value>, StoreError> {
        let dry = Self { client: self.client.dry_run(), calico: self.calico.clone() };
        match (object, based_on) {
            (None, based_on) => dry.delete(key, based_on).map(|()| None),
            // An object that is not created has no version.
            (Some(object), None) => dry.resource(key, dry.created(key, object.clone())?).map(Some),
            (Some(object), Some(based_on)) => dry.update(key, object.clone(), based_on).map(|made| Some(made.object)),
        }
    }

    /// Queries the server about an object with the name that a resource created here would have.
    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError> {
        let allowed = self.client.is_allowed(verb.as_str(), self.api(key.kind())?, key.namespace(), key.name());
        allowed.map_err(|error| failed(&error))
    }
}

/// Converts a node of Kubernetes to a node of Calico.
fn read_node(key: &ResourceKey, node: &Value) -> Result<StoredResource, StoreError> {
    let object = calico_node(&node.to_string())
        .ok_or_else(|| StoreError::Unreadable { key: key.clone(), why: "is no valid node".into() })?;
    Ok(StoredResource { key: key.clone(), revision: version_of(node)?, object })
}

/// Returns the key of the resource that an object represents; `None` if its names are invalid.
pub(super) fn key_of_object(kind: ResourceKind, object: &Value) -> Option<ResourceKey> {
    let namespace = if kind.is_namespaced() { text_of(object, "namespace") } else { "" };
    let name = if kind.has_tier() { policy_name(object) } else { text_of(object, "name").to_owned() };
    ResourceKey::new(kind, namespace, name).ok()
}

/// Returns `None` if another client changed the object first: nothing was written, and the caller
/// reads again.
fn unless_overtaken<T>(result: Result<T, ApiError>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

impl KubernetesStore {
    fn address_object(&self, kind: AddressKind, name: &str) -> Result<Option<Value>, StoreError> {
        match self.client.get(self.calico()?.address_resource(kind), "", name) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }
}

impl KubernetesStore {
    /// Reads the texts under all paths that begin with `prefix`, in the order of paths. An object
    /// whose path does not follow from its fields has its name at the end of the path.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    pub fn texts(&self, prefix: &str) -> Result<Vec<StoredText>, StoreError> {
        let mut texts = Vec::new();
        let kinds = [AddressKind::Block, AddressKind::Affinity, AddressKind::Handle, AddressKind::Config];
        let may_match = |kind: &AddressKind| kind.prefix().starts_with(prefix) || prefix.starts_with(kind.prefix());
        for kind in kinds.into_iter().filter(may_match) {
            let objects = self.client.list(self.calico()?.address_resource(kind), "", "").map_err(|error| {
                let why = format!("the API server has no {}: their definition is not installed", kind.plural());
                if error.is_not_found() { StoreError::Refused(why.into()) } else { failed(&error) }
            })?;
            for object in objects {
                let named = || Some(format!("{}{}", kind.prefix(), text_of(&object, "name")));
                let Some(path) = kind.path(&object).unwrap_or_else(|_| named()) else { continue };
                if path.starts_with(prefix) {
                    let text = object.get("spec").unwrap_or(&Value::Null).to_string();
                    texts.push(StoredText { path, text, revision: version_of(&object)? });
                }
            }
        }
        texts.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(texts)
    }
}

impl TextStore for KubernetesStore {
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        let Some((kind, name)) = AddressKind::at(path) else { return Ok(None) };
        let object = self.address_object(kind, &name)?;
        // Different paths can have the same name.
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
        let (kind, name) =
            place.ok_or_else(|| StoreError::Refused(format!("{path}: is not kept in Kubernetes").into()))?;
        let Some(mut object) = self.address_object(kind, &name)? else { return Ok(None) };
        if version_of(&object)? != *expected {
            return Ok(None);
        }
        let calico = self.calico()?;
        let api = calico.address_resource(kind);
        let spec = match (text, object.get("spec")) {
            (Some(text), _) => serde_json::from_str(text)
                .map_err(|error| StoreError::Refused(Cause::new(TextError { path: path.clone(), error })))?,
            (None, spec) => {
                let mut spec = spec.cloned().unwrap_or_else(|| json!({}));
                if let Some(fields) = spec.as_object_mut() {
                    fields.insert("deleted".into(), calico.deletion_mark(kind));
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
