//! The `--datastore` argument.

use std::path::PathBuf;
use std::str::FromStr;

/// Where the datastore is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DatastoreUrl {
    /// A directory of manifests.
    Directory(PathBuf),
}

impl FromStr for DatastoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", "")) => Err("`file:` needs a directory, as in file:/etc/tortie".into()),
            Some(("file", directory)) => Ok(Self::Directory(directory.into())),
            Some((scheme @ ("etcd" | "kubernetes" | "fanout"), _)) => {
                Err(format!("`{scheme}:` is not part of this version; file:DIR is"))
            }
            _ => Err("must be file:DIR".into()),
        }
    }
}
