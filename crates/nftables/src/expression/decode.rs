//! Expressions as the kernel lists them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::constants::{
    CODE_ACCEPT, CODE_CONTINUE, CODE_DROP, CODE_GOTO, CODE_JUMP, CODE_RETURN, DATA_VALUE, DATA_VERDICT, EXPR_DATA,
    EXPR_NAME, VERDICT_CHAIN, VERDICT_CODE, bitwise, cmp, connlimit, counter, ct, dynset, fib, immediate, limit, log,
    lookup, masq, meta, nat, offload, payload, queue, range, reject, target,
};
use super::encode::queue_info;
use super::{
    Bytes, Comparison, Conntrack, Expression, FibResult, Header, Meta, Register, Rejection, RuleVerdict, SetReference,
};
use crate::attribute::{Attribute, attributes, find};

/// The expressions in a rule's list. One that is never made here is [`Expression::Foreign`].
pub(crate) fn expressions(list: &[u8]) -> Vec<Expression> {
    attributes(list)
        .map(|element| {
            let name = find(element.value, EXPR_NAME).and_then(Attribute::text).unwrap_or_default();
            let data = find(element.value, EXPR_DATA).map_or(&[][..], |data| data.value);
            expression(name, &Data(data)).unwrap_or_else(|| Expression::Foreign(name.into()))
        })
        .collect()
}

/// Returns the values of the counter in a rule's list of expressions, if it has one.
pub(crate) fn counted(list: &[u8]) -> Option<Counted> {
    let is_counter =
        |element: &Attribute<'_>| find(element.value, EXPR_NAME).is_some_and(|name| name.text() == Some("counter"));
    let element = attributes(list).find(is_counter)?;
    let data = Data(find(element.value, EXPR_DATA)?.value);
    let number = |kind| data.get(kind)?.u64();
    Some(Counted { packets: number(counter::PACKETS)?, bytes: number(counter::BYTES)? })
}

/// The values of a rule's counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "all that the kernel counts")]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

struct Data<'a>(&'a [u8]);

impl Data<'_> {
    fn get(&self, kind: u16) -> Option<Attribute<'_>> {
        find(self.0, kind)
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.u32()
    }

    fn register(&self, kind: u16) -> Option<Register> {
        self.number(kind).map(Register)
    }

    fn text(&self, kind: u16) -> Option<Arc<str>> {
        self.get(kind)?.text().map(Arc::from)
    }

    fn value(&self, kind: u16) -> Option<Bytes> {
        let data = self.get(kind)?;
        find(data.value, DATA_VALUE).map(|value| SmallVec::from_slice(value.value))
    }

    /// A number that is 0 if it is missing.
    fn flags(&self, kind: u16) -> u32 {
        self.number(kind).unwrap_or(0)
    }
}

fn expression(name: &str, data: &Data<'_>) -> Option<Expression> {
    match name {
        "meta" => meta_expression(data),
        "ct" => conntrack(data),
        "payload" => payload_expression(data),
        "cmp" => compare(data),
        "range" if data.number(range::OP)? == range::NEQ => Some(Expression::OutOfRange {
            register: data.register(range::SREG)?,
            first: data.value(range::FROM)?,
            last: data.value(range::TO)?,
        }),
        "bitwise" => bitwise_expression(data),
        "lookup" => look_up(data),
        "fib" => fib_expression(data),
        "counter" => Some(Expression::Counter),
        "limit" => limit_expression(data),
        "dynset" => above_limit_of_each(data),
        "connlimit" if data.flags(connlimit::FLAGS) == connlimit::INVERTED => {
            Some(Expression::ConnectionsAbove { count: data.number(connlimit::COUNT)? })
        }
        "immediate" => immediate_expression(data),
        "reject" => reject_expression(data),
        "log" => log_expression(data),
        "nat" => nat_expression(data),
        "masq" => Some(Expression::Masquerade {
            ports: nat_ports(data, masq::REG_PROTO_MIN, masq::REG_PROTO_MAX),
            fully_random: data.flags(masq::FLAGS) & nat::FULLY_RANDOM != 0,
        }),
        "notrack" => Some(Expression::NoTrack),
        "queue" => queue_expression(data),
        "target" => queue_target(data),
        "flow_offload" => Some(Expression::FlowOffload { table: data.text(offload::TABLE)? }),
        _ => None,
    }
}

