//! Supported kinds, and the identity of an object.

use std::fmt;
use std::sync::Arc;

use crate::spelling::closest;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the resources")]
pub enum Kind {
    NetworkPolicy,
    GlobalNetworkPolicy,
    StagedNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    Tier,
    Profile,
    NetworkSet,
    GlobalNetworkSet,
    WorkloadEndpoint,
    HostEndpoint,
    IpPool,
    Node,
    FelixConfiguration,
    ClusterInformation,
    BgpConfiguration,
    BgpPeer,
    IpamBlock,
    LiveMigration,
    BgpFilter,
    BlockAffinity,
    CalicoNodeStatus,
    Namespace,
    ServiceAccount,
    Pod,
    Service,
    EndpointSlice,
    Endpoints,
    KubernetesNode,
    KubernetesNetworkPolicy,
    ClusterNetworkPolicy,
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    VirtualMachineInstanceMigration,
}

/// API of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    /// `projectcalico.org/v3`, or its storage form `crd.projectcalico.org/v1`.
    Calico,
    /// `v1`.
    Core,
    /// `networking.k8s.io/v1`.
    Networking,
    /// `discovery.k8s.io/v1`.
    Discovery,
    /// `policy.networking.k8s.io/v1alpha1`.
    AdminV1Alpha1,
    /// `policy.networking.k8s.io/v1alpha2`.
    AdminV1Alpha2,
    /// `kubevirt.io/v1`.
    KubeVirt,
}

impl Api {
    fn find(api_version: &str) -> Option<Self> {
        match api_version {
            "projectcalico.org/v3" | "crd.projectcalico.org/v1" => Some(Self::Calico),
            "v1" => Some(Self::Core),
            "networking.k8s.io/v1" => Some(Self::Networking),
            "discovery.k8s.io/v1" => Some(Self::Discovery),
            "policy.networking.k8s.io/v1alpha1" => Some(Self::AdminV1Alpha1),
            "policy.networking.k8s.io/v1alpha2" => Some(Self::AdminV1Alpha2),
            "kubevirt.io/v1" => Some(Self::KubeVirt),
            _ => None,
        }
    }
}

/// Kind, API, name, and whether objects are namespaced.
const KINDS: [(Kind, Api, &str, bool); 34] = [
    (Kind::NetworkPolicy, Api::Calico, "NetworkPolicy", true),
    (Kind::GlobalNetworkPolicy, Api::Calico, "GlobalNetworkPolicy", false),
    (Kind::StagedNetworkPolicy, Api::Calico, "StagedNetworkPolicy", true),
    (Kind::StagedGlobalNetworkPolicy, Api::Calico, "StagedGlobalNetworkPolicy", false),
    (Kind::StagedKubernetesNetworkPolicy, Api::Calico, "StagedKubernetesNetworkPolicy", true),
    (Kind::Tier, Api::Calico, "Tier", false),
    (Kind::Profile, Api::Calico, "Profile", false),
    (Kind::NetworkSet, Api::Calico, "NetworkSet", true),
    (Kind::GlobalNetworkSet, Api::Calico, "GlobalNetworkSet", false),
    (Kind::WorkloadEndpoint, Api::Calico, "WorkloadEndpoint", true),
    (Kind::HostEndpoint, Api::Calico, "HostEndpoint", false),
    (Kind::IpPool, Api::Calico, "IPPool", false),
    (Kind::Node, Api::Calico, "Node", false),
    (Kind::FelixConfiguration, Api::Calico, "FelixConfiguration", false),
    (Kind::ClusterInformation, Api::Calico, "ClusterInformation", false),
    (Kind::BgpConfiguration, Api::Calico, "BGPConfiguration", false),
    (Kind::BgpPeer, Api::Calico, "BGPPeer", false),
    (Kind::IpamBlock, Api::Calico, "IPAMBlock", false),
    (Kind::LiveMigration, Api::Calico, "LiveMigration", true),
    (Kind::BgpFilter, Api::Calico, "BGPFilter", false),
    (Kind::BlockAffinity, Api::Calico, "BlockAffinity", false),
    (Kind::CalicoNodeStatus, Api::Calico, "CalicoNodeStatus", false),
    (Kind::Namespace, Api::Core, "Namespace", false),
    (Kind::ServiceAccount, Api::Core, "ServiceAccount", true),
    (Kind::Pod, Api::Core, "Pod", true),
    (Kind::Service, Api::Core, "Service", true),
    (Kind::EndpointSlice, Api::Discovery, "EndpointSlice", true),
    (Kind::Endpoints, Api::Core, "Endpoints", true),
    (Kind::KubernetesNode, Api::Core, "Node", false),
    (Kind::KubernetesNetworkPolicy, Api::Networking, "NetworkPolicy", true),
    (Kind::ClusterNetworkPolicy, Api::AdminV1Alpha2, "ClusterNetworkPolicy", false),
    (Kind::AdminNetworkPolicy, Api::AdminV1Alpha1, "AdminNetworkPolicy", false),
    (Kind::BaselineAdminNetworkPolicy, Api::AdminV1Alpha1, "BaselineAdminNetworkPolicy", false),
    (Kind::VirtualMachineInstanceMigration, Api::KubeVirt, "VirtualMachineInstanceMigration", true),
];

