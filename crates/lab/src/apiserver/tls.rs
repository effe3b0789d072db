//! Certificates for tests.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::GatedStream;
use super::serve::Stream;

/// Client certificate lines of the kubeconfig's user.
pub(super) const USER: &str = "\n    client-certificate: DIR/client.pem\n    client-key: DIR/client.key";

/// Creates an authority and certificates of server and client, and writes the client's files to the
/// directory.
pub(super) fn prepare(dir: &Path) -> io::Result<Arc<ServerConfig>> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "test authority");
    let authority = params.self_signed(&key).map_err(io::Error::other)?;
    std::fs::write(dir.join("ca.pem"), authority.pem())?;
    let issuer = Issuer::new(params, key);
    let (client, client_key) = signed(&issuer, "test", Vec::new(), ExtendedKeyUsagePurpose::ClientAuth)?;
    std::fs::write(dir.join("client.pem"), client.pem())?;
    std::fs::write(dir.join("client.key"), client_key.serialize_pem())?;
    let names = vec!["localhost".into(), "127.0.0.1".into()];
    let (server, server_key) = signed(&issuer, "server", names, ExtendedKeyUsagePurpose::ServerAuth)?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).map_err(io::Error::other)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::try_from(server_key.serialize_der()).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![CertificateDer::from(server.der().to_vec())], key)
        .map_err(io::Error::other)?;
    Ok(Arc::new(config))
}

fn signed(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    names: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
) -> io::Result<(rcgen::Certificate, KeyPair)> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages.push(usage);
    let certificate = params.signed_by(&key, issuer).map_err(io::Error::other)?;
    Ok((certificate, key))
}

/// Returns a connection with the handshake at first use, or an ended one if TLS cannot be set up.
pub(super) fn accept(config: &Arc<ServerConfig>, stream: GatedStream) -> Box<dyn Stream> {
    match ServerConnection::new(Arc::clone(config)) {
        Ok(connection) => Box::new(StreamOwned::new(connection, stream)),
        Err(_) => Box::new(io::Cursor::new(Vec::new())),
    }
}
