//! Access by certificate: all combinations of required names and names in the certificate.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tortie_lab::certificates::{Authority, Issued};

use super::{Acceptor, Connector, PeerNames, TlsError, TlsFiles, TlsSettings};

/// Writes a certificate with these names below `folder`.
pub(crate) fn issue(by: &Authority, folder: &Path, who: &str, common_name: &str, uri: Option<&str>) -> TlsFiles {
    let Issued { authority, certificate, key } = by.issue(folder, who, common_name, uri).unwrap();
    TlsFiles { authority, certificate, key }
}

fn names(common_name: &str, uri: &str) -> PeerNames {
    PeerNames::new(Some(common_name.into()), Some(uri.into())).unwrap()
}

/// Whether both sides are content with each other: a byte goes there and one comes back.
fn talk(server: &Acceptor, client: &Connector) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (here, there) = duplex(64 * 1024);
        let serve = async {
            let mut stream = server.accept(there).await?;
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            stream.flush().await
        };
        let ask = async {
            let mut stream = client.connect("127.0.0.1", here).await?;
            stream.write_u8(7).await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        let both = async { tokio::join!(serve, ask) };
        let (served, answer) = tokio::time::timeout(Duration::from_secs(5), both).await.unwrap();
        served.is_ok() && answer.is_ok_and(|byte| byte == 7)
    })
}

#[test]
fn either_name_is_enough_where_both_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new().unwrap();
    let server_files = issue(&authority, folder.path(), "server", "typha-server", Some("spiffe://c/typha"));
    let client_cn = "felix";
    let client_uri = "spiffe://c/felix";
    for borne_cn in [client_cn, "mallory"] {
        for borne_uri in [None, Some(client_uri), Some("spiffe://c/mallory")] {
            let files = issue(&authority, folder.path(), "client", borne_cn, borne_uri);
            let client =
                Connector::new(TlsSettings { files: files.clone(), peer: names("typha-server", "spiffe://c/other") });
            let client = client.unwrap();
            for (cn, uri) in [(client_cn, client_uri), (client_cn, ""), ("", client_uri)] {
                let settings = TlsSettings { files: server_files.clone(), peer: names(cn, uri) };
                let wanted = borne_cn == cn || (!uri.is_empty() && borne_uri == Some(uri));
                let server = Acceptor::new(settings).unwrap();
                assert_eq!(talk(&server, &client), wanted, "bears {borne_cn} {borne_uri:?}, wanted {cn:?} {uri:?}");
            }
        }
    }
}

#[test]
fn clients_are_as_picky_as_servers() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new().unwrap();
    let settings = |files: &TlsFiles, cn: &str, uri: &str| TlsSettings { files: files.clone(), peer: names(cn, uri) };
    let server_files = issue(&authority, folder.path(), "server", "typha-server", Some("spiffe://c/typha"));
    let client_files = issue(&authority, folder.path(), "client", "felix", None);
    let server = Acceptor::new(settings(&server_files, "felix", "")).unwrap();
    for (cn, uri, wanted) in [
        ("typha-server", "", true),
        ("", "spiffe://c/typha", true),
        ("typha-server", "spiffe://c/x", true),
        ("x", "spiffe://c/typha", true),
        ("x", "", false),
        ("", "spiffe://c/x", false),
        ("Typha-Server", "", false),
    ] {
        let client = Connector::new(settings(&client_files, cn, uri)).unwrap();
        assert_eq!(talk(&server, &client), wanted, "{cn:?} {uri:?}");
    }
    // The right name, from another authority.
    let forged = issue(&Authority::new().unwrap(), folder.path(), "forged", "felix", Some("spiffe://c/felix"));
    let trusting = TlsFiles { authority: client_files.authority, ..forged };
    let client = Connector::new(settings(&trusting, "typha-server", "")).unwrap();
    assert!(!talk(&server, &client));
}

#[test]
fn changed_files_are_read_again_and_bad_ones_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new().unwrap();
    let server_files = issue(&authority, folder.path(), "server", "old", None);
    let client_files = issue(&authority, folder.path(), "client", "felix", None);
    let server = Acceptor::new(TlsSettings { files: server_files.clone(), peer: names("felix", "") }).unwrap();
    let client = |name| Connector::new(TlsSettings { files: client_files.clone(), peer: names(name, "") }).unwrap();
    let look_again = || server.files.current.lock().unwrap().looked -= super::LOOK;
    assert!(talk(&server, &client("old")));
    fs::write(&server_files.certificate, "nothing").unwrap();
    look_again();
    assert!(talk(&server, &client("old")));
    issue(&authority, folder.path(), "server", "a-new-name", None);
    look_again();
    assert!(talk(&server, &client("a-new-name")) && !talk(&server, &client("old")));
}

#[test]
fn settings_belong_together() {
    let path = |name: &str| Some(name.into());
    assert!(matches!(TlsSettings::from_parts(None, None, None, None, Some(String::new())), Ok(None)));
    let incomplete = TlsSettings::from_parts(path("ca"), path("cert"), path("key"), None, None);
    assert!(matches!(incomplete, Err(TlsError::Incomplete("the other side's name"))));
    let incomplete = TlsSettings::from_parts(None, None, None, Some("cn".into()), None);
    assert!(matches!(incomplete, Err(TlsError::Incomplete("the authority"))));
    assert!(TlsSettings::from_parts(path("ca"), path("cert"), path("key"), Some("cn".into()), None).unwrap().is_some());
}
