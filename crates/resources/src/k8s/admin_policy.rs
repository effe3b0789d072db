//! Policies of cluster administrators: `ClusterNetworkPolicy`
//! (`libcalico-go/lib/backend/k8s/conversion/clusternetworkpolicy.go`), and its predecessors
//! `AdminNetworkPolicy` and `BaselineAdminNetworkPolicy` (Calico up to 3.31).
//!
//! An unreadable rule does not invalidate its policy, and opens nothing: a rule that denies or
//! passes denies everything instead, and a rule that accepts is left out.

use std::sync::Arc;

use tortie_model::{
    DomainPattern, EntityExtras, EntityMatch, List, NamedProtocol, Order, Policy, PolicyId, PolicyKind, PolicyTypes,
    PortSpec, Protocol, Rule, RuleAction, RuleExtras, Tier, TierDefaultAction, TierName, Update, with_causes,
};
use tortie_selector::Selector;

use super::label_selector;
use super::network_policy::originally;
use super::ports::{self, simplify};
use crate::object::{Contributions, Kind, Object, UnknownFields};
use crate::scalar;
use crate::spelling::suggestion;
use crate::tree::{Cursor, Map, Sink};
use crate::v3::selectors::{SideSelectors, combination, global_policy, side_selector};

/// Order of the only baseline policy in its tier.
const BASELINE_ORDER: f64 = 1000.0;

/// Converts any of these policies.
pub(crate) fn admin_policy(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let spec = object.required_spec(sink)?;
    let kind = object.id.kind;
    match kind {
        Kind::ClusterNetworkPolicy => spec.known(&["tier", "priority", "subject", "ingress", "egress"], sink),
        Kind::AdminNetworkPolicy => spec.known(&["priority", "subject", "ingress", "egress"], sink),
        _ => spec.known(&["subject", "ingress", "egress"], sink),
    }
    let tier = tier(kind, spec, sink);
    let order = match kind {
        Kind::BaselineAdminNetworkPolicy => Order::new(BASELINE_ORDER),
        _ => match spec.field("priority") {
            Some(field) => field.int::<i32>(0, 1_000_000, sink).and_then(|priority| Order::new(f64::from(priority))),
            None => {
                spec.missing("priority", sink);
                None
            }
        },
    };
    let selector = subject(spec, sink)?;
    // The API has domains in policies of administrators, not in baseline policies.
    let has_domains = tier.as_ref().is_some_and(|tier| matches!(tier.as_str(), "kube-admin" | "adminnetworkpolicy"));
    let inbound = rules(object, spec, Direction { peers: "from", has_domains: false }, sink);
    let outbound = rules(object, spec, Direction { peers: "to", has_domains }, sink);
    let policy = Policy {
        tier: tier?,
        order,
        selector,
        // These tiers pass undecided packets, so a direction without rules needs no evaluation.
        types: PolicyTypes { ingress: !inbound.is_empty(), egress: !outbound.is_empty() },
        inbound: inbound.into(),
        outbound: outbound.into(),
        deny_action: object.deny_action(sink),
        ..Policy::default()
    };
    let tier = needed_tier(&policy.tier);
    let mut contributions = vec![Update::Policy(id(object), Some(object.root.valid(policy, sink)?))];
    contributions.extend(tier);
    Some(contributions)
}

/// Direction of a list of rules.
#[derive(Clone, Copy)]
struct Direction {
    /// Field of a rule with its peers.
    peers: &'static str,
    /// Whether rules that allow may have peers by domain name.
    has_domains: bool,
}

impl Direction {
    fn is_egress(self) -> bool {
        self.peers == "to"
    }
}

/// Returns the tier of `AdminNetworkPolicy` or `BaselineAdminNetworkPolicy`, which may be missing:
/// only Calico releases with these kinds create it (`libcalico-go/lib/clientv3/client.go` of 3.31).
/// The tiers of `ClusterNetworkPolicy` always exist.
fn needed_tier(tier: &TierName) -> Option<Update> {
    let order = match tier.as_str() {
        "adminnetworkpolicy" => 1_000.0,
        "baselineadminnetworkpolicy" => 10_000_000.0,
        _ => return None,
    };
    let value = Tier { order: Order::new(order), default_action: Some(TierDefaultAction::Pass) };
    Some(Update::Tier(tier.clone(), Some(value)))
}

