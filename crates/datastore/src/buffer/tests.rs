use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tortie_model::{Order, Tier, TierName};

use super::*;

fn key(name: u8) -> Key {
    Key::Tier(TierName::new(format!("t{name}")))
}

/// Returns an object whose value shows its version.
fn update(name: u8, version: Option<u32>) -> Update {
    let tier = |version: u32| Tier { order: Order::new(f64::from(version)), ..Tier::default() };
    Update::Tier(TierName::new(format!("t{name}")), version.map(tier))
}

fn version(update: &Update) -> u32 {
    let Update::Tier(_, Some(Tier { order: Some(order), .. })) = update else { panic!("{update:?}") };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was one")]
    let version = order.get() as u32;
    version
}

#[test]
fn resync_deletes_unsent_keys_and_the_newest_value_wins() {
    let (mut buffer, now) = (DedupeBuffer::default(), Instant::now());
    buffer.begin_resync();
    buffer.update(update(1, Some(1)), now);
    buffer.update(update(2, Some(1)), now);
    buffer.update(update(1, Some(2)), now);
    buffer.update(update(9, None), now);
    buffer.end_resync(now);
    assert_eq!(buffer.take(9), Some(Next::Status(SyncStatus::Resync)));
    assert_eq!(buffer.take(9), Some(Next::Updates(vec![update(1, Some(2)), update(2, Some(1))], now)));
    assert_eq!(buffer.take(9), Some(Next::Status(SyncStatus::InSync)));
    buffer.begin_resync();
    buffer.update(update(2, Some(1)), now);
    buffer.end_resync(now);
    buffer.take(9);
    assert_eq!(buffer.take(9), Some(Next::Updates(vec![update(2, Some(1)), update(1, None)], now)));
}

/// An object that the consumer knows is deleted, recreated and deleted: the consumer receives the
/// deletion.
#[test]
fn keys_known_to_the_consumer_are_deleted_after_any_number_of_changes() {
    let (mut buffer, now) = (DedupeBuffer::default(), Instant::now());
    buffer.update(update(1, Some(1)), now);
    buffer.take(9);
    for version in [None, Some(2), None] {
        buffer.update(update(1, version), now);
    }
    assert_eq!(buffer.take(9), Some(Next::Updates(vec![update(1, None)], now)));
    assert!(buffer.known.is_empty() && buffer.is_empty());
}

#[test]
fn the_room_for_all_objects_is_returned_once_the_consumer_has_taken_them() {
    let (mut buffer, now) = (DedupeBuffer::default(), Instant::now());
    for number in 0..20_000 {
        buffer.update(Update::Tier(TierName::new(format!("t{number}")), Some(Tier::default())), now);
    }
    buffer.take(10_000);
    assert!(buffer.pending.capacity() >= 20_000, "{}", buffer.pending.capacity());
    buffer.take(10_000);
    assert!(buffer.pending.capacity() < 2 * SWEEP_FROM, "{}", buffer.pending.capacity());
    assert!(buffer.queue.capacity() < 2 * SWEEP_FROM, "{}", buffer.queue.capacity());
}

#[test]
fn the_oldest_change_of_a_batch_counts() {
    let (mut buffer, now) = (DedupeBuffer::default(), Instant::now());
    let later = now + std::time::Duration::from_secs(1);
    buffer.update(update(1, Some(1)), later);
    buffer.update(update(2, Some(1)), now);
    buffer.update(update(2, Some(2)), later);
    assert_eq!(buffer.take(9), Some(Next::Updates(vec![update(1, Some(1)), update(2, Some(2))], now)));
}

#[test]
fn churn_does_not_make_the_queue_long() {
    let (mut buffer, now) = (DedupeBuffer::default(), Instant::now());
    for name in 0..10 {
        buffer.update(update(name, Some(0)), now);
    }
    for round in 0..4000 {
        buffer.begin_resync();
        for name in 0..10 {
            buffer.update(update(name, Some(round)), now);
        }
        buffer.update(update(10, Some(round)), now);
        buffer.update(update(10, None), now);
        if round % 3 == 0 {
            buffer.status(SyncStatus::WaitForDatastore);
        }
        buffer.end_resync(now);
        assert!(buffer.queue.len() <= SWEEP_FROM + 8 * 11, "{}", buffer.queue.len());
    }
    assert_eq!(buffer.len(), 10);
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8),
    Delete(u8),
    Begin,
    End,
    Wait,
    Take(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u8).prop_map(Step::Set),
        4 => (0..6u8).prop_map(Step::Delete),
        2 => Just(Step::Begin),
        2 => Just(Step::End),
        1 => Just(Step::Wait),
        5 => (1..5usize).prop_map(Step::Take),
        1 => Just(Step::Clear),
    ]
}

type Versions = Vec<(Key, Arc<str>)>;

/// State reported by a source, whether the consumer has received it or not.
#[derive(Debug, Default)]
struct SourceModel {
    exists: BTreeMap<u8, u32>,
    /// The objects reported since the last resync began.
    again: BTreeSet<u8>,
    /// Time of the last report of each object, deletions included.
    last: BTreeMap<u8, u32>,
    /// The statuses not yet received, each with `last` as it was then.
    statuses: Vec<(SyncStatus, BTreeMap<u8, u32>)>,
    clock: u32,
    /// The versions that the consumer has received for the next objects, and the limit that it
    /// passed.
    versions: Option<(Versions, usize)>,
}

