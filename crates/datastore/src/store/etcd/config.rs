//! Address and credentials of etcd.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Port of clients of etcd, if a URL names none.
const PORT: u16 = 2379;

/// Address and credentials of an etcd cluster. [`FromStr`] reads
/// `etcd://HOST:PORT,HOST:PORT/PREFIX`. The default port is 2379, and the default host `127.0.0.1`.
///
/// ```
/// use tortie_datastore::store::etcd::EtcdConfig;
///
/// let mut config: EtcdConfig = "etcd://10.0.0.1:2379,10.0.0.2:2379".parse()?;
/// config.ca_file = Some("/etc/tortie/etcd-ca.pem".into());
/// config.user = Some(("felix".into(), "s3cret".to_owned().into()));
/// assert_eq!(config.endpoints, ["10.0.0.1:2379", "10.0.0.2:2379"]);
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), tortie_datastore::store::etcd::EtcdConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Host and port of each member, tried in turn.
    pub endpoints: Vec<String>,
    /// CA certificates (PEM) that sign the members' certificates. TLS is used if and only if it is
    /// set.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate, PEM.
    pub cert_file: Option<PathBuf>,
    /// The key of the client's certificate, PEM.
    pub key_file: Option<PathBuf>,
    /// User of etcd, and the password.
    pub user: Option<(String, Password)>,
    /// Prefix before `/calico/` in every key; empty for none.
    pub key_prefix: String,
    /// Timeouts and pauses.
    pub pace: EtcdPace,
}

/// Timeouts and pauses. The defaults are those of `libcalico-go/lib/backend/etcdv3/etcdv3.go` where
/// it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdPace {
    /// Timeout for a connection; 10 s by default.
    pub connect: Duration,
    /// Timeout for a response; 10 s by default.
    pub request: Duration,
    /// Interval of keep-alive pings on an idle connection; 10 s by default. etcd closes connections
    /// with more frequent pings than it permits (`--grpc-keepalive-min-time`, 5 s).
    pub keep_alive: Duration,
    /// Timeout for the response to such a ping; 10 s by default.
    pub keep_alive_answer: Duration,
    /// Upper bound of the first pause after a failure; 0.5 s by default.
    pub shortest_pause: Duration,
    /// Upper bound of any later pause; 15 s by default.
    pub longest_pause: Duration,
}

impl Default for EtcdPace {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(10),
            keep_alive: Duration::from_secs(10),
            keep_alive_answer: Duration::from_secs(10),
            shortest_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(15),
        }
    }
}

/// A secret that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub(super) Secret);

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    Text(String),
    File(PathBuf),
}

impl Password {
    /// Returns the password in a file, without line ends after it. The file is read for each
    /// connection.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Secret::File(path.into()))
    }
}

impl From<String> for Password {
    fn from(password: String) -> Self {
        Self(Secret::Text(password))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdConfigError {
    /// It does not begin with `etcd://`.
    #[error("must be etcd://HOST[:PORT],HOST[:PORT]")]
    Scheme,
    /// A member is not given as host and port.
    #[error("`{0}` is not HOST or HOST:PORT")]
    Endpoint(String),
    /// The URL contains a user or password, where other users would see it.
    #[error("user and password do not belong into the URL, where others can see them")]
    Credentials,
    /// A certificate without its key, or the other way round.
    #[error("a client certificate and its key must be given together")]
    HalfIdentity,
    /// A client certificate without TLS.
    #[error("a client certificate needs the CA certificates of the members, too")]
    IdentityWithoutCa,
}

impl FromStr for EtcdConfig {
    type Err = EtcdConfigError;

    fn from_str(text: &str) -> Result<Self, EtcdConfigError> {
        let rest = text.strip_prefix("etcd://").ok_or(EtcdConfigError::Scheme)?;
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if members.contains('@') {
            return Err(EtcdConfigError::Credentials);
        }
        let members = if members.is_empty() { "127.0.0.1" } else { members };
        let endpoints: Vec<String> = members.split(',').map(with_port).collect();
        if let Some(bad) = endpoints.iter().find(|endpoint| !is_host_and_port(endpoint)) {
            return Err(EtcdConfigError::Endpoint(bad.clone()));
        }
        let prefix = prefix.trim_matches('/');
        let key_prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        Ok(Self { endpoints, key_prefix, ..Self::default() })
    }
}

fn with_port(member: &str) -> String {
    let is_host = !member.is_empty() && (!member.contains(':') || member.ends_with(']'));
    if is_host { format!("{member}:{PORT}") } else { member.to_owned() }
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host_is_good = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')),
    };
    host_is_good && port.parse::<u16>().is_ok_and(|port| port != 0)
}

impl EtcdConfig {
    /// Checks that the parts are consistent. Files are not checked, because they are read for each
    /// connection.
    ///
    /// # Errors
    /// [`EtcdConfigError`].
    pub fn check(&self) -> Result<(), EtcdConfigError> {
        if let Some(bad) = self.endpoints.iter().find(|endpoint| !is_host_and_port(endpoint)) {
            return Err(EtcdConfigError::Endpoint(bad.clone()));
        }
        if self.endpoints.is_empty() {
            return Err(EtcdConfigError::Endpoint(String::new()));
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(EtcdConfigError::HalfIdentity);
        }
        if self.cert_file.is_some() && self.ca_file.is_none() {
            return Err(EtcdConfigError::IdentityWithoutCa);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
