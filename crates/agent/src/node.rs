//! `tortie node`.

mod redaction;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tortie_cli::signals::{self, Handlers};
use tortie_cli::terminal::print_line;
use tortie_cli::{Failure, with_causes};
use tortie_linux::exec::{Job, RunLimits, Runner};
use tortie_node::local_api::DEFAULT_SOCKET;
use tortie_telemetry::{escape, logging};

/// Time limit of each program.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum output of a program in bytes.
const MAX_OUTPUT: usize = 64 << 20;

/// Outputs of this program, with the file and the arguments.
const OWN: [(&str, &str); 7] = [
    ("version", "version"),
    ("status.json", "status -o json --socket"),
    ("parameters", "config --socket"),
    ("endpoints", "show endpoints --socket"),
    ("counters", "show counters --socket"),
    ("policy-sets", "show sets --socket"),
    ("flows", "flows --socket"),
];

/// Outputs of other programs, with the file and the command.
const COMMANDS: [(&str, &str); 25] = [
    ("kernel", "uname -a"),
    ("links", "ip -details -statistics link"),
    ("addresses", "ip address"),
    ("routes-4", "ip -4 route show table all"),
    ("routes-6", "ip -6 route show table all"),
    ("routing-rules-4", "ip -4 rule"),
    ("routing-rules-6", "ip -6 rule"),
    ("neighbours", "ip neigh"),
    ("iptables-nft-4", "iptables-nft-save -c"),
    ("iptables-nft-6", "ip6tables-nft-save -c"),
    ("nftables", "nft list ruleset"),
    ("ip-sets", "ipset list"),
    ("qdiscs", "tc -s qdisc"),
    ("bpf-programs", "bpftool prog"),
    ("bpf-attached", "bpftool net"),
    ("bpf-pins", "find /sys/fs/bpf"),
    ("conntrack-statistics", "conntrack -S"),
    ("listening-sockets", "ss -lntup"),
    ("sysctls-4", "sysctl -a --pattern ^net\\.ipv4\\."),
    ("sysctls-6", "sysctl -a --pattern ^net\\.ipv6\\."),
    ("sysctls-netfilter", "sysctl -a --pattern ^net\\.netfilter\\."),
    ("mounts", "cat /proc/self/mountinfo"),
    ("modules", "cat /proc/modules"),
    ("journal", "journalctl --unit=tortie --lines=20000 --no-pager --output=short-iso"),
    ("kernel-log", "dmesg"),
];

/// Commands of the legacy implementation of iptables, with the file that exists if it has tables:
/// the commands would otherwise create them.
const LEGACY: [(&str, &str, &str); 2] = [
    ("iptables-legacy-4", "iptables-legacy-save -c", "/proc/net/ip_tables_names"),
    ("iptables-legacy-6", "ip6tables-legacy-save -c", "/proc/net/ip6_tables_names"),
];

/// Collect information about this node.
///
/// Example: tortie node diags
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    Diags(DiagsArgs),
}

/// Write an archive with the state of this node, for a bug report.
///
/// Contains the version, status, parameters and endpoints of the agent, rules, IP sets, routes,
/// interfaces, sysctls, eBPF objects and logs. Passwords, tokens and private keys are replaced by
/// <redacted>; addresses and names stay. The file `missing` of the archive lists the programs that
/// are not installed or failed. Needs `tar`.
///
/// Example: tortie node diags --output /tmp/worker-1.tar.gz
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct DiagsArgs {
    /// File of the archive; default: tortie-diags-TIME.tar.gz in this directory
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Log of the agent, if it writes one
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Socket of the agent; see `tortie run --socket`
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let NodeCommand::Diags(args) = &args.command;
    let limits = RunLimits { output: MAX_OUTPUT, ..RunLimits::default() };
    let runner = Runner::new(signals::follow(Handlers::new(|| {}))?).with_limits(limits);
    let time: String = logging::timestamp().chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("tortie-diags-{time}");
    let archive = args.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let located = || archive.display().to_string();
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&archive);
    let mut file = file.map_err(Failure::failed_at(located()))?;
    let written = collect(args, &runner, &name, &archive)
        .and_then(|contents| file.write_all(&contents).map_err(Failure::failed_at(located())));
    if written.is_err() {
        let _ = fs::remove_file(&archive);
    }
    written?;
    print_line(&format!("{} written; read it before you share it", escape::line(&located())));
    Ok(())
}

