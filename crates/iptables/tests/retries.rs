//! Times of the retries of a refused chain, with a fake clock: counting of attempts, and time until
//! the chain is restored.

use std::time::Duration;

use tortie_iptables::{
    Action, Backend, ChainProblem, CommandError, Features, InPlace, IpSetName, Matches, Plan, Rule, Side, TableError,
};

use support::{BACKENDS, FILTER, Lab, chain, describe, expected, jump, mark, name};

mod support;

const BAD: &str = "--mark 0x800/0x800";
/// Maximum pause between two attempts, and so the maximum time that an accepted chain stays
/// replaced.
const BOUND: Duration = Duration::from_secs(20);

/// A table in which one chain is refused.
fn lab(backend: Backend) -> Lab {
    let mut lab = Lab::programmed(backend, 3);
    lab.kernel.refuse(BAD);
    lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
    lab.apply();
    assert_eq!(attempts(&lab), [("cali-pi-01".to_owned(), 1)]);
    lab
}

fn attempts(lab: &Lab) -> Vec<(String, u32)> {
    let refused = lab.reconciler.problems().into_iter().filter_map(|problem| match problem {
        ChainProblem::Refused { chain, attempts, .. } => Some((chain.to_string(), attempts)),
        ChainProblem::Undefined { .. } => None,
        other => panic!("unexpected: {other:?}"),
    });
    refused.collect()
}

/// Returns the time until the next plan should be requested.
fn pause(end: &Plan) -> Duration {
    let Plan::Done { recheck_after: Some(pause), .. } = end else { panic!("{end:?}") };
    *pause
}

/// Applies at every due time, for that long.
fn live(lab: &mut Lab, time: Duration) {
    let end = lab.now + time;
    while lab.now < end {
        let next = pause(&lab.kernel.apply(&mut lab.reconciler, &mut lab.now));
        lab.now = (lab.now + next).min(end);
    }
}

#[test]
fn pauses_grow_to_a_bound_and_the_chain_is_back_within_it() {
    for backend in BACKENDS {
        let mut lab = lab(backend);
        let mut tried = vec![lab.now];
        while tried.len() < 10 {
            let before = attempts(&lab)[0].1;
            let next = pause(&lab.kernel.apply(&mut lab.reconciler, &mut lab.now));
            if attempts(&lab)[0].1 > before {
                tried.push(lab.now);
            }
            lab.now += next;
        }
        let pauses: Vec<u64> = tried.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 20, 20, 20, 20]);
        let restores = lab.kernel.counters().restores;
        live(&mut lab, Duration::from_secs(600));
        assert!(lab.kernel.counters().restores - restores <= 31, "one restore each 20 seconds");

        lab.kernel.behave();
        live(&mut lab, BOUND + Duration::from_secs(1));
        assert_eq!(lab.reconciler.problems(), []);
        assert!(lab.rules("cali-pi-01")[0].contains(BAD));
    }
}

#[test]
fn only_a_refusal_of_the_chain_alone_counts() {
    let held = CommandError::Exit { code: Some(4), stderr: "holding the xtables lock".to_owned() };
    let killed = CommandError::Exit { code: None, stderr: String::new() };
    let missing = CommandError::Io("no such program".to_owned());
    for backend in BACKENDS {
        let mut lab = lab(backend);
        for failure in [&held, &killed, &missing] {
            for _ in 0..5 {
                // The retry is due, but its outcome is unknown: the program fails.
                lab.now += BOUND;
                let end = lab.apply_through(|_, _, _| Err(failure.clone()));
                assert!(matches!(end, Plan::Failed(TableError::Restore { .. })), "{end:?}");
                assert_eq!(attempts(&lab), [("cali-pi-01".to_owned(), 1)], "{failure}");
            }
            // The same if the failures have another cause.
            lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(0x43)]));
            let end = lab.apply_through(|_, _, _| Err(failure.clone()));
            assert!(matches!(end, Plan::Failed(_)), "{end:?}");
            describe(&mut lab.reconciler, 3);
            lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        }
        lab.now += BOUND;
        lab.kernel.fail_saves(4);
        lab.reconciler.invalidate();
        assert!(matches!(lab.kernel.apply(&mut lab.reconciler, &mut lab.now), Plan::Failed(TableError::Save { .. })));
        assert_eq!(attempts(&lab)[0].1, 1);
        let stand_in = lab.rules("cali-pi-01");
        assert!(stand_in[0].ends_with("-j DROP"), "{stand_in:?}");
        // Once possible, the retry happens, and its pause is that after the first attempts.
        let end = lab.apply_watched(|_| {});
        assert_eq!(attempts(&lab)[0].1, 2);
        assert_eq!(pause(&end), Duration::from_secs(2));
    }
}

