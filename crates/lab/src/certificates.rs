//! Certificates for tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

/// Number of authorities created so far.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate with its key and its authority, as PEM files.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority with a unique name.
    ///
    /// # Errors
    /// If its key cannot be generated.
    pub fn new() -> io::Result<Self> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two authorities of the same name would differ only in their signatures.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {number}"));
        let pem = params.self_signed(&key).map_err(io::Error::other)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Writes a certificate of this authority for these names and localhost, with its key, below
    /// `folder`.
    ///
    /// # Errors
    /// If a name is invalid, or a file cannot be written.
    pub fn issue(&self, folder: &Path, name: &str, common_name: &str, uri: Option<&str>) -> io::Result<Issued> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "tests");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names.push(SanType::DnsName("localhost".try_into().map_err(io::Error::other)?));
        if let Some(uri) = uri {
            params.subject_alt_names.push(SanType::URI(uri.try_into().map_err(io::Error::other)?));
        }
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        let file = |kind: &str, text: &str| {
            let path = folder.join(format!("{name}-{kind}.pem"));
            // A rename, so that no reader sees a partial file.
            let new = folder.join("new");
            fs::write(&new, text)?;
            fs::rename(&new, &path)?;
            Ok::<_, io::Error>(path)
        };
        Ok(Issued {
            authority: file("ca", &self.pem)?,
            certificate: file("cert", &certificate.pem())?,
            key: file("key", &key.serialize_pem())?,
        })
    }
}
