use proptest::prelude::*;

use super::*;

fn shares(budget: u64, holders: &[(&'static str, u32, u64)]) -> Shares<u32> {
    let mut shares = Shares::new(budget);
    holders.iter().for_each(|(namespace, key, charge)| shares.set(*key, namespace, *charge));
    shares
}

fn settled(refused: &[u32], admitted: &[u32]) -> ShareChanges<u32> {
    ShareChanges { refused: refused.into(), admitted: admitted.into() }
}

#[test]
fn the_largest_holder_of_the_largest_namespace_is_refused_until_there_is_room() {
    let mut shares = shares(100, &[("a", 1, 50), ("a", 2, 30)]);
    assert_eq!(shares.settle(), settled(&[], &[]));
    // A namespace that comes later gets its share.
    shares.set(3, "b", 40);
    assert_eq!(shares.settle(), settled(&[1], &[]));
    assert_eq!((shares.total(), shares.is_refused(&1), shares.is_refused(&2)), (120, true, false));
    shares.set(3, "b", 20);
    assert_eq!(shares.settle(), settled(&[], &[1]));
    // A refused holder that changes stays refused if it needs more than is left.
    shares.set(3, "b", 60);
    assert_eq!(shares.settle(), settled(&[1], &[]));
    shares.set(1, "a", 45);
    assert_eq!(shares.settle(), settled(&[], &[]));
    // 75 blocks against 60: the other namespace has the most now.
    shares.remove(&1);
    shares.set(4, "a", 10);
    assert_eq!(shares.settle(), settled(&[], &[]));
    shares.set(4, "a", 11);
    assert_eq!(shares.settle(), settled(&[3], &[]));
    for key in [2, 3, 4] {
        shares.remove(&key);
    }
    assert!(shares.is_empty());
}

#[test]
fn the_platform_comes_first() {
    let mut shares = shares(100, &[("", 1, 70), ("a", 2, 20), ("b", 3, 10), ("b", 4, 5)]);
    assert_eq!(shares.settle(), settled(&[2], &[]));
    shares.set(5, "", 40);
    assert_eq!(shares.settle(), settled(&[1], &[2]));
    shares.set(1, "", 60);
    assert_eq!(shares.settle(), settled(&[2, 3, 4], &[1]));
    shares.set(6, "a", 0);
    assert_eq!(shares.settle(), settled(&[], &[]), "a holder without blocks needs no share");
    shares.remove(&1);
    assert_eq!(shares.settle(), settled(&[], &[2, 3, 4]));
}

#[test]
fn of_equals_the_last_is_refused() {
    let mut shares = shares(30, &[("b", 3, 10), ("a", 1, 10), ("b", 4, 10), ("a", 2, 10)]);
    assert_eq!(shares.settle(), settled(&[4], &[]));
    shares.set(5, "", 10);
    assert_eq!(shares.settle(), settled(&[2], &[]));
}

/// Model of the rule, computed from all charges.
fn refused(budget: u64, holders: &BTreeMap<u32, (&'static str, u64)>) -> BTreeSet<u32> {
    let mut held = holders.clone();
    let total = |held: &BTreeMap<u32, (&str, u64)>| -> u64 { held.values().map(|(_, charge)| charge).sum() };
    let of = |held: &BTreeMap<u32, (&'static str, u64)>, namespace: &str| -> u64 {
        held.values().filter(|(of, _)| *of == namespace).map(|(_, charge)| charge).sum()
    };
    let largest = |held: &BTreeMap<u32, (&'static str, u64)>, namespace: &str| {
        let own = held.iter().filter(|(_, (of, _))| *of == namespace);
        own.max_by_key(|(key, (_, charge))| (*charge, **key)).map(|(key, _)| *key).unwrap()
    };
    while of(&held, PLATFORM) > budget {
        let key = largest(&held, PLATFORM);
        held.remove(&key);
    }
    while total(&held) > budget {
        let tenants = held.values().map(|(namespace, _)| *namespace).filter(|namespace| *namespace != PLATFORM);
        let most = tenants.max_by_key(|namespace| (of(&held, namespace), *namespace)).unwrap();
        let key = largest(&held, most);
        held.remove(&key);
    }
    holders.keys().filter(|key| !held.contains_key(key)).copied().collect()
}

const NAMESPACES: [&str; 5] = [PLATFORM, "a", "b", "c", "d"];

proptest! {
    #[test]
    fn holders_are_refused_by_charges_alone(
        budget in 0_u64..200,
        steps in prop::collection::vec((0_u32..12, prop::option::weighted(0.8, (0_usize..5, 0_u64..60)), any::<bool>()), 1..60),
    ) {
        let mut shares = Shares::new(budget);
        let (mut holders, mut closed) = (BTreeMap::new(), BTreeSet::new());
        for (key, claim, settles) in steps {
            match claim {
                Some((namespace, charge)) => {
                    let namespace = NAMESPACES[namespace];
                    shares.set(key, namespace, charge);
                    holders.insert(key, (namespace, charge));
                }
                None => {
                    shares.remove(&key);
                    holders.remove(&key);
                    closed.remove(&key);
                }
            }
            if !settles {
                continue;
            }
            let settled = shares.settle();
            closed.extend(settled.refused);
            settled.admitted.iter().for_each(|key| assert!(closed.remove(key)));
            let expected = refused(budget, &holders);
            prop_assert_eq!(&closed, &expected);
            prop_assert!(holders.keys().all(|key| shares.is_refused(key) == expected.contains(key)));
            prop_assert_eq!(shares.total(), holders.values().map(|(_, charge)| charge).sum::<u64>());
            // Within its equal share of the platform's remainder, a namespace loses nothing.
            let of = |namespace: &str| -> u64 {
                holders.values().filter(|(of, _)| *of == namespace).map(|(_, charge)| charge).sum()
            };
            let tenants: BTreeSet<&str> =
                holders.values().map(|(of, _)| *of).filter(|of| *of != PLATFORM).collect();
            let left = budget.saturating_sub(of(PLATFORM));
            for (key, (namespace, _)) in &holders {
                let is_within = match *namespace {
                    PLATFORM => of(PLATFORM) <= budget,
                    namespace => of(namespace) * tenants.len() as u64 <= left,
                };
                prop_assert!(!(is_within && expected.contains(key)), "{} of {}", key, namespace);
            }
        }
    }
}
