//! What commands that ask the running agent have in common.

use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Failure, yaml};
use crate::local_api::{Client, DEFAULT_SOCKET};

/// Whom to ask, and how to answer.
#[derive(Debug, clap::Args)]
pub(super) struct AskArgs {
    /// The socket of the agent; see `tortie run --socket`
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Table,
    /// Everything.
    Json,
    /// Everything.
    Yaml,
}

impl AskArgs {
    /// Calls a method of the agent.
    pub(super) fn ask<T: DeserializeOwned>(&self, method: &str, parameters: &[(&str, Value)]) -> Result<T, Failure> {
        let parameters: Map<String, Value> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let mut client = Client::connect(&self.socket).map_err(failed)?;
        client.call(method, parameters).map_err(failed)
    }

    /// Prints an answer.
    pub(super) fn print<T: Serialize>(&self, answer: &T, for_people: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = match self.output {
            Output::Table => for_people(),
            Output::Json => format!("{:#}\n", json!(answer)),
            Output::Yaml => yaml::yaml(&json!(answer)),
        };
        io::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
