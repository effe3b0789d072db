use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use tortie_datastore::InputProblem;
use tortie_resources::{Position, Severity};

use super::lines::{Line, Lines};
use tortie_telemetry::escape;

/// Maximum number of characters shown before a place, and from its beginning on. They bound the
/// output for long lines.
const BEFORE: usize = 80;
const SHOWN: usize = 160;

pub(super) struct Excerpts<'t> {
    lines: &'t Lines<'t>,
    renderer: Renderer,
}

impl<'t> Excerpts<'t> {
    pub(super) fn new(lines: &'t Lines<'t>, in_color: bool) -> Self {
        Self { lines, renderer: if in_color { Renderer::styled() } else { Renderer::plain() } }
    }

    /// Underlines the place, labelled with the suggestion if there is one. Empty for a problem
    /// without a place.
    pub(super) fn of(&self, problem: &InputProblem) -> String {
        let position = problem.problem.position;
        let line = problem.file.as_deref().and_then(|file| self.lines.get(file, position.line));
        let place = line.and_then(|line| place(line, position, problem.problem.length));
        let Some(LineExcerpt { line, number, within }) = place else { return String::new() };
        let level = match problem.problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut underlined = AnnotationKind::Primary.span(within);
        if let Some(advice) = advice(&problem.problem.message) {
            underlined = underlined.label(escape::line(advice));
        }
        let snippet = Snippet::source(line).line_start(number).annotation(underlined);
        let mut shown = self.renderer.render(&[Group::with_level(level).element(snippet)]);
        shown.push('\n');
        shown
    }
}

struct LineExcerpt<'t> {
    line: &'t str,
    number: usize,
    within: Range<usize>,
}

fn place<'t>(line: &Line<'t>, position: Position, length: u32) -> Option<LineExcerpt<'t>> {
    let column = usize::try_from(position.column).ok()?.checked_sub(1)?;
    let length = usize::try_from(length).unwrap_or_default().clamp(1, SHOWN);
    let shown = line.bytes(column.saturating_sub(BEFORE)..column.saturating_add(SHOWN));
    let within = line.bytes(column..column.saturating_add(length));
    let within = within.start - shown.start..within.end - shown.start;
    Some(LineExcerpt { line: line.text.get(shown)?, number: usize::try_from(position.line).ok()?, within })
}

fn advice(message: &str) -> Option<&str> {
    message.rsplit("; ").next().filter(|last| last.ends_with('?') && last.len() < message.len())
}

#[cfg(test)]
mod tests;
