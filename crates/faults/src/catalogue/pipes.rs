//! Programs that do not read all of their input (S3).

use std::collections::BTreeSet;
use std::fmt::Write;

use super::programs::{both, write_admit};
use crate::{
    Fault,
    stage::{Stage, StageError, StageResult, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("S3-ipset-closes-input", "ipset restore reads nothing, closes its input, and fails later", |stage| {
        sets(stage, CLOSES)
    }),
    Fault::new("S3-ipset-dies-half-way", "ipset restore does half of it and dies by SIGKILL", |stage| {
        sets(stage, "head -n 1000 | \"$real\" \"$@\"; kill -KILL $$")
    }),
    Fault::new("S3-tables-close-input", "iptables-restore reads nothing, closes its input, and fails later", |stage| {
        tables(stage, CLOSES)
    }),
    Fault::new("S3-tables-die-half-way", "iptables-restore reads half of it and dies by SIGKILL", |stage| {
        tables(stage, "head -n 300 | \"$real\" \"$@\"; kill -KILL $$")
    }),
];

/// Shell text that closes standard input and fails later, while a writer of more than a pipe buffer
/// is still writing.
const CLOSES: &str = "exec 0<&-; sleep 0.3; echo 'line 2 failed: injected fault' >&2; exit 1";

/// Returns shell text that runs `text` three times and counts.
fn three_times(text: &str) -> String {
    format!(
        "n=$(cat \"$notes/$name\" 2>/dev/null); n=${{n:-0}}\n\
         if [ \"$n\" -lt 3 ]; then echo $((n + 1)) >\"$notes/$name\"; {text}; fi"
    )
}

/// Checks that each program has failed at least this often.
fn must_have_failed(stage: &Stage, programs: &[&str], times: u32) -> StageResult {
    for program in programs {
        let failed = stage.helpers.notes(program);
        ensure(failed.trim().parse().is_ok_and(|failed: u32| failed >= times), || {
            format!("{program} failed {failed:?} times, not {times}")
        })?;
        stage.helpers.clear_notes(program);
    }
    Ok(())
}

/// Adds and removes more members than fit into a pipe buffer.
fn sets(stage: &mut Stage, text: &str) -> StageResult {
    stage.begin()?;
    let before = sets_there(stage)?;
    let text = three_times(text);
    stage.helpers.fault("ipset", &format!("if [ \"$1\" = restore ]; then\n{text}\nfi"))?;
    let nets: Vec<String> = (0..4000u32)
        .flat_map(|number| [format!("10.99.{}.{}", number / 250, number % 250 + 1), format!("'fd00:99:{number:x}::1'")])
        .collect();
    let manifest = format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkSet\n\
         metadata: {{name: far, namespace: shop, labels: {{far: 'yes'}}}}\nspec: {{nets: [{}]}}\n\
         ---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: far, namespace: shop}}\n\
         spec: {{selector: app == 'db', types: [Ingress], \
         ingress: [{{action: Allow, source: {{selector: far == 'yes'}}}}]}}\n",
        nets.join(", ")
    );
    stage.write(|world| drop(world.files.insert("far.yaml".to_owned(), manifest)), &[])?;
    write_admit(stage, true)?;
    stage.confirm(&[("stranger", "web", true)])?;
    let last = "10.99.15.250";
    stage.until("all members are present", |stage| Ok(stage.shell("ipset save")?.contains(&format!(" {last}\n"))))?;
    must_have_failed(stage, &["ipset"], 3)?;
    stage.change(
        |world| {
            world.files.clear();
            world.set_friend("stranger", true);
        },
        &[],
    )?;
    write_admit(stage, false)?;
    stage.change(|world| world.set_friend("stranger", false), &[("stranger", "web", false)])?;
    stage.until("all members are gone", |stage| Ok(!stage.shell("ipset save")?.contains(&format!(" {last}\n"))))?;
    // Removals are short, and may be written completely before the failure.
    must_have_failed(stage, &["ipset"], 1)?;
    stage.confirm(&BASE)?;
    // Destruction of a set is retried after the next listing.
    stage.helpers.repair_all()?;
    stage.until("the sets are those of the beginning", |stage| Ok(sets_there(stage)? == before))
}

/// Returns the names of all sets.
fn sets_there(stage: &Stage) -> Result<BTreeSet<String>, StageError> {
    let listing = stage.shell("ipset save")?;
    let names = listing.lines().filter_map(|line| line.strip_prefix("create ")?.split(' ').next());
    Ok(names.map(str::to_owned).collect())
}

/// Adds and removes more rules than fit into a pipe buffer.
fn tables(stage: &mut Stage, text: &str) -> StageResult {
    stage.begin()?;
    let programs = both("restore", stage.backend);
    let programs = programs.each_ref().map(String::as_str);
    for program in programs {
        stage.helpers.fault(program, &three_times(text))?;
    }
    let mut manifest =
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: many, namespace: shop}\n\
                        spec:\n  podSelector: {matchLabels: {app: db}}\n  ingress:\n"
            .to_owned();
    for port in 20_000..20_800 {
        let _ = writeln!(
            manifest,
            "  - {{ports: [{{port: {port}, protocol: UDP}}], from: [{{podSelector: {{matchLabels: {{friend: 'yes'}}}}}}]}}"
        );
    }
    stage.write(|world| drop(world.files.insert("many.yaml".to_owned(), manifest)), &[])?;
    write_admit(stage, true)?;
    stage.confirm(&[("stranger", "web", true)])?;
    let last = "20799";
    stage.until("all rules are there", |stage| {
        Ok(stage.tables(stage.backend)?.iter().filter(|line| line.contains(last)).count() == 2)
    })?;
    must_have_failed(stage, &programs, 3)?;
    stage.write(|world| world.files.clear(), &[])?;
    write_admit(stage, false)?;
    stage.confirm(&[("stranger", "web", false)])?;
    // Removals are short, and may be written completely before the failure.
    must_have_failed(stage, &programs, 1)?;
    stage.confirm(&BASE)
}
