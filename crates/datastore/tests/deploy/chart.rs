//! The Helm chart of `deploy/helm`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::{assert_understood, deploy, documents, documents_of};

/// Returns a program that is installed, or was installed by `cargo xtask prepare`.
fn tool(name: &str) -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let path = std::env::var("PATH").unwrap();
    let mut folders = path.split(':').map(Path::new).chain([own.as_path()]);
    let file = folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()));
    Command::new(file.unwrap_or_else(|| panic!("{name} is not installed; `cargo xtask prepare` does it")))
}

fn helm(values: &[&str]) -> Output {
    let mut command = tool("helm");
    command.args(["template", "tortie"]).arg(deploy().join("helm/tortie")).args(["--namespace", "kube-system"]);
    for value in values {
        // Numbers in JSON are read as those of a file of values are.
        command.args([if value.ends_with('}') && value.contains("={\"") { "--set-json" } else { "--set" }, value]);
    }
    command.output().unwrap()
}

/// Returns the objects that the chart renders with these values.
fn chart(values: &[&str]) -> Vec<Value> {
    let output = helm(values);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values:?}: {error}");
    documents_of(std::str::from_utf8(&output.stdout).unwrap(), &format!("{values:?}"))
}

fn kustomized(overlay: &str) -> Vec<Value> {
    let output = tool("kubectl").arg("kustomize").arg(deploy().join(overlay)).output().unwrap();
    assert!(output.status.success(), "{overlay}: {}", String::from_utf8_lossy(&output.stderr));
    documents_of(std::str::from_utf8(&output.stdout).unwrap(), overlay)
}

/// Sorts objects by kind and name. The order of lists whose items have names is irrelevant, and
/// kustomize changes it.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut named = BTreeMap::new();
    for mut object in objects {
        sort(&mut object);
        let name = format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        assert!(named.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    named
}

fn sort(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(sort);
            fields.sort_keys();
        }
        Value::Array(items) => {
            items.iter_mut().for_each(sort);
            if items.iter().all(|item| item["name"].is_string()) {
                items.sort_by_key(|item| item["name"].as_str().map(str::to_owned));
            }
        }
        _ => {}
    }
}

fn assert_same(values: &[&str], expected: Vec<Value>) {
    let (made, expected) = (by_name(chart(values)), by_name(expected));
    assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{values:?}");
    for (name, expected) in expected {
        assert_eq!(made[&name], expected, "{values:?}: {name}");
    }
}

#[test]
fn the_chart_creates_the_objects_of_the_kustomizations() {
    assert_same(&[], kustomized("."));
    assert_same(&["fanout.enabled=true", "fanout.tls.generate=false"], kustomized("with-fanout"));
    let mut with_tenants = kustomized(".");
    with_tenants.extend(documents(&deploy().join("tenants.yaml")));
    assert_same(&["tenants.enabled=true"], with_tenants);
    let mut with_keys = kustomized(".");
    with_keys.extend(documents(&deploy().join("agent/wireguard.yaml")));
    assert_same(&["agent.wireguard=true"], with_keys);
    let controller = ["agent.enabled=false", "controller.enabled=true"];
    assert_same(&controller, documents(&deploy().join("controller-kubernetes.yaml")));
    let with_etcd = [&controller[..], &["controller.datastore=etcd"]].concat();
    assert_same(&with_etcd, documents(&deploy().join("controller.yaml")));
}

