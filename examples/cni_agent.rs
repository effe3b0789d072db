//! Network policy in the agent of a CNI plugin that connects its pods by veth devices. As root:
//! `cargo run --package tortie --example cni_agent --features linux -- DIRECTORY NODE`.
#![allow(clippy::disallowed_methods, reason = "a program may start threads")]

use std::error::Error;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::spawn;
use std::time::Duration;

use tortie::linux::kernel::LinuxKernel;
use tortie::linux::monitor::{self, MonitorConfig, MonitorEvent};
use tortie::{Change, Node, datastore::DirSource, resources::manifest::Options, rules::WorkloadDispatch};

enum Input {
    Change(Change),
    Links(MonitorEvent),
}

/// Enforces a directory of manifests for this node's pods. `notify` receives problems and changes.
pub(crate) fn enforce(folder: &str, name: &str, notify: impl Fn(String)) -> Result<(), Box<dyn Error>> {
    let mut node = Node::new(name);
    node.dataplane_config.rules.workloads = WorkloadDispatch::Address;
    node.dataplane_config.rules.workload_prefixes = vec!["veth".parse()?];
    let (mut dataplane, mut kernel) = (node.dataplane(), LinuxKernel::new(Duration::from_secs(10)));
    let ((sender, inputs), (reports, links)) = (sync_channel(64), sync_channel(64));
    let (of_links, _monitor) = (sender.clone(), monitor::spawn(MonitorConfig::default(), reports)?);
    spawn(move || links.into_iter().all(|event| of_links.send(Input::Links(event)).is_ok()));
    let changes = node.watch(DirSource::new(folder, Options::default()))?;
    spawn(move || changes.into_iter().all(|change| sender.send(Input::Change(change)).is_ok()));
    let mut wait = Duration::MAX;
    loop {
        match inputs.recv_timeout(wait) {
            Ok(Input::Change(Change::Desired(updates))) => updates.into_iter().for_each(|one| dataplane.on_update(one)),
            Ok(Input::Change(change)) => notify(change.to_string()),
            Ok(Input::Links(MonitorEvent::Link(event))) => dataplane.on_link(event),
            Ok(Input::Links(MonitorEvent::InSync)) => dataplane.on_links_in_sync(),
            Ok(Input::Links(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let report = dataplane.apply(&mut kernel);
        report.problems.iter().for_each(|problem| notify(tortie::model::with_causes(problem)));
        wait = report.next.unwrap_or(Duration::MAX);
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, node] = &args[..] else { return Err("DIRECTORY NODE".into()) };
    enforce(directory, node, |line| println!("{line}"))
}
