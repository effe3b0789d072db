use std::io::{BufRead, Write};

use serde_json::json;
use tortie_model::Hostname;

use super::super::origin::Origins;
use super::answer::Answer;
use super::expansion::Expansion;
use super::group::{AskError, GroupAnswer};
use super::question::{Line, Question, QuestionError};
use super::view::{View, ViewError};
use crate::{Failure, with_causes};

pub(super) fn answer(
    view: &mut View,
    node: Option<&Hostname>,
    origins: &Origins,
    input: impl BufRead,
    mut out: impl Write,
) -> Result<(), Failure> {
    for line in input.lines() {
        let line = line.map_err(Failure::io("standard input"))?;
        if line.trim().is_empty() {
            continue;
        }
        let answer = one(view, node, origins, &line).unwrap_or_else(|error| json!({"error": with_causes(&error)}));
        writeln!(out, "{answer}").map_err(Failure::io("standard output"))?;
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Question(#[from] QuestionError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Group(#[from] AskError),
}

fn one(
    view: &mut View,
    node: Option<&Hostname>,
    origins: &Origins,
    line: &str,
) -> Result<serde_json::Value, LineError> {
    let line: Line = serde_json::from_str(line)?;
    let question = Question::from_line(&line)?;
    if let Expansion::Group(group, members) = view.expand(&question)? {
        return Ok(GroupAnswer::ask(view, group, &members, node, origins, None)?.short().into());
    }
    let connection = view.ask(&question, node)?;
    Ok(Answer { connection: &connection, pending: None, origins, policies: view, tables: &[] }.short().into())
}
