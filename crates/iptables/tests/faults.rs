//! Tests of the reconciler against a kernel in memory with failing programs, concurrent writers,
//! and restarts.

use std::time::Duration;

use tortie_iptables::fake::FakeKernel;
use tortie_iptables::{Backend, CommandError, HookPosition, Plan, Purpose, TableError, kernel_chain};

use support::{
    BACKENDS, FILTER, Lab, chain, config, describe, expected, mark, name, noflush, reconciler, restore_text,
};

mod support;

#[test]
fn a_writer_between_our_read_and_our_write_is_noticed() {
    let races = ["-F FORWARD", "-D FORWARD 1", "-F cali-tw-00", "-F cali-tw-00\n-F cali-pi-00\n-X cali-pi-00"];
    for backend in BACKENDS {
        for race in races {
            let mut lab = Lab::programmed(backend, 2);
            lab.reconciler.update_chain(chain("cali-tw-00", vec![mark(1), mark(3)]));
            lab.reconciler.set_hook(kernel_chain::FORWARD, HookPosition::Append, vec![mark(0x20)]);
            race.lines().for_each(|line| lab.kernel.interfere(FILTER, line));
            lab.apply();
            // The check after the write finds changes that the kernel did not refuse.
            lab.now += Duration::from_secs(6);
            lab.apply();
            assert!(lab.reconciler.is_in_sync());
            let mut fresh = Lab::programmed(backend, 2);
            fresh.reconciler.update_chain(chain("cali-tw-00", vec![mark(1), mark(3)]));
            fresh.reconciler.set_hook(kernel_chain::FORWARD, HookPosition::Append, vec![mark(0x20)]);
            fresh.apply();
            assert_eq!(lab.ours(), fresh.ours(), "{backend} {race}");
        }
    }
}

/// Returns the pauses of the reconciler, and its last plan.
fn sleeps(lab: &mut Lab) -> (Vec<u64>, Plan) {
    let mut sleeps = Vec::new();
    loop {
        match lab.reconciler.plan(lab.now) {
            Plan::Save(command) => {
                let output = lab.kernel.save(&command);
                let mut reader = lab.reconciler.save_reader();
                let result = output.and_then(|output| {
                    reader.feed(&output);
                    Ok(reader.finish()?)
                });
                lab.reconciler.on_saved(lab.now, result);
            }
            Plan::Restore(command) => {
                let result = lab.kernel.restore(&command, &command.input);
                lab.reconciler.on_restored(lab.now, result);
            }
            Plan::Sleep { until } => {
                sleeps.push(u64::try_from((until - lab.now).as_millis()).expect("short"));
                lab.now = until;
            }
            end => return (sleeps, end),
        }
    }
}

#[test]
fn failing_restores_are_retried_with_back_off() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        describe(&mut lab.reconciler, 2);
        lab.kernel.fail_restores(10);
        let before = lab.kernel.counters();
        let (waits, end) = sleeps(&mut lab);
        assert!(matches!(end, Plan::Done { .. }));
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(lab.ours(), expected(backend, 2));
        assert_eq!(lab.kernel.counters().saves - before.saves, 11, "read again before each attempt");
        assert_eq!(lab.reconciler.stats().restore_errors, 10);
    }
}

#[test]
fn if_nothing_can_be_written_the_kernel_state_stays() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        let saved = lab.kernel.saved(FILTER);
        describe(&mut lab.reconciler, 2);
        lab.kernel.fail_restores(usize::MAX);
        let (_, end) = sleeps(&mut lab);
        let Plan::Failed(TableError::Restore { error, .. }) = end else { panic!("{end:?}") };
        assert_eq!(error, CommandError::Exit { code: Some(4), stderr: "injected failure".to_owned() });
        assert_eq!(lab.kernel.saved(FILTER), saved);
        // The next plan starts a new cycle.
        lab.kernel.fail_restores(0);
        lab.apply();
        assert_eq!(lab.ours(), expected(backend, 2));
        assert_eq!(lab.reconciler.problems(), []);
    }
}

#[test]
fn failing_saves_are_retried_with_back_off() {
    let mut lab = Lab::new(Backend::Nft);
    describe(&mut lab.reconciler, 1);
    lab.kernel.fail_saves(3);
    let (waits, end) = sleeps(&mut lab);
    assert_eq!(waits, [100, 200, 400]);
    assert!(matches!(end, Plan::Done { .. }));
    lab.kernel.fail_saves(4);
    lab.reconciler.invalidate();
    let (_, end) = sleeps(&mut lab);
    assert!(matches!(end, Plan::Failed(TableError::Save { .. })));
    lab.apply();
    assert_eq!(lab.reconciler.stats().save_errors, 7);
}

#[test]
fn a_save_that_dies_or_cannot_show_the_table_is_not_an_empty_table() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        let saved = lab.kernel.saved(FILTER);
        lab.kernel.truncate_saves(1);
        lab.reconciler.invalidate();
        assert_eq!(lab.written(), (0, 0));
        lab.kernel.set_incompatible(FILTER, true);
        lab.reconciler.invalidate();
        let (_, end) = sleeps(&mut lab);
        assert!(matches!(end, Plan::Failed(TableError::Save { error: CommandError::Save(_), .. })));
        assert_eq!(lab.kernel.saved(FILTER), saved);
    }
}

