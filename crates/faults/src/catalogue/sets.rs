//! Other processes change IP sets, and ipset fails (S1 to S6).

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use super::programs::{admit, fail_times, write_admit};
use crate::{
    Fault,
    stage::{Stage, StageError, StageResult, ensure},
    world::{BASE, Pair},
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("S1-flushed", "another process flushes the agent's sets: filled at the next check", flushed),
    Fault::new(
        "S1-member-added",
        "another process adds a member to the agent's sets: removed at the next check",
        member_added,
    ),
    Fault::new("S1-replaced", "another process swaps a set for one of another size and content", replaced),
    Fault::new("S2-destroy-fails", "ipset destroy fails: retried with pauses", destroy_fails),
    Fault::new("S2-left-over", "temporary sets of a crash exist at the start", left_over),
    Fault::new("S3-restore-fails-before", "ipset restore fails without an effect", |stage| {
        restore_fails(stage, &format!("if [ \"$1\" = restore ]; then {}\nfi", fail_times(3)))
    }),
    Fault::new("S3-restore-fails-middle", "ipset restore fails half-way", |stage| {
        restore_fails(
            stage,
            "if [ \"$1\" = restore ] && [ ! -e \"$notes/failed\" ]; then touch \"$notes/failed\"; \
             head -n 2 | \"$real\" restore; echo 'injected fault' >&2; exit 1; fi",
        )
    }),
    Fault::new("S3-restore-fails-after", "ipset restore fails after it has done everything", |stage| {
        restore_fails(
            stage,
            "if [ \"$1\" = restore ] && [ ! -e \"$notes/failed\" ]; then touch \"$notes/failed\"; \
             \"$real\" restore; echo 'injected fault' >&2; exit 1; fi",
        )
    }),
    Fault::new("S4-list-fails", "ipset list fails for one set", list_fails),
    Fault::new(
        "S5-overflow",
        "more members than fit in a set: no other is allowed, and all are once they fit",
        overflow,
    ),
    Fault::new("S6-many-removed", "a hundred sets are to be destroyed: edits are not delayed", |stage| {
        many_removed(stage, 10, false)
    }),
    Fault::new(
        "S6-thousand-removed",
        "a thousand sets of each family are to be destroyed: each edit is enforced within 5 s",
        |stage| many_removed(stage, 100, false),
    ),
    Fault::new(
        "S2-thousand-destroys-fail",
        "none of a thousand sets of each family can be destroyed, for a while",
        |stage| many_removed(stage, 100, true),
    ),
];

const NEXT_CHECK: Duration = Duration::from_secs(6);
const WEB: [Pair; 2] = [("stranger", "web", false), ("friend", "web", true)];

/// Returns the agent's sets, of both families, that contain an address of this pod.
fn sets_with(stage: &Stage, pod: &str) -> Result<Vec<(String, String)>, StageError> {
    let saved = stage.shell("ipset save")?;
    let addresses: Vec<String> = stage.world.pods[pod].addresses.iter().map(ToString::to_string).collect();
    let mut sets = Vec::new();
    for line in saved.lines() {
        if let Some((set, member)) = line.strip_prefix("add ").and_then(|rest| rest.split_once(' '))
            && set.starts_with("cali")
            && addresses.iter().any(|address| address == member)
        {
            sets.push((set.to_owned(), member.to_owned()));
        }
    }
    ensure(!sets.is_empty(), || format!("no set holds {pod}"))?;
    Ok(sets)
}

/// Returns the address of a pod in the family of another address.
fn address_like(stage: &Stage, pod: &str, like: &str) -> String {
    let addresses = stage.world.pods[pod].addresses.iter().map(ToString::to_string);
    addresses.filter(|address| address.contains(':') == like.contains(':')).collect()
}

fn flushed(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_cut(NEXT_CHECK);
    for (set, _) in sets_with(stage, "friend")? {
        stage.shell(&format!("ipset flush {set}"))?;
    }
    stage.confirm_within(NEXT_CHECK, &WEB)?;
    stage.watch(Duration::from_secs(1))
}

