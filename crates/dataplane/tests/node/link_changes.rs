//! Changes of interfaces that nothing depends on cause no apply, and make no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    AddressPlace, Clock, Dataplane, DataplaneConfig, InterfaceFilter, LinkEvent, LocalReachabilityConfig,
    NftablesConfig,
};
use tortie_iptables::Backend;
use tortie_model::desired::{DesiredUpdate, Encapsulation, HostMetadata, Vtep, VtepAddresses};
use tortie_model::{InterfaceName, IpPool, Mac, QosControls, WorkloadExtras};
use tortie_rules::{IpvsConfig, PacketFilter, WorkloadDispatch};

use crate::common::*;
use crate::random::{State, state, transition};

const NAMES: [&str; 8] = ["cali1", "cali2", "eth0", "eth1", "eth9", "veth1", "veth2", "other"];
const ADDRESSES: [&str; 3] = ["172.16.0.1", "172.16.0.2", "fe80::1"];

fn name(text: &str) -> InterfaceName {
    text.parse().expect("an interface name")
}

/// A link as the monitor knows it.
#[derive(Clone, Debug)]
struct Link {
    index: u32,
    is_up: bool,
    addresses: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Set(usize, bool),
    Remove(usize),
    Rename(usize, usize),
    Addresses(usize, u8),
    Desired(State),
    Dscp(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let link = || 0..NAMES.len();
    prop_oneof![
        3 => link().prop_map(Step::Create),
        3 => (link(), any::<bool>()).prop_map(|(link, is_up)| Step::Set(link, is_up)),
        2 => link().prop_map(Step::Remove),
        2 => (link(), link()).prop_map(|(from, to)| Step::Rename(from, to)),
        4 => (link(), 0..8_u8).prop_map(|(link, bits)| Step::Addresses(link, bits)),
        2 => state().prop_map(Step::Desired),
        1 => any::<bool>().prop_map(Step::Dscp),
    ]
}

/// The links of the node. Returns the events of each change, as the monitor sends them.
#[derive(Clone, Debug, Default)]
struct Links {
    links: BTreeMap<&'static str, Link>,
    next: u32,
}

impl Links {
    fn change(&mut self, step: &Step) -> Vec<LinkEvent> {
        match *step {
            Step::Create(at) => {
                self.next += 1;
                let link = Link { index: 100 + self.next, is_up: false, addresses: BTreeSet::new() };
                self.links.insert(NAMES[at], link);
                self.events_of(NAMES[at])
            }
            Step::Set(at, is_up) => {
                self.links.get_mut(NAMES[at]).into_iter().for_each(|link| link.is_up = is_up);
                self.events_of(NAMES[at])
            }
            Step::Addresses(at, bits) => {
                let chosen = (0..3).filter(|bit| bits >> bit & 1 == 1).map(|bit| ip(ADDRESSES[bit])).collect();
                self.links.get_mut(NAMES[at]).into_iter().for_each(|link| link.addresses.clone_from(&chosen));
                self.events_of(NAMES[at])
            }
            Step::Remove(at) => {
                self.links.remove(NAMES[at]);
                vec![LinkEvent::Gone { name: name(NAMES[at]) }]
            }
            Step::Rename(from, to) if !self.links.contains_key(NAMES[to]) => {
                let Some(link) = self.links.remove(NAMES[from]) else { return Vec::new() };
                self.links.insert(NAMES[to], link);
                let gone = LinkEvent::Gone { name: name(NAMES[from]) };
                std::iter::once(gone).chain(self.events_of(NAMES[to])).collect()
            }
            _ => Vec::new(),
        }
    }

    fn events_of(&self, link: &'static str) -> Vec<LinkEvent> {
        let Some(Link { index, is_up, addresses }) = self.links.get(link).cloned() else { return Vec::new() };
        let name = name(link);
        let state = if is_up { LinkEvent::Up { name, index } } else { LinkEvent::Down { name, index } };
        vec![state, LinkEvent::Addresses { name, addresses }]
    }

