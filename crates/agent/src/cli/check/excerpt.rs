//! The lines that problems are in.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use tortie_datastore::InputProblem;
use tortie_resources::{Position, Severity};

use crate::escape;

/// Shows where in a text something is.
pub(super) struct Excerpts<'t> {
    texts: HashMap<&'t Path, &'t str>,
    renderer: Renderer,
}

impl<'t> Excerpts<'t> {
    pub(super) fn new(texts: &'t [(PathBuf, String)], in_color: bool) -> Self {
        let texts = texts.iter().map(|(file, text)| (file.as_path(), text.as_str())).collect();
        Self { texts, renderer: if in_color { Renderer::styled() } else { Renderer::plain() } }
    }

    /// The line of a problem, with the place underlined and what is meant instead, if that is known; empty for a problem that
    /// has no place.
    pub(super) fn of(&self, problem: &InputProblem) -> String {
        let text = problem.file.as_deref().and_then(|file| self.texts.get(file));
        let place = text.and_then(|text| place(text, problem.problem.position, problem.problem.length));
        let Some(Place { line, number, within }) = place else { return String::new() };
        let level = match problem.problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut underlined = AnnotationKind::Primary.span(within);
        if let Some(advice) = advice(&problem.problem.what) {
            underlined = underlined.label(escape::line(advice));
        }
        let snippet = Snippet::source(line).line_start(number).annotation(underlined);
        let mut shown = self.renderer.render(&[Group::with_level(level).element(snippet)]);
        shown.push('\n');
        shown
    }
}

/// A line, and what of it is meant, in bytes.
struct Place<'t> {
    line: &'t str,
    number: usize,
    within: Range<usize>,
}

fn place(text: &str, position: Position, length: u32) -> Option<Place<'_>> {
    let index = usize::try_from(position.line).ok()?.checked_sub(1)?;
    let line = text.lines().nth(index)?;
    // A byte order mark is no character of the first line.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line);
    let column = usize::try_from(position.column).ok()?.checked_sub(1)?;
    let byte = |column: usize| line.char_indices().nth(column).map_or(line.len(), |(byte, _)| byte);
    let length = usize::try_from(length).unwrap_or_default().max(1);
    let within = byte(column)..byte(column.saturating_add(length));
    Some(Place { line, number: index + 1, within })
}

/// The question at the end of a message, if it asks one.
fn advice(what: &str) -> Option<&str> {
    what.rsplit("; ").next().filter(|last| last.ends_with('?') && last.len() < what.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters_and_end_with_the_line() {
        let found = |text: &'static str, line, column, length| {
            place(text, Position { line, column }, length).map(|place| &place.line[place.within])
        };
        assert_eq!(found("a: ä b\nc", 1, 4, 1), Some("ä"));
        assert_eq!(found("a: ä b\nc", 1, 6, 9), Some("b"));
        assert_eq!(found("\u{feff}kind: x", 1, 1, 4), Some("kind"));
        assert_eq!(found("a", 1, 2, 0), Some(""), "something is missing at the end");
        assert_eq!(found("a", 2, 1, 0), None);
        assert_eq!(found("a", 0, 0, 0), None, "nowhere in particular");
    }

    #[test]
    fn advice_is_the_question_at_the_end() {
        assert_eq!(advice("`x` is not y; is `z` meant?"), Some("is `z` meant?"));
        assert_eq!(advice("is `z` meant?"), None);
        assert_eq!(advice("`x` is not y; known are a, b"), None);
    }
}
