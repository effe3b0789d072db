//! Expressions as bytes.

use super::constants::{
    CODE_ACCEPT, CODE_CONTINUE, CODE_DROP, CODE_GOTO, CODE_JUMP, CODE_RETURN, DATA_VALUE, DATA_VERDICT, EXPR_DATA,
    EXPR_NAME, LIST_ELEM, VERDICT_CHAIN, VERDICT_CODE, bitwise, cmp, connlimit, counter, ct, dynset, fib, immediate,
    limit, log, lookup, masq, meta, nat, offload, payload, queue, range, reject, target,
};
use super::{
    Bytes, Comparison, Conntrack, Expression, FibResult, Header, Meta, Register, Rejection, RuleVerdict, SetReference,
};
use crate::attribute::Writer;

/// The name of a set of ports that belongs to one rule; the kernel replaces `%d` by a number.
pub(crate) const ANONYMOUS_SET: &str = "__set%d";

/// Writes the expressions of a rule into its list. `ports` returns the id, within the transaction,
/// of the next set of ports.
pub(crate) fn expressions(list: &[Expression], mut ports: impl FnMut() -> u32, out: &mut Writer) {
    for expression in list {
        out.nested(LIST_ELEM, |out| match expression {
            Expression::NoTrack => out.text(EXPR_NAME, "notrack"),
            _ => {
                out.text(EXPR_NAME, name(expression));
                out.nested(EXPR_DATA, |out| data(expression, &mut ports, out));
            }
        });
    }
}

fn name(expression: &Expression) -> &str {
    match expression {
        Expression::Meta { .. } | Expression::SetMark { .. } => "meta",
        Expression::Conntrack { .. } | Expression::SetConnectionMark { .. } => "ct",
        Expression::Payload { .. } | Expression::SetPayload { .. } => "payload",
        Expression::Compare { .. } => "cmp",
        Expression::OutOfRange { .. } => "range",
        Expression::Bitwise { .. } => "bitwise",
        Expression::Lookup { .. } | Expression::VerdictMap { .. } => "lookup",
        Expression::Fib { .. } => "fib",
        Expression::Counter => "counter",
        Expression::Limit { .. } => "limit",
        Expression::AboveLimitOfEach { .. } => "dynset",
        Expression::ConnectionsAbove { .. } => "connlimit",
        Expression::Immediate { .. } | Expression::Verdict(_) => "immediate",
        Expression::Reject { .. } => "reject",
        Expression::Log { .. } | Expression::Nflog { .. } => "log",
        Expression::Nat { .. } => "nat",
        Expression::Masquerade { .. } => "masq",
        Expression::NoTrack => "notrack",
        Expression::FlowOffload { .. } => "flow_offload",
        Expression::Queue { .. } => "queue",
        Expression::QueueTarget { .. } => "target",
        Expression::Foreign(name) => name,
    }
}

