//! eBPF programs enforce policy, and whoever keeps them ends, is set back, or is meddled with.

use std::{path::PathBuf, time::Duration};

use tortie_bpf::NetfilterLink;

use super::programs::{admit, write_admit};
use super::restarts::moments;
use crate::faults::{
    Fault, Sample,
    stage::{Done, Stage, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("B1-killed", "eBPF: killed at random moments under edits; packets are judged meanwhile", killed)
        .sample(Sample::Nft),
    Fault::new("B1-killed-at-start", "eBPF: killed again and again before all programs are attached", killed_at_start),
    Fault::new("B2-restart", "eBPF: restarts, and a node without the agent", restart),
    Fault::new("B3-switch", "eBPF: from iptables and back while packets are sent, by configuration", switch)
        .sample(Sample::Nft),
    Fault::new("B4-detached", "eBPF: links are detached, and pins removed, by hand", detached).sample(Sample::Nft),
];

/// The pinned links, of all generations.
fn links(stage: &Stage) -> Vec<PathBuf> {
    let in_folder = |folder: &PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    in_folder(&stage.pins()).iter().flat_map(in_folder).collect()
}

fn by_programs(stage: &mut Stage) -> Done {
    stage.environment.insert("FELIX_BPFENABLED".to_owned(), "true".to_owned());
    stage.begin()?;
    let links = links(stage);
    ensure(links.len() == 8, || format!("there is not one link for each hook and family: {links:?}"))
}

fn killed(stage: &mut Stage) -> Done {
    by_programs(stage)?;
    let mut admitted = false;
    for (round, moment) in (0..20).zip(moments()) {
        admitted = !admitted;
        if round % 2 == 0 {
            write_admit(stage, admitted)?;
        } else {
            stage.write(|world| world.befriend("stranger", admitted), &[("stranger", "web", true)])?;
        }
        // Either way the stranger may be in, or out, until the end.
        stage.watch(moment)?;
        stage.kill()?;
        stage.watch(moment)?;
        stage.spawn()?;
        stage.watch(moment * 4)?;
    }
    stage.write(|world| world.befriend("stranger", false), &[("stranger", "web", false)])?;
    write_admit(stage, false)?;
    stage.until_ready()?;
    stage.confirm(&[("stranger", "web", false)])
}

fn killed_at_start(stage: &mut Stage) -> Done {
    stage.environment.insert("FELIX_BPFENABLED".to_owned(), "true".to_owned());
    for moment in moments().take(15) {
        stage.spawn()?;
        std::thread::sleep(moment * 6);
        stage.kill()?;
    }
    by_programs(stage)
}

fn restart(stage: &mut Stage) -> Done {
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

fn switch(stage: &mut Stage) -> Done {
    stage.begin()?;
    for _ in 0..3 {
        stage.write(|world| world.felix = Some("bpfEnabled: true".to_owned()), &[])?;
        stage.until("programs alone enforce policy", |stage| {
            let tables = stage.tables(stage.backend)?;
            let has_chains = tables.iter().any(|line| line.contains("cali-pi-") || line.contains("cali-tw-"));
            Ok(links(stage).len() == 8 && !has_chains)
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
        stage.write(|world| world.felix = Some("bpfEnabled: false".to_owned()), &[])?;
        stage.until("chains alone enforce policy", |stage| {
            let tables = stage.tables(stage.backend)?;
            Ok(links(stage).is_empty() && tables.iter().any(|line| line.contains("cali-tw-")))
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn detached(stage: &mut Stage) -> Done {
    by_programs(stage)?;
    // Links are looked after every second here.
    stage.may_be_open(Duration::from_secs(4));
    for link in links(stage) {
        NetfilterLink::open(&link)?.detach()?;
    }
    stage.watch(Duration::from_secs(4))?;
    stage.confirm(&BASE)?;
    std::fs::remove_dir_all(stage.pins())?;
    stage.until("links are pinned again", |stage| Ok(links(stage).len() == 8))?;
    stage.kill()?;
    stage.watch(Duration::from_secs(1))?;
    stage.confirm(&BASE)?;
    stage.start()?;
    admit(stage, true)
}
