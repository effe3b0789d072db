//! Serde formats of types that are not serialized field by field.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::desired::{
    IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members, RouteTypes, RuleSets, RuleView, Rules, is_domain_set,
};
use crate::{
    Cidr, DomainPattern, Extras, IpSetId, Labels, List, Order, PolicyKind, PortSpec, Rule, Seldom, ShortList, Valid,
    Validate, WorkloadEndpointKey,
};

impl<T: Serialize> Serialize for Valid<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_arc().serialize(serializer)
    }
}

/// Applies the checks of [`Valid::stored`], which all values in force have passed.
impl<'de, T: Validate + Deserialize<'de>> Deserialize<'de> for Valid<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::stored(T::deserialize(deserializer)?).map_err(Error::custom)
    }
}

/// Serializes a map of names to values.
impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = BTreeMap::<Arc<str>, Cow<'_, str>>::deserialize(deserializer)?;
        Self::from_pairs(pairs).map_err(Error::custom)
    }
}

/// Serializes nothing if no field is set.
impl<T: Seldom + Serialize> Serialize for Extras<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields: &T = self;
        (fields != T::unset()).then_some(fields).serialize(serializer)
    }
}

impl<'de, T: Seldom + Deserialize<'de>> Deserialize<'de> for Extras<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<T>::deserialize(deserializer).map(|fields| fields.map(Self::from).unwrap_or_default())
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

impl<T: Serialize> Serialize for ShortList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ShortList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|entries| entries.into_iter().collect())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OrderForm {
    Number(f64),
    Text(String),
}

/// Serializes a whole number as such, and others as text: some JSON readers round fractions, and
/// JSON has no infinity.
impl Serialize for Order {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let order = self.get();
        #[expect(clippy::cast_possible_truncation, reason = "compared with the value before the cast")]
        let integer = order as i32;
        if f64::from(integer) == order { integer.serialize(serializer) } else { serializer.collect_str(&order) }
    }
}

impl<'de> Deserialize<'de> for Order {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let order = match OrderForm::deserialize(deserializer)? {
            OrderForm::Number(number) => number,
            OrderForm::Text(text) => text.parse().map_err(Error::custom)?,
        };
        Self::new(order).ok_or_else(|| Error::custom("an order is not NaN"))
    }
}

/// Serializes the name, as in paths of a datastore.
impl Serialize for PolicyKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for PolicyKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'_, str>::deserialize(deserializer).map(|name| Self::from_name(&name))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadEndpointKeyForm<'a> {
    host: Cow<'a, str>,
    orchestrator: Cow<'a, str>,
    workload: Cow<'a, str>,
    endpoint: Cow<'a, str>,
}

impl Serialize for WorkloadEndpointKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = WorkloadEndpointKeyForm {
            host: self.host().into(),
            orchestrator: self.orchestrator().into(),
            workload: self.workload().into(),
            endpoint: self.endpoint().into(),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WorkloadEndpointKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = WorkloadEndpointKeyForm::deserialize(deserializer)?;
        let key = Self::new(&form.host, &form.orchestrator, &form.workload, &form.endpoint);
        if key.host() == form.host && key.orchestrator() == form.orchestrator && key.workload() == form.workload {
            Ok(key)
        } else {
            Err(Error::custom("host, orchestrator and workload are longer than 65,535 bytes"))
        }
    }
}

/// Serializes the names of the kinds.
impl Serialize for RouteTypes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kinds = Self::NAMES.iter().filter(|(kind, _)| self.contains(*kind));
        serializer.collect_seq(kinds.map(|(_, name)| name.to_ascii_lowercase()))
    }
}

impl<'de> Deserialize<'de> for RouteTypes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut types = Self::default();
        for name in Vec::<Cow<'_, str>>::deserialize(deserializer)? {
            let known = Self::NAMES.iter().find(|(_, known)| known.to_ascii_lowercase() == name);
            let (kind, _) = known.ok_or_else(|| Error::custom(format_args!("`{name}` is no type of route")))?;
            types |= *kind;
        }
        Ok(types)
    }
}

/// A rule with its IP sets.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleForm<R, S> {
    rule: R,
    sets: S,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    http_by_proxy: bool,
}

