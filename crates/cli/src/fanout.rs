//! `tortie fanout`.

mod metrics;

pub use metrics::example as example_metrics;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tortie_config::LogSeverity;
use tortie_datastore::watch;
use tortie_fanout::server::{Server, ServerConfig, SyncerSources};
use tortie_fanout::tls::TlsSettings;
use tortie_model::SyncStatus;
use tortie_resources::manifest::{Options, SyncerType};

use super::Failure;
use super::datastore::{DatastoreArgs, Wanted};
use super::directory::{DirectoryArgs, SettleArgs};
use super::program::wake;
use super::signals::{self, Handlers};
use tortie_telemetry::health::{Health, Pulse, Reporter};
use tortie_telemetry::http::{self, Response};
use tortie_telemetry::logging::{self, LogFormat};
use tortie_telemetry::{exposition, process};

/// How many connections a share is at the least, as Typha's MaxConnectionsLowerLimit.
const LEAST_SHARE: usize = 400;

/// Serve one watch of the datastore to any number of agents.
///
/// Agents attach with --datastore fanout://HOST:PORT. A client is cut off when one write to it takes longer than a minute,
/// and when it is five minutes or 64 MiB of changes behind, once five minutes have passed since it had everything. One that
/// comes back within five minutes, or 64 MiB, is sent only what it has missed.
///
/// A Felix can attach by Typha's protocol. For it, blocks of addresses (IPAM), BGP peers and moves of virtual machines are
/// read besides what agents need. Agents are sent blocks if they ask.
///
/// So can what Calico has besides on a node: its BGP daemon (syncer `bgp`), what allocates addresses of tunnels
/// (`tunnel-ip-allocation`) and what reports the node's status (`node-status`). What they alone need is read while one of
/// them is attached, and for a minute after; not where the datastore is another fan-out or a Typha.
///
/// With TLS, both sides show a certificate; that of a client must come from the authority and have the common name or the
/// URI that is asked for. The files are read again when they change.
///
/// A client has ten seconds and 16 KiB for its hello. An eighth of the connections that an address may have may be before
/// their hello. A connection takes up to 76 KiB of memory, 236 KiB with TLS: 10,000 connections 0.8 GB, 2.4 GB with TLS.
/// The objects, one snapshot for each protocol in use, and 64 MiB of changes come on top.
///
/// SIGTERM sends all clients elsewhere, one after the other, and ends the program when they are gone; a second one ends it
/// at once.
///
/// Example: tortie fanout --datastore etcd://10.0.0.1:2379 --listen 0.0.0.0:5473 --http 0.0.0.0:9093
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    datastore: DatastoreArgs,
    #[command(flatten)]
    settle: SettleArgs,
    /// A configuration file in Felix's format, for how to reach the datastore.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen for agents; may be given several times.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:5473")]
    listen: Vec<String>,
    /// Answer /liveness, /readiness and /metrics here. Live means: each thread has shown signs of life within a minute. Ready
    /// means: everything has been read once.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// The certificates of the authorities that clients' certificates must come from.
    #[arg(long, value_name = "FILE", env = "TYPHA_CAFILE", help_heading = "TLS for clients")]
    tls_ca: Option<PathBuf>,
    /// The certificate to show to clients.
    #[arg(long, value_name = "FILE", env = "TYPHA_SERVERCERTFILE", help_heading = "TLS for clients")]
    tls_cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", env = "TYPHA_SERVERKEYFILE", help_heading = "TLS for clients")]
    tls_key: Option<PathBuf>,
    /// The common name that clients' certificates must have.
    #[arg(long, value_name = "NAME", env = "TYPHA_CLIENTCN", help_heading = "TLS for clients")]
    client_cn: Option<String>,
    /// The URI that clients' certificates must have among their alternative names; with --client-cn, either is enough.
    #[arg(long, value_name = "URI", env = "TYPHA_CLIENTURISAN", help_heading = "TLS for clients")]
    client_uri_san: Option<String>,
    /// How many connections to take; further clients are told that there are too many.
    #[arg(long, value_name = "N", default_value_t = 10_000, env = "TYPHA_MAXCONNECTIONSUPPERLIMIT")]
    max_connections: usize,
    /// The number of connections to take from one address; further ones are closed.
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_connections_per_address: usize,
    /// How many of these servers there are. One that has more than its share of the nodes (and more than 400) sends
    /// clients elsewhere, one a second.
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: usize,
    /// The Service of Kubernetes that these servers are behind: there are as many as it has endpoints, asked for every 30
    /// seconds, in place of --servers. Its port is called calico-typha.
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "NAME", env = "TYPHA_K8SSERVICENAME", conflicts_with = "servers")]
    service: Option<String>,
    /// The namespace of that Service.
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "NAME", env = "TYPHA_K8SNAMESPACE", default_value = "kube-system")]
    service_namespace: String,
    /// Changes that come within so many milliseconds after another one go out together.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20)]
    pace: u64,
    /// For how many seconds to send clients elsewhere at the end.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, env = "TYPHA_SHUTDOWNTIMEOUTSECS")]
    shutdown_timeout: u64,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    logging::init(args.log_format, LogSeverity::Info);
    let (sender, stop) = sync_channel(1);
    signals::follow(Handlers::new(wake(&sender, || ())))?;
    let tls = TlsSettings::from_parts(args.tls_ca, args.tls_cert, args.tls_key, args.client_cn, args.client_uri_san)
        .map_err(Failure::failed)?;
    let config = ServerConfig {
        listen: args.listen.iter().map(|text| addresses(text)).collect::<Result<Vec<_>, _>>()?.concat(),
        tls,
        pace: Duration::from_millis(args.pace),
        max_connections: args.max_connections,
        max_per_address: args.max_connections_per_address,
        servers: args.servers,
        least_share: LEAST_SHARE,
        ..ServerConfig::default()
    };
    let local = super::program::local_sources(args.config.as_deref())?;
    let directory = DirectoryArgs::only_read(args.settle);
    let wanted =
        Wanted { options: Options::default(), blocks: true, node: None, directory, prepare: None, versions: true };
    let source = args.datastore.source(&local, wanted)?;
    let upstream = watch(source).map_err(Failure::io("the datastore's thread"))?;
    let health = Health::default();
    let pulse = health.pulse(Reporter::Datastore, Pulse::TIMEOUT);
    upstream.resend.on_life(move || pulse.beat());
    let syncers = if args.datastore.is_read_here() {
        let (datastore, settle) = (args.datastore, args.settle);
        SyncerSources::all(move |syncer: SyncerType| {
            let options = Options { syncer, ..Options::default() };
            let directory = DirectoryArgs::only_read(settle);
            let wanted = Wanted { options, blocks: true, node: None, directory, prepare: None, versions: false };
            let source = datastore.source(&local, wanted)?;
            Ok(watch(source)?)
        })
    } else {
        SyncerSources::none()
    };
    let server = Arc::new(Server::start_with(config, upstream, syncers).map_err(Failure::failed)?);
    for address in server.addresses() {
        tracing::info!(%address, "listening for agents");
    }
    #[cfg(feature = "kubernetes")]
    if let Some(service) = &args.service {
        super::typha_service::count_servers(&args.service_namespace, service, &server)?;
    }
    let http = args.http.as_ref().map(|address| answer(address, &server, health)).transpose()?;
    // The thread for signals lives as long as the program.
    let _ = stop.recv();
    server.drain(Duration::from_secs(args.shutdown_timeout));
    drop(http);
    Ok(())
}