#[test]
fn refused_chains_are_retried_at_once_when_the_table_is_writable_again() {
    for backend in BACKENDS {
        let mut lab = lab(backend);
        live(&mut lab, Duration::from_secs(100));
        // Another change fails with every attempt.
        lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(0x42)]));
        lab.reconciler.update_chain(chain("cali-pi-00", vec![mark(0x43)]));
        lab.kernel.fail_restores(usize::MAX);
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        assert!(matches!(end, Plan::Failed(TableError::Restore { .. })), "{end:?}");
        let counted = attempts(&lab);
        lab.kernel.behave();
        let before = lab.now;
        lab.apply();
        assert!(lab.now - before < Duration::from_secs(1));
        assert_eq!(lab.reconciler.problems(), [], "{counted:?}");
        assert!(lab.rules("cali-pi-01")[0].contains(BAD));
    }
}

/// A program that recovers in the middle of a search makes an accepted chain look refused.
#[test]
fn chains_refused_while_nothing_was_accepted_are_retried_at_once() {
    for backend in BACKENDS {
        for failures in 0..60 {
            let mut lab = Lab::programmed(backend, 3);
            lab.kernel.fail_restores(failures);
            lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x101), mark(0x102)]));
            let before = lab.kernel.counters().restores;
            while lab.kernel.counters().restores <= before + failures {
                let _outcome = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
                lab.now += Duration::from_secs(1);
            }
            assert_eq!(lab.reconciler.problems(), [], "{failures} failures");
            assert!(lab.rules("cali-pi-01")[1].contains("0x102"));
        }
    }
}

/// Returns a lab in which a chain was refused so often that the pause is long.
fn long_refused(backend: Backend, rules: Vec<Rule>, refuse: &str) -> Lab {
    let mut lab = Lab::programmed(backend, 3);
    lab.kernel.refuse(refuse);
    lab.reconciler.update_chain(chain("cali-pi-01", rules));
    live(&mut lab, Duration::from_secs(200));
    assert!(attempts(&lab)[0].1 > 6);
    lab
}

/// Applies, and expects one immediate refused attempt and a restart of the pauses.
fn expect_fresh_attempt(lab: &mut Lab) {
    let end = lab.apply_watched(|_| {});
    assert_eq!(attempts(lab), [("cali-pi-01".to_owned(), 1)]);
    assert_eq!(pause(&end), Duration::from_secs(1));
}

#[test]
fn a_chain_is_tried_at_once_when_its_own_content_changes() {
    for backend in BACKENDS {
        let mut lab = long_refused(backend, vec![mark(0x800)], BAD);
        let counters = lab.kernel.counters();
        // An equal definition changes nothing.
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        lab.apply();
        assert_eq!(lab.kernel.counters(), counters);
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x101), mark(0x800)]));
        expect_fresh_attempt(&mut lab);
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x101)]));
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
    }
}

#[test]
fn a_chain_is_retried_at_once_when_a_jump_target_appears_or_is_accepted() {
    for backend in BACKENDS {
        let mut lab = long_refused(backend, vec![mark(0x800), jump("cali-late")], BAD);
        assert_eq!(lab.reconciler.problems()[0], ChainProblem::Undefined { chain: name("cali-late") });
        lab.reconciler.update_chain(chain("cali-late", vec![mark(0x400)]));
        lab.kernel.refuse("--mark 0x400/0x400");
        lab.apply();
        let first = |lab: &Lab| attempts(lab).into_iter().find(|(chain, _)| chain == "cali-pi-01").map(|(_, n)| n);
        assert_eq!(first(&lab), Some(1), "it appeared, though only its stand-in is there");
        live(&mut lab, Duration::from_secs(200));
        assert!(first(&lab) > Some(6));
        // The other one is accepted; this one is still refused.
        lab.reconciler.update_chain(chain("cali-late", vec![mark(0x404)]));
        lab.apply();
        assert_eq!(attempts(&lab), [("cali-pi-01".to_owned(), 1)]);
    }
}

