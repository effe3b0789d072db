//! Any objects of a cluster cost the graph messages in proportion to their text, no messages if
//! they are repeated, and leave no state behind.

use tortie_calc::{Graph, GraphConfig};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, Interner, SyncStatus, Update};
use tortie_resources::manifest::{self, Format, Options, Outcome};

/// The text is a YAML file of a directory, for the node `here`.
pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let manifest = manifest::read(&text, Format::Yaml, &Options::default(), &mut Interner::new());
    let updates: Vec<Update> = manifest
        .resources
        .into_iter()
        .filter_map(|resource| match resource.outcome {
            Outcome::Valid(updates) => Some(updates),
            Outcome::Invalid { substitute } => substitute,
            Outcome::Unknown => None,
        })
        .flatten()
        .collect();
    let mut graph = Graph::new(&GraphConfig::new(Hostname::new("here")));
    graph.on_status(SyncStatus::InSync);
    updates.iter().for_each(|update| graph.on_update(update.clone()));
    let cost = flush(&mut graph);
    // A few messages are sent without any object.
    assert!(cost <= text.len() + 64, "{cost} messages of {} bytes", text.len());
    let mut latest = std::collections::BTreeMap::new();
    for update in &updates {
        latest.insert(update.key(), update);
    }
    latest.values().for_each(|update| graph.on_update(Update::clone(update)));
    let mut again = Vec::new();
    graph.flush(&mut again);
    // As in Felix, the graph passes on each update of these.
    again.retain(|update| {
        use DesiredUpdate::{IpPool, Namespace, Service, ServiceAccount};
        !matches!(update, Namespace(..) | ServiceAccount(..) | IpPool(..) | Service(..))
    });
    assert!(again.is_empty(), "repeated updates cost nothing: {again:?}");
    latest.into_keys().for_each(|key| graph.on_update(Update::delete(key)));
    flush(&mut graph);
    assert!(graph.is_empty(), "something is left");
}

/// Returns the cost of a flush in messages.
fn flush(graph: &mut Graph) -> usize {
    let mut out = Vec::new();
    graph.flush(&mut out);
    out.len()
}
