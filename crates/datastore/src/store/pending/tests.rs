use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::{Value, json};
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};
use tortie_revisions::journal::JournalError;

use super::*;
use crate::store::apply::{apply, delete, initialise};
use crate::store::staged::unversioned;
use crate::store::{Fault, Listing, MemoryStore, ResourceStore, StagedStore, StoreError, StoredResource, Verb};

const WINDOW: u64 = 60_000;

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, if kind.is_namespaced() { "shop" } else { "" }, name).expect("a key")
}

fn policy(name: &str) -> ResourceKey {
    key(ResourceKind::NetworkPolicy, name)
}

fn spec(order: u32) -> Value {
    json!({"spec": {"order": order, "selector": "all()", "tier": "platform"}})
}

fn at(seconds: u64) -> Moment {
    Moment { wall_ms: 1_000_000 + seconds * 1_000, boot: "one".into(), uptime_ms: seconds * 1_000 }
}

/// Returns the stored objects of these keys.
fn kept(store: &MemoryStore, keys: &[ResourceKey]) -> Vec<Option<Value>> {
    keys.iter().map(|key| store.get(key).ok().map(|there| unversioned(there.object))).collect()
}

fn at_work(
    store: &Arc<MemoryStore>,
) -> impl Fn(&PendingChange) -> Result<Arc<dyn ResourceStore>, Box<dyn Error + Send + Sync>> {
    let store = Arc::clone(store);
    move |_| Ok(Arc::clone(&store) as Arc<dyn ResourceStore>)
}

/// Returns a datastore with a tier and the policies `changed` and `deleted`.
fn ready() -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    initialise(&store).expect("initialised");
    apply(&store, &key(ResourceKind::Tier, "platform"), &json!({"spec": {"order": 5}})).expect("applied");
    for name in ["changed", "deleted"] {
        apply(&store, &policy(name), &spec(1)).expect("applied");
    }
    Arc::new(store)
}

/// Changes one policy, deletes another, and makes a third and a tier.
fn change(store: &dyn ResourceStore, now: &Moment) -> PendingChange {
    let staged = StagedStore::new(store);
    apply(&staged, &key(ResourceKind::Tier, "new"), &json!({"spec": {"order": 6}})).expect("staged");
    apply(&staged, &policy("changed"), &spec(2)).expect("staged");
    apply(&staged, &policy("created"), &json!({"spec": {"tier": "new", "selector": "all()"}})).expect("staged");
    delete(&staged, &policy("deleted"), None).expect("staged");
    PendingChange::new(staged.into_writes(), json!({"url": "here"}), "me", WINDOW, now)
}

fn touched() -> Vec<ResourceKey> {
    let mut keys: Vec<_> = ["changed", "created", "deleted"].map(policy).to_vec();
    keys.push(key(ResourceKind::Tier, "new"));
    keys
}

/// A program that is killed after so many operations on the disk or the datastore.
struct Mortal<'a, T: ?Sized> {
    inner: &'a T,
    left: &'a AtomicUsize,
    /// Whether the last operation takes effect.
    with_effect: bool,
}

impl<T: ?Sized> Mortal<'_, T> {
    fn live<R>(&self, operation: impl FnOnce(&T) -> R) -> Option<R> {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        match left {
            0 => None,
            1 => {
                if self.with_effect {
                    operation(self.inner);
                }
                None
            }
            _ => Some(operation(self.inner)),
        }
    }
}

impl Journal for Mortal<'_, dyn Journal> {
    fn load(&self) -> Result<Option<PendingChange>, JournalError> {
        self.live(Journal::load).unwrap_or_else(|| Err(killed()))
    }

    fn save(&self, change: &PendingChange) -> Result<(), JournalError> {
        self.live(|journal| journal.save(change)).unwrap_or_else(|| Err(killed()))
    }
}

fn killed() -> JournalError {
    JournalError::Io { path: "change".into(), error: std::io::Error::other("killed") }
}

struct MortalStore {
    inner: Arc<MemoryStore>,
    left: Arc<AtomicUsize>,
    with_effect: bool,
}

impl MortalStore {
    fn live<R>(&self, operation: impl FnOnce(&MemoryStore) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let mortal = Mortal { inner: &*self.inner, left: &self.left, with_effect: self.with_effect };
        mortal.live(operation).unwrap_or_else(|| Err(StoreError::Unavailable("killed".into())))
    }
}

