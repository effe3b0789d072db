//! The kernel's counters of rules, by the rules' origins.

use std::collections::HashMap;

use tortie_netfilter::{ChainName, Origin, RuleHash, Table as Layer};

use super::Table;
use super::desired::{DesiredRule, RuleContent};
use crate::names::LayeredName;
use crate::render::hash_in;
use crate::wire::{Counted, Snapshot};

/// A rule with an origin, and its counter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "all fields of a counter")]
pub struct RuleCount {
    /// The layer of its chain.
    pub layer: Layer,
    /// The requested chain, of which the rule's chain may be a part.
    pub of: ChainName,
    /// Its chain in the kernel.
    pub chain: LayeredName,
    /// The rule as `nft` prints it, without its comment and its counts.
    pub text: String,
    /// Since the rule was written.
    pub counted: Counted,
    /// Its origins; several if it stands for several rules, which share the count.
    pub origins: Vec<Origin>,
}

impl Table {
    /// Returns the counters of rules with an origin from a
    /// [listing](crate::wire::SnapshotReader::of_rules), by chain, in order. Rules that are missing
    /// in the kernel are left out, as are changed chains before the next plan.
    #[must_use]
    pub fn counts(&self, listed: &Snapshot) -> Vec<RuleCount> {
        let mut counts = Vec::new();
        for (name, chain) in &self.desired.chains {
            let Some(listed) = listed.chains.get(name) else { continue };
            let Some(rules) = self.complete(name, chain) else { continue };
            if rules.iter().all(|rule| rule.content().origin.is_none()) {
                continue;
            }
            let by_hash: HashMap<RuleHash, Counted> = listed
                .rules
                .iter()
                .filter_map(|rule| Some((hash_in(&rule.comment)?, rule.counted.unwrap_or_default())))
                .collect();
            let (layer, of) = chain.source;
            let count = |rule: &DesiredRule| {
                let RuleContent { rule: made, origin, merged, .. } = rule.content();
                let first = origin.clone()?;
                Some(RuleCount {
                    layer,
                    of,
                    chain: name.clone(),
                    text: made.shown.text.clone(),
                    counted: *by_hash.get(&rule.hash)?,
                    origins: std::iter::once(first).chain(merged.as_slice().iter().cloned()).collect(),
                })
            };
            counts.extend(rules.iter().filter_map(count));
        }
        counts
    }

    /// Returns the kernel's name of a chain; `None` if it is not separate in the kernel: no chain
    /// or map leads to it, or others include its rules.
    #[must_use]
    pub fn kernel_name(&self, layer: Layer, chain: ChainName) -> Option<LayeredName> {
        let name = self.layered(layer, chain);
        self.desired.chains.contains_key(&name).then_some(name)
    }
}
