use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use tortie_config::LogSeverity;
use tortie_controller::elector::ElectorConfig;
use tortie_controller::nodes::{NodeController, Overrides};
use tortie_datastore::kubernetes::{Client, KubeConfig};
use tortie_datastore::store::etcd::{EtcdConfig, EtcdFeed, EtcdStore};

use super::Failure;
use super::datastore_url::DatastoreUrl;
use super::etcd::EtcdArgs;
use super::signals::{self, Handlers};
use tortie_controller::run::{self as controller, Datastore, Split, Store};
use tortie_telemetry::http;
use tortie_telemetry::logging::{self, LogFormat};

/// Keep the datastore in line with Kubernetes, as kube-controllers does.
///
/// If Calico's datastore is etcd, the controller writes Kubernetes' network policies, and the
/// labels of its namespaces, service accounts and pods, to it. Resources that users have written
/// are not changed. Calico's nodes follow those of Kubernetes: their labels are copied, and a node
/// is deleted when Kubernetes no longer has it.
///
/// With etcd and with Kubernetes as the datastore, it creates host endpoints for nodes as the
/// KubeControllersConfiguration `default` specifies, and creates that if it is missing. It releases
/// the addresses of pods and nodes that are gone, and empty IPAM blocks.
///
/// Several controllers may run with --leader-elect: one of them acts, and another takes over within
/// 15 seconds if it ends.
///
/// Example: tortie controller --datastore etcd://10.0.0.1:2379 --leader-elect --http 0.0.0.0:9094
/// Example: tortie controller --datastore kubernetes: --leader-elect
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Datastore of Calico's resources: etcd://HOST[:PORT],... or kubernetes:[KUBECONFIG].
    #[arg(long, value_name = "URL", env = "TORTIE_DATASTORE")]
    datastore: DatastoreUrl,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Kubeconfig for the API server; by default $KUBECONFIG, the pod's service account, or
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Interval between comparisons of policies and labels in etcd, such as 5m; 0 compares at the
    /// start only.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    reconcile_period: Duration,
    /// Number of objects that are written at the same time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Whether the labels of Kubernetes' nodes are copied to those in etcd; overrides the
    /// KubeControllersConfiguration.
    #[arg(long, env = "SYNC_NODE_LABELS", value_name = "true|false", value_parser = go_bool)]
    sync_node_labels: Option<bool>,
    /// Whether each node gets a host endpoint; overrides the KubeControllersConfiguration.
    #[arg(long, env = "AUTO_HOST_ENDPOINTS", value_name = "enabled|disabled", value_parser = switch)]
    auto_host_endpoints: Option<bool>,
    /// Run beside kube-controllers, which then writes the KubeControllersConfiguration and its
    /// status.
    #[arg(long)]
    beside_kube_controllers: bool,
    /// Elect a leader: only one of several controllers acts.
    #[arg(long)]
    leader_elect: bool,
    /// Lease for the election.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/tortie-controller", value_parser = lease)]
    lease: (String, String),
    /// Duration of the lease in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease_duration: u64,
    /// Address that answers /liveness, /readiness and /metrics.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Format of log lines.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

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

/// Parses a truth value as Go's `strconv.ParseBool` does.
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
        // Without a receiver, the program is ending anyway.
        let _ = sender.send(());
    }))?;
    let election = args.leader_elect.then(|| election(args));
    let etcd = match &args.datastore {
        DatastoreUrl::Etcd(url) => Some(args.etcd.program_config(&super::etcd::parsed(url.as_deref())?)?),
        DatastoreUrl::Kubernetes(_) => None,
        other => {
            let message = format!(
                "{other} cannot be written to: --datastore must be etcd://HOST[:PORT],... or kubernetes:[KUBECONFIG]"
            );
            return Err(Failure::usage(message));
        }
    };
    let kubeconfig = kubeconfig(args)?;
    // An invalid kubeconfig is an error now; an API server that does not answer is retried.
    kubeconfig.check().map_err(Failure::failed_at("Kubernetes cannot be followed"))?;
    let client = Client::new(kubeconfig).map_err(Failure::io("the API server's thread"))?;
    let kubernetes_datastore = etcd.is_none();
    let datastore = match etcd {
        None => Datastore::Kubernetes,
        Some(config) => {
            let store = store(&config, election.as_ref())?;
            let prefixes = NodeController::PREFIXES.map(str::to_owned).to_vec();
            let feed = EtcdFeed::new(config, prefixes).map_err(Failure::io("the datastore's thread"))?;
            Datastore::Etcd { store, feed: Box::new(feed) }
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
            leaves_status: args.beside_kube_controllers,
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
    let moved_to = running.report_until(&stop);
    tracing::info!("stopping");
    running.stop();
    drop(server);
    match moved_to {
        Some(api) => {
            let api = api.group_version();
            Err(Failure::failed(format!("Calico's resources have moved to {api}: start the controller again")))
        }
        None => Ok(()),
    }
}

/// Returns the election's times, in the proportions of Kubernetes' own components.
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
    // A write that begins before the lease is lost must end before another controller leads.
    let rest = election.lease_duration.saturating_sub(election.renew_deadline);
    let mut quick = config.clone();
    let members = u32::try_from(quick.endpoints.len().max(1)).expect("the endpoints of one URL are few");
    quick.pace.connect = quick.pace.connect.min(rest * 2 / 5 / members);
    quick.pace.request = quick.pace.request.min(rest * 2 / 5);
    Ok(Box::new(Split { reads: open(config)?, writes: open(&quick)? }))
}
