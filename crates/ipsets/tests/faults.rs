//! Faults of the kernel and of `ipset`, one at a time, against the fake kernel.
#![allow(clippy::unwrap_used, reason = "the test input is valid")]

use std::time::Duration;

use tortie_ipsets::fake::{Counts, Fault};
use tortie_ipsets::{CommandFailure, Config, Family, IpSets, Plan, Resync, SetError, SetSpec, SetType};
use tortie_net::with_causes;

use support::{World, id, members};

mod support;

#[test]
fn first_apply_creates_everything_in_one_restore() {
    let mut world = World::new();
    world.put("b", SetType::HashNet, "10.0.0.0/8");
    world.put("a", SetType::HashIpPort, "10.0.0.1,tcp:80 10.0.0.1,sctp:9");
    world.put("c", SetType::BitmapPort, "80 v4,81");
    world.succeed();
    assert_eq!(
        world.kernel.restored(),
        ["create cali40a hash:ip,port family inet maxelem 1048576\n\
          add cali40a 10.0.0.1,sctp:9\n\
          add cali40a 10.0.0.1,tcp:80\n\
          create cali40b hash:net family inet maxelem 1048576\n\
          add cali40b 10.0.0.0/8\n\
          create cali40c bitmap:port range 0-65535\n\
          add cali40c 80\n\
          add cali40c 81\n\
          COMMIT\n"]
    );
    assert_eq!(world.sets.render(), world.kernel.restored()[0]);
    // Missing sets are not listed.
    assert_eq!(world.kernel.counts().lists, 0);
}

#[test]
fn nothing_to_do_runs_nothing() {
    let mut world = World::in_sync();
    world.succeed();
    world.put("a", SetType::HashIp, "10.0.0.2 10.0.0.1");
    world.succeed();
    assert_eq!(world.kernel.counts(), Counts::default());
}

#[test]
fn changes_write_the_changes() {
    let mut world = World::in_sync();
    world.add("a", "10.0.0.3 10.0.0.4");
    world.remove("a", "10.0.0.4 10.0.0.1");
    world.remove("b", "10.0.0.0/8");
    world.add("b", "10.0.0.0/8");
    world.succeed();
    assert_eq!(world.lines(), ["del cali40a 10.0.0.1 --exist", "add cali40a 10.0.0.3"]);
    world.holds("a", "10.0.0.2 10.0.0.3");
}

#[test]
fn restart_reads_and_writes_nothing() {
    let mut world = World::in_sync();
    world.kernel.edit("create other hash:ip timeout 3\ncreate cali60x hash:ip family inet6").unwrap();
    world.sets = IpSets::new(Family::V4, Config::default());
    world.put("a", SetType::HashIp, "10.0.0.1 10.0.0.2");
    world.put("b", SetType::HashNet, "10.0.0.0/8 192.168.0.1");
    world.succeed();
    world.delete_all();
    let counts = world.kernel.counts();
    assert_eq!((counts.list_all, counts.list_names, counts.lists), (1, 0, 0));
    assert_eq!((counts.restores, counts.deletions), (0, 0));
}

#[test]
fn restart_writes_the_difference_and_removes_leftovers() {
    let mut world = World::in_sync();
    world.kernel.edit("create cali4t0 hash:ip\ncreate felix-4old hash:ip\ncreate other hash:ip").unwrap();
    world.sets = IpSets::new(Family::V4, Config::default());
    world.put("a", SetType::HashIp, "10.0.0.1 10.0.0.9");
    world.succeed();
    assert_eq!(world.lines(), ["del cali40a 10.0.0.2 --exist", "add cali40a 10.0.0.9"]);
    let report = world.kernel.apply_deletions(&mut world.sets, &mut world.now);
    assert_eq!((report.destroyed, report.more), (3, false));
    assert_eq!(world.kernel.names(), ["cali40a", "other"]);
}

#[test]
fn set_deleted_by_a_foreigner_returns_with_the_same_apply() {
    let mut world = World::in_sync();
    world.kernel.edit("destroy cali40a").unwrap();
    world.succeed();
    assert_eq!(world.kernel.names(), ["cali40b"]);
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2");
}

