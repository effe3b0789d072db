//! `tortie apply`, `get` and `delete` against a real etcd.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tortie_lab::etcd::{Etcd, EtcdOptions};
use tortie_model::WorkloadEndpointId;
use tortie_resources::stored::{ResourceKey, ResourceKind, to_stored};
use tortie_resources::to_v3::{self, Conversion};

#[path = "etcd/commands.rs"]
mod commands;
#[path = "support/secrets.rs"]
mod secrets;

/// Writes the node of the agents into the datastore.
fn name_node(etcd: &Etcd) {
    let node = r#"{"apiVersion":"projectcalico.org/v3","kind":"Node","metadata":{"name":"n"},"spec":{}}"#;
    etcd.put("/calico/resources/v3/projectcalico.org/nodes/n", node).unwrap();
}

struct World {
    etcd: Etcd,
    folder: TempDir,
    options: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl World {
    fn new(options: EtcdOptions) -> Self {
        let etcd = Etcd::start(options).unwrap();
        let mut options = vec!["--datastore".to_owned(), etcd.url()];
        if let Some(certificates) = etcd.certificates() {
            let files = [
                ("--etcd-ca-file", &certificates.ca),
                ("--etcd-cert-file", &certificates.client),
                ("--etcd-key-file", &certificates.client_key),
            ];
            options.extend(files.into_iter().flat_map(|(flag, file)| [flag.into(), file.display().to_string()]));
        }
        Self { etcd, folder: TempDir::new().unwrap(), options, environment: Vec::new() }
    }

    fn tortie_reading(&self, args: &[&str], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(args)
            .args(&self.options)
            .envs(self.environment.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn tortie(&self, args: &[&str]) -> Output {
        self.tortie_reading(args, "")
    }

    /// Writes a file, and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Returns a path in the folder.
    fn file_path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes a driver that runs in the folder, and returns its URL for `--dataplane`.
    fn script(&self, script: &str) -> String {
        let path = self.file("driver", &format!("#!/bin/sh\ncd {}\n{script}\n", self.folder.path().display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        format!("exec:{path}")
    }

    /// Returns the value of a path, as JSON.
    fn kept(&self, path: &str) -> Value {
        let text = self.etcd.get(&format!("/calico/resources/v3/projectcalico.org/{path}")).unwrap();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the output of a command that succeeds without a message.
fn good(output: &Output) -> &str {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    text(&output.stdout)
}

/// Returns the messages of a command that fails.
fn bad(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

const POLICIES: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  tier: platform
  order: 10
  selector: app == 'web'
  egress: [{action: Allow}]
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: platform}
spec: {order: 5}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: rack}
spec: {peerIP: 10.0.0.1, asNumber: 64512, keepOriginalNextHop: true}
";

#[test]
fn resources_are_written_shown_and_deleted() {
    let world = World::new(EtcdOptions::default());
    let file = world.file("policies.yaml", POLICIES);
    let created = "Tier/platform created\nNetworkPolicy/shop/web created\nBGPPeer/rack created\n";
    assert_eq!(good(&world.tortie(&["apply", "-f", &file])), created);
    assert_eq!(good(&world.tortie(&["apply", "-f", &file])), created.replace("created", "unchanged"));

    // The stored form that Calico's programs read.
    let policy = world.kept("networkpolicies/shop/web");
    assert_eq!(policy["spec"]["types"], serde_json::json!(["Egress"]));
    assert_eq!(policy["metadata"]["labels"]["projectcalico.org/tier"], "platform");
    assert_eq!(policy["metadata"]["annotations"]["projectcalico.org/metadata"], "{\"name\":\"web\"}");
    assert!(policy["metadata"]["uid"].is_string() && policy["metadata"]["creationTimestamp"].is_string());
    assert_eq!(world.kept("clusterinformations/default")["spec"]["datastoreReady"], true);
    assert_eq!(world.kept("tiers/kube-baseline")["spec"]["defaultAction"], "Pass");

    assert_eq!(
        good(&world.tortie(&["get", "np", "-A"])),
        "NAMESPACE   NAME   TIER       ORDER   SELECTOR\nshop        web    platform   10      app == 'web'\n"
    );
    let elsewhere = world.tortie(&["get", "policies"]);
    assert!(elsewhere.status.success() && elsewhere.stdout.is_empty(), "{elsewhere:?}");
    assert_eq!(
        text(&elsewhere.stderr),
        "tortie: there is no NetworkPolicy in namespace default; -A shows those of all namespaces\n"
    );
    assert_eq!(
        good(&world.tortie(&["get", "tiers"])).lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["NAME", "ORDER", "DEFAULTACTION"]
    );

    // The output of `get` can be applied again, from any namespace.
    for output in ["yaml", "json"] {
        for args in
            [&["get", "networkpolicy", "web", "-n", "shop", "-o", output][..], &["get", "bgppeers", "-o", output]]
        {
            let shown = world.tortie(args);
            let again = world.tortie_reading(&["apply", "-f", "-"], good(&shown));
            assert!(good(&again).ends_with(" unchanged\n"), "{again:?}");
        }
    }

    assert!(bad(&world.tortie(&["delete", "tier", "platform"])).contains("is not empty: NetworkPolicy/shop/web"));
    assert!(bad(&world.tortie(&["delete", "tier", "default"])).contains("cannot be deleted"));
    assert_eq!(
        good(&world.tortie(&["delete", "networkpolicy", "web", "-n", "shop"])),
        "NetworkPolicy/shop/web deleted\n"
    );
    let missing = world.tortie(&["delete", "-f", &file]);
    assert!(bad(&missing).contains("NetworkPolicy/shop/web does not exist"));
    assert!(bad(&missing).ends_with("tortie: nothing has been changed\n") && missing.stdout.is_empty(), "{missing:?}");
    assert_eq!(
        good(&world.tortie(&["delete", "-f", &file, "--skip-not-exists"])),
        "BGPPeer/rack deleted\nTier/platform deleted\n"
    );
    assert_eq!(world.kept("tiers/platform"), Value::Null);
    assert!(bad(&world.tortie(&["get", "tier", "platform"])).contains("Tier/platform does not exist"));
}

#[test]
fn answers_name_the_version_of_the_policy_that_decides() {
    let world = World::new(EtcdOptions::default());
    let input = "
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n-k8s-web-eth0, namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: 'n', pod: web, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.2/32]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {selector: app == 'web', ingress: [{action: Deny}]}
";
    good(&world.tortie_reading(&["apply", "-f", "-"], input));
    let shown = world.tortie(&["get", "networkpolicy", "web", "-n", "shop", "-o", "json"]);
    let shown: Value = serde_json::from_str(good(&shown)).unwrap();
    let version = shown["metadata"]["resourceVersion"].as_str().unwrap();
    let question = ["trace", "--from", "192.0.2.1", "--to", "shop/web", "--port", "80"];
    let answer = world.tortie(&question);
    assert_eq!(answer.status.code(), Some(3), "{answer:?}");
    let printed = text(&answer.stdout);
    assert!(printed.ends_with(&format!(", ingress rule 0: resourceVersion {version}\n")), "{printed}");
    let answer = world.tortie(&[&question[..], &["-o", "json"]].concat());
    let whole: Value = serde_json::from_str(text(&answer.stdout)).unwrap();
    assert_eq!(whole["position"], format!("resourceVersion {version}"));
}

#[test]
fn staged_policies_of_kubernetes_are_kept_shown_and_put_in_force() {
    let world = World::new(EtcdOptions::default());
    let pod = |name: &str, address: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\nmetadata: {{name: n-k8s-{name}-eth0, namespace: shop, \
             labels: {{app: {name}}}}}\nspec: {{orchestrator: k8s, node: 'n', pod: {name}, endpoint: eth0, interfaceName: \
             cali0{name}, ipNetworks: [{address}/32], profiles: [open]}}\n---\n"
        )
    };
    let profile = "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: open}\nspec: {ingress: [{action: Allow}], \
                   egress: [{action: Allow}]}\n---\n";
    let staged = |rule: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: StagedKubernetesNetworkPolicy\nmetadata: {{name: db, namespace: \
             shop}}\nspec: {{stagedAction: Set, podSelector: {{matchLabels: {{app: db}}}}, ingress: [{rule}]}}\n---\n"
        )
    };
    let from_web = staged("{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}");
    let all = pod("web", "10.65.0.2") + &pod("db", "10.65.0.3") + &pod("other", "10.65.0.4") + profile + &from_web;
    good(&world.tortie_reading(&["apply", "-f", "-"], &all));
    let shown = world.tortie(&["get", "sknp", "db", "-n", "shop", "-o", "yaml"]);
    assert!(good(&world.tortie_reading(&["apply", "-f", "-"], good(&shown))).ends_with(" unchanged\n"));

    let ask = |from: &str| world.tortie(&["trace", "--from", from, "--to", "shop/db", "--port", "80"]);
    assert_eq!(ask("shop/other").status.code(), Some(0), "it is only staged");
    let printed = good(&ask("shop/other")).to_owned();
    let pending = "with all staged policies in force: denied at shop/db on n, ingress, by the end of tier default";
    assert!(printed.contains(pending), "{printed}");
    assert!(!good(&ask("shop/web")).contains("with all staged policies"));

    let commit = ["staged", "commit", "StagedKubernetesNetworkPolicy/shop/db"];
    let committed = world.tortie(&commit);
    let done = "NetworkPolicy/shop/knp.default.db created\nStagedKubernetesNetworkPolicy/shop/db deleted\n";
    assert_eq!((committed.status.success(), text(&committed.stdout)), (true, done), "{committed:?}");
    assert!(text(&committed.stderr).contains("apply the policy in Kubernetes, too"), "{committed:?}");
    assert_eq!((ask("shop/other").status.code(), ask("shop/web").status.code()), (Some(3), Some(0)));
    // It equals the policy that the controller makes of the same Kubernetes policy.
    let spec = serde_json::json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 80}]}]});
    let policy = serde_json::json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"}, "spec": spec});
    let Conversion::Resource(mut expected) = to_v3::network_policy(&policy).outcome else { panic!() };
    let key = ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "knp.default.db").unwrap();
    to_stored(&key, &mut expected).unwrap();
    let kept = world.kept("networkpolicies/shop/knp.default.db");
    assert_eq!(kept["spec"], expected["spec"]);

    // A staged policy with errors is not put in force in part; one with the action Delete deletes
    // the enforced policy.
    good(&world.tortie_reading(&["apply", "-f", "-"], &staged("{ports: [{port: 80}]}").replace("Set", "Delete")));
    let committed = world.tortie(&commit);
    assert!(text(&committed.stdout).starts_with("NetworkPolicy/shop/knp.default.db deleted\n"), "{committed:?}");
    assert_eq!(world.kept("networkpolicies/shop/knp.default.db"), Value::Null);
    world.etcd.put(
        "/calico/resources/v3/projectcalico.org/stagedkubernetesnetworkpolicies/shop/db",
        r#"{"kind":"StagedKubernetesNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"db","namespace":"shop"},
            "spec":{"stagedAction":"Set","podSelector":{},"ingress":[{"ports":[{"port":"no port!"}]}]}}"#,
    ).unwrap();
    let refused = world.tortie(&commit);
    assert!(bad(&refused).contains("StagedKubernetesNetworkPolicy/shop/db: "), "{refused:?}");
    assert_eq!(world.kept("networkpolicies/shop/knp.default.db"), Value::Null);
}

