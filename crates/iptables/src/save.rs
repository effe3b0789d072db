//! Parser of the output of `iptables-save -t TABLE`.
//!
//! Only the data that a reconciler needs is kept: the tag of every rule in our chains, and the
//! positions of our rules in other chains. The meaning of rules is never parsed, because save
//! output does not round-trip: options come back reordered and respelt.

use std::collections::BTreeMap;

use crate::save::words::{Quotes, unquoted_words};
use crate::{ChainName, RuleHash, Table};

mod entries;
mod words;

/// Prefixes of our chain names: today's, and those of Felix before 2.0
/// (`felix/rules/rule_defs.go`).
const OWN_CHAIN_PREFIXES: [&str; 8] =
    ["cali-", "califw-", "calitw-", "califh-", "calith-", "calipi-", "calipo-", "felix-"];

/// Maximum length of a rule with line ends. A comment, the only part of a rule
/// that may contain a line end, has at most 256 bytes.
const MAX_JOINED_RULE: usize = 4096;

/// Reports whether a chain of this name is ours by its present or historic prefix.
#[must_use]
pub fn is_own_chain(name: &str) -> bool {
    OWN_CHAIN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Owner of a rule in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleTag {
    /// Ours, with a hash comment.
    Ours(RuleHash),
    /// Ours, but written by a Felix without hashes, or with an invalid hash: it can only be
    /// removed.
    Stale,
    /// Of another program.
    Foreign,
}

/// Content of a table of the kernel that concerns us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSnapshot {
    /// Our chains and the rules in each, in order.
    pub own_chains: BTreeMap<ChainName, Vec<RuleTag>>,
    /// The kernel's chains, and all chains of others that contain a rule of ours.
    pub hooked_chains: BTreeMap<ChainName, HookedChain>,
    /// Number of rules in the table, of all programs.
    pub rules: usize,
    /// True if the texts of our rules in other chains were not read; all of them are `None` then.
    pub without_texts: bool,
}

impl TableSnapshot {
    /// Omits the texts of rules, as a snapshot [of entries](Self::from_entries) does.
    pub fn forget_texts(&mut self) {
        self.without_texts = true;
        self.hooked_chains.values_mut().flat_map(|chain| &mut chain.ours).for_each(|rule| rule.text = None);
    }

    fn new(table: Table) -> Self {
        let kernel_chains = table.kernel_chains().iter();
        Self { hooked_chains: kernel_chains.map(|name| (*name, HookedChain::default())).collect(), ..Self::default() }
    }

    fn add_chain(&mut self, name: ChainName) {
        if is_own_chain(name.as_str()) {
            self.own_chains.entry(name).or_default();
        }
    }

    /// Adds a rule at the end of a chain; `text` is called for our rules in other chains.
    fn add_rule(&mut self, chain: ChainName, tag: RuleTag, text: impl FnOnce() -> Option<String>) {
        if is_own_chain(chain.as_str()) {
            self.own_chains.entry(chain).or_default().push(tag);
            return;
        }
        let chain = self.hooked_chains.entry(chain).or_default();
        let position = chain.len;
        chain.len += 1;
        if tag != RuleTag::Foreign {
            chain.ours.push(HookedRule { position, tag, text: text() });
        }
    }

    /// Removes the chains of other programs without rules of ours.
    fn without_foreign_chains(mut self, table: Table) -> Self {
        let kernel_chains = table.kernel_chains();
        self.hooked_chains.retain(|name, chain| !chain.ours.is_empty() || kernel_chains.contains(name));
        self
    }
}

/// A chain that is not ours and may contain rules of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookedChain {
    /// Number of its rules, of all programs.
    pub len: usize,
    /// The rules that are ours, by position.
    pub ours: Vec<HookedRule>,
}

/// A rule of ours in a chain that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookedRule {
    /// Its index in the chain, from 0.
    pub position: usize,
    /// Never [`RuleTag::Foreign`].
    pub tag: RuleTag,
    /// The printed rule without `-A CHAIN `, by which it can be deleted. `None`
    /// if it cannot be input: it is not UTF-8, or contains a line end or a NUL.
    pub text: Option<String>,
}

/// Reason why the output of `iptables-save` is unreliable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// Another program wrote rules to the table that only `nft` can show. `iptables-nft-save`
    /// reports this with exit code 0.
    #[error("table {0} contains nftables rules that iptables cannot read")]
    Incompatible(Table),
    /// The output stops in the middle of the table.
    #[error("the listing of table {0} ends before its COMMIT line")]
    Truncated(Table),
}

