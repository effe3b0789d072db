//! Metrics of tables of nftables.

use std::collections::BTreeMap;

use tortie_nftables::TableStats;

use tortie_telemetry::exposition::{Exposition, as_f64};

/// What has happened to a table so far, and what is in it.
pub type NftablesCounts = TableStats;

/// The original has a transaction of their own for sets. Here there is one for everything: those that change sets count as `set_calls`
/// besides.
pub(super) fn expose(tables: &BTreeMap<&'static str, NftablesCounts>, e: &mut Exposition) {
    let sum = |value: fn(&NftablesCounts) -> u64| tables.values().map(value).sum();
    e.count("felix_nft_calls", "Number of transactions of nftables.", sum(|t| t.commits));
    e.count("felix_nft_errors", "Number of transactions of nftables that failed.", sum(|t| t.commit_errors));
    e.count("felix_nft_list_calls", "Number of times that tables of nftables were read.", sum(|t| t.reads));
    e.count(
        "felix_nft_list_errors",
        "Number of times that a table of nftables could not be read.",
        sum(|t| t.read_errors),
    );
    let help = "Number of transactions of nftables that changed sets.";
    e.count("felix_nft_set_calls", help, sum(|t| t.set_commits));
    let help = "Number of transactions of nftables that changed sets and failed.";
    e.count("felix_nft_set_errors", help, sum(|t| t.set_commit_errors));

    let mut level = |name, help, word: fn(&'static str) -> &'static str, value: fn(&NftablesCounts) -> usize| {
        let labels: Vec<_> =
            tables.iter().map(|(family, table)| ([("ip_version", word(family))], value(table) as u64)).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = labels.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.gauge(name, help, &samples);
    };
    let number = |family| family;
    level("felix_nft_chains", "Number of chains in a table of nftables.", number, |t| t.chains);
    level("felix_nft_rules", "Number of rules in a table of nftables.", number, |t| t.rules);
    level("felix_nft_sets", "Number of sets in a table of nftables.", ipset_word, |t| t.sets);
    level("felix_nft_maps", "Number of maps in a table of nftables.", ipset_word, |t| t.maps);
    let help = "Number of interfaces that connections are offloaded between.";
    level("felix_nft_flowtable_devices", help, number, |t| t.flow_devices);
    let help = "Number of interfaces that connections should be offloaded between, but are not there.";
    level("felix_nft_flowtable_missing_devices", help, number, |t| t.missing_flow_devices);

    let mut count = |name, help, value: fn(&NftablesCounts) -> u64| {
        let labels: Vec<_> = tables.iter().map(|(family, table)| ([("ip_version", *family)], value(table))).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = labels.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.counters(name, help, &samples);
    };
    let help = "Number of lines of nft that transactions were.";
    count("tortie_nft_lines_executed", help, |t| t.lines);
    let help = "Number of chains, sets and maps of nftables that somebody else had changed.";
    count("tortie_nft_clobbered", help, |t| t.clobbered);
}

/// Sets and maps have the words of ipset for their family, as in the original.
fn ipset_word(family: &'static str) -> &'static str {
    match family {
        "4" => "inet",
        "6" => "inet6",
        other => other,
    }
}
