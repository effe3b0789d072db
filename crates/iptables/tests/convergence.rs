//! After any sequence of changes, interference and faults, the kernel is in sync, rules of other
//! programs are unchanged, and nothing was written without need.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tortie_iptables::{Backend, HookPosition, InsertMode, Plan, ReconcilerConfig, Rule, kernel_chain};

use support::{FILTER, Lab, chain, config, jump, mark, reconciler};

mod support;

const CHAINS: [&str; 6] = ["cali-A", "cali-B", "cali-C", "cali-D", "cali-E", "cali-F"];

/// Rules of one chain: each is a mark, or a jump to one of the chains after this one.
type Spec = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    Define(usize, Spec),
    Undefine(usize),
    Hook { output: bool, append: bool, rules: Spec },
    Foreign(String),
    Interfere(String),
    Wipe,
    Refuse(u8),
    FailRestores(usize),
    FailSaves(usize),
    TruncateSaves(usize),
    Crash(usize),
    HideGeneration(bool),
    Restart,
    Apply,
    Pass(u64),
}

/// Desired state, to describe it again after a restart.
#[derive(Clone, Debug, Default)]
struct DesiredState {
    chains: BTreeMap<usize, Spec>,
    hooks: BTreeMap<(bool, bool), Spec>,
}

fn rules(after: usize, spec: &Spec) -> Vec<Rule> {
    let behind = CHAINS.get(after..).unwrap_or_default();
    let rule = |choice: &u8| match choice.checked_sub(4) {
        Some(at) if !behind.is_empty() => jump(behind[usize::from(at) % behind.len()]),
        _ => mark(1 << (choice % 4)),
    };
    spec.iter().map(rule).collect()
}

impl DesiredState {
    fn describe_chain(&self, lab: &mut Lab, index: usize) {
        if let Some(spec) = self.chains.get(&index) {
            lab.reconciler.update_chain(chain(CHAINS[index], rules(index + 1, spec)));
        }
    }

    fn describe_hook(&self, lab: &mut Lab, (output, append): (bool, bool)) {
        let kernel_chain = if output { kernel_chain::OUTPUT } else { kernel_chain::FORWARD };
        let position = if append { HookPosition::Append } else { HookPosition::Insert };
        let spec = self.hooks.get(&(output, append)).cloned().unwrap_or_default();
        lab.reconciler.set_hook(kernel_chain, position, rules(0, &spec));
    }

    fn describe(&self, lab: &mut Lab) {
        (0..CHAINS.len()).for_each(|index| self.describe_chain(lab, index));
        self.hooks.keys().for_each(|place| self.describe_hook(lab, *place));
    }

    /// Targets of hooks have no stand-in, so these are always defined.
    fn define_hooked_chains(&mut self) {
        for spec in self.hooks.values() {
            for target in rules(0, spec).iter().filter_map(Rule::target) {
                let index = CHAINS.iter().position(|name| *name == target.as_str()).expect("one of them");
                self.chains.entry(index).or_default();
            }
        }
    }
}

fn foreign_line() -> impl Strategy<Value = String> {
    let chain = prop_oneof![
        3 => Just("FORWARD"), 2 => Just("OUTPUT"), 1 => Just("INPUT"), 1 => Just("USER"),
        3 => any::<Index>().prop_map(|index| CHAINS[index.index(CHAINS.len())]),
    ];
    let rule = prop_oneof![
        (1..5u8).prop_map(|host| format!("-s 10.0.0.{host}/32 -j ACCEPT")),
        Just("-j cali-A".to_owned()),
        Just("-m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j ACCEPT".to_owned()),
        Just("-m comment --comment \"not cali:wUHhoiAYhphO9Mso\" -j ACCEPT".to_owned()),
    ];
    (chain, rule, 0..7u8, 1..4u8).prop_map(|(chain, rule, verb, number)| match verb {
        0 => format!("-I {chain} {rule}"),
        1 => format!("-I {chain} {number} {rule}"),
        2 => format!("-A {chain} {rule}"),
        3 => format!("-D {chain} {number}"),
        4 => format!("-F {chain}"),
        5 if chain == "USER" || chain.starts_with("cali") => format!("-X {chain}"),
        5 => "-N USER".to_owned(),
        _ => format!("-R {chain} {number} {rule}"),
    })
}

fn op() -> impl Strategy<Value = Op> {
    let spec = vec(0..10u8, 0..5);
    prop_oneof![
        6 => (0..CHAINS.len(), spec).prop_map(|(index, spec)| Op::Define(index, spec)),
        2 => (0..CHAINS.len()).prop_map(Op::Undefine),
        3 => (any::<bool>(), any::<bool>(), vec(0..10u8, 0..3))
            .prop_map(|(output, append, rules)| Op::Hook { output, append, rules }),
        5 => foreign_line().prop_map(Op::Foreign),
        1 => foreign_line().prop_map(Op::Interfere),
        1 => Just(Op::Wipe),
        1 => (0..4u8).prop_map(Op::Refuse),
        1 => (0..13usize).prop_map(Op::FailRestores),
        1 => (0..6usize).prop_map(Op::FailSaves),
        1 => (0..3usize).prop_map(Op::TruncateSaves),
        1 => (0..3usize).prop_map(Op::Crash),
        1 => any::<bool>().prop_map(Op::HideGeneration),
        2 => Just(Op::Restart),
        6 => Just(Op::Apply),
        1 => (1..400u64).prop_map(Op::Pass),
    ]
}

