//! State of the followed Kubernetes objects, and the resources of the datastore derived from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use tortie_resources::FieldProblem;
use tortie_resources::manifest::Kind;
use tortie_resources::stored::{ResourceKey, ResourceKind};
use tortie_resources::to_v3::{self, Conversion, EndpointFacts};

use crate::item::Item;
use crate::json::field;

/// A kind of Kubernetes object that the datastore follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Watched {
    /// `networkpolicies.networking.k8s.io`, version `v1`: policies named `knp.default.NAME`.
    NetworkPolicies,
    /// `namespaces`, version `v1`: profiles named `kns.NAME`.
    Namespaces,
    /// `serviceaccounts`, version `v1`: profiles named `ksa.NAMESPACE.NAME`.
    ServiceAccounts,
    /// `pods`, version `v1`: labels and service accounts of workload endpoints, which the CNI
    /// plugin makes and deletes.
    Pods,
}

impl fmt::Display for Watched {
    /// Writes the plural as in API paths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetworkPolicies => "networkpolicies",
            Self::Namespaces => "namespaces",
            Self::ServiceAccounts => "serviceaccounts",
            Self::Pods => "pods",
        })
    }
}

impl Watched {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::NetworkPolicies, Self::Namespaces, Self::ServiceAccounts, Self::Pods];

    /// Returns the kind of resource that objects of this kind become or change.
    #[must_use]
    pub fn resource_kind(self) -> ResourceKind {
        match self {
            Self::NetworkPolicies => ResourceKind::NetworkPolicy,
            Self::Namespaces | Self::ServiceAccounts => ResourceKind::Profile,
            Self::Pods => ResourceKind::WorkloadEndpoint,
        }
    }

    /// Reports whether a resource of the datastore is derived from objects of this kind. All other
    /// resources belong to users.
    #[must_use]
    pub fn owns(self, key: &ResourceKey) -> bool {
        let prefix = match self {
            Self::NetworkPolicies => to_v3::POLICY_PREFIX,
            Self::Namespaces => to_v3::NAMESPACE_PREFIX,
            Self::ServiceAccounts => to_v3::ACCOUNT_PREFIX,
            Self::Pods => return false,
        };
        key.kind() == self.resource_kind() && key.name().strip_prefix(prefix).is_some_and(|rest| !rest.is_empty())
    }

    /// Reports whether an item is derived from objects of this kind.
    pub(crate) fn makes(self, item: &Item) -> bool {
        match item {
            Item::Resource(key) => self.owns(key),
            Item::Pod { .. } => self == Self::Pods,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::NetworkPolicies => Kind::KubernetesNetworkPolicy,
            Self::Namespaces => Kind::Namespace,
            Self::ServiceAccounts => Kind::ServiceAccount,
            Self::Pods => Kind::Pod,
        }
    }

    /// Returns the item that an object of this kind concerns; `None` if its name yields no valid
    /// resource name.
    fn item(self, namespace: &str, name: &str) -> Option<Item> {
        let kind = self.resource_kind();
        let key = match self {
            Self::NetworkPolicies => ResourceKey::new(kind, namespace, to_v3::policy_name(name)),
            Self::Namespaces => ResourceKey::new(kind, "", to_v3::namespace_profile_name(name)),
            Self::ServiceAccounts => ResourceKey::new(kind, "", to_v3::account_profile_name(namespace, name)),
            Self::Pods => return Some(Item::Pod { namespace: namespace.into(), name: name.into() }),
        };
        key.ok().map(Item::Resource)
    }
}

/// Watch event of a kind. Objects are JSON, as sent by the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<'o> {
    /// A list begins: all objects follow, also known ones.
    ListBegins,
    /// An object of a list.
    Listed(&'o str),
    /// The list is complete: an object that was not in it does not exist.
    ListEnds,
    /// An object is new or has changed.
    Changed(&'o str),
    /// An object was deleted.
    Deleted {
        /// Its namespace; empty if it is cluster-scoped.
        namespace: &'o str,
        /// Its name.
        name: &'o str,
    },
}

/// Desired state of one object of the datastore.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DesiredObject {
    /// The object has the specification of this resource.
    Like(Arc<Value>),
    /// The object stays unchanged, because the Kubernetes object is invalid; if it is missing, it
    /// is created like this.
    Unchanged(Option<Arc<Value>>),
    /// The endpoints of a pod have these labels and this service account.
    Endpoint(Arc<EndpointFacts>),
}

/// Desired state from all followed Kubernetes objects.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    wanted: BTreeMap<Item, DesiredObject>,
    problems: BTreeMap<Item, Vec<FieldProblem>>,
    kinds: BTreeMap<Watched, KindState>,
}

#[derive(Debug, Default)]
struct KindState {
    /// A list was complete once.
    synced: bool,
    /// During a list: known items that the list has not contained so far.
    unmentioned: Option<BTreeSet<Item>>,
    /// An object of the list has no usable name, so no object counts as missing.
    is_incomplete: bool,
    /// Problems of objects without a usable name.
    nameless: Vec<String>,
}

