use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{DevicePeer, PeerChange, WireguardChange};
use tortie_datastore::store::{Fault, MemoryStore, ResourceStore};
use tortie_iptables::Backend;
use tortie_model::desired::ConfigSource;
use tortie_resources::stored::{ResourceKey, ResourceKind};

use super::*;

#[cfg(feature = "kubernetes")]
mod annotations;

const PEER: WireguardKey = WireguardKey([7; 32]);
const STRANGER: WireguardKey = WireguardKey([9; 32]);
const SERVERS: [(&str, Option<&str>); 2] = [("10.0.0.2:5473", Some("n2")), ("[fd00::3]:5473", Some("n3"))];

#[derive(Debug)]
struct Servers(Vec<Candidate>);

impl FindServers for Servers {
    fn find(&self) -> Result<Vec<Candidate>, DiscoveryError> {
        Ok(self.0.clone())
    }
}

/// A machine with a kernel and an engine that all clones share.
#[derive(Clone)]
struct Machine {
    kernel: Arc<Mutex<FakeKernel>>,
    /// Number of requests to the engine to release the kernel.
    requests: Arc<AtomicUsize>,
    lets_go: bool,
    clock: Arc<Mutex<Instant>>,
}

impl Environment for Machine {
    fn with_kernel(&self, _: Duration, task: &mut dyn FnMut(&mut dyn Links)) {
        task(&mut *self.kernel.lock().unwrap());
    }

    fn release(&self) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.lets_go
    }

    fn now(&self) -> Instant {
        *self.clock.lock().unwrap()
    }
}

struct Bench {
    machine: Machine,
    store: Arc<MemoryStore>,
    bootstrap: Bootstrap,
}

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, "", name).unwrap()
}

impl Bench {
    /// Returns a node `n1` with this configuration of its own and in the datastore.
    fn new(local: &[(&str, &str)], spec: &Value, servers: &[(&str, Option<&str>)]) -> Self {
        let store = Arc::new(MemoryStore::default());
        let config = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "default"},
            "spec": spec,
        });
        store.create(&key(ResourceKind::FelixConfiguration, "default"), config).unwrap();
        let published = Box::new(KeysInStatus(Arc::clone(&store) as Arc<dyn ResourceStore>));
        let machine = Machine {
            kernel: Arc::new(Mutex::new(FakeKernel::new(Backend::Nft, []))),
            requests: Arc::default(),
            lets_go: true,
            clock: Arc::new(Mutex::new(Instant::now())),
        };
        let bootstrap = bootstrap(&machine, local, servers, published);
        let bench = Self { machine, store, bootstrap };
        bench.node("n1", "", "");
        bench
    }

    /// Returns a node that encrypts its own traffic.
    fn encrypting() -> Self {
        Self::new(&[], &json!({"wireguardEnabled": true, "wireguardHostEncryptionEnabled": true}), &SERVERS)
    }

    fn node(&self, name: &str, v4: &str, v6: &str) {
        let node = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": name, "labels": {"rack": "a"}},
            "spec": {}, "status": {"wireguardPublicKey": v4, "wireguardPublicKeyV6": v6},
        });
        self.store.put(&key(ResourceKind::Node, name), node).unwrap();
    }

    fn published(&self) -> (String, String) {
        let node = self.store.get(&key(ResourceKind::Node, "n1")).unwrap().object;
        let of = |field: &str| node["status"][field].as_str().unwrap_or_default().to_owned();
        (of("wireguardPublicKey"), of("wireguardPublicKeyV6"))
    }

    /// Makes a device with a peer; returns its own key.
    fn device(&self, name: &'static str, kind: &str, peers: &[WireguardKey]) -> String {
        make_device(&self.machine, name, kind, peers)
    }

    fn has_device(&self, name: &str) -> bool {
        self.machine.kernel.lock().unwrap().device(name).unwrap().is_some()
    }

    fn servers(&self) -> Vec<String> {
        self.bootstrap.servers().unwrap()
    }

    fn requests(&self) -> usize {
        self.machine.requests.load(Ordering::Relaxed)
    }

    fn pass(&self, seconds: u64) {
        *self.machine.clock.lock().unwrap() += Duration::from_secs(seconds);
    }
}

