use tortie_iptables::{ChainName, Table};
use tortie_nftables::wire::Counted;

use super::*;

#[test]
fn counters_of_the_parts_of_a_chain_are_summed() {
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
    let found: Vec<(u8, &str, u64, u64, usize, usize)> = answers
        .iter()
        .map(|CountedRule { counters: it, .. }| {
            (it.ip_version, &*it.chain, it.packets, it.bytes, it.counted_together, it.kernel_rules)
        })
        .collect();
    assert_eq!(
        found,
        [
            (4, "filter-cali-gi-x", 5, 300, 2, 2),
            (6, "filter-cali-pa-1", 5, 300, 2, 1),
            (4, "filter-cali-pa-2", 7, 420, 1, 1),
            (4, "filter-cali-po-y", 11, 660, 1, 1),
        ]
    );
    assert_eq!(answers[0].of, [("Policy/a/x".into(), "ingress 0".into()), ("Policy/a/y".into(), "ingress 3".into())]);
    assert_eq!(answers[3].of, [("Policy/a/y".into(), "egress 3".to_owned())]);
}
