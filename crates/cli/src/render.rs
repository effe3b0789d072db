mod programs;

use std::io::{self, Write};
use std::time::Duration;

use tortie_calc::{Graph, IgnoredObject};
use tortie_config::{Config, Resolved, Sources, settings};
use tortie_dataplane::{Dataplane, DataplaneConfig, Rendered};
use tortie_datastore::{Everything, ReadError, Source};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, Hostname, SyncStatus, Update};
use tortie_rules::PolicyBackend;

use super::Failure;
use super::datastore::{DatastoreArgs, SourceSpec};
use super::directory::{DirectoryArgs, SettleArgs};
use tortie_node::engine::describe_ignored;

/// Print the rules that would be programmed on a clean node.
///
/// Prints exactly the input of `ipset restore` and `iptables-restore`. With nftables, prints the
/// `nft -f` input for the tables that a node programs instead. If eBPF programs enforce policy,
/// prints the eBPF tables that they read as well.
///
/// Needs no privileges and changes nothing. Parameters come from FELIX_* variables, --config and
/// the datastore.
///
/// Example: tortie render --datastore file:examples/demo --node demo-node --table filter
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    datastore: DatastoreArgs,
    /// The node to render for.
    #[arg(long, value_name = "NAME")]
    node: String,
    /// A configuration file in Felix's format.
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Only this IP version: 4 or 6.
    #[arg(long, value_name = "VERSION", value_parser = ["4", "6"])]
    ip_version: Option<String>,
    /// Only this table: filter, nat, mangle or raw.
    #[arg(long, conflicts_with = "ipsets", value_parser = ["filter", "nat", "mangle", "raw"])]
    table: Option<String>,
    /// Seconds of retries while the datastore cannot be read, as when its server is starting.
    /// Errors that last until an operator changes something, such as a refusal or a missing
    /// directory, are not retried.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Only the IP sets.
    #[arg(long)]
    ipsets: bool,
    /// Back end that enforces policy; by default eBPF if BPFEnabled is set, and nftables if
    /// NFTablesMode is Enabled.
    #[arg(long, value_enum, value_name = "BACKEND")]
    backend: Option<RenderedBackend>,
    /// Also print the instructions of the eBPF programs, for this machine's kernel if it describes
    /// its types.
    #[arg(long, conflicts_with_all = ["table", "ipsets"])]
    programs: bool,
}

/// Back end that enforces policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RenderedBackend {
    /// Chains and IP sets.
    Iptables,
    /// nftables tables.
    Nftables,
    /// eBPF programs at netfilter hooks, and the tables that they read.
    Ebpf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut sources = super::program::local_sources(args.config.as_deref())?;
    let hostname = Hostname::new(args.node.as_str());
    let updates = objects(args, &sources, &hostname)?;
    let resolved = resolve(&mut sources, &hostname, &updates)?;
    let (desired, ignored) = calculate(&resolved.config, &hostname, updates);
    for problem in &ignored {
        let ignored = if matches!(problem.reason, tortie_calc::Reason::SpoofingDisabled) { "; ignored" } else { "" };
        eprintln!("{}{ignored}", describe_ignored(problem));
    }
    let settings = dataplane_settings(args, &resolved, hostname)?;
    let is_by_programs = settings.rules.policy_backend == PolicyBackend::Programs;
    let mut out = super::terminal::stdout();
    if is_by_programs && args.table.is_none() && !args.ipsets {
        programs::print((&settings, &resolved.config), &desired, args, &mut out)?;
    }
    let mut dataplane = Dataplane::new(settings);
    desired.into_iter().for_each(|update| dataplane.on_update(update));
    let mut rendered = dataplane.render();
    if is_by_programs {
        rendered.ip_sets.retain(|(_, text)| !text.is_empty());
        rendered.tables.retain(|(.., text)| !programs::is_empty_table(text));
        rendered.nftables.retain(|(_, text)| !text.is_empty());
    }
    print(&rendered, args, out).map_err(Failure::io("standard output"))
}

fn objects(args: &Args, sources: &Sources, hostname: &Hostname) -> Result<Vec<Update>, Failure> {
    let local = sources.resolve().map_err(Failure::failed)?.config;
    let spec = SourceSpec {
        options: settings::manifests(&local),
        blocks: false,
        node: Some(hostname.clone()),
        directory: DirectoryArgs::only_read(SettleArgs::default()),
        prepare: None,
        versions: false,
    };
    let source = args.datastore.source(sources, spec)?;
    let Everything { updates, problems, .. } = read(source, Duration::from_secs(args.timeout))?;
    for problem in problems {
        eprintln!("{problem}");
    }
    Ok(updates)
}

