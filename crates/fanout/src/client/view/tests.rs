//! Comparison of a client with a simple model of its knowledge.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;
use tortie_datastore::{Event, Events, Fallback, channel};
use tortie_model::{Interner, Key, Update};
use tortie_resources::v1::{self, Decoded};

use super::View;
use crate::protocol::{Batch, Settled, WireEntry, WireStatus};

const PATHS: [&str; 4] = [
    "/calico/v1/policy/tier/a/metadata",
    "/calico/v1/policy/tier/b/metadata",
    "/calico/v1/policy/GlobalNetworkPolicy//p",
    "/calico/v1/policy/NetworkPolicy/shop/q",
];

/// Version of a server's object; version 0 cannot be read.
type Version = u8;

fn text(path: usize, version: Version) -> String {
    match (path, version) {
        (_, 0) => "{".into(),
        (0 | 1, _) => format!(r#"{{"order":{version},"defaultAction":"Pass"}}"#),
        _ => format!(r#"{{"selector":"v == '{version}'","types":["ingress"]}}"#),
    }
}

fn decoded(path: usize, version: Version) -> Update {
    let labels = &mut Interner::new();
    match v1::decode_text(PATHS[path], Some(&text(path, version)), labels) {
        Ok(Decoded::Update(update)) => update,
        other => panic!("{other:?}"),
    }
}

/// Reports whether an update is the denial in place of a policy without a last valid version.
fn denies(update: &Update) -> bool {
    matches!(update, Update::Policy(_, Some(policy)) if policy.inbound.iter().all(|rule| rule.action == tortie_model::RuleAction::Deny)
        && !policy.inbound.is_empty())
}

#[derive(Clone, Debug)]
enum Step {
    /// The server's object changes or is deleted.
    Edit { path: usize, version: Option<Version> },
    /// The server sends the pending changes.
    Tell,
    /// The connection is lost.
    Disconnect,
    /// The client reconnects to the same server, which sends the missed changes.
    Resume,
    /// The client connects to a server that sends all objects, but the connection is lost after
    /// this many of them.
    Resync { broken_after: Option<usize> },
}

fn step() -> impl Strategy<Value = Step> {
    let edit =
        (0..PATHS.len(), prop::option::weighted(0.75, 0u8..4)).prop_map(|(path, version)| Step::Edit { path, version });
    prop_oneof![
        6 => edit,
        4 => Just(Step::Tell),
        2 => Just(Step::Disconnect),
        2 => Just(Step::Resume),
        2 => prop::option::weighted(0.3, 0usize..3).prop_map(|broken_after| Step::Resync { broken_after }),
    ]
}

/// Server, and the expected state of the client.
#[derive(Default)]
struct Model {
    server: BTreeMap<usize, Version>,
    /// Changes that the client has not received.
    unsent: BTreeSet<usize>,
    connected: bool,
    /// Whether the client has received all objects once, and so has a position from which to
    /// resume.
    has_place: bool,
    /// Last readable versions of the objects that exist for the client.
    readable: BTreeMap<usize, Version>,
    /// Versions in force at the client; version 0 is a denial.
    has: BTreeMap<usize, Version>,
    /// Objects received in a resync that has not ended.
    resync: Option<BTreeSet<usize>>,
    /// Objects whose last received version is unreadable.
    unreadable: BTreeSet<usize>,
}

impl Model {
    fn receive(&mut self, path: usize) {
        self.unsent.remove(&path);
        self.unreadable.remove(&path);
        if let Some(received) = &mut self.resync {
            received.insert(path);
        }
        match self.server.get(&path) {
            None => {
                self.readable.remove(&path);
                self.has.remove(&path);
            }
            Some(0) => {
                self.unreadable.insert(path);
                match self.readable.get(&path) {
                    Some(version) => drop(self.has.insert(path, *version)),
                    None if path >= 2 => drop(self.has.insert(path, 0)),
                    None => drop(self.has.remove(&path)),
                }
            }
            Some(version) => {
                self.readable.insert(path, *version);
                self.has.insert(path, *version);
            }
        }
    }

    fn resync_ends(&mut self) {
        let Some(received) = self.resync.take() else { return };
        self.readable.retain(|path, _| received.contains(path));
        self.has.retain(|path, _| received.contains(path));
        self.unreadable.retain(|path| received.contains(path));
    }
}

/// The consumer behind the client.
struct Consumer {
    events: Events,
    values: BTreeMap<Key, Update>,
    problems: BTreeMap<String, Fallback>,
}

impl Consumer {
    fn drain(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Updates { updates, .. } => {
                    for update in updates {
                        update.apply_to(&mut self.values);
                    }
                }
                Event::Problems(problems) => {
                    self.problems = problems.into_iter().map(|problem| (problem.subject, problem.fallback)).collect();
                }
                _ => {}
            }
        }
    }

    fn check(&mut self, model: &Model) -> Result<(), TestCaseError> {
        self.drain();
        let expected: BTreeMap<Key, Option<Update>> = model
            .has
            .iter()
            .map(|(path, version)| match version {
                0 => (decoded(*path, 1).key(), None),
                version => (decoded(*path, *version).key(), Some(decoded(*path, *version))),
            })
            .collect();
        prop_assert_eq!(self.values.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (key, value) in &self.values {
            match &expected[key] {
                Some(expected) => prop_assert_eq!(value, expected),
                None => prop_assert!(denies(value), "{:?}", value),
            }
        }
        if model.resync.is_none() {
            let problems: BTreeMap<String, Fallback> = model
                .unreadable
                .iter()
                .map(|path| {
                    let fallback = match (model.readable.contains_key(path), path) {
                        (true, _) => Fallback::LastGood,
                        (false, 0 | 1) => Fallback::Nothing,
                        (false, _) => Fallback::Denied,
                    };
                    (PATHS[*path].to_owned(), fallback)
                })
                .collect();
            prop_assert_eq!(&self.problems, &problems);
        }
        Ok(())
    }
}

fn batch(model: &Model, paths: &[usize], sequence: Option<u64>) -> Batch {
    let entries = paths.iter().map(|path| WireEntry {
        path: PATHS[*path].into(),
        value: model.server.get(path).map(|version| Bytes::from(text(*path, *version))),
        ..WireEntry::default()
    });
    let status = WireStatus::InSync.into();
    Batch { entries: entries.collect(), own: false, settled: sequence.map(|sequence| Settled { sequence, status }) }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_client_knows_sent_objects_and_removes_deleted_ones(steps in prop::collection::vec(step(), 0..50)) {
        let (feed, watching) = channel();
        let mut view = View::new(&feed, None);
        let mut consumer =
            Consumer { events: watching.events, values: BTreeMap::new(), problems: BTreeMap::new() };
        let mut model = Model::default();
        let mut sequence = 0;
        let end = [Step::Resync { broken_after: None }];
        for step in steps.into_iter().chain(end) {
            sequence += 1;
            match step {
                Step::Edit { path, version } => {
                    match version {
                        Some(version) => drop(model.server.insert(path, version)),
                        None => drop(model.server.remove(&path)),
                    }
                    model.unsent.insert(path);
                }
                Step::Disconnect => model.connected = false,
                Step::Tell | Step::Resume => {
                    model.connected |= matches!(step, Step::Resume) && model.has_place;
                    prop_assert_eq!(view.resume_token().is_some(), model.has_place);
                    if !model.connected {
                        continue;
                    }
                    let paths: Vec<usize> = model.unsent.iter().copied().collect();
                    view.batch(batch(&model, &paths, Some(sequence)), 1).unwrap();
                    paths.into_iter().for_each(|path| model.receive(path));
                    consumer.check(&model)?;
                }
                Step::Resync { broken_after } => {
                    view.begin().unwrap();
                    (model.connected, model.has_place, model.resync) = (true, false, Some(BTreeSet::new()));
                    let all: Vec<usize> = model.server.keys().copied().collect();
                    let (paths, broken) = match broken_after {
                        Some(count) => (&all[..count.min(all.len())], true),
                        None => (&all[..], false),
                    };
                    view.batch(batch(&model, paths, (!broken).then_some(sequence)), 1).unwrap();
                    paths.iter().for_each(|path| model.receive(*path));
                    if broken {
                        (model.connected, model.unsent) = (false, BTreeSet::new());
                    } else {
                        (model.has_place, model.unsent) = (true, BTreeSet::new());
                        model.resync_ends();
                    }
                    consumer.check(&model)?;
                }
            }
        }
        // No record of a deleted object remains.
        prop_assert_eq!(view.remembered(), model.readable.len() + model.unreadable.len());
    }
}

#[test]
fn an_object_deleted_meanwhile_does_not_return_if_unreadable() {
    let (feed, watching) = channel();
    let mut view = View::new(&feed, None);
    let mut consumer = Consumer { events: watching.events, values: BTreeMap::new(), problems: BTreeMap::new() };
    let mut model = Model::default();
    let mut resync = |model: &mut Model| {
        view.begin().unwrap();
        let all: Vec<usize> = model.server.keys().copied().collect();
        view.batch(batch(model, &all, Some(1)), 1).unwrap();
        consumer.drain();
        consumer.values.len()
    };
    model.server.insert(0, 1);
    assert_eq!(resync(&mut model), 1);
    model.server.clear();
    assert_eq!(resync(&mut model), 0);
    model.server.insert(0, 0);
    assert_eq!(resync(&mut model), 0);
}
