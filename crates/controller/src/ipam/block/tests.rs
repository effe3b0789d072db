use std::time::UNIX_EPOCH;

use super::*;

fn net(text: &str) -> Cidr {
    text.parse().expect("a network")
}

fn block() -> Value {
    json!({
        "cidr": "10.0.0.0/30", "affinity": "host:n1", "strange": [1],
        "allocations": [0, null, 1, 2], "unallocated": [1],
        "attributes": [
            {"handle_id": "h0\r\neth0", "secondary": {"pod": "p", "namespace": "s", "node": "n1"}},
            {"handle_id": "h1", "secondary": {"type": "ipipTunnelAddress", "node": "n1"}},
            {"releasedAt": "2030-01-01T00:00:00Z"},
        ],
        "sequenceNumber": 1_700_000_000_000_000_007_u64,
        "sequenceNumberForAllocation": {"0": 5, "2": 1_700_000_000_000_000_001_u64, "3": 6},
        "deleted": false,
    })
}

fn read(block: &Value) -> Block {
    Block::read(net("10.0.0.0/30"), &block.to_string()).expect("a block")
}

fn written(block: Block) -> Value {
    serde_json::from_str(&block.into_text()).expect("JSON")
}

const AT: Duration = Duration::from_secs(1_893_456_000);

#[test]
fn paths() {
    for (cidr, path) in [
        ("10.0.0.64/26", "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26"),
        ("fd00::40/122", "/calico/ipam/v2/assignment/ipv6/block/fd00::40-122"),
    ] {
        assert_eq!(block_path(net(cidr)), path);
        assert_eq!(block_at(path), Some(net(cidr)));
        assert_eq!(affinity_at(&affinity_path("n-1", net(cidr))), Some(("n-1", net(cidr))));
    }
    assert_eq!(affinity_path("n1", net("10.0.0.64/26")), "/calico/ipam/v2/host/n1/ipv4/block/10.0.0.64-26");
    for path in ["/calico/ipam/v2/host/n1/ipv6/block/10.0.0.64-26", "/calico/ipam/v2/host/n1/strange"] {
        assert_eq!(affinity_at(path), None);
    }
    for other in [
        "/calico/ipam/v2/config",
        "/calico/ipam/v2/assignment/ipv6/block/10.0.0.64-26",
        "/calico/ipam/v2/assignment/ipv4/block/x",
    ] {
        assert_eq!(block_at(other), None, "{other}");
    }
}

#[test]
fn contents_of_a_block_are_read() {
    let block = read(&block());
    assert_eq!((block.node(), block.used(), block.cools_down(), block.is_empty()), (Some("n1"), 3, true, false));
    let found: Vec<(String, Option<&str>, u64)> = block
        .allocated()
        .map(|allocated| (allocated.address.to_string(), allocated.handle, allocated.sequence))
        .collect();
    let tunnel = ("10.0.0.2".to_owned(), Some("h1"), 1_700_000_000_000_000_001);
    assert_eq!(found, [("10.0.0.0".to_owned(), Some("h0\r\neth0"), 5), tunnel]);
}

#[test]
fn unchanged_fields_are_written_as_read() {
    let mut expected = block();
    expected["sequenceNumber"] = json!(1_700_000_000_000_000_008_u64);
    assert_eq!(written(read(&block())), expected);
}

