use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_analysis::trace::{
    Backend, Cluster, Connection, ConnectionQuery, DestinationNat, EnforcementPoint, Leg, NatSettings, Place,
    ServiceError, SetNetwork, TraceError,
};
use tortie_config::{Config, ConfigError, Sources, Switch, settings};
use tortie_evaluate::{MixedFamilies, Unknown};
use tortie_model::{
    Cidr, DomainName, Family, Hostname, Key, NamespacedName, NetworkSetName, Policy, PolicyId, Protocol, Update,
    WorkloadEndpoint, WorkloadEndpointKey, parse_address,
};
use tortie_resources::spelling::closest;

use super::super::cluster::{ParametersError, WholeCluster, config_of};
use super::super::host_network::{HostNetworkPods, PodsError};
use super::agent_names::AgentNames;
use super::expansion::{Expansion, Group, Member};
use super::question::{End, Question, SentTo, Transport};

/// Parameters of a node are resolved at its first use.
pub(super) struct View {
    sources: Sources,
    local: Config,
    cluster: Cluster,
    configured: BTreeSet<Hostname>,
    pods: HostNetworkPods,
    /// Whether there are staged policies; `None` until it is determined.
    has_staged: Option<bool>,
    agent: AgentNames,
}

#[derive(Debug, thiserror::Error)]
#[error("{field}")]
pub(super) struct EndError {
    field: &'static str,
    #[source]
    reason: EndReason,
}

