use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tempfile::TempDir;
use tortie_lab::certificates::{Authority, Issued};

use super::*;
use crate::http::{Options, Response, Server, serve_with};

/// Two authorities; a server and a client of the first one, and a client of the other.
struct Party {
    folder: TempDir,
    authority: Authority,
    server: Issued,
    friend: Issued,
    stranger: Issued,
}

impl Party {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let [authority, other] = [Authority::new().unwrap(), Authority::new().unwrap()];
        let server = authority.issue(folder.path(), "server", "metrics", None).unwrap();
        let friend = authority.issue(folder.path(), "friend", "prometheus", None).unwrap();
        let stranger = other.issue(folder.path(), "stranger", "prometheus", None).unwrap();
        Self { folder, authority, server, friend, stranger }
    }

    fn files(&self, clients: ClientCertificates) -> Tls {
        Tls {
            certificate: self.server.certificate.clone(),
            key: self.server.key.clone(),
            authority: (clients != ClientCertificates::NotAsked).then(|| self.server.authority.clone()),
            clients,
        }
    }

    fn serve(&self, clients: ClientCertificates) -> Server {
        let options = Options { tls: Some(self.files(clients)), ..Options::default() };
        serve_with(options, "127.0.0.1:0", "test", |path| match path {
            "/big" => Response::text(200, "x".repeat(4 << 20)),
            _ => Response::text(200, "well\n"),
        })
        .unwrap()
    }

    fn ask(&self, address: SocketAddr, path: &str, shown: Option<&Issued>) -> io::Result<String> {
        ask(address, path, &self.server.authority, shown)
    }
}

fn ask(address: SocketAddr, path: &str, authority: &Path, shown: Option<&Issued>) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    certificates(authority)?.into_iter().for_each(|certificate| roots.add(certificate).unwrap());
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let key = PrivateKeyDer::from_pem_slice(&read(&issued.key)?).unwrap();
            builder.with_client_auth_cert(certificates(&issued.certificate)?, key).unwrap()
        }
    };
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn clients_are_asked_for_as_much_as_is_wanted() {
    use ClientCertificates::{Any, NotAsked, Verified, VerifiedIfGiven};
    let party = Party::new();
    // Whether a client without a certificate, one of the authority, and one of another authority
    // are answered.
    for (clients, answered) in [
        (NotAsked, [true, true, true]),
        (Any, [false, true, true]),
        (VerifiedIfGiven, [true, true, false]),
        (Verified, [false, true, false]),
    ] {
        let server = party.serve(clients);
        for (shown, is_answered) in [None, Some(&party.friend), Some(&party.stranger)].into_iter().zip(answered) {
            let answer = party.ask(server.address(), "/metrics", shown);
            let is_right = match &answer {
                Ok(text) => is_answered && text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nwell\n"),
                Err(_) => !is_answered,
            };
            assert!(is_right, "{clients:?}, {shown:?}: {answer:?}");
        }
    }
}

#[test]
fn a_large_answer_arrives_whole_beside_silent_and_non_tls_clients() {
    let party = Party::new();
    let server = party.serve(ClientCertificates::NotAsked);
    let address = server.address();
    let _idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let answer = party.ask(address, "/big", None).unwrap();
    assert!(answer.ends_with(&"x".repeat(4 << 20)), "{} bytes", answer.len());
    let mut refused = Vec::new();
    let _ = plain.read_to_end(&mut refused);
    assert!(!refused.starts_with(b"HTTP"), "answered without TLS");
}

#[test]
fn a_certificate_that_changes_is_shown_and_one_that_is_of_no_use_is_not() {
    let party = Party::new();
    let server = party.serve(ClientCertificates::NotAsked);
    let request = |authority: &Path| ask(server.address(), "/metrics", authority, None);
    request(&party.server.authority).unwrap();
    fs::write(&party.server.certificate, "nothing\n").unwrap();
    std::thread::sleep(LOOK * 2);
    request(&party.server.authority).unwrap();
    // The files are replaced under the same names by those of another authority; only a handshake
    // shows which ones are in use.
    let old = party.folder.path().join("old.pem");
    fs::copy(&party.server.authority, &old).unwrap();
    let new = Authority::new().unwrap().issue(party.folder.path(), "server", "metrics", None).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while request(&new.authority).is_err() {
        assert!(Instant::now() < end, "the new certificate is not shown");
        std::thread::sleep(Duration::from_millis(100));
    }
    request(&old).unwrap_err();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let party = Party::new();
    let error_of = |change: &dyn Fn(&mut Tls)| {
        let mut files = party.files(ClientCertificates::Verified);
        change(&mut files);
        Reloading::new(files).err().map(|error| with_causes(&error)).unwrap_or_default()
    };
    assert_eq!(error_of(&|_| ()), "");
    assert!(error_of(&|files| files.key = PathBuf::new()).contains("one of the two is not given"));
    assert!(error_of(&|files| files.key = "/nowhere/key".into()).starts_with("/nowhere/key: "));
    assert!(error_of(&|files| files.authority = None).contains("without the authority's"));
    assert!(error_of(&|files| files.certificate = files.key.clone()).ends_with("holds no certificates in PEM form"));
    let other = party.authority.issue(party.folder.path(), "other", "other", None).unwrap();
    assert!(!error_of(&|files| files.key = other.key.clone()).is_empty());
}
