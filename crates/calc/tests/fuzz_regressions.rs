//! Replays the inputs that fuzzing has found, through the checks of the fuzz target.

#[path = "../../../fuzz/checks/graph_order.rs"]
mod graph_order;

#[test]
#[allow(clippy::disallowed_methods, reason = "the test reads its committed inputs")]
fn graph_order() {
    let inputs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions/graph_order");
    let mut replayed = 0;
    for entry in std::fs::read_dir(inputs).expect("the inputs are committed") {
        let path = entry.expect("readable").path();
        println!("{}", path.display());
        graph_order::check(&std::fs::read(path).expect("readable"));
        replayed += 1;
    }
    assert!(replayed >= 3, "{replayed} inputs");
}
