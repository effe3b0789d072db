//! Prints the rules for a directory of manifests as text:
//! `cargo run --package tortie --example rule_text`.

use std::error::Error;

use tortie::Node;
use tortie::dataplane::NftablesConfig;
use tortie::iptables::Table;
use tortie::model::Family;

/// Prints the rules of a policy, first for `iptables-restore` and then for `nft -f`.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut node = Node::new("demo-node");
    let iptables = node.read_dir("examples/demo")?.render();
    node.dataplane_config.nftables = Some(NftablesConfig::default());
    let nftables = node.read_dir("examples/demo")?.render();
    let texts = [iptables.table(Family::V4, Table::Filter), nftables.nftables(Family::V4)];
    for line in texts.into_iter().flatten().flat_map(str::lines) {
        if line.contains("db-clients ingress") {
            println!("{}", line.trim());
        }
    }
    Ok(())
}
