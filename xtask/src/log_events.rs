//! Events of the log, from the sources of all crates without tests: the rules of their messages,
//! and the reference of them in the book.

mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemFn, ItemImpl, ItemMod, Macro};
use xtask::files::read;

use crate::shell::root;
use crate::tidy::{is_of_tests, list};
use parse::{Message, levels};

/// The page of the book.
const PAGE: &str = "docs/book/src/reference/log-events.md";

/// Names with capitals that a message may begin with.
const NAMES: &[&str] = &[
    "Calico",
    "DebugSimulateCalcGraphHangAfter",
    "DebugSimulateDataplaneHangAfter",
    "FeatureDetectOverride",
    "Felix",
    "HTTP",
    "IP",
    "IPAM",
    "IPv4",
    "IPv6",
    "IptablesBackend",
    "Kubernetes",
    "NFTablesFlowTableOffload",
    "RouteTableRanges",
    "SIGHUP",
    "Typha",
    "WireGuard",
];

/// Levels of the page, with their order.
const LISTED: [&str; 3] = ["error", "warn", "info"];

const HEADER: &str = "\
# Log events

The events of level `error`, `warn` and `info` of all programs. The message of an event is constant, so that it can be searched for;
values are fields. A line of text has the time, the level, the message and the fields (`name=value`). A line of JSON
(`--log-format json`) has them as members, with `target`, the module that logs the event. A program that embeds the libraries
filters by target, as in `RUST_LOG=tortie_node::engine=warn` of an `EnvFilter`.

`cargo xtask log-events` writes this page from the sources.

| level | message | fields | target |
|---|---|---|---|
";

/// Checks the messages of all events, and that the page is current.
pub(crate) fn check(wrong: &mut Vec<String>) -> Result<(), String> {
    let found = Found::of_workspace()?;
    wrong.extend(found.wrong());
    if read(&root().join(PAGE)).ok() != Some(found.page()) {
        wrong.push(format!("{PAGE} is out of date: run `cargo xtask log-events`"));
    }
    Ok(())
}

/// Writes the page.
pub(crate) fn write() -> Result<(), String> {
    xtask::files::write(&root().join(PAGE), &Found::of_workspace()?.page())
}

/// A use of a macro of `tracing`.
#[derive(Debug)]
struct Event {
    file: String,
    line: usize,
    level: &'static str,
    message: Message,
    fields: Vec<String>,
    target: String,
}

impl Event {
    /// Returns the violation of the rules, if there is one.
    fn flaw(&self) -> Option<String> {
        match &self.message {
            Message::Missing => Some("an event of the log has no message".to_owned()),
            Message::Variable => Some("the message of an event is not constant; use fields for values".to_owned()),
            Message::Constant(text) if begins_with_capital(text) => {
                Some(format!("the message `{text}` begins with a capital"))
            }
            Message::Constant(_) => None,
        }
    }
}

/// Whether a message begins with a capital that is not that of a name.
fn begins_with_capital(message: &str) -> bool {
    let word = message.split([' ', ':', '\'']).next().unwrap_or_default();
    word.starts_with(char::is_uppercase) && !NAMES.contains(&word)
}

/// The events of the files that were visited, and the place of the visitor.
#[derive(Default)]
struct Found {
    events: Vec<Event>,
    file: String,
    /// The path of the visited module.
    module: Vec<String>,
}

impl Found {
    fn of_workspace() -> Result<Self, String> {
        let mut found = Self::default();
        for folder in list(&root().join("crates"))? {
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if matches!(name.as_str(), "faults" | "lab" | "testkit") {
                continue;
            }
            let name = if name == "tortie" { name } else { format!("tortie_{name}") };
            found.folder(&folder.join("src"), &name, Path::new(""))?;
        }
        Ok(found)
    }

