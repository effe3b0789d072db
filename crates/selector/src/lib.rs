//! The selector language of Calico network policy: parsing, canonical form, stable id, evaluation,
//! and facts that let an index skip selectors without evaluating them.
//!
//! A selector is a boolean expression over labels. Policies select the endpoints that they apply
//! to, and the peers of their rules, by selectors.
//!
//! ```
//! use std::collections::HashMap;
//! use tortie_selector::Selector;
//!
//! let selector = Selector::parse("role in {'web','api'} && !has( legacy )")?;
//!
//! let labels = HashMap::from([("role", "web"), ("env", "prod")]);
//! assert!(selector.matches(&labels));
//! assert!(!selector.matches(&[("role", "db")]));
//!
//! assert_eq!(selector.canonical(), r#"(role in {"api", "web"} && !has(legacy))"#);
//! assert_eq!(selector.id().as_str(), "s:qXLzEU6MUUmbEoLW2UgG-emvNDY3HO_0sWTEyg");
//! # Ok::<(), tortie_selector::ParseError>(())
//! ```
//!
//! # The language
//!
//! | expression | holds if |
//! |---|---|
//! | `all()`, or nothing at all | always |
//! | `global()` | always; in a namespace selector it means objects without a namespace |
//! | `has(l)` | label `l` is present |
//! | `l == 'v'` | `l` is present and has value `v` |
//! | `l != 'v'` | `l` is absent or has another value |
//! | `l in {'v', 'w'}` | `l` is present and has one of the values |
//! | `l not in {'v', 'w'}` | `l` is absent or has none of the values |
//! | `l contains 'v'`, `l starts with 'v'`, `l ends with 'v'` | `l` is present and its value has that part |
//! | `!x`, `x && y`, `x \|\| y`, `(x)` | not, and, or, grouping; `!` binds tightest, `\|\|` loosest |
//!
//! Labels are 1 to 512 of `A–Z a–z 0–9 _ . / -`. Strings are quoted by `"` or `'` and have no
//! escapes. Only spaces and tabs separate words.
//!
//! Syntax, canonical form and ids are exactly those of Calico (`libcalico-go/lib/selector`),
//! because the ids become part of IP set names. Two limits are stricter: more than [`MAX_DEPTH`]
//! nested operators, and more than [`MAX_TERMS`] conditions and values, are errors. One oddity is
//! kept: the canonical form of `!(!has(a))` is `!!has(a)`, which is parsed as `has(a)`. So a
//! selector with a negation directly inside another, and its canonical form, have the same meaning
//! but different ids.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod error;
mod expr;
mod facts;
mod id;
mod labels;
mod parse;
mod selector;
mod text;
mod token;

pub use error::{Found, ParseError, ParseErrorKind};
pub use expr::{Expr, ExprError, Label, MAX_DEPTH, MAX_LABEL_LENGTH, MAX_TERMS, ValueSet};
pub use facts::{Facts, LabelFacts};
pub use id::{SelectorId, unique_id};
pub use labels::LabelSource;
pub use selector::Selector;
