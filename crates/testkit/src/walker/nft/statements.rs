//! Statements of a rule.

use tortie_iptables::{Family, Side};

use super::{
    Parsed,
    elements::{Collection, Element, number},
    lines::{Words, elements, key},
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
    Verdict(Verdict),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Reject,
    Reset,
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
pub(super) fn parse(family: Family, words: &mut Words) -> Parsed<Vec<Statement>> {
    let mut rule = Vec::new();
    while words.peek().is_some() {
        if words.eat("comment") {
            words.unquoted()?;
            break;
        }
        rule.push(statement(family, words)?);
    }
    Ok(rule)
}

fn statement(family: Family, words: &mut Words) -> Parsed<Statement> {
    const VERDICTS: [&str; 7] = ["accept", "drop", "return", "continue", "jump", "goto", "reject"];
    if words.peek().is_some_and(|word| VERDICTS.contains(&word)) {
        return verdict(words).map(Statement::Verdict);
    }
    let first = words.next()?;
    if let Some(action) = action(&first, words)? {
        return Ok(action);
    }
    if first == "meta" && words.eat("mark") {
        if !words.eat("set") {
            return comparison(vec![Selector::Mark], family, words);
        }
        return if words.eat("mark") {
            arithmetic(words)
        } else {
            words.number().map(|value| Statement::SetMark { and: 0, xor: value, or: 0 })
        };
    }
    let selector = selector(&first, family, words)?;
    comparison(vec![selector], family, words)
}

/// Parses a statement that is neither a verdict, a match nor a change of the mark; `None` if the
/// word begins another statement.
fn action(first: &str, words: &mut Words) -> Parsed<Option<Statement>> {
    Ok(Some(match first {
        "counter" => Statement::Nothing,
        "notrack" => Statement::NoTrack,
        "log" => {
            words.expect("prefix")?;
            let prefix = words.unquoted()?;
            while words.eat("level") || words.eat("snaplen") || words.eat("group") {
                words.next()?;
            }
            Statement::Log(prefix)
        }
        "limit" => {
            words.expect("rate")?;
            let is_over = words.eat("over");
            words.next()?;
            if words.eat("burst") {
                words.number()?;
                words.expect("packets")?;
            }
            if is_over { Statement::AboveRate } else { Statement::WithinRate }
        }
        "dnat" | "snat" | "masquerade" => {
            if words.eat("to") {
                words.next()?;
            }
            words.eat("fully-random");
            Statement::Verdict(Verdict::Accept)
        }
        "flow" => {
            words.expect("offload")?;
            words.next()?;
            Statement::Nothing
        }
        "ct" if words.eat("count") => {
            words.expect("over")?;
            Statement::MoreConnectionsThan(words.number()?)
        }
        "ct" if words.eat("mark") => {
            words.expect("set")?;
            if words.eat("ct") {
                words.expect("mark")?;
            }
            arithmetic(words)?;
            Statement::Nothing
        }
        "ip" | "ip6" if words.eat("dscp") => {
            words.expect("set")?;
            words.number()?;
            Statement::Nothing
        }
        _ => return Ok(None),
    }))
}

/// Parses operations on a mark, from left to right.
fn arithmetic(words: &mut Words) -> Parsed<Statement> {
    let (mut and, mut xor, mut or) = (u32::MAX, 0, 0);
    loop {
        if words.eat("&") || words.eat("and") {
            let mask = words.number()?;
            (and, xor, or) = (and & mask, xor & mask, or & mask);
        } else if words.eat("|") || words.eat("or") {
            or |= words.number()?;
        } else if words.eat("^") || words.eat("xor") {
            if or != 0 {
                return Err("bits are set before others are turned".into());
            }
            xor ^= words.number()?;
        } else {
            return Ok(Statement::SetMark { and, xor, or });
        }
    }
}

pub(super) fn verdict(words: &mut Words) -> Parsed<Verdict> {
    Ok(match words.next()?.as_str() {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::Continue,
        "jump" => Verdict::Jump(words.next()?),
        "goto" => Verdict::Goto(words.next()?),
        "reject" if words.eat("with") => {
            words.expect("tcp")?;
            words.expect("reset")?;
            Verdict::Reset
        }
        "reject" => Verdict::Reject,
        other => return Err(format!("{other:?} is no verdict").into()),
    })
}

/// Parses the rest of a match after its first selector.
fn comparison(mut selectors: Vec<Selector>, family: Family, words: &mut Words) -> Parsed<Statement> {
    while words.eat(".") {
        let first = words.next()?;
        selectors.push(selector(&first, family, words)?);
    }
    let kinds: Vec<Kind> = selectors.iter().map(|selector| selector.kind()).collect();
    if words.eat("vmap") {
        let map = source(&kinds, true, words)?;
        return Ok(Statement::Lead { selectors, map });
    }
    let mask = words.eat("&").then(|| symbol(kinds[0], words)).transpose()?;
    let negated = words.eat("!=");
    let is_exact = negated || words.eat("==") || mask.is_some();
    let operand = match (kinds.as_slice(), words.peek()) {
        (_, Some(word)) if word == "{" || word.starts_with('@') => Operand::Of(source(&kinds, false, words)?),
        ([Kind::State | Kind::Status], _) if !is_exact => {
            let mut bits = symbol(kinds[0], words)?;
            while words.eat(",") {
                bits |= symbol(kinds[0], words)?;
            }
            Operand::AnyBit(bits)
        }
        _ => {
            let mut one = Collection::new(kinds.clone(), true, false);
            one.add(Element { key: key(&kinds, words)?, verdict: None })?;
            Operand::Of(Source::Inline(one))
        }
    };
    Ok(Statement::Match { selectors, mask, negated, operand })
}

fn symbol(kind: Kind, words: &mut Words) -> Parsed<u32> {
    let word = words.next()?;
    number(kind, &word).ok_or_else(|| format!("{word:?} is no {kind:?}").into())
}

/// Parses a set or a map, by name or in braces.
fn source(kinds: &[Kind], is_map: bool, words: &mut Words) -> Parsed<Source> {
    if let Some(name) = words.peek().and_then(|word| word.strip_prefix('@')).map(str::to_owned) {
        words.next()?;
        return Ok(Source::Named(name));
    }
    // `nft` and the kernel merge overlapping intervals here.
    let mut collection = Collection::anonymous(kinds.to_vec(), is_map);
    elements(kinds, words)?.into_iter().try_for_each(|element| collection.add(element))?;
    Ok(Source::Inline(collection))
}

fn side(word: &str) -> Parsed<Side> {
    match word {
        "saddr" => Ok(Side::Source),
        "daddr" => Ok(Side::Destination),
        other => Err(format!("{other:?} is no address").into()),
    }
}

fn selector(first: &str, family: Family, words: &mut Words) -> Parsed<Selector> {
    let port = |words: &mut Words, protocol| match words.next()?.as_str() {
        "sport" => Ok(Selector::Port(Side::Source, protocol)),
        "dport" => Ok(Selector::Port(Side::Destination, protocol)),
        other => Err(format!("{other:?} is no port").into()),
    };
    let own = if family == Family::V4 { ["ip", "icmp"] } else { ["ip6", "icmpv6"] };
    match first {
        "iifname" => Ok(Selector::InInterface),
        "oifname" => Ok(Selector::OutInterface),
        "meta" => match words.next()?.as_str() {
            "l4proto" => Ok(Selector::Protocol),
            "mark" => Ok(Selector::Mark),
            "iifname" => Ok(Selector::InInterface),
            "oifname" => Ok(Selector::OutInterface),
            other => Err(format!("meta {other:?} is not understood").into()),
        },
        "ct" => match words.next()?.as_str() {
            "state" => Ok(Selector::State),
            "status" => Ok(Selector::Status),
            other => Err(format!("ct {other:?} is not understood").into()),
        },
        "fib" => {
            let side = side(&words.next()?)?;
            let mut inputs = Vec::new();
            while words.eat(".") {
                inputs.push(words.next()?);
            }
            match (words.next()?.as_str(), inputs.join(" ").as_str()) {
                ("type", "" | "oif") => Ok(Selector::AddressType(side)),
                ("oif", "mark iif") if side == Side::Source => Ok(Selector::WayBack),
                (result, inputs) => Err(format!("fib by {inputs:?} to {result:?} is not understood").into()),
            }
        }
        word if word == own[0] => Ok(Selector::Address(side(&words.next()?)?)),
        word if word == own[1] => {
            words.expect("type")?;
            Ok(Selector::IcmpType(family))
        }
        "th" => port(words, None),
        "@th" => {
            for word in [",", "0", ",", "16"] {
                words.expect(word)?;
            }
            Ok(Selector::FirstBytes)
        }
        protocol => match number(Kind::Protocol, protocol) {
            Some(number) if protocol.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                port(words, u8::try_from(number).ok())
            }
            _ => Err(format!("{protocol:?} is not understood in a table of this family").into()),
        },
    }
}
