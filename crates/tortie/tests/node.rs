//! All ways from input to the desired state of a node have the same result.

#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "tests read files and clocks")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use tortie::datastore::{DirSource, ReadError, from_fn};
use tortie::iptables::Table;
use tortie::model::desired::DesiredUpdate;
use tortie::model::{Family, Key, SyncStatus, Update};
use tortie::{Change, ClusterProblem, Node};

const LONG: Duration = Duration::from_secs(90);

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo")
}

fn node() -> Node {
    Node::new("demo-node")
}

/// All manifests of the demo as one text.
fn demo_text() -> String {
    let files = std::fs::read_dir(demo()).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect::<Vec<_>>().join("\n---\n")
}

fn demo_updates() -> Vec<Update> {
    DirSource::new(demo(), node().manifest_options).read().unwrap()
}

#[test]
fn directory_text_source_and_objects_come_to_the_same() {
    let directory = node().read_dir(demo()).unwrap();
    assert_eq!(directory.problems(), []);
    let endpoints = directory.desired().iter().filter(|update| matches!(update, DesiredUpdate::WorkloadEndpoint(..)));
    assert_eq!(endpoints.count(), 4);
    assert_eq!(node().read_yaml(&demo_text()).desired(), directory.desired());
    assert_eq!(node().calculate(demo_updates()).desired(), directory.desired());
    let source = DirSource::new(demo(), node().manifest_options);
    assert_eq!(node().read(source, LONG).unwrap().into_desired(), directory.desired());
}

#[test]
fn rendered_text_is_that_of_the_desired_state() {
    let rendered = node().read_dir(demo()).unwrap().render();
    let filter = rendered.table(Family::V4, Table::Filter).unwrap();
    assert!(filter.contains("-A cali-pi-np/shop/db-clients "), "{filter}");
    let sets = rendered.ip_sets(Family::V6).unwrap();
    assert!(sets.contains(" fd00:65::1:2"), "{sets}");
    let all = rendered.to_string();
    assert!(all.contains(&format!("# iptables-restore, filter\n{filter}")), "{all}");
    assert!(all.contains(&format!("# ipset restore, IPv6\n{sets}")), "{all}");
}

#[test]
fn configuration_counts() {
    let mut node = node();
    node.dataplane_config.families = vec![Family::V4];
    node.dataplane_config.rules.deny = tortie::rules::DenyAction::Reject;
    let rendered = node.read_dir(demo()).unwrap().render();
    assert_eq!(rendered.table(Family::V6, Table::Filter), None);
    let filter = rendered.table(Family::V4, Table::Filter).unwrap();
    assert!(filter.contains("--jump REJECT"), "{filter}");
}

#[test]
fn unusable_objects_are_problems() {
    let state = node().read_yaml("apiVersion: v1\nkind: Namespace\nmetadata: {name: NotAName}\n");
    let [problem @ ClusterProblem::Input(_), ClusterProblem::Ignored(_)] = state.problems() else {
        panic!("{:?}", state.problems())
    };
    assert!(problem.to_string().contains("Namespace/NotAName"), "{problem}");
    assert!(node().read_dir(demo().join("nowhere")).unwrap_err().to_string().contains("nowhere"));
}

#[test]
fn a_source_that_refuses_is_an_error() {
    let source = from_fn("scripted", |feed| feed.refused("wrong password"));
    let error = node().read(source, LONG).unwrap_err();
    assert!(matches!(&error, ReadError::Refused(why) if why == "wrong password"), "{error}");
}

#[test]
fn changes_of_a_source_add_up_to_its_state() {
    let updates = demo_updates();
    let is_policy = |update: &&Update| matches!(update.key(), Key::Policy(_));
    let policies: Vec<Key> = updates.iter().filter(is_policy).map(Update::key).collect();
    assert!(!policies.is_empty());
    let (all, removed) = (updates.clone(), policies);
    let source = from_fn("scripted", move |feed| {
        feed.unavailable("it is starting")?;
        feed.send_all(all)?;
        feed.available()?;
        feed.send_now(removed.into_iter().map(Update::delete))
    });
    let changes: Vec<Change> = node().watch(source).unwrap().collect();
    let desired = changes.iter().filter_map(|change| match change {
        Change::Desired(updates) => Some(updates.clone()),
        _ => None,
    });
    let mut dataplane = node().dataplane();
    desired.flatten().for_each(|update| dataplane.on_update(update));
    let without = updates.into_iter().filter(|update| !is_policy(&update));
    assert_eq!(dataplane.render(), node().calculate(without).render());
}

#[test]
fn a_datastore_without_the_flag_is_ready() {
    let source = from_fn("scripted", |feed| feed.send_all([Update::Ready(None)]));
    let all: Vec<Change> = node().watch(source).unwrap().collect();
    let not_ready = |change: &Change| match change {
        Change::Desired(updates) => updates.contains(&DesiredUpdate::DatastoreNotReady),
        _ => false,
    };
    assert!(!all.iter().any(not_ready), "{all:?}");
    let mut graph = node().graph();
    graph.on_status(SyncStatus::InSync);
    let mut desired = Vec::new();
    graph.flush(&mut desired);
    assert!(!desired.contains(&DesiredUpdate::DatastoreNotReady));
}
