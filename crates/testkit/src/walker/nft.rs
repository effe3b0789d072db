//! Takes a packet through the text of a table of nftables, as the kernel would.
//!
//! [`Ruleset`] is read from what `nft -f` reads: commands that make a table, its chains, sets and verdict maps.
//! [`Ruleset::walk`] follows a [`Skb`] through its chains. It knows nothing of the typed rules that the text was made of, so
//! that a word that says something else than its rule is found. What it does not understand is an error, and so is what the
//! kernel would refuse: leading to what is not there, a set of intervals that overlap, addresses of the other family.

mod elements;
mod lines;
mod selectors;
mod statements;

use std::collections::BTreeMap;
use std::error::Error;

use tortie_iptables::{ConntrackState, Family, RejectWith};

use super::{Fate, Skb};
use elements::Collection;
use selectors::Selector;
use statements::{Operand, Source, Statement, Verdict};

/// Why a text is no table.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {source}: {text}")]
pub struct NotATable {
    /// Its number from 1.
    pub line: usize,
    /// What is wrong with it.
    pub source: Box<dyn Error + Send + Sync>,
    /// The line.
    pub text: String,
}

/// A part of the text, or its error.
type Parsed<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The reason why a walk fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// There is no such chain.
    #[error("chain {0} does not exist")]
    NoChain(String),
    /// Chains jump in a circle.
    #[error("chain {0} is reached through itself")]
    Loop(String),
}

/// What happened to a packet on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// How it ended. An accepting verdict ends the base chain only; other base chains at the hook are for the caller.
    pub fate: Fate,
    /// The mark at the end.
    pub mark: u32,
    /// Was it taken out of connection tracking?
    pub untracked: bool,
    /// Prefixes of what was logged.
    pub logs: Vec<String>,
    /// Every rule that was carried out to its end: chain and position from 0.
    pub path: Vec<(String, usize)>,
}

/// One table.
#[derive(Debug, Clone)]
pub struct Ruleset {
    family: Family,
    name: String,
    chains: BTreeMap<String, Vec<Vec<Statement>>>,
    /// Those that hooks lead to, with what stands behind the name.
    bases: BTreeMap<String, String>,
    /// Sets and maps.
    collections: BTreeMap<String, Collection>,
}

impl Ruleset {
    /// Reads commands, one a line.
    ///
    /// # Errors
    /// The first line that is not understood, or that the kernel would refuse.
    pub fn parse(text: &str) -> Result<Self, NotATable> {
        lines::parse(text)
    }

    /// Its family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// How many rules each chain has, by name.
    pub fn chains(&self) -> impl Iterator<Item = (&str, usize)> {
        self.chains.iter().map(|(name, rules)| (name.as_str(), rules.len()))
    }

    /// What a base chain is bound to, as `type filter hook forward priority 0`.
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

    /// Follows a packet from the beginning of a chain.
    ///
    /// # Errors
    /// If there is no such chain, or chains jump in a circle.
    pub fn walk(&self, start: &str, skb: &Skb) -> Result<Walk, WalkError> {
        let walk = Walk { fate: Fate::Returned, mark: skb.mark, untracked: false, logs: Vec::new(), path: Vec::new() };
        let mut walker = Walker { ruleset: self, skb: skb.clone(), walk, above: Vec::new() };
        if let Flow::End(fate) = walker.chain(start)? {
            walker.walk.fate = fate;
        }
        walker.walk.mark = walker.skb.mark;
        Ok(walker.walk)
    }
}

/// What a chain or a rule leaves to whoever led to it.
enum Flow {
    /// The rule does not match, or has come to its end without a verdict.
    Next,
    Return,
    End(Fate),
}

struct Walker<'a> {
    ruleset: &'a Ruleset,
    skb: Skb,
    walk: Walk,
    /// The chains that the walk is in, outermost first.
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

    fn obey(&mut self, verdict: &Verdict) -> Result<Flow, WalkError> {
        Ok(match verdict {
            Verdict::Accept => Flow::End(Fate::Accepted),
            Verdict::Drop => Flow::End(Fate::Dropped),
            Verdict::Reject => Flow::End(Fate::Rejected(RejectWith::PortUnreachable)),
            Verdict::Reset => Flow::End(Fate::Rejected(RejectWith::TcpReset)),
            Verdict::Continue => Flow::Next,
            Verdict::Return => Flow::Return,
            Verdict::Goto(chain) => self.chain(chain)?,
            Verdict::Jump(chain) => match self.chain(chain)? {
                Flow::Return => Flow::Next,
                other => other,
            },
        })
    }

    /// Whether the packet has what is asked for; `None` if it lacks a header of that, with which no rule goes on.
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

/// The kernel's word for the state of a connection, of all that a packet has.
fn state_word(skb: &Skb) -> u32 {
    let bit = |state: &ConntrackState| match state {
        ConntrackState::Invalid => 1,
        ConntrackState::Established => 2,
        ConntrackState::Related => 4,
        ConntrackState::New => 8,
        ConntrackState::Dnat => 0,
    };
    skb.conntrack.iter().map(bit).sum()
}

/// The kernel's word for the status of a connection. Other bits than that of translated destinations are set as well.
fn status_word(skb: &Skb) -> u32 {
    const CONFIRMED: u32 = 8;
    const DNAT: u32 = 0x20;
    CONFIRMED | if skb.conntrack.contains(&ConntrackState::Dnat) { DNAT } else { 0 }
}

#[cfg(test)]
mod tests;
