//! Reading and writing single resources.

use serde_json::Value;
use tortie_model::Cause;
use tortie_resources::stored::{KeyError, ObjectError, ResourceKey, ResourceKind, Revision};

/// A datastore that resources can be written to.
///
/// Objects go in as people write them: [`stored::to_stored`] has been applied to what is kept, and
/// [`stored::from_stored`] to what comes back. Calls wait for the datastore, but not endlessly: one that does not answer
/// is [`StoreError::Unavailable`], and whether a write has happened then is unknown.
///
/// [`stored::to_stored`]: tortie_resources::stored::to_stored
/// [`stored::from_stored`]: tortie_resources::stored::from_stored
pub trait ResourceStore: Send + Sync {
    /// Reads a resource.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Unreadable`], or what any method may run into.
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError>;

    /// Reads every resource of a kind, or those in one namespace, as they were at one time, in the order of paths.
    ///
    /// # Errors
    /// [`StoreError`].
    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError>;

    /// Writes a resource that is not there yet. Gives it a `uid` and a `creationTimestamp` if it has none.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`], [`StoreError::Invalid`], or what any method may run into.
    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError>;

    /// Replaces a resource if nobody else has written it since this version.
    ///
    /// # Errors
    /// [`StoreError::Conflict`], [`StoreError::NotFound`], [`StoreError::Invalid`], or what any method may run into.
    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError>;

    /// Replaces the status of a resource if nobody else has written the resource since this version. Where the status is
    /// kept with the rest, everything is replaced.
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

    /// Writes a resource whether it is there or not, whoever has written it. Gives it a `uid` and a `creationTimestamp`
    /// if it has none.
    ///
    /// # Errors
    /// [`StoreError::Invalid`], or what any method may run into.
    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError>;

    /// Deletes a resource; if a version is given, only that one.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], or what any method may run into.
    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError>;

    /// What would be there after a write of `object`, or a deletion if there is none, of what is at this version, or of what is
    /// not there yet. A datastore that can be asked is asked, which also tells whether it would refuse; of others it is the
    /// object. Nothing is written.
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

    /// Whether who writes here has the right to do this to a resource, whether it is there or not. A datastore that does not tell
    /// rights apart by what is done lets everything be done.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] or [`StoreError::Refused`] if it cannot be asked.
    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError>;
}

/// What is done to a resource, as Kubernetes names it in roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// It is made.
    Create,
    /// It is taken away.
    Delete,
}

impl Verb {
    /// The word that roles have for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }
}

/// A resource as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredResource {
    /// Which one.
    pub key: ResourceKey,
    /// When it was last written.
    pub revision: Revision,
    /// The object, with `metadata.resourceVersion`.
    pub object: Value,
}

/// All resources of a kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Those that can be read, in the order of paths.
    pub resources: Vec<StoredResource>,
    /// Those that cannot, and why.
    pub unreadable: Vec<(ResourceKey, String)>,
    /// The version of the datastore that was read.
    pub revision: Revision,
}

/// Why something was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The resource is not there.
    #[error("{0} does not exist")]
    NotFound(ResourceKey),
    /// The resource is there already.
    #[error("{0} exists already")]
    AlreadyExists(ResourceKey),
    /// Somebody else has written the resource.
    #[error("{key} has been changed by somebody else: it is at version {found}, not {expected}")]
    Conflict {
        /// The resource.
        key: ResourceKey,
        /// The version that was to be replaced.
        expected: Revision,
        /// The version that is there.
        found: Revision,
    },
    /// The object cannot be kept.
    #[error("{key}")]
    Invalid {
        /// The resource.
        key: ResourceKey,
        /// What is wrong.
        #[source]
        error: ObjectError,
    },
    /// The datastore will never take the object as it is, or not where it is to be.
    #[error("{key}: the datastore does not accept it: {why}")]
    NotAccepted {
        /// The resource.
        key: ResourceKey,
        /// What the datastore says.
        why: String,
    },
    /// What is kept is no resource.
    #[error("{key}: what is kept cannot be read")]
    Unreadable {
        /// The resource.
        key: ResourceKey,
        /// What is wrong.
        #[source]
        why: Cause,
    },
    /// No resource can be called this.
    #[error("the datastore has no such resource")]
    Named(#[from] KeyError),
    /// The datastore does not allow this, or not to this user; trying again does not help.
    #[error("the datastore refuses")]
    Refused(#[source] Cause),
    /// The datastore does not answer, or cannot serve now; trying again may help.
    #[error("the datastore is not available")]
    Unavailable(#[source] Cause),
}

/// Error of a value that is no resource.
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Object(#[from] ObjectError),
}