impl ResourceStore for MortalStore {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        self.live(|store| store.get(key))
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        self.live(|store| store.list(kind, namespace))
    }

    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.live(|store| store.create(key, object))
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.live(|store| store.update(key, object, based_on))
    }

    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.live(|store| store.put(key, object))
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        self.live(|store| store.delete(key, version))
    }

    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError> {
        self.live(|store| store.is_allowed(verb, key))
    }
}

/// Event after the begin of a change; the number is the operations after which the program is
/// killed.
#[derive(Clone, Debug)]
enum Event {
    Confirm(usize),
    Attend(usize),
    /// Time passes.
    Wait(u64),
    /// The machine reboots, and its clock jumps by so many seconds.
    Reboot(i64),
    /// The wall clock jumps.
    Clock(i64),
    /// Another client writes one of the resources.
    Other(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (1_usize..8).prop_map(Event::Confirm),
        (1_usize..14).prop_map(Event::Attend),
        (0_u64..45).prop_map(Event::Wait),
        (-100_000_i64..100_000).prop_map(Event::Reboot),
        (-100_000_i64..100_000).prop_map(Event::Clock),
        (0_usize..3).prop_map(Event::Other),
    ];
    proptest::collection::vec(event, 0..10)
}

/// A machine on which programs are killed.
struct World {
    store: Arc<MemoryStore>,
    journal: MemoryJournal,
    with_effect: bool,
    clock: Moment,
    reboots: usize,
    /// Time that the machine has been running since the change was made.
    waited: u64,
}

impl World {
    /// Runs a program that is killed after so many operations.
    fn run<R>(&self, life: usize, program: impl FnOnce(&dyn Journal, &Arc<dyn ResourceStore>) -> R) -> R {
        let left = Arc::new(AtomicUsize::new(life));
        let inner: &dyn Journal = &self.journal;
        let journal = Mortal { inner, left: &left, with_effect: self.with_effect };
        let store =
            MortalStore { inner: Arc::clone(&self.store), left: Arc::clone(&left), with_effect: self.with_effect };
        program(&journal, &(Arc::new(store) as Arc<dyn ResourceStore>))
    }

    fn attend(&self, life: usize) -> Result<Attended, JournalError> {
        self.run(life, |journal, store| attend(journal, &|_| Ok(Arc::clone(store)), &self.clock))
    }

    fn is_confirmed(&self) -> bool {
        self.journal.load().unwrap().is_some_and(|change| matches!(change.phase, Phase::Confirmed { .. }))
    }

