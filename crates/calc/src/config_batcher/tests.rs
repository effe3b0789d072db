use std::sync::Arc;

use tortie_model::{ConfigName, HostConfigKey, Hostname, Labels, Node, ScopedConfig};
use tortie_selector::Selector;

use super::ConfigBatcher;
use crate::sequencer::Sequencer;

fn batcher() -> ConfigBatcher {
    ConfigBatcher::new(Hostname::new("node"))
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

#[test]
fn never_seen_ready_is_not_ready() {
    let mut batcher = batcher();
    let mut sequencer = Sequencer::default();
    batcher.flush(&mut sequencer);
    assert!(sequencer.not_ready);
    batcher.on_ready(Some(true));
    let mut sequencer = Sequencer::default();
    batcher.flush(&mut sequencer);
    assert!(!sequencer.not_ready && sequencer.config.is_none());
    batcher.on_ready(None);
    batcher.flush(&mut sequencer);
    assert!(sequencer.not_ready && sequencer.config.is_some());
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
    let node =
        Node { bgp: None, addresses: [].into(), tunnels: None, labels: Labels::from_pairs([("x", "")]).unwrap() };
    batcher.on_node(&Hostname::new("node"), Some(&node));
    assert_eq!(selected(&mut batcher).unwrap(), "a");
    batcher.on_scoped(&ConfigName::new("d"), Some(&scoped("all()", 4, "d")));
    assert_eq!(selected(&mut batcher).unwrap(), "d");
    batcher.on_node(&Hostname::new("node"), None);
    assert_eq!(selected(&mut batcher).unwrap(), "");
}
