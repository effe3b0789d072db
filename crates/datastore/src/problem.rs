//! Problems with their place in the datastore.

use std::fmt;
use std::path::PathBuf;

use tortie_resources::{FieldProblem, Position, Severity};

/// What is in force where a resource cannot be used as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// The resource is used as it is; the problem is a warning.
    NotNeeded,
    /// The last version that was good.
    LastGood,
    /// A policy that denies what the resource selects.
    Denied,
    /// Nothing: what the resource was meant to do is unknown.
    Nothing,
    /// The same, and all endpoints that it may have been meant for are kept closed.
    Closed,
    /// The same, and what is in force is what was in force before the resource turned up.
    Tolerated,
}

impl Fallback {
    /// What to put in force for an object whose newest version cannot be used: the last good version if there was one, or
    /// else what denies in its stead, if there is such (`denies`), or else what is in force (`before`; `None` if nothing is
    /// known of the object). A denial gives way to a newer one, which may select something else, but to nothing less.
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

/// Something wrong with what a source reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputProblem {
    /// The file, below the directory's path as given; `None` if the source has no files.
    pub file: Option<PathBuf>,
    /// The resource: kind, namespace and name as far as they are known; empty for the file as a whole.
    pub subject: String,
    /// What is wrong, and where in the file.
    pub problem: FieldProblem,
    /// What is in force instead.
    pub fallback: Fallback,
}

impl InputProblem {
    /// A problem of a resource, or of the source as a whole if `subject` is empty.
    pub fn new(subject: impl Into<String>, problem: FieldProblem, fallback: Fallback) -> Self {
        Self { file: None, subject: subject.into(), problem, fallback }
    }

    /// The same in a file.
    #[must_use]
    pub fn in_file(self, file: impl Into<PathBuf>) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    pub(crate) fn of_file(file: PathBuf, position: Position, what: String, fallback: Fallback) -> Self {
        Self::new("", FieldProblem::new(Severity::Error, position, "", what), fallback).in_file(file)
    }
}

impl std::error::Error for InputProblem {}

impl fmt::Display for InputProblem {
    /// `file:line:column: kind/name: field.path: what`; parts that are unknown are left out.
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
