//! A datastore without transactions.

use super::*;

/// Returns the writes in order: kind of entry and kind of change.
fn written(world: &World) -> Vec<(&'static str, &'static str)> {
    let written = std::mem::take(&mut *world.written.lock().expect("no panic"));
    let step = |change: &tortie_datastore::store::TextChange| {
        let kinds = [("assignment", "block"), ("host", "affinity"), ("handle", "handle")];
        let kind = kinds.into_iter().find(|(part, _)| change.path.starts_with(&format!("/calico/ipam/v2/{part}/")));
        let became = match &change.text {
            None => "deleted",
            Some(text) if text.contains("pendingDeletion") => "marked",
            Some(_) => "changed",
        };
        (kind.expect("a known path").1, became)
    };
    written.iter().map(step).collect()
}

/// Returns a world with a node with a tunnel, an empty block and a pod whose address has leaked.
fn leaky() -> World {
    let mut world = World::new(false, Instant::now());
    world.node_up(0);
    world.pod_start("p", 0);
    world.pod_add("p", false);
    world.pod_reported("p");
    world.observe_all();
    world.pod_deleted("p", false);
    world.claim(0);
    world
}

/// As in kube-controllers: a block is written before its handles, and an affinity is marked before
/// its block is deleted.
#[test]
fn the_order_is_that_of_calico() {
    let mut world = leaky();
    world.drain(GRACE + PERIOD, GRACE);
    let mut steps = written(&world);
    // The release of the leak sorts first, then that of the empty block; they may happen in either
    // order.
    steps.sort_by_key(|(kind, became)| *kind == "affinity" || *became == "deleted" && *kind == "block");
    let expected = [
        ("block", "changed"),
        ("handle", "deleted"),
        ("affinity", "marked"),
        ("block", "deleted"),
        ("affinity", "deleted"),
    ];
    assert_eq!(steps, expected);
    check(&world);
}

/// After a kill at any call, the next controller completes the release.
#[test]
fn the_next_controller_completes_a_release() {
    let run_all = |world: &mut World| {
        while let Next::Job(job) = world.controller.next(world.now) {
            world.run(job, None, GRACE);
        }
    };
    let mut steps = BTreeSet::new();
    for calls in 0..40 {
        let mut world = leaky();
        world.observe_all();
        run_all(&mut world);
        world.now += GRACE;
        written(&world);
        world.calls_left = Some(calls).into();
        run_all(&mut world);
        steps.insert(written(&world).len());
        world.calls_left = None.into();
        world.restart();
        settle(&mut world);
        check(&world);
    }
    assert_eq!(steps, (0..=5).collect());
}
