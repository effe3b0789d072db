//! Objects that are invalid.

use std::fmt;

use tortie_model::{Key, Protocol};
use tortie_selector::ParseError;

/// Where in an object a problem is: `inbound_rules[2].src_selector`. Names are those of the datastore's JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    pub(crate) fn of(field: impl fmt::Display) -> Self {
        Self(field.to_string())
    }

    /// The same, inside of `outer`.
    #[must_use]
    pub(crate) fn within(self, outer: impl fmt::Display) -> Self {
        Self(format!("{outer}.{}", self.0))
    }

    /// The path as text.
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

/// Why an object is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reason {
    /// The value is of another kind than the key.
    #[error("the value does not fit the key")]
    WrongKind,
    /// A selector does not parse.
    #[error("invalid selector: {0}")]
    Selector(#[from] ParseError),
    /// Numeric ports stand without a protocol.
    #[error("numeric ports need the protocol TCP, UDP or SCTP")]
    PortsWithoutProtocol,
    /// Ports stand with a protocol that has none.
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
    /// A workload endpoint without an interface.
    #[error("a workload endpoint needs an interface")]
    MissingInterface,
    /// An interface name that the kernel would not take.
    #[error("`{0}` is not the name of an interface")]
    InterfaceName(Box<str>),
    /// A name of other characters than `a–z A–Z 0–9 _ . -`, empty, or longer than 128 characters.
    #[error("`{0}` is not a valid name")]
    Name(Box<str>),
    /// A label's name is not `name` or `prefix/name` as Kubernetes has it.
    #[error("`{0}` is not the name of a label")]
    LabelName(Box<str>),
    /// A label's value is longer than 63 characters or has odd ones.
    #[error("`{0}` is not the value of a label")]
    LabelValue(Box<str>),
    /// An address of the wrong family.
    #[error("an address is of the wrong family")]
    Family,
    /// A workload asks to send from foreign addresses, which the configuration forbids.
    #[error("the workload asks to send from addresses that are not its own, which WorkloadSourceSpoofing forbids")]
    SpoofingDisabled,
}

/// An object that is invalid: a policy that denies what it selects, or another that is treated as if it did not exist.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Which object.
    pub key: Key,
    /// The first field found to be wrong.
    pub field: FieldPath,
    /// What is wrong with it.
    pub reason: Reason,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.key, self.field, self.reason)
    }
}
