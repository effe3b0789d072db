use tortie_resources::{FieldProblem, Position};

use super::*;
use tortie_telemetry::logging::capture;

fn problem(line: u32, subject: &str, field: &str, message: &str) -> InputProblem {
    let position = Position { line, column: 3 };
    let problem = FieldProblem::new(Severity::Error, position, field, message);
    InputProblem::new(subject, problem, Fallback::LastGood).in_file("a.yaml")
}

#[test]
fn a_problem_is_logged_once_regardless_of_its_line_and_numbers() {
    let (lines, _guard) = capture();
    let mut problems = InputProblems::default();
    for n in 1..20 {
        problems.replace(&[problem(n, "Pod/a/b", "spec.x", &format!("has {n} too many"))]);
    }
    assert_eq!(lines.containing("spec.x").len(), 1, "{lines:?}");
    // The reported text is the current one.
    assert_eq!(problems.first().unwrap(), "a.yaml:19:3: Pod/a/b: spec.x: has 19 too many");
    problems.replace(&[problem(1, "Pod/a/b", "spec.y", "is wrong")]);
    assert_eq!(
        lines.containing("problem in the input resolved problem=a.yaml:19:3: Pod/a/b: spec.x").len(),
        1,
        "{lines:?}"
    );
    assert_eq!(lines.containing("spec.y").len(), 1);
    problems.replace(&[]);
    assert_eq!((lines.containing("resolved").len(), problems.len()), (2, 0));
    assert!(problems.first().is_none());
}

#[test]
fn two_problems_of_a_field_are_two() {
    let (lines, _guard) = capture();
    let mut problems = InputProblems::default();
    problems.replace(&[problem(1, "Pod/a/b", "", "one"), problem(1, "Pod/a/b", "", "another")]);
    problems.replace(&[problem(1, "Pod/a/b", "", "one")]);
    assert_eq!(lines.containing("Pod/a/b").len(), 3, "{lines:?}");
    assert_eq!(lines.containing("problem in the input resolved problem=a.yaml:1:3: Pod/a/b: another").len(), 1);
}

#[test]
fn many_at_once_are_counted() {
    let (lines, _guard) = capture();
    let mut problems = InputProblems::default();
    let pods = (0..200).map(|n| problem(1, &format!("Pod/a/{n}"), "spec.x", "is wrong"));
    problems.replace(&pods.collect::<Vec<_>>());
    assert_eq!(lines.containing("spec.x").len(), MAX_LOGGED);
    assert_eq!(lines.containing("more=150").len(), 1, "{lines:?}");
    problems.replace(&[]);
    assert_eq!(lines.containing("resolved").len(), MAX_LOGGED + 1);
}
