//! A datastore, its expected contents, and a consumer.

use std::time::Duration;

use tortie_datastore::Objects;
use tortie_model::Interner;
use tortie_resources::manifest::{ObjectId, Options, UnknownFields, read_object};

use super::consumer::{Consumer, State};
use super::{Edit, SourceUnderTest};

/// Time in which no further event may arrive.
pub(super) const QUIET: Duration = Duration::from_millis(100);

pub(super) struct World<'s> {
    pub(super) datastore: &'s mut dyn SourceUnderTest,
    /// Model of the state after all edits.
    model: Objects,
    /// Existing objects, as written.
    written: Vec<(ObjectId, Edit)>,
    labels: Interner,
    consumer: Option<Consumer>,
}

impl<'s> World<'s> {
    pub(super) fn new(datastore: &'s mut dyn SourceUnderTest) -> Self {
        Self { datastore, model: Objects::new(), written: Vec::new(), labels: Interner::new(), consumer: None }
    }

    /// Applies edits to the datastore and the model.
    pub(super) fn edit(&mut self, edits: impl IntoIterator<Item = Edit>) {
        let edits: Vec<Edit> = edits.into_iter().collect();
        for edit in &edits {
            apply(edit, &mut self.model, &mut self.labels);
            let (Edit::Put(id, _) | Edit::Delete(id)) = edit;
            self.written.retain(|(written, _)| written != id);
            if matches!(edit, Edit::Put(..)) {
                self.written.push((id.clone(), edit.clone()));
            }
        }
        self.datastore.edit(&edits);
    }

    pub(super) fn exists(&self, id: &ObjectId) -> bool {
        self.written.iter().any(|(written, _)| written == id)
    }

    /// Starts a new source; a running one ends first.
    pub(super) fn start(&mut self) {
        self.end();
        // A new source has no earlier valid versions.
        self.model = Objects::new();
        for (_, edit) in &self.written {
            apply(edit, &mut self.model, &mut self.labels);
        }
        self.consumer = Some(Consumer::new(self.datastore.source()));
    }

    pub(super) fn consumer(&mut self) -> &mut Consumer {
        self.consumer.as_mut().expect("a case starts a source before it listens")
    }

    /// Waits until the source has completed `times` resyncs since its start.
    pub(super) fn in_sync(&mut self, times: usize) {
        self.consumer().until("the resync is complete", |consumer| consumer.in_sync >= times);
        self.converged();
    }

    /// Waits until the source has sent the state that follows from the edits, and checks that it
    /// stays so. No object that exists before and after may be deleted in between.
    pub(super) fn converged(&mut self) {
        let expected = self.expected();
        let Some(consumer) = &mut self.consumer else { panic!("a case starts a source before it listens") };
        let datastore = &*self.datastore;
        let ours = |state: &State| -> State {
            let ours = state.iter().filter(|(key, _)| !datastore.is_background(key));
            ours.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let before = ours(&consumer.state);
        let difference = |consumer: &Consumer| {
            let state = ours(&consumer.state);
            let missing: Vec<_> = expected.iter().filter(|(key, value)| state.get(key) != Some(value)).collect();
            let extra: Vec<_> = state.iter().filter(|(key, value)| expected.get(key) != Some(value)).collect();
            format!("missing: {missing:#?}\nunexpected: {extra:#?}\n{consumer:?}")
        };
        consumer.until_or(difference, |consumer| consumer.in_sync > 0 && ours(&consumer.state) == expected);
        consumer.listen(QUIET);
        assert_eq!(ours(&consumer.state), expected, "the state did not stay");
        let must_stay = !consumer.allows_recreation;
        let vanished = consumer
            .deleted
            .iter()
            .filter(|_| must_stay)
            .find(|key| before.contains_key(key) && expected.contains_key(key));
        assert_eq!(vanished, None, "vanished in between");
        consumer.clear_deletions();
    }

    /// As [`World::converged`], after edits that delete and create the same objects.
    pub(super) fn churned(&mut self) {
        self.consumer().allows_recreation = true;
        self.converged();
        self.consumer().allows_recreation = false;
    }

    fn expected(&self) -> State {
        let all = self.model.snapshot().into_iter().map(|update| (update.key(), update));
        all.filter(|(key, _)| !self.datastore.is_background(key)).collect()
    }

    /// Checks that nothing is deleted for a while, in particular not because the datastore is
    /// unavailable.
    pub(super) fn nothing_is_deleted(&mut self, time: Duration) {
        let consumer = self.consumer();
        consumer.clear_deletions();
        consumer.listen(time);
        assert!(consumer.deleted.is_empty(), "deleted although it exists: {:?}", consumer.deleted);
    }

    /// Ends the running source.
    pub(super) fn end(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            consumer.end();
        }
    }
}

fn apply(edit: &Edit, model: &mut Objects, labels: &mut Interner) {
    let options = Options { unknown_fields: UnknownFields::Ignore, ..Options::default() };
    match edit {
        Edit::Put(id, object) => {
            let resource = read_object(&object.to_string(), id.kind, &options, labels);
            model.set(id, resource.expect("the edits are JSON"));
        }
        Edit::Delete(id) => model.remove(id),
    }
}
