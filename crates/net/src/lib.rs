#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod budget;
mod cause;
mod cidr;
mod domain;
mod family;
mod inline_text;
mod interface;
mod ip_port;
mod ip_set;
mod mac;
mod names;
mod protocol;
mod serde_text;

pub use budget::{Budget, Ledger};
pub use cause::{Cause, with_causes};
pub use cidr::{Cidr, CidrIter, CidrList, CidrParseError, parse_address};
pub use domain::{DomainName, DomainParseError, DomainPattern, DomainProblem};
pub use family::Family;
pub use inline_text::InlineText;
pub use interface::InterfaceName;
pub use ip_port::{IpPortMember, IpPortParseError};
pub use ip_set::{IpSetId, IpSetName};
pub use mac::{Mac, MacParseError};
pub use names::InvalidName;
pub use protocol::{NamedProtocol, PortProtocol, Protocol};
#[cfg(feature = "serde")]
#[doc(hidden)]
pub use serde_text::{de_text, serde};