/// Returns the substitute for a refused policy: all its readable parts, if its subject is readable.
pub(crate) fn substitute_admin_policy(object: &Object<'_, '_>) -> Option<Contributions> {
    let mut sink = Sink::default();
    let spec = object.map.field("spec")?.map(&mut sink)?;
    subject(spec, &mut sink)?;
    let tier = tier(object.id.kind, spec, &mut sink);
    if sink.has_errors() || tier.is_none() {
        return None;
    }
    let mut contributions = admin_policy(object, &mut sink)?;
    if let Some(Update::Policy(_, Some(policy))) = contributions.first_mut()
        && policy.order.is_none()
    {
        // Without a readable priority it must come first, or another policy might allow before it
        // denies.
        let first = Policy { order: Order::new(f64::MIN), ..Policy::clone(policy) };
        *policy = object.root.valid(first, &mut sink)?;
    }
    Some(contributions)
}

fn id(object: &Object<'_, '_>) -> PolicyId {
    let name = &object.id.name;
    match object.id.kind {
        Kind::AdminNetworkPolicy => {
            PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("kanp.adminnetworkpolicy.{name}"))
        }
        Kind::BaselineAdminNetworkPolicy => {
            PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("kbanp.baselineadminnetworkpolicy.{name}"))
        }
        _ => PolicyId::new(PolicyKind::KubernetesClusterNetworkPolicy, "", &**name),
    }
}

fn tier(kind: Kind, spec: Map<'_, '_>, sink: &mut Sink) -> Option<TierName> {
    Some(TierName::from(match kind {
        Kind::AdminNetworkPolicy => "adminnetworkpolicy",
        Kind::BaselineAdminNetworkPolicy => "baselineadminnetworkpolicy",
        _ => {
            let Some(field) = spec.field("tier") else {
                spec.missing("tier", sink);
                return None;
            };
            match field.text(sink)? {
                "Admin" => "kube-admin",
                "Baseline" => "kube-baseline",
                other => {
                    let suggestion = suggestion(other, &["Admin", "Baseline"]);
                    field.error(sink, format!("`{other}` is neither Admin nor Baseline{suggestion}"));
                    return None;
                }
            }
        }
    }))
}

/// Reads the subject of a policy: pods, never host interfaces.
fn subject(spec: Map<'_, '_>, sink: &mut Sink) -> Option<Selector> {
    let Some(field) = spec.field("subject") else {
        spec.missing("subject", sink);
        return None;
    };
    let sound = sink.problems.reports();
    let (pods, namespaces) = pods(field, &["namespaces", "pods"], sink)??;
    let text = global_policy(&pods, &namespaces, "", &mut sink.selectors);
    Some(combination(&text, &mut sink.selectors).unwrap_or_else(|error| {
        if sink.problems.reports() == sound {
            field.error(sink, with_causes(&error));
        }
        Selector::none()
    }))
}

/// Returns the selectors of pods and of namespaces. Exactly one of `known` must be given; the inner
/// `None` stands for one that is neither `namespaces` nor `pods`.
fn pods(cursor: Cursor<'_, '_>, known: &[&str], sink: &mut Sink) -> Option<Option<(String, String)>> {
    let map = cursor.map(sink)?;
    if !gives_one(map, known, sink) {
        return None;
    }
    if let Some(namespaces) = map.field("namespaces") {
        return Some(Some((label_selector::of_pods(None, sink), label_selector::of_namespaces(namespaces, sink))));
    }
    let Some(field) = map.field("pods") else { return Some(None) };
    let pods = field.map(sink)?;
    pods.only(&["namespaceSelector", "podSelector"], sink);
    // The API server reads an absent selector as an empty one.
    let namespaces = pods
        .field("namespaceSelector")
        .map_or_else(|| "all()".into(), |field| label_selector::of_namespaces(field, sink));
    Some(Some((label_selector::of_pods(pods.field("podSelector"), sink), namespaces)))
}

/// Reports whether exactly one of the fields is given. Any other mapping is an error.
fn gives_one(map: Map<'_, '_>, known: &[&str], sink: &mut Sink) -> bool {
    let reports = sink.problems.reports();
    map.only(known, sink);
    let is_one = known.iter().filter(|name| map.field(name).is_some()).count() == 1;
    // An unknown field explains the absence of the known ones.
    if !is_one && sink.problems.reports() == reports {
        map.error(sink, format!("must give one of {}", known.join(", ")));
    }
    is_one
}