#[test]
fn background_sweep_finds_foreign_members() {
    let mut world = World::in_sync();
    world.kernel.edit("add cali40a 6.6.6.6\ndel cali40b 10.0.0.0/8").unwrap();
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    assert_eq!(world.lines(), ["del cali40a 6.6.6.6 --exist", "add cali40b 10.0.0.0/8"]);
}

#[test]
fn next_failing_write_finds_foreign_members() {
    let mut world = World::in_sync();
    world.kernel.edit("add cali40a 10.0.0.3").unwrap();
    world.add("a", "10.0.0.3 10.0.0.4");
    world.add("b", "10.9.0.0/16");
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4");
    world.holds("b", "10.0.0.0/8 10.9.0.0/16 192.168.0.1");
}

#[test]
fn set_deleted_under_a_write_is_made_again() {
    let mut world = World::in_sync();
    world.kernel.edit("destroy cali40a").unwrap();
    world.add("a", "10.0.0.3");
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2 10.0.0.3");
}

#[test]
fn other_size_is_swapped_in() {
    let mut world = World::in_sync();
    world.kernel.set_in_use("cali40a", true);
    world.kernel.edit("create cali4t0 hash:ip").unwrap();
    world.sets.queue_resync(Resync::Background);
    let spec = SetSpec::new(SetType::HashIp).with_max_elements(5);
    let wanted = members(SetType::HashIp, "10.0.0.2 10.0.0.3");
    world.sets.add_or_replace(&id("a"), spec, wanted).unwrap();
    world.succeed();
    assert_eq!(
        world.lines(),
        [
            "create cali4t1 hash:ip family inet maxelem 5",
            "add cali4t1 10.0.0.2",
            "add cali4t1 10.0.0.3",
            "swap cali40a cali4t1",
        ]
    );
    world.delete_all();
    assert_eq!(world.kernel.names(), ["cali40a", "cali40b"]);
    world.holds("a", "10.0.0.2 10.0.0.3");
}

#[test]
fn foreign_size_options_and_flags_are_swapped_away() {
    for tampering in [
        "destroy cali40a\ncreate cali40a hash:ip maxelem 7\nadd cali40a 10.0.0.1",
        "destroy cali40a\ncreate cali40a hash:ip maxelem 1048576 counters\nadd cali40a 10.0.0.1",
        "del cali40a 10.0.0.1\nadd cali40a 10.0.0.1 nomatch",
    ] {
        let mut world = World::in_sync();
        world.kernel.edit(tampering).unwrap();
        world.sets.queue_resync(Resync::Background);
        world.succeed();
        assert!(world.lines().contains(&"swap cali40a cali4t0"));
        world.holds("a", "10.0.0.1 10.0.0.2");
        world.kernel.reset_counts();
        world.sets.queue_resync(Resync::Full);
        world.succeed();
        assert_eq!(world.kernel.counts().restores, 0, "{tampering}");
    }
}

#[test]
fn foreign_type_is_replaced_unless_in_use() {
    let mut world = World::in_sync();
    world.kernel.edit("destroy cali40a\ncreate cali40a hash:mac\nadd cali40a 01:02:03:04:05:06").unwrap();
    world.kernel.set_in_use("cali40a", true);
    world.sets.queue_resync(Resync::Background);
    world.add("b", "10.1.0.0/16");
    let report = world.apply();
    assert_eq!(report.failures.len(), 1);
    assert_eq!(report.failures[0].name.as_str(), "cali40a");
    assert!(report.failures[0].exists);
    assert!(report.retry_after.is_some());
    world.holds("b", "10.0.0.0/8 10.1.0.0/16 192.168.0.1");

    world.kernel.set_in_use("cali40a", false);
    world.now += report.retry_after.unwrap();
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2");
}

