//! Access by TLS over real connections: only clients with the right certificate are served, and
//! others do not block them.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files, and fail where something is missing"
)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use tortie_fanout::client::ClientConfig;
use tortie_fanout::protocol::MAGIC;
use tortie_fanout::server::ServerConfig;
use tortie_fanout::tls::{PeerNames, TlsFiles, TlsSettings};
use tortie_lab::certificates::{Authority, Issued};

use support::{Client, client_config, config, eventually, quick, serve};

/// Returns settings with this certificate, this trusted authority, and this name of the peer.
fn tls(issued: &Issued, authority: &Path, peer: &str) -> Option<TlsSettings> {
    let Issued { certificate, key, .. } = issued.clone();
    let files = TlsFiles { authority: authority.into(), certificate, key };
    Some(TlsSettings { files, peer: PeerNames::new(Some(peer.into()), None).unwrap() })
}

/// Returns the error of a client that trusts this authority and presents no certificate.
fn without_certificate(server: std::net::SocketAddr, authority: &Path) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&fs::read(authority).unwrap()).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(server).unwrap());
    // The client sends nothing more: the server would not read it, and its answer could be lost.
    stream.read_exact(&mut [0]).unwrap_err().to_string()
}

#[test]
fn only_clients_with_an_accepted_name_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let [right, wrong] = [(); 2].map(|()| Authority::new().unwrap());
    let issue = |by: &Authority, who: &str, name: &str| by.issue(folder.path(), who, name, None).unwrap();
    let serving = issue(&right, "server", "typha-server");
    let felix = issue(&right, "felix", "felix");
    let mallory = issue(&right, "mallory", "mallory");
    let forged = issue(&wrong, "forged", "felix");
    let (ours, theirs) = (&felix.authority, &forged.authority);

    let (mut upstream, server) = serve(ServerConfig { tls: tls(&serving, ours, "felix"), ..quick() });
    upstream.send([config("A", "1")]);
    upstream.resync();
    let rejected = |by: &Issued| format!("the other side rejects the certificate in {}: ", by.certificate.display());
    let foreign = format!("the certificate of the other side does not come from an authority in {}", theirs.display());
    let client = |tls| Client::with(ClientConfig { tls, ..client_config(server.addresses(), None) });
    let mut good = client(tls(&felix, ours, "typha-server"));
    good.knows(&upstream.truth);

    for (number, (who, settings, why)) in [
        ("a client of another name", tls(&mallory, ours, "typha-server"), &*rejected(&mallory)),
        ("a client of another authority", tls(&forged, ours, "typha-server"), &rejected(&forged)),
        ("a client without TLS", None, "the server expects TLS, and no certificates are configured"),
        (
            "a server of another name",
            tls(&felix, ours, "typha"),
            "the certificate of the other side is for common name \"typha-server\", and not for common name \"typha\"",
        ),
        ("a server of another authority", tls(&felix, theirs, "typha-server"), &*foreign),
    ]
    .into_iter()
    .enumerate()
    {
        let failed = server.stats().handshakes_failed;
        let mut stranger = client(settings);
        stranger.until(who, |stranger| stranger.unavailable.iter().any(|reason| reason.contains(why)));
        eventually(who, || server.stats().handshakes_failed > failed);
        assert!(stranger.known.is_empty() && !stranger.in_sync(), "{who}");
        upstream.send([config("A", &number.to_string())]);
        good.knows(&upstream.truth);
    }

    let failed = server.stats().handshakes_failed;
    let answer = without_certificate(server.addresses()[0], ours);
    assert!(answer.contains("CertificateRequired"), "{answer}");
    let mut plain = TcpStream::connect(server.addresses()[0]).unwrap();
    plain.write_all(&MAGIC).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(&MAGIC), "{answer:?}");
    eventually("both have failed", || server.stats().handshakes_failed >= failed + 2);
    upstream.send([config("A", "last")]);
    good.knows(&upstream.truth);
    assert_eq!((good.resyncs(), good.unavailable.len()), (1, 0), "served clients notice nothing");
}
