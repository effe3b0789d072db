//! Replays the inputs that fuzzing has found, through the checks of the fuzz target.

#[path = "../../../fuzz/checks/cluster_cost.rs"]
mod cluster_cost;
#[path = "../../../fuzz/checks/graph_oracle.rs"]
mod graph_oracle;
#[path = "../../../fuzz/checks/graph_order.rs"]
mod graph_order;

#[allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]
fn replay(target: &str, check: fn(&[u8]), at_least: usize) {
    let inputs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions");
    let mut replayed = 0;
    for entry in std::fs::read_dir(format!("{inputs}/{target}")).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= at_least, "{replayed} inputs");
}

#[test]
fn cluster_cost() {
    replay("cluster_cost", cluster_cost::check, 5);
}

#[test]
fn graph_order() {
    replay("graph_order", graph_order::check, 4);
}

#[test]
fn graph_oracle() {
    replay("graph_oracle", graph_oracle::check, 3);
}
