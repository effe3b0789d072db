//! Duration in a large cluster.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_calc::{Graph, GraphConfig};
use tortie_datastore::DirState;
use tortie_evaluate::Settings;
use tortie_model::{
    EntityMatch, Hostname, Labels, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_resources::manifest::Options;

use super::fixture::*;
use crate::host_changes::HostChanges;

const ENDPOINTS: u32 = 250_000;
const POLICIES: u32 = 5_000;
const APPS: u32 = 1_000;

fn cluster() -> Vec<Update> {
    let endpoint = |n: u32| {
        let labels = Labels::from_pairs([("app", format!("a{}", n % APPS).as_str())]).unwrap();
        let nets = [format!("10.{}.{}.{}/32", n >> 16, n >> 8 & 255, n & 255).parse().unwrap()];
        let endpoint = WorkloadEndpoint {
            iface: Some("cali1".parse().unwrap()),
            labels,
            ipv4_nets: nets.into_iter().collect(),
            ..WorkloadEndpoint::default()
        };
        let key = WorkloadEndpointKey::new(&format!("n{}", 2 + n / 100), "k8s", &format!("shop/p{n}"), "eth0");
        Update::WorkloadEndpoint(key, Valid::new(endpoint).ok())
    };
    let policy = |n: u32| {
        let from =
            EntityMatch { selector: format!("app == 'a{}'", (n * 7) % APPS).parse().ok(), ..EntityMatch::default() };
        let rule = Rule { source: from, ..Rule::new(RuleAction::Allow) };
        let selector = format!("app == 'a{}'", n % APPS).parse().unwrap();
        let policy = Policy { selector, inbound: [rule].into(), ..Policy::default() };
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("p{n}"));
        Update::Policy(id, Valid::new(policy).ok())
    };
    let mut directory = DirState::new(Options::default());
    let mut updates = directory.take_updates();
    let ssh = policy_with("ssh", "{action: Allow, protocol: TCP, source: {notSelector: has(app)}}", "order: 10");
    for (path, text) in [("cluster", CLUSTER), ("host", HOST), ("ssh", &ssh)] {
        updates.extend(directory.set_file(path.as_ref(), Some(tortie_datastore::FileContent::Text(text))));
    }
    updates.extend((0..ENDPOINTS).map(endpoint));
    updates.extend((0..POLICIES).map(policy));
    updates
}

/// Run with `cargo test --profile bench -p tortie-node --lib -- --ignored --nocapture
/// a_large_cluster_is_tried`.
#[test]
#[ignore = "prints times that only an optimized build on a quiet machine has; other tests assert the held changes"]
fn a_large_cluster_is_tried() {
    for holds in [false, true] {
        let observer =
            FakeObserver(std::sync::Arc::new(std::sync::Mutex::new((Ok(observed(&[ADMIN])), "boot".into()))));
        let state = TempDir::new().unwrap();
        let mut changes =
            HostChanges::new(Hostname::new("n1"), Box::new(observer), Some(state.path()), "file:/etc/tortie");
        let mut graph = Graph::new(&GraphConfig::new(Hostname::new("n1")));
        assert_eq!(changes.begin(Settings::default()).count(), 0);
        let updates = cluster();
        let mut turn = |graph: &mut Graph, updates: Vec<Update>, now| {
            let begun = Instant::now();
            for update in updates {
                let update = if holds { changes.take(update, begun) } else { Some(update) };
                update.into_iter().for_each(|update| graph.on_update(update));
            }
            graph.on_status(SyncStatus::InSync);
            let mut messages = Vec::new();
            graph.flush(&mut messages);
            if holds {
                messages.iter().for_each(|message| changes.on_update(message, &|_| None));
                drop(changes.settle(graph, now, &|_| None));
            }
            (begun.elapsed(), changes.held().is_some())
        };
        println!("holds back: {holds}: start {:?}", turn(&mut graph, updates, Duration::ZERO).0);
        let deny = policy_with("deny", "{action: Deny, source: {notSelector: has(app)}}", "order: 1");
        let change = DirState::new(Options::default())
            .set_file("deny".as_ref(), Some(tortie_datastore::FileContent::Text(&deny)));
        let deny: Vec<Update> = change.into_iter().filter(|u| matches!(u, Update::Policy(..))).collect();
        assert_eq!(deny.len(), 1);
        let (took, is_held) = turn(&mut graph, deny, Duration::from_secs(1));
        println!("a change that cuts: {took:?}, held back: {is_held}");
        assert_eq!(is_held, holds);
        let pod = cluster().into_iter().find(|update| matches!(update, Update::WorkloadEndpoint(..))).unwrap();
        let gone = Update::delete(pod.key());
        println!("tried again: {:?}", turn(&mut graph, vec![gone], Duration::from_secs(9)).0);
    }
}
