use std::time::Duration;

use serde_json::{Value, json};
use tortie_datastore::store::etcd::{EtcdConfig, EtcdStore};
use tortie_datastore::store::{ResourceStore, StoreError, TextChange, TextStore};
use tortie_lab::etcd::EtcdOptions;
use tortie_model::with_causes;
use tortie_resources::stored::{ResourceKind, Revision};

use crate::cluster::{config, one, start, tier, tls};
use crate::order;

fn store(config: EtcdConfig) -> EtcdStore {
    EtcdStore::new(config).expect("a store")
}

#[test]
fn reads_and_writes() {
    let etcd = one();
    let store = store(config(&etcd.url()));
    assert_eq!(store.get(&tier("a")), Err(StoreError::NotFound(tier("a"))));

    let created = store.create(&tier("a"), order(5)).expect("created");
    assert_eq!(store.create(&tier("a"), order(6)), Err(StoreError::AlreadyExists(tier("a"))));
    assert_eq!(store.get(&tier("a")), Ok(created.clone()));
    let kept: Value = serde_json::from_str(&etcd.get(&tier("a").path()).expect("kept")).expect("JSON");
    assert_eq!(kept["spec"], json!({"order": 5, "defaultAction": "Deny"}));
    assert_eq!(kept["metadata"].get("resourceVersion"), None);

    let updated = store.update(&tier("a"), created.object.clone(), created.revision).expect("updated");
    assert!(updated.revision > created.revision);
    let conflict = StoreError::Conflict { key: tier("a"), expected: created.revision, found: updated.revision };
    assert_eq!(store.update(&tier("a"), created.object.clone(), created.revision), Err(conflict.clone()));
    assert_eq!(store.update(&tier("b"), order(1), created.revision), Err(StoreError::NotFound(tier("b"))));
    assert_eq!(store.update(&tier("b"), order(1), Revision(0)), Err(StoreError::NotFound(tier("b"))));
    assert!(matches!(store.update(&tier("a"), order(1), Revision(0)), Err(StoreError::Conflict { .. })));
    assert_eq!(store.delete(&tier("a"), Some(created.revision)), Err(conflict));

    let put = store.put(&tier("b"), order(7)).expect("put");
    etcd.put(&tier("broken").path(), "{").expect("put");
    let listing = store.list(ResourceKind::Tier, None).expect("a list");
    assert_eq!(listing.resources, [updated.clone(), put]);
    assert_eq!(listing.unreadable[0].0, tier("broken"));
    assert!(matches!(store.get(&tier("broken")), Err(StoreError::Unreadable { .. })));

    assert_eq!(store.delete(&tier("a"), Some(updated.revision)), Ok(()));
    assert_eq!(store.delete(&tier("a"), None), Err(StoreError::NotFound(tier("a"))));
    assert_eq!(store.delete(&tier("b"), None), Ok(()));
}

#[test]
fn lists_are_read_in_pages() {
    let etcd = one();
    let store = store(EtcdConfig { key_prefix: "/tenant".into(), ..config(&etcd.url()) });
    let wide = "x".repeat(1_000_000);
    for n in 0..40 {
        store.put(&tier(&format!("t{n:02}")), json!({"spec": {"order": n, "note": wide}})).expect("put");
    }
    let names: Vec<String> = store
        .list(ResourceKind::Tier, None)
        .expect("a list")
        .resources
        .iter()
        .map(|resource| resource.key.name().to_owned())
        .collect();
    assert_eq!(names, (0..40).map(|n| format!("t{n:02}")).collect::<Vec<_>>());
    let too_large = json!({"spec": {"note": wide + &"x".repeat(1_000_000)}});
    assert!(matches!(store.put(&tier("a"), too_large), Err(StoreError::Refused(_))));
}

#[test]
fn texts_change_together_or_not_at_all() {
    let etcd = one();
    let store = store(EtcdConfig { key_prefix: "/tenant".into(), ..config(&etcd.url()) });
    let change = |path: &str, expected: Option<Revision>, text: Option<&str>| TextChange {
        path: path.into(),
        expected,
        text: text.map(str::to_owned),
    };
    let first = store.commit(&[change("/a/1", None, Some("one")), change("/b", None, Some("b"))]).expect("made");
    let read = |path: &str| store.text(path).expect("read");
    let (a, b) = (read("/a/1").expect("written"), read("/b").expect("written"));
    assert_eq!((Some(a.revision), Some(b.revision), &*a.text), (first, first, "one"));
    assert_eq!(etcd.get("/tenant/a/1").expect("kept"), "one");
    let later = store.commit(&[change("/b", Some(b.revision), Some("c"))]).expect("changed");
    assert!(later > first);
    for unexpected in [change("/b", None, Some("d")), change("/b", first, None), change("/c", first, None)] {
        assert_eq!(store.commit(&[change("/a/1", first, None), unexpected]), Ok(None));
    }
    assert_eq!(store.texts("/").expect("read"), [a, read("/b").expect("still there")]);
    let gone = [change("/a/1", first, None), change("/b", later, None), change("/c", None, None)];
    assert!(matches!(store.commit(&gone), Ok(Some(_))));
    assert_eq!((read("/a/1"), read("/b")), (None, None));
}

