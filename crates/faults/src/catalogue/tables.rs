//! Other processes change the tables (T1, T2, T3).

use std::{fmt::Write, time::Duration};

use crate::{
    Fault,
    stage::{Stage, StageError, StageResult, ensure, place},
    world::{BASE, WEB_CLOSED, WEB_OPEN},
};
use tortie_lab::pods::interface_name;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("T1-flush", "another process flushes FORWARD: repaired at the next check", flush).ebpf(),
    Fault::new(
        "T1-hook-deleted",
        "another process deletes the agent's rule from FORWARD: repaired at the next check",
        hook_deleted,
    ),
    Fault::new(
        "T1-inserted-above",
        "another process inserts rules before the agent's: the agent's move to the front, foreign ones stay",
        inserted_above,
    ),
    Fault::new(
        "T1-second-writer",
        "another process repeatedly moves its rules to the front: repairs have pauses",
        second_writer,
    ),
    Fault::new("T2-restore", "iptables-restore without --noflush wipes the filter table", foreign_restore),
    Fault::new("T3-extended", "another process accepts everything in one of the agent's chains", extended),
    Fault::new("T3-truncated", "another process flushes a dispatch chain", truncated),
    Fault::new("T3-deleted", "another process deletes the chain of a pod and the jumps to it", deleted),
    Fault::new(
        "T3-stray",
        "an unknown chain with the agent's prefix, and a rule with its hash in a foreign chain, are removed",
        stray,
    ),
    Fault::new("T8-renamed", "a policy is renamed without a change: no wrong verdict", renamed).ebpf().nftables(),
    Fault::new("T8-removed-and-added", "a policy is deleted and recreated", removed_and_added).ebpf().nftables(),
    Fault::new("T8-burst", "a policy is deleted and recreated many times in quick succession", removed_in_a_burst)
        .ebpf()
        .nftables(),
    Fault::new("T10-large", "hundreds of pods and policies: an edit among them is enforced soon", large)
        .ebpf()
        .nftables(),
    Fault::new("T11-names", "policies with long and odd names, and with comments that could end a rule", names),
];

/// Checks run every second, and half a second after a write; a busy machine needs longer to write.
const NEXT_CHECK: Duration = Duration::from_secs(6);

fn flush(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(NEXT_CHECK);
    stage.iptables("-F FORWARD")?;
    stage.confirm_within(NEXT_CHECK, &[("stranger", "web", false), ("friend", "web", true)])?;
    stage.watch(Duration::from_secs(1))
}

fn hook_deleted(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(NEXT_CHECK);
    stage.iptables("-D FORWARD 1")?;
    stage.until("our rule is back", |stage| Ok(first_forward_rule(stage)?.contains("-j cali-FORWARD")))?;
    stage.confirm_within(NEXT_CHECK, &[("stranger", "web", false)])?;
    stage.watch(Duration::from_secs(1))
}

fn inserted_above(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(NEXT_CHECK);
    stage.iptables("-I FORWARD -m comment --comment his -j ACCEPT")?;
    stage.until("our rule is first", |stage| Ok(first_forward_rule(stage)?.contains("-j cali-FORWARD")))?;
    stage.confirm_within(NEXT_CHECK, &[("stranger", "web", false)])?;
    let tables = stage.tables(stage.backend)?;
    ensure(tables.iter().any(|rule| rule.contains("-A FORWARD") && rule.contains("--comment his")), || {
        "the rule of the other is gone".to_owned()
    })
}

fn second_writer(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(Duration::from_secs(12));
    let before = stage.metric("felix_iptables_restore_calls")?;
    for _ in 0..30 {
        if !first_forward_rule(stage)?.contains("--comment his") {
            stage.iptables("-I FORWARD -m comment --comment his -j ACCEPT")?;
        }
        stage.watch(Duration::from_millis(200))?;
    }
    let writes = stage.metric("felix_iptables_restore_calls")? - before;
    ensure(writes < 60.0, || format!("{writes} writes in 6 s are a fight without pause"))?;
    stage.until("our rule is first", |stage| Ok(first_forward_rule(stage)?.contains("-j cali-FORWARD")))?;
    stage.confirm_within(NEXT_CHECK, &[("stranger", "web", false)])
}

fn foreign_restore(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(NEXT_CHECK);
    // Pods are also cut off while a chain that is the target of others is missing and being
    // rewritten.
    let backend = stage.backend.name();
    let wipe = "printf '*filter\\n:INPUT ACCEPT\\n:FORWARD ACCEPT\\n:OUTPUT ACCEPT\\nCOMMIT\\n'";
    stage.shell(&format!("{wipe} | iptables-{backend}-restore; {wipe} | ip6tables-{backend}-restore"))?;
    stage.until("our rule is back", |stage| Ok(first_forward_rule(stage)?.contains("-j cali-FORWARD")))?;
    stage.confirm_within(NEXT_CHECK, &[("stranger", "web", false), ("friend", "web", true)])?;
    stage.watch(Duration::from_secs(1))
}

/// Returns the first rule of FORWARD in the filter table, in one family of the pods.
fn first_forward_rule(stage: &Stage) -> Result<String, StageError> {
    let rules = stage.shell(&format!("{} -w -S FORWARD", stage.iptables_program()))?;
    Ok(rules.lines().find(|line| line.starts_with("-A")).unwrap_or_default().to_owned())
}

fn extended(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(NEXT_CHECK);
    stage.iptables("-I cali-FORWARD 1 -j ACCEPT")?;
    await_rule(stage, "-A cali-FORWARD -j ACCEPT", false)?;
    stage.confirm_within(NEXT_CHECK, &[("stranger", "web", false)])
}

