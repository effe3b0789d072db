//! Datastores of the agents under test.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use serde_json::Value;

use super::{
    agent::{AgentError, NodeUnderTest},
    etcd_store::EtcdStore,
};
use crate::{apiserver::ApiServer, cases, manifests::ManifestDir, program::Program};

/// Listening address of the fan-out.
const FANOUT: &str = "127.0.0.1:5473";

/// Short settle times, so that deletions in a directory take effect before the canary's turn ends.
pub(super) const SETTLED: [&str; 4] = ["--file-settle-ms", "50", "--empty-file-settle-ms", "50"];

/// Kind of datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A directory of manifests.
    File,
    /// A directory that another process watches; the agent is a client of its fan-out.
    Fanout,
    /// As [`Source::Fanout`], with Typha's protocol.
    Typha,
    /// An etcd with the resources that the CNI plugin and the policy controller would write.
    Etcd,
    /// A Kubernetes API server.
    Kubernetes,
}

impl Source {
    const ALL: [(&'static str, Self); 5] = [
        ("file", Self::File),
        ("fanout", Self::Fanout),
        ("typha", Self::Typha),
        ("etcd", Self::Etcd),
        ("kubernetes", Self::Kubernetes),
    ];

    /// Returns the bundled case files whose kinds the source supports. Cluster-wide admin policies
    /// are never written to etcd.
    #[must_use]
    pub fn cases(self) -> Vec<PathBuf> {
        let mut files = cases::bundled().to_vec();
        if self != Self::Etcd {
            files.push(cases::bundled_admin());
        }
        files
    }
}

/// Text that names no [`Source`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not one of {all}", all = Source::ALL.map(|(name, _)| name).join(", "))]
pub struct NotASource(String);

impl FromStr for Source {
    type Err = NotASource;

    fn from_str(text: &str) -> Result<Self, NotASource> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, source)| *source).ok_or_else(|| NotASource(text.to_owned()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, source)| source == self).map_or("", |(name, _)| name))
    }
}

/// A datastore for one node. Its servers run in the node's namespace, where they cannot conflict
/// with those of other nodes.
#[derive(Debug)]
pub(super) struct NodeDatastore {
    /// Datastore URL for the agent.
    pub(super) url: String,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Directory { manifests: ManifestDir, server: Option<Program> },
    Etcd(Box<EtcdStore>),
    Kubernetes(Box<Cluster>),
}

impl NodeDatastore {
    /// Starts it. `tortie` is the program of the servers and commands, for sources that need one.
    pub(super) fn start(source: Source, tortie: &Path, node: &NodeUnderTest<'_>) -> Result<Self, AgentError> {
        match source {
            Source::File => {
                let (manifests, url) = directory(node)?;
                Ok(Self { url, store: Store::Directory { manifests, server: None } })
            }
            Source::Fanout | Source::Typha => {
                let (manifests, directory) = directory(node)?;
                let mut command = Command::new(tortie);
                // One port serves both protocols.
                command.args(["fanout", "--datastore", &directory, "--listen", FANOUT]).args(SETTLED);
                let server = Some(Program::start("fanout", node.namespace, node.folder, &mut command)?);
                Ok(Self { url: format!("{source}://{FANOUT}"), store: Store::Directory { manifests, server } })
            }
            Source::Etcd => {
                let store = EtcdStore::start(tortie, node)?;
                Ok(Self { url: store.url(), store: Store::Etcd(store.into()) })
            }
            Source::Kubernetes => {
                let server = node.namespace.run(ApiServer::start)?.map_err(AgentError::Datastore)?;
                server.install_calico("crd.projectcalico.org", "v1");
                server.install_admin();
                let url = format!("kubernetes:{}", server.kubeconfig().display());
                let cluster = Cluster { server, objects: BTreeMap::new() };
                Ok(Self { url, store: Store::Kubernetes(cluster.into()) })
            }
        }
    }

    /// Replaces the contents with exactly these Kubernetes objects.
    pub(super) fn replace(&mut self, node: &NodeUnderTest<'_>, objects: &[Value]) -> Result<(), AgentError> {
        match &mut self.store {
            Store::Directory { manifests, .. } => manifests.replace(objects).map(drop).map_err(AgentError::from),
            Store::Etcd(store) => store.replace(node, objects),
            Store::Kubernetes(cluster) => {
                cluster.replace(objects);
                Ok(())
            }
        }
    }

    /// Checks that its server process is alive, if there is one.
    pub(super) fn check(&mut self) -> Result<(), AgentError> {
        match &mut self.store {
            Store::Directory { server: Some(server), .. } => Ok(server.check()?),
            Store::Directory { server: None, .. } | Store::Etcd(_) | Store::Kubernetes(_) => Ok(()),
        }
    }
}

/// A Kubernetes API server in the namespace of a node.
#[derive(Debug)]
struct Cluster {
    server: ApiServer,
    /// Its objects, by kind, namespace and name.
    objects: BTreeMap<[String; 3], Value>,
}

impl Cluster {
    /// Replaces the contents with exactly these objects: writes the differences in the given order,
    /// then deletes the others.
    fn replace(&mut self, objects: &[Value]) {
        let mut desired = BTreeMap::new();
        for object in objects {
            let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let name = ["/kind", "/metadata/namespace", "/metadata/name"].map(text);
            if self.objects.get(&name) != Some(object) {
                self.server.apply(object.clone());
            }
            desired.insert(name, object.clone());
        }
        for ([kind, namespace, name], object) in self.objects.iter().filter(|(name, _)| !desired.contains_key(*name)) {
            let api_version = object["apiVersion"].as_str().unwrap_or_default();
            self.server.delete(api_version, kind, namespace, name);
        }
        self.objects = desired;
    }
}

fn directory(node: &NodeUnderTest<'_>) -> Result<(ManifestDir, String), AgentError> {
    let manifests = ManifestDir::create(&node.folder.join("manifests"))?;
    let url = format!("file:{}", manifests.path().display());
    Ok((manifests, url))
}

/// Resolves a relative path against this process's directory, since the agent runs in another; a
/// bare name is looked up in `PATH`.
pub(super) fn absolute(program: &Path) -> PathBuf {
    std::fs::canonicalize(program).unwrap_or_else(|_| program.to_owned())
}