#[test]
fn policies_that_the_controller_has_written_are_those_of_manifests() {
    let world = World::new(EtcdOptions { tls: true, ..EtcdOptions::default() });
    let policy = serde_json::json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}, {"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.1.0/24"]}}]},
                {"ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"port": "metrics"}]},
                {"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {}}], "ports": [{"protocol": "UDP"}]},
            ],
            "egress": [{}],
            "policyTypes": ["Ingress", "Egress"],
        },
    });
    let Conversion::Resource(written) = to_v3::network_policy(&policy).outcome else { panic!("it is sound") };
    assert_eq!(written["metadata"]["name"], "knp.default.db");
    let path = "/calico/resources/v3/projectcalico.org/networkpolicies/shop/knp.default.db";
    world.etcd.put(path, &written.to_string()).unwrap();
    let file = world.file("policy.json", &policy.to_string());
    assert_eq!(good(&world.tortie(&["plan", "-f", &file])), "nothing changes\n");
    let deleted = world.tortie(&["plan", "--delete", "-f", &file]);
    assert_eq!(deleted.status.code(), Some(2), "{deleted:?}");
    assert!(
        text(&deleted.stdout).starts_with("objects\n  - policy NetworkPolicy/shop/knp.default.db\n"),
        "{deleted:?}"
    );

    // The certificates are for both clusters. Besides the policy, etcd has objects that the
    // directory has not.
    let (url, flags) = (&world.options[1], &world.options[2..]);
    let diff = |places: [&str; 2], flags: &[String]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tortie"));
        program.arg("diff").args(places).args(["--timeout", "1"]).args(flags).env_clear();
        program.stdin(Stdio::null()).output().unwrap()
    };
    let other = world.file("other.json", &policy.to_string().replace("endPort\":90", "endPort\":91"));
    for places in [[&**url, &*file], [&*file, &**url], [&*other, &**url]] {
        let output = diff(places, flags);
        let text = text(&output.stdout);
        assert_eq!(text.contains("policy"), places[0] == other, "{places:?}: {output:?}");
        assert!(!text.contains("- policy") && !text.contains("+ policy"), "{output:?}");
        assert!(output.status.code() != Some(1), "{output:?}");
    }
    assert_eq!(diff([url, &file], &[]).status.code(), Some(1));
}