    /// Adds the events of a folder below the sources of a crate.
    fn folder(&mut self, source: &Path, name: &str, inner: &Path) -> Result<(), String> {
        for path in list(&source.join(inner))? {
            let end = path.file_name().map(PathBuf::from).unwrap_or_default();
            let is_rust = end.extension().is_some_and(|extension| extension == "rs");
            if path.is_dir() {
                if end != Path::new("tests") && end != Path::new("generated") {
                    self.folder(source, name, &inner.join(end))?;
                }
            } else if is_rust && end != Path::new("tests.rs") {
                self.file = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                self.module = module(name, &inner.join(end));
                let file = syn::parse_file(&read(&path)?).map_err(|error| format!("{}: {error}", self.file))?;
                self.visit_file(&file);
            }
        }
        Ok(())
    }

    /// Adds the events in the arguments of another macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            let TokenTree::Group(group) = token else { continue };
            let is_call = index >= 2 && matches!(&tokens[index - 1], TokenTree::Punct(mark) if mark.as_char() == '!');
            match tokens.get(index.wrapping_sub(2)) {
                Some(TokenTree::Ident(name)) if is_call && levels().contains(&&*name.to_string()) => {
                    self.event(&name.to_string(), name.span().start().line, group.stream());
                }
                _ => self.tokens(group.stream()),
            }
        }
    }

    fn event(&mut self, name: &str, line: usize, arguments: TokenStream) {
        if let Some(parsed) = parse::event(name, arguments) {
            let target = parsed.target.unwrap_or_else(|| self.module.join("::"));
            let parse::Parsed { level, message, fields, .. } = parsed;
            self.events.push(Event { file: self.file.clone(), line, level, message, fields, target });
        }
    }

    /// Returns the violations of the rules.
    fn wrong(&self) -> Vec<String> {
        let flaws = self.events.iter().filter_map(|event| {
            let flaw = event.flaw()?;
            Some(format!("{}:{}: {flaw}", event.file, event.line))
        });
        let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for event in self.events.iter().filter(|event| matches!(event.level, "error" | "warn")) {
            if let Message::Constant(text) = &event.message {
                files.entry(text).or_default().insert(&event.file);
            }
        }
        let shared = files.iter().filter(|(_, files)| files.len() > 1).map(|(message, files)| {
            let files: Vec<&str> = files.iter().copied().collect();
            format!("different events have the message `{message}`: {}", files.join(", "))
        });
        flaws.chain(shared).collect()
    }

    /// Returns the page of the book.
    fn page(&self) -> String {
        let mut rows = BTreeSet::new();
        for event in &self.events {
            let (Some(level), Message::Constant(message)) =
                (LISTED.iter().position(|level| *level == event.level), &event.message)
            else {
                continue;
            };
            rows.insert((level, message, &event.fields, &event.target));
        }
        let mut page = HEADER.to_owned();
        for (level, message, fields, target) in rows {
            let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(page, "| {} | {} | {} | `{target}` |", LISTED[level], code(message), fields.join(", "));
        }
        page
    }
}

/// Returns a message as a code span in a table.
fn code(message: &str) -> String {
    let message = message.replace('|', "\\|");
    if message.contains('`') { format!("`` {message} ``") } else { format!("`{message}`") }
}

/// Returns the path of the module in a file below the sources of a crate.
fn module(name: &str, file: &Path) -> Vec<String> {
    let mut module = vec![name.to_owned()];
    module.extend(file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()));
    module.pop_if(|last| matches!(last.as_str(), "lib" | "main" | "mod"));
    module
}

/// Whether a function is a test.
fn is_test(attributes: &[Attribute]) -> bool {
    is_of_tests(attributes) || attributes.iter().any(|attribute| attribute.path().is_ident("test"))
}

