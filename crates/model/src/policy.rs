//! Policies, tiers and profiles, as the datastore has them.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use tortie_selector::Selector;

use crate::{Rule, TierName};

/// Whether traffic is coming to an endpoint or leaving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Direction {
    /// To the endpoint.
    Ingress,
    /// From the endpoint.
    Egress,
}

/// A position among tiers or policies; never NaN.
///
/// ```
/// use tortie_model::Order;
/// assert!(Order::new(f64::NAN).is_none());
/// assert!(Order::new(-1.5) < Order::new(f64::INFINITY));
/// assert_eq!(Order::new(-0.0), Order::new(0.0));
/// assert_eq!(size_of::<Option<Order>>(), size_of::<f64>());
/// ```
#[derive(Clone, Copy)]
pub struct Order(
    /// The complement of the number's bits. It is zero only for a NaN, so that an optional order
    /// takes no more space.
    NonZeroU64,
);

impl Order {
    /// Returns an order; `None` for NaN.
    #[must_use]
    pub const fn new(order: f64) -> Option<Self> {
        match NonZeroU64::new(!order.to_bits()) {
            Some(complement) if !order.is_nan() => Some(Self(complement)),
            _ => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(!self.0.get())
    }
}

/// ```
/// use tortie_model::{Order, Policy};
/// let policy = Policy { order: Some(100.into()), ..Policy::default() };
/// assert_eq!(policy.order, Order::new(100.0));
/// ```
impl From<i32> for Order {
    #[expect(clippy::expect_used, reason = "an integer is a number")]
    fn from(order: i32) -> Self {
        Self::new(order.into()).expect("an integer is not NaN")
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Order").field(&self.get()).finish()
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Order {}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Zero has two signs that must compare equal, which `total_cmp` would not do.
        self.get().partial_cmp(&other.get()).unwrap_or(std::cmp::Ordering::Equal)
    }
}

/// Action on denied traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum DenyAction {
    /// It is dropped in silence.
    Drop,
    /// It is dropped, and the sender gets an answer where the dataplane can send one.
    Reject,
}

impl DenyAction {
    /// Annotation of policies and tiers with the action.
    ///
    /// ```
    /// use tortie_model::DenyAction;
    ///
    /// assert_eq!(DenyAction::ANNOTATION, "policy.projectcalico.org/denyAction");
    /// assert_eq!(DenyAction::parse("Reject"), Some(DenyAction::Reject));
    /// assert_eq!(DenyAction::parse("reject"), None);
    /// ```
    pub const ANNOTATION: &str = "policy.projectcalico.org/denyAction";

    /// Returns `Drop` or `Reject`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drop => "Drop",
            Self::Reject => "Reject",
        }
    }

    /// Reads `Drop` or `Reject`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Drop, Self::Reject].into_iter().find(|action| action.as_str() == text)
    }
}

/// Action of a tier on traffic that its policies select but no rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum TierDefaultAction {
    /// Deny it by the node's action.
    Deny,
    /// Deny it by this action.
    DenyWith(DenyAction),
    /// Continue with the next tier.
    Pass,
}

impl TierDefaultAction {
    /// Returns `Deny` or `Pass`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny | Self::DenyWith(_) => "Deny",
            Self::Pass => "Pass",
        }
    }

    /// Returns the tier's own action on denied traffic; `None` if the node's action applies, or the
    /// tier does not deny.
    ///
    /// ```
    /// use tortie_model::{DenyAction, TierDefaultAction};
    ///
    /// let rejects = TierDefaultAction::DenyWith(DenyAction::Reject);
    /// assert_eq!((rejects.as_str(), rejects.deny_action()), ("Deny", Some(DenyAction::Reject)));
    /// assert_eq!(TierDefaultAction::Deny.deny_action(), None);
    /// ```
    #[must_use]
    pub const fn deny_action(self) -> Option<DenyAction> {
        match self {
            Self::DenyWith(action) => Some(action),
            Self::Deny | Self::Pass => None,
        }
    }

    /// Returns the action with this one on denied traffic; an action that does not deny stays.
    #[must_use]
    pub const fn denying_with(self, action: Option<DenyAction>) -> Self {
        match (self, action) {
            (Self::Pass, _) => Self::Pass,
            (Self::Deny | Self::DenyWith(_), Some(action)) => Self::DenyWith(action),
            (Self::Deny | Self::DenyWith(_), None) => Self::Deny,
        }
    }
}

/// A tier. Tiers of lower order are evaluated first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Tier {
    /// Its position; `None` sorts last.
    pub order: Option<Order>,
    /// Action at its end; `None` (unspecified) denies.
    pub default_action: Option<TierDefaultAction>,
}

/// Action of a staged policy. A staged deletion never reaches the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum StagedAction {
    /// Would be set.
    Set,
    /// Would be learnt.
    Learn,
    /// Would be ignored.
    Ignore,
}

/// The directions that a policy governs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct PolicyTypes {
    /// Traffic to the endpoint.
    pub ingress: bool,
    /// Traffic from the endpoint.
    pub egress: bool,
}

impl PolicyTypes {
    /// Both directions, as of a policy without types.
    pub const BOTH: Self = Self { ingress: true, egress: true };

    /// Reports whether `direction` is governed.
    #[must_use]
    pub fn includes(self, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

impl Default for PolicyTypes {
    fn default() -> Self {
        Self::BOTH
    }
}

/// A policy: rules for the selected endpoints.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Policy {
    /// The namespace; `None` for a global policy.
    pub namespace: Option<Arc<str>>,
    /// The tier; the default one if the datastore has none.
    pub tier: TierName,
    /// The position in the tier; `None` sorts last.
    pub order: Option<Order>,
    /// Selector of the endpoints.
    pub selector: Selector,
    /// The directions governed.
    pub types: PolicyTypes,
    /// Rules for traffic to the endpoints, in order.
    pub inbound: Arc<[Rule]>,
    /// Rules for traffic from the endpoints, in order.
    pub outbound: Arc<[Rule]>,
    /// Whether it is evaluated before conntrack (`doNotTrack`); host endpoints only.
    pub untracked: bool,
    /// Whether it is evaluated before DNAT (`preDNAT`); host endpoints only.
    pub pre_dnat: bool,
    /// Whether it applies to forwarded traffic as well (`applyOnForward`); host endpoints only.
    pub apply_on_forward: bool,
    /// Whether it is programmed on every node, matched or not (performance hint
    /// `AssumeNeededOnEveryNode`).
    pub needed_on_every_node: bool,
    /// Action of a staged policy.
    pub staged_action: Option<StagedAction>,
    /// Action on traffic that a rule of this policy denies; by default that of the node. Programs
    /// that do not know it drop.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub deny_action: Option<DenyAction>,
}

impl Default for Policy {
    /// Returns a global policy without rules, in the default tier, for all endpoints in both
    /// directions.
    fn default() -> Self {
        Self {
            namespace: None,
            tier: TierName::default_tier(),
            order: None,
            selector: Selector::default(),
            types: PolicyTypes::BOTH,
            inbound: Arc::default(),
            outbound: Arc::default(),
            untracked: false,
            pre_dnat: false,
            apply_on_forward: false,
            needed_on_every_node: false,
            staged_action: None,
            deny_action: None,
        }
    }
}

/// The rules of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ProfileRules {
    /// Rules for traffic to the endpoints, in order.
    pub inbound: Arc<[Rule]>,
    /// Rules for traffic from the endpoints, in order.
    pub outbound: Arc<[Rule]>,
}
