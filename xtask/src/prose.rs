//! The language of the repository: phrases, lengths of sentences and of lines, summaries of
//! commands, subjects of commits.
//!
//! A rule that the repository does not keep everywhere yet has the number of its places as a
//! limit, which can only go down.

mod commits;
mod help;
mod imperative;
mod measures;
mod rules;
mod text;
mod texts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use xtask::files::read;

use crate::shell::root;
use crate::tidy::list;

use help::Commands;
use measures::{Finding, Phrases};
use rules::{COMMIT, EXCEPTIONS, Exception, HELP, Limit, RULES, Rule};

/// Folders without prose of this repository, from its root.
const SKIPPED: &[&str] = &["fuzz/artifacts", "fuzz/corpus", "target", "testdata", "xtask/public-api"];

/// Folders with settings or scripts whose names begin with a dot.
const SETTINGS: &[&str] = &[".cargo", ".ci", ".config"];

/// A place that breaks a rule.
struct Violation {
    /// The path from the root and the line, or the hash of a commit.
    at: String,
    rule: &'static str,
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.at, self.rule, self.text)
    }
}

/// The places of each rule but for exceptions, and the number of words.
#[derive(Default)]
struct Survey {
    violations: BTreeMap<&'static str, Vec<Violation>>,
    /// The indices of exceptions that hold for some place.
    used: BTreeSet<usize>,
    words: usize,
}

/// Checks all rules.
pub(crate) fn check(wrong: &mut Vec<String>) -> Result<(), String> {
    let survey = Survey::of(&root())?;
    RULES.iter().for_each(|rule| survey.check_limit(rule, wrong));
    let unused = EXCEPTIONS.iter().enumerate().filter(|(index, _)| !survey.used.contains(index));
    wrong.extend(unused.map(|(_, Exception { rule, file, text, reason })| {
        format!("{file}: {rule}: no place has `{text}`; remove the exception ({reason}) in xtask/src/prose/rules.rs")
    }));
    Ok(())
}

/// Prints the places of a rule, or the number of places of all rules.
pub(crate) fn print(rule: Option<&str>) -> Result<(), String> {
    let survey = Survey::of(&root())?;
    let Some(name) = rule else {
        RULES.iter().for_each(|rule| println!("{}", survey.summary(rule)));
        return Ok(());
    };
    let rule = RULES.iter().find(|rule| rule.name == name).ok_or_else(|| {
        let names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        format!("there is no rule `{name}`; there are {}", names.join(", "))
    })?;
    survey.violations(rule).iter().for_each(|violation| println!("{violation}"));
    Ok(())
}

impl Survey {
    fn of(root: &Path) -> Result<Self, String> {
        let (mut survey, phrases, mut commands) = (Self::default(), Phrases::compile(), Commands::default());
        for path in documents(root)? {
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let content = read(&path)?;
            survey.add(&file, &content, &phrases)?;
            if file.ends_with(".rs") {
                commands.add(&file, &content)?;
            }
        }
        for summary in commands.violations() {
            survey.push(&summary.file, Finding { rule: HELP, line: summary.line, text: summary.text.clone() });
        }
        for commit in commits::violations(root)? {
            let violation = Violation { at: commit.hash, rule: COMMIT, text: commit.subject };
            survey.violations.entry(COMMIT).or_default().push(violation);
        }
        Ok(survey)
    }

    /// Adds the prose of a file.
    fn add(&mut self, file: &str, content: &str, phrases: &Phrases) -> Result<(), String> {
        let mut findings = Vec::new();
        if file.ends_with(".rs") {
            let texts = texts::of_code(content).map_err(|error| format!("{file}: {error}"))?;
            measures::lines(&texts, phrases, &mut findings);
            self.words += measures::lines(&text::of_rust(content), phrases, &mut findings);
        } else if !file.ends_with(".md") {
            measures::lines(&texts::of_settings(content), phrases, &mut findings);
        } else {
            let passages = text::of_markdown(content);
            self.words += measures::lines(&passages, phrases, &mut findings);
            measures::sentences(&passages, &mut findings);
        }
        findings.into_iter().for_each(|finding| self.push(file, finding));
        Ok(())
    }

