use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;
use tortie_model::{ConfigName, HostEndpoint, HostEndpointKey, Valid};

use super::*;

fn record() -> Record {
    let endpoint = HostEndpoint { iface: Some("eth0".into()), ..HostEndpoint::default() };
    let key = HostEndpointKey { host: "n1".into(), name: "host".into() };
    let connection = ManagementConnection {
        remote: "198.51.100.7:54321".parse().unwrap(),
        local: "192.0.2.1:22".parse().unwrap(),
        interface: Some("eth0".into()),
    };
    Record {
        objects: vec![
            Update::HostEndpoint(key, Valid::new(endpoint).ok()),
            Update::GlobalConfig(ConfigName::new("FailsafeInboundHostPorts"), Some("none".into())),
        ],
        held: Some(HeldRecord { since_ms: 7, boot: "b".into(), connections: vec![connection] }),
    }
}

#[test]
fn what_is_written_is_read_and_what_is_torn_or_changed_is_not() {
    let bytes = record().encode();
    assert_eq!(Record::parse(&bytes), Ok(record()));
    for end in 0..bytes.len() {
        assert!(Record::parse(&bytes[..end]).is_err(), "{end} bytes of {}", bytes.len());
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(Record::parse(&changed).is_err(), "byte {at}");
    }
    let sealed = |body: &str| format!("{MAGIC}\n{}\n{body}", digest(body.as_bytes()));
    for body in ["{}", "[]", r#"{"objects":[["/calico/v1/nothing","x"]],"held":null}"#] {
        assert_eq!(Record::parse(sealed(body).as_bytes()), Err(RecordError::Content), "{body}");
    }
}

#[test]
fn a_record_is_there_for_its_node_and_datastore_alone() {
    let folder = TempDir::new().unwrap();
    let mut store = Store::new(folder.path(), "n1", "file:/a");
    assert_eq!(store.load().unwrap(), None);
    store.put(&record()).unwrap();
    store.put(&Record::default()).unwrap();
    store.put(&record()).unwrap();
    assert_eq!(Store::new(folder.path(), "n1", "file:/a").load().unwrap(), Some(record()));
    assert_eq!(Store::new(folder.path(), "n2", "file:/a").load().unwrap(), None);
    assert_eq!(Store::new(folder.path(), "n1", "file:/b").load().unwrap(), None);
    fs::set_permissions(store.place(), fs::Permissions::from_mode(0o620)).unwrap();
    assert!(Store::new(folder.path(), "n1", "file:/a").load().unwrap_err().to_string().contains("no other user"));
    fs::set_permissions(store.place(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(store.place(), &record().encode()[..40]).unwrap();
    let torn = Store::new(folder.path(), "n1", "file:/a").load().unwrap_err();
    assert_eq!(torn.to_string(), "is torn or has been changed");
    store.remove().unwrap();
    store.remove().unwrap();
    assert_eq!(store.load().unwrap(), None);
}

#[test]
fn where_nothing_can_be_written_that_is_said() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("host-changes"), "").unwrap();
    assert!(Store::new(folder.path(), "n1", "file:/a").put(&record()).is_err());
}
