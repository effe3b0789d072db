use tortie_datastore::Source;
use tortie_datastore::etcd::EtcdSource;
use tortie_datastore::store::etcd::EtcdStore;
use tortie_lab::etcd::{Etcd, Proxy};
use tortie_lab::sources::{self, Edit, Need, SourceUnderTest};
use tortie_resources::manifest::{ObjectId, Options};
use tortie_resources::stored::{ResourceKey, ResourceKind};

use crate::cluster::{config, one};

/// A single member behind a proxy, and an editor that bypasses the proxy.
struct UnderTest {
    etcd: Etcd,
    proxy: Proxy,
    editor: EtcdStore,
}

impl UnderTest {
    fn new() -> Self {
        let etcd = one();
        let proxy = Proxy::to(etcd.address(0)).expect("a proxy");
        let editor = EtcdStore::new(config(&etcd.url())).expect("a store");
        Self { etcd, proxy, editor }
    }
}

fn path(id: &ObjectId) -> String {
    let kind = ResourceKind::of(id.kind).expect("a kind that etcd keeps");
    ResourceKey::new(kind, &*id.namespace, &*id.name).expect("a key").path()
}

impl SourceUnderTest for UnderTest {
    fn source(&mut self) -> Box<dyn Source> {
        Box::new(EtcdSource::new(config(&format!("etcd://{}", self.proxy.address())), Options::default()))
    }

    fn edit(&mut self, edits: &[Edit]) {
        for edit in edits {
            match edit {
                Edit::Put(id, object) => self.editor.put_text(&path(id), &object.to_string(), None).expect("put"),
                Edit::Delete(id) => assert!(self.editor.delete_text(&path(id)).expect("deleted"), "{id} is not there"),
            }
        }
    }

    fn lacks(&self) -> Vec<(Need, &'static str)> {
        Vec::new()
    }

    fn stop(&mut self) {
        self.etcd.kill(0);
    }

    fn start(&mut self) {
        self.etcd.restart(0).expect("restarted");
        self.editor = EtcdStore::new(config(&self.etcd.url())).expect("a store");
    }

    fn cut(&mut self) {
        self.proxy.hang_up();
    }

    fn partition(&mut self) {
        self.proxy.hold_data();
    }

    fn heal(&mut self) {
        self.proxy.heal();
    }

    fn compact(&mut self) {
        self.etcd.compact().expect("compacted");
    }
}

#[test]
fn slow_suite_of_all_sources() {
    let report = sources::run(UnderTest::new);
    assert!(report.not_supported.is_empty(), "{report}");
}
