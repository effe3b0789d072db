//! Walk of a packet through the rules in the kernel. Only matches on interfaces are evaluated; any
//! other match may succeed or fail.

use tortie_dataplane::fake::FakeKernel;
use tortie_iptables::Table;
use tortie_model::Family;

/// Possible verdicts on the first packet of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) accepted: bool,
    /// Neither accepted nor dropped in this chain.
    pub(crate) falls_through: bool,
}

/// Returns the possible verdicts on a packet in a chain of the `filter` table.
pub(crate) fn walk(kernel: &FakeKernel, family: Family, chain: &str, from: &str, to: &str) -> Ends {
    let mut ends = Ends::default();
    for rule in kernel.tables(family).rules(Table::Filter, chain).unwrap_or_default() {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let after = |option: &str| words.iter().position(|word| *word == option).map(|at| words[at + 1]);
        let fits = |option, interface: &str| {
            after(option).is_none_or(|pattern| match pattern.strip_suffix('+') {
                Some(prefix) => interface.starts_with(prefix),
                None => interface == pattern,
            })
        };
        let is_for_known = after("--ctstate").is_some_and(|states| states.contains("ESTABLISHED"));
        if !fits("-i", from) || !fits("-o", to) || is_for_known {
            continue;
        }
        let certain = ["-m mark", "-m conntrack", "-p ", "-s ", "-d ", "-m set"].iter().all(|m| !rule.contains(m));
        let (target, is_goto) = match (after("-j"), after("-g")) {
            (Some(target), _) => (target, false),
            (None, Some(target)) => (target, true),
            (None, None) => continue,
        };
        let below = match target {
            "ACCEPT" => Ends { accepted: true, falls_through: false },
            "DROP" | "REJECT" => Ends::default(),
            "RETURN" => Ends { accepted: false, falls_through: true },
            own if own.starts_with("cali-") => walk(kernel, family, own, from, to),
            _ => continue,
        };
        ends.accepted |= below.accepted;
        let leaves = is_goto || target == "RETURN";
        ends.falls_through |= leaves && below.falls_through;
        if certain && (leaves || !below.falls_through) {
            return ends;
        }
    }
    ends.falls_through = true;
    ends
}

/// Packets from and to an unknown interface with a workload prefix must be denied, as soon as the
/// kernel enters our rules.
pub(crate) fn assert_unknown_workloads_are_denied(kernel: &FakeKernel) {
    let rules = kernel.tables(Family::V4).rules(Table::Filter, "FORWARD").unwrap_or_default();
    if !rules.iter().any(|rule| rule.contains("-j cali-FORWARD")) {
        return;
    }
    for (chain, from, to) in [("FORWARD", "cali999", "eth0"), ("FORWARD", "eth0", "cali999"), ("INPUT", "cali999", "")]
    {
        let ends = walk(kernel, Family::V4, chain, from, to);
        assert_eq!(ends, Ends::default(), "{chain} from {from:?} to {to:?}\n{}", kernel.state());
    }
}

#[test]
#[should_panic(expected = "FORWARD from")]
fn a_way_through_is_noticed() {
    let mut kernel = crate::common::kernel(tortie_iptables::Backend::Nft);
    for line in [":cali-FORWARD - -", "-A FORWARD -j cali-FORWARD", "-A cali-FORWARD -p tcp -j DROP"] {
        kernel.netfilter.tables_v4.run(Table::Filter, line).expect("possible");
    }
    assert_unknown_workloads_are_denied(&kernel);
}
