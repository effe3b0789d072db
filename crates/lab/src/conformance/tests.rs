//! Tests of the harness with doubles that program one DROP rule per denied row. The harness must
//! find no fault with the correct double, and exactly the fault of each other double.

use std::{net::IpAddr, process::Command, time::Duration};

use super::{Agent, AgentError, CommandAgent, NodeUnderTest, Options, Report, RunningAgent, State, run};
use crate::program::ProgramError;
use crate::{
    cases::{Addressing, FlowVerdict},
    kernel_test,
    pods::{Flow, FlowOutcome, LabHost, NodeSide},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A row that must be denied is allowed.
    Leak,
    /// A row that must be allowed is denied.
    Cut,
    /// Every state takes effect late.
    Slow,
    /// It reports that the kernel is out of sync, from its third state on.
    Complains,
    /// It exits while it applies its third state.
    Dies,
}

#[derive(Debug)]
struct Double(Fault);

impl Agent for Double {
    fn node_side(&self) -> NodeSide {
        NodeSide::Complete
    }

    fn start(&self, _: &NodeUnderTest<'_>) -> Result<Box<dyn RunningAgent>, AgentError> {
        Ok(Box::new(RunningDouble { fault: self.0, steps: 0 }))
    }
}

struct RunningDouble {
    fault: Fault,
    steps: usize,
}

impl RunningAgent for RunningDouble {
    fn apply(&mut self, node: &NodeUnderTest<'_>, state: &State<'_>) -> Result<(), AgentError> {
        self.steps += 1;
        let in_case = |(flow, _): &&(Flow, FlowVerdict)| flow.to != LabHost::pod("canary", "server");
        let with = |allowed| state.expected.iter().filter(in_case).find(|(_, verdict)| verdict.allowed() == allowed);
        let spoilt = match self.fault {
            Fault::Leak => with(false),
            Fault::Cut => with(true),
            Fault::None | Fault::Slow | Fault::Complains | Fault::Dies => None,
        };
        for (tool, v4) in [("iptables-nft-restore", true), ("ip6tables-nft-restore", false)] {
            let mut rules =
                "*filter\n:FORWARD ACCEPT\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n".to_owned();
            for row in state.expected {
                let blocked = row.1.allowed() == (Some(row) == spoilt);
                let address = |place: &LabHost| -> Option<IpAddr> {
                    let pod = state.cluster.pods.iter().find(|pod| pod.place() == *place)?;
                    pod.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
                };
                let same_family = v4 == (row.0.family == crate::pods::Family::V4);
                if let (true, true, Some(from), Some(to)) =
                    (blocked, same_family, address(&row.0.from), address(&row.0.to))
                {
                    let protocol = row.0.port.protocol.to_string().to_lowercase();
                    let number = row.0.port.number;
                    rules += &format!("-A FORWARD -s {from} -d {to} -p {protocol} --dport {number} -j DROP\n");
                }
            }
            rules += "COMMIT\n";
            if self.fault == Fault::Slow {
                let file = node.folder.join(tool);
                std::fs::write(&file, rules).unwrap();
                let line = format!("sleep 0.3; {tool} < {}", file.display());
                node.namespace.spawn(Command::new("sh").args(["-c", &line]))?;
            } else {
                node.namespace.output(&mut Command::new(tool), &rules)?;
            }
        }
        Ok(())
    }

    fn problems(&mut self) -> Result<Option<Vec<String>>, AgentError> {
        let complains = self.fault == Fault::Complains && self.steps > 2;
        Ok(Some(complains.then(|| "a set is refused".to_owned()).into_iter().collect()))
    }

    fn check(&mut self) -> Result<(), AgentError> {
        if self.fault == Fault::Dies && self.steps > 2 {
            return Err(AgentError::Program(ProgramError::Died {
                program: "double",
                status: "exit status: 9".to_owned(),
                log: "last words".to_owned(),
            }));
        }
        Ok(())
    }
}

fn report(fault: Fault, shard: &str, change: impl FnOnce(&mut Options)) -> Report {
    let mut options = Options::new(Double(fault));
    options.shard = shard.parse().unwrap();
    change(&mut options);
    run(&options).unwrap()
}

