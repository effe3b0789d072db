//! One refused chain must not block all others.

use std::time::Duration;

use tortie_iptables::{
    Action, Backend, ChainProblem, CommandError, HookPosition, Matches, Plan, Rule, SaveReader, StandIn, Table,
    TableError, kernel_chain,
};

use support::{BACKENDS, FILTER, Lab, chain, config, describe, expected, jump, mark, name};

mod support;

const STAND_IN: &str = "Stands in for a chain that could not be programmed";

/// Returns the expected rules after stand-ins replaced the contents of some chains.
fn without_rules_of(text: &str, chains: &[&str]) -> String {
    let of = |line: &&str, chain: &&str| line.starts_with(&format!("-A {chain} "));
    let lines = text.lines().filter(|line| !chains.iter().any(|chain| of(line, chain)));
    lines.collect::<Vec<_>>().join("\n")
}

fn refused(lab: &Lab) -> Vec<(String, u32)> {
    let problems = lab.reconciler.problems();
    let refused = problems.into_iter().map(|problem| match problem {
        ChainProblem::Refused { chain, attempts, .. } => (chain.to_string(), attempts),
        other => panic!("unexpected: {other:?}"),
    });
    refused.collect()
}

#[test]
fn culprits_are_replaced_and_everything_else_is_programmed() {
    for backend in BACKENDS {
        for (bad, count) in
            [(&["cali-pi-03"][..], 9), (&["cali-pi-00", "cali-pi-07", "cali-tw-08"], 9), (&["cali-pi-00"], 1)]
        {
            let mut lab = Lab::new(backend);
            lab.run("-A FORWARD -s 10.0.0.1 -j ACCEPT");
            describe(&mut lab.reconciler, count);
            bad.iter().for_each(|chain| lab.kernel.refuse(hash_of(chain)));
            lab.apply();
            let names: Vec<String> = refused(&lab).into_iter().map(|(chain, _)| chain).collect();
            assert_eq!(names, bad, "{backend}");
            let want = without_rules_of(&expected(backend, count), bad);
            assert_eq!(without_rules_of(&lab.ours(), bad), want, "{backend}");
            for chain in bad {
                let [rule] = &lab.rules(chain)[..] else { panic!("one rule") };
                assert!(rule.contains(STAND_IN) && rule.ends_with("-j DROP"), "{rule}");
            }
            assert_eq!(lab.rules("FORWARD").len(), 3);
            // Nothing more is tried for now.
            let counters = lab.kernel.counters();
            lab.now += Duration::from_millis(500);
            lab.apply();
            assert_eq!(lab.kernel.counters(), counters);
        }
    }
}

/// The first hash of a chain as [`describe`] defines it.
fn hash_of(chain: &str) -> String {
    let lab = Lab::programmed(Backend::Legacy, 9);
    let rule = lab.rules(chain).swap_remove(0);
    let start = rule.find("cali:").expect("a hash") + "cali:".len();
    rule[start..start + 16].to_owned()
}

#[test]
fn few_restores_find_the_culprit_among_many() {
    for backend in BACKENDS {
        let mut lab = Lab::new(backend);
        describe(&mut lab.reconciler, 99);
        lab.kernel.refuse(hash_of("cali-pi-08"));
        lab.apply();
        // 11 of everything, then about twice the depth of a tree of 201 chains.
        let restores = lab.kernel.counters().restores;
        assert!(restores <= 11 + 2 * 8 + 4, "{restores} restores");
    }
}

#[test]
fn a_culprit_is_tried_again_with_growing_delays_and_recovers() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.kernel.refuse("--mark 0x800/0x800");
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        lab.apply();
        let mut delays = Vec::new();
        let mut last = lab.now;
        for attempt in 2..6 {
            loop {
                let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
                if refused(&lab)[0].1 == attempt {
                    break;
                }
                let Plan::Done { recheck_after: Some(wait), problems: 1 } = end else { panic!("{end:?}") };
                assert_eq!(lab.reconciler.problems().len(), 1);
                lab.now += wait;
            }
            delays.push((lab.now - last).as_secs());
            last = lab.now;
        }
        assert_eq!(delays, [1, 2, 4, 8]);
        let other = lab.kernel.rule_ids(FILTER, "cali-tw-02");
        lab.kernel.behave();
        lab.now += Duration::from_secs(300);
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
        assert!(lab.rules("cali-pi-01")[0].contains("--mark 0x800/0x800"));
        assert_eq!(lab.kernel.rule_ids(FILTER, "cali-tw-02"), other);
    }
}

#[test]
fn a_culprit_that_is_corrected_is_tried_at_once() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.kernel.refuse("--mark 0x800/0x800");
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        lab.apply();
        assert_eq!(refused(&lab).len(), 1);
        let restores = lab.kernel.counters().restores;
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x101)]));
        lab.apply();
        assert_eq!(lab.kernel.counters().restores, restores + 1);
        assert_eq!(lab.reconciler.problems(), []);
        assert_eq!(lab.ours(), expected(backend, 3));
    }
}