/// What `HOST:PORT` stands for.
fn addresses(text: &str) -> Result<Vec<SocketAddr>, Failure> {
    Ok(text.to_socket_addrs().map_err(Failure::io(format!("--listen {text}")))?.collect())
}

fn answer(address: &str, server: &Arc<Server>, health: Health) -> Result<http::Server, Failure> {
    let server = Arc::clone(server);
    let listener = http::serve(address, "http", move |path| match path {
        "/liveness" => liveness(&server, &health),
        "/readiness" => {
            let upstream = server.hub().upstream();
            let text = match &upstream.unavailable {
                Some(why) => format!("what is known is served; the datastore cannot be read now: {why}\n"),
                None => format!("{} problems in the datastore\n", upstream.problems.len()),
            };
            judge(server.hub().head().status == SyncStatus::InSync, &text)
        }
        "/metrics" => exposition::answer(metrics::expose(&server, logging::errors()) + &process::expose()),
        _ => Response::text(404, "ask for /liveness, /readiness or /metrics\n"),
    });
    let listener = listener.map_err(Failure::io(format!("--http {address}")))?;
    tracing::info!(address = %listener.address(), "listening for HTTP");
    Ok(listener)
}

/// Every thread that agents depend on must have given a sign of life within [`Pulse::TIMEOUT`].
fn liveness(server: &Server, health: &Health) -> Response {
    if server.hub().upstream().ended {
        return Response::text(503, "the source of the datastore has ended\n");
    }
    if let Some(part) = server.silent(Pulse::TIMEOUT).first() {
        return Response::text(503, format!("{part}: no sign of life for {} s\n", Pulse::TIMEOUT.as_secs()));
    }
    health.answer("/liveness")
}

fn judge(good: bool, text: &str) -> Response {
    Response::text(if good { 200 } else { 503 }, text)
}
