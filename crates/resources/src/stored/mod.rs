//! Form of a resource in etcd: its path, its defaults at the time of writing, and its form for
//! readers.
//!
//! ```
//! use serde_json::json;
//! use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision};
//!
//! let key = ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "web")?;
//! assert_eq!(key.path(), "/calico/resources/v3/projectcalico.org/networkpolicies/shop/web");
//! assert_eq!(ResourceKey::from_path(&key.path()), Some(key.clone()));
//!
//! let mut object = json!({"spec": {"selector": "all()", "egress": [{"action": "Allow"}]}});
//! stored::to_stored(&key, &mut object)?;
//! assert_eq!(object["spec"]["types"], json!(["Egress"]));
//! assert_eq!(object["metadata"]["labels"], json!({"projectcalico.org/tier": "default"}));
//!
//! let object = stored::from_stored(&key, object, Revision(7))?;
//! assert_eq!(object["metadata"]["resourceVersion"], "7");
//! assert_eq!(object["metadata"].get("annotations"), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod defaults;
mod endpoint;
mod form;
mod kind;
mod object;
mod part;

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

pub use crate::v3::tiers::{
    BuiltIn, DEFAULT_ALLOW_PROFILE, DEFAULT_TIER_ORDER, TierError, built_in_tier, built_in_tiers, check_tier, tier_of,
};
pub use defaults::built_in_profile;
pub use endpoint::{EndpointError, EndpointNameError, check_endpoint};
pub(crate) use endpoint::{endpoint_name, name_by_spec};
pub use kind::{ResourceKind, UnknownKind};
pub use object::{from_stored, key_in_kubernetes, key_of, labelled, revision_of, strip_metadata, to_stored};
pub use part::ObjectError;

/// `apiVersion` of all stored resources of Calico.
pub const API_VERSION: &str = "projectcalico.org/v3";
/// Prefix of the paths of all resources.
pub const PREFIX: &str = "/calico/resources/v3/projectcalico.org/";

/// Revision of the datastore at the last write of a resource; `metadata.resourceVersion` in its
/// text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub i64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Revision {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

/// Identity of a resource: kind, namespace and name, each valid as a path segment. Whether the API
/// accepts the names is left to the readers: a resource with an odd name in the datastore can be
/// shown and deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey {
    kind: ResourceKind,
    namespace: String,
    name: String,
}

/// Error of parts that are not the key of a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name cannot be part of a path.
    #[error("{kind}: `{name}` is not a name")]
    Name {
        /// The kind.
        kind: ResourceKind,
        /// The invalid name.
        name: String,
    },
    /// The namespace is missing, or cannot be part of a path.
    #[error("{kind}/{name}: `{namespace}` is not a namespace")]
    Namespace {
        /// The kind.
        kind: ResourceKind,
        /// The name.
        name: String,
        /// The invalid namespace.
        namespace: String,
    },
    /// A namespace is given for a cluster-scoped kind.
    #[error("{kind}/{name}: belongs to no namespace, but `{namespace}` is given")]
    NotNamespaced {
        /// The kind.
        kind: ResourceKind,
        /// The name.
        name: String,
        /// The namespace.
        namespace: String,
    },
}

/// Length limit of a name. Names composed of other names can be longer than those.
const MAX_NAME: usize = 1024;

fn is_segment(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && !text.contains(|c: char| c == '/' || c.is_control())
}

impl ResourceKey {
    /// Returns a key. The namespace is empty for cluster-scoped kinds.
    ///
    /// # Errors
    /// If a part cannot be a path segment, or a namespace is missing or superfluous.
    pub fn new(kind: ResourceKind, namespace: impl Into<String>, name: impl Into<String>) -> Result<Self, KeyError> {
        let (namespace, name) = (namespace.into(), name.into());
        if !is_segment(&name) {
            return Err(KeyError::Name { kind, name });
        }
        if kind.is_namespaced() && !is_segment(&namespace) {
            return Err(KeyError::Namespace { kind, name, namespace });
        }
        if !kind.is_namespaced() && !namespace.is_empty() {
            return Err(KeyError::NotNamespaced { kind, name, namespace });
        }
        Ok(Self { kind, namespace, name })
    }

    /// Returns the key of this path; `None` if it is not the path of a resource.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        let (plural, rest) = path.strip_prefix(PREFIX)?.split_once('/')?;
        let kind = ResourceKind::from_plural(plural)?;
        let (namespace, name) = if kind.is_namespaced() { rest.split_once('/')? } else { ("", rest) };
        Self::new(kind, namespace, name).ok()
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ResourceKind {
        self.kind
    }

    /// Returns the namespace; empty for cluster-scoped kinds.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the resource.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}{}", prefix_of(self.kind, Some(&self.namespace).filter(|ns| !ns.is_empty())), self.name)
    }
}

impl fmt::Display for ResourceKey {
    /// Writes `Kind/namespace/name`, or `Kind/name` for a cluster-scoped resource.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Returns the prefix of the paths of all resources of a kind, or of those in one namespace.
#[must_use]
pub fn prefix_of(kind: ResourceKind, namespace: Option<impl AsRef<str>>) -> String {
    let plural = kind.plural();
    match namespace {
        Some(namespace) => format!("{PREFIX}{plural}/{}/", namespace.as_ref()),
        None => format!("{PREFIX}{plural}/"),
    }
}

#[cfg(test)]
mod tests;