#[test]
fn set_in_use_is_not_destroyed_over_and_over() {
    let mut world = World::in_sync();
    world.kernel.set_in_use("cali40a", true);
    world.sets.remove(&id("a")).unwrap();
    for _ in 0..5 {
        let report = world.kernel.apply_deletions(&mut world.sets, &mut world.now);
        assert!(!report.more);
        world.succeed();
    }
    assert_eq!(world.kernel.counts().deletions, 1);
    world.kernel.set_in_use("cali40a", false);
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    world.delete_all();
    assert_eq!(world.kernel.names(), ["cali40b"]);
}

#[test]
fn a_set_added_again_before_its_deletion_causes_no_write() {
    let mut world = World::in_sync();
    world.sets.remove(&id("a")).unwrap();
    world.succeed();
    world.put("a", SetType::HashIp, "10.0.0.1 10.0.0.2");
    world.succeed();
    world.delete_all();
    assert_eq!(world.kernel.counts(), Counts::default());
}

#[test]
fn removed_set_that_a_foreigner_changed_is_read_again() {
    let mut world = World::in_sync();
    world.kernel.set_in_use("cali40a", true);
    world.sets.remove(&id("a")).unwrap();
    world.delete_all();
    world.kernel.edit("add cali40a 6.6.6.6").unwrap();
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    world.put("a", SetType::HashIp, "10.0.0.1 10.0.0.2");
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2");
}

#[test]
fn undeletable_set_that_is_wanted_again_is_read_first() {
    let mut world = World::in_sync();
    world.kernel.edit("create cali40x hash:ip maxelem 1048576\nadd cali40x 1.1.1.1").unwrap();
    world.sets.queue_resync(Resync::Background);
    world.succeed();
    world.kernel.inject(Fault::Destroy);
    world.delete_all();
    world.put("x", SetType::HashIp, "1.1.1.1 1.1.1.2");
    world.succeed();
    assert_eq!(world.lines(), ["add cali40x 1.1.1.2"]);
}

#[test]
fn failed_restores_are_repaired() {
    for fault in [Fault::Restore, Fault::CutRestore(1), Fault::CutRestore(4), Fault::LateRestore] {
        for times in [1, 2, 5] {
            let mut world = World::in_sync();
            for _ in 0..times {
                world.kernel.inject(fault.clone());
            }
            world.add("a", "10.0.0.3");
            world.remove("b", "192.168.0.1");
            world.put("c", SetType::HashIp, "1.2.3.4");
            let spec = SetSpec::new(SetType::HashNet).with_max_elements(9);
            let wanted = members(SetType::HashNet, "10.0.0.0/9");
            world.sets.add_or_replace(&id("b"), spec, wanted).unwrap();
            world.succeed();
            world.holds("a", "10.0.0.1 10.0.0.2 10.0.0.3");
            world.holds("b", "10.0.0.0/9");
            world.holds("c", "1.2.3.4");
            world.delete_all();
            assert_eq!(world.kernel.names().len(), 3, "{fault:?}");
        }
    }
}

#[test]
fn listings_that_fail_are_repeated() {
    for fault in [Fault::ListNames, Fault::List, Fault::CutList(3), Fault::CutList(9)] {
        let mut world = World::in_sync();
        world.kernel.inject(Fault::ListAll);
        for _ in 0..4 {
            world.kernel.inject(fault.clone());
        }
        world.sets.queue_resync(Resync::Full);
        world.succeed();
        assert_eq!(world.kernel.counts().restores, 0, "{fault:?}");
    }
}

#[test]
fn names_that_cannot_be_listed_end_the_round() {
    let mut world = World::new();
    world.put("a", SetType::HashIp, "10.0.0.1");
    world.kernel.inject(Fault::ListAll);
    for _ in 0..10 {
        world.kernel.inject(Fault::ListNames);
    }
    let report = world.apply();
    assert!(report.listing.is_some());
    assert!(report.retry_after.is_some());
    assert_eq!(world.kernel.counts().restores, 0);
    // 1 + 2 + 4 + … + 256 ms.
    assert_eq!(world.now, Duration::from_millis(511));
    world.succeed();
    world.holds("a", "10.0.0.1");
}