impl Serialize for Rules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|RuleView { rule, sets, http_by_proxy }| {
            let http_by_proxy = http_by_proxy && rule.extras.http.is_some();
            RuleForm { rule, sets, http_by_proxy }
        }))
    }
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rules = Vec::<RuleForm<Rule, RuleSets>>::deserialize(deserializer)?;
        let http_by_proxy = rules.iter().all(|both| both.http_by_proxy || both.rule.extras.http.is_none());
        let (rules, sets): (Vec<_>, Vec<_>) = rules.into_iter().map(|both| (both.rule, both.sets)).unzip();
        let rules = Self::new(Rule::list(rules), sets.into()).map_err(Error::custom)?;
        Ok(rules.with_http_by_proxy(http_by_proxy))
    }
}

/// Members in any order, with repetitions.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum MembersForm {
    Nets(BTreeSet<Cidr>),
    IpPorts(BTreeSet<IpPortMember>),
    Domains(BTreeSet<DomainPattern>),
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match MembersForm::deserialize(deserializer)? {
            MembersForm::Nets(nets) => Self::Nets(nets.into_iter().collect()),
            MembersForm::IpPorts(members) => Self::IpPorts(members.into_iter().collect()),
            MembersForm::Domains(patterns) => Self::Domains(patterns.into_iter().collect()),
        })
    }
}

/// Accepts members of the set's type.
impl<'de> Deserialize<'de> for IpSetUpdate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Form {
            id: IpSetId,
            set_type: IpSetType,
            members: Members,
        }
        let Form { id, set_type, members } = Form::deserialize(deserializer)?;
        match (set_type, &members) {
            (IpSetType::Domains, Members::Domains(_)) if is_domain_set(&id) => Ok(Self { id, set_type, members }),
            (IpSetType::Ip | IpSetType::Net, Members::Nets(_)) | (IpSetType::IpAndPort, Members::IpPorts(_))
                if !is_domain_set(&id) =>
            {
                Ok(Self { id, set_type, members })
            }
            _ => Err(Error::custom(format_args!("IP set {id}: its members are not of its type"))),
        }
    }
}

/// Accepts members of one type, none of which is both added and removed.
impl<'de> Deserialize<'de> for IpSetDelta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Form {
            id: IpSetId,
            added: Members,
            removed: Members,
        }
        let Form { id, added, removed } = Form::deserialize(deserializer)?;
        let both = match (&added, &removed) {
            (Members::Nets(added), Members::Nets(removed)) => first_of_both(added, removed),
            (Members::IpPorts(added), Members::IpPorts(removed)) => first_of_both(added, removed),
            _ => return Err(Error::custom(format_args!("IP set {id}: added and removed members are of two types"))),
        };
        match both {
            Some(member) => Err(Error::custom(format_args!("IP set {id}: {member} is both added and removed"))),
            None => Ok(Self { id, added, removed }),
        }
    }
}

/// Reads patterns in any order, with repetitions.
pub(crate) fn sorted_domains<'de, D: Deserializer<'de>>(deserializer: D) -> Result<List<DomainPattern>, D::Error> {
    BTreeSet::deserialize(deserializer).map(|patterns| patterns.into_iter().collect())
}

/// Returns the first member that two sorted lists have in common.
fn first_of_both<T: Ord + ToString>(added: &[T], removed: &[T]) -> Option<String> {
    added.iter().find(|member| removed.binary_search(member).is_ok()).map(ToString::to_string)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum PortSpecForm {
    Range { first: u16, last: u16 },
    Named(Arc<str>),
}

/// Accepts ranges whose last port is not below the first one.
impl<'de> Deserialize<'de> for PortSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match PortSpecForm::deserialize(deserializer)? {
            PortSpecForm::Range { first, last } if first > last => {
                Err(Error::custom(format_args!("ports {first}:{last} end before they begin")))
            }
            PortSpecForm::Range { first, last } => Ok(Self::Range { first, last }),
            PortSpecForm::Named(name) => Ok(Self::Named(name)),
        }
    }
}

/// Conversion of addresses to the canonical form: an IPv4-mapped address becomes IPv4.
pub(crate) trait Canonical {
    fn canonical(self) -> Self;
}

impl Canonical for IpAddr {
    fn canonical(self) -> Self {
        self.to_canonical()
    }
}

impl Canonical for Option<IpAddr> {
    fn canonical(self) -> Self {
        self.map(Canonical::canonical)
    }
}

impl Canonical for Box<[IpAddr]> {
    fn canonical(mut self) -> Self {
        self.iter_mut().for_each(|address| *address = address.canonical());
        self
    }
}

/// Reads addresses into their canonical form.
pub(crate) fn canonical<'de, D: Deserializer<'de>, T: Canonical + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    T::deserialize(deserializer).map(Canonical::canonical)
}