#[test]
fn an_outcome_that_is_never_reported_counts_as_unknown() {
    for backend in BACKENDS {
        let mut lab = Lab::new(backend);
        describe(&mut lab.reconciler, 2);
        let text = restore_text(&mut lab);
        // It took effect, but its result is not reported.
        lab.kernel.restore(&noflush(), &text).expect("acceptable");
        assert!(matches!(lab.reconciler.plan(lab.now), Plan::Save(_)));
        assert_eq!(lab.written(), (0, 0));
        // Results without a plan change nothing.
        lab.reconciler.on_restored(lab.now, Err(CommandError::Io("late".to_owned())));
        lab.reconciler.on_saved(lab.now, Err(CommandError::Io("late".to_owned())));
        lab.apply();
        assert_eq!(lab.ours(), expected(backend, 2));
    }
}

#[test]
fn being_killed_between_two_transactions_does_no_harm() {
    let mut lab = Lab::programmed(Backend::Nft, 3);
    describe(&mut lab.reconciler, 1);
    lab.reconciler.remove_chain(name("cali-tw-02"));
    lab.reconciler.remove_chain(name("cali-pi-02"));
    let text = restore_text(&mut lab);
    lab.kernel.crash_after(1);
    lab.kernel.restore(&noflush(), &text).expect_err("killed");
    assert!(lab.kernel.chains(FILTER).contains(&"cali-tw-02".to_owned()));
    assert_eq!(lab.rules("cali-dispatch").len(), 2, "the first transaction is complete");
    lab.restart();
    describe(&mut lab.reconciler, 1);
    lab.apply();
    assert_eq!(lab.ours(), expected(Backend::Nft, 1));
}

#[test]
fn a_sweep_removes_ours_and_rests_after_a_failure() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.run("-A FORWARD -s 10.0.0.1 -j ACCEPT");
        let foreign = lab.foreign();
        lab.reconciler = reconciler(tortie_iptables::ReconcilerConfig {
            purpose: Purpose::Sweep,
            refresh_interval: None,
            ..config(backend)
        });
        lab.kernel.fail_saves(4);
        let rest = Duration::from_secs(180);
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        assert_eq!(end, Plan::Done { recheck_after: Some(rest), problems: 0 });
        lab.now += rest / 2;
        let saves = lab.kernel.counters().saves;
        assert_eq!(lab.reconciler.plan(lab.now), Plan::Done { recheck_after: Some(rest / 2), problems: 0 });
        assert_eq!(lab.kernel.counters().saves, saves);
        lab.now += rest / 2;
        lab.kernel.fail_restores(11);
        lab.apply();
        assert_ne!(lab.ours(), "");
        lab.now += rest;
        lab.apply();
        assert_eq!(lab.ours(), "");
        assert_eq!(lab.foreign(), foreign);
    }
    // An unused table is not written.
    let mut kernel = FakeKernel::new(Backend::Nft);
    let mut sweep = reconciler(tortie_iptables::ReconcilerConfig { purpose: Purpose::Sweep, ..config(Backend::Nft) });
    let _ = kernel.apply(&mut sweep, &mut Duration::ZERO.clone());
    assert_eq!(kernel.counters().restores, 0);
}

#[test]
fn rules_of_ours_that_cannot_be_removed_by_value_are_removed_by_number() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        lab.run("-I INPUT -m comment --comment odd -j cali-FORWARD\n-I INPUT -j ACCEPT\n-A INPUT -j ACCEPT");
        // Deletion by value never succeeds.
        lab.kernel.refuse("-D INPUT -m comment --comment odd");
        lab.reconciler.invalidate();
        lab.apply();
        assert_eq!(lab.rules("INPUT"), ["-j ACCEPT", "-j ACCEPT"]);
        assert_eq!(lab.reconciler.problems(), []);
    }
}

#[test]
fn changes_while_a_program_runs_are_not_lost() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.reconciler.update_chain(chain("cali-pi-00", vec![mark(7)]));
        let text = restore_text(&mut lab);
        lab.reconciler.update_chain(chain("cali-pi-00", vec![mark(8)]));
        lab.reconciler.update_chain(chain("cali-tw-01", vec![mark(9)]));
        lab.reconciler.set_hook(kernel_chain::FORWARD, HookPosition::Append, vec![]);
        lab.kernel.restore(&noflush(), &text).expect("acceptable");
        lab.reconciler.on_restored(lab.now, Ok(()));
        lab.apply();
        assert!(lab.rules("cali-pi-00")[0].contains("0x8/0x8"));
        assert!(lab.rules("cali-tw-01")[0].contains("0x9/0x9"));
        assert_eq!(lab.rules("FORWARD").len(), 1);
        assert!(lab.kernel.rules(FILTER, "cali-pi-01").is_none());
        let counters = lab.kernel.counters();
        lab.reconciler.invalidate();
        lab.apply();
        assert_eq!(lab.kernel.counters().restores, counters.restores);
    }
}

#[test]
fn competition_for_the_first_rule_is_rate_limited() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        let before = lab.kernel.counters().restores;
        let mut other_inserts = 0;
        for second in 1..=120 {
            lab.now = lab.now.max(Duration::from_secs(second));
            lab.apply();
            if !lab.rules("FORWARD")[0].contains("192.0.2.1") {
                other_inserts += 1;
                lab.run("-I FORWARD -s 192.0.2.1 -j ACCEPT");
            }
        }
        let restores = lab.kernel.counters().restores - before;
        assert!((20..=24).contains(&restores), "every five seconds, not {restores} times");
        assert!(other_inserts > 20);
    }
}
