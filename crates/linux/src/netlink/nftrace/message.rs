//! What the kernel tells of a traced packet, as bytes.

use super::rules::{Chain, ENDS};
use crate::netlink::error::NetlinkError;
use crate::netlink::nflog::LoggedHeaders;
use crate::netlink::wire;

/// Tables of nftables for both families.
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
/// Where the flags are in a TCP header.
const TCP_FLAGS: usize = 13;

const WHAT: &str = "traced packet";

/// One thing that happened to a traced packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceMessage {
    /// The number of the table's family.
    pub(super) family: u8,
    /// Tells the packet from others that are on their way through the node at the same time.
    pub id: u32,
    /// Where it happened.
    pub chain: Chain,
    /// What happened.
    pub event: Event,
    /// The packet, as it is on entering a chain that the kernel itself leads to.
    pub headers: Option<LoggedHeaders>,
    /// The flags of a TCP packet, with the headers.
    pub tcp_flags: Option<u8>,
    /// By which interface it came.
    pub in_interface: Option<u32>,
    /// By which interface it leaves.
    pub out_interface: Option<u32>,
}

/// What happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rule matched.
    Rule {
        /// The rule.
        handle: u64,
        /// What it said.
        verdict: Verdict,
    },
    /// The end of a chain was reached, which leads back; or to the policy, which is told then.
    Return,
    /// The end of a chain was reached to which the kernel itself leads.
    Policy(Verdict),
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes the chains of this table and hook.
    Accept,
    /// It ends here.
    Drop,
    /// The next rule decides.
    Continue,
    /// The rule that led here decides on.
    Return,
    /// Another chain decides.
    Goto(String),
    /// Something else becomes of it, such as a queue to a program.
    Other(i32),
}

impl TraceMessage {
    /// Reads a message (`NFT_MSG_TRACE`), without its netlink header.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(payload: &[u8]) -> Result<Self, NetlinkError> {
        let malformed = || NetlinkError::Malformed { what: WHAT };
        let (&[family, ..], attributes) = payload.split_first_chunk::<4>().ok_or_else(malformed)?;
        let mut chain = Chain { family, table: String::new(), name: String::new() };
        let (mut id, mut handle, mut kind, mut verdict, mut policy) = (None, None, None, None, None);
        let (mut network, mut transport): (&[u8], &[u8]) = (&[], &[]);
        let (mut in_interface, mut out_interface) = (None, None);
        wire::for_each_attribute(WHAT, attributes, |attribute, value| {
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

    /// Whether it is told by a chain of a table of ours that is behind all others.
    #[must_use]
    pub fn is_end(&self) -> bool {
        ENDS.iter().any(|(chain, _)| *chain == self.chain.name)
    }
}

fn verdict(attributes: &[u8]) -> Option<Verdict> {
    let (mut found, mut chain) = (None, None);
    let read = wire::for_each_attribute(WHAT, attributes, |attribute, value| {
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
fn code(code: i32, chain: Option<String>) -> Verdict {
    match (code, chain) {
        // Who refuses packets may say why in the upper half.
        (code, _) if code >= 0 && code & 0xff == 0 => Verdict::Drop,
        (1, _) => Verdict::Accept,
        (-1 | -2, _) => Verdict::Continue,
        (-3 | -4, Some(chain)) => Verdict::Goto(chain),
        (-5, _) => Verdict::Return,
        (code, _) => Verdict::Other(code),
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
