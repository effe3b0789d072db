use super::*;
use crate::manifest::{self, BlockSource, Options, UnknownFields, read_object};

fn resource(syncer: SyncerType, kind: Kind, object: &Json) -> Resource {
    let options = Options {
        syncer,
        block_source: BlockSource::IpamBlocks,
        unknown_fields: UnknownFields::Ignore,
        ..Options::default()
    };
    read_object(&object.to_string(), kind, &options, &mut Interner::new()).expect("JSON")
}

fn only(resource: Resource) -> (String, Json, String) {
    let Outcome::Valid(contributions) = resource.outcome else { panic!("{:?}", resource.problems) };
    let [Update::SyncerObject(path, Some(object))] = &contributions[..] else { panic!("{contributions:?}") };
    (path.to_string(), serde_json::from_str(&object.text).expect("JSON"), object.resource_version.to_string())
}

fn read(kind: Kind, object: &Json) -> (String, Json, String) {
    let syncer = if kind == Kind::CalicoNodeStatus { SyncerType::NodeStatus } else { SyncerType::Bgp };
    let resource = resource(syncer, kind, object);
    assert_eq!(resource.problems, [], "{object}");
    only(resource)
}

/// Returns the problem of an object that must not be sent.
fn problem(kind: Kind, object: &Json) -> String {
    let syncer = if kind == Kind::CalicoNodeStatus { SyncerType::NodeStatus } else { SyncerType::Bgp };
    let resource = resource(syncer, kind, object);
    assert_eq!(resource.outcome, Outcome::Invalid { substitute: None }, "{object}");
    resource.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn calico(kind: &str, name: &str, spec: Json) -> Json {
    let mut object = json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}});
    object["spec"] = spec;
    object
}

#[test]
fn names_of_syncers() {
    for syncer in SyncerType::ALL {
        assert_eq!(syncer.as_str().parse(), Ok(syncer));
    }
    for word in ["", "Felix", "bgp "] {
        assert_eq!(word.parse::<SyncerType>(), Err(UnknownSyncer(word.into())));
    }
}

/// The lists of `libcalico-go/lib/backend/syncersv1/{bgpsyncer,tunnelipsyncer,nodestatussyncer}`.
#[test]
fn kinds_of_each_syncer() {
    let all = |syncer: SyncerType, block_source| -> Vec<Kind> {
        let kinds = [
            Kind::IpPool,
            Kind::Node,
            Kind::KubernetesNode,
            Kind::BgpConfiguration,
            Kind::BgpPeer,
            Kind::BgpFilter,
            Kind::BlockAffinity,
            Kind::CalicoNodeStatus,
            Kind::WorkloadEndpoint,
            Kind::Pod,
            Kind::IpamBlock,
            Kind::GlobalNetworkPolicy,
            Kind::FelixConfiguration,
        ];
        kinds.into_iter().filter(|kind| syncer.takes(*kind, block_source)).collect()
    };
    let tunnels = [Kind::IpPool, Kind::Node, Kind::KubernetesNode];
    let bgp = [&tunnels[..], &[Kind::BgpConfiguration, Kind::BgpPeer, Kind::BgpFilter]].concat();
    for blocks in [BlockSource::Omitted, BlockSource::IpamBlocks, BlockSource::PodCidrs] {
        assert_eq!(all(SyncerType::TunnelIpAllocation, blocks), tunnels);
        assert_eq!(all(SyncerType::NodeStatus, blocks), [Kind::CalicoNodeStatus]);
        let affinities: &[Kind] = if blocks == BlockSource::PodCidrs { &[] } else { &[Kind::BlockAffinity] };
        assert_eq!(all(SyncerType::Bgp, blocks), [&bgp, affinities].concat());
    }
    let felix = all(SyncerType::Felix, BlockSource::IpamBlocks);
    assert!(
        felix.contains(&Kind::Pod) && !felix.contains(&Kind::BgpFilter) && !felix.contains(&Kind::CalicoNodeStatus)
    );
}

