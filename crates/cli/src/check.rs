mod cluster;
mod domains;
mod excerpt;
mod host_endpoints;
mod input;
mod lines;
mod lint;
mod report;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use tortie_datastore::InputProblem;
use tortie_resources::{Position, Severity, echoes_cut};

use super::Failure;
use super::cluster::ClusterArgs;
use super::color::ColorChoice;
use super::datastore::AccessArgs;
use super::datastore_url::DatastoreUrl;
use super::progress::Progress;
use excerpt::Excerpts;
use input::Input;
use lines::Lines;
pub use lint::Lint;
use tortie_telemetry::escape;

/// Validate manifests.
///
/// Reads every .yaml, .yml and .json file below the given paths as `run` would, and standard input
/// for `-`. Prints each problem on standard error as `file:line:column: kind/name: field.path:
/// message`, with the line of the file. Also warns of valid objects that are probably mistakes;
/// each warning has a name in brackets, and --allow NAME suppresses it. Exits with 1 if there are
/// errors; warnings leave the exit code at 0. Objects for other programs are counted by kind. With
/// --datastore, validates the objects that a cluster has; the place of a problem is the resource.
///
/// Looks for policies that select nothing or have no effect only if there are endpoints among the
/// manifests.
///
/// Examples: tortie check examples/demo
///           tortie check --datastore etcd://127.0.0.1:2379
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Directories and files; `-` is standard input.
    #[arg(required_unless_present = "datastore", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Datastore to validate: etcd://HOST[:PORT],... or kubernetes:[KUBECONFIG]
    #[arg(long, value_name = "URL", conflicts_with = "paths")]
    datastore: Option<DatastoreUrl>,
    /// Seconds of retries while the datastore cannot be read.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "datastore")]
    timeout: u64,
    #[command(flatten)]
    access: AccessArgs,
    /// Treat warnings as errors.
    #[arg(long)]
    strict: bool,
    /// Suppress these warnings.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    allow: Vec<Lint>,
    /// Output format; all but `text` print to standard output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Use of colours.
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,
}

/// Output format of problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Text for people.
    #[default]
    Text,
    /// A JSON list.
    Json,
    /// Annotations of a pull request, for GitHub's workflows.
    Github,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
}

#[derive(Debug)]
struct ReportedProblem {
    problem: InputProblem,
    severity: Severity,
    lint: Option<Lint>,
}

impl ReportedProblem {
    /// Reports whether the object is for other programs, and no mistake.
    fn is_skipped(&self) -> bool {
        self.lint == Some(Lint::UnusedKind)
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let progress = Progress::begin("reading objects");
    let input = match &args.datastore {
        None => Input::read(&args.paths, args.access.reach())?,
        Some(DatastoreUrl::Directory(root)) => Input::read(std::slice::from_ref(root), args.access.reach())?,
        Some(url) => Input::of_datastore(&ClusterArgs::at(url.clone(), args.access.clone(), None, args.timeout))?,
    };
    progress.step("looking for probable mistakes");
    let found = find(&input, &args.allow, args.strict)?;
    let (skipped, found): (Vec<_>, Vec<_>) = found.into_iter().partition(ReportedProblem::is_skipped);
    progress.end();
    match args.output {
        Output::Text => {
            let lines = Lines::of(&input.texts);
            let in_color = args.color.wanted(io::stderr().is_terminal());
            let excerpts = Excerpts::new(&lines, in_color);
            let mut text = String::new();
            for found in &found {
                text += &format!("{}\n{}", escape::line(&echoes_cut(&line(found))), excerpts.of(&found.problem));
            }
            text += &report::summary(&skipped, &found, &input);
            // The renderer of excerpts replaces ESC in the texts of users, and adds its own.
            if in_color {
                let _ = io::stderr().write_all(escape::coloured(&text).as_bytes());
            } else {
                eprint!("{text}");
            }
        }
        Output::Json => print(&report::json(&found))?,
        Output::Github => print(&report::github(&found))?,
        Output::Sarif => print(&report::sarif(&found))?,
    }
    if found.iter().any(|found| found.severity == Severity::Error) { Err(Failure::Reported(1)) } else { Ok(()) }
}

fn print(text: &str) -> Result<(), Failure> {
    super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
}

/// Returns the problems that `run` reports, and warnings that are not allowed by name.
fn find(input: &Input, allowed: &[Lint], strict: bool) -> Result<Vec<ReportedProblem>, Failure> {
    let mut found: Vec<(Option<Lint>, InputProblem)> = Vec::new();
    let lines = Lines::of(&input.texts);
    for problem in &input.problems {
        found.push((problem.problem.lint.map(Lint::from), with_template(problem.clone(), &lines)));
    }
    // The substitute for an invalid object of a datastore is at the version of that object.
    let is_invalid = |subject: &str| {
        let mut errors = input.problems.iter().filter(|known| known.problem.severity == Severity::Error);
        input.datastore.is_some() && errors.any(|known| known.subject == subject)
    };
    let lints = cluster::lints(input)?.into_iter().filter(|(_, problem)| !is_invalid(&problem.subject));
    found.extend(lints.map(|(lint, problem)| (Some(lint), problem)));
    found.extend(cluster::contested(input).into_iter().map(|problem| (None, problem)));
    let wanted = found.into_iter().filter(|(lint, _)| lint.is_none_or(|lint| !allowed.contains(&lint)));
    let problems = wanted.map(|(lint, problem)| {
        let severity = if strict { Severity::Error } else { problem.problem.severity };
        ReportedProblem { problem, severity, lint }
    });
    let mut problems: Vec<ReportedProblem> = problems.collect();
    if input.datastore.is_some() {
        for ReportedProblem { problem, .. } in &mut problems {
            // The position is one in the stored value.
            problem.problem.position = Position::default();
        }
    }
    problems.sort_by(|one, other| place(one).cmp(&place(other)));
    Ok(problems)
}

fn with_template(mut problem: InputProblem, lines: &Lines<'_>) -> InputProblem {
    if problem.subject.is_empty() && is_template(&problem, lines) {
        problem.problem.message += "; is it a template that is to be rendered first?";
    }
    problem
}

/// Checks the beginning of the line only, since one long line may have many problems.
fn is_template(problem: &InputProblem, lines: &Lines<'_>) -> bool {
    let line = problem.file.as_deref().and_then(|file| lines.get(file, problem.problem.position.line));
    let Some(line) = line else { return false };
    let beginning = line.text.get(line.bytes(0..1_000)).unwrap_or_default();
    beginning.contains("{{") || beginning.contains("${")
}

/// The place in a file comes first; without a file, the resource is the place.
fn place(found: &ReportedProblem) -> (Option<&Path>, Position, &str) {
    let InputProblem { file, subject, problem, .. } = &found.problem;
    (file.as_deref(), problem.position, if file.is_some() { "" } else { subject })
}

/// `file:line:column: kind/name: field.path: message`, followed by the severity and the name of a
/// warning.
fn line(found: &ReportedProblem) -> String {
    let mut line = found.problem.to_string();
    if found.severity == Severity::Warning {
        line += " (warning)";
    }
    if let Some(lint) = found.lint {
        line += &format!(" [{lint}]");
    }
    line
}

#[cfg(test)]
mod tests;
