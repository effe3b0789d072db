//! The reconciler against real kernels: each test has separate network namespaces and runs with
//! both implementations of iptables.
#![allow(clippy::disallowed_methods, reason = "runs the real programs, in private network namespaces")]

use std::net::UdpSocket;
use std::process::Command as Process;
use std::time::Duration;

use tortie_iptables::fake::FakeKernel;
use tortie_iptables::{
    Action, Backend, ChainProblem, Command, CommandError, Family, HookPosition, IpSetName, Matches, Plan, Purpose,
    Reconciler, ReconcilerConfig, Rule, Side, Table, kernel_chain,
};
use tortie_lab::kernel_test;
use tortie_lab::netns::{Namespace, NetnsError};

use support::{BACKENDS, FILTER, chain, config, describe, jump, mark, name, reconciler};

mod support;

/// A network namespace with a reconciler for one of its tables.
struct RealLab {
    namespace: Namespace,
    reconciler: Reconciler,
    now: Duration,
    /// Every text that was restored.
    texts: Vec<String>,
    /// Shell lines to run just before the next restore.
    interference: Vec<String>,
    /// The next restore is killed after its first transaction.
    crash: bool,
}

impl RealLab {
    fn new(config: ReconcilerConfig) -> Self {
        Self {
            namespace: Namespace::new().expect("a namespace"),
            reconciler: reconciler(config),
            now: Duration::ZERO,
            texts: Vec::new(),
            interference: Vec::new(),
            crash: false,
        }
    }

    fn programmed(backend: Backend, count: usize) -> Self {
        let mut lab = Self::new(config(backend));
        describe(&mut lab.reconciler, count);
        lab.apply();
        lab
    }

    fn run(&self, command: &Command, input: &str) -> Result<Vec<u8>, CommandError> {
        let result = self.namespace.output(Process::new(&command.program).args(&command.args), input);
        match result {
            Ok(output) => Ok(output.stdout),
            Err(NetnsError::Command { stderr, .. }) => Err(CommandError::Exit { code: Some(1), stderr }),
            Err(error) => Err(CommandError::Io(error.to_string())),
        }
    }

    /// Executes plans until [`Plan::Done`], or until the process is killed.
    fn apply(&mut self) {
        loop {
            self.now += Duration::from_millis(1);
            match self.reconciler.plan(self.now) {
                Plan::Save(command) => {
                    let mut reader = self.reconciler.save_reader();
                    let result = self.run(&command, "").and_then(|output| {
                        reader.feed(&output);
                        Ok(reader.finish()?)
                    });
                    self.reconciler.on_saved(self.now, result);
                }
                Plan::Restore(command) => {
                    let input = command.input.clone();
                    for line in std::mem::take(&mut self.interference) {
                        self.shell(&line);
                    }
                    if std::mem::take(&mut self.crash) {
                        let (first, _) = input.split_once("COMMIT\n").expect("a transaction");
                        self.run(&command, &format!("{first}COMMIT\n")).expect("the first transaction");
                        return;
                    }
                    let result = self.run(&command, &input);
                    self.texts.push(input);
                    self.reconciler.on_restored(self.now, result.map(drop));
                }
                Plan::Sleep { until } => self.now = until,
                Plan::Done { .. } => return,
                Plan::Failed(error) => panic!("{error}"),
            }
        }
    }

    fn restart(&mut self) {
        self.reconciler = reconciler(self.reconciler.config().clone());
        self.texts.clear();
    }

