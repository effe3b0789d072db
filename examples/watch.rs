//! Follows a custom source: `cargo run --package tortie --example watch`.

use std::{collections::BTreeSet, error::Error};

use tortie::datastore::from_fn;
use tortie::model::desired::DesiredUpdate;
use tortie::model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
use tortie::{Change, Node};

/// Prints the final pods of an inventory in which one pod replaces another.
pub fn main() -> Result<(), Box<dyn Error>> {
    let pod = Some(Valid::new(WorkloadEndpoint { iface: Some("cali1".parse()?), ..WorkloadEndpoint::default() })?);
    let update = |pod, value| Update::WorkloadEndpoint(WorkloadEndpointKey::new("node-1", "k8s", pod, "eth0"), value);
    let source = from_fn("inventory", move |feed| {
        feed.send_all([update("shop/web", pod.clone())])?; // Existing objects,
        feed.send_now([update("shop/web", None), update("shop/db", pod)]) // and changes.
    });
    let mut pods = BTreeSet::new();
    for change in Node::new("node-1").watch(source)? {
        let Change::Desired(updates) = change else { continue };
        updates.into_iter().for_each(|update| match update {
            DesiredUpdate::WorkloadEndpoint(id, _) => drop(pods.insert(id)),
            DesiredUpdate::WorkloadEndpointRemove(id) => drop(pods.remove(&id)),
            _ => {}
        });
    }
    pods.iter().for_each(|pod| println!("{pod}"));
    Ok(())
}
