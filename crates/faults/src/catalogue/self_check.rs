//! The judge must find what is wrong, or all else proves nothing.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    Fault,
    stage::{Done, Stage},
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("quiet", "nothing happens: nothing is wrong", quiet).ebpf().nftables(),
    Fault::new("hole-30ms", "a hole made by the harness itself is found", hole_of_30_ms).self_check(),
    Fault::new("hole-5ms", "a small hole made by the harness itself is found", hole_of_5_ms).self_check(),
    Fault::new("hole-detached", "a hole made by detaching eBPF programs, which is not announced, is found", detached)
        .only(&[])
        .ebpf()
        .self_check(),
];

fn quiet(stage: &mut Stage) -> Done {
    stage.begin()?;
    stage.watch(Duration::from_secs(2))
}

fn hole_of_30_ms(stage: &mut Stage) -> Done {
    hole(stage, "0.03")
}

fn hole_of_5_ms(stage: &mut Stage) -> Done {
    hole(stage, "0.005")
}

/// The agent leaves rules of others alone as long as its own come first, so the hole is made where it does not look.
fn hole(stage: &mut Stage, seconds: &str) -> Done {
    stage.begin()?;
    let program = stage.iptables_program();
    stage.shell(&format!(
        "{program} -w -I FORWARD -o cali+ -j ACCEPT; sleep {seconds}; {program} -w -D FORWARD -o cali+ -j ACCEPT"
    ))?;
    stage.watch(Duration::from_millis(500))
}

/// Until links are looked after again, for which the agent has to wait: it could be just about to.
fn detached(stage: &mut Stage) -> Done {
    stage.begin()?;
    stage.signal(Signal::STOP)?;
    stage.detach_programs()?;
    stage.watch(Duration::from_millis(100))?;
    stage.signal(Signal::CONT)?;
    stage.watch(Duration::from_secs(2))
}
