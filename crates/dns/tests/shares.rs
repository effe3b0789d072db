//! Room is divided: no group and no scope takes the share of another.
#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use tortie_dns::{Answer, Learned, Limits, Millis, Refusal, Scope, Settings};

const GROUPS: [&str; 3] = ["", "a", "b"];

fn scope(number: usize) -> Scope {
    Scope::Interface(format!("cali{number}").parse().unwrap())
}

/// An answer with addresses that no other has.
fn answer(number: usize, addresses: u32) -> Answer {
    let first = u32::from(Ipv4Addr::new(20, 0, 0, 0)) + u32::try_from(number).unwrap() * 100;
    let addresses = (first..first + addresses).map(|bits| (IpAddr::V4(Ipv4Addr::from_bits(bits)), 600));
    Answer::new(format!("n{number}.io").parse().unwrap(), addresses)
}

fn sizes(learned: &Learned, scopes: usize) -> Vec<usize> {
    (0..scopes).map(|number| learned.known(scope(number)).count()).collect()
}

fn of_group(sizes: &[usize], groups: &[usize], group: usize) -> usize {
    sizes.iter().zip(groups).filter(|(_, of)| **of == group).map(|(size, _)| size).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn every_group_and_scope_learns_up_to_its_share_and_keeps_it(
        limit in 1..60_usize,
        groups in prop::collection::vec(0..GROUPS.len(), 1..7),
        answers in prop::collection::vec((any::<prop::sample::Index>(), 1..20_u32), 0..60),
    ) {
        let limits = Limits { addresses: limit, ..Limits::default() };
        let mut learned = Learned::new(Settings { limits, ..Settings::default() });
        learned.set_domains(&"d:1".into(), ["*.io".parse().unwrap()].into());
        for (number, group) in groups.iter().enumerate() {
            learned.set_scope(scope(number), 1, ["d:1".into()]);
            learned.set_group(scope(number), &GROUPS[*group].into());
        }
        let mut scopes: BTreeMap<usize, usize> = BTreeMap::new();
        groups.iter().for_each(|group| *scopes.entry(*group).or_default() += 1);
        let share = limit / scopes.len();
        for (number, (index, addresses)) in answers.into_iter().enumerate() {
            let (at, before) = (index.index(groups.len()), sizes(&learned, groups.len()));
            let now = Millis(u64::try_from(number).unwrap());
            let outcome = learned.answer(now, scope(at), &answer(number, addresses)).unwrap();
            let after = sizes(&learned, groups.len());
            prop_assert!(after.iter().sum::<usize>() <= limit);
            let (group, addresses) = (groups[at], addresses as usize);
            let within = share / scopes[&group];
            let in_group = of_group(&before, &groups, group) + addresses <= share;
            let in_scope = before[at] + addresses <= within;
            if in_group || in_scope {
                prop_assert_eq!(outcome.refused(Refusal::NoRoom), 0);
                prop_assert_eq!(after[at], before[at] + addresses, "nothing of its own went");
            }
            for (other, of) in groups.iter().enumerate().filter(|(other, _)| *other != at) {
                let (had, has) = (before[other], after[other]);
                prop_assert!(has == had || has >= share / scopes[of], "a scope within its share gives nothing");
                let (group_had, group_has) = (of_group(&before, &groups, *of), of_group(&after, &groups, *of));
                let keeps = *of == group || group_has == group_had || group_has >= share;
                prop_assert!(keeps, "a group within its share gives nothing to others");
            }
        }
    }
}

#[test]
fn crowding_names_the_groups_beyond_their_shares() {
    let limits = Limits { addresses: 32, ..Limits::default() };
    let mut learned = Learned::new(Settings { limits, ..Settings::default() });
    learned.set_domains(&"d:1".into(), ["*.io".parse().unwrap()].into());
    for (number, group) in ["a", "a", "b"].into_iter().enumerate() {
        learned.set_scope(scope(number), 1, ["d:1".into()]);
        learned.set_group(scope(number), &group.into());
    }
    learned.answer(Millis(0), scope(0), &answer(0, 27)).unwrap();
    assert_eq!(learned.crowding(), None);
    learned.answer(Millis(1), scope(2), &answer(1, 1)).unwrap();
    let crowding = learned.crowding().unwrap();
    assert_eq!((crowding.addresses, crowding.limit, crowding.share), (28, 32, 16));
    assert_eq!(crowding.groups, [("a".into(), 27)]);
    let outcome = learned.answer(Millis(2), scope(2), &answer(2, 15)).unwrap();
    assert_eq!((outcome.added, outcome.displaced), (15, 11), "to its share of 16");
    assert_eq!(sizes(&learned, 3), [16, 0, 16]);
    let outcome = learned.answer(Millis(3), scope(1), &answer(3, 10)).unwrap();
    assert_eq!((outcome.added, outcome.displaced), (8, 8), "within the group, to an equal share of it");
    assert_eq!(sizes(&learned, 3), [8, 8, 16]);
    assert_eq!(learned.crowding().unwrap().groups, []);
}
