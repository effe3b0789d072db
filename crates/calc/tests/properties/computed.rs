//! Random live migrations and BGP peers.

use proptest::prelude::*;
use proptest::sample::select;
use tortie_model::{BgpPeer, LiveMigration, MigrationParty, NamespacedName, PeerNodes, Update};
use tortie_selector::Selector;

use crate::generate::HOST;

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
