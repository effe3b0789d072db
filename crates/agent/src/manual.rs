//! `tortie completions` and `tortie man`.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use tortie_cli::Failure;

use super::Cli;

/// Print a shell script that completes commands, options and values.
///
/// Examples: tortie completions bash > /etc/bash_completion.d/tortie
///           tortie completions zsh > /usr/local/share/zsh/site-functions/_tortie
///           tortie completions fish > /etc/fish/completions/tortie.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shells,
}

/// A supported shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shells {
    /// GNU Bash, with its package bash-completion or without.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish.
    Fish,
}

/// Write manual pages: one of the program, and one of each command.
///
/// Example: tortie man --directory /usr/local/share/man/man1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ManArgs {
    /// The command, such as `apply` or `staged commit`, whose page is printed; the program's if
    /// none is given.
    #[arg(value_name = "COMMAND", conflicts_with = "directory")]
    command: Vec<String>,
    /// Directory to which all pages are written instead of printing one.
    #[arg(short, long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Returns the whole command line. `help` is left out: each command has --help.
pub(super) fn whole() -> Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let shell = match args.shell {
        Shells::Bash => Shell::Bash,
        Shells::Zsh => Shell::Zsh,
        Shells::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut whole(), "tortie", &mut text);
    io::stdout().write_all(&text).map_err(Failure::io("standard output"))
}

pub(super) fn man(args: &ManArgs) -> Result<(), Failure> {
    let whole = whole();
    let Some(directory) = &args.directory else {
        let found = command_of(&whole, &args.command);
        let none = || Failure::usage(format!("there is no command `{}`", args.command.join(" ")));
        let text = page(found.ok_or_else(none)?, &args.command).map_err(Failure::io("the page"))?;
        return io::stdout().write_all(&text).map_err(Failure::io("standard output"));
    };
    let failed = || Failure::io(directory.display().to_string());
    fs::create_dir_all(directory).map_err(failed())?;
    for (path, command) in all_commands(&whole) {
        let text = page(command, &path).map_err(failed())?;
        fs::write(directory.join(format!("{}.1", title(&path))), text).map_err(failed())?;
    }
    Ok(())
}

/// Returns the program and all visible commands, each with its path of names.
pub(super) fn all_commands(whole: &Command) -> Vec<(Vec<String>, &Command)> {
    fn add<'c>(command: &'c Command, path: &[String], all: &mut Vec<(Vec<String>, &'c Command)>) {
        all.push((path.to_owned(), command));
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            add(inner, &[path, &[inner.get_name().to_owned()]].concat(), all);
        }
    }
    let mut all = Vec::new();
    add(whole, &[], &mut all);
    all
}

/// Returns the command at a path of names.
fn command_of<'a>(whole: &'a Command, path: &[String]) -> Option<&'a Command> {
    path.iter().try_fold(whole, |command, name| command.find_subcommand(name))
}

/// `tortie-staged-commit`.
pub(super) fn title(path: &[String]) -> String {
    std::iter::once("tortie").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join("-")
}

fn page(command: &Command, path: &[String]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let version = concat!("Tortie ", env!("CARGO_PKG_VERSION"));
    let page = clap_mangen::Man::new(command.clone()).title(title(path)).section("1").source(version).manual("Tortie");
    page.render(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
