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

/// The map, as written.
#[derive(Default)]
struct Map(BTreeMap<u32, ExactRecord>);

impl Map {
    fn write(&mut self, exact: &Exact, written: Vec<u32>) {
        for bucket in written {
            let (before, after) = (self.0.get(&bucket).copied().unwrap_or_default(), exact.record(bucket));
            for way in 0..WAYS {
                let (old, new) = (before.get(way), after.get(way));
                assert!(!(old.2 || new.2) || (old.0, old.1) == (new.0, new.1), "{old:?} to {new:?} in one step");
            }
            self.0.insert(bucket, after);
        }
    }

    /// The class that a program finds.
    fn find(&self, address: &Address, buckets: u32) -> Option<u32> {
        let record = self.0.get(&exact_bucket(address, buckets)).filter(|_| buckets > 0)?;
        let mut ways = (0..WAYS).map(|way| record.get(way));
        ways.find(|(found, _, is_open)| found == address && *is_open).map(|(_, class, _)| class)
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
        (Some(10), Some(20)),
        "no packet has been judged before"
    );

    exact.update(address(1)..=address(1), &of([(1, 11)]));
    let written = exact.take_written(false);
    map.write(&exact, written);
    assert_eq!((find(&map, &exact, 1), find(&map, &exact, 2)), (None, Some(20)));
    assert!(exact.take_written(false).is_empty(), "packets may still be at the other class");
    // Where both are in one bucket, its place must be free before it is given again.
    for _ in 0..2 {
        exact.reclaim();
        let written = exact.take_written(false);
        map.write(&exact, written);
    }
    assert!(!exact.is_pending() && find(&map, &exact, 1) == Some(11), "nothing else is to be written");

    exact.update(ALL, &of([(2, 20)]));
    let written = exact.take_written(false);
    map.write(&exact, written);
    assert_eq!((find(&map, &exact, 1), find(&map, &exact, 2)), (None, Some(20)));
}

#[test]
fn nearly_all_addresses_find_a_place() {
    let mut exact = Exact::default();
    let all: BTreeMap<Address, u32> =
        (0..10_000_u32).map(|number| ((0xfd_u128 << 120 | u128::from(number)).to_be_bytes(), number)).collect();
    exact.update(ALL, &all);
    let written = exact.take_written(true);
    let open = written.iter().flat_map(|bucket| (0..WAYS).map(|way| exact.record(*bucket).get(way)));
    let open = open.filter(|(_, _, is_open)| *is_open).count();
    assert!(open > 9_500, "{open}");
}

proptest! {
    /// Whatever happens, a program finds the class that an address has before and after a change, or none.
    #[test]
    fn what_is_found_is_right_at_all_times(
        steps in prop::collection::vec((prop::collection::btree_map(0..40_u8, 0..4_u32, 0..30), any::<bool>(), any::<bool>()), 1..20),
    ) {
        let (mut exact, mut map) = (Exact::default(), Map::default());
        // What packets may be at: classes, and how many buckets count.
        let mut held: Vec<(BTreeMap<Address, u32>, u32)> = Vec::new();
        for (step, (classes, reclaims, restarts)) in steps.into_iter().enumerate() {
            let now = of(classes.into_iter().map(|(number, class)| (number, class + 1)));
            exact.update(ALL, &now);
            let written = exact.take_written(step == 0);
            if step == 0 {
                map.0.extend(written.into_iter().map(|bucket| (bucket, exact.record(bucket))));
            } else {
                map.write(&exact, written);
            }
            held.push((now, exact.buckets()));
            for (classes, buckets) in &held {
                for number in 0..40 {
                    let found = map.find(&address(number), *buckets);
                    prop_assert!(found.is_none() || found == classes.get(&address(number)).copied(), "{number}: {found:?}");
                }
            }
            if reclaims {
                exact.reclaim();
                held.drain(..held.len() - 1);
                if restarts {
                    let found: Vec<ExactRecord> = (0..exact.buckets()).map(|bucket| exact.record(bucket)).collect();
                    let now = &held[0].0;
                    exact = Exact::default();
                    exact.adopt(&found, |address| now.get(address).copied().unwrap_or_default());
                }
            }
        }
    }
}
