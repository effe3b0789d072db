//! Manifests are missing, torn, unreadable or unusable (P4, and more).

use std::{fs, io::Write as _, time::Duration};

use rustix::process::Signal;

use super::programs::{admit, write_admit};
use crate::{
    Fault,
    stage::{Stage, StageResult, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("P4-gone", "the datastore's directory disappears, and returns with other contents", directory_gone)
        .ebpf(),
    Fault::new("P4-emptied", "policies are deleted while the agent is suspended", returns_with_less).ebpf().nftables(),
    Fault::new("ready-flag", "the datastore is not ready for a while; changes of that time are enforced", ready_flag)
        .ebpf(),
    Fault::new(
        "ready-flag-start",
        "the datastore is not ready at the start: nothing is allowed wrongly",
        not_ready_at_start,
    )
    .ebpf(),
    Fault::new("torn-truncated", "a policy is written in place: truncated, and filled 300 ms later", |stage| {
        torn(stage, false, truncate)
    })
    .ebpf(),
    Fault::new("torn-unlinked", "a policy is deleted and recreated 20 ms later", |stage| torn(stage, false, unlink))
        .ebpf(),
    Fault::new("torn-pieces", "a policy is written in pieces", |stage| torn(stage, false, pieces)).ebpf().nftables(),
    Fault::new("torn-all-truncated", "a file with all objects is truncated, and filled 300 ms later", |stage| {
        torn(stage, true, truncate)
    })
    .ebpf(),
    Fault::new("torn-all-unlinked", "a file with all objects is deleted and recreated 20 ms later", |stage| {
        torn(stage, true, unlink)
    })
    .ebpf(),
    Fault::new("torn-all-pieces", "a file with all objects is written in pieces", |stage| torn(stage, true, pieces))
        .ebpf(),
    Fault::new("unreadable-start", "a restart with an unreadable file: policy stays in force", unreadable_start).ebpf(),
    Fault::new(
        "unreadable-reboot",
        "a reboot with an unreadable file and without state: nothing is allowed wrongly",
        unreadable_reboot,
    )
    .ebpf(),
    Fault::new(
        "unreadable-reboot-state",
        "a reboot with an unreadable file and the kept state: as before",
        unreadable_with_state,
    )
    .ebpf(),
    Fault::new("full-disk", "the disk of the state directory is full: edits are still enforced", full_disk).ebpf(),
    Fault::new(
        "unknown-node",
        "--node that no object names, on a node with running pods: nothing is cut",
        unknown_node,
    )
    .ebpf(),
];

fn directory_gone(stage: &mut Stage) -> StageResult {
    stage.arguments = ["--rescan-interval", "1"].map(str::to_owned).to_vec();
    stage.begin()?;
    let away = stage.folder().join("away");
    fs::rename(stage.manifests(), &away)?;
    stage.watch(Duration::from_secs(3))?;
    // It returns with one more allowed pod.
    stage.announce(&[("stranger", "web", true)]);
    stage.world.web_admits = vec!["stranger".to_owned()];
    fs::write(away.join("web.yaml"), stage.world.web_policy_text())?;
    fs::rename(&away, stage.manifests())?;
    stage.record_written_file("web.yaml");
    stage.confirm(&[("stranger", "web", true)])?;
    admit(stage, false)
}

fn returns_with_less(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.signal(Signal::STOP)?;
    stage.write(|world| world.web_policy = false, &crate::world::WEB_OPEN)?;
    stage.watch(Duration::from_secs(1))?;
    stage.signal(Signal::CONT)?;
    stage.confirm(&crate::world::WEB_OPEN)?;
    stage.change(|world| world.web_policy = true, &crate::world::WEB_CLOSED)
}

fn ready_flag(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    admit(stage, true)?;
    stage.write(|world| world.ready = Some(false), &[])?;
    stage.watch(Duration::from_secs(1))?;
    stage.write(|world| world.ready = Some(true), &[])?;
    stage.watch(Duration::from_secs(1))?;
    admit(stage, false)?;
    // An edit while the datastore is not ready.
    stage.write(|world| world.ready = Some(false), &[])?;
    stage.watch(Duration::from_millis(500))?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_secs(1))?;
    stage.write(|world| world.ready = Some(true), &[])?;
    stage.confirm(&[("stranger", "web", true)])?;
    admit(stage, false)
}

fn not_ready_at_start(stage: &mut Stage) -> StageResult {
    stage.write(|world| world.ready = Some(false), &[])?;
    stage.spawn()?;
    stage.watch(Duration::from_secs(2))?;
    write_admit(stage, true)?;
    stage.watch(Duration::from_millis(500))?;
    write_admit(stage, false)?;
    stage.watch(Duration::from_millis(500))?;
    stage.write(|world| world.ready = Some(true), &[])?;
    stage.until_ready()?;
    stage.confirm(&BASE)?;
    admit(stage, true)
}

