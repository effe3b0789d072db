use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_datastore::etcd::{EtcdConfig, EtcdSource, Password};
use tortie_datastore::store::ResourceStore as _;
use tortie_datastore::store::etcd::EtcdStore;
use tortie_datastore::{Event, InputProblem, Watching, watch};
use tortie_lab::etcd::{Etcd, EtcdOptions, Proxy};
use tortie_model::{Key, SyncStatus, Update, with_causes};
use tortie_resources::manifest::{BlockSource, Options};
use tortie_resources::path;
use tortie_resources::stored::{ResourceKey, ResourceKind};

use crate::cluster::{config, one, start, tier, tls};

/// A consumer and its state.
struct Consumer {
    watching: Watching,
    received: BTreeMap<Key, Update>,
    in_sync: bool,
    problems: Vec<InputProblem>,
    unavailable: usize,
    deletions: usize,
}

impl Consumer {
    fn new(config: EtcdConfig) -> Self {
        Self::with(config, BlockSource::Omitted)
    }

    fn with(config: EtcdConfig, block_source: BlockSource) -> Self {
        let options = Options { block_source, ..Options::default() };
        let watching = watch(EtcdSource::new(config, options)).expect("a thread");
        Self { watching, received: BTreeMap::new(), in_sync: false, problems: Vec::new(), unavailable: 0, deletions: 0 }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Status(status) => self.in_sync = status == SyncStatus::InSync,
            Event::Problems(problems) => self.problems = problems,
            Event::Unavailable { .. } => self.unavailable += 1,
            Event::Available | Event::Versions(_) => {}
            Event::Updates { updates, .. } => {
                for update in updates {
                    self.deletions += usize::from(!update.exists());
                    update.apply_to(&mut self.received);
                }
            }
        }
    }

    fn until(&mut self, description: &str, holds: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            if let Some(event) = self.watching.events.recv_timeout(Duration::from_millis(100)) {
                self.take(event);
            }
            assert!(Instant::now() < until, "{description}: {:?}, in sync: {}", self.tiers(), self.in_sync);
        }
    }

    /// Returns the texts that are passed on, by path.
    fn passthrough(&self) -> BTreeMap<String, String> {
        let text = |(key, update): (&Key, &Update)| {
            Some((path::to_path(key).expect("a path"), update.passthrough_text()?.to_string()))
        };
        self.received.iter().filter_map(text).collect()
    }

    /// Returns the order of each tier, except built-in ones.
    fn tiers(&self) -> BTreeMap<String, f64> {
        let is_built_in = |name: &str| ["default", "kube-admin", "kube-baseline"].contains(&name);
        let order = |update: &Update| match update {
            Update::Tier(name, Some(tier)) if !is_built_in(&name.to_string()) => {
                Some((name.to_string(), tier.order.map_or(f64::INFINITY, tortie_model::Order::get)))
            }
            _ => None,
        };
        self.received.values().filter_map(order).collect()
    }

    fn has(&self, tiers: &[(&str, u32)]) -> bool {
        let wanted: BTreeMap<String, f64> =
            tiers.iter().map(|(name, order)| ((*name).into(), f64::from(*order))).collect();
        self.in_sync && self.tiers() == wanted
    }
}

fn put(etcd: &Etcd, name: &str, order: u32) {
    let object = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": name}, "spec": {"order": order},
    });
    etcd.put(&tier(name).path(), &object.to_string()).expect("put");
}

#[test]
fn sends_the_initial_state_and_changes() {
    let etcd = one();
    put(&etcd, "a", 1);
    etcd.put("/calico/resources/v3/projectcalico.org/gadgets/x", "not ours").expect("put");
    etcd.put("/calico/v1/Ready", "true").expect("put");
    let mut consumer = Consumer::new(config(&etcd.url()));
    consumer.until("listed", |c| c.has(&[("a", 1)]));
    put(&etcd, "b", 2);
    consumer.until("added", |c| c.has(&[("a", 1), ("b", 2)]));
    put(&etcd, "b", 3);
    consumer.until("changed", |c| c.has(&[("a", 1), ("b", 3)]));
    etcd.put(&tier("b").path(), "\u{1}").expect("put");
    consumer.until("unreadable", |c| !c.problems.is_empty());
    assert!(consumer.has(&[("a", 1), ("b", 3)]), "the last good version stays");
    etcd.delete(&tier("b").path()).expect("deleted");
    consumer.until("deleted", |c| c.has(&[("a", 1)]) && c.problems.is_empty());

    consumer.received.clear();
    consumer.watching.resend.ask();
    consumer.until("the objects are sent again", |c| c.has(&[("a", 1)]));
    assert_eq!(consumer.unavailable, 0);
}

