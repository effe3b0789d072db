#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

#[cfg(feature = "fake")]
pub mod fake;
mod list;
mod list_all;
mod names;
mod plan;
mod progress;
mod reconcile;
mod report;
mod sets;
mod spec;
mod tracker;
mod write;

pub use list::{ListError, ListReader, Listing, owned_names};
pub use names::is_owned;
pub use plan::{CommandFailure, Plan, Report, SetError, SetFailure};
pub use sets::{Config, IpSets, Resync, UpdateError};
pub use spec::SetSpec;
pub use tortie_net::{Cidr, Family, InvalidName, IpPortMember, IpSetId, IpSetName, PortProtocol};
pub use tortie_netfilter::{Command, Member, MemberError, NetMember, NetPair, SetType, ip_set_name};
