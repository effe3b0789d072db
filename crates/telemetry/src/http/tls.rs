//! HTTP over TLS, as Felix answers metrics (`libcalico-go/lib/metricsserver`): version 1.2 or
//! later, files read again when they have changed.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};
use tortie_model::with_causes;

use super::{ClientCertificates, Tls};

/// Minimum time between checks whether the files have changed.
const LOOK: Duration = Duration::from_secs(1);

type Stamp = Option<(SystemTime, u64)>;

/// TLS configuration from the current files. If they cannot be used after a change, the former
/// configuration stays.
pub(super) struct Reloading {
    files: Tls,
    current: Arc<ServerConfig>,
    stamps: Vec<Stamp>,
    looked: Instant,
}

impl Reloading {
    /// Reads the files.
    ///
    /// # Errors
    /// If they cannot be used; never with anything that they hold.
    pub(super) fn new(files: Tls) -> io::Result<Self> {
        // Taken before the files are read: a file that changes meanwhile is read again.
        let stamps = stamps(&files);
        let current = Arc::new(server_config(&files)?);
        Ok(Self { files, current, stamps, looked: Instant::now() })
    }

    pub(super) fn current(&mut self) -> Arc<ServerConfig> {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let stamps = stamps(&self.files);
            if stamps != self.stamps {
                self.stamps = stamps;
                match server_config(&self.files) {
                    Ok(config) => {
                        tracing::info!("the certificate of a listener has changed and has been read again");
                        self.current = Arc::new(config);
                    }
                    Err(error) => tracing::error!(
                        error = %with_causes(&error),
                        "the certificate of a listener has changed but cannot be used; the old one stays"
                    ),
                }
            }
        }
        Arc::clone(&self.current)
    }
}

fn stamps(files: &Tls) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    [&files.certificate, &files.key].into_iter().chain(&files.authority).map(stamp).collect()
}

fn server_config(files: &Tls) -> io::Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|_| unusable(&files.key, "holds no private key in PEM form"))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(io::Error::other)?;
    let builder = match client_verifier(files, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(certificates(&files.certificate)?, key)
        .map_err(|error| unusable(&files.certificate, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would not verify the client's certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client_verifier(files: &Tls, provider: Arc<CryptoProvider>) -> io::Result<Option<Arc<dyn ClientCertVerifier>>> {
    let of_authority = || {
        let Some(authority) = &files.authority else {
            return Err(io::Error::other("certificates of clients cannot be verified without the authority's"));
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(|error| unusable(authority, error))?;
        }
        Ok(WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)))
    };
    Ok(match files.clients {
        ClientCertificates::NotAsked => None,
        ClientCertificates::Any => Some(Arc::new(AnyCertificate(provider))),
        ClientCertificates::VerifiedIfGiven => {
            Some(of_authority()?.allow_unauthenticated().build().map_err(io::Error::other)?)
        }
        ClientCertificates::Verified => Some(of_authority()?.build().map_err(io::Error::other)?),
    })
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(unusable(path, "holds no certificates in PEM form")),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path.as_os_str().is_empty() {
        return Err(io::Error::other("TLS needs a certificate and its key: one of the two is not given"));
    }
    fs::read(path).map_err(|error| unusable(path, error))
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
struct UnusableFile {
    path: PathBuf,
    #[source]
    error: Box<dyn Error + Send + Sync>,
}

fn unusable(path: &Path, error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::other(UnusableFile { path: path.to_owned(), error: error.into() })
}

/// Requires a certificate, and proof that the client has its key; the issuer does not matter.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
