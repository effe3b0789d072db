//! Reading and writing single resources.

use std::time::Duration;

use serde_json::Value;
use tortie_model::Cause;
use tortie_resources::stored::{KeyError, ObjectError, ResourceKey, ResourceKind, Revision};

/// Datastore that resources can be written to.
///
/// Objects are passed in the form that users write: the stored form results from
/// [`stored::to_stored`], and read objects from [`stored::from_stored`]. Calls wait for the
/// datastore for a limited time. If it does not respond, they return [`StoreError::Unavailable`],
/// and it is unknown whether a write took effect.
///
/// [`stored::to_stored`]: tortie_resources::stored::to_stored
/// [`stored::from_stored`]: tortie_resources::stored::from_stored
pub trait ResourceStore: Send + Sync {
    /// Reads a resource.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Unreadable`], or the errors of any method.
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError>;

    /// Reads all resources of a kind, or those in one namespace, at one version, in the order of
    /// paths.
    ///
    /// # Errors
    /// [`StoreError`].
    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError>;

    /// Creates a resource. Sets its `uid` and `creationTimestamp` if they are missing.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`], [`StoreError::Invalid`], or the errors of any method.
    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError>;

    /// Replaces a resource if it is still at this version.
    ///
    /// # Errors
    /// [`StoreError::Conflict`], [`StoreError::NotFound`], [`StoreError::Invalid`], or the errors
    /// of any method.
    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError>;

    /// Replaces the status of a resource if the resource is still at this version. Where the status
    /// is not stored separately, the whole resource is replaced.
    ///
    /// # Errors
    /// As [`ResourceStore::update`].
    fn update_status(
        &self,
        key: &ResourceKey,
        object: Value,
        based_on: Revision,
    ) -> Result<StoredResource, StoreError> {
        self.update(key, object, based_on)
    }

    /// Creates or replaces a resource, whatever its version. Sets its `uid` and `creationTimestamp`
    /// if they are missing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`], or the errors of any method.
    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError>;

    /// Deletes a resource; only this version, if one is given.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], or the errors of any method.
    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError>;

    /// Returns the object that a write of `object` would produce, or checks a deletion if it is
    /// `None`. `based_on` is the replaced version; `None` for a creation. A datastore with dry runs
    /// validates the write; for others the result is `object` itself. Nothing is written.
    ///
    /// # Errors
    /// As the write itself.
    fn dry_run(
        &self,
        key: &ResourceKey,
        object: Option<&Value>,
        based_on: Option<Revision>,
    ) -> Result<Option<Value>, StoreError> {
        let _ = (key, based_on);
        Ok(object.cloned())
    }

    /// Follows the resources of a kind, or those in one namespace.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if the datastore has no watches, or the errors of any method.
    fn watch(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Box<dyn ResourceWatch>, StoreError> {
        let _ = (kind, namespace);
        Err(StoreError::Refused("this datastore has no watches".into()))
    }

    /// Reports whether the client has the permission for this verb on a resource, which need not
    /// exist. A datastore whose permissions do not depend on the verb returns true.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] or [`StoreError::Refused`] if the datastore cannot answer.
    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError>;
}

/// Verb of a role in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// The resource is created.
    Create,
    /// The resource is deleted.
    Delete,
}

impl Verb {
    /// Returns the verb as it is written in roles.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }
}

/// A stored resource.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredResource {
    /// The key.
    pub key: ResourceKey,
    /// Version of the last write.
    pub revision: Revision,
    /// The object, with `metadata.resourceVersion`.
    pub object: Value,
}

/// All resources of a kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// The readable resources, in the order of paths.
    pub resources: Vec<StoredResource>,
    /// The other ones, with the reason.
    pub unreadable: Vec<(ResourceKey, String)>,
    /// The version of the datastore that was read.
    pub revision: Revision,
}

/// Follows the resources of one kind. After a failure everything is listed again.
pub trait ResourceWatch {
    /// Returns the next event; `None` if there is none within `patience`.
    fn next(&mut self, patience: Duration) -> Option<WatchEvent>;
}

/// Event of a [`ResourceWatch`].
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// A resource exists, or has changed.
    Changed(StoredResource),
    /// A resource was deleted; its last known state.
    Deleted(StoredResource),
    /// A resource cannot be read, for this reason.
    Unreadable(ResourceKey, String),
    /// All existing resources were sent.
    Complete,
    /// The datastore is unavailable for this reason; the connection is retried.
    Unavailable(String),
}

/// Reason why a resource was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The resource does not exist.
    #[error("{0} does not exist")]
    NotFound(ResourceKey),
    /// The resource exists already.
    #[error("{0} exists already")]
    AlreadyExists(ResourceKey),
    /// Another client has written the resource.
    #[error("{key} has been changed meanwhile: it is at version {found}, not {expected}")]
    Conflict {
        /// The resource.
        key: ResourceKey,
        /// The version to be replaced.
        expected: Revision,
        /// The existing version.
        found: Revision,
    },
    /// The object is invalid.
    #[error("{key}")]
    Invalid {
        /// The resource.
        key: ResourceKey,
        /// The error.
        #[source]
        error: ObjectError,
    },
    /// The datastore rejects the object permanently, as it is or in its place.
    #[error("{key}: the datastore does not accept it: {why}")]
    NotAccepted {
        /// The resource.
        key: ResourceKey,
        /// Message of the datastore.
        why: String,
    },
    /// The stored value is not a valid resource.
    #[error("{key}: the stored value cannot be read")]
    Unreadable {
        /// The resource.
        key: ResourceKey,
        /// The error.
        #[source]
        why: Cause,
    },
    /// The name is invalid for a resource.
    #[error("the datastore has no such resource")]
    Named(#[from] KeyError),
    /// The datastore has no resources of this kind, as their definition is not installed; nothing
    /// was read or written. A starting API server may still read its definitions.
    #[error("the datastore has no {}: their definition is not installed", .0.plural())]
    NoKind(ResourceKind),
    /// The datastore does not permit this, or not to this user; a retry does not help.
    #[error("the datastore refuses")]
    Refused(#[source] Cause),
    /// The datastore does not respond, or cannot serve now; a retry may help.
    #[error("the datastore is not available")]
    Unavailable(#[source] Cause),
}
