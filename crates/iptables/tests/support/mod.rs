//! Common parts of the reconciler tests: a small ruleset, and short constructors of rules.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Duration;

use tortie_iptables::fake::FakeKernel;
use tortie_iptables::{
    Action, Backend, Chain, ChainName, Command, CommandError, Family, Features, HookPosition, MarkBits, Matches, Plan,
    Reconciler, ReconcilerConfig, Rule, Table, kernel_chain,
};

pub(crate) const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];
pub(crate) const FILTER: Table = Table::Filter;

pub(crate) fn name(text: &str) -> ChainName {
    ChainName::new(text).expect("a legal chain name")
}

pub(crate) fn jump(chain: &str) -> Rule {
    Rule::new(Action::Jump(name(chain)))
}

/// A rule that differs from others by its mark.
pub(crate) fn mark(bits: u32) -> Rule {
    let bits = MarkBits::new(bits).expect("not zero");
    Rule::when(Matches::new().mark_set(bits), Action::Return)
}

pub(crate) fn chain(text: &str, rules: Vec<Rule>) -> Chain {
    Chain::new(name(text), rules)
}

pub(crate) fn reconciler(config: ReconcilerConfig) -> Reconciler {
    Reconciler::new(config, Features::ALL)
}

pub(crate) fn config(backend: Backend) -> ReconcilerConfig {
    ReconcilerConfig::new(FILTER, Family::V4, backend)
}

/// FORWARD jumps to a dispatch chain and on to `count` endpoints, each with a separate policy.
pub(crate) fn describe(reconciler: &mut Reconciler, count: usize) {
    let endpoint = |index: usize| format!("cali-tw-{index:02}");
    let policy = |index: usize| format!("cali-pi-{index:02}");
    let mut dispatch: Vec<Rule> = (0..count).map(|index| jump(&endpoint(index))).collect();
    dispatch.push(Rule::new(Action::Drop).comment("Unknown interface"));
    reconciler.set_hook(kernel_chain::FORWARD, HookPosition::Insert, vec![jump("cali-FORWARD")]);
    reconciler.set_hook(
        kernel_chain::FORWARD,
        HookPosition::Append,
        vec![mark(0x10).comment("Policy explicitly accepted packet.")],
    );
    reconciler.update_chain(chain("cali-FORWARD", vec![mark(1), jump("cali-dispatch"), jump("cali-empty")]));
    reconciler.update_chain(chain("cali-empty", vec![]));
    reconciler.update_chain(chain("cali-dispatch", dispatch));
    for index in 0..count {
        reconciler.update_chain(chain(&endpoint(index), vec![mark(1), jump(&policy(index)), mark(2)]));
        reconciler.update_chain(chain(&policy(index), vec![mark(0x100 + u32::try_from(index).expect("small"))]));
    }
}

/// A reconciler and its kernel, and the time.
pub(crate) struct Lab {
    pub(crate) kernel: FakeKernel,
    pub(crate) reconciler: Reconciler,
    pub(crate) now: Duration,
}

impl Lab {
    pub(crate) fn new(backend: Backend) -> Self {
        Self::with(config(backend))
    }

    pub(crate) fn with(config: ReconcilerConfig) -> Self {
        let kernel = FakeKernel::new(config.backend);
        Self { kernel, reconciler: reconciler(config), now: Duration::ZERO }
    }

    /// Returns a lab with `count` endpoints in the kernel.
    pub(crate) fn programmed(backend: Backend, count: usize) -> Self {
        let mut lab = Self::new(backend);
        describe(&mut lab.reconciler, count);
        lab.apply();
        lab
    }

    pub(crate) fn apply(&mut self) {
        let end = self.kernel.apply(&mut self.reconciler, &mut self.now);
        assert!(matches!(end, Plan::Done { .. }), "{end:?}");
    }

    /// Applies, and calls `watch` with the kernel after every restore.
    pub(crate) fn apply_watched(&mut self, mut watch: impl FnMut(&FakeKernel)) -> Plan {
        self.apply_through(|kernel, command, input| {
            let result = kernel.restore(command, input);
            watch(kernel);
            result
        })
    }

    /// Applies with `restore` in place of restores. Programs take no time.
    pub(crate) fn apply_through(
        &mut self,
        mut restore: impl FnMut(&mut FakeKernel, &Command, &str) -> Result<(), CommandError>,
    ) -> Plan {
        loop {
            match self.reconciler.plan(self.now) {
                Plan::Save(command) => {
                    let output = self.kernel.save(&command);
                    let mut reader = self.reconciler.save_reader();
                    let result = output.and_then(|output| {
                        reader.feed(&output);
                        Ok(reader.finish()?)
                    });
                    self.reconciler.on_saved(self.now, result);
                }
                Plan::Restore(command) => {
                    let result = restore(&mut self.kernel, &command, &command.input);
                    self.reconciler.on_restored(self.now, result);
                }
                Plan::Sleep { until } => self.now = until,
                end => return end,
            }
        }
    }

    /// Applies and returns the numbers of written rules and chains.
    pub(crate) fn written(&mut self) -> (usize, usize) {
        let before = self.kernel.counters();
        self.apply();
        let after = self.kernel.counters();
        (after.rules_written - before.rules_written, after.chains_declared - before.chains_declared)
    }

    /// Restarts: replaces the reconciler by a new one without state.
    pub(crate) fn restart(&mut self) {
        self.reconciler = reconciler(self.reconciler.config().clone());
    }

    /// Another program runs these commands, one after the other.
    pub(crate) fn run(&mut self, lines: &str) {
        for line in lines.lines() {
            self.kernel.run(FILTER, line).expect("acceptable");
        }
    }

    pub(crate) fn rules(&self, chain: &str) -> Vec<String> {
        self.kernel.rules(FILTER, chain).unwrap_or_else(|| panic!("no chain {chain}"))
    }

    /// Our chains and rules, without those of others.
    pub(crate) fn ours(&self) -> String {
        let saved = self.kernel.saved(FILTER);
        saved.lines().filter(|line| line.contains("cali")).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn foreign(&self) -> String {
        let saved = self.kernel.saved(FILTER);
        saved.lines().filter(|line| !line.contains("cali")).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the content of a programmed lab of this size.
pub(crate) fn expected(backend: Backend, count: usize) -> String {
    Lab::programmed(backend, count).ours()
}

/// The text of the only restore that is planned now.
pub(crate) fn restore_text(lab: &mut Lab) -> String {
    loop {
        match lab.reconciler.plan(lab.now) {
            Plan::Save(command) => {
                let output = lab.kernel.save(&command).expect("works");
                let mut reader = lab.reconciler.save_reader();
                reader.feed(&output);
                lab.reconciler.on_saved(lab.now, Ok(reader.finish().expect("readable")));
            }
            Plan::Restore(command) => return command.input,
            other => panic!("nothing to restore: {other:?}"),
        }
    }
}

pub(crate) fn noflush() -> Command {
    Command { program: "iptables-restore".to_owned(), args: vec!["--noflush".to_owned()], input: String::new() }
}
