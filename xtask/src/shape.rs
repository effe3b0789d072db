//! Sizes of functions and structs, and forms of errors without a source (`Result<_, String>`,
//! `Result<_, &str>`, `map_err(|error| Variant(error.to_string()))`), or that show it in their own
//! message, over the sources of all crates without tests.

use std::path::Path;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprClosure, ExprMethodCall, Fields, GenericArgument, Ident, ImplItemFn, ItemFn, ItemMod,
    ItemStruct, Macro, Pat, PathArguments, Signature, TraitItemFn, Type, TypePath, Variant,
};
use xtask::files::read;

use crate::shell::root;
use crate::tidy::{is_of_tests, list};

/// No function has more lines, signature included.
const MAX_FUNCTION: usize = 100;

/// Only [`MAX_LONG_FUNCTIONS`] functions have more lines than this.
const LONG_FUNCTION: usize = 60;

/// The number of long functions in the whole workspace.
const MAX_LONG_FUNCTIONS: usize = 20;

/// The number of fields of a struct that holds the state of a component.
const MAX_FIELDS: usize = 12;

/// Crates and the structs in them that hold the state of a component.
const STATES: &[(&str, &str)] =
    &[("node", "Session"), ("node", "Metrics"), ("iptables", "Reconciler"), ("dataplane", "Dataplane")];

/// Checks the sources of all crates, the benchmarks and this program.
pub(crate) fn check(wrong: &mut Vec<String>) -> Result<(), String> {
    let mut found = Measurements::default();
    for folder in list(&root().join("crates"))? {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        found.is_published = !matches!(name.as_str(), "faults" | "lab" | "testkit");
        found.krate = name;
        found.folder(&folder.join("src"))?;
    }
    found.is_published = false;
    found.folder(&root().join("benches"))?;
    found.folder(&root().join("xtask/src"))?;

    let long = found.functions.len();
    if long > MAX_LONG_FUNCTIONS {
        wrong.push(format!("{long} functions have over {LONG_FUNCTION} lines; the limit is {MAX_LONG_FUNCTIONS}"));
        wrong.extend(found.functions.iter().map(|(function, lines)| format!("  {function}: {lines} lines")));
    }
    for (function, lines) in found.functions.iter().filter(|(_, lines)| *lines > MAX_FUNCTION) {
        wrong.push(format!("{function} has {lines} lines; the limit is {MAX_FUNCTION}"));
    }
    for state in STATES {
        match found.states.iter().find(|(of, _)| of == state) {
            None => wrong.push(format!("crates/{} has no struct {}", state.0, state.1)),
            Some((_, fields)) if *fields > MAX_FIELDS => {
                wrong.push(format!("{} of crates/{} has {fields} fields; the limit is {MAX_FIELDS}", state.1, state.0));
            }
            Some(_) => {}
        }
    }
    wrong.append(&mut found.wrong);
    Ok(())
}

/// The measurements of the files that were visited, and the place of the visitor.
#[derive(Default)]
struct Measurements {
    /// Long functions with their numbers of lines.
    functions: Vec<(String, usize)>,
    /// Structs of [`STATES`] with their numbers of fields.
    states: Vec<((&'static str, &'static str), usize)>,
    wrong: Vec<String>,
    krate: String,
    is_published: bool,
    file: String,
}

impl Measurements {
    fn folder(&mut self, folder: &Path) -> Result<(), String> {
        for path in list(folder)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name.as_str(), "tests" | "generated" | "target") {
                    self.folder(&path)?;
                }
            } else if name.ends_with(".rs") && name != "tests.rs" {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), String> {
        let text = read(path)?;
        self.file = path.strip_prefix(root()).unwrap_or(path).display().to_string();
        let file = syn::parse_file(&text).map_err(|error| format!("{}: {error}", self.file))?;
        self.visit_file(&file);
        Ok(())
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: Span) -> bool {
        if is_of_tests(attributes) || attributes.iter().any(|attribute| attribute.path().is_ident("test")) {
            return false;
        }
        let start = signature.span().start().line;
        let lines = block.end().line + 1 - start;
        if lines > LONG_FUNCTION {
            self.functions.push((format!("{}:{start} {}", self.file, signature.ident), lines));
        }
        true
    }

    fn message(&mut self, error: &Ident, attributes: &[Attribute], fields: &Fields) {
        if let Some(shown) = shown_cause(attributes, fields).filter(|_| self.is_published) {
            let line = error.span().start().line;
            self.wrong.push(format!("{}:{line}: the message of {error} shows {shown}", self.file));
        }
    }

    fn error(&mut self, line: usize, form: &str) {
        if self.is_published {
            self.wrong.push(format!("{}:{line}: {form} loses the source of the error", self.file));
        }
    }
}