#[test]
fn texts_vanish_after_their_time() {
    let etcd = one();
    let store = store(config(&etcd.url()));
    store.put_text("/calico/felix/a", "1", Some(Duration::from_secs(1))).expect("put");
    store.put_text("/calico/felix/b", "2", None).expect("put");
    let both = [("/calico/felix/a", "1"), ("/calico/felix/b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(store.list_texts("/calico/felix/").expect("a list"), both);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while store.list_texts("/calico/felix/").expect("a list").len() > 1 {
        assert!(std::time::Instant::now() < until, "the lease does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(store.delete_text("/calico/felix/b"), Ok(true));
    assert_eq!(store.delete_text("/calico/felix/b"), Ok(false));
}

#[test]
fn speaks_tls_and_knows_passwords() {
    let mut etcd = start(EtcdOptions { tls: true, token_ttl: 1, ..EtcdOptions::default() });
    let config = tls(&etcd);
    let without = EtcdConfig { cert_file: None, key_file: None, ..config.clone() };
    assert!(matches!(store(without).get(&tier("a")), Err(StoreError::Unavailable(_))));
    let elsewhere = EtcdConfig { ca_file: config.cert_file.clone(), ..config.clone() };
    assert!(matches!(store(elsewhere).get(&tier("a")), Err(StoreError::Unavailable(_))));
    assert!(store(config.clone()).put(&tier("a"), order(1)).is_ok());

    etcd.enable_users("felix", "s3cret").expect("users");
    let with = |password: &str| {
        store(EtcdConfig { user: Some(("felix".into(), password.to_owned().into())), ..config.clone() })
    };
    let wrong = with("wr0ng").get(&tier("a")).expect_err("a wrong password");
    assert!(
        matches!(&wrong, StoreError::Refused(why) if with_causes(why).contains("authentication failed")),
        "{}",
        with_causes(&wrong)
    );
    assert!(!with_causes(&wrong).contains("wr0ng"));
    let right = with("s3cret");
    assert!(right.get(&tier("a")).is_ok());
    // The token has expired by then.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(right.put(&tier("a"), order(2)).is_ok());
    assert!(!format!("{right:?}").contains("s3cret"));
    assert!(matches!(store(config).get(&tier("a")), Err(StoreError::Refused(_))));
}

#[test]
fn another_member_steps_in() {
    let mut etcd = start(EtcdOptions { members: 3, ..EtcdOptions::default() });
    let store = store(config(&etcd.url()));
    store.put(&tier("a"), order(1)).expect("put");
    etcd.kill(0);
    // Writes whose response is lost are not repeated, so the first may fail; the election of a
    // leader takes a moment.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.put(&tier("a"), order(2)) {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        assert!(std::time::Instant::now() < until, "{error}");
    }
    etcd.kill(1);
    assert!(matches!(store.put(&tier("a"), order(3)), Err(StoreError::Unavailable(_))));
    etcd.restart(0).expect("restarted");
    while store.put(&tier("a"), order(4)).is_err() {
        assert!(std::time::Instant::now() < until + Duration::from_secs(10));
    }
}

#[test]
fn a_failed_handshake_names_the_expectation() {
    let (encrypted, plain) = (start(EtcdOptions { tls: true, ..EtcdOptions::default() }), one());
    let good = tls(&encrypted);
    let other = good.cert_file.clone().expect("a certificate");
    let foreign = format!("the server's certificate does not come from an authority in {}: ", other.display());
    let mut wrong = Vec::new();
    // The server may close the connection before its alert about the certificate is read.
    let certificate = [
        "a client certificate, if the server requires one: ",
        "the server requires a client certificate that it trusts: ",
    ];
    for (config, reasons) in [
        (EtcdConfig { ca_file: Some(other), ..good.clone() }, &[&*foreign][..]),
        (EtcdConfig { cert_file: None, key_file: None, ..good.clone() }, &certificate),
        (EtcdConfig { endpoints: plain.endpoints(), ..good }, &["the server does not speak TLS: "]),
        (config(&encrypted.url()), &["CA certificates, if the server expects TLS: "]),
    ] {
        let attempt = |_| with_causes(&store(config.clone()).get(&tier("a")).expect_err("no connection"));
        let is_named = |error: &String| reasons.iter().any(|reason| error.contains(reason));
        let (named, others): (Vec<String>, Vec<String>) = (0..5).map(attempt).partition(is_named);
        // The server closes the connection after its answer, and the reset may overtake that.
        let is_reset = |error: &String| error.contains("Connection reset by peer");
        let is_right = !named.is_empty() && others.iter().all(is_reset);
        wrong.extend((!is_right).then(|| format!("{reasons:?}: {named:?}, {others:?}")));
    }
    assert_eq!(wrong, Vec::<String>::new());
}
