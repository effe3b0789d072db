//! The kernel's program of a rule: expressions that load, compare, look up and decide
//! (`net/netfilter/nf_tables_api.c`).
//!
//! A rule is compiled to the expressions that `nft` would make of its text. So rules can be
//! compared with the kernel's, whichever program wrote them, and not by their comments alone.

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

/// Bytes in register order.
pub type Bytes = SmallVec<[u8; 16]>;

/// A part of a packet or of the kernel's data, in a register's numbering of the kernel: 1 to 4 have
/// 16 bytes, those from 8 on have 4 and share their space with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u32);

impl Register {
    /// The first register of 16 bytes, the default.
    pub const FIRST: Self = Self(1);
    /// The second.
    pub const SECOND: Self = Self(2);
    /// Register of the verdict.
    pub const VERDICT: Self = Self(0);

    /// Returns the register of 4 bytes at an offset from the start of all registers.
    #[must_use]
    pub const fn at(offset: u32) -> Self {
        const SMALL: u32 = 8;
        // Where possible, the kernel uses the numbers of the larger ones.
        if offset.is_multiple_of(16) { Self(offset / 16 + 1) } else { Self(SMALL + offset / 4) }
    }
}

/// Verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RuleVerdict {
    /// Ends this chain, and all that called it.
    Accept,
    /// Drops the packet.
    Drop,
    /// Continues with the next rule.
    Continue,
    /// Continues in the calling chain.
    Return,
    /// Continues in another chain, which may return.
    Jump(Arc<str>),
    /// Continues in another chain, without return.
    Goto(Arc<str>),
}

/// Comparison of values.
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

/// Metadata of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Meta {
    Mark,
    InInterfaceName,
    OutInterfaceName,
    L4Protocol,
}

/// Fields of a packet's conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Conntrack {
    State,
    Direction,
    Status,
    Mark,
}

/// Base of an offset into a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Header {
    Network,
    Transport,
}

/// Result of a lookup in the routing tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibResult {
    /// The index of the interface of a route.
    OutInterface,
    /// The type of an address.
    AddressType,
}

/// Set or map of a lookup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetReference {
    /// A set or map with a name.
    Named(Arc<str>),
    /// A set of ranges of two bytes that belongs to this rule alone.
    Ports(Vec<(u16, u16)>),
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names describe the fields")]
pub enum Expression {
    /// Loads metadata of the packet.
    Meta { key: Meta, to: Register },
    /// Sets the packet's mark.
    SetMark { from: Register },
    /// Loads a field of the conntrack entry.
    Conntrack { key: Conntrack, to: Register },
    /// Sets the connection's mark.
    SetConnectionMark { from: Register },
    /// Loads bytes of the packet.
    Payload { header: Header, offset: u32, len: u32, to: Register },
    /// Writes bytes of the packet, and corrects the checksum of an IPv4 header.
    SetPayload { header: Header, offset: u32, len: u32, from: Register, checksum: Option<u32> },
    /// Ends the rule unless the comparison is true.
    Compare { register: Register, comparison: Comparison, value: Bytes },
    /// Ends the rule unless the register is outside of a range.
    OutOfRange { register: Register, first: Bytes, last: Bytes },
    /// Masks a register and flips bits of it.
    Bitwise { register: Register, mask: Bytes, xor: Bytes },
    /// Ends the rule unless the set has (or, inverted, does not have) the register's value.
    Lookup { set: SetReference, register: Register, inverted: bool },
    /// Applies the verdict of a map; continues if it has none.
    VerdictMap { map: Arc<str>, register: Register },
    /// Looks up the routing tables.
    Fib { result: FibResult, flags: u32, to: Register },
    /// Counts packets and bytes.
    Counter,
    /// Ends the rule unless there are tokens (or, inverted, none).
    Limit { rate: u64, per_seconds: u64, burst: u32, inverted: bool },
    /// Ends the rule unless the register's value has no tokens left in its bucket, which is made
    /// if the set lacks it.
    AboveLimitOfEach { set: Arc<str>, register: Register, rate: u64, per_seconds: u64, burst: u32 },
    /// Ends the rule unless more connections are open.
    ConnectionsAbove { count: u32 },
    /// Loads a value into a register.
    Immediate { to: Register, value: Bytes },
    /// Decides.
    Verdict(RuleVerdict),
    /// Drops, and notifies the sender.
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
    /// Holds the packet for the listener of a queue; continues without one.
    Queue { number: u16 },
    /// The same by the target `NFQUEUE` of iptables, for kernels without the expression.
    QueueTarget { number: u16 },
    /// An expression that Tortie never creates, by its name.
    Foreign(Arc<str>),
}

/// Notification of a rejected sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// ICMP destination unreachable, with this code of the family's own.
    Icmp(u8),
    /// A reset.
    TcpReset,
}
