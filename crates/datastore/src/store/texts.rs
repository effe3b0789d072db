//! Values of the datastore other than resources: texts under paths, such as IPAM blocks.

use tortie_resources::stored::Revision;

use crate::store::StoreError;

/// A datastore in which texts under any path are read, and replaced if they are at the expected
/// versions.
pub trait TextStore: Send + Sync {
    /// Reads the text under a path; `None` if there is none. Invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError>;

    /// Reports whether several changes can be made in one transaction. A datastore without
    /// transactions accepts only one at a time.
    fn is_transactional(&self) -> bool {
        true
    }

    /// Makes all of these changes if all texts are at the expected versions; otherwise none.
    /// Returns the resulting version of the datastore, or `None` if a text is at another version.
    /// Each path may occur once. More than 128 changes may be refused, and more than one if
    /// [`TextStore::is_transactional`] returns false.
    ///
    /// # Errors
    /// [`StoreError::Refused`], or [`StoreError::Unavailable`], after which the changes may have
    /// been made.
    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError>;
}

/// A text and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredText {
    /// The path.
    pub path: String,
    /// The text.
    pub text: String,
    /// Version of the last write.
    pub revision: Revision,
}

/// Change of one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextChange {
    /// The path.
    pub path: String,
    /// The expected version; `None` if the text must not exist.
    pub expected: Option<Revision>,
    /// The new text; `None` to delete it, or to require that it does not exist.
    pub text: Option<String>,
}
