//! The cluster that is asked about, with the parameters of its nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_model::{Cidr, Family, Hostname, Key, NamespacedName, Policy, PolicyId, Protocol, Update, WorkloadEndpoint};
use tortie_resources::manifest::Options;
use tortie_resources::spelling::closest;
use tortie_trace::{Backend, Cluster, Connection, Place};

use super::super::cluster::{WholeCluster, config_of};
use super::question::{End, Question, Transport};
use crate::config::{Config, Sources};
use crate::settings;

/// The cluster. Parameters of a node are looked up when it is first asked.
pub(super) struct View {
    sources: Sources,
    local: Config,
    options: Options,
    cluster: Cluster,
    configured: BTreeSet<Hostname>,
}

/// What a question comes down to.
pub(super) enum Meant {
    /// The connection that it names.
    Connection,
    /// One of several connections.
    Service {
        /// The Service.
        service: NamespacedName,
        /// Its port.
        port: u16,
        /// What answers for it, and the question about that; at least one.
        backends: Vec<(Backend, Question)>,
    },
}

impl View {
    pub(super) fn new(cluster: WholeCluster) -> Self {
        let WholeCluster { sources, local, options, updates } = cluster;
        let graph = settings::graph(&local, Hostname::new(""));
        let mut cluster = Cluster::new(graph, tortie_evaluate::Settings::default());
        updates.into_iter().for_each(|update| cluster.apply(update));
        Self { sources, local, options, cluster, configured: BTreeSet::new() }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn policy(&self, id: &PolicyId) -> Option<&Policy> {
        match self.cluster.object(&Key::Policy(id.clone()))? {
            Update::Policy(_, policy) => policy.as_deref(),
            _ => None,
        }
    }

    /// What becomes of a connection, as far as `node` decides if one is given.
    pub(super) fn ask(&mut self, question: &Question, node: Option<&Hostname>) -> Result<Connection, String> {
        let (from, source) = self.find("from", &question.from, question.family)?;
        let (to, destination) = self.find("to", &question.to, question.family)?;
        for place in [&from, &to] {
            self.configure(place)?;
        }
        let packet = question.packet(source, destination)?;
        let mut connection = self.cluster.connection(&from, &to, &packet).map_err(|error| error.to_string())?;
        if let Some(node) = node {
            connection.legs.retain(|leg| leg.node == *node);
        }
        Ok(connection)
    }

    /// What a question comes down to.
    pub(super) fn meant(&self, question: &Question) -> Result<Meant, String> {
        let service = match &question.to {
            End::Service(text) => {
                let (namespace, name) = text
                    .split_once('/')
                    .ok_or_else(|| format!("to: a service is service:NAMESPACE/NAME, not service:{text}"))?;
                NamespacedName::new(namespace, name)
            }
            End::Address(address) => match self.cluster.service_with_address(*address) {
                Some(service) => service.clone(),
                None => return Ok(Meant::Connection),
            },
            End::Node(_) | End::Workload(_) => return Ok(Meant::Connection),
        };
        let Transport::Ports { protocol: Protocol::Named(protocol), source, destination } = question.transport else {
            return Err(format!("to: service {service} is asked for by a port of TCP, UDP or SCTP"));
        };
        let backends = self.cluster.backends(&service, protocol, destination, question.family);
        let backends = backends.map_err(|error| format!("to: {error}"))?;
        let ask = |backend: Backend| {
            let transport = Transport::Ports { protocol: Protocol::Named(protocol), source, destination: backend.port };
            (backend, Question { to: End::Address(backend.address), transport, ..question.clone() })
        };
        Ok(Meant::Service { service, port: destination, backends: backends.into_iter().map(ask).collect() })
    }

    /// Where an end is, and its address.
    fn find(&self, field: &str, end: &End, family: Family) -> Result<(Place, IpAddr), String> {
        match end {
            End::Address(address) => Ok((self.cluster.place_of(*address), *address)),
            End::Node(name) => {
                let host = Hostname::new(name.as_str());
                let address = self.cluster.node_address(&host, family);
                let address =
                    address.ok_or_else(|| format!("{field}: the datastore has no {family} address of node {name}"))?;
                Ok((Place::Node(host), address))
            }
            End::Service(name) => Err(format!("{field}: no connection comes from service {name}, but from its pods")),
            End::Workload(name) => {
                let keys = self.cluster.workloads_named(name);
                let [key] = keys else { return Err(self.not_one(field, name, keys.len())) };
                let nets = self.cluster.workload(key).into_iter().flat_map(WorkloadEndpoint::nets);
                let address = nets.map(Cidr::address).find(|address| Family::of(*address) == family);
                let address = address.ok_or_else(|| format!("{field}: {name} has no {family} address"))?;
                Ok((Place::Workload(key.clone()), address))
            }
        }
    }

    fn not_one(&self, field: &str, name: &str, count: usize) -> String {
        if count > 1 {
            return format!("{field}: {name} has {count} endpoints; ask for an address");
        }
        let names: Vec<&str> = self.cluster.workload_names().collect();
        match closest(name, &names) {
            Some(near) => format!("{field}: there is no pod {name} that has an address; is {near} meant?"),
            None => format!("{field}: there is no pod {name} that has an address"),
        }
    }

    /// Looks up the parameters of a place's node, if that has not been done.
    fn configure(&mut self, place: &Place) -> Result<(), String> {
        let host = match place {
            Place::Workload(key) => Hostname::new(key.host()),
            Place::Node(host) => host.clone(),
            Place::Outside => return Ok(()),
        };
        if self.configured.contains(&host) {
            return Ok(());
        }
        let config = config_of(&self.sources, &self.local, self.cluster.objects(), &host)?;
        let rules = settings::rules(&config).map_err(|error| error.to_string())?;
        self.cluster.configure(host.clone(), settings::graph(&config, host.clone()), settings::evaluation(&rules));
        self.configured.insert(host);
        Ok(())
    }
}