fn perform(lab: &mut Lab, desired: &mut DesiredState, op: Op) {
    match op {
        Op::Define(index, spec) => {
            desired.chains.insert(index, spec);
            desired.describe_chain(lab, index);
        }
        Op::Undefine(index) => {
            desired.chains.remove(&index);
            lab.reconciler.remove_chain(support::name(CHAINS[index]));
            desired.define_hooked_chains();
            desired.describe_chain(lab, index);
        }
        Op::Hook { output, append, rules } => {
            desired.hooks.insert((output, append), rules);
            desired.define_hooked_chains();
            desired.describe(lab);
        }
        // The command may fail.
        Op::Foreign(line) => drop(lab.kernel.run(FILTER, &line)),
        Op::Interfere(line) => lab.kernel.interfere(FILTER, line),
        Op::Wipe => lab.kernel.wipe(FILTER),
        Op::Refuse(bit) => lab.kernel.refuse(format!("--mark {0:#x}/{0:#x}", 1 << bit)),
        Op::FailRestores(count) => lab.kernel.fail_restores(count),
        Op::FailSaves(count) => lab.kernel.fail_saves(count),
        Op::TruncateSaves(count) => lab.kernel.truncate_saves(count),
        Op::Crash(transactions) => {
            lab.kernel.crash_after(transactions);
            let _ = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
            restart(lab, desired);
        }
        Op::HideGeneration(hidden) => lab.kernel.hide_generation(hidden),
        Op::Restart => restart(lab, desired),
        Op::Apply => drop(lab.kernel.apply(&mut lab.reconciler, &mut lab.now)),
        Op::Pass(seconds) => lab.now += Duration::from_secs(seconds),
    }
}

fn restart(lab: &mut Lab, desired: &DesiredState) {
    lab.reconciler = reconciler(lab.reconciler.config().clone());
    desired.describe(lab);
}

/// Returns the rules of other programs by chain, in order, without jumps to our chains and rules
/// with our hash comment.
fn foreign_rules(lab: &Lab) -> Vec<String> {
    let saved = lab.kernel.saved(FILTER);
    let ours = |line: &str| line.contains("\"cali:") || line.contains("-j cali-") || line.starts_with("-A cali-");
    saved.lines().filter(|line| line.starts_with('-') && !ours(line)).map(str::to_owned).collect()
}

/// Returns our rules with the numbers that they keep until they are written again.
fn numbered_rules(lab: &Lab) -> BTreeMap<(String, usize), (String, u64)> {
    let chains = lab.kernel.chains(FILTER).into_iter().filter(|chain| chain.starts_with("cali-"));
    chains
        .flat_map(|chain| {
            let ids = lab.kernel.rule_ids(FILTER, &chain);
            let rules = lab.rules(&chain).into_iter().zip(ids).enumerate().collect::<Vec<_>>();
            rules.into_iter().map(move |(at, rule)| ((chain.clone(), at), rule))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_becomes_as_wanted(
        ops in vec(op(), 0..40),
        backend in prop_oneof![Just(Backend::Legacy), Just(Backend::Nft)],
        insert_mode in prop_oneof![Just(InsertMode::Insert), Just(InsertMode::Append)],
        reads_entries in any::<bool>(),
    ) {
        let config = ReconcilerConfig { insert_mode, ..config(backend) };
        let mut lab = Lab::with(config.clone());
        lab.kernel.read_entries(reads_entries);
        let mut desired = DesiredState::default();
        for op in ops {
            perform(&mut lab, &mut desired, op);
        }

        // No more faults and interference.
        lab.kernel.behave();
        let _ = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        lab.now += Duration::from_secs(400);
        let foreign = foreign_rules(&lab);
        let before = numbered_rules(&lab);
        lab.apply();
        prop_assert_eq!(&foreign_rules(&lab), &foreign);
        prop_assert!(lab.reconciler.is_in_sync());

        // The result is that of a machine without earlier events.
        let mut fresh = Lab::with(config);
        desired.describe(&mut fresh);
        fresh.apply();
        let by_chain = |lab: &Lab| {
            let rules = lab.ours();
            let mut lines: Vec<String> = rules.lines().filter(|line| !line.contains("not cali:")).map(str::to_owned).collect();
            lines.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
            lines
        };
        prop_assert_eq!(by_chain(&lab), by_chain(&fresh));
        let problems = lab.reconciler.problems();
        prop_assert_eq!(problems, fresh.reconciler.problems());

        // Rules in sync were not written.
        if backend == Backend::Legacy {
            for (place, (rule, id)) in numbered_rules(&lab) {
                if let Some((old, old_id)) = before.get(&place) {
                    prop_assert!(old != &rule || *old_id == id, "{:?} was rewritten", place);
                }
            }
        }

        // From here on nothing is written, not even after a restart.
        restart(&mut lab, &desired);
        prop_assert_eq!(lab.written(), (0, 0));

        // A reconciler without desired state removes everything.
        lab.restart();
        let end = lab.kernel.apply(&mut lab.reconciler, &mut lab.now);
        let is_done = matches!(end, Plan::Done { .. });
        prop_assert!(is_done);
        prop_assert_eq!(by_chain(&lab), Vec::<String>::new());
        prop_assert_eq!(&foreign_rules(&lab), &foreign);
    }
}
