//! Faults that must produce wrong verdicts, to prove that the evaluation detects them.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    Fault,
    stage::{Stage, StageResult},
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("quiet", "no fault: no wrong verdict", quiet).ebpf().nftables(),
    Fault::new("hole-30ms", "the harness detects a hole that it makes", hole_of_30_ms).self_check(),
    Fault::new("hole-5ms", "the harness detects a small hole that it makes", hole_of_5_ms).self_check(),
    Fault::new("hole-detached", "the harness detects an unannounced hole by detached eBPF programs", detached)
        .only(&[])
        .ebpf()
        .self_check(),
];

fn quiet(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.watch(Duration::from_secs(2))
}

fn hole_of_30_ms(stage: &mut Stage) -> StageResult {
    hole(stage, "0.03")
}

fn hole_of_5_ms(stage: &mut Stage) -> StageResult {
    hole(stage, "0.005")
}

/// Opens a hole for this many seconds, by an accepting rule at the start of FORWARD. The agent
/// never changes foreign rules.
fn hole(stage: &mut Stage, seconds: &str) -> StageResult {
    stage.begin()?;
    let program = stage.iptables_program();
    stage.shell(&format!(
        "{program} -w -I FORWARD -o cali+ -j ACCEPT; sleep {seconds}; {program} -w -D FORWARD -o cali+ -j ACCEPT"
    ))?;
    stage.watch(Duration::from_millis(500))
}

/// Detaches all programs, which leaves a hole until the next check of the links. The agent is
/// suspended meanwhile, since that check could be due immediately.
fn detached(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.signal(Signal::STOP)?;
    stage.detach_programs()?;
    stage.watch(Duration::from_millis(100))?;
    stage.signal(Signal::CONT)?;
    stage.watch(Duration::from_secs(2))
}