fn rules(object: &Object<'_, '_>, spec: Map<'_, '_>, direction: Direction, sink: &mut Sink) -> Vec<Rule> {
    let mut rules = Vec::new();
    let (name, is_ingress) = if direction.is_egress() { ("egress", false) } else { ("ingress", true) };
    spec.list(name, sink, |cursor, sink| {
        let mut own = sink.apart();
        let read = rule(object.id.kind, cursor, direction, &mut own);
        let failed = own.has_errors() || read.is_none();
        // In a datastore, the API server has accepted the policy, so the rest of it holds.
        let tolerate = object.options.unknown_fields == UnknownFields::Ignore;
        sink.adopt(own, tolerate);
        if !failed {
            let read = read.unwrap_or_default();
            sink.rules_at(is_ingress, cursor.position(), read.len());
            rules.extend(read);
            return Some(());
        }
        let accepts = matches!(action_text(cursor), Some("Accept" | "Allow"));
        if tolerate {
            cursor.warn(sink, if accepts { "is left out" } else { "denies everything instead" });
        }
        if !accepts {
            sink.rules_at(is_ingress, cursor.position(), 1);
            rules.push(Rule::new(RuleAction::Deny));
        }
        Some(())
    });
    rules
}

fn action_text<'n>(rule: Cursor<'n, '_>) -> Option<&'n str> {
    let quiet = &mut Sink::default();
    rule.map(quiet)?.text("action", quiet)
}

/// Returns the rules that one rule expands to: one for each protocol and peer.
fn rule(kind: Kind, cursor: Cursor<'_, '_>, direction: Direction, sink: &mut Sink) -> Option<Vec<Rule>> {
    let map = cursor.map(sink)?;
    let peers_name = direction.peers;
    let ports_name = if kind == Kind::ClusterNetworkPolicy { "protocols" } else { "ports" };
    map.only(&["name", "action", peers_name, ports_name], sink);
    let action = action(kind, map, sink)?;
    let ports = ports(kind, map, ports_name, sink);
    let reports = sink.problems.reports();
    let has_named_ports = ports.iter().any(|(_, ports)| ports.iter().any(|port| matches!(port, PortSpec::Named(_))));
    let domains = match action {
        RuleAction::Allow if direction.has_domains && has_named_ports => Domains::BesideNamedPorts,
        RuleAction::Allow if direction.has_domains => Domains::Allowed,
        _ => Domains::Refused,
    };
    let peers = map.list(peers_name, sink, |field, sink| peer(kind, field, direction.is_egress(), domains, sink));
    if peers.is_empty() && sink.problems.reports() == reports {
        // The API forbids a rule without peers, so its meaning is unknown.
        map.error(sink, format!("needs at least one peer in `{peers_name}`"));
    }
    let annotations: List<(Arc<str>, Arc<str>)> = match map.text_or_empty("name", sink) {
        "" => List::new(),
        name => [("name".into(), name.into())].into(),
    };
    let mut rules = Vec::new();
    for (protocol, ports) in ports {
        if !sink.expand(cursor, peers.len(), ports.iter()) {
            return None;
        }
        for peer in &peers {
            let mut rule = Rule {
                protocol: protocol.map(Protocol::Named),
                extras: RuleExtras { annotations: annotations.clone(), ..RuleExtras::default() }.into(),
                ..Rule::new(action)
            };
            if peers_name == "from" {
                rule.source = peer.clone();
            } else {
                rule.destination = peer.clone();
            }
            rule.destination.ports = ports.clone().into();
            rules.push(rule);
        }
    }
    Some(rules)
}

fn action(kind: Kind, map: Map<'_, '_>, sink: &mut Sink) -> Option<RuleAction> {
    let Some(field) = map.field("action") else {
        map.missing("action", sink);
        return None;
    };
    match (field.text(sink)?, kind) {
        ("Accept", Kind::ClusterNetworkPolicy)
        | ("Allow", Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy) => Some(RuleAction::Allow),
        ("Deny", _) => Some(RuleAction::Deny),
        ("Pass", Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy) => Some(RuleAction::NextTier),
        (other, _) => {
            field.error(sink, format!("`{other}` is not an action of {}", kind.as_str()));
            None
        }
    }
}

/// Treatment of peers by domain name in a rule.
#[derive(Clone, Copy)]
enum Domains {
    Allowed,
    /// The rule denies or passes, or is part of a baseline policy.
    Refused,
    /// The rule has named ports, which only pods declare.
    BesideNamedPorts,
}

