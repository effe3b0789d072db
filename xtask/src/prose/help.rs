//! Summaries of commands in help, which `clap` takes from the first paragraph of a doc comment.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprLit, Fields, GenericArgument, ItemEnum, ItemStruct, Lit, Meta, PathArguments, Type, TypePath,
    Variant,
};

use super::imperative::is_imperative;

/// No summary has more characters.
const MAX_SUMMARY: usize = 72;

/// The summary of a command and the file and line of its doc comment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) text: String,
}

/// A type: its crate's folder, its module's name, its own name.
type TypeName = (String, String, String);

/// Commands of all sources that were added.
#[derive(Default)]
pub(super) struct Commands {
    file: String,
    /// Summaries of variants, which hold for their commands.
    variants: Vec<Summary>,
    /// Types of arguments of variants without a doc comment.
    arguments: BTreeSet<TypeName>,
    /// Summaries of types of arguments, some of which are parts of others and no commands.
    types: BTreeMap<TypeName, Summary>,
}

impl Commands {
    /// Adds the commands of a source.
    pub(super) fn add(&mut self, file: &str, code: &str) -> Result<(), String> {
        if !code.contains("clap") {
            return Ok(());
        }
        file.clone_into(&mut self.file);
        self.visit_file(&syn::parse_file(code).map_err(|error| format!("{file}: {error}"))?);
        Ok(())
    }

    /// The summaries that are no imperative or too long.
    pub(super) fn violations(&self) -> impl Iterator<Item = &Summary> {
        let of_types = self.arguments.iter().filter_map(|name| self.types.get(name));
        self.variants.iter().chain(of_types).filter(|summary| !is_summary(&summary.text))
    }

    /// The name of a type as a path of this file or this crate has it.
    fn name(&self, modules: &[String], name: &str) -> TypeName {
        let mut folders: Vec<&str> = self.file.trim_end_matches(".rs").split('/').collect();
        if folders.last() == Some(&"mod") {
            folders.pop();
        }
        let own = folders.last().copied().unwrap_or_default();
        let krate = folders.iter().take(2).copied().collect::<Vec<_>>().join("/");
        (krate, modules.last().map_or(own, |module| module).to_owned(), name.to_owned())
    }

    fn summary(&self, attributes: &[Attribute], line: usize) -> Option<Summary> {
        let paragraphs: Vec<String> = attributes.iter().filter_map(doc).collect();
        let first: Vec<&str> = paragraphs.iter().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
        let text = first.join(" ").trim_end_matches('.').to_owned();
        (!text.is_empty()).then(|| Summary { file: self.file.clone(), line, text })
    }

    fn variant(&mut self, variant: &Variant) {
        if has_option(&variant.attrs, "flatten") || has_option(&variant.attrs, "hide") {
            return;
        }
        if let Some(summary) = self.summary(&variant.attrs, variant.span().start().line) {
            self.variants.push(summary);
        } else if let Fields::Unnamed(fields) = &variant.fields
            && let Some(field) = fields.unnamed.first()
        {
            let mut path = path(&field.ty);
            let name = path.pop().unwrap_or_default();
            self.arguments.insert(self.name(&path, &name));
        }
    }
}

impl<'a> Visit<'a> for Commands {
    fn visit_item_enum(&mut self, item: &'a ItemEnum) {
        if derives(&item.attrs, "Subcommand") {
            item.variants.iter().for_each(|variant| self.variant(variant));
        }
    }

    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        if derives(&item.attrs, "Args")
            && let Some(summary) = self.summary(&item.attrs, item.span().start().line)
        {
            self.types.insert(self.name(&[], &item.ident.to_string()), summary);
        }
        visit::visit_item_struct(self, item);
    }
}

/// The parts of the path of a type, or of the type in a box; none of other types.
fn path(of: &Type) -> Vec<String> {
    let Type::Path(TypePath { path: of, .. }) = of else { return Vec::new() };
    match of.segments.last().map(|last| (&last.ident, &last.arguments)) {
        Some((name, PathArguments::AngleBracketed(boxed))) if name == "Box" => boxed
            .args
            .iter()
            .find_map(|argument| if let GenericArgument::Type(inner) = argument { Some(path(inner)) } else { None })
            .unwrap_or_default(),
        _ => of.segments.iter().map(|part| part.ident.to_string()).collect(),
    }
}

/// The text of a line of a doc comment.
fn doc(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an item derives a trait.
fn derives(attributes: &[Attribute], name: &str) -> bool {
    has_word(attributes, "derive", name)
}

/// Whether `#[command(…)]` has an option.
fn has_option(attributes: &[Attribute], name: &str) -> bool {
    has_word(attributes, "command", name)
}

/// Whether the list of an attribute has a word.
fn has_word(attributes: &[Attribute], attribute: &str, word: &str) -> bool {
    let lists = attributes
        .iter()
        .filter(|list| list.path().is_ident(attribute))
        .filter_map(|list| list.meta.require_list().ok());
    lists.flat_map(|list| list.tokens.clone()).any(|token| token.to_string() == word)
}

fn is_summary(text: &str) -> bool {
    is_imperative(text) && text.chars().count() <= MAX_SUMMARY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_commands_are_found_at_variants_and_types() {
        let mut commands = Commands::default();
        let code = [
            "use clap::Subcommand;",
            "#[derive(Subcommand)] enum C {",
            "/// Who asks.",
            "///",
            "/// More.",
            "A { a: u8 },",
            "/// Show it.",
            "B, D(Box<d::Args>), E(EArgs),",
            "/// Hidden",
            "#[command(hide = true)] F }",
            "/// All connections",
            "#[derive(clap::Args)] struct EArgs {}",
            "/// The part.",
            "#[derive(clap::Args)] struct Part {}",
        ];
        commands.add("crates/cli/src/lib.rs", &code.join("\n")).unwrap();
        let long = "Show more than fits into a line of help of seventy-two characters, as here";
        let arguments = format!("/// {}\n#[derive(clap::Args)]\nstruct Args {{}}", long.replace(", ", ",\n/// "));
        commands.add("crates/cli/src/d/mod.rs", &arguments).unwrap();
        commands.add("crates/agent/src/d.rs", &arguments).unwrap();
        let wrong: Vec<_> = commands.violations().map(|wrong| (&*wrong.file, wrong.line, &*wrong.text)).collect();
        let expected = [
            ("crates/cli/src/lib.rs", 3, "Who asks"),
            ("crates/cli/src/d/mod.rs", 1, long),
            ("crates/cli/src/lib.rs", 11, "All connections"),
        ];
        assert_eq!(wrong, expected);
    }
}
