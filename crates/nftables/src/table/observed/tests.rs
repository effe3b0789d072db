use super::*;

fn elements(numbers: impl IntoIterator<Item = u8>) -> Vec<(Key, Option<Key>)> {
    numbers.into_iter().map(|number| (Key::from_bytes(&[number]), None)).collect()
}

/// Few are changed one by one, many at once; known and missing elements are among them.
#[test]
fn elements_are_those_of_a_set_after_few_and_many_changes() {
    let (mut changed, mut expected) = (Elements::default(), BTreeSet::new());
    for (from, to, step) in [(0, 200, 3), (7, 9, 1), (250, 251, 1), (0, 120, 1)] {
        let added = elements((from..to).step_by(step));
        changed.add(added.clone().into_iter());
        expected.extend(added);
        assert!(changed.iter().eq(&expected), "{from} to {to}");
        let gone: BTreeSet<_> = elements((from + 1..to).step_by(2)).into_iter().collect();
        changed.remove(&gone);
        expected.retain(|element| !gone.contains(element));
        assert!(changed.iter().eq(&expected), "without {from} to {to}");
        assert!(expected.iter().all(|element| changed.contains(element)));
    }
}
