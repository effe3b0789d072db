//! Statements of a rule.

use tortie_iptables::{Family, Side};

use super::{
    Parsed,
    elements::{Collection, Element, number},
    lines::{Tokens, elements, key},
    selectors::{Kind, Selector},
};

/// A statement of a rule.
#[derive(Debug, Clone)]
pub(super) enum Statement {
    /// Continues if the packet matches.
    Match {
        selectors: Vec<Selector>,
        mask: Option<u32>,
        negated: bool,
        operand: Operand,
    },
    /// Executes the verdict of a map, if it has one for the packet.
    Lead {
        selectors: Vec<Selector>,
        map: Source,
    },
    WithinRate,
    AboveRate,
    MoreConnectionsThan(u32),
    /// Applied in this order.
    SetMark {
        and: u32,
        xor: u32,
        or: u32,
    },
    NoTrack,
    Log(String),
    /// A statement without effect on the result here.
    Nothing,
    Verdict(StatementVerdict),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StatementVerdict {
    Accept,
    Drop,
    Reject,
    Reset,
    Prohibit(Family),
    Return,
    Continue,
    Jump(String),
    Goto(String),
}

/// Operand of a match.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Of(Source),
    /// True if one of these bits is set.
    AnyBit(u32),
}

/// A set or a map.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Named(String),
    Inline(Collection),
}

/// Parses a rule up to its comment.
pub(super) fn parse(family: Family, tokens: &mut Tokens) -> Parsed<Vec<Statement>> {
    let mut rule = Vec::new();
    while tokens.peek().is_some() {
        if tokens.eat("comment") {
            tokens.unquoted()?;
            break;
        }
        rule.push(statement(family, tokens)?);
    }
    Ok(rule)
}

fn statement(family: Family, tokens: &mut Tokens) -> Parsed<Statement> {
    const VERDICTS: [&str; 7] = ["accept", "drop", "return", "continue", "jump", "goto", "reject"];
    if tokens.peek().is_some_and(|word| VERDICTS.contains(&word)) {
        return verdict(tokens).map(Statement::Verdict);
    }
    let first = tokens.next()?;
    if let Some(action) = action(&first, tokens)? {
        return Ok(action);
    }
    if first == "meta" && tokens.eat("mark") {
        if !tokens.eat("set") {
            return comparison(vec![Selector::Mark], family, tokens);
        }
        return if tokens.eat("mark") {
            arithmetic(tokens)
        } else {
            tokens.number().map(|value| Statement::SetMark { and: 0, xor: value, or: 0 })
        };
    }
    let selector = selector(&first, family, tokens)?;
    comparison(vec![selector], family, tokens)
}

/// Parses a statement that is neither a verdict, a match nor a change of the mark; `None` if the
/// word begins another statement.
fn action(first: &str, tokens: &mut Tokens) -> Parsed<Option<Statement>> {
    Ok(Some(match first {
        "counter" => Statement::Nothing,
        "notrack" => Statement::NoTrack,
        "log" => {
            tokens.expect("prefix")?;
            let prefix = tokens.unquoted()?;
            while tokens.eat("level") || tokens.eat("snaplen") || tokens.eat("group") {
                tokens.next()?;
            }
            Statement::Log(prefix)
        }
        "limit" => {
            tokens.expect("rate")?;
            let is_over = tokens.eat("over");
            tokens.next()?;
            if tokens.eat("burst") {
                tokens.number()?;
                tokens.expect("packets")?;
            }
            if is_over { Statement::AboveRate } else { Statement::WithinRate }
        }
        "dnat" | "snat" | "masquerade" => {
            if tokens.eat("to") {
                tokens.next()?;
            }
            tokens.eat("fully-random");
            Statement::Verdict(StatementVerdict::Accept)
        }
        "flow" => {
            tokens.expect("offload")?;
            tokens.next()?;
            Statement::Nothing
        }
        "ct" if tokens.eat("count") => {
            tokens.expect("over")?;
            Statement::MoreConnectionsThan(tokens.number()?)
        }
        "ct" if tokens.eat("mark") => {
            tokens.expect("set")?;
            if tokens.eat("ct") {
                tokens.expect("mark")?;
            }
            arithmetic(tokens)?;
            Statement::Nothing
        }
        "ip" | "ip6" if tokens.eat("dscp") => {
            tokens.expect("set")?;
            tokens.number()?;
            Statement::Nothing
        }
        _ => return Ok(None),
    }))
}

/// Parses operations on a mark, from left to right.
fn arithmetic(tokens: &mut Tokens) -> Parsed<Statement> {
    let (mut and, mut xor, mut or) = (u32::MAX, 0, 0);
    loop {
        if tokens.eat("&") || tokens.eat("and") {
            let mask = tokens.number()?;
            (and, xor, or) = (and & mask, xor & mask, or & mask);
        } else if tokens.eat("|") || tokens.eat("or") {
            or |= tokens.number()?;
        } else if tokens.eat("^") || tokens.eat("xor") {
            if or != 0 {
                return Err("bits are set before others are turned".into());
            }
            xor ^= tokens.number()?;
        } else {
            return Ok(Statement::SetMark { and, xor, or });
        }
    }
}

