//! Tests of the writes and repairs of the reconciler, against a kernel in memory.

use std::time::Duration;

use tortie_iptables::{
    Backend, Command, Features, HookPosition, InsertMode, Plan, Programs, Reconciler, ReconcilerConfig, Table,
    kernel_chain,
};

use support::{BACKENDS, FILTER, Lab, chain, config, describe, expected, jump, mark, name, restore_text};

mod support;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_first_plan_reads_the_table() {
    let mut lab = Lab::new(Backend::Nft);
    let command = Command {
        program: "iptables-nft-save".to_owned(),
        args: vec!["-t".to_owned(), "filter".to_owned()],
        input: String::new(),
    };
    assert_eq!(lab.reconciler.plan(lab.now), Plan::Save(command));
}

/// `iptables-restore` may be that of iptables-nft, whose tables are not among the legacy ones.
#[test]
fn tables_that_general_programs_write_are_read_by_them() {
    let config = config(Backend::Legacy);
    let reads_entries = |config: &ReconcilerConfig| Reconciler::new(config.clone(), Features::ALL).reads_entries();
    assert!(reads_entries(&config));
    let Programs { save, restore } = config.programs.clone();
    let [general_save, general_restore] = ["iptables-save", "iptables-restore"].map(str::to_owned);
    for programs in [Programs { save: general_save, restore }, Programs { save, restore: general_restore }] {
        assert!(!reads_entries(&ReconcilerConfig { programs, ..config.clone() }));
    }
}

#[test]
fn restore_never_flushes_and_waits_for_the_lock() {
    let restore = |features| {
        let mut reconciler = Reconciler::new(config(Backend::Legacy), features);
        describe(&mut reconciler, 0);
        let _ = reconciler.plan(Duration::ZERO);
        reconciler.on_saved(Duration::ZERO, Ok(reconciler.save_reader().finish().expect("readable")));
        match reconciler.plan(Duration::ZERO) {
            Plan::Restore(command) => command.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(restore(Features::ALL), "iptables-legacy-restore --noflush --verbose --wait 10 --wait-interval 50000");
    let old = Features { restore_supports_lock: false, ..Features::ALL };
    assert_eq!(restore(old), "iptables-legacy-restore --noflush --verbose");
}

#[test]
fn the_first_text_on_a_clean_machine() {
    for backend in BACKENDS {
        let mut lab = Lab::new(backend);
        describe(&mut lab.reconciler, 0);
        assert_eq!(
            restore_text(&mut lab),
            r#"*filter
:cali-FORWARD - -
:cali-dispatch - -
:cali-empty - -
-A cali-FORWARD -m comment --comment "cali:m2rh533tP9pygAow" -m mark --mark 0x1/0x1 --jump RETURN
-A cali-FORWARD -m comment --comment "cali:h34yAdbvlEnrGyXC" --jump cali-dispatch
-A cali-FORWARD -m comment --comment "cali:h59YfLgCOzkc19KG" --jump cali-empty
-A cali-dispatch -m comment --comment "cali:0cMFoHbcMb_TT1Ja" -m comment --comment "Unknown interface" --jump DROP
-I FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" --jump cali-FORWARD
-A FORWARD -m comment --comment "cali:U2xRpjo-GgBjLP04" -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10/0x10 --jump RETURN
COMMIT
"#
        );
    }
}

#[test]
fn legacy_writes_the_least_and_nft_whole_chains() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x101), mark(8), mark(9)]));
        lab.reconciler.update_chain(chain("cali-tw-00", vec![mark(1), mark(3)]));
        lab.reconciler.remove_chain(name("cali-pi-00"));
        let text = restore_text(&mut lab);
        let verbs: Vec<String> = text
            .lines()
            .map(|line| line.split(' ').take_while(|word| *word != "-m").collect::<Vec<_>>().join(" "))
            .collect();
        let want: &[&str] = match backend {
            Backend::Legacy => &[
                "*filter",
                ":cali-pi-00 - -",
                "-A cali-pi-01",
                "-A cali-pi-01",
                "-R cali-tw-00 2",
                "-D cali-tw-00 3",
                "--delete-chain cali-pi-00",
                "COMMIT",
            ],
            Backend::Nft => &[
                "*filter",
                ":cali-pi-00 - -",
                ":cali-pi-01 - -",
                ":cali-tw-00 - -",
                "-A cali-pi-01",
                "-A cali-pi-01",
                "-A cali-pi-01",
                "-A cali-tw-00",
                "-A cali-tw-00",
                "COMMIT",
                "*filter",
                ":cali-pi-00 - -",
                "--delete-chain cali-pi-00",
                "COMMIT",
            ],
        };
        assert_eq!(verbs, want, "{backend}");
    }
}

