//! Subjects of commits.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::output;

use super::imperative::is_imperative;

/// No subject has more characters.
const MAX_SUBJECT: usize = 72;

/// The number of commits that are checked where no upstream branch bounds the change.
const LATEST: &str = "-30";

/// A commit whose subject breaks the rule.
#[derive(Debug, PartialEq)]
pub(super) struct Commit {
    pub(super) hash: String,
    pub(super) subject: String,
}

/// Finds the wrong subjects among the commits since the merge base with the upstream branch, or
/// among the latest ones. Without a repository, such as in an archive of the source, prints a line
/// and finds none.
pub(super) fn violations(folder: &Path) -> Result<Vec<Commit>, String> {
    // An archive may be unpacked within another repository.
    if !folder.join(".git").exists() {
        println!("subjects of commits skipped: {} is no repository", folder.display());
        return Ok(Vec::new());
    }
    let commits = log(folder)?;
    let commits = commits.lines().filter_map(|line| line.split_once('\t')).filter(|(_, subject)| !is_subject(subject));
    Ok(commits.map(|(hash, subject)| Commit { hash: hash.to_owned(), subject: subject.to_owned() }).collect())
}

/// A line for each commit: its hash and its subject.
fn log(folder: &Path) -> Result<String, String> {
    let log = |range| {
        let mut git = git(folder);
        git.args(["log", "--no-merges", "--format=%h%x09%s", range, "--"]);
        git
    };
    // A branch without upstream is an error of git.
    let change = log("@{upstream}..").stderr(Stdio::null()).output();
    match change {
        Ok(change) if change.status.success() && !change.stdout.is_empty() => {
            Ok(String::from_utf8_lossy(&change.stdout).into_owned())
        }
        // The branch is the upstream one, as in a fresh clone.
        Ok(change) if change.status.success() => output(&mut log("-1")),
        _ => output(&mut log(LATEST)),
    }
}

/// Git on this repository, also where it runs a hook of another one.
fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE").current_dir(folder);
    git
}

/// Whether a subject has the form `area: imperative`, with one area or several.
fn is_subject(subject: &str) -> bool {
    let is_area = |area: &str| {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        !area.is_empty() && area.chars().all(is_part)
    };
    let parts = subject.split_once(": ");
    let has_form = parts.is_some_and(|(areas, imperative)| areas.split(", ").all(is_area) && is_imperative(imperative));
    (has_form && subject.chars().count() <= MAX_SUBJECT) || subject.starts_with("Revert \"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_an_area_and_an_imperative() {
        for subject in
            ["nftables: list base chains once", "calc, xtask: read `Felix` once", "README.md: name the crates"]
        {
            assert!(is_subject(subject), "{subject}");
        }
        let long = format!("calc: {}", "read ".repeat(14));
        for subject in
            ["list base chains", "Two words: list chains", "calc: lists chains", "calc: the chains", "calc:", &long]
        {
            assert!(!is_subject(subject), "{subject}");
        }
    }

    fn run(folder: &Path, args: &[&str]) {
        let mut git = git(folder);
        git.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        output(git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(args)).unwrap();
    }

    #[test]
    fn commits_behind_the_upstream_branch_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let commit = |subject| run(folder, &["commit", "--quiet", "--allow-empty", "--message", subject]);
        let subjects = || violations(folder).unwrap().into_iter().map(|commit| commit.subject).collect::<Vec<_>>();
        assert_eq!(subjects(), [""; 0], "no repository");
        run(folder, &["init", "--quiet", "--initial-branch", "main"]);
        commit("old work");
        commit("calc: read once");
        assert_eq!(subjects(), ["old work"]);
        run(folder, &["checkout", "--quiet", "-b", "change", "--track", "main"]);
        assert_eq!(subjects(), [""; 0], "the latest commit is right");
        commit("new work");
        assert_eq!(subjects(), ["new work"]);
        commit("Revert \"new work\"");
        assert_eq!(subjects(), ["new work"]);
    }

    #[test]
    fn a_repository_that_git_rejects_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        assert!(violations(folder.path()).unwrap_err().starts_with("git log"));
    }
}
