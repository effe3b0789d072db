//! Problems of a document.

use std::fmt;

use crate::Position;
use crate::echo::{ECHO, cut, echoes_cut};

/// Severity of a [`FieldProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The object is used nevertheless.
    Warning,
    /// The object is not used as written.
    Error,
}

impl fmt::Display for Severity {
    /// Writes `warning` or `error`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Valid but unusual input, reported on demand ([`Options::lints`](crate::manifest::Options)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lint {
    /// A network has bits set behind its prefix, as `10.0.0.1/8`.
    HostBits,
    /// A namespaced object names no namespace, and so belongs to `default`.
    NamespaceOmitted,
    /// A value looks like a template placeholder, such as `{{ .Values.name }}` or `${NAME}`.
    Template,
    /// The `apiVersion` is deprecated for users.
    DeprecatedVersion,
    /// The object is of a kind for other programs. Always reported.
    UnusedKind,
}

/// Problem of one field of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldProblem {
    /// Its severity.
    pub severity: Severity,
    /// Position of the field in its file.
    pub position: Position,
    /// Number of affected characters from there; 0 if unknown.
    pub length: u32,
    /// Path of the field, such as `spec.ingress[0].source.nets[1]`; empty for the object as a
    /// whole.
    pub field: String,
    /// Description, worded to follow the path.
    pub message: String,
    /// The lint, if the problem is one.
    pub lint: Option<Lint>,
}

impl FieldProblem {
    /// Returns a problem of the field at this path, which is empty for an object as a whole.
    pub fn new(severity: Severity, position: Position, field: impl Into<String>, message: impl Into<String>) -> Self {
        let message = echoes_cut(&message.into()).into_owned();
        let field = cut(&field.into(), ECHO).into_owned();
        Self { severity, position, length: 0, field, message, lint: None }
    }
}

impl std::error::Error for FieldProblem {}

impl fmt::Display for FieldProblem {
    /// Writes `field: message`, or `message` alone for an object as a whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.field, self.message) }
    }
}
