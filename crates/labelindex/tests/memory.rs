//! Memory of the index per item.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::alloc::System;
use std::collections::HashMap;
use std::sync::Arc;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tortie_labelindex::{MemberIndex, Overlap, SetDefinition};
use tortie_model::{Cidr, Interner, IpSetId, Labels, ProfileName};
use tortie_selector::Selector;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ITEMS: u32 = 20_000;

fn bytes_for_an_item(labels: &[Labels], parents: &[Arc<[ProfileName]>], selector: &str) -> usize {
    let region = Region::new(ALLOCATOR);
    let mut index = MemberIndex::new(Overlap::Suppress);
    for (n, labels) in (0..ITEMS).zip(labels) {
        let address = Cidr::host(std::net::Ipv4Addr::from_bits(n).into());
        index.set_item(n, labels, &parents[n as usize % parents.len()], &HashMap::new(), [address], &[]);
    }
    let selector = Selector::parse(selector).unwrap();
    index.add_set(&IpSetId::new("set"), SetDefinition { selector, named_port: None });
    let mut out = Vec::new();
    index.flush(&mut out);
    drop(out);
    let change = region.change();
    let bytes = change.bytes_allocated - change.bytes_deallocated;
    drop(index);
    bytes / ITEMS as usize
}

#[test]
fn bytes_for_an_item_are_bounded() {
    let mut interner = Interner::new();
    let mut labels = |of: &dyn Fn(u32) -> [(String, String); 2]| -> Vec<Labels> {
        (0..ITEMS).map(|n| interner.labels(of(n)).unwrap()).collect()
    };
    let alike = labels(&|n| [("app".into(), "web".into()), ("pod".into(), n.to_string())]);
    let unlike = labels(&|n| [(format!("app-{n}"), "web".into()), ("pod".into(), n.to_string())]);
    let parents: Vec<Arc<[ProfileName]>> = (0..100).map(|n| [ProfileName::new(format!("parent-{n}"))].into()).collect();

    let few_groups = bytes_for_an_item(&alike, &parents, "has(app)");
    assert!(few_groups < 80, "{few_groups} bytes with few groups");
    let own_group = bytes_for_an_item(&alike, &parents, "pod != 'x'");
    assert!(own_group < 270, "{own_group} bytes when each item is its own group");
    let own_shape = bytes_for_an_item(&unlike, &parents, "has(app)");
    assert!(own_shape < 425, "{own_shape} bytes when each item has its own shape");
}
