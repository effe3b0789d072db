//! Problems that an agent reports for the kernel.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::agent::AgentError;

/// Maximum wait for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Steps after which agents may report a problem: the case, and a part of the problem's text. None
/// at present.
const EXPECTED: &[(&str, &str)] = &[];

/// Returns the problems that are not expected after a step of this case.
pub(super) fn unexpected(case: &str, problems: Vec<String>) -> Vec<String> {
    let is_expected = |text: &String| EXPECTED.iter().any(|(of, part)| *of == case && text.contains(part));
    problems.into_iter().filter(|text| !is_expected(text)).collect()
}

/// Client of the status method of `tortie run`.
#[derive(Debug)]
pub(super) struct StatusClient {
    socket: PathBuf,
}

impl StatusClient {
    /// Creates a client of the agent that listens on this socket.
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Returns the reported problems; `None` while the engine is busy.
    pub(super) fn fetch(&self) -> Result<Option<Vec<String>>, AgentError> {
        let failed = |source| AgentError::Status { path: self.socket.clone(), source };
        let status = status(&self.socket).map_err(failed)?;
        problems(&status).map_err(failed)
    }
}

/// Returns the agent's answer to a status request.
fn status(socket: &Path) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"{\"method\":\"org.tortie.agent.Status\"}\0")?;
    let mut answer = Vec::new();
    BufReader::new(stream).read_until(0, &mut answer)?;
    answer.pop_if(|last| *last == 0).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Returns the problems in a status answer.
fn problems(answer: &Value) -> io::Result<Option<Vec<String>>> {
    let engine = answer.pointer("/parameters/engine").ok_or_else(|| io::Error::other(answer.to_string()))?;
    if engine.is_null() {
        return Ok(None);
    }
    let problems = engine["dataplane_problems"].as_array().ok_or_else(|| io::Error::other(answer.to_string()))?;
    Ok(Some(problems.iter().filter_map(Value::as_str).map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_has_problems_is_from_a_busy_agent_or_is_none() {
        let with = |engine: Value| problems(&json!({ "parameters": { "engine": engine } }));
        assert_eq!(with(json!({ "dataplane_problems": ["a set is refused"] })).unwrap().unwrap(), ["a set is refused"]);
        assert_eq!(with(json!({ "dataplane_problems": [] })).unwrap().unwrap(), [""; 0]);
        assert_eq!(with(Value::Null).unwrap(), None);
        assert!(with(json!({})).is_err());
        assert!(problems(&json!({ "error": "org.varlink.service.MethodNotFound" })).is_err());
    }
}
