//! Fields of passed-on objects that the calculation graph needs.

use std::sync::Arc;

use tortie_model::{BgpPeer, Hostname, LiveMigration, MigrationParty, PeerNodes};
use tortie_selector::Selector;

use crate::tree::{Map, Sink};

fn part<'n, 'c>(map: &'c Map<'n, '_>, name: &'c str, sink: &mut Sink) -> Option<Map<'n, 'c>> {
    map.field(name)?.map(sink)
}

/// Reads a `LiveMigration` with this text (`libcalico-go/lib/apis/internalapi/livemigration.go`).
pub(super) fn live_migration(map: Map<'_, '_>, text: Arc<str>, sink: &mut Sink) -> LiveMigration {
    let uid = part(&map, "metadata", sink).map_or("", |metadata| metadata.text_or_empty("uid", sink)).into();
    let mut migration = LiveMigration { text, uid, source: None, target: None, target_selector: None };
    let Some(spec) = part(&map, "spec", sink) else { return migration };
    if let Some(source) = part(&spec, "source", sink) {
        let kind = if source.field("workload").is_some() { "workload" } else { "workloadEndpoint" };
        migration.source = party(&source, kind, sink);
    }
    if let Some(target) = part(&spec, "target", sink) {
        migration.target = party(&target, "workloadEndpoint", sink);
        migration.target_selector = selector(&target, "selector", sink);
    }
    migration
}

/// Reads a party; one without any name counts as absent.
fn party(map: &Map<'_, '_>, name: &str, sink: &mut Sink) -> Option<MigrationParty> {
    let map = part(map, name, sink)?;
    let mut text = |field| map.text_or_empty(field, sink);
    let party = MigrationParty {
        host: Hostname::new(text("hostname")),
        orchestrator: text("orchestratorID").into(),
        workload: text("workloadID").into(),
        endpoint: if name == "workload" { "".into() } else { text("endpointID").into() },
    };
    (!party.workload.is_empty()).then_some(party)
}

/// Returns a pod as the source of a migration.
pub(super) fn pod(namespace: &str, name: &str) -> MigrationParty {
    MigrationParty {
        host: Hostname::new(""),
        orchestrator: "k8s".into(),
        workload: format!("{namespace}/{name}").into(),
        endpoint: "".into(),
    }
}

/// Reads a `BGPPeer` with this text.
pub(super) fn bgp_peer(map: Map<'_, '_>, text: Arc<str>, sink: &mut Sink) -> BgpPeer {
    part(&map, "metadata", sink);
    let spec = part(&map, "spec", sink);
    let node = spec.as_ref().map_or("", |spec| spec.text_or_empty("node", sink));
    let node_selector = spec.as_ref().map_or("", |spec| spec.text_or_empty("nodeSelector", sink));
    let nodes = if !node.is_empty() {
        PeerNodes::Named(Hostname::new(node))
    } else if node_selector.is_empty() {
        PeerNodes::Selected(Selector::all())
    } else {
        let selector = spec.as_ref().and_then(|spec| selector(spec, "nodeSelector", sink));
        selector.map_or(PeerNodes::Nobody, PeerNodes::Selected)
    };
    let local_workloads = spec.as_ref().and_then(|spec| selector(spec, "localWorkloadSelector", sink));
    BgpPeer { text, nodes, local_workloads }
}

/// Reads a selector. An empty or unreadable one selects nothing; the object is passed on
/// nevertheless.
fn selector(map: &Map<'_, '_>, name: &str, sink: &mut Sink) -> Option<Selector> {
    let field = map.field(name)?;
    let text = field.text(sink).filter(|text| !text.is_empty())?;
    match sink.selectors.parse(text) {
        Ok(selector) => Some(selector),
        Err(error) => {
            field.warn(sink, format!("`{text}` is not a selector, and selects nothing: {error}"));
            None
        }
    }
}