#[test]
fn the_api_knows_all_that_it_makes_of_other_values() {
    let values = [
        "agent.parameters={\"MaxIpsetSize\":1048576,\"GenericXDPEnabled\":false,\"RouteRefreshInterval\":1.5}",
        "image.repository=registry.example.org/tortie",
        "image.tag=0.1.0",
        "image.pullSecrets={one,two}",
        "agent.backend=nftables",
        "agent.parameters.LogSeverityScreen=Debug",
        "agent.parameters.FlowLogsLocalReporter=Enabled",
        "agent.args={--confirm-host-changes}",
        "agent.env[0].name=RUST_BACKTRACE",
        "agent.env[0].value=full",
        "agent.wireguard=true",
        "agent.hostPID=true",
        "agent.resources.limits.memory=1Gi",
        "agent.tolerations[0].key=node-role.kubernetes.io/control-plane",
        "fanout.enabled=true",
        "fanout.replicas=5",
        "fanout.port=5474",
        "tenants.enabled=true",
        "controller.enabled=true",
        "controller.datastore=etcd",
        "controller.etcdSecret=mine",
    ];
    let made = chart(&values);
    for object in &made {
        assert_understood(&format!("{} {}", object["kind"], object["metadata"]["name"]), object);
    }
    let made = by_name(made);
    let pod = |name: &str| &made[name]["spec"]["template"]["spec"];
    let agent = &pod("DaemonSet tortie-agent")["containers"][0];
    assert_eq!(agent["image"], "registry.example.org/tortie:0.1.0");
    let variable = |name: &str| {
        let found = agent["env"].as_array().unwrap().iter().find(|variable| variable["name"] == name);
        found.map(|variable| variable["value"].as_str().unwrap())
    };
    assert_eq!(variable("FELIX_NFTABLESMODE"), Some("Enabled"));
    assert_eq!(variable("FELIX_LOGSEVERITYSCREEN"), Some("Debug"));
    assert_eq!(variable("FELIX_MAXIPSETSIZE"), Some("1048576"), "a number is a text in an environment");
    assert_eq!(variable("FELIX_ROUTEREFRESHINTERVAL"), Some("1.5"));
    assert_eq!(variable("FELIX_GENERICXDPENABLED"), Some("false"));
    assert_eq!(variable("RUST_BACKTRACE"), Some("full"));
    let words = |container: &Value| serde_json::to_string(&container["args"]).unwrap();
    assert!(words(agent).contains(r#""fanout://tortie-fanout.kube-system.svc:5474""#), "{agent}");
    assert!(words(agent).ends_with(r#","--confirm-host-changes"]"#), "{agent}");
    // They publish keys.
    assert_eq!(pod("DaemonSet tortie-agent")["automountServiceAccountToken"], true);
    assert_eq!(pod("DaemonSet tortie-agent")["hostPID"], true);
    let fanout = &pod("Deployment tortie-fanout")["containers"][0];
    assert!(
        words(fanout).contains(r#""--listen","0.0.0.0:5474""#) && words(fanout).contains(r#""--servers","5""#),
        "{fanout}"
    );
    assert_eq!(made["Deployment tortie-fanout"]["spec"]["replicas"], 5);
    assert_eq!(made["Service tortie-fanout"]["spec"]["ports"][0]["port"], 5474);
    assert_eq!(pod("Deployment tortie-controller")["volumes"][0]["secret"]["secretName"], "mine");
}

/// A connection to the fan-out is unencrypted only on request, and the generated certificates have
/// the names that each side requires.
#[test]
fn the_fan_out_has_certificates_by_default() {
    let made = by_name(chart(&["fanout.enabled=true"]));
    let agent = &made["DaemonSet tortie-agent"]["spec"]["template"]["spec"]["containers"][0];
    assert!(agent["env"].as_array().unwrap().iter().any(|variable| variable["name"] == "FELIX_TYPHACAFILE"), "{agent}");
    let fanout = &made["Deployment tortie-fanout"]["spec"]["template"]["spec"]["containers"][0];
    assert!(fanout["env"].as_array().unwrap().iter().any(|variable| variable["name"] == "TYPHA_CLIENTCN"), "{fanout}");
    let files = ["fanout", "agent"].map(|side| made[&format!("Secret tortie-{side}-tls")]["data"].clone());
    for data in &files {
        assert_eq!(data.as_object().unwrap().keys().collect::<Vec<_>>(), ["ca.pem", "cert.pem", "key.pem"]);
    }
    assert_eq!(files[0]["ca.pem"], files[1]["ca.pem"]);
    assert_ne!(files[0]["key.pem"], files[1]["key.pem"]);
    let plain = by_name(chart(&["fanout.enabled=true", "fanout.tls.enabled=false"]));
    assert!(!plain.keys().any(|name| name.starts_with("Secret ")), "{:?}", plain.keys());
}

#[test]
fn only_agents_with_ebpf_programs_are_privileged() {
    let is_privileged = |values: &[&str]| {
        let agent = &by_name(chart(values))["DaemonSet tortie-agent"]["spec"]["template"]["spec"]["containers"][0];
        let security = &agent["securityContext"];
        let capabilities = security["capabilities"]["add"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(capabilities.is_empty() || capabilities == ["NET_ADMIN", "NET_RAW"], "{security}");
        security["privileged"] == true
    };
    assert!(!is_privileged(&[]) && !is_privileged(&["agent.backend=nftables", "fanout.enabled=true"]));
    assert!(is_privileged(&["agent.backend=ebpf"]) && is_privileged(&["agent.hostPID=true"]));
}

/// An agent with another datastore needs separate permissions, and one behind a fan-out has none.
#[test]
fn agents_may_read_of_the_api_server_unless_they_read_from_a_fan_out() {
    let may_read = |values: &[&str]| by_name(chart(values)).contains_key("ClusterRoleBinding tortie-agent");
    assert!(may_read(&[]) && may_read(&["fanout.enabled=true", "agent.datastore=kubernetes:in-cluster"]));
    assert!(!may_read(&["agent.datastore=fanout://10.0.0.1:5473"]) && !may_read(&["fanout.enabled=true"]));
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for (value, why) in [
        ("agent.backend=nft", "agent.backend: there is no \"nft\"; it is empty, nftables or ebpf"),
        ("controller.datastore=file", "controller.datastore: there is no \"file\"; it is kubernetes or etcd"),
    ] {
        let output = helm(&["controller.enabled=true", value]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(why), "{value}: {error}");
    }
}

#[test]
fn it_has_the_version_of_the_program_and_helm_has_no_complaint() {
    let folder = deploy().join("helm/tortie");
    let about = fs::read_to_string(folder.join("Chart.yaml")).unwrap();
    for field in ["version", "appVersion"] {
        assert!(
            about.lines().any(|line| line == format!("{field}: {}", env!("CARGO_PKG_VERSION"))),
            "{field}: {about}"
        );
    }
    let output = tool("helm").args(["lint", "--strict"]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
