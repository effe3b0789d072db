//! Proof that policies allow the edges from which they were made.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_calc::{Graph, ReadyFlag};
use tortie_evaluate::{Evaluator, Missing, MixedFamilies, Packet, Payload, UpdateError, Verdict};
use tortie_model::{
    Cidr, Direction, HostEndpointKey, Hostname, Interner, Labels, LabelsError, SyncStatus, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointId, WorkloadEndpointKey,
};
use tortie_resources::manifest::{self, Format, Outcome};

use crate::addresses::node_networks;
use crate::document;
use crate::inventory::{Inventory, Pod};
use crate::labels::{LabelMap, is_excluded};
use crate::options::Options;
use crate::owner::Owner;
use crate::policy::SuggestedPolicy;
use crate::record::{EdgeKey, EdgePort, End};
use crate::selectors::Selectors;

/// Name of the node with all pods.
const NODE: &str = "cluster";

/// Number of label sets of an owner for which pods are made.
const MADE: usize = 4;

/// First address of pods that are made: reserved (RFC 1112), so that no pod and no rule has it.
const FIRST: u32 = 0xf000_0001;

/// Port from which connections come.
const CLIENT: u16 = 40_000;

/// Value of the labels of tomorrow's pods that differ between pods.
const FRESH: &str = "of-a-new-pod";

/// Error of a proof.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The calculation contradicts itself.
    #[error("the calculation contradicts itself")]
    Calculation(#[from] UpdateError),
    /// A pod of the proof is missing from the calculation.
    #[error("a pod is missing from the calculation")]
    Missing(#[from] Missing),
    /// A packet has addresses of two families.
    #[error("a connection of the record has addresses of two families")]
    Packet(#[from] MixedFamilies),
    /// The labels of a pod are longer than the calculation can hold.
    #[error("the labels of a pod cannot be evaluated")]
    Labels(#[from] LabelsError),
    /// A suggested policy is not valid.
    #[error("{policy}: the suggested policy is not valid: {problem}")]
    Policy {
        /// `namespace/name` of the policy.
        policy: String,
        /// The first problem.
        problem: String,
    },
}

/// A learned edge that policies deny.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedEdge {
    /// The edge.
    pub edge: EdgeKey,
    /// The end that denies it: the source (egress) or the destination (ingress).
    pub direction: Direction,
    /// `namespace/name` of the pod that denies it. It may be one that does not exist yet.
    pub pod: String,
    /// The deciding rule in words.
    pub decided_by: String,
}

impl fmt::Display for DeniedEdge {
    /// Writes the edge, the end that denies it, and the deciding rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { edge, direction, pod, decided_by } = self;
        let end = if *direction == Direction::Ingress { "ingress" } else { "egress" };
        write!(f, "{edge}: {end} of {pod} is denied by {decided_by}")
    }
}

/// A pod of the proof.
#[derive(Clone, Debug)]
struct Subject {
    id: WorkloadEndpointId,
    addresses: Vec<IpAddr>,
}

/// All pods of a cluster on one node, today's and tomorrow's, with the suggested policies.
pub(crate) struct Proof<'p> {
    inventory: &'p Inventory,
    evaluator: Evaluator,
    subjects: BTreeMap<Owner, Vec<Subject>>,
}

impl<'p> Proof<'p> {
    pub(crate) fn new(
        cluster: &[Update],
        inventory: &'p Inventory,
        selectors: &Selectors,
        policies: &[SuggestedPolicy],
        options: &Options,
    ) -> Result<Self, ProofError> {
        let mut graph = Graph::new(&tortie_calc::GraphConfig {
            hostname: Hostname::new(NODE),
            ready_flag: ReadyFlag::Ignored,
            ..options.graph.clone()
        });
        graph.on_status(SyncStatus::InSync);
        let mut pods = Pods { graph: &mut graph, count: 0, made: FIRST, subjects: BTreeMap::new() };
        for update in cluster {
            pods.add(update);
        }
        for (owner, sets) in &selectors.label_sets {
            let template = inventory.owners.get(owner).and_then(|names| inventory.pods.get(names.first()?));
            for labels in sets.iter().take(MADE) {
                pods.make(owner, labels, template)?;
                pods.make(owner, &tomorrow(labels, selectors), template)?;
            }
        }
        let subjects = pods.subjects;
        for policy in policies {
            updates_of(policy, options)?.into_iter().for_each(|update| graph.on_update(update));
        }
        let mut desired = Vec::new();
        graph.flush(&mut desired);
        let mut evaluator = Evaluator::new(options.settings.clone());
        desired.iter().try_for_each(|update| evaluator.apply(update))?;
        Ok(Self { inventory, evaluator, subjects })
    }

