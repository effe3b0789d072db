//! The commands of the program in groups, and the features that commands need.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Groups of commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["run", "dataplane", "controller", "fanout", "cleanup"]),
    ("Inspect", &["status", "config", "show", "flows", "get", "ipam", "trace", "map", "history", "node"]),
    ("Change", &["apply", "create", "replace", "patch", "label", "delete", "staged", "confirm", "rollback"]),
    ("Author", &["check", "plan", "diff", "render", "selector", "suggest", "replay"]),
    ("Reference", &["parameters", "reference", "man", "completions", "version", "help"]),
];

/// Features of the program that commands need; one of them is enough, except for `controller`.
const NEEDS: [(&str, &str); 13] = [
    ("apply", "`etcd` or `kubernetes`"),
    ("create", "`etcd` or `kubernetes`"),
    ("replace", "`etcd` or `kubernetes`"),
    ("patch", "`etcd` or `kubernetes`"),
    ("label", "`etcd` or `kubernetes`"),
    ("get", "`etcd` or `kubernetes`"),
    ("delete", "`etcd` or `kubernetes`"),
    ("controller", "`etcd` and `kubernetes`"),
    ("ipam", "`kubernetes`"),
    ("fanout", "`fanout`"),
    ("man", "`manual`"),
    ("completions", "`manual`"),
    ("reference", "`manual`"),
];

/// Indentation of a command's summary, in columns.
const SUMMARY: usize = 15;

/// Gives the program a help that lists its commands in groups.
pub(super) fn grouped(mut command: Command) -> Command {
    command.build();
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut template = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, names) in GROUPS {
        template += &format!("\n{header}{title}:{header:#}\n");
        for inner in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let name = inner.get_name();
            let summary = inner.get_about().map(ToString::to_string).unwrap_or_default();
            let gap = SUMMARY.saturating_sub(name.len() + 2);
            let summary = summary.replace('\n', &format!("\n{:SUMMARY$}", ""));
            template += &format!("  {literal}{name}{literal:#}{:gap$}{summary}\n", "");
        }
    }
    let about = command.get_about().map(|about| about.to_string().replace('\n', " ")).unwrap_or_default();
    template += &format!("\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    command.about(about).help_template(template)
}

/// Explains an error about a command that this build lacks; `None` for other errors.
pub(crate) fn missing_feature(error: &Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (_, features) = NEEDS.iter().find(|(command, _)| command == name)?;
    (error.kind() == ErrorKind::InvalidSubcommand)
        .then(|| format!("`tortie {name}` is missing from this build: built without {features} (see `tortie version`)"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn each_command_is_in_one_group() {
        let mut command = Cli::command();
        command.build();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        let built = command.get_subcommands().map(Command::get_name);
        let absent: Vec<_> = built.filter(|name| grouped.binary_search(name).is_err()).collect();
        assert!(absent.is_empty(), "{absent:?}");
        let twice = grouped.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None);

        let is_missing = |name: &&str| command.find_subcommand(name).is_none();
        let mut needing: Vec<_> = NEEDS.iter().map(|(name, _)| *name).filter(is_missing).collect();
        needing.sort_unstable();
        grouped.retain(|name| is_missing(name));
        assert_eq!(grouped, needing, "commands that are not built");
    }

    #[test]
    fn commands_are_listed_in_groups() {
        let help = crate::help::laid_out(Cli::command(), 80).render_help().to_string();
        let begin = "Network-policy engine for Linux: enforces cluster policy in the kernel\n\nUsage: tortie <COMMAND>\n\nRun:\n  run          ";
        assert!(help.starts_with(begin), "{help}");
        assert!(help.contains("\n\nInspect:\n  status       "), "{help}");
        assert!(help.contains("\n\nOptions:\n") && help.contains("Exit codes:\n"), "{help}");
    }

    #[test]
    fn errors_name_the_features_of_commands_that_are_not_built() {
        for (name, features) in NEEDS {
            let parsed = Command::new("tortie").subcommand(Command::new("run")).try_get_matches_from(["tortie", name]);
            let text = missing_feature(&parsed.unwrap_err()).unwrap();
            assert!(text.starts_with(&format!("`tortie {name}` ")) && text.contains(features), "{text}");
        }
        let parsed = Command::new("tortie").subcommand(Command::new("run")).try_get_matches_from(["tortie", "ran"]);
        assert_eq!(missing_feature(&parsed.unwrap_err()), None);
    }
}
