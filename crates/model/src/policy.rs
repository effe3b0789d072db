//! Policies, tiers, profiles and their rules, as the datastore has them.

use std::sync::Arc;

use tortie_selector::Selector;

use crate::{Cidr, Family, NamespacedName, PolicyKind, PortSpec, Protocol, TierName, Valid};

impl HttpMatch {
    /// What is said of a rule with such a match where nothing looks into HTTP.
    pub const NOT_ENFORCED: &str = "nothing enforces a match on HTTP";
}

/// Whether traffic is coming to an endpoint or leaving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the endpoint.
    Ingress,
    /// From the endpoint.
    Egress,
}

/// A position among tiers or policies; never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order(f64);

impl Order {
    /// `None` for NaN.
    #[must_use]
    pub const fn new(order: f64) -> Option<Self> {
        if order.is_nan() { None } else { Some(Self(order)) }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
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
        self.0.partial_cmp(&other.0).unwrap_or(std::cmp::Ordering::Equal)
    }
}

/// What a tier does with traffic that its policies select but no rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TierDefaultAction {
    /// Deny it.
    Deny,
    /// Leave it to the next tier.
    Pass,
}

impl TierDefaultAction {
    /// `Deny` or `Pass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        }
    }
}

/// A tier: policies of a lower order decide first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// Its position; `None` sorts last.
    pub order: Option<Order>,
    /// What happens at its end; `None` (never said) denies.
    pub default_action: Option<TierDefaultAction>,
}

/// What a staged policy stages. A staged deletion never reaches the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub struct PolicyTypes {
    /// Traffic to the endpoint.
    pub ingress: bool,
    /// Traffic from the endpoint.
    pub egress: bool,
}

impl PolicyTypes {
    /// Both directions, which is what a policy without types governs.
    pub const BOTH: Self = Self { ingress: true, egress: true };

    /// Whether `direction` is governed.
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

/// A policy: rules for the endpoints that its selector picks.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The namespace; `None` for a global policy.
    pub namespace: Option<Arc<str>>,
    /// The tier; the default one where the datastore says nothing.
    pub tier: TierName,
    /// The position in the tier; `None` sorts last.
    pub order: Option<Order>,
    /// Which endpoints.
    pub selector: Selector,
    /// The directions governed.
    pub types: PolicyTypes,
    /// Rules for traffic to the endpoints, in order.
    pub inbound: Arc<[Rule]>,
    /// Rules for traffic from the endpoints, in order.
    pub outbound: Arc<[Rule]>,
    /// Decide before connection tracking (`doNotTrack`); host endpoints only.
    pub untracked: bool,
    /// Decide before destination NAT (`preDNAT`); host endpoints only.
    pub pre_dnat: bool,
    /// Decide about forwarded traffic as well (`applyOnForward`); host endpoints only.
    pub apply_on_forward: bool,
    /// Program it on every node, matched or not (performance hint `AssumeNeededOnEveryNode`).
    pub needed_on_every_node: bool,
    /// What a staged policy stages.
    pub staged_action: Option<StagedAction>,
}

impl Default for Policy {
    /// A global policy without rules, in the default tier, for all endpoints in both directions.
    fn default() -> Self {
        Self {
            namespace: None,
            tier: TierName::default_tier(),
            order: None,
            selector: Selector::default(),
            types: PolicyTypes::BOTH,
            inbound: Arc::new([]),
            outbound: Arc::new([]),
            untracked: false,
            pre_dnat: false,
            apply_on_forward: false,
            needed_on_every_node: false,
            staged_action: None,
        }
    }
}

/// The rules of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileRules {
    /// Rules for traffic to the endpoints, in order.
    pub inbound: Arc<[Rule]>,
    /// Rules for traffic from the endpoints, in order.
    pub outbound: Arc<[Rule]>,
}

impl ProfileRules {
    /// Rules that allow everything in both directions.
    #[must_use]
    pub fn allow_all() -> Valid<Self> {
        let allow: Arc<[Rule]> = [Rule { action: RuleAction::Allow, ..Rule::default() }].into();
        Valid::trusted(Self { inbound: Arc::clone(&allow), outbound: allow })
    }
}

