use super::*;

#[test]
fn a_password_that_leaves_the_machine_without_tls_is_warned_of() {
    let config = |url: &str| {
        let url: EtcdConfig = url.parse().unwrap();
        EtcdConfig { user: Some(("felix".into(), "s3cret".to_owned().into())), ..url }
    };
    let warning = plain_password(&config("etcd://127.0.0.1:2379,10.0.0.1:2379")).unwrap();
    assert!(warning.contains("felix") && warning.contains("10.0.0.1:2379") && !warning.contains("s3cret"), "{warning}");
    assert_eq!(plain_password(&config("etcd://127.0.0.1:2379,[::1]:2379,localhost:1")), None, "stays on this machine");
    let remote = config("etcd://10.0.0.1:2379");
    assert_eq!(plain_password(&EtcdConfig { user: None, ..remote.clone() }), None);
    assert_eq!(plain_password(&EtcdConfig { ca_file: Some("ca.pem".into()), ..remote }), None);
}
