//! Cache of parsed selectors.

use std::sync::Arc;

use ahash::RandomState;
use tortie_selector::{ParseError, Selector};

use super::table::{Shared, Table};

/// Cache of the selectors in use, found by their text before parsing: a cluster has many rules, and
/// few different selectors.
///
/// Unused selectors are removed each time that the cache has doubled. Invalid selectors are not
/// cached.
///
/// ```
/// use tortie_model::SelectorCache;
///
/// let mut cache = SelectorCache::default();
/// let (first, again) = (cache.parse("app == 'web'")?, cache.parse("app == 'web'")?);
/// assert!(first == again && again.is_shared());
/// # Ok::<(), tortie_selector::ParseError>(())
/// ```
#[derive(Debug)]
pub struct SelectorCache {
    hasher: RandomState,
    table: Table<Selector>,
    /// Label names, which selectors have in common.
    names: Table<Arc<str>>,
}

impl Default for SelectorCache {
    fn default() -> Self {
        Self { hasher: RandomState::new(), table: Table::new(usize::MAX), names: Table::new(usize::MAX) }
    }
}

impl SelectorCache {
    /// Parses a selector like [`Selector::parse`].
    ///
    /// # Errors
    /// Those of [`Selector::parse`].
    pub fn parse(&mut self, text: &str) -> Result<Selector, ParseError> {
        let hash = self.hasher.hash_one(text);
        if let Some(known) = self.table.get(hash, |known| known.text() == text) {
            return Ok(known.clone());
        }
        let mut selector = Selector::parse(text)?;
        self.add(hash, &mut selector);
        Ok(selector)
    }

    /// Replaces a selector by the equal one of the same text that is in use; adds it if there is
    /// none.
    pub(super) fn share(&mut self, selector: &mut Selector) {
        let hash = self.hasher.hash_one(selector.text());
        let is_it = |known: &Selector| known.text() == selector.text() && known == selector;
        match self.table.get(hash, is_it) {
            Some(known) => *selector = known.clone(),
            None => self.add(hash, selector),
        }
    }

    fn add(&mut self, hash: u64, selector: &mut Selector) {
        let Self { hasher, table, names } = self;
        selector.share_labels(|name| {
            let hash = hasher.hash_one(&**name);
            names.get_or_insert(hasher, hash, |known| known == name, || Arc::clone(name))
        });
        table.insert(hasher, hash, selector.clone());
    }

    /// Returns the number of selectors and label names: those in use, and unused ones that have not
    /// been removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len() + self.names.len()
    }

    /// Reports whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shared for Selector {
    fn is_in_use(&self) -> bool {
        Selector::is_shared(self)
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one(self.text())
    }
}
