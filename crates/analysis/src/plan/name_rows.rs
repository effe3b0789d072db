//! Rows of tables for destinations by domain name.
//!
//! An address stands for the names that the same lists of patterns match. No network of the
//! cluster's objects has it, but those of all addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::{AHashMap, AHashSet};
use tortie_model::{Cidr, DomainName, DomainPattern, EntityMatch, Policy, Update};

/// Largest number of rows; further names are left out.
const MOST_ROWS: usize = 254;
/// Largest number of patterns that are combined with each other.
const MOST_PATTERNS: usize = 1_024;
/// Number of listed patterns in the text of a row; further ones are counted.
const LISTED: usize = 3;

/// Rows for all sets of patterns that a name can match.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameRows {
    rows: Vec<Row>,
    texts: AHashMap<Cidr, String>,
    /// Whether some names have no row.
    pub(crate) is_incomplete: bool,
}

/// Names that the same lists match.
#[derive(Clone, Debug)]
struct Row {
    /// One of the names.
    name: DomainName,
    /// The addresses that stand for them, of both families.
    nets: [Cidr; 2],
}

impl NameRows {
    /// Returns the rows for the patterns of rules and network sets.
    pub(crate) fn of<'u>(updates: impl Iterator<Item = &'u Update> + Clone) -> Self {
        let lists: BTreeSet<&[DomainPattern]> = updates.clone().flat_map(lists_of).collect();
        let patterns: BTreeSet<&DomainPattern> = lists.iter().copied().flatten().collect();
        if patterns.is_empty() {
            return Self::default();
        }
        let (candidates, mut is_incomplete) = candidates(&patterns);
        let fresh = fresh_label(&patterns);
        let mut by_lists: BTreeMap<Vec<usize>, Vec<(&DomainPattern, DomainName)>> = BTreeMap::new();
        for candidate in &candidates {
            let Some(name) = witness(candidate, &fresh) else { continue };
            let matching =
                lists.iter().enumerate().filter(|(_, list)| list.iter().any(|pattern| pattern.matches(&name)));
            let matching: Vec<usize> = matching.map(|(number, _)| number).collect();
            by_lists.entry(matching).or_default().push((candidate, name));
        }
        let mut groups: Vec<Vec<(&DomainPattern, DomainName)>> = by_lists.into_values().collect();
        groups.sort_unstable();
        is_incomplete |= groups.len() > MOST_ROWS;
        let Some(blocks) = free_blocks(updates) else { return Self { is_incomplete: true, ..Self::default() } };
        let mut found = Self { is_incomplete, ..Self::default() };
        for (number, group) in (1..).zip(groups.iter().take(MOST_ROWS)) {
            let Some((_, name)) = group.first() else { continue };
            let nets = blocks.map(|block| address_in(block, number));
            let text = text(group, &candidates, &fresh);
            found.texts.extend(nets.map(|net| (net, text.clone())));
            found.rows.push(Row { name: name.clone(), nets });
        }
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the addresses of the rows whose names a list of patterns matches.
    pub(crate) fn members(&self, patterns: &[DomainPattern]) -> Vec<Cidr> {
        let matched = |row: &&Row| patterns.iter().any(|pattern| pattern.matches(&row.name));
        self.rows.iter().filter(matched).flat_map(|row| row.nets).collect()
    }

    /// Returns the names of a row by its address: `*.a.io but not x.a.io`.
    pub(crate) fn text(&self, net: &Cidr) -> Option<&str> {
        self.texts.get(net).map(String::as_str)
    }
}

/// Returns the lists of patterns of an object that count.
fn lists_of(update: &Update) -> Vec<&[DomainPattern]> {
    match update {
        Update::Policy(_, Some(policy)) => {
            let lists = policy.outbound.iter().map(|rule| &*rule.destination.extras.domains);
            lists.filter(|list| !list.is_empty()).collect()
        }
        Update::NetworkSet(_, Some(set)) if !set.domains.is_empty() => vec![&set.domains],
        _ => Vec::new(),
    }
}

/// Returns the patterns and those of the names that several of them match, and whether some are
/// left out. A pattern without `*` is a name.
fn candidates(patterns: &BTreeSet<&DomainPattern>) -> (BTreeSet<DomainPattern>, bool) {
    let mut all: BTreeSet<DomainPattern> = patterns.iter().map(|pattern| (*pattern).clone()).collect();
    // Where nothing precedes the `*`, one of two patterns has all names of both.
    let has_middle = |pattern: &DomainPattern| pattern.around_star().is_some_and(|(before, _)| !before.is_empty());
    let mut new: Vec<DomainPattern> = all.iter().filter(|pattern| has_middle(pattern)).cloned().collect();
    while let Some(one) = new.pop() {
        if all.len() > MOST_PATTERNS {
            return (all, true);
        }
        let met: Vec<DomainPattern> = all.iter().flat_map(|other| meets(&one, other)).collect();
        for pattern in met {
            if all.insert(pattern.clone()) && has_middle(&pattern) {
                new.push(pattern);
            }
        }
    }
    (all, false)
}

