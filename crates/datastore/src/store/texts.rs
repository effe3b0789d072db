//! What the datastore keeps beside resources: texts under paths, such as blocks of addresses.

use tortie_resources::stored::Revision;

use crate::store::StoreError;

/// A datastore in which texts under any path are read, and replaced if they are as expected.
pub trait TextStore: Send + Sync {
    /// Reads what is under a path; `None` if nothing is. What is not UTF-8 is read with replacement characters.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError>;

    /// Whether several changes can be made together. A datastore without transactions takes them one by one.
    fn is_transactional(&self) -> bool {
        true
    }

    /// Makes all of these changes if everything is as they expect, or none. Returns the version of the datastore that they
    /// have made, or `None` if something is not as expected. No path may be in two of them; more than 128 may be refused,
    /// and more than one if [`TextStore::is_transactional`] says no.
    ///
    /// # Errors
    /// [`StoreError::Refused`], or [`StoreError::Unavailable`], after which they may have been made.
    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError>;
}

/// What is under a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredText {
    /// The path.
    pub path: String,
    /// The text.
    pub text: String,
    /// When it was last written.
    pub revision: Revision,
}

/// How what is under one path is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextChange {
    /// The path.
    pub path: String,
    /// The version that must be there; `None` if nothing may be.
    pub expected: Option<Revision>,
    /// The new text; `None` if nothing is to be there, or to stay there.
    pub text: Option<String>,
}
