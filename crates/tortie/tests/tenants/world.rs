//! Cluster of two tenants, and comparison of desired states.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::IpAddr;

use tortie::Node;
use tortie::model::desired::{DesiredUpdate, Members, WorkloadEndpointState};
use tortie::model::{AdminState, Cidr};

/// Nodes whose desired state is compared.
pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

/// Addresses that `status` of pods in `dev` reports, in the cluster and in attacks.
const DEV_ADDRESSES: [&str; 4] = ["10.0.0.20", "fd00:10::20", "10.0.0.21", "fd00:10::21"];

/// Namespaces `prod` and `dev`, and policies of the platform and of `prod` with every kind of peer.
const CLUSTER: &str = include_str!("cluster.yaml");

/// Desired state of one node.
pub(crate) struct World {
    node: String,
    desired: Vec<DesiredUpdate>,
    problems: Vec<String>,
}

impl World {
    /// Calculates the desired state of a node in the cluster with more objects.
    pub(crate) fn calculate(node: &str, more: &str) -> Self {
        let mut config = Node::new(node);
        // Rejected claims of these kinds are part of the test.
        config.graph_config.ipip_enabled = Some(false);
        let state = config.read_yaml(&format!("{CLUSTER}\n---\n{more}"));
        let problems = state.problems().iter().map(ToString::to_string).collect();
        Self { node: node.to_owned(), desired: state.into_desired(), problems }
    }

    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn desired(&self) -> &[DesiredUpdate] {
        &self.desired
    }

    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Returns the differences of `after` that are no matter of `dev`.
    pub(crate) fn changes_outside_dev(&self, after: &Self) -> Vec<String> {
        let (before, later) = (Facts::of(&self.desired), Facts::of(&after.desired));
        let mut changes = before.differences(&later);
        changes.extend(before.taken_by_dev(&after.desired));
        changes.into_iter().map(|change| format!("{}: {change}", self.node)).collect()
    }
}

/// Desired state in comparable form, without the parts that belong to `dev`.
#[derive(Default)]
struct Facts {
    values: BTreeMap<String, String>,
    members: BTreeMap<String, BTreeSet<String>>,
    interfaces: BTreeSet<String>,
    addresses: BTreeSet<Cidr>,
}

impl Facts {
    fn of(desired: &[DesiredUpdate]) -> Self {
        let mut facts = Self::default();
        desired.iter().for_each(|update| facts.add(update));
        facts
    }

    fn add(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::IpSet(set) => {
                let members = match &set.members {
                    Members::Nets(nets) => nets.iter().filter(|net| !is_dev(**net)).map(ToString::to_string).collect(),
                    Members::IpPorts(all) => all
                        .iter()
                        .filter(|member| !is_dev_address(member.address()))
                        .map(|m| format!("{m:?}"))
                        .collect(),
                    Members::Domains(patterns) => patterns.iter().map(ToString::to_string).collect(),
                };
                self.members.insert(format!("{:?}", set.id), members);
            }
            DesiredUpdate::WorkloadEndpoint(id, state) if !id.workload.starts_with("dev/") => {
                self.interfaces.extend(state.endpoint.iface.iter().map(ToString::to_string));
                self.addresses.extend(addresses(state));
                self.value("endpoint", id, state);
            }
            DesiredUpdate::Policy(id, policy) if &*id.namespace != "dev" => self.value("policy", id, policy),
            DesiredUpdate::Profile(name, profile) if !is_dev_profile(name.as_str()) => {
                self.value("profile", name, profile);
            }
            DesiredUpdate::Route(net, route) if !is_dev(*net) => self.value("route", net, route),
            DesiredUpdate::ServiceAccount(name, labels) if &*name.namespace != "dev" => {
                self.value("service account", name, labels);
            }
            DesiredUpdate::Service(name, service) if &*name.namespace != "dev" => {
                self.value("service", name, service);
            }
            DesiredUpdate::Namespace(name, labels) => self.value("namespace", name, labels),
            DesiredUpdate::HostEndpoint(name, state) => self.value("host endpoint", name, state),
            DesiredUpdate::Host(name, host) => self.value("host", name, host),
            DesiredUpdate::IpPool(pool) => self.value("pool", &"", pool),
            DesiredUpdate::Config(config) => self.value("config", &"", config),
            DesiredUpdate::Encapsulation(encapsulation) => self.value("encapsulation", &"", encapsulation),
            _ => (),
        }
    }

    fn value(&mut self, kind: &str, id: &impl Debug, value: &impl Debug) {
        self.values.insert(format!("{kind} {id:?}"), format!("{value:?}"));
    }

    fn differences(&self, after: &Self) -> Vec<String> {
        let keys: BTreeSet<&String> = self.values.keys().chain(after.values.keys()).collect();
        let mut differences: Vec<String> = keys
            .into_iter()
            .filter(|key| self.values.get(*key) != after.values.get(*key))
            .map(|key| format!("{key}: {:?} became {:?}", self.values.get(key), after.values.get(key)))
            .collect();
        // A set that only policies of `dev` need comes and goes with them.
        for (id, members) in &self.members {
            let later = after.members.get(id);
            if later != Some(members) {
                differences.push(format!("set {id}: {members:?} became {later:?}"));
            }
        }
        differences
    }

    /// Returns the interfaces and addresses of others that active endpoints of `dev` have
    /// afterwards.
    fn taken_by_dev(&self, after: &[DesiredUpdate]) -> Vec<String> {
        let mut taken = Vec::new();
        for update in after {
            let DesiredUpdate::WorkloadEndpoint(id, state) = update else { continue };
            if !id.workload.starts_with("dev/") || state.endpoint.state != AdminState::Active {
                continue;
            }
            for interface in state.endpoint.iface.iter().map(ToString::to_string) {
                if self.interfaces.contains(&interface) {
                    taken.push(format!("{id} has interface {interface} of another namespace"));
                }
            }
            for net in addresses(state).filter(|net| !is_dev(*net)) {
                taken.push(format!("{id} has {net}, which the platform does not report for it"));
            }
        }
        taken
    }
}

/// All networks that an endpoint stands for, translated addresses included.
fn addresses(state: &WorkloadEndpointState) -> impl Iterator<Item = Cidr> {
    let endpoint = &state.endpoint;
    let nets = endpoint.ipv4_nets.iter().chain(endpoint.ipv6_nets.iter()).copied();
    let extras = endpoint.extras.iter();
    let nats = extras.flat_map(|extras| extras.ipv4_nat.iter().chain(extras.ipv6_nat.iter()));
    nets.chain(nats.map(|nat| Cidr::host(nat.external)))
}

fn is_dev(net: Cidr) -> bool {
    net == Cidr::host(net.address()) && is_dev_address(net.address())
}

fn is_dev_address(address: IpAddr) -> bool {
    DEV_ADDRESSES.iter().any(|dev| dev.parse() == Ok(address))
}

fn is_dev_profile(name: &str) -> bool {
    name == "kns.dev" || name.starts_with("ksa.dev.")
}
