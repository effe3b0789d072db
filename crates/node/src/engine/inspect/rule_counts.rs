//! Answers with counters of nftables rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_iptables::Origin;
use tortie_model::{Direction, Family};
use tortie_nftables::{LayeredName, RuleCount};
use tortie_rules::names::direction_of;

use super::{CountedRule, RuleCounters};

/// Returns one answer for rules that differ only in their part of a chain, by ports or addresses.
pub(in crate::engine) fn answers(counts: Vec<(Family, RuleCount)>) -> Vec<CountedRule> {
    let mut answers: Vec<CountedRule> = Vec::new();
    let mut places: BTreeMap<_, usize> = BTreeMap::new();
    for (family, count) in counts {
        let RuleCount { layer, of, chain, text, counted, origins } = count;
        let parts: Vec<(Arc<str>, Option<u32>)> =
            origins.iter().map(|origin| (Arc::clone(&origin.owner), origin.part)).collect();
        let place = *places.entry((family, layer, of, text.clone(), parts)).or_insert(answers.len());
        if let Some(CountedRule { counters, .. }) = answers.get_mut(place) {
            counters.packets += counted.packets;
            counters.bytes += counted.bytes;
            counters.kernel_rules += 1;
            counters.chain = LayeredName::new(layer, of.as_str()).to_string();
            continue;
        }
        let direction = direction_of(of);
        answers.push(CountedRule {
            counters: RuleCounters {
                ip_version: family.number(),
                table: layer.as_str().to_owned(),
                chain: chain.to_string(),
                rule: text,
                packets: counted.packets,
                bytes: counted.bytes,
                counts_for: Vec::new(),
                counted_together: origins.len(),
                kernel_rules: 1,
            },
            of: origins
                .into_iter()
                .map(|origin| (Arc::clone(&origin.owner), description(direction, &origin)))
                .collect(),
        });
    }
    answers
}

fn description(direction: Option<Direction>, origin: &Origin) -> String {
    let direction = match direction {
        Some(Direction::Ingress) => "ingress",
        Some(Direction::Egress) => "egress",
        None => "",
    };
    origin.part.map_or_else(|| direction.to_owned(), |part| format!("{direction} {part}"))
}

#[cfg(test)]
mod tests;