    /// Drops routes by links that are down or gone, as the kernel does.
    fn drop_routes(&self, kernel: &mut FakeKernel) {
        let is_up = |index: u32| {
            !(100..1000).contains(&index) || self.links.values().any(|link| link.index == index && link.is_up)
        };
        kernel.routing.routes.retain(|route| route.target.interface.is_none_or(is_up));
    }
}

/// Features that depend on links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Features {
    None,
    Ipvs,
    Tunnels,
    Flows,
    ByAddress,
}

fn features() -> impl Strategy<Value = Features> {
    prop::sample::select(vec![Features::None, Features::Ipvs, Features::Tunnels, Features::Flows, Features::ByAddress])
}

impl Features {
    fn config(self) -> DataplaneConfig {
        let mut config = config(Backend::Nft);
        // Each apply takes time, and one side has more of them.
        config.routes.grace_period = Duration::ZERO;
        match self {
            Self::None => {}
            Self::Ipvs => config.rules.ipvs = Some(IpvsConfig { node_ports: Vec::new() }),
            Self::Tunnels => config.local_reachability = Some(LocalReachabilityConfig::default()),
            Self::Flows => {
                let offload_flows = tortie_rules::NftablesConfig { offload_flows: true, ..Default::default() };
                config.rules.packet_filter = PacketFilter::Nftables(offload_flows);
                let flow_interfaces = InterfaceFilter::new(|name| name.starts_with("eth"));
                config.nftables = Some(NftablesConfig { flow_interfaces, ..NftablesConfig::default() });
            }
            Self::ByAddress => {
                config.rules.workloads = WorkloadDispatch::Address;
                config.rules.workload_prefixes = vec![name("veth")];
            }
        }
        config
    }

    fn updates(self) -> Vec<DesiredUpdate> {
        if self != Self::Tunnels {
            return Vec::new();
        }
        let host = HostMetadata { ipv4_addr: "172.16.0.2".into(), ..HostMetadata::default() };
        let vtep = |number, parent: &str| {
            let v4 = Some(VtepAddresses {
                mac: Mac([6, 0, 0, 0, 0, number]),
                tunnel: ip(&format!("10.65.{number}.1")),
                parent: ip(parent),
            });
            DesiredUpdate::Vtep(format!("node-{number}").as_str().into(), Vtep { v4, v6: None })
        };
        vec![
            DesiredUpdate::Host("node-1".into(), host),
            DesiredUpdate::IpPool(IpPool::new(cidr("172.16.0.0/24")).into()),
            vtep(1, "172.16.0.1"),
            vtep(2, "172.16.0.9"),
            DesiredUpdate::Encapsulation(Encapsulation { vxlan: true, no_encap: true, ..Encapsulation::default() }),
        ]
    }
}

/// A dataplane with its kernel.
struct Node {
    dataplane: Dataplane,
    kernel: FakeKernel,
    /// Applies whether or not anything demands it.
    is_eager: bool,
}

impl Node {
    fn new(features: Features, is_eager: bool) -> Self {
        let mut dataplane = Dataplane::new(features.config());
        features.updates().into_iter().for_each(|update| dataplane.on_update(update));
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        let mut kernel = kernel(Backend::Nft);
        if features == Features::ByAddress {
            let place = |interface: &str| AddressPlace { interface: name(interface), port: None, index: 101 };
            let places = [("10.65.0.1", "veth1"), ("10.65.0.2", "veth2"), ("10.65.0.3", "other")];
            kernel.neighbours.places = places.into_iter().map(|(address, at)| (ip(address), place(at))).collect();
        }
        Self { dataplane, kernel, is_eager }
    }

    fn settle(&mut self) {
        let mut is_due = self.is_eager;
        for _ in 0..10 {
            if !is_due && !self.dataplane.wants_apply(self.kernel.now()) {
                return;
            }
            self.dataplane.apply(&mut self.kernel);
            is_due = false;
        }
    }

