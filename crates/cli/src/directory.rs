//! Options for a directory of manifests.

use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "etcd")]
use tortie_datastore::etcd::EtcdSource;
#[cfg(feature = "kubernetes")]
use tortie_datastore::kubernetes::KubernetesSource;
use tortie_datastore::{DirAccess, DirSource, MAX_DIRECTORY_BYTES, MAX_FILE_BYTES, Settle};
use tortie_model::Hostname;

use tortie_datastore::pending_change::STATE_DIR;
use tortie_node::engine::Unreadable;

/// `--unreadable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum WhenUnreadable {
    /// Start without being ready; deny traffic of the endpoints that the manifest may concern
    #[default]
    Deny,
    /// Start as if the manifest did not exist
    Skip,
    /// Do not start
    Exit,
}

impl From<WhenUnreadable> for Unreadable {
    fn from(when: WhenUnreadable) -> Self {
        match when {
            WhenUnreadable::Deny => Self::Deny,
            WhenUnreadable::Skip => Self::Skip,
            WhenUnreadable::Exit => Self::Exit,
        }
    }
}

/// Options for a directory of manifests, and for the state that is kept on this machine.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Directory of manifests")]
pub struct DirectoryArgs {
    /// Action for a manifest that cannot be used at the start, has no last valid version, and whose
    /// purpose is unknown: deny denies traffic of the endpoints in its namespace, or of all
    /// endpoints if the namespace is unknown as well, and is not ready until the problem is
    /// resolved; skip starts as if the manifest did not exist; exit does not start. A manifest that
    /// becomes unusable later denies nothing
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    unreadable: WhenUnreadable,
    /// The same as --unreadable skip
    #[arg(long, conflicts_with = "unreadable")]
    lenient: bool,
    #[command(flatten)]
    settle: SettleArgs,
    /// Directory for the last valid version of the manifests, for the next start; for etcd, a copy
    /// of the resources that users write, and a change that waits for `tortie confirm`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Number of states of the manifests, or of the resources in etcd or Kubernetes, that are kept
    /// there, for `tortie history` and `tortie rollback`; 0 keeps none
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    history: usize,
    /// Seconds between scans of the directory, which do not depend on file events
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    rescan_interval: u64,
}

/// Times for which incomplete files may settle.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Directory of manifests")]
pub struct SettleArgs {
    /// Milliseconds for which objects that disappear from a file stay in force, as when the file is
    /// removed and recreated; an event that shows that the file is complete ends this earlier
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    file_settle_ms: u64,
    /// The same for a file that has become empty, and for a directory without any manifest left
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 10_000)]
    empty_file_settle_ms: u64,
}

impl Default for SettleArgs {
    #[expect(clippy::expect_used, reason = "the default times are constants")]
    fn default() -> Self {
        let Settle { after, empty } = Settle::default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).expect("default times are seconds");
        Self { file_settle_ms: millis(after), empty_file_settle_ms: millis(empty) }
    }
}

impl From<SettleArgs> for Settle {
    fn from(args: SettleArgs) -> Self {
        Self {
            after: Duration::from_millis(args.file_settle_ms),
            empty: Duration::from_millis(args.empty_file_settle_ms),
        }
    }
}

/// Limits of reading a directory of manifests.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Directory of manifests")]
pub struct ReachArgs {
    /// Follow links that lead out of the directory
    #[arg(long)]
    follow_links: bool,
    /// Largest manifest in MiB; a larger file counts as unreadable
    #[arg(long, value_name = "MIB", default_value_t = MAX_FILE_BYTES >> 20, value_parser = clap::value_parser!(u64).range(1..))]
    max_file_mib: u64,
    /// Largest sum of all manifests of a directory in MiB
    #[arg(long, value_name = "MIB", default_value_t = MAX_DIRECTORY_BYTES >> 20, value_parser = clap::value_parser!(u64).range(1..))]
    max_directory_mib: u64,
}

impl Default for ReachArgs {
    fn default() -> Self {
        let DirAccess { follow_links, max_file_bytes, max_directory_bytes } = DirAccess::default();
        Self { follow_links, max_file_mib: max_file_bytes >> 20, max_directory_mib: max_directory_bytes >> 20 }
    }
}

impl From<ReachArgs> for DirAccess {
    fn from(args: ReachArgs) -> Self {
        Self {
            follow_links: args.follow_links,
            // A limit that is too large for the type means no limit.
            max_file_bytes: args.max_file_mib.saturating_mul(1 << 20),
            max_directory_bytes: args.max_directory_mib.saturating_mul(1 << 20),
        }
    }
}

impl DirectoryArgs {
    /// For a program that enforces nothing: it keeps no state.
    #[must_use]
    pub fn only_read(settle: SettleArgs) -> Self {
        Self {
            unreadable: WhenUnreadable::Skip,
            lenient: false,
            settle,
            state_dir: PathBuf::new(),
            history: 0,
            rescan_interval: 10,
        }
    }

    /// Returns the directory for state that must outlive the process, if there is one.
    #[must_use]
    pub fn state_dir(&self) -> Option<&Path> {
        Some(self.state_dir.as_path()).filter(|directory| !directory.as_os_str().is_empty())
    }

    /// Returns the action for unusable input whose purpose is unknown.
    #[must_use]
    pub fn unreadable(&self) -> Unreadable {
        if self.lenient { Unreadable::Skip } else { self.unreadable.into() }
    }

    /// Returns an etcd source; for a node, it keeps the history.
    #[cfg(feature = "etcd")]
    #[must_use]
    pub fn etcd_source(&self, source: EtcdSource, node: Option<&Hostname>) -> EtcdSource {
        match (node, self.state_dir()) {
            (Some(node), Some(state_dir)) => source.keep_history(state_dir, node.as_str(), self.history),
            _ => source,
        }
    }

    /// Returns a Kubernetes source; for a node, it keeps the history.
    #[cfg(feature = "kubernetes")]
    #[must_use]
    pub fn kubernetes_source(&self, source: KubernetesSource, node: Option<&Hostname>) -> KubernetesSource {
        match (node, self.state_dir()) {
            (Some(node), Some(state_dir)) => source.keep_history(state_dir, node.as_str(), self.history),
            _ => source,
        }
    }

    /// Configures a source with these options. For a node it keeps the last valid version and the
    /// history.
    #[must_use]
    pub fn source(&self, source: DirSource, node: Option<&Hostname>) -> DirSource {
        let source = match (node, self.state_dir()) {
            (Some(node), Some(state_dir)) => source.keep_last_good(state_dir, node.as_str()).keep_history(self.history),
            _ => source,
        };
        source
            .settle_for(self.settle.into())
            .close_unknown(self.unreadable() != Unreadable::Skip)
            .rescan_every(Duration::from_secs(self.rescan_interval))
    }
}
