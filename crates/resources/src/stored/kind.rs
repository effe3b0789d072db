//! Kinds of resources in a datastore.

use std::fmt;
use std::str::FromStr;

use crate::object::Kind;
use crate::spelling::suggestion;

/// Kind of resource in a datastore: the kinds of `projectcalico.org/v3` that etcd stores
/// (`libcalico-go/lib/backend/model/resource.go`), for the model or for other components alone; and
/// policies of Kubernetes, which exist only if Kubernetes is the datastore, with Calico's names for
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the resources")]
pub enum ResourceKind {
    BgpConfiguration,
    BgpFilter,
    BgpPeer,
    BlockAffinity,
    CalicoNodeStatus,
    ClusterInformation,
    FelixConfiguration,
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    IpamConfig,
    IpamConfiguration,
    IpPool,
    IpReservation,
    KubeControllersConfiguration,
    LiveMigration,
    NetworkPolicy,
    NetworkSet,
    Node,
    Profile,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
    KubernetesAdminNetworkPolicy,
    KubernetesBaselineAdminNetworkPolicy,
    KubernetesClusterNetworkPolicy,
    KubernetesNetworkPolicy,
}

struct Row {
    kind: ResourceKind,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
    /// Names that calicoctl accepts besides the name and the plural
    /// (`calicoctl/calicoctl/resourcemgr`).
    short: &'static [&'static str],
    /// The corresponding kind of a manifest, if it is supported.
    understood: Option<Kind>,
}

macro_rules! rows {
    ($($kind:ident, $name:literal, $plural:literal, $namespaced:literal, [$($short:literal),*], $understood:expr;)*) => {
        [$(Row {
            kind: ResourceKind::$kind,
            name: $name,
            plural: $plural,
            namespaced: $namespaced,
            short: &[$($short),*],
            understood: $understood,
        }),*]
    };
}

static ROWS: [Row; 29] = rows![
    BgpConfiguration, "BGPConfiguration", "bgpconfigurations", false, ["bgpconfig", "bgpconfigs"], Some(Kind::BgpConfiguration);
    BgpFilter, "BGPFilter", "bgpfilters", false, ["bgpf", "bgpfs", "bf", "bfs"], None;
    BgpPeer, "BGPPeer", "bgppeers", false, ["bgpp", "bgpps", "bp", "bps"], Some(Kind::BgpPeer);
    BlockAffinity, "BlockAffinity", "blockaffinities", false, [], None;
    CalicoNodeStatus, "CalicoNodeStatus", "caliconodestatuses", false, ["nodestatus", "nodestatuses"], None;
    ClusterInformation, "ClusterInformation", "clusterinformations", false, ["clusterinfo", "clusterinfos"], Some(Kind::ClusterInformation);
    FelixConfiguration, "FelixConfiguration", "felixconfigurations", false, ["felixconfig", "felixconfigs"], Some(Kind::FelixConfiguration);
    GlobalNetworkPolicy, "GlobalNetworkPolicy", "globalnetworkpolicies", false, ["gnp", "gnps"], Some(Kind::GlobalNetworkPolicy);
    GlobalNetworkSet, "GlobalNetworkSet", "globalnetworksets", false, ["gnetsets"], Some(Kind::GlobalNetworkSet);
    HostEndpoint, "HostEndpoint", "hostendpoints", false, ["hep", "heps"], Some(Kind::HostEndpoint);
    IpamConfig, "IPAMConfig", "ipamconfigs", false, [], None;
    IpamConfiguration, "IPAMConfiguration", "ipamconfigurations", false, ["ipamconfig", "ipamconfigs"], None;
    IpPool, "IPPool", "ippools", false, ["ipp", "ipps", "pool", "pools"], Some(Kind::IpPool);
    IpReservation, "IPReservation", "ipreservations", false, ["reservation", "reservations"], None;
    KubeControllersConfiguration, "KubeControllersConfiguration", "kubecontrollersconfigurations", false, ["kubecontrollersconfig", "kubecontrollersconfigs"], None;
    LiveMigration, "LiveMigration", "livemigrations", true, [], Some(Kind::LiveMigration);
    NetworkPolicy, "NetworkPolicy", "networkpolicies", true, ["policy", "np", "policies", "pol", "pols"], Some(Kind::NetworkPolicy);
    NetworkSet, "NetworkSet", "networksets", true, ["netsets"], Some(Kind::NetworkSet);
    Node, "Node", "nodes", false, ["no", "nos"], Some(Kind::Node);
    Profile, "Profile", "profiles", false, ["pro", "pros"], Some(Kind::Profile);
    StagedGlobalNetworkPolicy, "StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies", false, ["sgnp", "sgnps"], Some(Kind::StagedGlobalNetworkPolicy);
    StagedKubernetesNetworkPolicy, "StagedKubernetesNetworkPolicy", "stagedkubernetesnetworkpolicies", true, ["stagedkubernetespolicy", "sknp", "stagedkubernetespolicies", "skpol", "skpols"], Some(Kind::StagedKubernetesNetworkPolicy);
    StagedNetworkPolicy, "StagedNetworkPolicy", "stagednetworkpolicies", true, ["stagedpolicy", "snp", "stagedpolicies", "spol", "spols"], Some(Kind::StagedNetworkPolicy);
    Tier, "Tier", "tiers", false, [], Some(Kind::Tier);
    WorkloadEndpoint, "WorkloadEndpoint", "workloadendpoints", true, ["wep", "weps"], Some(Kind::WorkloadEndpoint);
    KubernetesAdminNetworkPolicy, "KubernetesAdminNetworkPolicy", "kubernetesadminnetworkpolicies", false, ["adminnetworkpolicy", "adminnetworkpolicies", "anp"], None;
    KubernetesBaselineAdminNetworkPolicy, "KubernetesBaselineAdminNetworkPolicy", "kubernetesbaselineadminnetworkpolicies", false, ["baselineadminnetworkpolicy", "baselineadminnetworkpolicies", "banp"], None;
    KubernetesClusterNetworkPolicy, "KubernetesClusterNetworkPolicy", "kubernetesclusternetworkpolicies", false, ["clusternetworkpolicy", "clusternetworkpolicies", "cnp"], None;
    KubernetesNetworkPolicy, "KubernetesNetworkPolicy", "kubernetesnetworkpolicies", true, ["knp", "knps"], None;
];

