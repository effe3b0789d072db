//! Contents of a node's maps: endpoints with policies, and their interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_classes::{Classes, Compiled};
use tortie_ebpf::layout::{EndpointKind, EndpointRecord, MapKind, RootsRecord};
use tortie_ebpf::{Assignment, Blocks, Cell, Tables};
use tortie_evaluate::{Layer, Settings};
use tortie_lab::pods::{Lab, LabHost, interface_name};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, Policy, RuleSets, Rules, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, Family, HostEndpointName, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName,
    WorkloadEndpoint, WorkloadEndpointId,
};

use crate::generation::Generation;

/// Rules of one policy.
#[derive(Clone, Default)]
pub(crate) struct Rulings {
    pub(crate) ingress: Vec<Rule>,
    pub(crate) egress: Vec<Rule>,
}

pub(crate) fn rule(action: RuleAction, protocol: Protocol, ports: &[u16]) -> Rule {
    let mut rule = Rule { protocol: Some(protocol), ..Rule::new(action) };
    rule.destination.ports = ports.iter().map(|port| PortSpec::single(*port)).collect();
    rule
}

pub(crate) fn allow(protocol: Protocol, ports: &[u16]) -> Rule {
    rule(RuleAction::Allow, protocol, ports)
}

pub(crate) fn allow_all() -> Rule {
    Rule::new(RuleAction::Allow)
}

/// Layers of a host endpoint; `None` for a layer without policy.
#[derive(Clone, Default)]
pub(crate) struct Host {
    pub(crate) normal: Option<Rulings>,
    pub(crate) forward: Option<Rulings>,
    pub(crate) untracked: Option<Rulings>,
    pub(crate) pre_dnat: Option<Rulings>,
}

/// Desired state of a node.
#[derive(Clone, Default)]
pub(crate) struct Content {
    /// Pods, each with a policy. Other pods of the laboratory have no endpoint.
    pub(crate) pods: Vec<(LabHost, Rulings)>,
    /// Host endpoints by interface; `*` for all interfaces.
    pub(crate) hosts: BTreeMap<&'static str, Host>,
}

fn rules(rules: &[Rule]) -> Rules {
    Rules::new(rules.into(), vec![RuleSets::default(); rules.len()].into()).unwrap()
}

fn workload_id(place: &LabHost) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: place.to_string().into(), endpoint: "eth0".into() }
}

/// Returns the index of a node's interface.
fn index(lab: &Lab, interface: &str) -> u32 {
    let text = lab.node().shell(&format!("ip -o link show dev {interface}")).unwrap();
    text.split(':').next().unwrap().trim().parse().unwrap()
}

/// State shared by the pods and hosts while their records are written.
struct Writer<'a> {
    lab: &'a Lab,
    generation: &'a Generation,
    endpoints: u32,
    interfaces: Vec<([u8; 4], u32)>,
}

impl Content {
    /// Adds a separate policy for an endpoint.
    fn add(classes: &mut Classes, name: &str, rulings: Option<&Rulings>) -> TierList {
        let Some(Rulings { ingress, egress }) = rulings else { return [].into() };
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name);
        let policy = Policy {
            source: std::sync::Arc::default(),
            selector: "all()".into(),
            inbound: rules(ingress),
            outbound: rules(egress),
        };
        classes.apply(&DesiredUpdate::Policy(id.clone(), policy.into())).unwrap();
        [TierPolicies {
            name: TierName::default_tier(),
            default_action: None,
            ingress: [id.clone()].into(),
            egress: [id].into(),
        }]
        .into()
    }

    fn classes(&self, lab: &Lab) -> Classes {
        let mut classes = Classes::new(Settings::default());
        for (place, rulings) in &self.pods {
            let tiers = Self::add(&mut classes, &place.to_string(), Some(rulings));
            let pod = lab.pods().find(|pod| pod.place == *place).unwrap();
            let of_family = |v4: bool| pod.addresses.iter().filter(move |address| address.is_ipv4() == v4);
            let endpoint = WorkloadEndpoint {
                ipv4_nets: of_family(true).map(|address| Cidr::host(*address)).collect(),
                ipv6_nets: of_family(false).map(|address| Cidr::host(*address)).collect(),
                ..WorkloadEndpoint::default()
            };
            let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers, ..WorkloadEndpointState::default() };
            classes.apply(&DesiredUpdate::WorkloadEndpoint(workload_id(place), state)).unwrap();
        }
        for (interface, host) in &self.hosts {
            let mut tiers = |layer: &str, rulings: &Option<Rulings>| {
                Self::add(&mut classes, &format!("{interface}-{layer}"), rulings.as_ref())
            };
            let state = HostEndpointState {
                tiers: tiers("normal", &host.normal),
                forward_tiers: tiers("forward", &host.forward),
                untracked_tiers: tiers("untracked", &host.untracked),
                pre_dnat_tiers: tiers("pre-dnat", &host.pre_dnat),
                ..HostEndpointState::default()
            };
            classes.apply(&DesiredUpdate::HostEndpoint(HostEndpointName::new(*interface), state)).unwrap();
        }
        classes
    }

    /// Writes everything and returns the tables.
    pub(crate) fn write(&self, lab: &Lab, generation: &Generation) -> Tables {
        let mut classes = self.classes(lab);
        let compiled = classes.flush();
        let mut tables = Tables::new(&compiled);
        let mut writer = Writer { lab, generation, endpoints: 0, interfaces: Vec::new() };
        // 0 means no endpoint.
        writer.add(EndpointRecord::default());
        for (place, _) in &self.pods {
            writer.pod(place, &compiled, &mut tables);
        }
        let mut all_interfaces = 0;
        for (interface, host) in &self.hosts {
            let number = writer.host(interface, host, &compiled, &tables);
            if *interface == "*" {
                all_interfaces = number;
            }
        }
        let keys: Vec<_> = writer.interfaces.iter().map(|(key, number)| (&key[..], *number)).collect();
        let interfaces = tree(tables.blocks(), &keys);
        let roots = RootsRecord {
            addresses: Family::ALL.map(|family| tables.addresses(family)),
            all_interfaces,
            is_in_force: true,
            ..RootsRecord::default()
        };
        let roots = roots.with_interfaces(interfaces, tables.blocks());
        let blocks = tables.blocks();
        for number in blocks.take_written() {
            let cells = blocks.cells(number).unwrap();
            generation.write(MapKind::Blocks, number, &cells.map(|cell| cell.bits().to_ne_bytes()).concat());
        }
        let has_untracked = self.hosts.values().any(|host| host.untracked.is_some());
        let bytes = if has_untracked { roots.to_bytes() } else { roots.to_bytes_without_untracked() };
        generation.write(MapKind::Roots, 1, &bytes);
        generation.write(MapKind::Current, 0, &1_u64.to_ne_bytes());
        tables
    }
}