/// Names, order and defaults of fields are those of `IPPool` in
/// `libcalico-go/lib/backend/model/ippool.go`.
#[test]
fn pools_have_their_v1_form_with_the_fields_for_bgp() {
    let spec = json!({
        "cidr": "10.1.0.0/16", "ipipMode": "CrossSubnet", "natOutgoing": true, "disabled": true,
        "disableBGPExport": true, "assignmentMode": "Manual", "allowedUses": ["Tunnel"],
    });
    let (path, value, _) = read(Kind::IpPool, &calico("IPPool", "p", spec));
    assert_eq!(path, "/calico/v1/ipam/v4/pool/10.1.0.0-16");
    let expected = r#"{"cidr":"10.1.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet","vxlan_mode":"","masquerade":true,"ipam":false,"disabled":true,"disableBGPExport":true,"assignment_mode":"Manual","allowed_uses":["Tunnel"]}"#;
    assert_eq!(value.to_string(), expected);
    let spec = json!({"cidr": "fd00::/48"});
    let (path, value, _) = read(Kind::IpPool, &calico("IPPool", "p", spec));
    assert_eq!(path, "/calico/v1/ipam/v6/pool/fd00::-48");
    let expected = r#"{"cidr":"fd00::/48","ipip":"","ipip_mode":"","vxlan_mode":"","masquerade":false,"ipam":true,"disabled":false,"disableBGPExport":false,"assignment_mode":"Automatic"}"#;
    assert_eq!(value.to_string(), expected);
    let bad = |spec| problem(Kind::IpPool, &calico("IPPool", "p", spec));
    assert_eq!(
        bad(json!({"cidr": "fd00::/48", "assignmentMode": "Sometimes"})),
        "spec: assignmentMode: `Sometimes` is neither Automatic nor Manual"
    );
    assert_eq!(
        bad(json!({"cidr": "10.1.2.3/16"})),
        "spec.cidr: `10.1.2.3/16` has host bits; the network is 10.1.0.0/16"
    );
}

#[test]
fn resources_are_complete_except_for_their_version() {
    let mut node = calico(
        "Node",
        "n1",
        json!({
            "bgp": {"ipv4Address": "10.0.0.1/24", "asNumber": 64512, "routeReflectorClusterID": "1.1.1.1"},
            "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"]}],
            "orchRefs": [{"nodeName": "n1", "orchestrator": "k8s"}],
        }),
    );
    node["status"] = json!({"wireguardPublicKey": "k", "podCIDRs": ["10.2.0.0/24"]});
    let expected = node.clone();
    node["metadata"]["resourceVersion"] = "12".into();
    node["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    let (path, value, version) = read(Kind::Node, &node);
    assert_eq!((&*path, &*version), ("/calico/resources/v3/projectcalico.org/nodes/n1", "12"));
    assert_eq!(value, expected);
    assert_eq!(only(resource(SyncerType::Bgp, Kind::Node, &node).with_version(77)).2, "77");

    node["spec"]["interfaces"] = json!("eth0");
    assert_eq!(problem(Kind::Node, &node), "spec.interfaces: must be a list, is text");
    node["spec"]["interfaces"] = json!([]);
    node["spec"]["bgp"] = json!({});
    assert_eq!(problem(Kind::Node, &node), "spec.bgp: must not be empty");

    for (kind, name, plural) in
        [(Kind::BgpPeer, "BGPPeer", "bgppeers"), (Kind::BgpConfiguration, "BGPConfiguration", "bgpconfigurations")]
    {
        let object = calico(name, "x", json!({"nodeSelector": "all()", "prefixAdvertisements": []}));
        let (path, value, _) = read(kind, &object);
        assert_eq!(path, format!("/calico/resources/v3/projectcalico.org/{plural}/x"));
        assert_eq!(value, object);
    }
}

/// `ConvertK8sResourceToCalicoResource`: the metadata in the annotation is that of the resource,
/// except fields of the server.
#[test]
fn metadata_that_an_annotation_keeps() {
    let kept = json!({
        "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "kept"}, "annotations": {"x": "y"},
        "ownerReferences": [
            {"apiVersion": "crd.projectcalico.org/v1", "kind": "Node", "name": "n", "uid": "73a9bec1-0e8d-408c-989e-d13ef4b9cdf5"},
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "7"},
        ],
    });
    let mut object = calico("BGPFilter", "f", json!({"exportV4": [{"action": "Reject"}]}));
    object["apiVersion"] = "crd.projectcalico.org/v1".into();
    object["metadata"] = json!({
        "name": "f", "uid": "73a9bec1-0e8d-408c-989e-d13ef4b9cdf5", "generation": 9, "resourceVersion": "4",
        "creationTimestamp": "2026-02-02T00:00:00Z", "labels": {"a": "crd", "b": "crd"},
        "annotations": {"projectcalico.org/metadata": kept.to_string(), "k": "v"},
    });
    let (_, value, version) = read(Kind::BgpFilter, &object);
    assert_eq!(version, "4");
    assert_eq!(value["apiVersion"], "projectcalico.org/v3");
    let metadata = json!({
        "name": "f", "uid": "ce957d83-70b1-4031-9879-8b7c2f9db3af", "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "kept", "b": "crd"}, "annotations": {"k": "v", "x": "y"},
        "ownerReferences": [
            {"apiVersion": "projectcalico.org/v3", "kind": "Node", "name": "n", "uid": "ce957d83-70b1-4031-9879-8b7c2f9db3af"},
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "7"},
        ],
    });
    assert_eq!(value["metadata"], metadata);
    object["metadata"]["uid"] = "seven".into();
    assert_eq!(problem(Kind::BgpFilter, &object), "metadata.uid: \"seven\" is not a UID");
    // In the other API, the server's metadata is that of the resource.
    object["apiVersion"] = "projectcalico.org/v3".into();
    object["metadata"]["annotations"] = json!({"k": "v"});
    let (_, value, _) = read(Kind::BgpFilter, &object);
    assert_eq!((&value["metadata"]["uid"], &value["metadata"]["generation"]), (&json!("seven"), &json!(9)));
}