impl ResourceKind {
    /// Returns every kind that etcd stores, sorted by name.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.kind).filter(|kind| !kind.is_of_kubernetes())
    }

    /// Returns the kind of Calico with this name, as in the field `kind`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.as_str() == name)
    }

    /// Returns every kind of Kubernetes.
    pub fn of_kubernetes() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.kind).filter(|kind| kind.is_of_kubernetes())
    }

    /// Reports whether it is a kind of Kubernetes, whose objects only Kubernetes stores.
    #[must_use]
    pub fn is_of_kubernetes(self) -> bool {
        self.of_api().is_some()
    }

    /// Returns the manifest kind and the API of a kind of Kubernetes.
    fn of_api(self) -> Option<(Kind, &'static str)> {
        match self {
            Self::KubernetesAdminNetworkPolicy => Some((Kind::AdminNetworkPolicy, "policy.networking.k8s.io/v1alpha1")),
            Self::KubernetesBaselineAdminNetworkPolicy => {
                Some((Kind::BaselineAdminNetworkPolicy, "policy.networking.k8s.io/v1alpha1"))
            }
            Self::KubernetesClusterNetworkPolicy => {
                Some((Kind::ClusterNetworkPolicy, "policy.networking.k8s.io/v1alpha2"))
            }
            Self::KubernetesNetworkPolicy => Some((Kind::KubernetesNetworkPolicy, "networking.k8s.io/v1")),
            _ => None,
        }
    }

    /// Returns the `apiVersion` of objects of this kind in their user-visible form.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        self.of_api().map_or(super::API_VERSION, |(_, api_version)| api_version)
    }

    /// Returns the `kind` of objects of this kind in their user-visible form.
    #[must_use]
    pub fn written(self) -> &'static str {
        self.of_api().map_or(self.as_str(), |(kind, _)| kind.as_str())
    }

    /// Returns the stored kind for a manifest kind if Kubernetes is the datastore; `None` for kinds
    /// that are not written through this crate.
    #[must_use]
    pub fn in_kubernetes(kind: Kind) -> Option<Self> {
        let own = || Self::of_kubernetes().find(|own| own.of_api().is_some_and(|(its, _)| its == kind));
        Self::of(kind).or_else(own)
    }

    /// Returns the kind with this plural, as in paths.
    #[must_use]
    pub fn from_plural(plural: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.plural == plural).map(|row| row.kind)
    }

    #[expect(clippy::indexing_slicing, reason = "a row for each kind; the tests look at all")]
    fn row(self) -> &'static Row {
        // The rows are in the order of the enum.
        &ROWS[self as usize]
    }

    /// Returns the name. For Calico's kinds it is the `kind` field; see [`ResourceKind::written`].
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Returns the names that calicoctl accepts besides name and plural; for kinds of Kubernetes,
    /// their short names.
    #[must_use]
    pub fn short_names(self) -> &'static [&'static str] {
        self.row().short
    }

    /// Returns the name as kubectl prints it: in lower case, with the API group.
    #[must_use]
    pub fn qualified(self) -> String {
        format!("{}.{}", self.written().to_ascii_lowercase(), self.group())
    }

    /// Returns the API group.
    fn group(self) -> &'static str {
        self.api_version().split('/').next().unwrap_or_default()
    }

    /// Reports whether a word is the name of the kind in its API, or the plural of that name.
    fn is_written(self, lower: &str) -> bool {
        let written = self.written().to_ascii_lowercase();
        let plural = match written.strip_suffix('y') {
            Some(stem) if self.row().plural.ends_with("ies") => format!("{stem}ies"),
            _ => self.row().plural.to_owned(),
        };
        lower == written || lower == plural
    }

    /// Returns the plural as in paths.
    #[must_use]
    pub fn plural(self) -> &'static str {
        self.row().plural
    }

    /// Reports whether resources of this kind are namespaced.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        self.row().namespaced
    }

    /// Returns the corresponding manifest kind; `None` if it has no meaning for the model.
    #[must_use]
    pub fn understood(self) -> Option<Kind> {
        self.row().understood
    }

    /// Returns the manifest kind as which any syncer reads it, with or without a meaning for the
    /// model.
    #[must_use]
    pub fn read_as(self) -> Option<Kind> {
        match self {
            Self::BgpFilter => Some(Kind::BgpFilter),
            Self::CalicoNodeStatus => Some(Kind::CalicoNodeStatus),
            kind => kind.understood(),
        }
    }

    /// Returns the stored kind of a manifest kind; `None` for kinds of other APIs than Calico's.
    #[must_use]
    pub fn of(kind: Kind) -> Option<Self> {
        ROWS.iter().find(|row| row.understood == Some(kind)).map(|row| row.kind)
    }

    /// Reports whether users write resources of this kind: those that calicoctl knows.
    #[must_use]
    pub fn is_for_people(self) -> bool {
        !matches!(self, Self::BlockAffinity | Self::IpamConfig | Self::LiveMigration)
    }

    /// Reports whether the name of such a policy is kept in an annotation besides its path, because
    /// releases up to 3.29 put the tier before it (`defaultPolicyName` of
    /// `libcalico-go/lib/backend/etcdv3/etcdv3.go`).
    #[must_use]
    pub fn has_tier(self) -> bool {
        matches!(
            self,
            Self::NetworkPolicy
                | Self::GlobalNetworkPolicy
                | Self::StagedNetworkPolicy
                | Self::StagedGlobalNetworkPolicy
        )
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of resource that the datastore keeps{near}", near = nearest(.0))]
pub struct UnknownKind(pub String);

/// Returns a hint at the most similar kind. Words of two letters are left out, because they
/// resemble too many.
fn nearest(word: &str) -> String {
    let names = ROWS.iter().flat_map(|row| [row.name, row.plural].into_iter().chain(row.short.iter().copied()));
    let names: Vec<&str> = names.filter(|name| name.len() > 2).collect();
    suggestion(word, &names)
}

impl FromStr for ResourceKind {
    type Err = UnknownKind;

    /// Reads a kind from a command line: the name in any case, the plural, or one of calicoctl's
    /// short names; or, as in kubectl, the name or plural with the API group, such as
    /// `networkpolicies.networking.k8s.io`.
    fn from_str(word: &str) -> Result<Self, UnknownKind> {
        let lower = word.to_ascii_lowercase();
        let unknown = || UnknownKind(word.to_owned());
        if let Some((name, group)) = lower.split_once('.') {
            let group = if group == "crd.projectcalico.org" { "projectcalico.org" } else { group };
            let named = |kind: &Self| kind.group() == group && kind.is_written(name);
            return ROWS.iter().map(|row| row.kind).find(named).ok_or_else(unknown);
        }
        let named = |row: &&Row| {
            row.name.eq_ignore_ascii_case(&lower) || row.plural == lower || row.short.contains(&lower.as_str())
        };
        // `ipamconfig` is also the name of a kind that users do not write.
        let kinds = || ROWS.iter().filter(named).map(|row| row.kind);
        kinds().find(|kind| kind.is_for_people()).or_else(|| kinds().next()).ok_or_else(unknown)
    }
}
