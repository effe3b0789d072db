//! The rules of policies and profiles, as the datastore has them.
//!
//! A cluster may have hundreds of thousands of rules. Therefore rarely used fields are kept
//! separately, and lists are thin.

use std::sync::{Arc, LazyLock};

use tortie_selector::Selector;

use crate::extras::Seldom;
use crate::{Cidr, DomainPattern, Extras, Family, List, NamespacedName, PortSpec, Protocol};

/// Action of a rule on the traffic that it matches.
///
/// There is no default: a rule without an action allows, and only readers of a datastore or of
/// messages intend that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum RuleAction {
    /// The datastore or message gives no action. Felix allows such traffic.
    Unspecified,
    /// Allow, finally.
    Allow,
    /// Deny, finally.
    Deny,
    /// Log and continue.
    Log,
    /// Continue with the next tier.
    NextTier,
}

impl RuleAction {
    /// Returns the text in the datastore and in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Log => "log",
            Self::NextTier => "next-tier",
        }
    }
}

/// One rule of a policy or profile. It is always created with an action ([`Rule::new`]).
///
/// ```
/// use tortie_model::{Protocol, Rule, RuleAction};
///
/// let tcp = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
/// let rest = Rule::new(RuleAction::Deny);
/// assert_eq!([tcp.action, rest.action], [RuleAction::Allow, RuleAction::Deny]);
/// ```
///
/// A forgotten action does not compile:
///
/// ```compile_fail
/// use tortie_model::{Protocol, Rule};
///
/// let rule = Rule { protocol: Some(Protocol::TCP), ..Rule::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Rule {
    /// The action.
    pub action: RuleAction,
    /// Only this family.
    pub ip_version: Option<Family>,
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// Match on the source.
    #[cfg_attr(feature = "serde", serde(default))]
    pub source: EntityMatch,
    /// Match on the destination.
    #[cfg_attr(feature = "serde", serde(default))]
    pub destination: EntityMatch,
    /// Rarely used fields.
    #[cfg_attr(feature = "serde", serde(default))]
    pub extras: Extras<RuleExtras>,
}

/// Rarely used fields of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct RuleExtras {
    /// Any protocol but this.
    pub not_protocol: Option<Protocol>,
    /// Only this ICMP type.
    pub icmp_type: Option<u8>,
    /// Only this ICMP code.
    pub icmp_code: Option<u8>,
    /// Any ICMP type but this.
    pub not_icmp_type: Option<u8>,
    /// Any ICMP code but this.
    pub not_icmp_code: Option<u8>,
    /// Only these HTTP requests; left to application-layer enforcement.
    pub http: Option<Box<HttpMatch>>,
    /// Annotations, sorted by name; they become comments on the rendered rules.
    pub annotations: List<(Arc<str>, Arc<str>)>,
}

impl Seldom for RuleExtras {
    fn unset() -> &'static Self {
        static UNSET: LazyLock<RuleExtras> = LazyLock::new(RuleExtras::default);
        &UNSET
    }
}

impl Rule {
    /// Returns a rule that applies `action` to all traffic.
    #[must_use]
    pub fn new(action: RuleAction) -> Self {
        Self {
            action,
            ip_version: None,
            protocol: None,
            source: EntityMatch::default(),
            destination: EntityMatch::default(),
            extras: Extras::default(),
        }
    }

    /// Returns rules as policies and profiles hold them. The most common lists, of one rule that
    /// allows or denies everything, are shared by all.
    #[must_use]
    pub fn list(rules: Vec<Self>) -> Arc<[Self]> {
        static ALLOW: LazyLock<Arc<[Rule]>> = LazyLock::new(|| [Rule::new(RuleAction::Allow)].into());
        static DENY: LazyLock<Arc<[Rule]>> = LazyLock::new(|| [Rule::new(RuleAction::Deny)].into());
        match &rules[..] {
            [] => Arc::default(),
            rules if *rules == **ALLOW => Arc::clone(&ALLOW),
            rules if *rules == **DENY => Arc::clone(&DENY),
            _ => rules.into(),
        }
    }
}

/// One side of a rule. Everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct EntityMatch {
    /// In one of these networks; empty: anywhere.
    pub nets: List<Cidr>,
    /// An endpoint or network set that matches this selector.
    pub selector: Option<Selector>,
    /// One of these ports; empty: any.
    pub ports: List<PortSpec>,
    /// Rarely used fields.
    pub extras: Extras<EntityExtras>,
}

/// Rarely used fields of one side of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct EntityExtras {
    /// In none of these networks.
    pub not_nets: List<Cidr>,
    /// No endpoint or network set that matches this selector.
    pub not_selector: Option<Selector>,
    /// None of these ports.
    pub not_ports: List<PortSpec>,
    /// An endpoint of this service.
    pub service: Option<Box<NamespacedName>>,
    /// An address of a name that one of these matches; empty: any. Only destinations of egress
    /// rules that allow have them, alone but for ports. They are sorted, each once.
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "<[_]>::is_empty", deserialize_with = "crate::serde_forms::sorted_domains")
    )]
    pub domains: List<DomainPattern>,
    /// The match as the user wrote it, before it was combined into the selector; for display and
    /// application-layer enforcement.
    pub original: OriginalMatch,
}

impl Seldom for EntityExtras {
    fn unset() -> &'static Self {
        static UNSET: LazyLock<EntityExtras> = LazyLock::new(EntityExtras::default);
        &UNSET
    }
}

/// The match of a side as the user wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct OriginalMatch {
    /// The selector.
    pub selector: Option<Selector>,
    /// The namespace selector.
    pub namespace_selector: Option<Selector>,
    /// The negated selector.
    pub not_selector: Option<Selector>,
    /// The service accounts.
    pub service_accounts: ServiceAccountMatch,
}

/// A match on service accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ServiceAccountMatch {
    /// One of these names; empty: any.
    pub names: List<Arc<str>>,
    /// Service accounts that match this selector.
    pub selector: Option<Selector>,
}

/// A match on HTTP requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct HttpMatch {
    /// One of these methods; empty: any.
    pub methods: Box<[Arc<str>]>,
    /// One of these paths; empty: any.
    pub paths: Box<[HttpPath]>,
}

impl HttpMatch {
    /// Warning for a rule with such a match if nothing inspects HTTP.
    pub const NOT_ENFORCED: &str = "nothing enforces a match on HTTP";
}

/// A match on the path of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum HttpPath {
    /// Exactly this path.
    Exact(Arc<str>),
    /// Any path with this prefix.
    Prefix(Arc<str>),
}

#[cfg(test)]
mod tests;
