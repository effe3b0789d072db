//! What is wrong with a document.

use std::fmt;

use crate::Position;
use crate::echo::{ECHO, cut, echoes_cut};

/// How bad a [`FieldProblem`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The object is used nevertheless.
    Warning,
    /// The object is not used as written.
    Error,
}

impl fmt::Display for Severity {
    /// `warning` or `error`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something that is valid and that few people mean, told on demand ([`Options::lints`](crate::manifest::Options)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lint {
    /// A network has bits set behind its prefix, as `10.0.0.1/8`.
    HostBits,
    /// An object of a kind that belongs to namespaces names none, and so belongs to `default`.
    NamespaceOmitted,
    /// A value looks like the placeholder of a template, as `{{ .Values.name }}` or `${NAME}`.
    Template,
    /// The `apiVersion` is one that people should not write any more.
    DeprecatedVersion,
}

/// Something wrong with one field of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldProblem {
    /// How bad it is.
    pub severity: Severity,
    /// Where the field stands in its file.
    pub position: Position,
    /// How many characters from there on it concerns; 0 if that is not known.
    pub length: u32,
    /// The path of the field, such as `spec.ingress[0].source.nets[1]`; empty for the object as a whole.
    pub field: String,
    /// What is wrong, worded to follow the path.
    pub what: String,
    /// Which habit it is that a warning advises against, if it is one.
    pub lint: Option<Lint>,
}

impl FieldProblem {
    /// What is wrong with the field of this path, which is empty for an object as a whole.
    pub fn new(severity: Severity, position: Position, field: impl Into<String>, what: impl Into<String>) -> Self {
        let what = echoes_cut(&what.into()).into_owned();
        let field = cut(&field.into(), ECHO).into_owned();
        Self { severity, position, length: 0, field, what, lint: None }
    }
}

impl std::error::Error for FieldProblem {}

impl fmt::Display for FieldProblem {
    /// `field: what`, or `what` alone for an object as a whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.field, self.what) }
    }
}