#[derive(Debug, thiserror::Error)]
enum EndReason {
    #[error("there is no network set {0}")]
    NoNetworkSet(String),
    #[error("network set {name} has no {family} address that is not the cluster's own")]
    OwnNetworkSet { name: String, family: Family },
    #[error("network set {0} is no single address; pass one of its addresses")]
    ManyAddresses(String),
    #[error("there is no host endpoint {0}")]
    NoHostEndpoint(String),
    #[error("the datastore has no {family} address of host endpoint {name}, nor of its node {host}")]
    HostEndpointAddress { name: String, host: Hostname, family: Family },
    #[error("the datastore has no {family} address of node {name}")]
    NodeAddress { name: String, family: Family },
    #[error("no connection comes from service {0}, but from its pods")]
    FromService(String),
    #[error("a service is service:NAMESPACE/NAME, not service:{0}")]
    ServiceName(String),
    #[error("service {0} needs a port of TCP, UDP or SCTP")]
    ServicePort(NamespacedName),
    #[error("service {service} has no {family} cluster address")]
    ServiceAddress { service: NamespacedName, family: Family },
    #[error(transparent)]
    Service(ServiceError),
    #[error("{name} has {count} endpoints; use an address")]
    SeveralEndpoints { name: String, count: usize },
    #[error("the pods that use the network of their node cannot be read")]
    Pods(#[source] PodsError),
    #[error("there is no pod {0} that has an address")]
    NoPod(String),
    #[error("there is no pod {name} that has an address; is {near} meant?")]
    NoPodButNear { name: String, near: String },
    #[error("{name} has no {family} address")]
    PodAddress { name: String, family: Family },
}

impl EndReason {
    fn of(self, field: &'static str) -> EndError {
        EndError { field, reason: self }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ViewError {
    #[error("neither end of the connection is in the cluster")]
    Outside,
    #[error(transparent)]
    End(#[from] EndError),
    #[error(transparent)]
    Packet(#[from] MixedFamilies),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Parameters(#[from] ParametersError),
}

impl View {
    /// The agent says the names by which an endpoint of its node knows an address.
    pub(super) fn new(cluster: WholeCluster, pods: HostNetworkPods, agent: AgentNames) -> Self {
        let WholeCluster { sources, local, updates, .. } = cluster;
        let graph = settings::graph(&local, Hostname::new(""));
        let mut cluster = Cluster::new(graph, tortie_evaluate::Settings::default());
        updates.into_iter().for_each(|update| cluster.apply(update));
        Self { sources, local, cluster, configured: BTreeSet::new(), pods, has_staged: None, agent }
    }

    pub(super) fn policy(&self, id: &PolicyId) -> Option<&Policy> {
        match self.cluster.object(&Key::Policy(id.clone()))? {
            Update::Policy(_, policy) => policy.as_deref(),
            _ => None,
        }
    }

    /// Evaluates a connection; only the legs on `node`, if one is given.
    pub(super) fn ask(&mut self, question: &Question, node: Option<&Hostname>) -> Result<Connection, ViewError> {
        self.connection(question, node, false)
    }

    pub(super) fn pending(
        &mut self,
        question: &Question,
        node: Option<&Hostname>,
    ) -> Result<Option<Connection>, ViewError> {
        let is_staged = |object: &Update| matches!(object, Update::Policy(id, Some(_)) if id.kind.is_staged());
        let has_staged = *self.has_staged.get_or_insert_with(|| self.cluster.objects().any(is_staged));
        has_staged.then(|| self.connection(question, node, true)).transpose()
    }

    fn connection(
        &mut self,
        question: &Question,
        node: Option<&Hostname>,
        is_pending: bool,
    ) -> Result<Connection, ViewError> {
        let (from, source) = self.find("from", &question.from, question.family)?;
        let (to, destination) = self.find("to", &question.to, question.family)?;
        for place in [&from, &to] {
            self.configure(place)?;
        }
        let query = self.query(question, (from.clone(), source), (to.clone(), destination))?;
        let query = query.pending(is_pending);
        let mut connection = self.cluster.evaluate(&query)?;
        if let Some(names) = self.learned_names(&connection, destination) {
            connection = self.cluster.evaluate(&query.named(names))?;
        }
        if let Some(node) = node {
            connection.legs.retain(|leg| leg.node == *node);
        }
        for (end, place) in [(&question.from, &from), (&question.to, &to)] {
            let (End::HostEndpoint(name), Place::Node(host)) = (end, place) else { continue };
            let is_at = |leg: &Leg| matches!(&leg.at, EnforcementPoint::Host(at, _) if at.as_str() == name);
            // Another host endpoint may have the interface.
            if connection.legs.iter().any(is_at) {
                let is_other = |leg: &Leg| matches!(leg.at, EnforcementPoint::Host(..)) && !is_at(leg);
                connection.legs.retain(|leg| leg.node != *host || !is_other(leg));
            }
        }
        Ok(connection)
    }

    /// Returns the names by which the source knows the destination, if the verdict depends on them
    /// and the agent of the source's node answers.
    fn learned_names(&mut self, connection: &Connection, destination: IpAddr) -> Option<Arc<[DomainName]>> {
        let leg = connection.depends_at()?;
        let alternative = leg.explanation.answer.alternative.as_deref()?;
        if alternative.unknown != Unknown::Names {
            return None;
        }
        self.agent.names(&leg.node, &leg.at, destination)
    }

    fn query(
        &mut self,
        question: &Question,
        (from, source): (Place, IpAddr),
        (to, destination): (Place, IpAddr),
    ) -> Result<ConnectionQuery, ViewError> {
        let packet = question.packet(source, destination)?;
        if let End::Domain { name, address } = &question.to {
            let query = ConnectionQuery::new(from, to, packet).named([name.clone()].into());
            return Ok(if address.is_some() { query } else { query.without_address() });
        }
        if let Some(sent_to) = &question.sent_to {
            let entering = question.entering(source, sent_to)?;
            // The node at which an address of the Service leads packets from outside into the
            // cluster is unknown.
            let is_known = sent_to.node.is_some() || from != Place::Outside;
            let nat = DestinationNat { entering, node: sent_to.node.clone(), replaces_source: sent_to.replaces_source };
            if let Some(node) = &nat.node {
                self.configure(&Place::Node(node.clone()))?;
            }
            let query = ConnectionQuery::new(from, to, packet);
            return Ok(if is_known { query.translated(nat) } else { query });
        }
        if let Some(node) = self.cluster.node_of_floating(destination) {
            self.configure(&Place::Node(node.clone()))?;
            if let Some((to, own)) = self.cluster.floating(destination) {
                let nat = DestinationNat { entering: packet, node: Some(node), replaces_source: false };
                let query = ConnectionQuery::new(from, to, question.packet(source, own)?);
                return Ok(query.translated(nat));
            }
        }
        Ok(ConnectionQuery::new(from, to, packet))
    }

    pub(super) fn expand(&self, question: &Question) -> Result<Expansion, ViewError> {
        match (&question.from, &question.to) {
            (End::NetworkSet(_), End::NetworkSet(_)) => return Err(ViewError::Outside),
            (_, End::NetworkSet(name)) => return Ok(self.expand_set("to", question, name)?),
            _ => {}
        }
        let Some((service, port, sent_to)) = self.expand_service(question)? else {
            return match &question.from {
                End::NetworkSet(name) => Ok(self.expand_set("from", question, name)?),
                _ => Ok(Expansion::Connection),
            };
        };
        let Transport::Ports { protocol: Protocol::Named(protocol), source, .. } = question.transport else {
            return Err(EndReason::ServicePort(service).of("to").into());
        };
        let from = match &question.from {
            End::NetworkSet(_) => Place::Outside,
            from => self.find("from", from, question.family)?.0,
        };
        let way = sent_to
            .as_ref()
            .map(|sent_to| self.cluster.service_way(&service, &from, sent_to.address, sent_to.node.as_ref()));
        let way = way.unwrap_or_default();
        let sent_to = sent_to.map(|sent_to| SentTo { replaces_source: way.replaces_source, ..sent_to });
        let backends = self.cluster.backends(&service, protocol, port, question.family, &way);
        let backends = backends.map_err(|error| EndReason::Service(error).of("to"))?;
        let ask = |backend: Backend| {
            let transport = Transport::Ports { protocol: Protocol::Named(protocol), source, destination: backend.port };
            let sent_to = sent_to.clone();
            let to = End::Address(backend.address);
            (backend, Question { to, transport, sent_to, ..question.clone() })
        };
        let backends = backends.into_iter().map(ask);
        let End::NetworkSet(name) = &question.from else {
            let members = backends.map(|(backend, question)| (Member::Backend(backend), question)).collect();
            return Ok(Expansion::Group(Group::Service { service, port }, members));
        };
        let mut pairs = Vec::new();
        for (backend, question) in backends {
            let networks = self.networks("from", &question, name)?;
            pairs.extend(networks.map(|(network, question)| (Member::Pair(network, backend), question)));
        }
        Ok(Expansion::Group(Group::Pairs { set: NetworkSetName::new(name.as_str()), service, port }, pairs))
    }

    fn expand_service(&self, question: &Question) -> Result<Option<(NamespacedName, u16, Option<SentTo>)>, EndError> {
        let port = match question.transport {
            Transport::Ports { destination, .. } => Some(destination),
            Transport::Icmp { .. } | Transport::Other { .. } => None,
        };
        let address = match &question.to {
            End::Service(text) => {
                let (namespace, name) =
                    text.split_once('/').ok_or_else(|| EndReason::ServiceName(text.clone()).of("to"))?;
                let (service, port) = (NamespacedName::new(namespace, name), port.unwrap_or_default());
                let address = self.service_address(&question.to, &service, question.family).ok();
                let sent_to = address.map(|address| SentTo { node: None, address, port, replaces_source: false });
                return Ok(Some((service, port, sent_to)));
            }
            End::Address(address) => *address,
            End::Node(_) => self.find("to", &question.to, question.family)?.1,
            _ => return Ok(None),
        };
        let services = self.cluster.services();
        let (Transport::Ports { protocol: Protocol::Named(protocol), .. }, Some(port)) = (question.transport, port)
        else {
            return Ok(services.with_address(address).map(|service| (service.clone(), 0, None)));
        };
        if let Some(found) = self.cluster.service_at(address, protocol, port) {
            let is_own = services.with_address(address).is_some();
            let node = match self.cluster.place_of(address) {
                Place::Node(node) if !is_own => Some(node),
                _ => None,
            };
            let sent_to = Some(SentTo { node, address, port, replaces_source: false });
            return Ok(Some((found.service.clone(), found.port, sent_to)));
        }
        Ok(services.with_address(address).map(|service| (service.clone(), port, None)))
    }

    fn expand_set(&self, field: &'static str, question: &Question, name: &str) -> Result<Expansion, EndError> {
        let networks = self.networks(field, question, name)?;
        let members = networks.map(|(network, question)| (Member::Network(network), question)).collect();
        Ok(Expansion::Group(Group::NetworkSet(NetworkSetName::new(name)), members))
    }

    fn networks<'q>(
        &self,
        field: &'static str,
        question: &'q Question,
        name: &str,
    ) -> Result<impl Iterator<Item = (SetNetwork, Question)> + use<'q>, EndError> {
        let networks = self.cluster.networks_of_set(&NetworkSetName::new(name), question.family);
        let networks = networks.ok_or_else(|| EndReason::NoNetworkSet(name.to_owned()).of(field))?;
        if networks.is_empty() {
            return Err(EndReason::OwnNetworkSet { name: name.to_owned(), family: question.family }.of(field));
        }
        Ok(networks.into_iter().map(move |network| {
            let mut question = question.clone();
            match field {
                "from" => question.from = End::Address(network.example),
                _ => question.to = End::Address(network.example),
            }
            (network, question)
        }))
    }

    /// Returns the node of a host endpoint, and one of its expected addresses, or else of the
    /// node's.
    fn find_host_endpoint(&self, field: &'static str, name: &str, family: Family) -> Result<(Place, IpAddr), EndError> {
        let found = self.cluster.objects().find_map(|object| match object {
            Update::HostEndpoint(key, Some(endpoint)) if key.name.as_str() == name => Some((&key.host, endpoint)),
            _ => None,
        });
        let (host, endpoint) = found.ok_or_else(|| EndReason::NoHostEndpoint(name.to_owned()).of(field))?;
        let expected = match family {
            Family::V4 => endpoint.expected_ipv4.first(),
            Family::V6 => endpoint.expected_ipv6.first(),
        };
        let address = expected.copied().or_else(|| self.cluster.node_address(host, family));
        let address = address.ok_or_else(|| {
            EndReason::HostEndpointAddress { name: name.to_owned(), host: host.clone(), family }.of(field)
        })?;
        Ok((Place::Node(host.clone()), address))
    }

    pub(super) fn find(&self, field: &'static str, end: &End, family: Family) -> Result<(Place, IpAddr), EndError> {
        match end {
            End::Address(address) | End::Domain { address: Some(address), .. } => {
                Ok((self.cluster.place_of(*address), *address))
            }
            // Of this address, only the family counts.
            End::Domain { address: None, .. } => Ok((
                Place::Outside,
                match family {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
                },
            )),
            End::Node(name) => {
                let host = Hostname::new(name.as_str());
                let address = self.cluster.node_address(&host, family);
                let missing = || EndReason::NodeAddress { name: name.clone(), family }.of(field);
                let address = address.ok_or_else(missing)?;
                Ok((Place::Node(host), address))
            }
            End::HostEndpoint(name) => self.find_host_endpoint(field, name, family),
            End::NetworkSet(name) => Err(EndReason::ManyAddresses(name.clone()).of(field)),
            End::Service(name) => Err(EndReason::FromService(name.clone()).of(field)),
            End::Workload(name) => {
                let keys = self.cluster.workloads_named(name);
                let pod = match keys {
                    [] => self.pods.find(name).map_err(|error| EndReason::Pods(error).of(field))?,
                    _ => None,
                };
                if let Some(pod) = pod {
                    let mut own = pod.addresses.iter().copied().filter(|address| Family::of(*address) == family);
                    let address = own.next().or_else(|| self.cluster.node_address(&pod.node, family));
                    let missing = || EndReason::PodAddress { name: name.clone(), family }.of(field);
                    return Ok((Place::Node(pod.node), address.ok_or_else(missing)?));
                }
                let [key] = keys else { return Err(self.not_one(name, keys.len()).of(field)) };
                let nets = self.cluster.workload(key).into_iter().flat_map(WorkloadEndpoint::nets);
                let address = nets.map(Cidr::address).find(|address| Family::of(*address) == family);
                let address = address.ok_or_else(|| EndReason::PodAddress { name: name.clone(), family }.of(field))?;
                Ok((Place::Workload(key.clone()), address))
            }
        }
    }

    pub(super) fn host_network_notes(&self, question: &Question) -> Vec<String> {
        let ends = [&question.from, &question.to].into_iter();
        let names = ends.filter_map(|end| match end {
            End::Workload(name) if self.cluster.workloads_named(name).is_empty() => Some(name),
            _ => None,
        });
        let note = |name: &String| {
            // The question has been answered, so this is known.
            let node = self.pods.find(name).ok()??.node;
            Some(format!(
                "{name} uses the host network: it is evaluated as node:{node}, and selectors do not match its labels"
            ))
        };
        names.filter_map(note).collect()
    }

    pub(super) fn place(&self, address: IpAddr) -> Place {
        self.cluster.place_of(address)
    }

    pub(super) fn workload(&self, key: &WorkloadEndpointKey) -> Option<&WorkloadEndpoint> {
        self.cluster.workload(key)
    }

    pub(super) fn service_address(
        &self,
        to: &End,
        service: &NamespacedName,
        family: Family,
    ) -> Result<IpAddr, EndError> {
        match to {
            End::Address(address) => return Ok(*address),
            End::Node(_) => return self.find("to", to, family).map(|(_, address)| address),
            _ => {}
        }
        let found = match self.cluster.object(&Key::Service(service.clone())) {
            Some(Update::Service(_, Some(found))) => &*found.cluster_ips,
            _ => &[],
        };
        let mut addresses = found.iter().filter_map(|text| parse_address(text));
        let found = addresses.find(|address| Family::of(*address) == family);
        found.ok_or_else(|| EndReason::ServiceAddress { service: service.clone(), family }.of("to"))
    }

    pub(super) fn updates(&self) -> Vec<Update> {
        self.cluster.objects().cloned().collect()
    }

    pub(super) fn config(&self, host: &Hostname) -> Result<Config, ConfigError> {
        config_of(&self.sources, &self.local, self.cluster.objects(), host)
    }

    /// Returns the name of this node: the given one, `FelixHostname`, or the machine's.
    pub(super) fn this_node(&self, given: Option<&Hostname>) -> Result<Hostname, ConfigError> {
        let resolved = self.sources.resolve()?;
        Ok(tortie_node::machine::hostname(given.map(Hostname::as_str), &resolved.config))
    }

    fn not_one(&self, name: &str, count: usize) -> EndReason {
        let name = name.to_owned();
        if count > 1 {
            return EndReason::SeveralEndpoints { name, count };
        }
        let names: Vec<&str> = self.cluster.workload_names().collect();
        match closest(&name, &names) {
            Some(near) => EndReason::NoPodButNear { near: near.to_owned(), name },
            None => EndReason::NoPod(name),
        }
    }

    fn configure(&mut self, place: &Place) -> Result<(), ParametersError> {
        let host = match place {
            Place::Workload(key) => Hostname::new(key.host()),
            Place::Node(host) => host.clone(),
            Place::Outside => return Ok(()),
        };
        if self.configured.contains(&host) {
            return Ok(());
        }
        let config = self.config(&host)?;
        let rules = settings::rules(&config)?;
        self.cluster.configure(host.clone(), settings::graph(&config, host.clone()), settings::evaluation(&rules));
        let nat = NatSettings {
            floating_addresses: config.floating_ips == Switch::Enabled,
            excludes_nodes: rules.nat.exclude_hosts,
            outgoing_address: rules.nat.address,
        };
        self.cluster.set_nat(host.clone(), nat);
        self.configured.insert(host);
        Ok(())
    }
}