/// Parser of the output of `iptables-save -t TABLE`, in pieces and without a limit on its length.
///
/// No output is an error, except those that [`SaveError`] lists.
///
/// ```
/// use tortie_iptables::{RuleTag, SaveReader, Table};
///
/// let mut reader = SaveReader::new(Table::Filter);
/// reader.feed(b"*filter\n:INPUT ACCEPT [0:0]\n:cali-INPUT - [0:0]\n-A cali-INPUT -m comm");
/// reader.feed(b"ent --comment \"cali:FewJpBykm9iJ-YNH\" -j ACCEPT\nCOMMIT\n");
/// let snapshot = reader.finish()?;
/// let rules = snapshot.own_chains.values().next().expect("one chain of ours");
/// assert!(matches!(rules[..], [RuleTag::Ours(hash)] if hash.as_str() == "FewJpBykm9iJ-YNH"));
/// # Ok::<(), tortie_iptables::SaveError>(())
/// ```
#[derive(Debug)]
pub struct SaveReader {
    table: Table,
    section: Section,
    /// Incomplete line.
    rest: Vec<u8>,
    /// State of the search for the end of that line.
    line_end: LineEnd,
    snapshot: TableSnapshot,
    incompatible: bool,
    has_begun: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Section {
    /// No `*table` line yet; the lines are treated as those of our table.
    None,
    Ours,
    /// The listing of another table.
    Other,
    /// After our `COMMIT`.
    Complete,
}

impl SaveReader {
    /// Returns a parser for the listing of `table`; other tables in the output are skipped.
    #[must_use]
    pub fn new(table: Table) -> Self {
        Self {
            table,
            section: Section::None,
            rest: Vec::new(),
            line_end: LineEnd::default(),
            snapshot: TableSnapshot::new(table),
            incompatible: false,
            has_begun: false,
        }
    }

    /// Parses a complete output.
    ///
    /// # Errors
    /// See [`SaveError`].
    pub fn read(table: Table, output: &[u8]) -> Result<TableSnapshot, SaveError> {
        let mut reader = Self::new(table);
        reader.feed(output);
        reader.finish()
    }

    /// Takes the next piece of output, of any size.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.rest.is_empty() {
            let used = self.take_lines(piece, false);
            self.rest.extend_from_slice(piece.split_at(used).1);
            return;
        }
        self.rest.extend_from_slice(piece);
        let mut rest = std::mem::take(&mut self.rest);
        let used = self.take_lines(&rest, false);
        rest.drain(..used);
        self.rest = rest;
    }

    /// Reports whether the listing of the table has begun, or was reported as impossible.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.incompatible || self.has_begun
    }

    /// Ends the output and returns the table.
    ///
    /// # Errors
    /// See [`SaveError`].
    pub fn finish(mut self) -> Result<TableSnapshot, SaveError> {
        let rest = std::mem::take(&mut self.rest);
        self.take_lines(&rest, true);
        if self.incompatible {
            return Err(SaveError::Incompatible(self.table));
        }
        if self.section == Section::Ours {
            return Err(SaveError::Truncated(self.table));
        }
        Ok(self.snapshot.without_foreign_chains(self.table))
    }

    /// Handles the complete lines at the beginning of `text` and returns their length in bytes.
    fn take_lines(&mut self, text: &[u8], at_end: bool) -> usize {
        let mut rest = text;
        while !rest.is_empty()
            && let Some((line, behind)) = self.line_end.find(rest, at_end).and_then(|len| rest.split_at_checked(len))
        {
            self.line_end = LineEnd::default();
            self.line(line.strip_suffix(b"\n").unwrap_or(line));
            rest = behind;
        }
        text.len() - rest.len()
    }

    fn line(&mut self, line: &[u8]) {
        match line {
            [b'*', name @ ..] => {
                self.section = if name == self.table.as_str().as_bytes() { Section::Ours } else { Section::Other };
                self.has_begun |= self.section == Section::Ours;
            }
            [b'#', ..] => self.incompatible |= is_incompatible(self.table, line),
            _ if self.section == Section::Other => {}
            [b':', declaration @ ..] => self.chain(declaration),
            [b'-', ..] => self.rule(line),
            b"COMMIT" => self.section = Section::Complete,
            _ => {}
        }
    }

    fn chain(&mut self, declaration: &[u8]) {
        let name = declaration.split(u8::is_ascii_whitespace).next();
        if let Some(name) = name.and_then(chain_name) {
            self.snapshot.add_chain(name);
        }
    }

    fn rule(&mut self, line: &[u8]) {
        let Some(rule) = line.strip_prefix(b"-A ") else { return };
        self.snapshot.rules += 1;
        let name_len = rule.iter().position(|byte| *byte == b' ').unwrap_or(rule.len());
        let Some(name) = rule.get(..name_len).and_then(chain_name) else { return };
        let text = rule.get(name_len + 1..).unwrap_or_default();
        self.snapshot.add_rule(name, tag_of(self.table, name, text), || {
            let text = std::str::from_utf8(text).ok().filter(|text| !text.contains(['\n', '\0']));
            text.map(str::to_owned)
        });
    }
}

