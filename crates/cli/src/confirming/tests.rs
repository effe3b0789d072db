use tortie_datastore::store::apply::{apply, create};
use tortie_datastore::store::{DryRun, Fault, MemoryStore};
use tortie_resources::stored::ResourceKind;

use super::*;

type Writer = fn(&dyn ResourceStore, &ResourceKey, &Value) -> Result<Option<&'static str>, ApplyError>;

fn sets(names: &[&str], write: Writer) -> Vec<PendingWrite<'static>> {
    let pending = |name: &&str| {
        let key = ResourceKey::new(ResourceKind::GlobalNetworkSet, "", *name).unwrap();
        let object = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "spec": {}});
        let write_one = {
            let key = key.clone();
            move |store: &dyn ResourceStore| write(store, &key, &object)
        };
        PendingWrite { place: "tortie".into(), key, write: Box::new(write_one) }
    };
    names.iter().map(pending).collect()
}

#[test]
fn an_existing_resource_prevents_all_creations() {
    let creation: Writer = |store, key, object| create(store, key, object).map(|()| Some("created"));
    let store = MemoryStore::default();
    write_now(&store, &sets(&["b"], creation), false, WriteOutput::Json).unwrap();
    let refused = write_now(&store, &sets(&["a", "b", "c", "c"], creation), true, WriteOutput::Json);
    assert!(matches!(refused, Err(Failure::Reported(1))));
    assert_eq!((store.keys().len(), store.writes()), (1, 1));
}

#[test]
fn writes_end_at_the_first_failure_and_their_outcomes_are_listed() {
    let store = MemoryStore::default();
    let update: Writer = |store, key, object| apply(store, key, object).map(|_| Some("created"));
    // The check reads each resource three times. Then `a` is read and created, and `b` is read.
    (0..9 + 2 + 1).for_each(|_| store.fail_next(Fault::None));
    store.fail_next(Fault::LostAnswer);
    let refused = write_now(&store, &sets(&["a", "b", "c"], update), false, WriteOutput::Json);
    assert!(matches!(refused, Err(Failure::Reported(1))));
    assert_eq!(store.keys().len(), 2, "the third is not tried");

    let key = |name| ResourceKey::new(ResourceKind::Tier, "", name).unwrap();
    let mut outcome = WriteOutcome { words: vec![(key("a"), "created")], ..WriteOutcome::default() };
    outcome.failed("tortie", &key("b"), "no".into());
    outcome.untried = vec![key("c"), key("d")];
    let account = "tortie: written: Tier/a created\ntortie: failed: Tier/b\ntortie: not tried: Tier/c, Tier/d\n";
    assert_eq!(outcome.account(), account);
    assert_eq!(outcome.whole(None)["not_tried"], json!(["Tier/c", "Tier/d"]));
    outcome.is_unknown = true;
    outcome.words.clear();
    assert!(outcome.account().starts_with("tortie: failed, and possibly written: Tier/b\n"));
    outcome.is_unknown = false;
    assert_eq!(outcome.account(), "tortie: nothing has been changed\n");
}

#[test]
fn times() {
    for (text, seconds) in [
        ("60s", 60),
        ("60", 60),
        ("5m", 300),
        ("1h", 3_600),
        ("168h", 604_800),
        ("1h30m", 5_400),
        ("1.5m", 90),
        ("2min", 120),
    ] {
        assert_eq!(window(text), Ok(Duration::from_secs(seconds)), "{text}");
    }
    for text in ["", "s", "0s", "-1s", "1.5s", "1h90", "169h", "1d", "99999999999999999999h", "5 m"] {
        assert!(window(text).is_err(), "{text}");
    }
}

/// Answers as an API server behind an admission webhook that has side effects.
fn no_dry_run(_: Option<&Value>) -> Result<Option<Value>, StoreError> {
    Err(StoreError::Refused("admission webhook \"audit\" does not support dry run".into()))
}

#[test]
fn plain_writes_do_not_depend_on_dry_runs() {
    let store = MemoryStore::default();
    store.answer_dry_runs(no_dry_run);
    let creation: Writer = |store, key, object| create(store, key, object).map(|()| Some("created"));
    let tried = try_all(&store, &sets(&["a", "b"], creation), false, WriteOutput::Json);
    assert!(matches!(tried, Err(Failure::Reported(1))));
    write_now(&store, &sets(&["a", "b"], creation), false, WriteOutput::Json).unwrap();
    assert_eq!(store.keys().len(), 2);
}

/// One write is tried as well, since an API server that drops domains reports no error.
#[test]
fn domains_that_would_be_dropped_or_cannot_be_checked_prevent_a_write() {
    let creation: Writer = |store, key, _| {
        create(store, key, &json!({"spec": {"allowedEgressDomains": ["a.io"]}})).map(|()| Some("created"))
    };
    let dropped: DryRun = |object| Ok(object.map(|_| json!({"spec": {}})));
    for answer in [dropped, no_dry_run] {
        let store = MemoryStore::default();
        store.answer_dry_runs(answer);
        let refused = write_now(&store, &sets(&["a"], creation), false, WriteOutput::Json);
        assert!(matches!(refused, Err(Failure::Reported(1))), "{refused:?}");
        assert_eq!(store.keys(), []);
    }
    write_now(&MemoryStore::default(), &sets(&["a"], creation), false, WriteOutput::Json).unwrap();
}
