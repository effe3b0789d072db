use std::sync::Arc;

use tortie_model::{ConfigName, HostConfigKey, Hostname, Labels, Node, ScopedConfig};
use tortie_selector::Selector;

use super::ConfigBatcher;
use crate::ReadyFlag;
use crate::sequencer::Sequencer;

fn batcher() -> ConfigBatcher {
    ConfigBatcher::new(Hostname::new("node"), ReadyFlag::Required)
}

fn scoped(selector: &str, created: i64, value: &str) -> Arc<ScopedConfig> {
    let selector = Selector::parse(selector).unwrap();
    Arc::new(ScopedConfig { selector, created, parameters: [("P".into(), value.into())].into() })
}

fn selected(batcher: &mut ConfigBatcher) -> Option<String> {
    let mut sequencer = Sequencer::default();
    batcher.flush(&mut sequencer);
    sequencer.config.map(|config| config.selector.get("P").map(ToString::to_string).unwrap_or_default())
}

/// Flushes and returns the sent readiness of the datastore; `None` without messages.
fn sent_ready_flag(batcher: &mut ConfigBatcher) -> Option<bool> {
    let mut sequencer = Sequencer::default();
    batcher.flush(&mut sequencer);
    assert!(sequencer.config.is_some() || !sequencer.not_ready, "the flag never goes alone");
    sequencer.config.map(|_| !sequencer.not_ready)
}

#[test]
fn never_seen_ready_is_not_ready() {
    assert_eq!(sent_ready_flag(&mut batcher()), Some(false));
}

#[test]
fn an_optional_flag_is_ready_unless_it_is_false_and_an_ignored_one_always() {
    for (ready_flag, when_false) in [(ReadyFlag::Optional, false), (ReadyFlag::Ignored, true)] {
        let mut batcher = ConfigBatcher::new(Hostname::new("node"), ready_flag);
        assert_eq!(sent_ready_flag(&mut batcher), Some(true));
        batcher.on_ready(Some(false));
        assert_eq!(sent_ready_flag(&mut batcher), (!when_false).then_some(false));
        batcher.on_ready(None);
        assert_eq!(sent_ready_flag(&mut batcher), (!when_false).then_some(true));
    }
}

#[test]
fn each_change_of_the_ready_flag_is_sent_once() {
    let mut batcher = batcher();
    assert_eq!(sent_ready_flag(&mut batcher), Some(false));
    for (ready, expected) in [
        (Some(true), Some(true)),
        (Some(true), None),
        (None, Some(false)),
        (Some(false), None),
        (Some(true), Some(true)),
        (Some(false), Some(false)),
        (Some(true), Some(true)),
    ] {
        batcher.on_ready(ready);
        assert_eq!(sent_ready_flag(&mut batcher), expected, "{ready:?}");
    }
}

#[test]
fn a_flag_that_comes_back_before_a_flush_leaves_the_datastore_ready() {
    let mut batcher = batcher();
    batcher.on_ready(Some(true));
    assert_eq!(sent_ready_flag(&mut batcher), Some(true));
    batcher.on_ready(Some(false));
    batcher.on_ready(Some(true));
    assert_eq!(sent_ready_flag(&mut batcher), Some(true));
    batcher.on_ready(Some(false));
    batcher.on_host(&HostConfigKey { host: Hostname::new("node"), name: ConfigName::new("P") }, Some(&"1".into()));
    assert_eq!(sent_ready_flag(&mut batcher), Some(false));
}

#[test]
fn other_hosts_do_not_matter() {
    let mut batcher = batcher();
    batcher.on_ready(Some(true));
    batcher.flush(&mut Sequencer::default());
    let key = |host| HostConfigKey { host: Hostname::new(host), name: ConfigName::new("P") };
    batcher.on_host(&key("other"), Some(&"1".into()));
    assert_eq!(selected(&mut batcher), None);
    batcher.on_host(&key("node"), Some(&"1".into()));
    assert!(selected(&mut batcher).is_some());
    batcher.on_host(&key("node"), Some(&"1".into()));
    assert_eq!(selected(&mut batcher), None);
}

#[test]
fn the_oldest_matching_scope_wins() {
    let mut batcher = batcher();
    batcher.on_scoped(&ConfigName::new("b"), Some(&scoped("has(x)", 5, "b")));
    batcher.on_scoped(&ConfigName::new("a"), Some(&scoped("has(x)", 5, "a")));
    batcher.on_scoped(&ConfigName::new("c"), Some(&scoped("has(y)", 1, "c")));
    assert_eq!(selected(&mut batcher).unwrap(), "");
    let node = Node {
        bgp: None,
        addresses: [].into(),
        tunnels: None,
        pod_networks: [].into(),
        labels: Labels::from_pairs([("x", "")]).unwrap(),
    };
    batcher.on_node(&Hostname::new("node"), Some(&node));
    assert_eq!(selected(&mut batcher).unwrap(), "a");
    batcher.on_scoped(&ConfigName::new("d"), Some(&scoped("all()", 4, "d")));
    assert_eq!(selected(&mut batcher).unwrap(), "d");
    batcher.on_node(&Hostname::new("node"), None);
    assert_eq!(selected(&mut batcher).unwrap(), "");
}
