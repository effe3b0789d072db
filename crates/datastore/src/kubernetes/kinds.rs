//! What an agent needs of an API server.

use tortie_resources::manifest::{Kind, Options};
use tortie_resources::stored::ResourceKind;

use super::resource::ApiResource;

/// The group of the policies of who administers a cluster.
const ADMIN: &str = "policy.networking.k8s.io";

/// Kinds of Kubernetes. Those of the last group are installed where somebody wants them.
const KUBERNETES: [(ApiResource, Kind); 10] = [
    (ApiResource::NAMESPACES, Kind::Namespace),
    (ApiResource::SERVICE_ACCOUNTS, Kind::ServiceAccount),
    (ApiResource::PODS, Kind::Pod),
    (ApiResource::NODES, Kind::KubernetesNode),
    (ApiResource::SERVICES, Kind::Service),
    (ApiResource::ENDPOINT_SLICES, Kind::EndpointSlice),
    (ApiResource::NETWORK_POLICIES, Kind::KubernetesNetworkPolicy),
    (ApiResource::new(ADMIN, "v1alpha2", "clusternetworkpolicies"), Kind::ClusterNetworkPolicy),
    (ApiResource::new(ADMIN, "v1alpha1", "adminnetworkpolicies"), Kind::AdminNetworkPolicy),
    (ApiResource::new(ADMIN, "v1alpha1", "baselineadminnetworkpolicies"), Kind::BaselineAdminNetworkPolicy),
];

/// Kinds of Calico that it keeps as custom resources; pods stand for workload endpoints, nodes for nodes, and namespaces
/// and service accounts for profiles (`libcalico-go/lib/backend/syncersv1/felixsyncer/felixsyncerv1.go`).
const CALICO: [(&str, Kind); 13] = [
    ("clusterinformations", Kind::ClusterInformation),
    ("felixconfigurations", Kind::FelixConfiguration),
    ("bgpconfigurations", Kind::BgpConfiguration),
    ("tiers", Kind::Tier),
    ("globalnetworkpolicies", Kind::GlobalNetworkPolicy),
    ("networkpolicies", Kind::NetworkPolicy),
    ("stagedglobalnetworkpolicies", Kind::StagedGlobalNetworkPolicy),
    ("stagednetworkpolicies", Kind::StagedNetworkPolicy),
    ("stagedkubernetesnetworkpolicies", Kind::StagedKubernetesNetworkPolicy),
    ("globalnetworksets", Kind::GlobalNetworkSet),
    ("networksets", Kind::NetworkSet),
    ("hostendpoints", Kind::HostEndpoint),
    ("ippools", Kind::IpPool),
];

/// Kinds of Calico that are only passed on.
const CALICO_PASSTHROUGH: [(&str, Kind); 5] = [
    ("bgppeers", Kind::BgpPeer),
    ("ipamblocks", Kind::IpamBlock),
    ("bgpfilters", Kind::BgpFilter),
    ("blockaffinities", Kind::BlockAffinity),
    ("caliconodestatuses", Kind::CalicoNodeStatus),
];

/// Other kinds that are only passed on. `KubeVirt` is installed where somebody wants it.
const PASSTHROUGH: [(ApiResource, Kind); 1] = [(
    ApiResource::new("kubevirt.io", "v1", "virtualmachineinstancemigrations"),
    Kind::VirtualMachineInstanceMigration,
)];

/// The kinds that are read from the beginning.
pub(super) fn kinds(options: &Options) -> impl Iterator<Item = (ApiResource, Kind)> + use<> {
    let (syncer, block_source) = (options.syncer, options.block_source);
    KUBERNETES.into_iter().chain(PASSTHROUGH).filter(move |(_, kind)| syncer.takes(*kind, block_source))
}

/// Where objects of this kind are; `None` if Kubernetes has something else in place of them, such as pods for workload endpoints.
pub(super) fn api_resource(kind: ResourceKind, calico: CalicoApi) -> Option<ApiResource> {
    match kind {
        ResourceKind::Node | ResourceKind::Profile | ResourceKind::WorkloadEndpoint => None,
        kind if kind.is_of_kubernetes() => {
            let is_it = |(_, read): &&(ApiResource, Kind)| ResourceKind::in_kubernetes(*read) == Some(kind);
            KUBERNETES.iter().find(is_it).map(|(resource, _)| *resource)
        }
        // The other form of it has a name of its own.
        ResourceKind::IpamConfiguration if calico == CalicoApi::CrdV1 => {
            Some(calico.resource(ResourceKind::IpamConfig.plural()))
        }
        kind => Some(calico.resource(kind.plural())),
    }
}

/// The kinds of what people write that are read from the beginning, or once Calico's are installed.
pub(super) fn written_kinds() -> impl Iterator<Item = ResourceKind> {
    let kinds = KUBERNETES.iter().map(|(_, kind)| *kind).chain(CALICO.iter().map(|(_, kind)| *kind));
    kinds.filter_map(ResourceKind::in_kubernetes).filter(|kind| !matches!(kind, ResourceKind::ClusterInformation))
}

/// The API by which Calico's own kinds are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalicoApi {
    /// Custom resources in a form of storage.
    CrdV1,
    /// Custom resources as people write them.
    V3,
}

impl CalicoApi {
    /// The group and version, for messages.
    pub(super) fn group_version(self) -> &'static str {
        match self {
            Self::CrdV1 => "crd.projectcalico.org/v1",
            Self::V3 => "projectcalico.org/v3",
        }
    }

    /// Which one, by the groups that a server has. If it has both, one is a view of the other
    /// (`libcalico-go/lib/backend/k8s/discovery.go`).
    pub(super) fn of(groups: &[String]) -> Option<Self> {
        let has = |api: Self| groups.iter().any(|group| group == api.group());
        [Self::CrdV1, Self::V3].into_iter().find(|api| has(*api))
    }

    /// A kind of Calico.
    pub(super) fn resource(self, plural: &'static str) -> ApiResource {
        ApiResource::new(self.group(), self.version(), plural)
    }

    fn group(self) -> &'static str {
        match self {
            Self::CrdV1 => "crd.projectcalico.org",
            Self::V3 => "projectcalico.org",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Self::CrdV1 => "v1",
            Self::V3 => "v3",
        }
    }

    /// The kinds that are read by this API.
    pub(super) fn kinds(self, options: &Options) -> impl Iterator<Item = (ApiResource, Kind)> + use<> {
        let (syncer, block_source) = (options.syncer, options.block_source);
        let takes = move |kind: Kind| syncer.takes(kind, block_source);
        let kinds = CALICO.into_iter().chain(CALICO_PASSTHROUGH).filter(move |(_, kind)| takes(*kind));
        kinds.map(move |(plural, kind)| (self.resource(plural), kind))
    }
}
