//! `tortie demo`.

mod agent;
mod folder;
mod manifests;
mod matrix;
mod namespace;
mod node;
mod privileges;
mod probe;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use self::agent::{Agent, Enforced, manifests_in};
use self::folder::Folder;
use self::manifests::{Edit, File, Manifests, Pod};
use self::matrix::{Colors, Matrix};
use self::node::Node;
use super::Failure;

/// Build a small node on this machine, enforce manifests on it, and show who can talk to whom.
///
/// The node and its pods are private network namespaces; the host's own network is not touched, and nothing is left
/// behind. The agent is `tortie run`, the kernel is this one. Shown is which pods reach which named ports of which
/// others: without the policies, with them, and after one manifest is edited while the agent runs, with the time that
/// the change took.
///
/// Needs iproute2, iptables and ipset, and root or unprivileged user namespaces.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Where the manifests are: pods with `nodeName: demo-node`, and policies in files of their own.
    #[arg(long, value_name = "DIR", default_value = "examples/demo")]
    manifests: PathBuf,
    /// The iptables implementation that the agent uses.
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Leave the node up at the end, for a look around, until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

/// An iptables implementation.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// The one that the agent finds best.
    Auto,
    /// The one on top of nftables.
    Nft,
    /// The original.
    Legacy,
}

impl Backend {
    /// The agent's name for it.
    fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

/// Whether the user wants no more. Signals no longer end the program: it has to clean up.
#[derive(Debug)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn new() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(Failure::io("signals"))?;
        }
        Ok(Self(flag))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if the user wants no more, with the exit code that shells give to Ctrl-C.
    fn check(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::Reported(130)) } else { Ok(()) }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let manifests = Manifests::read(&args.manifests)?;
    privileges::acquire()?;
    for problem in &manifests.problems {
        eprintln!("tortie: {problem}");
    }
    let interrupt = Interrupt::new()?;
    let folder = Folder::new()?;
    let node = Node::build(&manifests.pods)?;
    probe::serve(&node)?;
    let mut show = Show::new();
    show.pods(&manifests.pods)?;
    folder.write(&manifests.cluster)?;
    let agent = Agent::start(&node.network, folder.path(), args.backend)?;
    let mut story = Story { node: &node, folder: &folder, interrupt: &interrupt, agent, show };
    let without = story.without_policies()?;
    let (with, enforced) = story.with_policies(&manifests.policies, &without)?;
    match &manifests.edit {
        Some(edit) => story.edited(edit, &with, enforced)?,
        None => story.show.note("No manifest has the text that the demo would edit.")?,
    }
    if args.keep {
        story.keep()?;
    }
    Ok(())
}

/// What the demo shows, one thing after the other.
struct Story<'a> {
    node: &'a Node,
    folder: &'a Folder,
    interrupt: &'a Interrupt,
    agent: Agent<'a>,
    show: Show,
}

impl Story<'_> {
    fn without_policies(&mut self) -> Result<Matrix, Failure> {
        let ready = self.agent.await_ready(self.interrupt)?;
        let matrix = self.probe()?;
        self.show.step("Without policies", &format!("agent ready {} after its start", millis(ready)))?;
        self.show.text(&matrix.render(None, self.show.colors))?;
        Ok(matrix)
    }

    fn with_policies(&mut self, policies: &[File], without: &Matrix) -> Result<(Matrix, Enforced), Failure> {
        let before = self.agent.await_quiet(self.interrupt)?;
        if policies.is_empty() {
            self.show.note("No manifest holds a policy.")?;
            return Ok((without.clone(), before));
        }
        self.folder.write(policies)?;
        let enforced = self.agent.await_more(before, self.interrupt)?;
        let matrix = self.probe()?;
        let names: Vec<&str> = policies.iter().map(|file| file.name.as_str()).collect();
        let took = millis(enforced.mean_since(before));
        self.show.step(&format!("With {}", names.join(", ")), &format!("in the kernel after {took}"))?;
        self.show.text(&matrix.render(None, self.show.colors))?;
        Ok((matrix, enforced))
    }

    fn edited(&mut self, edit: &Edit, before: &Matrix, enforced_before: Enforced) -> Result<(), Failure> {
        let mut written = Instant::now();
        let seen = probe::first_answer(self.node, before, || {
            // The watchers need a moment to get going; what they wait for must not happen before.
            thread::sleep(Duration::from_millis(50));
            written = Instant::now();
            self.folder.write([&edit.file])
        })?;
        let enforced = self.agent.await_more(enforced_before, self.interrupt)?;
        let matrix = self.probe()?;
        self.show.step(&format!("{} edited while the agent runs", edit.file.name), "")?;
        let mut text = format!("   - {}\n   + {}\n\n", edit.old_line, edit.new_line);
        text.push_str(&matrix.render(Some(before), self.show.colors));
        text.push('\n');
        for change in matrix.changes(before) {
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

    fn probe(&self) -> Result<Matrix, Failure> {
        self.interrupt.check()?;
        probe::probe(self.node)
    }

    fn keep(&mut self) -> Result<(), Failure> {
        self.show.step("The node stays up until Ctrl-C", "")?;
        let user = if privileges::inside() {
            format!("--user=/proc/{}/ns/user --preserve-credentials ", std::process::id())
        } else {
            String::new()
        };
        let width = self.node.pods.iter().map(|(pod, _)| pod.name.len()).max().unwrap_or(0).max("manifests".len());
        let mut text = format!("   {:width$}  {}\n", "manifests", manifests_in(self.folder.path()).display());
        let networks = std::iter::once(("node", &self.node.network))
            .chain(self.node.pods.iter().map(|(pod, network)| (pod.name.as_str(), network)));
        for (name, network) in networks {
            let _ = writeln!(text, "   {name:width$}  nsenter {user}--net={} bash", network.path());
        }
        self.show.text(&text)?;
        while !self.interrupt.is_set() {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Where the demo shows itself.
struct Show {
    out: io::Stdout,
    colors: Colors,
    steps: usize,
}

impl Show {
    fn new() -> Self {
        let out = io::stdout();
        let wanted = out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { out, colors: if wanted { Colors::On } else { Colors::Off }, steps: 0 }
    }

    fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).map_err(Failure::io("standard output"))
    }

    fn pods(&mut self, pods: &[Pod]) -> Result<(), Failure> {
        self.text(&format!("A node of network namespaces, the real agent, this kernel.\n\n{}", pod_table(pods)))
    }

    fn step(&mut self, title: &str, remark: &str) -> Result<(), Failure> {
        self.steps += 1;
        let title = self.colors.bold(&format!("{}. {title}", self.steps));
        let remark = if remark.is_empty() { String::new() } else { format!("   ({remark})") };
        self.text(&format!("\n{title}{remark}\n\n"))
    }

    fn note(&mut self, note: &str) -> Result<(), Failure> {
        self.text(&format!("\n{note}\n"))
    }
}

/// The pods with their addresses and what they serve.
fn pod_table(pods: &[Pod]) -> String {
    let list = |words: Vec<String>| words.join(", ");
    let mut rows = vec![["pod", "interface", "addresses", "serves"].map(str::to_owned)];
    rows.extend(pods.iter().map(|pod| {
        [
            pod.name.clone(),
            pod.interface.clone(),
            list(pod.addresses.iter().map(ToString::to_string).collect()),
            list(pod.ports.iter().map(|p| format!("{} {}/{}", p.name, p.number, p.transport.word())).collect()),
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