pub(super) fn verdict(tokens: &mut Tokens) -> Parsed<StatementVerdict> {
    Ok(match tokens.next()?.as_str() {
        "accept" => StatementVerdict::Accept,
        "drop" => StatementVerdict::Drop,
        "return" => StatementVerdict::Return,
        "continue" => StatementVerdict::Continue,
        "jump" => StatementVerdict::Jump(tokens.next()?),
        "goto" => StatementVerdict::Goto(tokens.next()?),
        "reject" if tokens.eat("with") => {
            let with = [tokens.next()?, tokens.next()?];
            match with.each_ref().map(String::as_str) {
                ["tcp", "reset"] => StatementVerdict::Reset,
                ["icmp", "admin-prohibited"] => StatementVerdict::Prohibit(Family::V4),
                ["icmpv6", "admin-prohibited"] => StatementVerdict::Prohibit(Family::V6),
                _ => return Err(format!("{with:?} is no answer").into()),
            }
        }
        "reject" => StatementVerdict::Reject,
        other => return Err(format!("{other:?} is no verdict").into()),
    })
}

/// Parses the rest of a match after its first selector.
fn comparison(mut selectors: Vec<Selector>, family: Family, tokens: &mut Tokens) -> Parsed<Statement> {
    while tokens.eat(".") {
        let first = tokens.next()?;
        selectors.push(selector(&first, family, tokens)?);
    }
    let kinds: Vec<Kind> = selectors.iter().map(|selector| selector.kind()).collect();
    if tokens.eat("vmap") {
        let map = source(&kinds, true, tokens)?;
        return Ok(Statement::Lead { selectors, map });
    }
    let mask = tokens.eat("&").then(|| symbol(kinds[0], tokens)).transpose()?;
    let negated = tokens.eat("!=");
    let is_exact = negated || tokens.eat("==") || mask.is_some();
    let operand = match (kinds.as_slice(), tokens.peek()) {
        (_, Some(word)) if word == "{" || word.starts_with('@') => Operand::Of(source(&kinds, false, tokens)?),
        ([Kind::State | Kind::Status], _) if !is_exact => {
            let mut bits = symbol(kinds[0], tokens)?;
            while tokens.eat(",") {
                bits |= symbol(kinds[0], tokens)?;
            }
            Operand::AnyBit(bits)
        }
        _ => {
            let mut one = Collection::new(kinds.clone(), true, false);
            one.add(Element { key: key(&kinds, tokens)?, verdict: None })?;
            Operand::Of(Source::Inline(one))
        }
    };
    Ok(Statement::Match { selectors, mask, negated, operand })
}

fn symbol(kind: Kind, tokens: &mut Tokens) -> Parsed<u32> {
    let word = tokens.next()?;
    number(kind, &word).ok_or_else(|| format!("{word:?} is no {kind:?}").into())
}

/// Parses a set or a map, by name or in braces.
fn source(kinds: &[Kind], is_map: bool, tokens: &mut Tokens) -> Parsed<Source> {
    if let Some(name) = tokens.peek().and_then(|word| word.strip_prefix('@')).map(str::to_owned) {
        tokens.next()?;
        return Ok(Source::Named(name));
    }
    // `nft` and the kernel merge overlapping intervals here.
    let mut collection = Collection::anonymous(kinds.to_vec(), is_map);
    elements(kinds, tokens)?.into_iter().try_for_each(|element| collection.add(element))?;
    Ok(Source::Inline(collection))
}

fn side(word: &str) -> Parsed<Side> {
    match word {
        "saddr" => Ok(Side::Source),
        "daddr" => Ok(Side::Destination),
        other => Err(format!("{other:?} is no address").into()),
    }
}

fn selector(first: &str, family: Family, tokens: &mut Tokens) -> Parsed<Selector> {
    let port = |tokens: &mut Tokens, protocol| match tokens.next()?.as_str() {
        "sport" => Ok(Selector::Port(Side::Source, protocol)),
        "dport" => Ok(Selector::Port(Side::Destination, protocol)),
        other => Err(format!("{other:?} is no port").into()),
    };
    let own = if family == Family::V4 { ["ip", "icmp"] } else { ["ip6", "icmpv6"] };
    match first {
        "iifname" => Ok(Selector::InInterface),
        "oifname" => Ok(Selector::OutInterface),
        "meta" => match tokens.next()?.as_str() {
            "l4proto" => Ok(Selector::Protocol),
            "mark" => Ok(Selector::Mark),
            "iifname" => Ok(Selector::InInterface),
            "oifname" => Ok(Selector::OutInterface),
            other => Err(format!("meta {other:?} is not understood").into()),
        },
        "ct" => match tokens.next()?.as_str() {
            "state" => Ok(Selector::State),
            "status" => Ok(Selector::Status),
            other => Err(format!("ct {other:?} is not understood").into()),
        },
        "fib" => {
            let side = side(&tokens.next()?)?;
            let mut inputs = Vec::new();
            while tokens.eat(".") {
                inputs.push(tokens.next()?);
            }
            match (tokens.next()?.as_str(), inputs.join(" ").as_str()) {
                ("type", "" | "oif") => Ok(Selector::AddressType(side)),
                ("oif", "mark iif") if side == Side::Source => Ok(Selector::WayBack),
                (result, inputs) => Err(format!("fib by {inputs:?} to {result:?} is not understood").into()),
            }
        }
        word if word == own[0] => Ok(Selector::Address(side(&tokens.next()?)?)),
        word if word == own[1] => {
            tokens.expect("type")?;
            Ok(Selector::IcmpType(family))
        }
        "th" => port(tokens, None),
        "@th" => {
            for word in [",", "0", ",", "16"] {
                tokens.expect(word)?;
            }
            Ok(Selector::FirstBytes)
        }
        protocol => match number(Kind::Protocol, protocol) {
            Some(number) if protocol.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                port(tokens, u8::try_from(number).ok())
            }
            _ => Err(format!("{protocol:?} is not understood in a table of this family").into()),
        },
    }
}
