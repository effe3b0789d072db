//! A cluster and its changes.

use tortie_model::{
    ConfigName, EndpointPort, EntityMatch, Hostname, Labels, Mac, NamedProtocol, Node, NodeAddress, NodeAddressKind,
    Policy, PolicyId, PolicyKind, PortSpec, Profile, ProfileName, ProfileRules, Protocol, Rule, RuleAction, Update,
    Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

/// Label with the time of a pod's last change, in microseconds.
const CHANGED: &str = "changed";
/// Parameter without a meaning, which shows the progress of changes.
pub(crate) const MARKER: &str = "LoadMarker";

/// The sizes of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    /// Each has a policy, if there are any.
    pub(crate) services: usize,
    pub(crate) namespaces: usize,
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:04}")
}

impl Cluster {
    /// Returns a pod as Kubernetes makes it, last changed at `now`. Numbers from `pods` on are
    /// successors.
    pub(crate) fn pod(&self, number: usize, changed: u64) -> Update {
        let service = number % self.services;
        let namespace = self.namespace(service);
        let [_, a, b, c] = u32::try_from(number).unwrap().to_be_bytes();
        let labels = [
            ("app", format!("service-{service}")),
            (CHANGED, changed.to_string()),
            ("pod-template-hash", format!("7d4b9c6f{:02x}", number % 256)),
            ("projectcalico.org/namespace", namespace.clone()),
            ("projectcalico.org/orchestrator", "k8s".to_owned()),
            ("projectcalico.org/serviceaccount", "default".to_owned()),
            ("tier", ["web", "api", "data", "batch"][number % 4].to_owned()),
        ];
        let endpoint = WorkloadEndpoint {
            iface: Some(format!("cali{number:011x}").parse().unwrap()),
            mac: Some(Mac([0xee; 6])),
            profiles: [format!("kns.{namespace}"), format!("ksa.{namespace}.default")]
                .iter()
                .map(|p| p.as_str().into())
                .collect(),
            ipv4_nets: [format!("10.{a}.{b}.{c}/32").parse().unwrap()].into_iter().collect(),
            labels: Labels::from_pairs(labels.iter().map(|(k, v)| (*k, v.as_str()))).unwrap(),
            ports: [EndpointPort { name: "http".into(), protocol: Protocol::Named(NamedProtocol::Tcp), port: 8080 }]
                .into(),
            ..WorkloadEndpoint::default()
        };
        Update::WorkloadEndpoint(self.pod_key(number), Some(Valid::new(endpoint).unwrap()))
    }

    fn pod_key(&self, number: usize) -> WorkloadEndpointKey {
        // The pods of a service, and successors, are on different nodes.
        let node = node_name((number + number / self.services * 97) % self.nodes);
        let service = number % self.services;
        let pod = format!("{}/service-{service}-7d4b9c6f{:02x}-{number:05x}", self.namespace(service), number % 256);
        WorkloadEndpointKey::new(&node, "k8s", &pod, "eth0")
    }

    fn namespace(&self, service: usize) -> String {
        format!("team-{}", service % self.namespaces)
    }

    /// Returns all objects but pods: nodes, the profiles of namespaces, and a policy for each
    /// service. The policy allows ingress from the next service, and egress to the one after that.
    pub(crate) fn rest(&self) -> impl Iterator<Item = Update> {
        let nodes = (0..self.nodes).map(|number| self.node(number));
        let profiles = (0..self.namespaces).flat_map(|namespace| {
            let name = format!("team-{namespace}");
            let labels = Labels::from_pairs([("pcns.projectcalico.org/name", name.as_str())]).unwrap();
            let account = Labels::from_pairs([("pcsa.projectcalico.org/name", "default")]).unwrap();
            profile(format!("kns.{name}"), labels).into_iter().chain(profile(format!("ksa.{name}.default"), account))
        });
        let policies = (0..self.services).map(|service| self.policy(service));
        std::iter::once(Update::Ready(Some(true))).chain(nodes).chain(profiles).chain(policies)
    }

