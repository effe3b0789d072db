//! Keys of etcd for readers of other syncers than Felix's.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use tortie_datastore::etcd::EtcdSource;
use tortie_lab::etcd::Etcd;
use tortie_resources::manifest::{BlockSource, Options, SyncerType};

use crate::cluster::{config, one};
use crate::syncer_reader::Reader;

const OTHERS: [SyncerType; 3] = [SyncerType::Bgp, SyncerType::TunnelIpAllocation, SyncerType::NodeStatus];
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
const AFFINITY: &str = "/calico/ipam/v2/host/n1/ipv4/block/10.1.0.0-26";

fn reader(etcd: &Etcd, syncer: SyncerType) -> Reader {
    let options = Options { syncer, block_source: BlockSource::IpamBlocks, ..Options::default() };
    Reader::new(EtcdSource::new(config(&etcd.url()), options))
}

/// Returns the version of an object that a reader received.
fn revision(reader: &Reader, path: &str) -> i64 {
    reader.received[path].1.parse().expect("a revision")
}

fn put(etcd: &Etcd, path: &str, value: &Json) {
    etcd.put(path, &value.to_string()).expect("put");
}

fn resource(kind: &str, name: &str, spec: &Json) -> Json {
    json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec})
}

fn put_resource(etcd: &Etcd, kind: &str, plural: &str, name: &str, spec: &Json) -> String {
    let path = format!("{RESOURCES}/{plural}/{name}");
    put(etcd, &path, &resource(kind, name, spec));
    path
}

