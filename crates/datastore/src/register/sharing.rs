//! Texts that many endpoints have in common, held once.

use std::collections::HashSet;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{ProfileName, Valid, WorkloadEndpoint};
use tortie_resources::manifest::ObjectId;

type Set<T> = HashSet<T, RandomState>;

/// How many entries there are before it is looked which are in use.
const FEW: usize = 256;

/// Namespaces, names of ports, and lists of profiles that are in use.
#[derive(Debug)]
pub(super) struct Sharing {
    texts: Set<Arc<str>>,
    profiles: Set<Arc<[ProfileName]>>,
    sweep_at: usize,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { texts: Set::default(), profiles: Set::default(), sweep_at: FEW }
    }
}

impl Sharing {
    /// The same identity, its namespace shared.
    pub(super) fn id(&mut self, id: &ObjectId) -> ObjectId {
        ObjectId { name: Arc::clone(&id.name), namespace: self.text(&id.namespace), kind: id.kind }
    }

    /// Shares what an endpoint has in common with others; `elsewhere` reduces it to what other nodes than its own need.
    pub(super) fn endpoint(&mut self, endpoint: Valid<WorkloadEndpoint>, elsewhere: bool) -> Valid<WorkloadEndpoint> {
        self.sweep();
        let endpoint = if elsewhere { endpoint.for_other_node() } else { endpoint };
        let Self { profiles, texts, .. } = self;
        endpoint.sharing(|list| shared(profiles, list), |name| shared(texts, name))
    }

    fn text(&mut self, text: &Arc<str>) -> Arc<str> {
        self.sweep();
        shared(&mut self.texts, text)
    }

    /// Forgets what nobody uses any more, now and then.
    fn sweep(&mut self) {
        if self.texts.len() + self.profiles.len() < self.sweep_at {
            return;
        }
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.profiles.retain(|profiles| Arc::strong_count(profiles) > 1);
        self.sweep_at = FEW.max(2 * (self.texts.len() + self.profiles.len()));
    }
}

fn shared<T: ?Sized + Eq + std::hash::Hash>(set: &mut Set<Arc<T>>, value: &Arc<T>) -> Arc<T> {
    if let Some(known) = set.get(&**value) {
        return Arc::clone(known);
    }
    set.insert(Arc::clone(value));
    Arc::clone(value)
}