impl<'a> Visit<'a> for Found {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_of_tests(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        let name = call.path.segments.last().map(|last| (last.ident.to_string(), last.ident.span().start().line));
        match name {
            Some((name, line)) if levels().contains(&&*name) => self.event(&name, line, call.tokens.clone()),
            _ => self.tokens(call.tokens.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Found {
        let mut found = Found::default();
        for (file, text) in files {
            found.file = (*file).to_owned();
            found.module = module("tortie_calc", Path::new(file));
            found.visit_file(&syn::parse_file(text).unwrap());
        }
        found
    }

    fn wrong(body: &str) -> Vec<String> {
        found(&[("a.rs", &format!("fn f() {{ {body} }}"))]).wrong()
    }

    #[test]
    fn messages_are_constant() {
        for body in [
            r#"tracing::warn!("{problem}");"#,
            r#"tracing::info!("{} is read", name);"#,
            r#"tracing::info!("is read: {name:?}");"#,
            r#"tracing::debug!(%error, "{}", TEXT);"#,
            r#"match a { b => tracing::error!(%error, "the {b} failed"), _ => {} }"#,
            r#"select! { a => tracing::error!("{a}") }"#,
            r#"warn!(TEXT, name = 1, "{TEXT}");"#,
            "tracing::info!(name, %error);",
            "tracing::info!();",
        ] {
            assert_eq!(wrong(body).len(), 1, "{body}");
        }
        for body in [
            r#"tracing::warn!(%problem, name = f(a, "{}"), ?change, a.b, "problem of the \"input\"");"#,
            r#"tracing::event!(Level::WARN, { a = 1 }, "closed");"#,
            r#"format!("{name}"); print!("Read: {name}"); error("{a}");"#,
            "tracing::info!(\n a,\n \"in two \\\n lines\",\n);",
        ] {
            assert_eq!(wrong(body), [""; 0], "{body}");
        }
    }

    #[test]
    fn messages_begin_with_a_small_letter_or_a_name() {
        assert_eq!(
            wrong(r#"tracing::debug!("Cannot read a table");"#),
            ["a.rs:1: the message `Cannot read a table` begins with a capital"]
        );
        for message in
            ["a table is read", "eBPF programs are attached", "WireGuard's key is written", "SIGHUP: no effect"]
        {
            assert_eq!(wrong(&format!("tracing::debug!(\"{message}\");")), [""; 0], "{message}");
        }
    }

    #[test]
    fn warnings_of_two_files_have_different_messages() {
        let text = r#"fn f() { tracing::LEVEL!("not read") }"#;
        let both = |first: &str, second: &str| {
            let (first, second) = (text.replace("LEVEL", first), text.replace("LEVEL", second));
            found(&[("a.rs", &(first.clone() + &first.replace("fn f", "fn g"))), ("b.rs", &second)]).wrong()
        };
        assert_eq!(both("warn", "error"), ["different events have the message `not read`: a.rs, b.rs"]);
        assert_eq!(both("warn", "info"), [""; 0]);
        assert_eq!(both("debug", "debug"), [""; 0]);
    }

    #[test]
    fn tests_may_log_anything() {
        for text in [
            r#"#[cfg(test)] mod tests { fn f() { tracing::info!("{a}") } }"#,
            r#"#[test] fn f() { tracing::info!("{a}") }"#,
            r#"#[cfg(test)] impl A { fn f() { tracing::info!("{a}") } }"#,
        ] {
            assert_eq!(found(&[("a.rs", text)]).wrong(), [""; 0], "{text}");
        }
    }

    #[test]
    fn the_page_lists_messages_fields_and_targets() {
        let text = r#"
            fn f() {
                tracing::info!(took_ms = 1 + 2, %a.name, ?b, c, "read; see `tortie status`");
                tracing::error!(target: "other", "lost");
                tracing::debug!("looked");
            }
            mod inner { impl A { fn f() { tracing::warn!(%error, "late"); tracing::warn!(%error, "late"); } } }"#;
        let page = found(&[("b/mod.rs", text)]).page();
        let rows: Vec<&str> = page.strip_prefix(HEADER).unwrap().lines().collect();
        assert_eq!(
            rows,
            [
                "| error | `lost` |  | `other` |",
                "| warn | `late` | `error` | `tortie_calc::b::inner` |",
                "| info | `` read; see `tortie status` `` | `took_ms`, `a.name`, `b`, `c` | `tortie_calc::b` |",
            ]
        );
    }
}
