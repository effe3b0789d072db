use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{Entries, MOST, Node};
use crate::cache::{Entry, RemoteView};

fn entry(path: &str, value: u32) -> Arc<Entry> {
    let value = Bytes::copy_from_slice(&value.to_be_bytes());
    Arc::new(Entry { path: path.into(), value, version: None, remote_view: RemoteView::Same })
}

/// All leaves are equally deep, no node is too large, none is empty but the root.
fn depth(node: &Node, root: bool) -> usize {
    assert!(node.len() <= MOST && (root || node.len() > 0));
    match node {
        Node::Leaf(_) => 0,
        Node::Branch(children) => {
            let depths: Vec<usize> = children.iter().map(|child| depth(&child.node, false)).collect();
            assert!(depths.windows(2).all(|pair| pair[0] == pair[1]), "{depths:?}");
            depths[0] + 1
        }
    }
}

#[test]
fn many_in_order_and_out_again() {
    let mut entries = Entries::default();
    for number in 0..20_000 {
        entries.insert(entry(&format!("/{number:05}"), number));
    }
    assert_eq!((entries.len(), depth(&entries.root, true)), (20_000, 2));
    let all = entries.clone();
    for number in 0..20_000 {
        assert!(entries.remove(&format!("/{:05}", number * 7919 % 20_000)).is_some());
    }
    assert!(entries.is_empty() && entries.iter().next().is_none());
    assert_eq!(depth(&entries.root, true), 0);
    assert_eq!(all.iter().count(), 20_000);
    assert_eq!(all.below("/0001").count(), 10);
}

proptest! {
    /// Behaves like an ordered map of the standard library; later changes do not affect clones.
    #[test]
    fn like_a_map(edits in prop::collection::vec((0..400u32, any::<bool>(), 0..40u8), 0..1500)) {
        let mut entries = Entries::default();
        let mut model = BTreeMap::new();
        let mut kept = (entries.clone(), model.clone());
        for (value, (key, set, keep)) in (0u32..).zip(edits) {
            let path = format!("/{}/{key}", key % 7);
            if set {
                let before = entries.insert(entry(&path, value));
                prop_assert_eq!(before.map(|b| b.value.clone()), model.insert(path, entry("", value).value.clone()));
            } else {
                prop_assert_eq!(entries.remove(&path).is_some(), model.remove(&path).is_some());
            }
            if keep == 0 {
                kept = (entries.clone(), model.clone());
            }
        }
        depth(&entries.root, true);
        for (entries, model) in [&(entries, model), &kept] {
            prop_assert_eq!(entries.len(), model.len());
            prop_assert!(entries.iter().map(|e| (&*e.path, &e.value)).eq(model.iter().map(|(p, v)| (&**p, v))));
            let below = model.iter().filter(|(path, _)| path.starts_with("/3/"));
            prop_assert!(entries.below("/3/").map(|e| &*e.path).eq(below.map(|(p, _)| &**p)));
            for (path, value) in model {
                prop_assert_eq!(&entries.get(path).unwrap().value, value);
            }
            prop_assert!(entries.get("/none").is_none());
        }
    }
}
