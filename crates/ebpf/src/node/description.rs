//! Human-readable description of a node's policy.

mod located;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tortie_classes::evaluate::{EndpointToHost, FailsafePort, Layer, Settings, UpdateError};
use tortie_classes::{ClassId, Classes, Compiled, GroupId};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Cidr, Direction, Family};

use super::endpoints::{EndpointName, Endpoints};
use super::{NodeSettings, sources};
use crate::tables::{Closed, Tables};
use table::TableText;

pub use located::{Located, Numbered};

/// Maximum number of members of a list that are shown; the rest is given as a count.
const SHOWN: usize = 8;

/// Policy that eBPF programs of a node enforce, as text: interfaces with the groups that they
/// evaluate, the table of each group, and the address classes behind the rows of tables.
///
/// It does not depend on a kernel: each endpoint has the interface that it names. Numbers follow
/// the order of the text, so that the same policy gives the same text.
#[derive(Clone, Debug)]
pub struct Description {
    interfaces: Vec<InterfaceEndpoint>,
    /// Endpoints without an interface.
    homeless: Vec<EndpointName>,
    all_interfaces: Option<InterfaceEndpoint>,
    workload_prefixes: Vec<String>,
    groups: Vec<Group>,
    classes: Vec<Class>,
    settings: Settings,
    compiled: Classes,
    class_numbers: ClassNumbers,
    group_ids: Vec<GroupId>,
}

/// An endpoint at an interface.
#[derive(Clone, Debug)]
struct InterfaceEndpoint {
    interface: String,
    endpoint: EndpointName,
    sources: Vec<Cidr>,
    /// Number of the group for each layer and direction.
    groups: Vec<(Layer, Direction, usize)>,
}

#[derive(Clone, Debug)]
struct Group {
    direction: Direction,
    layer: Layer,
    users: Vec<EndpointName>,
    table: Result<TableText, Closed>,
}

#[derive(Clone, Debug)]
struct Class {
    family: Family,
    /// Networks whose addresses are in the class, except those that longer networks cover; empty
    /// for addresses in no network.
    nets: Vec<Cidr>,
}

/// Numbers of classes, in the order of the text.
pub(super) type ClassNumbers = BTreeMap<ClassId, usize>;

