use std::time::Instant;

use tortie_lab::apiserver::{ApiServer, Fault, On};

use super::*;

fn server(annotations: &Value) -> ApiServer {
    let server = ApiServer::start().unwrap();
    let metadata = json!({"name": "n1", "annotations": annotations});
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}}));
    server
}

fn node(server: &ApiServer) -> Value {
    server.get("v1", "Node", "", "n1").unwrap()
}

fn keys(v4: &str, v6: &str) -> Keys {
    Keys::from([(Family::V4, v4.into()), (Family::V6, v6.into())])
}

#[test]
fn only_the_keys_of_the_node_change() {
    let server = server(&json!({"other": "stays"}));
    let client = Client::new(KubeConfig::file(server.kubeconfig())).unwrap();
    let host = Hostname::new("n1");
    let revision = |node: &Value| node["metadata"]["resourceVersion"].clone();

    let before = node(&server);
    write(&client, &host, &keys("", "")).unwrap();
    assert_eq!(revision(&node(&server)), revision(&before), "missing annotations are not written");

    write(&client, &host, &keys("a", "b")).unwrap();
    let both = json!({
        "other": "stays",
        "projectcalico.org/WireguardPublicKey": "a", "projectcalico.org/WireguardPublicKeyV6": "b",
    });
    let written = node(&server);
    assert_eq!(written["metadata"]["annotations"], both);
    assert_eq!(written["spec"], before["spec"]);
    write(&client, &host, &keys("a", "b")).unwrap();
    assert_eq!(revision(&node(&server)), revision(&written), "equal annotations are not written again");

    write(&client, &host, &Keys::from([(Family::V4, String::new())])).unwrap();
    let one = json!({"other": "stays", "projectcalico.org/WireguardPublicKeyV6": "b"});
    assert_eq!(node(&server)["metadata"]["annotations"], one);
}

#[test]
fn a_node_that_is_not_there_has_no_key_to_remove() {
    let server = ApiServer::start().unwrap();
    let client = Client::new(KubeConfig::file(server.kubeconfig())).unwrap();
    let host = Hostname::new("n1");
    assert!(write(&client, &host, &keys("", "")).is_ok());
    assert!(write(&client, &host, &keys("a", "")).unwrap_err().is_not_found());
}

#[test]
fn failed_writes_of_a_key_are_retried() {
    let server = server(&json!({}));
    server.fail(On::Object, "nodes", Fault::Internal, 1);
    let writer = NodeKeyWriter::start(KubeConfig::file(server.kubeconfig()), Hostname::new("n1")).unwrap();
    writer.send(Family::V4, "a".into());
    let begin = Instant::now();
    while node(&server)["metadata"]["annotations"]["projectcalico.org/WireguardPublicKey"] != "a" {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", node(&server));
        thread::yield_now();
    }
    assert_eq!(server.faults_left(), 0);
}
