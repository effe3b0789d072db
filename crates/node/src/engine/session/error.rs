//! Failures of a session.

use std::error::Error;

use tortie_config::ConfigError;
use tortie_config::settings::SettingsError;
use tortie_datastore::InputProblem;

/// Failure that ends a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Some input cannot be used, and its selected endpoints are unknown.
    #[error("{} of the input cannot be used, and the endpoints that it selects are unknown; correct it, or start with --unreadable deny or skip:\n{}", parts(.0.len()), list(.0))]
    UnusableInput(Vec<InputProblem>),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The enforcement has failed.
    #[error(transparent)]
    Enforcement(Box<dyn Error + Send + Sync>),
    /// `DebugPanicAfter` has elapsed.
    #[error("DebugPanicAfter: ending with an error, as requested")]
    Simulated,
    /// The threads that report events are gone.
    #[error("no more events can arrive: the threads that report them have ended")]
    InputEnded,
}

impl SessionError {
    pub(super) fn of_enforcement(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Enforcement(Box::new(error))
    }
}

fn parts(count: usize) -> String {
    if count == 1 { "1 part".into() } else { format!("{count} parts") }
}

fn list(problems: &[InputProblem]) -> String {
    problems.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n")
}
