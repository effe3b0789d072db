use serde_json::{Value as Json, json};
use tortie_model::{
    BgpPeer, Hostname, Interner, IpamBlock, LiveMigration, MigrationParty, Node, NodeTunnels, PeerNodes, Update,
};

use super::*;
use crate::manifest::{BlockSource, Format, Options, Outcome, Resource, UnknownFields, read, read_object};
use crate::path;
use crate::v1::{self, Decoded, block_id, read_block};

fn options(block_source: BlockSource) -> Options {
    Options { block_source, unknown_fields: UnknownFields::Ignore, ..Options::default() }
}

fn resource(kind: Kind, object: &Json, block_source: BlockSource) -> Resource {
    read_object(&object.to_string(), kind, &options(block_source), &mut Interner::new()).expect("JSON")
}

fn contributed(kind: Kind, object: &Json, block_source: BlockSource) -> Contributions {
    let resource = resource(kind, object, block_source);
    assert_eq!(resource.problems, [], "{object}");
    match resource.outcome {
        Outcome::Valid(contributions) => contributions,
        other => panic!("{other:?}"),
    }
}

/// Returns the paths and texts of passed-on objects.
fn passthrough_texts(contributions: &Contributions) -> Vec<(String, String)> {
    let text =
        |update: &Update| Some((path::to_path(&update.key()).expect("a path"), update.passthrough_text()?.to_string()));
    contributions.iter().filter_map(text).collect()
}

fn only(kind: Kind, object: &Json) -> (String, Json) {
    let texts = passthrough_texts(&contributed(kind, object, BlockSource::IpamBlocks));
    let [(path, text)] = &texts[..] else { panic!("{texts:?}") };
    (path.clone(), serde_json::from_str(text).expect("JSON"))
}

/// Names and order of fields are those of `AllocationBlock` in
/// `libcalico-go/lib/backend/model/block.go`.
#[test]
fn blocks_of_the_api_server_are_written_as_those_of_etcd() {
    let crd = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMBlock",
        "metadata": {"name": "10-65-1-0-30", "resourceVersion": "7", "annotations": {"projectcalico.org/metadata": "{}"}},
        "spec": {
            "affinity": "host:n1",
            "affinityClaimTime": "2026-01-02T03:04:05Z",
            "allocations": [0, null, 0, 1],
            "attributes": [
                {"handle_id": "h", "secondary": {"node": "n1", "pod": "web"}},
                {"handle_id": "v", "alternateOwnerAttrs": {"node": "n2"}, "releasedAt": "2026-01-02T03:04:05Z"},
            ],
            "cidr": "10.65.1.0/30",
            "deleted": false,
            "sequenceNumber": 12,
            "sequenceNumberForAllocation": {"0": 3, "2": 4, "3": 9},
            "strictAffinity": false,
            "unallocated": [1],
        },
    });
    let expected = concat!(
        r#"{"cidr":"10.65.1.0/30","affinity":"host:n1","affinity_claim_time":"2026-01-02T03:04:05Z","#,
        r#""allocations":[0,null,0,1],"unallocated":[1],"#,
        r#""attributes":[{"handle_id":"h","secondary":{"node":"n1","pod":"web"}},"#,
        r#"{"handle_id":"v","alternateOwnerAttrs":{"node":"n2"},"releasedAt":"2026-01-02T03:04:05Z"}],"#,
        r#""sequenceNumber":12,"sequenceNumberForAllocation":{"0":3,"2":4,"3":9},"deleted":false}"#,
    );
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.65.1.0-30";
    for api_version in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
        let mut crd = crd.clone();
        crd["apiVersion"] = json!(api_version);
        let texts = passthrough_texts(&contributed(Kind::IpamBlock, &crd, BlockSource::IpamBlocks));
        assert_eq!(texts, [(path.to_owned(), expected.to_owned())]);
    }
    let Some(Update::Block(_, Some(block))) = contributed(Kind::IpamBlock, &crd, BlockSource::IpamBlocks).pop() else {
        panic!()
    };
    assert_eq!((block.affinity.as_ref().map(Hostname::as_str), &*block.borrowed), (Some("n1"), &[][..]));
    // The form of etcd is passed on unchanged, and so is a text from a server of Typha's protocol.
    let stored = read_block(path, expected);
    let Outcome::Valid(contributions) = &stored.outcome else { panic!("{stored:?}") };
    assert_eq!(passthrough_texts(contributions), [(path.to_owned(), expected.to_owned())]);
    assert_eq!(stored.id, block_id(path));
}

