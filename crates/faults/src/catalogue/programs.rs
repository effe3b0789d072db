//! iptables programs fail, hang, give wrong output or are missing (T4, T5, T6).

use std::time::Duration;

use crate::{
    Backend, Fault,
    stage::{PATIENCE, Stage, StageError, StageResult, ensure},
};

// The agent seldom runs `iptables-legacy-save`, as it reads legacy tables from the kernel itself.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("T4-restore-fails-once", "iptables-restore fails once: retried", |stage| restore_fails(stage, 1)),
    Fault::new("T4-restore-fails-10", "iptables-restore fails 10 times: retried", |stage| restore_fails(stage, 10)),
    Fault::new("T4-restore-fails", "iptables-restore fails for seconds: the last state holds", restore_fails_long)
        .ebpf(),
    Fault::new("T4-save-fails-once", "iptables-save fails once", |stage| save_fails(stage, 1)).only(&[Backend::Nft]),
    Fault::new("T4-save-fails-4", "iptables-save fails 4 times", |stage| save_fails(stage, 4)).only(&[Backend::Nft]),
    Fault::new("T4-save-dies", "iptables-save dies in the middle of its output", save_dies).only(&[Backend::Nft]),
    Fault::new("T4-save-hangs", "iptables-save hangs for a while: the last state holds", save_hangs)
        .only(&[Backend::Nft]),
    Fault::new(
        "T5-incompatible",
        "iptables-nft-save reports that it cannot read a table, and exits with 0",
        incompatible,
    )
    .only(&[Backend::Nft]),
    Fault::new("T6-lock-short", "another process holds the lock for less than the agent's timeout", |stage| {
        lock(stage, "0.8", 3)
    })
    .only(&[Backend::Legacy]),
    Fault::new("T6-lock-long", "another process holds the lock for longer than the agent's timeout", |stage| {
        lock(stage, "3", 1)
    })
    .only(&[Backend::Legacy]),
    Fault::new("T6-restore-missing", "iptables-restore is uninstalled while the agent runs", restore_missing).ebpf(),
    Fault::new(
        "T6-nothing-installed",
        "no program is installed at the start: no route leads to a pod",
        nothing_installed,
    ),
    Fault::new("T6-version-odd", "iptables --version prints no version: treated as old", version_odd),
    Fault::new("T6-version-old", "iptables-restore is too old for --wait; it is updated later", version_old),
    Fault::new(
        "backend-missing",
        "the datastore sets a back end that is not installed: policy stays in force",
        backend_missing,
    ),
    Fault::new("helper-hangs-restore", "iptables-restore hangs; SIGTERM ends the agent, without orphans", |stage| {
        let programs = both("restore", stage.backend);
        hangs(stage, &programs.each_ref().map(String::as_str))
    }),
    Fault::new("helper-hangs-save", "iptables-save hangs; SIGTERM ends the agent, without orphans", |stage| {
        let programs = both("save", stage.backend);
        hangs(stage, &programs.each_ref().map(String::as_str))
    })
    .only(&[Backend::Nft]),
    Fault::new("helper-hangs-ipset", "ipset hangs; SIGTERM ends the agent, without orphans", |stage| {
        hangs(stage, &["ipset"])
    }),
];

/// Returns the programs of both families for an action.
pub(super) fn both(action: &str, backend: Backend) -> [String; 2] {
    ["iptables", "ip6tables"].map(|program| format!("{program}-{backend}-{action}"))
}

/// Makes both programs for an action run this shell text first.
pub(super) fn fault_both(stage: &Stage, action: &str, text: &str) -> StageResult {
    for program in both(action, stage.backend) {
        stage.helpers.fault(&program, text)?;
    }
    Ok(())
}

/// Returns shell text that fails this many times and counts.
pub(super) fn fail_times(times: usize) -> String {
    format!(
        // Two processes may do this concurrently: each adds a separate line before it counts the
        // lines.
        "echo x >>\"$notes/$name\"; n=$(wc -l <\"$notes/$name\")\n\
         if [ \"$n\" -le {times} ]; then cat >/dev/null; echo 'line 2 failed: injected fault' >&2; exit 1; fi"
    )
}

/// Allows or denies the stranger access to `web`, by another chain and another member of a set.
pub(super) fn admit(stage: &mut Stage, admitted: bool) -> StageResult {
    write_admit(stage, admitted)?;
    stage.confirm(&[("stranger", "web", admitted)])
}

/// As [`admit`], without waiting.
pub(super) fn write_admit(stage: &mut Stage, admitted: bool) -> StageResult {
    let edit = |world: &mut crate::world::World| {
        world.web_admits = if admitted { vec!["stranger".to_owned()] } else { Vec::new() };
    };
    stage.write(edit, &[("stranger", "web", admitted)])
}

