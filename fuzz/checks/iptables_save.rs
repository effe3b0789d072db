//! Any listing is parsed, the same in any pieces, and its contents never cause more input to
//! `iptables-restore` than the removal of the agent's rules and chains.

use std::time::Duration;

use tortie_iptables::{
    Backend, Family, Features, Plan, Reconciler, ReconcilerConfig, RuleTag, SaveReader, Table, is_own_chain,
};

/// The first byte chooses table, implementation and piece size; the rest is the listing.
pub(crate) fn check(data: &[u8]) {
    let Some((choice, listing)) = data.split_first() else { return };
    let table = Table::ALL[usize::from(choice % 4)];
    let backend = if choice & 4 == 0 { Backend::Legacy } else { Backend::Nft };
    let whole = SaveReader::read(table, listing);

    let mut reader = SaveReader::new(table);
    listing.chunks(usize::from(choice >> 3) + 1).for_each(|piece| reader.feed(piece));
    assert_eq!(reader.finish(), whole);

    let Ok(snapshot) = whole else { return };
    for (chain, hooks) in &snapshot.hooked_chains {
        assert!(!is_own_chain(chain.as_str()));
        assert!(hooks.ours.is_sorted_by(|a, b| a.position < b.position));
        assert!(hooks.ours.iter().all(|rule| rule.position < hooks.len && rule.tag != RuleTag::Foreign));
    }
    assert!(snapshot.own_chains.keys().all(|chain| is_own_chain(chain.as_str())));

    let now = Duration::ZERO;
    let mut reconciler = Reconciler::new(ReconcilerConfig::new(table, Family::V4, backend), Features::ALL);
    assert!(matches!(reconciler.plan(now), Plan::Save(_)));
    reconciler.on_saved(now, Ok(snapshot.clone()));
    let input = match reconciler.plan(now) {
        Plan::Restore(command) => command.input,
        Plan::Done { .. } => return assert!(reconciler.is_in_sync()),
        other => panic!("{other:?}"),
    };
    let chain = |line: &str, verb: &str| line.strip_prefix(verb)?.split(' ').next().map(str::to_owned);
    for line in input.split_terminator('\n') {
        if let Some(name) = chain(line, "-D ") {
            assert!(snapshot.hooked_chains.keys().any(|chain| chain.as_str() == name), "{line:?}");
        } else if let Some(name) = chain(line, ":").or_else(|| chain(line, "--delete-chain ")) {
            assert!(is_own_chain(&name), "{line:?}");
        } else {
            assert!(line == "COMMIT" || line == format!("*{table}"), "{line:?}");
        }
    }
    reconciler.on_restored(now, Ok(()));
    assert!(matches!(reconciler.plan(now), Plan::Done { .. }));
    assert!(reconciler.is_in_sync());
}
