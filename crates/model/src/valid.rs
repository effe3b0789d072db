//! Values that have been checked (`felix/calc/validation_filter.go`, `typha/pkg/validator/v1`).
//!
//! The types of the model exclude most of the errors that Felix and Typha have to check for; this
//! module contains the remaining checks. The reader of a datastore checks each value once, and
//! decides on the fallback of an invalid one. From there on the type [`Valid`] shows that it was
//! checked.

mod endpoint;
mod label;
mod made;
mod rule;

pub use rule::RuleCount;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::{HostEndpoint, InterfaceName, NetworkSet, Node, Policy, Profile, ProfileRules, Protocol, WorkloadEndpoint};

/// A value that passed its checks; cheap to clone.
///
/// ```
/// use tortie_model::{Policy, PortSpec, Rule, RuleAction, Valid};
///
/// assert!(Valid::new(Policy::default()).is_ok());
///
/// let mut rule = Rule::new(RuleAction::Allow);
/// rule.source.ports = [PortSpec::single(80)].into();
/// let policy = Policy { inbound: [rule].into(), ..Policy::default() };
/// let error = Valid::new(policy).unwrap_err();
/// let reason = "numeric ports need the protocol TCP, UDP or SCTP";
/// assert_eq!(error.to_string(), format!("Policy: inbound_rules[0].src_ports[0]: {reason}"));
/// ```
///
/// Names that the kernel or selectors would reject later are rejected here:
///
/// ```
/// use tortie_model::{Reason, Valid, WorkloadEndpoint};
///
/// let endpoint = WorkloadEndpoint { iface: Some("all".parse()?), ..WorkloadEndpoint::default() };
/// let error = Valid::new(endpoint).unwrap_err();
/// assert_eq!((error.resource, error.field.as_str()), ("WorkloadEndpoint", "name"));
/// assert!(matches!(error.reason, Reason::InterfaceName(_)));
/// # Ok::<(), tortie_net::InvalidName>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Valid<T>(Arc<T>);

/// Types with checks.
pub trait Validate {
    /// The kind of the value in errors: `Policy`, `WorkloadEndpoint`, …
    const RESOURCE: &'static str;

    /// Checks the value.
    ///
    /// # Errors
    /// The first invalid field.
    fn validate(&self) -> Result<(), Invalid>;

    /// Checks the value as Felix checks an object of its datastore; see [`Valid::stored`].
    ///
    /// # Errors
    /// The first invalid field.
    fn validate_stored(&self) -> Result<(), Invalid> {
        self.validate()
    }
}

impl<T: Validate> Valid<T> {
    /// Checks a value.
    ///
    /// # Errors
    /// [`Invalid`] if it fails.
    pub fn new(value: impl Into<Arc<T>>) -> Result<Self, Invalid> {
        let value = value.into();
        value.validate().map(|()| Self(value))
    }

    /// Checks a value of a datastore as Felix does. This accepts more: workloads without a usable
    /// interface name, labels that no selector can name, host endpoints that match no interface,
    /// and policies that are both untracked and pre-DNAT, which are untracked.
    ///
    /// If such an endpoint were rejected, the IP sets of all nodes would lack its addresses, and a
    /// rule that denies them would not match. The dataplane of the endpoint's node reports it and
    /// programs nothing for it.
    ///
    /// ```
    /// use tortie_model::{Valid, WorkloadEndpoint};
    ///
    /// let endpoint = WorkloadEndpoint { iface: None, ..WorkloadEndpoint::default() };
    /// assert!(Valid::new(endpoint.clone()).is_err());
    /// assert!(Valid::stored(endpoint).is_ok());
    /// ```
    ///
    /// # Errors
    /// [`Invalid`] if it fails.
    pub fn stored(value: impl Into<Arc<T>>) -> Result<Self, Invalid> {
        let value = value.into();
        value.validate_stored().map(|()| Self(value))
    }
}

