//! A kernel in memory refuses a rule: `cargo run --package tortie --example reconcile`.

use std::error::Error;

use tortie::iptables::{Backend, Table};
use tortie::{Node, dataplane::Clock, dataplane::fake::FakeKernel, model::with_causes};

/// Prints the initial problems, and the rules at the end.
pub fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::new("demo-node");
    let mut dataplane = node.dataplane();
    node.read_dir("examples/demo")?.into_desired().into_iter().for_each(|update| dataplane.on_update(update));
    dataplane.on_links_in_sync();

    let mut kernel = FakeKernel::new(Backend::Nft, []);
    kernel.netfilter.tables_v4.refuse("db-clients ingress");
    let mut report = dataplane.apply(&mut kernel);
    report.problems.iter().for_each(|problem| println!("{}", with_causes(problem)));
    // The kernel accepts the rule now, but another process has flushed the table.
    kernel.netfilter.tables_v4.behave();
    kernel.netfilter.tables_v4.wipe(Table::Filter);
    while let (false, Some(next)) = (report.is_complete(), report.next) {
        kernel.sleep(next);
        report = dataplane.apply(&mut kernel);
    }
    let rules = kernel.netfilter.tables_v4.rules(Table::Filter, "cali-pi-np/shop/db-clients");
    rules.iter().flatten().for_each(|rule| println!("{rule}"));
    Ok(())
}