fn dataplane_settings(args: &Args, resolved: &Resolved, hostname: Hostname) -> Result<DataplaneConfig, Failure> {
    let config = &resolved.config;
    let mut settings = settings::dataplane(config, hostname, Backend::Nft).map_err(Failure::failed)?;
    match args.backend {
        Some(RenderedBackend::Iptables | RenderedBackend::Nftables) => {
            settings.rules.policy_backend = PolicyBackend::Chains;
        }
        Some(RenderedBackend::Ebpf) => settings.rules.policy_backend = PolicyBackend::Programs,
        None => {}
    }
    let is_by_programs = settings.rules.policy_backend == PolicyBackend::Programs;
    if args.programs && !is_by_programs {
        return Err(Failure::usage("--programs: chains enforce policy, unless with --backend ebpf"));
    }
    let is_by_nftables = match args.backend {
        Some(RenderedBackend::Nftables) => true,
        Some(RenderedBackend::Iptables) => false,
        Some(RenderedBackend::Ebpf) | None => settings::uses_nftables(config, false),
    };
    if is_by_nftables {
        if args.table.is_some() || args.ipsets {
            return Err(Failure::usage("--table, --ipsets: one table of nftables holds all chains and sets"));
        }
        settings::for_nftables(config, &mut settings).map_err(Failure::failed)?;
    }
    if is_by_programs {
        // The output is for machines that have iptables, unless nftables takes its place.
        settings.rules.accepts_beside_programs = !is_by_nftables;
        settings::not_done_by_programs(resolved).iter().for_each(|what| eprintln!("{what}"));
    }
    Ok(settings)
}

pub(super) fn read(source: Box<dyn Source>, patience: Duration) -> Result<Everything, Failure> {
    let on_wait = |why: &str| eprintln!("{why}; trying again for {} s", patience.as_secs());
    tortie_datastore::read(source, patience, on_wait).map_err(|error| match error {
        ReadError::Thread(error) => Failure::io("the datastore's thread")(error),
        error => Failure::failed(error),
    })
}

fn resolve(sources: &mut Sources, hostname: &Hostname, updates: &[Update]) -> Result<Resolved, Failure> {
    let config = sources.resolve().map_err(Failure::failed)?.config;
    for update in calculate(&config, hostname, updates.to_vec()).0 {
        if let DesiredUpdate::Config(datastore) = update {
            sources.set_datastore(&datastore);
        }
    }
    let resolved = sources.resolve().map_err(Failure::failed)?;
    for notice in &resolved.notices {
        eprintln!("{notice}");
    }
    Ok(resolved)
}

/// Returns the desired state of a node, and the objects that are left out of it.
pub(super) fn calculate(
    config: &Config,
    hostname: &Hostname,
    updates: Vec<Update>,
) -> (Vec<DesiredUpdate>, Vec<IgnoredObject>) {
    let mut graph = Graph::new(&settings::graph(config, hostname.clone()));
    updates.into_iter().for_each(|update| graph.on_update(update));
    graph.on_status(SyncStatus::InSync);
    let mut desired = Vec::new();
    graph.flush(&mut desired);
    (desired, graph.problems().collect())
}

impl Args {
    fn wants(&self, family: Family) -> bool {
        self.ip_version.as_ref().is_none_or(|v| *v == family.number().to_string())
    }
}

fn print(rendered: &Rendered, args: &Args, mut out: impl Write) -> io::Result<()> {
    let wanted = |family: Family| args.wants(family);
    // A single text is printed without a title, so that it can be piped into a program.
    let single = args.ip_version.is_some() && (args.table.is_some() || args.ipsets);
    if args.table.is_none() {
        for (family, text) in rendered.ip_sets.iter().filter(|(family, _)| wanted(*family)) {
            if !single {
                writeln!(out, "# ipset restore, IPv{}", family.number())?;
            }
            out.write_all(text.as_bytes())?;
        }
    }
    if args.ipsets {
        return Ok(());
    }
    for (family, text) in rendered.nftables.iter().filter(|(family, _)| wanted(*family)) {
        writeln!(out, "# nft -f, IPv{}", family.number())?;
        out.write_all(text.as_bytes())?;
    }
    let tables = rendered.tables.iter().filter(|(family, table, _)| {
        wanted(*family) && args.table.as_ref().is_none_or(|name| name == Table::as_str(*table))
    });
    for (family, table, text) in tables {
        if !single {
            let program = if *family == Family::V4 { "iptables-restore" } else { "ip6tables-restore" };
            writeln!(out, "# {program}, {}", table.as_str())?;
        }
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}
