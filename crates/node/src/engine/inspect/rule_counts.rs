//! What rules of nftables have counted, as it is answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_iptables::Origin;
use tortie_model::{Direction, Family};
use tortie_nftables::{LayeredName, RuleCount};
use tortie_rules::names::direction_of;

use super::{CountedRule, RuleCounters};

/// One answer for rules that are the same but for where they stand among the parts of a chain, by ports or addresses.
pub(super) fn answers(counts: Vec<(Family, RuleCount)>) -> Vec<CountedRule> {
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
            of: origins.into_iter().map(|origin| (Arc::clone(&origin.owner), words(direction, &origin))).collect(),
        });
    }
    answers
}

/// Which rule of its owner: `ingress 3`.
fn words(direction: Option<Direction>, origin: &Origin) -> String {
    let direction = match direction {
        Some(Direction::Ingress) => "ingress",
        Some(Direction::Egress) => "egress",
        None => "",
    };
    origin.part.map_or_else(|| direction.to_owned(), |part| format!("{direction} {part}"))
}

#[cfg(test)]
mod tests {
    use tortie_iptables::{ChainName, Table};
    use tortie_nftables::wire::Counted;

    use super::*;

    #[test]
    fn what_is_counted_in_parts_of_a_chain_is_one_sum() {
        let origin = |owner: &str, part| Origin { owner: owner.into(), part: Some(part) };
        let count = |of: ChainName, chain: &str, text: &str, packets, origins: &[Origin]| RuleCount {
            layer: Table::Filter,
            of,
            chain: LayeredName::from_kernel(chain),
            text: text.to_owned(),
            counted: Counted { packets, bytes: packets * 60 },
            origins: origins.to_vec(),
        };
        let (group, policy) = (ChainName::from_static("cali-gi-x"), ChainName::from_static("cali-po-y"));
        let shared = [origin("Policy/a/x", 0), origin("Policy/a/y", 3)];
        let counts = vec![
            (Family::V4, count(group, "filter-cali-pa-1", "accept", 2, &shared)),
            (Family::V4, count(group, "filter-cali-pa-2", "accept", 3, &shared)),
            // Another family, other rules, and another text.
            (Family::V6, count(group, "filter-cali-pa-1", "accept", 5, &shared)),
            (Family::V4, count(group, "filter-cali-pa-2", "accept", 7, &shared[..1])),
            (Family::V4, count(policy, "filter-cali-po-y", "drop", 11, &shared[1..])),
        ];
        let answers = answers(counts);
        let told: Vec<(u8, &str, u64, u64, usize, usize)> = answers
            .iter()
            .map(|CountedRule { counters: it, .. }| {
                (it.ip_version, &*it.chain, it.packets, it.bytes, it.counted_together, it.kernel_rules)
            })
            .collect();
        assert_eq!(
            told,
            [
                (4, "filter-cali-gi-x", 5, 300, 2, 2),
                (6, "filter-cali-pa-1", 5, 300, 2, 1),
                (4, "filter-cali-pa-2", 7, 420, 1, 1),
                (4, "filter-cali-po-y", 11, 660, 1, 1),
            ]
        );
        assert_eq!(
            answers[0].of,
            [("Policy/a/x".into(), "ingress 0".into()), ("Policy/a/y".into(), "ingress 3".into())]
        );
        assert_eq!(answers[3].of, [("Policy/a/y".into(), "egress 3".to_owned())]);
    }
}