#[test]
fn changes_are_written_even_if_a_sweep_cannot_list_names() {
    let mut world = World::in_sync();
    world.kernel.inject(Fault::ListAll);
    for _ in 0..5 {
        world.kernel.inject(Fault::ListNames);
    }
    world.sets.queue_resync(Resync::Background);
    world.add("a", "10.0.0.3");
    let report = world.apply();
    assert!(report.listing.is_some());
    world.holds("a", "10.0.0.1 10.0.0.2 10.0.0.3");
    world.succeed();
}

#[test]
fn unreadable_set_is_replaced_if_wanted_and_destroyed_if_not() {
    let mut world = World::in_sync();
    world.kernel.edit("create cali40old hash:ip").unwrap();
    world.kernel.edit("create foreign hash:ip").unwrap();
    for name in ["cali40a", "cali40old", "foreign"] {
        world.kernel.make_unreadable(name, true);
    }
    world.sets.queue_resync(Resync::Full);
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2");
    world.delete_all();
    assert_eq!(world.kernel.names(), ["cali40a", "cali40b", "foreign"]);
}

#[test]
fn unreadable_set_of_another_type_is_recreated() {
    let mut world = World::in_sync();
    world.kernel.edit("destroy cali40a\ncreate cali40a hash:mac").unwrap();
    world.kernel.make_unreadable("cali40a", true);
    world.sets.queue_resync(Resync::Full);
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2");
}

#[test]
fn full_set_takes_the_fitting_members_and_is_named() {
    let mut world = World::in_sync();
    let spec = SetSpec::new(SetType::HashIp).with_max_elements(2);
    let wanted = members(SetType::HashIp, "1.1.1.1 1.1.1.2 1.1.1.3");
    world.sets.add_or_replace(&id("full"), spec, wanted).unwrap();
    world.add("a", "10.0.0.3");
    let report = world.apply();
    assert_eq!(report.failures[0].error, SetError::TooManyMembers { members: 3, max_elements: 2 });
    assert_eq!(world.sets.overfull().collect::<Vec<_>>(), [&id("full")]);
    assert_eq!(
        with_causes(&report.failures[0]),
        "IP set cali40full (full): 3 members, but no more than 2 fit in (MaxIpsetSize)"
    );
    assert_eq!(report.retry_after, None);
    world.holds("full", "1.1.1.1 1.1.1.2");
    world.holds("a", "10.0.0.1 10.0.0.2 10.0.0.3");

    // No loop, and room is used once there is some.
    world.kernel.reset_counts();
    assert!(!world.apply().is_success());
    assert_eq!(world.kernel.counts(), Counts::default());
    world.remove("full", "1.1.1.1");
    world.succeed();
    world.holds("full", "1.1.1.2 1.1.1.3");

    // A larger limit helps too.
    let spec = SetSpec::new(SetType::HashIp).with_max_elements(9);
    let wanted = members(SetType::HashIp, "1.1.1.1 1.1.1.2 1.1.1.3");
    world.sets.add_or_replace(&id("full"), spec, wanted).unwrap();
    world.succeed();
    world.holds("full", "1.1.1.1 1.1.1.2 1.1.1.3");
}

#[test]
fn failing_set_is_isolated_named_and_tried_again() {
    let mut world = World::in_sync();
    world.kernel.poison("cali40bad", true);
    for set in ["bad", "c", "d", "e", "f"] {
        world.put(set, SetType::HashIp, "1.1.1.1");
    }
    let report = world.apply();
    assert_eq!(report.failures.len(), 1);
    let failure = &report.failures[0];
    assert_eq!(failure.id, id("bad"));
    assert!(!failure.exists);
    assert!(matches!(&failure.error, SetError::Refused { attempts: 4, failure }
        if failure.stderr().contains("Operation not permitted")));
    for set in ["c", "d", "e", "f"] {
        world.holds(set, "1.1.1.1");
    }

    // Not before its time, and no other set has to wait for it.
    world.kernel.reset_counts();
    world.add("c", "1.1.1.2");
    assert_eq!(world.apply().failures.len(), 1);
    assert_eq!(world.kernel.counts().restores, 1);

    // Pauses grow.
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let report = world.apply();
        let pause = report.retry_after.unwrap();
        pauses.push(pause.as_secs());
        world.now += pause;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);

    world.kernel.poison("cali40bad", false);
    world.succeed();
    world.holds("bad", "1.1.1.1");
}