#[test]
fn a_culprit_does_not_hold_up_later_changes() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.kernel.refuse("--mark 0x800/0x800");
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        lab.apply();
        let restores = lab.kernel.counters().restores;
        lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(0x42)]));
        lab.apply();
        assert_eq!(lab.kernel.counters().restores, restores + 1);
        assert!(lab.rules("cali-pi-02")[0].contains("0x42"));
        // A chain that is no longer desired is no longer retried.
        lab.reconciler.update_chain(chain("cali-tw-01", vec![mark(1)]));
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
        assert!(lab.kernel.rules(FILTER, "cali-pi-01").is_none());
    }
}

#[test]
fn a_stand_in_that_others_remove_is_put_back() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.kernel.refuse("--mark 0x800/0x800");
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        lab.apply();
        lab.run("-F cali-pi-01");
        lab.reconciler.invalidate();
        lab.apply();
        assert!(lab.rules("cali-pi-01")[0].contains(STAND_IN));
    }
}

#[test]
fn an_undefined_chain_drops_and_is_reported() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.reconciler.remove_chain(name("cali-pi-01"));
        assert_eq!(lab.written().0, 1);
        assert_eq!(lab.reconciler.problems(), [ChainProblem::Undefined { chain: name("cali-pi-01") }]);
        let [rule] = &lab.rules("cali-pi-01")[..] else { panic!("one rule") };
        assert!(rule.ends_with("-j DROP"));
        describe(&mut lab.reconciler, 2);
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
        assert_eq!(lab.ours(), expected(backend, 2));
    }
}

#[test]
fn a_hook_to_nowhere_is_an_error_before_anything_is_written() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        let saved = lab.kernel.saved(FILTER);
        lab.reconciler.remove_chain(name("cali-FORWARD"));
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        let Plan::Failed(error) = end else { panic!("{end:?}") };
        assert_eq!(error.to_string(), "a hook in IPv4 table filter refers to chain cali-FORWARD, which is not defined");
        assert_eq!(lab.kernel.saved(FILTER), saved);
        describe(&mut lab.reconciler, 2);
        assert_eq!(lab.written(), (0, 0));
    }
}

#[test]
fn a_chain_that_a_hook_jumps_to_has_no_stand_in() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        let before = lab.rules("cali-FORWARD");
        lab.kernel.refuse("--mark 0x800/0x800");
        lab.reconciler
            .update_chain(chain("cali-FORWARD", vec![mark(0x800), jump("cali-dispatch"), jump("cali-empty")]));
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x42)]));
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        let Plan::Failed(TableError::Refused { chain: culprit, .. }) = end else { panic!("{end:?}") };
        assert_eq!(culprit, name("cali-FORWARD"));
        assert_eq!(lab.rules("cali-FORWARD"), before, "the kernel keeps the last valid rules");
        assert!(lab.rules("cali-pi-01")[0].contains("0x42"), "everything else is written");
        lab.kernel.behave();
        lab.apply();
        assert!(lab.rules("cali-FORWARD")[0].contains("0x800"));
    }
}

#[test]
fn on_a_clean_machine_no_hook_jumps_to_a_refused_chain() {
    for backend in BACKENDS {
        let mut lab = Lab::new(backend);
        lab.kernel.refuse("--mark 0x800/0x800");
        describe(&mut lab.reconciler, 2);
        lab.reconciler
            .update_chain(chain("cali-FORWARD", vec![mark(0x800), jump("cali-dispatch"), jump("cali-empty")]));
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        assert!(matches!(end, Plan::Failed(TableError::Refused { .. })), "{end:?}");
        assert_eq!(lab.rules("FORWARD"), [""; 0]);
        lab.kernel.behave();
        describe(&mut lab.reconciler, 2);
        lab.apply();
        assert_eq!(lab.ours(), expected(backend, 2));
    }
}

#[test]
fn callers_choose_the_stand_in() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        lab.kernel.refuse("--mark 0x800/0x800");
        let rules = vec![Rule::new(Action::Return)];
        lab.reconciler.set_stand_in(name("cali-pi-00"), StandIn::Rules(rules));
        lab.reconciler.set_stand_in(name("cali-pi-01"), StandIn::Never);
        lab.reconciler.update_chain(chain("cali-pi-00", vec![mark(0x800)]));
        lab.apply();
        assert!(lab.rules("cali-pi-00")[0].ends_with("-j RETURN"));
        lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(0x800)]));
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        assert!(matches!(end, Plan::Failed(TableError::Refused { .. })), "{end:?}");
    }
}

