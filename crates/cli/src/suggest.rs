use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use tortie_config::settings;
use tortie_model::Hostname;
use tortie_node::local_api::Client;
use tortie_suggest::{Base, Days, External, Form, Learner, Level, Options, Record, Suggestion, suggest};

use super::Failure;
use super::cluster::{ClusterArgs, Parameters, WholeCluster};
use super::terminal::parsed_selector;

/// Exit code if policies cannot express all observed connections.
const INCOMPLETE: u8 = 3;

/// Longest line of a file of flows, in bytes.
const LINE: u64 = 1 << 20;

/// Suggest policies that allow the observed connections and close the rest.
///
/// Reads the cluster and the flows of its pods, and prints a policy for each workload. Selectors
/// have the labels by which people name applications, so that the policies also hold after a
/// rollout. Each observed connection is evaluated at both ends before the policies are printed.
/// Refused connections, late replies, and probes of a pod's own node get no rules. Nothing is
/// changed. Remarks go to standard error.
///
/// Exits with 1 and prints no policies if they would deny an observed connection, and with 3 if
/// they cannot express all, such as ICMP in Kubernetes policies.
///
/// Example: tortie suggest --datastore kubernetes: --flows /var/log/tortie/flows -o staged
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Flows: a file of FlowLogsFile or of `tortie flows -o json`, a directory of such, or `-` for
    /// standard input.
    #[arg(long, value_name = "PATH", required_unless_present = "socket")]
    flows: Vec<PathBuf>,
    /// Also the latest flows of the agent with this socket.
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only pods of this namespace. By default of all but kube-*, calico-*, tigera-*, openshift-*.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Only workloads with pods that match.
    #[arg(long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Days that the flows should cover; a remark names the shortfall.
    #[arg(long, value_name = "DAYS", default_value = "7d")]
    learn: Days,
    /// Pods that share a policy.
    #[arg(long, value_enum, default_value_t)]
    level: LevelName,
    /// Rules for addresses outside of the cluster.
    #[arg(long, value_enum, default_value_t)]
    external: ExternalName,
    /// Allow nothing that was not observed, not even DNS over TCP beside DNS over UDP.
    #[arg(long)]
    exact: bool,
    /// Leave out connections that were observed on fewer days.
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_days: u32,
    /// Also isolate all pods of the namespaces, future ones included.
    #[arg(long)]
    default_deny: bool,
    /// Also make rules for directions in which other policies isolate the pods already.
    #[arg(long)]
    all: bool,
    /// The last output; its names, selectors and networks are kept where they still hold.
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// Write the remarks to this file instead of standard error.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Form of the policies.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Pods that share a policy.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum LevelName {
    /// Those of a workload.
    #[default]
    Workload,
    /// Those of a namespace.
    Namespace,
}

/// Rules for addresses outside of the cluster.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum ExternalName {
    /// Networks stand for many addresses.
    #[default]
    Prefix,
    /// Each address by itself.
    Exact,
    /// All public, or all private addresses.
    Any,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// NetworkPolicy of Kubernetes.
    #[default]
    Kubernetes,
    /// The same, staged: evaluated and not enforced.
    Staged,
    /// NetworkPolicy of Calico.
    Calico,
    /// The same, staged.
    CalicoStaged,
    /// The policies of Kubernetes and all remarks as JSON.
    Json,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let selector = args.selector.as_deref().map(parsed_selector).transpose()?;
    let WholeCluster { sources, local, updates, .. } = args.cluster.read()?;
    let parameters = Parameters::new(&sources, &local, updates.iter())?;
    let mut options = Options::default();
    options.graph = settings::graph(&parameters.config, Hostname::new(""));
    options.settings = parameters.settings;
    options.selector = selector;
    args.apply_to(&mut options)?;
    let record = args.record(Learner::new(&updates))?;
    let suggestion = suggest(&updates, &record, &options).map_err(Failure::failed)?;
    args.remark(&suggestion, &record)?;
    if !suggestion.denied.is_empty() {
        suggestion.denied.iter().for_each(|denied| eprintln!("{denied}"));
        return Err(Failure::failed("the policies would deny observed connections; they are not printed"));
    }
    if suggestion.policies.is_empty() {
        let message = "there are no such workloads, or other policies isolate all of them (see --all)";
        return Err(Failure::failed(message));
    }
    let text = match args.output {
        Output::Json => format!("{:#}\n", suggestion.to_json()),
        _ => suggestion.to_yaml(),
    };
    super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))?;
    if suggestion.report.is_incomplete() { Err(Failure::Reported(INCOMPLETE)) } else { Ok(()) }
}

