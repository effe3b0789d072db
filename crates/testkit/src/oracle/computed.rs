//! Relations of endpoints to live migrations, BGP peers and the mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::desired::{ComputedFields, LiveMigrationRole};
use tortie_model::{BgpPeer, Key, LiveMigration, MigrationParty, PeerNodes, Update, WorkloadEndpointKey};
use tortie_selector::Selector;

use super::{Datastore, HOST};

type Texts = BTreeMap<String, String>;

pub(super) const MESH: &str = "projectcalico.org/orchestrator == 'k8s' && \
    (pcns.istio.io/dataplane-mode == 'ambient' && istio.io/dataplane-mode != 'none' || \
    istio.io/dataplane-mode == 'ambient')";

/// Returns the computed fields of an endpoint of this node with these own and inherited labels.
pub(super) fn expected(
    datastore: &Datastore,
    key: &WorkloadEndpointKey,
    labels: &Texts,
    has_mesh: bool,
) -> Option<Box<ComputedFields>> {
    let mut fields = ComputedFields {
        is_istio_ambient: has_mesh && Selector::parse(MESH).unwrap().matches(labels),
        local_bgp_peer: datastore.values().find_map(|update| match update {
            Update::BgpPeer(name, Some(peer)) => {
                let picks = peer.local_workloads.as_ref().is_some_and(|selector| selector.matches(labels));
                (picks && has_peer(datastore, peer)).then(|| Arc::clone(name))
            }
            _ => None,
        }),
        ..ComputedFields::default()
    };
    let migrations: Vec<&Arc<LiveMigration>> = datastore
        .values()
        .filter_map(|update| match update {
            Update::LiveMigration(_, migration) => migration.as_ref(),
            _ => None,
        })
        .collect();
    type Gives<'a> = &'a dyn Fn(&LiveMigration) -> bool;
    let ways: [(LiveMigrationRole, Gives<'_>); 3] = [
        (LiveMigrationRole::Target, &|m| m.target_selector.as_ref().is_some_and(|s| s.matches(labels))),
        (LiveMigrationRole::Target, &|m| m.target.as_ref().is_some_and(|party| is(party, key))),
        (LiveMigrationRole::Source, &|m| m.source.as_ref().is_some_and(|party| is(party, key))),
    ];
    for (role, gives) in ways {
        if let Some(uid) = migrations.iter().filter(|m| gives(m)).map(|m| &m.uid).max() {
            fields.live_migration_role = Some(role);
            fields.live_migration_uid = Arc::clone(uid);
            break;
        }
    }
    (fields != ComputedFields::default()).then(|| Box::new(fields))
}

fn has_peer(datastore: &Datastore, peer: &BgpPeer) -> bool {
    let labels: Texts = match datastore.get(&Key::Node(HOST.into())) {
        Some(Update::Node(_, Some(node))) => node.labels.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        _ => Texts::new(),
    };
    match &peer.nodes {
        PeerNodes::Named(name) => name.as_str() == HOST,
        PeerNodes::Selected(selector) => selector.matches(&labels),
        PeerNodes::Nobody => false,
    }
}

fn is(party: &MigrationParty, key: &WorkloadEndpointKey) -> bool {
    (&*party.orchestrator == "k8s" || party.host.as_str() == key.host())
        && (&*party.orchestrator, &*party.workload) == (key.orchestrator(), key.workload())
        && (party.endpoint.is_empty() || &*party.endpoint == key.endpoint())
}