impl<T> Valid<T> {
    /// Wraps a value that cannot fail its check.
    pub(crate) fn trusted(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// Returns the shared value.
    #[must_use]
    pub fn into_arc(self) -> Arc<T> {
        self.0
    }

    /// Returns the shared value.
    #[must_use]
    pub const fn as_arc(&self) -> &Arc<T> {
        &self.0
    }
}

impl Valid<ProfileRules> {
    /// Returns a shared copy of common rules: most profiles have none, or allow everything.
    #[must_use]
    pub(crate) fn shared(self) -> Self {
        [ProfileRules::none(), ProfileRules::allow_all()].into_iter().find(|common| *common == self).unwrap_or(self)
    }
}

impl Valid<WorkloadEndpoint> {
    /// Reduces the endpoint by [`WorkloadEndpoint::for_other_node`], which leaves it valid.
    #[must_use]
    pub fn for_other_node(self) -> Self {
        Self::trusted(Arc::unwrap_or_clone(self.0).for_other_node())
    }
}

impl<T> Clone for Valid<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Valid<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Reason why a value is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{resource}: {field}: {reason}")]
#[non_exhaustive]
pub struct Invalid {
    /// The kind of the value.
    pub resource: &'static str,
    /// The first invalid field.
    pub field: FieldPath,
    /// The reason.
    pub reason: Reason,
}

impl Invalid {
    fn of<T: Validate>(Flaw { field, reason }: Flaw) -> Self {
        Self { resource: T::RESOURCE, field, reason }
    }
}

/// An invalid field.
struct Flaw {
    field: FieldPath,
    reason: Reason,
}

impl Flaw {
    fn new(field: impl fmt::Display, reason: Reason) -> Self {
        Self { field: FieldPath::of(field), reason }
    }

    /// Puts the field within `outer`.
    fn within(self, outer: impl fmt::Display) -> Self {
        Self { field: FieldPath(format!("{outer}.{}", self.field)), ..self }
    }
}

/// Path of a field in an object: `inbound_rules[2].src_selector`. Names are those of the
/// datastore's JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    fn of(field: impl fmt::Display) -> Self {
        Self(field.to_string())
    }

    /// Returns the path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reason why an object is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Numeric ports without a protocol.
    #[error("numeric ports need the protocol TCP, UDP or SCTP")]
    PortsWithoutProtocol,
    /// Ports with a protocol that has none.
    #[error("protocol {0} has no ports")]
    PortsNotSupported(Protocol),
    /// Port 0, or a range that ends before it begins.
    #[error("port range {first}:{last} is empty or begins with 0")]
    PortRange {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
    /// The port of an endpoint is 0.
    #[error("port 0 cannot be used")]
    PortZero,
    /// An endpoint's port is neither TCP, UDP nor SCTP by name.
    #[error("an endpoint's port must be tcp, udp or sctp, not {0}")]
    EndpointPortProtocol(Protocol),
    /// Protocol number 0.
    #[error("protocol number 0 cannot be matched")]
    ProtocolZero,
    /// ICMP type 255.
    #[error("ICMP type 255 cannot be matched")]
    IcmpType,
    /// A workload endpoint without an interface, or whose interface has no usable name.
    #[error("a workload endpoint needs an interface")]
    MissingInterface,
    /// A host endpoint without an interface and without expected addresses, which would protect
    /// nothing.
    #[error("a host endpoint needs an interface or expected addresses")]
    NoHostInterface,
    /// A name that no interface has, or, of a host endpoint, with other characters than `a–z A–Z
    /// 0–9 _ . -`.
    #[error("`{0}` is not the name of an interface")]
    InterfaceName(InterfaceName),
    /// A name of other characters than `a–z A–Z 0–9 _ . -`, empty, or longer than 128 characters.
    #[error("`{0}` is not a valid name")]
    Name(Box<str>),
    /// A label name that no selector can name, or, of nodes and profiles, one that is not `name` or
    /// `prefix/name` by the rules of Kubernetes.
    #[error("`{0}` is not a valid label name")]
    LabelName(Box<str>),
    /// A label value that is longer than 63 characters or has invalid ones.
    #[error("`{0}` is not a valid label value")]
    LabelValue(Box<str>),
    /// A policy that is both untracked and pre-DNAT.
    #[error("cannot be combined with `untracked`")]
    PreDnatAndUntracked,
    /// Domains of a source, or in an ingress rule.
    #[error("domains are allowed only as destinations of egress rules")]
    DomainsOutsideEgress,
    /// Domains in a rule of a profile.
    #[error("domains are allowed only in rules of policies")]
    DomainsOfProfile,
    /// Domains in an untracked policy, which also filters the answers.
    #[error("domains cannot be combined with `untracked`")]
    DomainsAndUntracked,
    /// Domains in a rule with another action.
    #[error("domains are allowed only in rules with the action Allow")]
    DomainsWithoutAllow,
    /// Domains beside networks, selectors or a service.
    #[error("domains cannot be combined with networks, selectors or services")]
    DomainsNotAlone,
    /// An address of the wrong family.
    #[error("an address is of the wrong family")]
    Family,
    /// A number above its limit.
    #[error("{count} {noun}, at most {bound} are allowed")]
    TooMany {
        /// Number in the object.
        count: usize,
        /// Plural of the counted objects, such as `rules`.
        noun: &'static str,
        /// Highest number allowed.
        bound: usize,
    },
}

