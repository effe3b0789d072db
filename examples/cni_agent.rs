//! Network policy within the agent of a CNI plugin, which has connected its pods itself. As root on a node of such pods:
//! `cargo run --package tortie --example cni_agent -- DIRECTORY NODE ADDRESS=INTERFACE…`.
#![allow(
    clippy::disallowed_methods,
    reason = "this is the program around the libraries: it starts programs and tells the time"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tortie::dataplane::{
    AddressPlace, CommandOutcome, CommandStatus, Kernel, KernelCommand, KernelError, LinkEvent, Neighbour,
    NeighbourChange, Route, RouteChange, RouteTableIndex, SysctlPath,
};
use tortie::model::{Family, IfaceName};
use tortie::rules::WorkloadsBy;
use tortie::{Change, Node, datastore::DirSource, resources::manifest::Options};

type Places = BTreeMap<IpAddr, AddressPlace>;
type Done<T> = Result<T, KernelError>;

/// The node as the agent knows it: where it has put its pods. It programs nothing but tables of iptables and IP sets; routes, devices
/// and neighbours are made elsewhere in the agent, so that there is nothing to read and nothing to do.
struct Host {
    places: Places,
    begun: Instant,
}

impl Kernel for Host {
    fn run(&mut self, commands: Vec<KernelCommand>) -> Vec<CommandOutcome> {
        let done = |command| run(&command).unwrap_or_else(|why| CommandOutcome::not_run(why.to_string()));
        commands.into_iter().map(done).collect()
    }
    fn locate(&mut self, addresses: &[(IpAddr, Option<AddressPlace>)]) -> Done<Vec<Option<AddressPlace>>> {
        Ok(addresses.iter().map(|(address, _)| self.places.get(address).cloned()).collect())
    }
    fn flush_conntrack(&mut self, address: IpAddr) -> Done<()> {
        for end in ["--orig-src", "--reply-src"] {
            let args = ["--delete", end, &address.to_string()].map(str::to_owned).to_vec();
            // Its exit code does not tell failures from there being no such connection.
            run(&KernelCommand { program: "conntrack".into(), args, input: String::new() })
                .map_err(|error| KernelError::Failed(error.to_string()))?;
        }
        Ok(())
    }
    fn read_sysctl(&mut self, path: &SysctlPath) -> Done<String> {
        let text = std::fs::read_to_string(format!("/proc/sys/{path}"));
        text.map(|text| text.trim_end().to_owned()).map_err(|error| KernelError::Failed(error.to_string()))
    }
    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Done<()> {
        std::fs::write(format!("/proc/sys/{path}"), value).map_err(|error| KernelError::Failed(error.to_string()))
    }
    fn sleep(&mut self, duration: Duration) {
        thread::sleep(duration);
    }
    fn now(&mut self) -> Duration {
        self.begun.elapsed()
    }
    fn routes(&mut self, _: Family, _: RouteTableIndex) -> Done<Vec<Route>> {
        Ok(Vec::new())
    }
    fn routes_of(&mut self, _: Family, _: RouteTableIndex, _: u32) -> Done<Vec<Route>> {
        Ok(Vec::new())
    }
    fn change_routes(&mut self, _: RouteTableIndex, changes: &[RouteChange]) -> Vec<Done<()>> {
        vec![Err(KernelError::Unsupported); changes.len()]
    }
    fn neighbours(&mut self, _: Family) -> Done<Vec<Neighbour>> {
        Ok(Vec::new())
    }
    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Done<()>> {
        vec![Err(KernelError::Unsupported); changes.len()]
    }
    fn marked_flushes(&mut self, _: Family) -> Done<Vec<IpAddr>> {
        Ok(Vec::new())
    }
    fn mark_flush(&mut self, _: IpAddr, _: bool) -> Done<()> {
        Ok(())
    }
}

fn run(command: &KernelCommand) -> std::io::Result<CommandOutcome> {
    let mut program = Command::new(&command.program);
    program.args(&command.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn()?;
    let (stdin, input) = (child.stdin.take(), command.input.clone());
    // Beside reading, as it may print before it has read all.
    let writer = thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output()?;
    drop(writer.join());
    let status = output.status.code().map_or(CommandStatus::Signal, CommandStatus::Code);
    Ok(CommandOutcome { status, stdout: output.stdout, stderr: String::from_utf8_lossy(&output.stderr).into_owned() })
}

/// Keeps what a directory of manifests says in force for the pods at these places. `tell` hears what changes.
pub(crate) fn enforce(folder: &str, name: &str, places: Places, tell: impl Fn(String)) -> Result<(), Box<dyn Error>> {
    let mut node = Node::new(name);
    node.dataplane_config.rules.workloads = WorkloadsBy::Address;
    node.dataplane_config.rules.workload_prefixes = vec!["veth".parse()?];
    let mut dataplane = node.dataplane();
    for AddressPlace { interface, index, .. } in places.values() {
        dataplane.on_link(LinkEvent::Up { name: interface.clone(), index: *index });
    }
    dataplane.on_links_in_sync();

    // In a cluster this is the API server: `tortie::datastore::kubernetes`.
    let changes = node.watch(DirSource::new(folder, Options::default()))?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || changes.into_iter().all(|change| sender.send(change).is_ok()));
    let mut host = Host { places, begun: Instant::now() };
    let mut wait = Duration::MAX;
    loop {
        match receiver.recv_timeout(wait) {
            Ok(Change::Desired(updates)) => updates.into_iter().for_each(|update| dataplane.on_update(update)),
            Ok(Change::Problems(problems)) => problems.iter().for_each(|problem| tell(problem.to_string())),
            Ok(Change::Unavailable { why, .. }) => tell(why),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let report = dataplane.apply(&mut host);
        report.problems.iter().for_each(|problem| tell(problem.to_string()));
        report.statuses.iter().for_each(|change| tell(format!("{change:?}")));
        wait = report.next.unwrap_or(Duration::MAX);
    }
}

/// The place behind an interface.
pub(crate) fn place(interface: &str) -> Result<AddressPlace, Box<dyn Error>> {
    let line = Command::new("ip").args(["-oneline", "link", "show", "dev", interface]).output()?;
    let index = String::from_utf8(line.stdout)?.split(':').next().unwrap_or_default().parse()?;
    Ok(AddressPlace { interface: IfaceName::from(interface), port: None, index })
}

/// What the command line asks for.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, node, pods @ ..] = &args[..] else { return Err("DIRECTORY NODE ADDRESS=INTERFACE…".into()) };
    let mut places = Places::new();
    for pod in pods {
        let (address, interface) = pod.split_once('=').ok_or("ADDRESS=INTERFACE")?;
        places.insert(address.parse()?, place(interface)?);
    }
    enforce(directory, node, places, |line| println!("{line}"))
}
