use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn entries(map: &SharedMap<u16, u32>, keys: impl Iterator<Item = u16>) -> BTreeMap<u16, u32> {
    keys.filter_map(|key| Some((key, *map.get(&key)?))).collect()
}

proptest! {
    #[test]
    fn clones_are_independent(
        steps in prop::collection::vec((0..4u8, 0..600u16, any::<u32>()), 0..1_500),
    ) {
        let mut map = SharedMap::default();
        let mut plain = BTreeMap::new();
        let mut kept = Vec::new();
        for (step, (action, key, value)) in steps.into_iter().enumerate() {
            match action {
                0 => prop_assert_eq!(map.remove(&key), plain.remove(&key)),
                1 if step % 50 == 0 => kept.push((map.clone(), plain.clone())),
                2 => {
                    let (place, expected) = (map.get_mut(&key), plain.get_mut(&key));
                    prop_assert_eq!(&place, &expected);
                    place.into_iter().chain(expected).for_each(|place| *place = value);
                }
                _ => prop_assert_eq!(map.insert(key, value), plain.insert(key, value)),
            }
        }
        for (map, plain) in kept.iter().chain([&(map.clone(), plain.clone())]) {
            prop_assert_eq!(&entries(map, 0..600), plain);
            prop_assert_eq!(map.is_empty(), plain.is_empty());
        }
        for key in plain.keys() {
            map.remove(key);
        }
        prop_assert!(map.is_empty() && map.root.leaf_len() == Some(0));
    }
}

/// Returns the nodes of a map by their addresses.
fn nodes(node: &Arc<Node<u32, ()>>) -> Vec<*const Node<u32, ()>> {
    let mut found = vec![Arc::as_ptr(node)];
    if let Node::Branch(children) = &**node {
        children.iter().for_each(|child| found.extend(nodes(child)));
    }
    found
}

#[test]
fn a_change_copies_only_its_path() {
    let mut map = SharedMap::default();
    for key in 0..100_000 {
        map.insert(key, ());
    }
    let before = map.clone();
    map.remove(&7);
    map.remove(&1_000_000);
    let (old, new) = (nodes(&before.root), nodes(&map.root));
    assert!(old.len() > 1_000);
    let copied = new.iter().filter(|node| !old.contains(node)).count();
    assert!(copied <= 6, "{copied} of {} nodes", new.len());
    assert!(before.get(&7).is_some() && map.get(&7).is_none());
}
