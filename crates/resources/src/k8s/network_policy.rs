//! Network policies of Kubernetes (`libcalico-go/lib/backend/k8s/conversion/conversion.go`), with
//! the defaults of the API server.

use std::sync::Arc;

use tortie_model::{
    Cidr, EntityExtras, EntityMatch, Extras, NamedProtocol, Order, OriginalMatch, Policy, PolicyTypes, PortSpec,
    Protocol, Rule, RuleAction, TierName, Update, with_causes,
};
use tortie_selector::Selector;

use super::label_selector;
use super::ports::{self, Ports};
use crate::object::{Contributions, Kind, Object};
use crate::scalar;
use crate::spelling::suggestion;
use crate::tree::{Cursor, Map, Sink};
use crate::v3::selectors::{SideSelectors, combination, namespaced_policy, side_selector};
use crate::v3::{Staged, as_written, policy_id, staged_action};

/// Order of Kubernetes policies in the default tier.
pub(crate) const ORDER: f64 = 1000.0;

/// Converts a Kubernetes `NetworkPolicy` or a `StagedKubernetesNetworkPolicy`.
pub(crate) fn network_policy(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let staged = object.id.kind == Kind::StagedKubernetesNetworkPolicy;
    let spec = object.required_spec(sink)?;
    let known = ["podSelector", "ingress", "egress", "policyTypes", "stagedAction"];
    spec.known(if staged { &known } else { &known[..4] }, sink);
    let action = if staged { staged_action(spec, sink) } else { None };
    if action == Some(Staged::Delete) {
        return Some(Vec::new());
    }
    let namespace = &*object.id.namespace;
    // The API server reads an absent selector as an empty one.
    let selector = label_selector::of_pods(spec.field("podSelector"), sink);
    let policy = Policy {
        namespace: Some(Arc::clone(&object.id.namespace)),
        tier: TierName::default_tier(),
        order: Order::new(ORDER),
        selector: selected(spec, namespace, &selector, sink),
        types: types(spec, sink),
        inbound: rules(spec, "ingress", "from", namespace, sink).into(),
        outbound: rules(spec, "egress", "to", namespace, sink).into(),
        staged_action: match action {
            Some(Staged::Action(action)) => Some(action),
            _ => None,
        },
        deny_action: if staged { None } else { object.deny_action(sink) },
        ..Policy::default()
    };
    Some(vec![Update::Policy(policy_id(object)?, Some(object.root.valid(policy, sink)?))])
}

/// Returns the declared types. If none is declared, these are ingress, and egress if there are
/// egress rules.
pub(crate) fn types(spec: Map<'_, '_>, sink: &mut Sink) -> PolicyTypes {
    let mut types = PolicyTypes { ingress: false, egress: false };
    let count = spec.list("policyTypes", sink, |word, sink| {
        match word.text(sink)? {
            "Ingress" => types.ingress = true,
            "Egress" => types.egress = true,
            other => {
                let suggestion = suggestion(other, &["Ingress", "Egress"]);
                word.error(sink, format!("`{other}` is neither Ingress nor Egress{suggestion}"));
            }
        }
        Some(())
    });
    if !count.is_empty() {
        return types;
    }
    let egress = spec.field("egress").is_some_and(|egress| egress.items(&mut Sink::default()).len() > 0);
    PolicyTypes { ingress: true, egress }
}

/// Returns the rules of a list: one for each protocol and peer.
fn rules(spec: Map<'_, '_>, name: &str, peers_name: &str, namespace: &str, sink: &mut Sink) -> Vec<Rule> {
    let mut rules = Vec::new();
    spec.list(name, sink, |rule, sink| {
        let position = rule.position();
        let cursor = rule;
        let rule = PolicyRule::read(cursor, peers_name, namespace, sink)?;
        if !rule.may_expand(cursor, sink) {
            return None;
        }
        sink.rules_at(peers_name == "from", position, rule.alternatives().count());
        rules.extend(rule.alternatives().map(|(protocol, ports, peer)| {
            let peer = peer.map(Peer::entity).unwrap_or_default();
            let mut rule = Rule { protocol: protocol.map(Protocol::Named), ..Rule::new(RuleAction::Allow) };
            if peers_name == "from" {
                rule.source = peer;
            } else {
                rule.destination = peer;
            }
            rule.destination.ports = ports.into();
            rule
        }));
        Some(())
    });
    rules
}

/// Rule of a policy, as written.
pub(crate) struct PolicyRule {
    /// Empty for any peer.
    peers: Vec<Peer>,
    /// Empty for any protocol.
    ports: Ports,
}

/// Peer of a rule.
pub(crate) enum Peer {
    /// Pods, by a selector of endpoints. It combines the pod selector with the namespace selector;
    /// an empty namespace selector means the namespace of the policy.
    Pods { selector: Option<Selector>, pods: String, namespaces: String, original: Extras<EntityExtras> },
    /// Addresses.
    Block { net: Cidr, except: Vec<Cidr> },
}

impl PolicyRule {
    pub(crate) fn read(rule: Cursor<'_, '_>, peers_name: &str, namespace: &str, sink: &mut Sink) -> Option<Self> {
        let map = rule.map(sink)?;
        map.only(&[peers_name, "ports"], sink);
        let peers = map.list(peers_name, sink, |peer, sink| Peer::read(peer, namespace, sink));
        let ports = ports::group(map.list("ports", sink, ports::read));
        Some(Self { peers, ports })
    }

    /// Reports whether the rules that this one expands to, with those before them, are within the
    /// bounds of a policy.
    pub(crate) fn may_expand(&self, cursor: Cursor<'_, '_>, sink: &mut Sink) -> bool {
        let peers = self.peers.len().max(1);
        if self.ports.is_empty() {
            return sink.expand(cursor, peers, [].iter());
        }
        self.ports.values().all(|(_, ports)| sink.expand(cursor, peers, ports.iter()))
    }

