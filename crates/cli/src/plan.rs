mod answer;
mod change;
mod github;
mod html;
mod kernel;
mod same_policy;
mod text;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;

use tortie_analysis::plan::{Finding, Options};
use tortie_config::{Config, Sources, settings};
use tortie_model::{Hostname, Key, Update};
use tortie_resources::to_yaml;

use super::Failure;
use super::cluster::{ClusterArgs, Parameters, WholeCluster, bears_on_parameters};
use super::datastore::AccessArgs;
use super::datastore_url::{DatastoreUrl, DatastoreUrlError};
use super::node_bounds;
use super::origin::Origins;
use super::progress::Progress;
use answer::Answer;
use kernel::NodeChange;

const CHANGES: u8 = 2;

/// Show the effect of applying or deleting objects.
///
/// Shows the connections of the whole cluster that open and close, with their ends and the deciding
/// rules, and the same for host endpoints. Also shows pods that lose all policy, rules that can
/// match nothing or that others decide before, and the number of objects that nodes have to
/// program. The cluster is read from any datastore; nothing is changed, and no privileges are
/// needed. Exits with 0 if nothing changes, and with 2 if something does.
///
/// Example: tortie plan -f policy.yaml --datastore file:examples/demo
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Files and directories of the objects; `-` for standard input.
    #[arg(short, long = "filename", value_name = "PATH", required = true)]
    files: Vec<PathBuf>,
    /// Delete the objects instead of applying them.
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Show the differences between two clusters, or two versions of one.
///
/// The same as `plan` for a change that turns the first cluster into the second. Each is a
/// directory of manifests or a datastore; certificates and users are for both.
///
/// Example: tortie diff examples/demo file:/etc/tortie
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct DiffArgs {
    /// The first cluster: a directory, or a URL as for --datastore of other commands.
    #[arg(value_name = "BEFORE", value_parser = place)]
    before: DatastoreUrl,
    /// The second cluster.
    #[arg(value_name = "AFTER", value_parser = place)]
    after: DatastoreUrl,
    #[command(flatten)]
    access: AccessArgs,
    /// A configuration file in Felix's format.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds of retries while a datastore cannot be read.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    #[command(flatten)]
    report: ReportArgs,
}

/// Options of evaluation and output.
#[derive(Debug, clap::Args)]
struct ReportArgs {
    /// TCP port of management connections; host endpoints that close it are reported.
    #[arg(long, value_name = "PORT", default_value = "22")]
    management_port: Vec<u16>,
    /// Also show the lines of chains and IP sets that are removed and added on this node.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Output {
    /// Text for people.
    #[default]
    Table,
    /// JSON, everything.
    Json,
    /// YAML, everything.
    Yaml,
    /// Annotations of a pull request, for GitHub's workflows.
    Github,
    /// A web page in one file.
    Html,
}

fn place(text: &str) -> Result<DatastoreUrl, DatastoreUrlError> {
    let is_url = ["file:", "etcd:", "kubernetes:", "fanout:", "typha:"].iter().any(|scheme| text.starts_with(scheme));
    if is_url { text.parse() } else { Ok(DatastoreUrl::Directory(text.into())) }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut cluster = args.cluster.read()?;
    let (mut change, written) =
        change::read(&args.files, args.cluster.datastore.reach(), &cluster.options, args.delete)?;
    let written = written.renamed(&same_policy::unify(&cluster.updates, &mut change));
    let origins = args.cluster.origins(&mut cluster)?;
    answer(cluster, change, &written.or(origins), &args.report)
}

pub(super) fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let [before, after] = [&args.before, &args.after]
        .map(|url| ClusterArgs::at(url.clone(), args.access.clone(), args.config.clone(), args.timeout));
    let (mut cluster, mut other) = (before.read()?, after.read()?);
    let renamed = same_policy::unify(&cluster.updates, &mut other.updates);
    let origins = after.origins(&mut other)?.renamed(&renamed).or(before.origins(&mut cluster)?);
    let change = tortie_analysis::plan::between(&cluster.updates, &other.updates);
    answer(cluster, change, &origins, &args.report)
}

fn answer(cluster: WholeCluster, change: Vec<Update>, origins: &Origins, report: &ReportArgs) -> Result<(), Failure> {
    let WholeCluster { sources, local, updates, .. } = cluster;
    let before = Parameters::new(&sources, &local, updates.iter())?;
    let mut options = Options::new(settings::graph(&before.config, Hostname::new("")), before.settings);
    options.node_settings = before.nodes;
    options.budget = settings::table_budget(&before.config);
    if change.iter().any(bears_on_parameters) {
        let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
        for update in updates.iter().chain(&change).filter(|update| bears_on_parameters(update)) {
            update.clone().apply_to(&mut objects);
        }
        let after = Parameters::new(&sources, &local, objects.values())?;
        options.settings_after = Some((after.settings, after.nodes));
    }
    let progress = Progress::begin("comparing connections before and after");
    let refused = newly_refused(&sources, &local, &updates, &change)?;
    options.management_ports.clone_from(&report.management_port);
    let node = report.node.as_deref().map(Hostname::new);
    let node = node.map(|node| NodeChange::new(&node, (&sources, &local), &updates, &change)).transpose()?;
    let mut plan = tortie_analysis::plan::plan(updates, change, &options).map_err(Failure::failed)?;
    plan.findings.extend(refused);
    plan.findings.sort_unstable();
    let answer = Answer { plan: &plan, origins, node: node.as_ref() };
    let text = match report.output {
        Output::Table => text::text(&answer),
        Output::Json => format!("{:#}\n", answer.whole()),
        Output::Yaml => to_yaml(&answer.whole()),
        Output::Github => github::annotations(&answer),
        Output::Html => html::page(&answer),
    };
    progress.end();
    super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))?;
    if plan.is_empty() { Ok(()) } else { Err(Failure::Reported(CHANGES)) }
}

fn newly_refused(
    sources: &Sources,
    local: &Config,
    before: &[Update],
    change: &[Update],
) -> Result<BTreeSet<Finding>, Failure> {
    let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
    for update in before.iter().chain(change) {
        update.clone().apply_to(&mut objects);
    }
    let after: Vec<Update> = objects.into_values().collect();
    let mut refused = node_bounds::refused(sources, local, &after)?;
    if !refused.is_empty() {
        let known = node_bounds::refused(sources, local, before)?;
        refused.retain(|finding| !known.contains(finding));
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_directories_and_datastores() {
        assert_eq!(place("a/b").unwrap(), DatastoreUrl::Directory("a/b".into()));
        assert_eq!(place("./etcd").unwrap(), DatastoreUrl::Directory("./etcd".into()));
        assert_eq!(place("file:/a").unwrap(), DatastoreUrl::Directory("/a".into()));
        assert!(place("file:").is_err());
    }
}
