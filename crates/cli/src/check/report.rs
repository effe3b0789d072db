use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use tortie_resources::{Position, Severity, manifest};

use super::super::github;
use super::ReportedProblem;
use super::input::Input;

/// `12 Deployments skipped`, if objects are for other programs, and `2 errors, 1 warning in 3
/// files`.
pub(super) fn summary(skipped: &[ReportedProblem], found: &[ReportedProblem], input: &Input) -> String {
    let kinds = skipped.iter().filter_map(|object| object.problem.subject.split('/').next());
    let skipped = manifest::skipped(kinds).map(|line| line + "\n").unwrap_or_default();
    skipped + &counts(found, input)
}

fn counts(found: &[ReportedProblem], input: &Input) -> String {
    let count = |severity| found.iter().filter(|found| found.severity == severity).count();
    let named = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let files = input.datastore.clone().unwrap_or_else(|| named(input.texts.len(), "file"));
    match (errors, warnings) {
        (0, 0) => format!("no problems in {files}\n"),
        (0, _) => format!("{} in {files}\n", named(warnings, "warning")),
        (_, 0) => format!("{} in {files}\n", named(errors, "error")),
        _ => format!("{}, {} in {files}\n", named(errors, "error"), named(warnings, "warning")),
    }
}

/// Returns a list of objects with `severity`, `file`, `line`, `column`, `length` in characters,
/// `resource`, `field`, `message` and `lint`. A value that is unknown or does not exist is null.
pub(super) fn json(found: &[ReportedProblem]) -> String {
    let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let all: Vec<Value> = found
        .iter()
        .map(|found| {
            let problem = &found.problem.problem;
            let place = place(found);
            json!({
                "severity": found.severity.to_string(),
                "file": found.problem.file.as_ref().map(|file| file.display().to_string()),
                "line": place.map(|place| place.line),
                "column": place.map(|place| place.column),
                "length": place.map(|_| problem.length).filter(|length| *length > 0),
                "resource": known(&found.problem.subject),
                "field": known(&problem.field),
                "message": problem.message,
                "lint": found.lint.map(|lint| lint.to_string()),
            })
        })
        .collect();
    format!("{:#}\n", Value::from(all))
}

pub(super) fn github(found: &[ReportedProblem]) -> String {
    let annotation = |found: &ReportedProblem| {
        let file = found.problem.file.as_ref().map(|file| file.display().to_string());
        let place = file.map(|file| (file, found.problem.problem.position.line, found.problem.problem.position.column));
        github::line(&found.severity.to_string(), place, &message(found))
    };
    found.iter().map(annotation).collect()
}

/// SARIF 2.1.0 (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>), with one run.
pub(super) fn sarif(found: &[ReportedProblem]) -> String {
    let rules: BTreeSet<String> = found.iter().map(rule).collect();
    let results: Vec<Value> = found.iter().map(result).collect();
    let whole = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "columnKind": "unicodeCodePoints",
            "tool": {"driver": {
                "name": "tortie",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.iter().map(|id| json!({"id": id})).collect::<Vec<_>>(),
            }},
            "results": results,
        }],
    });
    format!("{whole:#}\n")
}

fn rule(found: &ReportedProblem) -> String {
    found.lint.map_or_else(|| "invalid".to_owned(), |lint| lint.to_string())
}

fn result(found: &ReportedProblem) -> Value {
    let region = place(found).map(|Position { line, column }| {
        let end = column.saturating_add(found.problem.problem.length.max(1));
        json!({"startLine": line, "startColumn": column, "endColumn": end})
    });
    let location = |file: &PathBuf| {
        let artifact = json!({"uri": file.display().to_string()});
        json!({"physicalLocation": match &region {
            Some(region) => json!({"artifactLocation": artifact, "region": region}),
            None => json!({"artifactLocation": artifact}),
        }})
    };
    let locations: Vec<Value> = found.problem.file.iter().map(location).collect();
    json!({
        "ruleId": rule(found),
        "level": found.severity.to_string(),
        "message": {"text": message(found)},
        "locations": locations,
    })
}

fn place(found: &ReportedProblem) -> Option<Position> {
    Some(found.problem.problem.position).filter(|place| *place != Position::default())
}

fn message(found: &ReportedProblem) -> String {
    let subject = &found.problem.subject;
    if subject.is_empty() { found.problem.problem.to_string() } else { format!("{subject}: {}", found.problem.problem) }
}