impl Kind {
    /// Returns the kind of this `apiVersion` and `kind`.
    #[must_use]
    pub fn find(api_version: &str, kind: &str) -> Option<Self> {
        let api = Api::find(api_version)?;
        KINDS.into_iter().find(|(_, of, name, _)| *of == api && *name == kind).map(|(kind, ..)| kind)
    }

    /// Returns the kind of policy with a similar name in the same API.
    pub(crate) fn policy_like(api_version: &str, name: &str) -> Option<&'static str> {
        let api = Api::find(api_version)?;
        let policies = KINDS.into_iter().filter(|(kind, of, ..)| *of == api && kind.is_policy());
        let names: Vec<&'static str> = policies.map(|(_, _, name, _)| name).collect();
        closest(name, &names)
    }

    /// Reports whether this is a supported kind of policy in an unsupported API or version. Without
    /// a report, traffic that the policy denies would stay open unnoticed.
    pub(crate) fn is_policy_of_other_version(api_version: &str, name: &str) -> bool {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let known = ["", "extensions", "networking.k8s.io", "projectcalico.org", "crd.projectcalico.org"];
        (known.contains(&group) || group == "policy.networking.k8s.io")
            && KINDS.into_iter().any(|(kind, _, policy, _)| kind.is_policy() && policy == name)
    }

    /// Reports whether a kind without support has the name of a supported one in another version of
    /// its API, or a similar name in the same one.
    pub(crate) fn resembles_known(api_version: &str, name: &str) -> bool {
        let group = |api_version: &str| api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
        let own = group(api_version);
        KINDS.into_iter().any(|(kind, _, known, _)| known == name && group(kind.api_version()) == own)
            || Api::find(api_version).is_some_and(|api| {
                let names: Vec<&str> =
                    KINDS.into_iter().filter(|(_, of, ..)| *of == api).map(|(_, _, name, _)| name).collect();
                closest(name, &names).is_some()
            })
    }

    /// Returns every supported `apiVersion` of the kinds of policy with this name.
    pub(crate) fn policy_versions(name: &str) -> impl Iterator<Item = &'static str> {
        let kinds = KINDS.into_iter().filter(move |(kind, _, policy, _)| kind.is_policy() && *policy == name);
        kinds.map(|(kind, ..)| kind.api_version())
    }

    /// Returns the `apiVersion` of written objects of this kind; `projectcalico.org/v3` for
    /// Calico's kinds.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        let api = KINDS.into_iter().find(|(kind, ..)| *kind == self).map_or(Api::Core, |(_, api, ..)| api);
        match api {
            Api::Calico => "projectcalico.org/v3",
            Api::Core => "v1",
            Api::Networking => "networking.k8s.io/v1",
            Api::Discovery => "discovery.k8s.io/v1",
            Api::AdminV1Alpha1 => "policy.networking.k8s.io/v1alpha1",
            Api::AdminV1Alpha2 => "policy.networking.k8s.io/v1alpha2",
            Api::KubeVirt => "kubevirt.io/v1",
        }
    }

    /// Reports whether this `apiVersion` is one of Calico's API.
    pub(crate) fn is_version_of_calico(api_version: &str) -> bool {
        Api::find(api_version) == Some(Api::Calico)
    }

    /// Reports whether this is a kind of Calico's API.
    pub(crate) fn is_calico(self) -> bool {
        KINDS.into_iter().any(|(kind, api, ..)| kind == self && api == Api::Calico)
    }

    /// Reports whether older releases put a prefix before the names of these policies.
    pub(crate) fn has_prefixed_names(self) -> bool {
        matches!(
            self,
            Self::NetworkPolicy
                | Self::GlobalNetworkPolicy
                | Self::StagedNetworkPolicy
                | Self::StagedGlobalNetworkPolicy
        )
    }

    fn row(self) -> (&'static str, bool) {
        KINDS.into_iter().find(|(kind, ..)| *kind == self).map_or(("", false), |(_, _, name, ns)| (name, ns))
    }

    /// Returns the name as in the field `kind`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Reports whether objects of this kind are namespaced.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        self.row().1
    }

    /// Reports whether objects of this kind are passed on to Felix unchanged.
    #[must_use]
    pub fn is_passthrough(self) -> bool {
        matches!(self, Self::BgpPeer | Self::IpamBlock | Self::LiveMigration | Self::VirtualMachineInstanceMigration)
    }

    /// Reports whether objects of this kind are policies, which must fail closed.
    #[must_use]
    pub fn is_policy(self) -> bool {
        matches!(
            self,
            Self::NetworkPolicy
                | Self::GlobalNetworkPolicy
                | Self::StagedNetworkPolicy
                | Self::StagedGlobalNetworkPolicy
                | Self::StagedKubernetesNetworkPolicy
                | Self::KubernetesNetworkPolicy
                | Self::ClusterNetworkPolicy
                | Self::AdminNetworkPolicy
                | Self::BaselineAdminNetworkPolicy
        )
    }
}

/// Identity of an object. The order is by name first, which decides between two objects with the
/// same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The name.
    pub name: Arc<str>,
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    /// The kind.
    pub kind: Kind,
}

impl fmt::Display for ObjectId {
    /// Writes `Kind/namespace/name`, or `Kind/name` for a cluster-scoped object.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind.as_str(), self.name)
        } else {
            write!(f, "{}/{}/{}", self.kind.as_str(), self.namespace, self.name)
        }
    }
}
