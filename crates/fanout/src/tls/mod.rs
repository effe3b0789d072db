//! TLS for clients and servers, as in Typha (`libcalico-go/lib/tls`, `typha/pkg/syncserver`,
//! `typha/pkg/syncclient`).
//!
//! TLS 1.2 or later. Both sides present a certificate and verify the peer's: it must come from the
//! authority and have one of the required names. Host names do not matter. Changed files are read
//! again.

mod explain;
mod names;
mod verify;

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tortie_model::with_causes;

use self::explain::{ClientStream, explain};
use self::verify::{ClientByName, ServerByName};

/// Minimum interval between checks of the files for changes.
const LOOK: Duration = Duration::from_secs(1);

/// PEM files of the local certificate and its key, and of the trusted authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities from which the peer's certificate must come.
    pub authority: PathBuf,
    /// Local certificate, with the intermediate certificates up to the authority.
    pub certificate: PathBuf,
    /// Private key of the local certificate.
    pub key: PathBuf,
}

/// Names of which the peer's certificate must have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNames {
    common_name: Option<String>,
    uri_san: Option<String>,
}

/// TLS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The files.
    pub files: TlsFiles,
    /// Accepted names of the peer.
    pub peer: PeerNames,
}

/// Reason why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A required setting is missing.
    #[error(
        "TLS needs a certificate, its key, the authority's certificate, and a common name or URI that the other side must have: {0} is missing"
    )]
    Incomplete(&'static str),
    /// A file cannot be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason, which never contains file contents.
        reason: &'static str,
    },
    /// A file cannot be read.
    #[error("{}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The certificate and the key do not match, or the authority is unusable.
    #[error("the certificates cannot be used")]
    Unusable(#[source] Box<dyn Error + Send + Sync>),
}

impl PeerNames {
    /// Creates the accepted names: a common name of the certificate's subject, a URI among its
    /// alternative names, or both. Returns `None` if neither is given, because every certificate of
    /// the authority would be accepted. Empty texts count as absent.
    #[must_use]
    pub fn new(common_name: Option<String>, uri_san: Option<String>) -> Option<Self> {
        let given = |name: Option<String>| name.filter(|name| !name.is_empty());
        let names = Self { common_name: given(common_name), uri_san: given(uri_san) };
        (names.common_name.is_some() || names.uri_san.is_some()).then_some(names)
    }
}

impl TlsSettings {
    /// Combines optional settings. None of them means no TLS; if one is given, all are required
    /// (`typha/pkg/syncserver/sync_server.go`).
    ///
    /// # Errors
    /// [`TlsError::Incomplete`].
    pub fn from_parts(
        authority: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        common_name: Option<String>,
        uri_san: Option<String>,
    ) -> Result<Option<Self>, TlsError> {
        let peer = PeerNames::new(common_name, uri_san);
        if authority.is_none() && certificate.is_none() && key.is_none() && peer.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            files: TlsFiles {
                authority: authority.ok_or(TlsError::Incomplete("the authority"))?,
                certificate: certificate.ok_or(TlsError::Incomplete("the certificate"))?,
                key: key.ok_or(TlsError::Incomplete("the key"))?,
            },
            peer: peer.ok_or(TlsError::Incomplete("the other side's name"))?,
        }))
    }
}

/// Connection with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connection with or without TLS.
pub(crate) type BoxStream = Box<dyn Stream>;

/// Server side of TLS. Reads changed files again; if the new ones are unusable, the previous ones
/// stay in use.
pub(crate) struct Acceptor {
    files: Reloading<ServerConfig>,
}

impl Acceptor {
    pub(crate) fn new(settings: TlsSettings) -> Result<Self, TlsError> {
        Ok(Self { files: Reloading::new(settings, server_config)? })
    }

    pub(crate) async fn accept(&self, stream: impl Stream + 'static) -> io::Result<BoxStream> {
        let accepted = TlsAcceptor::from(self.files.current()).accept(stream).await;
        Ok(Box::new(accepted.map_err(|error| explain(error, &self.files.settings.files))?))
    }
}

