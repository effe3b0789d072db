//! A node for a look around: who can talk to whom before policy, with it, and after it is edited.
//!
//! The node and its pods are a [`Lab`], the agent is `tortie run`, and the manifests are files that an ordinary user could
//! have written: `cargo xtask demo`.

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
    agent::{Agent, Enforced},
    manifests::{Edit, File, Manifests, Pod, number_and_protocol},
    matrix::{Colors, Matrix},
};
use crate::{
    kernel,
    netns::NetnsError,
    pods::{Flow, FlowOutcome, Lab, LabOptions, Protocol, Reachability, Timing, interface_name},
    program::ProgramError,
};

/// How long an attempt waits for its answer: long enough for the kernel to repeat a packet that was lost, after a
/// second, rather than denied.
const ANSWER: Duration = Duration::from_millis(1200);
/// How long a change may take to show.
const CHANGE: Duration = Duration::from_secs(5);

/// What to show.
#[derive(Debug, Clone)]
pub struct Options {
    /// The agent's program.
    pub agent: PathBuf,
    /// Where the manifests are: pods with `nodeName: demo-node`, and policies in files of their own.
    pub manifests: PathBuf,
    /// The iptables implementation that the agent uses: `auto`, `nft` or `legacy`; or `ebpf`.
    pub backend: String,
    /// Whether the node is left up at the end, until the user wants no more.
    pub keep: bool,
    /// Whether the text is for a terminal with colors.
    pub colors: bool,
    /// Whether the user wants no more.
    pub interrupted: fn() -> bool,
}

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The user wanted no more.
    #[error("interrupted")]
    Interrupted,
    /// A file, or the output, could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was read or written.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// There is nothing to build a node from.
    #[error("{} has no pod with an address and `nodeName: {NODE}`", directory.display(), NODE = manifests::NODE)]
    NoPods {
        /// Where the manifests are.
        directory: PathBuf,
    },
    /// A manifest cannot be left out at first, since it does not only hold policies.
    #[error("{file} holds policies and other things: the demo needs them in files of their own")]
    Mixed {
        /// Its name.
        file: String,
    },
    /// The node could not be built or used.
    #[error(transparent)]
    Lab(#[from] NetnsError),
    /// The agent could not be started, or ended.
    #[error(transparent)]
    Agent(#[from] ProgramError),
    /// The agent does not do what is waited for.
    #[error("the agent did not {aim} in {seconds} s; the end of its log:\n{log}")]
    TooSlow {
        /// What is waited for.
        aim: &'static str,
        /// For how long.
        seconds: u64,
        /// The end of its log.
        log: String,
    },
    /// Packets went astray.
    #[error("`{server}` answered {flow}")]
    WrongServer {
        /// From whom to whom.
        flow: Box<Flow>,
        /// Who answered.
        server: String,
    },
}

impl DemoError {
    fn io(what: impl Into<String>) -> impl Fn(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what: what.clone(), source }
    }
}

/// Builds a node, enforces the manifests on it, and shows on `out` who can talk to whom: without the policies, with them,
/// and after one manifest is edited while the agent runs, with the time that the change took. Problems of the manifests go
/// to standard error.
///
/// # Errors
/// What went wrong. Nothing is left behind then, nor otherwise.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), DemoError> {
    let manifests = Manifests::read(&options.manifests)?;
    for problem in &manifests.problems {
        eprintln!("{problem}");
    }
    let folder = Folder::new()?;
    let lab_pods: Vec<_> = manifests.pods.iter().map(Pod::in_lab).collect();
    let lab = Lab::new(&lab_pods, &LabOptions::for_agent())?;
    let mut show = Show::new(out, options.colors);
    show.pods(&manifests.pods)?;
    folder.write(&manifests.cluster)?;
    let agent = Agent::start(&lab, folder.path(), options)?;
    let mut story = Story { lab: &lab, pods: &manifests.pods, folder: &folder, options, agent, show };
    let without = story.without_policies()?;
    let (with, enforced) = story.with_policies(&manifests.policies, &without)?;
    match &manifests.edit {
        Some(edit) => story.edited(edit, &with, enforced)?,
        None => story.show.note("No manifest has the text that the demo would edit.")?,
    }
    if options.keep { story.keep() } else { Ok(()) }
}

/// What was measured, and how it is shown.
#[derive(Debug, Clone)]
struct Measured {
    reachability: Reachability,
    matrix: Matrix,
}