fn kubernetes_node() -> Json {
    let annotation = |name: &str| format!("projectcalico.org/{name}");
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "n1", "uid": "8bcb16bf-1b96-4e19-a2be-a8b7c1d3b08d", "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"zone": "z1", "a": "server"},
            "annotations": {
                annotation("labels"): r#"{"a":"calico","rack":"r1"}"#,
                annotation("annotations"): r#"{"note":"n"}"#,
                annotation("IPv4Address"): "10.0.0.1/24",
                annotation("IPv6Address"): "fd00::1",
                annotation("ASNumber"): "1.10",
                annotation("RouteReflectorClusterID"): "244.0.0.1",
                annotation("IPv4IPIPTunnelAddr"): "10.65.1.1",
                annotation("IPv4VXLANTunnelAddr"): "10.65.1.2",
                annotation("IPv6VXLANTunnelAddr"): "10.65.1.3",
                annotation("VXLANTunnelMACAddr"): "66:00:00:00:00:01",
                annotation("IPv4WireguardInterfaceAddr"): "10.65.1.4",
                annotation("WireguardPublicKey"): "key",
                annotation("Interfaces"): r#"[{"name":"eth0","addresses":["10.0.0.1","nonsense"]}]"#,
                "other": "not Calico's",
            },
        },
        "spec": {"podCIDR": "10.9.1.0/24", "podCIDRs": ["10.9.1.0/24"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"},
            {"type": "ExternalIP", "address": "1.2.3.4"},
        ]},
    })
}

#[test]
fn nodes_of_kubernetes_as_calico_sees_them() {
    let resource = resource(SyncerType::TunnelIpAllocation, Kind::KubernetesNode, &kubernetes_node());
    let problems: Vec<String> = resource.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        ["annotation projectcalico.org/IPv6VXLANTunnelAddr: `10.65.1.3` is not valid; it is not used"]
    );
    let (path, value, version) = only(resource);
    assert_eq!((&*path, &*version), ("/calico/resources/v3/projectcalico.org/nodes/n1", "9"));
    let expected = json!({
        "kind": "Node", "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "n1", "uid": "8bcb16bf-1b96-4e19-a2be-a8b7c1d3b08d", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"zone": "z1", "a": "server", "rack": "r1"},
            "annotations": {"note": "n", "projectcalico.org/kube-labels": r#"{"a":"server","zone":"z1"}"#},
        },
        "spec": {
            "bgp": {
                "ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1", "asNumber": 65546,
                "routeReflectorClusterID": "244.0.0.1", "ipv4IPIPTunnelAddr": "10.65.1.1",
            },
            "ipv4VXLANTunnelAddr": "10.65.1.2", "vxlanTunnelMACAddr": "66:00:00:00:00:01",
            "wireguard": {"interfaceIPv4Address": "10.65.1.4"},
            "orchRefs": [{"nodeName": "n1", "orchestrator": "k8s"}],
            "addresses": [
                {"address": "10.0.0.1/24", "type": "CalicoNodeIP"}, {"address": "fd00::1", "type": "CalicoNodeIP"},
                {"address": "10.0.0.1", "type": "InternalIP"}, {"address": "1.2.3.4", "type": "ExternalIP"},
            ],
            "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"]}],
        },
        "status": {"wireguardPublicKey": "key", "podCIDRs": ["10.9.1.0/24"]},
    });
    assert_eq!(value, expected);
}

