//! Any answer of the kernel about a legacy table is read or refused, without more rules than fit in
//! it.

use tortie_iptables::{Family, RuleTag, Table, TableSnapshot, is_own_chain};

/// Size of the smallest entry: its header and a target.
const SMALLEST_ENTRY: usize = 112 + 32;
/// Two bytes for each hook.
const HOOKS: usize = 10;

/// The first byte chooses table and family, the next ten are the offsets of hooks, 0xffff for none;
/// the rest is the listing.
pub(crate) fn check(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let Some((offsets, listing)) = rest.split_at_checked(HOOKS) else { return };
    let table = Table::ALL[usize::from(choice % 4)];
    let family = if choice & 4 == 0 { Family::V4 } else { Family::V6 };
    let hooks = std::array::from_fn(|hook| {
        let offset = u16::from_le_bytes([offsets[2 * hook], offsets[2 * hook + 1]]);
        (offset != u16::MAX).then_some(u32::from(offset))
    });
    let Some(snapshot) = TableSnapshot::from_entries(family, table, &hooks, listing) else { return };
    assert!(snapshot.without_texts && snapshot.rules <= listing.len() / SMALLEST_ENTRY);
    for (chain, hooks) in &snapshot.hooked_chains {
        assert!(!is_own_chain(chain.as_str()));
        assert!(hooks.ours.is_sorted_by(|a, b| a.position < b.position));
        let is_possible = |rule: &tortie_iptables::HookedRule| {
            rule.position < hooks.len && rule.tag != RuleTag::Foreign && rule.text.is_none()
        };
        assert!(hooks.ours.iter().all(is_possible));
    }
    assert!(snapshot.own_chains.keys().all(|chain| is_own_chain(chain.as_str())));
}
