use serde_json::json;

use super::*;

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/";

fn key(kind: ResourceKind, namespace: &str, name: &str) -> ResourceKey {
    ResourceKey::new(kind, namespace, name).expect("a key")
}

/// Returns a pool 10.0.0.0/24 with a block of four addresses of node n1: pod web, a tunnel of n1, a
/// released address, a free one.
fn cluster() -> Addresses {
    let mut addresses = Addresses::default();
    addresses.take_resource(&key(ResourceKind::IpPool, "", "pods"), &json!({"spec": {"cidr": "10.0.0.0/24"}}));
    let block = json!({
        "cidr": "10.0.0.0/30", "affinity": "host:n1", "allocations": [0, 1, 2, null], "unallocated": [3],
        "attributes": [
            {"handle_id": "web", "secondary": {"namespace": "shop", "pod": "web", "node": "n1"}},
            {"handle_id": "tunnel", "secondary": {"node": "n1", "type": "vxlanTunnelAddress"}},
            {"releasedAt": "2030-01-01T00:00:00Z"},
        ],
    });
    addresses.take_text(&format!("{BLOCK}10.0.0.0-30"), &block.to_string());
    addresses.take_text("/calico/ipam/v2/host/n1/ipv4/block/10.0.0.0-30", r#"{"state": "confirmed"}"#);
    for handle in ["web", "tunnel"] {
        addresses.take_text(&format!("{HANDLES}{handle}"), &json!({"block": {"10.0.0.0/30": 1}}).to_string());
    }
    let node = json!({"spec": {"ipv4VXLANTunnelAddr": "10.0.0.1"}});
    addresses.take_resource(&key(ResourceKind::Node, "", "n1"), &node);
    take_endpoint(&mut addresses, "web", "10.0.0.0/32");
    addresses
}

fn take_endpoint(addresses: &mut Addresses, name: &str, network: &str) {
    let key = key(ResourceKind::WorkloadEndpoint, "shop", name);
    addresses.take_resource(&key, &json!({"spec": {"ipNetworks": [network]}}));
}

fn problems(addresses: &Addresses) -> Vec<String> {
    addresses.check().iter().map(ToString::to_string).collect()
}

#[test]
fn each_inconsistency_is_found() {
    type Edit = fn(&mut Addresses);
    let cases: [(Edit, &[&str]); 16] = [
        (|_| {}, &[]),
        (
            |addresses| drop(addresses.users.remove(&"10.0.0.0".parse().expect("an address"))),
            &["10.0.0.0: is allocated to pod shop/web by handle web, and nothing has it [leaked-address]"],
        ),
        (
            |addresses| drop(addresses.users.remove(&"10.0.0.1".parse().expect("an address"))),
            &[
                "10.0.0.1: is allocated to vxlanTunnelAddress of node n1 by handle tunnel, and nothing has it [leaked-address]",
            ],
        ),
        (
            |addresses| take_endpoint(addresses, "db", "10.0.0.9/32"),
            &["10.0.0.9: WorkloadEndpoint/shop/db has it, and it is not allocated [unallocated-address]"],
        ),
        (
            |addresses| take_endpoint(addresses, "db", "10.9.0.1"),
            &["10.9.0.1: WorkloadEndpoint/shop/db has it, and it is in no IP pool [address-outside-pools]"],
        ),
        (
            |addresses| take_endpoint(addresses, "db", "10.0.0.0/32"),
            &["10.0.0.0: several have it: WorkloadEndpoint/shop/db, WorkloadEndpoint/shop/web [shared-address]"],
        ),
        (
            |addresses| addresses.take_text(&format!("{BLOCK}10.0.0.0-31"), &of_web("10.0.0.0/31", None)),
            &["10.0.0.0: is allocated in several blocks: 10.0.0.0/30, 10.0.0.0/31 [allocated-twice]"],
        ),
        (
            |addresses| {
                addresses.take_text(&format!("{BLOCK}10.1.0.0-31"), &of_web("10.1.0.0/31", None));
                take_endpoint(addresses, "old", "10.1.0.0");
            },
            &["10.1.0.0/31: the block is in no IP pool [block-without-pool]"],
        ),
        (
            |addresses| {
                addresses.take_text("/calico/ipam/v2/host/n2/ipv4/block/10.0.0.64-30", r#"{"state": "confirmed"}"#);
            },
            &["10.0.0.64/30: node n2 has an affinity to the block, which does not exist [affinity-without-block]"],
        ),
        // The node is about to claim or to release the block.
        (
            |addresses| {
                addresses.take_text("/calico/ipam/v2/host/n2/ipv4/block/10.0.0.64-30", r#"{"state": "pending"}"#);
                addresses
                    .take_text("/calico/ipam/v2/host/n3/ipv4/block/10.0.0.64-30", r#"{"state": "pendingDeletion"}"#);
            },
            &[],
        ),
        (
            |addresses| addresses.take_text(&format!("{HANDLES}old"), "{}"),
            &["old: no address is allocated to the handle [unused-handle]"],
        ),
        (|addresses| addresses.take_text(&format!("{HANDLES}old"), r#"{"deleted": true}"#), &[]),
        (
            |addresses| {
                addresses.take_text(&format!("{BLOCK}10.0.0.64-30"), "{");
                addresses.take_text("/calico/ipam/v2/host/n2/ipv4/block/10.0.0.64-30", r#"{"state": "confirmed"}"#);
                take_endpoint(addresses, "db", "10.0.0.65");
            },
            &["10.0.0.64/30: is no object [unreadable]"],
        ),
        (
            |addresses| {
                addresses.take_text(&format!("{BLOCK}nonsense"), "{}");
                addresses.take_text("/calico/ipam/v2/host/n2/ipv4/block/10.0.0.64-30", r#"{"state": "confirmed"}"#);
                addresses.take_text(&format!("{HANDLES}old"), "{}");
                take_endpoint(addresses, "db", "10.0.0.65");
            },
            &["/calico/ipam/v2/assignment/ipv4/block/nonsense: is not the path of an IPAM entry [unreadable]"],
        ),
        (
            |addresses| {
                addresses
                    .take_text(&format!("{BLOCK}10.0.0.4-31"), &of_web("10.0.0.4/31", Some("virtual:load-balancer")));
            },
            &[],
        ),
        (
            |addresses| {
                addresses
                    .take_text(&format!("{BLOCK}10.0.0.4-31"), &of_web("10.0.0.4/31", Some("virtual:load-balancer")));
                addresses.take_services([]);
            },
            &["10.0.0.4: is allocated to no known owner by handle web, and nothing has it [leaked-address]"],
        ),
    ];
    for (number, (edit, expected)) in cases.into_iter().enumerate() {
        let mut addresses = cluster();
        edit(&mut addresses);
        assert_eq!(problems(&addresses), expected, "case {number}");
    }
}

fn of_web(cidr: &str, affinity: Option<&str>) -> String {
    let attributes = json!([{"handle_id": "web"}]);
    json!({"cidr": cidr, "affinity": affinity, "allocations": [0, null], "unallocated": [1], "attributes": attributes})
        .to_string()
}

#[test]
fn pods_and_services_have_addresses() {
    let mut addresses = cluster();
    addresses.users.clear();
    let pod = |name: &str, address: &str| json!({"metadata": {"namespace": "shop", "name": name}, "status": {"podIP": address, "podIPs": [{"ip": address}]}});
    addresses.take_pod(&pod("web", "10.0.0.0"));
    let mut host = pod("proxy", "192.0.2.1");
    host["spec"] = json!({"hostNetwork": true});
    addresses.take_pod(&host);
    let service = json!({"metadata": {"namespace": "shop", "name": "lb"},
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"hostname": "x"}]}}});
    addresses.take_services([&service]);
    assert_eq!(problems(&addresses), Vec::<String>::new());
    assert_eq!(addresses.users.len(), 1);
    // Addresses of other load balancers and of other networks are not Calico's.
    addresses.take_services([&json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}})]);
    let mut further = pod("multus", "10.0.0.9");
    further["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/network-status": r#"[{"ips": ["192.168.5.10"]}]"#});
    addresses.take_pod(&further);
    let unallocated = "10.0.0.9: Pod/shop/multus has it, and it is not allocated [unallocated-address]";
    assert_eq!(problems(&addresses), [unallocated]);
    // The kubelet has not reported the address yet.
    addresses.users.clear();
    addresses.take_pod(&json!({"metadata": {"namespace": "shop", "name": "web",
        "annotations": {"cni.projectcalico.org/podIPs": "10.0.0.0/32"}}}));
    addresses.in_other_use.remove(&"10.0.0.0".parse().expect("an address"));
    assert_eq!(problems(&addresses), Vec::<String>::new());
    addresses.take_pod(&pod("other", "10.0.0.0"));
    assert_eq!(problems(&addresses), ["10.0.0.0: several have it: Pod/shop/other, Pod/shop/web [shared-address]"]);
}

#[test]
fn an_address_that_moves_with_its_virtual_machine_is_not_shared() {
    let mut addresses = Addresses::default();
    addresses.take_resource(&key(ResourceKind::IpPool, "", "pods"), &json!({"spec": {"cidr": "10.0.0.0/24"}}));
    let attributes = json!([{"handle_id": "vm", "secondary": {"vmi-name": "vm", "namespace": "shop", "node": "n1"},
        "alternateOwnerAttrs": {"pod": "b"}}]);
    let block = json!({"cidr": "10.0.0.0/31", "allocations": [null, 0], "unallocated": [0], "attributes": attributes});
    addresses.take_text(&format!("{BLOCK}10.0.0.0-31"), &block.to_string());
    assert_eq!(problems(&addresses), Vec::<String>::new(), "the machine is off");
    take_endpoint(&mut addresses, "a", "10.0.0.1");
    take_endpoint(&mut addresses, "b", "10.0.0.1");
    assert_eq!(problems(&addresses), Vec::<String>::new());
    let allocation = addresses.allocation("10.0.0.1".parse().expect("an address")).expect("an allocation");
    assert_eq!(allocation.alternate, BTreeMap::from([("pod".to_owned(), "b".to_owned())]));
    let (borrowed, _) = addresses.borrowed();
    assert_eq!((&*borrowed[0].kind, &*borrowed[0].to, &*borrowed[0].owner), ("vmi", "shop/vm", ""));
}

#[test]
fn usage_counts_reserved_and_used_addresses_once() {
    let mut addresses = cluster();
    let reservation = json!({"spec": {"reservedCIDRs": ["10.0.0.0/31", "10.0.0.128/25"]}});
    addresses.take_resource(&key(ResourceKind::IpReservation, "", "r"), &reservation);
    addresses.take_text(&format!("{BLOCK}10.1.0.0-31"), &of_web("10.1.0.0/31", None));
    let numbers = |usage: &Usage| [usage.total, usage.in_use, usage.reserved, usage.free].map(|n| format!("{n:.0}"));
    let usage = addresses.usage();
    let (name, pool) = usage[0].pool.as_ref().expect("a pool");
    assert_eq!((&**name, numbers(pool)), ("pods", ["256", "3", "130", "125"].map(str::to_owned)));
    let (block, owner) = &usage[0].blocks[0];
    assert_eq!((owner.as_deref(), numbers(block)), (Some("host:n1"), ["4", "3", "2", "1"].map(str::to_owned)));
    assert_eq!((usage.len(), &usage[1].pool, numbers(&usage[1].blocks[0].0)[1].as_str()), (2, &None, "1"));
    assert_eq!((addresses.blocks(), addresses.allocated()), (2, 3));
}

#[test]
fn owners_of_addresses_are_named() {
    let mut addresses = cluster();
    let address = |text: &str| text.parse().expect("an address");
    let web = addresses.allocation(address("10.0.0.0")).expect("an allocation");
    assert_eq!((web.handle.as_deref(), web.active.get("pod").map(String::as_str)), (Some("web"), Some("web")));
    for free in ["10.0.0.2", "10.0.0.3", "10.9.0.1"] {
        assert_eq!(addresses.allocation(address(free)), None, "{free}");
    }
    assert_eq!(addresses.borrowed(), (Vec::new(), 0));
    let attributes = json!([{"secondary": {"namespace": "shop", "pod": "db", "node": "n2"}}, {"handle_id": "x"}]);
    let block = json!({"cidr": "10.0.0.4/31", "affinity": "host:n1", "allocations": [0, 1], "attributes": attributes});
    addresses.take_text(&format!("{BLOCK}10.0.0.4-31"), &block.to_string());
    let (borrowed, unknown) = addresses.borrowed();
    let [one] = &borrowed[..] else { panic!("{borrowed:?}") };
    assert_eq!(
        (one.address, &*one.node, &*one.owner, &*one.kind, &*one.to),
        (address("10.0.0.4"), "n2", "n1", "pod", "shop/db")
    );
    assert_eq!(unknown, 1);
}
