//! Output of answers.

use std::io::Write as _;

use serde_json::Value;
use tortie_resources::to_yaml;

use super::Failure;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Text for people.
    #[default]
    Table,
    /// JSON, everything.
    Json,
    /// YAML, everything.
    Yaml,
}

impl Output {
    /// Prints the whole answer as JSON or YAML, or its text for people.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print(self, whole: impl FnOnce() -> Value, for_people: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = match self {
            Self::Table => for_people(),
            Self::Json => format!("{:#}\n", whole()),
            Self::Yaml => to_yaml(&whole()),
        };
        super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
    }
}
