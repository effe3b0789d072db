//! `tortie fanout`.

pub(crate) mod metrics;
#[cfg(feature = "kubernetes")]
mod server_count;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tortie_cli::Failure;
use tortie_cli::datastore::{DatastoreArgs, SourceSpec};
use tortie_cli::directory::{DirectoryArgs, SettleArgs};
use tortie_cli::program::{local_sources, wake};
use tortie_cli::signals::{self, Handlers};
use tortie_config::LogSeverity;
use tortie_datastore::watch;
use tortie_fanout::server::{Server, ServerConfig, SyncerSources};
use tortie_fanout::tls::TlsSettings;
use tortie_model::SyncStatus;
use tortie_resources::manifest::{Options, SyncerType};
use tortie_telemetry::health::{Health, Pulse, Reporter};
use tortie_telemetry::http::{self, Response};
use tortie_telemetry::logging::{self, LogFormat};
use tortie_telemetry::{exposition, process};

/// Lower limit of a server's share of the connections, as Typha's MaxConnectionsLowerLimit.
const LEAST_SHARE: usize = 400;

/// Serve one watch of the datastore to any number of agents.
///
/// Agents connect with --datastore fanout://HOST:PORT. The server disconnects a client when one
/// write to it takes longer than a minute. It also disconnects a client that is more than five
/// minutes or 64 MiB of changes behind, but not within five minutes after its snapshot. A client
/// that reconnects within five minutes, or 64 MiB, is sent only the changes that it missed.
///
/// Felix can connect by Typha's protocol. For it, the server reads IPAM blocks, BGP peers and live
/// migrations of virtual machines besides the objects that agents need. Agents are sent IPAM blocks
/// on request.
///
/// Calico's other programs on a node can connect as well: its BGP daemon (syncer `bgp`), the
/// allocator of tunnel addresses (`tunnel-ip-allocation`) and the reporter of node status
/// (`node-status`). The objects that only they need are read while one of them is connected, and
/// for a minute after. They are not available if the datastore is another fan-out or a Typha.
///
/// With TLS, both sides present a certificate. That of a client must come from the authority and
/// have the required common name or URI. The files are read again when they change.
///
/// A client has ten seconds and 16 KiB for its hello. Of the connections that an address may have,
/// an eighth may be without a hello. A connection takes up to 76 KiB of memory, 236 KiB with TLS:
/// 10,000 connections take 0.8 GB, 2.4 GB with TLS. The objects, one snapshot for each protocol in
/// use, and 64 MiB of changes come on top.
///
/// After SIGTERM, the server sends all clients to other servers, one after the other, and ends when
/// they are gone. A second SIGTERM ends it at once.
///
/// Example: tortie fanout --datastore etcd://10.0.0.1:2379 --listen 0.0.0.0:5473 --http 0.0.0.0:9093
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    datastore: DatastoreArgs,
    #[command(flatten)]
    settle: SettleArgs,
    /// A configuration file in Felix's format, for access to the datastore.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on for agents; may be given several times.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:5473")]
    listen: Vec<String>,
    /// Address that answers /liveness, /readiness and /metrics. Live: each thread has shown signs
    /// of life within a minute. Ready: the datastore has been read completely.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// CA certificates that must have signed the clients' certificates.
    #[arg(long, value_name = "FILE", env = "TYPHA_CAFILE", help_heading = "TLS for clients")]
    tls_ca: Option<PathBuf>,
    /// Server certificate.
    #[arg(long, value_name = "FILE", env = "TYPHA_SERVERCERTFILE", help_heading = "TLS for clients")]
    tls_cert: Option<PathBuf>,
    /// Key of the server certificate.
    #[arg(long, value_name = "FILE", env = "TYPHA_SERVERKEYFILE", help_heading = "TLS for clients")]
    tls_key: Option<PathBuf>,
    /// The common name that clients' certificates must have.
    #[arg(long, value_name = "NAME", env = "TYPHA_CLIENTCN", help_heading = "TLS for clients")]
    client_cn: Option<String>,
    /// The URI that clients' certificates must have among their alternative names; with
    /// --client-cn, either is enough.
    #[arg(long, value_name = "URI", env = "TYPHA_CLIENTURISAN", help_heading = "TLS for clients")]
    client_uri_san: Option<String>,
    /// Maximum number of connections; further clients are rejected with an error.
    #[arg(long, value_name = "N", default_value_t = 10_000, env = "TYPHA_MAXCONNECTIONSUPPERLIMIT")]
    max_connections: usize,
    /// Maximum number of connections from one address; further ones are closed.
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_connections_per_address: usize,
    /// Number of these servers. A server that has more than its share of the nodes (and more
    /// than 400) sends clients to the others, one client per second.
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: usize,
    /// Kubernetes Service of these servers, in place of --servers: the number of its endpoints,
    /// read every 30 seconds, is the number of servers. Its port is called calico-typha.
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "NAME", env = "TYPHA_K8SSERVICENAME", conflicts_with = "servers")]
    service: Option<String>,
    /// The namespace of that Service.
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "NAME", env = "TYPHA_K8SNAMESPACE", default_value = "kube-system")]
    service_namespace: String,
    /// Milliseconds within which changes after another one are sent together.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20)]
    pace: u64,
    /// Seconds for which clients are sent to other servers at the end.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, env = "TYPHA_SHUTDOWNTIMEOUTSECS")]
    shutdown_timeout: u64,
    /// Format of log lines.
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
    let local = local_sources(args.config.as_deref())?;
    let directory = DirectoryArgs::only_read(args.settle);
    let spec =
        SourceSpec { options: Options::default(), blocks: true, node: None, directory, prepare: None, versions: true };
    let source = args.datastore.source(&local, spec)?;
    let upstream = watch(source).map_err(Failure::io("the datastore's thread"))?;
    let health = Health::default();
    let pulse = health.pulse(Reporter::Datastore, Pulse::TIMEOUT);
    upstream.resend.on_life(move || pulse.beat());
    let syncers = if args.datastore.is_read_here() {
        let (datastore, settle) = (args.datastore, args.settle);
        SyncerSources::all(move |syncer: SyncerType| {
            let options = Options { syncer, ..Options::default() };
            let directory = DirectoryArgs::only_read(settle);
            let spec = SourceSpec { options, blocks: true, node: None, directory, prepare: None, versions: false };
            let source = datastore.source(&local, spec)?;
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
        server_count::follow(&args.service_namespace, service, &server)?;
    }
    let http = args.http.as_ref().map(|address| answer(address, &server, health)).transpose()?;
    // The thread for signals lives as long as the program.
    let _ = stop.recv();
    server.drain(Duration::from_secs(args.shutdown_timeout));
    drop(http);
    Ok(())
}

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
                Some(why) => format!("the last known state is served; the datastore cannot be read now: {why}\n"),
                None => format!("{} problems in the datastore\n", upstream.problems.len()),
            };
            status_response(server.hub().head().status == SyncStatus::InSync, &text)
        }
        "/metrics" => exposition::answer(metrics::expose(&server, logging::errors()) + &process::expose()),
        _ => Response::text(404, "ask for /liveness, /readiness or /metrics\n"),
    });
    let listener = listener.map_err(Failure::io(format!("--http {address}")))?;
    tracing::info!(address = %listener.address(), "listening for HTTP");
    Ok(listener)
}

/// Answers 503 if a thread that agents depend on has given no sign of life within
/// [`Pulse::TIMEOUT`].
fn liveness(server: &Server, health: &Health) -> Response {
    if server.hub().upstream().ended {
        return Response::text(503, "the source of the datastore has ended\n");
    }
    if let Some(part) = server.silent(Pulse::TIMEOUT).first() {
        return Response::text(503, format!("{part}: no sign of life for {} s\n", Pulse::TIMEOUT.as_secs()));
    }
    health.answer("/liveness")
}

fn status_response(good: bool, text: &str) -> Response {
    Response::text(if good { 200 } else { 503 }, text)
}
