//! A demonstration of a node: its reachability before policy, with policy, and after an edit of a
//! policy.
//!
//! The node and its pods are a [`Lab`], the agent is `tortie run`, and the manifests are plain
//! Kubernetes files: `cargo xtask demo`.

mod agent;
mod manifests;
mod matrix;

use std::{
    fmt::Write as _,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use self::{
    agent::{Agent, AppliedChanges},
    manifests::{Edit, File, Manifests, Pod, number_and_protocol},
    matrix::{Colors, Matrix},
};
use crate::{
    kernel,
    netns::NetnsError,
    pods::{Flow, FlowOutcome, Lab, LabOptions, Protocol, Reachability, Timing, interface_name},
    program::ProgramError,
};

/// Maximum wait for an answer: enough for the kernel to retransmit a lost packet after a second, so
/// that loss is not taken for denial.
const ANSWER: Duration = Duration::from_millis(1200);
/// Maximum time until a change takes effect.
const CHANGE: Duration = Duration::from_secs(5);

/// Options of the demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of the agent.
    pub agent: PathBuf,
    /// Directory of the manifests: pods with `nodeName: demo-node`, and policies in separate files.
    pub manifests: PathBuf,
    /// Back end of the agent: an iptables implementation (`auto`, `nft` or `legacy`), `nftables` or
    /// `ebpf`.
    pub backend: String,
    /// Whether the node stays up at the end until the user interrupts.
    pub keep: bool,
    /// Whether the output uses terminal colors.
    pub colors: bool,
    /// Reports whether the user has interrupted the demo.
    pub interrupted: fn() -> bool,
}

/// Error that ends the demo early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The user interrupted the demo.
    #[error("interrupted")]
    Interrupted,
    /// A file, or the output, could not be read or written.
    #[error("{subject}: {source}")]
    Io {
        /// File or stream that was read or written.
        subject: String,
        /// The reason.
        source: io::Error,
    },
    /// The manifests contain no pod for the node.
    #[error("{} has no pod with an address and `nodeName: {NODE}`", directory.display(), NODE = manifests::NODE)]
    NoPods {
        /// Directory of the manifests.
        directory: PathBuf,
    },
    /// A manifest contains policies and other objects, so the demo cannot omit only the policies at
    /// first.
    #[error("{file} holds policies and other objects: the demo needs them in separate files")]
    Mixed {
        /// Name of the file.
        file: String,
    },
    /// The node could not be built or used.
    #[error(transparent)]
    Lab(#[from] NetnsError),
    /// The agent could not be started, or ended unexpectedly.
    #[error(transparent)]
    Agent(#[from] ProgramError),
    /// The agent did not reach the awaited state in time.
    #[error("the agent did not {aim} in {seconds} s; the end of its log:\n{log}")]
    TooSlow {
        /// The awaited action.
        aim: &'static str,
        /// Elapsed seconds.
        seconds: u64,
        /// Last lines of its log.
        log: String,
    },
    /// A packet reached the wrong server.
    #[error("`{server}` answered {flow}")]
    WrongServer {
        /// The flow.
        flow: Box<Flow>,
        /// The server that answered.
        server: String,
    },
}

impl DemoError {
    fn io(subject: impl Into<String>) -> impl Fn(io::Error) -> Self {
        let subject = subject.into();
        move |source| Self::Io { subject: subject.clone(), source }
    }
}

/// Builds a node, enforces the manifests on it, and prints the reachability to `out`: without
/// policies, with policies, and after an edit of one manifest while the agent runs, with the time
/// that the edit took. Prints problems of the manifests to standard error.
///
/// # Errors
/// The first failure. All namespaces and files are removed in any case.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), DemoError> {
    let manifests = Manifests::read(&options.manifests)?;
    for problem in &manifests.problems {
        eprintln!("{problem}");
    }
    let folder = Folder::new()?;
    let lab_pods: Vec<_> = manifests.pods.iter().map(Pod::in_lab).collect();
    let lab = Lab::new(&lab_pods, &LabOptions::for_agent())?;
    let mut printer = Printer::new(out, options.colors);
    printer.pods(&manifests.pods)?;
    folder.write(&manifests.cluster)?;
    let agent = Agent::start(&lab, folder.path(), options)?;
    let mut demo = Demo { lab: &lab, pods: &manifests.pods, folder: &folder, options, agent, printer };
    let without = demo.without_policies()?;
    let (with, enforced) = demo.with_policies(&manifests.policies, &without)?;
    match &manifests.edit {
        Some(edit) => demo.edited(edit, &with, enforced)?,
        None => demo.printer.note("No manifest has the text that the demo would edit.")?,
    }
    if options.keep { demo.keep() } else { Ok(()) }
}