    /// Returns the edges that are denied at an end where a suggested policy isolates (ingress,
    /// egress): each pod of an end is asked with one of the other end.
    pub(crate) fn denied<'e>(
        &mut self,
        edges: impl Iterator<Item = &'e (EdgeKey, (bool, bool))>,
    ) -> Result<Vec<DeniedEdge>, ProofError> {
        let mut denied = Vec::new();
        for (key, (ingress, egress)) in edges {
            for (is_asked, direction) in [(*ingress, Direction::Ingress), (*egress, Direction::Egress)] {
                let found = if is_asked { self.first_denial(key, direction)? } else { None };
                denied.extend(found);
            }
        }
        Ok(denied)
    }

    fn first_denial(&self, key: &EdgeKey, direction: Direction) -> Result<Option<DeniedEdge>, ProofError> {
        let (own, other) = match direction {
            Direction::Ingress => (&key.destination, &key.source),
            Direction::Egress => (&key.source, &key.destination),
        };
        let End::Owner(owner) = own else { return Ok(None) };
        let subjects = self.subjects.get(owner).map(Vec::as_slice).unwrap_or_default();
        let others = self.addresses(other);
        let (Some(subject), Some(first)) = (subjects.first(), others.first()) else { return Ok(None) };
        let pairs = subjects.iter().map(|own| (own, first)).chain(others.iter().skip(1).map(|other| (subject, other)));
        for (subject, other) in pairs {
            for (own, other) in of_one_family(&subject.addresses, other) {
                let (source, destination) = if direction == Direction::Ingress { (other, own) } else { (own, other) };
                let packet = packet(key, source, destination)?;
                let answer = self.evaluator.workload(&subject.id, direction, &packet)?;
                if answer.verdict == Verdict::Deny {
                    return Ok(Some(DeniedEdge {
                        edge: key.clone(),
                        direction,
                        pod: subject.id.workload.to_string(),
                        decided_by: answer.decided_by.in_words(direction),
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the addresses of the pods, nodes or addresses of an end, one list for each of them.
    fn addresses(&self, end: &End) -> Vec<Vec<IpAddr>> {
        let host = |net: &Cidr| vec![net.address()];
        match end {
            End::Owner(owner) => {
                self.subjects.get(owner).into_iter().flatten().map(|subject| subject.addresses.clone()).collect()
            }
            End::Node(name) => {
                let own = self.inventory.nodes.get(name).into_iter().flatten().map(|address| vec![*address]);
                own.chain(node_networks(self.inventory).iter().map(host)).collect()
            }
            End::NetworkSet(name) => {
                let name = tortie_model::NetworkSetName::new(&**name);
                self.inventory.network_sets.get(&name).into_iter().flatten().map(host).collect()
            }
            End::Network(net) => vec![vec![net.address()], vec![net.last_host().address()]],
            // No single address stands for them; the rules have whole ranges.
            End::Private | End::Public | End::UnknownPrivate | End::UnknownPublic => Vec::new(),
        }
    }
}

/// Pairs addresses of two ends by family.
fn of_one_family<'a>(own: &'a [IpAddr], other: &'a [IpAddr]) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
    [true, false].into_iter().filter_map(|is_v4| {
        let of = |addresses: &[IpAddr]| addresses.iter().copied().find(|address| address.is_ipv4() == is_v4);
        Some((of(own)?, of(other)?))
    })
}

fn packet(key: &EdgeKey, source: IpAddr, destination: IpAddr) -> Result<Packet, MixedFamilies> {
    let payload = match key.port {
        EdgePort::Port(port) => Payload::Ports { source: CLIENT, destination: port },
        EdgePort::Icmp(icmp_type, code) => Payload::Icmp { icmp_type, code: code.unwrap_or(0) },
        EdgePort::None => Payload::Other,
    };
    Packet::new(source, destination, key.protocol, payload)
}

/// Returns the objects of a policy as it will be in force.
fn updates_of(policy: &SuggestedPolicy, options: &Options) -> Result<Vec<Update>, ProofError> {
    let text = document::yaml(std::slice::from_ref(policy), options.form.enforced());
    let read = manifest::read(&text, Format::Yaml, &manifest::Options::default(), &mut Interner::new());
    let invalid =
        |problem: String| ProofError::Policy { policy: format!("{}/{}", policy.namespace, policy.name), problem };
    if let Some(error) = read.unreadable.first() {
        return Err(invalid(error.to_string()));
    }
    let mut updates = Vec::new();
    for resource in read.resources {
        match resource.outcome {
            Outcome::Valid(contributions) => updates.extend(contributions),
            _ => return Err(invalid(resource.problems.first().map(ToString::to_string).unwrap_or_default())),
        }
    }
    Ok(updates)
}

/// Returns the labels that a pod will have after a rollout: fresh values of those that vary.
fn tomorrow(labels: &LabelMap, selectors: &Selectors) -> LabelMap {
    let fresh: Arc<str> = FRESH.into();
    let is_fresh = |key: &Arc<str>| is_excluded(key) || selectors.varying.contains(key);
    labels
        .iter()
        .map(|(key, value)| (Arc::clone(key), if is_fresh(key) { Arc::clone(&fresh) } else { Arc::clone(value) }))
        .collect()
}

/// Pods on the node of the proof.
struct Pods<'g> {
    graph: &'g mut Graph,
    count: u64,
    made: u32,
    subjects: BTreeMap<Owner, Vec<Subject>>,
}

impl Pods<'_> {
    /// Adds an object of the cluster; pods move to the node, with interfaces of their own.
    fn add(&mut self, update: &Update) {
        match update {
            Update::WorkloadEndpoint(key, Some(endpoint)) => {
                let own = WorkloadEndpointKey::new(NODE, key.orchestrator(), key.workload(), key.endpoint());
                let endpoint = WorkloadEndpoint { iface: None, ..WorkloadEndpoint::clone(endpoint) };
                let labels = endpoint.labels.iter().map(|(key, value)| (key.into(), value.into())).collect();
                if let Some((namespace, name)) = key.workload().split_once('/') {
                    let owner = Owner::of_pod(namespace, name, &labels, endpoint.generate_name.as_deref());
                    self.put(owner, own, endpoint);
                }
            }
            Update::WorkloadEndpoint(_, None) => {}
            Update::HostEndpoint(key, endpoint) => {
                let key = HostEndpointKey { host: Hostname::new("elsewhere"), ..key.clone() };
                self.graph.on_update(Update::HostEndpoint(key, endpoint.clone()));
            }
            other => self.graph.on_update(other.clone()),
        }
    }

    /// Adds a pod of an owner with other labels than the existing ones.
    fn make(&mut self, owner: &Owner, labels: &LabelMap, template: Option<&Pod>) -> Result<(), ProofError> {
        let number = self.made;
        self.made += 1;
        let platform = template.into_iter().flat_map(|pod| pod.all_labels.iter());
        let mut all: BTreeMap<&str, &str> = platform.filter(|(key, _)| key.starts_with("projectcalico.org/")).collect();
        all.insert("projectcalico.org/namespace", &owner.namespace);
        all.insert("projectcalico.org/orchestrator", "k8s");
        all.extend(labels.iter().map(|(key, value)| (&**key, &**value)));
        let namespace = || [tortie_model::ProfileName::new(format!("kns.{}", owner.namespace))].into();
        let v6 = Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(number));
        let endpoint = WorkloadEndpoint {
            profiles: template.map_or_else(namespace, |pod| Arc::clone(&pod.profiles)),
            ipv4_nets: [Cidr::host(Ipv4Addr::from(number).into())].into(),
            ipv6_nets: [Cidr::host(v6.into())].into(),
            labels: Labels::from_pairs(all)?,
            ..WorkloadEndpoint::default()
        };
        let workload = format!("{}/{}@{number:x}", owner.namespace, owner.name);
        self.put(owner.clone(), WorkloadEndpointKey::new(NODE, "k8s", &workload, "eth0"), endpoint);
        Ok(())
    }

    #[expect(clippy::expect_used, reason = "the interface is a short word")]
    fn put(&mut self, owner: Owner, key: WorkloadEndpointKey, mut endpoint: WorkloadEndpoint) {
        self.count += 1;
        endpoint.iface = Some(format!("cali{:x}", self.count).parse().expect("a number of 64 bits fits"));
        let addresses = endpoint.nets().map(Cidr::address).collect();
        self.subjects.entry(owner).or_default().push(Subject { id: key.id(), addresses });
        let endpoint = Valid::stored(endpoint).expect("an endpoint stays valid with another interface");
        self.graph.on_update(Update::WorkloadEndpoint(key, Some(endpoint)));
    }
}
