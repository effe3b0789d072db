use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;
use tortie_model::{ConfigName, HostEndpoint, HostEndpointKey, Valid};

use super::*;

fn record() -> Record {
    let endpoint = HostEndpoint { iface: Some("eth0".parse().unwrap()), ..HostEndpoint::default() };
    let key = HostEndpointKey { host: "n1".into(), name: "host".into() };
    let connection = ManagementConnection {
        remote: "198.51.100.7:54321".parse().unwrap(),
        local: "192.0.2.1:22".parse().unwrap(),
        interface: Some("eth0".into()),
    };
    Record {
        objects: vec![
            Object(Update::HostEndpoint(key, Valid::new(endpoint).ok())),
            Object(Update::GlobalConfig(ConfigName::new("FailsafeInboundHostPorts"), Some("none".into()))),
        ],
        held: Some(HeldRecord { since_ms: 7, boot: "b".into(), connections: vec![connection] }),
    }
}

#[test]
fn a_record_that_an_earlier_version_wrote_is_read_and_replaced() {
    let folder = TempDir::new().unwrap();
    let mut store = Store::new(folder.path(), "n1", "file:/a");
    fs::create_dir(folder.path().join("host-changes")).unwrap();
    let body = r#"{"objects":[["/calico/v1/host/n1/endpoint/host","{\"name\":\"eth0\"}"],["/calico/v1/config/FailsafeInboundHostPorts","none"]],"held":{"since_ms":7,"boot":"b","connections":[{"remote":"198.51.100.7:54321","local":"192.0.2.1:22","interface":"eth0"}]}}"#;
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(store.place(), format!("tortie-host-changes 1\n{digest}\n{body}")).unwrap();
    assert_eq!(store.load().unwrap(), Some(record()));
    store.put(record()).unwrap();
    let text = fs::read_to_string(store.place()).unwrap();
    assert!(text.starts_with("tortie-journal 1 host-changes\n{\"held\":{\"since_ms\":7,"), "{text}");
    assert_eq!(store.load().unwrap(), Some(record()));

    fs::write(store.place(), format!("tortie-host-changes 1\n{digest}\n{}", body.replace("eth0", "eth1"))).unwrap();
    assert!(store.load().unwrap_err().to_string().contains(":2: is not the digest of the file"));
    let unknown = body.replace("/calico/v1/host/", "/calico/v1/nothing/");
    let digest: String = Sha256::digest(&unknown).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(store.place(), format!("tortie-host-changes 1\n{digest}\n{unknown}")).unwrap();
    assert!(store.load().unwrap_err().to_string().contains(":3: /calico/v1/nothing/n1/endpoint/host is not an object"));
}

#[test]
fn a_record_is_valid_for_its_node_and_datastore_alone() {
    let folder = TempDir::new().unwrap();
    let mut store = Store::new(folder.path(), "n1", "file:/a");
    assert_eq!(store.load().unwrap(), None);
    store.put(record()).unwrap();
    store.put(Record::default()).unwrap();
    store.put(record()).unwrap();
    assert_eq!(Store::new(folder.path(), "n1", "file:/a").load().unwrap(), Some(record()));
    assert_eq!(Store::new(folder.path(), "n2", "file:/a").load().unwrap(), None);
    assert_eq!(Store::new(folder.path(), "n1", "file:/b").load().unwrap(), None);
    fs::set_permissions(store.place(), fs::Permissions::from_mode(0o620)).unwrap();
    assert!(
        Store::new(folder.path(), "n1", "file:/a").load().unwrap_err().to_string().contains("others may write into it")
    );
    fs::set_permissions(store.place(), fs::Permissions::from_mode(0o600)).unwrap();
    let text = fs::read_to_string(store.place()).unwrap();
    fs::write(store.place(), text.replace("eth0", "eth1")).unwrap();
    let edited = Store::new(folder.path(), "n1", "file:/a").load().unwrap_err().to_string();
    assert!(edited.contains(":5: is not the digest of the file"), "{edited}");
    store.remove().unwrap();
    store.remove().unwrap();
    assert_eq!(store.load().unwrap(), None);
}

#[test]
fn an_unwritable_directory_is_an_error() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("host-changes"), "").unwrap();
    assert!(Store::new(folder.path(), "n1", "file:/a").put(record()).is_err());
}
