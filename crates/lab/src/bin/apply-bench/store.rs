//! Datastores of the objects: a directory, or etcd as Felix needs it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tortie_lab::etcd::{Etcd, EtcdOptions, to_calico};
use tortie_resources::stored::{key_of, to_stored};

use crate::Result;
use crate::cluster::{NODE, Objects};

/// etcd refuses transactions of more operations.
const MOST_OPERATIONS: usize = 128;

pub(crate) enum Store {
    Directory(PathBuf),
    Etcd(Etcd),
}

impl Store {
    pub(crate) fn directory(folder: &Path) -> Result<Self> {
        let manifests = folder.join("manifests");
        fs::create_dir(&manifests)?;
        Ok(Self::Directory(manifests))
    }

    /// Starts etcd in the namespace of the calling thread.
    pub(crate) fn etcd() -> Result<Self> {
        let store = Self::Etcd(Etcd::start(EtcdOptions::default())?);
        let api = "projectcalico.org/v3";
        store.put(&(
            "cluster".to_owned(),
            vec![
                json!({"apiVersion": api, "kind": "ClusterInformation", "metadata": {"name": "default"}, "spec": {"datastoreReady": true}}),
                json!({"apiVersion": api, "kind": "Node", "metadata": {"name": NODE}, "spec": {"bgp": {"ipv4Address": "10.64.0.1/24"}}}),
            ],
        ))?;
        Ok(store)
    }

    /// Returns the datastore as the agent's option names it.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Directory(manifests) => format!("file:{}", manifests.display()),
            Self::Etcd(etcd) => etcd.url(),
        }
    }

    /// Writes all objects of one name at once: a file is replaced by rename, as an editor does.
    pub(crate) fn put(&self, (name, objects): &Objects) -> Result<()> {
        match self {
            Self::Directory(manifests) => {
                let new = manifests.with_file_name("new");
                fs::write(&new, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
                Ok(fs::rename(new, file(manifests, name))?)
            }
            Self::Etcd(etcd) => {
                let changes =
                    objects.iter().filter_map(stored).map(|stored| stored.map(|(path, text)| (path, Some(text))));
                Self::write(etcd, &changes.collect::<Result<Vec<_>>>()?)
            }
        }
    }

    pub(crate) fn remove(&self, (name, objects): &Objects) -> Result<()> {
        match self {
            Self::Directory(manifests) => Ok(fs::remove_file(file(manifests, name))?),
            Self::Etcd(etcd) => {
                let changes = objects.iter().filter_map(stored).map(|stored| stored.map(|(path, _)| (path, None)));
                Self::write(etcd, &changes.collect::<Result<Vec<_>>>()?)
            }
        }
    }

    fn write(etcd: &Etcd, changes: &[(String, Option<String>)]) -> Result<()> {
        changes.chunks(MOST_OPERATIONS).try_for_each(|chunk| Ok(etcd.transact(chunk)?))
    }
}

fn file(manifests: &Path, name: &str) -> PathBuf {
    manifests.join(format!("{name}.json"))
}

/// Returns path and text of an object in etcd; `None` for one that Calico does not keep there.
fn stored(object: &Value) -> Option<Result<(String, String)>> {
    let mut object = to_calico(object)?;
    let stored = key_of(&object, "").and_then(|key| to_stored(&key, &mut object).map(|()| key.path()));
    Some(stored.map(|path| (path, object.to_string())).map_err(Into::into))
}