fn restore_fails(stage: &mut Stage, times: usize) -> StageResult {
    stage.begin()?;
    fault_both(stage, "restore", &fail_times(times))?;
    admit(stage, true)?;
    stage.helpers.clear_notes(&both("restore", stage.backend)[0]);
    stage.helpers.clear_notes(&both("restore", stage.backend)[1]);
    admit(stage, false)?;
    let failed = stage.helpers.notes(&both("restore", stage.backend)[0]);
    ensure(!failed.is_empty(), || "iptables-restore never failed".to_owned())
}

fn restore_fails_long(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    admit(stage, true)?;
    fault_both(stage, "restore", &fail_times(100_000))?;
    write_admit(stage, false)?;
    stage.watch(Duration::from_secs(4))?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("stranger", "web", false)])
}

/// Commits a foreign change, so that the agent reads the tables.
fn commit(stage: &Stage) -> StageResult {
    stage.iptables("-N HIS")
}

/// Checks that the fault has happened; otherwise the run proves nothing.
fn must_have_happened(stage: &Stage, note: &str) -> StageResult {
    ensure(!stage.helpers.notes(note).is_empty(), || {
        "the program was never run, so the fault never happened".to_owned()
    })
}

fn save_fails(stage: &mut Stage, times: usize) -> StageResult {
    stage.begin()?;
    fault_both(stage, "save", &fail_times(times))?;
    commit(stage)?;
    admit(stage, true)?;
    admit(stage, false)?;
    let save = both("save", stage.backend).map(|program| stage.helpers.notes(&program));
    ensure(save.iter().any(|note| !note.is_empty()), || "iptables-save never failed".to_owned())
}

fn save_dies(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    fault_both(stage, "save", "echo x >>\"$notes/happened\"; \"$real\" \"$@\" | head -c 1500; kill -9 $$")?;
    commit(stage)?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(3))?;
    must_have_happened(stage, "happened")?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("stranger", "web", true)])
}

fn save_hangs(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    fault_both(stage, "save", "if [ ! -e \"$notes/hung\" ]; then echo x >\"$notes/hung\"; exec sleep 600; fi")?;
    commit(stage)?;
    write_admit(stage, true)?;
    stage.confirm_within(Duration::from_secs(150), &[("stranger", "web", true)])?;
    must_have_happened(stage, "hung")
}

fn incompatible(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    fault_both(
        stage,
        "save",
        "echo x >>\"$notes/happened\"; while [ $# -gt 0 ]; do [ \"$1\" = -t ] && table=$2; shift; done\n\
         echo \"# Table \\`$table' is incompatible, use 'nft' tool.\"; exit 0",
    )?;
    commit(stage)?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(3))?;
    must_have_happened(stage, "happened")?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("stranger", "web", true)])
}

/// Holds the xtables lock. The agent waits ten seconds; the wrapper shortens this to save time.
fn lock(stage: &mut Stage, held: &str, waited: u8) -> StageResult {
    stage.begin()?;
    let shorter =
        format!("set -- $(for word; do if [ \"$word\" = 10 ]; then echo {waited}; else echo \"$word\"; fi; done)");
    fault_both(stage, "restore", &shorter)?;
    let lock = stage.folder().join("xtables.lock");
    stage.shell(&format!("flock {} sleep {held} >/dev/null 2>&1 &", lock.display()))?;
    admit(stage, true)?;
    admit(stage, false)
}

fn restore_missing(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for program in both("restore", stage.backend) {
        stage.helpers.uninstall(&program)?;
    }
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(3))?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("stranger", "web", true)])
}

fn nothing_installed(stage: &mut Stage) -> StageResult {
    for backend in Backend::IPTABLES {
        for program in both("restore", backend).iter().chain(&both("save", backend)) {
            stage.helpers.uninstall(program)?;
        }
    }
    for program in ["iptables-restore", "ip6tables-restore", "iptables-save", "ip6tables-save"] {
        stage.helpers.uninstall(program)?;
    }
    stage.spawn()?;
    std::thread::sleep(Duration::from_secs(2));
    ensure(!stage.is_ready(), || "the agent is ready without iptables".to_owned())?;
    ensure(stage.routes()?.is_empty(), || "something leads to a pod without policy".to_owned())?;
    stage.helpers.repair_all()?;
    if stage.ended()?.is_some() {
        stage.spawn()?;
    }
    stage.until_ready()?;
    stage.confirm(&crate::world::BASE)
}

