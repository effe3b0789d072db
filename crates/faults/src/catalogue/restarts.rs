//! The agent ends, is killed, is suspended, or changes its mode (T7, T9, P1, P2, P3).

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::programs::{admit, both, fault_both, parameter, write_admit};
use crate::{
    Fault,
    stage::{Stage, StageError, StageResult, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("T7-restart", "a restart with the same state writes nothing", restart).ebpf(),
    Fault::new("T7-one-changed", "a restart with one policy changed writes that one", one_changed),
    Fault::new(
        "T7-upgrade",
        "rules of old releases exist at the first start: removed, and nothing is allowed wrongly",
        upgrade,
    ),
    Fault::new(
        "T9-switch-while-running",
        "FelixConfiguration changes the iptables back end, and changes it back",
        switch_back_end,
    ),
    Fault::new(
        "T9-switch-between-runs",
        "another iptables back end from the next start on, and back",
        switch_between_runs,
    ),
    Fault::new("P1-killed", "killed at random moments under edits", killed),
    Fault::new("P1-killed-at-start", "killed repeatedly before it has written everything", killed_at_start),
    Fault::new("P2-burst", "a hundred edits at once, and one afterwards", burst).ebpf().nftables(),
    Fault::new("P3-config", "a parameter changes: a new session, and no wrong verdict", config),
    Fault::new("P3-kube-ipvs0", "kube-ipvs0 appears and disappears", kube_ipvs),
    Fault::new("sighup", "SIGHUP does not end the agent", sighup).ebpf().nftables(),
    Fault::new("suspended", "SIGSTOP, an edit, SIGCONT", suspended).ebpf().nftables(),
    Fault::new("no-threads", "no more processes and threads can be created", no_threads),
];

fn restart(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..2 {
        stage.stop()?;
        stage.watch(Duration::from_millis(200))?;
        stage.start()?;
        stage.watch(Duration::from_millis(1500))?;
        for counter in ["felix_iptables_restore_calls", "felix_ipset_lines_executed"] {
            let writes = stage.metric(counter)?;
            ensure(writes == 0.0, || format!("{counter} is {writes} after a restart"))?;
        }
    }
    Ok(())
}

fn one_changed(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.stop()?;
    write_admit(stage, true)?;
    // Its input is recorded.
    fault_both(stage, "restore", "tee -a \"$notes/$name\" | \"$real\" \"$@\"; exit $?")?;
    stage.start()?;
    stage.confirm(&[("stranger", "web", true)])?;
    for program in both("restore", stage.backend) {
        let written = stage.helpers.notes(&program);
        let foreign: Vec<&str> =
            written.lines().filter(|line| line.starts_with([':', '-']) && !line.contains("cali-pi-")).collect();
        ensure(!written.is_empty() && foreign.is_empty(), || {
            format!("{program} was given more than the policy: {foreign:?}")
        })?;
    }
    Ok(())
}

/// Chains, hooks and a set as left by Calico releases before 2.0 and 3.0, which accept everything.
fn upgrade(stage: &mut Stage) -> StageResult {
    stage.shell("ipset create felix-masq-ipam-pools hash:net; ipset create felix-all-ipam-pools hash:net")?;
    for chain in ["felix-FORWARD", "califw-abcdef", "calitw-abcdef", "cali-FORWARD", "cali-pi-_0123456789abcdef"] {
        stage.iptables(&format!("-N {chain}"))?;
        stage.iptables(&format!("-A {chain} -j ACCEPT"))?;
    }
    stage.iptables("-A FORWARD -j felix-FORWARD")?;
    stage.iptables("-I FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD")?;
    stage.iptables("-I felix-FORWARD -j califw-abcdef")?;
    stage.iptables("-A FORWARD -m mark --mark 1 -m comment --comment his -j RETURN")?;
    let masquerade = "-t nat -A POSTROUTING -m set --match-set felix-masq-ipam-pools src -j MASQUERADE";
    stage.shell(&format!("iptables-{} -w {masquerade}", stage.backend.name()))?;
    stage.begin()?;
    stage.until("nothing of old releases is left", |stage| {
        let old = ["felix-", "califw-", "calitw-", "cali-pi-_0123456789abcdef"];
        let is_left = |line: &String| old.iter().any(|name| line.contains(name));
        Ok(!stage.tables(stage.backend)?.iter().any(is_left) && !stage.shell("ipset list -n")?.contains("felix-"))
    })?;
    ensure(stage.tables(stage.backend)?.iter().any(|line| line.contains("his")), || {
        "the rule of another is gone".to_owned()
    })?;
    admit(stage, true)?;
    admit(stage, false)
}

fn switch_back_end(stage: &mut Stage) -> StageResult {
    // The environment would take precedence.
    stage.environment.remove("FELIX_IPTABLESBACKEND");
    stage.world.felix = Some(format!("iptablesBackend: {}", parameter(stage.backend)));
    stage.write(|_| {}, &[])?;
    stage.begin()?;
    for _ in 0..2 {
        let (old, new) = (stage.backend, stage.backend.other());
        stage.write(|world| world.felix = Some(format!("iptablesBackend: {}", parameter(new))), &[])?;
        stage.until("only the other back end has rules", |stage| {
            let ours =
                |backend| Ok::<_, StageError>(stage.tables(backend)?.iter().any(|line| line.contains("cali-pi-")));
            Ok(ours(new)? && !ours(old)?)
        })?;
        stage.backend = new;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

fn switch_between_runs(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..2 {
        stage.stop()?;
        stage.backend = stage.backend.other();
        stage.environment.insert("FELIX_IPTABLESBACKEND".to_owned(), stage.backend.name().to_owned());
        stage.start()?;
        stage.confirm(&BASE)?;
        let old = stage.backend.other();
        stage.until("the other back end has no rules", |stage| {
            Ok(!stage.tables(old)?.iter().any(|line| line.contains("cali")))
        })?;
    }
    Ok(())
}

/// Returns pseudo-random durations, equal in every run.
pub(super) fn moments() -> impl Iterator<Item = Duration> {
    (1u64..).map(|number| Duration::from_millis(number.wrapping_mul(2_654_435_761) % 190))
}

pub(super) fn killed(stage: &mut Stage) -> StageResult {
    stage.begin()?;
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
        stage.spawn()?;
        stage.watch(moment * 3)?;
    }
    stage.write(|world| world.set_friend("stranger", false), &[("stranger", "web", false)])?;
    write_admit(stage, false)?;
    stage.until_ready()?;
    stage.confirm(&[("stranger", "web", false)])
}

pub(super) fn killed_at_start(stage: &mut Stage) -> StageResult {
    for moment in moments().take(15) {
        stage.spawn()?;
        std::thread::sleep(moment * 3);
        stage.kill()?;
    }
    stage.begin()
}

fn burst(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for number in 0..100 {
        let admitted = number % 2 == 0;
        write_admit(stage, admitted)?;
        stage.watch(Duration::from_millis(15))?;
    }
    stage.confirm(&[("stranger", "web", false)])?;
    let begun = Instant::now();
    admit(stage, true)?;
    let latency = begun.elapsed();
    ensure(latency < Duration::from_secs(10), || format!("an edit after the burst took {latency:?}"))
}

fn config(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for action in ["Reject", "Drop"] {
        stage.write(|world| world.felix = Some(format!("iptablesFilterDenyAction: {action}")), &[])?;
        let target = format!("-j {}", action.to_uppercase());
        stage.until("the new parameter is in force", |stage| {
            let tables = stage.tables(stage.backend)?;
            Ok(tables.iter().any(|line| line.contains("Unknown interface") && line.contains(&target)))
        })?;
        stage.until_ready()?;
    }
    stage.write(|world| world.felix = Some("iptablesRefreshInterval: nonsense".to_owned()), &[])?;
    stage.watch(Duration::from_secs(1))?;
    stage.write(|world| world.felix = None, &[])?;
    admit(stage, true)
}

fn kube_ipvs(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let are_there = |stage: &Stage| -> Result<bool, StageError> {
        let tables = stage.tables(stage.backend)?;
        Ok(tables.iter().any(|line| line.contains("cali-set-endpoint-mark")))
    };
    stage
        .lab
        .node()
        .ip(["link add kube-ipvs0 type veth peer name ipvs-peer", "addr add 10.96.0.1/32 dev kube-ipvs0"])?;
    stage.until("endpoints have marks", |stage| are_there(stage))?;
    admit(stage, true)?;
    stage.lab.node().ip(["link del kube-ipvs0"])?;
    stage.until("endpoints have no marks", |stage| Ok(!are_there(stage)?))?;
    admit(stage, false)
}

fn sighup(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..3 {
        stage.signal(Signal::HUP)?;
        stage.watch(Duration::from_millis(200))?;
    }
    admit(stage, true)
}

fn suspended(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.signal(Signal::STOP)?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(2))?;
    stage.signal(Signal::CONT)?;
    stage.confirm(&[("stranger", "web", true)])?;
    write_admit(stage, false)?;
    stage.watch(Duration::from_millis(30))?;
    stage.signal(Signal::STOP)?;
    stage.watch(Duration::from_secs(1))?;
    stage.signal(Signal::CONT)?;
    stage.confirm(&[("stranger", "web", false)])
}

/// Limits do not apply to root, so the agent runs as another user with the necessary capabilities.
fn no_threads(stage: &mut Stage) -> StageResult {
    const CAPABILITIES: &str = "+net_admin,+net_raw,+dac_override,+dac_read_search";
    stage.begin()?;
    for limit in [1, 8, 12, 16] {
        stage.stop()?;
        let folder = stage.folder().display().to_string();
        stage.prelude = format!(
            "chmod -R a+rwX {folder}; touch {folder}/xtables.lock; chmod a+rw {folder}/xtables.lock\n\
             PATH=$PATH exec setpriv --reuid 64321 --clear-groups --inh-caps {CAPABILITIES} --ambient-caps {CAPABILITIES} \
             prlimit --nproc={limit} env PATH={} \"$0\" \"$@\"",
            stage.helpers.path().display()
        );
        stage.spawn()?;
        write_admit(stage, limit % 3 == 0)?;
        std::thread::sleep(Duration::from_secs(3));
        if stage.ended()?.is_none() {
            stage.kill()?;
        }
        stage.prelude.clear();
        stage.start()?;
        stage.confirm(&[("stranger", "web", limit % 3 == 0)])?;
    }
    Ok(())
}