#[test]
fn culprit_is_found_without_a_line_number() {
    let mut world = World::new();
    for n in 0..16 {
        world.put(&format!("set{n:02}"), SetType::HashIp, "1.1.1.1");
    }
    // The kernel stops at the bad set, and its message does not name the line.
    let report = loop {
        match world.sets.plan(world.now) {
            Plan::Done(report) => break report,
            Plan::Restore(text) if text.contains("cali40set11") => {
                let before = text.split("create cali40set11").next().unwrap();
                let _ = world.kernel.edit(before);
                let failure = CommandFailure::new("Killed");
                world.sets.on_exit(world.now, Err(failure));
            }
            plan => world.kernel.step(&mut world.sets, &plan, &mut world.now),
        }
    };
    assert_eq!(report.failures.len(), 1);
    assert_eq!(report.failures[0].id, id("set11"));
    assert_eq!(world.kernel.names().len(), 15);
}

#[test]
fn many_failing_sets_do_not_stop_the_others_for_long() {
    let mut world = World::new();
    for n in 0..100 {
        world.put(&format!("set{n:02}"), SetType::HashIp, "1.1.1.1");
        if n % 2 == 1 {
            world.kernel.poison(&format!("cali40set{n:02}"), true);
        }
    }
    for _ in 0..6 {
        let report = world.apply();
        assert!(world.kernel.counts().restores < 100);
        world.kernel.reset_counts();
        world.now += report.retry_after.unwrap();
    }
    assert_eq!(world.kernel.names().len(), 50);
    let report = world.apply();
    assert_eq!(report.failures.len(), 50);
    assert!(report.failures.iter().all(|f| !f.exists));
}

#[test]
fn unreported_result_counts_as_failure() {
    let mut world = World::in_sync();
    world.add("a", "10.0.0.3");
    let Plan::Restore(text) = world.sets.plan(world.now) else {
        panic!("expected a restore");
    };
    world.kernel.edit(&text).unwrap();
    world.succeed();
    world.holds("a", "10.0.0.1 10.0.0.2 10.0.0.3");
    assert_eq!(world.kernel.counts().restores, 0);
}

#[test]
fn long_sets_are_written_in_pieces() {
    let config = Config { members_per_restore: 10, ..Config::default() };
    let mut world = World::new();
    world.sets = IpSets::new(Family::V4, config);
    let all: String = (0..35).map(|n| format!("10.0.0.{} ", n + 1)).collect();
    world.put("a", SetType::HashIp, &all);
    world.put("b", SetType::HashIp, "1.1.1.1");
    world.succeed();
    let lines: Vec<usize> = world.kernel.restored().iter().map(|text| text.lines().count()).collect();
    assert_eq!(lines, [12, 11, 11, 8]);
    assert_eq!(world.kernel.members("cali40a").len(), 35);
}

#[test]
fn whole_address_space_is_stored_as_halves() {
    let mut world = World::new();
    world.put("z", SetType::HashNet, "0.0.0.0/0 0.0.0.0/1");
    world.succeed();
    world.holds("z", "0.0.0.0/1 128.0.0.0/1");
    world.remove("z", "0.0.0.0/0");
    world.succeed();
    world.holds("z", "0.0.0.0/1");
    world.add("z", "0.0.0.0/0");
    world.remove("z", "0.0.0.0/1");
    world.succeed();
    world.holds("z", "0.0.0.0/1 128.0.0.0/1");
    world.remove("z", "0.0.0.0/0");
    world.succeed();
    world.holds("z", "");
}
