use super::*;

#[test]
fn urls() {
    let config: EtcdConfig = "etcd://a:1,[::1]:2379,10.0.0.1:65535/tenant/one/".parse().expect("a URL");
    assert_eq!(config.endpoints, ["a:1", "[::1]:2379", "10.0.0.1:65535"]);
    assert_eq!(config.key_prefix, "/tenant/one");
    assert_eq!(config.check(), Ok(()));
    let plain: EtcdConfig = "etcd://a:1".parse().expect("a URL");
    assert_eq!(plain.key_prefix, "");
    for (url, endpoints) in [("etcd://", "127.0.0.1:2379"), ("etcd://a,[::1],b:1", "a:2379,[::1]:2379,b:1")] {
        assert_eq!(url.parse::<EtcdConfig>().expect("a URL").endpoints.join(","), endpoints);
    }
    for (url, error) in [
        ("http://a:1", EtcdConfigError::Scheme),
        ("etcd:a:1", EtcdConfigError::Scheme),
        ("etcd://[a]", EtcdConfigError::Endpoint("[a]:2379".into())),
        ("etcd://:1", EtcdConfigError::Endpoint(":1".into())),
        ("etcd://a:0", EtcdConfigError::Endpoint("a:0".into())),
        ("etcd://a:1,,b:1", EtcdConfigError::Endpoint(String::new())),
        ("etcd://::1:2379", EtcdConfigError::Endpoint("::1:2379".into())),
        ("etcd://me:secret@a:1", EtcdConfigError::Credentials),
    ] {
        assert_eq!(url.parse::<EtcdConfig>(), Err(error), "{url}");
    }
}

#[test]
fn parts_that_do_not_go_together() {
    let config = EtcdConfig { endpoints: vec!["a:1".into()], ..EtcdConfig::default() };
    let half = EtcdConfig { cert_file: Some("c".into()), ..config };
    assert_eq!(half.check(), Err(EtcdConfigError::HalfIdentity));
    let blind = EtcdConfig { key_file: Some("k".into()), ..half };
    assert_eq!(blind.check(), Err(EtcdConfigError::IdentityWithoutCa));
    assert!(EtcdConfig::default().check().is_err());
}

#[test]
fn passwords_are_not_shown() {
    let config = EtcdConfig { user: Some(("me".into(), "s3cret".to_owned().into())), ..EtcdConfig::default() };
    assert!(!format!("{config:#?}").contains("s3cret"));
}
