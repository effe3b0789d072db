//! Endpoints that are closed while part of the input is unknown, and the policies that close them.

use std::collections::BTreeSet;
use std::sync::Arc;

use tortie_model::{Order, Policy, PolicyId, PolicyKind, Tier, TierDefaultAction, TierName, Update};
use tortie_resources::manifest::{Contributions, Kind, ObjectId, Outcome};

/// Name of the first tier and its policies. It is visible in the kernel's chains.
const RESERVED: &str = "tortie-unreadable";

/// Endpoints that an unreadable object may have been meant to protect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All endpoints.
    All,
    /// Endpoints of a namespace.
    Namespace(Arc<str>),
    /// No endpoints: the object has no influence on verdicts.
    Nobody,
}

impl Scope {
    /// Returns the scope of an object of which only the id is known.
    #[must_use]
    pub fn of(id: &ObjectId) -> Self {
        match id.kind {
            Kind::NetworkPolicy
            | Kind::KubernetesNetworkPolicy
            | Kind::NetworkSet
            | Kind::WorkloadEndpoint
            | Kind::ServiceAccount
            | Kind::Pod
            | Kind::Service
            | Kind::EndpointSlice
            | Kind::Endpoints => Self::of_namespace(&id.namespace),
            Kind::Namespace => Self::of_namespace(&id.name),
            Kind::GlobalNetworkPolicy
            | Kind::Tier
            | Kind::Profile
            | Kind::GlobalNetworkSet
            | Kind::ClusterNetworkPolicy
            | Kind::AdminNetworkPolicy
            | Kind::BaselineAdminNetworkPolicy => Self::All,
            _ => Self::Nobody,
        }
    }

    /// Returns the scope of a document without a usable id, by its subject in messages: kind,
    /// namespace and name as far as they are known.
    #[must_use]
    pub fn of_nameless(subject: &str) -> Self {
        let mut parts = subject.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("NetworkPolicy" | "NetworkSet" | "Pod" | "Service" | "ServiceAccount"), Some(namespace), Some(_)) => {
                Self::of_namespace(namespace)
            }
            _ => Self::All,
        }
    }

    /// Returns the scope of a namespace. The name becomes part of a selector, so an invalid name
    /// yields all endpoints.
    #[must_use]
    pub fn of_namespace(name: &str) -> Self {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !name.is_empty() && name.bytes().all(is_name) { Self::Namespace(name.into()) } else { Self::All }
    }

    /// Returns the id under which the register holds the scope. No object with this id can be
    /// written. It sorts first.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        let namespace = match self {
            Self::Namespace(namespace) => Arc::clone(namespace),
            Self::All | Self::Nobody => "".into(),
        };
        ObjectId { name: "".into(), namespace, kind: Kind::GlobalNetworkPolicy }
    }

    /// Returns a policy that denies both directions before any other policy can allow. Failsafe
    /// ports of host endpoints come before all policies, so they stay open.
    #[must_use]
    pub fn denial(&self) -> Contributions {
        let (name, namespace) = match self {
            Self::All => (RESERVED.to_owned(), ""),
            Self::Namespace(namespace) => (format!("{RESERVED}.{namespace}"), &**namespace),
            Self::Nobody => return Contributions::new(),
        };
        let tier = Tier { order: Order::new(f64::NEG_INFINITY), default_action: Some(TierDefaultAction::Deny) };
        let kind = PolicyKind::GlobalNetworkPolicy;
        let selector = PolicyId::new(kind.clone(), namespace, "").widest_selector();
        let place = Policy { tier: TierName::from(RESERVED), ..Policy::default() };
        let denial = place.denying(&kind, selector);
        vec![
            Update::Tier(TierName::from(RESERVED), Some(tier)),
            Update::Policy(PolicyId::new(kind, "", name), Some(denial)),
        ]
    }
}

/// Returns the scopes that were closed before and are still justified. No open endpoint becomes
/// closed.
#[must_use]
pub fn narrow(before: &BTreeSet<Scope>, now: &BTreeSet<Scope>) -> BTreeSet<Scope> {
    let all = |scopes: &BTreeSet<Scope>| scopes.contains(&Scope::All);
    now.iter()
        .filter(|scope| all(before) || before.contains(*scope))
        .chain(before.iter().filter(|scope| all(now) && **scope != Scope::Nobody))
        .filter(|scope| **scope != Scope::All || all(before) && all(now))
        .cloned()
        .collect()
}

/// Returns the indices of the earlier definitions that may still exist beside the current, partly
/// unreadable ones. They are as many as are missing, taken from the end of those that differ from
/// all current ones.
#[must_use]
pub fn missing(earlier: &[&Outcome], now: &[&Outcome]) -> Vec<usize> {
    let usable = |outcomes: &[&Outcome]| outcomes.iter().filter(|outcome| !is_unknown(outcome)).count();
    let number = usable(earlier).saturating_sub(usable(now));
    let differs = |outcome: &&Outcome| !is_unknown(outcome) && !now.contains(outcome);
    let places = earlier.iter().enumerate().rev().filter(|(_, outcome)| differs(outcome)).map(|(place, _)| place);
    let mut places: Vec<usize> = places.take(number).collect();
    places.reverse();
    places
}

/// Reports whether the endpoints that a policy selects are unknown.
#[must_use]
pub fn is_unknown(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Invalid { substitute: None })
}
