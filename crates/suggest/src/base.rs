//! An earlier output, whose names, selectors and networks are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tortie_model::{Cidr, Direction, Interner};
use tortie_resources::SyntaxError;
use tortie_resources::manifest::{Format, Options, read_written};
use tortie_selector::{Expr, Selector};

use crate::labels::PodSelector;
use crate::policy::RulePort;
use crate::record::EdgePort;

/// Policies of an earlier output. Names, selectors and networks of it are kept where they still
/// hold, so that a new edge changes its own rules alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Selectors of policies and peers, each with its namespace.
    pub(crate) selectors: BTreeSet<(Arc<str>, PodSelector)>,
    /// Names of policies by namespace and selector.
    names: BTreeMap<(Arc<str>, PodSelector), Arc<str>>,
    /// Networks wider than an address, by policy, direction and port.
    networks: BTreeMap<Place, BTreeSet<Cidr>>,
}

/// Namespace and name of a policy, direction and port of rules.
type Place = (Arc<str>, Arc<str>, Direction, RulePort);

impl Base {
    /// Reads an earlier output in any form. Other objects are ignored.
    ///
    /// ```
    /// use tortie_suggest::Base;
    ///
    /// assert_eq!(Base::read("")?, Base::default());
    /// assert!(Base::read("a: [").is_err());
    /// # Ok::<(), tortie_resources::SyntaxError>(())
    /// ```
    ///
    /// # Errors
    /// If the text is not YAML.
    pub fn read(text: &str) -> Result<Self, SyntaxError> {
        let (manifest, written) = read_written(text, Format::Yaml, &Options::default(), &mut Interner::new());
        if let Some(error) = manifest.unreadable.into_iter().next() {
            return Err(error);
        }
        let mut base = Self::default();
        written.iter().for_each(|object| base.add(object));
        Ok(base)
    }

    /// Returns the name of the policy with this selector.
    pub(crate) fn name(&self, namespace: &Arc<str>, selector: &PodSelector) -> Option<&Arc<str>> {
        self.names.get(&(Arc::clone(namespace), selector.clone()))
    }

    /// Returns the networks of a policy at a port.
    pub(crate) fn networks(
        &self,
        (namespace, policy): (&Arc<str>, &Arc<str>),
        direction: Direction,
        port: RulePort,
    ) -> BTreeSet<Cidr> {
        let place = (Arc::clone(namespace), Arc::clone(policy), direction, port);
        self.networks.get(&place).cloned().unwrap_or_default()
    }

    fn add(&mut self, object: &Value) {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let (Some(namespace), Some(name)) = (text("/metadata/namespace"), text("/metadata/name")) else { return };
        let (namespace, name): (Arc<str>, Arc<str>) = (namespace.into(), name.into());
        let selector = match (object.pointer("/spec/podSelector"), text("/spec/selector")) {
            (Some(selector), _) => of_labels(selector),
            (None, Some(selector)) => of_text(selector),
            (None, None) => None,
        };
        let Some(selector) = selector else { return };
        self.selectors.insert((Arc::clone(&namespace), selector.clone()));
        self.names.entry((Arc::clone(&namespace), selector)).or_insert_with(|| Arc::clone(&name));
        for (direction, field, other) in [(Direction::Ingress, "ingress", "from"), (Direction::Egress, "egress", "to")]
        {
            let rules = object.pointer(&format!("/spec/{field}")).and_then(Value::as_array);
            for rule in rules.into_iter().flatten() {
                for port in ports(rule) {
                    let place = (Arc::clone(&namespace), Arc::clone(&name), direction, port);
                    let wide = networks(rule, direction, other).filter(|net| !net.is_host());
                    self.networks.entry(place).or_default().extend(wide);
                }
                self.selectors.extend(peers(rule, direction, other, &namespace));
            }
        }
    }
}

