//! Names and identities.

use std::fmt;
use std::sync::{Arc, LazyLock};

use tortie_net::text_id;
use tortie_selector::Selector;

text_id!(
    /// The name of a node, as Felix's `FelixHostname` has it.
    Hostname
);
text_id!(
    /// The name of a profile, such as `kns.default` or `ksa.default.builder`.
    ProfileName
);
text_id!(
    /// The name of a tier.
    TierName
);
text_id!(
    /// The name of a host endpoint on its node.
    HostEndpointName
);
text_id!(
    /// The name of a network set; a namespaced one is `namespace/name`.
    NetworkSetName
);
text_id!(
    /// The name of a configuration parameter.
    ConfigName
);
impl TierName {
    /// Returns the tier that Kubernetes policies and policies without a tier belong to.
    #[must_use]
    pub fn default_tier() -> Self {
        static DEFAULT: LazyLock<TierName> = LazyLock::new(|| TierName::new("default"));
        DEFAULT.clone()
    }
}

/// A Kubernetes object's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct NamespacedName {
    /// The namespace; empty for a cluster-wide object.
    pub namespace: Arc<str>,
    /// The name within the namespace.
    pub name: Arc<str>,
}

impl NamespacedName {
    /// Joins a namespace and a name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the name of the endpoint slice that stands for subset `index` of the `Endpoints` of
    /// this Service. It is not a valid name of a written slice.
    #[must_use]
    pub fn slice_of_endpoints(&self, index: usize) -> Self {
        Self::new(Arc::clone(&self.namespace), format!("{}{OF_ENDPOINTS}{index}", self.name))
    }

    /// Reports whether a slice of this name stands for `Endpoints`. Such a slice counts only if its
    /// Service has no other.
    #[must_use]
    pub fn is_slice_of_endpoints(&self) -> bool {
        self.name.contains(OF_ENDPOINTS)
    }
}

const OF_ENDPOINTS: &str = "@endpoints.";

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Kind of the resource that a policy was written as. It is part of the identity: policies of two
/// kinds may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    /// `projectcalico.org/v3` `NetworkPolicy`.
    NetworkPolicy,
    /// `projectcalico.org/v3` `GlobalNetworkPolicy`.
    GlobalNetworkPolicy,
    /// `networking.k8s.io/v1` `NetworkPolicy`.
    KubernetesNetworkPolicy,
    /// `policy.networking.k8s.io` `ClusterNetworkPolicy`.
    KubernetesClusterNetworkPolicy,
    /// A Calico policy that is calculated but never enforced.
    StagedNetworkPolicy,
    /// A global Calico policy that is calculated but never enforced.
    StagedGlobalNetworkPolicy,
    /// A Kubernetes policy that is calculated but never enforced.
    StagedKubernetesNetworkPolicy,
    /// An unknown kind; it keeps its own name.
    Other(Arc<str>),
}