#[test]
fn conflicts_are_reported() {
    let world = World::new(EtcdOptions::default());
    let set = |net: &str| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {{name: a}}, spec: {{nets: [{net}]}}}}"
        )
    };
    good(&world.tortie(&["apply", "-f", &world.file("set.yaml", &set("10.0.0.0/8"))]));
    let old = world.file("old.yaml", good(&world.tortie(&["get", "gnetsets", "a", "-o", "yaml"])));
    assert_eq!(
        good(&world.tortie(&["apply", "-f", &world.file("set.yaml", &set("10.0.0.0/16"))])),
        "GlobalNetworkSet/a updated\n"
    );
    for command in ["apply", "delete"] {
        let output = world.tortie(&[command, "-f", &old]);
        let complaint = bad(&output);
        assert!(complaint.contains("old.yaml:1:1: GlobalNetworkSet/a has been changed meanwhile"), "{complaint}");
    }
    assert_eq!(world.kept("globalnetworksets/a")["spec"]["nets"], serde_json::json!(["10.0.0.0/16"]));
}

#[test]
fn mistakes_are_found_before_anything_is_written() {
    let world = World::new(EtcdOptions::default());
    let wrong = format!(
        "{POLICIES}---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: x}}\nspec: {{selektor: all()}}\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p}}}}\n"
    );
    let output = world.tortie(&["apply", "-f", &world.file("wrong.yaml", &wrong)]);
    let complaint = bad(&output);
    assert!(
        complaint.contains("wrong.yaml:24:8: GlobalNetworkPolicy/x: spec.selektor: is not a known field"),
        "{complaint}"
    );
    assert!(complaint.contains("kind: Pod of v1 is not kept in this datastore"), "{complaint}");
    assert!(complaint.ends_with("tortie: nothing has been changed\n"), "{complaint}");
    assert_eq!(world.kept("tiers/default"), Value::Null);

    let elsewhere = POLICIES.replace("tier: platform", "tier: nowhere");
    let output = world.tortie(&["apply", "-f", &world.file("elsewhere.yaml", &elsewhere)]);
    let complaint = bad(&output);
    assert!(
        complaint.contains("elsewhere.yaml:2:1: NetworkPolicy/shop/web: spec.tier: there is no tier `nowhere`"),
        "{complaint}"
    );
    assert!(complaint.ends_with("tortie: nothing has been changed\n"), "{complaint}");
    assert_eq!((text(&output.stdout), world.kept("tiers/default")), ("", Value::Null));
    assert!(bad(&world.tortie(&["apply", "-f", &world.file("empty.yaml", "")])).contains("no resources"));
    assert_eq!(world.tortie(&["get", "pods"]).status.code(), Some(2));
}