    fn shift(&mut self, seconds: i64) {
        self.clock.wall_ms = self.clock.wall_ms.saturating_add_signed(seconds * 1_000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// Whichever program is killed at whichever step, and whatever the clocks show, in the end
    /// either the whole change is in effect or nothing of it, and it is in effect if and only if it
    /// was confirmed.
    #[test]
    fn all_or_nothing(life in 1_usize..24, with_effect: bool, events in events()) {
        let store = ready();
        let keys = touched();
        let before = kept(&store, &keys);
        let clock = at(1_000);
        let planned = change(&*store, &clock);
        let after: Vec<_> =
            keys.iter().map(|key| planned.writes.iter().find(|write| write.key == *key).unwrap().after.clone()).collect();
        let mut world = World { store, journal: MemoryJournal::default(), with_effect, clock, reboots: 0, waited: 0 };
        let made = world.run(life, |journal, store| {
            let begun = begin(journal, planned)?;
            carry_out(journal, &**store, begun, &|| at(1_000))
        });
        if made.is_ok() {
            prop_assert_eq!(&kept(&world.store, &keys), &after);
        }
        let mut confirmed = false;
        let mut others = [false; 3];
        let mut is_recorded = world.journal.load().unwrap().is_some();
        for event in events {
            match event {
                Event::Confirm(life) => {
                    let result = world.run(life, |journal, _| confirm(journal, &world.clock));
                    // A program that is killed just after the record was written has confirmed
                    // nevertheless.
                    let is_on_record = world.is_confirmed();
                    prop_assert!(is_on_record || result.is_err(), "a confirmation without a record is reported");
                    if is_on_record && !confirmed {
                        prop_assert!(made.is_ok() || with_effect, "a change that was never made is confirmed");
                        prop_assert!(world.reboots > 0 || world.waited < WINDOW, "the confirmation is too late");
                        confirmed = true;
                    }
                }
                Event::Attend(life) => {
                    if let Ok(Attended::Waits { ms }) = world.attend(life) {
                        prop_assert!(ms <= WINDOW);
                    }
                }
                Event::Wait(seconds) => {
                    world.waited += seconds * 1_000;
                    world.clock.uptime_ms += seconds * 1_000;
                    world.shift(i64::try_from(seconds).unwrap());
                }
                Event::Reboot(jump) => {
                    world.reboots += 1;
                    world.clock.boot = format!("reboot {}", world.reboots);
                    world.clock.uptime_ms = 500;
                    world.shift(jump);
                }
                Event::Clock(jump) => world.shift(jump),
                Event::Other(which) if is_recorded => {
                    let mut object = spec(77);
                    object["metadata"] = json!({"annotations": {"by": "another user"}});
                    world.store.put(&keys[which], object).unwrap();
                    others[which] = true;
                }
                Event::Other(_) => {}
            }
            is_recorded |= world.journal.load().unwrap().is_some();
        }
        prop_assert_eq!(world.is_confirmed(), confirmed);
        // A program that is not killed attends twice: the first call after a reboot may only store
        // the new deadline.
        world.attend(1_000).unwrap();
        world.clock.uptime_ms += WINDOW;
        world.attend(1_000).unwrap();
        prop_assert_eq!(world.attend(1_000).unwrap(), Attended::Nothing);
        prop_assert!(world.journal.load().unwrap().is_none_or(|change| !change.is_open()));
        let wanted = if confirmed { after } else { before };
        let now = kept(&world.store, &keys);
        let with_tier = wanted.iter().zip(&now).enumerate();
        for (place, (wanted, now)) in with_tier {
            if others.get(place).is_some_and(|other| *other) {
                prop_assert_eq!(now.as_ref().unwrap()["metadata"]["annotations"]["by"].as_str(), Some("another user"));
            } else {
                prop_assert_eq!(now, wanted, "{}", &keys[place]);
            }
        }
    }
}

/// Returns a datastore with a pending change, and its previous objects.
fn made() -> (Arc<MemoryStore>, MemoryJournal, Vec<Option<Value>>) {
    let (store, journal) = (ready(), MemoryJournal::default());
    let before = kept(&store, &touched());
    let begun = begin(&journal, change(&*store, &at(0))).unwrap();
    carry_out(&journal, &*store, begun, &|| at(5)).unwrap();
    (store, journal, before)
}

#[test]
fn confirmed_in_time_it_stays() {
    let (store, journal, _) = made();
    let after = kept(&store, &touched());
    let Confirmed::Now(_) = confirm(&journal, &at(64)).unwrap() else { panic!("for the first time") };
    assert_eq!(attend(&journal, &at_work(&store), &at(1_000)).unwrap(), Attended::Nothing);
    assert_eq!(kept(&store, &touched()), after);
    let Confirmed::Before(_) = confirm(&journal, &at(2_000)).unwrap() else { panic!("again") };
}

#[test]
fn the_whole_window_begins_when_everything_is_written() {
    let (store, journal, before) = made();
    assert_eq!(attend(&journal, &at_work(&store), &at(64)).unwrap(), Attended::Waits { ms: 1_000 });
    assert!(matches!(confirm(&journal, &at(65)), Err(ConfirmError::RollingBack(_))));
    assert!(matches!(attend(&journal, &at_work(&store), &at(65)).unwrap(), Attended::RolledBack(_)));
    assert!(matches!(confirm(&journal, &at(65)), Err(ConfirmError::RolledBack(_))));
    assert_eq!(kept(&store, &touched()), before);
}

#[test]
fn a_second_one_is_refused_until_the_first_is_settled() {
    let (_, journal, _) = made();
    let second = change(&*ready(), &at(6));
    let Err(CarryOutError::Pending(first)) = begin(&journal, second.clone()) else { panic!("refused") };
    assert_eq!((first.by.as_str(), &first.phase), ("me", &Phase::Waiting));
    confirm(&journal, &at(7)).unwrap();
    begin(&journal, second).unwrap();
}

#[test]
fn a_failed_write_rolls_back_the_others() {
    for fault in [Fault::Refused, Fault::Overtaken, Fault::LostAnswer, Fault::Unavailable] {
        for nth in 0..4 {
            let (store, journal) = (ready(), MemoryJournal::default());
            let before = kept(&store, &touched());
            let begun = begin(&journal, change(&*store, &at(0))).unwrap();
            (0..nth).for_each(|_| store.fail_next(Fault::None));
            store.fail_next(fault.clone());
            let Err(CarryOutError::Write { is_rolled_back, .. }) = carry_out(&journal, &*store, begun, &|| at(1))
            else {
                panic!("{fault:?} at {nth} did not fail")
            };
            assert!(is_rolled_back, "{fault:?} at {nth}");
            let now = kept(&store, &touched());
            for ((key, before), now) in touched().iter().zip(before).zip(now) {
                // A resource that another client has written meanwhile is left unchanged.
                let by_others = fault == Fault::Overtaken && now != before && *key == begun_key(nth);
                assert!(now == before || by_others, "{fault:?} at {nth}: {key} is {now:?}");
            }
        }
    }
}

fn begun_key(nth: usize) -> ResourceKey {
    let store = ready();
    change(&*store, &at(0)).writes[nth].key.clone()
}

#[test]
fn a_datastore_that_is_away_is_waited_for() {
    let (store, journal, _) = made();
    store.set_down(true);
    for _ in 0..3 {
        let attended = attend(&journal, &at_work(&store), &at(100)).unwrap();
        assert!(matches!(attended, Attended::Retry { .. }), "{attended:?}");
        assert!(matches!(confirm(&journal, &at(100)), Err(ConfirmError::RollingBack(_))));
    }
    let unopened = attend(&journal, &|_| Err("no route".into()), &at(100)).unwrap();
    assert_eq!(unopened, Attended::Retry { why: "no route".into() });
    store.set_down(false);
    assert!(matches!(attend(&journal, &at_work(&store), &at(101)).unwrap(), Attended::RolledBack(_)));
}

#[test]
fn a_tier_that_others_have_come_to_need_stays() {
    let (store, journal, _) = made();
    apply(&*store, &policy("late"), &json!({"spec": {"tier": "new", "selector": "all()"}})).unwrap();
    let Attended::RolledBack(change) = attend(&journal, &at_work(&store), &at(100)).unwrap() else { panic!() };
    let Phase::RolledBack { kept, .. } = change.phase else { panic!() };
    let [one] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!(one.resource, "Tier/new");
    assert!(one.why.contains("NetworkPolicy/shop/late is in it"), "{one:?}");
    assert!(store.get(&key(ResourceKind::Tier, "new")).is_ok() && store.get(&policy("created")).is_err());
}

#[test]
fn clocks() {
    let change = |now: &Moment| change(&*ready(), now);
    let begun = change(&at(100));
    // Until a reboot, the wall clock does not matter.
    for wall_ms in [0, u64::MAX] {
        assert_eq!(begun.remaining_ms(&Moment { wall_ms, ..at(130) }), 30_000);
    }
    let after_reboot = |seconds| Moment { boot: "two".into(), uptime_ms: 1, ..at(seconds) };
    assert_eq!(begun.remaining_ms(&after_reboot(130)), 30_000);
    assert_eq!(begun.remaining_ms(&after_reboot(500)), 0);
    assert_eq!(begun.remaining_ms(&after_reboot(10)), WINDOW, "a clock that was set back");
}

#[test]
fn a_journal_on_disk() {
    let folder = tempfile::TempDir::new().unwrap();
    let state = folder.path().join("state");
    assert!(FileJournal::find(&state).unwrap().is_none());
    let journal = FileJournal::open(&state).unwrap();
    assert!(journal.load().unwrap().is_none());
    let change = change(&*ready(), &at(0));
    journal.save(&change).unwrap();
    let other = FileJournal::find(&state).unwrap().unwrap();
    assert_eq!(other.load().unwrap(), Some(change.clone()));

    let lock = journal.try_lock().unwrap().expect("free");
    assert!(other.try_lock().unwrap().is_none());
    drop(lock);
    assert!(other.try_lock().unwrap().is_some());

    let text = fs::read_to_string(journal.path()).unwrap();
    fs::write(journal.path(), text.replace("applying", "waiting")).unwrap();
    let edited = journal.load().unwrap_err();
    assert!(edited.to_string().contains("pending/change:7: is not the digest of the file"), "{edited}");
    let attended = attend(&journal, &|_| panic!("nothing is known"), &at(100));
    assert!(attended.is_err() && confirm(&journal, &at(1)).is_err() && begin(&journal, change.clone()).is_err());
    // A change that cannot be stored is not begun.
    fs::remove_dir_all(state.join("pending")).unwrap();
    assert!(matches!(begin(&journal, change), Err(CarryOutError::Journal(JournalError::Io { .. }))));
}

/// Each flip of a change on disk, by a program that is killed between any two of its writes.
#[test]
fn a_change_on_disk_is_whole_after_a_kill_between_any_two_writes() {
    for (life, with_effect, is_asked) in
        (1..24).flat_map(|life| [(life, true, true), (life, false, true), (life, true, false)])
    {
        let (folder, store) = (tempfile::TempDir::new().unwrap(), ready());
        let before = kept(&store, &touched());
        let planned = change(&*store, &at(0));
        let journal = FileJournal::open(folder.path()).unwrap();
        let left = Arc::new(AtomicUsize::new(life));
        let mortal = Mortal { inner: &journal as &dyn Journal, left: &left, with_effect };
        let mortal_store = MortalStore { inner: Arc::clone(&store), left: Arc::clone(&left), with_effect };
        let made = begin(&mortal, planned).and_then(|begun| carry_out(&mortal, &mortal_store, begun, &|| at(1)));
        let after = made.is_ok().then(|| kept(&store, &touched()));
        if made.is_ok() && is_asked {
            // Whatever it returns, the file shows whether the change is confirmed.
            let _ = confirm(&mortal, &at(2));
        }
        fs::write(journal.path().with_extension("tmp"), "tortie-journal 1 pend").unwrap();

        let next = FileJournal::find(folder.path()).unwrap().unwrap();
        attend(&next, &at_work(&store), &at(100)).unwrap();
        let phase = next.load().unwrap().map(|change| change.phase);
        let is_confirmed = matches!(phase, Some(Phase::Confirmed { .. }));
        assert!(is_confirmed || matches!(phase, None | Some(Phase::RolledBack { .. })), "{life}: {phase:?}");
        let wanted = if is_confirmed { after.expect("it was made") } else { before };
        assert_eq!(kept(&store, &touched()), wanted, "{life} {with_effect} {is_asked}");
        assert_eq!(attend(&next, &at_work(&store), &at(200)).unwrap(), Attended::Nothing);
    }
}

/// Returns a pending tier in the format before the journal.
fn former(phase: &str) -> (tempfile::TempDir, FileJournal, Arc<MemoryStore>) {
    let (folder, store, tier) = (tempfile::TempDir::new().unwrap(), ready(), key(ResourceKind::Tier, "new"));
    apply(&*store, &tier, &json!({"spec": {"order": 6}})).unwrap();
    let body = json!({
        "phase": phase, "by": "ada", "began_ms": 1_000_000, "window_ms": WINDOW,
        "deadline": {"wall_ms": 1_060_000, "boot": "one", "uptime_ms": 60_000},
        "datastore": {"url": "here"},
        "writes": [{"path": tier.path(), "before": null, "based_on": null, "after": unversioned(store.get(&tier).unwrap().object)}],
    });
    let journal = FileJournal::open(folder.path()).unwrap();
    let body = body.to_string();
    let digest = tortie_revisions::history::TextId::of(&body);
    fs::write(journal.path(), format!("tortie-pending-change 1\n{digest}\n{body}")).unwrap();
    (folder, journal, store)
}

#[test]
fn a_change_of_an_earlier_version_is_confirmed_or_rolled_back() {
    let is_there = |store: &MemoryStore| store.get(&key(ResourceKind::Tier, "new")).is_ok();
    let is_migrated =
        |journal: &FileJournal| fs::read(journal.path()).unwrap().starts_with(b"tortie-journal 1 pending-change\n");

    let (_folder, journal, store) = former("waiting");
    let found = journal.load().unwrap().unwrap();
    assert_eq!((found.by.as_str(), found.began_ms, found.writes.len()), ("ada", 1_000_000, 1));
    assert_eq!(attend(&journal, &at_work(&store), &at(20)).unwrap(), Attended::Waits { ms: 40_000 });
    assert!(matches!(begin(&journal, change(&*store, &at(20))), Err(CarryOutError::Pending(_))));
    confirm(&journal, &at(30)).unwrap();
    assert_eq!(attend(&journal, &at_work(&store), &at(100)).unwrap(), Attended::Nothing);
    assert!(is_there(&store) && is_migrated(&journal));

    for (phase, time) in [("waiting", 61), ("applying", 1)] {
        let (_folder, journal, store) = former(phase);
        assert!(matches!(attend(&journal, &at_work(&store), &at(time)).unwrap(), Attended::RolledBack(_)), "{phase}");
        assert!(!is_there(&store) && is_migrated(&journal), "{phase}");
    }

    let (_folder, journal, store) = former("waiting");
    let text = fs::read_to_string(journal.path()).unwrap();
    fs::write(journal.path(), text.replace("60000", "99999")).unwrap();
    let refused = confirm(&journal, &at(1)).unwrap_err().to_string();
    assert!(refused.contains("pending/change:2: is not the digest of the file"), "{refused}");
    assert!(attend(&journal, &at_work(&store), &at(100)).is_err() && begin(&journal, change(&*store, &at(1))).is_err());
}

/// A datastore that stores another object than a dry run returns, as a webhook of Kubernetes may
/// do.
struct Opinionated(Arc<MemoryStore>);

impl Opinionated {
    fn filled(mut object: Value) -> Value {
        object["spec"]["filled"] = json!(true);
        object
    }
}

impl ResourceStore for Opinionated {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        self.0.get(key)
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        self.0.list(kind, namespace)
    }

    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.0.create(key, Self::filled(object))
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.0.update(key, Self::filled(object), based_on)
    }

    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.0.put(key, Self::filled(object))
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        self.0.delete(key, version)
    }

    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError> {
        self.0.is_allowed(verb, key)
    }
}

