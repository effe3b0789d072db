use tortie_datastore::kubernetes::{Client, KubeConfig};
use tortie_lab::apiserver::{ApiServer, Fault, On};

use super::*;

#[test]
fn keys_in_annotations_of_kubernetes_are_removed() {
    for form in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
        let server = ApiServer::start().unwrap();
        let (group, version) = form.split_once('/').unwrap();
        server.install_calico(group, version);
        let own = "projectcalico.org/WireguardPublicKey";
        server.apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "annotations": {own: "old", "other": "stays"}},
        }));
        server.apply(json!({
            "apiVersion": form, "kind": "FelixConfiguration", "metadata": {"name": "default"},
            "spec": {"wireguardEnabled": true, "wireguardHostEncryptionEnabled": true},
        }));
        let annotation =
            |name: &str| server.get("v1", "Node", "", "n1").unwrap()["metadata"]["annotations"][name].clone();
        let client = Client::new(KubeConfig::file(server.kubeconfig())).unwrap();
        let bench = Bench::encrypting();
        let bootstrap = bootstrap(&bench.machine, &[], &SERVERS, Box::new(KeysInAnnotations::new(client)));
        server.fail(On::Object, "nodes", Fault::Internal, 1);
        assert_eq!(bootstrap.servers().unwrap(), all());
        assert_eq!((annotation(own), annotation("other")), (Value::Null, "stays".into()));

        let device = bench.device("wireguard.cali", "wireguard", &[PEER]);
        let annotations = json!({own: device, "other": "stays"});
        server
            .apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "annotations": annotations}}));
        assert_eq!(bootstrap.servers().unwrap(), all());
        assert_eq!(annotation(own), device, "an equal annotation stays");
    }
}
