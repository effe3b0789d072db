//! `tortie controller`.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use tortie_config::LogSeverity;
use tortie_controller::elector::ElectorConfig;
use tortie_controller::nodes::{NodeController, Overrides};
use tortie_datastore::kubernetes::{Client, KubeConfig, KubernetesStore};
use tortie_datastore::store::etcd::{EtcdConfig, EtcdFeed, EtcdStore};

use super::Failure;
use super::datastore_url::DatastoreUrl;
use super::etcd::EtcdArgs;
use super::signals::{self, Handlers};
use tortie_controller::run::{self as controller, Datastore, Split, Store};
use tortie_telemetry::http;
use tortie_telemetry::logging::{self, LogFormat};

/// Keep the datastore equal to what Kubernetes says.
///
/// Where Calico has an etcd of its own, Kubernetes' network policies, and the labels of its namespaces, service accounts
/// and pods, are written there. What users have written is not touched. Calico's nodes follow those of Kubernetes: their
/// labels are copied, and they are deleted when Kubernetes has them no more.
///
/// There, and where Kubernetes is the datastore, host endpoints are made for nodes, as the KubeControllersConfiguration
/// called `default` says. It is made if there is none. Addresses that were allocated to pods or nodes that are gone are
/// released, and so are empty blocks.
///
/// Several controllers may run with --leader-elect: one of them acts, and another takes over within 15 seconds if it goes
/// away.
///
/// Example: tortie controller --datastore etcd://10.0.0.1:2379 --leader-elect --http 0.0.0.0:9094
/// Example: tortie controller --datastore kubernetes: --leader-elect
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Where Calico's resources are: etcd://HOST:PORT,HOST:PORT or kubernetes:[KUBECONFIG].
    #[arg(long, value_name = "URL", env = "TORTIE_DATASTORE")]
    datastore: DatastoreUrl,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// How to reach the API server; as other programs find it if not given.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How often policies and labels in etcd are compared, such as 5m; 0 for only at the beginning.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    reconcile_period: Duration,
    /// How many objects are written at the same time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Whether Kubernetes' labels of nodes are copied to those in etcd, whatever KubeControllersConfiguration says.
    #[arg(long, env = "SYNC_NODE_LABELS", value_name = "true|false", value_parser = go_bool)]
    sync_node_labels: Option<bool>,
    /// Whether each node gets a host endpoint of its own, whatever KubeControllersConfiguration says.
    #[arg(long, env = "AUTO_HOST_ENDPOINTS", value_name = "enabled|disabled", value_parser = switch)]
    auto_host_endpoints: Option<bool>,
    /// Let one of several controllers act.
    #[arg(long)]
    leader_elect: bool,
    /// The lease by which one is elected.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/tortie-controller", value_parser = lease)]
    lease: (String, String),
    /// For how many seconds the lease holds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease_duration: u64,
    /// Answer /liveness, /readiness and /metrics here.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

/// The reason why the value of a flag is not one.
#[derive(Debug, thiserror::Error)]
enum FlagError {
    #[error("must be true or false")]
    Bool,
    #[error("must be enabled or disabled")]
    Switch,
    #[error("must be NAMESPACE/NAME")]
    Lease,
    #[error("`{0}` is not a duration such as 90s or 1m30s")]
    Duration(String),
}

/// As `strconv.ParseBool` of Go reads it.
fn go_bool(text: &str) -> Result<bool, FlagError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(FlagError::Bool),
    }
}

fn switch(text: &str) -> Result<bool, FlagError> {
    match text.to_ascii_lowercase().as_str() {
        "enabled" => Ok(true),
        "disabled" => Ok(false),
        _ => Err(FlagError::Switch),
    }
}

fn lease(text: &str) -> Result<(String, String), FlagError> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.into(), name.into()))
        }
        _ => Err(FlagError::Lease),
    }
}

