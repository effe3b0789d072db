use std::collections::BTreeMap;

use super::*;

impl Identified for (u32, &str) {
    type Id = u32;

    fn id(&self) -> &u32 {
        &self.0
    }
}

fn insert(table: &mut SlotTable<(u32, &'static str)>, object: (u32, &'static str)) -> Slot {
    let hash = table.find(&object.0).unwrap_err();
    table.insert(hash, object)
}

#[test]
fn objects_are_found_by_id_and_slot() {
    let mut table = SlotTable::default();
    let slots: BTreeMap<u32, Slot> = (0..3_000).map(|id| (id, insert(&mut table, (id, "old")))).collect();
    assert_eq!((table.len(), table.slot_count()), (3_000, 3_000));
    for (id, &slot) in &slots {
        assert_eq!(table.find(id), Ok(slot));
        assert_eq!(table.get(slot), Some(&(*id, "old")));
    }
    assert!(table.find(&3_000).is_err());
    for id in (0..3_000).step_by(3) {
        assert_eq!(table.remove(&id), Some((id, "old")));
        assert_eq!(table.remove(&id), None);
    }
    for id in 0..3_000 {
        assert_eq!(table.find(&id).is_ok(), id % 3 > 0);
    }
    // Slots are reused.
    for id in (0..3_000).step_by(3) {
        insert(&mut table, (id, "new"));
    }
    assert_eq!((table.len(), table.slot_count()), (3_000, 3_000));
    assert_eq!(table.find(&3).ok().and_then(|slot| table.get(slot)), Some(&(3, "new")));
}

#[test]
fn a_slot_stays_used_until_it_is_released() {
    let mut table = SlotTable::default();
    let [first, second] = [1, 2].map(|id| insert(&mut table, (id, "")));
    assert_eq!(table.take(&1), Some((first, (1, ""))));
    assert_eq!(table.get(first), None);
    assert_eq!(table.take(&1), None);
    let third = insert(&mut table, (1, ""));
    assert!(![first, second].contains(&third));
    table.give_back([first]);
    assert_eq!(insert(&mut table, (3, "")), first);
}

#[test]
fn an_empty_table_keeps_no_memory() {
    let mut table = SlotTable::default();
    let slots: Vec<Slot> = (0..2_000).map(|id| insert(&mut table, (id, ""))).collect();
    assert!(!table.is_empty());
    for id in 0..2_000 {
        table.take(&id);
    }
    assert!(!table.is_empty());
    table.give_back(slots);
    assert!(table.is_empty());
}