impl PolicyKind {
    /// Returns the kind with this name, as in datastore paths.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "NetworkPolicy" => Self::NetworkPolicy,
            "GlobalNetworkPolicy" => Self::GlobalNetworkPolicy,
            "KubernetesNetworkPolicy" => Self::KubernetesNetworkPolicy,
            "KubernetesClusterNetworkPolicy" => Self::KubernetesClusterNetworkPolicy,
            "StagedNetworkPolicy" => Self::StagedNetworkPolicy,
            "StagedGlobalNetworkPolicy" => Self::StagedGlobalNetworkPolicy,
            "StagedKubernetesNetworkPolicy" => Self::StagedKubernetesNetworkPolicy,
            other => Self::Other(other.into()),
        }
    }

    /// Returns the full name, as in datastore paths and messages.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::NetworkPolicy => "NetworkPolicy",
            Self::GlobalNetworkPolicy => "GlobalNetworkPolicy",
            Self::KubernetesNetworkPolicy => "KubernetesNetworkPolicy",
            Self::KubernetesClusterNetworkPolicy => "KubernetesClusterNetworkPolicy",
            Self::StagedNetworkPolicy => "StagedNetworkPolicy",
            Self::StagedGlobalNetworkPolicy => "StagedGlobalNetworkPolicy",
            Self::StagedKubernetesNetworkPolicy => "StagedKubernetesNetworkPolicy",
            Self::Other(name) => name,
        }
    }

    /// Returns the abbreviation used in chain names and log prefixes (`felix/types/policy_id.go`);
    /// an unknown kind has none and uses its full name.
    #[must_use]
    pub fn short_name(&self) -> &str {
        match self {
            Self::NetworkPolicy => "np",
            Self::GlobalNetworkPolicy => "gnp",
            Self::KubernetesNetworkPolicy => "knp",
            Self::KubernetesClusterNetworkPolicy => "kcnp",
            Self::StagedNetworkPolicy => "snp",
            Self::StagedGlobalNetworkPolicy => "sgnp",
            Self::StagedKubernetesNetworkPolicy => "sknp",
            Self::Other(name) => name,
        }
    }

    /// Reports whether policies of this kind are calculated but never enforced.
    #[must_use]
    pub fn is_staged(&self) -> bool {
        matches!(
            self,
            Self::StagedNetworkPolicy | Self::StagedGlobalNetworkPolicy | Self::StagedKubernetesNetworkPolicy
        )
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The identity of a policy. Its tier is an attribute, not part of the identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct PolicyId {
    /// The kind of resource.
    pub kind: PolicyKind,
    /// The namespace; empty for a global policy.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl PolicyId {
    /// Joins kind, namespace (empty for a global policy) and name.
    pub fn new(kind: PolicyKind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// Returns the policy that a staged policy becomes when it is committed: the enforced policy of
    /// the same name. `None` for one that is not staged.
    ///
    /// ```
    /// use tortie_model::{PolicyId, PolicyKind};
    ///
    /// let staged = PolicyId::new(PolicyKind::StagedNetworkPolicy, "shop", "db");
    /// assert_eq!(staged.committed(), Some(PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db")));
    /// ```
    #[must_use]
    pub fn committed(&self) -> Option<Self> {
        let kind = match self.kind {
            PolicyKind::StagedNetworkPolicy => PolicyKind::NetworkPolicy,
            PolicyKind::StagedGlobalNetworkPolicy => PolicyKind::GlobalNetworkPolicy,
            PolicyKind::StagedKubernetesNetworkPolicy => PolicyKind::KubernetesNetworkPolicy,
            _ => return None,
        };
        Some(Self { kind, namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) })
    }

    /// Returns the widest selector of such a policy: everything in its namespace; for a
    /// cluster-wide policy, every pod or every endpoint.
    #[must_use]
    pub fn widest_selector(&self) -> Selector {
        let text = match &*self.namespace {
            "" if self.kind == PolicyKind::KubernetesClusterNetworkPolicy => "has(projectcalico.org/namespace)".into(),
            "" => "all()".into(),
            namespace => format!("projectcalico.org/namespace == '{namespace}'"),
        };
        // No selector can name a namespace with a quote in it.
        Selector::parse(&text).unwrap_or_default()
    }
}

impl fmt::Display for PolicyId {
    /// Writes `Kind/namespace/name`, or `Kind/name` for a global policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind, self.name)
        } else {
            write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// A workload endpoint's identity in the cluster: host, orchestrator, workload, endpoint.
///
/// One shared string, because a cluster holds hundreds of thousands of them and they are mostly
/// hashed and compared.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadEndpointKey {
    text: Arc<str>,
    ends: [u16; 3],
}

impl WorkloadEndpointKey {
    /// Joins the four parts. Parts longer than 65,535 bytes in total are cut.
    #[must_use]
    pub fn new(host: &str, orchestrator: &str, workload: &str, endpoint: &str) -> Self {
        let text = [host, orchestrator, workload, endpoint].concat();
        let end = |parts: &[&str]| u16::try_from(parts.iter().map(|p| p.len()).sum::<usize>()).unwrap_or(u16::MAX);
        Self {
            ends: [end(&[host]), end(&[host, orchestrator]), end(&[host, orchestrator, workload])],
            text: text.into(),
        }
    }

    fn part(&self, index: usize) -> &str {
        let [host, orchestrator, workload] = self.ends.map(usize::from);
        let (from, to) = match index {
            0 => (0, host),
            1 => (host, orchestrator),
            2 => (orchestrator, workload),
            _ => (workload, self.text.len()),
        };
        self.text.get(from..to).unwrap_or_default()
    }

    /// Returns the node that hosts the workload.
    #[must_use]
    pub fn host(&self) -> &str {
        self.part(0)
    }

    /// Returns the orchestrator, `k8s` for pods.
    #[must_use]
    pub fn orchestrator(&self) -> &str {
        self.part(1)
    }

    /// Returns the workload, `namespace/pod` for pods.
    #[must_use]
    pub fn workload(&self) -> &str {
        self.part(2)
    }

    /// Returns the endpoint within the workload, `eth0` for pods.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        self.part(3)
    }

    /// Returns the identity within the node.
    #[must_use]
    pub fn id(&self) -> WorkloadEndpointId {
        WorkloadEndpointId {
            orchestrator: self.orchestrator().into(),
            workload: self.workload().into(),
            endpoint: self.endpoint().into(),
        }
    }
}

impl fmt::Display for WorkloadEndpointKey {
    /// Writes `host/orchestrator/workload/endpoint`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.host(), self.orchestrator(), self.workload(), self.endpoint())
    }
}

impl fmt::Debug for WorkloadEndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.host(), self.orchestrator(), self.workload(), self.endpoint())
    }
}

/// A workload endpoint's identity within its node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct WorkloadEndpointId {
    /// The orchestrator, `k8s` for pods.
    pub orchestrator: Arc<str>,
    /// The workload, `namespace/pod` for pods.
    pub workload: Arc<str>,
    /// The endpoint within the workload, `eth0` for pods.
    pub endpoint: Arc<str>,
}

impl fmt::Display for WorkloadEndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.orchestrator, self.workload, self.endpoint)
    }
}

#[cfg(test)]
mod tests;
