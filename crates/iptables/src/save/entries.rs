//! Reader of a table of legacy iptables as the kernel keeps it (`struct ipt_entry` of
//! `linux/netfilter_ipv4/ip_tables.h`, `struct ip6t_entry` of its IPv6 counterpart, on 64-bit
//! machines).
//!
//! The kernel answers `iptables-save` with these entries, which then prints every option of every
//! rule. Most of the time of a listing is that of the printing.

use std::collections::HashSet;

use super::{TableSnapshot, chain_name, is_nat_postrouting, is_own_chain, tag_in_comment};
use crate::{ChainName, Family, RuleTag, Table, kernel_chain};

/// The kernel's chains in the order of `enum nf_inet_hooks`.
const HOOKS: [ChainName; 5] = [
    kernel_chain::PREROUTING,
    kernel_chain::INPUT,
    kernel_chain::FORWARD,
    kernel_chain::OUTPUT,
    kernel_chain::POSTROUTING,
];

/// Size of `struct xt_entry_match` and `struct xt_entry_target`: size, name, revision.
const EXTENSION_HEADER: usize = 32;

/// Offsets in an entry, which differ by family.
struct EntryFormat {
    flags: usize,
    goto: u8,
    target_offset: usize,
    header: usize,
}

const fn format_of(family: Family) -> EntryFormat {
    match family {
        Family::V4 => EntryFormat { flags: 82, goto: 2, target_offset: 88, header: 112 },
        Family::V6 => EntryFormat { flags: 131, goto: 4, target_offset: 140, header: 168 },
    }
}

/// A rule, the policy of a chain, or the head or end of a chain.
struct Entry<'a> {
    offset: usize,
    is_goto: bool,
    /// Matches, one after the other.
    matches: &'a [u8],
    target: &'a [u8],
    end: usize,
}

/// Splits the entries. An item of `None` is malformed.
fn entries(family: Family, listing: &[u8]) -> impl Iterator<Item = Option<Entry<'_>>> {
    let format = format_of(family);
    let mut offset = 0;
    std::iter::from_fn(move || {
        let rest = listing.get(offset..).filter(|rest| !rest.is_empty())?;
        let entry = split_entry(&format, offset, rest);
        offset = entry.as_ref().map_or(listing.len(), |entry| entry.end);
        Some(entry)
    })
}

fn split_entry<'a>(format: &EntryFormat, offset: usize, rest: &'a [u8]) -> Option<Entry<'a>> {
    let target_offset = usize::from(u16_at(rest, format.target_offset)?);
    let len = usize::from(u16_at(rest, format.target_offset + 2)?);
    let is_goto = rest.get(format.flags)? & format.goto != 0;
    let matches = rest.get(format.header..target_offset)?;
    let target = rest.get(target_offset..len).filter(|target| target.len() >= EXTENSION_HEADER)?;
    Some(Entry { offset, is_goto, matches, target, end: offset + len })
}

impl<'a> Entry<'a> {
    /// Returns the name of a chain that begins after this entry, or of the end of the table.
    fn chain_head(&self) -> Option<&'a [u8]> {
        is_named(self.target, b"ERROR\0").then(|| self.target.get(EXTENSION_HEADER..).map(until_zero))?
    }

    /// Returns the offset to which the rule jumps.
    fn jump(&self) -> Option<usize> {
        let verdict = self.target.get(EXTENSION_HEADER..EXTENSION_HEADER + 4)?.try_into().ok()?;
        let is_jump = is_named(self.target, b"\0") && !self.is_goto;
        usize::try_from(i32::from_ne_bytes(verdict)).ok().filter(|_| is_jump)
    }

    /// Returns each match with its header; a last `None` if they are malformed.
    fn matches(&self) -> impl Iterator<Item = Option<&'a [u8]>> {
        let mut rest = self.matches;
        std::iter::from_fn(move || {
            let len = usize::from(u16_at(rest, 0)?);
            let Some((this, behind)) = rest.split_at_checked(len).filter(|(this, _)| this.len() >= EXTENSION_HEADER)
            else {
                rest = &[];
                return Some(None);
            };
            rest = behind;
            Some(Some(this))
        })
    }
}

impl TableSnapshot {
    /// Reads the entries of a table of legacy iptables: the answer of a 64-bit kernel to
    /// `IPT_SO_GET_ENTRIES` without its header, and the first entry of each hook of the table by
    /// `IPT_SO_GET_INFO`. Equals a listing of `iptables-save` except for the texts of rules.
    ///
    /// `None` if only `iptables-save` can tell: the listing is malformed, or a rule in POSTROUTING
    /// of nat may be one that earlier versions of Felix wrote without a mark.
    #[must_use]
    pub fn from_entries(family: Family, table: Table, hooks: &[Option<u32>; 5], listing: &[u8]) -> Option<Self> {
        let mut own_chains = HashSet::new();
        for entry in entries(family, listing) {
            let entry = entry?;
            let head = entry.chain_head().and_then(|name| std::str::from_utf8(name).ok());
            if head.is_some_and(is_own_chain) {
                own_chains.insert(entry.end);
            }
        }
        let mut snapshot = Self { without_texts: true, ..Self::new(table) };
        let mut chain = None;
        // The last entry of a chain is its policy, or the return to the caller.
        let mut last: Option<RuleTag> = None;
        for entry in entries(family, listing) {
            let entry = entry?;
            let hook = hooks.iter().position(|first| first.is_some_and(|first| first as usize == entry.offset));
            let head = entry.chain_head();
            if let Some(name) = head {
                (chain, last) = (chain_name(name), None);
                if let Some(name) = chain.filter(|_| entry.end < listing.len()) {
                    snapshot.add_chain(name);
                }
                continue;
            }
            if let Some(hook) = hook {
                (chain, last) = (HOOKS.get(hook).copied(), None);
            }
            if let Some(tag) = last.take() {
                snapshot.rules += 1;
                if let Some(chain) = chain {
                    snapshot.add_rule(chain, tag, || None);
                }
            }
            let is_ambiguous = chain.is_some_and(|chain| is_nat_postrouting(table, chain));
            last = Some(tag_of(&entry, &own_chains, is_ambiguous)?);
        }
        Some(snapshot.without_foreign_chains(table))
    }
}

/// Returns the tag of a rule; `None` if the entry is malformed, or `is_ambiguous` and perhaps a
/// masquerade of an earlier Felix.
fn tag_of(entry: &Entry<'_>, own_chains: &HashSet<usize>, is_ambiguous: bool) -> Option<RuleTag> {
    let mut has_set = false;
    for found in entry.matches() {
        let found = found?;
        has_set |= is_named(found, b"set\0");
        let comment = found.get(EXTENSION_HEADER..).filter(|_| is_named(found, b"comment\0"));
        if let Some(tag) = comment.and_then(|comment| tag_in_comment(until_zero(comment))) {
            return Some(tag);
        }
    }
    if entry.jump().is_some_and(|target| own_chains.contains(&target)) {
        return Some(RuleTag::Stale);
    }
    (!is_ambiguous || !has_set && !is_named(entry.target, b"MASQUERADE\0")).then_some(RuleTag::Foreign)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Compares the name of a match or a target with one that ends with a NUL.
fn is_named(extension: &[u8], name: &[u8]) -> bool {
    extension.get(2..).is_some_and(|rest| rest.starts_with(name))
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
