//! Reading a whole cluster, to answer questions about it.

use std::path::PathBuf;
use std::time::Duration;

use tortie_datastore::Everything;
use tortie_model::Update;
use tortie_resources::manifest::Options;

use super::Failure;
use super::datastore::{DatastoreArgs, Wanted};
use super::directory::{DirectoryArgs, SettleArgs};
use crate::config::{Config, Sources};
use crate::settings;

/// Where the cluster is described.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    #[command(flatten)]
    pub(super) datastore: DatastoreArgs,
    /// A configuration file in Felix's format.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// For how many seconds to try again while the datastore cannot be read.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
}

/// The cluster as the datastore has it.
pub(super) struct WholeCluster {
    /// What this machine says of parameters.
    pub(super) sources: Sources,
    /// The same, parsed.
    pub(super) local: Config,
    /// How objects were read.
    pub(super) options: Options,
    /// All objects.
    pub(super) updates: Vec<Update>,
}

impl ClusterArgs {
    /// Reads all of it. What is wrong with it is said, since answers depend on it.
    ///
    /// # Errors
    /// If the datastore cannot be read in time, or the configuration of this machine not at all.
    pub(super) fn read(&self) -> Result<WholeCluster, Failure> {
        let sources = super::local_sources(self.config.as_deref())?;
        let local = sources.resolve().map_err(|error| Failure::Failed(error.to_string()))?.config;
        let options = settings::manifests(&local);
        let wanted = Wanted {
            options: options.clone(),
            blocks: false,
            node: None,
            directory: DirectoryArgs::only_read(SettleArgs::default()),
            engine: None,
        };
        let source = self.datastore.source(&sources, wanted)?;
        let Everything { updates, problems, .. } = super::render::read(source, Duration::from_secs(self.timeout))?;
        for problem in problems {
            eprintln!("{problem}");
        }
        Ok(WholeCluster { sources, local, options, updates })
    }
}
