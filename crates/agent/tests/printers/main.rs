//! Every command is run with hostile input; none prints its control characters, or repeats a long
//! text in a message.
#![cfg(all(feature = "etcd", feature = "kubernetes", feature = "fanout", feature = "manual"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

mod agent;
mod programs;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use tortie_lab::etcd::{Etcd, EtcdOptions};

/// Control sequences that a terminal executes, that reorder text, and that begin a line.
const EVIL: &str = "\u{1b}[31m\u{7}\u{9b}1m\u{202e}\u{2066}\u{200b}\n2026-01-01T00:00:00 INFO forged";

/// Commands with hostile input in other tests of this program.
const PROGRAMS: [&str; 7] = ["cleanup", "controller", "dataplane", "fanout", "history", "rollback", "run"];

/// Commands that print no input.
const WITHOUT_INPUT: [&str; 5] = ["completions", "man", "parameters", "reference", "version"];

fn tortie(args: &[String]) -> Output {
    tortie_reads(args, "")
}

fn tortie_reads(args: &[String], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that reads nothing closes the pipe.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Writes inputs of a security review, beside a cluster.
fn hostile_cluster(evil: &str) -> TempDir {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hostile");
    let dir = TempDir::new().unwrap();
    for file in ["base.json", "log-line-in-a-selector.json", "control-characters-in-a-stored-name.json"] {
        fs::copy(inputs.join(file), dir.path().join(file)).unwrap();
    }
    let odd = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "odd", "namespace": "dev", "labels": {"app": "x"}, "annotations": {"note": evil}},
        "spec": {"nodeName": format!("n1{evil}"), "containers": [{"name": "c", "image": "x"}]},
        "status": {"phase": format!("Running{evil}")}
    });
    fs::write(dir.path().join("odd.json"), odd.to_string()).unwrap();
    for (number, object) in objects(evil).into_iter().enumerate() {
        fs::write(dir.path().join(format!("object-{number}.json")), object.to_string()).unwrap();
    }
    dir
}

