//! Arguments of the macros of `tracing`.

use proc_macro2::{TokenStream, TokenTree};
use syn::LitStr;

/// Levels, each the name of its macro.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The macro with the level among its arguments.
const EVENT: &str = "event";

/// Message of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    Constant(String),
    /// With values in the text.
    Variable,
    Missing,
}

/// Parsed arguments.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) level: &'static str,
    pub(super) message: Message,
    /// The names of the fields.
    pub(super) fields: Vec<String>,
    pub(super) target: Option<String>,
}

/// Returns the names of the macros.
pub(super) fn levels() -> Vec<&'static str> {
    LEVELS.into_iter().chain([EVENT]).collect()
}

/// Returns the event of a macro; `None` if it is of no level, and so no macro of `tracing`.
pub(super) fn event(name: &str, arguments: TokenStream) -> Option<Parsed> {
    let arguments = split(arguments);
    let level = match name {
        EVENT => arguments.iter().find_map(|argument| level_of(argument)),
        name => LEVELS.into_iter().find(|level| *level == name),
    }?;
    let mut parsed = Parsed { level, message: Message::Missing, fields: Vec::new(), target: None };
    for argument in &arguments {
        if parsed.message != Message::Missing {
            // A value for the text.
            parsed.message = Message::Variable;
            break;
        }
        if name == EVENT && level_of(argument).is_some() {
            continue;
        }
        parsed.argument(argument);
    }
    Some(parsed)
}

impl Parsed {
    fn argument(&mut self, argument: &[TokenTree]) {
        match argument {
            [TokenTree::Literal(text)] => self.message = message(&text.to_string()),
            [TokenTree::Ident(option), TokenTree::Punct(colon), rest @ ..]
                if colon.as_char() == ':'
                    && !matches!(rest.first(), Some(TokenTree::Punct(next)) if next.as_char() == ':') =>
            {
                if let ("target", [TokenTree::Literal(text)]) = (&*option.to_string(), rest)
                    && let Message::Constant(target) = message(&text.to_string())
                {
                    self.target = Some(target);
                }
            }
            // Fields within braces.
            [TokenTree::Group(group)] => split(group.stream()).iter().for_each(|field| self.argument(field)),
            argument => self.fields.extend(field(argument)),
        }
    }
}

/// Returns the arguments between commas.
fn split(arguments: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut all = vec![Vec::new()];
    for token in arguments {
        match token {
            TokenTree::Punct(comma) if comma.as_char() == ',' => all.push(Vec::new()),
            token => all.last_mut().into_iter().for_each(|last| last.push(token.clone())),
        }
    }
    all.retain(|argument| !argument.is_empty());
    all
}

/// Returns the level in an argument such as `Level::WARN`.
fn level_of(argument: &[TokenTree]) -> Option<&'static str> {
    match argument {
        [.., TokenTree::Punct(_), TokenTree::Ident(last)] => {
            let last = last.to_string();
            LEVELS.into_iter().find(|level| level.to_uppercase() == last)
        }
        _ => None,
    }
}

/// Returns the name of a field: `name = value`, `%name`, `?name` or `name`, each with dots.
fn field(argument: &[TokenTree]) -> Option<String> {
    let is = |token: &TokenTree, marks: &str| matches!(token, TokenTree::Punct(mark) if marks.contains(mark.as_char()));
    let tokens = argument.iter().skip_while(|token| is(token, "%?"));
    let name: String = tokens.take_while(|token| !is(token, "=")).map(ToString::to_string).collect();
    (!name.is_empty()).then(|| name.trim_matches('"').to_owned())
}

/// Returns the message of a literal.
fn message(literal: &str) -> Message {
    match syn::parse_str::<LitStr>(literal).map(|text| text.value()) {
        Ok(text) if !text.contains(['{', '}']) && !text.is_empty() => Message::Constant(text),
        _ => Message::Variable,
    }
}
