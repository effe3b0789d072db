//! Random histories of a directory against a model, and against a directory that is read afresh.

use proptest::prelude::*;
use proptest::sample::Index;
use tortie_model::Key;

use super::*;
use crate::built_in::COUNT as BUILT_IN;

/// Content of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Document {
    /// Version `version` of an object.
    Good { object: usize, version: usize },
    /// An object that is not valid.
    Bad { object: usize },
    /// The policy with a selector that cannot be read.
    Blind,
    /// Something invalid without a name.
    Nameless,
    /// No document at all.
    Garbage,
}

use Document::{Bad, Blind, Garbage, Good, Nameless};

const POLICY: usize = 0;
const OBJECTS: usize = 6;
const VERSIONS: usize = 2;

/// Returns the manifest of an object. Three objects are pools, two of which claim one key; the
/// third changes its own.
fn manifest(object: usize, version: usize) -> String {
    let pool = |name: &str, cidr: &str| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {{name: '{name}'}}, spec: {{cidr: {cidr}, \
             natOutgoing: {}}}}}",
            version == 1
        )
    };
    match object {
        POLICY => policy("p", ["has(a)", "has(b)"][version]),
        1 => pool("x", "10.0.0.0/16"),
        2 => pool("y", "10.0.0.0/16"),
        3 => pool("z", ["10.0.0.0/16", "10.1.0.0/16"][version]),
        4 => format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{v: v{version}}}}}}}"),
        // A warning in each version.
        _ => format!(
            "{{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {{name: t, oops: 1}}, spec: {{order: {version}}}}}"
        ),
    }
}

impl Document {
    fn text(self) -> String {
        match self {
            Good { object, version } => manifest(object, version),
            Bad { object: POLICY } => policy("p", "has(a)").replace("Ingress", "Sideways"),
            Bad { object } => manifest(object, 0).replace("metadata: {", "metadata: {labels: 1, "),
            Blind => policy("p", "has("),
            Nameless => "{apiVersion: v1, kind: Namespace, metadata: {}}".to_owned(),
            Garbage => "{]".to_owned(),
        }
    }

    fn object(self) -> Option<usize> {
        match self {
            Good { object, .. } | Bad { object } => Some(object),
            Blind => Some(POLICY),
            Nameless | Garbage => None,
        }
    }
}

/// Change of a file.
#[derive(Clone, Debug)]
enum Edit {
    Write(usize, Vec<Document>),
    Remove(usize),
    Deny(usize),
    /// A document moves from the first file to the second.
    Move(usize, usize, Index),
}

const FILES: usize = 4;

fn path(file: usize) -> String {
    format!("{file}.yaml")
}

/// Content of a file; `None` if it cannot be read.
type Contents = Option<Vec<Document>>;

/// The rules of [`DirState`] as documented, implemented without regard to speed and incremental
/// updates.
#[derive(Clone, Debug, Default)]
struct Model {
    files: BTreeMap<usize, Contents>,
    /// Documents that partly unreadable files may still define.
    stale: BTreeMap<usize, BTreeMap<usize, Vec<Document>>>,
    last_good: BTreeMap<usize, Document>,
    denied: BTreeSet<usize>,
}

impl Model {
    /// Returns the definitions of each object in a file, readable or stale: current ones first.
    fn defined(&self, file: usize) -> BTreeMap<usize, Vec<Document>> {
        let mut defined = self.readable(file);
        for (object, stale) in self.stale.get(&file).into_iter().flatten() {
            defined.entry(*object).or_default().extend(stale);
        }
        defined
    }

    fn readable(&self, file: usize) -> BTreeMap<usize, Vec<Document>> {
        let mut readable: BTreeMap<usize, Vec<Document>> = BTreeMap::new();
        for document in self.files.get(&file).into_iter().flatten().flatten() {
            if let Some(object) = document.object() {
                readable.entry(object).or_default().push(*document);
            }
        }
        readable
    }

    fn set(&mut self, file: usize, contents: Option<Contents>) {
        let before = self.defined(file);
        self.stale.remove(&file);
        let Some(contents) = contents else {
            self.files.remove(&file);
            return;
        };
        let is_partial = contents.as_ref().is_none_or(|all| all.iter().any(|document| document.object().is_none()));
        self.files.insert(file, contents);
        let now = self.readable(file);
        let mut stale = BTreeMap::new();
        for (object, earlier) in before {
            match now.get(&object) {
                None if is_partial => drop(stale.insert(object, earlier)),
                Some(now) if object == POLICY && (is_partial || now.contains(&Blind)) => {
                    drop(stale.insert(object, Self::missing(earlier, now)));
                }
                _ => {}
            }
        }
        self.stale.insert(file, stale);
    }

    /// As many of the earlier definitions as are missing now, and differ from those of now: the
    /// last ones.
    fn missing(mut earlier: Vec<Document>, now: &[Document]) -> Vec<Document> {
        earlier.retain(|document| *document != Blind);
        let number = earlier.len().saturating_sub(now.iter().filter(|document| **document != Blind).count());
        earlier.retain(|document| !now.contains(document));
        earlier.split_off(earlier.len() - number.min(earlier.len()))
    }