impl Description {
    /// Describes a node that receives these updates.
    ///
    /// # Errors
    /// If an update changes the members of a set that does not exist or is of another type.
    pub fn new<'a>(
        settings: &NodeSettings,
        updates: impl IntoIterator<Item = &'a DesiredUpdate>,
    ) -> Result<Self, UpdateError> {
        let mut classes = settings.classes();
        let mut endpoints = Endpoints::new(settings.workload_prefixes.clone());
        for update in updates {
            classes.apply(update)?;
            endpoints.on_update(update);
        }
        endpoints.assume_interfaces();
        let compiled = classes.flush();
        endpoints.find_groups(&compiled);
        let mut tables = settings.tables();
        tables.update(&compiled);
        let described = Self::of(&compiled, &endpoints, &tables, settings);
        Ok(Self { compiled: classes, ..described })
    }

    /// Returns the description without its `compiled` policy.
    fn of(compiled: &Compiled<'_>, endpoints: &Endpoints, tables: &Tables, settings: &NodeSettings) -> Self {
        let (classes, class_numbers) = classes(compiled);
        let closed = tables.closed().collect();
        let mut groups = Groups { compiled, class_numbers: &class_numbers, closed, ids: Vec::new() };
        let mut shown: Vec<Group> = Vec::new();
        let mut evaluated: BTreeMap<EndpointName, Vec<(Layer, Direction, GroupId)>> = BTreeMap::new();
        for (name, layer, direction, group) in endpoints.groups() {
            evaluated.entry(name).or_default().push((layer, direction, group));
        }
        let mut place = |interface: String, name: &EndpointName, is_at_all: bool| {
            // The endpoint of all interfaces cannot have untracked policy.
            let evaluated = evaluated.get(name).into_iter().flatten().copied();
            let evaluated = evaluated.filter(|(layer, ..)| !(is_at_all && *layer == Layer::Untracked));
            let numbered = evaluated.map(|(layer, direction, group)| {
                let number = groups.number(group, (layer, direction), &mut shown);
                if let Some(Group { users, .. }) = shown.get_mut(number - 1)
                    && users.last() != Some(name)
                {
                    users.push(name.clone());
                }
                (layer, direction, number)
            });
            let groups = numbered.collect();
            let endpoint = name.workload().and_then(|id| endpoints.workload(id));
            let sources = endpoint.map_or_else(Vec::new, |workload| sources(&workload.endpoint));
            InterfaceEndpoint { interface, endpoint: name.clone(), sources, groups }
        };
        let interface_endpoints = endpoints.interface_endpoints();
        let mut at: Vec<(&str, &EndpointName)> = Vec::new();
        for (index, name) in &interface_endpoints.at {
            at.extend(endpoints.interface(*index).map(|interface| (interface, name)));
        }
        at.sort_unstable();
        let interfaces = at.iter().map(|(interface, name)| place((*interface).to_owned(), name, false)).collect();
        let all = interface_endpoints.at_all.map(EndpointName::Host);
        let all_interfaces = all.as_ref().map(|name| place("all others".to_owned(), name, true));
        let placed: BTreeSet<&EndpointName> = interface_endpoints.at.values().chain(&all).collect();
        let homeless = endpoints.names().filter(|name| !placed.contains(name)).collect();
        let group_ids = groups.ids;
        Self {
            interfaces,
            homeless,
            all_interfaces,
            workload_prefixes: settings.workload_prefixes.iter().map(ToString::to_string).collect(),
            groups: shown,
            classes,
            settings: settings.evaluate.clone(),
            compiled: Classes::new(settings.evaluate.clone()),
            class_numbers,
            group_ids,
        }
    }
}

/// Groups in the order of their numbers.
struct Groups<'a> {
    compiled: &'a Compiled<'a>,
    class_numbers: &'a ClassNumbers,
    closed: BTreeMap<GroupId, &'a Closed>,
    ids: Vec<GroupId>,
}

impl Groups<'_> {
    fn number(&mut self, id: GroupId, (layer, direction): (Layer, Direction), shown: &mut Vec<Group>) -> usize {
        if let Some(place) = self.ids.iter().position(|known| *known == id) {
            return place + 1;
        }
        self.ids.push(id);
        let table = match (self.closed.get(&id), self.compiled.table(id)) {
            (Some(why), _) => Err((*why).clone()),
            (None, Some(Ok(table))) => Ok(TableText::new(&table, self.class_numbers)),
            (None, Some(Err(missing))) => Err(Closed::Missing(missing)),
            (None, None) => Err(Closed::TooManyCells(0)),
        };
        shown.push(Group { direction, layer, users: Vec::new(), table });
        self.ids.len()
    }
}

