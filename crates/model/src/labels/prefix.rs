//! Labels without the prefix that profiles put before the names of a namespace's or service
//! account's labels.

use std::sync::Arc;

use ahash::AHashMap;

use super::{Labels, Shape, encode};

/// Removes a prefix from label names. The names are processed once for each shape.
///
/// ```
/// use tortie_model::{Labels, PrefixStripper};
/// let labels = Labels::from_pairs([("pcns.team", "a"), ("zone", "b")]).unwrap();
/// let stripped = PrefixStripper::new("pcns.").strip(&labels);
/// assert_eq!(stripped, Labels::from_pairs([("team", "a"), ("zone", "b")]).unwrap());
/// ```
#[derive(Clone, Debug)]
pub struct PrefixStripper {
    prefix: &'static str,
    /// By the address of the shape, which stays allocated.
    shapes: AHashMap<usize, Stripped>,
    /// Buffer for encoding values.
    values: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Stripped {
    #[expect(dead_code, reason = "keeps the address taken")]
    from: Arc<Shape>,
    to: Arc<Shape>,
    /// Previous index of each value.
    places: Box<[usize]>,
}

/// Number of cached shapes; when it is reached, the cache is cleared.
const REMEMBERED: usize = 256;

impl PrefixStripper {
    /// Returns a stripper for this prefix.
    #[must_use]
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, shapes: AHashMap::new(), values: Vec::new() }
    }

    /// Returns the labels with the prefix removed from those names that have it. If a name exists
    /// with and without the prefix, the value of the prefixed one is used.
    pub fn strip(&mut self, labels: &Labels) -> Labels {
        let Some((shape, blob)) = labels.parts() else { return Labels::default() };
        if !shape.keys.iter().any(|key| key.starts_with(self.prefix)) {
            return labels.clone();
        }
        let address = Arc::as_ptr(shape) as usize;
        if !self.shapes.contains_key(&address) && self.shapes.len() >= REMEMBERED {
            self.shapes = AHashMap::new();
        }
        let Stripped { to, places, .. } =
            self.shapes.entry(address).or_insert_with(|| Stripped::of(shape, self.prefix));
        let is_in_order = places.len() == shape.keys.len() && places.is_sorted();
        if is_in_order {
            return Labels::of_parts(Arc::clone(to), blob);
        }
        let values = places.iter().map(|&place| labels.value_bytes_at(place).unwrap_or_default());
        self.values.clear();
        match encode(&mut self.values, values) {
            Ok(()) => Labels::of_parts(Arc::clone(to), &self.values),
            // Unreachable: some of the values are not longer than all of them.
            Err(_) => labels.clone(),
        }
    }
}

impl Stripped {
    fn of(shape: &Arc<Shape>, prefix: &str) -> Self {
        let mut names: Vec<(&str, bool, usize)> = shape
            .keys
            .iter()
            .enumerate()
            .map(|(place, key)| {
                let stripped = key.strip_prefix(prefix);
                (stripped.unwrap_or(key), stripped.is_none(), place)
            })
            .collect();
        names.sort_unstable();
        names.dedup_by_key(|(name, ..)| *name);
        let keys = names.iter().map(|&(name, ..)| name.into()).collect();
        Self {
            from: Arc::clone(shape),
            to: Arc::new(Shape { keys }),
            places: names.iter().map(|&(.., place)| place).collect(),
        }
    }
}
