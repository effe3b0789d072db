//! `tortie fanout`, as its users run it.
#![cfg(feature = "fanout")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

#[path = "support/secrets.rs"]
mod secrets;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tortie_fanout::typha::{ClientAction, ClientHello, ClientSession};
use tortie_lab::certificates::{Authority, Issued};
use tortie_model::SyncStatus;
use tortie_resources::syncer::SyncerType;

const MANIFESTS: &str = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");

struct Fanout {
    child: Child,
    agents: SocketAddr,
    http: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Fanout {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::of(MANIFESTS, args, environment)
    }

    fn of(datastore: &str, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["fanout", "--datastore", datastore, "--log-format", "json"])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(args)
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&log);
        let keep = move |line: &String| *kept.lock().unwrap() += &(line.clone() + "\n");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok).inspect(keep);
        let mut address = |message: &str| -> SocketAddr {
            let line = lines.find(|line| line.contains(message)).unwrap();
            line.split_once("\"address\":\"").unwrap().1.split('"').next().unwrap().parse().unwrap()
        };
        let (agents, http) = (address("listening for agents"), address("listening for HTTP"));
        thread::spawn(move || lines.for_each(drop));
        let fanout = Self { child, agents, http, log };
        fanout.until("it is ready", || fanout.get("/readiness").starts_with("HTTP/1.1 200"));
        fanout
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn until(&self, condition: &str, is: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < until, "waiting until {condition}\n{}\n{}", self.get("/readiness"), self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn render_as(datastore: &str, identity: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["render", "--datastore", datastore, "--node", "demo-node", "--timeout", "0"])
        .args(identity)
        .output()
        .unwrap()
}

fn render(datastore: &str) -> Output {
    render_as(datastore, &[])
}

/// Returns the flags by which an agent presents a certificate and expects a server with this name.
fn identity(Issued { authority, certificate, key }: &Issued, server: &str) -> Vec<String> {
    let files = [("ca", authority), ("cert", certificate), ("key", key)];
    let files = files.map(|(kind, file)| format!("--fanout-{kind}-file={}", file.display()));
    files.into_iter().chain([format!("--fanout-cn={server}")]).collect()
}

/// An agent whose driver accepts everything and does nothing.
struct Agent {
    child: Child,
    log: std::path::PathBuf,
}

impl Agent {
    fn start(folder: &Path, datastore: &str, identity: &[String]) -> Self {
        let (driver, log) = (folder.join("driver"), folder.join("log"));
        fs::write(&driver, "#!/bin/sh\nexec cat <&3 >/dev/null\n").unwrap();
        fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .env("TORTIE_SOCKET", "")
            .args(["run", "--node", "demo-node", "--datastore", datastore, "--state-dir"])
            .arg(folder.join("state"))
            .args(["--dataplane", &format!("exec:{}", driver.display())])
            .args(identity)
            .env("FELIX_LOGSEVERITYSCREEN", "Trace")
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", folder)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_agent_behind_the_fan_out_equals_a_direct_one() {
    let mut fanout = Fanout::start(&[]);
    assert!(fanout.get("/liveness").starts_with("HTTP/1.1 200"));
    let direct = render(MANIFESTS);
    for scheme in ["fanout", "typha"] {
        let behind = render(&format!("{scheme}://{}", fanout.agents));
        assert!(behind.status.success(), "{}", String::from_utf8_lossy(&behind.stderr));
        assert!(behind.stdout.len() > 1000 && behind.stdout == direct.stdout, "{scheme}");
    }
    let metrics = fanout.get("/metrics");
    for expected in
        ["typha_connections_accepted 2\n", "typha_cache_size{syncer=\"felix\"} ", "process_resident_memory_bytes "]
    {
        assert!(metrics.contains(expected), "{expected} is missing in\n{metrics}");
    }
    kill_process(Pid::from_child(&fanout.child), Signal::TERM).unwrap();
    assert!(fanout.child.wait().unwrap().success());
}

/// Returns the number of objects that a client of a syncer receives until it is in sync, by the
/// beginning of their paths.
fn object_counts(server: SocketAddr, syncer: SyncerType) -> BTreeMap<String, usize> {
    connect(server, syncer).1
}

/// Connects to a server as a client of a syncer. Returns the connection, and the number of received
/// objects by path.
fn connect(server: SocketAddr, syncer: SyncerType) -> (TcpStream, BTreeMap<String, usize>) {
    let (mut session, hello) =
        ClientSession::new(ClientHello { syncer, ..ClientHello::default() }, ClientSession::limits());
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&hello).unwrap();
    let mut counts = BTreeMap::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the server has hung up");
        let mut actions = Vec::new();
        session.received(&buffer[..count], &mut actions).unwrap();
        for action in actions {
            match action {
                ClientAction::Send(bytes) => stream.write_all(&bytes).unwrap(),
                ClientAction::Updates(updates) => {
                    for path in updates.iter().map(|update| &update.key) {
                        let parts = if path.contains("/resources/") { 6 } else { 5 };
                        let sort = path.split('/').take(parts).collect::<Vec<_>>().join("/");
                        *counts.entry(sort).or_default() += 1;
                    }
                }
                ClientAction::Status(SyncStatus::InSync) => return (stream, counts),
                ClientAction::Status(_) | ClientAction::Welcome(_) => {}
            }
        }
    }
}