#[test]
fn a_restart_with_the_same_state_writes_nothing() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.run("-I FORWARD 2 -j ACCEPT");
        let saved = lab.kernel.saved(FILTER);
        let counters = lab.kernel.counters();
        lab.restart();
        describe(&mut lab.reconciler, 3);
        lab.apply();
        assert_eq!(lab.kernel.counters().restores, counters.restores);
        assert_eq!(lab.kernel.saved(FILTER), saved);
    }
}

#[test]
fn a_restart_with_one_change_writes_only_that_and_keeps_counters() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        let ids = lab.kernel.rule_ids(FILTER, "cali-tw-01");
        let policy = lab.kernel.rule_ids(FILTER, "cali-pi-01");
        lab.restart();
        describe(&mut lab.reconciler, 3);
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x101), mark(7)]));
        assert_eq!(lab.written(), if backend == Backend::Legacy { (1, 0) } else { (2, 1) });
        assert_eq!(lab.kernel.rule_ids(FILTER, "cali-tw-01"), ids);
        if backend == Backend::Legacy {
            assert_eq!(lab.kernel.rule_ids(FILTER, "cali-pi-01")[..1], policy);
        }
    }
}

#[test]
fn chains_left_over_from_an_earlier_run_are_removed() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.run("-N felix-FORWARD\n-N califw-x\n-A felix-FORWARD -j califw-x\n-A INPUT -j felix-FORWARD");
        lab.restart();
        describe(&mut lab.reconciler, 1);
        lab.apply();
        assert_eq!(lab.ours(), expected(backend, 1));
        assert!(!lab.kernel.saved(FILTER).contains("califw-x"));
        assert!(!lab.kernel.saved(FILTER).contains("felix-"));
    }
}

#[test]
fn without_desired_state_nothing_is_left() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.run("-A INPUT -j ACCEPT");
        lab.restart();
        lab.apply();
        assert_eq!(lab.ours(), "");
        assert_eq!(lab.rules("INPUT"), ["-j ACCEPT"]);
    }
}

#[test]
fn only_reachable_chains_are_programmed() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        lab.reconciler.update_chain(chain("cali-pi-99", vec![mark(5), jump("cali-pi-98")]));
        let counters = lab.kernel.counters();
        lab.apply();
        assert_eq!(lab.kernel.counters(), counters, "not even read");
        // The parent comes before its children are defined.
        lab.reconciler.update_chain(chain("cali-tw-00", vec![jump("cali-pi-99")]));
        lab.reconciler.update_chain(chain("cali-pi-98", vec![mark(6)]));
        lab.apply();
        assert!(lab.kernel.rules(FILTER, "cali-pi-98").is_some());
        assert!(lab.kernel.rules(FILTER, "cali-pi-00").is_none());
        lab.reconciler.update_chain(chain("cali-dispatch", vec![]));
        lab.apply();
        let chains = lab.kernel.chains(FILTER).into_iter().filter(|chain| chain.starts_with("cali-"));
        assert_eq!(chains.collect::<Vec<_>>(), ["cali-FORWARD", "cali-dispatch", "cali-empty"]);
        lab.reconciler.pin_chain(name("cali-pi-98"));
        lab.apply();
        assert!(lab.kernel.rules(FILTER, "cali-pi-98").is_some());
        lab.reconciler.unpin_chain(name("cali-pi-98"));
        lab.apply();
        assert!(lab.kernel.rules(FILTER, "cali-pi-98").is_none());
    }
}

