//! Problems with their place in the datastore.

use std::fmt;
use std::path::PathBuf;

use tortie_resources::{FieldProblem, Position, Severity};

/// State in force when a resource cannot be used as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// The resource is used as it is; the problem is a warning.
    NotNeeded,
    /// The last valid version.
    LastGood,
    /// A policy that denies the endpoints that the resource selects.
    Denied,
    /// Nothing: the intended effect of the resource is unknown.
    Nothing,
    /// Nothing of the resource; all endpoints that it may apply to are closed.
    Closed,
    /// Nothing of the resource; the state from before it appeared stays in force.
    Tolerated,
}

impl Fallback {
    /// Returns the fallback of an object whose newest version is unusable: the last valid version
    /// if there was one; otherwise a denial, if one is possible (`denies`); otherwise the current
    /// fallback (`before`; `None` for an unknown object). A denial is replaced by a newer one,
    /// which may select other endpoints, but never by less.
    #[must_use]
    pub fn of_unusable(before: Option<Self>, denies: bool) -> Self {
        match before {
            Some(Self::NotNeeded | Self::LastGood) => Self::LastGood,
            _ if denies => Self::Denied,
            Some(earlier) => earlier,
            None => Self::Nothing,
        }
    }
}

/// Problem in the input of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputProblem {
    /// The file, below the directory's path as given; `None` if the source has no files.
    pub file: Option<PathBuf>,
    /// The resource: kind, namespace and name as far as they are known; empty for the file as a
    /// whole.
    pub subject: String,
    /// The problem and its position in the file.
    pub problem: FieldProblem,
    /// State in force instead.
    pub fallback: Fallback,
}

impl InputProblem {
    /// Returns a problem of a resource, or of the source as a whole if `subject` is empty.
    pub fn new(subject: impl Into<String>, problem: FieldProblem, fallback: Fallback) -> Self {
        Self { file: None, subject: subject.into(), problem, fallback }
    }

    /// Sets the file.
    #[must_use]
    pub fn in_file(self, file: impl Into<PathBuf>) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    pub(crate) fn of_file(file: PathBuf, position: Position, message: String, fallback: Fallback) -> Self {
        Self::new("", FieldProblem::new(Severity::Error, position, "", message), fallback).in_file(file)
    }
}

impl std::error::Error for InputProblem {}

impl fmt::Display for InputProblem {
    /// `file:line:column: kind/name: field.path: message`; parts that are unknown are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if self.problem.position != Position::default() {
                write!(f, "{}:", self.problem.position)?;
            }
            f.write_str(" ")?;
        }
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        write!(f, "{}", self.problem)
    }
}