impl<'a> Visit<'a> for Measurements {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        if self.function(&item.attrs, &item.sig, item.block.span()) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        if self.function(&item.attrs, &item.sig, item.block.span()) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a TraitItemFn) {
        let end = item.default.as_ref().map_or_else(|| item.sig.span(), Spanned::span);
        if self.function(&item.attrs, &item.sig, end) {
            visit::visit_trait_item_fn(self, item);
        }
    }

    fn visit_variant(&mut self, variant: &'a Variant) {
        self.message(&variant.ident, &variant.attrs, &variant.fields);
        visit::visit_variant(self, variant);
    }

    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        self.message(&item.ident, &item.attrs, &item.fields);
        let state = STATES.iter().find(|(krate, name)| self.krate == *krate && item.ident == name);
        self.states.extend(state.map(|state| (*state, item.fields.len())));
        visit::visit_item_struct(self, item);
    }

    fn visit_type_path(&mut self, path: &'a TypePath) {
        if let Some(last) = path.path.segments.last()
            && last.ident == "Result"
            && let PathArguments::AngleBracketed(arguments) = &last.arguments
            && let Some(GenericArgument::Type(error)) = arguments.args.iter().nth(1)
            && is_text(error)
        {
            self.error(path.span().start().line, "a Result with a text");
        }
        visit::visit_type_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if call.method == "map_err" && call.args.first().is_some_and(makes_text) {
            self.error(call.method.span().start().line, "map_err to text");
        }
        visit::visit_expr_method_call(self, call);
    }
}

/// Whether a type is `String` or `&str`.
fn is_text(error: &Type) -> bool {
    match error {
        Type::Path(path) => path.path.is_ident("String"),
        Type::Reference(reference) => matches!(&*reference.elem, Type::Path(path) if path.path.is_ident("str")),
        _ => false,
    }
}

/// Whether an expression is a closure that makes text of its argument, as `|error|
/// Variant(error.to_string())`, or the path of a `to_string`.
fn makes_text(function: &Expr) -> bool {
    match function {
        Expr::Closure(ExprClosure { inputs, body, .. }) => {
            let Some(error) = inputs.first().and_then(name_of) else { return false };
            let mut texts = Texts { error, found: false };
            texts.visit_expr(body);
            texts.found
        }
        Expr::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "to_string"),
        _ => false,
    }
}

/// The name of an argument, typed or not.
fn name_of(argument: &Pat) -> Option<&Ident> {
    match argument {
        Pat::Ident(argument) => Some(&argument.ident),
        Pat::Type(argument) => name_of(&argument.pat),
        _ => None,
    }
}

/// Searches for places where text is made of an error.
struct Texts<'e> {
    error: &'e Ident,
    found: bool,
}

impl<'a> Visit<'a> for Texts<'_> {
    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        let of_error = matches!(&*call.receiver, Expr::Path(path) if path.path.is_ident(self.error));
        self.found |= of_error && call.method == "to_string";
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        self.found |= call.path.is_ident("format") && shows(call.tokens.clone(), &self.error.to_string());
    }
}

/// Whether the arguments of a formatting macro show a value as a whole, by its name or within
/// braces.
fn shows(tokens: TokenStream, value: &str) -> bool {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let text = match token {
            TokenTree::Group(group) if shows(group.stream(), value) => return true,
            TokenTree::Group(_) | TokenTree::Punct(_) => continue,
            TokenTree::Ident(ident) => ident.to_string(),
            TokenTree::Literal(literal) => literal.to_string(),
        };
        let is_part = matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == '.');
        let is_shown = |shown: String| text.contains(&shown);
        if text == value && !is_part || is_shown(format!("{{{value}}}")) || is_shown(format!("{{{value}:")) {
            return true;
        }
    }
    false
}

/// The cause in the message of an error, where the reporter adds the causes. A function of the
/// message may show an error that is no source, as `with_causes` does.
fn shown_cause(attributes: &[Attribute], fields: &Fields) -> Option<&'static str> {
    let is_message = |attribute: &&Attribute| attribute.path().is_ident("error");
    let message = &attributes.iter().find(is_message)?.meta.require_list().ok()?.tokens;
    let plain = || message.clone().into_iter().filter(|token| !matches!(token, TokenTree::Group(_)));
    fields.iter().enumerate().find_map(|(index, field)| {
        let name = field.ident.as_ref().map_or_else(|| index.to_string(), Ident::to_string);
        let marks = |attribute: &Attribute| attribute.path().is_ident("source") || attribute.path().is_ident("from");
        let is_source = name == "source" || field.attrs.iter().any(marks);
        if is_source && shows(message.clone(), &name) {
            Some("its source, which the reporter shows again")
        } else if !is_source && is_error(&field.ty) && shows(plain().collect(), &name) {
            Some("an error that is not its source")
        } else {
            None
        }
    })
}