/// Client side of TLS.
pub(crate) struct Connector {
    files: Reloading<ClientConfig>,
}

impl Connector {
    pub(crate) fn new(settings: TlsSettings) -> Result<Self, TlsError> {
        Ok(Self { files: Reloading::new(settings, client_config)? })
    }

    /// Connects. `server` is sent as server name, as by any client; the server's certificate need
    /// not have it.
    pub(crate) async fn connect(&self, server: &str, stream: impl Stream + 'static) -> io::Result<BoxStream> {
        let name = ServerName::try_from(server.to_owned())
            .or_else(|_| ServerName::try_from("typha"))
            .map_err(io::Error::other)?;
        let files = &self.files.settings.files;
        let connected = TlsConnector::from(self.files.current()).connect(name, stream).await;
        Ok(Box::new(ClientStream::new(connected.map_err(|error| explain(error, files))?, Some(files.clone()))))
    }
}

/// Returns the connection of a client without TLS.
pub(crate) fn plain(stream: impl Stream + 'static) -> BoxStream {
    Box::new(ClientStream::new(stream, None))
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acceptor").field(&self.files.settings).finish()
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connector").field(&self.files.settings).finish()
    }
}

type Stamps = [Option<(SystemTime, u64)>; 3];

/// Configuration that is read again when its files change.
struct Reloading<C> {
    settings: TlsSettings,
    build: fn(&TlsSettings) -> Result<C, TlsError>,
    current: Mutex<Loaded<C>>,
}

struct Loaded<C> {
    config: Arc<C>,
    stamps: Stamps,
    looked: Instant,
}

impl<C> Reloading<C> {
    fn new(settings: TlsSettings, build: fn(&TlsSettings) -> Result<C, TlsError>) -> Result<Self, TlsError> {
        // Taken before the files are read, so that a change in between causes another read.
        let stamps = stamps(&settings.files);
        let config = Arc::new(build(&settings)?);
        Ok(Self { settings, build, current: Mutex::new(Loaded { config, stamps, looked: Instant::now() }) })
    }

    fn current(&self) -> Arc<C> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= LOOK {
            current.looked = Instant::now();
            let stamps = stamps(&self.settings.files);
            if stamps != current.stamps {
                current.stamps = stamps;
                match (self.build)(&self.settings) {
                    Ok(config) => {
                        tracing::info!("the certificates have changed and have been read again");
                        current.config = Arc::new(config);
                    }
                    Err(error) => {
                        tracing::error!(error = %with_causes(&error), "the certificates have changed but cannot be used; the old ones stay");
                    }
                }
            }
        }
        Arc::clone(&current.config)
    }
}

fn stamps(files: &TlsFiles) -> Stamps {
    [&files.authority, &files.certificate, &files.key].map(|path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

fn server_config(settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
    let provider = provider();
    let (chain, key) = identity(&settings.files)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(authorities(&settings.files)?.into(), provider.clone())
        .build()
        .map_err(unusable)?;
    let verifier = ClientByName::new(verifier, settings.peer.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(unusable)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    // A resumed session would skip the verification of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client_config(settings: &TlsSettings) -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let (chain, key) = identity(&settings.files)?;
    let verifier = ServerByName::new(authorities(&settings.files)?, &provider, settings.peer.clone());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .map_err(unusable)?;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unusable(error: impl Error + Send + Sync + 'static) -> TlsError {
    TlsError::Unusable(error.into())
}

fn authorities(files: &TlsFiles) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.authority)? {
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn identity(files: &TlsFiles) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|_| TlsError::File { path: files.key.clone(), reason: "holds no private key in PEM form" })?;
    Ok((certificates(&files.certificate)?, key))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let none = || TlsError::File { path: path.into(), reason: "holds no certificates in PEM form" };
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(|_| none())?;
    if certificates.is_empty() { Err(none()) } else { Ok(certificates) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Unreadable { path: path.into(), error })
}

#[cfg(test)]
pub(crate) mod tests;