#[test]
fn references_swap_and_chains_come_back_in_one_go() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        // An endpoint moves from one policy to another that is new, and the old one goes.
        lab.reconciler.update_chain(chain("cali-tw-00", vec![jump("cali-pi-new")]));
        lab.reconciler.update_chain(chain("cali-pi-new", vec![mark(5)]));
        lab.reconciler.remove_chain(name("cali-pi-00"));
        // A parent goes together with its child.
        lab.reconciler.remove_chain(name("cali-tw-01"));
        lab.reconciler.remove_chain(name("cali-pi-01"));
        lab.reconciler.update_chain(chain("cali-dispatch", vec![jump("cali-tw-00")]));
        lab.apply();
        let chains = lab.kernel.chains(FILTER).into_iter().filter(|chain| chain.starts_with("cali-"));
        assert_eq!(
            chains.collect::<Vec<_>>(),
            ["cali-FORWARD", "cali-dispatch", "cali-empty", "cali-pi-new", "cali-tw-00"]
        );
        // Removed and added again before anything was written.
        lab.reconciler.remove_chain(name("cali-pi-new"));
        lab.reconciler.update_chain(chain("cali-pi-new", vec![mark(5)]));
        assert_eq!(lab.written(), (0, 0));
        describe(&mut lab.reconciler, 2);
        lab.apply();
        assert_eq!(lab.ours(), expected(backend, 2));
    }
}

#[test]
fn a_changed_feature_rewrites_the_affected_rules() {
    for backend in BACKENDS {
        let mut lab = Lab::with(ReconcilerConfig { table: Table::Nat, ..config(backend) });
        let masquerade = tortie_iptables::Rule::new(tortie_iptables::Action::Masquerade { ports: None });
        lab.reconciler.set_hook(kernel_chain::POSTROUTING, HookPosition::Append, vec![jump("cali-POSTROUTING")]);
        lab.reconciler.update_chain(chain("cali-POSTROUTING", vec![masquerade]));
        lab.apply();
        assert!(lab.kernel.saved(Table::Nat).contains("--random-fully"));
        lab.reconciler.set_features(Features { masquerade_random_fully: false, ..Features::ALL });
        assert_eq!(lab.written().0, 1);
        assert!(!lab.kernel.saved(Table::Nat).contains("--random-fully"));
    }
}

#[test]
fn hooks_are_put_back_and_the_rules_of_others_keep_their_order() {
    let attacks = [
        "-F FORWARD",
        "-D FORWARD 1",
        "-I FORWARD -s 192.0.2.1 -j ACCEPT",
        "-A FORWARD -s 192.0.2.2 -j ACCEPT",
        "-I FORWARD 2 -s 192.0.2.3 -j ACCEPT",
        "-I FORWARD -j cali-FORWARD",
        "-I INPUT -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD",
        "-N DOCKER-USER\n-A DOCKER-USER -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD\n-A DOCKER-USER -j RETURN",
    ];
    for backend in BACKENDS {
        for insert_mode in [InsertMode::Insert, InsertMode::Append] {
            for attack in attacks {
                let mut lab = Lab::with(ReconcilerConfig { insert_mode, ..config(backend) });
                lab.run("-A FORWARD -s 10.0.0.1 -j ACCEPT\n-A FORWARD -s 10.0.0.2 -j ACCEPT");
                describe(&mut lab.reconciler, 1);
                lab.apply();
                let ours = lab.ours();
                lab.run(attack);
                let foreign = lab.foreign();
                lab.now += HOUR;
                lab.apply();
                assert_eq!(lab.ours(), ours, "{backend} {insert_mode:?} {attack}");
                assert_eq!(lab.foreign(), foreign, "{backend} {insert_mode:?} {attack}");
                let forward = lab.rules("FORWARD");
                let at = |hash: &str| forward.iter().position(|rule| rule.contains(hash)).expect("there");
                let first = if insert_mode == InsertMode::Insert { 0 } else { forward.len() - 2 };
                assert_eq!((at("wUHhoiAYhphO9Mso"), at("U2xRpjo-GgBjLP04")), (first, forward.len() - 1));
            }
        }
    }
}

#[test]
fn clobbered_chains_are_repaired() {
    let attacks = [
        "-F cali-pi-00",
        "-A cali-pi-00 -j ACCEPT",
        "-I cali-pi-00 -j ACCEPT",
        "-D cali-tw-00 1",
        "-R cali-tw-00 2 -j ACCEPT",
        "-F cali-tw-00\n-F cali-pi-00\n-X cali-pi-00",
        "-N cali-unknown\n-A cali-unknown -j cali-pi-00",
        "-A cali-empty -j ACCEPT",
        "-A cali-pi-00 -m comment --comment cali:0123456789abcdef -j ACCEPT",
    ];
    for backend in BACKENDS {
        for attack in attacks {
            let mut lab = Lab::programmed(backend, 2);
            let untouched = lab.kernel.rule_ids(FILTER, "cali-tw-01");
            lab.run(attack);
            lab.now += HOUR;
            lab.apply();
            assert_eq!(lab.ours(), expected(backend, 2), "{backend} {attack}");
            assert_eq!(lab.kernel.rule_ids(FILTER, "cali-tw-01"), untouched);
            assert_eq!(lab.reconciler.stats().clobbered, if attack.contains("-X") { 2 } else { 1 });
        }
    }
}

