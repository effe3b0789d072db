//! Listings of all sets at once, and the conclusions from them, against the fake kernel.
#![allow(clippy::unwrap_used, reason = "the test input is valid")]

use std::time::Duration;

use tortie_ipsets::fake::Fault;
use tortie_ipsets::{Config, Family, IpSets, Plan, Resync, SetType};

use support::{World, id};

mod support;

#[test]
fn restart_with_many_sets_lists_them_once() {
    let mut world = World::new();
    for restart in [false, true] {
        world.sets = IpSets::new(Family::V4, Config::default());
        world.kernel.reset_counts();
        for n in 0..4000 {
            world.put(&format!("s{n}"), SetType::HashNet, "10.0.0.0/8 10.0.0.1");
        }
        world.succeed();
        let counts = world.kernel.counts();
        assert_eq!((counts.list_all, counts.list_names, counts.lists), (1, 0, 0));
        assert_eq!(counts.restores, usize::from(!restart));
    }
    // So does a background resync, and a restore that failed without naming the line.
    for n in [7, 77] {
        world.kernel.reset_counts();
        world.kernel.edit(&format!("add cali40s{n} 6.6.6.6\ndestroy cali40s{}", n + 1)).unwrap();
        if n == 7 {
            world.sets.queue_resync(Resync::Background);
        } else {
            for set in 0..4000 {
                world.add(&format!("s{set}"), "10.0.0.2");
            }
            world.kernel.inject(Fault::CutRestore(60));
        }
        world.succeed();
        let counts = world.kernel.counts();
        assert!(counts.list_all <= 2 && counts.lists <= 1, "{counts:?}");
        assert!(!world.kernel.members(&format!("cali40s{n}")).contains(&"6.6.6.6"));
        assert_eq!(world.kernel.names().len(), 4000);
    }
}

/// Sets missing from a truncated listing of all sets are listed one by one.
#[test]
fn listing_of_all_sets_that_ends_early() {
    for lines in 0..26 {
        let mut world = World::in_sync();
        world.put("c", SetType::HashIp, "1.1.1.1 1.1.1.2");
        world.succeed();
        world.kernel.edit("del cali40a 10.0.0.2\nadd cali40b 1.0.0.0/8\ndel cali40c 1.1.1.2").unwrap();
        world.kernel.inject(Fault::CutListAll(lines));
        world.kernel.reset_counts();
        world.sets.queue_resync(Resync::Full);
        world.succeed();
        world.holds("a", "10.0.0.1 10.0.0.2");
        world.holds("b", "10.0.0.0/8 192.168.0.1");
        world.holds("c", "1.1.1.1 1.1.1.2");
        let counts = world.kernel.counts();
        // Eight lines for each, the members, and a blank line, which marks the end.
        let read = usize::from(lines >= 10) + usize::from(lines >= 22);
        assert_eq!((counts.list_all, counts.list_names), (1, 1));
        assert_eq!((counts.restores, counts.lists), (1, 3 - read), "{lines} lines");
    }
}

#[test]
fn listing_of_all_sets_that_lacks_members_or_has_sets_twice() {
    let whole = |world: &mut World| world.kernel.run(&Plan::ListAll).0;
    let tampering: [fn(&str) -> String; 4] = [
        // The last line is incomplete.
        |text| text[..text.len() - 1].to_owned(),
        |text| text[..text.len() - 3].to_owned(),
        // A member is missing.
        |text| text.replace("10.0.0.1\n", ""),
        // A comment of another program looks like a set of ours.
        |text| format!("{text}\n{}", text.split("\n\n").next().unwrap()),
    ];
    for (case, tamper) in tampering.into_iter().enumerate() {
        let mut world = World::in_sync();
        world.sets.queue_resync(Resync::Background);
        let text = tamper(&whole(&mut world));
        world.kernel.reset_counts();
        assert_eq!(world.sets.plan(world.now), Plan::ListAll);
        world.sets.on_output(text.as_bytes());
        world.sets.on_exit(world.now, Ok(()));
        world.succeed();
        let counts = world.kernel.counts();
        assert_eq!((counts.lists, counts.restores), (1, 0), "case {case}: {text}");
    }
}

#[test]
fn set_that_ipset_cannot_print_does_not_hide_the_others() {
    let mut world = World::in_sync();
    world.kernel.edit("create A-first hash:ip\ncreate cali40aa hash:ip").unwrap();
    world.kernel.make_unreadable("A-first", true);
    for resync in [Resync::Full, Resync::Background] {
        world.kernel.reset_counts();
        world.kernel.edit("del cali40a 10.0.0.1").unwrap();
        world.sets.queue_resync(resync);
        world.succeed();
        world.holds("a", "10.0.0.1 10.0.0.2");
        let counts = world.kernel.counts();
        assert_eq!((counts.list_all, counts.list_names, counts.lists), (1, 1, 2));
    }
    world.delete_all();
    assert_eq!(world.kernel.names(), ["A-first", "cali40a", "cali40b"]);
}

#[test]
fn edits_while_all_sets_are_listed() {
    let mut world = World::in_sync();
    world.sets.queue_resync(Resync::Full);
    let Plan::ListAll = world.sets.plan(world.now) else { panic!("expected a listing") };
    let (text, _) = world.kernel.run(&Plan::ListAll);
    let (first, rest) = text.split_at(text.find("10.0.0.2").unwrap());
    world.sets.on_output(first.as_bytes());
    world.add("a", "10.0.0.3");
    world.sets.remove(&id("a")).unwrap();
    world.put("a", SetType::HashIp, "10.0.0.2 10.0.0.4");
    world.put("c", SetType::HashIp, "1.1.1.1");
    world.sets.on_output(rest.as_bytes());
    world.sets.remove(&id("b")).unwrap();
    world.put("b", SetType::HashNet, "10.0.0.0/8");
    world.sets.on_exit(world.now, Ok(()));
    world.succeed();
    world.holds("a", "10.0.0.2 10.0.0.4");
    world.holds("b", "10.0.0.0/8");
    world.holds("c", "1.1.1.1");
}

#[test]
fn background_reads_keep_to_their_budget_where_all_at_once_takes_too_long() {
    let mut world = World::new();
    let config = Config { list_all_limit: Duration::from_millis(39), ..Config::default() };
    world.sets = IpSets::new(Family::V4, config);
    for n in 0..10 {
        world.put(&format!("s{n}"), SetType::HashIp, "10.0.0.1");
    }
    let plan = world.sets.plan(world.now);
    assert_eq!(plan, Plan::ListAll);
    world.now += Duration::from_millis(40);
    world.kernel.step(&mut world.sets, &plan, &mut world.now);
    world.succeed();
    world.kernel.reset_counts();
    world.sets.queue_resync(Resync::Background);
    // Each listing takes 40 ms.
    let mut rounds = Vec::new();
    loop {
        let before = world.kernel.counts().lists;
        let report = loop {
            match world.sets.plan(world.now) {
                Plan::Done(report) => break report,
                plan => {
                    if matches!(plan, Plan::List(_)) {
                        world.now += Duration::from_millis(40);
                    }
                    world.kernel.step(&mut world.sets, &plan, &mut world.now);
                }
            }
        };
        rounds.push(world.kernel.counts().lists - before);
        if !report.more {
            break;
        }
    }
    assert_eq!(rounds, [3, 3, 3, 1]);
    assert_eq!(world.kernel.counts().list_names, 1);
    // A busy machine may have been the reason.
    world.sets.queue_resync(Resync::Background);
    assert_eq!(world.sets.plan(world.now), Plan::ListAll);
}