impl Validate for Policy {
    const RESOURCE: &'static str = "Policy";

    fn validate(&self) -> Result<(), Invalid> {
        if self.untracked && self.pre_dnat {
            return Err(Invalid::of::<Self>(Flaw::new("pre_dnat", Reason::PreDnatAndUntracked)));
        }
        self.validate_stored()
    }

    fn validate_stored(&self) -> Result<(), Invalid> {
        let owner = if self.untracked { rule::Owner::UntrackedPolicy } else { rule::Owner::Policy };
        rule::lists(owner, &self.inbound, &self.outbound).map_err(Invalid::of::<Self>)
    }
}

impl Validate for ProfileRules {
    const RESOURCE: &'static str = "ProfileRules";

    fn validate(&self) -> Result<(), Invalid> {
        rule::lists(rule::Owner::Profile, &self.inbound, &self.outbound).map_err(Invalid::of::<Self>)
    }
}

impl Validate for WorkloadEndpoint {
    const RESOURCE: &'static str = "WorkloadEndpoint";

    fn validate(&self) -> Result<(), Invalid> {
        endpoint::strict_workload(self).map_err(Invalid::of::<Self>)?;
        self.validate_stored()
    }

    fn validate_stored(&self) -> Result<(), Invalid> {
        endpoint::workload(self).map_err(Invalid::of::<Self>)
    }
}

impl Validate for HostEndpoint {
    const RESOURCE: &'static str = "HostEndpoint";

    fn validate(&self) -> Result<(), Invalid> {
        endpoint::strict_host(self).map_err(Invalid::of::<Self>)?;
        self.validate_stored()
    }

    fn validate_stored(&self) -> Result<(), Invalid> {
        endpoint::host(self).map_err(Invalid::of::<Self>)
    }
}

impl Validate for NetworkSet {
    const RESOURCE: &'static str = "NetworkSet";

    fn validate(&self) -> Result<(), Invalid> {
        label::nameable("labels", &self.labels).map_err(Invalid::of::<Self>)?;
        self.validate_stored()
    }

    fn validate_stored(&self) -> Result<(), Invalid> {
        endpoint::profile_names(&self.profiles).map_err(Invalid::of::<Self>)
    }
}

impl Validate for Profile {
    const RESOURCE: &'static str = "Profile";

    fn validate(&self) -> Result<(), Invalid> {
        label::inherited("spec.labelsToApply", &self.labels).map_err(Invalid::of::<Self>)
    }
}

impl Validate for Node {
    const RESOURCE: &'static str = "Node";

    fn validate(&self) -> Result<(), Invalid> {
        label::labels("metadata.labels", &self.labels).map_err(Invalid::of::<Self>)
    }
}

/// Reports whether a text is 1 to 128 of `a–z A–Z 0–9 _ . -`.
fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

#[cfg(test)]
mod tests;
