//! Problems of one object, in a list of bounded length.

use crate::{FieldProblem, Position, Severity};

/// Bound of the problems of one object that are listed.
const MAX_LISTED: usize = 100;

/// Problems of one object.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    listed: Vec<FieldProblem>,
    /// Number of reports, listed or not.
    reports: usize,
    /// Highest severity of the reports that are not listed.
    unlisted: Option<Severity>,
}

impl Problems {
    /// Lists a problem once: a field may be read for two purposes. The first error is always
    /// listed.
    pub(crate) fn push(&mut self, problem: FieldProblem) {
        if self.omit(problem.severity) {
            return;
        }
        self.reports += 1;
        if !self.listed.contains(&problem) {
            self.listed.push(problem);
        }
    }

    /// Returns whether a problem is only counted, so that its text is not needed.
    pub(crate) fn omit(&mut self, severity: Severity) -> bool {
        let is_full = self.listed.len() >= MAX_LISTED && (severity == Severity::Warning || self.has_errors());
        if is_full {
            self.reports += 1;
            self.unlisted = self.unlisted.max(Some(severity));
        }
        is_full
    }

    /// Adds the errors of a second reading of the object. Of two errors of a field the first is
    /// listed, and an error takes the place of a warning.
    pub(crate) fn add_errors(&mut self, mut other: Self) {
        other.keep_errors();
        let has_error = |field: &str, listed: &[FieldProblem]| {
            listed.iter().any(|known| known.severity == Severity::Error && known.field == field)
        };
        other.listed.retain(|new| !has_error(&new.field, &self.listed));
        self.listed.retain(|known| !has_error(&known.field, &other.listed));
        self.append(other);
    }

    /// Adds the problems of another part of the object.
    pub(crate) fn append(&mut self, other: Self) {
        other.listed.into_iter().for_each(|problem| self.push(problem));
        self.unlisted = self.unlisted.max(other.unlisted);
    }

    /// Returns whether a problem makes the object invalid.
    pub(crate) fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    /// Returns the listed problems that make the object invalid.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &FieldProblem> {
        self.listed.iter().filter(|problem| problem.severity == Severity::Error)
    }

    /// Returns the number of reports so far.
    pub(crate) fn reports(&self) -> usize {
        self.reports
    }

    /// Turns all problems into warnings.
    pub(crate) fn tolerated(mut self) -> Self {
        self.listed.iter_mut().for_each(|problem| problem.severity = Severity::Warning);
        Self { unlisted: self.unlisted.map(|_| Severity::Warning), ..self }
    }

    /// Removes the warnings.
    pub(crate) fn keep_errors(&mut self) {
        self.listed.retain(|problem| problem.severity == Severity::Error);
        self.unlisted = self.unlisted.filter(|severity| *severity == Severity::Error);
    }

    /// Returns the problems, with one more if some are not listed.
    pub(crate) fn into_list(self) -> Vec<FieldProblem> {
        let mut list = self.listed;
        list.extend(self.unlisted.map(|severity| {
            let message = format!("has more problems than the {MAX_LISTED} that are listed");
            FieldProblem::new(severity, Position::default(), String::new(), message)
        }));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(severity: Severity, line: u32) -> FieldProblem {
        FieldProblem::new(severity, Position { line, column: 1 }, "spec", "is wrong")
    }

    #[test]
    fn an_error_behind_many_warnings_is_listed() {
        let mut problems = Problems::default();
        (0..1000).for_each(|line| problems.push(problem(Severity::Warning, line)));
        assert!(!problems.has_errors());
        problems.push(problem(Severity::Error, 7));
        assert!(problems.has_errors());
        let list = problems.into_list();
        assert_eq!(list.len(), MAX_LISTED + 2);
        assert_eq!(list[MAX_LISTED], problem(Severity::Error, 7));
        assert_eq!(list[MAX_LISTED + 1].to_string(), "has more problems than the 100 that are listed");
    }

    #[test]
    fn a_repeated_problem_is_listed_once() {
        let mut problems = Problems::default();
        (0..3).for_each(|_| problems.push(problem(Severity::Error, 1)));
        assert_eq!((problems.reports(), problems.into_list().len()), (3, 1));
    }
}