#[test]
fn a_chain_is_retried_at_once_when_its_set_exists() {
    let set = IpSetName::new("cali40late").expect("legal");
    let other = IpSetName::new("cali40other").expect("legal");
    for backend in BACKENDS {
        let rule = Rule::when(Matches::new().ip_set(Side::Source, set), Action::Return);
        let mut lab = Lab::programmed(backend, 3);
        lab.kernel.set_ip_sets([]);
        lab.reconciler.update_chain(chain("cali-pi-01", vec![rule]));
        live(&mut lab, Duration::from_secs(200));
        let counters = lab.kernel.counters();
        lab.reconciler.on_ip_set_available(other);
        lab.apply();
        assert_eq!(lab.kernel.counters(), counters, "no rule refers to it");
        lab.reconciler.on_ip_set_available(set);
        expect_fresh_attempt(&mut lab);
        lab.kernel.set_ip_sets(["cali40late".to_owned()]);
        lab.reconciler.on_ip_set_available(set);
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
    }
}

#[test]
fn a_chain_is_tried_at_once_when_the_features_change() {
    for backend in BACKENDS {
        let mut lab = long_refused(backend, vec![mark(0x800)], BAD);
        lab.reconciler.set_features(Features { snat_random_fully: false, ..Features::ALL });
        expect_fresh_attempt(&mut lab);
    }
}

#[test]
fn due_retries_are_made_together() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 6);
        let chains = ["cali-pi-01", "cali-pi-02", "cali-pi-03", "cali-pi-04"];
        lab.kernel.refuse(BAD);
        chains.iter().for_each(|bad| lab.reconciler.update_chain(chain(bad, vec![mark(0x800)])));
        lab.apply();
        assert_eq!(attempts(&lab).len(), 4);
        lab.now += BOUND;
        let restores = lab.kernel.counters().restores;
        lab.apply();
        assert_eq!(lab.kernel.counters().restores - restores, 4 + 2 + 1, "halves, down to each of four");
        assert_eq!(attempts(&lab), chains.map(|chain| (chain.to_owned(), 2)));
        lab.kernel.behave();
        lab.now += BOUND;
        let restores = lab.kernel.counters().restores;
        lab.apply();
        assert_eq!(lab.kernel.counters().restores - restores, 1);
        assert_eq!(lab.reconciler.problems(), []);
    }
}

#[test]
fn a_chain_of_which_nothing_is_accepted_is_left_alone_and_the_rest_goes_on() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        let before = lab.rules("cali-pi-01");
        // Its stand-in is refused, too.
        lab.kernel.refuse("-A cali-pi-01 ");
        lab.kernel.refuse("-R cali-pi-01 ");
        for index in ["cali-pi-00", "cali-pi-01", "cali-pi-02"] {
            lab.reconciler.update_chain(chain(index, vec![mark(0x42)]));
        }
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        assert!(
            matches!(end, Plan::Failed(TableError::Refused { chain, .. }) if chain == name("cali-pi-01")),
            "{end:?}"
        );
        let problems = lab.reconciler.problems();
        assert!(matches!(problems[..], [ChainProblem::Refused { in_place: InPlace::Unchanged, .. }]), "{problems:?}");
        assert_eq!(lab.rules("cali-pi-01"), before);
        for other in ["cali-pi-00", "cali-pi-02"] {
            assert!(lab.rules(other)[0].contains("--mark 0x42/0x42"), "{other}");
        }
        // Later changes do not have to wait for it.
        lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(0x43)]));
        let restores = lab.kernel.counters().restores;
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        assert!(matches!(end, Plan::Failed(TableError::Refused { .. })), "{end:?}");
        assert_eq!(lab.kernel.counters().restores, restores + 1);
        assert!(lab.rules("cali-pi-02")[0].contains("--mark 0x43/0x43"));

        lab.kernel.behave();
        lab.now += BOUND;
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
        describe(&mut lab.reconciler, 3);
        lab.apply();
        assert!(!lab.kernel.saved(FILTER).contains("0x42"));
        assert_eq!(lab.ours(), expected(backend, 3));
    }
}