impl Cluster {
    /// Records an event and returns the objects of the datastore whose desired state has changed.
    pub(crate) fn observe(&mut self, kind: Watched, observed: Observed<'_>) -> Vec<Item> {
        match observed {
            Observed::ListBegins => {
                let known = self.wanted.keys().filter(|item| kind.makes(item)).cloned().collect();
                let followed = self.kinds.entry(kind).or_default();
                *followed = KindState { synced: followed.synced, unmentioned: Some(known), ..KindState::default() };
                Vec::new()
            }
            Observed::Listed(json) | Observed::Changed(json) => self.set(kind, json).into_iter().collect(),
            Observed::ListEnds => {
                let followed = self.kinds.entry(kind).or_default();
                followed.synced = true;
                let gone = followed.unmentioned.take().unwrap_or_default();
                if followed.is_incomplete {
                    return Vec::new();
                }
                gone.into_iter().filter(|item| self.remove(item)).collect()
            }
            Observed::Deleted { namespace, name } => {
                let item = kind.item(namespace, name);
                item.into_iter().filter(|item| self.remove(item)).collect()
            }
        }
    }

    /// Removes an item. Reports whether it existed and the datastore has to follow its removal.
    fn remove(&mut self, item: &Item) -> bool {
        self.problems.remove(item);
        // The CNI plugin removes endpoints.
        self.wanted.remove(item).is_some() && matches!(item, Item::Resource(_))
    }

    fn set(&mut self, kind: Watched, json: &str) -> Option<Item> {
        let followed = self.kinds.entry(kind).or_default();
        let mut nameless = |why: String| {
            followed.is_incomplete = true;
            // At most ten problems are kept; a few suffice to find the cause.
            followed.nameless.truncate(9);
            followed.nameless.push(why);
            None
        };
        let object: Value = match serde_json::from_str(json) {
            Ok(object) => object,
            Err(error) => return nameless(format!("an object that is not JSON: {error}")),
        };
        let text = |name: &str| field(&object, &["metadata", name]).as_str().unwrap_or_default();
        let Some(item) = kind.item(text("namespace"), text("name")) else {
            return nameless(format!("an object called `{}/{}`", text("namespace"), text("name")));
        };
        if let Some(unmentioned) = &mut followed.unmentioned {
            unmentioned.remove(&item);
        }
        let (wanted, problems) = convert(kind, &object);
        if problems.is_empty() {
            self.problems.remove(&item);
        } else {
            self.problems.insert(item.clone(), problems);
        }
        let Some(wanted) = wanted else { return self.remove(&item).then_some(item) };
        let before = self.wanted.insert(item.clone(), wanted);
        let primed = before.is_none() && matches!(item, Item::Pod { .. });
        // The CNI plugin writes the endpoint of a new pod correctly; a later comparison detects an
        // exception.
        (before.as_ref() != self.wanted.get(&item) && !primed).then_some(item)
    }

    pub(crate) fn get(&self, item: &Item) -> Option<&DesiredObject> {
        self.wanted.get(item)
    }

    /// Returns all items that are derived from objects of a kind.
    pub(crate) fn of_kind(&self, kind: Watched) -> impl Iterator<Item = (&Item, &DesiredObject)> {
        self.wanted.iter().filter(move |(item, _)| kind.makes(item))
    }

    /// Reports whether a list of the kind was complete once, so that missing objects are known as
    /// well.
    pub(crate) fn synced(&self, kind: Watched) -> bool {
        self.kinds.get(&kind).is_some_and(|followed| followed.synced)
    }

    /// Reports whether unknown objects of a kind may exist, so that no object may be treated as
    /// missing.
    pub(crate) fn is_incomplete(&self, kind: Watched) -> bool {
        self.kinds.get(&kind).is_none_or(|followed| followed.is_incomplete)
    }

    /// Returns the problems, each with its object.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        let named = self
            .problems
            .iter()
            .flat_map(|(item, problems)| problems.iter().map(move |problem| format!("{item}: {problem}")));
        let nameless = self.kinds.iter().flat_map(|(kind, followed)| {
            followed.nameless.iter().map(move |why| format!("{}: {why}", kind.kind().as_str()))
        });
        named.chain(nameless)
    }
}

/// Returns the desired state that an object implies, `None` for absence, and its problems.
fn convert(kind: Watched, object: &Value) -> (Option<DesiredObject>, Vec<FieldProblem>) {
    let converted = match kind {
        Watched::NetworkPolicies => to_v3::network_policy(object),
        Watched::Namespaces => to_v3::namespace(object),
        Watched::ServiceAccounts => to_v3::service_account(object),
        Watched::Pods => {
            return match to_v3::endpoint_facts(object) {
                Ok(facts) => (facts.map(|facts| DesiredObject::Endpoint(Arc::new(facts))), Vec::new()),
                Err(problems) => (Some(DesiredObject::Unchanged(None)), problems),
            };
        }
    };
    let wanted = match converted.outcome {
        Conversion::Resource(resource) => Some(DesiredObject::Like(Arc::new(resource))),
        Conversion::Nothing => None,
        Conversion::Unusable { substitute } => Some(DesiredObject::Unchanged(substitute.map(Arc::new))),
    };
    (wanted, converted.problems)
}