#[test]
fn every_update_carries_its_version() {
    let etcd = one();
    let id = ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "web").expect("a key");
    let object = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"order": 1},
    });
    put(&etcd, "a", 1);
    for _ in 0..2 {
        etcd.put(&id.path(), &object.to_string()).expect("put");
    }
    put(&etcd, "b", 2);
    let stored = EtcdStore::new(config(&etcd.url())).expect("a thread").get(&id).expect("it is there");
    let read = |source| {
        let everything = tortie_datastore::read(source, Duration::from_secs(60), |_| {}).expect("everything");
        everything.versions.into_iter().map(|(policy, version)| (policy.to_string(), version.to_string()))
    };
    let source = || EtcdSource::new(config(&etcd.url()), Options::default());
    assert_eq!(read(source()).count(), 0);
    let versions: Vec<(String, String)> = read(source().with_versions()).collect();
    let of_tiers = versions.iter().filter(|(key, _)| ["tier a", "tier b"].contains(&key.as_str()));
    assert!(of_tiers.count() == 2, "{versions:?}");
    let mut policies = versions.iter().filter(|(key, _)| key.starts_with("policy "));
    let (policy, version) = policies.next().expect("a policy");
    assert!(policy.contains("shop/web") && policies.next().is_none(), "{versions:?}");
    assert_eq!(*version, stored.revision.to_string());
}

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.65.1.0-26";
const BLOCK_V6: &str = "/calico/ipam/v2/assignment/ipv6/block/fd00:65::40-122";
const PEER: &str = "/calico/resources/v3/projectcalico.org/bgppeers/rack";
const MIGRATION: &str = "/calico/resources/v3/projectcalico.org/livemigrations/shop/vm";

/// As libcalico-go writes it.
fn block(cidr: &str, sequence: u32) -> String {
    format!(
        r#"{{"cidr":"{cidr}","affinity":"host:n1","affinity_claim_time":"2026-01-02T03:04:05Z","allocations":[0,null],"unallocated":[1],"attributes":[{{"handle_id":"h","secondary":{{"node":"n1"}}}}],"sequenceNumber":{sequence},"sequenceNumberForAllocation":{{"0":1}},"deleted":false}}"#
    )
}

