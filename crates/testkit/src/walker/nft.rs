//! Evaluates the text of an nftables table for a packet, as the kernel would.
//!
//! [`Ruleset`] parses input of `nft -f`: commands that create a table, its chains, sets and verdict
//! maps. [`Ruleset::walk`] evaluates its chains for a [`Skb`]. It is independent of the typed rules
//! from which the text was made, and therefore detects text that differs in meaning from its rule.
//! Unknown syntax is an error. So is input that the kernel would refuse: references to missing
//! objects, overlapping intervals in a set, addresses of the other family.

mod elements;
mod lines;
mod selectors;
mod statements;

use std::collections::BTreeMap;
use std::error::Error;

use tortie_iptables::{ConntrackState, Family, RejectWith};

use super::{PacketOutcome, Skb};
use elements::Collection;
use selectors::Selector;
use statements::{Operand, Source, Statement, StatementVerdict};

/// Error of parsing a table.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {source}: {text}")]
pub struct NotATable {
    /// Line number, from 1.
    pub line: usize,
    /// The error.
    pub source: Box<dyn Error + Send + Sync>,
    /// Text of the line.
    pub text: String,
}

/// A parsed part of the text, or its error.
type Parsed<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Error of a walk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// A chain does not exist.
    #[error("chain {0} does not exist")]
    NoChain(String),
    /// Chains jump in a loop.
    #[error("chain {0} is reached through itself")]
    Loop(String),
}

/// Result and side effects of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// The result. An accepting verdict ends the base chain only; the caller evaluates other base
    /// chains at the hook.
    pub outcome: PacketOutcome,
    /// The mark at the end.
    pub mark: u32,
    /// Whether it was excluded from conntrack.
    pub untracked: bool,
    /// Prefixes of the log lines written.
    pub logs: Vec<String>,
    /// Every rule that was executed completely: chain, and position from 0.
    pub path: Vec<(String, usize)>,
}

/// An nftables table.
#[derive(Debug, Clone)]
pub struct Ruleset {
    family: Family,
    name: String,
    chains: BTreeMap<String, Vec<Vec<Statement>>>,
    /// Base chains, with their hook specification.
    bases: BTreeMap<String, String>,
    /// Sets and maps.
    collections: BTreeMap<String, Collection>,
}

impl Ruleset {
    /// Parses commands, one per line.
    ///
    /// # Errors
    /// The first line with unknown syntax, or that the kernel would refuse.
    pub fn parse(text: &str) -> Result<Self, NotATable> {
        lines::parse(text)
    }

    /// Returns the family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the number of rules of each chain, by name.
    pub fn chains(&self) -> impl Iterator<Item = (&str, usize)> {
        self.chains.iter().map(|(name, rules)| (name.as_str(), rules.len()))
    }

    /// Returns the hook specification of a base chain, such as `type filter hook forward priority
    /// 0`.
    #[must_use]
    pub fn base(&self, chain: &str) -> Option<&str> {
        self.bases.get(chain).map(String::as_str)
    }

    fn collection<'c>(&'c self, of: &'c Source) -> Option<&'c Collection> {
        match of {
            Source::Named(name) => self.collections.get(name),
            Source::Inline(collection) => Some(collection),
        }
    }

    /// Evaluates a chain for a packet.
    ///
    /// # Errors
    /// If a chain does not exist, or chains jump in a loop.
    pub fn walk(&self, start: &str, skb: &Skb) -> Result<Walk, WalkError> {
        let walk = Walk {
            outcome: PacketOutcome::Returned,
            mark: skb.mark,
            untracked: false,
            logs: Vec::new(),
            path: Vec::new(),
        };
        let mut walker = Walker { ruleset: self, skb: skb.clone(), walk, above: Vec::new() };
        if let Flow::End(outcome) = walker.chain(start)? {
            walker.walk.outcome = outcome;
        }
        walker.walk.mark = walker.skb.mark;
        Ok(walker.walk)
    }
}

/// Control flow after a chain or a rule.
enum Flow {
    /// The rule does not match, or has ended without a verdict.
    Next,
    Return,
    End(PacketOutcome),
}

struct Walker<'a> {
    ruleset: &'a Ruleset,
    skb: Skb,
    walk: Walk,
    /// Chains being evaluated, outermost first.
    above: Vec<&'a str>,
}

impl<'a> Walker<'a> {
    fn chain(&mut self, name: &str) -> Result<Flow, WalkError> {
        let found = self.ruleset.chains.get_key_value(name);
        let (name, rules) = found.ok_or_else(|| WalkError::NoChain(name.to_owned()))?;
        if self.above.contains(&name.as_str()) {
            return Err(WalkError::Loop(name.clone()));
        }
        self.above.push(name);
        for (position, rule) in rules.iter().enumerate() {
            match self.rule(name, position, rule)? {
                Flow::Next => {}
                other => {
                    self.above.pop();
                    return Ok(other);
                }
            }
        }
        self.above.pop();
        Ok(Flow::Return)
    }