fn duration(text: &str) -> Result<Duration, FlagError> {
    tortie_resources::go_duration(text).ok_or_else(|| FlagError::Duration(text.to_owned()))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    logging::init(args.log_format, LogSeverity::Info);
    let (sender, stop) = channel();
    signals::follow(Handlers::new(move || {
        // If nobody listens, the program is ending anyway.
        let _ = sender.send(());
    }))?;
    let election = args.leader_elect.then(|| election(args));
    let etcd = match &args.datastore {
        DatastoreUrl::Etcd(Some(url)) => Some(etcd(args, url)?),
        DatastoreUrl::Kubernetes(_) => None,
        other => {
            let what = format!(
                "{other} cannot be written to: --datastore must be etcd://HOST:PORT,... or kubernetes:[KUBECONFIG]"
            );
            return Err(Failure::usage(what));
        }
    };
    let kubeconfig = kubeconfig(args)?;
    // What is wrong with it now is a mistake; a server that does not answer is tried again.
    kubeconfig.check().map_err(Failure::failed_at("Kubernetes cannot be followed"))?;
    let client = Client::new(kubeconfig).map_err(Failure::io("the API server's thread"))?;
    let kubernetes_datastore = etcd.is_none();
    let datastore = match etcd {
        None => Datastore { store: Box::new(KubernetesStore::new(client.clone())), feed: None },
        Some(config) => {
            let store = store(&config, election.as_ref())?;
            let prefixes = NodeController::PREFIXES.map(str::to_owned).to_vec();
            let feed = EtcdFeed::new(config, prefixes).map_err(Failure::io("the datastore's thread"))?;
            Datastore { store, feed: Some(feed) }
        }
    };
    let config = controller::Config {
        reconcile_period: args.reconcile_period,
        workers: args.workers.into(),
        election,
        nodes: Overrides {
            sync_labels: args.sync_node_labels,
            host_endpoints: args.auto_host_endpoints,
            reconcile_period: args.reconcile_period,
            kubernetes_datastore,
        },
    };
    let running = controller::start(&config, &client, datastore).map_err(Failure::io("threads"))?;
    let server = match &args.http {
        Some(address) => {
            let server = http::serve(address.as_str(), "health", running.answerer());
            let server = server.map_err(Failure::io(format!("health on {address}")))?;
            tracing::info!(address = %server.address(), "listening");
            Some(server)
        }
        None => None,
    };
    running.report_until(&stop);
    tracing::info!("stopping");
    running.stop();
    drop(server);
    Ok(())
}

/// The proportions are those of Kubernetes' own components.
fn election(args: &Args) -> ElectorConfig {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let duration = Duration::from_secs(args.lease_duration);
    let (namespace, name) = args.lease.clone();
    ElectorConfig {
        lease_duration: duration,
        renew_deadline: duration * 2 / 3,
        retry_period: duration * 2 / 15,
        ..ElectorConfig::new(namespace, name, format!("{host}_{:016x}", controller::random()))
    }
}

fn etcd(args: &Args, url: &str) -> Result<EtcdConfig, Failure> {
    let config = url.parse().map_err(Failure::usage_at("--datastore"))?;
    args.etcd.program_config(&config)
}

/// The datastore may say it as well.
fn kubeconfig(args: &Args) -> Result<KubeConfig, Failure> {
    match (&args.datastore, &args.kubeconfig) {
        (DatastoreUrl::Kubernetes(Some(_)), Some(_)) => {
            Err(Failure::usage("--datastore names a kubeconfig already; --kubeconfig is one too many"))
        }
        (DatastoreUrl::Kubernetes(Some(place)), None) => {
            place.to_string_lossy().parse().map_err(Failure::usage_at("kubernetes"))
        }
        (_, file) => Ok(file.as_ref().map_or_else(KubeConfig::usual, KubeConfig::file)),
    }
}

#[expect(clippy::expect_used, reason = "a command line is shorter than 2^32 endpoints")]
fn store(config: &EtcdConfig, election: Option<&ElectorConfig>) -> Result<Box<dyn Store>, Failure> {
    let open = |config: &EtcdConfig| EtcdStore::new(config.clone()).map_err(Failure::io("the datastore"));
    let Some(election) = election else { return Ok(Box::new(open(config)?)) };
    // What is begun before the lead is lost must be over before another leads.
    let rest = election.lease_duration.saturating_sub(election.renew_deadline);
    let mut quick = config.clone();
    let members = u32::try_from(quick.endpoints.len().max(1)).expect("the endpoints of one URL are few");
    quick.pace.connect = quick.pace.connect.min(rest * 2 / 5 / members);
    quick.pace.request = quick.pace.request.min(rest * 2 / 5);
    Ok(Box::new(Split { reads: open(config)?, writes: open(&quick)? }))
}
