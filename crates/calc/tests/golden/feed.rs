//! A graph that is fed with the entries of a recording.

use serde_json::Value as Json;
use tortie_calc::{AddressClaims, Graph, GraphConfig};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Interner, Key, SyncStatus, Update};
use tortie_protocol::to_json;
use tortie_resources::v1::{self, Decoded};
use tortie_testkit::mock::MockDataplane;

use crate::replay::State;

/// Treatment of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateOutcome {
    Accepted,
    Rejected,
    /// The model has no such path.
    Ignored,
}

/// The graph, a dataplane that checks every reference, and the replayed state in the form of the
/// recordings.
pub(crate) struct Feed {
    graph: Graph,
    labels: Interner,
    pub(crate) dataplane: MockDataplane,
    pub(crate) state: State,
    /// Whether the last flush reported the datastore as not ready.
    pub(crate) not_ready: bool,
}

/// Reports whether recorded messages declare the datastore not ready.
pub(crate) fn reports_not_ready(messages: &Json) -> bool {
    messages.as_array().unwrap().iter().any(|message| message["type"] == "calc.DatastoreNotReady")
}

impl Feed {
    pub(crate) fn new(config: &GraphConfig) -> Self {
        Self {
            graph: Graph::new(&GraphConfig { address_claims: AddressClaims::Any, ..config.clone() }),
            labels: Interner::new(),
            dataplane: MockDataplane::default(),
            state: State::default(),
            not_ready: false,
        }
    }

    /// Passes an entry to the graph. An invalid policy denies in Tortie, but Felix ignores it; so
    /// the graph gets its deletion.
    pub(crate) fn update(&mut self, path: &str, value: &Json) -> UpdateOutcome {
        let (update, decoded) = match v1::decode(path, Some(value), &mut self.labels) {
            Ok(Decoded::Ignored) => return UpdateOutcome::Ignored,
            Ok(Decoded::Update(update)) => (update, true),
            Err(error) => (error.deletion(), false),
        };
        let key = update.key();
        self.graph.on_update(update);
        if decoded && self.graph.take_new_problems().is_empty() {
            return UpdateOutcome::Accepted;
        }
        if matches!(&key, Key::Policy(id) if !id.kind.is_staged()) {
            self.graph.on_update(Update::delete(key));
        }
        UpdateOutcome::Rejected
    }

    /// Reports whether the graph is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.graph.is_empty()
    }

    pub(crate) fn in_sync(&mut self) {
        self.graph.on_status(SyncStatus::InSync);
    }

    /// Flushes, checks the messages, and replays them.
    pub(crate) fn flush(&mut self) {
        let batch = self.flush_batch();
        for update in &batch {
            let Some(Json::Object(envelope)) = to_json(update, 0) else { continue };
            for (kind, message) in &envelope {
                self.state.apply(kind, message);
            }
        }
        self.dataplane.apply_batch(batch);
    }

    /// Flushes and checks the messages, but keeps no state in the form of the recordings.
    pub(crate) fn flush_quickly(&mut self) {
        let batch = self.flush_batch();
        self.dataplane.apply_batch(batch);
    }

    fn flush_batch(&mut self) -> Vec<DesiredUpdate> {
        let mut batch = Vec::new();
        self.graph.flush(&mut batch);
        self.not_ready = batch.contains(&DesiredUpdate::DatastoreNotReady);
        batch
    }
}
