//! Help as wide as the terminal.
//!
//! Doc comments are as wide as the source. Their lines are joined and wrapped here; clap needs
//! another crate for that.

mod groups;

use clap::Command;

pub(crate) use groups::missing_feature;

/// Width of help if the terminal's width is unknown, and its maximum, in columns.
pub(super) const COLUMNS: usize = 100;
/// Indentation of the help of an option, and of a command in a list, in columns.
const OPTION: usize = 10;
const COMMAND: usize = 15;
/// Minimum width of a text, in columns.
const LEAST: usize = 30;

/// Returns the columns of the terminal, or the value of `COLUMNS`.
pub(super) fn columns() -> usize {
    let of = |size: rustix::io::Result<rustix::termios::Winsize>| size.ok().map(|size| usize::from(size.ws_col));
    let terminal = of(rustix::termios::tcgetwinsize(std::io::stdout()))
        .or_else(|| of(rustix::termios::tcgetwinsize(std::io::stderr())));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.filter(|columns| *columns > 0).or_else(variable).unwrap_or(COLUMNS).min(COLUMNS)
}

/// Wraps the texts of the program's command line to this number of columns, and groups its
/// commands.
pub(super) fn laid_out(command: Command, columns: usize) -> Command {
    groups::grouped(wrapped_texts(command, columns))
}

/// Wraps the texts of a command, its options and subcommands.
fn wrapped_texts(command: Command, columns: usize) -> Command {
    let text = |text: Option<&clap::builder::StyledStr>, left: usize| {
        text.map(|text| wrapped(&text.to_string(), columns.saturating_sub(left).max(LEAST)))
    };
    let (about, long_about) = (text(command.get_about(), COMMAND), text(command.get_long_about(), 0));
    let mut command = command.term_width(columns);
    if let Some(about) = about {
        command = command.about(about);
    }
    if let Some(about) = long_about {
        command = command.long_about(about);
    }
    let command = command.mut_args(|arg| {
        let (help, long_help) = (text(arg.get_help(), OPTION), text(arg.get_long_help(), OPTION));
        let arg = help.into_iter().fold(arg, clap::Arg::help);
        long_help.into_iter().fold(arg, clap::Arg::long_help)
    });
    command.mut_subcommands(|inner| wrapped_texts(inner, columns))
}

/// Wraps the paragraphs of a text anew. Examples and indented lines stay unchanged.
fn wrapped(text: &str, columns: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    // Whether the next line continues the last one.
    let mut goes_on = false;
    for line in text.lines() {
        let stays = line.trim().is_empty() || line.starts_with([' ', '\t']) || line.starts_with("Example");
        if stays {
            lines.push(line.to_owned());
            goes_on = false;
            continue;
        }
        for word in line.split_whitespace() {
            match lines.last_mut() {
                Some(last) if goes_on && last.chars().count() + 1 + word.chars().count() <= columns => {
                    last.push(' ');
                    last.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
            goes_on = true;
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn paragraphs_are_wrapped_again_and_examples_are_not() {
        let text = "One two three\nfour five.\n\nSix seven eight nine\n\nExamples: tortie one two three four\n          tortie x";
        let narrow = "One two\nthree four\nfive.\n\nSix seven\neight nine\n\nExamples: tortie one two three four\n          tortie x";
        assert_eq!(wrapped(text, 10), narrow);
        assert_eq!(wrapped(narrow, 100).lines().next(), Some("One two three four five."));
        assert_eq!(wrapped("averylongword a", 5), "averylongword\na");
    }

    /// Adds all help lines of a command and its subcommands, each with the name of the command.
    fn lines(command: &mut Command, all: &mut Vec<(String, String)>) {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        all.extend(help.lines().map(|line| (name.clone(), line.to_owned())));
        command.get_subcommands_mut().for_each(|inner| lines(inner, all));
    }

    #[test]
    fn help_fits_into_a_terminal() {
        let mut all = Vec::new();
        let mut command = laid_out(Cli::command(), 80);
        command.build();
        lines(&mut command, &mut all);
        assert!(all.len() > 500);
        // Lines of clap, and lines to be copied.
        let stays = |line: &str| {
            let line = line.trim_start();
            ["Example", "tortie ", "Usage:", "- ", "[possible values:", "-", "[default:"]
                .iter()
                .any(|begin| line.starts_with(begin))
        };
        let wide: Vec<_> = all.iter().filter(|(_, line)| line.chars().count() > 80 && !stays(line)).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }
}