fn classes(compiled: &Compiled<'_>) -> (Vec<Class>, ClassNumbers) {
    let mut numbers = ClassNumbers::new();
    let mut classes: Vec<Class> = Vec::new();
    let mut place = |class: ClassId, family: Family, classes: &mut Vec<Class>| {
        *numbers.entry(class).or_insert_with(|| {
            classes.push(Class { family, nets: Vec::new() });
            classes.len() - 1
        })
    };
    for family in Family::ALL {
        place(compiled.rest(family), family, &mut classes);
    }
    for (net, class) in compiled.prefixes() {
        let number = place(class, net.family(), &mut classes);
        if let Some(class) = classes.get_mut(number) {
            class.nets.push(net);
        }
    }
    (classes, numbers)
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "interfaces")?;
        for place in &self.interfaces {
            write!(f, "{place}")?;
        }
        let prefixes = self.workload_prefixes.join(", ");
        writeln!(f, "  others whose names begin with {prefixes}: nothing passes")?;
        match &self.all_interfaces {
            Some(place) => write!(f, "{place}")?,
            None => writeln!(f, "  all others: the host's, without policy")?,
        }
        for name in &self.homeless {
            writeln!(f, "  none: {name}")?;
        }
        for (number, group) in (1..).zip(&self.groups) {
            let Group { direction, layer, users, table } = group;
            writeln!(f, "\ngroup {number}: {} of {}", layer_text(*layer, *direction), short(users))?;
            match table {
                Ok(table) => write!(f, "{table}")?,
                Err(why) => writeln!(f, "  everything is denied: {why}")?,
            }
        }
        writeln!(f, "\nclasses of addresses")?;
        for (number, class) in self.classes.iter().enumerate() {
            writeln!(f, "  {number}: {}", class.text(number))?;
        }
        self.write_settings(f)
    }
}

impl Description {
    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { failsafe_inbound, failsafe_outbound, endpoint_to_host, vxlan_port, .. } = &self.settings;
        writeln!(f, "\nbeside policy")?;
        writeln!(f, "  failsafe ports to the host: {}", failsafes(failsafe_inbound))?;
        writeln!(f, "  failsafe ports from the host: {}", failsafes(failsafe_outbound))?;
        let may = |may: bool| if may { "allowed as policy says" } else { "denied" };
        writeln!(f, "  VXLAN of workloads (UDP {vxlan_port}): {}", may(self.settings.vxlan_from_workloads))?;
        writeln!(f, "  IP-in-IP of workloads: {}", may(self.settings.ipip_from_workloads))?;
        let to_host = match endpoint_to_host {
            EndpointToHost::Allow => "allowed",
            EndpointToHost::Deny => "denied",
            EndpointToHost::Undecided => "left to the host's own rules",
        };
        writeln!(f, "  from workloads to the host, for packets that their policy allows: {to_host}")
    }
}

impl Class {
    fn text(&self, number: usize) -> String {
        let Self { family, nets } = self;
        // Class 0 is that of all IPv4 addresses in no network, class 1 that of IPv6.
        let is_rest = number < Family::ALL.len();
        let rest = is_rest.then(|| format!("all IPv{} addresses in no network", family.number()));
        let nets = (!nets.is_empty()).then(|| short(nets));
        let parts: Vec<String> = rest.into_iter().chain(nets).collect();
        parts.join(", and ")
    }
}

impl fmt::Display for InterfaceEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, endpoint, sources, groups } = self;
        writeln!(f, "  {interface}: {endpoint}")?;
        if !sources.is_empty() {
            let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
            writeln!(f, "    may send from {}", sources.join(", "))?;
        }
        for (layer, direction, number) in groups {
            writeln!(f, "    {}: group {number}", layer_text(*layer, *direction))?;
        }
        Ok(())
    }
}

fn layer_text(layer: Layer, direction: Direction) -> String {
    let direction = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    match layer {
        Layer::Forward => format!("forwarded {direction}"),
        Layer::Untracked => format!("untracked {direction}"),
        Layer::PreDnat => format!("pre-DNAT {direction}"),
        _ => direction.to_owned(),
    }
}

fn failsafes(ports: &[FailsafePort]) -> String {
    let protocol = |number: u8| match number {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        number => format!("protocol {number}"),
    };
    let port = |port: &FailsafePort| {
        let net = port.net.map_or_else(String::new, |net| format!(" of {net}"));
        format!("{} {}{net}", protocol(port.protocol.number()), port.port)
    };
    match ports {
        [] => "none".to_owned(),
        ports => ports.iter().map(port).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the first members of a list, and the number of the others.
fn short<T: ToString>(all: &[T]) -> String {
    let shown: Vec<String> = all.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