/// A measurement, and its presentation.
#[derive(Debug, Clone)]
struct Measurement {
    reachability: Reachability,
    matrix: Matrix,
}

/// Steps of the demo.
struct Demo<'a> {
    lab: &'a Lab,
    pods: &'a [Pod],
    folder: &'a Folder,
    options: &'a Options,
    agent: Agent<'a>,
    printer: Printer<'a>,
}

impl Demo<'_> {
    fn without_policies(&mut self) -> Result<Measurement, DemoError> {
        let ready = self.agent.await_ready()?;
        let measured = self.probe()?;
        self.printer.step("Without policies", &format!("agent ready {} after its start", millis(ready)))?;
        self.printer.matrix(&measured.matrix)?;
        Ok(measured)
    }

    fn with_policies(
        &mut self,
        policies: &[File],
        without: &Measurement,
    ) -> Result<(Measurement, AppliedChanges), DemoError> {
        let before = self.agent.await_quiet()?;
        if policies.is_empty() {
            self.printer.note("No manifest holds a policy.")?;
            return Ok((without.clone(), before));
        }
        self.folder.write(policies)?;
        let enforced = self.agent.await_more(before)?;
        let measured = self.probe()?;
        let names: Vec<&str> = policies.iter().map(|file| file.name.as_str()).collect();
        let took = millis(enforced.mean_since(before));
        self.printer.step(&format!("With {}", names.join(", ")), &format!("in the kernel after {took}"))?;
        self.printer.matrix(&measured.matrix)?;
        Ok((measured, enforced))
    }

    fn edited(&mut self, edit: &Edit, before: &Measurement, enforced_before: AppliedChanges) -> Result<(), DemoError> {
        let silent = before.reachability.iter().filter(|(flow, outcome)| {
            // The time of a UDP or SCTP answer does not show when its packet was sent.
            flow.port.protocol == Protocol::Tcp && **outcome == FlowOutcome::Silent
        });
        let silent: Vec<Flow> = silent.map(|(flow, _)| flow.clone()).collect();
        let (lab, folder) = (self.lab, self.folder);
        let (written, seen) = thread::scope(|scope| {
            let watching = scope.spawn(|| lab.first_reached(&silent, CHANGE));
            // The attempts need a moment to start; the awaited change must not happen before.
            thread::sleep(Duration::from_millis(50));
            let written = Instant::now();
            folder.write([&edit.file])?;
            let seen = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, DemoError>((written, seen))
        })?;
        let enforced = self.agent.await_more(enforced_before)?;
        let matrix = self.probe()?.matrix;
        self.printer.step(&format!("{} edited while the agent runs", edit.file.name), "")?;
        let mut text = format!("   - {}\n   + {}\n\n", edit.old_line, edit.new_line);
        text.push_str(&matrix.render(Some(&before.matrix), self.printer.colors));
        text.push('\n');
        for change in matrix.changes(&before.matrix) {
            let _ = writeln!(text, "   changed: {change}");
        }
        if let Some(seen) = seen {
            let latency = millis(seen.saturating_duration_since(written));
            let _ = writeln!(text, "   {latency} from writing the file to the first allowed connection");
        }
        let own = millis(enforced.mean_since(enforced_before));
        let _ = writeln!(text, "   {own} from noticing the change to the kernel, as the agent itself measures");
        self.printer.text(&text)
    }

    fn probe(&self) -> Result<Measurement, DemoError> {
        if (self.options.interrupted)() {
            return Err(DemoError::Interrupted);
        }
        let reachability = self.lab.probe(&self.lab.flows(), &Timing::patient(ANSWER))?;
        let matrix = Matrix::new(self.pods, &reachability)?;
        Ok(Measurement { reachability, matrix })
    }

    fn keep(&mut self) -> Result<(), DemoError> {
        self.printer.step("The node stays up until Ctrl-C", "")?;
        let user = if kernel::is_in_user_namespace() {
            format!("--user=/proc/{}/ns/user --preserve-credentials ", std::process::id())
        } else {
            String::new()
        };
        let mut rows = vec![("manifests".to_owned(), self.folder.manifests().display().to_string())];
        let enter = |path: PathBuf| format!("nsenter {user}--net={} bash", path.display());
        rows.push(("node".to_owned(), enter(self.lab.node().path())));
        for pod in self.pods {
            let namespace = self.lab.namespace(&pod.place);
            rows.extend(namespace.map(|namespace| (pod.place.to_string(), enter(namespace.path()))));
        }
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let text: String = rows.iter().map(|(name, value)| format!("   {name:width$}  {value}\n")).collect();
        self.printer.text(&text)?;
        while !(self.options.interrupted)() {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// A temporary folder for the demo, with a folder for manifests.
struct Folder(TempDir);

impl Folder {
    fn new() -> Result<Self, DemoError> {
        let failed = DemoError::io("a temporary folder");
        let folder = Self(TempDir::with_prefix("tortie-demo-").map_err(&failed)?);
        fs::create_dir(folder.manifests()).map_err(failed)?;
        Ok(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn manifests(&self) -> PathBuf {
        manifests_in(self.path())
    }

    /// Writes manifests atomically, by rename.
    fn write<'f>(&self, files: impl IntoIterator<Item = &'f File>) -> Result<(), DemoError> {
        let mut written = Vec::new();
        for File { name, text } in files {
            let (draft, path) = (self.path().join(name), self.manifests().join(name));
            fs::write(&draft, text).map_err(DemoError::io(draft.display().to_string()))?;
            written.push((draft, path));
        }
        for (draft, path) in written {
            fs::rename(draft, &path).map_err(DemoError::io(path.display().to_string()))?;
        }
        Ok(())
    }
}

/// Returns the folder of the agent's manifests.
fn manifests_in(folder: &Path) -> PathBuf {
    folder.join("manifests")
}

/// Output of the demo.
struct Printer<'a> {
    out: &'a mut dyn Write,
    colors: Colors,
    steps: usize,
}

impl<'a> Printer<'a> {
    fn new(out: &'a mut dyn Write, colors: bool) -> Self {
        Self { out, colors: if colors { Colors::On } else { Colors::Off }, steps: 0 }
    }

    fn text(&mut self, text: &str) -> Result<(), DemoError> {
        let done = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        done.map_err(DemoError::io("the output"))
    }

    fn pods(&mut self, pods: &[Pod]) -> Result<(), DemoError> {
        self.text(&format!("A node of network namespaces, the real agent, this kernel.\n\n{}", pod_table(pods)))
    }

    fn step(&mut self, title: &str, remark: &str) -> Result<(), DemoError> {
        self.steps += 1;
        let title = self.colors.bold(&format!("{}. {title}", self.steps));
        let remark = if remark.is_empty() { String::new() } else { format!("   ({remark})") };
        self.text(&format!("\n{title}{remark}\n\n"))
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<(), DemoError> {
        self.text(&matrix.render(None, self.colors))
    }

    fn note(&mut self, note: &str) -> Result<(), DemoError> {
        self.text(&format!("\n{note}\n"))
    }
}

/// Returns a table of the pods with their addresses and served ports.
fn pod_table(pods: &[Pod]) -> String {
    let list = |words: Vec<String>| words.join(", ");
    let mut rows = vec![["pod", "interface", "addresses", "serves"].map(str::to_owned)];
    rows.extend(pods.iter().map(|pod| {
        [
            pod.place.to_string(),
            interface_name(&pod.place).unwrap_or_default(),
            list(pod.addresses.iter().map(ToString::to_string).collect()),
            list(pod.ports.iter().map(|(name, port)| format!("{name} {}", number_and_protocol(*port))).collect()),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [name, interface, addresses, serves] in &rows {
        let [a, b, c] = widths;
        let _ = writeln!(text, "   {name:a$}  {interface:b$}  {addresses:c$}  {serves}");
    }
    text
}

/// Formats a duration for display.
fn millis(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