#[test]
fn releasing_without_a_cooldown_frees() {
    let mut changed = read(&block());
    let release = |ordinal, handle: &str, sequence| Release { ordinal, handle: handle.into(), sequence };
    // One address is free, one was allocated again, one belongs to another handle, and one was
    // released already.
    let outdated = [release(1, "h0", 0), release(0, "h0", 4), release(2, "h0", 1_700_000_000_000_000_001)];
    let now = UNIX_EPOCH + AT;
    assert!(changed.release(&outdated, now, Duration::ZERO).is_empty());
    assert!(changed.release(&[release(3, "", 6)], now, Duration::ZERO).is_empty());
    assert_eq!(written(changed.clone()), written(read(&block())));
    assert_eq!(changed.release(&[release(0, "h0", 5)], now, Duration::ZERO), [&release(0, "h0", 5)]);
    let written = written(changed);
    assert_eq!(written["allocations"], json!([null, null, 0, null]));
    assert_eq!(written["unallocated"], json!([1, 0, 3]));
    assert_eq!(written["attributes"], json!([block()["attributes"][1]]));
    assert_eq!(written["sequenceNumberForAllocation"], json!({"2": 1_700_000_000_000_000_001_u64}));
    assert_eq!(written["strange"], json!([1]));
}

#[test]
fn an_address_is_freed_after_its_cooldown() {
    let mut changed = read(&block());
    let minute = Duration::from_secs(60);
    // The fixture has an address that was released at this time.
    let now = UNIX_EPOCH + AT;
    let release = Release { ordinal: 2, handle: "h1".into(), sequence: 1_700_000_000_000_000_001 };
    assert_eq!(changed.release(&[release], now + minute / 2, minute).len(), 1);
    assert!(changed.cools_down() && changed.used() == 3 && changed.allocated().count() == 1);
    let cooling = written(changed.clone());
    assert_eq!(cooling["allocations"], json!([0, null, 2, 1]));
    assert_eq!(cooling["attributes"][2], json!({"releasedAt": "2030-01-01T00:00:30Z"}));
    assert_eq!(cooling["sequenceNumberForAllocation"]["2"], block()["sequenceNumber"]);
    assert!(!changed.clone().end_cooldown(now + minute, minute));
    assert!(changed.end_cooldown(now + minute + Duration::from_secs(1), minute));
    assert_eq!(written(changed)["allocations"], json!([0, null, 1, null]));
}

#[test]
fn reservations_of_windows_are_not_in_use() {
    let mut reserved = block();
    reserved["allocations"] = json!([0, null, null, 0]);
    reserved["attributes"] = json!([{"handle_id": "Windows-Reserved-IPAM-Handle"}]);
    assert!(read(&reserved).is_empty() && read(&reserved).used() == 2);
}

#[test]
fn invalid_blocks_are_refused() {
    for (field, value) in [
        ("cidr", json!("10.0.0.4/30")),
        ("allocations", json!([0, null, 1])),
        ("allocations", json!([3, null, null, null])),
        ("allocations", json!({})),
        ("attributes", json!(1)),
        ("sequenceNumber", json!(-1)),
        ("sequenceNumberForAllocation", json!([])),
    ] {
        let mut other = block();
        other[field] = value;
        let error = Block::read(net("10.0.0.0/30"), &other.to_string()).expect_err(field);
        assert!(error.to_string().starts_with(field), "{error}");
    }
    assert!(Block::read(net("10.0.0.0/30"), "[]").is_err());
    let whole = json!({"cidr": "0.0.0.0/0", "allocations": []}).to_string();
    assert!(Block::read(net("0.0.0.0/0"), &whole).is_err() && Block::read(net("::/0"), &whole).is_err());
}

#[test]
fn handles() {
    let cidr = net("10.0.0.0/30");
    let handle = json!({"block": {"10.0.0.0/30": 2, "fd00::/126": 1}, "deleted": false});
    let one = decremented(&handle, cidr, 1).expect("it has two");
    assert_eq!(one, json!({"block": {"10.0.0.0/30": 1, "fd00::/126": 1}, "deleted": false}));
    let other = decremented(&one, cidr, 1).expect("it has one");
    assert_eq!(other["block"], json!({"fd00::/126": 1}));
    assert!(!has_nothing(&other));
    assert!(has_nothing(&decremented(&other, net("fd00::/126"), 1).expect("it has one")));
    assert_eq!((decremented(&other, cidr, 1), decremented(&handle, cidr, 3)), (None, None));
}
