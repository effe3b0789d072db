//! The command line, as its users run it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn tortie(args: &[&str]) -> Output {
    tortie_reading(args, "")
}

fn tortie_reading(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[test]
fn help_teaches_every_command_and_the_exit_codes() {
    let help = stdout(&tortie(&["--help"]));
    for word in ["run", "render", "check", "selector", "trace", "replay", "cleanup", "parameters", "Exit codes:"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
    for command in ["run", "render", "check", "selector", "trace", "status", "config", "show", "replay", "cleanup"] {
        let output = tortie(&[command, "--help"]);
        assert!(output.status.success() && stdout(&output).len() > 200, "{command}: {}", stdout(&output));
    }
}

/// SECURITY.md names no flag, parameter or command that does not exist.
#[test]
#[cfg(all(feature = "etcd", feature = "kubernetes", feature = "fanout", feature = "manual"))]
fn security_promises_name_existing_flags_and_parameters() {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md")).unwrap();
    let (reference, parameters) = (stdout(&tortie(&["reference", "commands"])), stdout(&tortie(&["parameters"])));
    let is_parameter = |name: &str| {
        name.len() > 5
            && name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_alphabetic())
    };
    let mut seen = 0;
    for name in text.split('`').skip(1).step_by(2) {
        let known = match name.split([' ', '=']).next().unwrap() {
            flag if flag.starts_with("--") => reference.contains(&format!(" {flag} ")),
            "tortie" if name != "tortie" => reference.contains(name),
            parameter if is_parameter(parameter) => parameters.contains(&format!("| {parameter} |")),
            _ => continue,
        };
        assert!(known, "{name}");
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}

#[test]
fn version_shows_the_build() {
    let json = tortie(&["version", "-o", "json"]);
    let facts: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    let features: Vec<&str> = facts["features"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(features.contains(&"etcd"), cfg!(feature = "etcd"));
    assert_eq!(features.contains(&"manual"), cfg!(feature = "manual"));
    assert_eq!(facts["target"].as_str().unwrap().split('-').next(), Some(std::env::consts::ARCH));
    assert!(facts["rustc"].as_str().unwrap().starts_with("rustc 1."), "{facts}");
    let text = tortie(&["version"]);
    let first = format!("tortie {}\n  commit    ", env!("CARGO_PKG_VERSION"));
    assert!(stdout(&text).starts_with(&first), "{text:?}");
    assert!(stdout(&text).contains(&format!("\n  target    {}, ", facts["target"].as_str().unwrap())));
}

#[test]
#[cfg(feature = "manual")]
fn completions_and_pages_are_printed() {
    let bash = tortie(&["completions", "bash"]);
    assert!(bash.status.success() && stdout(&bash).contains("complete -F _tortie"), "{bash:?}");
    assert_eq!(tortie(&["completions", "tcsh"]).status.code(), Some(2));
    let page = tortie(&["man", "staged", "commit"]);
    assert!(stdout(&page).contains(".TH tortie-staged-commit 1"), "{page:?}");
    assert_eq!(tortie(&["man", "nothing"]).status.code(), Some(2));
}

#[test]
fn render_prints_the_tables_of_programs() {
    let demo = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");
    let rendered = |more: &[&str]| tortie(&[&["render", "--datastore", demo, "--node", "demo-node"], more].concat());
    let output = rendered(&["--backend", "ebpf"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    insta::assert_snapshot!("render_ebpf_demo", stdout(&output));
    let all = stdout(&output);
    let (tables, _) = all.split_once("# iptables-restore, filter\n").unwrap();

    let programs = stdout(&rendered(&["--backend", "ebpf", "--programs", "--ip-version", "6"]));
    assert!(programs.starts_with(tables), "{programs}");
    let (programs, _) = programs.split_once("# ip6tables-restore, filter\n").unwrap();
    let names: Vec<&str> = programs.lines().filter_map(|line| line.strip_suffix(" instructions")).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(programs.lines().last().is_some_and(|line| line.ends_with(": exit")), "{programs}");

    let output = rendered(&["--programs"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--backend ebpf"), "{}", stderr(&output));
}

#[test]
fn render_prints_tables_of_nftables() {
    let demo = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");
    let rendered = |more: &[&str]| tortie(&[&["render", "--datastore", demo, "--node", "demo-node"], more].concat());
    let output = rendered(&["--backend", "nftables"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    let text = stdout(&output);
    let lines = |of: &str| text.lines().filter(|line| line.starts_with(of)).count();
    assert_eq!((lines("# nft -f, IPv4"), lines("# nft -f, IPv6"), lines("add table ")), (1, 1, 2));
    assert!(lines("add rule ip calico filter-cali-pi-") > 0, "{text}");
    assert!(lines("add rule ip6 calico filter-cali-pi-") > 0, "{text}");
    assert!(!text.contains("-restore"), "{text}");

    let output = rendered(&["--backend", "nftables", "--table", "filter"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--table"), "{}", stderr(&output));
}

#[test]
fn render_uses_the_configured_back_end() {
    let demo = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");
    let config = directory(&[("felix.cfg", "[global]\nBPFEnabled = true\nFailsafeInboundHostPorts = none\n")]);
    let config = config.path().join("felix.cfg");
    let args = ["render", "--datastore", demo, "--node", "demo-node", "--config", config.to_str().unwrap()];
    let by_programs = stdout(&tortie(&args));
    assert!(by_programs.starts_with("# eBPF programs\ninterfaces\n"), "{by_programs}");
    assert!(by_programs.contains("\n  failsafe ports to the host: none\n"), "{by_programs}");
    let by_chains = stdout(&tortie(&[&args[..], &["--backend", "iptables"]].concat()));
    assert!(by_chains.starts_with("# ipset restore, IPv4\n"), "{by_chains}");
    assert!(by_chains.contains(":cali-FORWARD"), "{by_chains}");

    let pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n\
                spec: {cidr: 10.65.0.0/16, natOutgoing: true}\n";
    let cluster = directory(&[("pool.yaml", pool)]);
    let datastore = format!("file:{}", cluster.path().display());
    let config = directory(&[("felix.cfg", "[global]\nBPFEnabled = true\nNFTablesMode = Enabled\n")]);
    let config = config.path().join("felix.cfg");
    let args = ["render", "--datastore", &datastore, "--node", "n1", "--config", config.to_str().unwrap()];
    let beside_programs = stdout(&tortie(&args));
    assert!(beside_programs.starts_with("# eBPF programs\n"), "{beside_programs}");
    assert!(beside_programs.contains("# nft -f, IPv4\n") && beside_programs.contains("counter masquerade"));
    assert!(!beside_programs.contains("IPv6\n") && !beside_programs.contains("-restore"), "{beside_programs}");
}

#[test]
fn selector_answers_with_one_json_object() {
    let output = tortie(&["selector", "a=='b'", "--labels", r#"{"a": "b"}"#]);
    assert!(output.status.success());
    assert_eq!(
        stdout(&output).trim_end(),
        r#"{"canonical":"a == \"b\"","id":"s:flMh0m0X_BowkAK_W3j3MgH8oQOsj3WxGDoXCQ","matches":true}"#
    );
}

#[test]
fn a_selector_that_does_not_parse_is_underlined() {
    let output = tortie(&["selector", "a == 'b' &&"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && stderr(&output).contains("a == 'b' &&"), "{}", stderr(&output));
    assert!(stderr(&output).contains('^'), "{}", stderr(&output));
}

#[test]
fn a_batch_of_selectors_is_answered_line_by_line() {
    let questions =
        "{\"selector\": \"a == 'b'\", \"labels\": [{\"a\": \"b\"}, {}]}\n{\"selector\": \"a ==\"}\nnonsense\n";
    let output = tortie_reading(&["selector", "--batch"], questions);
    assert!(output.status.success(), "{}", stderr(&output));
    let answers: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    let first = r#"{"valid":true,"canonical":"a == \"b\"","id":"s:flMh0m0X_BowkAK_W3j3MgH8oQOsj3WxGDoXCQ","matches":[true,false],"error":null}"#;
    assert_eq!(answers[0], first);
    let refused = r#"{"valid":false,"canonical":null,"id":null,"matches":[],"error":"#;
    assert!(answers.len() == 3 && answers[1..].iter().all(|answer| answer.starts_with(refused)), "{answers:?}");
}

#[test]
fn check_names_file_line_column_kind_and_field() {
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: web\n  namespace: shop\nspec:\n  \
                  podSelector: {}\n  ingress:\n    - ports: [{port: 99999}]\n";
    let dir = directory(&[("web.yaml", policy)]);
    let output = tortie(&["check", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let place = format!(
        "{}:9:22: NetworkPolicy/shop/web: spec.ingress[0].ports[0].port: ",
        dir.path().join("web.yaml").display()
    );
    assert!(stderr(&output).starts_with(&place), "{}", stderr(&output));
    assert!(stdout(&output).is_empty());
}

#[test]
fn check_names_claims_unless_each_claim_counts() {
    let pod = |namespace: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, namespace: {namespace}}}\nspec: {{nodeName: n1, containers: \
             [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.50}}]}}\n---\n"
        )
    };
    let pods = pod("dev") + &pod("prod");
    let felix = |claims: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: default}}\nspec: {{addressClaims: \
             {claims}}}\n"
        )
    };
    let check = |claims: &str| {
        let dir = directory(&[("pods.yaml", &pods), ("felix.yaml", &felix(claims))]);
        let output = tortie(&["check", dir.path().to_str().unwrap()]);
        stdout(&output) + &stderr(&output)
    };
    let bounded = check("Bounded");
    assert_eq!(bounded.matches("address 10.0.0.50 is also claimed by").count(), 2, "{bounded}");
    let any = check("Any");
    assert!(!any.contains("10.0.0.50"), "{any}");
}

#[test]
fn check_takes_a_dumped_cluster_of_calico() {
    let dump = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/calico-vxlan");
    let output = tortie(&["check", dump.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    // Only programs that assign addresses use affinities.
    let printed = stderr(&output);
    let problems: Vec<_> = printed.lines().filter(|line| line.starts_with(dump.to_str().unwrap())).collect();
    assert!(problems.iter().all(|line| line.contains("BlockAffinity")), "{problems:?}");
}

#[test]
fn replay_prints_messages_and_survives_a_closed_pipe() {
    let recording = concat!(
        r#"{"key": "/calico/v1/host/n1/workload/k8s/ns%2fpod/endpoint/eth0", "value": {"state": "active", "name": "cali1", "#,
        r#""profile_ids": ["p"], "ipv4_nets": ["10.0.0.1/32"], "ipv6_nets": [], "labels": {"a": "b"}}}"#,
        "\n{\"status\": \"in-sync\"}\n{\"flush\": true}\n"
    );
    let output = tortie_reading(&["replay", "-", "--node", "n1"], recording);
    assert!(output.status.success(), "{}", stderr(&output));
    let kinds: Vec<String> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|m| m.as_object().unwrap().keys().find(|key| *key != "sequence_number").cloned().unwrap_or_default())
        .collect();
    let position = |kind: &str| kinds.iter().position(|k| k == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    assert!(position("active_profile_update") < position("workload_endpoint_update"));
    assert_eq!(kinds.last().map(String::as_str), Some("in_sync"));
}

#[test]
fn replay_reports_values_that_do_not_count_and_passes_over_unknown_keys() {
    let endpoint = |field: &str| {
        format!("{{\"key\": \"/calico/v1/host/n1/workload/k8s/ns%2fpod/endpoint/eth0\", \"value\": {{{field}}}}}\n")
    };
    let recording = [
        "{\"status\": \"wait-for-datastore\"}\n{\"status\": \"resync\"}\n".to_owned(),
        "{\"key\": \"/calico/v1/of/another/time\", \"value\": {\"a\": 1}}\n".to_owned(),
        endpoint("\"state\": 3"),
        endpoint("\"state\": \"active\", \"name\": \"\""),
        "{\"status\": \"in-sync\"}\n".to_owned(),
    ]
    .concat();
    let output = tortie_reading(&["replay", "-", "--node", "n1"], &recording);
    assert!(output.status.success(), "{}", stderr(&output));
    let path = "/calico/v1/host/n1/workload/k8s/ns%2fpod/endpoint/eth0";
    let printed: Vec<_> = stderr(&output).lines().map(str::to_owned).collect();
    assert_eq!(printed.len(), 2, "{printed:?}");
    assert!(printed[0].starts_with(&format!("line 4: {path}: state: ")), "{printed:?}");
    assert_eq!(
        printed[1],
        format!("line 5: {path}: name: a workload endpoint needs an interface; treated as a deletion")
    );
    assert!(stdout(&output).contains("in_sync") && !stdout(&output).contains("workload_endpoint"));

    let output = tortie_reading(&["replay", "-", "--node", "n1"], "{\"status\": \"tired\"}\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("line 1 of the recording: column "), "{}", stderr(&output));
    assert!(stderr(&output).contains(", status: unknown variant `tired`"), "{}", stderr(&output));
}

#[test]
fn render_prints_the_restore_input_of_the_node() {
    let cluster = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Pod\nmetadata: \
                   {name: web, namespace: shop}\nspec: {nodeName: n1, containers: [{name: c, image: i}]}\nstatus: {phase: \
                   Running, podIPs: [{ip: 10.0.0.1}]}\n";
    let dir = directory(&[("c.yaml", cluster)]);
    let url = format!("file:{}", dir.path().display());
    let filter = |node: &str| {
        let output = tortie(&["render", "--datastore", &url, "--node", node, "--ip-version", "4", "--table", "filter"]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let ours = filter("n1");
    assert!(ours.starts_with("*filter\n") && ours.ends_with("COMMIT\n"), "{ours}");
    assert!(ours.contains(":cali-tw-cali") && ours.contains("-A cali-from-wl-dispatch"), "{ours}");
    assert!(!filter("n2").contains("cali-tw-cali"));
    let sets = tortie(&["render", "--datastore", &url, "--node", "n1", "--ip-version", "6", "--ipsets"]);
    assert!(stdout(&sets).contains("create cali60this-host"), "{}", stdout(&sets));
}

#[test]
fn the_prefix_of_interfaces_names_them_in_render_as_in_run() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {nodeName: n1, containers: \
               [{name: c, image: i}]}\nstatus: {phase: Running, podIPs: [{ip: 10.0.0.1}]}\n";
    let dir = directory(&[("c.yaml", pod), ("felix.cfg", "[global]\nInterfacePrefix = tap\nColour = blue\n")]);
    let url = format!("file:{}", dir.path().display());
    let file = dir.path().join("felix.cfg");
    let output = tortie(&["render", "--datastore", &url, "--node", "n1", "--config", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("--in-interface tap+ ") && text.contains("-A cali-fw-tap"), "{text}");
    assert!(!text.contains("--in-interface cali"), "{text}");
    assert_eq!(stderr(&output), "config file: Colour: there is no such parameter; ignored\n");
}

#[test]
fn wrong_usage_exits_with_2_and_a_hint() {
    let output = tortie(&["run", "--datastore", "zookeeper://localhost:2181", "--node", "n1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("file:DIR"), "{}", stderr(&output));
    assert_eq!(tortie(&["frobnicate"]).status.code(), Some(2));
}

#[test]
fn a_vital_parameter_that_is_wrong_ends_the_start() {
    let dir = directory(&[]);
    let url = format!("file:{}", dir.path().display());
    let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["render", "--datastore", &url, "--node", "n1"])
        .env("FELIX_CHAININSERTMODE", "prepend")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("ChainInsertMode"), "{}", stderr(&output));
}

#[test]
fn without_a_thread_for_file_events_a_directory_is_read_all_the_same() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    // The limit does not apply to root, and counts all processes of a user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let user = 40_000 + std::process::id() % 20_000;
    let pod = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
    let manifests = directory(&[("a.yaml", pod)]);
    fs::set_permissions(manifests.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // One thread is for the program, one for the source.
    for (threads, code) in [(2, 0), (1, 1)] {
        let limit = format!("ulimit -u {threads}; exec \"$@\"");
        let url = format!("file:{}", manifests.path().display());
        let output = Command::new("bash")
            .args([
                "-c",
                &limit,
                "limited",
                env!("CARGO_BIN_EXE_tortie"),
                "render",
                "--node",
                "n1",
                "--datastore",
                &url,
            ])
            .uid(user)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{threads} threads: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}

#[test]
fn pods_are_picked_by_inherited_labels_and_own_labels_win() {
    let pod = |name: &str, labels: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {labels}}}\n\
             spec: {{nodeName: n1, containers: [{{name: c, image: i}}]}}\n\
             status: {{phase: Running, podIPs: [{{ip: 10.0.0.{}}}]}}\n",
            name.len()
        )
    };
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {env: prod}}\n";
    let dir = directory(&[
        ("namespace.yaml", namespace),
        ("web.yaml", &pod("web", "{app: web}")),
        ("forged.yaml", &pod("test", "{app: test, pcns.env: test}")),
        ("db.yaml", &pod("db", "{app: db}")),
        (
            "profile.yaml",
            "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: p}\nspec: {labelsToApply: {own: 'no'}}\n",
        ),
        (
            "endpoint.yaml",
            "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n\
             metadata: {name: n1-k8s-own-eth0, namespace: shop, labels: {own: 'yes'}}\n\
             spec: {orchestrator: k8s, node: n1, pod: own, endpoint: eth0, interfaceName: cali0own, profiles: [p], \
             ipNetworks: [10.65.0.2/32]}\n",
        ),
    ]);
    let datastore = format!("file:{}", dir.path().display());
    let show = |selector: &str| {
        let output = tortie(&["show", "pods", selector, "--datastore", &datastore, "--output", "json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let pods = answer["pods"].as_array().unwrap().iter();
        pods.map(|pod| pod["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(show("pcns.env == 'prod'"), ["shop/db", "shop/test", "shop/web"]);
    assert_eq!(show("pcns.env == 'prod' && app == 'web'"), ["shop/web"]);
    assert_eq!(show("own == 'yes'"), ["shop/own"]);
    assert!(show("own == 'no'").is_empty());
    assert!(show("!all()").is_empty());
    assert_eq!(tortie(&["show", "pods", "app ==", "--datastore", &datastore]).status.code(), Some(2));
}

#[test]
fn node_diags_writes_a_private_archive_once() {
    let dir = directory(&[("agent.log", "started with --etcd-password pa55\n")]);
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (archive, log, socket) = (file("a.tar.gz"), file("agent.log"), file("no.sock"));
    let args = ["node", "diags", "--output", &archive, "--log-file", &log, "--socket", &socket];
    let output = tortie(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let contents = |file: &str| {
        let tar = Command::new("tar").args(["-xzOf", &archive, "--wildcards", &format!("*/{file}")]).output().unwrap();
        stdout(&tar)
    };
    assert!(contents("version").contains(env!("CARGO_PKG_VERSION")));
    assert!(contents("mounts").contains(" / "));
    assert_eq!(contents("log"), "started with --etcd-password <redacted>\n");
    assert!(contents("status.json").contains("no.sock"), "the reason why the agent does not answer");
    assert!(contents("missing").contains("status.json: exit status: 1\n"), "{}", contents("missing"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the archive and the log");
    let again = tortie(&args);
    assert!(!again.status.success() && stderr(&again).contains("File exists"), "{}", stderr(&again));
}