/// Returns the version, which the source knows for every other one.
fn known_version(clock: u32) -> Option<Arc<str>> {
    (clock % 2 == 1).then(|| clock.to_string().into())
}

impl SourceModel {
    fn delete(&mut self, name: u8) {
        if self.exists.remove(&name).is_some() {
            self.clock += 1;
            self.last.insert(name, self.clock);
        }
    }

    fn status(&mut self, status: SyncStatus) {
        self.statuses.push((status, self.last.clone()));
    }
}

/// Lets the consumer take an item and checks that the item is permitted.
fn take(buffer: &mut DedupeBuffer, limit: usize, source: &mut SourceModel, consumer: &mut BTreeMap<Key, u32>) -> bool {
    match buffer.take(limit) {
        None => return false,
        Some(Next::Versions(versions)) => {
            assert!(!versions.is_empty() && source.versions.is_none() && !buffer.is_empty());
            assert!(!buffer.begins_with_status(), "their objects come next");
            source.versions = Some((versions, limit));
        }
        Some(Next::Updates(updates, _)) => {
            let of_update = |update: &Update| {
                let version = update.exists().then(|| known_version(version(update))).flatten()?;
                Some((update.key(), version))
            };
            let versions: Vec<_> = updates.iter().filter_map(of_update).collect();
            let (sent_versions, limit) = source.versions.take().unwrap_or((Vec::new(), limit));
            assert!((1..=limit).contains(&updates.len()));
            assert_eq!(versions, sent_versions, "of each that is known, and of no other");
            let keys: BTreeSet<_> = updates.iter().map(Update::key).collect();
            assert_eq!(keys.len(), updates.len(), "a key twice");
            for update in updates {
                if update.exists() {
                    consumer.insert(update.key(), version(&update));
                } else {
                    assert!(consumer.remove(&update.key()).is_some(), "deleted, but never sent");
                }
            }
        }
        Some(Next::Status(status)) => {
            assert_eq!(source.versions, None, "their objects come next");
            // It may stand for several reported statuses.
            let first = source.statuses.iter().position(|(sent, _)| *sent == status).expect("a reported status");
            let (_, last) = source.statuses.remove(first);
            for (name, at) in last {
                let received = consumer.get(&key(name)).copied();
                let gone_later = !source.exists.contains_key(&name);
                let is_new_enough =
                    received.map_or(gone_later || source.exists[&name] >= at, |received| received >= at);
                assert!(is_new_enough, "{status:?} overtook {name}");
            }
        }
    }
    true
}

fn names(source: &SourceModel) -> Vec<u8> {
    source.exists.keys().copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn the_consumer_ends_with_the_sent_state(steps in prop::collection::vec(step(), 0..80)) {
        let now = Instant::now();
        let (mut buffer, mut source, mut consumer) = (DedupeBuffer::default(), SourceModel::default(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Set(name) => {
                    source.clock += 1;
                    source.exists.insert(name, source.clock);
                    source.last.insert(name, source.clock);
                    source.again.insert(name);
                    buffer.update_at(update(name, Some(source.clock)), known_version(source.clock), now);
                }
                Step::Delete(name) => {
                    source.delete(name);
                    buffer.update(update(name, None), now);
                }
                Step::Begin => {
                    source.again.clear();
                    source.status(SyncStatus::Resync);
                    buffer.begin_resync();
                }
                Step::End => {
                    let gone: Vec<u8> = source.exists.keys().filter(|name| !source.again.contains(name)).copied().collect();
                    gone.into_iter().for_each(|name| source.delete(name));
                    source.status(SyncStatus::InSync);
                    buffer.end_resync(now);
                }
                Step::Wait => {
                    source.status(SyncStatus::WaitForDatastore);
                    buffer.status(SyncStatus::WaitForDatastore);
                }
                Step::Take(limit) => {
                    take(&mut buffer, limit, &mut source, &mut consumer);
                }
                Step::Clear => {
                    buffer.clear();
                    (source, consumer) = (SourceModel { clock: source.clock, ..SourceModel::default() }, BTreeMap::new());
                }
            }
            prop_assert!(buffer.len() <= 6 && buffer.pending.len() <= buffer.queue.len());
        }
        while take(&mut buffer, 3, &mut source, &mut consumer) {}
        let expected: BTreeMap<Key, u32> = source.exists.iter().map(|(name, version)| (key(*name), *version)).collect();
        prop_assert_eq!(&consumer, &expected);
        prop_assert!(buffer.is_empty() && buffer.known.len() == expected.len());
        // A resync without objects deletes everything.
        source.status(SyncStatus::Resync);
        buffer.begin_resync();
        names(&source).into_iter().for_each(|name| source.delete(name));
        source.status(SyncStatus::InSync);
        buffer.end_resync(now);
        while take(&mut buffer, 3, &mut source, &mut consumer) {}
        prop_assert!(consumer.is_empty());
    }
}
