//! nftables tables enforce policy; another process writes to them, or the agent is killed.

mod kernel;
mod layouts;
mod others;

use std::time::Duration;

use super::programs::admit;
use super::restarts::{killed, killed_at_start};
use crate::{
    Fault,
    stage::{Stage, StageResult, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    of_nftables("N1-killed", "nftables: killed at random moments under edits", killed),
    of_nftables("N1-killed-at-start", "nftables: killed repeatedly before it has written everything", killed_at_start),
    of_nftables("N2-restart", "nftables: restarts with the same state write nothing", restart),
    Fault::new("N3-switch", "nftables: from iptables and back under traffic, by configuration", switch),
    // Each begins with one layout and goes through both.
    of_nftables("N3-layouts", "nftables: from one layout to the other and back under traffic", layouts::switch),
    of_nftables("N3-layouts-killed", "nftables: killed at the messages of a layout change", layouts::killed_in_switch),
    of_nftables("N4-meddled", "nftables: another process deletes, flushes and opens the agent's objects", meddled),
    of_nftables("N5-insists", "nftables: another process repeatedly accepts everything: repairs have pauses", insists),
    of_nftables("N6-others", "nftables: other processes commit to foreign tables continuously: no read", others),
    of_nftables("N7-foreign", "nftables: accepting foreign tables before and after the agent's", others::foreign),
    of_nftables("N7-occupied", "nftables: the agent's table exists with foreign contents", others::occupied),
    of_nftables("N7-owned", "nftables: another process owns the agent's table: denied until it ends", others::owned),
    of_nftables(
        "N7-taken",
        "nftables: another process replaces the agent's table by an owned one for a while",
        others::taken,
    ),
    of_nftables(
        "N7-races",
        "nftables: another process deletes from the agent's table during every edit",
        others::races,
    ),
    of_nftables(
        "N8-programs",
        "nftables: nft hangs, iptables and ipset are missing: the agent runs none of them",
        kernel::programs,
    ),
    of_nftables("N9-killed-at-sends", "nftables: killed at each message of a change", |stage| {
        kernel::killed_in_change(stage, "sendto,sendmsg")
    }),
    // A change of an address map takes several transactions.
    of_nftables("N9-killed-at-answers", "nftables: killed before each answer of a change", |stage| {
        kernel::killed_in_change(stage, "recvfrom,recvmsg")
    }),
    of_nftables("N9-killed-in-start", "nftables: killed at the messages of a start", kernel::killed_in_start),
    of_nftables(
        "N9-refused",
        "nftables: the kernel has no memory or room for a message: the last state holds",
        kernel::refused,
    ),
];

/// Replaces dropping rules by accepting ones with the same comments. In one transaction, as the
/// agent repairs them soon.
const OPENED: &str = r#"nft -a list table $family calico |
    awk -v t="$family calico" '/^\tchain /{chain=$2} / drop comment "/{split($0, part, "\"");
        print "replace rule", t, chain, "handle", $NF, "counter accept comment \"" part[2] "\""}' | nft -f -"#;

/// Makes all addresses members of the sets of networks.
const EVERYTHING_IN_SETS: &str = r#"case $family in ip) nets='0.0.0.0/1, 128.0.0.0/1';; *) nets='::/1, 8000::/1';; esac
    nft list sets $family | awk -v t="$family calico" -v n="$nets" '/^table/{ours=($3 == "calico")} /^\tset /{set=$2}
        /flags interval/ && ours && set ~ /^cali[46]0s/ {print "flush set", t, set; print "add element", t, set, "{", n, "}"}' | nft -f -"#;

/// Redirects the interfaces of all workloads to an accepting chain.
const DISPATCH_TO_ACCEPTING_CHAIN: &str = r#"{ echo "add chain $family calico his"; echo "add rule $family calico his accept"
    map="$family calico filter-cali-to-wl-dispatch"
    for pod in $(nft list map $map | grep -o '"cali[^"]*" :' | tr -d '" :'); do
        echo "delete element $map { $pod }"; echo "add element $map { $pod : goto his }"
    done; } | nft -f -"#;