/// Returns patterns whose names are together all names that both patterns match.
fn meets(one: &DomainPattern, other: &DomainPattern) -> Vec<DomainPattern> {
    let (Some(one), Some(other)) = (sides(one), sides(other)) else { return Vec::new() };
    let (before, shorter) = if one.0.len() >= other.0.len() { (&one.0, &other.0) } else { (&other.0, &one.0) };
    let (after, ending) = if one.1.len() >= other.1.len() { (&one.1, &other.1) } else { (&other.1, &one.1) };
    if !before.starts_with(shorter) || !after.ends_with(ending) {
        return Vec::new();
    }
    let general = [&before[..], &["*"], &after[..]].concat().join(".");
    let least = (one.0.len() + one.1.len()).max(other.0.len() + other.1.len()) + 1;
    // Names in which the first labels of one pattern are among the last labels of the other.
    let short = (least..=before.len() + after.len()).filter_map(|length| {
        let shared = before.len() + after.len() - length;
        let (kept, common) = (before.len().checked_sub(shared)?, after.get(..shared)?);
        (before.get(kept..)? == common).then(|| [&before[..], after.get(shared..)?].concat().join(".").into())?
    });
    short.chain([general]).filter_map(|text: String| text.parse().ok()).collect()
}

/// Returns the labels before and after the `*`.
fn sides(pattern: &DomainPattern) -> Option<(Vec<&str>, Vec<&str>)> {
    let labels = |text| str::split(text, '.').filter(|label| !label.is_empty()).collect();
    pattern.around_star().map(|(before, after)| (labels(before), labels(after)))
}

/// Returns a label that no pattern has.
fn fresh_label(patterns: &BTreeSet<&DomainPattern>) -> String {
    let used: AHashSet<&str> = patterns.iter().flat_map(|pattern| pattern.as_str().split('.')).collect();
    let mut labels = (0_u64..).map(|number| format!("any{number}"));
    labels.find(|label| !used.contains(label.as_str())).unwrap_or_default()
}

/// Returns a name that a pattern matches, and further patterns only if these match all its names;
/// `None` if its names are too long.
fn witness(pattern: &DomainPattern, fresh: &str) -> Option<DomainName> {
    pattern.as_str().replace('*', fresh).parse().ok()
}

/// Returns the text of the names of a row.
fn text(group: &[(&DomainPattern, DomainName)], candidates: &BTreeSet<DomainPattern>, fresh: &str) -> String {
    let listed = |patterns: &[&DomainPattern]| {
        let mut text = patterns.iter().take(LISTED).map(|pattern| pattern.as_str()).collect::<Vec<_>>().join(", ");
        if patterns.len() > LISTED {
            text += &format!(" and {} more", patterns.len() - LISTED);
        }
        text
    };
    let own: Vec<&DomainPattern> = group.iter().map(|(pattern, _)| *pattern).collect();
    let is_excluded = |other: &&DomainPattern| {
        let name = witness(other, fresh);
        !own.contains(other) && name.is_some_and(|name| own.iter().any(|pattern| pattern.matches(&name)))
    };
    let excluded: Vec<&DomainPattern> = candidates.iter().filter(is_excluded).collect();
    match &excluded[..] {
        [] => listed(&own),
        excluded => format!("{} but not {}", listed(&own), listed(excluded)),
    }
}

/// Returns a block of 256 addresses of each family that no network of an object overlaps, except
/// those of all addresses; `None` if there is none among some hundreds.
fn free_blocks<'u>(updates: impl Iterator<Item = &'u Update>) -> Option<[Cidr; 2]> {
    let mut nets: AHashSet<Cidr> = AHashSet::new();
    for update in updates {
        nets.extend(nets_of(update).into_iter().filter(|net| net.prefix_len() > 0));
    }
    let is_free = |block: &Cidr| {
        !nets.iter().any(|net| {
            net.family() == block.family() && (net.contains(block.address()) || block.contains(net.address()))
        })
    };
    let first_bytes = [240].into_iter().chain(1..=223);
    let mut v4 = first_bytes.filter_map(|byte| Cidr::new(IpAddr::V4(Ipv4Addr::new(byte, 255, 254, 0)), 24));
    let mut v6 =
        (1..=255_u16).filter_map(|first| Cidr::new(IpAddr::V6(Ipv6Addr::new(first << 8, 0, 0, 0, 0, 0, 0xfe, 0)), 120));
    Some([v4.find(is_free)?, v6.find(is_free)?])
}