fn peer(kind: Kind, cursor: Cursor<'_, '_>, egress: bool, domains: Domains, sink: &mut Sink) -> Option<EntityMatch> {
    if is_unsupported(kind, cursor, (egress, domains), sink) {
        return None;
    }
    let known: &[&str] = match (egress, kind) {
        (true, Kind::BaselineAdminNetworkPolicy) => &["namespaces", "pods", "nodes", "networks"],
        (true, _) => &["namespaces", "pods", "nodes", "networks", "domainNames"],
        (false, Kind::ClusterNetworkPolicy) => &["namespaces", "pods", "nodes"],
        (false, _) => &["namespaces", "pods"],
    };
    match pods(cursor, known, sink)? {
        Some((selector, namespace_selector)) => {
            // Felix also selects the network sets of the namespaces, whereas the API specifies
            // pods.
            let written = SideSelectors {
                selector: &selector,
                namespace_selector: &namespace_selector,
                ..SideSelectors::default()
            };
            let text = side_selector("", &written, &mut sink.selectors);
            Some(EntityMatch {
                selector: text.map(|text| peer_selector(&text, cursor, sink)),
                extras: originally(&selector, &namespace_selector, sink),
                ..EntityMatch::default()
            })
        }
        None => {
            let map = cursor.map(sink)?;
            if let Some(nodes) = map.field("nodes") {
                let selector = peer_selector(&label_selector::of_nodes(nodes, sink), cursor, sink);
                return Some(EntityMatch { selector: Some(selector), ..EntityMatch::default() });
            }
            if let Some(field) = map.field("domainNames") {
                let extras = EntityExtras { domains: domain_names(map, field, sink)?, ..EntityExtras::default() };
                return Some(EntityMatch { extras: extras.into(), ..EntityMatch::default() });
            }
            let reports = sink.problems.reports();
            let nets = map.list("networks", sink, scalar::net);
            if nets.is_empty() {
                if sink.problems.reports() == reports {
                    map.error(sink, "names no network");
                }
                return None;
            }
            Some(EntityMatch { nets: nets.into(), ..EntityMatch::default() })
        }
    }
}

/// Reads the domain names of a peer: 1 to 25, of two labels at least, with `*` as the first label
/// only (NPEP-133).
fn domain_names(peer: Map<'_, '_>, field: Cursor<'_, '_>, sink: &mut Sink) -> Option<List<DomainPattern>> {
    const MOST: usize = 25;
    let reports = sink.problems.reports();
    for item in field.items(sink) {
        let Some(Ok(name)) = item.text(&mut Sink::default()).map(str::parse::<DomainPattern>) else { continue };
        match name.around_star() {
            Some((before, _)) if !before.is_empty() => item.error(sink, "has `*` behind another label"),
            Some((_, rest)) if !rest.contains('.') => item.error(sink, "needs two labels behind `*`"),
            None if !name.as_str().contains('.') => item.error(sink, "needs two labels"),
            _ => {}
        }
    }
    let count = field.items(&mut Sink::default()).len();
    if count > MOST {
        field.error(sink, format!("has {count} names, at most {MOST} are allowed"));
    }
    let names = scalar::domains_of_rule(peer, "domainNames", sink);
    (sink.problems.reports() == reports).then_some(names)
}

fn peer_selector(text: &str, peer: Cursor<'_, '_>, sink: &mut Sink) -> Selector {
    combination(text, &mut sink.selectors).unwrap_or_else(|error| {
        if !sink.has_errors() {
            peer.error(sink, with_causes(&error));
        }
        Selector::none()
    })
}

/// Reports a peer of a kind that is not enforced, or that the API has for egress rules alone.
fn is_unsupported(kind: Kind, cursor: Cursor<'_, '_>, (egress, domains): (bool, Domains), sink: &mut Sink) -> bool {
    let Some(map) = cursor.map(&mut Sink::default()) else { return false };
    for name in ["nodes", "domainNames", "networks"] {
        let Some(field) = map.field(name) else { continue };
        let message = match (name, egress) {
            ("domainNames", true) => match domains {
                Domains::Allowed => continue,
                Domains::BesideNamedPorts => "cannot be combined with named ports",
                Domains::Refused => "are only for rules of administrators that allow",
            },
            ("nodes" | "networks", true) => continue,
            ("nodes", false) if kind == Kind::ClusterNetworkPolicy => continue,
            _ => "is not a peer of ingress rules",
        };
        field.error(sink, message);
        return true;
    }
    false
}

/// Protocol with its ports; an empty list means all ports.
type Group = (Option<NamedProtocol>, Vec<PortSpec>);

