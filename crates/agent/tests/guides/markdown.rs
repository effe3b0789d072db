//! The commands of a page, with the outputs that the page shows.

/// Reasons for which commands of a page need not run here. No other reasons are valid.
pub(crate) const REASONS: [&str; 7] = [
    "builds from source",
    "needs Felix",
    "needs a Kubernetes cluster",
    "needs other nodes",
    "needs running pods",
    "needs systemd",
    "shows another cluster",
];

/// A command of a page, or several lines of a shell that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Line of the page, from 1.
    pub(crate) line: usize,
    pub(crate) command: String,
    /// Output that the page shows; `None` if it shows none.
    pub(crate) output: Option<String>,
    /// Whether each command must succeed. In a session, the output shows the result.
    pub(crate) must_succeed: bool,
    /// Whether the command is repeated until its output matches.
    pub(crate) is_repeated: bool,
}

/// A fenced block of a page.
#[derive(Debug)]
struct Block<'a> {
    /// The line of its fence.
    line: usize,
    language: &'a str,
    not_run: Option<&'a str>,
    is_repeated: bool,
    text: String,
    /// Whether nothing but blank lines is between it and the block before.
    follows: bool,
}

/// Returns the steps of a page that are run, in order.
///
/// # Errors
/// Commands that are neither run nor have one of the [`REASONS`], and blocks that cannot be parsed.
pub(crate) fn steps(page: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut last_is_script = false;
    for block in blocks(page)? {
        let at = block.line;
        if let Some(reason) = block.not_run
            && !REASONS.contains(&reason)
        {
            return Err(format!("line {at}: `{reason}` is not among the reasons for which commands are not run"));
        }
        let is_script = block.language == "sh";
        match block.language {
            "bash" | "shell" | "zsh" => return Err(format!("line {at}: commands are blocks of `sh` or `console`")),
            "sh" | "console" if block.not_run.is_some() => {}
            "sh" => steps.push(Step {
                line: at + 1,
                command: block.text,
                output: None,
                must_succeed: true,
                is_repeated: block.is_repeated,
            }),
            "console" => steps.extend(session(&block)?),
            // Output of the commands just before it.
            "text" if last_is_script && block.follows => {
                steps.last_mut().ok_or("no command")?.output = Some(block.text);
            }
            "text" if block.text.lines().any(|line| line.starts_with("$ ")) => {
                return Err(format!("line {at}: commands with their output are a block of `console`"));
            }
            _ if block.not_run.is_some() || block.is_repeated => {
                return Err(format!("line {at}: only commands are run or not"));
            }
            _ => {}
        }
        last_is_script = is_script && block.not_run.is_none();
    }
    Ok(steps)
}

/// Returns the commands of a session: lines after `$ `, continued by lines after `> `.
fn session(block: &Block<'_>) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut output = String::new();
    for (number, line) in block.text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            if let Some(last) = steps.last_mut() {
                last.output = Some(std::mem::take(&mut output));
            }
            steps.push(Step {
                line: block.line + 1 + number,
                command: command.to_owned(),
                output: None,
                must_succeed: false,
                is_repeated: block.is_repeated,
            });
        } else if let (Some(more), Some(last), true) = (line.strip_prefix("> "), steps.last_mut(), output.is_empty()) {
            last.command += "\n";
            last.command += more;
        } else if steps.is_empty() {
            return Err(format!("line {}: a session begins with a command after `$ `", block.line));
        } else {
            output += line;
            output.push('\n');
        }
    }
    let last = steps.last_mut().ok_or_else(|| format!("line {}: a session without commands", block.line))?;
    last.output = Some(output);
    Ok(steps)
}

fn blocks(page: &str) -> Result<Vec<Block<'_>>, String> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open: Option<(&str, Block<'_>)> = None;
    let mut only_blank = false;
    for (number, line) in page.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let inner = line.trim_start();
        if let Some((indent, block)) = &mut open {
            if inner == "```" {
                blocks.extend(open.take().map(|(_, block)| block));
                only_blank = true;
            } else {
                block.text += line.strip_prefix(*indent).unwrap_or(inner);
                block.text.push('\n');
            }
        } else if let Some(info) = inner.strip_prefix("```") {
            let indent = &line[..line.len() - inner.len()];
            open = Some((indent, fence(info, number, only_blank)?));
        } else if !line.trim().is_empty() {
            only_blank = false;
        }
    }
    match open {
        Some((_, block)) => Err(format!("line {}: the block does not end", block.line)),
        None => Ok(blocks),
    }
}

