use proptest::prelude::*;

use super::*;

fn owner(name: &str) -> End {
    End::Owner(Owner::of_pod("n", name, &LabelMap::new(), None))
}

fn key(source: End, destination: End, port: u16) -> EdgeKey {
    EdgeKey { source, destination, protocol: 6, port: EdgePort::Port(port) }
}

fn address(number: u32) -> End {
    End::Network(Cidr::host(Ipv4Addr::from(0xc633_6400 + number).into()))
}

const LEARNED: Evidence = Evidence::Learned { replies: true, counted: true };

#[test]
fn addresses_beyond_the_bound_become_networks_and_then_any() {
    let mut record = Record::default();
    for number in 0..64 {
        record.observe(&key(owner("a"), address(number), 443), LEARNED, 5, number.into());
    }
    assert_eq!(record.edges().len(), 64);
    record.observe(&key(owner("a"), address(65), 443), LEARNED, 5, 65);
    let ends: Vec<_> = record.edges().map(|(key, _)| key.destination.clone()).collect();
    assert_eq!(ends, [End::Network("198.51.100.0/24".parse().unwrap())]);
    // Another port, and the other direction, have bounds of their own.
    record.observe(&key(owner("a"), address(1), 80), LEARNED, 5, 1);
    record.observe(&key(address(1), owner("a"), 443), LEARNED, 5, 1);
    assert_eq!(record.edges().len(), 3);
    for network in 0..65 {
        record.observe(&key(owner("a"), address(network * 256), 443), LEARNED, 5, 1);
    }
    let wide = record.edges().filter(|(key, _)| key.destination == End::Public).count();
    assert_eq!((record.edges().len(), wide), (3, 1));
}

#[test]
fn edges_beyond_the_bound_are_counted() {
    let mut record = Record::new(2);
    for port in [1, 2, 3, 1, 4] {
        record.observe(&key(owner("a"), owner("b"), port), LEARNED, 5, 1);
    }
    assert_eq!((record.edges().len(), record.not_recorded().beyond_bound), (2, 2));
    record.observe(&key(owner("a"), address(1), 1), LEARNED, 5, 1);
    assert_eq!((record.edges().len(), record.not_recorded().beyond_bound), (2, 3));
    assert!(record.outside.is_empty());
    for number in 0..9 {
        let End::Owner(owner) = owner(&format!("o{number}")) else { continue };
        record.see_pod(&owner, "pod", None);
    }
    assert_eq!(record.owners().len(), 2);
}

/// An observation: edge by small numbers, evidence, time, connection.
type Seen = (u8, u32, u16, u8, u64, u64);

fn seen() -> impl Strategy<Value = Seen> {
    (0..3_u8, 0..20_000_u32, 1..3_u16, 0..4_u8, 0..5_000_000_u64, 0..9_u64)
}

fn observe(record: &mut Record, (kind, number, port, evidence, at, connection): Seen) {
    let key = match kind {
        0 => key(owner("a"), address(number), port),
        1 => key(address(number % 70), owner("b"), port),
        _ => key(owner("a"), owner("b"), port),
    };
    let evidence = match evidence {
        0 => Evidence::Attempt,
        1 => Evidence::Denied,
        2 => Evidence::Open,
        _ => Evidence::Learned { replies: number % 2 == 0, counted: number % 3 == 0 },
    };
    record.observe(&key, evidence, at, connection);
    let Key::Pod(owner) = Key::of(&key) else { return };
    let labels = [("app".into(), format!("{}", number % 7).into())].into();
    record.see_pod(&owner, &format!("pod-{}", number % 12), Some(&labels));
}

enum Key {
    Pod(Owner),
    None,
}

impl Key {
    fn of(key: &EdgeKey) -> Self {
        match &key.source {
            End::Owner(owner) => Self::Pod(owner.clone()),
            _ => Self::None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_merge_in_any_order_and_any_number_of_times(
        seen in proptest::collection::vec(seen(), 0..300),
        split in any::<u64>(),
    ) {
        let mut whole = Record::default();
        seen.iter().for_each(|seen| observe(&mut whole, *seen));
        let mut parts = [Record::default(), Record::default(), Record::default()];
        for (number, seen) in seen.iter().enumerate().rev() {
            let part = (split.rotate_left(u32::try_from(number % 64).unwrap()) % 3) as usize;
            observe(&mut parts[part], *seen);
            // Some are read twice.
            observe(&mut parts[number % 3], *seen);
        }
        let [mut first, second, third] = parts;
        let mut other = third.clone();
        other.merge(&second);
        other.merge(&first);
        other.merge(&third);
        first.merge(&second);
        first.merge(&third);
        prop_assert_eq!(&first, &whole);
        prop_assert_eq!(&other, &whole);
    }
}