/// What the demo shows, one thing after the other.
struct Story<'a> {
    lab: &'a Lab,
    pods: &'a [Pod],
    folder: &'a Folder,
    options: &'a Options,
    agent: Agent<'a>,
    show: Show<'a>,
}

impl Story<'_> {
    fn without_policies(&mut self) -> Result<Measured, DemoError> {
        let ready = self.agent.await_ready()?;
        let measured = self.probe()?;
        self.show.step("Without policies", &format!("agent ready {} after its start", millis(ready)))?;
        self.show.matrix(&measured.matrix)?;
        Ok(measured)
    }

    fn with_policies(&mut self, policies: &[File], without: &Measured) -> Result<(Measured, Enforced), DemoError> {
        let before = self.agent.await_quiet()?;
        if policies.is_empty() {
            self.show.note("No manifest holds a policy.")?;
            return Ok((without.clone(), before));
        }
        self.folder.write(policies)?;
        let enforced = self.agent.await_more(before)?;
        let measured = self.probe()?;
        let names: Vec<&str> = policies.iter().map(|file| file.name.as_str()).collect();
        let took = millis(enforced.mean_since(before));
        self.show.step(&format!("With {}", names.join(", ")), &format!("in the kernel after {took}"))?;
        self.show.matrix(&measured.matrix)?;
        Ok((measured, enforced))
    }

    fn edited(&mut self, edit: &Edit, before: &Measured, enforced_before: Enforced) -> Result<(), DemoError> {
        let silent = before.reachability.iter().filter(|(flow, outcome)| {
            // An answer to UDP or SCTP says nothing about when its packet was sent.
            flow.port.protocol == Protocol::Tcp && **outcome == FlowOutcome::Silent
        });
        let silent: Vec<Flow> = silent.map(|(flow, _)| flow.clone()).collect();
        let (lab, folder) = (self.lab, self.folder);
        let (written, seen) = thread::scope(|scope| {
            let watching = scope.spawn(|| lab.first_reached(&silent, CHANGE));
            // The attempts need a moment to get going; what they wait for must not happen before.
            thread::sleep(Duration::from_millis(50));
            let written = Instant::now();
            folder.write([&edit.file])?;
            let seen = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, DemoError>((written, seen))
        })?;
        let enforced = self.agent.await_more(enforced_before)?;
        let matrix = self.probe()?.matrix;
        self.show.step(&format!("{} edited while the agent runs", edit.file.name), "")?;
        let mut text = format!("   - {}\n   + {}\n\n", edit.old_line, edit.new_line);
        text.push_str(&matrix.render(Some(&before.matrix), self.show.colors));
        text.push('\n');
        for change in matrix.changes(&before.matrix) {
            let _ = writeln!(text, "   changed: {change}");
        }
        if let Some(seen) = seen {
            let latency = millis(seen.saturating_duration_since(written));
            let _ = writeln!(text, "   {latency} from writing the file to the first connection that it lets through");
        }
        let own = millis(enforced.mean_since(enforced_before));
        let _ = writeln!(text, "   {own} from noticing the change to the kernel, as the agent itself measures");
        self.show.text(&text)
    }

    fn probe(&self) -> Result<Measured, DemoError> {
        if (self.options.interrupted)() {
            return Err(DemoError::Interrupted);
        }
        let reachability = self.lab.probe(&self.lab.flows(), &Timing::patient(ANSWER))?;
        let matrix = Matrix::new(self.pods, &reachability)?;
        Ok(Measured { reachability, matrix })
    }

    fn keep(&mut self) -> Result<(), DemoError> {
        self.show.step("The node stays up until Ctrl-C", "")?;
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
        let text: String = rows.iter().map(|(name, what)| format!("   {name:width$}  {what}\n")).collect();
        self.show.text(&text)?;
        while !(self.options.interrupted)() {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// A folder for the time of the demo, with a folder for manifests in it.
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

    /// Writes manifests as careful editors do: each appears at once, complete.
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

/// Where the agent's manifests are.
fn manifests_in(folder: &Path) -> PathBuf {
    folder.join("manifests")
}

/// Where the demo shows itself.
struct Show<'a> {
    out: &'a mut dyn Write,
    colors: Colors,
    steps: usize,
}

impl<'a> Show<'a> {
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

/// The pods with their addresses and what they serve.
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

/// A duration for people.
fn millis(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
