//! Metrics of nftables tables.

use std::collections::BTreeMap;

use tortie_nftables::TableStats;

use tortie_telemetry::exposition::{Exposition, as_f64};

/// Counters and sizes of a table.
pub type NftablesCounts = TableStats;

/// One transaction has everything; those that change sets count as `set_calls`, which Felix has
/// separately.
pub(super) fn expose(tables: &BTreeMap<&'static str, NftablesCounts>, e: &mut Exposition) {
    let sum = |value: fn(&NftablesCounts) -> u64| tables.values().map(value).sum();
    e.count("felix_nft_calls", "Number of nftables transactions.", sum(|t| t.commits));
    e.count("felix_nft_errors", "Number of failed nftables transactions.", sum(|t| t.commit_errors));
    e.count("felix_nft_list_calls", "Number of reads of nftables tables.", sum(|t| t.reads));
    e.count("felix_nft_list_errors", "Number of failed reads of nftables tables.", sum(|t| t.read_errors));
    let help = "Number of nftables transactions that changed sets.";
    e.count("felix_nft_set_calls", help, sum(|t| t.set_commits));
    let help = "Number of failed nftables transactions that changed sets.";
    e.count("felix_nft_set_errors", help, sum(|t| t.set_commit_errors));

    let mut level = |name, help, word: fn(&'static str) -> &'static str, value: fn(&NftablesCounts) -> usize| {
        let labels: Vec<_> =
            tables.iter().map(|(family, table)| ([("ip_version", word(family))], value(table) as u64)).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = labels.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.gauge(name, help, &samples);
    };
    let number = |family| family;
    level("felix_nft_chains", "Number of chains in an nftables table.", number, |t| t.chains);
    level("felix_nft_rules", "Number of rules in an nftables table.", number, |t| t.rules);
    level("felix_nft_sets", "Number of sets in an nftables table.", ipset_word, |t| t.sets);
    level("felix_nft_maps", "Number of maps in an nftables table.", ipset_word, |t| t.maps);
    let help = "Number of interfaces in the flowtable.";
    level("felix_nft_flowtable_devices", help, number, |t| t.flow_devices);
    let help = "Number of interfaces that belong to the flowtable but are missing.";
    level("felix_nft_flowtable_missing_devices", help, number, |t| t.missing_flow_devices);

    let mut count = |name, help, value: fn(&NftablesCounts) -> u64| {
        let labels: Vec<_> = tables.iter().map(|(family, table)| ([("ip_version", *family)], value(table))).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = labels.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.counters(name, help, &samples);
    };
    let help = "Number of lines of nftables transactions, as input of nft.";
    count("tortie_nft_lines_executed", help, |t| t.lines);
    let help = "Number of nftables chains, sets and maps repaired after another process changed them.";
    count("tortie_nft_clobbered", help, |t| t.clobbered);
}

/// Sets and maps have ipset's name of their family, as in Felix.
fn ipset_word(family: &'static str) -> &'static str {
    match family {
        "4" => "inet",
        "6" => "inet6",
        other => other,
    }
}
