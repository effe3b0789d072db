//! Live migrations, BGP peers and the mesh: random ones, and what endpoints have to do with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use tortie_model::desired::{ComputedFields, LiveMigrationRole};
use tortie_model::{
    BgpPeer, Key, LiveMigration, MigrationParty, NamespacedName, PeerNodes, Update, WorkloadEndpointKey,
};
use tortie_selector::Selector;

use crate::generate::HOST;
use crate::oracle::Datastore;

type Texts = BTreeMap<String, String>;

pub(crate) const MESH: &str = "projectcalico.org/orchestrator == 'k8s' && \
    (pcns.istio.io/dataplane-mode == 'ambient' && istio.io/dataplane-mode != 'none' || \
    istio.io/dataplane-mode == 'ambient')";

fn selector() -> impl Strategy<Value = Selector> {
    select(vec!["all()", "a == 'x'", "has(b)", "!has(c)", "b in {'x', 'y'}"])
        .prop_map(|text| Selector::parse(text).unwrap())
}

fn party() -> impl Strategy<Value = Option<MigrationParty>> {
    let hosts = select(vec![HOST, "there", ""]);
    let names = (select(vec!["k8s", "openstack"]), 0..3, select(vec!["eth0", "eth1", ""]));
    let party = (hosts, names).prop_map(|(host, (orchestrator, n, endpoint))| MigrationParty {
        host: host.into(),
        orchestrator: orchestrator.into(),
        workload: format!("ns/pod{n}").into(),
        endpoint: endpoint.into(),
    });
    prop::option::weighted(0.6, party)
}

pub(crate) fn migration() -> impl Strategy<Value = Update> {
    let uid = select(vec!["", "1", "2", "10"]);
    let value = (uid, party(), party(), prop::option::weighted(0.4, selector()));
    (0..3, prop::option::weighted(0.8, value)).prop_map(|(n, value)| {
        let migration = value.map(|(uid, source, target, target_selector)| {
            LiveMigration { text: "{}".into(), uid: uid.into(), source, target, target_selector }.into()
        });
        Update::LiveMigration(NamespacedName::new("ns", format!("m{n}")), migration)
    })
}

pub(crate) fn peer() -> impl Strategy<Value = Update> {
    let nodes = prop_oneof![
        select(vec![HOST, "there"]).prop_map(|name| PeerNodes::Named(name.into())),
        selector().prop_map(PeerNodes::Selected),
        Just(PeerNodes::Nobody),
    ];
    let value = (nodes, prop::option::weighted(0.8, selector()));
    (0..3, prop::option::weighted(0.8, value)).prop_map(|(n, value)| {
        let peer = value.map(|(nodes, local_workloads)| BgpPeer { text: "{}".into(), nodes, local_workloads }.into());
        Update::BgpPeer(format!("peer{n}").into(), peer)
    })
}

/// What an endpoint of this node with these labels has, its own and inherited.
pub(crate) fn expected(
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