fn truncated(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_open(NEXT_CHECK);
    stage.may_be_cut(NEXT_CHECK);
    stage.iptables("-F cali-to-wl-dispatch")?;
    await_rule(stage, "-A cali-to-wl-dispatch ", true)?;
    stage.confirm_within(NEXT_CHECK, &BASE)
}

fn deleted(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let chain = interface_name(&place("web")).map(|name| format!("cali-tw-{name}")).unwrap_or_default();
    let tables = stage.tables(stage.backend)?;
    let leading: Vec<&str> = tables
        .iter()
        .filter(|line| line.starts_with("iptables -A") && line.contains(&format!(" {chain}")))
        .filter_map(|line| line.split(' ').nth(2).filter(|&from| from != chain))
        .collect();
    ensure(!leading.is_empty(), || format!("nothing leads to {chain}"))?;
    stage.may_be_open(NEXT_CHECK);
    stage.may_be_cut(NEXT_CHECK);
    for from in leading {
        stage.iptables(&format!("-F {from}"))?;
    }
    stage.iptables(&format!("-F {chain}"))?;
    stage.iptables(&format!("-X {chain}"))?;
    await_rule(stage, &format!("-A {chain} "), true)?;
    stage.confirm_within(NEXT_CHECK, &BASE)
}

fn stray(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.iptables("-N cali-of-nobody")?;
    stage.iptables("-A cali-of-nobody -j ACCEPT")?;
    stage.iptables("-N DOCKER-USER")?;
    stage.iptables("-A DOCKER-USER -m comment --comment cali:0123456789abcdef -j ACCEPT")?;
    stage.iptables("-A DOCKER-USER -m comment --comment his -j RETURN")?;
    await_rule(stage, ":cali-of-nobody ", false)?;
    await_rule(stage, "cali:0123456789abcdef", false)?;
    ensure(
        stage.tables(stage.backend)?.iter().any(|line| line.contains("-A DOCKER-USER") && line.contains("his")),
        || "the rule of the other is gone".to_owned(),
    )
}

fn renamed(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for name in ["web-2", "web-3", "web"] {
        stage.write(|world| world.web_name = name.to_owned(), &[])?;
        stage.watch(Duration::from_millis(700))?;
    }
    Ok(())
}

fn removed_and_added(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..3 {
        stage.change(|world| world.web_policy = false, &WEB_OPEN)?;
        stage.change(|world| world.web_policy = true, &WEB_CLOSED)?;
    }
    Ok(())
}

fn removed_in_a_burst(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for pause in 0..20 {
        stage.write(|world| world.web_policy = false, &WEB_OPEN)?;
        stage.watch(Duration::from_millis(pause * 7))?;
        stage.write(|world| world.web_policy = true, &WEB_CLOSED)?;
        stage.watch(Duration::from_millis(pause * 5))?;
    }
    stage.confirm(&WEB_CLOSED)
}

fn large(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let mut policies = String::new();
    for number in 0..150 {
        let _ = write!(
            policies,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: many-{number}, namespace: shop}}\n\
             spec:\n  podSelector: {{matchLabels: {{app: many-{}}}}}\n  \
             ingress: [{{from: [{{podSelector: {{matchLabels: {{app: many-{number}}}}}}}]}}]\n",
            number % 10
        );
    }
    stage.write(
        |world| {
            for number in 0..300 {
                world.add_pod(&format!("many-{number}"), 100 + number);
            }
            world.files.insert("many.yaml".to_owned(), policies);
        },
        &[],
    )?;
    for friend in [true, false] {
        stage.write(|world| world.set_friend("stranger", friend), &[("stranger", "web", friend)])?;
        stage.confirm_within(Duration::from_secs(30), &[("stranger", "web", friend)])?;
    }
    stage.change(|world| world.set_friend("stranger", true), &[("stranger", "web", true)])?;
    stage.write(
        |world| {
            world.pods.retain(|name, _| !name.starts_with("many-"));
            world.files.clear();
            world.set_friend("stranger", false);
        },
        &[("stranger", "web", false)],
    )?;
    stage.confirm(&[("stranger", "web", false)])
}

fn names(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let long = format!("{}.{}", "l".repeat(200), "x".repeat(52));
    let mut files = String::new();
    for name in [long.as_str(), "a.b-c.d", "0"] {
        let _ = write!(
            files,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: '{name}', namespace: shop}}\n\
             spec: {{podSelector: {{matchLabels: {{app: open}}}}, ingress: [{{}}]}}\n"
        );
    }
    files += "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: odd}\nspec:\n  \
              selector: app == 'open'\n  types: [Ingress]\n  ingress:\n  - action: Log\n  - action: Allow\n    metadata:\n      \
              annotations:\n        plain: \"two\\nlines \\\"quoted\\\" 'single' cali:0123456789abcdef \u{fc}\u{2603}\"\n        \
              ends: \"\\\" -j ACCEPT\"\n";
    stage.write(
        |world| {
            world.felix = Some("logPrefix: 'a prefix of more than 29 characters %t %k %p'".to_owned());
            world.files.insert("names.yaml".to_owned(), files);
        },
        &[],
    )?;
    await_rule(stage, "-j LOG", true)?;
    stage.change(|world| world.set_friend("stranger", true), &[("stranger", "web", true)])?;
    stage.until_ready()?;
    stage.watch(Duration::from_secs(1))
}

/// Waits until the tables contain a line with this text, or no longer contain it.
fn await_rule(stage: &mut Stage, text: &str, there: bool) -> StageResult {
    let description = format!("{text:?} is {}", if there { "there" } else { "gone" });
    stage.until(&description, |stage| Ok(stage.tables(stage.backend)?.iter().any(|line| line.contains(text)) == there))
}