    /// Returns the definitions of an object in all files, the one in effect first.
    fn definitions(&self, object: usize) -> Vec<Document> {
        let files = |of: &dyn Fn(usize) -> BTreeMap<usize, Vec<Document>>| {
            (0..FILES).filter(|file| of(*file).contains_key(&object)).collect::<Vec<_>>()
        };
        let all = files(&|file| self.defined(file));
        let first = files(&|file| self.readable(file)).first().or(all.first()).copied();
        let of = |file: usize| self.defined(file).remove(&object).unwrap_or_default();
        let counts = first.and_then(|file| of(file).first().copied());
        let ignored = all.into_iter().flat_map(|file| of(file).split_off(usize::from(Some(file) == first)));
        counts.into_iter().chain(ignored).collect()
    }

    fn definition(&self, object: usize) -> Option<Document> {
        self.definitions(object).first().copied()
    }

    /// Returns the selectors of the denials for ignored definitions of the policy that differ from
    /// the one in effect and from the one in force.
    fn closed(&self) -> Vec<&'static str> {
        let definitions = self.definitions(POLICY);
        let denied = self.denied.contains(&POLICY).then_some(Bad { object: POLICY });
        let in_force = self.last_good.get(&POLICY).copied().or(denied);
        let is_lost =
            |document: &&Document| **document != definitions[0] && Some(**document) != in_force && **document != Blind;
        let selector = |document: &Document| match document {
            Good { version: 1, .. } => "has(b)",
            _ => "has(a)",
        };
        definitions.iter().filter(is_lost).map(selector).collect()
    }

    fn take_updates(&mut self) {
        for object in 0..OBJECTS {
            match self.definition(object) {
                None => {
                    self.last_good.remove(&object);
                    self.denied.remove(&object);
                }
                Some(good @ Good { .. }) => {
                    self.last_good.insert(object, good);
                }
                Some(Bad { object: POLICY }) => {
                    self.denied.insert(POLICY);
                }
                Some(_) => {}
            }
        }
    }

    /// Returns the objects in force: last valid versions, and denials for objects that never were
    /// valid.
    fn snapshot(&self) -> Vec<Update> {
        let mut state = DirState::new(Options::default());
        for object in 0..OBJECTS {
            let denied = self.denied.contains(&object).then_some(Bad { object });
            if let Some(document) = self.last_good.get(&object).copied().or(denied) {
                state.stage_file(path(object).as_ref(), Some(FileContent::Text(&document.text())));
            }
        }
        state.take_updates();
        state.snapshot()
    }
}

fn stage(state: &mut DirState, file: usize, contents: Option<&Contents>) {
    let text = contents.and_then(Option::as_ref).map(|documents| {
        let texts: Vec<String> = documents.iter().map(|document| document.text()).collect();
        texts.join("\n---\n")
    });
    let content = match (contents, &text) {
        (None, _) => None,
        (Some(_), Some(text)) => Some(FileContent::Text(text)),
        (Some(_), None) => Some(FileContent::Unreadable("denied")),
    };
    state.stage_file(path(file).as_ref(), content);
}

impl Edit {
    /// Returns the changed files and their new contents.
    fn contents(&self, files: &BTreeMap<usize, Contents>) -> Vec<(usize, Option<Contents>)> {
        match self {
            Self::Write(file, documents) => vec![(*file, Some(Some(documents.clone())))],
            Self::Remove(file) => vec![(*file, None)],
            Self::Deny(file) => vec![(*file, Some(None))],
            Self::Move(from, to, which) => {
                let documents = |file: &usize| files.get(file).cloned().flatten().unwrap_or_default();
                let (mut source, mut target) = (documents(from), documents(to));
                if from == to || source.is_empty() {
                    return Vec::new();
                }
                target.push(source.remove(which.index(source.len())));
                vec![(*from, Some(Some(source))), (*to, Some(Some(target)))]
            }
        }
    }
}

fn good() -> impl Strategy<Value = Document> {
    (0..OBJECTS, 0..VERSIONS).prop_map(|(object, version)| Good { object, version })
}

