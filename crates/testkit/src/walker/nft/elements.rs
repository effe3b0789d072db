//! Sets and maps, and the syntax of their elements.

use std::net::IpAddr;

use super::{
    Parsed,
    selectors::{Kind, LOCAL, Value},
    statements::StatementVerdict,
};
use crate::packet::in_network;

/// Value of a part of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    Network(IpAddr, u8),
    Numbers(u32, u32),
    Name(String),
    /// Names with this prefix.
    Names(String),
}

/// An element, with the verdict of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) key: Vec<Pattern>,
    pub(super) verdict: Option<StatementVerdict>,
}

/// A set or a map.
#[derive(Debug, Clone, Default)]
pub(super) struct Collection {
    pub(super) kinds: Vec<Kind>,
    pub(super) holds_intervals: bool,
    pub(super) is_map: bool,
    /// Overlapping intervals are merged.
    merges: bool,
    elements: Vec<Element>,
}

impl Collection {
    pub(super) fn new(kinds: Vec<Kind>, holds_intervals: bool, is_map: bool) -> Self {
        Self { kinds, holds_intervals, is_map, merges: false, elements: Vec::new() }
    }

    /// Creates an anonymous set or map of a rule.
    pub(super) fn anonymous(kinds: Vec<Kind>, is_map: bool) -> Self {
        Self { merges: !is_map, ..Self::new(kinds, true, is_map) }
    }

    /// Returns the verdicts of a map.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = &StatementVerdict> {
        self.elements.iter().filter_map(|element| element.verdict.as_ref())
    }

    /// Adds an element.
    ///
    /// # Errors
    /// If the kernel would refuse it.
    pub(super) fn add(&mut self, element: Element) -> Parsed<()> {
        if element.key.len() != self.kinds.len() || element.verdict.is_some() != self.is_map {
            return Err("not an element of this".into());
        }
        let is_interval = |pattern: &Pattern| match pattern {
            Pattern::Network(IpAddr::V4(_), length) => *length < 32,
            Pattern::Network(IpAddr::V6(_), length) => *length < 128,
            Pattern::Numbers(first, last) => first != last,
            Pattern::Name(_) => false,
            Pattern::Names(_) => true,
        };
        if !self.holds_intervals && element.key.iter().any(is_interval) {
            return Err("an interval in a set without intervals".into());
        }
        let same_key = |other: &&Element| other.key == element.key;
        match self.elements.iter().find(same_key) {
            Some(other) if *other == element => return Ok(()),
            Some(_) => return Err("leads elsewhere already".into()),
            None => {}
        }
        if !self.merges && self.elements.iter().any(|other| overlap(&other.key, &element.key)) {
            return Err("overlaps with another interval".into());
        }
        self.elements.push(element);
        Ok(())
    }

    /// Returns the element that matches a packet's values.
    pub(super) fn find(&self, key: &[Value]) -> Option<&Element> {
        let is_it = |element: &&Element| {
            element.key.len() == key.len() && element.key.iter().zip(key).all(|(pattern, value)| pattern.has(value))
        };
        self.elements.iter().find(is_it)
    }
}

/// Reports whether a value can match both keys.
fn overlap(one: &[Pattern], other: &[Pattern]) -> bool {
    one.iter().zip(other).all(|parts| match parts {
        (Pattern::Network(one, first), Pattern::Network(other, second)) => in_network(*one, *other, *first.min(second)),
        (Pattern::Numbers(first, last), Pattern::Numbers(from, to)) => first <= to && from <= last,
        (Pattern::Name(one), Pattern::Name(other)) => one == other,
        (Pattern::Names(start), Pattern::Name(name)) | (Pattern::Name(name), Pattern::Names(start)) => {
            name.starts_with(start.as_str())
        }
        (Pattern::Names(one), Pattern::Names(other)) => {
            one.starts_with(other.as_str()) || other.starts_with(one.as_str())
        }
        _ => false,
    })
}

impl Pattern {
    fn has(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Network(net, length), Value::Address(address)) => in_network(*address, *net, *length),
            (Self::Numbers(first, last), Value::Number(number)) => (first..=last).contains(&number),
            (Self::Name(name), Value::Name(other)) => name == other,
            (Self::Names(start), Value::Name(name)) => name.starts_with(start.as_str()),
            _ => false,
        }
    }

    /// Parses a word.
    ///
    /// # Errors
    /// If it is not of this kind.
    pub(super) fn parse(kind: Kind, word: &str) -> Parsed<Self> {
        let unknown = || format!("{word:?} is no {kind:?}");
        match kind {
            Kind::Address => {
                let (address, length) = word.split_once('/').map_or((word, None), |(net, length)| (net, Some(length)));
                let address: IpAddr = address.parse().map_err(|_| unknown())?;
                let whole = if address.is_ipv4() { 32 } else { 128 };
                let length = length.map_or(Ok(whole), |length| length.parse().map_err(|_| unknown()))?;
                Ok(Self::Network(address, length))
            }
            Kind::Interface => {
                Ok(word.strip_suffix('*').map_or_else(|| Self::Name(word.to_owned()), |s| Self::Names(s.to_owned())))
            }
            _ => {
                if let Some(number) = number(kind, word) {
                    return Ok(Self::Numbers(number, number));
                }
                let range =
                    word.split_once('-').and_then(|(first, last)| Some((number(kind, first)?, number(kind, last)?)));
                range.map(|(first, last)| Self::Numbers(first, last)).ok_or_else(|| unknown().into())
            }
        }
    }
}

/// Parses a number or its symbolic name.
pub(super) fn number(kind: Kind, word: &str) -> Option<u32> {
    let names: &[(&str, u32)] = match kind {
        Kind::Protocol => &[
            ("icmp", 1),
            ("tcp", 6),
            ("udp", 17),
            ("dccp", 33),
            ("icmpv6", 58),
            ("ipv6-icmp", 58),
            ("sctp", 132),
            ("udplite", 136),
        ],
        Kind::AddressType => &[("local", LOCAL)],
        Kind::State => &[("invalid", 1), ("established", 2), ("related", 4), ("new", 8), ("untracked", 64)],
        Kind::Status => &[("snat", 0x10), ("dnat", 0x20)],
        _ => &[],
    };
    if let Some((_, number)) = names.iter().find(|(name, _)| *name == word) {
        return Some(*number);
    }
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}