/// Only allocated addresses within the block, of another node than the block's, count.
#[test]
fn block_fields_that_routes_depend_on() {
    let read = |cidr: &str, affinity: Option<&str>, allocations: Json| -> (Option<String>, Vec<String>) {
        let attributes = json!([
            {"secondary": {"node": "n1"}},
            {"handle_id": "h", "secondary": {"node": "n2"}, "alternateOwnerAttrs": {"node": "n3"}},
            {"secondary": null},
            {"secondary": {"pod": "web"}},
            {},
        ]);
        let spec = json!({"cidr": cidr, "affinity": affinity, "allocations": allocations, "attributes": attributes});
        let crd = json!({"metadata": {"name": "b"}, "spec": spec});
        let Some(Update::Block(_, Some(block))) = contributed(Kind::IpamBlock, &crd, BlockSource::IpamBlocks).pop()
        else {
            panic!()
        };
        let IpamBlock { affinity, borrowed, .. } = &*block;
        let allocations = borrowed.iter().map(|allocation| format!("{} {}", allocation.address, allocation.node));
        (affinity.as_ref().map(ToString::to_string), allocations.collect())
    };
    let all = json!([0, 1, 2, 3, 4, 5, null, 1]);
    let found = |affinity: Option<&str>, addresses: &[&str]| {
        (affinity.map(str::to_owned), addresses.iter().map(|&address| address.to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(
        read("10.65.1.8/29", Some("host:n1"), all.clone()),
        found(Some("n1"), &["10.65.1.9 n2", "10.65.1.15 n2"])
    );
    assert_eq!(read("10.65.1.8/30", Some("host:n2"), all.clone()), found(Some("n2"), &["10.65.1.8 n1"]));
    assert_eq!(read("10.65.1.8/31", None, all.clone()), found(None, &["10.65.1.8 n1", "10.65.1.9 n2"]));
    assert_eq!(
        read("10.65.1.8/31", Some("virtual:lb"), all.clone()),
        found(Some("lb"), &["10.65.1.8 n1", "10.65.1.9 n2"])
    );
    assert_eq!(
        read("255.255.255.254/31", Some("n1"), all.clone()),
        found(None, &["255.255.255.254 n1", "255.255.255.255 n2"])
    );
    assert_eq!(read("fd00::ff/127", Some("host:n1"), all), found(Some("n1"), &["fd00::ff n2"]));
    assert_eq!(read("10.65.1.8/29", Some("host:"), Json::Null), found(None, &[]));
}

#[test]
fn a_block_without_owner_or_addresses() {
    let crd = json!({
        "metadata": {"name": "fd00-1---122"},
        "spec": {"cidr": "fd00:1::/122", "allocations": [], "unallocated": [], "attributes": []},
    });
    let expected = json!({
        "cidr": "fd00:1::/122", "affinity": null, "allocations": [], "unallocated": [], "attributes": [],
        "sequenceNumber": 0, "sequenceNumberForAllocation": null, "deleted": false,
    });
    assert_eq!(
        only(Kind::IpamBlock, &crd),
        ("/calico/ipam/v2/assignment/ipv6/block/fd00:1::-122".to_owned(), expected)
    );
}

#[test]
fn a_block_that_felix_could_not_read_is_a_problem() {
    for (spec, problem) in [
        (json!({}), "spec.cidr: is required"),
        (json!({"cidr": "10.0.0.0"}), ""),
        (json!({"cidr": "10.0.0.0/33"}), "spec.cidr: `10.0.0.0/33` is neither"),
        (json!({"cidr": "10.0.0.0/26", "allocations": ["a"]}), "spec.allocations[0]: must be"),
        (json!({"cidr": "10.0.0.0/26", "allocations": [-1]}), "spec.allocations[0]: "),
        (json!({"cidr": "10.0.0.0/26", "attributes": [7]}), "spec.attributes[0]: must be a mapping"),
        (json!({"cidr": "10.0.0.0/26", "affinity": 7}), "spec.affinity: must be text"),
        (
            json!({"cidr": "10.0.0.0/26", "sequenceNumberForAllocation": []}),
            "spec.sequenceNumberForAllocation: must be",
        ),
    ] {
        let read =
            resource(Kind::IpamBlock, &json!({"metadata": {"name": "b"}, "spec": spec}), BlockSource::IpamBlocks);
        let found: Vec<String> = read.problems.iter().map(ToString::to_string).collect();
        match problem {
            "" => assert!(matches!(read.outcome, Outcome::Valid(_)), "{found:?}"),
            problem => {
                assert_eq!(read.outcome, Outcome::Invalid { substitute: None }, "{spec}");
                assert!(found.len() == 1 && found[0].starts_with(problem), "{found:?}");
            }
        }
    }
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26";
    for (text, problem) in [
        ("{}", "cidr: is required"),
        (r#"{"cidr":"10.0.0.64/26"}"#, "cidr: is not 10.0.0.0/26, under which the block is kept"),
        (r#"{"cidr":"10.0.0.0/26","unallocated":[null]}"#, "unallocated[0]: must be"),
        ("[]", "must be a mapping"),
        ("{", "is not JSON"),
    ] {
        let read = read_block(path, text);
        assert_eq!(read.outcome, Outcome::Invalid { substitute: None }, "{text}");
        assert!(read.problems[0].to_string().starts_with(problem), "{}", read.problems[0]);
        assert_eq!(read.subject, path);
    }
}

#[test]
fn a_peer_is_passed_on_without_write_metadata() {
    let annotation = json!({"labels": {"rack": "7"}, "annotations": {"a": "b"}}).to_string();
    let crd = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "BGPPeer",
        "metadata": {
            "name": "rack", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z", "generation": 3,
            "resourceVersion": "7", "managedFields": [{"manager": "x"}],
            "labels": {"own": "1"}, "annotations": {"projectcalico.org/metadata": annotation},
        },
        "spec": {"localWorkloadSelector": "has(peer)", "asNumber": 64512, "unheardOf": [1.5, {"x": null}]},
    });
    let expected = json!({
        "kind": "BGPPeer",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "rack", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"own": "1", "rack": "7"}, "annotations": {"a": "b"},
        },
        "spec": {"localWorkloadSelector": "has(peer)", "asNumber": 64512, "unheardOf": [1.5, {"x": null}]},
    });
    let path = "/calico/resources/v3/projectcalico.org/bgppeers/rack".to_owned();
    assert_eq!(only(Kind::BgpPeer, &crd), (path, expected));
    let read = resource(Kind::BgpPeer, &json!({"metadata": {"name": "rack"}, "spec": 7}), BlockSource::IpamBlocks);
    assert_eq!(read.problems[0].to_string(), "spec: must be a mapping, is a number");
    assert_eq!(read.outcome, Outcome::Invalid { substitute: None });
}

/// The cases are those of `libcalico-go/lib/backend/k8s/resources/livemigration_test.go`.
#[test]
fn a_machine_that_moves() {
    let moving = |phase: &str, source: Option<&str>| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "m", "namespace": "shop", "uid": "uid-123", "resourceVersion": "7"},
            "spec": {"vmiName": "my-vmi"},
            "status": {"phase": phase, "migrationState": {"sourcePod": source}},
        })
    };
    let selector = "(vmi.kubevirt.io/id == 'my-vmi' || vm.kubevirt.io/name == 'my-vmi') && kubevirt.io/migrationJobUID == 'uid-123'";
    let expected = |spec: Json| {
        let metadata = json!({"name": "m", "namespace": "shop", "uid": "uid-123"});
        let path = "/calico/resources/v3/projectcalico.org/livemigrations/shop/m".to_owned();
        (
            path,
            json!({"kind": "LiveMigration", "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}),
        )
    };
    let kind = Kind::VirtualMachineInstanceMigration;
    let target = json!({"selector": selector});
    assert_eq!(only(kind, &moving("Scheduling", None)), expected(json!({"target": target})));
    let source = json!({"workload": {"orchestratorID": "k8s", "workloadID": "shop/old"}});
    assert_eq!(only(kind, &moving("Running", Some("old"))), expected(json!({"source": source, "target": target})));
    for phase in ["Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Failed"] {
        assert_eq!(contributed(kind, &moving(phase, None), BlockSource::PodCidrs).len(), 1, "{phase}");
    }
    let mut without = vec![moving("", None), moving("Pending", None), moving("Succeeded", None)];
    for part in [("spec", "vmiName"), ("metadata", "uid")] {
        let mut incomplete = moving("Running", None);
        incomplete[part.0][part.1] = json!("");
        without.push(incomplete);
    }
    for object in without {
        assert_eq!(contributed(kind, &object, BlockSource::IpamBlocks), [], "{object}");
    }
}

/// The behaviour is that of `felixnodeprocessor.go` and
/// `libcalico-go/lib/backend/k8s/resources/node.go` for `USE_POD_CIDR`.
#[test]
fn pod_networks_are_blocks_if_requested() {
    let node = json!({
        "metadata": {"name": "n1", "annotations": {
            "projectcalico.org/IPv4IPIPTunnelAddr": "10.1.1.1",
            "projectcalico.org/IPv4VXLANTunnelAddr": "10.2.2.2",
        }},
        "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "fd00:3::/64"]},
    });
    let tunnels = |contributions: &Contributions| {
        let node = contributions.iter().find_map(|update| match update {
            Update::Node(_, Some(node)) => Some(Node::clone(node)),
            _ => None,
        });
        *node.expect("a node").tunnels.expect("tunnels")
    };
    let address = |text: &str| Some(text.parse().expect("an address"));
    let by_ipam = contributed(Kind::KubernetesNode, &node, BlockSource::IpamBlocks);
    assert_eq!(passthrough_texts(&by_ipam), []);
    let expected = NodeTunnels { ipip: address("10.1.1.1"), vxlan: address("10.2.2.2"), ..NodeTunnels::default() };
    assert_eq!(tunnels(&by_ipam), expected);

    let by_pods = contributed(Kind::KubernetesNode, &node, BlockSource::PodCidrs);
    assert_eq!(tunnels(&by_pods), NodeTunnels { ipip: address("10.244.3.1"), ..expected });
    let block = |cidr: &str| {
        format!(
            r#"{{"cidr":"{cidr}","affinity":"host:n1","allocations":null,"unallocated":null,"attributes":null,"sequenceNumber":0,"sequenceNumberForAllocation":null,"deleted":false}}"#
        )
    };
    let blocks = [
        ("/calico/ipam/v2/assignment/ipv4/block/10.244.3.0-24".to_owned(), block("10.244.3.0/24")),
        ("/calico/ipam/v2/assignment/ipv6/block/fd00:3::-64".to_owned(), block("fd00:3::/64")),
    ];
    assert_eq!(passthrough_texts(&by_pods), blocks);
    let v3 = json!({"metadata": {"name": "n1"}, "status": {"podCIDRs": ["10.244.3.0/24", "fd00:3::/64"]}});
    assert_eq!(passthrough_texts(&contributed(Kind::Node, &v3, BlockSource::PodCidrs)), blocks);
    assert_eq!(passthrough_texts(&contributed(Kind::Node, &v3, BlockSource::IpamBlocks)), []);
    // The WireGuard interface gets the same address.
    let mut with_key = node;
    with_key["metadata"]["annotations"]["projectcalico.org/WireguardPublicKey"] =
        json!("JhM2vJdsaBGYWnPoLQoEbStdQpfedceXNfYDiC+5h1s=");
    let wireguard = tunnels(&contributed(Kind::KubernetesNode, &with_key, BlockSource::PodCidrs)).wireguard;
    assert_eq!(wireguard, address("10.244.3.1"));
}

#[test]
fn an_agent_knows_no_blocks() {
    let text =
        json!({"apiVersion": "projectcalico.org/v3", "kind": "IPAMBlock", "metadata": {"name": "x"}}).to_string();
    let manifest = read(&text, Format::Json, &Options::default(), &mut Interner::new());
    assert_eq!(manifest.resources[0].outcome, Outcome::Unknown);
    assert!(!BlockSource::PodCidrs.takes(Kind::IpamBlock) && BlockSource::PodCidrs.takes(Kind::BgpPeer));
    assert!(!BlockSource::Omitted.takes(Kind::IpamBlock) && BlockSource::Omitted.takes(Kind::BgpPeer));
}

fn party(host: &str, orchestrator: &str, workload: &str, endpoint: &str) -> Option<MigrationParty> {
    Some(MigrationParty {
        host: host.into(),
        orchestrator: orchestrator.into(),
        workload: workload.into(),
        endpoint: endpoint.into(),
    })
}

fn migration(contributions: &Contributions) -> &LiveMigration {
    match &contributions[..] {
        [Update::LiveMigration(_, Some(migration))] => migration,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_migration_is_decoded() {
    let endpoint = |workload: &str, endpoint: &str| json!({"hostname": "n1", "orchestratorID": "openstack", "workloadID": workload, "endpointID": endpoint});
    let object = json!({
        "metadata": {"name": "m", "namespace": "ns", "uid": "u-1"},
        "spec": {
            "source": {"workloadEndpoint": endpoint("old", "e0")},
            "target": {"workloadEndpoint": endpoint("new", ""), "selector": "has(new)"},
        },
    });
    let read = contributed(Kind::LiveMigration, &object, BlockSource::Omitted);
    let found = migration(&read);
    assert_eq!(&*found.uid, "u-1");
    assert_eq!(found.source, party("n1", "openstack", "old", "e0"));
    assert_eq!(found.target, party("n1", "openstack", "new", ""));
    assert_eq!(found.target_selector, Some(Selector::parse("has(new)").expect("a selector")));
    // The path of etcd yields the same object, except for its text.
    let path = "/calico/resources/v3/projectcalico.org/livemigrations/ns/m";
    let decoded = v1::decode_text(path, Some(&found.text), &mut Interner::new()).expect("JSON");
    assert_eq!(decoded, Decoded::Update(read[0].clone()));

    let workload =
        json!({"workload": {"orchestratorID": "k8s", "workloadID": "ns/old"}, "workloadEndpoint": endpoint("x", "y")});
    let object = json!({
        "metadata": {"name": "m", "namespace": "ns"},
        "spec": {"source": workload, "target": {"selector": ""}},
    });
    let read = contributed(Kind::LiveMigration, &object, BlockSource::Omitted);
    let found = migration(&read);
    assert_eq!((&*found.uid, &found.target, &found.target_selector), ("", &None, &None));
    assert_eq!(found.source, party("", "k8s", "ns/old", ""));
}

#[test]
fn a_moving_machine_is_decoded_as_passed_on() {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "m", "namespace": "shop", "uid": "uid-123"},
        "spec": {"vmiName": "my-vmi"},
        "status": {"phase": "Running", "migrationState": {"sourcePod": "old"}},
    });
    let read = contributed(Kind::VirtualMachineInstanceMigration, &object, BlockSource::Omitted);
    let found = migration(&read);
    assert!(found.target_selector.is_some());
    let path = path::to_path(&read[0].key()).expect("a path");
    let decoded = v1::decode_text(&path, Some(&found.text), &mut Interner::new()).expect("JSON");
    assert_eq!(decoded, Decoded::Update(read[0].clone()));
}

