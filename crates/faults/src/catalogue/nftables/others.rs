//! Other processes write to the kernel's ruleset.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::SOON;
use crate::{
    catalogue::programs::{admit, write_admit},
    stage::{Stage, StageError, StageResult, ensure},
    world::BASE,
};

/// Tables at priorities before, between and after those of the agent; all of them accept every
/// packet.
const FOREIGN: &str = "
    for priority in -400 -150 -1 0 1 200; do
      table=\"inet his-$(echo $priority | tr - m)\"
      nft add table $table
      for hook in prerouting input forward output postrouting; do
        nft add chain $table $hook \"{ type filter hook $hook priority $priority; policy accept; }\"
        nft add rule $table $hook counter accept
      done
    done";

/// An accepting foreign table does not end the evaluation of other tables, and the agent leaves
/// foreign tables alone.
pub(super) fn foreign(stage: &mut Stage) -> StageResult {
    stage.shell(FOREIGN)?;
    let list = |stage: &Stage| {
        stage.shell("for table in $(nft list tables | grep -o 'his-.*'); do nft -s -a list table inet $table; done")
    };
    let before = list(stage)?;
    stage.begin()?;
    admit(stage, true)?;
    admit(stage, false)?;
    // Once more, before the agent's tables.
    stage.shell("for table in $(nft list tables | grep -o 'his-.*'); do nft delete table inet $table; done")?;
    stage.shell(FOREIGN)?;
    let after = list(stage)?;
    stage.watch(Duration::from_secs(1))?;
    admit(stage, true)?;
    admit(stage, false)?;
    let without_handles = |text: &str| {
        text.lines().map(|line| line.split(" # handle").next().unwrap_or(line).to_owned()).collect::<Vec<_>>()
    };
    ensure(without_handles(&before) == without_handles(&after) && list(stage)? == after, || {
        "tables of others have changed".to_owned()
    })
}

/// Chains of the agent's names at other hooks, sets and maps of other types, and objects that the
/// agent never creates.
pub(super) fn occupied(stage: &mut Stage) -> StageResult {
    stage.shell(
        "for family in ip ip6; do
           nft add table $family calico
           nft add chain $family calico filter-FORWARD '{ type filter hook input priority 7; policy drop; }'
           nft add chain $family calico filter-cali-FORWARD '{ type nat hook postrouting priority 7; }'
           nft add chain $family calico filter-cali-to-wl-dispatch; nft add chain $family calico foreign
           nft add rule $family calico foreign accept
           nft add rule $family calico filter-cali-to-wl-dispatch counter jump foreign
           nft add map $family calico filter-cali-from-wl-dispatch '{ type mark : verdict; }'
           nft add element $family calico filter-cali-from-wl-dispatch '{ 1 : goto foreign }'
           nft add set $family calico filter-cali-to-wl-dispatch '{ type mark; }'
           nft add set $family calico cali40masq-ipam-pools '{ type mark; }'
           nft add chain $family calico foreign-base '{ type filter hook forward priority -300; policy accept; }'
           nft add rule $family calico foreign-base tcp dport 80 accept
         done",
    )?;
    stage.begin()?;
    admit(stage, true)?;
    admit(stage, false)?;
    ensure(!stage.nftables()?.iter().any(|block| block.contains("foreign")), || "a foreign object exists".to_owned())
}

/// `nft` as owner of tables with the agent's name, until it ends.
struct Owner(Child);

impl Owner {
    /// Starts it; `first` is an additional command for each table in the same transaction.
    fn begin(stage: &mut Stage, first: &str) -> Result<Self, StageError> {
        let mut nft = Command::new("nft");
        let mut child = stage.lab.node().spawn(nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()))?;
        if let Some(input) = &mut child.stdin {
            for family in ["ip", "ip6"] {
                let first = first.replace("TABLE", &format!("{family} calico"));
                writeln!(input, "{first} add table {family} calico {{ flags owner; }}")?;
            }
        }
        let owner = Self(child);
        stage.until("a process owns tables", |stage| is_owned(stage))?;
        Ok(owner)
    }

    /// Ends the process; the kernel deletes its tables.
    fn end(self, stage: &mut Stage) -> StageResult {
        drop(self);
        stage.until("no process owns a table", |stage| Ok(!is_owned(stage)?))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_owned(stage: &Stage) -> Result<bool, StageError> {
    Ok(stage.shell("nft list ruleset")?.matches("flags owner").count() == 2)
}

pub(super) fn owned(stage: &mut Stage) -> StageResult {
    let owner = Owner::begin(stage, "")?;
    stage.spawn()?;
    stage.watch(Duration::from_secs(3))?;
    ensure(!stage.is_ready() && stage.is_live(), || "the agent is ready though nothing is in force".to_owned())?;
    owner.end(stage)?;
    stage.until_ready()?;
    stage.confirm(&BASE)?;
    admit(stage, true)
}

pub(super) fn taken(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(Duration::from_secs(20));
    stage.may_be_cut(Duration::from_secs(20));
    let owner = Owner::begin(stage, "delete table TABLE;")?;
    stage.watch(Duration::from_secs(2))?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(1))?;
    owner.end(stage)?;
    stage.confirm(&BASE.map(|(from, to, allowed)| (from, to, allowed || (from, to) == ("stranger", "web"))))?;
    admit(stage, false)
}

/// Each edit finds a table that differs from its last known state.
pub(super) fn races(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for (number, change) in (0..12).zip(
        [
            "nft delete table $family calico",
            "nft flush chain $family calico filter-cali-FORWARD",
            "for set in $(nft list sets $family | grep -o 'cali[46]0s[^ ]*'); do nft flush set $family calico $set; done",
        ]
        .into_iter()
        .cycle(),
    ) {
        stage.may_be_open(SOON);
        // Until the flushed objects are restored. The log shows that no stand-in replaces a chain.
        stage.may_be_cut(SOON);
        let admitted = number % 2 == 0;
        write_admit(stage, admitted)?;
        // Until the directory is read, at a different moment of that each time.
        stage.watch(Duration::from_millis(20 + 25 * number))?;
        stage.shell(&format!("for family in ip ip6; do {change}; done"))?;
        stage.confirm_within(SOON, &[("stranger", "web", admitted)])?;
        stage.watch(Duration::from_millis(1000))?;
    }
    ensure(!stage.log().contains("out of sync"), || "something was out of sync".to_owned())
}