fn tree(blocks: &mut Blocks, keys: &[(&[u8], u32)]) -> Cell {
    let bits = |key: &[u8]| u8::try_from(key.len() * 8).unwrap();
    let all = keys.iter().map(|(key, value)| Assignment { key, bits: bits(key), value: *value });
    blocks.assign(Cell::value(0), &all.collect::<Vec<_>>())
}

impl Writer<'_> {
    fn add(&mut self, record: EndpointRecord) -> u32 {
        let number = self.endpoints;
        self.generation.write(MapKind::Endpoints, number, &record.to_bytes());
        self.endpoints += 1;
        number
    }

    /// Writes a group to a separate slot.
    fn group(&self, slot: u32, id: Option<tortie_classes::GroupId>, tables: &Tables) -> u32 {
        let roots = id.and_then(|id| tables.group(id)).unwrap_or(tortie_ebpf::GroupRoots::CLOSED);
        self.generation.write(MapKind::Groups, slot, &roots.to_bytes());
        slot
    }

    fn pod(&mut self, place: &LabHost, compiled: &Compiled<'_>, tables: &mut Tables) {
        let base = 8 * self.endpoints;
        let id = workload_id(place);
        let group = |direction| compiled.workload_group(&id, direction);
        let mut groups = [0; 8];
        groups[EndpointRecord::WORKLOAD_INGRESS] = self.group(base, group(Direction::Ingress), tables);
        groups[EndpointRecord::WORKLOAD_EGRESS] = self.group(base + 1, group(Direction::Egress), tables);
        let addresses: Vec<IpAddr> = self.lab.pods().find(|pod| pod.place == *place).unwrap().addresses.clone();
        let sources = [true, false].map(|v4| {
            let of_family = addresses.iter().filter(|address| address.is_ipv4() == v4);
            let keys: Vec<Vec<u8>> = of_family
                .map(|address| match address {
                    IpAddr::V4(address) => address.octets().to_vec(),
                    IpAddr::V6(address) => address.octets().to_vec(),
                })
                .collect();
            tree(tables.blocks(), &keys.iter().map(|key| (&key[..], 1)).collect::<Vec<_>>())
        });
        let number =
            self.add(EndpointRecord { kind: EndpointKind::Workload, evaluated: 0b11, groups, sources, domains: 0 });
        let interface = interface_name(place).unwrap();
        self.interfaces.push((index(self.lab, &interface).to_be_bytes(), number));
    }

    fn host(&mut self, interface: &str, host: &Host, compiled: &Compiled<'_>, tables: &Tables) -> u32 {
        let base = 8 * self.endpoints;
        let name = HostEndpointName::new(interface);
        let layers = [
            // Without policy and profiles, this layer denies.
            (Layer::Normal, true),
            (Layer::Forward, host.forward.is_some()),
            (Layer::Untracked, host.untracked.is_some()),
            (Layer::PreDnat, host.pre_dnat.is_some()),
        ];
        let (mut groups, mut evaluated) = ([0; 8], 0);
        for (place, (layer, is_evaluated)) in (0_u8..).step_by(2).zip(layers) {
            for (place, direction) in [(place, Direction::Ingress), (place + 1, Direction::Egress)] {
                let slot = self.group(base + u32::from(place), compiled.host_group(&name, layer, direction), tables);
                groups[usize::from(place)] = slot;
                evaluated |= u32::from(is_evaluated) << place;
            }
        }
        let kind = EndpointKind::Host;
        let number = self.add(EndpointRecord { kind, evaluated, groups, ..EndpointRecord::default() });
        if interface != "*" {
            self.interfaces.push((index(self.lab, interface).to_be_bytes(), number));
        }
        number
    }
}