fn bootstrap(
    machine: &Machine,
    local: &[(&str, &str)],
    servers: &[(&str, Option<&str>)],
    published: Box<dyn PublishedKeys>,
) -> Bootstrap {
    let mut sources = Sources::default();
    let raw = local.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sources.set(ConfigSource::Environment, raw);
    let candidate = |(address, node): &(&str, Option<&str>)| Candidate {
        address: (*address).to_owned(),
        node: node.map(str::to_owned),
    };
    let servers = Box::new(Servers(servers.iter().map(candidate).collect()));
    Bootstrap::new(Hostname::new("n1"), sources, servers, published, Box::new(machine.clone()), Stop::default())
}

fn make_device(machine: &Machine, name: &'static str, kind: &str, peers: &[WireguardKey]) -> String {
    let mut kernel = machine.kernel.lock().unwrap();
    let create =
        DeviceChange::Create { name: name.parse().unwrap(), mac: None, kind: DeviceKind::Other(kind.to_owned()) };
    kernel.change_device(&create).unwrap();
    let index = kernel.device(name).unwrap().unwrap().index;
    if kind != "wireguard" {
        return String::new();
    }
    let peers = peers.iter().map(|key| PeerChange::Replace(*key, DevicePeer::default())).collect();
    kernel.change_wireguard(index, &WireguardChange { new_key: true, peers, ..WireguardChange::default() }).unwrap();
    kernel.wireguard(index).unwrap().public_key.unwrap().to_string()
}

fn all() -> Vec<String> {
    SERVERS.map(|(address, _)| address.to_owned()).to_vec()
}

#[test]
fn a_node_without_encryption_removes_its_leftovers() {
    let bench = Bench::new(&[], &json!({}), &SERVERS);
    bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.device("wg-v6.cali", "bridge", &[]);
    bench.node("n1", "old", "older");
    assert_eq!(bench.servers(), all());
    assert_eq!(bench.published(), (String::new(), String::new()));
    assert!(!bench.has_device("wireguard.cali"));
    assert!(bench.has_device("wg-v6.cali"), "devices of other programs stay");
    let writes = bench.store.writes();
    assert_eq!(bench.servers(), all());
    assert_eq!((bench.store.writes(), bench.requests()), (writes, 1), "a removed key is not removed again");
}

#[test]
fn parameters_are_those_of_this_node() {
    let bench = Bench::new(&[], &json!({"wireguardEnabled": true}), &SERVERS);
    bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", "another", "");
    assert_eq!(bench.servers(), all());
    assert_eq!((bench.published().0.as_str(), bench.requests()), ("another", 0), "only traffic of pods is encrypted");
    let of_rack = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "rack-a"},
        "spec": {"nodeSelector": "rack == 'a'", "wireguardHostEncryptionEnabled": true},
    });
    bench.store.create(&key(ResourceKind::FelixConfiguration, "rack-a"), of_rack).unwrap();
    assert_eq!(bench.servers(), all());
    assert_eq!((bench.published().0.as_str(), bench.requests()), ("", 1));
    let of_environment = [("WireguardEnabled", "true"), ("WireguardHostEncryptionEnabled", "true")];
    let local = Bench::new(&of_environment, &json!({"wireguardEnabled": false}), &SERVERS);
    local.node("n1", "old", "");
    assert_eq!(local.servers(), all());
    assert_eq!(local.published().0, "");
}

/// As after a reboot: other nodes encrypt with a key that no device has.
#[test]
fn a_key_without_a_device_is_removed_from_the_datastore() {
    let bench = Bench::encrypting();
    bench.node("n1", "old", "");
    assert_eq!(bench.servers(), all());
    assert_eq!((bench.published().0.as_str(), bench.requests()), ("", 0));
}

#[test]
fn a_device_with_another_key_than_the_published_one_is_removed_with_it() {
    let bench = Bench::encrypting();
    bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", "old", "");
    assert_eq!(bench.servers(), all());
    assert_eq!(bench.published().0, "");
    assert!(!bench.has_device("wireguard.cali"));
    assert_eq!(bench.requests(), 1);
}