fn document() -> impl Strategy<Value = Document> {
    prop_oneof![
        8 => good(),
        2 => (0..OBJECTS).prop_map(|object| Bad { object }),
        1 => Just(Bad { object: POLICY }),
        1 => Just(Blind),
        1 => Just(Nameless),
        1 => Just(Garbage),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    let documents = prop::collection::vec(document(), 0..4);
    prop_oneof![
        6 => (0..FILES, documents).prop_map(|(file, documents)| Edit::Write(file, documents)),
        2 => (0..FILES).prop_map(Edit::Remove),
        1 => (0..FILES).prop_map(Edit::Deny),
        3 => (0..FILES, 0..FILES, any::<Index>()).prop_map(|(from, to, which)| Edit::Move(from, to, which)),
    ]
}

/// Applies updates to the state of a consumer; every update must change something.
fn take(updates: Vec<Update>, known: &mut BTreeMap<Key, Update>) {
    for update in updates {
        let (key, exists) = (update.key(), update.exists());
        let old = update.apply_to(known);
        assert!(old.is_some() || exists, "a deletion of {key:?}, which is not there");
        assert!(!exists || old.as_ref() != known.get(&key), "an update of {key:?} that changes nothing");
    }
}

fn snapshot_of(known: BTreeMap<Key, Update>) -> Vec<Update> {
    known.into_values().collect()
}

/// Takes the denials for ignored definitions out of a snapshot, and returns their selectors in
/// order.
fn without_denials(snapshot: Vec<Update>) -> (Vec<String>, Vec<Update>) {
    let mut closed = Vec::new();
    let others = snapshot.into_iter().filter(|update| match update {
        Update::Policy(id, Some(policy)) if id.name.starts_with("tortie-duplicate.") => {
            assert!(policy.inbound.iter().all(|rule| rule.action == tortie_model::RuleAction::Deny));
            closed.push(policy.selector.text().to_owned());
            false
        }
        _ => true,
    });
    let others = others.collect();
    (closed, others)
}

/// Returns the problems that do not depend on earlier states. Fallbacks depend on them, and so do
/// conflicts for a key.
fn timeless(state: &DirState) -> Vec<InputProblem> {
    let timeless = state.problems().filter(|problem| !problem.problem.message.starts_with("stands for the same as"));
    timeless.map(|problem| InputProblem { fallback: Fallback::NotNeeded, ..problem }).collect()
}

fn read_afresh(files: &BTreeMap<usize, Contents>) -> DirState {
    let mut fresh = DirState::new(Options::default());
    for (file, contents) in files {
        stage(&mut fresh, *file, Some(contents));
    }
    fresh.take_updates();
    fresh
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn any_history_matches_the_model_and_a_fresh_reading(
        batches in prop::collection::vec(prop::collection::vec(edit(), 1..4), 1..10),
        last in prop::collection::vec(prop::option::of(prop::collection::vec(good(), 0..4)), FILES),
    ) {
        let mut model = Model::default();
        let mut state = DirState::new(Options::default());
        let mut known = BTreeMap::new();
        for batch in &batches {
            for edit in batch {
                for (file, contents) in edit.contents(&model.files) {
                    stage(&mut state, file, contents.as_ref());
                    model.set(file, contents);
                }
            }
            model.take_updates();
            take(state.take_updates(), &mut known);
            let (closed, snapshot) = without_denials(state.snapshot());
            prop_assert_eq!(snapshot, model.snapshot());
            prop_assert_eq!(closed, model.closed());
            prop_assert_eq!(state.snapshot(), snapshot_of(known.clone()));
            prop_assert_eq!(timeless(&state), timeless(&read_afresh(&model.files)));
        }
        // Once everything is valid, no earlier state is left.
        let mut files = BTreeMap::new();
        for (file, documents) in last.into_iter().enumerate() {
            let contents = documents.map(Some);
            stage(&mut state, file, contents.as_ref());
            files.extend(contents.map(|contents| (file, contents)));
        }
        take(state.take_updates(), &mut known);
        let fresh = read_afresh(&files);
        prop_assert_eq!(state.snapshot(), fresh.snapshot());
        prop_assert_eq!(state.snapshot(), snapshot_of(known.clone()));
        prop_assert_eq!(state.problems().collect::<Vec<_>>(), fresh.problems().collect::<Vec<_>>());
        for file in 0..FILES {
            stage(&mut state, file, None);
        }
        take(state.take_updates(), &mut known);
        prop_assert!(known.len() == BUILT_IN && is_empty(&state));
    }
}

/// The documents are valid or invalid as the model assumes.
#[test]
fn documents_are_good_or_bad_as_meant() {
    let read = |document: Document| {
        let mut state = DirState::new(Options::default());
        state.take_updates();
        let updates = state.set_file("0.yaml".as_ref(), Some(FileContent::Text(&document.text())));
        (updates.len(), state.problems().map(|problem| problem.fallback).collect::<Vec<_>>())
    };
    for object in 0..OBJECTS {
        for version in 0..VERSIONS {
            let (updates, fallbacks) = read(Good { object, version });
            assert!(
                updates > 0 && fallbacks.iter().all(|fallback| *fallback == Fallback::NotNeeded),
                "{object} {version}"
            );
            assert_ne!(manifest(object, version), manifest(object, 1 - version));
        }
        let (updates, fallbacks) = read(Bad { object });
        let fallback = if object == POLICY { Fallback::Denied } else { Fallback::Nothing };
        assert!(fallbacks.contains(&fallback) && (updates > 0) == (object == POLICY), "{object}: {fallbacks:?}");
    }
    for document in [Blind, Nameless, Garbage] {
        assert_eq!(read(document), (0, vec![Fallback::Nothing]));
    }
}
