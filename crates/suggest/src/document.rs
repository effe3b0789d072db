//! Text of policies.

mod node;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tortie_model::{Direction, Protocol};

use crate::labels::PodSelector;
use crate::policy::{Mark, Peer, RulePort, SuggestedPolicy, SuggestedRule};
use crate::record::{EdgePort, ported};
use node::Node;

/// Form of suggested policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "callers match all forms")]
pub enum Form {
    /// `networking.k8s.io/v1` `NetworkPolicy`.
    #[default]
    Kubernetes,
    /// `StagedKubernetesNetworkPolicy`, which is evaluated and not enforced.
    Staged,
    /// `projectcalico.org/v3` `NetworkPolicy`.
    Calico,
    /// `StagedNetworkPolicy`, which is evaluated and not enforced.
    CalicoStaged,
}

impl Form {
    /// Returns the form of the same policies in force.
    pub(crate) const fn enforced(self) -> Self {
        match self {
            Self::Kubernetes | Self::Staged => Self::Kubernetes,
            Self::Calico | Self::CalicoStaged => Self::Calico,
        }
    }

    /// Reports whether rules can have this protocol and port.
    pub(crate) fn can_write(self, port: RulePort) -> bool {
        let is_ported = ported(port.protocol).is_some() && matches!(port.port, EdgePort::Port(_));
        is_ported || self.enforced() == Self::Calico && !matches!(port.port, EdgePort::Port(_))
    }
}

/// Returns a policy as an object.
pub(crate) fn value(policy: &SuggestedPolicy, form: Form) -> Value {
    node(policy, form).value()
}

/// Returns policies as YAML documents, with remarks as comments.
pub(crate) fn yaml(policies: &[SuggestedPolicy], form: Form) -> String {
    let mut text = String::new();
    for policy in policies {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        node(policy, form).write(&mut text);
    }
    text
}

