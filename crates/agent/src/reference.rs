//! `tortie reference`.

mod metrics;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::ValueEnum as _;

use super::help;
use super::manual::{all_commands, title, whole};
use metrics::programs;
use tortie_cli::Failure;
use tortie_cli::Lint;

/// Print a chapter of the reference in Markdown.
///
/// `tortie parameters` prints another chapter.
///
/// Example: tortie reference metrics
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The chapter.
    #[arg(value_enum)]
    chapter: Chapter,
}

/// A chapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Chapter {
    /// All commands with their options.
    Commands,
    /// All metrics of the agent, the fan-out and the controller.
    Metrics,
    /// All warnings of `tortie check`, with the recommended actions.
    Warnings,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let text = match args.chapter {
        Chapter::Commands => commands(),
        Chapter::Metrics => metrics(),
        Chapter::Warnings => warning_table(),
    };
    io::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
}

/// Returns the help of each command as `--help` prints it.
fn commands() -> String {
    let whole = help::laid_out(whole(), help::COLUMNS);
    let mut text =
        "# Command line\n\nThe output of `--help` for each command, in a build with all features.\n".to_owned();
    for (path, command) in all_commands(&whole) {
        let help = command.clone().render_long_help().to_string();
        let help: String = help.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "\n## {}\n\n```text\n{}```\n", title(&path).replace('-', " "), help);
    }
    text
}

fn metrics() -> String {
    let mut text = "# Metrics\n\nPrometheus text format. A metric of Felix, Typha or kube-controllers keeps its name where it counts the same; \
                    Tortie's own metrics begin with `tortie_`. Some exist only while the counted feature is in use, such as eBPF programs \
                    or flows.\n"
        .to_owned();
    for (program, families) in programs() {
        let _ = write!(text, "\n## {program}\n\n| name | type | meaning |\n|---|---|---|\n");
        for family in families {
            let _ = writeln!(text, "| `{}` | {} | {} |", family.name, family.kind, family.help);
        }
    }
    text
}

#[expect(clippy::expect_used, reason = "the warnings are declared with their comments")]
fn warning_table() -> String {
    let mut text =
        "# Messages\n\n## Warnings of `tortie check`\n\nEach has a name in brackets; `--allow NAME` suppresses it.\n\n\
                    | name | condition | action |\n|---|---|---|\n"
            .to_owned();
    for lint in Lint::value_variants().iter().filter(|lint| **lint != Lint::Other) {
        let value = lint.to_possible_value().expect("no warning is skipped");
        let when = value.get_help().expect("each warning has a comment");
        let _ = writeln!(text, "| `{}` | {when} | {} |", value.get_name(), lint.advice());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_listed_with_its_options() {
        let text = commands();
        let whole = whole();
        assert!(all_commands(&whole).len() > 25);
        for (path, command) in all_commands(&whole) {
            let start = text.find(&format!("\n## {}\n", title(&path).replace('-', " "))).unwrap();
            let end = text[start + 4..].find("\n## ").map_or(text.len(), |at| start + 4 + at);
            for option in command.get_opts().filter(|option| !option.is_hide_set()) {
                let Some(long) = option.get_long() else { continue };
                assert!(text[start..end].contains(&format!("--{long}")), "{path:?}: --{long}");
            }
        }
        assert!(!text.contains('\u{1b}'), "escapes of a terminal");
    }

    /// The reference lists each metric that the source names.
    #[test]
    fn each_metric_in_the_source_is_listed() {
        let text = metrics();
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = vec![
            source.join("../node/src/metrics"),
            source.join("../telemetry/src/process.rs"),
            source.join("src/fanout/metrics.rs"),
            source.join("../controller/src/run"),
            source.join("../controller/src/ipam/metrics.rs"),
        ];
        let mut names = std::collections::BTreeSet::new();
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            for word in source.split('"').skip(1).step_by(2) {
                let is_name = |prefix: &&str| word.starts_with(*prefix) && !word.ends_with('_');
                let plain = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
                if plain && ["felix_", "tortie_", "typha_", "ipam_", "process_", "wireguard_"].iter().any(is_name) {
                    names.insert(word.to_owned());
                }
            }
        }
        let missing: Vec<&String> = names.iter().filter(|name| !text.contains(&format!("| `{name}` |"))).collect();
        assert!(names.len() > 100, "{}", names.len());
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn alerts_and_dashboard_use_existing_metrics() {
        let text = metrics();
        for file in ["alerts.yaml", "dashboard.json"] {
            let path = format!("{}/../../deploy/monitoring/{file}", env!("CARGO_MANIFEST_DIR"));
            let source = std::fs::read_to_string(&path).unwrap();
            let words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let is_metric =
                |word: &&str| ["felix_", "tortie_", "typha_", "process_"].iter().any(|prefix| word.starts_with(prefix));
            let names: std::collections::BTreeSet<&str> =
                words.filter(is_metric).map(|name| name.trim_end_matches("_bucket")).collect();
            assert!(names.len() > 10, "{file}: {names:?}");
            let missing: Vec<_> = names.iter().filter(|name| !text.contains(&format!("| `{name}` |"))).collect();
            assert!(missing.is_empty(), "{file}: {missing:?}");
        }
    }

    #[test]
    fn each_warning_has_an_advice() {
        let text = warning_table();
        assert!(text.contains("| `selects-nothing` | The selector of a policy matches no endpoint | "), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("| `")).count(), Lint::value_variants().len() - 1);
    }
}
