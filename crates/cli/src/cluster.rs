use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tortie_calc::Graph;
use tortie_config::settings::SettingsError;
use tortie_config::{Config, ConfigError, Sources, settings};
use tortie_datastore::{Everything, manifest_texts};
use tortie_evaluate::Settings;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, Key, SyncStatus, Update};
use tortie_resources::manifest::Options;

use super::Failure;
use super::datastore::{AccessArgs, DatastoreArgs, SourceSpec};
use super::datastore_url::DatastoreUrl;
use super::directory::{DirectoryArgs, SettleArgs};
use super::host_network::HostNetworkPods;
use super::origin::Origins;
use super::progress::Progress;

/// Options for reading the cluster state.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    #[command(flatten)]
    pub(super) datastore: DatastoreArgs,
    /// A configuration file in Felix's format.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds of retries while the datastore cannot be read.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
}

pub(super) struct WholeCluster {
    pub(super) sources: Sources,
    /// Configuration from `sources` alone.
    pub(super) local: Config,
    pub(super) options: Options,
    pub(super) updates: Vec<Update>,
    /// Versions of objects in the datastore, by the key of the resulting update; empty for files.
    versions: BTreeMap<Key, Arc<str>>,
}

impl ClusterArgs {
    pub(super) fn at(url: DatastoreUrl, access: AccessArgs, config: Option<PathBuf>, timeout: u64) -> Self {
        Self { datastore: DatastoreArgs::at(url, access), config, timeout }
    }

    /// Prints the problems, since answers depend on them.
    pub(super) fn read(&self) -> Result<WholeCluster, Failure> {
        let sources = super::program::local_sources(self.config.as_deref())?;
        let local = sources.resolve().map_err(Failure::failed)?.config;
        let options = settings::manifests(&local);
        let Everything { updates, problems, versions, .. } = self.read_everything(&sources, options.clone(), false)?;
        for problem in problems {
            eprintln!("{problem}");
        }
        Ok(WholeCluster { sources, local, options, updates, versions })
    }

    /// Reads the objects, with IPAM blocks if `blocks`.
    pub(super) fn read_everything(
        &self,
        sources: &Sources,
        options: Options,
        blocks: bool,
    ) -> Result<Everything, Failure> {
        let spec = SourceSpec {
            options,
            blocks,
            node: None,
            directory: DirectoryArgs::only_read(SettleArgs::default()),
            prepare: None,
            versions: true,
        };
        let source = self.datastore.source(sources, spec)?;
        // With other datastores, reading prints the reason why it waits.
        let progress = self.datastore.is_directory().then(|| Progress::begin("reading manifests"));
        let read = super::render::read(source, Duration::from_secs(self.timeout));
        drop(progress);
        read
    }

    pub(super) fn host_network_pods(&self) -> Result<HostNetworkPods, Failure> {
        self.datastore.host_network_pods()
    }

    /// `cluster` was read by [`ClusterArgs::read`].
    pub(super) fn origins(&self, cluster: &mut WholeCluster) -> Result<Origins, Failure> {
        match self.datastore.directory() {
            Some(root) => {
                let texts =
                    manifest_texts(root, self.datastore.reach()).map_err(Failure::io(root.display().to_string()))?;
                Ok(Origins::of_texts(texts, &cluster.options))
            }
            None => Ok(Origins::of_versions(std::mem::take(&mut cluster.versions))),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ParametersError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

pub(super) struct Parameters {
    pub(super) config: Config,
    pub(super) settings: Settings,
    /// Settings of the nodes that have others.
    pub(super) nodes: BTreeMap<Hostname, Settings>,
}

impl Parameters {
    pub(super) fn new<'a>(
        sources: &Sources,
        local: &Config,
        objects: impl Iterator<Item = &'a Update>,
    ) -> Result<Self, Failure> {
        let objects: Vec<&Update> = objects.filter(|update| bears_on_parameters(update)).collect();
        let of = |host: &Hostname| -> Result<(Config, Settings), ParametersError> {
            let config = config_of(sources, local, objects.iter().copied(), host)?;
            let rules = settings::rules(&config)?;
            Ok((config, settings::evaluation(&rules)))
        };
        let (config, settings) = of(&Hostname::new("")).map_err(Failure::failed)?;
        let mut nodes = BTreeMap::new();
        let is_own = |update: &&Update| matches!(update, Update::HostConfig(..) | Update::ScopedConfig(..));
        if objects.iter().any(is_own) {
            let hosts: BTreeSet<&Hostname> = objects
                .iter()
                .filter_map(|update| match update {
                    Update::HostConfig(key, _) => Some(&key.host),
                    Update::Node(host, _) => Some(host),
                    Update::HostEndpoint(key, _) => Some(&key.host),
                    _ => None,
                })
                .collect();
            for host in hosts {
                let (_, own) = of(host).map_err(Failure::failed_at(format!("node {host}")))?;
                if own != settings {
                    nodes.insert(host.clone(), own);
                }
            }
        }
        Ok(Self { config, settings, nodes })
    }
}

/// Reports whether an object sets parameters, or affects the nodes for which they are set.
pub(super) fn bears_on_parameters(update: &Update) -> bool {
    matches!(
        update,
        Update::GlobalConfig(..)
            | Update::HostConfig(..)
            | Update::ScopedConfig(..)
            | Update::Node(..)
            | Update::HostEndpoint(..)
    )
}

/// Parameters of this machine, then the datastore's, as on the node itself.
pub(super) fn config_of<'a>(
    sources: &Sources,
    local: &Config,
    objects: impl Iterator<Item = &'a Update>,
    host: &Hostname,
) -> Result<Config, ConfigError> {
    let mut graph = Graph::new(&settings::graph(local, host.clone()));
    for update in objects {
        let matters = match update {
            Update::GlobalConfig(..) | Update::HostConfig(..) | Update::ScopedConfig(..) => true,
            Update::Node(name, _) => name == host,
            _ => false,
        };
        if matters {
            graph.on_update(update.clone());
        }
    }
    graph.on_status(SyncStatus::InSync);
    let mut desired = Vec::new();
    graph.flush(&mut desired);
    let mut sources = sources.clone();
    for update in &desired {
        if let DesiredUpdate::Config(datastore) = update {
            sources.set_datastore(datastore);
        }
    }
    Ok(sources.resolve()?.config)
}