#[test]
fn labels_of_a_node_that_cannot_be_read_are_reported() {
    let mut node = kubernetes_node();
    node["metadata"]["annotations"]["projectcalico.org/labels"] = json!("rack=r1");
    let resource = resource(SyncerType::Bgp, Kind::KubernetesNode, &node);
    let problems: Vec<String> = resource.problems.iter().map(ToString::to_string).collect();
    let is_about_labels = |problem: &&String| problem.starts_with("annotation projectcalico.org/labels: ");
    assert_eq!(problems.iter().filter(is_about_labels).count(), 1, "{problems:?}");
    let (_, value, _) = only(resource);
    assert_eq!(value["metadata"]["labels"], json!({"zone": "z1", "a": "server"}));
}

/// With pod networks, the tunnels of a node have the first address of its network.
#[test]
fn nodes_with_networks_for_pods() {
    let options = Options { syncer: SyncerType::Bgp, block_source: BlockSource::PodCidrs, ..Options::default() };
    let mut node = kubernetes_node();
    let read = |node: &Json| {
        let labels = &mut Interner::new();
        only(read_object(&node.to_string(), Kind::KubernetesNode, &options, labels).expect("JSON")).1["spec"].clone()
    };
    let spec = read(&node);
    assert_eq!(spec["bgp"]["ipv4IPIPTunnelAddr"], "10.9.1.1");
    assert_eq!(spec["wireguard"], json!({"interfaceIPv4Address": "10.9.1.1"}));
    node["metadata"]["annotations"]["projectcalico.org/WireguardPublicKey"] = "".into();
    assert_eq!(read(&node)["wireguard"], Json::Null);
    node["metadata"] = json!({"name": "bare"});
    node["spec"] = json!({});
    assert_eq!(read(&node)["bgp"], Json::Null);
}

