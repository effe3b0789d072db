//! Encoding of messages about a traced packet.

use super::rules::{Chain, ENDS};
use crate::netlink::error::NetlinkError;
use crate::netlink::nflog::LoggedHeaders;
use crate::netlink::wire;

/// Family of nftables tables for both IPv4 and IPv6.
pub const NFPROTO_INET: u8 = 1;

const NFTA_TRACE_TABLE: u16 = 1;
const NFTA_TRACE_CHAIN: u16 = 2;
const NFTA_TRACE_RULE_HANDLE: u16 = 3;
const NFTA_TRACE_TYPE: u16 = 4;
const NFTA_TRACE_VERDICT: u16 = 5;
const NFTA_TRACE_ID: u16 = 6;
const NFTA_TRACE_NETWORK_HEADER: u16 = 8;
const NFTA_TRACE_TRANSPORT_HEADER: u16 = 9;
const NFTA_TRACE_IIF: u16 = 10;
const NFTA_TRACE_OIF: u16 = 12;
const NFTA_TRACE_POLICY: u16 = 16;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;

const NFT_TRACETYPE_POLICY: u32 = 1;
const NFT_TRACETYPE_RETURN: u32 = 2;
const NFT_TRACETYPE_RULE: u32 = 3;

const TCP: u8 = 6;
/// Offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;

const SUBJECT: &str = "traced packet";

/// Single event of a traced packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceMessage {
    /// The number of the table's family.
    pub(super) family: u8,
    /// Distinguishes the packet from others that pass the node at the same time.
    pub id: u32,
    /// Chain of the event.
    pub chain: Chain,
    /// The event.
    pub event: Event,
    /// The packet as it enters a base chain.
    pub headers: Option<LoggedHeaders>,
    /// The flags of a TCP packet, with the headers.
    pub tcp_flags: Option<u8>,
    /// Interface by which it came in.
    pub in_interface: Option<u32>,
    /// Interface by which it leaves.
    pub out_interface: Option<u32>,
}

/// Event of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rule matched.
    Rule {
        /// The rule.
        handle: u64,
        /// Its verdict.
        verdict: TraceVerdict,
    },
    /// The packet reached the end of a chain, which returns to the calling chain, or continues with
    /// the policy, which is then reported.
    Return,
    /// The packet reached the end of a base chain.
    Policy(TraceVerdict),
}

/// Verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceVerdict {
    /// The packet passes the chains of this table at this hook.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The next rule decides.
    Continue,
    /// The evaluation continues after the rule that led to this chain.
    Return,
    /// Another chain decides.
    Goto(String),
    /// Any other verdict, such as a queue to a program.
    Other(i32),
}

impl TraceMessage {
    /// Decodes a message (`NFT_MSG_TRACE`), without its netlink header.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(payload: &[u8]) -> Result<Self, NetlinkError> {
        let malformed = || NetlinkError::Malformed { subject: SUBJECT };
        let (&[family, ..], attributes) = payload.split_first_chunk::<4>().ok_or_else(malformed)?;
        let mut chain = Chain { family, table: String::new(), name: String::new() };
        let (mut id, mut handle, mut kind, mut verdict, mut policy) = (None, None, None, None, None);
        let (mut network, mut transport): (&[u8], &[u8]) = (&[], &[]);
        let (mut in_interface, mut out_interface) = (None, None);
        wire::for_each_attribute(SUBJECT, attributes, |attribute, value| {
            match attribute {
                NFTA_TRACE_TABLE => chain.table = wire::text(value),
                NFTA_TRACE_CHAIN => chain.name = wire::text(value),
                NFTA_TRACE_RULE_HANDLE => handle = Some(u64::from_be_bytes(value.try_into().ok()?)),
                NFTA_TRACE_TYPE => kind = Some(number(value)?),
                NFTA_TRACE_VERDICT => verdict = Some(self::verdict(value)?),
                NFTA_TRACE_ID => id = Some(number(value)?),
                NFTA_TRACE_NETWORK_HEADER => network = value,
                NFTA_TRACE_TRANSPORT_HEADER => transport = value,
                NFTA_TRACE_IIF => in_interface = Some(number(value)?),
                NFTA_TRACE_OIF => out_interface = Some(number(value)?),
                NFTA_TRACE_POLICY => policy = Some(code(number(value)?.cast_signed(), None)),
                _ => {}
            }
            Some(())
        })?;
        let event = match (kind.ok_or_else(malformed)?, handle, verdict, policy) {
            (NFT_TRACETYPE_RULE | NFT_TRACETYPE_RETURN, Some(handle), Some(verdict), _) => {
                Event::Rule { handle, verdict }
            }
            // The end of a chain has no handle, whatever the kernel calls it.
            (NFT_TRACETYPE_RULE | NFT_TRACETYPE_RETURN, None, ..) => Event::Return,
            (NFT_TRACETYPE_POLICY, _, _, Some(policy)) => Event::Policy(policy),
            _ => return Err(malformed()),
        };
        let headers = LoggedHeaders::parse(&[network, transport].concat());
        let tcp = headers.filter(|headers| headers.tuple.protocol == TCP);
        let tcp_flags = tcp.and_then(|_| transport.get(TCP_FLAGS).copied());
        Ok(Self {
            family,
            id: id.ok_or_else(malformed)?,
            chain,
            event,
            headers,
            tcp_flags,
            in_interface,
            out_interface,
        })
    }

    /// Reports whether it comes from one of the trace table's chains that are after all others.
    #[must_use]
    pub fn is_end(&self) -> bool {
        ENDS.iter().any(|(chain, _)| *chain == self.chain.name)
    }
}

fn verdict(attributes: &[u8]) -> Option<TraceVerdict> {
    let (mut found, mut chain) = (None, None);
    let read = wire::for_each_attribute(SUBJECT, attributes, |attribute, value| {
        match attribute {
            NFTA_VERDICT_CODE => found = Some(number(value)?.cast_signed()),
            NFTA_VERDICT_CHAIN => chain = Some(wire::text(value)),
            _ => {}
        }
        Some(())
    });
    read.ok()?;
    Some(code(found?, chain))
}

/// `NF_*` and, negative, `enum nft_verdicts`.
fn code(code: i32, chain: Option<String>) -> TraceVerdict {
    match (code, chain) {
        // The upper half may have the reason of a drop.
        (code, _) if code >= 0 && code & 0xff == 0 => TraceVerdict::Drop,
        (1, _) => TraceVerdict::Accept,
        (-1 | -2, _) => TraceVerdict::Continue,
        (-3 | -4, Some(chain)) => TraceVerdict::Goto(chain),
        (-5, _) => TraceVerdict::Return,
        (code, _) => TraceVerdict::Other(code),
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(any(test, feature = "fake"))]
impl TraceMessage {
    /// Returns a message of IPv4, without interfaces.
    #[must_use]
    pub fn for_test(id: u32, chain: Chain, event: Event, headers: Option<LoggedHeaders>) -> Self {
        let family = chain.family;
        Self { family, id, chain, event, headers, tcp_flags: None, in_interface: None, out_interface: None }
    }
}

#[cfg(test)]
mod tests;
