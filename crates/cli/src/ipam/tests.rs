use tortie_resources::stored::{ResourceKey, ResourceKind};

use super::*;

/// Returns two pools, a block of node n1 with an address of node n2, and a block in no pool.
fn cluster() -> Addresses {
    let mut addresses = Addresses::default();
    for (name, cidr) in [("pods", "10.0.0.0/24"), ("six", "fd00::/64")] {
        let key = ResourceKey::new(ResourceKind::IpPool, "", name).unwrap();
        addresses.take_resource(&key, &json!({"spec": {"cidr": cidr}}));
    }
    for (cidr, owner) in [("10.0.0.0", Some("host:n1")), ("10.9.0.0", None)] {
        let attributes = json!([{"handle_id": "web", "secondary": {"namespace": "shop", "pod": "web", "node": "n2"}}]);
        let block = json!({"cidr": format!("{cidr}/30"), "affinity": owner, "allocations": [0, null, null, null],
            "attributes": attributes});
        addresses.take_text(&format!("/calico/ipam/v2/assignment/ipv4/block/{cidr}-30"), &block.to_string());
    }
    addresses
}

#[test]
fn pools_and_blocks_are_shown_as_by_calicoctl() {
    let usage = cluster().usage();
    insta::assert_snapshot!(usage_table(&usage, true), @r"
    GROUPING   CIDR          IPS TOTAL    IPS IN USE   IPS RESERVED   IPS FREE
    IP Pool    10.0.0.0/24   256          1 (0%)       0 (0%)         255 (100%)
    Block      10.0.0.0/30   4            1 (25%)      0 (0%)         3 (75%)
    IP Pool    fd00::/64     1.8447e+19   0 (0%)       0 (0%)         1.8447e+19 (100%)
    Block      10.9.0.0/30   4            1 (25%)      0 (0%)         3 (75%)
    ");
    assert_eq!(usage_table(&usage, false).lines().count(), 3);
    let pools: Vec<Value> = usage.iter().filter_map(of_pool).collect();
    assert_eq!((&pools[0]["in_use"], &pools[0]["blocks"][0]["owner"]), (&json!(1), &json!("host:n1")));
    assert_eq!((pools.len(), &pools[1]["total"]), (2, &json!(18_446_744_073_709_551_616.0)));
}

#[test]
fn large_counts_are_short() {
    for (count, expected) in [(0.0, "0"), (65_536.0, "65536"), (131_072.0, "1.3107e+05"), (1e6, "1e+06")] {
        assert_eq!(short(count), expected);
    }
}

#[test]
fn owners_of_addresses_are_shown() {
    let addresses = cluster();
    let show = |address: &str| {
        let address = address.parse().unwrap();
        owner(address, addresses.allocation(address).as_ref())
    };
    assert_eq!(
        show("10.0.0.0"),
        "IP 10.0.0.0 is in use\nHandle ID: web\nActive Owner Attributes:\n  namespace: shop\n  node: n2\n  pod: web\n"
    );
    assert_eq!(show("10.0.0.1"), "10.0.0.1 is not assigned\n");
    let (borrowed, unknown) = addresses.borrowed();
    insta::assert_snapshot!(borrowed_table(&borrowed, unknown + 1), @r"
    IP         BORROWING-NODE   BLOCK         BLOCK OWNER   TYPE   ALLOCATED-TO
    10.0.0.0   n2               10.0.0.0/30   n1            pod    shop/web
    10.9.0.0   n2               10.9.0.0/30                 pod    shop/web

    addresses without a node, which may be borrowed: 1
    ");
}

#[test]
fn problems_are_listed_and_counted() {
    let addresses = cluster();
    insta::assert_snapshot!(lines(&addresses, &addresses.check()), @r"
    10.0.0.0: is allocated to pod shop/web by handle web, and nothing has it [leaked-address]
    10.9.0.0: is allocated to pod shop/web by handle web, and nothing has it [leaked-address]
    10.9.0.0/30: the block is in no IP pool [block-without-pool]
    3 problems among 2 allocated addresses in 2 blocks
    ");
    let report = report(&addresses, &addresses.check());
    assert_eq!((&report["problems"][2]["problem"], &report["blocks"]), (&json!("block-without-pool"), &json!(2)));
}