/// Other programs of a node are served, from a dumped cluster.
#[test]
fn other_syncers_than_felixs() {
    let cluster = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../testdata/calico-vxlan");
    let fanout = Fanout::of(cluster, &[], &[]);
    let of = |sorts: &[(&str, usize)]| sorts.iter().map(|(sort, count)| ((*sort).to_owned(), *count)).collect();
    let resources = "/calico/resources/v3/projectcalico.org";
    let (nodes, bgp) = (format!("{resources}/nodes"), format!("{resources}/bgpconfigurations"));
    let pools = [("/calico/v1/ipam/v4", 1), ("/calico/v1/ipam/v6", 1)];
    let tunnels: BTreeMap<String, usize> = of(&[&pools[..], &[(&*nodes, 3)]].concat());
    assert_eq!(object_counts(fanout.agents, SyncerType::TunnelIpAllocation), tunnels);
    let bgp = of(&[&pools[..], &[(&*nodes, 3), (&*bgp, 1), ("/calico/ipam/v2/host", 6)]].concat());
    assert_eq!(object_counts(fanout.agents, SyncerType::Bgp), bgp);
    assert_eq!(object_counts(fanout.agents, SyncerType::NodeStatus), BTreeMap::new());
    // The syncer of Felix does not use affinities.
    let log = fanout.log();
    let mut unused = log.lines().filter(|line| line.contains("is not used as it is"));
    assert!(
        unused.all(|line| line.contains("kind BlockAffinity of crd.projectcalico.org/v1 is not known here")),
        "{log}"
    );
}

#[test]
fn metrics_are_typhas_and_by_syncer() {
    let cluster = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../testdata/calico-vxlan");
    let fanout = Fanout::of(cluster, &[], &[]);
    let (_felix, felix) = connect(fanout.agents, SyncerType::Felix);
    let (_bgp, bgp) = connect(fanout.agents, SyncerType::Bgp);
    let metrics = || fanout.get("/metrics");
    fanout.until("both get updates", || {
        ["felix\"} 1\n", "bgp\"} 1\n", "tunnel-ip-allocation\"} 0\n", "node-status\"} 0\n"]
            .iter()
            .all(|rest| metrics().contains(&format!("typha_connections_streaming{{syncer=\"{rest}")))
    });
    let metrics = metrics();
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in\n{metrics}")).parse().unwrap()
    };
    for (syncer, objects) in [("felix", &felix), ("bgp", &bgp)] {
        let of = |name: &str| value(&format!("typha_{name}{{syncer=\"{syncer}\"}}"));
        let objects = u32::try_from(objects.values().sum::<usize>()).unwrap();
        assert_eq!(of("cache_size"), f64::from(objects), "{syncer}");
        assert!(of("updates_total") >= f64::from(objects), "{syncer}");
        assert_eq!((of("breadcrumb_size_sum"), of("snapshots_generated")), (f64::from(objects), 1.0), "{syncer}");
        assert!(of("snapshot_compressed_bytes") > 0.0, "{syncer}");
        assert_eq!(of("client_snapshot_send_secs_count"), 1.0, "{syncer}");
        let median = value(&format!("typha_client_snapshot_send_secs{{syncer=\"{syncer}\",quantile=\"0.5\"}}"));
        assert!(median > 0.0, "{syncer}: {median}");
    }
    // The snapshot of the other syncer may have been written before its objects were read.
    let [raw, compressed] =
        ["raw", "compressed"].map(|form| value(&format!("typha_snapshot_{form}_bytes{{syncer=\"felix\"}}")));
    assert!(raw > compressed, "{raw} {compressed}");
    for line in [
        "typha_cache_size{syncer=\"node-status\"} 0",
        "typha_ping_latency{syncer=\"node-status\",quantile=\"0.99\"} NaN",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
    let mut there: Vec<_> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    there.retain(|line| line.starts_with("typha_"));
    there.sort_unstable();
    assert_eq!(there, include_str!("../testdata/metrics/typha.txt").lines().collect::<Vec<_>>());
}

