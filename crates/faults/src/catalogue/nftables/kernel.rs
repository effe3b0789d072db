//! The kernel refuses messages, or the agent is killed at one.

use std::time::Duration;

use crate::{
    catalogue::{
        ebpf::calls::{killed_at_each, killed_at_each_of_start},
        programs::{admit, write_admit},
    },
    stage::{Stage, StageResult, ensure},
};

/// Script that records its execution under its name and hangs.
const HANGS: &str = "#!/bin/sh\n: >\"${0%/*}/ran-${0##*/}\"\nexec sleep 1000\n";

pub(super) fn programs(stage: &mut Stage) -> StageResult {
    let folder = stage.helpers.path().to_owned();
    let file = folder.join("nft");
    std::fs::write(&file, HANGS)?;
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    stage.begin()?;
    for admitted in [true, false, true, false] {
        admit(stage, admitted)?;
    }
    let good = stage.nftables()?;
    stage.may_be_open(super::SOON);
    // A packet that traverses the rules during their deletion finds an empty map and is denied.
    stage.may_be_cut(super::SOON);
    stage.shell("nft delete table ip calico; nft delete table ip6 calico")?;
    stage.until("both tables are there again", |stage| Ok(stage.nftables()? == good))?;
    stage.stop()?;
    let ran: Vec<_> = std::fs::read_dir(&folder)?.flatten().map(|file| file.file_name()).collect();
    let ran: Vec<_> = ran.iter().filter_map(|name| name.to_str()).filter(|name| name.starts_with("ran-")).collect();
    ensure(ran.is_empty(), || format!("programs were run: {ran:?}"))
}

/// Disables periodic checks, so that the agent makes only the calls of a change.
pub(super) fn quietly(stage: &mut Stage) {
    for parameter in ["ROUTE", "INTERFACE", "NFTABLES", "IPSETS"] {
        stage.environment.insert(format!("FELIX_{parameter}REFRESHINTERVAL"), "0".to_owned());
    }
}

pub(super) fn killed_in_change(stage: &mut Stage, calls: &str) -> StageResult {
    quietly(stage);
    stage.begin()?;
    killed_at_each(calls, 1, stage)
}

pub(super) fn killed_in_start(stage: &mut Stage) -> StageResult {
    quietly(stage);
    killed_at_each_of_start("sendto,sendmsg", 10, stage)
}

/// The kernel refuses single messages, then all messages for a while.
pub(super) fn refused(stage: &mut Stage) -> StageResult {
    quietly(stage);
    stage.begin()?;
    let mut admitted = false;
    for error in ["ENOMEM", "ENOBUFS", "EINTR"] {
        for when in ["1", "2", "3..4"] {
            admitted = !admitted;
            let tracer = stage.inject("sendto,sendmsg", &format!("error={error}:when={when}"))?;
            write_admit(stage, admitted)?;
            stage.confirm(&[("stranger", "web", admitted)])?;
            drop(tracer);
        }
        // Longer than the immediate retries last.
        let tracer = stage.inject("sendto,sendmsg", &format!("error={error}"))?;
        write_admit(stage, true)?;
        write_admit(stage, false)?;
        stage.watch(Duration::from_secs(2))?;
        drop(tracer);
        admitted = false;
        stage.confirm(&[("stranger", "web", false)])?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}