/// Returns the peers of a rule of Kubernetes, or the one of a rule of Calico.
fn sides<'r>(rule: &'r Value, direction: Direction, other: &str) -> Vec<&'r Value> {
    let own = if direction == Direction::Ingress { "source" } else { "destination" };
    match rule.get(other).and_then(Value::as_array) {
        Some(peers) => peers.iter().collect(),
        None => rule.get(own).into_iter().collect(),
    }
}

fn networks(rule: &Value, direction: Direction, other: &str) -> impl Iterator<Item = Cidr> {
    let of = |side: &Value| -> Vec<Cidr> {
        let block = side.pointer("/ipBlock/cidr").into_iter();
        let nets = side.get("nets").and_then(Value::as_array).into_iter().flatten();
        block.chain(nets).filter_map(|net| net.as_str()?.parse().ok()).collect()
    };
    sides(rule, direction, other).into_iter().flat_map(of).collect::<Vec<_>>().into_iter()
}

fn peers(rule: &Value, direction: Direction, other: &str, own: &Arc<str>) -> Vec<(Arc<str>, PodSelector)> {
    let of = |side: &Value| {
        let by_labels = side.pointer("/namespaceSelector/matchLabels/kubernetes.io~1metadata.name");
        let by_text = side.get("namespaceSelector").and_then(Value::as_str).and_then(of_text);
        let by_text = by_text.and_then(|selector| selector.equal.get("kubernetes.io/metadata.name").cloned());
        let namespace = by_labels.and_then(Value::as_str).map(Arc::from).or(by_text);
        let selector = match (side.get("podSelector"), side.get("selector").and_then(Value::as_str)) {
            (Some(selector), _) => of_labels(selector)?,
            (None, Some(selector)) => of_text(selector)?,
            (None, None) => return None,
        };
        Some((namespace.unwrap_or_else(|| Arc::clone(own)), selector))
    };
    sides(rule, direction, other).into_iter().filter_map(of).collect()
}

fn ports(rule: &Value) -> Vec<RulePort> {
    let number = |name: &str| {
        [("TCP", 6), ("UDP", 17), ("SCTP", 132)].iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
    };
    let of = |protocol: &str, port: &Value| {
        let port = EdgePort::Port(u16::try_from(port.as_u64()?).ok()?);
        Some(RulePort { protocol: number(protocol)?, port })
    };
    if let Some(ports) = rule.get("ports").and_then(Value::as_array) {
        return ports.iter().filter_map(|port| of(port.get("protocol")?.as_str()?, port.get("port")?)).collect();
    }
    let ports = rule.pointer("/destination/ports").and_then(Value::as_array);
    let protocol = rule.get("protocol").and_then(Value::as_str).unwrap_or_default();
    ports.into_iter().flatten().filter_map(|port| of(protocol, port)).collect()
}

fn of_labels(selector: &Value) -> Option<PodSelector> {
    let mut found = PodSelector::default();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        found.equal.insert(key.as_str().into(), value.as_str()?.into());
    }
    for requirement in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        if requirement.get("operator")?.as_str()? != "DoesNotExist" {
            return None;
        }
        found.absent.push(requirement.get("key")?.as_str()?.into());
    }
    found.absent.sort_unstable();
    Some(found)
}

fn of_text(text: &str) -> Option<PodSelector> {
    let selector = Selector::parse(text).ok()?;
    let mut found = PodSelector::default();
    let parts = match selector.expr() {
        Expr::All => &[],
        Expr::And(parts) => &parts[..],
        one => std::slice::from_ref(one),
    };
    for part in parts {
        match part {
            Expr::Eq(label, value) => {
                found.equal.insert(label.as_str().into(), (&**value).into());
            }
            Expr::Not(inner) => match &**inner {
                Expr::Has(label) => found.absent.push(label.as_str().into()),
                _ => return None,
            },
            _ => return None,
        }
    }
    found.absent.sort_unstable();
    Some(found)
}
