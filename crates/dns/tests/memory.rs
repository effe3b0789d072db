//! Memory per address.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::alloc::System;
use std::net::{IpAddr, Ipv4Addr};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tortie_dns::{Answer, Learned, Millis, Scope, Settings};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns a scope with its limit of addresses.
fn fill(learned: &mut Learned, scope: u32, names: u32, addresses: u32) {
    let interface = Scope::Interface(format!("cali{scope}").parse().unwrap());
    learned.set_scope(interface, 1, ["d:set".into()]);
    for name in 0..names {
        let address = |n: u32| IpAddr::from(Ipv4Addr::from_bits(0x0100_0000 + scope * 10_000 + name * addresses + n));
        let text = format!("host-{name}.region-1.cdn.example.com");
        // Several answers with one address each, as balancers give them.
        for n in 0..addresses {
            let answer = Answer::new(text.parse().unwrap(), [(address(n), 60 + n)]);
            learned.answer(Millis(u64::from(name * 7 + n)), interface, &answer).unwrap();
        }
    }
}

fn bytes_for_an_address(scopes: u32, names: u32, addresses: u32) -> usize {
    let region = Region::new(ALLOCATOR);
    let mut learned = Learned::new(Settings::default());
    learned.set_domains(&"d:set".into(), ["*.example.com".parse().unwrap()].into());
    (0..scopes).for_each(|scope| fill(&mut learned, scope, names, addresses));
    drop(learned.take_changes());
    let change = region.change();
    let counts = learned.counts();
    assert_eq!((counts.addresses, counts.members), ((scopes * names * addresses) as usize, counts.addresses));
    (change.bytes_allocated - change.bytes_deallocated) / counts.addresses
}

#[test]
fn bytes_for_an_address_are_bounded() {
    let full = bytes_for_an_address(10, 2_000, 5);
    println!("{full} bytes for an address, five each");
    assert!(full <= 200, "{full} bytes for an address");
    let many = bytes_for_an_address(10, 10, 1_000);
    println!("{many} bytes for an address, 1,000 each");
    assert!(many <= 160, "{many} bytes for an address of a name with many");
    let single = bytes_for_an_address(10, 2_000, 1);
    println!("{single} bytes for an address, one each");
    assert!(single <= 480, "{single} bytes for a name with one address");
}
