//! Every command is given a hostile cluster; none passes on what a terminal obeys.
#![cfg(all(feature = "etcd", feature = "kubernetes", feature = "fanout", feature = "manual"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use tortie_testkit::etcd::{Etcd, EtcdOptions};

/// A character sequence that a terminal obeys, that reorders text, and that begins a line.
const EVIL: &str = "\u{1b}[31m\u{7}\u{9b}1m\u{202e}\u{2066}\u{200b}\n2026-01-01T00:00:00 INFO forged";

/// Commands that this test does not feed, and the reason.
const OTHERS: [(&str, &str); 14] = [
    ("cleanup", "prints objects of the kernel"),
    ("completions", "prints no input"),
    ("confirm", "needs an agent"),
    ("controller", "writes log lines alone"),
    ("dataplane", "writes log lines alone"),
    ("fanout", "writes log lines alone"),
    ("flows", "needs an agent"),
    ("man", "prints no input"),
    ("parameters", "prints no input"),
    ("reference", "prints no input"),
    ("replay", "prints as `render` does"),
    ("run", "writes log lines alone"),
    ("status", "needs an agent"),
    ("version", "prints no input"),
];

fn tortie(args: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie")).args(args).output().unwrap()
}

/// Inputs of a security review, beside a cluster that they are to deceive.
fn hostile_cluster() -> TempDir {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hostile");
    let dir = TempDir::new().unwrap();
    for file in ["base.json", "log-line-in-a-selector.json", "control-characters-in-a-stored-name.json"] {
        fs::copy(inputs.join(file), dir.path().join(file)).unwrap();
    }
    let odd = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "odd", "namespace": "dev", "labels": {"app": "x"}, "annotations": {"note": EVIL}},
        "spec": {"nodeName": format!("n1{EVIL}"), "containers": [{"name": "c", "image": "x"}]},
        "status": {"phase": format!("Running{EVIL}")}
    });
    fs::write(dir.path().join("odd.json"), odd.to_string()).unwrap();
    for (number, object) in objects().into_iter().enumerate() {
        fs::write(dir.path().join(format!("object-{number}.json")), object.to_string()).unwrap();
    }
    dir
}

/// Objects with hostile text in names, labels, annotations, selectors and unknown fields, of which some are valid.
fn objects() -> Vec<serde_json::Value> {
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
        policy(EVIL, none.clone(), serde_json::json!({"selector": "all()"})),
        policy("labelled", serde_json::json!({"labels": {"a": EVIL, EVIL: "b"}}), serde_json::json!({})),
        policy("annotated", serde_json::json!({"annotations": {EVIL: EVIL}}), serde_json::json!({"selector": "all()"})),
        policy("selecting", none.clone(), serde_json::json!({"selector": format!("a == '{EVIL}'")})),
        policy("unknown", none.clone(), serde_json::json!({EVIL: 1, "types": [EVIL], "tier": EVIL})),
        policy(
            "rules",
            none,
            serde_json::json!({"selector": "all()", "ingress": [
                {"action": EVIL}, {"action": "Allow", "protocol": EVIL, "source": {"nets": [EVIL]}}
            ]}),
        ),
        serde_json::json!({"apiVersion": EVIL, "kind": EVIL, "metadata": {"name": EVIL}}),
    ]
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs of commands that read the cluster of a directory.
fn of_directory(place: &str, empty: &str) -> Vec<Vec<String>> {
    let url = format!("file:{place}");
    let of = |command: &[&str]| words(&[command, &["--datastore", &url]].concat());
    let policy = format!("{place}/object-3.json");
    let mut runs = vec![
        of(&["render", "--node", "n1"]),
        of(&["render", "--node", "n1", "--backend", "nftables"]),
        of(&["render", "--node", "n1", "--backend", "ebpf"]),
        of(&["show", "pods", "all()"]),
        of(&["show", "pods", EVIL]),
        of(&["trace", "--from", "dev/cl", "--to", "prod/db", "--port", "80"]),
        of(&["trace", "--from", &format!("dev/{EVIL}"), "--to", "prod/db", "--port", "80"]),
        words(&["config", EVIL]),
        // A number that the command line refuses is repeated to its writer as it is.
        words(&["history", "--state-dir", empty]),
        words(&["rollback", "1", "--state-dir", empty]),
        words(&["selector", "a == 'b' &&"]),
    ];
    runs.extend(["html", "svg", "dot"].map(|output| of(&["map", "--output", output])));
    runs.extend(["table", "json", "yaml", "github", "html"].map(|output| of(&["plan", "-f", &policy, "-o", output])));
    runs.extend(["table", "json", "yaml", "github", "html"].map(|o| words(&["diff", empty, place, "-o", o])));
    runs.extend(["text", "github", "sarif", "json"].map(|o| words(&["check", place, "--output", o])));
    runs
}

