//! Connection to the API server, and the requests on it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;

use tortie_model::Cause;

use super::config::KubeConfig;
use super::error::{ApiError, KubeConfigError, describe};
use super::json::MAX_OBJECT;
use crate::tls_reason::tls_reason;

/// Longest wait for the beginning of a response, and for each further part of it.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of an error response after which it is cut off.
const MAX_STATUS: usize = 64 << 10;
/// Minimum age of the configuration before it is read again after a failure that may have other
/// causes.
const RELOAD: Duration = Duration::from_secs(5);

/// A request that can be repeated.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    /// Path and query.
    pub(super) target: String,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
}

impl Call {
    pub(super) fn get(target: String) -> Self {
        Self { method: Method::GET, target, content_type: "application/json", body: Vec::new() }
    }

    fn request(&self) -> Result<Request<Body>, ApiError> {
        let mut request = Request::builder()
            .method(&self.method)
            .uri(&self.target)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tortie/", env!("CARGO_PKG_VERSION")));
        if !self.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, self.content_type);
        }
        request.body(Body::from(self.body.clone())).map_err(|error| ApiError::Malformed(Cause::new(error)))
    }
}

/// Connection to the API server by the current configuration.
#[derive(Debug)]
pub(super) struct Connection {
    config: KubeConfig,
    current: Mutex<Option<Current>>,
}

/// Client made from the configuration that was read last.
#[derive(Clone)]
struct Current {
    client: kube::Client,
    read: Instant,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("read", &self.read).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(config: KubeConfig) -> Self {
        Self { config, current: Mutex::new(None) }
    }

    /// Sends a request. Returns a successful response, whose body has not been read.
    pub(super) async fn send(&self, call: &Call) -> Result<Response<Body>, ApiError> {
        let mut again = true;
        loop {
            let current = self.current().await?;
            let answer = match timeout(ANSWER, current.client.send(call.request()?)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    // Certificates or addresses may have been replaced.
                    self.outdated(&current, RELOAD).await;
                    return Err(self.unreachable(&error));
                }
                Err(_) => return Err(ApiError::Silent(ANSWER)),
            };
            if answer.status().is_success() {
                return Ok(answer);
            }
            let error = refusal(answer).await;
            if error.code() != Some(StatusCode::UNAUTHORIZED.as_u16()) || !std::mem::take(&mut again) {
                return Err(error);
            }
            // The token may have been replaced.
            self.outdated(&current, Duration::ZERO).await;
        }
    }

    fn unreachable(&self, error: &kube::Error) -> ApiError {
        match unreachable(error) {
            ApiError::Unreachable(text) => {
                match tls_reason(&text, Some(&self.config.authority())).or_else(|| tls_reason(&text, None)) {
                    Some(reason) => ApiError::Unreachable(format!("{reason}: {text}")),
                    None => ApiError::Unreachable(text),
                }
            }
            other => other,
        }
    }

    /// Sends a request and reads the whole response.
    pub(super) async fn ask(&self, call: &Call) -> Result<Vec<u8>, ApiError> {
        let mut body = self.send(call).await?.into_body();
        let mut bytes = Vec::new();
        while let Some(more) = next(&mut body, ANSWER).await? {
            if bytes.len() + more.len() > MAX_OBJECT {
                return Err(ApiError::TooLarge(MAX_OBJECT));
            }
            bytes.extend_from_slice(&more);
        }
        Ok(bytes)
    }

    async fn current(&self) -> Result<Current, ApiError> {
        let mut current = self.current.lock().await;
        if let Some(current) = current.as_ref().filter(|current| !has_expired(&current.client)) {
            return Ok(current.clone());
        }
        let config = self.config.clone();
        let handle = Handle::current();
        // Files are read, and a credential plugin may run.
        let made = tokio::task::spawn_blocking(move || {
            let config = handle.block_on(config.load())?;
            super::config::client(config)
        });
        let client = match made.await {
            Ok(client) => client?,
            Err(_) => return Err(ApiError::Unreachable("the client is shutting down".into())),
        };
        Ok(current.insert(Current { client, read: Instant::now() }).clone())
    }

    /// Discards the configuration that `seen` was made from, if it is at least this old.
    async fn outdated(&self, seen: &Current, age: Duration) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|current| current.read == seen.read && current.read.elapsed() >= age) {
            *current = None;
        }
    }
}

/// Reports whether the credentials from a plugin have expired.
fn has_expired(client: &kube::Client) -> bool {
    let Some(until) = client.valid_until() else { return false };
    std::time::SystemTime::from(*until) <= std::time::SystemTime::now()
}

/// Returns the next bytes of a response; `None` at its end.
pub(super) async fn next(body: &mut Body, silence: Duration) -> Result<Option<Bytes>, ApiError> {
    loop {
        match timeout(silence, body.frame()).await {
            Err(_) => return Err(ApiError::Silent(silence)),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(unreachable(&error)),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn unreachable(error: &kube::Error) -> ApiError {
    match error {
        kube::Error::Auth(_) => ApiError::Config(KubeConfigError::Credentials(describe(error))),
        _ => ApiError::Unreachable(describe(error)),
    }
}

async fn refusal(answer: Response<Body>) -> ApiError {
    let code = answer.status().as_u16();
    let header = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let mut body = answer.into_body();
    let mut bytes = Vec::new();
    while bytes.len() < MAX_STATUS {
        match next(&mut body, ANSWER).await {
            Ok(Some(more)) => bytes.extend_from_slice(&more),
            Ok(None) | Err(_) => break,
        }
    }
    status(code, &bytes, header)
}

/// Converts a `Status` object, or any other error response, to an error.
pub(super) fn status(code: u16, body: &[u8], retry_after: Option<u64>) -> ApiError {
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| status.get(name)?.as_str().map(|text| text.chars().take(1000).collect::<String>());
    let code = match status.get("code").and_then(serde_json::Value::as_u64).and_then(|code| u16::try_from(code).ok()) {
        Some(stated) if code == 0 => stated,
        _ => code,
    };
    // A server that expects TLS answers with a line of text.
    let plain = || {
        let line = str::from_utf8(body).ok()?.lines().next()?.trim();
        (!line.is_empty() && !line.starts_with(['{', '<'])).then(|| line.chars().take(200).collect::<String>())
    };
    let usual = StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
    let seconds = retry_after.or_else(|| status.get("details")?.get("retryAfterSeconds")?.as_u64());
    ApiError::Status {
        code,
        reason: text("reason").unwrap_or_else(|| usual.unwrap_or("Unknown").replace(' ', "")),
        message: text("message").or_else(plain).unwrap_or_else(|| usual.unwrap_or("no reason was given").to_owned()),
        retry_after: seconds.map(Duration::from_secs),
    }
}
