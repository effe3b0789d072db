use std::path::PathBuf;

use super::super::tests::examples;
use super::*;

/// Creates a directory with these manifests.
fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary folder");
    for (name, text) in files {
        fs::write(directory.path().join(name), text).expect("temporary file");
    }
    directory
}

const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"},
    "spec": {"nodeName": "demo-node", "containers": [{"name": "c", "ports": [
        {"name": "web", "containerPort": 80}, {"containerPort": 81}, {"name": "dns", "containerPort": 53, "protocol": "UDP"},
        {"name": "assoc", "containerPort": 9, "protocol": "SCTP"}]}]},
    "status": {"podIPs": [{"ip": "10.0.0.1"}]}}"#;
const TIER: &str = "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: t}\nspec: {order: 1}\n";

#[test]
fn the_examples_have_no_problems() {
    let examples = examples();
    assert_eq!(examples.problems, [""; 0]);
    let names = |files: &[File]| files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&examples.cluster), ["00-cluster.yaml"]);
    assert_eq!(names(&examples.policies), ["policy-db.yaml", "policy-shop.yaml", "policy-visitors.yaml"]);
}

#[test]
fn the_examples_have_pods() {
    let pods = examples().pods;
    assert_eq!(
        pods.iter().map(|pod| pod.place.to_string()).collect::<Vec<_>>(),
        ["shop/web", "shop/api", "shop/db", "visitors/guest"]
    );
    let db = &pods[2];
    assert_eq!(db.addresses, ["10.65.1.3".parse::<IpAddr>().unwrap(), "fd00:65::1:3".parse().unwrap()]);
    assert_eq!(db.ports, [("postgres".to_owned(), Port::tcp(5432))]);
}

#[test]
fn the_edit_changes_the_rule_and_not_the_comment() {
    let examples = examples();
    let edit = examples.edit.expect("the examples have something to edit");
    assert_eq!(edit.old_line, "selector: role == 'api'");
    assert_eq!(edit.new_line, "selector: role in {'api', 'web'}");
    let before = &examples.policies[0];
    assert_eq!(before.name, edit.file.name);
    let different: Vec<_> = before.text.lines().zip(edit.file.text.lines()).filter(|(old, new)| old != new).collect();
    assert_eq!(different, [("        selector: role == 'api'", "        selector: role in {'api', 'web'}")]);
    let read = manifest::read(&edit.file.text, Format::Yaml, &Options::default(), &mut Interner::new());
    assert!(read.resources.iter().all(|resource| resource.problems.is_empty()), "{read:?}");
}

#[test]
fn named_ports_are_served() {
    let directory = directory(&[("pods.json", POD), ("notes.txt", "not a manifest")]);
    let manifests = Manifests::read(directory.path()).unwrap();
    let expected = [("web", Port::tcp(80)), ("dns", Port::udp(53)), ("assoc", Port::sctp(9))];
    assert_eq!(manifests.pods[0].ports, expected.map(|(name, port)| (name.to_owned(), port)));
    assert_eq!(manifests.edit, None);
}

#[test]
fn unusable_directories_are_refused() {
    let message = |directory: PathBuf| Manifests::read(&directory).expect_err("must be refused").to_string();
    let absent = directory(&[]).path().join("absent");
    assert!(message(absent).contains("absent (see --manifests): "));
    let elsewhere = directory(&[("pods.json", &POD.replace("demo-node", "another"))]);
    assert!(message(elsewhere.path().into()).ends_with("has no pod with an address and `nodeName: demo-node`"));
    let mixed = directory(&[("all.yaml", &format!("{TIER}---\n{}", POD.replace('\n', " ")))]);
    assert!(message(mixed.path().into()).starts_with("all.yaml holds policies and other objects"));
}

#[test]
fn problems_have_file_line_and_column() {
    let directory = directory(&[("pods.json", POD), ("tier.yaml", &TIER.replace("order: 1", "odrer: 1"))]);
    let problems = Manifests::read(directory.path()).unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("tier.yaml:4:8: Tier/t: spec.odrer: "), "{problems:?}");
}
