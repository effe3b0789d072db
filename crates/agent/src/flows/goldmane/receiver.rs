//! To whom flows are sent.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Somebody who takes flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A server.
    Server {
        /// `host:port`.
        address: String,
        /// What TLS is spoken with; `None` for no TLS.
        tls: Option<TlsFiles>,
    },
    /// Whoever listens on a socket of this node. While there is no such socket, flows for it are forgotten.
    Socket(PathBuf),
}

/// Files, as PEM. They are read for each connection, so that new ones need no new start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities of the server.
    pub authority: PathBuf,
    /// This end's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// An address that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not HOST:PORT or unix:PATH")]
pub struct ReceiverError;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// A file of TLS cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// One of the files is not named.
    #[error("TLS needs {0}, which is not set")]
    Incomplete(&'static str),
    /// The server cannot be reached, or TLS cannot be spoken with it.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

impl Receiver {
    /// The receiver at an address such as gRPC takes it: `HOST:PORT`, with or without `dns:///` or `passthrough:///` before it,
    /// or `unix:PATH`.
    ///
    /// # Errors
    /// If it is nothing of the kind.
    pub fn parse(address: &str, tls: Option<TlsFiles>) -> Result<Self, ReceiverError> {
        if let Some(path) = address.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            return if path.has_root() { Ok(Self::Socket(path.into())) } else { Err(ReceiverError) };
        }
        let prefixes = ["dns:///", "passthrough:///"];
        let address = prefixes.iter().find_map(|prefix| address.strip_prefix(prefix)).unwrap_or(address);
        let (host, port) = address.rsplit_once(':').ok_or(ReceiverError)?;
        port.parse::<u16>().map_err(|_| ReceiverError)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match bracketed {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
        };
        if !is_host {
            return Err(ReceiverError);
        }
        Ok(Self::Server { address: address.to_owned(), tls })
    }

    /// Connects, within a time.
    pub(super) async fn connect(&self, within: Duration) -> Result<Channel, ConnectError> {
        let endpoint = match self {
            Self::Socket(path) => Endpoint::from_shared(format!("unix:{}", path.display()))?,
            Self::Server { address, tls: None } => Endpoint::from_shared(format!("http://{address}"))?,
            Self::Server { address, tls: Some(files) } => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let name = host.trim_start_matches('[').trim_end_matches(']');
                Endpoint::from_shared(format!("https://{address}"))?.tls_config(files.read()?.domain_name(name))?
            }
        };
        // No pings of HTTP/2: servers of gRPC in Go take them for an attack. Receipts tell that a server lives.
        Ok(endpoint.connect_timeout(within).tcp_nodelay(true).connect().await?)
    }
}

impl TlsFiles {
    fn read(&self) -> Result<ClientTlsConfig, ConnectError> {
        let read = |path: &Path, parameter| {
            if path.as_os_str().is_empty() {
                return Err(ConnectError::Incomplete(parameter));
            }
            std::fs::read(path).map_err(|error| ConnectError::File { path: path.into(), error })
        };
        let authority = read(&self.authority, "TyphaCAFile")?;
        let certificate = read(&self.certificate, "TyphaCertFile")?;
        let key = read(&self.key, "TyphaKeyFile")?;
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        Ok(tls.identity(Identity::from_pem(certificate, key)))
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { address, .. } => f.write_str(address),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_grpc_reads_them() {
        let server = |address: &str| Ok(Receiver::Server { address: address.to_owned(), tls: None });
        let socket = |path: &str| Ok(Receiver::Socket(path.into()));
        let cases = [
            ("goldmane.calico-system.svc:7443", server("goldmane.calico-system.svc:7443")),
            ("dns:///goldmane:7443", server("goldmane:7443")),
            ("passthrough:///10.0.0.1:7443", server("10.0.0.1:7443")),
            ("[fd00::1]:7443", server("[fd00::1]:7443")),
            ("unix:///run/flows.sock", socket("/run/flows.sock")),
            ("unix:/run/flows.sock", socket("/run/flows.sock")),
            ("unix:flows.sock", Err(ReceiverError)),
            ("goldmane", Err(ReceiverError)),
            ("goldmane:", Err(ReceiverError)),
            ("goldmane:70000", Err(ReceiverError)),
            (":7443", Err(ReceiverError)),
            ("fd00::1:7443", Err(ReceiverError)),
            ("http://goldmane:7443", Err(ReceiverError)),
            ("a b:7443", Err(ReceiverError)),
        ];
        for (address, expected) in cases {
            assert_eq!(Receiver::parse(address, None), expected, "{address}");
        }
    }
}