#[test]
fn a_machine_whose_name_could_change_a_selector_is_reported() {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "m", "namespace": "shop", "uid": "uid-123"},
        "spec": {"vmiName": "a' || has(b) || c == 'd"},
        "status": {"phase": "Running", "migrationState": {"sourcePod": "old"}},
    });
    let resource = resource(Kind::VirtualMachineInstanceMigration, &object, BlockSource::Omitted);
    assert_eq!(resource.outcome, Outcome::Valid(Contributions::new()));
    let problem = resource.problems[0].to_string();
    assert!(problem.contains("has(b)"), "{problem}");
}

#[test]
fn a_bgp_peer_is_decoded() {
    let peer = |spec: Json| {
        let object = json!({"metadata": {"name": "p"}, "spec": spec});
        let read = resource(Kind::BgpPeer, &object, BlockSource::Omitted);
        let Outcome::Valid(contributions) = &read.outcome else { panic!("{read:?}") };
        match &contributions[..] {
            [Update::BgpPeer(_, Some(peer))] => (BgpPeer::clone(peer), read.problems.len()),
            other => panic!("{other:?}"),
        }
    };
    let selector = |text: &str| Selector::parse(text).expect("a selector");
    let (found, warnings) = peer(json!({"node": "n1", "nodeSelector": "all()", "localWorkloadSelector": "has(peer)"}));
    assert_eq!((found.nodes, warnings), (PeerNodes::Named("n1".into()), 0));
    assert_eq!(found.local_workloads, Some(selector("has(peer)")));
    let (found, _) = peer(json!({"nodeSelector": "rack == 'a'", "localWorkloadSelector": ""}));
    assert_eq!((found.nodes, found.local_workloads), (PeerNodes::Selected(selector("rack == 'a'")), None));
    let (found, _) = peer(json!({}));
    assert_eq!(found.nodes, PeerNodes::Selected(Selector::all()));
    let (found, warnings) = peer(json!({"nodeSelector": "rack ==", "localWorkloadSelector": "a in"}));
    assert_eq!((found.nodes, found.local_workloads, warnings), (PeerNodes::Nobody, None, 2));
    assert!(found.text.contains("rack =="), "passed on all the same");
}
