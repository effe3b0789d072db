//! The kernel refuses calls, or maps are too small.

use std::{fmt::Write as _, time::Duration};

use super::by_programs;
use crate::{
    catalogue::programs::{admit, write_admit},
    stage::{Stage, StageResult, ensure},
    world::BASE,
};

/// Waits until the agent reports that it is not ready, with these words.
fn await_not_ready_message(stage: &mut Stage, message: &str) -> StageResult {
    stage.until(&format!("readiness says \"{message}\""), |stage| {
        stage.check()?;
        Ok(stage.get(9099, "/readiness").is_some_and(|answer| answer.status == 503 && answer.body.contains(message)))
    })
}

/// The previous policy stays in force, the agent reports the problem, and recovers by itself.
pub(super) fn for_seconds(stage: &mut Stage) -> StageResult {
    by_programs(stage)?;
    for admitted in [true, false] {
        let tracer = stage.inject("bpf", "error=ENOMEM")?;
        write_admit(stage, admitted)?;
        await_not_ready_message(stage, "eBPF programs do not enforce the current policy")?;
        stage.watch(Duration::from_secs(3))?;
        ensure(!tracer.injected().is_empty(), || "nothing was ever refused".to_owned())?;
        drop(tracer);
        stage.confirm(&[("stranger", "web", admitted)])?;
        stage.until_ready()?;
    }
    stage.has_all_links()
}

/// The agent neither ends nor allows more, whichever call fails.
pub(super) fn each_call(stage: &mut Stage) -> StageResult {
    // Checks of links and maps would make many calls.
    stage.environment.insert("FELIX_ROUTEREFRESHINTERVAL".to_owned(), "0".to_owned());
    by_programs(stage)?;
    for call in 1..1000 {
        let mut refused = 0;
        // The second change reuses written values, so that it takes fewer calls.
        for admitted in [true, false] {
            let tracer = stage.inject("bpf", &format!("error=ENOMEM:when={call}"))?;
            write_admit(stage, admitted)?;
            stage.confirm(&[("stranger", "web", admitted)])?;
            stage.until_ready()?;
            refused += tracer.injected().len();
        }
        if refused == 0 {
            // Most writes of a change go to mapped memory; a new decision and the switch take
            // calls.
            return ensure(call > 2, || format!("a change takes only {} calls", call - 1));
        }
    }
    ensure(false, || "a change takes more calls than can be".to_owned())
}

/// More networks than the map of blocks has room for, each in a separate block.
pub(super) fn map_full(stage: &mut Stage) -> StageResult {
    const NETWORKS: usize = 5000;
    by_programs(stage)?;
    let before = stage.links();
    stage.write(
        |world| {
            let mut nets = Vec::new();
            for number in 0..NETWORKS {
                // No two blocks are equal, as equal blocks are shared.
                for last in [1 + number % 250, 1 + number / 250] {
                    nets.push(format!("172.{}.{}.{last}/32", 16 + number / 250, number % 250));
                }
            }
            let text = format!(
                "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {{name: many, labels: {{many: 'yes'}}}}\n\
                 spec: {{nets: [{}]}}\n---\n\
                 apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: many, namespace: shop}}\n\
                 spec:\n  selector: app == 'web'\n  ingress:\n  - action: Deny\n    source: {{selector: many == 'yes', namespaceSelector: global()}}\n",
                nets.join(", ")
            );
            world.files.insert("many.yaml".to_owned(), text);
        },
        &[],
    )?;
    stage.until("larger maps have replaced them", |stage| {
        stage.check()?;
        Ok(stage.links().len() == 8 && stage.links() != before)
    })?;
    stage.until_ready()?;
    stage.confirm(&BASE)?;
    admit(stage, true)?;
    admit(stage, false)?;
    stage.write(|world| drop(world.files.remove("many.yaml")), &[])?;
    admit(stage, true)
}

/// Each rule matches another network, source port and port; no table can hold their product.
pub(super) fn too_large(stage: &mut Stage) -> StageResult {
    const RULES: usize = 1400;
    by_programs(stage)?;
    let cut = [("web", "db", false)];
    stage.write(
        |world| {
            let mut text =
                "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: huge, namespace: shop}\n\
                            spec:\n  selector: app == 'db'\n  order: 1\n  ingress:\n"
                    .to_owned();
            for number in 1..=RULES {
                let net = format!("172.16.{}.{}/32", number / 250, number % 250);
                let _ = writeln!(
                    text,
                    "  - {{action: Allow, protocol: TCP, source: {{nets: [{net}], ports: [{number}]}}, \
                     destination: {{ports: [{}]}}}}",
                    10_000 + number
                );
            }
            world.files.insert("huge.yaml".to_owned(), text);
        },
        &cut,
    )?;
    stage.confirm(&cut)?;
    await_not_ready_message(stage, "its rules make too many cells")?;
    let readiness = stage.get(9099, "/readiness").map(|answer| answer.body).unwrap_or_default();
    ensure(readiness.contains("db") && !readiness.contains("web"), || {
        format!("it is not db alone that is named: {readiness}")
    })?;
    // Other policies still apply, and can change.
    admit(stage, true)?;
    admit(stage, false)?;
    stage.change(|world| drop(world.files.remove("huge.yaml")), &[("web", "db", true)])?;
    stage.until_ready()
}