    /// Runs a shell line in which `$IPT` is the right `iptables`.
    fn shell(&self, line: &str) -> String {
        let config = self.reconciler.config();
        let ip = if config.family == Family::V4 { "ip" } else { "ip6" };
        let line = format!("IPT={ip}tables-{}; {line}", config.backend);
        self.namespace.shell(&line).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Chains and rules as listed, without counters.
    fn saved(&self) -> Vec<String> {
        let output = self.shell(&format!("$IPT-save -t {}", self.reconciler.config().table));
        significant(&output)
    }

    fn lines_with(&self, text: &str) -> Vec<String> {
        self.saved().into_iter().filter(|line| line.contains(text)).collect()
    }

    fn without(&self, text: &str) -> Vec<String> {
        self.saved().into_iter().filter(|line| !line.contains(text)).collect()
    }

    /// Returns the packet count of the rule of FORWARD or OUTPUT that jumps to our chains.
    fn packets(&self, chain: &str, target: &str) -> u64 {
        let listing = self.shell(&format!("$IPT -L {chain} -v -n -x"));
        let line = listing.lines().find(|line| line.contains(target)).expect("the rule");
        line.split_whitespace().next().and_then(|count| count.parse().ok()).expect("a counter")
    }
}

/// Declarations and rules; the order of chains is not the same everywhere.
fn significant(saved: &str) -> Vec<String> {
    let lines = saved.lines().filter(|line| line.starts_with([':', '-']));
    let mut lines: Vec<String> = lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect();
    // Stable: rules of one chain keep their order.
    lines.sort_by_key(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    lines
}

kernel_test! {
    fn a_restart_writes_nothing() {
        for backend in BACKENDS {
            for family in Family::ALL {
                let mut lab = RealLab::new(ReconcilerConfig::new(FILTER, family, backend));
                lab.shell("$IPT -A FORWARD -m comment --comment \"it's \\\"quoted\\\"\" -j ACCEPT");
                describe(&mut lab.reconciler, 3);
                lab.apply();
                assert_eq!(lab.texts.len(), 1);
                let saved = lab.saved();
                lab.restart();
                describe(&mut lab.reconciler, 3);
                lab.apply();
                assert_eq!(lab.texts, [""; 0], "{backend} {family}");
                assert_eq!(lab.saved(), saved);
            }
        }
    }

    fn foreign_rules_survive_and_clobbered_rules_are_repaired() {
        let attacks = [
            "$IPT -F FORWARD",
            "$IPT -D FORWARD 1",
            "$IPT -I FORWARD -s 192.0.2.1 -j ACCEPT",
            "$IPT -I FORWARD 2 -s 192.0.2.1 -j ACCEPT; $IPT -A FORWARD -s 192.0.2.2 -j ACCEPT",
            "$IPT -F cali-pi-00",
            "$IPT -I cali-tw-00 -j ACCEPT",
            "$IPT -A cali-empty -j ACCEPT",
            "$IPT -R cali-tw-00 2 -j ACCEPT",
            "$IPT -F cali-tw-00; $IPT -F cali-pi-00; $IPT -X cali-pi-00",
            "$IPT -N cali-unknown; $IPT -A cali-unknown -j cali-tw-00; $IPT -A INPUT -j cali-unknown",
            "$IPT -N DOCKER-USER; $IPT -A DOCKER-USER -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD",
            "$IPT -F; $IPT -X",
        ];
        for backend in BACKENDS {
            let mut lab = RealLab::new(config(backend));
            lab.shell("$IPT -A FORWARD -s 10.0.0.1 -j ACCEPT; $IPT -A FORWARD -s 10.0.0.2 -j ACCEPT");
            describe(&mut lab.reconciler, 2);
            lab.apply();
            let ours = lab.lines_with("cali");
            for attack in attacks {
                lab.shell(attack);
                let foreign = lab.without("cali");
                lab.reconciler.invalidate();
                lab.apply();
                assert_eq!(lab.lines_with("cali"), ours, "{backend} {attack}");
                assert_eq!(lab.without("cali"), foreign, "{backend} {attack}");
            }
        }
    }

    fn deltas_are_minimal_and_counters_of_other_rules_survive() {
        for backend in BACKENDS {
            let mut lab = RealLab::new(config(backend));
            lab.reconciler.set_hook(kernel_chain::OUTPUT, HookPosition::Insert, vec![jump("cali-OUTPUT")]);
            lab.reconciler.update_chain(chain("cali-OUTPUT", vec![jump("cali-counted"), jump("cali-other")]));
            lab.reconciler.update_chain(chain("cali-counted", vec![Rule::new(Action::Return)]));
            lab.reconciler.update_chain(chain("cali-other", vec![mark(1), mark(2), mark(3)]));
            lab.apply();
            lab.namespace
                .run(|| {
                    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                    socket.send_to(b"x", "127.0.0.1:9").expect("sent");
                })
                .expect("inside");
            let counted = lab.packets("cali-counted", "RETURN");
            assert!(counted > 0);
            lab.texts.clear();
            lab.reconciler.update_chain(chain("cali-other", vec![mark(1), mark(2), mark(4)]));
            lab.apply();
            let [text] = &lab.texts[..] else { panic!("one restore: {:?}", lab.texts) };
            let rules = text.lines().filter(|line| line.starts_with('-')).count();
            assert_eq!(rules, if backend == Backend::Legacy { 1 } else { 3 }, "{text}");
            assert_eq!(lab.packets("cali-counted", "RETURN"), counted);
            assert!(lab.packets("OUTPUT", "cali-OUTPUT") > 0);
            assert!(lab.lines_with("cali-other").iter().any(|line| line.contains("0x4/0x4")));
        }
    }

    fn being_killed_between_two_transactions_does_no_harm() {
        let mut lab = RealLab::programmed(Backend::Nft, 3);
        describe(&mut lab.reconciler, 1);
        lab.crash = true;
        lab.apply();
        assert!(lab.lines_with("cali-tw-02").contains(&":cali-tw-02 -".to_owned()), "not deleted yet");
        assert!(lab.saved().iter().any(|line| line.starts_with("-A cali-dispatch") && line.ends_with("-j DROP")));
        lab.restart();
        describe(&mut lab.reconciler, 1);
        lab.apply();
        assert_eq!(lab.saved(), RealLab::programmed(Backend::Nft, 1).saved());
    }

    fn references_swap_in_one_go() {
        for backend in BACKENDS {
            let mut lab = RealLab::programmed(backend, 3);
            lab.reconciler.update_chain(chain("cali-tw-00", vec![jump("cali-pi-new")]));
            lab.reconciler.update_chain(chain("cali-pi-new", vec![mark(5)]));
            for gone in ["cali-pi-00", "cali-tw-01", "cali-pi-01"] {
                lab.reconciler.remove_chain(name(gone));
            }
            lab.reconciler.update_chain(chain("cali-dispatch", vec![jump("cali-tw-00"), jump("cali-tw-02")]));
            lab.texts.clear();
            lab.apply();
            assert_eq!(lab.texts.len(), 1, "{backend}: accepted at once");
            let chains = lab.saved().into_iter().filter(|line| line.starts_with(":cali-"));
            assert_eq!(
                chains.collect::<Vec<_>>(),
                [
                    ":cali-FORWARD -",
                    ":cali-dispatch -",
                    ":cali-empty -",
                    ":cali-pi-02 -",
                    ":cali-pi-new -",
                    ":cali-tw-00 -",
                    ":cali-tw-02 -"
                ]
            );
        }
    }

    fn a_writer_between_our_read_and_our_write_is_noticed() {
        for backend in BACKENDS {
            for race in ["$IPT -F FORWARD", "$IPT -F cali-tw-00", "$IPT -F cali-tw-00; $IPT -F cali-pi-00; $IPT -X cali-pi-00"] {
                let mut lab = RealLab::programmed(backend, 2);
                lab.reconciler.update_chain(chain("cali-tw-00", vec![mark(1), jump("cali-pi-00"), mark(3)]));
                lab.interference.push(race.to_owned());
                lab.apply();
                lab.now += Duration::from_secs(6);
                lab.apply();
                let mut fresh = RealLab::programmed(backend, 2);
                fresh.reconciler.update_chain(chain("cali-tw-00", vec![mark(1), jump("cali-pi-00"), mark(3)]));
                fresh.apply();
                assert_eq!(lab.saved(), fresh.saved(), "{backend} {race}");
            }
        }
    }

    fn a_refused_chain_drops_while_everything_else_is_programmed() {
        for backend in BACKENDS {
            let mut lab = RealLab::new(config(backend));
            describe(&mut lab.reconciler, 5);
            let missing = IpSetName::new("cali40missing").expect("legal");
            let rule = Rule::when(Matches::new().ip_set(Side::Source, missing), Action::Return);
            lab.reconciler.update_chain(chain("cali-pi-03", vec![rule]));
            lab.apply();
            let problems = lab.reconciler.problems();
            let [ChainProblem::Refused { chain: culprit, error, .. }] = &problems[..] else { panic!("{problems:?}") };
            assert_eq!(*culprit, name("cali-pi-03"));
            assert!(error.to_string().contains("cali40missing doesn't exist"), "{error}");
            let stand_in = lab.lines_with("-A cali-pi-03");
            assert!(stand_in.len() == 1 && stand_in[0].ends_with("-j DROP"), "{stand_in:?}");
            let others = |lab: &RealLab| lab.without("cali-pi-03");
            assert_eq!(others(&lab), others(&RealLab::programmed(backend, 5)), "{backend}");
            lab.shell("ipset create cali40missing hash:net");
            lab.now += Duration::from_secs(10);
            lab.apply();
            assert_eq!(lab.reconciler.problems(), []);
            assert!(lab.lines_with("-A cali-pi-03")[0].contains("--match-set cali40missing src"));
        }
    }

    fn only_leftovers_of_old_versions_are_removed() {
        for backend in BACKENDS {
            let mut lab = RealLab::new(ReconcilerConfig::new(Table::Nat, Family::V4, backend));
            lab.shell(
                "$IPT -t nat -N felix-POSTROUTING; $IPT -t nat -A POSTROUTING -j felix-POSTROUTING; \
                 $IPT -t nat -A POSTROUTING -o tunl0 -m addrtype ! --src-type LOCAL --limit-iface-out \
                     -m addrtype --src-type LOCAL -j MASQUERADE; \
                 $IPT -t nat -N califw-x; $IPT -t nat -A felix-POSTROUTING -j califw-x; \
                 $IPT -t nat -A POSTROUTING -o eth0 -j MASQUERADE; $IPT -t nat -A POSTROUTING -o tunl0 -j MASQUERADE",
            );
            lab.apply();
            let left = lab.saved().into_iter().filter(|line| line.starts_with('-'));
            assert_eq!(
                left.collect::<Vec<_>>(),
                ["-A POSTROUTING -o eth0 -j MASQUERADE", "-A POSTROUTING -o tunl0 -j MASQUERADE"],
                "{backend}"
            );
            assert!(!lab.saved().iter().any(|line| line.starts_with(":felix") || line.starts_with(":cali")));
        }
    }

    fn every_table_can_be_programmed_and_cleaned() {
        for backend in BACKENDS {
            for family in Family::ALL {
                for table in Table::ALL {
                    let mut lab = RealLab::new(ReconcilerConfig::new(table, family, backend));
                    let empty = lab.lines_with("cali");
                    for chain in table.kernel_chains() {
                        lab.reconciler.set_hook(*chain, HookPosition::Insert, vec![jump("cali-X")]);
                        lab.reconciler.set_hook(*chain, HookPosition::Append, vec![jump("cali-X")]);
                    }
                    lab.reconciler.update_chain(chain("cali-X", vec![mark(1)]));
                    lab.apply();
                    let hooks = lab.lines_with("-j cali-X").len();
                    assert_eq!(hooks, 2 * table.kernel_chains().len(), "{backend} {family} {table}");
                    lab.restart();
                    lab.apply();
                    assert_eq!(lab.lines_with("cali"), empty);
                }
            }
        }
    }

    fn sweeping_one_implementation_leaves_the_other_alone() {
        for (active, swept) in [(Backend::Nft, Backend::Legacy), (Backend::Legacy, Backend::Nft)] {
            let mut lab = RealLab::programmed(active, 2);
            let wanted = lab.saved();
            lab.reconciler = reconciler(config(swept));
            lab.shell("$IPT -A FORWARD -s 10.0.0.1 -j ACCEPT");
            describe(&mut lab.reconciler, 3);
            lab.apply();
            assert!(!lab.lines_with("cali").is_empty());
            lab.reconciler = reconciler(ReconcilerConfig { purpose: Purpose::Sweep, ..config(swept) });
            lab.apply();
            assert_eq!(lab.lines_with("cali"), [""; 0]);
            assert_eq!(lab.lines_with("10.0.0.1").len(), 1);
            lab.reconciler = reconciler(config(active));
            assert_eq!(lab.saved(), wanted);
        }
    }

    fn the_fake_kernel_is_like_the_real_one() {
        let inputs = [
            "*filter\n:cali-A - -\n:cali-B - -\n-A cali-A -m comment --comment \"cali:abcdefghijklmnop\" --source 1.2.3.4/32 --jump cali-B\n-I FORWARD --jump cali-A\nCOMMIT\n",
            "*filter\n-A cali-B -m mark --mark 0/0x20000 --jump MARK --set-mark 0/0x10000\n-A cali-B -p 17 -m multiport --destination-ports 53,80:81 --goto cali-A\nCOMMIT\n",
            "*filter\n-A cali-B -p 17 -m multiport --destination-ports 53,80:81 --jump RETURN\nCOMMIT\n",
            "*filter\n-R cali-B 5 --jump DROP\nCOMMIT\n",
            "*filter\n-A FORWARD --jump cali-missing\nCOMMIT\n",
            "*filter\n:cali-C - -\n-A cali-C --jump DROP\nCOMMIT\n*filter\n--delete-chain cali-C\nCOMMIT\n",
            "*filter\n-D FORWARD --jump cali-A\n-D cali-B 1\nCOMMIT\n",
            "*filter\n-D FORWARD --jump cali-A\nCOMMIT\n",
            "*filter\n:cali-A - -\nCOMMIT\n*filter\n--delete-chain cali-B\nCOMMIT\n",
            "*filter\n:cali-B - -\n--delete-chain cali-B\n--delete-chain cali-A\nCOMMIT\n",
        ];
        for backend in BACKENDS {
            let real = RealLab::new(config(backend));
            let mut fake = FakeKernel::new(backend);
            let program = format!("iptables-{backend}-restore");
            let command = Command { program, args: vec!["--noflush".to_owned()], input: String::new() };
            for input in inputs {
                let in_real = real.run(&command, input);
                let in_fake = fake.restore(&command, input);
                assert_eq!(in_real.is_ok(), in_fake.is_ok(), "{backend} {input} {in_real:?} {in_fake:?}");
                assert_eq!(real.saved(), significant(&fake.saved(FILTER)), "{backend} {input}");
            }
        }
    }
}
