//! Programs that run until they are ended: their logs, answers and states.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tortie_fanout::typha::{ClientHello, ClientSession};
use tortie_lab::apiserver::ApiServer;
use tortie_lab::etcd::{Etcd, EtcdOptions};
use tortie_protocol::felix::ConfigUpdate;
use tortie_protocol::{encode_config, frame};

use super::{EVIL, assert_harmless, check_run, hostile_cluster, objects, words};

const PATIENCE: Duration = Duration::from_secs(90);

/// A program that writes its log to a file.
struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    fn start(command: &mut Command, log: PathBuf) -> Self {
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn until(&self, condition: &str, mut holds: impl FnMut(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds(&self.log()) {
            assert!(Instant::now() < until, "waiting until {condition}: {}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the address in the log line with this message.
    fn address(&self, message: &str) -> SocketAddr {
        let mut found = None;
        self.until(message, |log| {
            let line = log.lines().find(|line| line.contains(message)).and_then(|line| line.split_once("address="));
            found = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
            found.is_some()
        });
        found.unwrap()
    }

    /// Ends the program. Its log must have hostile text, but no control characters.
    fn end(mut self, name: &str) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        assert!(log.contains("INFO forged"), "{name}: the log says nothing of hostile objects: {log}");
        assert_harmless(&words(&[name]), &log);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tortie(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.args(args).env("TORTIE_SOCKET", "");
    command
}

/// Returns the answer to a request.
fn answer(address: SocketAddr, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

/// Returns the body of the answer.
fn get(address: SocketAddr, path: &str) -> String {
    answer(address, path).split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned())
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// `run` with a driver that does nothing, then `history` and `rollback` of the states that it
/// keeps, and its answers.
#[test]
fn logs_answers_and_states_of_an_agent() {
    for format in ["text", "json"] {
        let (dir, folder) = (hostile_cluster(EVIL), TempDir::new().unwrap());
        let at = |name: &str| folder.path().join(name).display().to_string();
        let driver = folder.path().join("driver");
        fs::write(&driver, "#!/bin/sh\nexec cat <&3 >/dev/null\n").unwrap();
        fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).unwrap();
        let (state, socket) = (at("state"), at("socket"));
        let (dataplane, datastore) = (format!("exec:{}", driver.display()), format!("file:{}", dir.path().display()));
        let health = free_address();
        let mut command = tortie(&["run", "--node", "n1", "--dataplane", &dataplane, "--datastore", &datastore]);
        command.args(["--state-dir", &state, "--socket", &socket, "--log-format", format]);
        command.env("FELIX_ENDPOINTSTATUSPATHPREFIX", folder.path()).env("FELIX_HEALTHENABLED", "true");
        command.env("FELIX_HEALTHHOST", "127.0.0.1").env("FELIX_HEALTHPORT", health.port().to_string());
        let agent = Program::start(&mut command, folder.path().join("log"));
        let states = || {
            let output = tortie(&["history", "--state-dir", &state]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().lines().count().saturating_sub(1)
        };
        agent.until("there is a state", |_| states() == 1);
        fs::write(dir.path().join(format!("{}.json", EVIL.replace('/', ""))), objects(EVIL)[0].to_string()).unwrap();
        fs::remove_file(dir.path().join("object-1.json")).unwrap();
        agent.until("there are two states", |_| states() == 2);

        for path in ["/readiness", "/liveness"] {
            assert_harmless(&words(&[path]), &get(health, path));
        }
        for output in ["table", "json", "yaml"] {
            for command in [&["status"][..], &["config", "--set"], &["show", "endpoints"], &["show", "policies"]] {
                check_run(&words(&[command, &["--socket", &socket, "-o", output]].concat()));
            }
            let of_states = [
                &["history"][..],
                &["history", "1"],
                &["history", "2"],
                &["rollback", "1", "--dry-run"],
                &["rollback", "1"],
                &["rollback", "2"],
            ];
            for command in of_states {
                check_run(&words(&[command, &["--state-dir", &state, "-o", output]].concat()));
            }
        }
        agent.end("run");
    }
}

#[test]
fn logs_of_a_fanout() {
    let (dir, folder) = (hostile_cluster(EVIL), TempDir::new().unwrap());
    let datastore = format!("file:{}", dir.path().display());
    let args = ["fanout", "--datastore", &datastore, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let fanout = Program::start(&mut tortie(&args), folder.path().join("log"));
    let (agents, http) = (fanout.address("listening for agents"), fanout.address("listening for HTTP"));
    let evil = || EVIL.to_owned();
    let hello = ClientHello { hostname: evil(), version: evil(), info: evil(), ..ClientHello::default() };
    let (_, hello) = ClientSession::new(hello, ClientSession::limits());
    let mut stream = TcpStream::connect(agents).unwrap();
    stream.write_all(&hello).unwrap();
    fanout.until("it has read everything", |_| answer(http, "/readiness").starts_with("HTTP/1.1 200"));
    fanout.until("the client is named", |log| log.contains("INFO forged"));
    drop(stream);
    TcpStream::connect(agents).unwrap().write_all(EVIL.as_bytes()).unwrap();
    for path in ["/readiness", "/liveness", "/metrics"] {
        assert_harmless(&words(&[path]), &get(http, path));
    }
    fanout.end("fanout");
}

#[test]
fn logs_of_a_controller() {
    let folder = TempDir::new().unwrap();
    let (api, etcd) = (ApiServer::start().unwrap(), Etcd::start(EtcdOptions::default()).unwrap());
    let named = |kind: &str, version: &str, rest: serde_json::Value| {
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "dev"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    api.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dev", "labels": {EVIL: EVIL}}}));
    let labelled = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {EVIL: EVIL}}});
    api.apply(labelled);
    let ingress = json!([{"ports": [{"port": EVIL, "protocol": EVIL}], "from": [{"ipBlock": {"cidr": EVIL}}]}]);
    let spec =
        json!({"podSelector": {"matchLabels": {EVIL: EVIL}}, "policyTypes": [EVIL], "ingress": ingress, EVIL: 1});
    api.apply(named("NetworkPolicy", "networking.k8s.io/v1", json!({"spec": spec})));
    let spec = json!({"nodeName": EVIL, "serviceAccountName": EVIL, "containers": []});
    api.apply(named("Pod", "v1", json!({"spec": spec, "status": {"phase": EVIL, "podIP": EVIL}})));
    for (number, object) in objects(EVIL).into_iter().enumerate() {
        etcd.put(&format!("/calico/resources/v3/projectcalico.org/networkpolicies/dev/p{number}"), &object.to_string())
            .unwrap();
    }
    let node = json!({"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": EVIL, "uid": EVIL}});
    etcd.put("/calico/resources/v3/projectcalico.org/nodes/n1", &node.to_string()).unwrap();
    let url = etcd.url();
    let mut command = tortie(&["controller", "--datastore", &url, "--http", "127.0.0.1:0", "--kubeconfig"]);
    let controller = Program::start(command.arg(api.kubeconfig()), folder.path().join("log"));
    let http = controller.address("listening");
    controller.until("a hostile object is named", |log| log.contains("INFO forged"));
    for path in ["/readiness", "/liveness", "/metrics"] {
        assert_harmless(&words(&[path]), &get(http, path));
    }
    controller.end("controller");
}

/// Runs a command in a separate network namespace, as root there.
fn apart(script: &str, args: &[&Path]) -> std::process::Output {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", script, env!("CARGO_BIN_EXE_tortie")]);
    command.args(args).output().unwrap()
}

fn assert_output_is_harmless(name: &str, output: &std::process::Output) {
    for bytes in [&output.stdout, &output.stderr] {
        assert_harmless(&words(&[name]), std::str::from_utf8(bytes).unwrap());
    }
}

#[test]
fn logs_of_a_driver() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("messages");
    let mut messages = File::create(&file).unwrap();
    let config = [("IptablesBackend", EVIL), ("InterfacePrefix", EVIL), (EVIL, EVIL)];
    let config = config.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    frame::write_frame(&mut messages, &encode_config(ConfigUpdate { config, ..ConfigUpdate::default() }, 1)).unwrap();
    let script = "ip link add \"$(printf 'x\\033[31m')\" type dummy; exec \"$0\" dataplane 3<\"$1\" 4>/dev/null";
    let output = apart(script, &[&file]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("forged"), "{log}");
    assert_output_is_harmless("dataplane", &output);
}

#[test]
fn results_of_a_cleanup() {
    let script = "ip link add \"$(printf 'cali\\033[31m')\" type dummy && exec \"$0\" cleanup";
    let output = apart(script, &[]);
    assert!(output.status.success() || !output.stderr.is_empty(), "{output:?}");
    assert_output_is_harmless("cleanup", &output);
}
