//! Rendering of rules to lines of `iptables-restore`.

use std::fmt::Write as _;

use tortie_netfilter::{Chain, ChainName, HASH_COMMENT_PREFIX, HookPosition, Rule, RuleHash, RuleHasher};

use crate::features::Features;
use crate::text::{infallible, write_rest};

/// Renders chains to text and hashes; reuses its buffer between chains.
#[derive(Debug, Clone)]
pub struct Renderer {
    features: Features,
    text: String,
}

impl Renderer {
    /// Returns a renderer for a system with these features.
    #[must_use]
    pub fn new(features: Features) -> Self {
        Self { features, text: String::new() }
    }

    /// Returns the features for which texts are rendered.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Renders a chain of ours.
    pub fn chain(&mut self, chain: &Chain) -> RenderedChain {
        self.rules(chain.name, chain.name.as_str(), &chain.rules)
    }

    /// Renders rules that are added to a base chain. The same rule has different hashes at the two
    /// positions.
    pub fn hook(&mut self, kernel_chain: ChainName, position: HookPosition, rules: &[Rule]) -> RenderedChain {
        match position {
            HookPosition::Insert => self.rules(kernel_chain, kernel_chain.as_str(), rules),
            HookPosition::Append => {
                let hashed_name = format!("{kernel_chain}*appends*");
                self.rules(kernel_chain, &hashed_name, rules)
            }
        }
    }

    fn rules(&mut self, name: ChainName, hashed_name: &str, rules: &[Rule]) -> RenderedChain {
        self.text.clear();
        let mut hasher = TextHasher::new(hashed_name);
        let mut lines = Vec::with_capacity(rules.len());
        let mut targets = Vec::new();
        for rule in rules {
            let start = self.text.len();
            write_rest(rule, &self.features, &mut self.text);
            let hash = hasher.next(&self.text[start..]);
            lines.push(Line { end: self.text.len(), hash });
            targets.extend(rule.target());
        }
        RenderedChain { name, text: self.text.as_str().into(), lines: lines.into(), targets: targets.into() }
    }
}

/// A chain as text, rendered once and then shared: the hash of each rule, the text after its hash
/// comment, and the targets of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChain {
    name: ChainName,
    text: Box<str>,
    lines: Box<[Line]>,
    targets: Box<[ChainName]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    end: usize,
    hash: RuleHash,
}

impl RenderedChain {
    /// The chain's name in the kernel.
    #[must_use]
    pub fn name(&self) -> ChainName {
        self.name
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Reports whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The hashes, in rule order.
    #[must_use]
    pub fn hashes(&self) -> impl ExactSizeIterator<Item = RuleHash> + '_ {
        self.lines.iter().map(|line| line.hash)
    }

    /// The hash of the rule with this index; `None` beyond the last rule.
    #[must_use]
    pub fn hash(&self, index: usize) -> Option<RuleHash> {
        self.lines.get(index).map(|line| line.hash)
    }

    /// Returns the comments, matches and action of the rule with this index, that is all text after
    /// the hash comment. Empty beyond the last rule.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the renderer notes where it ends each line")]
    pub fn rest(&self, index: usize) -> &str {
        let Some(line) = self.lines.get(index) else {
            return "";
        };
        let start = index.checked_sub(1).and_then(|before| self.lines.get(before)).map_or(0, |before| before.end);
        self.text.get(start..line.end).expect("lines end within the text, in order")
    }

    /// The chains that the rules jump or go to, in rule order, repetitions included.
    pub fn targets(&self) -> impl Iterator<Item = ChainName> + '_ {
        self.targets.iter().copied()
    }

    /// Writes the line that appends the rule: `-A CHAIN …`, without a line end. This and the
    /// following functions write nothing for an index beyond the last rule.
    pub fn write_append(&self, index: usize, out: &mut String) {
        self.write_line(index, "-A", None, out);
    }

    /// Writes the line that inserts the rule at the top: `-I CHAIN …`.
    pub fn write_insert(&self, index: usize, out: &mut String) {
        self.write_line(index, "-I", None, out);
    }

    /// Writes the line that replaces rule number `position`, counted from 1, by this rule:
    /// `-R CHAIN N …`.
    pub fn write_replace(&self, index: usize, position: usize, out: &mut String) {
        self.write_line(index, "-R", Some(position), out);
    }

    /// Each rule's `-A` line.
    #[must_use]
    pub fn append_lines(&self) -> impl ExactSizeIterator<Item = String> + '_ {
        (0..self.len()).map(|index| {
            let mut line = String::new();
            self.write_append(index, &mut line);
            line
        })
    }

    fn write_line(&self, index: usize, verb: &str, position: Option<usize>, out: &mut String) {
        let Some(hash) = self.hash(index) else { return };
        out.push_str(verb);
        out.push(' ');
        out.push_str(self.name.as_str());
        if let Some(position) = position {
            infallible(write!(out, " {position}"));
        }
        out.push_str(" -m comment --comment \"");
        out.push_str(HASH_COMMENT_PREFIX);
        out.push_str(hash.as_str());
        out.push('"');
        let rest = self.rest(index);
        if !rest.is_empty() {
            out.push(' ');
            out.push_str(rest);
        }
    }
}

/// Hashes rules as they stand in `iptables-restore` input, with `HASH` in the place of the hash
/// comment.
#[derive(Debug, Clone)]
pub(crate) struct TextHasher<'a> {
    name: &'a str,
    hasher: RuleHasher,
}

impl<'a> TextHasher<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name, hasher: RuleHasher::new(name) }
    }

    /// The hash of the next rule, given its text after the hash comment.
    pub(crate) fn next(&mut self, rest: &str) -> RuleHash {
        let space = if rest.is_empty() { "" } else { " " };
        self.hasher.next(["-A ", self.name, " HASH", space, rest])
    }
}

/// The hashes of a chain's rules.
#[must_use]
pub fn rule_hashes(chain: &Chain, features: &Features) -> Vec<RuleHash> {
    Renderer::new(*features).chain(chain).hashes().collect()
}

#[cfg(test)]
mod tests;