/// Flushes the address maps; no effect in Felix's layout.
const ADDRESS_MAPS_FLUSHED: &str = "for map in $(nft list maps $family | grep -o 'filter-cali-pm-[^ ]*'); do
        nft flush map $family calico $map; done";

/// Makes all target chains of address and port maps accept; no effect in Felix's layout.
const ADDRESS_CHAINS_ACCEPT: &str = r#"nft list table $family calico |
    awk -v t="$family calico" '/^\tchain filter-cali-p[ad]-/{print "flush chain", t, $2; print "add rule", t, $2, "accept"}' | nft -f -"#;

/// Moves a base chain to a later priority.
const AT_ANOTHER_PRIORITY: &str = r#"{ echo "flush chain $family calico filter-FORWARD"
    echo "delete chain $family calico filter-FORWARD"
    echo "add chain $family calico filter-FORWARD { type filter hook forward priority 50; }"; } | nft -f -"#;

/// Maximum time of a repair, which begins with the kernel's notification; a busy machine needs
/// longer.
const SOON: Duration = Duration::from_secs(6);

/// Creates a fault for the nftables back ends only.
const fn of_nftables(name: &'static str, about: &'static str, run: fn(&mut Stage) -> StageResult) -> Fault {
    Fault::new(name, about, run).only(&[]).nftables()
}

fn restart(stage: &mut Stage) -> StageResult {
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

fn switch(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..3 {
        stage.write(|world| world.felix = Some("nftablesMode: Enabled".to_owned()), &[])?;
        stage.until("only nftables tables enforce policy", |stage| {
            let has_chains = stage.tables(stage.backend)?.iter().any(|line| line.contains("cali-"));
            let sets = stage.shell("ipset list -n")?;
            Ok(stage.nftables()?.len() > 10 && !has_chains && !sets.contains("cali"))
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
        stage.write(|world| world.felix = Some("nftablesMode: Disabled".to_owned()), &[])?;
        stage.until("only iptables enforces policy", |stage| {
            let tables = stage.tables(stage.backend)?;
            Ok(stage.nftables()?.is_empty() && tables.iter().any(|line| line.contains("cali-tw-")))
        })?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn meddled(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for change in [
        "nft delete table $family calico",
        "nft flush chain $family calico filter-cali-FORWARD",
        "nft insert rule $family calico filter-FORWARD accept",
        "nft insert rule $family calico filter-cali-FORWARD accept",
        OPENED,
        "nft flush map $family calico filter-cali-to-wl-dispatch",
        "for set in $(nft list sets $family | grep -o 'cali[46]0s[^ ]*'); do nft flush set $family calico $set; done",
        EVERYTHING_IN_SETS,
        DISPATCH_TO_ACCEPTING_CHAIN,
        "nft add chain $family calico filter-FORWARD '{ policy drop; }'",
        AT_ANOTHER_PRIORITY,
        "nft flush table $family calico",
        "nft add table $family calico '{ flags dormant; }'",
        ADDRESS_MAPS_FLUSHED,
        ADDRESS_CHAINS_ACCEPT,
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

fn insists(stage: &mut Stage) -> StageResult {
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

fn others(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.shell(
        "nft add table inet others; nft add chain inet others forward '{ type filter hook forward priority -5; }'",
    )?;
    let log = stage.log();
    for _ in 0..30 {
        stage.shell("nft add rule inet others forward counter; nft flush chain inet others forward")?;
        stage.watch(Duration::from_millis(50))?;
    }
    ensure(!stage.log()[log.len()..].contains("another process changed the table"), || {
        "a foreign change counts as one of the agent's".to_owned()
    })?;
    admit(stage, true)?;
    stage.shell("nft delete table inet others").map(drop)
}