/// Returns the protocols of a rule in the order of their names. Named ports, which have no
/// protocol, come first.
fn ports(kind: Kind, rule: Map<'_, '_>, name: &str, sink: &mut Sink) -> Vec<Group> {
    let entries = rule.list(name, sink, |cursor, sink| {
        if kind == Kind::ClusterNetworkPolicy { protocol_entry(cursor, sink) } else { port_entry(cursor, sink) }
    });
    if entries.is_empty() {
        return vec![(None, Vec::new())];
    }
    let mut groups: Vec<(&str, Group)> = Vec::new();
    for (protocol, port) in entries {
        let name = protocol.map_or("", scalar::resource_protocol_name);
        let Some((_, group)) = groups.iter_mut().find(|(of, _)| *of == name) else {
            groups.push((name, (protocol, port.into_iter().collect())));
            continue;
        };
        match port {
            None => group.1.clear(),
            // All ports include this one.
            Some(_) if group.1.is_empty() => {}
            Some(port) => group.1.push(port),
        }
    }
    groups.sort_unstable_by_key(|(name, _)| *name);
    groups
        .into_iter()
        .map(|(_, group)| group)
        .map(|(protocol, mut ports)| {
            simplify(&mut ports);
            (protocol, ports)
        })
        .collect()
}

/// Reads an entry of `protocols` of a `ClusterNetworkPolicy`.
fn protocol_entry(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<(Option<NamedProtocol>, Option<PortSpec>)> {
    const KNOWN: [&str; 4] = ["tcp", "udp", "sctp", "destinationNamedPort"];
    let map = cursor.map(sink)?;
    if !gives_one(map, &KNOWN, sink) {
        return None;
    }
    if let Some(field) = map.field("destinationNamedPort") {
        return Some((None, Some(ports::named(field, sink)?)));
    }
    let protocols = [("tcp", NamedProtocol::Tcp), ("udp", NamedProtocol::Udp), ("sctp", NamedProtocol::Sctp)];
    let (field, protocol) = protocols.into_iter().find_map(|(name, protocol)| Some((map.field(name)?, protocol)))?;
    let of_protocol = field.map(sink)?;
    of_protocol.only(&["destinationPort"], sink);
    let Some(field) = of_protocol.field("destinationPort") else { return Some((Some(protocol), None)) };
    let port = field.map(sink)?;
    port.only(&["number", "range"], sink);
    match (port.field("number"), port.field("range")) {
        (Some(number), None) => Some((Some(protocol), Some(PortSpec::single(number.int(1, 65535, sink)?)))),
        (None, Some(range)) => Some((Some(protocol), Some(range_of(range.map(sink)?, &["start", "end"], sink)?))),
        _ => {
            port.error(sink, "must give one of number, range");
            None
        }
    }
}

/// Reads an entry of `ports` of the older kinds.
fn port_entry(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<(Option<NamedProtocol>, Option<PortSpec>)> {
    const KNOWN: [&str; 3] = ["portNumber", "portRange", "namedPort"];
    let map = cursor.map(sink)?;
    if !gives_one(map, &KNOWN, sink) {
        return None;
    }
    match (map.field("portNumber"), map.field("portRange"), map.field("namedPort")) {
        (Some(field), None, None) => {
            let fields = field.map(sink)?;
            fields.only(&["protocol", "port"], sink);
            let protocol = protocol(fields, sink)?;
            let Some(port) = fields.field("port") else {
                fields.missing("port", sink);
                return None;
            };
            Some((Some(protocol), Some(PortSpec::single(port.int(1, 65535, sink)?))))
        }
        (None, Some(field), None) => {
            let fields = field.map(sink)?;
            let protocol = protocol(fields, sink)?;
            Some((Some(protocol), Some(range_of(fields, &["protocol", "start", "end"], sink)?)))
        }
        (_, _, field) => Some((None, Some(ports::named(field?, sink)?))),
    }
}

fn protocol(fields: Map<'_, '_>, sink: &mut Sink) -> Option<NamedProtocol> {
    let Some(field) = fields.field("protocol") else { return Some(NamedProtocol::Tcp) };
    match field.text(sink)? {
        "TCP" | "" => Some(NamedProtocol::Tcp),
        "UDP" => Some(NamedProtocol::Udp),
        "SCTP" => Some(NamedProtocol::Sctp),
        other => {
            field.error(sink, format!("`{other}` is none of TCP, UDP, SCTP"));
            None
        }
    }
}

fn range_of(fields: Map<'_, '_>, known: &[&str], sink: &mut Sink) -> Option<PortSpec> {
    fields.only(known, sink);
    let mut end = |name: &str| match fields.field(name) {
        Some(field) => field.int::<u16>(1, 65535, sink),
        None => {
            fields.missing(name, sink);
            None
        }
    };
    let (first, last) = (end("start")?, end("end")?);
    if first > last {
        fields.error(sink, format!("ends at {last}, before it starts at {first}"));
        return None;
    }
    Some(PortSpec::Range { first, last })
}

#[cfg(test)]
mod tests;