#[test]
fn fields_added_by_the_datastore_are_rolled_back() {
    let store = ready();
    let before = kept(&store, &touched());
    let (journal, opinionated) = (MemoryJournal::default(), Opinionated(Arc::clone(&store)));
    let change = begin(&journal, change(&opinionated, &at(0))).expect("begun");
    carry_out(&journal, &opinionated, change, &|| at(1)).expect("carried out");
    let made = store.get(&policy("changed")).expect("it is there").object;
    assert_eq!((&made["spec"]["filled"], &made["spec"]["order"]), (&json!(true), &json!(2)));
    // Programs write the status meanwhile, and the resource is recreated as it is: this is no
    // change.
    let created = store.get(&policy("created")).expect("it is there").object;
    store.delete(&policy("created"), None).expect("deleted");
    let mut again = unversioned(created);
    again["status"] = json!({"said": true});
    again["metadata"]["uid"] = json!("another");
    store.create(&policy("created"), again).expect("created");
    let open = at_work(&store);
    let Ok(Attended::RolledBack(done)) = attend(&journal, &open, &at(100)) else { panic!() };
    let Phase::RolledBack { kept: left, .. } = &done.phase else { panic!("{done:?}") };
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(kept(&store, &touched()), before);
}

/// While the datastore is unavailable, an expired change cannot be confirmed.
#[test]
fn an_expired_change_cannot_be_confirmed_during_an_outage() {
    let store = ready();
    let journal = MemoryJournal::default();
    let change = begin(&journal, change(&*store, &at(0))).expect("begun");
    carry_out(&journal, &*store, change, &|| at(1)).expect("carried out");
    let away = |_: &PendingChange| Err("it is away".into());
    let retry = Attended::Retry { why: "it is away".into() };
    assert_eq!(attend(&journal, &away, &at(100)).expect("attended"), retry);
    let why = "it was not confirmed in time".to_owned();
    assert_eq!(journal.load().expect("loaded").map(|change| change.phase), Some(Phase::RollingBack { why }));
    // Also if the clock goes back.
    assert!(matches!(confirm(&journal, &at(2)), Err(ConfirmError::RollingBack(_))));
}