kernel_test! {
    fn the_faithful_double_passes_in_every_family() {
        let families =
            [(Addressing::V4, "random", "30/40"), (Addressing::V6, "random", "31/100"), (Addressing::Dual, "e2e", "5/25")];
        for (addressing, filter, shard) in families {
            let report = report(Fault::None, shard, |options| {
                options.filter = Some(filter.to_owned());
                options.addressing = addressing;
                options.workers = 2;
            });
            assert!(report.passed(), "{addressing:?}\n{report}");
            assert!(report.steps.iter().all(|step| step.rows > 2));
        }
    }

    fn a_leak_and_a_cut_are_found_and_nothing_else() {
        for fault in [Fault::Leak, Fault::Cut] {
            let report = report(fault, "7/100", |options| {
                options.filter = Some("random".to_owned());
                options.deadline = Duration::from_millis(300);
            });
            assert!(!report.passed());
            let found: Vec<_> = report.steps.iter().flat_map(|step| &step.mismatches).collect();
            assert_eq!(found.len(), report.steps.len(), "{report}");
            assert!(found.iter().all(|mismatch| {
                let leak = mismatch.measured == FlowOutcome::Reached && !mismatch.expected.allowed();
                let cut = mismatch.measured == FlowOutcome::Silent && mismatch.expected.allowed();
                if fault == Fault::Leak { leak } else { cut }
            }), "{report}");
        }
    }

    fn a_slow_agent_is_waited_for() {
        let report = report(Fault::Slow, "9/20", |options| options.filter = Some("e2e".to_owned()));
        assert!(report.passed(), "{report}");
        assert!(report.latency(0.0) >= Duration::from_millis(250), "{report}");
    }

    fn a_problem_of_the_agent_fails_its_step() {
        let report = report(Fault::Complains, "11/17", |options| {
            options.filter = Some("e2e".to_owned());
            options.deadline = Duration::from_millis(300);
        });
        let complained: Vec<bool> = report.steps.iter().map(|step| step.problems == ["a set is refused"]).collect();
        // The first state is that of the canary alone.
        assert!(!complained[0] && complained[1..].iter().all(|it| *it) && complained.len() > 2, "{report}");
        assert_eq!(report.failures().count(), complained.len() - 1);
        assert!(report.to_string().contains("out of sync: a set is refused"), "{report}");
    }

    fn a_dead_agent_fails_its_case_and_is_replaced_for_the_next() {
        let report = report(Fault::Dies, "11/17", |options| options.filter = Some("e2e".to_owned()));
        assert_eq!(report.cases(), 3);
        let errors: Vec<_> = report.steps.iter().filter_map(|step| step.error.as_deref()).collect();
        assert!(!errors.is_empty() && errors.iter().all(|error| error.contains("last words")), "{report}");
        assert!(report.steps.iter().any(super::StepReport::passed), "{report}");
    }

    fn a_command_that_ends_is_reported_with_its_log() {
        let agent = CommandAgent::new("sh", ["-c", "echo $GREETING for {node} at {datastore}; exit 3"])
            .environment("GREETING", "bye");
        let mut options = Options::new(agent);
        options.shard = "13/60".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        options.keep = Some(folder.path().join("logs"));
        let report = run(&options).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("logs")).unwrap().count(), 3);
        let errors: Vec<&str> = report.steps.iter().filter_map(|step| step.error.as_deref()).collect();
        assert!(errors[0].contains("exit status: 3") && errors[0].contains("bye for node1 at file:/"), "{errors:?}");
        assert!(errors.len() > 3 && errors[3..].iter().all(|error| error.starts_with("given up")), "{errors:?}");
    }

    #[ignore = "takes minutes; `cargo xtask test` runs a rotating part of these cases with the agent"]
    fn the_faithful_double_passes_every_bundled_case() {
        let report = report(Fault::None, "0/1", |options| options.workers = 4);
        assert!(report.passed(), "{report}");
        print!("{report}");
    }
}
