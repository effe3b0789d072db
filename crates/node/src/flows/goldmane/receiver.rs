//! Receivers of flows.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tortie_config::GrpcServer;

/// A receiver of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A server.
    Server {
        /// `host:port`.
        address: String,
        /// Files for TLS; `None` for no TLS.
        tls: Option<TlsFiles>,
    },
    /// The process that listens on a socket of this node. While the socket is missing, flows for it
    /// are dropped.
    Socket(PathBuf),
}

/// Files in PEM form. They are read for each connection, so that new ones need no restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities of the server.
    pub authority: PathBuf,
    /// This end's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("TLS needs {0}, which is not set")]
    Incomplete(&'static str),
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

impl Receiver {
    /// Returns the receiver at an address.
    #[must_use]
    pub fn new(server: &GrpcServer, tls: Option<TlsFiles>) -> Self {
        match server {
            GrpcServer::Socket(path) => Self::Socket(path.clone()),
            GrpcServer::Address(address) => Self::Server { address: address.clone(), tls },
        }
    }

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
        // No HTTP/2 pings: gRPC servers in Go take them for an attack. Receipts show that a server
        // is alive.
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