fn data(expression: &Expression, ports: &mut impl FnMut() -> u32, out: &mut Writer) {
    match expression {
        Expression::Meta { key, to } => numbers([(meta::DREG, to.0), (meta::KEY, meta_key(*key))], out),
        Expression::SetMark { from } => numbers([(meta::KEY, meta::MARK), (meta::SREG, from.0)], out),
        Expression::Conntrack { key, to } => numbers([(ct::DREG, to.0), (ct::KEY, conntrack_key(*key))], out),
        Expression::SetConnectionMark { from } => numbers([(ct::KEY, ct::MARK), (ct::SREG, from.0)], out),
        Expression::Payload { header, offset, len, to } => {
            out.u32(payload::DREG, to.0);
            place(*header, *offset, *len, out);
        }
        Expression::SetPayload { header, offset, len, from, checksum } => {
            out.u32(payload::SREG, from.0);
            place(*header, *offset, *len, out);
            corrected(*checksum, out);
        }
        Expression::Compare { register, comparison, value: bytes } => {
            numbers([(cmp::SREG, register.0), (cmp::OP, operator(*comparison))], out);
            value(cmp::DATA, bytes, out);
        }
        Expression::OutOfRange { register, first, last } => out_of_range(*register, first, last, out),
        Expression::Bitwise { register, mask, xor } => masked(*register, mask, xor, out),
        Expression::Lookup { set, register, inverted } => look_up(set, *register, *inverted, ports, out),
        Expression::VerdictMap { map, register } => {
            out.text(lookup::SET, map);
            numbers([(lookup::SREG, register.0), (lookup::DREG, Register::VERDICT.0)], out);
        }
        Expression::Fib { result, flags, to } => {
            numbers([(fib::DREG, to.0), (fib::RESULT, fib_result(*result)), (fib::FLAGS, *flags)], out);
        }
        Expression::Counter => [counter::BYTES, counter::PACKETS].into_iter().for_each(|kind| out.u64(kind, 0)),
        Expression::Limit { rate, per_seconds, burst, inverted } => {
            limited(*rate, *per_seconds, *burst, *inverted, out);
        }
        Expression::AboveLimitOfEach { set, register, rate, per_seconds, burst } => {
            with_bucket(set, *register, out, |out| limited(*rate, *per_seconds, *burst, true, out));
        }
        Expression::ConnectionsAbove { count } => {
            numbers([(connlimit::COUNT, *count), (connlimit::FLAGS, connlimit::INVERTED)], out);
        }
        Expression::Immediate { to, value: bytes } => {
            out.u32(immediate::DREG, to.0);
            value(immediate::DATA, bytes, out);
        }
        Expression::Verdict(verdict) => {
            out.u32(immediate::DREG, Register::VERDICT.0);
            out.nested(immediate::DATA, |out| write_verdict(verdict, out));
        }
        Expression::Reject { kind } => rejected(*kind, out),
        Expression::Log { prefix, level } => {
            out.text(log::PREFIX, prefix);
            out.u32(log::LEVEL, *level);
        }
        Expression::Nflog { prefix, group, size } => copied(prefix, *group, *size, out),
        Expression::Nat { source, family, address, ports, fully_random } => {
            translated(*source, *family, *address, *ports, *fully_random, out);
        }
        Expression::Masquerade { ports, fully_random } => masqueraded(*ports, *fully_random, out),
        Expression::FlowOffload { table } => out.text(offload::TABLE, table),
        Expression::Queue { number } => {
            [(queue::NUM, *number), (queue::TOTAL, 1), (queue::FLAGS, queue::BYPASS)]
                .into_iter()
                .for_each(|(kind, value)| out.u16(kind, value));
        }
        Expression::QueueTarget { number } => {
            out.text(target::NAME, target::NFQUEUE);
            out.u32(target::REVISION, target::NFQUEUE_REVISION);
            out.bytes(target::INFO, &queue_info(*number));
        }
        Expression::NoTrack | Expression::Foreign(_) => {}
    }
}

/// Returns the options of the target `NFQUEUE` in the host's byte order: number, number of queues,
/// flags.
pub(super) fn queue_info(number: u16) -> [u8; target::NFQUEUE_LEN] {
    let [[a, b], [c, d], [e, f]] = [number, 1, queue::BYPASS].map(u16::to_ne_bytes);
    [a, b, c, d, e, f, 0, 0]
}

fn numbers<const N: usize>(fields: [(u16, u32); N], out: &mut Writer) {
    fields.into_iter().for_each(|(kind, number)| out.u32(kind, number));
}

const fn meta_key(key: Meta) -> u32 {
    match key {
        Meta::Mark => meta::MARK,
        Meta::InInterfaceName => meta::IIFNAME,
        Meta::OutInterfaceName => meta::OIFNAME,
        Meta::L4Protocol => meta::L4PROTO,
    }
}

const fn conntrack_key(key: Conntrack) -> u32 {
    match key {
        Conntrack::State => ct::STATE,
        Conntrack::Direction => ct::DIRECTION,
        Conntrack::Status => ct::STATUS,
        Conntrack::Mark => ct::MARK,
    }
}

const fn operator(comparison: Comparison) -> u32 {
    match comparison {
        Comparison::Equal => 0,
        Comparison::NotEqual => 1,
        Comparison::Less => 2,
        Comparison::LessOrEqual => 3,
        Comparison::Greater => 4,
        Comparison::GreaterOrEqual => 5,
    }
}

const fn fib_result(result: FibResult) -> u32 {
    match result {
        FibResult::OutInterface => fib::OIF,
        FibResult::AddressType => fib::ADDRTYPE,
    }
}

fn corrected(checksum: Option<u32>, out: &mut Writer) {
    out.u32(payload::CSUM_TYPE, if checksum.is_some() { payload::CSUM_INET } else { 0 });
    out.u32(payload::CSUM_OFFSET, checksum.unwrap_or(0));
    out.u32(payload::CSUM_FLAGS, 0);
}

fn out_of_range(register: Register, first: &Bytes, last: &Bytes, out: &mut Writer) {
    numbers([(range::SREG, register.0), (range::OP, range::NEQ)], out);
    value(range::FROM, first, out);
    value(range::TO, last, out);
}

#[expect(clippy::expect_used, reason = "a mask is as long as a field of a packet")]
fn masked(register: Register, mask: &Bytes, xor: &Bytes, out: &mut Writer) {
    let len = u32::try_from(mask.len()).expect("a mask fits a register");
    numbers([(bitwise::SREG, register.0), (bitwise::DREG, register.0), (bitwise::LEN, len)], out);
    value(bitwise::MASK, mask, out);
    value(bitwise::XOR, xor, out);
}