#[test]
fn passthrough_objects_are_read_and_blocks_on_request() {
    let etcd = one();
    put(&etcd, "a", 1);
    etcd.put(BLOCK, &block("10.65.1.0/26", 1)).expect("put");
    etcd.put("/calico/ipam/v2/handle/h", r#"{"handleID":"h","block":{}}"#).expect("put");
    etcd.put("/calico/ipam/v2/host/n1/ipv4/block/10.65.1.0-26", r#"{"state":"confirmed"}"#).expect("put");
    etcd.put(PEER, r#"{"kind":"BGPPeer","apiVersion":"projectcalico.org/v3","metadata":{"name":"rack","uid":"u"},"spec":{"peerIP":"10.0.0.1","asNumber":64512}}"#).expect("put");
    let mut consumer = Consumer::with(config(&etcd.url()), BlockSource::IpamBlocks);
    let mut agent = Consumer::new(config(&etcd.url()));
    let mut by_pods = Consumer::with(config(&etcd.url()), BlockSource::PodCidrs);
    consumer.until("listed", |c| c.has(&[("a", 1)]));
    let objects = consumer.passthrough();
    assert_eq!(objects.keys().collect::<Vec<_>>(), [BLOCK, PEER]);
    assert_eq!(objects[BLOCK], block("10.65.1.0/26", 1), "byte for byte");
    let peer: Value = serde_json::from_str(&objects[PEER]).expect("JSON");
    assert_eq!(
        (&peer["kind"], &peer["metadata"]["uid"], &peer["spec"]["asNumber"]),
        (&json!("BGPPeer"), &json!("u"), &json!(64512))
    );

    etcd.put(BLOCK_V6, &block("fd00:65::40/122", 1)).expect("put");
    etcd.put(BLOCK, &block("10.65.1.0/26", 2)).expect("put");
    etcd.put(MIGRATION, r#"{"metadata":{"name":"vm","namespace":"shop"},"spec":{"target":{"selector":"all()"}}}"#)
        .expect("put");
    etcd.delete(PEER).expect("deleted");
    consumer.until("changed", |c| c.passthrough().len() == 3 && !c.passthrough().contains_key(PEER));
    assert_eq!(consumer.passthrough()[BLOCK], block("10.65.1.0/26", 2));
    // A block that Felix could not read keeps its previous version, and is a problem with its path.
    etcd.put(BLOCK, &block("10.65.2.0/26", 3)).expect("put");
    consumer.until("another network", |c| c.problems.len() == 1);
    assert_eq!(
        consumer.problems[0].to_string(),
        format!("{BLOCK}: cidr: is not 10.65.1.0/26, under which the block is kept")
    );
    etcd.put(BLOCK_V6, r#"{"cidr":"fd00:65::40/122","allocations":["x"]}"#).expect("put");
    consumer.until("no numbers", |c| c.problems.len() == 2);
    assert_eq!(consumer.passthrough()[BLOCK], block("10.65.1.0/26", 2));
    etcd.delete(BLOCK).expect("deleted");
    consumer.until("deleted", |c| c.passthrough().len() == 2 && c.problems.len() == 1);
    // Compacted history is made up for, deletions included.
    let mut late = Consumer::with(config(&etcd.url()), BlockSource::IpamBlocks);
    late.until("the later consumer is in sync", |c| c.in_sync);
    assert_eq!(
        late.passthrough().keys().collect::<Vec<_>>(),
        [MIGRATION],
        "an object without a valid version is missing"
    );
    put(&etcd, "b", 2);
    for reader in [&mut agent, &mut by_pods] {
        reader.until("up to date", |c| c.has(&[("a", 1), ("b", 2)]));
        assert_eq!(reader.passthrough().keys().collect::<Vec<_>>(), [MIGRATION]);
        assert_eq!(reader.problems, []);
    }
}

#[test]
fn goes_on_where_it_was_after_a_restart() {
    let mut etcd = one();
    put(&etcd, "a", 1);
    put(&etcd, "b", 2);
    let mut consumer = Consumer::new(config(&etcd.url()));
    consumer.until("listed", |c| c.has(&[("a", 1), ("b", 2)]));
    etcd.kill(0);
    consumer.until("noticed", |c| c.unavailable > 2);
    assert!(consumer.has(&[("a", 1), ("b", 2)]));
    consumer.received.clear();
    consumer.watching.resend.ask();
    consumer.until("the objects are sent again while etcd is down", |c| c.has(&[("a", 1), ("b", 2)]));
    etcd.restart(0).expect("restarted");
    etcd.delete(&tier("a").path()).expect("deleted");
    put(&etcd, "c", 3);
    consumer.until("back", |c| c.has(&[("b", 2), ("c", 3)]));
    assert_eq!(consumer.deletions, 1);
}

#[test]
fn finds_the_difference_after_a_compaction() {
    let etcd = one();
    let proxy = Proxy::to(etcd.address(0)).expect("a proxy");
    put(&etcd, "a", 1);
    put(&etcd, "b", 2);
    let mut consumer = Consumer::new(config(&format!("etcd://{}", proxy.address())));
    consumer.until("listed", |c| c.has(&[("a", 1), ("b", 2)]));
    proxy.cut();
    consumer.until("noticed", |c| c.unavailable > 0);
    etcd.delete(&tier("a").path()).expect("deleted");
    put(&etcd, "c", 3);
    put(&etcd, "d", 4);
    etcd.delete(&tier("d").path()).expect("deleted");
    etcd.compact().expect("compacted");
    proxy.heal();
    consumer.until("back", |c| c.has(&[("b", 2), ("c", 3)]));
    assert_eq!(consumer.deletions, 1);
    put(&etcd, "c", 4);
    consumer.until("still watching", |c| c.has(&[("b", 2), ("c", 4)]));
}

#[test]
fn notices_silence() {
    let etcd = one();
    let proxy = Proxy::to(etcd.address(0)).expect("a proxy");
    put(&etcd, "a", 1);
    let mut consumer = Consumer::new(config(&format!("etcd://{}", proxy.address())));
    consumer.until("listed", |c| c.has(&[("a", 1)]));
    proxy.hold_data();
    put(&etcd, "b", 2);
    consumer.until("noticed", |c| c.unavailable > 0);
    assert!(consumer.has(&[("a", 1)]));
    proxy.heal();
    consumer.until("back", |c| c.has(&[("a", 1), ("b", 2)]));
    etcd.freeze(0);
    let before = consumer.unavailable;
    consumer.until("noticed again", |c| c.unavailable > before);
    etcd.thaw(0);
    put(&etcd, "c", 3);
    consumer.until("back again", |c| c.has(&[("a", 1), ("b", 2), ("c", 3)]));
    assert_eq!(consumer.deletions, 0);
}

#[test]
fn follows_the_members_that_have_a_leader() {
    let mut etcd = start(EtcdOptions { members: 3, ..EtcdOptions::default() });
    put(&etcd, "a", 1);
    let mut consumer = Consumer::new(config(&etcd.url()));
    consumer.until("listed", |c| c.has(&[("a", 1)]));
    etcd.kill(0);
    let until = Instant::now() + Duration::from_secs(60);
    while etcd.get("/").is_err() && Instant::now() < until {}
    put(&etcd, "b", 2);
    consumer.until("the second member", |c| c.has(&[("a", 1), ("b", 2)]));
    // The last member has no leader, and reports that.
    etcd.kill(1);
    let before = consumer.unavailable;
    consumer.until("no leader", |c| c.unavailable > before);
    assert!(consumer.has(&[("a", 1), ("b", 2)]));
    etcd.restart(0).expect("restarted");
    etcd.delete(&tier("a").path()).expect("deleted");
    consumer.until("back", |c| c.has(&[("b", 2)]));
}

#[test]
fn notices_another_cluster() {
    let (etcd, other) = (one(), one());
    let near = Proxy::to(etcd.address(0)).expect("a proxy");
    let far = Proxy::to(other.address(0)).expect("a proxy");
    far.cut();
    for order in 0..5 {
        put(&etcd, "a", order);
    }
    put(&other, "b", 2);
    let mut consumer = Consumer::new(config(&format!("etcd://{},{}", near.address(), far.address())));
    consumer.until("listed", |c| c.has(&[("a", 4)]));
    near.cut();
    far.heal();
    consumer.until("the other one", |c| c.has(&[("b", 2)]));
}

#[test]
fn speaks_tls_and_outlives_its_token() {
    let mut etcd = start(EtcdOptions { tls: true, token_ttl: 1, ..EtcdOptions::default() });
    put(&etcd, "a", 1);
    etcd.enable_users("felix", "s3cret").expect("users");
    let config = EtcdConfig { user: Some(("felix".into(), "s3cret".to_owned().into())), ..tls(&etcd) };
    let mut consumer = Consumer::new(config);
    consumer.until("listed", |c| c.has(&[("a", 1)]));
    std::thread::sleep(Duration::from_millis(2500));
    put(&etcd, "b", 2);
    consumer.until("added", |c| c.has(&[("a", 1), ("b", 2)]));
    etcd.stop(0);
    consumer.until("noticed", |c| c.unavailable > 0);
    etcd.restart(0).expect("restarted");
    put(&etcd, "c", 3);
    consumer.until("back", |c| c.has(&[("a", 1), ("b", 2), ("c", 3)]));
}

#[test]
fn a_replaced_password_file_is_read_again() {
    let mut etcd = start(EtcdOptions::default());
    put(&etcd, "a", 1);
    etcd.enable_users("felix", "s3cret").expect("users");
    let file = etcd.folder().join("password");
    std::fs::write(&file, "s3cret\n").expect("written");
    let config = EtcdConfig { user: Some(("felix".into(), Password::file(&file))), ..config(&etcd.url()) };
    let mut consumer = Consumer::new(config.clone());
    let store = EtcdStore::new(config).expect("a store");
    store.get(&tier("a")).expect("the old password");
    consumer.until("listed", |c| c.has(&[("a", 1)]));
    etcd.replace_password("felix", "n3w").expect("replaced");
    etcd.stop(0);
    etcd.restart(0).expect("restarted");
    assert!(store.get(&tier("a")).is_err(), "the old password is not valid any more");
    put(&etcd, "b", 2);
    consumer.until("refused", |c| c.unavailable > 1);
    std::fs::write(&file, "n3w").expect("written");
    consumer.until("back", |c| c.has(&[("a", 1), ("b", 2)]));
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.get(&tier("b")) {
        assert!(Instant::now() < until, "{error}");
    }
    std::fs::remove_file(&file).expect("removed");
    let config =
        EtcdConfig { user: Some(("felix".into(), Password::file(&file))), ..crate::cluster::config(&etcd.url()) };
    let missing = EtcdStore::new(config).expect("a store").get(&tier("b")).expect_err("no password");
    assert!(with_causes(&missing).contains(&file.display().to_string()), "{}", with_causes(&missing));
}
