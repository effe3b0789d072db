//! Tables of nftables enforce policy, and somebody else writes to them, or whoever keeps them ends.

use std::time::Duration;

use super::programs::admit;
use super::restarts::{killed, killed_at_start};
use crate::faults::{
    Backend, Beside, Fault, Sample,
    stage::{Done, Stage, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    of_nftables("N1-killed", "nftables: killed at random moments under edits", killed),
    of_nftables("N1-killed-at-start", "nftables: killed again and again before it has written all", killed_at_start),
    of_nftables("N2-restart", "nftables: restarts with the same state write nothing", restart),
    Fault::new("N3-switch", "nftables: from iptables and back while packets are sent, by configuration", switch)
        .sample(Sample::Nft),
    of_nftables("N4-meddled", "nftables: somebody deletes, flushes and opens what is ours", meddled),
    of_nftables("N5-insists", "nftables: somebody accepts everything again and again: no fight without pause", insists),
    of_nftables("N6-others", "nftables: others commit to tables of their own all the time: nothing is read", others),
];

/// What is changed by hand is put right as soon as the kernel tells; a busy machine takes its time.
const SOON: Duration = Duration::from_secs(6);

/// A fault that only tables of nftables have.
const fn of_nftables(name: &'static str, about: &'static str, run: fn(&mut Stage) -> Done) -> Fault {
    Fault::new(name, about, run).only(&[]).nftables(Beside::InFull)
}

fn restart(stage: &mut Stage) -> Done {
    stage.begin()?;
    for _ in 0..3 {
        stage.stop()?;
        let before =
            stage.shell("nft list ruleset | grep -c counter; nft -j list ruleset | grep -o '\"handle\": [0-9]*'")?;
        stage.watch(Duration::from_millis(500))?;
        stage.start()?;
        stage.watch(Duration::from_secs(1))?;
        let after =
            stage.shell("nft list ruleset | grep -c counter; nft -j list ruleset | grep -o '\"handle\": [0-9]*'")?;
        ensure(before == after, || format!("a restart made other rules:\n{before}\n{after}"))?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn switch(stage: &mut Stage) -> Done {
    stage.begin()?;
    for _ in 0..3 {
        if stage.backend == Backend::Legacy {
            // A packet is lost there now and then, for a reason that is not known yet.
            stage.may_be_cut(Duration::from_secs(3));
        }
        stage.write(|world| world.felix = Some("nftablesMode: Enabled".to_owned()), &[])?;
        stage.until("tables of nftables alone enforce policy", |stage| {
            let has_chains = stage.tables(stage.backend)?.iter().any(|line| line.contains("cali-"));
            let sets = stage.shell("ipset list -n")?;
            Ok(stage.nftables()?.len() > 10 && !has_chains && !sets.contains("cali"))
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
        stage.write(|world| world.felix = Some("nftablesMode: Disabled".to_owned()), &[])?;
        stage.until("iptables alone enforces policy", |stage| {
            let tables = stage.tables(stage.backend)?;
            Ok(stage.nftables()?.is_empty() && tables.iter().any(|line| line.contains("cali-tw-")))
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn meddled(stage: &mut Stage) -> Done {
    stage.begin()?;
    for change in [
        "nft delete table $family calico",
        "nft flush chain $family calico filter-cali-FORWARD",
        "nft insert rule $family calico filter-FORWARD accept",
        "nft insert rule $family calico filter-cali-FORWARD accept",
        "nft flush map $family calico filter-cali-to-wl-dispatch",
        "for set in $(nft list sets $family | grep -o 'cali[46]0s[^ ]*'); do nft flush set $family calico $set; done",
        "nft flush table $family calico",
        "nft add table $family calico '{ flags dormant; }'",
    ] {
        let good = stage.nftables()?;
        stage.may_be_open(SOON);
        stage.may_be_cut(SOON);
        stage.shell(&format!("for family in ip ip6; do {change}; done"))?;
        stage.until_within(SOON, change, |stage| Ok(stage.nftables()? == good))?;
        stage.watch(Duration::from_secs(1))?;
        stage.confirm(&BASE)?;
    }
    Ok(())
}

fn insists(stage: &mut Stage) -> Done {
    stage.begin()?;
    stage.may_be_open(Duration::from_secs(12));
    for _ in 0..50 {
        stage.shell(
            "nft insert rule ip calico filter-FORWARD accept; nft insert rule ip6 calico filter-FORWARD accept",
        )?;
        stage.watch(Duration::from_millis(100))?;
    }
    stage.watch(Duration::from_secs(2))?;
    stage.confirm(&BASE)?;
    admit(stage, true)
}

fn others(stage: &mut Stage) -> Done {
    stage.begin()?;
    stage.shell(
        "nft add table inet others; nft add chain inet others forward '{ type filter hook forward priority -5; }'",
    )?;
    let log = stage.log();
    for _ in 0..30 {
        stage.shell("nft add rule inet others forward counter; nft flush chain inet others forward")?;
        stage.watch(Duration::from_millis(50))?;
    }
    ensure(!stage.log()[log.len()..].contains("Somebody else"), || "changes of others were taken for ours".to_owned())?;
    admit(stage, true)?;
    stage.shell("nft delete table inet others").map(drop)
}
