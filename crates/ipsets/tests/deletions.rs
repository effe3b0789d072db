//! Deletion of very many sets, against the fake kernel.
#![allow(clippy::unwrap_used, reason = "the test input is valid")]

use std::time::Duration;

use tortie_ipsets::fake::Counts;
use tortie_ipsets::{CommandFailure, Plan, Resync, SetType};

use support::{World, id};

mod support;

/// Returns a world with `count` sets in the kernel that are no longer desired, and counts at 0.
fn unwanted(count: u32) -> World {
    let mut world = World::new();
    for n in 0..count {
        world.put(&format!("s{n:03}"), SetType::HashIp, "10.0.0.1");
    }
    world.succeed();
    for n in 0..count {
        world.sets.remove(&id(&format!("s{n:03}"))).unwrap();
    }
    world.kernel.reset_counts();
    world.succeed();
    assert_eq!(world.kernel.counts(), Counts::default());
    world
}

#[test]
fn thousand_removed_sets_are_destroyed_in_batches() {
    let mut world = unwanted(1000);
    let mut rounds = Vec::new();
    loop {
        let report = world.kernel.apply_deletions(&mut world.sets, &mut world.now);
        rounds.push(report.destroyed);
        assert_eq!(world.kernel.counts().deletions, rounds.len());
        if !report.more {
            break;
        }
    }
    assert_eq!(rounds, [16, 32, 64, 128, 256, 504]);
    assert!(world.kernel.names().is_empty());
}

#[test]
fn batches_shrink_where_destroying_takes_long() {
    let mut world = unwanted(100);
    let mut rounds = Vec::new();
    while !world.kernel.names().is_empty() {
        let before = world.now;
        let Plan::Restore(text) = world.sets.plan_deletions(world.now) else { panic!("nothing to destroy") };
        world.kernel.edit(&text).unwrap();
        // As before Linux 6.8, where each set takes that long.
        world.now += Duration::from_millis(20) * u32::try_from(text.lines().count() - 1).unwrap();
        world.sets.on_exit(world.now, Ok(()));
        assert!(matches!(world.sets.plan_deletions(world.now), Plan::Done(_)));
        rounds.push(world.now - before);
    }
    assert_eq!(rounds[..5], [320, 160, 80, 40, 80].map(Duration::from_millis));
    assert!(rounds[3..].iter().all(|took| *took <= Duration::from_millis(80)));
}

#[test]
fn sets_in_use_are_put_aside_and_the_others_go() {
    let mut world = unwanted(300);
    let in_use = [3, 4, 70, 71, 72, 299].map(|n| format!("cali40s{n:03}"));
    for name in &in_use {
        world.kernel.set_in_use(name, true);
    }
    // Another program was faster.
    world.kernel.edit("destroy cali40s050").unwrap();
    world.delete_all();
    assert_eq!(world.kernel.names(), in_use);
    let deletions = world.kernel.counts().deletions;
    assert!(deletions <= 16, "{deletions}");

    // Not before the sets are listed again.
    world.succeed();
    world.delete_all();
    assert_eq!(world.kernel.counts().deletions, deletions);
    for name in &in_use {
        world.kernel.set_in_use(name, false);
    }
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    world.delete_all();
    assert!(world.kernel.names().is_empty());
}

#[test]
fn set_in_use_is_found_by_halving_if_nothing_names_it() {
    let mut world = unwanted(100);
    world.kernel.set_in_use("cali40s037", true);
    let mut commands = 0;
    for _ in 0..100 {
        match world.sets.plan_deletions(world.now) {
            Plan::Done(report) if !report.more => break,
            Plan::Done(_) => {}
            plan => {
                commands += 1;
                let (_, result) = world.kernel.run(&plan);
                let silent = result.map_err(|failure| {
                    let reason = failure.stderr().rsplit(": ").next().unwrap_or_default().trim().to_owned();
                    CommandFailure::new(reason)
                });
                world.sets.on_exit(world.now, silent);
            }
        }
    }
    assert_eq!(world.kernel.names(), ["cali40s037"]);
    assert!(commands <= 40, "{commands}");
}

#[test]
fn ipset_that_does_not_work_is_not_asked_over_and_over() {
    let mut world = unwanted(100);
    let mut commands = 0;
    loop {
        match world.sets.plan_deletions(world.now) {
            Plan::Done(report) if !report.more => break,
            Plan::Done(_) => {}
            _ => {
                commands += 1;
                world.sets.on_exit(world.now, Err(CommandFailure::new("ipset: not found")));
            }
        }
    }
    assert!(commands <= 8, "{commands}");
    world.delete_all();
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    world.delete_all();
    assert!(world.kernel.names().is_empty());
}