#[test]
fn a_wiped_table_is_filled_again() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.kernel.wipe(FILTER);
        lab.reconciler.invalidate();
        lab.apply();
        assert_eq!(lab.ours(), expected(backend, 2));
    }
}

#[test]
fn the_table_is_checked_5_10_20_seconds_after_a_write_and_at_each_refresh() {
    let mut lab = Lab::programmed(Backend::Legacy, 1);
    let mut reads = Vec::new();
    let mut saves = lab.kernel.counters().saves;
    for second in 1..=400 {
        lab.now = Duration::from_secs(second) + Duration::from_millis(500);
        lab.apply();
        if lab.kernel.counters().saves > saves {
            saves = lab.kernel.counters().saves;
            reads.push(second);
        }
    }
    // Doubling 5, 10, 20, … from the write, and 180 after the last read.
    assert_eq!(reads, [5, 10, 20, 40, 80, 160, 320]);
    let mut quiet =
        Lab::with(ReconcilerConfig { refresh_interval: None, post_write_interval: HOUR, ..config(Backend::Nft) });
    assert_eq!(
        quiet.kernel.apply(&mut quiet.reconciler, &mut quiet.now),
        Plan::Done { recheck_after: None, problems: 0 }
    );
    lab.now += HOUR;
    lab.apply();
    assert_eq!(
        lab.kernel.apply(&mut lab.reconciler, &mut lab.now),
        Plan::Done { recheck_after: Some(Duration::from_millis(179_999)), problems: 0 }
    );
}

#[test]
fn metrics_count_operations() {
    let mut lab = Lab::new(Backend::Legacy);
    describe(&mut lab.reconciler, 1);
    let lines = restore_text(&mut lab).lines().count() as u64;
    let stats = lab.reconciler.stats();
    assert_eq!((stats.lines_executed, stats.restore_calls, stats.save_calls), (lines, 1, 1));
    // cali-FORWARD, cali-dispatch, cali-empty, one endpoint, one policy, and three of the kernel's.
    assert_eq!((stats.chains, stats.rules), (8, 3 + 2 + 3 + 1 + 2));
}

#[test]
fn comments_of_others_with_anything_in_them_are_left_alone() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        let long = "x".repeat(255);
        for comment in ["say \\\"hi\\\"", "ünïcode", "see cali:wUHhoiAYhphO9Mso", long.as_str()] {
            lab.run(&format!("-A INPUT -m comment --comment \"{comment}\" -j ACCEPT"));
        }
        let saved = lab.kernel.saved(FILTER);
        lab.restart();
        describe(&mut lab.reconciler, 1);
        assert_eq!(lab.written(), (0, 0));
        assert_eq!(lab.kernel.saved(FILTER), saved);
    }
}

#[test]
fn one_more_endpoint_among_very_many_is_a_small_change() {
    let mut lab = Lab::programmed(Backend::Legacy, 99);
    let before = lab.reconciler.stats().lines_executed;
    describe(&mut lab.reconciler, 100);
    lab.apply();
    // Two chains declared and four rules in them; two rules of the dispatch chain; and the
    // transaction.
    assert_eq!(lab.reconciler.stats().lines_executed - before, 2 + 4 + 2 + 2);
}

#[test]
fn reject_becomes_drop_outside_the_filter_table() {
    use tortie_iptables::{Action, Family, RejectWith, Rule};
    let name = "cali-a".parse().unwrap();
    let rule = Rule::new(Action::Reject(RejectWith::PortUnreachable));
    for (table, expected) in [
        (Table::Filter, Action::Reject(RejectWith::PortUnreachable)),
        (Table::Raw, Action::Drop),
        (Table::Mangle, Action::Drop),
        (Table::Nat, Action::Drop),
    ] {
        let mut reconciler = Reconciler::new(ReconcilerConfig::new(table, Family::V4, Backend::Nft), Features::ALL);
        reconciler.update_chain(tortie_iptables::Chain::new(name, vec![rule.clone()]));
        assert_eq!(reconciler.chain(name).unwrap().rules[0].action, Some(expected), "{table:?}");
    }
}