impl Policy {
    /// What stands for a policy of this kind that cannot be used: in its place, and for its directions, it denies all that
    /// `selector` selects. Network policies of Kubernetes only ever allow, so one without rules denies as much as can be
    /// without taking back what others allow.
    #[must_use]
    pub fn denying(&self, kind: &PolicyKind, selector: Selector) -> Valid<Self> {
        let (untracked, pre_dnat) = if self.pre_dnat { (false, !self.untracked) } else { (self.untracked, false) };
        let deny: Arc<[Rule]> = match kind {
            PolicyKind::KubernetesNetworkPolicy => Arc::new([]),
            _ => [Rule { action: RuleAction::Deny, ..Rule::default() }].into(),
        };
        Valid::trusted(Self {
            namespace: self.namespace.clone(),
            tier: self.tier.clone(),
            order: self.order,
            selector,
            types: if pre_dnat { PolicyTypes { ingress: true, egress: false } } else { self.types },
            untracked,
            pre_dnat,
            apply_on_forward: self.apply_on_forward || untracked || pre_dnat,
            inbound: Arc::clone(&deny),
            outbound: if pre_dnat { Arc::new([]) } else { deny },
            ..Self::default()
        })
    }
}

/// What a rule does with the traffic that it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// The datastore gives no action, which allows.
    #[default]
    Unspecified,
    /// Allow, finally.
    Allow,
    /// Deny, finally.
    Deny,
    /// Log and go on.
    Log,
    /// Leave the decision to the next tier.
    NextTier,
}

impl RuleAction {
    /// The text in the datastore and in messages.
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

/// One rule of a policy or profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// What to do.
    pub action: RuleAction,
    /// Only this family.
    pub ip_version: Option<Family>,
    /// Only this protocol.
    pub protocol: Option<Protocol>,
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
    /// Where the traffic comes from.
    pub source: EntityMatch,
    /// Where the traffic goes to.
    pub destination: EntityMatch,
    /// Only these HTTP requests; left to application-layer enforcement.
    pub http: Option<Box<HttpMatch>>,
    /// Annotations, sorted by name; they become comments on the rendered rules.
    pub annotations: Box<[(Arc<str>, Arc<str>)]>,
}

/// One side of a rule. Everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntityMatch {
    /// In one of these networks; empty: anywhere.
    pub nets: Box<[Cidr]>,
    /// In none of these networks.
    pub not_nets: Box<[Cidr]>,
    /// An endpoint or network set that this selector picks.
    pub selector: Option<Selector>,
    /// No endpoint or network set that this selector picks.
    pub not_selector: Option<Selector>,
    /// One of these ports; empty: any.
    pub ports: Box<[PortSpec]>,
    /// None of these ports.
    pub not_ports: Box<[PortSpec]>,
    /// An endpoint of this service.
    pub service: Option<NamespacedName>,
    /// What the user wrote before it was combined into `selector`; for display and application-layer enforcement.
    pub original: Option<Box<OriginalMatch>>,
}

/// The user's own words, where a side of a rule has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginalMatch {
    /// The selector; empty if none.
    pub selector: Arc<str>,
    /// The namespace selector; empty if none.
    pub namespace_selector: Arc<str>,
    /// The negated selector; empty if none.
    pub not_selector: Arc<str>,
    /// The service accounts.
    pub service_accounts: ServiceAccountMatch,
}

/// A match on service accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountMatch {
    /// One of these names; empty: any.
    pub names: Box<[Arc<str>]>,
    /// Picked by this selector; empty: any.
    pub selector: Arc<str>,
}

/// A match on HTTP requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpMatch {
    /// One of these methods; empty: any.
    pub methods: Box<[Arc<str>]>,
    /// One of these paths; empty: any.
    pub paths: Box<[HttpPath]>,
}

/// A match on the path of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpPath {
    /// Exactly this path.
    Exact(Arc<str>),
    /// Any path that begins so.
    Prefix(Arc<str>),
}
