//! A tenant that learns as many addresses as it can, beside one that needs a few.

use std::net::Ipv4Addr;

use super::crowd::{crowd, socket};
use super::messages::{A, Record};
use super::world::{By, POLICY, SERVER, World, ask_once};

/// Pods of the loud tenant: together they may learn more addresses than the map has.
const PODS: u8 = 8;
const ADDRESSES: usize = 10_000;
/// Addresses of an answer of 4 KiB.
const OF_ANSWER: usize = 140;

/// The map of learned addresses (65,536) is full when the other tenant asks.
pub(super) fn a_tenant_that_fills_the_map_keeps_no_name_of_another_closed() {
    let mut world = World::prepare(By::EBPF);
    let tenant = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: loud}\n";
    world.node.write("loud.yaml", &format!("{tenant}---{}", POLICY.replace("namespace: shop", "namespace: loud")));
    let pods = crowd(&world, "loud", PODS);
    world.node.start();
    world.assert_opens(&world.pods[0], "first.example.com");
    for number in 1..=PODS {
        let asks = socket(&pods, number, (SERVER, 53));
        for answer in 0..ADDRESSES.div_ceil(OF_ANSWER) {
            let name = format!("n{answer}.example.com");
            let first = u32::from(number) << 16 | u32::try_from(answer * OF_ANSWER).unwrap();
            let addresses = (first..).take(OF_ANSWER).map(|number| Ipv4Addr::from_bits(0x0b00_0000 + number));
            world.zone.set(&name, A, addresses.map(|address| Record::v4(&name, address)).collect::<Vec<_>>());
            assert!(ask_once(&asks, &name, A).is_some(), "{name} of {number}\n{}", world.node.log());
        }
    }
    let displaced = || world.node.metric("tortie_dns_displaced_total");
    assert!(displaced() > 0.0, "the map is not full\n{}", world.node.log());
    for number in 0..20 {
        world.assert_opens(&world.pods[0], &format!("late{number}.example.com"));
    }
    let log = world.node.log();
    let is_warning = |line: &str| line.contains("room for learned addresses is nearly full") && line.contains("loud");
    assert!(log.lines().any(is_warning), "{log}");
}
