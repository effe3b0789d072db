use std::collections::BTreeMap;

use tortie_linux::netlink::nftrace::{Chain, Handles, NFPROTO_INET, TraceVerdict};
use tortie_rules::names::chain;

use super::steps::{ChainEvent, ChainName, RuleName, Step};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleText {
    pub(super) text: String,
    /// Packets and bytes that have matched the rule; unknown for some nftables rules.
    pub(super) counters: Option<(u64, u64)>,
}

impl RuleText {
    pub(super) fn target(&self) -> Option<&str> {
        let mut words = self.text.split(' ').skip_while(|word| !matches!(*word, "-j" | "-g"));
        words.nth(1)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    chains: BTreeMap<(String, String), ListedChain>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ListedChain {
    policy: String,
    rules: Vec<RuleText>,
}

impl Listing {
    /// Parses the output of `iptables-save -c`.
    pub(super) fn parse(text: &str) -> Self {
        let (mut listing, mut table) = (Self::default(), "");
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some((chain, policy)) = line.strip_prefix(':').and_then(|rest| rest.split_once(' ')) {
                let policy = policy.split(' ').next().unwrap_or_default();
                listing.chain(table, chain).policy = policy.to_owned();
            } else if let Some((counters, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] -A ")) {
                let (chain, text) = rest.split_once(' ').unwrap_or((rest, ""));
                let counters = counters.split_once(':');
                let counters = counters.and_then(|(packets, bytes)| Some((packets.parse().ok()?, bytes.parse().ok()?)));
                listing.chain(table, chain).rules.push(RuleText { text: text.to_owned(), counters });
            }
        }
        listing
    }

    pub(super) fn has_effect(&self) -> bool {
        self.chains.values().any(|chain| !chain.rules.is_empty() || chain.policy == "DROP")
    }

    /// Reports whether there are no chains, or none could be listed.
    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut ListedChain {
        self.chains.entry((table.to_owned(), chain.to_owned())).or_default()
    }

    fn get(&self, table: &str, chain: &str) -> Option<&ListedChain> {
        self.chains.get(&(table.to_owned(), chain.to_owned()))
    }
}

/// Parses the rules in the output of `nft -a list table`, by their handles.
pub(super) fn nft_rules(text: &str) -> BTreeMap<u64, RuleText> {
    let mut rules = BTreeMap::new();
    for line in text.lines() {
        // Tables, chains and sets have handles as well, before a brace.
        let Some((rule, handle)) = line.rsplit_once(" # handle ") else { continue };
        let Ok(handle) = handle.trim().parse() else { continue };
        if rule.ends_with('{') {
            continue;
        }
        rules.insert(handle, RuleText { text: rule.trim().to_owned(), counters: nft_counters(rule) });
    }
    rules
}

/// `counter packets 1 bytes 60`
fn nft_counters(rule: &str) -> Option<(u64, u64)> {
    let (_, rest) = rule.split_once("counter packets ")?;
    let mut words = rest.split(' ');
    let packets = words.next()?.parse().ok()?;
    let bytes = words.nth(1)?.parse().ok()?;
    Some((packets, bytes))
}

pub(super) fn is_of_iptables(chain: &Chain) -> bool {
    let is_table = matches!(chain.table.as_str(), "raw" | "mangle" | "nat" | "filter" | "security");
    is_table && chain.family != NFPROTO_INET
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) legacy: Listing,
    pub(super) legacy_before: Listing,
    pub(super) nft: Listing,
    pub(super) handles: Handles,
    /// Native nftables rules, in tables other than those of iptables, as `nft` lists them.
    pub(super) native: BTreeMap<Chain, BTreeMap<u64, RuleText>>,
}

impl Rules {
    /// The rule, with its place in its chain, from 0; `None` if there is no rule, or it no longer
    /// exists.
    pub(super) fn rule(&self, step: &Step) -> Option<(usize, Option<&RuleText>)> {
        let ChainEvent::Rule(rule, _) = &step.event else { return None };
        let (index, listing) = match (&step.chain, rule) {
            (ChainName::Nft(chain), RuleName::Handle(handle)) => {
                let handles = self.handles.get(chain)?;
                let index = handles.iter().position(|of| of == handle)?;
                if let Some(text) = self.native.get(chain).and_then(|rules| rules.get(handle)) {
                    return Some((index, Some(text)));
                }
                // A different number of listed rules means that the chain has changed in between.
                let listed = self.nft.get(&chain.table, &chain.name).filter(|_| is_of_iptables(chain));
                (index, listed.filter(|listed| listed.rules.len() == handles.len()))
            }
            (ChainName::Legacy { table, chain }, RuleName::Number(number)) => {
                let listed = self.legacy.get(table, chain);
                let before = self.legacy_before.get(table, chain);
                let texts = |of: Option<&ListedChain>| -> Vec<String> {
                    of.iter().flat_map(|of| &of.rules).map(|rule| rule.text.clone()).collect()
                };
                let is_same = texts(listed) == texts(before);
                (number.checked_sub(1)?, listed.filter(|_| is_same))
            }
            _ => return None,
        };
        Some((index, listing.and_then(|listed| listed.rules.get(index))))
    }

    pub(super) fn length(&self, chain: &ChainName) -> Option<usize> {
        match chain {
            ChainName::Nft(chain) => self.handles.get(chain).map(Vec::len),
            ChainName::Legacy { table, chain } => self.legacy.get(table, chain).map(|listed| listed.rules.len()),
        }
    }

    /// Reports whether a step is the end of a chain without rules that drops nothing.
    pub(super) fn is_idle(&self, step: &Step) -> bool {
        let is_policy = matches!(step.event, ChainEvent::Policy(_));
        is_policy && !self.ends(step) && self.length(&step.chain).unwrap_or_default() == 0
    }

    pub(super) fn policy(&self, chain: &ChainName) -> Option<&str> {
        self.legacy.get(chain.table(), chain.chain()).map(|listed| listed.policy.as_str())
    }

    /// Reports whether a step is known to end the packet.
    pub(super) fn ends(&self, step: &Step) -> bool {
        match (&step.event, step.verdict()) {
            (_, Some(verdict)) => *verdict == TraceVerdict::Drop,
            (ChainEvent::Rule(..), None) => {
                let target = self.rule(step).and_then(|(_, rule)| rule?.target());
                matches!(target, Some("DROP" | "REJECT"))
            }
            (ChainEvent::Policy(_), None) => self.policy(&step.chain) == Some("DROP"),
            (ChainEvent::Return, None) => false,
        }
    }

    /// Reports whether a step is known to deny the packet: it ends the packet, or leads to the
    /// chain that rejects. Steps in that chain do not count.
    pub(super) fn denies(&self, step: &Step) -> bool {
        let rejects = |name: &str| {
            // In nftables, the names of chains begin with the layer.
            let layered = ["filter-", "mangle-", "raw-"].iter().find_map(|layer| name.strip_prefix(layer));
            layered.unwrap_or(name) == chain::REJECT.as_str()
        };
        let leads_there = match step.verdict() {
            Some(TraceVerdict::Goto(target)) => rejects(target),
            Some(_) => false,
            None => self.rule(step).and_then(|(_, rule)| rule?.target()).is_some_and(rejects),
        };
        !rejects(step.chain.chain()) && (leads_there || self.ends(step))
    }
}

#[cfg(test)]
mod tests;