/// A search for the end of a line, which continues with the next piece of output.
#[derive(Debug, Default)]
struct LineEnd {
    searched: usize,
    quotes: Quotes,
    /// The first line end within quotes of a rule.
    first: Option<usize>,
}

impl LineEnd {
    /// Returns the length of the line at the beginning of `text`, including its line end, or `None`
    /// if the line is incomplete. A rule with a quoted line end counts as one line.
    fn find(&mut self, text: &[u8], at_end: bool) -> Option<usize> {
        let is_rule = text.starts_with(b"-A ");
        while let Some(byte) = text.get(self.searched) {
            self.searched += 1;
            self.quotes.take(*byte);
            match self.first {
                _ if *byte != b'\n' => {}
                None if !is_rule || self.quotes.are_closed() => return Some(self.searched),
                None => self.first = Some(self.searched),
                Some(first) if self.searched > MAX_JOINED_RULE => return Some(first),
                Some(_) if self.quotes.are_closed() => return Some(self.searched),
                Some(_) => {}
            }
        }
        match self.first {
            None => at_end.then_some(text.len()),
            Some(first) => (at_end || text.len() > MAX_JOINED_RULE).then_some(first),
        }
    }
}

/// Returns the name of a chain, if it is one that our rules can contain.
fn chain_name(name: &[u8]) -> Option<ChainName> {
    ChainName::new(std::str::from_utf8(name).ok()?).ok()
}

/// Reports whether the line is ``# Table `…' is incompatible, use 'nft' tool.`` for this table or
/// an unknown one.
fn is_incompatible(table: Table, line: &[u8]) -> bool {
    let is_about = |table: Table| contains(line, format!("`{table}'").as_bytes());
    line.starts_with(b"# Table ")
        && contains(line, b" is incompatible, use 'nft' tool.")
        && !Table::ALL.into_iter().any(|other| other != table && is_about(other))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn tag_of(table: Table, chain: ChainName, rule: &[u8]) -> RuleTag {
    let mut words = unquoted_words(rule);
    while let Some(word) = words.next() {
        match word {
            b"--comment" => {
                if let Some(tag) = words.next().and_then(tag_in_comment) {
                    return tag;
                }
            }
            b"-j" | b"--jump" => {
                let target = words.next().and_then(|word| std::str::from_utf8(word).ok());
                if target.is_some_and(is_own_chain) {
                    return RuleTag::Stale;
                }
            }
            b"felix-masq-ipam-pools" if is_nat_postrouting(table, chain) => return RuleTag::Stale,
            _ => {}
        }
    }
    if is_nat_postrouting(table, chain) && rule == OLD_TUNNEL_MASQUERADE {
        return RuleTag::Stale;
    }
    RuleTag::Foreign
}

/// A rule that earlier versions of Felix wrote to nat POSTROUTING without a comment or mark
/// (`felix/dataplane/linux/int_dataplane.go`).
const OLD_TUNNEL_MASQUERADE: &[u8] = b"-o tunl0 -m addrtype ! --src-type LOCAL --limit-iface-out \
    -m addrtype --src-type LOCAL -j MASQUERADE";

fn is_nat_postrouting(table: Table, chain: ChainName) -> bool {
    table == Table::Nat && chain == crate::kernel_chain::POSTROUTING
}

/// `cali:HASH`, as the whole comment.
fn tag_in_comment(comment: &[u8]) -> Option<RuleTag> {
    let hash = comment.strip_prefix(b"cali:")?;
    let is_hash_char = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if hash.is_empty() || !hash.iter().all(is_hash_char) {
        return None;
    }
    let hash = std::str::from_utf8(hash).ok()?;
    Some(RuleHash::parse(hash).map_or(RuleTag::Stale, RuleTag::Ours))
}

#[cfg(test)]
mod tests;
