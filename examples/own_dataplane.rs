//! Passes the calculated state to a custom dataplane:
//! `cargo run --package tortie --example own_dataplane`.

use std::error::Error;

use tortie::model::{PolicyId, PolicyKind, SyncStatus, Update, desired::DesiredUpdate};
use tortie::{Node, datastore::DirSource, resources::manifest::Options};

/// Prints each update. An update only refers to objects of earlier updates.
fn program(update: DesiredUpdate) {
    match update {
        DesiredUpdate::IpSet(set) => println!("set {}, {} members", set.id, set.members.len()),
        DesiredUpdate::IpSetRemove(id) => println!("no set {id}"),
        DesiredUpdate::Policy(id, policy) => println!("policy {id} for {}", policy.selector),
        DesiredUpdate::PolicyRemove(id) => println!("no policy {id}"),
        _ => {} // Endpoints, profiles, routes and more.
    }
}

/// Calculates for a directory of manifests, and again without one of its policies.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut graph = Node::new("demo-node").graph();
    DirSource::new("examples/demo", Options::default()).read()?.into_iter().for_each(|update| graph.on_update(update));
    graph.on_status(SyncStatus::InSync);
    graph.take_changes().into_iter().for_each(program);
    graph.on_update(Update::Policy(PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db-clients"), None));
    graph.take_changes().into_iter().for_each(program);
    Ok(())
}
