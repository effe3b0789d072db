//! Labels as one shared blob.

mod prefix;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tortie_selector::LabelSource;
use triomphe::ThinArc;

pub use prefix::PrefixStripper;

/// The label names of an item, sorted. A cluster has few distinct ones, so items share them.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    keys: Box<[Arc<str>]>,
}

impl Shape {
    /// Returns the label names, sorted bytewise, each once.
    #[must_use]
    pub fn keys(&self) -> &[Arc<str>] {
        &self.keys
    }

    /// Returns a shape of names that are sorted bytewise, each once.
    pub(crate) fn of_sorted(keys: Box<[Arc<str>]>) -> Self {
        Self { keys }
    }

    /// Returns the value at `position` of the names, from values that belong to this shape.
    #[must_use]
    pub fn value_bytes<'v>(&self, values: &'v LabelValues, position: usize) -> Option<&'v [u8]> {
        let (ends, values) = values.0.slice.split_at_checked(2 * self.keys.len())?;
        let (ends, _) = ends.as_chunks();
        let end = |i: usize| ends.get(i).map(|end| usize::from(u16::from_le_bytes(*end)));
        let from = if position == 0 { 0 } else { end(position - 1)? };
        values.get(from..end(position)?)
    }

    /// Returns the value of a label, from values that belong to this shape.
    #[must_use]
    pub fn value<'v>(&self, values: &'v LabelValues, key: &str) -> Option<&'v str> {
        std::str::from_utf8(self.value_bytes(values, self.position(key)?)?).ok()
    }

    /// Returns the index of a label name in [`Shape::keys`].
    #[must_use]
    pub fn position(&self, key: &str) -> Option<usize> {
        self.keys.binary_search_by(|k| (**k).cmp(key)).ok()
    }
}

/// The values of labels without their names, for holders of the labels' [`Shape`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelValues(
    /// For each key the end of its value as a little-endian `u16`, then the values one after
    /// another.
    ThinArc<(), u8>,
);

/// An item's labels: a shared [`Shape`] and the values as one blob. Cheap to clone, immutable.
///
/// ```
/// use tortie_model::Labels;
/// let labels = Labels::from_pairs([("env", "prod"), ("app", "web")]).unwrap();
/// assert_eq!(labels.get("app"), Some("web"));
/// assert_eq!(labels.iter().collect::<Vec<_>>(), [("app", "web"), ("env", "prod")]);
/// ```
///
/// A cluster has hundreds of thousands of them, in several tables: they take the space of two
/// pointers.
#[derive(Clone, Default)]
pub struct Labels {
    /// `None` without labels.
    inner: Option<Inner>,
}

/// The shape is stored beside the pointer to the values, so that reading it does not access their
/// memory.
#[derive(Clone)]
struct Inner {
    shape: Arc<Shape>,
    values: LabelValues,
}

/// Labels that exceed the size limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelsError {
    /// The values together are longer than 65,535 bytes.
    #[error("label values take {bytes} bytes in total; at most 65535 can be held")]
    TooLong {
        /// Their total length.
        bytes: usize,
    },
}

impl Labels {
    /// Builds labels with an unshared shape; a later pair replaces an earlier one of the same name.
    ///
    /// # Errors
    /// [`LabelsError::TooLong`] if the values exceed the limit.
    pub fn from_pairs<K, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Result<Self, LabelsError>
    where
        K: Into<Arc<str>>,
        V: AsRef<str>,
    {
        let map: BTreeMap<Arc<str>, V> = pairs.into_iter().map(|(k, v)| (k.into(), v)).collect();
        if map.is_empty() {
            return Ok(Self::default());
        }
        let mut values = Vec::new();
        encode(&mut values, map.values().map(|value| value.as_ref().as_bytes()))?;
        Ok(Self::of_parts(Arc::new(Shape { keys: map.into_keys().collect() }), &values))
    }

    /// Returns labels of a shape and values from [`encode`].
    pub(crate) fn of_parts(shape: Arc<Shape>, blob: &[u8]) -> Self {
        Self { inner: Some(Inner { shape, values: LabelValues(ThinArc::from_header_and_slice((), blob)) }) }
    }

    pub(crate) fn parts(&self) -> Option<(&Arc<Shape>, &[u8])> {
        self.inner.as_ref().map(|inner| (&inner.shape, &inner.values.0.slice))
    }

    pub(crate) fn is_made_of(&self, shape: &Arc<Shape>, values: &[u8]) -> bool {
        self.parts().is_some_and(|(own, blob)| Arc::ptr_eq(own, shape) && blob == values)
    }

    /// Reports whether other labels share the same values in memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| ThinArc::strong_count(&inner.values.0) > 1)
    }

    /// Returns the shape; `None` without labels.
    #[must_use]
    pub fn shape(&self) -> Option<&Arc<Shape>> {
        self.inner.as_ref().map(|inner| &inner.shape)
    }

    /// Returns the number of labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape().map_or(0, |s| s.keys.len())
    }

    /// Reports whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.is_none()
    }

    /// Returns the value of the label at `position` of the shape.
    #[must_use]
    pub fn value_at(&self, position: usize) -> Option<&str> {
        std::str::from_utf8(self.value_bytes_at(position)?).ok()
    }

    /// As [`Labels::value_at`], as bytes.
    #[must_use]
    pub fn value_bytes_at(&self, position: usize) -> Option<&[u8]> {
        let inner = self.inner.as_ref()?;
        inner.shape.value_bytes(&inner.values, position)
    }

    /// Returns the values, which are readable only together with the shape; `None` without labels.
    #[must_use]
    pub fn values(&self) -> Option<&LabelValues> {
        self.inner.as_ref().map(|inner| &inner.values)
    }

    /// Returns the labels of a shape and values that belong together.
    #[must_use]
    pub fn of(shape: &Arc<Shape>, values: &LabelValues) -> Self {
        Self { inner: Some(Inner { shape: Arc::clone(shape), values: values.clone() }) }
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.value_at(self.shape()?.position(key)?)
    }

    /// Returns names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shape()
            .into_iter()
            .flat_map(|s| s.keys.iter().enumerate())
            .map(|(i, k)| (&**k, self.value_at(i).unwrap_or_default()))
    }
}

/// Appends values in the format of [`LabelValues`].
pub(crate) fn encode<'a>(
    blob: &mut Vec<u8>,
    values: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
) -> Result<(), LabelsError> {
    let bytes: usize = values.clone().map(<[u8]>::len).sum();
    blob.reserve(2 * values.len() + bytes);
    let mut end = 0;
    for value in values.clone() {
        end += value.len();
        let end = u16::try_from(end).map_err(|_| LabelsError::TooLong { bytes })?;
        blob.extend_from_slice(&end.to_le_bytes());
    }
    for value in values {
        blob.extend_from_slice(value);
    }
    Ok(())
}

impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        match (&self.inner, &other.inner) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                (Arc::ptr_eq(&a.shape, &b.shape) || a.shape == b.shape)
                    && (a.values.0.ptr() == b.values.0.ptr() || a.values == b.values)
            }
            _ => false,
        }
    }
}

impl Eq for Labels {}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl LabelSource for Labels {
    fn get(&self, key: &str) -> Option<&str> {
        Labels::get(self, key)
    }
}

#[cfg(test)]
mod tests;
