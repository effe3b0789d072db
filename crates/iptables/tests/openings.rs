//! A partly refused chain allows all that its remaining rules allow, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use tortie_iptables::fake::FakeKernel;
use tortie_iptables::{Action, Backend, Chain, ChainProblem, Cidr, InPlace, MarkBits, Matches, Plan, Rule, Side};

use support::{BACKENDS, FILTER, Lab, describe, name};

mod support;

const CHAIN: &str = "cali-pi-01";
const BOUND: Duration = Duration::from_secs(31);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Allow,
    Deny,
    Pass,
}
use Kind::{Allow, Deny, Pass};

/// Action of a rule, and the source of its packets.
type Spec = (Kind, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChainOutcome {
    Accept,
    Pass,
    Deny,
    None,
}

const ACCEPT: u32 = 0x1_0000;
const PASS: u32 = 0x2_0000;

fn mark_of(kind: Kind) -> u32 {
    match kind {
        Allow => ACCEPT,
        Pass => PASS,
        Deny => 0x4_0000,
    }
}

fn bits(mark: u32) -> MarkBits {
    MarkBits::new(mark).expect("not zero")
}

/// Returns a chain like that of a policy: a mark, and a rule that acts on it.
fn policy(specs: &[Spec]) -> Chain {
    let mut rules = Vec::new();
    for (number, (kind, host)) in specs.iter().enumerate() {
        let net = Cidr::host([10, 0, 0, *host].into());
        let mark = bits(mark_of(*kind));
        let last = if *kind == Deny { Action::Drop } else { Action::Return };
        let mut pair = [
            Rule::when(Matches::new().net(Side::Source, net), Action::SetMark(mark)).comment("an annotation"),
            Rule::when(Matches::new().mark_set(mark), last),
        ];
        if *kind == Allow {
            let number = u32::try_from(number).expect("small");
            pair.iter_mut().for_each(|rule| rule.opens = Some(number));
        }
        rules.extend(pair);
    }
    while rules.last().is_some_and(|rule| rule.action == Some(Action::Return)) {
        rules.pop();
    }
    if rules.is_empty() {
        rules.push(Rule::default());
    }
    rules[0].add_comment("Policy one ingress");
    Chain::new(name(CHAIN), rules)
}

/// Returns the text by which the fake kernel can refuse this rule.
fn text_of((kind, host): Spec) -> String {
    format!("--source 10.0.0.{host}/32 --jump MARK --set-mark {0:#x}/{0:#x}", mark_of(kind))
}

fn meaning(specs: &[Spec], host: u8) -> ChainOutcome {
    match specs.iter().find(|(_, of)| *of == host) {
        Some((Allow, _)) => ChainOutcome::Accept,
        Some((Pass, _)) => ChainOutcome::Pass,
        Some((Deny, _)) => ChainOutcome::Deny,
        None => ChainOutcome::None,
    }
}

/// Evaluates the chain in the kernel for a packet.
fn walk(kernel: &FakeKernel, host: u8) -> ChainOutcome {
    let mut mark = 0;
    for rule in kernel.rules(FILTER, CHAIN).expect("the chain is there") {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let after = |option: &str| words.iter().position(|word| *word == option).map(|at| words[at + 1]);
        let number = |text: &str| {
            let text = text.split('/').next().expect("a part");
            u32::from_str_radix(text.trim_start_matches("0x"), 16).expect(text)
        };
        if after("-s").is_some_and(|source| source != format!("10.0.0.{host}/32"))
            || after("--mark").is_some_and(|wanted| mark & number(wanted) == 0)
        {
            continue;
        }
        match after("-j") {
            Some("MARK") => mark |= number(after("--set-xmark").expect("an argument")),
            Some("DROP") => return ChainOutcome::Deny,
            Some("RETURN") => break,
            None => {}
            other => panic!("{other:?}"),
        }
    }
    match mark {
        ACCEPT => ChainOutcome::Accept,
        PASS => ChainOutcome::Pass,
        _ => ChainOutcome::None,
    }
}

/// Reports whether a verdict allows no more than the intended one.
fn is_closed(verdict: ChainOutcome, meaning: ChainOutcome) -> bool {
    match verdict {
        ChainOutcome::Accept => meaning == ChainOutcome::Accept,
        ChainOutcome::Pass => matches!(meaning, ChainOutcome::Accept | ChainOutcome::Pass),
        ChainOutcome::Deny | ChainOutcome::None => true,
    }
}

fn lab_with(backend: Backend, specs: &[Spec]) -> Lab {
    let mut lab = Lab::new(backend);
    describe(&mut lab.reconciler, 3);
    lab.reconciler.update_chain(policy(specs));
    lab.apply();
    lab
}

fn in_place(lab: &Lab) -> Option<InPlace> {
    match lab.reconciler.problems()[..] {
        [] => None,
        [ChainProblem::Refused { in_place, .. }] => Some(in_place),
        ref other => panic!("{other:?}"),
    }
}

fn verdicts(lab: &Lab, hosts: std::ops::Range<u8>) -> Vec<ChainOutcome> {
    hosts.map(|host| walk(&lab.kernel, host)).collect()
}

#[test]
fn only_the_openings_that_are_refused_are_left_out() {
    use ChainOutcome::{Accept, None, Pass as Passed};
    for backend in BACKENDS {
        for refused in [&[1][..], &[3], &[5], &[1, 5], &[1, 3, 4, 5]] {
            let mut lab = lab_with(backend, &[(Allow, 9)]);
            refused.iter().for_each(|host| lab.kernel.refuse(text_of((Allow, *host))));
            lab.reconciler.update_chain(policy(&[
                (Allow, 1),
                (Deny, 2),
                (Allow, 3),
                (Allow, 4),
                (Pass, 6),
                (Allow, 5),
            ]));
            lab.apply();
            assert_eq!(in_place(&lab), Some(InPlace::Reduced { left_out: refused.len() }), "{backend} {refused:?}");
            let open = |host| if refused.contains(&host) { None } else { Accept };
            assert_eq!(verdicts(&lab, 1..7), [open(1), ChainOutcome::Deny, open(3), open(4), open(5), Passed]);
            assert_eq!(walk(&lab.kernel, 9), None);
            assert!(lab.rules(CHAIN).concat().contains("Policy one ingress"), "it still names its owner");
            lab.kernel.behave();
            lab.now += BOUND;
            lab.apply();
            assert_eq!(in_place(&lab), Option::None);
            assert_eq!(verdicts(&lab, 1..7), [Accept, ChainOutcome::Deny, Accept, Accept, Accept, Passed]);
        }
    }
}

#[test]
fn existing_openings_stay_while_an_addition_is_refused() {
    let old: [&[Spec]; 4] = [&[(Allow, 1)], &[(Allow, 2)], &[(Allow, 3), (Deny, 5)], &[(Allow, 1), (Allow, 3)]];
    for backend in BACKENDS {
        for old in old {
            let mut new = vec![(Allow, 1), (Allow, 2), (Allow, 3), (Allow, 4)];
            new.extend(old.iter().filter(|(kind, _)| *kind == Deny));
            let mut lab = lab_with(backend, old);
            lab.kernel.refuse(text_of((Allow, 4)));
            lab.reconciler.update_chain(policy(&new));
            let end = lab.apply_watched(|kernel| {
                for (kind, host) in old {
                    let open = walk(kernel, *host) == ChainOutcome::Accept;
                    assert_eq!(open, *kind == Allow, "{backend} {old:?}: {host} at any moment");
                }
            });
            assert!(matches!(end, Plan::Done { .. }), "{end:?}");
            assert_eq!(in_place(&lab), Some(InPlace::Reduced { left_out: 1 }), "{old:?}");
            assert_eq!(verdicts(&lab, 1..4), [ChainOutcome::Accept; 3]);
        }
    }
}

#[test]
fn the_existing_chain_is_kept_if_it_opens_no_more_and_every_alternative_is_refused() {
    for backend in BACKENDS {
        let mut lab = lab_with(backend, &[(Deny, 1), (Allow, 2)]);
        let before = lab.rules(CHAIN);
        lab.kernel.refuse(format!("-A {CHAIN} "));
        lab.kernel.refuse(format!("-R {CHAIN} "));
        lab.reconciler.update_chain(policy(&[(Deny, 1), (Allow, 2), (Allow, 3), (Allow, 4)]));
        lab.apply();
        assert_eq!(lab.rules(CHAIN), before);
        assert_eq!(in_place(&lab), Some(InPlace::Reduced { left_out: 2 }));
        // Not if it allows more.
        lab.kernel.behave();
        lab.kernel.refuse(text_of((Deny, 2)));
        lab.reconciler.update_chain(policy(&[(Deny, 1), (Deny, 2), (Allow, 3)]));
        lab.apply();
        assert_eq!(in_place(&lab), Some(InPlace::StandIn));
        assert_eq!(verdicts(&lab, 0..5), [ChainOutcome::Deny; 5]);
    }
}

#[test]
fn a_successor_continues_with_the_existing_chain() {
    for backend in BACKENDS {
        let wanted = policy(&[(Allow, 1), (Deny, 2), (Allow, 3), (Allow, 4)]);
        let mut lab = lab_with(backend, &[]);
        lab.kernel.refuse(text_of((Allow, 3)));
        lab.reconciler.update_chain(wanted.clone());
        lab.apply();
        let before = lab.rules(CHAIN);
        lab.restart();
        describe(&mut lab.reconciler, 3);
        lab.reconciler.update_chain(wanted);
        let end = lab.apply_watched(|kernel| assert_eq!(kernel.rules(FILTER, CHAIN).as_ref(), Some(&before)));
        assert!(matches!(end, Plan::Done { .. }), "{end:?}");
        assert_eq!(in_place(&lab), Some(InPlace::Reduced { left_out: 1 }));
    }
}

#[test]
fn a_reduced_chain_that_others_damage_is_put_right() {
    for backend in BACKENDS {
        let mut lab = lab_with(backend, &[]);
        lab.kernel.refuse(text_of((Allow, 3)));
        lab.reconciler.update_chain(policy(&[(Allow, 1), (Deny, 2), (Allow, 3), (Allow, 4)]));
        lab.apply();
        let before = lab.rules(CHAIN);
        lab.run(&format!("-F {CHAIN}"));
        lab.reconciler.invalidate();
        lab.apply();
        assert_eq!(lab.rules(CHAIN), before);
        // If some of it is refused by then, less of it is kept.
        lab.kernel.refuse(text_of((Allow, 4)));
        lab.run(&format!("-F {CHAIN}"));
        lab.reconciler.invalidate();
        lab.apply();
        assert_eq!(
            verdicts(&lab, 1..5),
            [ChainOutcome::Accept, ChainOutcome::Deny, ChainOutcome::None, ChainOutcome::None]
        );
    }
}

#[test]
fn a_search_that_is_cut_short_leaves_nothing_open() {
    for backend in BACKENDS {
        let (old, new) = ([(Allow, 1), (Allow, 9)], [(Allow, 1), (Deny, 2), (Allow, 3), (Allow, 4), (Allow, 5)]);
        for allowed in 11..30 {
            let mut lab = lab_with(backend, &old);
            lab.kernel.refuse(text_of((Allow, 4)));
            lab.reconciler.update_chain(policy(&new));
            let mut count = 0;
            let end = lab.apply_through(|kernel, command, input| {
                count += 1;
                if count > allowed {
                    return Err(tortie_iptables::CommandError::Io("no more".to_owned()));
                }
                kernel.restore(command, input)
            });
            if matches!(end, Plan::Done { .. }) {
                continue;
            }
            let is_old = walk(&lab.kernel, 9) == ChainOutcome::Accept;
            let closed = (0..10).all(|host| is_closed(walk(&lab.kernel, host), meaning(&new, host)));
            assert!(is_old || closed, "{allowed}");
            lab.kernel.behave();
            lab.now += BOUND;
            lab.apply();
            assert_eq!(in_place(&lab), None);
            assert_eq!(verdicts(&lab, 1..6), new.map(|(_, host)| meaning(&new, host)));
        }
    }
}

#[test]
fn many_refused_openings_do_not_cost_without_bound() {
    for backend in BACKENDS {
        let mut lab = lab_with(backend, &[]);
        lab.kernel.refuse("--set-mark 0x10000/0x10000");
        let mut wanted: Vec<Spec> = (0..250).map(|host| (Allow, host)).collect();
        wanted.insert(100, (Deny, 7));
        lab.reconciler.update_chain(policy(&wanted));
        lab.apply();
        let restores = lab.kernel.counters().restores;
        assert!(restores < 100, "{restores}");
        lab.now += BOUND;
        lab.apply();
        assert!(lab.kernel.counters().restores - restores <= 66);
        lab.kernel.behave();
        lab.now += BOUND;
        lab.apply();
        assert_eq!(in_place(&lab), None);
    }
}

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let kind = prop_oneof![4 => Just(Allow), 1 => Just(Deny), 1 => Just(Pass)];
    vec((kind, 0..6u8), 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// At no moment does the chain in the kernel allow a packet that the desired chain does not
    /// allow. Inputs are old and new rules, and refused rules; with some of the new rules as old
    /// ones, the kernel already has a part of them.
    #[test]
    fn no_packet_passes_that_the_desired_chain_denies(
        backend in prop_oneof![Just(Backend::Legacy), Just(Backend::Nft)],
        unrelated in prop::option::of(specs()),
        new in specs(),
        missing in vec(any::<Index>(), 0..4),
        refused in btree_set((prop_oneof![6 => Just(Allow), 1 => Just(Deny), 1 => Just(Pass)], 0..6u8), 0..4),
        failures in 0..3usize,
    ) {
        let mut old = new.clone();
        for index in missing {
            if !old.is_empty() {
                old.remove(index.index(old.len()));
            }
        }
        let old = unrelated.unwrap_or(old);
        let mut lab = lab_with(backend, &old);
        let before = lab.rules(CHAIN);
        refused.iter().for_each(|spec| lab.kernel.refuse(text_of(*spec)));
        lab.kernel.fail_restores(failures);
        lab.reconciler.update_chain(policy(&new));
        let mut open = Vec::new();
        let end = lab.apply_watched(|kernel| {
            if kernel.rules(FILTER, CHAIN).as_ref() != Some(&before) {
                open.extend((0..7).filter(|host| !is_closed(walk(kernel, *host), meaning(&new, *host))));
            }
        });
        prop_assert!(matches!(end, Plan::Done { .. }), "{:?}", end);
        prop_assert_eq!(open, Vec::<u8>::new(), "at some moment");
        for host in 0..7 {
            prop_assert!(is_closed(walk(&lab.kernel, host), meaning(&new, host)), "{} in the end", host);
        }

        // Only refused openings are left out. The kernel does not refuse rules that it already has.
        let had_some = old.iter().any(|spec| refused.contains(spec));
        let hit: BTreeSet<Spec> = new.iter().copied().filter(|spec| refused.contains(spec)).collect();
        if !had_some && hit.iter().all(|(kind, _)| *kind == Allow) {
            let kept: Vec<Spec> = new.iter().copied().filter(|spec| !hit.contains(spec)).collect();
            for host in 0..7 {
                prop_assert_eq!(walk(&lab.kernel, host), meaning(&kept, host), "{}", host);
            }
        }
        prop_assert!(had_some || in_place(&lab).is_some() != hit.is_empty());

        lab.kernel.behave();
        lab.now += BOUND;
        lab.apply();
        prop_assert_eq!(in_place(&lab), None);
        for host in 0..7 {
            prop_assert_eq!(walk(&lab.kernel, host), meaning(&new, host), "{}", host);
        }
    }
}