/// Returns shell text that answers `--version` in this way and records it.
fn version_fault(answer: &str) -> String {
    format!("if [ \"$1\" = --version ]; then echo x >>\"$notes/asked\"; {answer}; fi")
}

fn version_odd(stage: &mut Stage) -> StageResult {
    let answers = [
        "echo 'iptables, the one with rules'; exit 0",
        "exit 0",
        "echo 'no such option' >&2; exit 2",
        "echo 'iptables v99999999999999999999.1'; exit 0",
        "printf 'iptables v\\377\\376.8.9'; exit 0",
    ];
    for answer in answers {
        stage.helpers.clear_notes("asked");
        stage.helpers.fault("iptables", &version_fault(answer))?;
        stage.begin()?;
        must_have_happened(stage, "asked")?;
        admit(stage, true)?;
        admit(stage, false)?;
        stage.stop()?;
    }
    stage.helpers.repair_all()?;
    stage.start()?;
    admit(stage, true)
}

/// Behaviour of an `iptables-restore` without support for `--wait`.
const REJECTS_WAIT: &str = "for word; do case \"$word\" in -w*|--wait*) echo x >>\"$notes/unknown\"\n\
                             echo \"iptables-restore: unrecognized option '$word'\" >&2; exit 2;; esac; done";

fn version_old(stage: &mut Stage) -> StageResult {
    stage.helpers.fault("iptables", &version_fault("echo 'iptables v1.4.21'; exit 0"))?;
    fault_both(stage, "restore", REJECTS_WAIT)?;
    stage.begin()?;
    must_have_happened(stage, "asked")?;
    for admitted in [true, false, true, false] {
        admit(stage, admitted)?;
    }
    ensure(stage.helpers.notes("unknown").is_empty(), || "called with --wait, which it does not support".to_owned())?;
    // Updated while the agent runs, and while it does not.
    stage.helpers.repair_all()?;
    admit(stage, true)?;
    stage.stop()?;
    stage.start()?;
    admit(stage, false)?;
    // Downgraded while the agent runs.
    stage.helpers.fault("iptables", &version_fault("echo 'iptables v1.4.21'; exit 0"))?;
    fault_both(stage, "restore", REJECTS_WAIT)?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(3))?;
    if stage.ended()?.is_some() {
        stage.start()?;
    }
    stage.stop()?;
    stage.start()?;
    stage.confirm(&[("stranger", "web", true)])
}

fn backend_missing(stage: &mut Stage) -> StageResult {
    let (backend, other) = (stage.backend, stage.backend.other());
    // The environment would take precedence.
    stage.environment.remove("FELIX_IPTABLESBACKEND");
    stage.world.felix = Some(format!("iptablesBackend: {}", parameter(backend)));
    stage.write(|_| {}, &[])?;
    stage.begin()?;
    for program in both("restore", other).iter().chain(&both("save", other)) {
        stage.helpers.uninstall(program)?;
    }
    // The agent would find the programs under these names as well.
    for program in ["iptables-restore", "ip6tables-restore", "iptables-save", "ip6tables-save"] {
        stage.helpers.uninstall(program)?;
    }
    stage.write(|world| world.felix = Some(format!("iptablesBackend: {}", parameter(other))), &[])?;
    stage.watch(Duration::from_secs(3))?;
    ensure(stage.get(9099, "/readiness").is_some(), || "the agent does not answer".to_owned())?;
    stage.write(|world| world.felix = Some(format!("iptablesBackend: {}", parameter(backend))), &[])?;
    stage.until_ready()?;
    admit(stage, true)
}

/// Returns the name of a back end in `FelixConfiguration`.
pub(super) fn parameter(backend: Backend) -> &'static str {
    if backend == Backend::Legacy { "Legacy" } else { "NFT" }
}

fn hangs(stage: &mut Stage, programs: &[&str]) -> StageResult {
    stage.begin()?;
    for program in programs {
        stage.helpers.fault(program, "echo $$ >>\"$notes/hanging\"; exec sleep 600")?;
    }
    stage.write(|world| world.set_friend("stranger", true), &[("stranger", "web", true)])?;
    commit(stage)?;
    write_admit(stage, true)?;
    stage.until("a program hangs", |stage| Ok(!stage.helpers.notes("hanging").is_empty()))?;
    stage.watch(Duration::from_secs(1))?;
    ensure(stage.is_live(), || "the agent does not say that it is alive".to_owned())?;
    stage.stop_within(Duration::from_secs(10)).map_err(|error| match error {
        StageError::Timeout(description) => StageError::Timeout(format!("within 10 s: {description}")),
        other => other,
    })?;
    stage.helpers.repair_all()?;
    stage.start()?;
    stage.confirm_within(PATIENCE, &[("stranger", "web", true)])
}