fn look_up(set: &SetReference, register: Register, inverted: bool, ports: &mut impl FnMut() -> u32, out: &mut Writer) {
    match set {
        SetReference::Named(name) => out.text(lookup::SET, name),
        SetReference::Ports(_) => {
            out.text(lookup::SET, ANONYMOUS_SET);
            out.u32(lookup::SET_ID, ports());
        }
    }
    out.u32(lookup::SREG, register.0);
    if inverted {
        out.u32(lookup::FLAGS, lookup::INVERTED);
    }
}

fn limited(rate: u64, per_seconds: u64, burst: u32, inverted: bool, out: &mut Writer) {
    out.u64(limit::RATE, rate);
    out.u64(limit::UNIT, per_seconds);
    let flags = if inverted { limit::INVERTED } else { 0 };
    numbers([(limit::BURST, burst), (limit::TYPE, 0), (limit::FLAGS, flags)], out);
}

/// Writes the lookup of a register's bucket, and its limit.
fn with_bucket(set: &str, register: Register, out: &mut Writer, limit: impl FnOnce(&mut Writer)) {
    out.text(dynset::SET, set);
    numbers([(dynset::OP, dynset::UPDATE), (dynset::SREG, register.0)], out);
    out.nested(dynset::EXPR, |out| {
        out.text(EXPR_NAME, "limit");
        out.nested(EXPR_DATA, limit);
    });
}

fn rejected(kind: Rejection, out: &mut Writer) {
    let (kind, code) = match kind {
        Rejection::Icmp(code) => (reject::ICMP, code),
        Rejection::TcpReset => (reject::TCP_RESET, 0),
    };
    out.u32(reject::TYPE, kind);
    out.u8(reject::ICMP_CODE, code);
}

fn copied(prefix: &str, group: u16, size: u32, out: &mut Writer) {
    out.u16(log::GROUP, group);
    out.text(log::PREFIX, prefix);
    out.u32(log::SNAPLEN, size);
}

fn translated(
    source: bool,
    family: u8,
    address: Register,
    ports: Option<(Register, Register)>,
    fully_random: bool,
    out: &mut Writer,
) {
    let kind = if source { nat::SOURCE } else { nat::SOURCE + 1 };
    numbers([(nat::TYPE, kind), (nat::FAMILY, family.into()), (nat::REG_ADDR_MIN, address.0)], out);
    nat_ports(nat::REG_PROTO_MIN, nat::REG_PROTO_MAX, ports, out);
    nat_flags(nat::FLAGS, ports.is_some(), fully_random, out);
}

fn masqueraded(ports: Option<(Register, Register)>, fully_random: bool, out: &mut Writer) {
    nat_flags(masq::FLAGS, ports.is_some(), fully_random, out);
    nat_ports(masq::REG_PROTO_MIN, masq::REG_PROTO_MAX, ports, out);
}

fn place(header: Header, offset: u32, len: u32, out: &mut Writer) {
    out.u32(
        payload::BASE,
        match header {
            Header::Network => payload::NETWORK,
            Header::Transport => payload::TRANSPORT,
        },
    );
    out.u32(payload::OFFSET, offset);
    out.u32(payload::LEN, len);
}

fn nat_ports(first_kind: u16, last_kind: u16, ports: Option<(Register, Register)>, out: &mut Writer) {
    if let Some((first, last)) = ports {
        out.u32(first_kind, first.0);
        if last != first {
            out.u32(last_kind, last.0);
        }
    }
}

fn nat_flags(kind: u16, has_ports: bool, fully_random: bool, out: &mut Writer) {
    let flags = if has_ports { nat::PORTS } else { 0 } | if fully_random { nat::FULLY_RANDOM } else { 0 };
    if flags != 0 {
        out.u32(kind, flags);
    }
}

pub(crate) fn value(kind: u16, bytes: &Bytes, out: &mut Writer) {
    out.nested(kind, |out| out.bytes(DATA_VALUE, bytes));
}

/// The data of a verdict, in a rule or a map.
pub(crate) fn write_verdict(verdict: &RuleVerdict, out: &mut Writer) {
    let (code, chain) = match verdict {
        RuleVerdict::Accept => (CODE_ACCEPT, None),
        RuleVerdict::Drop => (CODE_DROP, None),
        RuleVerdict::Continue => (CODE_CONTINUE, None),
        RuleVerdict::Return => (CODE_RETURN, None),
        RuleVerdict::Jump(chain) => (CODE_JUMP, Some(chain)),
        RuleVerdict::Goto(chain) => (CODE_GOTO, Some(chain)),
    };
    out.nested(DATA_VERDICT, |out| {
        out.bytes(VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            out.text(VERDICT_CHAIN, chain);
        }
    });
}
