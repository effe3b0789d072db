//! Objects of the API server for readers of other syncers than Felix's.

use serde_json::{Value as Json, json};
use tortie_datastore::kubernetes::{KubeConfig, KubernetesSource};
use tortie_lab::apiserver::ApiServer;
use tortie_resources::manifest::{BlockSource, Options, SyncerType};

use super::timing;
use crate::syncer_reader::Reader;

fn reader(server: &ApiServer, syncer: SyncerType, block_source: BlockSource) -> Reader {
    let options = Options { syncer, block_source, ..Options::default() };
    Reader::new(KubernetesSource::new(KubeConfig::file(server.kubeconfig()), options).with_timing(timing()))
}

const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/n1";
const POOL: &str = "/calico/v1/ipam/v4/pool/10.1.0.0-16";
const BGP: &str = "/calico/resources/v3/projectcalico.org/bgpconfigurations/default";
const PEER: &str = "/calico/resources/v3/projectcalico.org/bgppeers/rack";
const FILTER: &str = "/calico/resources/v3/projectcalico.org/bgpfilters/f";
const STATUS: &str = "/calico/resources/v3/projectcalico.org/caliconodestatuses/s";
const AFFINITY: &str = "/calico/ipam/v2/host/n1/ipv4/block/10.1.0.0-26";

fn cluster(api_version: &str) -> ApiServer {
    let server = ApiServer::start().expect("a port");
    let (group, version) = api_version.split_once('/').expect("a group and a version");
    server.install_calico(group, version);
    for (plural, kind) in
        [("bgpfilters", "BGPFilter"), ("blockaffinities", "BlockAffinity"), ("caliconodestatuses", "CalicoNodeStatus")]
    {
        server.install(group, version, plural, kind, false);
    }
    let annotations = json!({"projectcalico.org/IPv4Address": "10.0.0.1/24", "projectcalico.org/ASNumber": "64512"});
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "annotations": annotations}}));
    server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    let deleted = if version == "v3" { json!(false) } else { json!("false") };
    for (kind, name, spec) in [
        ("IPPool", "p", json!({"cidr": "10.1.0.0/16", "disableBGPExport": true})),
        ("BGPConfiguration", "default", json!({"asNumber": 64512})),
        ("BGPPeer", "rack", json!({"peerIP": "10.0.0.2"})),
        ("BGPFilter", "f", json!({"exportV4": [{"action": "Accept"}]})),
        ("CalicoNodeStatus", "s", json!({"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": 10})),
        ("Tier", "t", json!({"order": 1})),
    ] {
        server.apply(json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}));
    }
    server.apply(affinity(api_version, &deleted));
    server
}

fn affinity(api_version: &str, deleted: &Json) -> Json {
    let spec = json!({"cidr": "10.1.0.0/26", "node": "n1", "state": "confirmed", "type": "host", "deleted": deleted});
    json!({"apiVersion": api_version, "kind": "BlockAffinity", "metadata": {"name": "n1-10-1-0-0-26"}, "spec": spec})
}

#[test]
fn each_syncer_has_its_own_objects() {
    for api_version in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
        let server = cluster(api_version);
        let reader = |syncer| {
            let mut reader = reader(&server, syncer, BlockSource::IpamBlocks);
            reader.until("in sync", |r| r.in_sync);
            reader
        };
        let mut of_status = reader(SyncerType::NodeStatus);
        assert_eq!(of_status.paths(), [STATUS]);
        for other in ["GET /api/v1/nodes", "GET /api/v1/pods", "GET /api/v1/namespaces"] {
            assert_eq!(server.requests(other), 0, "{other}");
        }
        let mut of_tunnels = reader(SyncerType::TunnelIpAllocation);
        assert_eq!(of_tunnels.paths(), [NODE, POOL]);
        assert_eq!(
            of_tunnels.received[NODE].0["spec"]["bgp"],
            json!({"ipv4Address": "10.0.0.1/24", "asNumber": 64512})
        );
        assert!(!of_tunnels.received[NODE].1.is_empty());
        let mut of_bgp = reader(SyncerType::Bgp);
        assert_eq!(of_bgp.paths(), [AFFINITY, BGP, FILTER, PEER, NODE, POOL]);
        assert_eq!(of_bgp.received[AFFINITY].0, json!({"state": "confirmed", "deleted": false}));
        assert_eq!(of_bgp.received[POOL].0["disableBGPExport"], true);
        assert_eq!(of_bgp.received[FILTER].0["apiVersion"], "projectcalico.org/v3");
        assert_eq!((&of_bgp.problems[..], &of_tunnels.problems[..]), (&[][..], &[][..]));
        // No reader requested other kinds.
        assert_eq!(server.requests("GET /api/v1/pods"), 0);

        let version = of_status.received[STATUS].1.clone();
        let mut status = server.get(api_version, "CalicoNodeStatus", "", "s").expect("it is there");
        status["status"] = json!({"lastUpdated": "2026-01-01T00:00:00Z"});
        server.apply(status);
        of_status.until("a report", |r| r.received[STATUS].0["status"]["lastUpdated"] == "2026-01-01T00:00:00Z");
        assert_ne!(of_status.received[STATUS].1, version);
        // One that is being deleted is gone already.
        server.apply(affinity(api_version, &if api_version.ends_with("v3") { json!(true) } else { json!("true") }));
        of_bgp.until("the affinity goes", |r| !r.received.contains_key(AFFINITY));
        server.delete("v1", "Node", "", "n1");
        of_bgp.until("the node goes", |r| r.paths() == [BGP, FILTER, PEER, POOL]);
        of_tunnels.until("the node goes", |r| r.paths() == [POOL]);
        server.apply(json!({
            "apiVersion": api_version, "kind": "BGPFilter", "metadata": {"name": "f"},
            "spec": {"exportV4": [{"action": "Maybe"}]},
        }));
        of_bgp.until("a bad filter", |r| r.problems.len() == 1);
        assert_eq!(of_bgp.received[FILTER].0["spec"]["exportV4"][0]["action"], "Accept", "the last good version stays");
    }
}

/// If nodes have their own pod networks, affinities are not read.
#[test]
fn affinities_are_not_asked_for_without_ipam() {
    let server = cluster("crd.projectcalico.org/v1");
    let mut reader = reader(&server, SyncerType::Bgp, BlockSource::PodCidrs);
    reader.until("in sync", |r| r.in_sync);
    assert_eq!(reader.paths(), [BGP, FILTER, PEER, NODE, POOL]);
    assert_eq!(server.requests("GET /apis/crd.projectcalico.org/v1/blockaffinities"), 0);
}

/// A cluster without Calico's kinds is in sync once their absence is known.
#[test]
fn nothing_is_not_waited_for() {
    let server = ApiServer::start().expect("a port");
    for syncer in [SyncerType::NodeStatus, SyncerType::TunnelIpAllocation] {
        let mut reader = reader(&server, syncer, BlockSource::Omitted);
        reader.until("in sync", |r| r.in_sync);
        assert_eq!(reader.paths(), [""; 0]);
    }
}
