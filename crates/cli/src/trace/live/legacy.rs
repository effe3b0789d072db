//! Log messages of iptables-legacy about traced packets.

use super::steps::{ChainEvent, RuleName};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LegacyStep {
    pub(super) table: String,
    pub(super) chain: String,
    pub(super) event: ChainEvent,
}

impl LegacyStep {
    /// Parses the prefix of such a message, `TRACE: filter:cali-FORWARD:rule:3 `; `None` for any
    /// other prefix.
    pub(super) fn parse(prefix: &str) -> Option<Self> {
        // Chain names may contain colons.
        let (table, rest) = prefix.strip_prefix("TRACE: ")?.trim_end().split_once(':')?;
        let (rest, number) = rest.rsplit_once(':')?;
        let (chain, kind) = rest.rsplit_once(':')?;
        let number: usize = number.parse().ok()?;
        let event = match kind {
            "rule" => ChainEvent::Rule(RuleName::Number(number), None),
            "return" => ChainEvent::Return,
            "policy" => ChainEvent::Policy(None),
            _ => return None,
        };
        Some(Self { table: table.to_owned(), chain: chain.to_owned(), event })
    }
}

#[cfg(test)]
mod tests;
