//! Prints the desired state of a node from a directory of manifests:
//! `cargo run --package tortie --example desired_state`.

use std::error::Error;

use tortie::Node;
use tortie::model::desired::DesiredUpdate;

/// Prints the policies of a node and their pods. Other updates are about IP sets, routes and more.
pub fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::new("demo-node").read_dir("examples/demo")?;
    for problem in node.problems() {
        println!("{problem}");
    }
    for update in node.desired() {
        match update {
            DesiredUpdate::Policy(id, policy) => {
                println!("{id}: {} ingress rules, {} egress rules", policy.inbound.len(), policy.outbound.len());
            }
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                let policies = state.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(&*tier.egress));
                println!("{id}: {}", policies.map(ToString::to_string).collect::<Vec<_>>().join(", "));
            }
            _ => {}
        }
    }
    Ok(())
}
