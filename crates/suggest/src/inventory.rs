//! Objects of a cluster that edges and selectors refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use tortie_analysis::trace::AddressIndex;
use tortie_model::{
    Cidr, Direction, Labels, NetworkSetName, Policy, PolicyId, ProfileName, Update, WorkloadEndpointKey,
};

use crate::labels::{LabelMap, is_plain};
use crate::owner::Owner;

/// A pod of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) owner: Owner,
    pub(crate) labels: LabelMap,
    pub(crate) node: Arc<str>,
    pub(crate) key: WorkloadEndpointKey,
    /// Its labels, with those that its namespace and service account give it.
    pub(crate) all_labels: Labels,
    pub(crate) profiles: Arc<[ProfileName]>,
}

/// Pods, nodes, network sets, pools and policies of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// Pods by `namespace/name`.
    pub(crate) pods: BTreeMap<Arc<str>, Pod>,
    /// Owners that have pods, with the names of these as in `pods`.
    pub(crate) owners: BTreeMap<Owner, Vec<Arc<str>>>,
    /// Addresses of nodes.
    pub(crate) nodes: BTreeMap<Arc<str>, BTreeSet<IpAddr>>,
    /// Networks that stand for all nodes, once they are needed.
    pub(crate) node_networks: OnceLock<BTreeSet<Cidr>>,
    /// Networks of network sets.
    pub(crate) network_sets: BTreeMap<NetworkSetName, BTreeSet<Cidr>>,
    /// Networks of IP pools, and of the pods of nodes.
    pub(crate) pools: BTreeSet<Cidr>,
    /// Addresses of pods.
    addresses: BTreeSet<IpAddr>,
    profiles: BTreeMap<ProfileName, Labels>,
    policies: BTreeMap<PolicyId, Policy>,
    index: AddressIndex,
    /// Prefixes from which names of pods were generated, by namespace, with the owner.
    generated: BTreeMap<(Arc<str>, Arc<str>), Owner>,
}

impl Inventory {
    pub(crate) fn new(cluster: &[Update]) -> Self {
        let mut inventory = Self::default();
        for update in cluster {
            inventory.index.replace(None, update);
            inventory.add(update);
        }
        for (name, pod) in &inventory.pods {
            inventory.owners.entry(pod.owner.clone()).or_default().push(Arc::clone(name));
        }
        inventory
    }

    fn add(&mut self, update: &Update) {
        match update {
            Update::WorkloadEndpoint(key, Some(endpoint)) => {
                let Some((namespace, name)) = key.workload().split_once('/') else { return };
                if !is_plain(key.workload()) {
                    return;
                }
                let labels: LabelMap = own_labels(&endpoint.labels);
                let owner = Owner::of_pod(namespace, name, &labels, endpoint.generate_name.as_deref());
                if let Some(prefix) = &endpoint.generate_name {
                    self.generated.insert((namespace.into(), Arc::clone(prefix)), owner.clone());
                }
                self.addresses.extend(endpoint.nets().map(Cidr::address));
                let pod = Pod {
                    owner,
                    labels,
                    node: key.host().into(),
                    key: key.clone(),
                    all_labels: endpoint.labels.clone(),
                    profiles: Arc::clone(&endpoint.profiles),
                };
                self.pods.insert(key.workload().into(), pod);
            }
            Update::Node(host, Some(node)) => {
                self.nodes.entry(host.as_str().into()).or_default().extend(node.own_addresses());
                self.pools.extend(node.pod_networks.iter().copied());
            }
            Update::HostEndpoint(key, Some(endpoint)) => {
                let addresses = endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).copied();
                self.nodes.entry(key.host.as_str().into()).or_default().extend(addresses);
            }
            Update::NetworkSet(name, Some(set)) => {
                self.network_sets.insert(name.clone(), set.nets.iter().map(Cidr::masked).collect());
            }
            Update::IpPool(cidr, Some(_)) => {
                self.pools.insert(*cidr);
            }
            Update::Profile(name, Some(profile)) => {
                self.profiles.insert(name.clone(), profile.labels.clone());
            }
            Update::Policy(id, Some(policy)) if !id.kind.is_staged() => {
                self.policies.insert(id.clone(), Policy::clone(policy));
            }
            _ => {}
        }
    }

    /// Returns the owner of a pod that exists.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.pods.get(format!("{namespace}/{name}").as_str())
    }

    /// Returns the owner of a pod that no longer exists, by the names of its namespace's pods.
    pub(crate) fn former_owner(&self, namespace: &str, name: &str) -> Option<&Owner> {
        let (prefix, _) = name.rsplit_once('-')?;
        let generated = self.generated.get(&(namespace.into(), format!("{prefix}-").into()));
        generated.or_else(|| {
            // The pod was of another revision of a Deployment, or of a StatefulSet.
            let template = prefix.rsplit_once('-').map(|(name, _)| name);
            let mut owners = self.owners.keys().filter(|owner| *owner.namespace == *namespace);
            owners.find(|owner| match owner.kind {
                crate::OwnerKind::Deployment => template == Some(&*owner.name),
                crate::OwnerKind::StatefulSet => prefix == &*owner.name,
                _ => false,
            })
        })
    }

    /// Returns the owner of pods whose names begin with a generated prefix.
    pub(crate) fn owner_by_prefix(&self, namespace: &str, prefix: &str) -> Option<&Owner> {
        self.generated.get(&(namespace.into(), prefix.into()))
    }

    /// Returns the network set that contains an address, for rules of a namespace.
    pub(crate) fn network_set(&self, address: IpAddr, namespace: &str) -> Option<&NetworkSetName> {
        self.index.network_set(address, Some(namespace))
    }

    /// Reports whether a network contains the address of a pod, or shares addresses with a pool.
    pub(crate) fn has_pods(&self, net: Cidr) -> bool {
        let overlaps = |pool: &Cidr| pool.contains(net.address()) || net.contains(pool.address());
        self.pools.iter().any(overlaps)
            || self.addresses.range(net.address()..=net.last_host().address()).next().is_some()
    }

    /// Reports whether an enforced policy of the cluster isolates a pod in this direction.
    pub(crate) fn is_isolated(&self, pod: &Pod, direction: Direction) -> bool {
        let (namespace, _) = pod.key.workload().split_once('/').unwrap_or_default();
        let inherited = pod.profiles.iter().filter_map(|name| self.profiles.get(name));
        let mut labels: BTreeMap<&str, &str> = inherited.flat_map(Labels::iter).collect();
        labels.extend(pod.all_labels.iter());
        self.policies.values().any(|policy| {
            policy.types.includes(direction)
                && !policy.untracked
                && !policy.pre_dnat
                && policy.namespace.as_deref().is_none_or(|of| of == namespace)
                && policy.selector.matches(&labels)
        })
    }
}

/// Returns the labels that a pod's object has, without those that its namespace and service account
/// give it.
fn own_labels(labels: &Labels) -> LabelMap {
    let own = labels.iter().filter(|(key, _)| !key.starts_with("projectcalico.org/"));
    own.map(|(key, value)| (key.into(), value.into())).collect()
}