#[test]
fn values_that_no_agent_can_use_and_that_calicoctl_refuses_are_not_written() {
    let world = World::new(EtcdOptions::default());
    let object = |(kind, spec): (&str, &str)| {
        format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: default}}\nspec: {{{spec}}}\n---\n")
    };
    for (kind, spec, field) in [
        ("FelixConfiguration", "chainInsertMode: sideways", "spec.chainInsertMode: "),
        ("FelixConfiguration", "interfacePrefix: a/b", "spec.interfacePrefix: "),
        ("FelixConfiguration", "bpfDataIfacePattern: (eth", "spec.bpfDataIfacePattern: "),
        ("FelixConfiguration", "colour: blue", "spec.colour: is not a known field"),
        ("IPPool", "cidr: 10.0.0.0/28", "spec: `blockSize` is required"),
        ("BGPPeer", "peerIP: 10.0.0.1, peerSelector: all()", "spec: `peerIP` and `peerSelector`"),
        ("IPReservation", "reservedCIDRs: [all]", "spec.reservedCIDRs[0]: "),
    ] {
        for command in ["apply", "create"] {
            let output = world.tortie_reading(&[command, "-f", "-"], &object((kind, spec)));
            let complaint = bad(&output);
            assert!(complaint.contains(&format!("{kind}/default: {field}")), "{complaint}");
            assert!(!complaint.contains("(warning)"), "{complaint}");
        }
    }
    let valid = [
        ("FelixConfiguration", "chainInsertMode: Append, logSeverityScreen: Info, bpfLogLevel: debug"),
        ("IPPool", "cidr: 10.0.0.0/28, blockSize: 28"),
        ("BGPPeer", "peerIP: 10.0.0.1, asNumber: 64512"),
        ("IPReservation", "reservedCIDRs: [10.0.0.1]"),
    ];
    good(&world.tortie_reading(&["apply", "-f", "-"], &valid.map(object).concat()));
}

