//! What Kubernetes says, as what the datastore should hold.

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

/// A kind of object of Kubernetes that the datastore follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Watched {
    /// `networkpolicies.networking.k8s.io`, version `v1`: policies called `knp.default.NAME`.
    NetworkPolicies,
    /// `namespaces`, version `v1`: profiles called `kns.NAME`.
    Namespaces,
    /// `serviceaccounts`, version `v1`: profiles called `ksa.NAMESPACE.NAME`.
    ServiceAccounts,
    /// `pods`, version `v1`: labels and service accounts of workload endpoints, which the CNI plugin makes and deletes.
    Pods,
}

impl fmt::Display for Watched {
    /// The plural in paths of the API.
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
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NetworkPolicies, Self::Namespaces, Self::ServiceAccounts, Self::Pods];

    /// The kind of resource that objects of this kind become, or change.
    #[must_use]
    pub fn resource_kind(self) -> ResourceKind {
        match self {
            Self::NetworkPolicies => ResourceKind::NetworkPolicy,
            Self::Namespaces | Self::ServiceAccounts => ResourceKind::Profile,
            Self::Pods => ResourceKind::WorkloadEndpoint,
        }
    }

    /// Whether a resource of the datastore comes from objects of this kind. What does not is the users'.
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

    /// Whether an item comes from objects of this kind.
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

    /// What an object of this kind is about; `None` if its name cannot be that of a resource.
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

/// What was heard of a kind. Objects are JSON, as the API server sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<'o> {
    /// All objects will be told, or told again.
    ListBegins,
    /// An object of a list.
    Listed(&'o str),
    /// The list is complete: what was not in it does not exist.
    ListEnds,
    /// An object is new, or different.
    Changed(&'o str),
    /// An object is gone.
    Deleted {
        /// Its namespace; empty if it belongs to none.
        namespace: &'o str,
        /// Its name.
        name: &'o str,
    },
}

/// How one object of the datastore should be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// Its specification is that of this resource.
    Like(Arc<Value>),
    /// As it is; if it is not there, like this. What Kubernetes says cannot be understood.
    Unchanged(Option<Arc<Value>>),
    /// What endpoints of a pod follow.
    Endpoint(Arc<EndpointFacts>),
}

/// Everything that Kubernetes said.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    wanted: BTreeMap<Item, Wanted>,
    problems: BTreeMap<Item, Vec<FieldProblem>>,
    kinds: BTreeMap<Watched, Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    /// A list was complete once.
    synced: bool,
    /// While a list is told: what it did not have yet.
    unmentioned: Option<BTreeSet<Item>>,
    /// An object of the list could not be told from others, so that nothing can be said to be missing.
    is_incomplete: bool,
    /// Objects of which not even the name is known.
    nameless: Vec<String>,
}

impl Cluster {
    /// Takes note, and says which objects of the datastore should be different now.
    pub(crate) fn observe(&mut self, kind: Watched, observed: Observed<'_>) -> Vec<Item> {
        match observed {
            Observed::ListBegins => {
                let known = self.wanted.keys().filter(|item| kind.makes(item)).cloned().collect();
                let followed = self.kinds.entry(kind).or_default();
                *followed = Followed { synced: followed.synced, unmentioned: Some(known), ..Followed::default() };
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

    /// Whether anything was removed whose absence the datastore should follow.
    fn remove(&mut self, item: &Item) -> bool {
        self.problems.remove(item);
        // The CNI plugin removes endpoints.
        self.wanted.remove(item).is_some() && matches!(item, Item::Resource(_))
    }

    fn set(&mut self, kind: Watched, json: &str) -> Option<Item> {
        let followed = self.kinds.entry(kind).or_default();
        let mut nameless = |why: String| {
            followed.is_incomplete = true;
            // One tells enough of what goes wrong.
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
        // What the CNI plugin writes for a new pod is right; reconciliation sees if it is not.
        (before.as_ref() != self.wanted.get(&item) && !primed).then_some(item)
    }

    pub(crate) fn get(&self, item: &Item) -> Option<&Wanted> {
        self.wanted.get(item)
    }

    /// Everything that comes from objects of a kind.
    pub(crate) fn of_kind(&self, kind: Watched) -> impl Iterator<Item = (&Item, &Wanted)> {
        self.wanted.iter().filter(move |(item, _)| kind.makes(item))
    }

    /// Whether it is known of a kind what there is, and therefore what there is not.
    pub(crate) fn synced(&self, kind: Watched) -> bool {
        self.kinds.get(&kind).is_some_and(|followed| followed.synced)
    }

    /// Whether there may be objects of a kind that are not known, so that nothing may be taken for not existing.
    pub(crate) fn is_incomplete(&self, kind: Watched) -> bool {
        self.kinds.get(&kind).is_none_or(|followed| followed.is_incomplete)
    }

    /// What is wrong with which objects.
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

/// How the datastore should be because of an object; `None` if there should be nothing.
fn convert(kind: Watched, object: &Value) -> (Option<Wanted>, Vec<FieldProblem>) {
    let converted = match kind {
        Watched::NetworkPolicies => to_v3::network_policy(object),
        Watched::Namespaces => to_v3::namespace(object),
        Watched::ServiceAccounts => to_v3::service_account(object),
        Watched::Pods => {
            return match to_v3::endpoint_facts(object) {
                Ok(facts) => (facts.map(|facts| Wanted::Endpoint(Arc::new(facts))), Vec::new()),
                Err(problems) => (Some(Wanted::Unchanged(None)), problems),
            };
        }
    };
    let wanted = match converted.outcome {
        Conversion::Resource(resource) => Some(Wanted::Like(Arc::new(resource))),
        Conversion::Nothing => None,
        Conversion::Unusable { substitute } => Some(Wanted::Unchanged(substitute.map(Arc::new))),
    };
    (wanted, converted.problems)
}
