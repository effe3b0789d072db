//! Certificates for tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// Certificate files of a new authority, of a server on loopback and of a client.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The certificate of the authority.
    pub ca: PathBuf,
    /// The certificate of the server, for `localhost` and 127.0.0.1.
    pub server: PathBuf,
    /// Its key.
    pub server_key: PathBuf,
    /// The certificate of the client.
    pub client: PathBuf,
    /// Its key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Creates the certificates, as PEM files in a directory.
    ///
    /// # Errors
    /// If a certificate cannot be created or a file written.
    pub fn write(folder: &Path) -> io::Result<Self> {
        let path = |name: &str| folder.join(name);
        let files = Self {
            ca: path("ca.pem"),
            server: path("server.pem"),
            server_key: path("server-key.pem"),
            client: path("client.pem"),
            client_key: path("client-key.pem"),
        };
        let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let authority = CertifiedIssuer::self_signed(params, key).map_err(io::Error::other)?;
        fs::write(&files.ca, authority.pem())?;
        // The server also presents its certificate to itself, through its built-in gateway.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for (names, uses, certificate, key_file) in [
            (vec!["localhost".to_owned(), "127.0.0.1".to_owned()], &both[..], &files.server, &files.server_key),
            (vec!["client".to_owned()], &both[1..], &files.client, &files.client_key),
        ] {
            let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
            params.extended_key_usages = uses.to_vec();
            let key = KeyPair::generate().map_err(io::Error::other)?;
            fs::write(certificate, params.signed_by(&key, &authority).map_err(io::Error::other)?.pem())?;
            fs::write(key_file, key.serialize_pem())?;
        }
        Ok(files)
    }
}