fn member_added(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let sets = sets_with(stage, "friend")?;
    stage.may_be_open(NEXT_CHECK);
    for (set, member) in sets {
        stage.shell(&format!("ipset add {set} {}", address_like(stage, "stranger", &member)))?;
    }
    stage.watch(Duration::from_millis(100))?;
    stage.confirm_within(NEXT_CHECK, &WEB)
}

fn replaced(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let sets = sets_with(stage, "friend")?;
    stage.may_be_open(NEXT_CHECK);
    stage.may_be_cut(NEXT_CHECK);
    for (set, member) in sets {
        let family = if member.contains(':') { "inet6" } else { "inet" };
        let saved = stage.shell(&format!("ipset save {set}"))?;
        let kind = saved.split(' ').nth(2).unwrap_or("hash:ip").to_owned();
        stage.shell(&format!(
            "ipset create his {kind} family {family} maxelem 77; ipset add his {}; ipset swap his {set}; ipset destroy his",
            address_like(stage, "stranger", &member)
        ))?;
    }
    stage.watch(Duration::from_millis(100))?;
    stage.confirm_within(NEXT_CHECK, &WEB)?;
    stage.until("no set has the size of the other one", |stage| Ok(!stage.shell("ipset save")?.contains("maxelem 77")))
}

/// Shell text with which no set can be destroyed; each attempt is recorded.
const IN_USE: &str = "in_use() { echo x >>\"$notes/destroys\"; echo 'Set cannot be destroyed: it is in use' >&2; exit 1; }\n\
         if [ \"$1\" = destroy ]; then in_use; fi\n\
         if [ \"$1\" = restore ]; then input=\"$notes/input.$$\"; cat >\"$input\"\n\
         grep -v '^destroy' \"$input\" | \"$real\" restore || exit 1\n\
         grep -q '^destroy' \"$input\" && in_use; exit 0; fi";

fn destroy_fails(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    admit(stage, true)?;
    stage.helpers.fault("ipset", IN_USE)?;
    admit(stage, false)?;
    stage.watch(Duration::from_secs(4))?;
    let tries = stage.helpers.notes("destroys").lines().count();
    ensure(tries > 0, || "nothing was ever destroyed, so the fault never happened".to_owned())?;
    ensure(tries < 60, || format!("{tries} attempts to destroy in 4 s"))?;
    admit(stage, true)?;
    admit(stage, false)?;
    Ok(stage.helpers.repair_all()?)
}

fn left_over(stage: &mut Stage) -> StageResult {
    stage.shell(
        "ipset create cali4t0 hash:ip; ipset create cali4t1 hash:net; ipset create cali6t0 hash:ip family inet6
         ipset create his hash:ip",
    )?;
    stage.begin()?;
    stage.until("temporary sets are gone", |stage| {
        let sets = stage.shell("ipset list -n")?;
        ensure(sets.contains("his"), || "the set of another is gone".to_owned())?;
        Ok(!sets.contains("cali4t") && !sets.contains("cali6t"))
    })?;
    admit(stage, true)
}

fn restore_fails(stage: &mut Stage, fault: &str) -> StageResult {
    stage.begin()?;
    stage.helpers.fault("ipset", fault)?;
    stage.change(|world| world.set_friend("stranger", true), &[("stranger", "web", true)])?;
    stage.helpers.clear_notes("failed");
    stage.helpers.clear_notes("ipset");
    stage.change(|world| world.set_friend("stranger", false), &[("stranger", "web", false)])?;
    stage.helpers.clear_notes("failed");
    stage.helpers.clear_notes("ipset");
    admit(stage, true)
}