    /// Returns each combination of a protocol with its ports (empty: all ports) and a peer; `None`
    /// means any.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = (Option<NamedProtocol>, &[PortSpec], Option<&Peer>)> {
        let mut ports: Vec<_> =
            self.ports.values().map(|(protocol, list)| (Some(*protocol), list.as_slice())).collect();
        if ports.is_empty() {
            ports.push((None, &[]));
        }
        let mut peers: Vec<_> = self.peers.iter().map(Some).collect();
        if peers.is_empty() {
            peers.push(None);
        }
        ports
            .into_iter()
            .flat_map(move |(protocol, list)| peers.clone().into_iter().map(move |peer| (protocol, list, peer)))
    }
}

impl Peer {
    fn read(cursor: Cursor<'_, '_>, namespace: &str, sink: &mut Sink) -> Option<Self> {
        let map = cursor.map(sink)?;
        map.only(&["podSelector", "namespaceSelector", "ipBlock"], sink);
        let (pods, namespaces) = (map.field("podSelector"), map.field("namespaceSelector"));
        if let Some(block) = map.field("ipBlock") {
            if pods.is_some() || namespaces.is_some() {
                block.error(sink, "cannot be combined with selectors");
            }
            return ip_block(block, sink);
        }
        if pods.is_none() && namespaces.is_none() {
            map.error(sink, "must give podSelector, namespaceSelector or ipBlock");
            return None;
        }
        let sound = sink.problems.reports();
        let pods = label_selector::of_pods(pods, sink);
        let namespaces = namespaces.map(|field| label_selector::of_namespaces(field, sink)).unwrap_or_default();
        let written = SideSelectors { selector: &pods, namespace_selector: &namespaces, ..SideSelectors::default() };
        let selector = side_selector(namespace, &written, &mut sink.selectors).map(|text| {
            combination(&text, &mut sink.selectors).unwrap_or_else(|error| {
                if sink.problems.reports() == sound {
                    map.error(sink, with_causes(&error));
                }
                Selector::none()
            })
        });
        let original = originally(&pods, &namespaces, sink);
        Some(Self::Pods { selector, pods, namespaces, original })
    }

    fn entity(&self) -> EntityMatch {
        match self {
            Self::Block { net, except } => {
                let extras = EntityExtras { not_nets: except.iter().copied().collect(), ..EntityExtras::default() };
                EntityMatch { nets: [*net].into(), extras: extras.into(), ..EntityMatch::default() }
            }
            Self::Pods { selector, original, .. } => {
                EntityMatch { selector: selector.clone(), extras: original.clone(), ..EntityMatch::default() }
            }
        }
    }
}

/// Returns the selector of a policy with this pod selector.
fn selected(spec: Map<'_, '_>, namespace: &str, pods: &str, sink: &mut Sink) -> Selector {
    let text = namespaced_policy(namespace, pods, "", &mut sink.selectors);
    combination(&text, &mut sink.selectors).unwrap_or_else(|error| {
        spec.error(sink, with_causes(&error));
        Selector::none()
    })
}

/// Returns the selectors as the user wrote them. They have been checked.
pub(super) fn originally(pods: &str, namespaces: &str, sink: &mut Sink) -> Extras<EntityExtras> {
    let original = OriginalMatch {
        selector: as_written(pods, sink),
        namespace_selector: as_written(namespaces, sink),
        ..OriginalMatch::default()
    };
    EntityExtras { original, ..EntityExtras::default() }.into()
}

fn ip_block(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Peer> {
    let map = cursor.map(sink)?;
    map.only(&["cidr", "except"], sink);
    let Some(field) = map.field("cidr") else {
        map.missing("cidr", sink);
        return None;
    };
    let net = network(field, sink)?;
    let except = map.list("except", sink, |field, sink| {
        let hole = network(field, sink)?;
        let within = net.contains(hole.address()) && hole.prefix_len() > net.prefix_len();
        if !within {
            field.error(sink, format!("{hole} is not a part of {net}"));
        }
        Some(hole)
    });
    Some(Peer::Block { net, except })
}

/// Reads a network; Kubernetes accepts no bare addresses.
fn network(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Cidr> {
    let net = scalar::net(cursor, sink)?;
    if !cursor.text(sink).is_some_and(|text| text.contains('/')) {
        cursor.error(sink, format!("`{}` needs a prefix length, such as {net}", net.address()));
    }
    Some(net)
}

/// Returns a policy that denies the endpoints selected by an invalid one, in its declared
/// directions or else in both; `None` if its selector is unreadable. Kubernetes policies only
/// allow, so a policy without rules denies everything.
pub(crate) fn substitute_policy(object: &Object<'_, '_>) -> Option<Contributions> {
    let sink = &mut Sink::default();
    let spec = object.map.field("spec")?.map(sink)?;
    let field = spec.field("podSelector")?;
    let selector = label_selector::of_pods(Some(field), sink);
    if sink.has_errors() {
        return None;
    }
    let mut quiet = Sink::default();
    let declared = spec.field("policyTypes").is_some_and(|field| field.items(&mut Sink::default()).len() > 0);
    let types = types(spec, &mut quiet);
    let policy = Policy {
        namespace: Some(Arc::clone(&object.id.namespace)),
        order: Order::new(ORDER),
        selector: selected(spec, &object.id.namespace, &selector, sink),
        types: if declared && !quiet.has_errors() { types } else { PolicyTypes::BOTH },
        ..Policy::default()
    };
    Some(vec![Update::Policy(policy_id(object)?, Some(object.root.valid(policy, sink)?))])
}
