//! Comparisons of texts as short as label names and values, without a call to the C library.

/// Reports whether two texts are equal.
#[inline]
#[expect(clippy::indexing_slicing, reason = "both texts are of the length that the arm names")]
pub(crate) fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    // Two machine words, which may overlap, cover a text of one to two machine words.
    match a.len() {
        0 => true,
        1..4 => a[0] == b[0] && a[a.len() / 2] == b[a.len() / 2] && a[a.len() - 1] == b[a.len() - 1],
        4..8 => a.first_chunk::<4>() == b.first_chunk() && a.last_chunk::<4>() == b.last_chunk(),
        8..=16 => a.first_chunk::<8>() == b.first_chunk() && a.last_chunk::<8>() == b.last_chunk(),
        _ => a == b,
    }
}

/// Reports whether `text` contains `part`.
#[expect(clippy::indexing_slicing, reason = "a window is as long as the part, which is not empty")]
pub(crate) fn contains(text: &str, part: &str) -> bool {
    // Trying every position takes quadratic time. The standard library prepares a faster search,
    // which is worthwhile only for longer texts.
    const SHORT: usize = 64;
    if text.len() > SHORT {
        return text.contains(part);
    }
    let text = text.as_bytes();
    let Some((first, others)) = part.as_bytes().split_first() else {
        return true;
    };
    text.windows(part.len()).any(|window| window[0] == *first && window[1..] == *others)
}
