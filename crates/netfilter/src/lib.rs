#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod action;
mod chain;
mod command;
pub mod delta;
mod graph;
mod hash;
mod map;
mod mark;
mod matches;
mod member;
mod name;
mod problem;
mod set_name;
mod set_type;
mod values;

pub use action::{Action, LogPrefix, NflogPrefix, RejectWith};
pub use chain::{Chain, Comment, Comments, HookPosition, MergedOrigins, Origin, Rule};
pub use command::{Command, CommandStatus, Outcome};
pub use graph::ChainGraph;
pub use hash::{HASH_COMMENT_PREFIX, RuleHash, RuleHasher};
pub use map::{DispatchBy, Layout, MapKey, MapKind, MapVerdict};
pub use mark::{MarkBits, MaskedMark};
pub use matches::{AddressUnion, Match, Matches, Side};
pub use member::{Member, MemberError, NetMember, NetPair};
pub use name::{ChainName, ChainPrefix, Table, kernel_chain, limited_id};
pub use problem::{ChainProblem, InPlace, Refusal, StandIn};
pub use set_name::{DomainSetPart, Shard, domain_set_name, domain_set_part_id, ip_set_name};
pub use set_type::SetType;
pub use values::{
    ConntrackState, ConntrackStates, IcmpType, InterfacePattern, InvalidRate, Net, PacketRate, PortList, PortRange,
    Rate, RateUnit,
};

pub use tortie_net::{
    Cidr, CidrParseError, Family, InterfaceName, InvalidName, IpSetId, IpSetName, NamedProtocol, Protocol,
};