    fn node(&self, number: usize) -> Update {
        let [_, a, b, c] = u32::try_from(number).unwrap().to_be_bytes();
        let address = NodeAddress { address: format!("11.{a}.{b}.{c}").into(), kind: NodeAddressKind::InternalIp };
        let name = node_name(number);
        let labels = Labels::from_pairs([("kubernetes.io/hostname", name.as_str())]).unwrap();
        let node = Node { bgp: None, addresses: [address].into(), tunnels: None, pod_networks: [].into(), labels };
        Update::Node(Hostname::new(name), Some(Valid::new(node).unwrap()))
    }

    fn policy(&self, service: usize) -> Update {
        let namespace = self.namespace(service);
        let side = |service: usize| {
            let service = service % self.services;
            let text =
                format!("app == 'service-{service}' && projectcalico.org/namespace == '{}'", self.namespace(service));
            EntityMatch { selector: Some(text.parse().unwrap()), ..EntityMatch::default() }
        };
        let tcp = || Rule { protocol: Some(Protocol::Named(NamedProtocol::Tcp)), ..Rule::new(RuleAction::Allow) };
        let to_port = EntityMatch { ports: [PortSpec::single(8080)].into(), ..EntityMatch::default() };
        let policy = Policy {
            namespace: Some(namespace.as_str().into()),
            selector: side(service).selector.unwrap(),
            inbound: [Rule { source: side(service + 1), destination: to_port, ..tcp() }].into(),
            outbound: [Rule { destination: side(service + 2), ..tcp() }].into(),
            ..Policy::default()
        };
        let id = PolicyId::new(PolicyKind::NetworkPolicy, namespace, format!("service-{service}"));
        Update::Policy(id, Some(Valid::new(policy).unwrap()))
    }
}

fn profile(name: String, labels: Labels) -> [Update; 2] {
    let name = ProfileName::new(name);
    let rules = ProfileRules::allow_all();
    [
        Update::Profile(name.clone(), Some(Valid::new(Profile { labels }).unwrap())),
        Update::ProfileRules(name, Some(rules)),
    ]
}

/// Returns the time of a pod's change; `None` if the update deletes it or is of another kind.
pub(crate) fn changed(update: &Update) -> Option<u64> {
    let Update::WorkloadEndpoint(_, Some(endpoint)) = update else { return None };
    endpoint.labels.get(CHANGED)?.parse().ok().filter(|&stamp| stamp > 0)
}

/// Returns an update that shows the progress of the updates before it.
pub(crate) fn marker(number: u64) -> Update {
    Update::GlobalConfig(ConfigName::new(MARKER), Some(number.to_string().into()))
}

/// The number of a marker.
pub(crate) fn marker_number(update: &Update) -> Option<u64> {
    match update {
        Update::GlobalConfig(name, Some(value)) if name.as_str() == MARKER => value.parse().ok(),
        _ => None,
    }
}

/// Pods come, go and change: a third each.
#[derive(Debug)]
pub(crate) struct Churn {
    cluster: Cluster,
    step: usize,
    /// Generation of the pod in each slot.
    generations: Vec<u16>,
}

impl Churn {
    pub(crate) fn new(cluster: Cluster) -> Self {
        Self { cluster, step: 0, generations: vec![0; cluster.pods] }
    }

    /// Returns the next change, with the timestamp `now`.
    pub(crate) fn next(&mut self, now: u64) -> Update {
        let pods = self.cluster.pods;
        // The two pods are far apart, and never one that was deleted.
        let slot = self.step / 3 * 7919 % pods;
        let other = (slot + pods / 2) % pods;
        self.step += 1;
        let current = |slot: usize, generations: &[u16]| slot + pods * usize::from(generations[slot]);
        match self.step % 3 {
            1 => Update::WorkloadEndpoint(self.cluster.pod_key(current(slot, &self.generations)), None),
            2 => {
                self.generations[slot] += 1;
                self.cluster.pod(current(slot, &self.generations), now)
            }
            _ => self.cluster.pod(current(other, &self.generations), now),
        }
    }
}
