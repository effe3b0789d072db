//! Errors of an agent.

use std::io;

use tortie_config::ConfigError;
use tortie_config::settings::SettingsError;
use tortie_linux::kernel::DetectError;
use tortie_linux::namespace_lock::LockError;

use crate::driver::ServeError;
use crate::engine::SessionError;

/// Reason why an agent, or a driver, cannot start or go on. The kernel keeps the policy in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A parameter has an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Parameters do not fit this machine or each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// This build or this machine does not support the value of a parameter.
    #[error("{parameter}: {why}")]
    Unsupported {
        /// The parameter, with its value if that matters.
        parameter: &'static str,
        /// The reason.
        why: String,
    },
    /// iptables cannot be used.
    #[error(transparent)]
    Iptables(#[from] DetectError),
    /// A thread, pipe or client of the agent cannot be made.
    #[error("{part}")]
    Start {
        /// The part of the agent that needs it.
        part: &'static str,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// Another agent programs this network namespace.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The engine cannot go on.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A message of the engine that a driver obeys is invalid, or the connection to it has failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl AgentError {
    pub(crate) fn start(part: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Start { part, error }
    }
}