impl Args {
    fn apply_to(&self, options: &mut Options) -> Result<(), Failure> {
        options.namespaces = self.namespace.iter().map(|name| name.as_str().into()).collect();
        options.level = match self.level {
            LevelName::Workload => Level::Workload,
            LevelName::Namespace => Level::Namespace,
        };
        options.external = match self.external {
            ExternalName::Prefix => External::Prefix,
            ExternalName::Exact => External::Exact,
            ExternalName::Any => External::Any,
        };
        (options.exact, options.all, options.default_deny) = (self.exact, self.all, self.default_deny);
        options.min_days = self.min_days;
        options.form = match self.output {
            Output::Kubernetes | Output::Json => Form::Kubernetes,
            Output::Staged => Form::Staged,
            Output::Calico => Form::Calico,
            Output::CalicoStaged => Form::CalicoStaged,
        };
        if let Some(path) = &self.base {
            let text = fs::read_to_string(path).map_err(Failure::io(path.display().to_string()))?;
            options.base = Base::read(&text).map_err(Failure::failed_at(path.display().to_string()))?;
        }
        Ok(())
    }

    /// Reads all flows. Prints the number of unreadable lines.
    fn record(&self, mut learner: Learner) -> Result<Record, Failure> {
        for path in &self.flows {
            if path == Path::new("-") {
                read(io::stdin().lock(), &mut learner).map_err(Failure::io("standard input"))?;
                continue;
            }
            for file in files(path).map_err(Failure::io(path.display().to_string()))? {
                let subject = || file.display().to_string();
                let opened = File::open(&file).map_err(Failure::io(subject()))?;
                read(BufReader::new(opened), &mut learner).map_err(Failure::io(subject()))?;
            }
        }
        if let Some(socket) = &self.socket {
            let mut client = Client::connect(socket).map_err(Failure::failed)?;
            let found: Flows = client.call("Flows", Map::new()).map_err(Failure::failed)?;
            found.flows.iter().for_each(|flow| learner.read_flow(flow));
        }
        if learner.unreadable() > 0 {
            eprintln!("{} lines are no flows", learner.unreadable());
        }
        if learner.flows() == 0 {
            return Err(Failure::failed("there are no flows"));
        }
        Ok(learner.finish())
    }

    /// Prints or writes the remarks.
    fn remark(&self, suggestion: &Suggestion, record: &Record) -> Result<(), Failure> {
        let mut text = suggestion.report.to_string();
        text += &suggestion.report.shortfall(self.learn).unwrap_or_default();
        text += &record.not_recorded().to_string();
        match &self.report {
            Some(path) => fs::write(path, text).map_err(Failure::io(path.display().to_string())),
            None => {
                eprint!("{text}");
                Ok(())
            }
        }
    }
}

/// Latest flows of an agent.
#[derive(Debug, Default, Deserialize)]
struct Flows {
    flows: Vec<Value>,
}

/// Returns the files of a directory by name, or the file itself.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Reads lines of flows, or the answer of `tortie flows -o json` as a whole. Longer lines than the
/// bound are no flows.
fn read(mut input: impl BufRead, learner: &mut Learner) -> io::Result<()> {
    let mut line = Vec::new();
    let mut is_first = true;
    loop {
        line.clear();
        if (&mut input).take(LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let is_whole = std::mem::take(&mut is_first) && line.trim_ascii() == b"{";
        if is_whole {
            input.read_to_end(&mut line)?;
        }
        learner.read(&String::from_utf8_lossy(&line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_lines_or_one_answer() {
        let flow = r#"{"time": "2026-01-05T10:00:09Z", "started": "2026-01-05T10:00:00Z", "stage": "ended", "verdict": "allow",
            "protocol": "TCP", "packets": 9, "reply_packets": 7, "source": {"kind": "workload", "name": "n/a"},
            "destination": {"kind": "outside", "address": "192.0.2.1", "port": 443}}"#;
        let line = flow.replace('\n', "");
        let count = |text: &str| {
            let mut learner = Learner::new(&[]);
            read(text.as_bytes(), &mut learner).unwrap();
            (learner.flows(), learner.unreadable())
        };
        assert_eq!(count(&format!("{line}\n\n{line}\ntorn")), (2, 1));
        assert_eq!(count(&format!("{{\n\"flows\": [\n{flow},\n{flow}\n]\n}}\n")), (2, 0));
        assert_eq!(count(""), (0, 0));
        assert_eq!(count(&format!("{}\n{line}\n", "x".repeat(3_000_000))), (1, 3));
    }
}
