//! How a resource is kept in etcd: its path, what is filled in when it is written, and what it looks like when it is read
//! again.
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
pub(crate) use endpoint::endpoint_name;
pub use endpoint::{EndpointError, EndpointNameError, check_endpoint};
pub use kind::{ResourceKind, UnknownKind};
pub use object::{from_stored, key_in_kubernetes, key_of, labelled, revision_of, strip_metadata, to_stored};
pub use part::ObjectError;

/// The `apiVersion` of everything that is kept.
pub const API_VERSION: &str = "projectcalico.org/v3";
/// What the paths of all resources begin with.
pub const PREFIX: &str = "/calico/resources/v3/projectcalico.org/";

/// When a resource was last written: the datastore's count of changes. Written as `metadata.resourceVersion`.
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

/// Which resource: kind, namespace and name, all of them good for a path. Whether they are names that the API accepts is
/// for who reads the resource: what is in the datastore under an odd name can be seen, and deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey {
    kind: ResourceKind,
    namespace: String,
    name: String,
}

/// Why something is not the key of a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name cannot be part of a path.
    #[error("{kind}: `{name}` is not a name")]
    Name {
        /// The kind.
        kind: ResourceKind,
        /// What stands there instead of a name.
        name: String,
    },
    /// The namespace is missing, or cannot be part of a path.
    #[error("{kind}/{name}: `{namespace}` is not a namespace")]
    Namespace {
        /// The kind.
        kind: ResourceKind,
        /// The name.
        name: String,
        /// What stands there instead of a namespace.
        namespace: String,
    },
    /// A namespace is given to a kind that belongs to none.
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

/// Names that are made of other names can be longer than those.
const MAX_NAME: usize = 1024;

fn is_segment(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && !text.contains(|c: char| c == '/' || c.is_control())
}

impl ResourceKey {
    /// A key. The namespace is empty for kinds that belong to none.
    ///
    /// # Errors
    /// If the parts cannot be parts of a path, or a namespace is missing or too many.
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

    /// The key of this path; `None` if it is the path of something else.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        let (plural, rest) = path.strip_prefix(PREFIX)?.split_once('/')?;
        let kind = ResourceKind::from_plural(plural)?;
        let (namespace, name) = if kind.is_namespaced() { rest.split_once('/')? } else { ("", rest) };
        Self::new(kind, namespace, name).ok()
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ResourceKind {
        self.kind
    }

    /// The namespace; empty for kinds that belong to none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the resource is kept.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}{}", prefix_of(self.kind, Some(&self.namespace).filter(|ns| !ns.is_empty())), self.name)
    }
}

impl fmt::Display for ResourceKey {
    /// `Kind/namespace/name`, or `Kind/name` for a resource of the whole cluster.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// What the paths of all resources of a kind begin with, or of those in one namespace.
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