/// Returns objects with hostile text in names, labels, annotations, selectors and unknown fields;
/// some of them are valid.
fn objects(evil: &str) -> Vec<serde_json::Value> {
    let policy = |name: &str, metadata: serde_json::Value, spec: serde_json::Value| {
        let mut object = serde_json::json!({
            "apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "dev"}, "spec": spec
        });
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        object
    };
    let none = serde_json::json!({});
    vec![
        policy(evil, none.clone(), serde_json::json!({"selector": "all()"})),
        policy("labelled", serde_json::json!({"labels": {"a": evil, evil: "b"}}), serde_json::json!({})),
        policy("annotated", serde_json::json!({"annotations": {evil: evil}}), serde_json::json!({"selector": "all()"})),
        policy("selecting", none.clone(), serde_json::json!({"selector": format!("a == '{evil}'")})),
        policy("unknown", none.clone(), serde_json::json!({evil: 1, "types": [evil], "tier": evil})),
        policy(
            "rules",
            none,
            serde_json::json!({"selector": "all()", "ingress": [
                {"action": evil}, {"action": "Allow", "protocol": evil, "source": {"nets": [evil]}}
            ]}),
        ),
        serde_json::json!({"apiVersion": evil, "kind": evil, "metadata": {"name": evil}}),
    ]
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the commands that read the cluster of a directory.
fn of_directory(place: &str, empty: &str, evil: &str) -> Vec<Vec<String>> {
    let url = format!("file:{place}");
    let of = |command: &[&str]| words(&[command, &["--datastore", &url]].concat());
    let policy = format!("{place}/object-3.json");
    let mut runs = vec![
        of(&["render", "--node", "n1"]),
        of(&["render", "--node", "n1", "--backend", "nftables"]),
        of(&["render", "--node", "n1", "--backend", "ebpf"]),
        of(&["render", "--node", "n1", "--backend", "ebpf", "--programs"]),
        of(&["render", "--node", "n1", "--ipsets"]),
        of(&["render", "--node", evil]),
        of(&["show", "pods", "all()"]),
        of(&["show", "pods", evil]),
        of(&["trace", "--from", "dev/cl", "--to", "prod/db", "--port", "80"]),
        of(&["trace", "--from", "dev/cl", "--to", "prod/db", "--port", "80", "--verbose", "--tables"]),
        of(&["trace", "--from", &format!("dev/{evil}"), "--to", "prod/db", "--port", "80"]),
        words(&["selector", &format!("a == '{evil}' &&")]),
        words(&["selector", &format!("a == '{evil}'"), "--labels", evil]),
        words(&["selector", "a == 'b' &&"]),
        words(&["node", "diags", "--output", &format!("{empty}/{evil}.tar.gz")]),
    ];
    runs.extend(["html", "svg", "dot"].map(|output| of(&["map", "--output", output])));
    runs.extend(["table", "json", "yaml", "github", "html"].map(|output| of(&["plan", "-f", &policy, "-o", output])));
    runs.extend(["table", "json", "yaml", "github", "html"].map(|o| words(&["diff", empty, place, "-o", o])));
    runs.extend(["text", "github", "sarif", "json"].map(|o| words(&["check", place, "--output", o])));
    runs
}

/// Returns the commands that read and write a datastore.
fn of_datastore(url: &str, place: &str, evil: &str) -> Vec<Vec<String>> {
    let of = |command: &[&str]| words(&[command, &["--datastore", url]].concat());
    let mut runs = vec![
        of(&["apply", "-f", place]),
        of(&["create", "-f", place]),
        of(&["replace", "-f", place]),
        of(&["patch", "networkpolicy", "stored", "-n", "dev", "-p", evil]),
        of(&["label", "networkpolicy", "stored", "-n", "dev", &format!("a={evil}")]),
        of(&["staged", "commit", evil]),
        of(&["staged", "commit", "dev/staged"]),
    ];
    runs.extend(["table", "json", "yaml"].map(|o| of(&["get", "networkpolicies", "--all-namespaces", "-o", o])));
    runs.push(of(&["get", "networkpolicies", evil]));
    runs.extend(["table", "json", "yaml"].map(|o| of(&["ipam", "check", "-o", o])));
    runs.extend([&["ipam", "show", "--ip=10.0.0.0"][..], &["ipam", "show", "--show-borrowed"]].map(of));
    runs.push(of(&["delete", "networkpolicy", evil, "-n", "dev"]));
    runs
}

/// Returns the commands that read standard input, with these inputs.
fn of_input(place: &str, evil: &str) -> Vec<(Vec<String>, String)> {
    let lines = |values: &[serde_json::Value]| values.iter().map(|value| format!("{value}\n")).collect::<String>();
    let end = |name: &str| serde_json::json!({"from": name, "to": "prod/db", "port": 80, "protocol": "tcp"});
    let odd = serde_json::json!({evil: evil, "from": "dev/cl", "to": evil, "protocol": evil, "family": evil});
    let recorded = |kind: &str, value: serde_json::Value| serde_json::json!({"key": format!("/calico/resources/v3/projectcalico.org/{kind}"), "value": value});
    let stored = objects(evil).into_iter().map(|object| recorded(&format!("networkpolicies/dev/{evil}"), object));
    let mut recording: Vec<_> = stored.collect();
    let endpoint = serde_json::json!({"name": evil, "state": evil, "labels": {evil: evil}, "profile_ids": [evil]});
    let key = format!("/calico/v1/host/n1/workload/k8s/{}/endpoint/eth0", evil.replace('/', "%2f"));
    recording.push(serde_json::json!({"key": key, "value": endpoint}));
    recording.push(serde_json::json!({"key": format!("/calico/v1/config/{evil}"), "value": evil}));
    recording.push(serde_json::json!({"status": "in-sync"}));
    let questions = [
        serde_json::json!({"selector": evil}),
        serde_json::json!({"selector": format!("a == '{evil}'"), "labels": [{"a": evil}]}),
        serde_json::json!({evil: evil}),
    ];
    let mut connections: Vec<_> = ["dev/cl", &format!("dev/{evil}"), evil].into_iter().map(end).collect();
    connections.push(odd);
    let datastore = format!("file:{place}");
    let flow = |name: &str| {
        let end = serde_json::json!({"kind": "workload", "name": name, "address": "10.0.0.1", "port": 80, "labels": {evil: evil}});
        serde_json::json!({"time": "2026-11-30T00:00:00.000Z", "stage": "ended", "verdict": "allow", "source": end,
            "destination": end, "protocol": "TCP", "packets": 9, "reply_packets": 9, evil: evil})
    };
    let flows = ["dev/cl", &format!("dev/{evil}"), evil].map(flow);
    let manifest = objects(evil).iter().map(|object| format!("---\n{object}\n")).collect::<String>();
    vec![
        (words(&["selector", "--batch"]), lines(&questions) + evil + "\n"),
        (words(&["suggest", "--datastore", &datastore, "--flows", "-"]), lines(&flows) + evil + "\n"),
        (words(&["trace", "--batch", "--datastore", &datastore]), lines(&connections) + evil + "\n"),
        (words(&["replay", "-", "--node", "n1"]), lines(&recording)),
        (words(&["replay", "-", "--node", evil]), lines(&recording) + evil + "\n"),
        (words(&["plan", "-f", "-", "--datastore", &datastore]), manifest),
    ]
}

/// Returns the commands of the program, as its help lists them.
fn commands() -> BTreeSet<String> {
    let help = String::from_utf8(tortie(&words(&["--help"])).stdout).unwrap();
    let list = help.split("Run:\n").nth(1).unwrap().split("Options:\n").next().unwrap().to_owned();
    let name = |line: &str| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
    let first = |line: String| line.split_whitespace().next().unwrap_or_default().to_owned();
    list.lines().filter_map(name).map(first).filter(|name| name != "help").collect()
}

/// Asserts that an output moves no cursor, hides nothing, and has no line that its input forged.
fn assert_harmless(command: &[String], text: &str) {
    let obeyed = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    assert!(!text.contains(obeyed), "{command:?}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("2026-01-01T00:00:00")), "{command:?}: {text}");
}

/// Runs a command, and asserts that it works with hostile input and prints none of it unescaped.
fn check_run(command: &[String]) {
    check_output(command, tortie(command));
}

fn check_output(command: &[String], output: Output) {
    let (mut stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(!stderr.contains("unexpected argument") && !stderr.contains("required"), "{command:?}: {stderr}");
    assert!(!stdout.is_empty() || !stderr.is_empty() || output.status.success(), "{command:?}");
    assert!(!stderr.contains("missing field") || !command.contains(&"--socket".to_owned()), "{command:?}: {stderr}");
    if command.contains(&"always".to_owned()) {
        // Colours of the command, which differ from that of the input.
        ["\u{1b}[32m", "\u{1b}[0m"].into_iter().for_each(|own| stdout = stdout.replace(own, ""));
    }
    assert_harmless(command, &stdout);
    assert_harmless(command, &stderr);
}

/// Starts a real etcd with hostile objects.
fn hostile_etcd(evil: &str) -> Etcd {
    let etcd = Etcd::start(EtcdOptions::default()).unwrap();
    for (number, mut object) in objects(evil).into_iter().enumerate() {
        object["metadata"]["uid"] = format!("uid-{number}").into();
        let name = object["metadata"]["name"].as_str().unwrap().replace(evil, "stored");
        etcd.put(&format!("/calico/resources/v3/projectcalico.org/networkpolicies/dev/{name}"), &object.to_string())
            .unwrap();
    }
    let staged = serde_json::json!({
        "apiVersion": "projectcalico.org/v3", "kind": "StagedNetworkPolicy",
        "metadata": {"name": "staged", "namespace": "dev", "uid": evil, "annotations": {evil: evil}},
        "spec": {"stagedAction": evil, "selector": evil, evil: evil}
    });
    etcd.put("/calico/resources/v3/projectcalico.org/stagednetworkpolicies/dev/staged", &staged.to_string()).unwrap();
    let owner =
        serde_json::json!({"handle_id": evil, "secondary": {"node": evil, "pod": evil, "namespace": evil, evil: evil}});
    let block =
        serde_json::json!({"cidr": "10.0.0.0/31", "affinity": evil, "allocations": [0, null], "attributes": [owner]});
    etcd.put("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-31", &block.to_string()).unwrap();
    etcd.put(&format!("/calico/ipam/v2/handle/{evil}"), "{}").unwrap();
    etcd
}

/// A hostile cluster in a directory and in etcd, and an agent that answers with it.
struct World {
    dir: TempDir,
    empty: TempDir,
    agent: TempDir,
    etcd: Etcd,
}

impl World {
    fn new(evil: &'static str) -> Self {
        let (empty, agent) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let world = Self { dir: hostile_cluster(evil), empty, agent, etcd: hostile_etcd(evil) };
        agent::listen(Path::new(&world.socket()), evil);
        world
    }

    fn socket(&self) -> String {
        self.agent.path().join("socket").display().to_string()
    }

    fn runs(&self, evil: &str) -> Vec<(Vec<String>, String)> {
        let (place, empty) = (self.dir.path().to_str().unwrap(), self.empty.path().to_str().unwrap());
        let runs = [
            of_directory(place, empty, evil),
            of_datastore(&self.etcd.url(), place, evil),
            agent::runs(&self.socket(), empty, evil),
        ];
        let mut runs: Vec<_> = runs.concat().into_iter().map(|run| (run, String::new())).collect();
        runs.extend(of_input(place, evil));
        runs
    }
}

#[test]
fn no_printer_passes_terminal_control_sequences() {
    let world = World::new(EVIL);
    let runs = world.runs(EVIL);
    let fed = runs.iter().map(|(run, _)| run[0].as_str());
    let known: BTreeSet<String> = fed.chain(PROGRAMS).chain(WITHOUT_INPUT).map(str::to_owned).collect();
    assert_eq!(known, commands(), "each command is fed here or by a test of a program, or has no input");
    for (command, input) in &runs {
        check_output(command, tortie_reads(command, input));
    }
}

/// A long text of a user is shortened in a message.
#[test]
fn no_message_repeats_a_long_text() {
    let text: &'static str = "x".repeat(5_000).leak();
    let world = World::new(text);
    let long = "x".repeat(201);
    let mut repeating = Vec::new();
    for (command, input) in world.runs(text) {
        let output = tortie_reads(&command, &input);
        let stderr = String::from_utf8(output.stderr).unwrap();
        if stderr.contains(&long) {
            let shown = command.iter().map(|word| word.get(..40).unwrap_or(word)).collect::<Vec<_>>();
            repeating.push(format!("{shown:?}: {}", stderr.replace(&long, "…")));
        }
    }
    assert!(repeating.is_empty(), "{repeating:#?}");
}

/// The same holds for each output format of `check`.
#[test]
fn no_printer_repeats_a_long_text() {
    let dir = TempDir::new().unwrap();
    let long = "x".repeat(20_000);
    let spec = serde_json::json!({"selector": format!("a == '{long}' &&"), "types": [long], long.as_str(): 1});
    let policy = serde_json::json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "p"}, "spec": spec
    });
    fs::write(dir.path().join("a.json"), format!("{policy:#}")).unwrap();
    for output in ["json", "sarif", "github"] {
        let found = tortie(&words(&["check", dir.path().to_str().unwrap(), "--output", output]));
        let text = String::from_utf8(found.stdout).unwrap();
        assert!(text.len() > 100 && !text.contains(&"x".repeat(2_100)), "{output}: {}", text.len());
    }
}

/// All commands print through the module that escapes text.
#[test]
fn one_module_writes_to_the_standard_output_of_commands() {
    // These print no text of users, or text that was escaped before it was coloured.
    let allowed = [
        "terminal.rs",
        "help.rs",
        "progress.rs",
        "reference.rs",
        "manual.rs",
        "parameters.rs",
        "flows.rs",
        "check.rs",
        "pending.rs",
    ];
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![here.join("../cli/src"), here.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !allowed.contains(&path.file_name().unwrap().to_str().unwrap()) {
                let text = fs::read_to_string(&path).unwrap_or_default();
                // Outside the library of commands, these macros are those of the standard library,
                // which do not escape.
                let unescaped: &[&str] = if path.starts_with(here.join("src")) && !path.ends_with("tests.rs") {
                    &["println!(", "print!("]
                } else {
                    &[]
                };
                for direct in ["io::stdout()", "io::stderr()", "std::println!", "std::print!", "std::eprintln!"]
                    .iter()
                    .chain(unescaped)
                {
                    assert!(!text.contains(direct), "{}: {direct}", path.display());
                }
            }
        }
    }
}