#[test]
fn passwords_and_certificates_are_used_and_not_shown() {
    let mut world = World::new(EtcdOptions { tls: true, ..EtcdOptions::default() });
    name_node(&world.etcd);
    world.etcd.enable_users("felix", "s3cret").unwrap();
    world.environment = vec![("ETCD_USERNAME", "felix".into()), ("ETCD_PASSWORD", "s3cret".into())];
    let file = world.file("policies.yaml", POLICIES);
    assert!(good(&world.tortie(&["apply", "-f", &file])).contains("Tier/platform created"));
    let help = world.tortie(&["get", "--help"]);
    assert!(!text(&help.stdout).contains("s3cret"));
    world.environment[1].1 = "wr0ng".into();
    let output = world.tortie(&["get", "tiers"]);
    let complaint = bad(&output);
    assert!(complaint.contains("authentication failed") && !complaint.contains("wr0ng"), "{complaint}");
    world.environment.pop();
    let password = world.file("password", "s3cret\n");
    good(&world.tortie(&["get", "tiers", "--etcd-password-file", &password]));

    // The agent at its most verbose, with a driver that accepts everything and does nothing.
    let (driver, out) = (world.script("cat <&3 >OUT"), world.folder.path().join("OUT"));
    let log = world.folder.path().join("log");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .env("TORTIE_SOCKET", "")
        .args(["run", "--node", "n", "--dataplane", &driver, "--etcd-password-file", &password, "--state-dir"])
        .arg(world.folder.path().join("state"))
        .args(&world.options)
        .env("FELIX_LOGSEVERITYSCREEN", "Trace")
        .env("FELIX_ENDPOINTSTATUSPATHPREFIX", world.folder.path())
        .env("ETCD_USERNAME", "felix")
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !fs::metadata(&out).is_ok_and(|out| out.len() > 0) {
        assert!(Instant::now() < until, "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&agent), Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success());
    let log = fs::read_to_string(&log).unwrap();
    secrets::is_hidden(&["s3cret"], &log);
    secrets::key_is_hidden(&world.etcd.certificates().unwrap().client_key, &log);

    world.etcd.kill(0);
    let output = world.tortie(&["get", "tiers", "--etcd-password-file", &password]);
    assert!(bad(&output).contains("the datastore is not available"), "{output:?}");
}

/// Waits until the value of a path is as wanted.
fn eventually(etcd: &Etcd, path: &str, wanted: impl Fn(&str) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let text = etcd.get(path).unwrap();
        if wanted(&text) {
            return;
        }
        assert!(Instant::now() < until, "{path}: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn workload_status(name: &str) -> String {
    format!("/calico/felix/v2/no-region/host/n/workload/k8s/shop%2f{name}/endpoint/eth0")
}

fn process_status(name: &str) -> String {
    format!("/calico/felix/v2/no-region/host/n/{name}")
}

fn workload(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("shop/{name}").as_str().into(),
        endpoint: "eth0".into(),
    }
}

#[test]
fn status_is_written_where_others_look_for_it() {
    use tortie_dataplane::{EndpointStatus, StatusChange};
    use tortie_model::Hostname;
    use tortie_node::status::{StatusSettings, StatusUpdate, StatusWriter};

    let etcd = Etcd::start(EtcdOptions::default()).unwrap();
    etcd.put(&workload_status("gone"), r#"{"status":"up"}"#).unwrap();

    let settings = StatusSettings {
        host: Hostname::new("n"),
        region: String::new(),
        process_every: None,
        process_ttl: Duration::from_secs(90),
        endpoint_delay: Some(Duration::from_millis(10)),
    };
    let writer = StatusWriter::start(&etcd.url().parse().unwrap()).unwrap();
    writer.send(StatusUpdate::Begin(settings.clone()));
    writer.send(StatusUpdate::Changes(vec![StatusChange::Workload(workload("web"), Some(EndpointStatus::Up))]));
    eventually(&etcd, &workload_status("web"), |text| text == r#"{"status":"up"}"#);
    writer.send(StatusUpdate::InForce);
    eventually(&etcd, &workload_status("gone"), str::is_empty);
    writer.send(StatusUpdate::Changes(vec![StatusChange::Workload(workload("web"), None)]));
    eventually(&etcd, &workload_status("web"), str::is_empty);

    // Process reports that were disabled before begin at once.
    writer.send(StatusUpdate::Begin(StatusSettings { process_every: Some(Duration::from_secs(30)), ..settings }));
    for name in ["status", "last_reported_status"] {
        eventually(&etcd, &process_status(name), |text| {
            serde_json::from_str(text)
                .is_ok_and(|report: Value| report["first_update"] == true && report["time"].is_string())
        });
    }
}

#[test]
fn driver_reports_are_written_like_own_observations() {
    use tortie_model::HostEndpointName;
    use tortie_protocol::{Report, frame::write_frame};

    let world = World::new(EtcdOptions::default());
    let (etcd, folder) = (&world.etcd, &world.folder);
    let up = r#"{"status":"up"}"#;
    etcd.put(&workload_status("gone"), up).unwrap();
    name_node(etcd);
    let status = |name, word: &str| Report::Workload { id: workload(name), status: Some(word.into()), endpoint: None };
    let sign = |time: &str, uptime| Report::Process { timestamp: time.into(), uptime };
    let before = [
        status("web", "up"),
        status("odd", "blue"),
        Report::Host(HostEndpointName::new("eth0"), Some("error".into())),
        sign("2020-02-02T02:02:02Z", 1.5),
    ];
    let gone = Report::Workload { id: workload("web"), status: None, endpoint: None };
    let after = [gone, status("db", "down"), sign("2020-02-02T02:02:12Z", 11.5), Report::InSync];
    for (name, reports) in [("before", &before), ("after", &after)] {
        let mut bytes = Vec::new();
        reports.iter().for_each(|report| write_frame(&mut bytes, &report.clone().encode(0)).unwrap());
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let driver =
        world.script("cat before >&4\nuntil [ -e go ]; do sleep 0.02; done\ncat after >&4\nexec cat <&3 >/dev/null");

    let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .env("TORTIE_SOCKET", "")
        .args(["run", "--node", "n", "--dataplane", &driver, "--state-dir"])
        .arg(world.folder.path().join("state"))
        .args(&world.options)
        .env("FELIX_ENDPOINTSTATUSPATHPREFIX", folder.path())
        .envs([("FELIX_ENDPOINTREPORTINGENABLED", "true"), ("FELIX_ENDPOINTREPORTINGDELAYSECS", "0.01")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually(etcd, &workload_status("web"), |text| text == up);
    eventually(etcd, "/calico/felix/v1/host/n/endpoint/eth0", |text| text == r#"{"status":"error"}"#);
    let process = |time: &str, uptime: f64, first: bool| {
        let report = serde_json::json!({"time": time, "uptime": uptime, "first_update": first});
        for name in ["status", "last_reported_status"] {
            eventually(etcd, &process_status(name), |text| serde_json::from_str(text).ok().as_ref() == Some(&report));
        }
    };
    process("2020-02-02T02:02:02Z", 1.5, true);
    // Until the driver is in sync, it may not have reported every endpoint.
    assert_eq!(etcd.get(&workload_status("gone")).unwrap(), up);

    fs::write(folder.path().join("go"), "").unwrap();
    eventually(etcd, &workload_status("gone"), str::is_empty);
    eventually(etcd, &workload_status("web"), str::is_empty);
    eventually(etcd, &workload_status("db"), |text| text == r#"{"status":"down"}"#);
    process("2020-02-02T02:02:12Z", 11.5, false);
    assert_eq!(etcd.get(&workload_status("odd")).unwrap(), "", "no reader would understand it");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}