#[test]
fn clients_without_a_valid_certificate_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let [right, wrong] = [(); 2].map(|()| Authority::new().unwrap());
    let issue = |by: &Authority, who: &str, name: &str| by.issue(folder.path(), who, name, None).unwrap();
    let serving = issue(&right, "server", "typha-server");
    let felix = issue(&right, "felix", "felix");
    let mallory = right.issue(folder.path(), "mallory", "mallory", Some("spiffe://c/felix")).unwrap();
    let forged = issue(&wrong, "forged", "felix");
    let forged = Issued { authority: felix.authority.clone(), ..forged };
    let betrayed = Issued { authority: folder.path().join("forged-ca.pem"), ..felix.clone() };

    let file = |path: &Path| path.display().to_string();
    let (ca, cert, key) = (file(&serving.authority), file(&serving.certificate), file(&serving.key));
    let fanout = Fanout::start(&["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key, "--client-cn", "felix"]);
    let url = format!("fanout://{}", fanout.agents);
    let agent = Agent::start(folder.path(), &url, &identity(&felix, "typha-server"));
    fanout.until("an agent is served", || {
        fanout.get("/metrics").contains("typha_connections_streaming{syncer=\"felix\"} 1\n")
    });
    let direct = render(MANIFESTS);
    for scheme in ["fanout", "typha"] {
        let behind = render_as(&format!("{scheme}://{}", fanout.agents), &identity(&felix, "typha-server"));
        assert!(behind.status.success(), "{}", String::from_utf8_lossy(&behind.stderr));
        assert!(behind.stdout.len() > 1000 && behind.stdout == direct.stdout, "{scheme}");
    }

    // Texts in the logs of the server and of the client.
    let name = |name: &str| format!("common name {name:?}");
    for (identity, by_server, by_client) in [
        (identity(&mallory, "typha-server"), [name("mallory"), name("felix")], [String::new(), String::new()]),
        (
            identity(&forged, "typha-server"),
            ["does not come from an authority in ".into(), String::new()],
            [String::new(), String::new()],
        ),
        (vec![], ["does not speak TLS".into(), String::new()], [String::new(), String::new()]),
        (identity(&felix, "x"), [String::new(), String::new()], [name("typha-server"), name("x")]),
        (
            identity(&betrayed, "typha-server"),
            [String::new(), String::new()],
            ["does not come from an authority in ".into(), String::new()],
        ),
    ] {
        let before = fanout.log().len();
        let refused = render_as(&url, &identity);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{refused:?}");
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(by_client.iter().all(|part| complaint.contains(part)), "{complaint}");
        let is_logged = |line: &str| {
            let line = line.replace("\\\"", "\"");
            line.contains("handshake failed") && by_server.iter().all(|part| line.contains(part))
        };
        fanout.until(&format!("the reason for {identity:?} is reported"), || {
            fanout.log()[before..].lines().any(is_logged)
        });
    }

    // All other clients were served throughout. The server gets another name, which applies to new
    // connections.
    issue(&right, "server", "new-name");
    fanout.until("the new name is shown", || render_as(&url, &identity(&felix, "new-name")).status.success());
    assert!(!render_as(&url, &identity(&felix, "typha-server")).status.success());
    assert!(fanout.get("/metrics").contains("typha_connections_streaming{syncer=\"felix\"} 1\n"));
    assert_eq!(agent.log().matches("connected to the fan-out").count(), 1, "{}", agent.log());

    let log = agent.log() + &fanout.log();
    for who in ["server", "felix", "mallory", "forged"] {
        secrets::key_is_hidden(&folder.path().join(format!("{who}-key.pem")), &log);
    }
}

#[cfg(feature = "kubernetes")]
mod behind_a_service {
    use serde_json::json;
    use tortie_lab::apiserver::ApiServer;

    use super::*;

    fn endpoint_slice(ports: &[(u16, bool)]) -> Vec<serde_json::Value> {
        let slice = |(index, &(port, ready)): (usize, &(u16, bool))| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"namespace": "calico-system", "name": format!("typha-{index}"),
                    "labels": {"kubernetes.io/service-name": "calico-typha"}},
                "addressType": "IPv4", "ports": [{"name": "calico-typha", "port": port}],
                "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}]})
        };
        ports.iter().enumerate().map(slice).collect()
    }

    #[test]
    fn agents_find_a_ready_server_and_servers_count_themselves() {
        let api = ApiServer::start().unwrap();
        let kubeconfig = api.kubeconfig().display().to_string();
        let service = ["--service", "calico-typha", "--service-namespace", "calico-system"];
        let fanout = Fanout::start_with(&service, &[("KUBECONFIG", &kubeconfig)]);
        for slice in endpoint_slice(&[(1, false), (fanout.agents.port(), true)]) {
            api.apply(slice);
        }
        let rendered = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["render", "--node", "demo-node", "--datastore", "typha:", "--timeout", "60"])
            .env("KUBECONFIG", &kubeconfig)
            .env("FELIX_TYPHAK8SSERVICENAME", "calico-typha")
            .env("FELIX_TYPHAK8SNAMESPACE", "calico-system")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&rendered.stderr);
        assert!(rendered.status.success(), "{printed}\n{}", fanout.log());
        assert!(String::from_utf8_lossy(&rendered.stdout).contains("cali-"), "{printed}");
        assert!(fanout.log().contains("counted the servers of the fan-out"), "{}", fanout.log());
    }
}
