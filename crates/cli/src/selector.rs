use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use tortie_selector::Selector;

use super::Failure;
use super::terminal::parsed_selector;

/// Print a selector's canonical form and id, and match it against labels.
///
/// Prints one JSON object with `canonical`, `id` and `matches`. Without --labels, `matches` is for
/// an endpoint that has no labels. A selector that does not parse is shown with the place
/// underlined, and ends with exit code 2.
///
/// Example: tortie selector "role == 'db' && has(env)" --labels role=db,env=prod
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The selector, such as `app == 'web'`.
    #[arg(required_unless_present = "batch", allow_hyphen_values = true)]
    expression: Option<String>,
    /// Labels to match: `k=v,k=v`, or a JSON object.
    #[arg(long, value_name = "LABELS")]
    labels: Option<String>,
    /// Read JSON lines `{"selector": …, "labels": [{…}, …]}` from standard input and answer each
    /// with a line `{"valid", "canonical", "id", "matches", "error"}`.
    #[arg(long, conflicts_with_all = ["expression", "labels"])]
    batch: bool,
}

type LabelMap = BTreeMap<String, String>;

#[derive(Serialize)]
struct Explanation<'a> {
    canonical: &'a str,
    id: String,
    matches: bool,
}

#[derive(Deserialize)]
struct Question {
    selector: String,
    #[serde(default)]
    labels: Vec<LabelMap>,
}

#[derive(Default, Serialize)]
struct Answer {
    valid: bool,
    canonical: Option<String>,
    id: Option<String>,
    matches: Vec<bool>,
    error: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let stdout = super::terminal::stdout();
    if args.batch {
        return batch(io::stdin().lock(), stdout);
    }
    let expression = args.expression.as_deref().unwrap_or_default();
    let labels = args.labels.as_deref().map_or(Ok(LabelMap::new()), parse_labels)?;
    explain(expression, &labels, stdout)
}

fn explain(expression: &str, labels: &LabelMap, mut out: impl Write) -> Result<(), Failure> {
    let selector = parsed_selector(expression)?;
    let explanation = Explanation {
        canonical: selector.canonical(),
        id: selector.id().to_string(),
        matches: selector.matches(labels),
    };
    write_line(&mut out, &explanation)
}

fn batch(input: impl BufRead, out: impl Write) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(out);
    for line in input.lines() {
        let line = line.map_err(Failure::io("standard input"))?;
        if !line.trim().is_empty() {
            write_line(&mut out, &answer(&line))?;
        }
    }
    out.flush().map_err(Failure::io("standard output"))
}

fn answer(line: &str) -> Answer {
    let question: Question = match serde_json::from_str(line) {
        Ok(question) => question,
        Err(error) => return Answer { error: Some(format!("not a question: {error}")), ..Answer::default() },
    };
    match Selector::parse(&question.selector) {
        Err(error) => Answer { error: Some(error.to_string()), ..Answer::default() },
        Ok(selector) => Answer {
            valid: true,
            canonical: Some(selector.canonical().to_owned()),
            id: Some(selector.id().to_string()),
            matches: question.labels.iter().map(|labels| selector.matches(labels)).collect(),
            error: None,
        },
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value).map_err(Failure::failed)?;
    writeln!(out, "{line}").map_err(Failure::io("standard output"))
}

fn parse_labels(text: &str) -> Result<LabelMap, Failure> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(Failure::usage_at("--labels"));
    }
    text.split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                Failure::usage(format!("--labels: `{pair}` is neither `key=value` nor a JSON object"))
            })?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests;
