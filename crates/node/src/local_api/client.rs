//! Client of a running agent.

use std::io::{self, BufReader, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::service::INTERFACE;
use super::wire::{self, Call, Reply};

/// Timeout of an answer; longer than the agent's timeout for its engine.
const PATIENCE: Duration = Duration::from_secs(15);

/// A connection to the agent of this node.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Failure of a query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No agent listens at the path.
    #[error("no agent answers at {}; check that `tortie run` is running with this --socket", path.display())]
    NoAgent {
        /// Path.
        path: PathBuf,
        /// Cause.
        #[source]
        error: io::Error,
    },
    /// Only root and the agent's user may query it.
    #[error("{}: only root and the agent's user may query this agent", path.display())]
    Denied {
        /// Path.
        path: PathBuf,
    },
    /// Its engine is busy.
    #[error("the agent is busy and did not answer in time; `tortie status` shows the cause")]
    Busy,
    /// The agent does not collect flows.
    #[error("the agent does not collect flows; FlowLogsLocalReporter=Enabled has it collect them")]
    NotCollected,
    /// The agent does not know the query, or uses another protocol.
    #[error("the agent cannot answer: {0}")]
    Refused(String),
    /// Its answer cannot be decoded.
    #[error("the agent's answer cannot be read")]
    Unreadable(#[from] serde_json::Error),
    /// The connection broke.
    #[error("{}", path.display())]
    Broken {
        /// Path.
        path: PathBuf,
        /// Cause.
        #[source]
        error: io::Error,
    },
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::NoAgent`] or [`ClientError::Denied`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let connected = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        let path = path.to_owned();
        match connected {
            Ok(stream) => Ok(Self { path, stream: BufReader::new(stream) }),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(ClientError::Denied { path }),
            Err(error) => Err(ClientError::NoAgent { path, error }),
        }
    }

    /// Calls a method of the agent's interface.
    ///
    /// # Errors
    /// [`ClientError`] if there is no answer, or another than expected.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: Map<String, Value>,
    ) -> Result<T, ClientError> {
        self.send(&Call { method: format!("{INTERFACE}.{method}"), parameters, ..Call::default() })?;
        self.receive().map(|(answer, _)| answer)
    }

    /// Calls a method with several answers, and passes each one on until there are no more, or
    /// `each` breaks off.
    ///
    /// # Errors
    /// [`ClientError`] if there is no answer, or another than expected.
    pub fn follow<T: DeserializeOwned, B>(
        mut self,
        method: &str,
        mut each: impl FnMut(T) -> ControlFlow<B>,
    ) -> Result<Option<B>, ClientError> {
        self.send(&Call { method: format!("{INTERFACE}.{method}"), more: true, ..Call::default() })?;
        loop {
            let (answer, continues) = self.receive()?;
            if let ControlFlow::Break(end) = each(answer) {
                return Ok(Some(end));
            }
            if !continues {
                return Ok(None);
            }
        }
    }

    fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Broken { path: self.path.clone(), error }
    }

    fn send(&mut self, call: &Call) -> Result<(), ClientError> {
        wire::write(self.stream.get_mut(), call).map_err(|error| self.broken(error))
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, bool), ClientError> {
        let message = wire::read(&mut self.stream, wire::MAX_ANSWER).map_err(|error| self.broken(error))?;
        let message = message.ok_or_else(|| self.broken(ErrorKind::UnexpectedEof.into()))?;
        let Reply { error, parameters, continues } = serde_json::from_slice(&message)?;
        match error.as_deref() {
            None => Ok((serde_json::from_value(parameters)?, continues)),
            Some("org.tortie.agent.NotCollected") => Err(ClientError::NotCollected),
            Some("org.varlink.service.PermissionDenied") => Err(ClientError::Denied { path: self.path.clone() }),
            Some("org.tortie.agent.Busy") => Err(ClientError::Busy),
            Some("org.tortie.agent.NotListed") => {
                let why = parameters.get("why").and_then(Value::as_str).unwrap_or_default();
                Err(ClientError::Refused(format!("the kernel's counters cannot be read: {why}")))
            }
            Some(other) => Err(ClientError::Refused(format!("{other} {parameters}"))),
        }
    }
}