/// Writes the policy file of `web` repeatedly, as editors and shells do, with changing contents of
/// the same meaning.
fn torn(stage: &mut Stage, in_one_file: bool, write: fn(&std::path::Path, &str) -> std::io::Result<()>) -> StageResult {
    stage.write(|world| world.in_one_file = in_one_file, &[])?;
    stage.begin()?;
    let name = if in_one_file { "all.yaml" } else { "web.yaml" };
    let path = stage.manifests().join(name);
    for number in 0..8 {
        stage.world.web_admits = vec![format!("nobody-{number}")];
        write(&path, &stage.world.files()[name])?;
        stage.watch(Duration::from_millis(700))?;
    }
    stage.record_written_file(name);
    // An edit with another meaning is enforced as well.
    for admitted in [true, false] {
        stage.announce(&[("stranger", "web", admitted)]);
        stage.world.web_admits = if admitted { vec!["stranger".to_owned()] } else { Vec::new() };
        write(&path, &stage.world.files()[name])?;
        stage.confirm(&[("stranger", "web", admitted)])?;
    }
    stage.record_written_file(name);
    Ok(())
}

fn truncate(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    fs::write(path, "")?;
    std::thread::sleep(Duration::from_millis(300));
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn unlink(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    fs::remove_file(path)?;
    std::thread::sleep(Duration::from_millis(20));
    fs::write(path, text)
}

fn pieces(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    let size = text.len().div_ceil(6).max(1);
    for piece in text.as_bytes().chunks(size) {
        file.write_all(piece)?;
        file.flush()?;
        std::thread::sleep(Duration::from_millis(60));
    }
    Ok(())
}

const NONSENSE: &str =
    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop\nspec: [\n";

fn unreadable_start(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.stop()?;
    fs::write(stage.manifests().join("web.yaml"), NONSENSE)?;
    for _ in 0..2 {
        stage.spawn()?;
        std::thread::sleep(Duration::from_secs(2));
        if stage.ended()?.is_none() {
            stage.kill()?;
        }
    }
    fs::write(stage.manifests().join("web.yaml"), stage.world.web_policy_text())?;
    stage.start()?;
    stage.confirm(&BASE)?;
    admit(stage, true)
}

/// Sets the kernel to its state after a reboot. Allowed traffic may be denied from now on.
fn reboot(stage: &mut Stage) -> StageResult {
    stage.stop()?;
    stage.may_be_cut(Duration::from_secs(60));
    // Routes first: after a boot, no route leads to a pod.
    stage.shell("ip route flush proto 80; ip -6 route flush proto 80; for link in $(ip -o link | grep -o 'cali[0-9a-f]*' | sort -u); do \
                 ip route flush dev $link; ip -6 route flush dev $link proto 80; ip -6 route flush dev $link proto boot; done")?;
    ensure(stage.routes()?.is_empty(), || format!("routes are left: {:?}", stage.routes()))?;
    stage.clean_up()
}

fn unreadable_reboot(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    reboot(stage)?;
    // Also removes the state that the agent keeps for its next start.
    fs::remove_dir_all(stage.state_dir())?;
    fs::write(stage.manifests().join("web.yaml"), NONSENSE)?;
    stage.spawn()?;
    std::thread::sleep(Duration::from_secs(3));
    if stage.ended()?.is_none() {
        stage.kill()?;
    }
    fs::write(stage.manifests().join("web.yaml"), stage.world.web_policy_text())?;
    stage.start()?;
    stage.confirm(&BASE)
}

fn unreadable_with_state(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    reboot(stage)?;
    fs::write(stage.manifests().join("web.yaml"), NONSENSE)?;
    stage.spawn()?;
    stage.confirm(&BASE)?;
    fs::write(stage.manifests().join("web.yaml"), stage.world.web_policy_text())?;
    stage.until_ready()?;
    admit(stage, true)
}

fn full_disk(stage: &mut Stage) -> StageResult {
    let state = stage.state_dir();
    fs::create_dir_all(&state)?;
    // In a private mount namespace, so that no mount remains.
    stage.prelude = format!(
        "PATH=$PATH exec unshare --mount sh -c 'mount -t tmpfs -o size=16k tmpfs {0}; \
         head -c 16384 /dev/zero >{0}/full; PATH={1} exec \"$0\" \"$@\"' \"$0\" \"$@\"",
        state.display(),
        stage.helpers.path().display()
    );
    stage.begin()?;
    admit(stage, true)?;
    admit(stage, false)?;
    stage.stop()?;
    stage.start()?;
    admit(stage, true)
}

fn unknown_node(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.stop()?;
    let name = std::mem::replace(&mut stage.node_name, "nobody".to_owned());
    stage.spawn()?;
    std::thread::sleep(Duration::from_secs(4));
    if stage.ended()?.is_none() {
        stage.stop()?;
    }
    stage.node_name = name;
    stage.start()?;
    stage.confirm(&BASE)?;
    admit(stage, true)
}
