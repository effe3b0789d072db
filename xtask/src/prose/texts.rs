//! Further texts of the repository: metric help, assertions and expectations of Rust code, and
//! comments of settings and scripts.

use std::borrow::Cow;
use std::sync::LazyLock;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use regex::Regex;
use syn::Lit;

use super::text::{Kind, Passage, compiled, words};

/// Code and placeholders of a text.
static CODE_OR_VALUE: LazyLock<Regex> = LazyLock::new(|| compiled(r"`[^`]*`|\{[^}]*\}"));

/// Returns the comments of a TOML file or a shell script, except those behind code.
pub(super) fn of_settings(content: &str) -> Vec<Passage<'_>> {
    let comments = content.lines().zip(1..).filter_map(|(source, line)| {
        let comment = source.trim_start().strip_prefix('#').filter(|comment| !comment.starts_with('!'))?;
        Some(passage(line, comment))
    });
    comments.collect()
}

/// Returns the texts of assertions, `expect` and waits. In a file with metrics, returns all
/// literals of at least three words, because help texts are also values of variables.
pub(super) fn of_code(code: &str) -> Result<Vec<Passage<'static>>, String> {
    let tokens: TokenStream = code.parse().map_err(|error| format!("{error}"))?;
    let mut texts = Texts { has_metrics: has_metrics(tokens.clone()), found: Vec::new() };
    texts.add(tokens);
    Ok(texts.found)
}

/// Whether code writes metrics or defines them.
fn has_metrics(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == "Exposition" || name == "MetricFamily",
        TokenTree::Group(group) => has_metrics(group.stream()),
        _ => false,
    })
}

fn passage(line: usize, text: &str) -> Passage<'static> {
    let text = Cow::Owned(CODE_OR_VALUE.replace_all(text, " ").into_owned());
    Passage { line, kind: Kind::Text, text, source: "" }
}

struct Texts {
    has_metrics: bool,
    found: Vec<Passage<'static>>,
}

impl Texts {
    fn add(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Literal(_) if self.has_metrics => self.add_literal(token),
                TokenTree::Group(group) if !is_attribute(&tokens[..index], group.delimiter()) => {
                    if let Some(first) = first_text(&tokens[..index]).filter(|_| !self.has_metrics) {
                        self.add_arguments(group.stream(), first);
                    }
                    self.add(group.stream());
                }
                _ => {}
            }
        }
    }

    /// Adds the arguments from the given position that are literals, or formatted by one.
    fn add_arguments(&mut self, arguments: TokenStream, first: usize) {
        let tokens: Vec<TokenTree> = arguments.into_iter().collect();
        let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
        for argument in tokens.split(is_comma).skip(first) {
            let is_reference = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == '&');
            let behind = argument.split_first().filter(|(first, _)| is_reference(first)).map(|(_, rest)| rest);
            match behind.unwrap_or(argument) {
                [literal] => self.add_literal(literal),
                [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Group(group)] if name == "format" => {
                    group.stream().into_iter().take(1).for_each(|literal| self.add_literal(&literal));
                }
                _ => {}
            }
        }
    }

    fn add_literal(&mut self, token: &TokenTree) {
        let TokenTree::Literal(literal) = token else { return };
        let line = literal.span().start().line;
        if let Lit::Str(text) = Lit::new(literal.clone())
            && words(&text.value()).nth(2).is_some()
        {
            self.found.push(passage(line, &text.value()));
        }
    }
}

/// Whether a group is an attribute. Comments of documentation are attributes, too.
fn is_attribute(before: &[TokenTree], delimiter: Delimiter) -> bool {
    let is = |token: &TokenTree, c| matches!(token, TokenTree::Punct(punct) if punct.as_char() == c);
    let is_hash = match before {
        [.., hash, mark] if is(mark, '!') => is(hash, '#'),
        [.., hash] => is(hash, '#'),
        [] => false,
    };
    is_hash && delimiter == Delimiter::Bracket
}

/// Returns the position of the first text among the arguments of a macro or call that ends here.
fn first_text(before: &[TokenTree]) -> Option<usize> {
    match before {
        [.., TokenTree::Ident(name), TokenTree::Punct(mark)] if mark.as_char() == '!' => {
            let name = name.to_string();
            match name.trim_start_matches("debug_").trim_start_matches("prop_") {
                "unreachable" => Some(0),
                "assert" => Some(1),
                "assert_eq" | "assert_ne" => Some(2),
                _ => None,
            }
        }
        [.., TokenTree::Ident(name)] => {
            ["expect", "expect_err", "until", "eventually"].iter().any(|call| name == call).then_some(0)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(passages: &[Passage<'_>]) -> Vec<(usize, String)> {
        passages.iter().map(|passage| (passage.line, passage.text.trim().to_owned())).collect()
    }

    #[test]
    fn comments_of_settings_are_found() {
        let content = "#!/bin/sh\n# What it does.\n    # Runs `what`.\necho '# nobody'\n";
        assert_eq!(found(&of_settings(content)), [(2, "What it does.".to_owned()), (3, "Runs  .".to_owned())]);
    }

    #[test]
    fn texts_of_assertions_and_waits_are_found() {
        let code = r#"
            /// assert!(a, "no text of documentation");
            #[expect(dead_code, reason = "not an assertion")]
            fn f() {
                assert!(a.contains("the first argument counts not"), "one of {what} kinds");
                assert_eq!(a, "the expected value", "a text of {}", three);
                prop_assert!(a, "too short");
                g().expect("a value that exists");
                kernel_test! { until(&format!("the port {port} is open"), || eventually("it is ready", h)) }
                other("texts of other calls");
            }
        "#;
        let expected = [
            (5, "one of   kinds"),
            (6, "a text of"),
            (8, "a value that exists"),
            (9, "the port   is open"),
            (9, "it is ready"),
        ];
        assert_eq!(found(&of_code(code).unwrap()), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn all_texts_of_a_file_with_metrics_are_found() {
        let code = "/// Not this comment.\nfn f(e: &mut Exposition) {\n    let help = \"Number of open\\n\\\n         connections.\";\n}";
        assert_eq!(found(&of_code(code).unwrap()), [(3, "Number of open\nconnections.".to_owned())]);
    }
}
