use proptest::prelude::*;

use super::*;

const ALL: RangeInclusive<Address> = [0; 16]..=[u8::MAX; 16];

fn address(number: u8) -> Address {
    let mut address = [0xfd; 16];
    address[15] = number;
    address
}

fn of(classes: impl IntoIterator<Item = (u8, u32)>) -> BTreeMap<Address, u32> {
    classes.into_iter().map(|(number, class)| (address(number), class)).collect()
}

/// Model of the map, as written.
#[derive(Default)]
struct Map(BTreeMap<u32, ExactRecord>);

/// Result of a program's lookup of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The trie of networks has the class.
    Nothing,
    /// The trie of all addresses has the class.
    Closed,
    Open(u32),
}

impl Map {
    fn write(&mut self, exact: &Exact, written: Vec<u32>) {
        self.write_in_steps(exact, written, |_| {});
    }

    /// Writes values like the kernel: eight bytes at a time.
    fn write_in_steps(&mut self, exact: &Exact, written: Vec<u32>, mut then: impl FnMut(&Self)) {
        for bucket in written {
            let (before, after) = (self.0.get(&bucket).copied().unwrap_or_default(), exact.record(bucket));
            for (old, new) in before.entries().zip(after.entries()) {
                assert!(!(old.2 || new.2) || (old.0, old.1) == (new.0, new.1), "{old:?} to {new:?} in one step");
            }
            let mut bytes = before.to_bytes();
            for (at, eight) in (0..).step_by(8).zip(after.to_bytes().chunks(8)) {
                bytes[at..at + 8].copy_from_slice(eight);
                self.0.insert(bucket, ExactRecord::from_bytes(&bytes).unwrap());
                then(self);
            }
        }
    }

    fn find(&self, address: &Address, buckets: u32) -> Found {
        let record = self.0.get(&exact_bucket(address, buckets)).filter(|_| buckets > 0);
        let record = record.copied().unwrap_or_default();
        let own = record.entries().filter(|(found, class, _)| found == address && *class != 0);
        let own: Vec<(Address, u32, bool)> = own.collect();
        match own.iter().find(|(.., is_open)| *is_open) {
            Some((_, class, _)) => Found::Open(*class),
            None if own.is_empty() && record.is_complete => Found::Nothing,
            None => Found::Closed,
        }
    }
}

/// State that packets may use.
struct VisibleState {
    classes: BTreeMap<Address, u32>,
    /// Number of buckets in use.
    buckets: u32,
}

impl VisibleState {
    fn expect(&self, map: &Map) {
        for address in (0..40).map(address) {
            let class = self.classes.get(&address).copied();
            match map.find(&address, self.buckets) {
                Found::Open(found) => assert_eq!(Some(found), class, "{address:?}"),
                Found::Closed => {}
                Found::Nothing => assert_eq!(class, None, "{address:?} is nowhere"),
            }
        }
    }
}

#[test]
fn an_address_that_changes_its_class_is_closed_until_no_packet_can_be_at_the_other() {
    let (mut exact, mut map) = (Exact::default(), Map::default());
    exact.update(ALL, &of([(1, 10), (2, 20)]));
    let written = exact.take_written(true);
    map.0.extend(written.into_iter().map(|bucket| (bucket, exact.record(bucket))));
    let find = |map: &Map, exact: &Exact, number| map.find(&address(number), exact.buckets());
    assert_eq!(
        (find(&map, &exact, 1), find(&map, &exact, 2)),
        (Found::Open(10), Found::Open(20)),
        "no packet has been filtered before"
    );

    exact.update(address(1)..=address(1), &of([(1, 11)]));
    let written = exact.take_written(false);
    map.write(&exact, written);
    assert_eq!((find(&map, &exact, 1), find(&map, &exact, 2)), (Found::Closed, Found::Open(20)));
    assert!(exact.take_written(false).is_empty(), "packets may still be at the other class");
    // If both addresses are in one bucket, a place must be free before it is reused.
    for _ in 0..2 {
        exact.reclaim();
        let written = exact.take_written(false);
        map.write(&exact, written);
    }
    assert!(!exact.is_pending() && find(&map, &exact, 1) == Found::Open(11), "nothing else is to be written");

    exact.update(ALL, &of([(2, 20)]));
    let written = exact.take_written(false);
    map.write(&exact, written);
    assert_eq!((find(&map, &exact, 1), find(&map, &exact, 2)), (Found::Closed, Found::Open(20)));
}

#[test]
fn nearly_all_addresses_find_a_place() {
    let mut exact = Exact::default();
    let all: BTreeMap<Address, u32> =
        (0..10_000_u32).map(|number| ((0xfd_u128 << 120 | u128::from(number)).to_be_bytes(), number)).collect();
    exact.update(ALL, &all);
    let written = exact.take_written(true);
    let open = written.iter().flat_map(|bucket| exact.record(*bucket).entries().collect::<Vec<_>>());
    let open = open.filter(|(_, _, is_open)| *is_open).count();
    assert!(open > 9_800, "{open}");
}

proptest! {
    /// At any time, a program finds the class that an address has before and after a change, or a
    /// trie that has it.
    #[test]
    fn lookups_are_correct_at_all_times(
        steps in prop::collection::vec((prop::collection::btree_map(0..40_u8, 0..4_u32, 0..30), any::<bool>(), any::<bool>()), 1..20),
    ) {
        let (mut exact, mut map) = (Exact::default(), Map::default());
        let mut visible: Vec<VisibleState> = Vec::new();
        for (step, (classes, reclaims, restarts)) in steps.into_iter().enumerate() {
            let now = of(classes.into_iter().map(|(number, class)| (number, class + 1)));
            exact.update(ALL, &now);
            let written = exact.take_written(step == 0);
            if step == 0 {
                map.0.extend(written.into_iter().map(|bucket| (bucket, exact.record(bucket))));
            } else {
                map.write_in_steps(&exact, written, |map| visible.iter().for_each(|visible| visible.expect(map)));
            }
            visible.push(VisibleState { classes: now, buckets: exact.buckets() });
            visible.iter().for_each(|visible| visible.expect(&map));
            if reclaims {
                exact.reclaim();
                visible.drain(..visible.len() - 1);
                if restarts {
                    let written = |bucket: u32| map.0.get(&bucket).copied().unwrap_or_default();
                    let found: Vec<ExactRecord> = (0..exact.buckets()).map(written).collect();
                    let now = &visible[0].classes;
                    exact = Exact::default();
                    exact.adopt(&found, |address| now.get(address).copied().unwrap_or_default());
                }
            }
        }
    }
}
