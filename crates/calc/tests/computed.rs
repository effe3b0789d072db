//! Calculated fields of workload endpoints besides policies.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use tortie_calc::{Graph, GraphConfig};
use tortie_model::desired::{ComputedFields, DesiredUpdate, IpSetType, LiveMigrationRole, Members, SkipRedirect};
use tortie_model::{
    BgpPeer, HostEndpoint, HostEndpointKey, Key, Labels, LiveMigration, MigrationParty, NamespacedName, NetworkSet,
    Node, PeerNodes, Profile, QosControls, SyncStatus, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
    WorkloadExtras,
};
use tortie_selector::Selector;

const HOST: &str = "here";

fn graph(istio_ambient_mode: bool) -> Graph {
    let mut graph = Graph::new(&GraphConfig { istio_ambient_mode, ..GraphConfig::new(HOST.into()) });
    graph.on_status(SyncStatus::InSync);
    graph
}

fn flush(graph: &mut Graph) -> Vec<DesiredUpdate> {
    let mut out = Vec::new();
    graph.flush(&mut out);
    out
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::from_pairs(pairs.iter().copied()).unwrap()
}

/// Returns an endpoint with the identity `orchestrator/workload/endpoint`.
fn endpoint(id: [&str; 3], pairs: &[(&str, &str)]) -> Update {
    // Names that two endpoints of a node do not share.
    let number: u32 = id.concat().bytes().map(u32::from).sum();
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{number}").parse().unwrap()),
        labels: labels(pairs),
        ipv4_nets: [format!("10.0.{}.{}/32", number / 256, number % 256).parse().unwrap()].into_iter().collect(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new(HOST, id[0], id[1], id[2]);
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

/// Flushes and returns the sent fields of workload endpoints, by workload and endpoint.
fn sent_fields(graph: &mut Graph) -> Vec<(String, ComputedFields)> {
    let updates = flush(graph).into_iter().filter_map(|update| match update {
        DesiredUpdate::WorkloadEndpoint(id, state) => {
            Some((format!("{}/{}", id.workload, id.endpoint), state.computed.map(|c| *c).unwrap_or_default()))
        }
        _ => None,
    });
    updates.collect()
}

fn roles(graph: &mut Graph) -> Vec<(String, Option<LiveMigrationRole>, String)> {
    let sent_fields = sent_fields(graph).into_iter();
    sent_fields.map(|(id, fields)| (id, fields.live_migration_role, fields.live_migration_uid.to_string())).collect()
}

fn endpoint_role(id: &str, role: Option<LiveMigrationRole>, uid: &str) -> (String, Option<LiveMigrationRole>, String) {
    (id.into(), role, uid.into())
}

fn party(host: &str, [orchestrator, workload, endpoint]: [&str; 3]) -> Option<MigrationParty> {
    Some(MigrationParty {
        host: host.into(),
        orchestrator: orchestrator.into(),
        workload: workload.into(),
        endpoint: endpoint.into(),
    })
}

struct Move {
    uid: &'static str,
    source: Option<MigrationParty>,
    target: Option<MigrationParty>,
    selector: Option<&'static str>,
}

const NOTHING: Move = Move { uid: "u", source: None, target: None, selector: None };

fn key(name: &str) -> Key {
    Key::LiveMigration(NamespacedName::new("ns", name))
}

fn migration(name: &str, Move { uid, source, target, selector }: Move) -> Update {
    let target_selector = selector.map(|text| Selector::parse(text).unwrap());
    let migration = LiveMigration { text: "{}".into(), uid: uid.into(), source, target, target_selector };
    Update::LiveMigration(NamespacedName::new("ns", name), Some(migration.into()))
}

const SOURCE: Option<LiveMigrationRole> = Some(LiveMigrationRole::Source);
const TARGET: Option<LiveMigrationRole> = Some(LiveMigrationRole::Target);

#[test]
fn whole_workloads_and_single_endpoints_are_named() {
    let mut graph = graph(false);
    for (workload, name) in [("vm", "e0"), ("vm", "e1"), ("other", "e0")] {
        graph.on_update(endpoint(["openstack", workload, name], &[]));
    }
    assert_eq!(sent_fields(&mut graph).len(), 3);
    graph.on_update(migration("m", Move { source: party(HOST, ["openstack", "vm", ""]), ..NOTHING }));
    assert_eq!(roles(&mut graph), [endpoint_role("vm/e0", SOURCE, "u"), endpoint_role("vm/e1", SOURCE, "u")]);
    graph.on_update(migration("m", Move { target: party(HOST, ["openstack", "vm", "e1"]), ..NOTHING }));
    assert_eq!(roles(&mut graph), [endpoint_role("vm/e0", None, ""), endpoint_role("vm/e1", TARGET, "u")]);
    // Of another node, or another orchestrator, though of the same name.
    for target in [party("there", ["openstack", "vm", "e1"]), party(HOST, ["k8s", "vm", "e1"])] {
        graph.on_update(migration("m", Move { target, ..NOTHING }));
        let _ = flush(&mut graph);
        graph.on_update(endpoint(["openstack", "vm", "e1"], &[("a", "x")]));
        assert_eq!(roles(&mut graph), [endpoint_role("vm/e1", None, "")]);
        graph.on_update(endpoint(["openstack", "vm", "e1"], &[]));
    }
}

#[test]
fn pods_are_matched_regardless_of_node_and_order() {
    let mut graph = graph(false);
    graph.on_update(migration("m", Move { source: party("there", ["k8s", "ns/pod", ""]), ..NOTHING }));
    assert_eq!(roles(&mut graph), []);
    graph.on_update(endpoint(["k8s", "ns/pod", "eth0"], &[]));
    graph.on_update(endpoint(["k8s", "ns/pod1", "eth0"], &[]));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", SOURCE, "u"), endpoint_role("ns/pod1/eth0", None, "")]);
    // A recreated endpoint has the role again, and a removed one leaves no state.
    let pod = Key::WorkloadEndpoint(WorkloadEndpointKey::new(HOST, "k8s", "ns/pod", "eth0"));
    graph.on_update(Update::delete(pod));
    let _ = flush(&mut graph);
    graph.on_update(endpoint(["k8s", "ns/pod", "eth0"], &[]));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", SOURCE, "u")]);
    graph.on_update(Update::delete(key("m")));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", None, "")]);
    for workload in ["ns/pod", "ns/pod1"] {
        graph.on_update(Update::delete(Key::WorkloadEndpoint(WorkloadEndpointKey::new(HOST, "k8s", workload, "eth0"))));
    }
    let _ = flush(&mut graph);
    assert!(graph.is_empty());
}

#[test]
fn a_selector_comes_before_a_name_and_a_target_before_a_source() {
    let mut graph = graph(false);
    let pod = ["k8s", "ns/pod", "eth0"];
    graph.on_update(endpoint(pod, &[("a", "x")]));
    let moves = [
        ("source", Move { uid: "9", source: party("", pod), ..NOTHING }),
        ("target", Move { uid: "8", target: party("", pod), ..NOTHING }),
        ("selector", Move { uid: "7", selector: Some("a == 'x'"), ..NOTHING }),
    ];
    for ((name, migration_of), expected) in moves.into_iter().zip([(SOURCE, "9"), (TARGET, "8"), (TARGET, "7")]) {
        graph.on_update(migration(name, migration_of));
        assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", expected.0, expected.1)]);
    }
    // The greatest UID of those that give the role counts, also if it changes in place.
    graph.on_update(migration("another", Move { uid: "6", selector: Some("has(a)"), ..NOTHING }));
    assert_eq!(roles(&mut graph), []);
    graph.on_update(migration("another", Move { uid: "75", selector: Some("has(a)"), ..NOTHING }));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", TARGET, "75")]);
    // The same in the flush in which the endpoint's labels change.
    graph.on_update(endpoint(pod, &[("a", "x"), ("b", "y")]));
    graph.on_update(migration("another", Move { uid: "76", selector: Some("has(a)"), ..NOTHING }));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", TARGET, "76")]);
    graph.on_update(endpoint(pod, &[]));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", TARGET, "8")]);
    graph.on_update(Update::delete(key("target")));
    assert_eq!(roles(&mut graph), [endpoint_role("ns/pod/eth0", SOURCE, "9")]);
}

fn peer(name: &str, nodes: PeerNodes, workloads: Option<&str>) -> Update {
    let local_workloads = workloads.map(|text| Selector::parse(text).unwrap());
    let peer = BgpPeer { text: "{}".into(), nodes, local_workloads };
    Update::BgpPeer(name.into(), Some(peer.into()))
}

fn peers(graph: &mut Graph) -> Vec<Option<Arc<str>>> {
    sent_fields(graph).into_iter().map(|(_, fields)| fields.local_bgp_peer).collect()
}

#[test]
fn the_first_peer_of_this_node_by_name() {
    let mut graph = graph(false);
    let node = |pairs: &[(&str, &str)]| {
        let node =
            Node { bgp: None, addresses: [].into(), tunnels: None, pod_networks: [].into(), labels: labels(pairs) };
        Update::Node(HOST.into(), Some(Valid::new(node).unwrap()))
    };
    let selected = |text: &str| PeerNodes::Selected(Selector::parse(text).unwrap());
    graph.on_update(endpoint(["k8s", "ns/pod", "eth0"], &[("a", "x")]));
    graph.on_update(peer("m", PeerNodes::Named(HOST.into()), Some("a == 'x'")));
    graph.on_update(peer("a-none", PeerNodes::Named(HOST.into()), None));
    graph.on_update(peer("b-elsewhere", PeerNodes::Named("there".into()), Some("all()")));
    graph.on_update(peer("c-unreadable", PeerNodes::Nobody, Some("all()")));
    graph.on_update(peer("d-rack", selected("rack == '1'"), Some("all()")));
    assert_eq!(peers(&mut graph), [Some("m".into())]);
    graph.on_update(peer("z", PeerNodes::Named(HOST.into()), Some("all()")));
    assert_eq!(peers(&mut graph), [], "the first stays");
    graph.on_update(node(&[("rack", "1")]));
    assert_eq!(peers(&mut graph), [Some("d-rack".into())]);
    graph.on_update(node(&[("rack", "2")]));
    assert_eq!(peers(&mut graph), [Some("m".into())]);
    graph.on_update(Update::delete(Key::BgpPeer("m".into())));
    assert_eq!(peers(&mut graph), [Some("z".into())]);
    // An unknown node has no labels.
    graph.on_update(peer("d-rack", selected("!has(rack)"), Some("all()")));
    assert_eq!(peers(&mut graph), []);
    graph.on_update(Update::delete(Key::Node(HOST.into())));
    assert_eq!(peers(&mut graph), [Some("d-rack".into())]);
}

#[test]
fn a_mesh_has_a_set_from_the_start_and_only_pods_in_it() {
    let mut graph = graph(true);
    assert!(graph.is_empty());
    let out = flush(&mut graph);
    let set = out.iter().find_map(|update| match update {
        DesiredUpdate::IpSet(set) => Some(set),
        _ => None,
    });
    let set = set.unwrap();
    assert_eq!((set.id.as_str(), set.set_type, set.members.len()), ("all-istio-weps", IpSetType::Ip, 0));
    assert!(graph.is_empty(), "{graph:?}");

    let mesh = [("pcns.istio.io/dataplane-mode", "ambient")];
    let handed_down = Valid::new(Profile { labels: labels(&mesh) }).unwrap();
    graph.on_update(Update::Profile("kns.ns".into(), Some(handed_down)));
    let pod = endpoint(["k8s", "ns/pod", "eth0"], &[("projectcalico.org/orchestrator", "k8s")]);
    let Update::WorkloadEndpoint(pod_key, Some(value)) = pod else { panic!("{pod:?}") };
    let value = WorkloadEndpoint { profiles: ["kns.ns".into()].into(), ..WorkloadEndpoint::clone(&value) };
    graph.on_update(Update::WorkloadEndpoint(pod_key.clone(), Some(Valid::new(value).unwrap())));
    let host = HostEndpoint { iface: Some("eth0".parse().unwrap()), labels: labels(&mesh), ..HostEndpoint::default() };
    let host_key = HostEndpointKey { host: HOST.into(), name: "eth0".into() };
    graph.on_update(Update::HostEndpoint(host_key.clone(), Some(Valid::new(host).unwrap())));
    let nets =
        NetworkSet { nets: ["192.0.2.0/24".parse().unwrap()].into(), labels: labels(&mesh), ..NetworkSet::default() };
    graph.on_update(Update::NetworkSet("n".into(), Some(Valid::new(nets).unwrap())));
    let out = flush(&mut graph);
    let delta = out.iter().find_map(|update| match update {
        DesiredUpdate::IpSetDelta(delta) => Some(&delta.added),
        _ => None,
    });
    assert_eq!(delta, Some(&Members::Nets(vec!["10.0.4.218".parse().unwrap()])));
    assert!(out.iter().any(|update| matches!(
        update,
        DesiredUpdate::WorkloadEndpoint(_, state) if state.computed.as_ref().is_some_and(|c| c.is_istio_ambient)
    )));
    // The namespace leaves the mesh.
    graph.on_update(Update::delete(Key::Profile("kns.ns".into())));
    assert_eq!(sent_fields(&mut graph), [("ns/pod/eth0".into(), ComputedFields::default())]);
    for key in [Key::WorkloadEndpoint(pod_key), Key::HostEndpoint(host_key), Key::NetworkSet("n".into())] {
        graph.on_update(Update::delete(key));
    }
    let _ = flush(&mut graph);
    assert!(graph.is_empty(), "{graph:#?}");
}

#[test]
fn limits_and_virtual_machines_skip_redirection() {
    let mut graph = graph(false);
    let fields_of = |graph: &mut Graph, qos: QosControls, pairs: &[(&str, &str)]| {
        let update = endpoint(["k8s", "ns/pod", "eth0"], pairs);
        let Update::WorkloadEndpoint(key, Some(value)) = update else { panic!("{update:?}") };
        let extras = Some(Box::new(WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() }));
        let value = WorkloadEndpoint { extras, ..WorkloadEndpoint::clone(&value) };
        graph.on_update(Update::WorkloadEndpoint(key, Some(Valid::new(value).unwrap())));
        sent_fields(graph).remove(0).1
    };
    let limit = |ingress_packet_rate, egress_bandwidth| QosControls {
        ingress_packet_rate,
        egress_bandwidth,
        ..QosControls::default()
    };
    for (qos, pairs, expected) in [
        (limit(0, 0), &[][..], None),
        (limit(1, 0), &[], Some(SkipRedirect { ingress: true, egress: false })),
        (limit(0, 1), &[], Some(SkipRedirect { ingress: false, egress: true })),
        (limit(0, 1), &[("kubevirt.io", "virt-launcher")], Some(SkipRedirect { ingress: true, egress: true })),
    ] {
        assert_eq!(fields_of(&mut graph, qos, pairs).skip_redirect, expected);
    }
    let machine = [("vm.kubevirt.io/name", "old"), ("vmi.kubevirt.io/id", "id")];
    assert_eq!(&*fields_of(&mut graph, limit(1, 1), &machine[..1]).live_migration_vmi_name, "old");
    assert_eq!(&*fields_of(&mut graph, limit(1, 1), &machine).live_migration_vmi_name, "id");
}
