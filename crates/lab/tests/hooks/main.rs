//! eBPF programs at netfilter hooks filter real packets of a laboratory.
#![allow(clippy::unwrap_used, reason = "an impossible state fails the test")]
#![allow(clippy::disallowed_methods, reason = "the tests send packets, and read the kernel's types")]

mod content;
mod generation;
mod hosts;
mod links;
mod workloads;

use std::time::Duration;

use tortie_lab::pods::{Family, Flow, FlowOutcome, Lab, LabHost, Port, Timing};

/// Tries flows in both families; exactly those with `true` must succeed.
fn check(lab: &Lab, expected: &[(&LabHost, &LabHost, Port, bool)]) {
    check_of(&[Family::V4, Family::V6], lab, expected);
}

fn check_of(families: &[Family], lab: &Lab, expected: &[(&LabHost, &LabHost, Port, bool)]) {
    let mut all: Vec<(Flow, bool)> = Vec::new();
    for (from, to, port, open) in expected {
        let flow = |family| Flow { from: (*from).clone(), to: (*to).clone(), port: *port, family };
        all.extend(families.iter().map(|family| (flow(*family), *open)));
    }
    let tried: Vec<Flow> = all.iter().map(|(flow, _)| flow.clone()).collect();
    let first = lab.probe(&tried, &Timing::default()).unwrap();
    // An answer may take longer on a busy machine.
    let late = all.iter().filter(|(flow, open)| *open && !first.reached(flow)).map(|(flow, _)| flow.clone());
    let late: Vec<Flow> = late.collect();
    let second = lab.probe(&late, &Timing::patient(Duration::from_secs(5))).unwrap();
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|(flow, open)| {
            let outcome = second.outcome(flow).or_else(|| first.outcome(flow));
            let expected = if *open { FlowOutcome::Reached } else { FlowOutcome::Silent };
            (outcome != Some(&expected)).then(|| format!("{flow} is {outcome:?}, not {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