/// Whether the name of a type, or of a part of it, is that of an error.
fn is_error(of: &Type) -> bool {
    let mut names = ErrorNames::default();
    names.visit_type(of);
    names.found
}

/// Searches for names of errors.
#[derive(Default)]
struct ErrorNames {
    found: bool,
}

impl<'a> Visit<'a> for ErrorNames {
    fn visit_ident(&mut self, ident: &'a Ident) {
        let name = ident.to_string();
        self.found |= name == "Cause" || name.ends_with("Error") || name.ends_with("Errno");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(krate: &str, text: &str) -> Measurements {
        let mut found = Measurements { krate: krate.to_owned(), is_published: true, ..Measurements::default() };
        found.visit_file(&syn::parse_file(text).unwrap());
        found
    }

    #[test]
    fn long_functions_are_measured_and_tests_are_not() {
        let body = "\n f();".repeat(59);
        let text = format!("fn short() {{{body}}}\nimpl A {{ fn long(\n) {{{body}}} }}\n#[test] fn t(\n) {{{body}}}");
        assert_eq!(found("calc", &text).functions, [(":61 long".to_owned(), 61)]);
        assert_eq!(found("calc", &format!("#[cfg(test)] mod tests {{ fn f(\n) {{{body}}} }}")).functions, []);
    }

    #[test]
    fn fields_of_named_structs_are_counted() {
        let text = "struct Session { a: u8, b: u8 } struct Other { a: u8 }";
        assert_eq!(found("node", text).states, [(("node", "Session"), 2)]);
        assert_eq!(found("cli", text).states, []);
    }

    #[test]
    fn errors_that_lose_their_source_are_found() {
        for text in [
            "fn f() -> Result<(), String> { todo() }",
            "type R = std::result::Result<u8, String>;",
            "fn f() { g().map_err(|error| error.to_string()); }",
            "fn f() { g().map_err(ToString::to_string); }",
            "fn f() -> Result<(), &'static str> { todo() }",
            "fn f() { g().map_err(|error| E::Failed(error.to_string())); }",
            "fn f() { g().map_err(|error| { let what = 1; E::Failed { what, why: error.to_string() } }); }",
            "fn f() { g().map_err(|why| E::Failed(format!(\"here: {why:?}\"))); }",
            "fn f() { g().map_err(|why| E::Failed(format!(\"here: {}\", why))); }",
        ] {
            assert_eq!(found("calc", text).wrong.len(), 1, "{text}");
        }
        for text in [
            "fn f() -> Result<String, Error> { g().map_err(Error::from) }",
            "fn f() { g().map_err(|error| E::Failed { place: format!(\"{place}\"), error }); }",
        ] {
            assert_eq!(found("calc", text).wrong, [""; 0], "{text}");
        }
    }
    #[test]
    fn messages_that_show_causes_are_found() {
        for text in [
            r#"enum E { #[error("{a}: {error}")] A { a: u8, #[source] error: B } }"#,
            r#"enum E { #[error("no: {0}")] A(#[from] B) }"#,
            r#"#[error("{}", text(.0))] struct A(#[source] B);"#,
            r#"#[error("{}", source)] struct A { source: B }"#,
            r#"#[error("{}: {error}", path.display())] struct A { path: PathBuf, error: io::Error }"#,
            r#"enum E { #[error("no: {0}")] A(Errno), #[error("{a}")] B { a: u8 } }"#,
            r#"#[error("{a}: {}", .why)] struct A { a: u8, why: Option<Cause> }"#,
            r#"#[error("{0}")] struct A(Box<dyn std::error::Error + Send + Sync>);"#,
        ] {
            assert_eq!(found("calc", text).wrong.len(), 1, "{text}");
        }
        for text in [
            r#"enum E { #[error("{a}")] A { a: u8, #[source] error: B }, #[error(transparent)] B(#[from] B) }"#,
            r#"#[error("{}: {error}", path.display())] struct A { path: PathBuf, error: B }"#,
            r#"#[error("{}", .0.code())] struct A(#[source] B);"#,
            r#"#[error("{what}: {}", with_causes(error))] struct A { what: String, error: io::Error }"#,
            r#"#[error("{}", .0.kind())] struct A(io::Error);"#,
        ] {
            assert_eq!(found("calc", text).wrong, [""; 0], "{text}");
        }
    }
}