fn limit_expression(data: &Data<'_>) -> Option<Expression> {
    if data.flags(limit::TYPE) != 0 {
        return None;
    }
    Some(Expression::Limit {
        rate: data.get(limit::RATE)?.u64()?,
        per_seconds: data.get(limit::UNIT)?.u64()?,
        burst: data.flags(limit::BURST),
        inverted: data.flags(limit::FLAGS) == limit::INVERTED,
    })
}

fn above_limit_of_each(data: &Data<'_>) -> Option<Expression> {
    let inner = data.get(dynset::EXPR)?.value;
    let is_limit = find(inner, EXPR_NAME)?.text() == Some("limit");
    if data.number(dynset::OP)? != dynset::UPDATE || !is_limit {
        return None;
    }
    match limit_expression(&Data(find(inner, EXPR_DATA)?.value))? {
        Expression::Limit { rate, per_seconds, burst, inverted: true } => {
            let (set, register) = (data.text(dynset::SET)?, data.register(dynset::SREG)?);
            Some(Expression::AboveLimitOfEach { set, register, rate, per_seconds, burst })
        }
        _ => None,
    }
}

fn meta_expression(data: &Data<'_>) -> Option<Expression> {
    let key = data.number(meta::KEY)?;
    match (data.register(meta::DREG), data.register(meta::SREG)) {
        (Some(to), None) => {
            let key = match key {
                meta::MARK => Meta::Mark,
                meta::IIFNAME => Meta::InInterfaceName,
                meta::OIFNAME => Meta::OutInterfaceName,
                meta::L4PROTO => Meta::L4Protocol,
                _ => return None,
            };
            Some(Expression::Meta { key, to })
        }
        (None, Some(from)) if key == meta::MARK => Some(Expression::SetMark { from }),
        _ => None,
    }
}

fn conntrack(data: &Data<'_>) -> Option<Expression> {
    let key = data.number(ct::KEY)?;
    match (data.register(ct::DREG), data.register(ct::SREG)) {
        (Some(to), None) => {
            let key = match key {
                ct::STATE => Conntrack::State,
                ct::DIRECTION => Conntrack::Direction,
                ct::STATUS => Conntrack::Status,
                ct::MARK => Conntrack::Mark,
                _ => return None,
            };
            Some(Expression::Conntrack { key, to })
        }
        (None, Some(from)) if key == ct::MARK => Some(Expression::SetConnectionMark { from }),
        _ => None,
    }
}

fn compare(data: &Data<'_>) -> Option<Expression> {
    let comparison = match data.number(cmp::OP)? {
        0 => Comparison::Equal,
        1 => Comparison::NotEqual,
        2 => Comparison::Less,
        3 => Comparison::LessOrEqual,
        4 => Comparison::Greater,
        5 => Comparison::GreaterOrEqual,
        _ => return None,
    };
    Some(Expression::Compare { register: data.register(cmp::SREG)?, comparison, value: data.value(cmp::DATA)? })
}

fn bitwise_expression(data: &Data<'_>) -> Option<Expression> {
    let register = data.register(bitwise::SREG)?;
    if data.register(bitwise::DREG)? != register || data.flags(bitwise::OP) != 0 {
        return None;
    }
    Some(Expression::Bitwise { register, mask: data.value(bitwise::MASK)?, xor: data.value(bitwise::XOR)? })
}

fn look_up(data: &Data<'_>) -> Option<Expression> {
    let (name, register) = (data.text(lookup::SET)?, data.register(lookup::SREG)?);
    match data.number(lookup::DREG) {
        None => {
            let inverted = data.flags(lookup::FLAGS) == lookup::INVERTED;
            Some(Expression::Lookup { set: SetReference::Named(name), register, inverted })
        }
        Some(0) => Some(Expression::VerdictMap { map: name, register }),
        Some(_) => None,
    }
}

fn fib_expression(data: &Data<'_>) -> Option<Expression> {
    let result = match data.number(fib::RESULT)? {
        fib::OIF => FibResult::OutInterface,
        fib::ADDRTYPE => FibResult::AddressType,
        _ => return None,
    };
    Some(Expression::Fib { result, flags: data.flags(fib::FLAGS), to: data.register(fib::DREG)? })
}

