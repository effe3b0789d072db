//! The certificates of the fan-out and its clients.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::{deploy, documents};

fn write(folder: &Path) -> Output {
    let script = deploy().join("with-fanout/certificates.sh");
    Command::new("sh").arg(script).arg(folder).args(["30"]).output().unwrap()
}

fn openssl(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("openssl").args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the value of an environment variable in a manifest.
fn variable(file: &str, name: &str) -> String {
    let manifest = documents(&deploy().join("with-fanout").join(file)).remove(0);
    let env = &manifest["spec"]["template"]["spec"]["containers"][0]["env"];
    let found = env.as_array().unwrap().iter().find(|variable| variable["name"] == name);
    found.and_then(|variable| variable["value"].as_str()).map(str::to_owned).unwrap()
}

#[test]
fn the_script_writes_two_certificates_of_an_authority_without_a_key() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("tls");
    let output = write(&folder);
    assert!(output.status.success(), "{output:?}");
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(&folder), ["agent", "fanout"], "the authority can sign nothing else");
    for (side, expected) in [
        ("fanout", variable("agent-tls-patch.yaml", "FELIX_TYPHACN")),
        ("agent", variable("fanout-tls-patch.yaml", "TYPHA_CLIENTCN")),
    ] {
        let side = folder.join(side);
        assert_eq!(names(&side), ["ca.pem", "cert.pem", "key.pem"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&side), mode(&side.join("key.pem"))), (0o700, 0o600));
        for purpose in ["sslserver", "sslclient"] {
            openssl(&side, &["verify", "-purpose", purpose, "-CAfile", "ca.pem", "cert.pem"]);
        }
        let facts = openssl(&side, &["x509", "-in", "cert.pem", "-noout", "-subject", "-ext", "subjectAltName"]);
        assert!(facts.contains(&format!("CN = {expected}")) || facts.contains(&format!("CN={expected}")), "{facts}");
        assert!(facts.contains(&format!("DNS:{expected}")), "{facts}");
        let key = openssl(&side, &["pkey", "-in", "key.pem", "-pubout"]);
        assert_eq!(key, openssl(&side, &["x509", "-in", "cert.pem", "-noout", "-pubkey"]));
        openssl(&side, &["x509", "-in", "cert.pem", "-noout", "-checkend", "2500000"]);
        let late = ["x509", "-in", "cert.pem", "-noout", "-checkend", "2700000"];
        assert!(!Command::new("openssl").args(late).current_dir(&side).output().unwrap().status.success(), "30 days");
    }
    assert!(!write(&folder).status.success(), "existing keys are not overwritten");
}

#[test]
fn admission_guards_each_annotation_that_gives_addresses() {
    let source = fs::read_to_string(deploy().join("../crates/resources/src/k8s/pod.rs")).unwrap();
    let constants = source.lines().filter_map(|line| line.strip_prefix("const ")?.split_once(": &str = \""));
    let names = constants.filter_map(|(constant, value)| Some((constant, value.strip_suffix("\";")?)));
    // The network status of the CNI plugin, and the mark of static pods: no address is read from
    // these.
    let others = ["NETWORK_STATUS", "MIRROR"];
    let mut read: Vec<String> =
        names.filter(|(constant, _)| !others.contains(constant)).map(|(_, name)| name.to_owned()).collect();
    read.sort();
    let policies = documents(&deploy().join("tenants.yaml"));
    let policy = policies.iter().find(|policy| policy["metadata"]["name"] == "tortie-tenants-addresses").unwrap();
    let variables = policy["spec"]["variables"].as_array().unwrap();
    let changed = variables.iter().find(|variable| variable["name"] == "changed").map(|v| &v["expression"]);
    let list = changed.and_then(Value::as_str).and_then(|text| text.split(']').next()).unwrap();
    let mut guarded: Vec<String> = list.split('\'').skip(1).step_by(2).map(str::to_owned).collect();
    guarded.sort();
    assert_eq!(guarded, read);
    assert!(guarded.len() >= 5, "{guarded:?}");
}
