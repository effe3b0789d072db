//! The generation of the nftables ruleset saves reads and hides no changes.

use std::time::Duration;

use tortie_iptables::{Backend, Plan};

use support::{FILTER, Lab, chain, expected, mark};

mod support;

const CHECKS: usize = 2000;

/// Requests plans when they are due, for about that time. Returns the number of saves.
fn saves_within(lab: &mut Lab, time: Duration) -> usize {
    let before = lab.kernel.counters().saves;
    let end = lab.now + time;
    for _ in 0..CHECKS {
        match lab.kernel.apply(&mut lab.reconciler, &mut lab.now) {
            Plan::Done { recheck_after: Some(pause), .. } if lab.now + pause < end => lab.now += pause,
            Plan::Done { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    lab.kernel.counters().saves - before
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_table_without_foreign_writes_is_read_once() {
    let mut lab = Lab::programmed(Backend::Nft, 3);
    assert_eq!(lab.kernel.counters().saves, 1);
    assert_eq!(saves_within(&mut lab, HOUR), 0);

    // Nor is it read before a change of ours.
    lab.reconciler.update_chain(chain("cali-pi-01", vec![mark(9)]));
    lab.apply();
    assert_eq!(lab.kernel.counters().saves, 1);
    assert_eq!(lab.rules("cali-pi-01").len(), 1);
    assert_eq!(saves_within(&mut lab, HOUR), 0);

    // Without a generation, the table is read periodically.
    let mut lab = Lab::programmed(Backend::Legacy, 3);
    assert!(saves_within(&mut lab, HOUR) > 10);
}

#[test]
fn foreign_writes_are_found_at_the_next_check() {
    for lines in ["-F cali-pi-01", "-I FORWARD -j ACCEPT", "-A cali-tw-00 -j ACCEPT", "-N theirs"] {
        let mut lab = Lab::programmed(Backend::Nft, 3);
        saves_within(&mut lab, HOUR);
        lab.run(lines);
        lab.now += Duration::from_secs(181);
        let saves = lab.kernel.counters().saves;
        lab.apply();
        // One read, and the repair counts as ours.
        assert_eq!(lab.kernel.counters().saves - saves, 1, "{lines}");
        assert_eq!(lab.ours(), expected(Backend::Nft, 3), "{lines}");
        assert_eq!(saves_within(&mut lab, HOUR), 0, "{lines}");
    }
    let mut lab = Lab::programmed(Backend::Nft, 3);
    lab.kernel.wipe(FILTER);
    lab.now += Duration::from_secs(181);
    lab.apply();
    assert_eq!(lab.ours(), expected(Backend::Nft, 3));
}

#[test]
fn concurrent_foreign_writes_are_found_in_the_same_apply() {
    let mut lab = Lab::programmed(Backend::Nft, 3);
    lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(9)]));
    lab.kernel.interfere(FILTER, "-F cali-pi-01");
    lab.apply();
    assert_eq!(lab.kernel.counters().saves, 2);
    assert_eq!((lab.rules("cali-pi-01").len(), lab.rules("cali-pi-02").len()), (1, 1));
}

#[test]
fn a_generation_that_cannot_be_read_proves_nothing() {
    let mut lab = Lab::programmed(Backend::Nft, 3);
    lab.kernel.hide_generation(true);
    lab.run("-F cali-pi-01");
    lab.now += Duration::from_secs(181);
    lab.apply();
    assert_eq!(lab.ours(), expected(Backend::Nft, 3));
    // Nor does one that can be read again.
    lab.run("-F cali-pi-01");
    lab.kernel.hide_generation(false);
    lab.now += Duration::from_secs(181);
    lab.apply();
    assert_eq!(lab.ours(), expected(Backend::Nft, 3));

    // It cannot be read after a write that relied on it.
    let mut lab = Lab::programmed(Backend::Nft, 3);
    lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(9)]));
    lab.reconciler.set_foreign_commits(None);
    lab.kernel.interfere(FILTER, "-F cali-pi-01");
    lab.apply();
    assert_eq!(lab.rules("cali-pi-01").len(), 1);
}

#[test]
fn a_failed_write_is_followed_by_a_read() {
    let mut lab = Lab::programmed(Backend::Nft, 3);
    lab.reconciler.update_chain(chain("cali-pi-02", vec![mark(9)]));
    lab.kernel.fail_restores(2);
    lab.apply();
    assert_eq!(lab.kernel.counters().saves, 3);
    assert_eq!(saves_within(&mut lab, HOUR), 0);
}

/// The kernel does not count a transaction that changes nothing; if one may be among ours, the
/// count is unusable.
#[test]
fn transactions_that_may_change_nothing_prove_nothing() {
    let mut lab = Lab::programmed(Backend::Nft, 3);
    lab.run("-F cali-pi-01");
    lab.reconciler.pin_chain(support::name("cali-pinned"));
    lab.reconciler.update_chain(chain("cali-pinned", vec![]));
    lab.reconciler.invalidate();
    lab.apply();
    // An empty unreachable chain: emptying it before it is deleted changes nothing.
    lab.reconciler.unpin_chain(support::name("cali-pinned"));
    lab.kernel.interfere(FILTER, "-F cali-pi-02");
    lab.apply();
    assert_eq!(lab.kernel.chains(FILTER).iter().filter(|chain| *chain == "cali-pinned").count(), 0);
    assert_eq!(lab.ours(), expected(Backend::Nft, 3));
}