fn node(policy: &SuggestedPolicy, form: Form) -> Node {
    let (version, kind) = match form {
        Form::Kubernetes => ("networking.k8s.io/v1", "NetworkPolicy"),
        Form::Staged => ("projectcalico.org/v3", "StagedKubernetesNetworkPolicy"),
        Form::Calico => ("projectcalico.org/v3", "NetworkPolicy"),
        Form::CalicoStaged => ("projectcalico.org/v3", "StagedNetworkPolicy"),
    };
    let is_calico = form.enforced() == Form::Calico;
    let mut spec: Vec<(&'static str, Node)> = Vec::new();
    if is_calico {
        spec.push(("selector", json!(calico_selector(&policy.selector)).into()));
    } else {
        spec.push(("podSelector", label_selector(&policy.selector).into()));
    }
    let directions = [(Direction::Ingress, "Ingress", "ingress"), (Direction::Egress, "Egress", "egress")];
    let isolated = || directions.iter().filter(|(direction, ..)| policy.rules(*direction).is_some());
    let types: Vec<&str> = isolated().map(|(_, name, _)| *name).collect();
    spec.push((if is_calico { "types" } else { "policyTypes" }, json!(types).into()));
    for (direction, _, field) in isolated() {
        let rules = policy.rules(*direction).unwrap_or_default();
        let items: Vec<(Vec<String>, Node)> = rules
            .iter()
            .flat_map(|rule| if is_calico { calico_rules(rule, *direction) } else { vec![rule_of(rule, *direction)] })
            .collect();
        if !items.is_empty() {
            spec.push((field, Node::List(items)));
        }
    }
    if form != form.enforced() {
        spec.push(("stagedAction", json!("Set").into()));
    }
    let metadata = json!({ "name": policy.name, "namespace": policy.namespace });
    Node::Map(vec![
        ("apiVersion", json!(version).into()),
        ("kind", json!(kind).into()),
        ("metadata", metadata.into()),
        ("spec", Node::Map(spec)),
    ])
}

fn label_selector(selector: &PodSelector) -> Value {
    let mut fields = serde_json::Map::new();
    if !selector.equal.is_empty() {
        fields.insert("matchLabels".into(), json!(selector.equal));
    }
    if !selector.absent.is_empty() {
        let absent = selector.absent.iter().map(|key| json!({ "key": key, "operator": "DoesNotExist" }));
        fields.insert("matchExpressions".into(), absent.collect());
    }
    fields.into()
}

fn calico_selector(selector: &PodSelector) -> String {
    let equal = selector.equal.iter().map(|(key, value)| format!("{key} == '{value}'"));
    let parts: Vec<String> = equal.chain(selector.absent.iter().map(|key| format!("!has({key})"))).collect();
    if parts.is_empty() { "all()".to_owned() } else { parts.join(" && ") }
}

/// Returns a rule of Kubernetes.
fn rule_of(rule: &SuggestedRule, direction: Direction) -> (Vec<String>, Node) {
    let peers = rule.peers.iter().map(|(peer, marks)| (comments(marks), peer_of(peer).into())).collect();
    let port = |port: &RulePort| {
        let EdgePort::Port(number) = port.port else { return json!({}) };
        json!({ "port": number, "protocol": ported(port.protocol) })
    };
    let ports = rule.ports.iter().map(|(number, marks)| (comments(marks), port(number).into())).collect();
    let field = if direction == Direction::Ingress { "from" } else { "to" };
    (Vec::new(), Node::Map(vec![(field, Node::List(peers)), ("ports", Node::List(ports))]))
}

fn peer_of(peer: &Peer) -> Value {
    match peer {
        Peer::Pods { namespace: None, selector } => json!({ "podSelector": label_selector(selector) }),
        Peer::Pods { namespace: Some(namespace), selector } => json!({
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "podSelector": label_selector(selector),
        }),
        Peer::Block { net, except } if except.is_empty() => json!({ "ipBlock": { "cidr": net.to_string() } }),
        Peer::Block { net, except } => {
            let except: Vec<String> = except.iter().map(ToString::to_string).collect();
            json!({ "ipBlock": { "cidr": net.to_string(), "except": except } })
        }
    }
}

/// Returns the rules of Calico: one for each peer and protocol, single networks together.
fn calico_rules(rule: &SuggestedRule, direction: Direction) -> Vec<(Vec<String>, Node)> {
    let protocols: BTreeSet<(u8, Option<EdgePort>)> =
        rule.ports.keys().map(|port| (port.protocol, own_rule(*port))).collect();
    let mut rules = Vec::new();
    for (protocol, alone) in protocols {
        let ports = rule.ports.iter().filter(|(port, _)| (port.protocol, own_rule(**port)) == (protocol, alone));
        let ports: Vec<(&RulePort, &BTreeSet<Mark>)> = ports.collect();
        let marks = ports.iter().map(|(_, marks)| (*marks).clone()).reduce(|all, one| &all & &one).unwrap_or_default();
        for (peer, of_peer) in &rule.peers {
            let numbers: Vec<u16> = ports
                .iter()
                .filter_map(|(port, _)| if let EdgePort::Port(number) = port.port { Some(number) } else { None })
                .collect();
            let rule = calico_rule((protocol, alone), &numbers, peer, direction);
            rules.push((comments(&(of_peer | &marks)), rule.into()));
        }
    }
    rules
}

/// Returns the port of a rule that can have no other: the type of an ICMP message.
fn own_rule(port: RulePort) -> Option<EdgePort> {
    matches!(port.port, EdgePort::Icmp(..)).then_some(port.port)
}

fn calico_rule((protocol, alone): (u8, Option<EdgePort>), ports: &[u16], peer: &Peer, direction: Direction) -> Value {
    let mut fields = serde_json::Map::new();
    fields.insert("action".into(), json!("Allow"));
    let named = [(Protocol::ICMP, "ICMP"), (Protocol::ICMPV6, "ICMPv6")]
        .into_iter()
        .find_map(|(known, name)| (known.number() == protocol).then_some(name));
    let name = ported(protocol).or(named).map_or_else(|| json!(protocol), |name| json!(name));
    fields.insert("protocol".into(), name);
    if let Some(EdgePort::Icmp(icmp_type, code)) = alone {
        let mut icmp = json!({ "type": icmp_type });
        if let (Some(code), Some(icmp)) = (code, icmp.as_object_mut()) {
            icmp.insert("code".into(), json!(code));
        }
        fields.insert("icmp".into(), icmp);
    }
    let mut other = match peer {
        Peer::Pods { namespace, selector } => {
            let mut other = serde_json::Map::new();
            if let Some(namespace) = namespace {
                let of = format!("kubernetes.io/metadata.name == '{namespace}'");
                other.insert("namespaceSelector".into(), json!(of));
            }
            if namespace.is_none() || *selector != PodSelector::default() {
                other.insert("selector".into(), json!(calico_selector(selector)));
            }
            other
        }
        Peer::Block { net, except } => {
            let mut other = serde_json::Map::new();
            other.insert("nets".into(), json!([net.to_string()]));
            if !except.is_empty() {
                other.insert("notNets".into(), except.iter().map(|net| json!(net.to_string())).collect());
            }
            other
        }
    };
    let ports = (!ports.is_empty()).then(|| json!(ports));
    if direction == Direction::Ingress {
        fields.insert("source".into(), other.into());
        if let Some(ports) = ports {
            fields.insert("destination".into(), json!({ "ports": ports }));
        }
    } else {
        other.extend(ports.map(|ports| ("ports".to_owned(), ports)));
        fields.insert("destination".into(), other.into());
    }
    fields.into()
}

fn comments(marks: &BTreeSet<Mark>) -> Vec<String> {
    let text = |mark: &Mark| match mark {
        Mark::SeenOnce => "seen once".to_owned(),
        Mark::OneDay => "one day only".to_owned(),
        Mark::OneWay => "one-way".to_owned(),
        Mark::Widened(1) => "widened: 1 address".to_owned(),
        Mark::Widened(count) => format!("widened: {count} addresses"),
        Mark::NotSeen => "not seen".to_owned(),
    };
    marks.iter().map(text).collect()
}
