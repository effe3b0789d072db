//! eBPF programs enforce policy; the agent is killed, or its programs and maps are removed or
//! changed.

pub(in crate::catalogue) mod calls;
mod maps;
mod refused;

use std::time::Duration;

use super::programs::{admit, write_admit};
use super::restarts::moments;
use crate::{
    Fault,
    stage::{Stage, StageResult},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    of_programs("B1-killed", "eBPF: killed at random moments under edits, with continuous traffic", killed),
    of_programs("B1-killed-at-start", "eBPF: killed repeatedly before all programs are attached", killed_at_start),
    of_programs("B2-restart", "eBPF: restarts, and a node without the agent", restart),
    Fault::new("B3-switch", "eBPF: from iptables and back under traffic, by configuration", switch),
    of_programs("B4-detached", "eBPF: another process detaches programs and removes pins", detached),
    of_programs("B5-current", "eBPF: another process overwrites the map of the roots in force", |stage| {
        maps::tampered(stage, "current")
    }),
    of_programs("B5-roots", "eBPF: another process overwrites the map of roots", |stage| {
        maps::tampered(stage, "roots")
    }),
    of_programs("B5-groups", "eBPF: another process overwrites the map of groups", |stage| {
        maps::tampered(stage, "groups")
    }),
    of_programs("B5-endpoints", "eBPF: another process overwrites the map of endpoints", |stage| {
        maps::tampered(stage, "endpoints")
    }),
    of_programs("B5-blocks", "eBPF: another process overwrites the map of blocks", |stage| {
        maps::tampered(stage, "blocks")
    }),
    of_programs("B5-exact", "eBPF: another process overwrites the hash table of IPv6 addresses", |stage| {
        maps::tampered(stage, "exact")
    }),
    of_programs("B5-counters", "eBPF: another process overwrites counters, without effect on verdicts", maps::counted),
    of_programs(
        "B6-memory-refused",
        "eBPF: all calls fail for seconds: the last state holds, with a report",
        refused::for_seconds,
    ),
    of_programs("B6-call-refused", "eBPF: each call of a change fails once, one after the other", refused::each_call),
    of_programs(
        "B6-map-full",
        "eBPF: more addresses than fit into the map: a larger one replaces it",
        refused::map_full,
    ),
    of_programs(
        "B6-group-too-large",
        "eBPF: only the policy with too many cells denies, and is reported",
        refused::too_large,
    ),
    of_programs(
        "B7-killed-at-call",
        "eBPF: killed before each call of a change, one after the other",
        calls::killed_in_change,
    ),
    of_programs(
        "B7-killed-at-call-of-start",
        "eBPF: killed before each of the first calls of a restart, and some later",
        calls::killed_in_start,
    ),
];

/// Creates a fault for the eBPF back ends only.
const fn of_programs(name: &'static str, about: &'static str, run: fn(&mut Stage) -> StageResult) -> Fault {
    Fault::new(name, about, run).only(&[]).ebpf()
}

fn by_programs(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.has_all_links()
}

fn killed(stage: &mut Stage) -> StageResult {
    by_programs(stage)?;
    let mut admitted = false;
    for (round, moment) in (0..20).zip(moments()) {
        admitted = !admitted;
        if round % 2 == 0 {
            write_admit(stage, admitted)?;
        } else {
            stage.write(|world| world.set_friend("stranger", admitted), &[("stranger", "web", true)])?;
        }
        // The last edit may be in force or not until the end.
        stage.watch(moment)?;
        stage.kill()?;
        stage.watch(moment)?;
        stage.spawn()?;
        stage.watch(moment * 4)?;
    }
    stage.write(|world| world.set_friend("stranger", false), &[("stranger", "web", false)])?;
    write_admit(stage, false)?;
    stage.until_ready()?;
    stage.confirm(&[("stranger", "web", false)])
}

fn killed_at_start(stage: &mut Stage) -> StageResult {
    for moment in moments().take(15) {
        stage.spawn()?;
        std::thread::sleep(moment * 6);
        stage.kill()?;
    }
    by_programs(stage)
}

fn restart(stage: &mut Stage) -> StageResult {
    by_programs(stage)?;
    for _ in 0..3 {
        stage.stop()?;
        stage.watch(Duration::from_secs(1))?;
        stage.confirm(&BASE)?;
        stage.start()?;
        stage.watch(Duration::from_secs(1))?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn switch(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..3 {
        stage.write(|world| world.felix = Some("bpfEnabled: true".to_owned()), &[])?;
        stage.until("only programs enforce policy", |stage| {
            let tables = stage.tables(stage.backend)?;
            let has_chains = tables.iter().any(|line| line.contains("cali-pi-") || line.contains("cali-tw-"));
            Ok(stage.links().len() == 8 && !has_chains)
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
        stage.write(|world| world.felix = Some("bpfEnabled: false".to_owned()), &[])?;
        stage.until("only chains enforce policy", |stage| {
            let tables = stage.tables(stage.backend)?;
            Ok(stage.links().is_empty() && tables.iter().any(|line| line.contains("cali-tw-")))
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn detached(stage: &mut Stage) -> StageResult {
    by_programs(stage)?;
    // Links are checked every second here.
    stage.may_be_open(Duration::from_secs(4));
    stage.detach_programs()?;
    stage.watch(Duration::from_secs(4))?;
    stage.confirm(&BASE)?;
    std::fs::remove_dir_all(stage.pins())?;
    stage.until("links are pinned again", |stage| Ok(stage.links().len() == 8))?;
    stage.kill()?;
    stage.watch(Duration::from_secs(1))?;
    stage.confirm(&BASE)?;
    stage.start()?;
    admit(stage, true)
}
