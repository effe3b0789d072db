//! What is wrong with a document.

use std::fmt;

use crate::Position;

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

/// Something wrong with one field of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldProblem {
    /// How bad it is.
    pub severity: Severity,
    /// Where the field stands in its file.
    pub position: Position,
    /// The path of the field, such as `spec.ingress[0].source.nets[1]`; empty for the object as a whole.
    pub field: String,
    /// What is wrong, worded to follow the path.
    pub what: String,
}

impl FieldProblem {
    /// What is wrong with the field of this path, which is empty for an object as a whole.
    pub fn new(severity: Severity, position: Position, field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { severity, position, field: field.into(), what: what.into() }
    }
}

impl std::error::Error for FieldProblem {}

impl fmt::Display for FieldProblem {
    /// `field: what`, or `what` alone for an object as a whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.field, self.what) }
    }
}