#[test]
fn affinities_of_blocks() {
    let spec = |deleted: Json| json!({"cidr": "10.65.1.0/26", "node": "n1", "state": "confirmed", "type": "host", "deleted": deleted});
    let path = "/calico/ipam/v2/host/n1/ipv4/block/10.65.1.0-26";
    let value = json!({"state": "confirmed", "deleted": false});
    // The field is a string in one API and a boolean in the other.
    for deleted in [json!("false"), json!(false), json!(""), Json::Null] {
        let object = calico("BlockAffinity", "n1-10-65-1-0-26", spec(deleted));
        assert_eq!(read(Kind::BlockAffinity, &object), (path.into(), value.clone(), String::new()));
    }
    for deleted in [json!("true"), json!(true)] {
        let object = calico("BlockAffinity", "n1-10-65-1-0-26", spec(deleted));
        assert_eq!(resource(SyncerType::Bgp, Kind::BlockAffinity, &object).outcome, Outcome::Valid(Vec::new()));
    }
    let v6 = json!({"cidr": "fd00:65::40/122", "node": "load-balancer", "state": "pending", "type": "virtual"});
    let (found, ..) = read(Kind::BlockAffinity, &calico("BlockAffinity", "b", v6));
    assert_eq!(found, "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00:65::40-122");

    let etcd = |text: &str| only(read_affinity(path, text).with_version(5));
    assert_eq!(etcd(r#"{"state":"confirmed","deleted":false}"#), (path.into(), value, "5".into()));
    assert_eq!(etcd("").1, json!({"state": "", "deleted": false}));
    let bad = read_affinity(path, r#"{"state":"mine"}"#);
    assert_eq!(bad.problems[0].to_string(), "state: `mine` is none of confirmed, pending, pendingDeletion");
    assert!(matches!(read_affinity(path, "{").outcome, Outcome::Invalid { .. }));
    assert_eq!(affinity_id(path).map(|id| id.to_string()).as_deref(), Some("BlockAffinity/n1/ipv4/block/10.65.1.0-26"));
    for other in [
        "/calico/ipam/v2/host/n1/ipv6/block/10.65.1.0-26",
        "/calico/ipam/v2/host/n1/ipv4/block/10.65.1.7-26",
        "/calico/ipam/v2/host/n1/ipv4/block/x",
        "/calico/ipam/v2/host/n1",
        "/calico/ipam/v2/host//ipv4/block/10.65.1.0-26",
        "/calico/ipam/v2/handle/h",
    ] {
        assert_eq!(affinity_id(other), None, "{other}");
    }
    let bad = |spec| problem(Kind::BlockAffinity, &calico("BlockAffinity", "b", spec));
    assert_eq!(bad(json!({"cidr": "10.0.0.0/26"})), "spec.node: is required");
    assert_eq!(
        bad(json!({"cidr": "10.0.0.0/26", "node": "n", "type": "x"})),
        "spec: type: `x` is neither host nor virtual"
    );
    assert_eq!(bad(json!({"node": "n"})), "spec.cidr: is required");
}

#[test]
fn filters_are_validated_as_calico_does() {
    let full = json!({
        "cidr": "10.0.0.0/8", "prefixLength": {"min": 8, "max": 24}, "source": "RemotePeers", "interface": "eth*",
        "matchOperator": "In", "peerType": "eBGP", "communities": {"values": ["1:2"]}, "asPathPrefix": [64512, "1.10"],
        "priority": 7, "action": "Accept",
        "operations": [{"addCommunity": {"value": "1:2"}}, {"prependASPath": {"prefix": [1]}}, {"setPriority": {"value": 1}}],
    });
    let filter = |rule: Json| calico("BGPFilter", "f", json!({"importV4": [rule]}));
    let (path, value, _) = read(Kind::BgpFilter, &filter(full.clone()));
    assert_eq!(path, "/calico/resources/v3/projectcalico.org/bgpfilters/f");
    assert_eq!(value, filter(full));
    for (rule, expected) in [
        (json!({}), "action: is required"),
        (json!({"action": "Deny"}), "action: `Deny` is none of Accept, Reject"),
        (json!({"action": "Accept", "cidr": "fd00::/8"}), "cidr: `fd00::/8` is not an IPv4 network"),
        (json!({"action": "Accept", "cidr": "10.0.0.1/8"}), "cidr: `10.0.0.1/8` is not an IPv4 network"),
        (json!({"action": "Accept", "prefixLength": {"max": 33}}), "prefixLength.max: must be between 0 and 32, is 33"),
        (
            json!({"action": "Accept", "matchOperator": "in"}),
            "matchOperator: `in` is none of Equal, NotEqual, In, NotIn",
        ),
        (
            json!({"action": "Accept", "interface": "a name too long for one"}),
            "interface: `a name too long for one` is not the name of an interface, or a pattern of one",
        ),
        (json!({"action": "Accept", "communities": {}}), "communities.values: is required"),
        (json!({"action": "Accept", "priority": 0}), "priority: must be between 1 and 2147483646, is 0"),
        (
            json!({"action": "Accept", "operations": [{"setPriority": {}}]}),
            "operations[0].setPriority.value: is required",
        ),
    ] {
        assert_eq!(problem(Kind::BgpFilter, &filter(rule)), format!("spec.importV4[0].{expected}"));
    }
}

#[test]
fn requests_for_the_status_of_nodes() {
    let spec = |classes: Json| json!({"node": "n1", "classes": classes, "updatePeriodSeconds": 10});
    let mut object = calico("CalicoNodeStatus", "s", spec(json!(["Agent", "BGP", "Routes"])));
    object["metadata"]["generation"] = 4.into();
    object["status"] = json!({"lastUpdated": null, "agent": {"birdV4": {"state": "Ready"}}});
    let (path, value, _) = read(Kind::CalicoNodeStatus, &object);
    assert_eq!(path, "/calico/resources/v3/projectcalico.org/caliconodestatuses/s");
    // The reporter compares generations and statuses, so both are sent.
    assert_eq!(value, object);
    let bad = |spec| problem(Kind::CalicoNodeStatus, &calico("CalicoNodeStatus", "s", spec));
    assert_eq!(bad(spec(json!([]))), "spec.classes: is required");
    assert_eq!(bad(spec(json!(["BGP", "BGP"]))), "spec.classes[1]: `BGP` is given twice");
    assert_eq!(bad(spec(json!(["Bird"]))), "spec.classes[0]: `Bird` is none of Agent, BGP, Routes");
    assert_eq!(bad(json!({"classes": ["BGP"], "updatePeriodSeconds": 10})), "spec.node: is required");
    assert_eq!(bad(json!({"node": "n", "classes": ["BGP"]})), "spec.updatePeriodSeconds: is required");
    assert_eq!(
        bad(json!({"node": "n", "classes": ["BGP"], "updatePeriodSeconds": 86_401})),
        "spec.updatePeriodSeconds: must be between 0 and 86400, is 86401"
    );
}

/// Kinds of other syncers are ignored without a warning: the reader for Felix reports unknown
/// kinds.
#[test]
fn other_kinds_are_ignored() {
    let options = Options { syncer: SyncerType::NodeStatus, ..Options::default() };
    let text = "{kind: NetworkPolicy, apiVersion: projectcalico.org/v3, metadata: {name: p}}\n---\nkind: Gadget\napiVersion: v1\n";
    let manifest = manifest::read(text, manifest::Format::Yaml, &options, &mut Interner::new());
    for resource in manifest.resources {
        assert_eq!((resource.outcome, resource.problems), (Outcome::Unknown, Vec::new()));
    }
}
