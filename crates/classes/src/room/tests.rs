use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use tortie_model::{Cidr, Family};

use super::{Claimant, Division, Holding, divide};
use crate::addresses::trees;

const NAMESPACES: [&str; 4] = ["", "a", "b", "c"];

/// Blocks by the beginnings of all networks.
fn blocks_of<'n>(nets: impl Iterator<Item = &'n Cidr>) -> usize {
    let mut beginnings = BTreeSet::new();
    for net in nets {
        for depth in 0..usize::from(net.prefix_len().div_ceil(8)) {
            let bytes = net.bits().to_be_bytes()[..depth].to_vec();
            beginnings.insert((net.family(), true, bytes.clone()));
            if net.family() == Family::V6 && !net.is_host() {
                beginnings.insert((net.family(), false, bytes));
            }
        }
    }
    beginnings.len()
}

fn net() -> impl Strategy<Value = Cidr> {
    let v4 = (0..3_u8, 0..3_u8, 0..4_u8, 0..=32_u8)
        .prop_map(|(a, b, c, length)| Cidr::new(Ipv4Addr::new(a * 100, b, 0, c).into(), length).unwrap().masked());
    let v6 = (0..3_u16, 0..3_u16, 0..4_u16, 0..=128_u8).prop_map(|(a, b, c, length)| {
        let address = Ipv6Addr::new(0x2001, a << 8, b, 0, 0, 0, 0, c);
        Cidr::new(address.into(), length).unwrap().masked()
    });
    prop_oneof![v4, v6]
}

fn nets() -> impl Strategy<Value = Vec<Cidr>> {
    proptest::collection::vec(net(), 0..12)
}

fn claimants() -> impl Strategy<Value = Vec<(usize, BTreeSet<usize>)>> {
    let holdings = proptest::collection::btree_set(0..6_usize, 0..4);
    proptest::collection::vec((0..NAMESPACES.len(), holdings), 0..8)
}

/// Blocks of the holdings that some claimant has who is not refused, and of those that none has.
fn left(holdings: &[Vec<Cidr>], claimants: &[Claimant<'_>], refused: &[usize]) -> usize {
    let used = |number: &usize| {
        let has = |claimant: &Claimant<'_>| claimant.holdings.contains(number);
        let mut live = claimants.iter().enumerate().filter(|(number, _)| !refused.contains(number));
        live.any(|(_, claimant)| has(claimant)) || !claimants.iter().any(has)
    };
    let live = holdings.iter().enumerate().filter(|(number, _)| used(number));
    blocks_of(live.flat_map(|(_, nets)| nets))
}

proptest! {
    #[test]
    fn blocks_are_counted_by_neighbours(mut nets in nets()) {
        nets.sort_unstable();
        nets.dedup();
        prop_assert_eq!(trees::blocks(nets.iter().copied()), blocks_of(nets.iter()));
    }

    #[test]
    fn no_policy_is_refused_without_need(
        holdings in proptest::collection::vec(nets(), 6),
        claimants in claimants(),
        blocks in 0..120_usize,
    ) {
        let of = |(namespace, holdings): &(usize, BTreeSet<usize>)| Claimant {
            namespace: NAMESPACES[*namespace],
            holdings: holdings.iter().copied().collect(),
        };
        let claimants: Vec<Claimant<'_>> = claimants.iter().map(of).collect();
        let held: Vec<Holding> = holdings.clone();
        let Division { refused, needed } = divide(blocks, &held, &claimants);
        let after = left(&holdings, &claimants, &refused);
        if let Some((_, earlier)) = refused.split_last() {
            let before = left(&holdings, &claimants, earlier);
            prop_assert!(before > blocks, "the last group would have fitted");
            prop_assert_eq!(before - after, needed);
        }
        // Only networks that no claimant has may be too many.
        let all: Vec<usize> = (0..claimants.len()).collect();
        prop_assert!(after <= blocks || after == left(&holdings, &claimants, &all));
        let alone = |namespace: &str| -> usize {
            let of = claimants.iter().filter(|claimant| claimant.namespace == namespace);
            let held: BTreeSet<usize> = of.flat_map(|claimant| claimant.holdings.iter().copied()).collect();
            held.into_iter().map(|number| blocks_of(holdings[number].iter())).sum()
        };
        let unused = (0..6).filter(|number| !claimants.iter().any(|claimant| claimant.holdings.contains(number)));
        let taken = alone("") + blocks_of(unused.flat_map(|number| &holdings[number]));
        let tenants: BTreeSet<&str> = claimants.iter().map(|claimant| claimant.namespace).filter(|name| !name.is_empty()).collect();
        for tenant in refused.iter().map(|number| claimants[*number].namespace).filter(|name| !name.is_empty()) {
            prop_assert!(taken + tenants.len() * alone(tenant) > blocks, "{} is within its share", tenant);
        }
        let platform = refused.iter().position(|number| claimants[*number].namespace.is_empty());
        if let Some(first) = platform {
            prop_assert!(refused[first..].iter().all(|number| claimants[*number].namespace.is_empty()));
        }
    }
}

/// `count` networks, each with a separate block besides three common ones.
fn far_apart(first: u8, count: u8) -> Holding {
    (first..first + count).map(|third| Cidr::new([10, 0, third, 0].into(), 32).unwrap()).collect()
}

#[test]
fn the_largest_policy_of_the_largest_namespace_is_refused_first() {
    let holdings = [far_apart(0, 20), far_apart(20, 10), far_apart(30, 15), far_apart(45, 40), far_apart(45, 40)];
    let claim = |namespace, holding: &[usize]| Claimant { namespace, holdings: holding.to_vec() };
    // Of `shop` the two policies share 40 blocks with the platform.
    let claimants =
        [claim("dev", &[0]), claim("dev", &[1]), claim("shop", &[2]), claim("shop", &[3]), claim("", &[3, 4])];
    let refused = |blocks| divide(blocks, &holdings, &claimants).refused;
    assert_eq!(refused(88), [0; 0]);
    assert_eq!(refused(87), [3, 0]);
    assert_eq!(refused(67), [3, 0, 2]);
    assert_eq!(refused(52), [3, 0, 2, 1]);
    assert_eq!(refused(43), [3, 0, 2, 1]);
    assert_eq!(refused(42), [3, 0, 2, 1, 4]);
}