/// Runs of commands that read and write a datastore.
fn of_datastore(url: &str, place: &str) -> Vec<Vec<String>> {
    let of = |command: &[&str]| words(&[command, &["--datastore", url]].concat());
    let mut runs = vec![
        of(&["apply", "-f", place]),
        of(&["create", "-f", place]),
        of(&["replace", "-f", place]),
        of(&["patch", "networkpolicy", "stored", "-n", "dev", "-p", EVIL]),
        of(&["label", "networkpolicy", "stored", "-n", "dev", &format!("a={EVIL}")]),
        of(&["staged", "commit", EVIL]),
    ];
    runs.extend(["table", "json", "yaml"].map(|o| of(&["get", "networkpolicies", "--all-namespaces", "-o", o])));
    runs.push(of(&["get", "networkpolicies", EVIL]));
    runs.push(of(&["delete", "networkpolicy", EVIL, "-n", "dev"]));
    runs
}

/// The commands of the program, as its help lists them.
fn commands() -> BTreeSet<String> {
    let help = String::from_utf8(tortie(&words(&["--help"])).stdout).unwrap();
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap().to_owned();
    let name = |line: &str| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
    let first = |line: String| line.split_whitespace().next().unwrap_or_default().to_owned();
    list.lines().filter_map(name).map(first).filter(|name| name != "help").collect()
}

/// Asserts that an output moves no cursor, hides nothing, and has no line of its input.
fn assert_harmless(command: &[String], text: &str) {
    let obeyed = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    assert!(!text.contains(obeyed), "{command:?}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("2026-01-01T00:00:00")), "{command:?}: {text}");
}

#[test]
fn no_printer_passes_on_what_a_terminal_obeys() {
    let (dir, empty) = (hostile_cluster(), TempDir::new().unwrap());
    let place = dir.path().to_str().unwrap();
    let etcd = Etcd::start(EtcdOptions::default()).unwrap();
    for (number, mut object) in objects().into_iter().enumerate() {
        object["metadata"]["uid"] = format!("uid-{number}").into();
        let name = object["metadata"]["name"].as_str().unwrap().replace(EVIL, "stored");
        etcd.put(&format!("/calico/resources/v3/projectcalico.org/networkpolicies/dev/{name}"), &object.to_string())
            .unwrap();
    }
    let runs = [of_directory(place, empty.path().to_str().unwrap()), of_datastore(&etcd.url(), place)].concat();
    let fed = runs.iter().map(|run| run[0].clone());
    let known: BTreeSet<String> = fed.chain(OTHERS.map(|(name, _)| name.to_owned())).collect();
    assert_eq!(known, commands(), "each command is fed here, or listed with the reason");
    for command in &runs {
        let output = tortie(command);
        let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(!stderr.contains("unexpected argument") && !stderr.contains("required"), "{command:?}: {stderr}");
        assert!(!stdout.is_empty() || !stderr.is_empty() || output.status.success(), "{command:?}");
        assert_harmless(command, &stdout);
        assert_harmless(command, &stderr);
    }
}

/// A long text of a user in a message is cut in each form of it.
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

/// Commands that this test cannot feed print through the same place.
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
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !allowed.contains(&path.file_name().unwrap().to_str().unwrap()) {
                let text = fs::read_to_string(&path).unwrap_or_default();
                for direct in ["io::stdout()", "io::stderr()", "std::println!", "std::print!", "std::eprintln!"] {
                    assert!(!text.contains(direct), "{}: {direct}", path.display());
                }
            }
        }
    }
}