#[test]
fn servers_with_unreadable_answers_are_left_out() {
    let servers = [
        ("10.0.0.2:5473", Some("n2")),
        ("10.0.0.4:5473", Some("n4")),
        ("10.0.0.5:5473", Some("n5")),
        ("typha.example:5473", Some("n4")),
        ("[fd00::4]:5473", Some("n4")),
    ];
    let spec = json!({"wireguardEnabled": true, "wireguardHostEncryptionEnabled": true});
    let bench = Bench::new(&[], &spec, &servers);
    let own = bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", &own, "");
    bench.node("n2", &PEER.to_string(), "");
    bench.node("n4", &STRANGER.to_string(), "");
    // n5 is not known to the datastore.
    let expected = ["10.0.0.2:5473", "10.0.0.5:5473", "[fd00::4]:5473", "typha.example:5473"];
    assert_eq!(bench.servers(), expected);
    assert_eq!(bench.published().0, own);
    assert!(bench.has_device("wireguard.cali"));
}

#[test]
fn encryption_ends_when_no_server_is_reachable() {
    let bench = Bench::encrypting();
    let own = bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", &own, "");
    bench.node("n2", &STRANGER.to_string(), "");
    bench.bootstrap.connected();
    assert_eq!(bench.servers(), all());
    assert_eq!(bench.published().0, "");
    assert!(!bench.has_device("wireguard.cali"));
}

#[test]
fn thirty_seconds_without_a_server_end_encryption() {
    let bench = Bench::encrypting();
    let own = bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", &own, "");
    bench.bootstrap.connected();
    bench.pass(3600);
    assert_eq!(bench.servers(), all());
    bench.pass(30);
    assert_eq!(bench.servers(), all());
    assert!(bench.has_device("wireguard.cali"), "that may be a server that starts again");
    bench.pass(1);
    assert_eq!(bench.servers(), all());
    assert_eq!(bench.published().0, "");
    assert!(!bench.has_device("wireguard.cali"));
}

/// Its device has just been made, and its key is about to be written.
#[test]
fn a_node_that_is_being_programmed_puts_itself_right() {
    let bench = Bench::encrypting();
    bench.servers();
    bench.bootstrap.connected();
    bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", "old", "");
    assert_eq!(bench.servers(), all());
    assert_eq!((bench.published().0.as_str(), bench.requests()), ("old", 0));
}

#[test]
fn a_device_that_the_dataplane_programs_stays_until_it_is_released() {
    let mut bench = Bench::encrypting();
    bench.device("wireguard.cali", "wireguard", &[PEER]);
    bench.node("n1", "old", "");
    bench.machine.lets_go = false;
    let published = Box::new(KeysInStatus(Arc::clone(&bench.store) as Arc<dyn ResourceStore>));
    bench.bootstrap = bootstrap(&bench.machine, &[], &SERVERS, published);
    bench.servers();
    assert!(bench.has_device("wireguard.cali"));
    assert_eq!(bench.requests(), 1);
    assert_eq!(bench.published().0, "", "others send in clear all the same");
}

#[test]
fn failures_of_the_datastore_are_tried_again_and_come_to_an_end() {
    let bench = Bench::encrypting();
    bench.node("n1", "old", "");
    bench.store.fail_next(Fault::Unavailable);
    bench.store.fail_next(Fault::None);
    bench.store.fail_next(Fault::None);
    bench.store.fail_next(Fault::Unavailable);
    assert_eq!(bench.servers(), all());
    assert_eq!(bench.published().0, "");

    let down = Bench::encrypting();
    down.device("wireguard.cali", "wireguard", &[PEER]);
    down.node("n1", "old", "");
    down.store.set_down(true);
    let before = Instant::now();
    assert_eq!(down.servers(), all());
    assert!(before.elapsed() < Duration::from_secs(120));
    assert!(down.has_device("wireguard.cali"), "without an answer the device stays");
}

#[test]
fn a_refusal_is_not_tried_again() {
    let bench = Bench::encrypting();
    bench.node("n1", "old", "");
    bench.store.fail_next(Fault::Refused);
    assert_eq!(bench.servers(), all());
    assert_eq!(bench.published().0, "old", "of the datastore's parameters nothing is known");
}
