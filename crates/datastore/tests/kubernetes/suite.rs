//! The test suite of all sources.

use serde_json::{Value, json};
use tortie_datastore::Source;
use tortie_datastore::kubernetes::{KubeConfig, KubernetesSource};
use tortie_lab::apiserver::ApiServer;
use tortie_lab::sources::{self, Edit, Need, SourceUnderTest};
use tortie_resources::manifest::Options;

use super::timing;

struct Datastore {
    server: ApiServer,
    api_version: &'static str,
}

impl Datastore {
    fn new(group: &str, version: &str, api_version: &'static str) -> Self {
        let server = ApiServer::start().expect("a port");
        server.install_calico(group, version);
        Self { server, api_version }
    }

    /// Returns an object in the form of the API.
    fn stored(&self, mut object: Value) -> Value {
        object["apiVersion"] = json!(self.api_version);
        if self.api_version.starts_with("crd.") && object["kind"].as_str().is_some_and(|kind| kind.ends_with("Policy"))
        {
            let name = json!({"name": object["metadata"]["name"]}).to_string();
            object["metadata"]["annotations"] = json!({"projectcalico.org/metadata": name});
        }
        object
    }
}

impl SourceUnderTest for Datastore {
    fn source(&mut self) -> Box<dyn Source> {
        let config = KubeConfig::file(self.server.kubeconfig());
        Box::new(KubernetesSource::new(config, Options::default()).with_timing(timing()))
    }

    fn edit(&mut self, edits: &[Edit]) {
        for edit in edits {
            match edit {
                Edit::Put(_, object) => self.server.apply(self.stored(object.clone())),
                Edit::Delete(id) => self.server.delete(self.api_version, id.kind.as_str(), &id.namespace, &id.name),
            }
        }
    }

    fn lacks(&self) -> Vec<(Need, &'static str)> {
        Vec::new()
    }

    fn stop(&mut self) {
        self.server.partition();
    }

    fn start(&mut self) {
        self.server.heal();
    }

    fn cut(&mut self) {
        self.server.cut();
    }

    fn partition(&mut self) {
        self.server.hold_output();
    }

    fn heal(&mut self) {
        self.server.heal();
    }

    fn compact(&mut self) {
        self.server.restart();
    }
}

#[test]
fn custom_resources_in_the_form_of_storage() {
    let report = sources::run(|| Datastore::new("crd.projectcalico.org", "v1", "crd.projectcalico.org/v1"));
    assert_eq!(report.not_supported, []);
}

#[test]
fn custom_resources_as_people_write_them() {
    let report = sources::run(|| Datastore::new("projectcalico.org", "v3", "projectcalico.org/v3"));
    assert_eq!(report.not_supported, []);
}