fn list_fails(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let (set, _) = sets_with(stage, "friend")?.remove(0);
    stage.helpers.fault(
        "ipset",
        &format!(
            "failed() {{ echo x >>\"$notes/failed\"; echo 'Kernel error received: injected fault' >&2; exit 1; }}\n\
             if [ \"$1\" = list ] && [ \"$2\" = {set} ]; then failed; fi\n\
             if [ \"$1\" = list ] && [ -z \"$2\" ]; then \"$real\" list | sed '/^Name: {set}$/,$d'; failed; fi"
        ),
    )?;
    // A set that cannot be read for long is rewritten, without effect on packets.
    stage.watch(Duration::from_secs(4))?;
    ensure(!stage.helpers.notes("failed").is_empty(), || "no set was listed, so the fault never happened".to_owned())?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(2))?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("stranger", "web", true)])?;
    stage.confirm(&BASE.map(|(from, to, allowed)| (from, to, allowed || (from, to) == ("stranger", "web"))))
}

fn overflow(stage: &mut Stage) -> StageResult {
    stage.environment.insert("FELIX_MAXIPSETSIZE".to_owned(), "6".to_owned());
    stage.begin()?;
    stage.may_be_cut_between("friend", "web", Duration::from_secs(60));
    stage.write(
        |world| {
            for number in 0..20u16 {
                let name = format!("far-{number}");
                world.add_pod(&name, 200 + number);
                world.set_friend(&name, true);
                if let Some(pod) = world.pods.get_mut(&name) {
                    pod.node = "elsewhere".to_owned();
                }
            }
        },
        &[],
    )?;
    stage.watch(Duration::from_secs(3))?;
    stage.write(|world| world.pods.retain(|name, _| !name.starts_with("far-")), &[])?;
    stage.confirm(&BASE)
}

/// Removes policies with ten times as many sets of each family at once.
fn many_removed(stage: &mut Stage, policies: usize, in_use: bool) -> StageResult {
    // Maximum time of an edit until the sets are destroyed.
    let bound = Duration::from_secs(5);
    stage.begin()?;
    let mut text = String::new();
    for number in 0..policies {
        let _ = write!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: set-{number}, namespace: shop}}\n\
             spec:\n  podSelector: {{matchLabels: {{app: db}}}}\n  ingress:\n  - from:\n"
        );
        for digit in 0..10 {
            let _ = writeln!(text, "    - podSelector: {{matchLabels: {{number: n{number}, digit: d{digit}}}}}");
        }
    }
    let before = sets(stage)?;
    stage.write(|world| drop(world.files.insert("sets.yaml".to_owned(), text)), &[])?;
    // If the pods have both families, every set exists in both.
    let all = policies * 10 * stage.world.pods["web"].addresses.len();
    stage.until_within(Duration::from_secs(120), "all sets are there", |stage| Ok(sets(stage)? >= before + all))?;
    if in_use {
        stage.helpers.fault("ipset", IN_USE)?;
    }
    let begun = Instant::now();
    stage.write(|world| world.files.clear(), &[])?;
    for (number, admitted) in [true, false, true, false].into_iter().enumerate() {
        let edited = Instant::now();
        admit(stage, admitted)?;
        let took = edited.elapsed();
        ensure(took < bound, || format!("edit {number} took {took:?} while sets were destroyed"))?;
        let left = sets(stage)?;
        ensure(number > 0 || left > before + all / 10, || {
            format!("{left} sets are left: nothing was still to be destroyed")
        })?;
    }
    if in_use {
        stage.watch(Duration::from_secs(4))?;
        let tries = stage.helpers.notes("destroys").lines().count();
        let time = begun.elapsed();
        ensure(tries > 0, || "nothing was ever destroyed, so the fault never happened".to_owned())?;
        // Sets are listed and retried every second, one or a few per command.
        ensure((tries as u64) < 60 * (1 + time.as_secs()), || format!("{tries} attempts to destroy in {time:?}"))?;
        ensure(sets(stage)? >= before + all, || "a set is gone".to_owned())?;
        stage.helpers.repair_all()?;
    }
    stage.until_within(Duration::from_secs(300), "all sets are gone", |stage| Ok(sets(stage)? <= before))
}

/// Returns the number of sets.
fn sets(stage: &Stage) -> Result<usize, StageError> {
    Ok(stage.shell("ipset list -n")?.lines().count())
}
