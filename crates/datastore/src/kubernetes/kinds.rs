//! Kinds of objects that an agent reads from an API server.

use serde_json::Value;
use tortie_resources::custom::AddressKind;
use tortie_resources::manifest::{Kind, Options};
use tortie_resources::stored::ResourceKind;

use super::resource::ApiResource;

/// Group of the cluster administrators' policies.
const ADMIN: &str = "policy.networking.k8s.io";

/// Kinds of Kubernetes. Those of the last group are custom resources, which a cluster need not
/// have.
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

/// Kinds that Calico stores as custom resources. Workload endpoints derive from pods, nodes from
/// nodes, and profiles from namespaces and service accounts
/// (`libcalico-go/lib/backend/syncersv1/felixsyncer/felixsyncerv1.go`).
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

/// Calico's kinds that are only passed on.
const CALICO_PASSTHROUGH: [(&str, Kind); 5] = [
    ("bgppeers", Kind::BgpPeer),
    ("ipamblocks", Kind::IpamBlock),
    ("bgpfilters", Kind::BgpFilter),
    ("blockaffinities", Kind::BlockAffinity),
    ("caliconodestatuses", Kind::CalicoNodeStatus),
];

/// Other kinds that are only passed on. A cluster need not have `KubeVirt`.
const PASSTHROUGH: [(ApiResource, Kind); 1] = [(
    ApiResource::new("kubevirt.io", "v1", "virtualmachineinstancemigrations"),
    Kind::VirtualMachineInstanceMigration,
)];

/// Returns the kinds that are read from the start.
pub(super) fn kinds(options: &Options) -> impl Iterator<Item = (ApiResource, Kind)> + use<> {
    let (syncer, block_source) = (options.syncer, options.block_source);
    KUBERNETES.into_iter().chain(PASSTHROUGH).filter(move |(_, kind)| syncer.takes(*kind, block_source))
}

/// Returns the API resource of this kind; `None` if Kubernetes has another kind instead, such as
/// pods for workload endpoints.
pub(super) fn api_resource(kind: ResourceKind, calico: CalicoApi) -> Option<ApiResource> {
    match kind {
        ResourceKind::Node | ResourceKind::Profile | ResourceKind::WorkloadEndpoint => None,
        kind if kind.is_of_kubernetes() => {
            let is_it = |(_, read): &&(ApiResource, Kind)| ResourceKind::in_kubernetes(*read) == Some(kind);
            KUBERNETES.iter().find(is_it).map(|(resource, _)| *resource)
        }
        // It has another name in that API.
        ResourceKind::IpamConfiguration if calico == CalicoApi::CrdV1 => {
            Some(calico.resource(ResourceKind::IpamConfig.plural()))
        }
        kind => Some(calico.resource(kind.plural())),
    }
}

/// Returns the user-written kinds that an agent reads, including Calico's.
pub(super) fn written_kinds() -> impl Iterator<Item = ResourceKind> {
    let kinds = KUBERNETES.iter().map(|(_, kind)| *kind).chain(CALICO.iter().map(|(_, kind)| *kind));
    kinds.filter_map(ResourceKind::in_kubernetes).filter(|kind| !matches!(kind, ResourceKind::ClusterInformation))
}

/// API of Calico's own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalicoApi {
    /// `crd.projectcalico.org/v1`: custom resources in Calico's storage form.
    CrdV1,
    /// `projectcalico.org/v3`: custom resources in the form that users write.
    V3,
}

impl CalicoApi {
    /// Returns the group and version, for messages.
    #[must_use]
    pub fn group_version(self) -> &'static str {
        match self {
            Self::CrdV1 => "crd.projectcalico.org/v1",
            Self::V3 => "projectcalico.org/v3",
        }
    }

    /// Returns the API that a value of `CALICO_API_GROUP` names. As in Calico, any value but that
    /// of v3 names v1 (`UsingV3CRDs` of `libcalico-go/lib/backend/k8s/discovery.go`).
    pub(super) fn named(value: &str) -> Self {
        let api = [Self::V3, Self::CrdV1].into_iter().find(|api| value.eq_ignore_ascii_case(api.group_version()));
        api.unwrap_or_else(|| {
            tracing::warn!(
                CALICO_API_GROUP = value,
                "unknown API of Calico's resources; using crd.projectcalico.org/v1"
            );
            Self::CrdV1
        })
    }

    /// Returns the API resource of a kind of Calico.
    #[must_use]
    pub fn resource(self, plural: &'static str) -> ApiResource {
        ApiResource::new(self.group(), self.version(), plural)
    }

    /// Returns the API resource of a kind of IPAM objects.
    #[must_use]
    pub fn address_resource(self, kind: AddressKind) -> ApiResource {
        match (self, kind) {
            // `ipam_config.go` of `libcalico-go/lib/backend/k8s/resources`.
            (Self::V3, AddressKind::Config) => self.resource(ResourceKind::IpamConfiguration.plural()),
            _ => self.resource(kind.plural()),
        }
    }

    /// Returns the value of the field `deleted` that marks an IPAM object for deletion.
    pub(super) fn deletion_mark(self, kind: AddressKind) -> Value {
        // The field of this kind was a string by mistake.
        if (self, kind) == (Self::CrdV1, AddressKind::Affinity) { "true".into() } else { true.into() }
    }

    pub(super) fn group(self) -> &'static str {
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

    /// Returns the kinds that are read by this API.
    pub(super) fn kinds(self, options: &Options) -> impl Iterator<Item = (ApiResource, Kind)> + use<> {
        let (syncer, block_source) = (options.syncer, options.block_source);
        let takes = move |kind: Kind| syncer.takes(kind, block_source);
        let kinds = CALICO.into_iter().chain(CALICO_PASSTHROUGH).filter(move |(_, kind)| takes(*kind));
        kinds.map(move |(plural, kind)| (self.resource(plural), kind))
    }
}
