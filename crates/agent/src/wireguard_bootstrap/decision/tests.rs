use super::*;

fn candidate(address: &str, node: Option<&str>) -> Candidate {
    Candidate { address: address.to_owned(), node: node.map(str::to_owned) }
}

/// Returns a node that encrypts, whose device and published key agree, with one server on another
/// node whose key it knows.
fn healthy() -> Facts {
    Facts {
        node: "n1".into(),
        is_enabled: Some(true),
        encrypts_hosts: true,
        is_start: true,
        is_cut_off: false,
        candidates: vec![candidate("10.0.0.2:5473", Some("n2"))],
        device: Some(DeviceKeys { own: Some("k1".into()), peers: ["k2".to_owned()].into() }),
        own_key: Some(Ok("k1".into())),
        node_keys: [("n2".to_owned(), Ok("k2".to_owned()))].into(),
    }
}

#[test]
fn without_encryption_leftovers_are_removed() {
    let facts = Facts { is_enabled: Some(false), device: None, own_key: None, ..healthy() };
    assert_eq!(facts.next(), Step::Remove(Reason::NotEnabled));
    let only_pods = Facts { encrypts_hosts: false, device: None, is_cut_off: true, ..healthy() };
    assert_eq!(only_pods.next(), Step::Connect(healthy().candidates));
    let unknown = Facts { is_enabled: None, device: None, is_cut_off: true, ..healthy() };
    assert_eq!(unknown.next(), Step::Connect(healthy().candidates));
}

#[test]
fn only_needed_facts_are_requested() {
    let mut facts = Facts { device: None, own_key: None, node_keys: BTreeMap::new(), ..healthy() };
    assert_eq!(facts.next(), Step::ReadDevice);
    facts.device = healthy().device;
    assert_eq!(facts.next(), Step::ReadOwnKey);
    facts.own_key = healthy().own_key;
    assert_eq!(facts.next(), Step::ReadKeysOf(["n2".to_owned()].into()));
    facts.node_keys = healthy().node_keys;
    assert_eq!(facts.next(), Step::Connect(healthy().candidates));
    let without_servers = Facts { candidates: Vec::new(), ..facts };
    assert_eq!(without_servers.next(), Step::Connect(Vec::new()));
}

#[test]
fn a_device_without_key_or_peers_is_removed() {
    let keys = |own: Option<&str>, peers: &[&str]| {
        let peers = peers.iter().map(|key| (*key).to_owned()).collect();
        Some(DeviceKeys { own: own.map(str::to_owned), peers })
    };
    for device in [keys(None, &[]), keys(None, &["k2"]), keys(Some("k1"), &[])] {
        let facts = Facts { device, ..healthy() };
        assert_eq!(facts.next(), Step::Remove(Reason::NoDevice), "{facts:?}");
    }
}

#[test]
fn another_key_than_the_published_one_is_removed() {
    for published in ["", "k0"] {
        let facts = Facts { own_key: Some(Ok(published.into())), ..healthy() };
        assert_eq!(facts.next(), Step::Remove(Reason::OtherKey));
    }
    let facts = Facts { own_key: Some(Err(Unreadable)), ..healthy() };
    assert_eq!(facts.next(), Step::Connect(healthy().candidates));
}

/// After the first connection, the engine corrects these by itself.
#[test]
fn after_the_start_encryption_is_removed_only_if_it_disconnects() {
    let running = || Facts { is_start: false, ..healthy() };
    let all = Step::Connect(healthy().candidates);
    assert_eq!(Facts { is_enabled: Some(false), ..running() }.next(), all);
    assert_eq!(Facts { device: Some(DeviceKeys::default()), ..running() }.next(), all);
    assert_eq!(Facts { own_key: Some(Ok("k0".into())), ..running() }.next(), all);
    assert_eq!(Facts { is_cut_off: true, ..running() }.next(), Step::Remove(Reason::CutOff));
    let unknown_key = [("n2".to_owned(), Ok("k9".to_owned()))].into();
    assert_eq!(Facts { node_keys: unknown_key, ..running() }.next(), Step::Remove(Reason::NoServer));
}

#[test]
fn servers_with_answers_that_the_device_drops_are_left_out() {
    let candidates = vec![
        candidate("10.0.0.9:5473", None),
        candidate("10.0.0.1:5473", Some("n1")),
        candidate("10.0.0.2:5473", Some("n2")),
        candidate("10.0.0.3:5473", Some("plain")),
        candidate("10.0.0.4:5473", Some("unread")),
        candidate("10.0.0.5:5473", Some("stranger")),
    ];
    let key = |node: &str, key: PublishedKey| (node.to_owned(), key);
    let node_keys = [
        key("n2", Ok("k2".into())),
        key("plain", Ok(String::new())),
        key("unread", Err(Unreadable)),
        key("stranger", Ok("k9".into())),
    ];
    let facts = Facts { candidates: candidates.clone(), node_keys: node_keys.into(), ..healthy() };
    assert_eq!(facts.next(), Step::Connect(candidates[..5].to_vec()));
    let strangers = Facts { candidates: candidates[5..].to_vec(), ..facts };
    assert_eq!(strangers.next(), Step::Remove(Reason::NoServer));
}

#[test]
fn a_long_disconnection_ends_encryption() {
    assert_eq!(Facts { is_cut_off: true, ..healthy() }.next(), Step::Remove(Reason::CutOff));
}
