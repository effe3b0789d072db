//! Measures of a file: phrases, openings, the word "what", lengths of sentences and of lines.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use super::rules::{Finds, INTERROGATIVES, OPENING, RULES, SENTENCE, WHAT, WHAT_IN_TEXT, WIDTH};
use super::text::{Kind, Passage, compiled, words};

/// No sentence of Markdown has more words.
const MAX_SENTENCE: usize = 40;

/// No comment reaches beyond this column.
const MAX_COMMENT: usize = 100;

/// A place within a file that breaks a rule.
#[derive(Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) rule: &'static str,
    pub(super) line: usize,
    pub(super) text: String,
}

/// The phrases of all rules.
pub(super) struct Phrases {
    names: Vec<&'static str>,
    set: RegexSet,
}

impl Phrases {
    pub(super) fn compile() -> Self {
        let phrases = RULES.iter().filter_map(|rule| match rule.finds {
            // Without Unicode, word boundaries are found by a table.
            Finds::Phrase(phrase) => Some((rule.name, format!(r"(?i-u)\b(?:{phrase})\b"))),
            Finds::Measure => None,
        });
        let (names, patterns): (Vec<_>, Vec<_>) = phrases.unzip();
        Self { names, set: RegexSet::new(patterns).expect("the expressions are correct") }
    }

    /// The names of the rules that a text breaks.
    pub(super) fn broken_by(&self, text: &str) -> impl Iterator<Item = &'static str> {
        // Most texts break no rule, and this search is faster than the other.
        let matches = self.set.is_match(text).then(|| self.set.matches(text));
        matches.into_iter().flatten().map(|index| self.names[index])
    }
}

/// Adds the places of a file where a line breaks a rule, and counts the words.
pub(super) fn lines(passages: &[Passage<'_>], phrases: &Phrases, findings: &mut Vec<Finding>) -> usize {
    let mut count = 0;
    for Passage { line, kind, text, source } in passages {
        let mut find = |rule, text: &str| findings.push(Finding { rule, line: *line, text: text.trim().to_owned() });
        // The rate of the word in prose does not depend on further texts.
        let (what, weight) = if *kind == Kind::Text { (WHAT_IN_TEXT, 0) } else { (WHAT, 1) };
        for word in words(text) {
            count += weight;
            if word.eq_ignore_ascii_case("what") {
                find(what, text);
            }
        }
        if matches!(kind, Kind::Summary | Kind::Heading) && opens_with_interrogative(text) {
            find(OPENING, text);
        }
        phrases.broken_by(text).for_each(|rule| find(rule, text));
        if matches!(kind, Kind::Summary | Kind::Comment) && is_wide(text, source) {
            find(WIDTH, source);
        }
    }
    count
}

/// Whether a text that is no question opens with an interrogative.
fn opens_with_interrogative(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let opens = |word: &&str| text.strip_prefix(*word).is_some_and(|rest| !rest.starts_with(is_part));
    INTERROGATIVES.iter().any(opens) && !text.trim_end().ends_with('?')
}

/// Whether a comment goes beyond the last column and can be wrapped: rows of tables and addresses
/// of pages cannot.
fn is_wide(text: &str, source: &str) -> bool {
    source.len() > MAX_COMMENT
        && source.chars().count() > MAX_COMMENT
        && !text.starts_with('|')
        && !source.contains("://")
}

static BREAK: LazyLock<Regex> = LazyLock::new(|| compiled(r"\n\s*\n|\n[-*|#>]"));
static END: LazyLock<Regex> = LazyLock::new(|| compiled(r"[.!?:;]\s+"));

/// Adds the sentences of a Markdown document that are too long.
pub(super) fn sentences(passages: &[Passage<'_>], findings: &mut Vec<Finding>) {
    let lines: Vec<&str> = passages.iter().map(|passage| &*passage.text).collect();
    let text = lines.join("\n");
    let line_at = |offset: usize| passages[text[..offset].matches('\n').count()].line;
    for paragraph in BREAK.split(&text) {
        for sentence in END.split(paragraph).filter(|sentence| words(sentence).count() > MAX_SENTENCE) {
            let sentence = sentence.trim_start();
            let offset = sentence.as_ptr().addr() - text.as_ptr().addr();
            let shown = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
            findings.push(Finding { rule: SENTENCE, line: line_at(offset), text: shown });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::{of_markdown, of_rust};
    use super::super::texts::of_settings;
    use super::*;

    fn in_rust(code: &str) -> Vec<(&'static str, usize)> {
        let mut findings = Vec::new();
        lines(&of_rust(code), &Phrases::compile(), &mut findings);
        findings.iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn summaries_that_open_with_interrogatives_are_found() {
        assert_eq!(in_rust("/// Where a policy is.\n/// How it is."), [(OPENING, 1)]);
        assert_eq!(in_rust("/// By what it is."), [(WHAT, 1), (OPENING, 1)]);
        assert_eq!(in_rust("/// Whether a policy is.\nfn f() {}\n/// How is it?\nfn g() {}\n// Who asks."), []);
    }

    #[test]
    fn each_what_counts() {
        assert_eq!(in_rust("// It is what it is, and What it was; not whatever, `what` or what's."), [(WHAT, 1); 2]);
    }

    #[test]
    fn further_texts_have_phrases_and_no_what() {
        let mut findings = Vec::new();
        let passages = of_settings("# What nobody needs.\nkey = 1\n# Who is it?\n");
        assert_eq!(lines(&passages, &Phrases::compile(), &mut findings), 0);
        let found: Vec<_> = findings.iter().map(|finding| (finding.rule, finding.line)).collect();
        assert_eq!(found, [(WHAT_IN_TEXT, 1), ("actor", 1)]);
    }

    #[test]
    fn comments_beyond_the_last_column_are_found() {
        let comment = |length: usize| format!("    // {}", "é".repeat(length - 7));
        assert_eq!(in_rust(&comment(100)), []);
        assert_eq!(in_rust(&comment(101)), [(WIDTH, 1)]);
        assert_eq!(in_rust(&format!("/// | {} |", "x ".repeat(60))), []);
        assert_eq!(in_rust(&format!("let a = \"{}\";", "x ".repeat(60))), []);
    }

    #[test]
    fn long_sentences_of_documents_are_found() {
        let words = |count: usize| vec!["word"; count].join("\n");
        let found = |document: &str| {
            let mut findings = Vec::new();
            sentences(&of_markdown(document), &mut findings);
            findings.iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert!(found(&words(40)).is_empty());
        assert_eq!(found(&format!("# Title\n\nShort. {}", words(41))), [3]);
        for separator in [". ", ";\n", "\n\n", "\n- "] {
            assert!(found(&[words(21), words(21)].join(separator)).is_empty(), "{separator:?}");
        }
        assert_eq!(found(&[words(21), words(21)].join(", ")), [1]);
    }
}
