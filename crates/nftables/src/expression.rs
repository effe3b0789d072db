//! What the kernel runs for a rule: expressions that load, compare, look up and decide (`net/netfilter/nf_tables_api.c`).
//!
//! A rule is compiled to what `nft` would make of its text, so that rules can be compared with what the kernel has, whoever
//! wrote them, and not by their comments alone.

use std::sync::Arc;

use smallvec::SmallVec;

mod compile;
mod constants;
mod decode;
mod encode;

pub use compile::{Unsupported, compile};
pub use decode::Counted;
pub(crate) use decode::{counted, expressions as decode, verdict};
pub(crate) use encode::{ANONYMOUS_SET, expressions as encode, write_verdict};

/// Bytes in the order in which registers hold them.
pub type Bytes = SmallVec<[u8; 16]>;

/// A part of a packet or of the kernel's data, in a register's numbering of the kernel: 1 to 4 have 16 bytes, those from 8
/// on have 4 and share their space with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u32);

impl Register {
    /// The first of 16 bytes, which everything that needs no others uses.
    pub const FIRST: Self = Self(1);
    /// The second.
    pub const SECOND: Self = Self(2);
    /// Where the verdict goes.
    pub const VERDICT: Self = Self(0);

    /// The register of 4 bytes that begins `offset` bytes behind the beginning of all.
    #[must_use]
    pub const fn at(offset: u32) -> Self {
        const SMALL: u32 = 8;
        // The kernel says it by the larger ones where it can.
        if offset.is_multiple_of(16) { Self(offset / 16 + 1) } else { Self(SMALL + offset / 4) }
    }
}

/// What a chain does with a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Through this chain, and all that called it.
    Accept,
    /// Gone.
    Drop,
    /// On with the next rule.
    Continue,
    /// On in the calling chain.
    Return,
    /// Into another chain and back.
    Jump(Arc<str>),
    /// Into another chain.
    Goto(Arc<str>),
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What is known of a packet besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Meta {
    Mark,
    InInterfaceName,
    OutInterfaceName,
    L4Protocol,
}

/// What connection tracking knows of a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Conntrack {
    State,
    Status,
    Mark,
}

/// From where bytes of a packet are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Header {
    Network,
    Transport,
}

/// What the routing tables are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibResult {
    /// The index of the interface to which a route leads.
    OutInterface,
    /// The type of an address.
    AddressType,
}

/// What is looked up in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetReference {
    /// A set or map with a name.
    Named(Arc<str>),
    /// A set of ranges of two bytes that belongs to this rule alone.
    Ports(Vec<(u16, u16)>),
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are what the names say")]
pub enum Expression {
    /// Loads what is known of the packet.
    Meta { key: Meta, to: Register },
    /// Sets the packet's mark.
    SetMark { from: Register },
    /// Loads what connection tracking knows.
    Conntrack { key: Conntrack, to: Register },
    /// Sets the connection's mark.
    SetConnectionMark { from: Register },
    /// Loads bytes of the packet.
    Payload { header: Header, offset: u32, len: u32, to: Register },
    /// Writes bytes of the packet, and corrects the checksum of an IPv4 header.
    SetPayload { header: Header, offset: u32, len: u32, from: Register, checksum: Option<u32> },
    /// Goes on with the next rule unless the register compares so.
    Compare { register: Register, comparison: Comparison, value: Bytes },
    /// Goes on with the next rule unless the register is outside of a range.
    OutOfRange { register: Register, first: Bytes, last: Bytes },
    /// Masks a register and flips bits of it.
    Bitwise { register: Register, mask: Bytes, xor: Bytes },
    /// Goes on with the next rule unless the set has (or, inverted, does not have) the register's value.
    Lookup { set: SetReference, register: Register, inverted: bool },
    /// Gives the verdict of a map; goes on behind this if it has none.
    VerdictMap { map: Arc<str>, register: Register },
    /// Asks the routing tables.
    Fib { result: FibResult, flags: u32, to: Register },
    /// Counts packets and bytes.
    Counter,
    /// Goes on with the next rule unless there are tokens (or, inverted, none).
    Limit { rate: u64, per_seconds: u64, burst: u32, inverted: bool },
    /// Goes on with the next rule unless more connections are open.
    ConnectionsAbove { count: u32 },
    /// Puts a value into a register.
    Immediate { to: Register, value: Bytes },
    /// Decides.
    Verdict(Verdict),
    /// Drops and tells the sender.
    Reject { kind: Rejection },
    /// Writes to the kernel's log.
    Log { prefix: Arc<str>, level: u32 },
    /// Copies the packet to listeners.
    Nflog { prefix: Arc<str>, group: u16, size: u32 },
    /// Translates an address.
    Nat { source: bool, family: u8, address: Register, ports: Option<(Register, Register)>, fully_random: bool },
    /// Translates the source to the outgoing interface's address.
    Masquerade { ports: Option<(Register, Register)>, fully_random: bool },
    /// Keeps the packet out of connection tracking.
    NoTrack,
    /// Leaves the connection to a flow table.
    FlowOffload { table: Arc<str> },
    /// Anything that is never made here.
    Foreign(Arc<str>),
}

/// What a rejected sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// ICMP destination unreachable, with this code of the family's own.
    Icmp(u8),
    /// A reset.
    TcpReset,
}
