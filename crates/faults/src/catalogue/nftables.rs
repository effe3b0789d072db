//! Tables of nftables enforce policy, and somebody else writes to them, or whoever keeps them ends.

mod kernel;
mod layouts;
mod others;

use std::time::Duration;

use super::programs::admit;
use super::restarts::{killed, killed_at_start};
use crate::{
    Fault,
    stage::{Done, Stage, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    of_nftables("N1-killed", "nftables: killed at random moments under edits", killed),
    of_nftables("N1-killed-at-start", "nftables: killed again and again before it has written all", killed_at_start),
    of_nftables("N2-restart", "nftables: restarts with the same state write nothing", restart),
    Fault::new("N3-switch", "nftables: from iptables and back while packets are sent, by configuration", switch),
    // Each begins with one layout and goes through both.
    of_nftables(
        "N3-layouts",
        "nftables: from one layout to the other and back while packets are sent",
        layouts::switch,
    ),
    of_nftables(
        "N3-layouts-killed",
        "nftables: killed at messages that a change of the layout needs",
        layouts::killed_in_switch,
    ),
    of_nftables("N4-meddled", "nftables: somebody deletes, flushes and opens what is ours", meddled),
    of_nftables("N5-insists", "nftables: somebody accepts everything again and again: no fight without pause", insists),
    of_nftables("N6-others", "nftables: others commit to tables of their own all the time: nothing is read", others),
    of_nftables(
        "N7-foreign",
        "nftables: tables of others before and behind ours, which accept everything",
        others::foreign,
    ),
    of_nftables("N7-occupied", "nftables: a table of our name is there, with what others have made", others::occupied),
    of_nftables(
        "N7-owned",
        "nftables: another process owns the table of our name: closed until it ends",
        others::owned,
    ),
    of_nftables(
        "N7-taken",
        "nftables: another process deletes our table and owns one of its name for a while",
        others::taken,
    ),
    of_nftables("N7-races", "nftables: another deletes from our table while every edit is written", others::races),
    of_nftables(
        "N8-programs",
        "nftables: nft hangs for ever, iptables and ipset are not there: nobody runs them",
        kernel::programs,
    ),
    of_nftables("N9-killed-at-sends", "nftables: killed at each message that a change needs", |stage| {
        kernel::killed_in_change(stage, "sendto,sendmsg")
    }),
    // A change of a map by address takes several transactions.
    of_nftables("N9-killed-at-answers", "nftables: killed before each answer that a change needs", |stage| {
        kernel::killed_in_change(stage, "recvfrom,recvmsg")
    }),
    of_nftables("N9-killed-in-start", "nftables: killed at messages that a start needs", kernel::killed_in_start),
    of_nftables(
        "N9-refused",
        "nftables: the kernel has no memory or room for a message: the last state holds",
        kernel::refused,
    ),
];

/// Rules that accept what they dropped, with the comments that they had. At once, since it does not stay for long.
const OPENED: &str = r#"nft -a list table $family calico |
    awk -v t="$family calico" '/^\tchain /{chain=$2} / drop comment "/{split($0, part, "\"");
        print "replace rule", t, chain, "handle", $NF, "counter accept comment \"" part[2] "\""}' | nft -f -"#;

/// Addresses of all kinds are members of the sets of networks.
const EVERYTHING_IN_SETS: &str = r#"case $family in ip) nets='0.0.0.0/1, 128.0.0.0/1';; *) nets='::/1, 8000::/1';; esac
    nft list sets $family | awk -v t="$family calico" -v n="$nets" '/^table/{ours=($3 == "calico")} /^\tset /{set=$2}
        /flags interval/ && ours && set ~ /^cali[46]0s/ {print "flush set", t, set; print "add element", t, set, "{", n, "}"}' | nft -f -"#;

/// The interfaces of all workloads lead to a chain that accepts.
const EVERYTHING_LED_ASTRAY: &str = r#"{ echo "add chain $family calico his"; echo "add rule $family calico his accept"
    map="$family calico filter-cali-to-wl-dispatch"
    for pod in $(nft list map $map | grep -o '"cali[^"]*" :' | tr -d '" :'); do
        echo "delete element $map { $pod }"; echo "add element $map { $pod : goto his }"
    done; } | nft -f -"#;

/// Nothing, in Felix's layout.
const NO_ADDRESS_LEADS_ANYWHERE: &str = "for map in $(nft list maps $family | grep -o 'filter-cali-pm-[^ ]*'); do
        nft flush map $family calico $map; done";

/// All that maps of addresses and ports lead to accepts. Nothing, in Felix's layout.
const EVERY_ADDRESS_LED_ASTRAY: &str = r#"nft list table $family calico |
    awk -v t="$family calico" '/^\tchain filter-cali-p[ad]-/{print "flush chain", t, $2; print "add rule", t, $2, "accept"}' | nft -f -"#;

/// A base chain that comes later than it should.
const AT_ANOTHER_PRIORITY: &str = r#"{ echo "flush chain $family calico filter-FORWARD"
    echo "delete chain $family calico filter-FORWARD"
    echo "add chain $family calico filter-FORWARD { type filter hook forward priority 50; }"; } | nft -f -"#;

/// What is changed by hand is put right as soon as the kernel tells; a busy machine takes its time.
const SOON: Duration = Duration::from_secs(6);

/// A fault that only tables of nftables have.
const fn of_nftables(name: &'static str, about: &'static str, run: fn(&mut Stage) -> Done) -> Fault {
    Fault::new(name, about, run).only(&[]).nftables()
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
        OPENED,
        "nft flush map $family calico filter-cali-to-wl-dispatch",
        "for set in $(nft list sets $family | grep -o 'cali[46]0s[^ ]*'); do nft flush set $family calico $set; done",
        EVERYTHING_IN_SETS,
        EVERYTHING_LED_ASTRAY,
        "nft add chain $family calico filter-FORWARD '{ policy drop; }'",
        AT_ANOTHER_PRIORITY,
        "nft flush table $family calico",
        "nft add table $family calico '{ flags dormant; }'",
        NO_ADDRESS_LEADS_ANYWHERE,
        EVERY_ADDRESS_LED_ASTRAY,
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
