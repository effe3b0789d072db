//! Kinds of objects in API paths.

use std::fmt;

/// A kind of object: `apis/GROUP/VERSION/PLURAL`.
///
/// ```
/// use tortie_datastore::kubernetes::ApiResource;
///
/// assert_eq!(ApiResource::PODS.to_string(), "pods");
/// assert_eq!(ApiResource::NETWORK_POLICIES.to_string(), "networkpolicies.networking.k8s.io");
/// assert_eq!(ApiResource::LEASES.api_version(), "coordination.k8s.io/v1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiResource {
    /// The group; empty for the core group.
    pub group: &'static str,
    /// The version, such as `v1`.
    pub version: &'static str,
    /// The name of the collection, such as `pods`.
    pub plural: &'static str,
}

impl ApiResource {
    /// `Namespace`s.
    pub const NAMESPACES: Self = Self::new("", "v1", "namespaces");
    /// `ServiceAccount`s.
    pub const SERVICE_ACCOUNTS: Self = Self::new("", "v1", "serviceaccounts");
    /// `Pod`s.
    pub const PODS: Self = Self::new("", "v1", "pods");
    /// `Node`s.
    pub const NODES: Self = Self::new("", "v1", "nodes");
    /// `Service`s.
    pub const SERVICES: Self = Self::new("", "v1", "services");
    /// `EndpointSlice`s.
    pub const ENDPOINT_SLICES: Self = Self::new("discovery.k8s.io", "v1", "endpointslices");
    /// `NetworkPolicy`s of Kubernetes.
    pub const NETWORK_POLICIES: Self = Self::new("networking.k8s.io", "v1", "networkpolicies");
    /// `Lease`s, which are used for leader election.
    pub const LEASES: Self = Self::new("coordination.k8s.io", "v1", "leases");

    /// Returns the kind with this group, version and plural.
    #[must_use]
    pub const fn new(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self { group, version, plural }
    }

    /// Returns the `apiVersion` of objects of this kind.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the path of all objects, of those in one namespace, or of one object; an empty name
    /// or namespace stands for none.
    pub(super) fn path(&self, namespace: &str, name: &str) -> String {
        let mut path = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        path.push('/');
        path.push_str(self.version);
        if !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(&escaped(namespace));
        }
        path.push('/');
        path.push_str(self.plural);
        if !name.is_empty() {
            path.push('/');
            path.push_str(&escaped(name));
        }
        path
    }
}

impl fmt::Display for ApiResource {
    /// `PLURAL.GROUP`, as kubectl writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// Percent-encodes a part of a path or query (RFC 3986, section 2.3).
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(ApiResource::PODS.path("", ""), "/api/v1/pods");
        assert_eq!(ApiResource::PODS.path("shop", "web"), "/api/v1/namespaces/shop/pods/web");
        assert_eq!(
            ApiResource::LEASES.path("kube-system", "a/../b"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a%2F..%2Fb"
        );
        assert_eq!(ApiResource::NODES.path("", "n1"), "/api/v1/nodes/n1");
    }
}