/// Parses the text behind a fence: `sh,not-run="needs other nodes"`.
fn fence(info: &str, line: usize, follows: bool) -> Result<Block<'_>, String> {
    let (language, mut rest) = info.split_once(',').map_or((info.trim(), ""), |(language, rest)| (language, rest));
    let mut block = Block { line, language, not_run: None, is_repeated: false, text: String::new(), follows };
    if !matches!(language, "sh" | "console" | "text") {
        return Ok(block);
    }
    while !rest.is_empty() {
        let unknown = || format!("line {line}: `{rest}` is not understood");
        let (attribute, more) = if let Some(quoted) = rest.strip_prefix("not-run=\"") {
            let (reason, more) = quoted.split_once('"').ok_or_else(unknown)?;
            block.not_run = Some(reason);
            ("", more)
        } else {
            rest.split_once(',').unwrap_or((rest, ""))
        };
        match attribute {
            "" => {}
            "repeat" => block.is_repeated = true,
            _ => return Err(unknown()),
        }
        rest = more.strip_prefix(',').unwrap_or(more);
    }
    Ok(block)
}

/// Reports whether a text matches the output on a page. There `…` stands for anything within a
/// line, and a line of `…` for any lines. Blanks at the ends of lines do not count.
pub(crate) fn is_as_shown(shown: &str, text: &str) -> bool {
    let lines = |text: &'_ str| text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    lines_match(&lines(shown), &lines(text))
}

fn lines_match(shown: &[String], text: &[String]) -> bool {
    match (shown.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "…" => {
            (0..=text.len()).any(|skipped| lines_match(rest, &text[skipped..]))
        }
        (Some((first, rest)), Some((line, lines))) => line_matches(first, line) && lines_match(rest, lines),
        _ => false,
    }
}

fn line_matches(shown: &str, line: &str) -> bool {
    match shown.split_once('…') {
        None => shown == line,
        Some((start, rest)) => {
            let Some(line) = line.strip_prefix(start) else { return false };
            let ends = line.char_indices().map(|(index, _)| index).chain([line.len()]);
            ends.into_iter().any(|end| line_matches(rest, &line[end..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(page: &str) -> Vec<(String, Option<String>)> {
        steps(page).unwrap().into_iter().map(|step| (step.command, step.output)).collect()
    }

    #[test]
    fn scripts_and_sessions_are_run_and_followed_by_their_output() {
        let page = "# Page\n\n```sh\none\ntwo\n```\n\n```text\nprinted\n```\n\n```text\nno output\n```\n\n- in a list\n\n  ```console\n  $ \
                    three \\\n  > four\n  $ five\n  six\n  ```\n```yaml\n$ seven\n```\n";
        let printed = |text: &str| Some(text.to_owned());
        let expected = [
            ("one\ntwo\n".to_owned(), printed("printed\n")),
            ("three \\\nfour".to_owned(), printed("")),
            ("five".to_owned(), printed("six\n")),
        ];
        assert_eq!(commands(page), expected);
        let lines: Vec<usize> = steps(page).unwrap().iter().map(|step| step.line).collect();
        assert_eq!(lines, [4, 19, 21]);
    }

    #[test]
    fn blocks_that_are_not_run_have_a_listed_reason() {
        let block = |info: &str| format!("```{info}\n$ command\n```\n");
        assert_eq!(commands(&block("sh,not-run=\"builds from source\"")), []);
        assert_eq!(commands(&block("console,not-run=\"needs other nodes\"")), []);
        for wrong in ["sh,not-run=\"too slow\"", "sh,ignore", "console,not-run", "bash", "text", "text,repeat"] {
            assert!(steps(&block(wrong)).is_err(), "{wrong}");
        }
        assert!(steps("```sh\nnever ends").is_err());
        assert!(steps("```console\nno command\n```\n").is_err());
    }

    #[test]
    fn a_text_that_follows_prose_is_no_output() {
        assert_eq!(commands("```sh\none\n```\nand so on\n```text\ntext\n```\n"), [("one\n".to_owned(), None)]);
        assert_eq!(commands("```sh,repeat\none\n```\n").len(), 1);
    }

    #[test]
    fn dots_match_varying_text() {
        assert!(is_as_shown("took … ms…", "took 17 ms"));
        assert!(!is_as_shown("took … ms", "took 17 s"));
        assert!(is_as_shown("one\n…\nthree\n", "one\n2\n2\nthree"));
        assert!(is_as_shown("one\n…\nthree\n", "one\nthree\n"));
        assert!(!is_as_shown("one\n…\nthree\n", "one\ntwo"));
        assert!(!is_as_shown("one", "one\ntwo") && !is_as_shown("one\ntwo", "one"));
        assert!(is_as_shown("a…b…c", "abbc") && !is_as_shown("", "text") && is_as_shown("…", ""));
    }
}