    fn rule(&mut self, chain: &str, position: usize, rule: &'a [Statement]) -> Result<Flow, WalkError> {
        for statement in rule {
            let verdict = match statement {
                Statement::Match { selectors, mask, negated, operand } => {
                    if self.matches(selectors, *mask, operand) != Some(!*negated) {
                        return Ok(Flow::Next);
                    }
                    continue;
                }
                Statement::Lead { selectors, map } => {
                    let key = selectors.iter().map(|selector| selector.read(&self.skb)).collect::<Option<Vec<_>>>();
                    let ruleset = self.ruleset;
                    let found = key.and_then(|key| ruleset.collection(map)?.find(&key)?.verdict.as_ref());
                    match found {
                        Some(verdict) => verdict,
                        None => return Ok(Flow::Next),
                    }
                }
                Statement::WithinRate => {
                    if !self.skb.within_rates {
                        return Ok(Flow::Next);
                    }
                    continue;
                }
                Statement::AboveRate => {
                    if self.skb.within_rates {
                        return Ok(Flow::Next);
                    }
                    continue;
                }
                Statement::MoreConnectionsThan(limit) => {
                    if self.skb.open_connections <= *limit {
                        return Ok(Flow::Next);
                    }
                    continue;
                }
                Statement::SetMark { and, xor, or } => {
                    self.skb.mark = ((self.skb.mark & and) ^ xor) | or;
                    continue;
                }
                Statement::NoTrack => {
                    self.walk.untracked = true;
                    continue;
                }
                Statement::Log(prefix) => {
                    self.walk.logs.push(prefix.clone());
                    continue;
                }
                Statement::Nothing => continue,
                Statement::Verdict(verdict) => verdict,
            };
            self.walk.path.push((chain.to_owned(), position));
            return self.obey(verdict);
        }
        self.walk.path.push((chain.to_owned(), position));
        Ok(Flow::Next)
    }

    fn obey(&mut self, verdict: &StatementVerdict) -> Result<Flow, WalkError> {
        Ok(match verdict {
            StatementVerdict::Accept => Flow::End(PacketOutcome::Accepted),
            StatementVerdict::Drop => Flow::End(PacketOutcome::Dropped),
            StatementVerdict::Reject => Flow::End(PacketOutcome::Rejected(RejectWith::PortUnreachable)),
            StatementVerdict::Reset => Flow::End(PacketOutcome::Rejected(RejectWith::TcpReset)),
            StatementVerdict::Prohibit(family) => {
                Flow::End(PacketOutcome::Rejected(RejectWith::AdminProhibited(*family)))
            }
            StatementVerdict::Continue => Flow::Next,
            StatementVerdict::Return => Flow::Return,
            StatementVerdict::Goto(chain) => self.chain(chain)?,
            StatementVerdict::Jump(chain) => match self.chain(chain)? {
                Flow::Return => Flow::Next,
                other => other,
            },
        })
    }

    /// Reports whether the packet matches; `None` if it lacks the header, which ends any rule.
    fn matches(&self, selectors: &[Selector], mask: Option<u32>, operand: &Operand) -> Option<bool> {
        let mut key: Vec<_> = selectors.iter().map(|selector| selector.read(&self.skb)).collect::<Option<_>>()?;
        if let Some(mask) = mask {
            key.iter_mut().for_each(|value| value.mask(mask));
        }
        Some(match operand {
            Operand::Of(collection) => self.ruleset.collection(collection)?.find(&key).is_some(),
            Operand::AnyBit(bits) => key.iter().any(|value| value.number() & bits != 0),
        })
    }
}

/// Returns the kernel's conntrack state bits of a packet.
fn state_word(skb: &Skb) -> u32 {
    let bit = |state: &ConntrackState| match state {
        ConntrackState::Invalid => 1,
        ConntrackState::Established => 2,
        ConntrackState::Related => 4,
        ConntrackState::New => 8,
        ConntrackState::Untracked => 0x40,
        ConntrackState::Dnat => 0,
    };
    skb.conntrack.iter().map(bit).sum()
}

/// Returns the kernel's conntrack status bits. Bits other than that of DNAT are set as well.
fn status_word(skb: &Skb) -> u32 {
    const CONFIRMED: u32 = 8;
    const DNAT: u32 = 0x20;
    CONFIRMED | if skb.conntrack.contains(&ConntrackState::Dnat) { DNAT } else { 0 }
}

#[cfg(test)]
mod tests;
