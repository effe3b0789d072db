//! Prose of a file with its places: comments and messages of Rust, and Markdown outside of code
//! blocks.

use std::borrow::Cow;
use std::iter;
use std::sync::LazyLock;

use regex::Regex;

/// A line of prose.
#[derive(Debug)]
pub(super) struct Passage<'a> {
    /// The number of the line, from 1.
    pub(super) line: usize,
    pub(super) kind: Kind,
    /// The text without markup, code and targets of links.
    pub(super) text: Cow<'a, str>,
    /// The line as it is in the file.
    pub(super) source: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A heading in Markdown.
    Heading,
    /// Any other line of Markdown.
    Markdown,
    /// The first line of a doc comment.
    Summary,
    /// A further line of a doc comment, or another comment.
    Comment,
    /// A string literal of at least three words on a line that logs, formats or describes.
    Message,
    /// A text of [`texts`](super::texts).
    Text,
}

static CODE_OR_TARGET: LazyLock<Regex> = LazyLock::new(|| compiled(r"`[^`]*`|\]\([^)]*\)"));
static CODE_OR_LINK: LazyLock<Regex> = LazyLock::new(|| compiled(r"`[^`]*`|\]\([^)]*\)|\[`?[^\]]*`?\]"));
static CODE: LazyLock<Regex> = LazyLock::new(|| compiled("`[^`]*`"));
static HAS_MESSAGE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?-u:\b)(?:trace|debug|info|warn|error)!\(|#\[error\(|(?:reason|about|help)\s*=|format!\(|\.to_owned\(\)|write!\(",
    )
});
static LITERAL: LazyLock<Regex> = LazyLock::new(|| compiled(r#""((?:[^"\\]|\\.)*)""#));

/// A regular expression of this program.
pub(super) fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the expression is correct")
}

/// The words of a text: letters, with apostrophes and hyphens after the first.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    iter::from_fn(move || {
        let start = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let word = &rest[start..];
        let is_part = |c: char| c.is_ascii_alphabetic() || matches!(c, '\'' | '’' | '-');
        let (word, tail) = word.split_at(word.find(|c| !is_part(c)).unwrap_or(word.len()));
        rest = tail;
        Some(word)
    })
}

/// The prose of a Markdown document.
pub(super) fn of_markdown(document: &str) -> Vec<Passage<'_>> {
    let mut in_code = false;
    let mut passages = Vec::new();
    for (source, line) in document.lines().zip(1..) {
        if source.trim_start().starts_with("```") || source.trim_start().starts_with("~~~") {
            in_code = !in_code;
        } else if !in_code && !source.starts_with("    ") {
            let title = source.trim_start_matches('#');
            let is_heading = title.len() < source.len() && title.starts_with(' ');
            let kind = if is_heading { Kind::Heading } else { Kind::Markdown };
            let text = CODE_OR_TARGET.replace_all(title.trim(), " ");
            passages.push(Passage { line, kind, text, source });
        }
    }
    passages
}

/// The prose of a Rust source.
pub(super) fn of_rust(code: &str) -> Vec<Passage<'_>> {
    let (mut in_doc, mut in_code) = (false, false);
    let mut passages = Vec::new();
    for (source, line) in code.lines().zip(1..) {
        let statement = source.trim();
        let Some(doc) = statement.strip_prefix("///").or_else(|| statement.strip_prefix("//!")) else {
            (in_doc, in_code) = (false, false);
            passages.extend(of_statement(statement).into_iter().map(|(kind, text)| Passage {
                line,
                kind,
                text,
                source,
            }));
            continue;
        };
        let doc = doc.strip_prefix(char::is_whitespace).unwrap_or(doc);
        if doc.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !doc.is_empty() {
            let kind = if in_doc { Kind::Comment } else { Kind::Summary };
            passages.push(Passage { line, kind, text: CODE_OR_LINK.replace_all(doc, " "), source });
        }
        in_doc = true;
    }
    passages
}

/// The comment or the messages of a line that is no doc comment.
fn of_statement(statement: &str) -> Vec<(Kind, Cow<'_, str>)> {
    let comment = statement.strip_prefix("//").and_then(|comment| comment.strip_prefix(char::is_whitespace));
    if let Some(comment) = comment {
        return vec![(Kind::Comment, CODE.replace_all(comment, " "))];
    }
    if !statement.contains('"') || !HAS_MESSAGE.is_match(statement) {
        return Vec::new();
    }
    let literals = LITERAL.captures_iter(statement).filter_map(|found| found.get(1));
    let messages = literals.map(|literal| literal.as_str()).filter(|literal| words(literal).nth(2).is_some());
    messages.map(|message| (Kind::Message, Cow::Borrowed(message))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<'a>(passages: &'a [Passage<'_>]) -> Vec<(usize, Kind, &'a str)> {
        passages.iter().map(|passage| (passage.line, passage.kind, &*passage.text)).collect()
    }

    #[test]
    fn code_of_markdown_is_left_out() {
        let document = "## The [map](a/b.md)\n\nRun `tortie run`.\n```sh\nnobody\n```\n    indented\n#tag";
        let expected = [
            (1, Kind::Heading, "The [map "),
            (2, Kind::Markdown, ""),
            (3, Kind::Markdown, "Run  ."),
            (8, Kind::Markdown, "tag"),
        ];
        assert_eq!(shown(&of_markdown(document)), expected);
    }

    #[test]
    fn comments_and_messages_of_rust_are_found() {
        let code = "//! Summary of [`A`].\n//!\n//! ```\n//! code\n//! ```\n//! More.\nfn f() {\n    // Since `b` is.\n    \
                    warn!(\"cannot read the \\\"file\\\"\"); g(\"a b c\");\n    h(\"no message at all\");\n}\n/// Second.";
        let expected = [
            (1, Kind::Summary, "Summary of  ."),
            (6, Kind::Comment, "More."),
            (8, Kind::Comment, "Since   is."),
            (9, Kind::Message, "cannot read the \\\"file\\\""),
            (9, Kind::Message, "a b c"),
            (12, Kind::Summary, "Second."),
        ];
        assert_eq!(shown(&of_rust(code)), expected);
    }

    #[test]
    fn words_have_letters_apostrophes_and_hyphens() {
        let found: Vec<&str> = words("1,000 nodes' x86what's re-read—don’t").collect();
        assert_eq!(found, ["nodes'", "x", "what's", "re-read", "don’t"]);
    }
}