fn nets_of(update: &Update) -> Vec<Cidr> {
    let of_entity =
        |entity: &EntityMatch| entity.nets.iter().chain(&entity.extras.not_nets).copied().collect::<Vec<_>>();
    let of_policy = |policy: &Policy| -> Vec<Cidr> {
        let rules = policy.inbound.iter().chain(policy.outbound.iter());
        rules.flat_map(|rule| [of_entity(&rule.source), of_entity(&rule.destination)]).flatten().collect()
    };
    match update {
        Update::Policy(_, Some(policy)) => of_policy(policy),
        Update::NetworkSet(_, Some(set)) => set.nets.iter().collect(),
        Update::WorkloadEndpoint(_, Some(endpoint)) => endpoint.nets().collect(),
        Update::HostEndpoint(_, Some(endpoint)) => {
            endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).copied().map(Cidr::host).collect()
        }
        Update::Node(_, Some(node)) => node.own_addresses().map(Cidr::host).collect(),
        _ => Vec::new(),
    }
}

/// Returns an address of a block.
fn address_in(block: Cidr, number: u8) -> Cidr {
    Cidr::host(match block.address() {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() | u32::from(number))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() | u128::from(number))),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tortie_model::{NetworkSet, NetworkSetName, Valid};

    use super::*;

    fn set(number: usize, patterns: &[DomainPattern]) -> Update {
        let set = NetworkSet { domains: patterns.iter().cloned().collect(), ..NetworkSet::default() };
        Update::NetworkSet(NetworkSetName::new(format!("s{number}")), Some(Valid::new(set).unwrap()))
    }

    fn rows(lists: &[&[&str]]) -> NameRows {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<DomainPattern>>();
        let updates: Vec<Update> = lists.iter().enumerate().map(|(number, list)| set(number, &parse(list))).collect();
        NameRows::of(updates.iter())
    }

    fn texts(rows: &NameRows) -> Vec<&str> {
        rows.rows.iter().map(|row| rows.text(&row.nets[0]).unwrap()).collect()
    }

    #[test]
    fn rows_are_named_by_their_patterns_and_those_of_others() {
        assert!(rows(&[]).is_empty());
        assert_eq!(texts(&rows(&[&["*.a.io"], &["x.a.io"]])), ["*.a.io but not x.a.io", "x.a.io"]);
        assert_eq!(texts(&rows(&[&["*.a.io", "b.io"], &["c.io"]])), ["*.a.io, b.io", "c.io"]);
        assert_eq!(texts(&rows(&[&["a.io", "b.io", "c.io", "d.io", "e.io"]])), ["a.io, b.io, c.io and 2 more"]);
        assert_eq!(
            texts(&rows(&[&["a.*.io"], &["*.b.io"]])),
            ["*.b.io but not a.*.b.io, a.b.io", "a.*.b.io, a.b.io", "a.*.io but not a.*.b.io, a.b.io"]
        );
    }

    #[test]
    fn the_addresses_of_rows_are_in_no_written_network() {
        let nets = ["240.0.0.0/4", "0.0.0.0/0", "1.255.254.7/32", "100::/8"].map(|net| net.parse().unwrap());
        let other = NetworkSet { nets: nets.into_iter().collect(), ..NetworkSet::default() };
        let other = Update::NetworkSet(NetworkSetName::new("other"), Some(Valid::new(other).unwrap()));
        let updates = [set(0, &["a.io".parse().unwrap()]), other];
        let rows = NameRows::of(updates.iter());
        let found: Vec<String> = rows.rows[0].nets.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["2.255.254.1/32", "200::fe:1/128"]);
    }

    fn pattern() -> impl Strategy<Value = DomainPattern> {
        let texts = proptest::string::string_regex("((a|b|\\*)\\.){0,3}(a|b)").unwrap();
        texts.prop_filter_map("at most one star", |text| text.parse().ok())
    }

    proptest! {
        /// A name that some list matches is in one row, and the lists match it as they match the
        /// name of the row.
        #[test]
        fn each_set_of_lists_that_a_name_matches_has_one_row(
            lists in prop::collection::vec(prop::collection::vec(pattern(), 1..4), 1..4),
            names in prop::collection::vec("((a|b|c)\\.){0,5}(a|b)", 20),
        ) {
            let updates: Vec<Update> = lists.iter().enumerate().map(|(number, list)| set(number, list)).collect();
            let rows = NameRows::of(updates.iter());
            prop_assert!(!rows.is_incomplete);
            let matching = |name: &DomainName| -> Vec<bool> {
                lists.iter().map(|list| list.iter().any(|pattern| pattern.matches(name))).collect()
            };
            for name in names {
                let name: DomainName = name.parse().unwrap();
                let own = matching(&name);
                let alike = rows.rows.iter().filter(|row| matching(&row.name) == own).count();
                prop_assert_eq!(alike, usize::from(own.contains(&true)), "{}", name);
            }
        }
    }
}
