//! A datastore, what should be in it, and who listens.

use std::time::Duration;

use tortie_datastore::Objects;
use tortie_model::Interner;
use tortie_resources::manifest::{ObjectId, Options, UnknownFields, read_object};

use super::consumer::{Consumer, State};
use super::{Edit, SourceUnderTest};

/// How long it is listened for what should not come.
pub(super) const QUIET: Duration = Duration::from_millis(100);

pub(super) struct World<'s> {
    pub(super) datastore: &'s mut dyn SourceUnderTest,
    /// What follows from all edits, as they were made.
    model: Objects,
    /// What exists, as it is written.
    written: Vec<(ObjectId, Edit)>,
    labels: Interner,
    consumer: Option<Consumer>,
}

impl<'s> World<'s> {
    pub(super) fn new(datastore: &'s mut dyn SourceUnderTest) -> Self {
        Self { datastore, model: Objects::new(), written: Vec::new(), labels: Interner::new(), consumer: None }
    }

    /// Changes the datastore.
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

    /// Lets a source that knows nothing begin to read; another that runs ends.
    pub(super) fn start(&mut self) {
        self.end();
        // It cannot know what was good before.
        self.model = Objects::new();
        for (_, edit) in &self.written {
            apply(edit, &mut self.model, &mut self.labels);
        }
        self.consumer = Some(Consumer::new(self.datastore.source()));
    }

    pub(super) fn consumer(&mut self) -> &mut Consumer {
        self.consumer.as_mut().expect("a case starts a source before it listens")
    }

    /// Waits until the source has told everything, `times` since it was started or last asked.
    pub(super) fn in_sync(&mut self, times: usize) {
        self.consumer().until("everything is told", |consumer| consumer.in_sync >= times);
        self.converged();
    }

    /// Waits until the source has told what follows from the edits, and sees to it that it then stays so. Nothing that is
    /// there before and after may vanish in between.
    pub(super) fn converged(&mut self) {
        let wanted = self.wanted();
        let Some(consumer) = &mut self.consumer else { panic!("a case starts a source before it listens") };
        let datastore = &*self.datastore;
        let ours = |state: &State| -> State {
            let ours = state.iter().filter(|(key, _)| !datastore.is_background(key));
            ours.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let before = ours(&consumer.known);
        let difference = |consumer: &Consumer| {
            let known = ours(&consumer.known);
            let missing: Vec<_> = wanted.iter().filter(|(key, value)| known.get(key) != Some(value)).collect();
            let extra: Vec<_> = known.iter().filter(|(key, value)| wanted.get(key) != Some(value)).collect();
            format!("what should be there: {missing:#?}\nwhat is there instead: {extra:#?}\n{consumer:?}")
        };
        consumer.until_or(difference, |consumer| consumer.in_sync > 0 && ours(&consumer.known) == wanted);
        consumer.listen(QUIET);
        assert_eq!(ours(&consumer.known), wanted, "what was there already did not stay");
        let kept = !consumer.known_may_vanish;
        let vanished =
            consumer.deleted.iter().filter(|_| kept).find(|key| before.contains_key(key) && wanted.contains_key(key));
        assert_eq!(vanished, None, "vanished in between");
        consumer.forget_deletions();
    }

    /// As [`World::converged`], after edits that delete and create the same objects.
    pub(super) fn churned(&mut self) {
        self.consumer().known_may_vanish = true;
        self.converged();
        self.consumer().known_may_vanish = false;
    }

    fn wanted(&self) -> State {
        let all = self.model.snapshot().into_iter().map(|update| (update.key(), update));
        all.filter(|(key, _)| !self.datastore.is_background(key)).collect()
    }

    /// Listens for a while in which nothing may be deleted, least of all because the datastore is away.
    pub(super) fn nothing_is_deleted(&mut self, time: Duration) {
        let consumer = self.consumer();
        consumer.forget_deletions();
        consumer.listen(time);
        assert!(consumer.deleted.is_empty(), "deleted although it is there: {:?}", consumer.deleted);
    }

    /// Ends the source that runs.
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
            model.set(id, resource.expect("what is written is JSON"));
        }
        Edit::Delete(id) => model.remove(id),
    }
}