    fn push(&mut self, file: &str, Finding { rule, line, text }: Finding) {
        let holds =
            |exception: &Exception| exception.rule == rule && exception.file == file && text.contains(exception.text);
        if let Some(index) = EXCEPTIONS.iter().position(holds) {
            self.used.insert(index);
            return;
        }
        self.violations.entry(rule).or_default().push(Violation { at: format!("{file}:{line}"), rule, text });
    }

    fn violations(&self, rule: &Rule) -> &[Violation] {
        self.violations.get(rule.name).map_or(&[], Vec::as_slice)
    }

    /// The number of places for each thousand words.
    fn rate(&self, rule: &Rule) -> f64 {
        1000.0 * self.violations(rule).len() as f64 / self.words.max(1) as f64
    }

    /// Adds the places of a rule that exceeds its limit.
    fn check_limit(&self, rule: &Rule, wrong: &mut Vec<String>) {
        let violations = self.violations(rule);
        let is_over = match rule.limit {
            Limit::None => !violations.is_empty(),
            Limit::PerThousandWords(limit) => self.rate(rule) > limit,
            Limit::Advice => false,
        };
        if is_over {
            if rule.limit == Limit::None {
                wrong.extend(violations.iter().map(Violation::to_string));
            }
            let name = rule.name;
            wrong.push(format!("{}; `cargo xtask tidy --list {name}` prints the places", self.summary(rule)));
        }
    }

    fn summary(&self, rule: &Rule) -> String {
        let Rule { name, limit, advice, wrong, right, .. } = rule;
        let count = self.violations(rule).len();
        let count = match limit {
            Limit::None => format!("{count} places"),
            Limit::PerThousandWords(limit) => format!("{:.1} per 1,000 words, at most {limit}", self.rate(rule)),
            Limit::Advice => format!("{count} places, for advice"),
        };
        format!("{name}: {count}: {advice} (not \"{wrong}\" but \"{right}\")")
    }
}

/// The Rust sources, Markdown documents, settings and scripts of the repository, without generated
/// ones, in order.
fn documents(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut documents = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in list(&folder)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let is_skipped = || SKIPPED.iter().any(|skipped| path == root.join(skipped));
            if !path.is_dir() {
                let has_prose = [".rs", ".md", ".toml", ".sh"].iter().any(|end| name.ends_with(end));
                documents.extend((has_prose || path == root.join(".ci/run")).then_some(path));
            } else if (!name.starts_with('.') || SETTINGS.contains(&&*name)) && name != "generated" && !is_skipped() {
                folders.push(path);
            }
        }
    }
    documents.sort();
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::rules::Finds;
    use super::*;

    fn wrong(limit: Limit) -> Vec<String> {
        let mut survey = Survey::default();
        survey.add("a.md", "Nobody asks.\n\nSomebody asks.", &Phrases::compile()).unwrap();
        let rule = Rule { name: "actor", finds: Finds::Measure, limit, advice: "name it", wrong: "a", right: "b" };
        let mut wrong = Vec::new();
        survey.check_limit(&rule, &mut wrong);
        wrong
    }

    #[test]
    fn more_violations_than_the_limit_are_reported() {
        let none: [&str; 0] = [];
        assert_eq!(wrong(Limit::PerThousandWords(500.0)), none);
        assert_eq!(wrong(Limit::Advice), none);
        let end = "name it (not \"a\" but \"b\"); `cargo xtask tidy --list actor` prints the places";
        assert_eq!(
            wrong(Limit::PerThousandWords(499.0)),
            [format!("actor: 500.0 per 1,000 words, at most 499: {end}")]
        );
    }

    #[test]
    fn a_rule_without_a_limit_lists_each_violation() {
        let wrong = wrong(Limit::None);
        assert_eq!(wrong[..2], ["a.md:1: actor: Nobody asks.", "a.md:3: actor: Somebody asks."]);
        assert_eq!(wrong.len(), 3);
    }

    #[test]
    fn exceptions_are_no_violations() {
        let mut survey = Survey::default();
        for file in ["crates/ebpf/src/hooks/kernel.rs", "crates/ebpf/src/hooks/mod.rs"] {
            survey.add(file, "// In the original direction.", &Phrases::compile()).unwrap();
        }
        let violations: Vec<&str> = survey.violations["original"].iter().map(|violation| &*violation.at).collect();
        assert_eq!(violations, ["crates/ebpf/src/hooks/mod.rs:1"]);
        assert_eq!(survey.used.len(), 1);
    }
}