fn immediate_expression(data: &Data<'_>) -> Option<Expression> {
    match data.register(immediate::DREG)? {
        Register::VERDICT => {
            let data = find(data.get(immediate::DATA)?.value, DATA_VERDICT)?;
            Some(Expression::Verdict(verdict(data.value)?))
        }
        to => Some(Expression::Immediate { to, value: data.value(immediate::DATA)? }),
    }
}

fn reject_expression(data: &Data<'_>) -> Option<Expression> {
    let kind = match data.number(reject::TYPE)? {
        reject::ICMP => Rejection::Icmp(data.get(reject::ICMP_CODE)?.u8()?),
        reject::TCP_RESET => Rejection::TcpReset,
        _ => return None,
    };
    Some(Expression::Reject { kind })
}

fn log_expression(data: &Data<'_>) -> Option<Expression> {
    let prefix = data.text(log::PREFIX).unwrap_or_default();
    Some(match data.get(log::GROUP) {
        Some(group) => Expression::Nflog { prefix, group: group.u16()?, size: data.flags(log::SNAPLEN) },
        None => Expression::Log { prefix, level: data.number(log::LEVEL)? },
    })
}

fn nat_expression(data: &Data<'_>) -> Option<Expression> {
    Some(Expression::Nat {
        source: data.number(nat::TYPE)? == nat::SOURCE,
        family: u8::try_from(data.number(nat::FAMILY)?).ok()?,
        address: data.register(nat::REG_ADDR_MIN)?,
        ports: nat_ports(data, nat::REG_PROTO_MIN, nat::REG_PROTO_MAX),
        fully_random: data.flags(nat::FLAGS) & nat::FULLY_RANDOM != 0,
    })
}

fn payload_expression(data: &Data<'_>) -> Option<Expression> {
    let header = match data.number(payload::BASE)? {
        payload::NETWORK => Header::Network,
        payload::TRANSPORT => Header::Transport,
        _ => return None,
    };
    let (offset, len) = (data.number(payload::OFFSET)?, data.number(payload::LEN)?);
    match (data.register(payload::DREG), data.register(payload::SREG)) {
        (Some(to), None) => Some(Expression::Payload { header, offset, len, to }),
        (None, Some(from)) if data.flags(payload::CSUM_FLAGS) == 0 => {
            let checksum = match data.flags(payload::CSUM_TYPE) {
                0 => None,
                payload::CSUM_INET => Some(data.number(payload::CSUM_OFFSET)?),
                _ => return None,
            };
            Some(Expression::SetPayload { header, offset, len, from, checksum })
        }
        _ => None,
    }
}

fn queue_expression(data: &Data<'_>) -> Option<Expression> {
    let number = |kind| data.get(kind)?.u16();
    let is_ours = number(queue::TOTAL)? == 1 && number(queue::FLAGS)? == queue::BYPASS;
    is_ours.then_some(Expression::Queue { number: number(queue::NUM)? })
}

fn queue_target(data: &Data<'_>) -> Option<Expression> {
    let info = data.get(target::INFO)?.value;
    let number = u16::from_ne_bytes(info.get(..2)?.try_into().ok()?);
    let is_ours = data.get(target::NAME)?.text() == Some(target::NFQUEUE)
        && data.number(target::REVISION)? == target::NFQUEUE_REVISION
        && info == queue_info(number);
    is_ours.then_some(Expression::QueueTarget { number })
}

fn nat_ports(data: &Data<'_>, first: u16, last: u16) -> Option<(Register, Register)> {
    let first = data.register(first)?;
    Some((first, data.register(last).unwrap_or(first)))
}

/// A verdict, in a rule or a map.
pub(crate) fn verdict(data: &[u8]) -> Option<RuleVerdict> {
    let code = i32::from_be_bytes(find(data, VERDICT_CODE)?.value.try_into().ok()?);
    let chain = || find(data, VERDICT_CHAIN)?.text().map(Arc::from);
    Some(match code {
        CODE_ACCEPT => RuleVerdict::Accept,
        CODE_DROP => RuleVerdict::Drop,
        CODE_CONTINUE => RuleVerdict::Continue,
        CODE_RETURN => RuleVerdict::Return,
        CODE_JUMP => RuleVerdict::Jump(chain()?),
        CODE_GOTO => RuleVerdict::Goto(chain()?),
        _ => return None,
    })
}
