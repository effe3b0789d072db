//! Connections to one member at a time.

use std::error::Error as _;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, GetOptions, Identity, ResponseHeader, TlsOptions};
use tortie_model::{Cause, with_causes};

use super::EtcdConfig;
use super::config::{Password, Secret};
use crate::tls_reason::tls_reason;

/// Size limit of a file with credentials in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Codes of gRPC (`google.golang.org/grpc/codes`).
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// Failure of a request, by its consequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The history up to the requested revision has been compacted.
    #[error("the revision asked for has been compacted")]
    Compacted,
    /// The response exceeds the size limit.
    #[error("an answer is too large")]
    TooLarge,
    /// etcd refuses, and a retry does not help.
    #[error(transparent)]
    Refused(Cause),
    /// There is no response, or none from a working cluster.
    #[error(transparent)]
    Lost(Cause),
}

impl From<etcd_client::Error> for Failure {
    fn from(error: etcd_client::Error) -> Self {
        let etcd_client::Error::GRpcStatus(status) = error else { return Self::Lost(Cause::new(error)) };
        let message = status.message();
        match status.code() as i32 {
            code::OUT_OF_RANGE if message.contains("compacted") => Self::Compacted,
            // The client's own message for a response above its limit.
            code::OUT_OF_RANGE if message.contains("message length too large") => Self::TooLarge,
            code::INVALID_ARGUMENT
            | code::NOT_FOUND
            | code::PERMISSION_DENIED
            | code::FAILED_PRECONDITION
            | code::UNAUTHENTICATED => Self::Refused(message.into()),
            _ => Self::Lost(match status.source() {
                // The message of all failures of a connection is `transport error`.
                Some(cause) => with_causes(cause).into(),
                None if message.is_empty() => Cause::new(status),
                None => message.into(),
            }),
        }
    }
}

/// An error, with the endpoint or file that it concerns.
#[derive(Debug, thiserror::Error)]
#[error("{place}")]
struct Located {
    place: String,
    #[source]
    cause: Cause,
}

fn located(place: impl Into<String>, cause: Cause) -> Cause {
    Cause::new(Located { place: place.into(), cause })
}

/// Waits for a response for at most `limit`.
///
/// # Errors
/// The error of etcd, or [`Failure::Lost`] after `limit`.
pub async fn within<T>(
    limit: Duration,
    operation: &str,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::Lost(format!("{operation}: no answer within {} s", limit.as_secs_f64()).into())),
    }
}

/// Identity and newest revision of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The id of the cluster.
    pub cluster: u64,
    /// Its newest revision.
    pub revision: i64,
}

/// Connects to the `turn`-th endpoint, modulo their number, and checks that the cluster has a
/// leader. Files with credentials are read again. The head is unknown if the user lacks read
/// permission.
///
/// # Errors
/// [`Failure`], naming the endpoint.
pub async fn connect(config: &EtcdConfig, turn: usize) -> Result<(Client, Option<Head>), Failure> {
    config.check().map_err(|error| Failure::Refused(Cause::new(error)))?;
    let endpoint = config.endpoints.get(turn % config.endpoints.len()).map_or("", String::as_str);
    let pace = &config.pace;
    let mut options = ConnectOptions::new()
        .with_connect_timeout(pace.connect)
        .with_keep_alive(pace.keep_alive, pace.keep_alive_answer)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    let mut url = format!("http://{endpoint}");
    if let Some(tls) = tls(config)? {
        options = options.with_tls(tls);
        url = format!("https://{endpoint}");
    }
    if let Some((user, password)) = &config.user {
        options = options.with_user(user, reveal(password)?);
    }
    let named = |failure: Failure| match failure {
        Failure::Lost(cause) => Failure::Lost(located(place(config, endpoint, &cause), cause)),
        Failure::Refused(cause) => Failure::Refused(located(endpoint, cause)),
        other => other,
    };
    let mut client = within(pace.connect, "connecting", Client::connect([url], Some(options))).await.map_err(named)?;
    // Without a user, nothing has been sent yet. A refusal also proves that the cluster works.
    let probe = GetOptions::new().with_keys_only().with_limit(1);
    let probed = within(pace.request, "reading", client.get(format!("{}/calico/", config.key_prefix), Some(probe)));
    match probed.await {
        Ok(answer) => {
            let head = |header: &ResponseHeader| Head { cluster: header.cluster_id(), revision: header.revision() };
            Ok((client, answer.header().map(head)))
        }
        Err(Failure::Refused(_)) => Ok((client, None)),
        Err(failure) => Err(named(failure)),
    }
}

/// Returns the endpoint, with the reason if it is TLS.
fn place(config: &EtcdConfig, endpoint: &str, cause: &Cause) -> String {
    let authority = config.ca_file.as_deref().map(|file| format!("an authority in {}", file.display()));
    let error = with_causes(cause);
    // The client loses the alert that a server sends before it closes the connection.
    let missing = match (&config.ca_file, &config.cert_file) {
        (None, _) => Some("CA certificates, if the server expects TLS"),
        (Some(_), None) => Some("a client certificate, if the server requires one"),
        _ => None,
    };
    let missing = missing.filter(|_| error.contains("broken pipe") || error.contains("connection reset"));
    let reason = tls_reason(&error, authority.as_deref());
    match reason.or_else(|| missing.map(|missing| format!("closed by the server; this may need {missing}"))) {
        Some(reason) => format!("{endpoint}: {reason}"),
        None => endpoint.to_owned(),
    }
}

fn tls(config: &EtcdConfig) -> Result<Option<TlsOptions>, Failure> {
    let Some(ca) = &config.ca_file else { return Ok(None) };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
    if let (Some(cert), Some(key)) = (&config.cert_file, &config.key_file) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(Some(tls))
}

fn reveal(password: &Password) -> Result<String, Failure> {
    let file = match &password.0 {
        Secret::Text(password) => return Ok(password.clone()),
        Secret::File(file) => file,
    };
    let text = String::from_utf8(read(file)?);
    let text = text.map_err(|_| Failure::Lost(located(file.display().to_string(), "is not UTF-8 text".into())))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a file. A failure counts as temporary, because other programs renew credentials.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let lost = |cause| Failure::Lost(located(path.display().to_string(), cause));
    let metadata = std::fs::metadata(path).map_err(|error| lost(Cause::new(error)))?;
    if metadata.len() > MAX_FILE {
        return Err(lost(format!("is larger than {MAX_FILE} bytes").into()));
    }
    std::fs::read(path).map_err(|error| lost(Cause::new(error)))
}
