use std::borrow::Cow;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Failure;
use super::output::Output;
use tortie_node::local_api::{Client, ClientError, DEFAULT_SOCKET};
use tortie_telemetry::escape;

/// Socket of the agent, and output format.
#[derive(Debug, clap::Args)]
pub(super) struct AskArgs {
    /// Socket of the agent; see `tortie run --socket`
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl AskArgs {
    pub(super) fn ask<T: DeserializeOwned>(&self, method: &str, parameters: &[(&str, Value)]) -> Result<T, Failure> {
        let parameters: Map<String, Value> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let mut client = Client::connect(&self.socket).map_err(Failure::failed)?;
        self.answer(client.call(method, parameters))
    }

    pub(super) fn ask_if_there<T: DeserializeOwned>(&self, method: &str) -> Result<Option<T>, Failure> {
        match Client::connect(&self.socket) {
            Err(ClientError::NoAgent { .. }) => Ok(None),
            Err(error) => Err(Failure::failed(error)),
            Ok(mut client) => self.answer(client.call(method, Map::new())).map(Some),
        }
    }

    /// For tables, texts are escaped here, as a line end in one of them would begin a new line of
    /// the table.
    fn answer<T: DeserializeOwned>(&self, answer: Result<Value, ClientError>) -> Result<T, Failure> {
        let mut answer = answer.map_err(Failure::failed)?;
        if self.output == Output::Table {
            escape_texts(&mut answer);
        }
        serde_json::from_value(answer).map_err(|error| Failure::failed(ClientError::Unreadable(error)))
    }

    pub(super) fn print_value(
        &self,
        whole: impl FnOnce() -> Value,
        for_people: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.output.print(whole, for_people)
    }

    pub(super) fn print<T: Serialize>(&self, answer: &T, for_people: impl FnOnce() -> String) -> Result<(), Failure> {
        self.output.print(|| json!(answer), for_people)
    }
}

fn escape_texts(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(escaped) = escape::line(text) {
                *text = escaped;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(escape_texts),
        Value::Object(fields) => fields.values_mut().for_each(escape_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