#[test]
fn in_the_nat_table_a_stand_in_does_nothing() {
    for backend in BACKENDS {
        let mut lab = Lab::with(tortie_iptables::ReconcilerConfig { table: Table::Nat, ..config(backend) });
        lab.kernel.refuse("--mark 0x800/0x800");
        lab.reconciler.set_hook(kernel_chain::OUTPUT, HookPosition::Insert, vec![jump("cali-OUTPUT")]);
        lab.reconciler.update_chain(chain("cali-OUTPUT", vec![jump("cali-fip-dnat")]));
        lab.reconciler.update_chain(chain("cali-fip-dnat", vec![mark(0x800)]));
        lab.apply();
        let [rule] = &lab.kernel.rules(Table::Nat, "cali-fip-dnat").expect("there")[..] else { panic!("one rule") };
        assert!(rule.contains(STAND_IN) && !rule.contains("-j"), "{rule}");
    }
}

#[test]
fn a_chain_that_cannot_be_deleted_is_emptied() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 2);
        // Another program jumps to a chain of ours with a rule that is not recognised as ours.
        lab.run("-N OTHER\n-A OTHER -g cali-pi-01");
        describe(&mut lab.reconciler, 1);
        lab.reconciler.update_chain(chain("cali-pi-00", vec![mark(0x42)]));
        lab.apply();
        let problems = lab.reconciler.problems();
        let [ChainProblem::Undeletable { chain, .. }] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!(*chain, name("cali-pi-01"));
        assert_eq!(lab.rules("cali-pi-01"), [""; 0]);
        assert_eq!(lab.rules("OTHER"), ["-g cali-pi-01"]);
        assert!(lab.rules("cali-pi-00")[0].contains("0x42"));
        let restores = lab.kernel.counters().restores;
        lab.apply();
        assert_eq!(lab.kernel.counters().restores, restores);
        lab.run("-F OTHER");
        lab.now += Duration::from_secs(300);
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
        assert!(lab.kernel.rules(FILTER, "cali-pi-01").is_none());
    }
}

#[test]
fn names_that_are_not_ours_are_refused() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        lab.reconciler.update_chain(chain("KUBE-FORWARD", vec![mark(1)]));
        lab.reconciler.set_hook(name("cali-empty"), HookPosition::Insert, vec![mark(1)]);
        assert_eq!(lab.written(), (0, 0));
        assert_eq!(
            lab.reconciler.problems(),
            [
                ChainProblem::WrongOwner { chain: name("KUBE-FORWARD") },
                ChainProblem::WrongOwner { chain: name("cali-empty") }
            ]
        );
    }
}

#[test]
fn rules_may_jump_to_existing_foreign_chains() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 1);
        lab.run("-N OTHER");
        lab.reconciler.update_chain(chain("cali-pi-00", vec![jump("OTHER")]));
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
        lab.reconciler.update_chain(chain("cali-pi-00", vec![jump("MISSING")]));
        lab.apply();
        assert_eq!(refused(&lab), [("cali-pi-00".to_owned(), 1)]);
    }
}

#[test]
fn a_missing_ip_set_stops_only_the_chain_that_needs_it() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        lab.kernel.set_ip_sets(["cali40there".to_owned()]);
        let in_set = |set: &str| {
            let set = tortie_iptables::IpSetName::new(set).expect("legal");
            Rule::when(Matches::new().ip_set(tortie_iptables::Side::Source, set), Action::Accept)
        };
        lab.reconciler.update_chain(chain("cali-pi-00", vec![in_set("cali40there")]));
        lab.reconciler.update_chain(chain("cali-pi-01", vec![in_set("cali40missing")]));
        lab.apply();
        assert_eq!(refused(&lab), [("cali-pi-01".to_owned(), 1)]);
        assert!(lab.rules("cali-pi-00")[0].contains("cali40there"));
        lab.kernel.set_ip_sets(["cali40there".to_owned(), "cali40missing".to_owned()]);
        lab.now += Duration::from_secs(10);
        lab.apply();
        assert_eq!(lab.reconciler.problems(), []);
    }
}

#[test]
fn a_lock_that_others_hold_is_no_chains_fault() {
    for backend in BACKENDS {
        let mut lab = Lab::programmed(backend, 3);
        let saved = lab.kernel.saved(FILTER);
        describe(&mut lab.reconciler, 5);
        let held = CommandError::Exit {
            code: Some(4),
            stderr: "Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock...".to_owned(),
        };
        let end = loop {
            match lab.reconciler.plan(lab.now) {
                Plan::Save(command) => {
                    let output = lab.kernel.save(&command).expect("works");
                    let snapshot = SaveReader::read(FILTER, &output).expect("readable");
                    lab.reconciler.on_saved(lab.now, Ok(snapshot));
                }
                Plan::Restore(_) => lab.reconciler.on_restored(lab.now, Err(held.clone())),
                Plan::Sleep { until } => lab.now = until,
                end => break end,
            }
        };
        let Plan::Failed(TableError::Restore { error, .. }) = end else { panic!("{end:?}") };
        assert_eq!(error, held);
        assert_eq!(lab.reconciler.stats().restore_errors, 11);
        assert_eq!((lab.kernel.saved(FILTER), lab.reconciler.problems()), (saved, vec![]));
    }
}
