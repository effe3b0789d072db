//! Lines of the manifests, found without a search from the beginning for each problem.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Distance in characters between the marks of a long line.
const STEP: usize = 1_000;

#[derive(Debug)]
pub(super) struct Lines<'t>(HashMap<&'t Path, Vec<Line<'t>>>);

/// A line, and the byte of each character whose number is a multiple of [`STEP`].
#[derive(Debug)]
pub(super) struct Line<'t> {
    pub(super) text: &'t str,
    marks: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(super) fn of(texts: &'t [(PathBuf, String)]) -> Self {
        Self(texts.iter().map(|(file, text)| (file.as_path(), lines(text))).collect())
    }

    /// Returns the line of this number, counted from 1.
    pub(super) fn get(&self, file: &Path, number: u32) -> Option<&Line<'t>> {
        self.0.get(file)?.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

pub(super) fn lines(text: &str) -> Vec<Line<'_>> {
    // A byte order mark is no character of the first line.
    text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(Line::new).collect()
}

impl<'t> Line<'t> {
    fn new(text: &'t str) -> Self {
        let is_long = text.len() > STEP;
        let marks = text.char_indices().step_by(STEP).map(|(byte, _)| byte).take(if is_long { usize::MAX } else { 0 });
        Self { text, marks: marks.collect() }
    }

    /// Returns the byte range of a range of characters, cut off at the end of the line.
    pub(super) fn bytes(&self, characters: Range<usize>) -> Range<usize> {
        self.byte(characters.start)..self.byte(characters.end)
    }

    fn byte(&self, character: usize) -> usize {
        let (from, rest) = match (self.marks.get(character / STEP), self.marks.is_empty()) {
            (Some(from), _) => (*from, character % STEP),
            (None, true) => (0, character),
            (None, false) => return self.text.len(),
        };
        let found = self.text.get(from..).and_then(|text| text.char_indices().nth(rest));
        found.map_or(self.text.len(), |(byte, _)| from + byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_long_lines_are_found_from_the_mark_before_them() {
        let text = "ä".repeat(2_500) + "b";
        let line = Line::new(&text);
        for (character, byte) in [(0, 0), (999, 1_998), (1_000, 2_000), (2_499, 4_998), (2_500, 5_000), (9_999, 5_001)]
        {
            assert_eq!(line.byte(character), byte, "{character}");
        }
        assert_eq!(line.marks, [0, 2_000, 4_000]);
        assert!(Line::new("short").marks.is_empty());
    }
}