    /// Returns everything that must not depend on needless applies.
    fn outcome(&self, ignored: Option<&str>) -> (Vec<String>, String) {
        let state = self.kernel.state();
        let lines = state.lines().filter(|line| ignored.is_none_or(|ignored| !line.contains(ignored)));
        let workloads: Vec<_> = self.dataplane.workload_statuses().collect();
        let hosts: Vec<_> = self.dataplane.host_statuses().collect();
        (lines.map(str::to_owned).collect(), format!("{workloads:?} {hosts:?} {:?}", texts(self.dataplane.problems())))
    }
}

/// A workload with a DSCP value, on an interface that no other workload claims.
fn marked(is_present: bool) -> DesiredUpdate {
    if !is_present {
        return DesiredUpdate::WorkloadEndpointRemove(workload_id("marked"));
    }
    let mut endpoint = pod("cali4", 9);
    let qos = QosControls { dscp: Some(10), ..QosControls::default() };
    endpoint.extras = Some(Box::new(WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() }));
    workload("marked", endpoint, &[])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After each step, a dataplane that applies only when it wants to has brought its kernel to
    /// the same state as one that applies after every change.
    #[test]
    fn a_change_that_causes_no_apply_makes_no_difference(
        features in features(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut nodes = [Node::new(features, false), Node::new(features, true)];
        let (mut links, mut desired, mut has_marked) = (Links::default(), State::default(), false);
        nodes.iter_mut().for_each(Node::settle);
        for step in &steps {
            let updates = match step {
                Step::Desired(new) => transition(&std::mem::replace(&mut desired, new.clone()), new),
                Step::Dscp(is_present) => {
                    has_marked = *is_present;
                    vec![profile("kns.default"), marked(*is_present)]
                }
                _ => Vec::new(),
            };
            let events = links.change(step);
            for node in &mut nodes {
                links.drop_routes(&mut node.kernel);
                updates.iter().for_each(|update| node.dataplane.on_update(update.clone()));
                events.iter().for_each(|event| node.dataplane.on_link(event.clone()));
                node.settle();
            }
            // The set of the node's addresses is written late if no rule reads it.
            let ignored = (!has_marked && features != Features::Ipvs).then_some("this-host");
            prop_assert_eq!(nodes[0].outcome(ignored), nodes[1].outcome(ignored), "after {:?} of {:?}", step, features);
        }
        nodes[0].is_eager = true;
        nodes.iter_mut().for_each(Node::settle);
        prop_assert_eq!(nodes[0].outcome(None), nodes[1].outcome(None));
    }
}

#[test]
fn a_link_of_nothing_causes_no_apply() {
    let updates =
        [profile("kns.default"), workload("w", pod("cali1", 1), &[]), host("h", host_endpoint(Some("*"), &[]), &[])];
    let mut dataplane =
        dataplane(Backend::Nft, updates, [up("cali1", 7), up("eth0", 1), addresses("eth0", &["172.16.0.1"])]);
    let mut kernel = kernel(Backend::Nft);
    dataplane.apply(&mut kernel);
    let mut wants = |events: &[LinkEvent]| {
        events.iter().for_each(|event| dataplane.on_link(event.clone()));
        let wants = dataplane.wants_apply(kernel.now());
        if wants {
            dataplane.apply(&mut kernel);
        }
        wants
    };
    let down = |link: &str, index| LinkEvent::Down { name: name(link), index };
    let gone = |link: &str| LinkEvent::Gone { name: name(link) };
    assert!(!wants(&[up("veth1", 20), addresses("veth1", &["fe80::9"]), down("veth1", 20), gone("veth1")]));
    assert!(!wants(&[down("eth0", 1)]), "neither the endpoint of all interfaces nor a route depends on it");
    assert!(wants(&[down("cali1", 7)]));
    assert!(wants(&[up("cali2", 8)]), "it may become a workload's");
    assert!(!wants(&[up("veth2", 21)]));
    assert!(wants(&[gone("veth2"), up("cali3", 21)]), "renamed");
}