#[test]
fn each_syncer_has_its_own_objects() {
    let etcd = one();
    let node = put_resource(&etcd, "Node", "nodes", "n1", &json!({"bgp": {"ipv4Address": "10.0.0.1/24"}}));
    put_resource(&etcd, "IPPool", "ippools", "p", &json!({"cidr": "10.1.0.0/16", "disableBGPExport": true}));
    let bgp = put_resource(&etcd, "BGPConfiguration", "bgpconfigurations", "default", &json!({"asNumber": 64512}));
    let peer = put_resource(&etcd, "BGPPeer", "bgppeers", "rack", &json!({"peerIP": "10.0.0.2"}));
    let filter = put_resource(&etcd, "BGPFilter", "bgpfilters", "f", &json!({"exportV4": [{"action": "Accept"}]}));
    let request = json!({"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": 10});
    let status = put_resource(&etcd, "CalicoNodeStatus", "caliconodestatuses", "s", &request);
    etcd.put(AFFINITY, r#"{"state":"confirmed","deleted":false}"#).expect("put");
    // Keys for other readers, and keys for none.
    etcd.put("/calico/ipam/v2/handle/h", r#"{"handleID":"h","block":{}}"#).expect("put");
    etcd.put("/calico/ipam/v2/host/n1/strange", "{}").expect("put");
    put_resource(&etcd, "Tier", "tiers", "t", &json!({"order": 1}));
    put_resource(&etcd, "KubeControllersConfiguration", "kubecontrollersconfigurations", "default", &json!({}));
    let [mut of_bgp, mut of_tunnels, mut of_status] = OTHERS.map(|syncer| reader(&etcd, syncer));
    let pool = "/calico/v1/ipam/v4/pool/10.1.0.0-16";
    of_bgp.until("listed", |r| r.in_sync);
    assert_eq!(of_bgp.paths(), [AFFINITY, &bgp, &filter, &peer, &node, pool]);
    assert_eq!(of_bgp.received[pool].0["disableBGPExport"], true);
    of_tunnels.until("listed", |r| r.in_sync);
    assert_eq!(of_tunnels.paths(), [&node, pool]);
    of_status.until("listed", |r| r.in_sync);
    assert_eq!(of_status.paths(), [&status]);
    let before = revision(&of_status, &status);

    put(&etcd, &status, &{
        let mut object = resource("CalicoNodeStatus", "s", &request);
        object["status"] = json!({"lastUpdated": "2026-01-01T00:00:00Z"});
        object
    });
    of_status.until("a report", |r| r.received[&status].0["status"]["lastUpdated"] == "2026-01-01T00:00:00Z");
    assert!(revision(&of_status, &status) > before, "the client must name the version to write it back");
    // The last valid version stays, and the problem has a name.
    put(&etcd, &filter, &resource("BGPFilter", "f", &json!({"exportV4": [{"action": "Maybe"}]})));
    of_bgp.until("a bad filter", |r| !r.problems.is_empty());
    assert_eq!(
        of_bgp.problems[0].to_string(),
        "BGPFilter/f: spec.exportV4[0].action: `Maybe` is none of Accept, Reject"
    );
    assert_eq!(of_bgp.received[&filter].0["spec"]["exportV4"][0]["action"], "Accept");
    etcd.put(AFFINITY, "{").expect("put");
    of_bgp.until("a bad affinity", |r| r.problems.len() == 2);
    etcd.delete(AFFINITY).expect("deleted");
    etcd.delete(&filter).expect("deleted");
    of_bgp.until("no problem is left", |r| r.problems.is_empty() && r.paths() == [&*bgp, &*peer, &*node, pool]);
    etcd.delete(&node).expect("deleted");
    of_tunnels.until("the node goes", |r| r.paths() == [pool]);

    of_tunnels.received.clear();
    of_tunnels.watching.resend.ask();
    of_tunnels.until("the objects are sent again", |r| r.in_sync && r.paths() == [pool]);
}

/// A pseudo-random number generator.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}

/// Returns the key of an object, and its value at the `version`th write.
fn object(choice: usize, version: usize) -> (String, Json) {
    let of = |kind: &str, plural: &str, name: &str, spec: Json| {
        (format!("{RESOURCES}/{plural}/{name}"), resource(kind, name, &spec))
    };
    match choice {
        // Two pools may claim the same network.
        0 => of(
            "IPPool",
            "ippools",
            "p1",
            json!({"cidr": format!("10.{}.0.0/16", version % 2), "natOutgoing": version.is_multiple_of(3)}),
        ),
        1 => of("IPPool", "ippools", "p2", json!({"cidr": format!("10.{}.0.0/16", 1 + version % 2)})),
        2 => of("Node", "nodes", "n1", json!({"ipv4VXLANTunnelAddr": format!("10.9.0.{}", version % 200)})),
        3 => of("Node", "nodes", "n2", json!({})),
        4 => of("BGPPeer", "bgppeers", "b", json!({"asNumber": version})),
        5 => of("BGPFilter", "bgpfilters", "f", json!({"importV4": [{"action": "Accept", "priority": version + 1}]})),
        6 => of("BGPConfiguration", "bgpconfigurations", "default", json!({"asNumber": version})),
        7 => (
            AFFINITY.into(),
            json!({"state": if version.is_multiple_of(2) { "pending" } else { "confirmed" }, "deleted": false}),
        ),
        8 => of(
            "CalicoNodeStatus",
            "caliconodestatuses",
            "s",
            json!({"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": version}),
        ),
        _ => of("Tier", "tiers", "t", json!({"order": version})),
    }
}
const CHOICES: usize = 10;

/// Returns the objects that a reader must have. It shares no code with the tested source except the
/// paths of pools.
fn expected(kept: &BTreeMap<String, Json>, syncer: SyncerType) -> BTreeMap<String, Json> {
    let kinds: &[&str] = match syncer {
        SyncerType::Bgp => &["IPPool", "Node", "BGPPeer", "BGPFilter", "BGPConfiguration", "affinity"],
        SyncerType::TunnelIpAllocation => &["IPPool", "Node"],
        SyncerType::NodeStatus => &["CalicoNodeStatus"],
        SyncerType::Felix => &[],
    };
    let mut expected = BTreeMap::new();
    // The pool whose name is first wins, so the last ones go first.
    for (path, value) in kept.iter().rev() {
        let kind = value["kind"].as_str().unwrap_or("affinity");
        if !kinds.contains(&kind) {
            continue;
        }
        let network = value["spec"]["cidr"].as_str();
        let (path, value) = match network {
            Some(cidr) => {
                let nat = value["spec"]["natOutgoing"] == true;
                (
                    format!("/calico/v1/ipam/v4/pool/{}", cidr.replace('/', "-")),
                    json!({"cidr": cidr, "masquerade": nat}),
                )
            }
            None => (path.clone(), value.clone()),
        };
        expected.insert(path, value);
    }
    expected
}

#[test]
fn readers_match_etcd_after_any_history() {
    let etcd = one();
    let mut random = PseudoRandom(7);
    let mut kept: BTreeMap<String, Json> = BTreeMap::new();
    let mut readers = OTHERS.map(|syncer| (syncer, reader(&etcd, syncer)));
    for round in 0..12 {
        for step in 0..10 {
            let (path, value) = object(random.below(CHOICES), round * 10 + step);
            if random.below(3) == 0 {
                if kept.remove(&path).is_some() {
                    etcd.delete(&path).expect("deleted");
                }
            } else {
                put(&etcd, &path, &value);
                kept.insert(path, value);
            }
        }
        if round % 4 == 3 {
            etcd.compact().expect("compacted");
        }
        for (syncer, known) in &mut readers {
            let expected = expected(&kept, *syncer);
            known.until(&format!("round {round} of {syncer}: {expected:?}"), |reader| {
                let received = reader.received.iter().map(|(path, (value, _))| match path.contains("/pool/") {
                    true => (path.clone(), json!({"cidr": value["cidr"], "masquerade": value["masquerade"]})),
                    false => (path.clone(), value.clone()),
                });
                reader.in_sync && received.collect::<BTreeMap<_, _>>() == expected
            });
        }
        // Some readers start late.
        if round % 5 == 4 {
            let (syncer, known) = &mut readers[random.below(OTHERS.len())];
            *known = reader(&etcd, *syncer);
        }
    }
}