/// Returns the contents of an archive, by way of a directory beside it.
fn collect(args: &DiagsArgs, runner: &Runner, name: &str, archive: &Path) -> Result<Vec<u8>, Failure> {
    let parent = archive.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = Folder::create(parent.join(name))?;
    let mut missing = String::new();
    for Output { file, text, problem } in outputs(args, runner)? {
        folder.write(file, &redaction::redacted(&text))?;
        missing.extend(problem.map(|problem| format!("{file}: {problem}\n")));
    }
    folder.write("missing", &missing)?;
    packed(runner, parent, name)
}

/// Contents of a file of the archive.
struct Output {
    file: &'static str,
    text: String,
    /// Reason why it is missing or incomplete.
    problem: Option<String>,
}

/// Runs all programs, one after the other.
fn outputs(args: &DiagsArgs, runner: &Runner) -> Result<Vec<Output>, Failure> {
    let own = std::env::current_exe().map_err(Failure::failed_at("this program has no path"))?;
    let mut jobs: Vec<(&'static str, Job)> = Vec::new();
    for (file, command) in OWN {
        let mut job = job(&format!("tortie {command}"));
        job.program = own.display().to_string();
        if command.ends_with("--socket") {
            job.args.push(args.socket.display().to_string());
        }
        jobs.push((file, job));
    }
    jobs.extend(COMMANDS.map(|(file, command)| (file, job(command))));
    let has_tables = |list: &str| fs::read_to_string(list).is_ok_and(|tables| !tables.is_empty());
    jobs.extend(LEGACY.iter().filter(|(.., list)| has_tables(list)).map(|(file, command, _)| (*file, job(command))));
    let mut outputs = Vec::new();
    for (file, job) in jobs {
        let (text, problem) = match runner.run(&job) {
            Ok(finished) if finished.status.success() => (text_of(&finished.stdout, &finished.stderr), None),
            Ok(finished) => (text_of(&finished.stdout, &finished.stderr), Some(finished.status.to_string())),
            Err(error) => (String::new(), Some(with_causes(&error))),
        };
        if runner.stop().is_set() {
            return Err(Failure::failed("ended by a signal"));
        }
        outputs.push(Output { file, text, problem });
    }
    if let Some(log) = &args.log_file {
        let text = fs::read(log).map_err(Failure::failed_at(log.display().to_string()))?;
        outputs.push(Output { file: "log", text: text_of(&text, &[]), problem: None });
    }
    Ok(outputs)
}

fn job(command: &str) -> Job {
    let mut words = command.split(' ').map(str::to_owned);
    let program = words.next().unwrap_or_default();
    Job { program, args: words.collect(), input: Vec::new(), limit: LIMIT }
}

fn text_of(stdout: &[u8], stderr: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(stdout).into_owned();
    if !stderr.is_empty() {
        text += "\n== standard error\n";
        text += &String::from_utf8_lossy(stderr);
    }
    text
}

/// Returns a directory as an archive.
fn packed(runner: &Runner, parent: &Path, name: &str) -> Result<Vec<u8>, Failure> {
    let parent = parent.display().to_string();
    let args = ["--create", "--gzip", "--directory", &parent, name].map(str::to_owned).into();
    let tar = Job { program: "tar".to_owned(), args, input: Vec::new(), limit: LIMIT };
    let finished = runner.run(&tar).map_err(Failure::failed_at("the archive cannot be made"))?;
    if finished.status.success() {
        return Ok(finished.stdout);
    }
    Err(Failure::failed(format!("the archive cannot be made: {}", String::from_utf8_lossy(&finished.stderr).trim())))
}

/// Directory that only its owner can read. It is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn create(path: PathBuf) -> Result<Self, Failure> {
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(Failure::failed_at(path.display().to_string()))?;
        Ok(Self(path))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Failure> {
        let path = self.0.join(file);
        fs::write(&path, text).map_err(Failure::failed_at(path.display().to_string()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
