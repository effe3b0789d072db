use super::*;

fn read(text: &str) -> Result<String, String> {
    text.parse::<DatastoreUrl>().map(|url| format!("{url:?}")).map_err(|error| error.to_string())
}

#[test]
fn directories_and_nonsense() {
    assert_eq!(read("file:/etc/tortie"), Ok(r#"Directory("/etc/tortie")"#.into()));
    assert!(read("file:").unwrap_err().contains("needs a directory"));
    for text in ["", "/etc/tortie", "http://a:1", "zookeeper://a:1"] {
        assert!(read(text).unwrap_err().starts_with("must be file:DIR, etcd://"), "{text}");
    }
}

#[test]
fn schemes_that_are_not_built_in_are_named() {
    for (url, is_built, name, feature) in [
        ("etcd://a:1", cfg!(feature = "etcd"), "etcd", "etcd"),
        ("kubernetes:", cfg!(feature = "kubernetes"), "Kubernetes", "kubernetes"),
        ("fanout://a:1", cfg!(feature = "fanout"), "fanout", "fanout"),
        ("typha://a:1", cfg!(feature = "fanout"), "typha", "fanout"),
    ] {
        let message =
            format!("{name} datastores are missing from this build: built without `{feature}` (see `tortie version`)");
        match read(url) {
            Ok(_) => assert!(is_built, "{url}"),
            Err(error) => assert_eq!((error, is_built), (message, false)),
        }
    }
}

#[cfg(all(feature = "etcd", feature = "kubernetes", feature = "fanout"))]
#[test]
fn every_form() {
    for text in [
        "file:a",
        "etcd:",
        "etcd://",
        "etcd://a:1,[::1]:2/prefix",
        "kubernetes:",
        "kubernetes:/root/.kube/config",
        "fanout://a:1",
        "fanout://a:1,[::1]:1,10.0.0.1:2",
        "typha:",
        "typha://a:1,[fd00::1]:2",
    ] {
        assert_eq!(text.parse::<DatastoreUrl>().map(|url| url.to_string()), Ok(text.to_owned()));
    }
    let usual = "typha://typha-1,[::1],10.0.0.1:5474".parse::<DatastoreUrl>().map(|url| url.to_string());
    assert_eq!(usual, Ok("typha://typha-1:5473,[::1]:5473,10.0.0.1:5474".into()));
    for text in [
        "etcd:a:1",
        "kubernetes://a",
        "fanout:",
        "fanout://a",
        "fanout://a:0",
        "fanout://u@a:1",
        "fanout://a:1,b",
        "fanout://a:1,,b:1",
        "fanout://::1:1",
        "fanout://[a]:1",
        "fanout://[::1]1",
        "typha://",
        "typha://a,",
        "typha://a:",
        "typha://a:b",
        "typha://::1",
        "typha:a",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}
