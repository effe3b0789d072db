use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{small_scenarios, small_worst_cases};

struct Silent;

impl Observer for Silent {
    fn done(&mut self, _: &'static str) {}
}

#[test]
fn everything_is_stored_once() {
    for scenario in small_scenarios().into_iter().chain(small_worst_cases()) {
        let stored = floor(scenario.input.clone(), &mut Silent).stored();

        let (mut objects, mut texts, mut values) = (BTreeMap::new(), BTreeSet::new(), 0);
        let feeds = scenario.input.feeds.iter().flat_map(|(_, updates)| updates);
        for update in feeds.chain(&scenario.input.changes) {
            for (name, value) in labels(update).into_iter().flat_map(Labels::iter) {
                texts.extend([name.to_owned(), value.to_owned()]);
                values += 1;
            }
            update.clone().apply_to(&mut objects);
        }
        let mut addresses = BTreeSet::new();
        objects.values().for_each(|update| for_each_address(Some(update), |address| addresses.extend([address])));
        let expected = Stored { objects: objects.len(), texts: texts.len(), values, addresses: addresses.len() };
        assert_eq!(stored, expected, "{}", scenario.name);
    }
}

#[test]
fn a_repeated_object_is_stored_once() {
    let scenario = small_scenarios().swap_remove(0);
    let feeds = || scenario.input.feeds.clone();
    let once = floor(Input { feeds: feeds(), ..Input::default() }, &mut Silent).stored();
    let feeds_twice = feeds().into_iter().chain(feeds()).collect();
    let twice = floor(Input { feeds: feeds_twice, ..Input::default() }, &mut Silent).stored();
    assert_eq!((once.objects, once.texts, once.addresses), (twice.objects, twice.texts, twice.addresses));
    assert_eq!(2 * once.values, twice.values);
}
