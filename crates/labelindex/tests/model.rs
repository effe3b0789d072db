//! Random histories of both indexes, compared with brute force.
//!
//! After each flush the index and the oracle must return the same. After everything is removed the
//! index must be empty.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

mod oracle;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tortie_labelindex::{CountedSelector, MatchEvent, MatchIndex, MemberIndex, NamedPort, Overlap, SetDefinition};
use tortie_model::desired::PortProtocol;
use tortie_model::{Cidr, EndpointPort, IpSetId, Labels, NamedProtocol, ProfileName, Protocol};
use tortie_selector::Selector;

/// Number of items; enough for the index to match broad selectors by set operations.
const ITEMS: u8 = 16;
const KEYS: u8 = 8;

/// Selectors with different and overlapping facts, compared labels and canonical forms. The last
/// two have the same canonical form.
const SELECTORS: &[&str] = &[
    "all()",
    "has(a)",
    "!has(a)",
    "has(b)",
    "a == 'x'",
    "a != 'x'",
    "b == 'x'",
    "c == 'z'",
    "c != ''",
    "a == 'x' && b == 'y'",
    "a == 'x' && has(b)",
    "a == 'x' || b == 'x'",
    "a in {'x', 'y'}",
    "a in {'x', 'y'} && b in {'y', 'z'}",
    "b not in {'x', 'y'}",
    "a contains 'y' && !has(d)",
    "!(a ends with 'x' || b == 'y')",
    "a != 'x' && (c not in {'x', 'z'} || !(has(d) && b != 'y'))",
    "!(!(has(a)) && all())",
    "has(d) && d starts with ''",
    "has(a) && has(b) && has(c)",
    "has(a) && !has(a)",
    "a == 'x' && a == 'y'",
    "e == 'never'",
    "a == ''",
    "(has(a) || has(b)) && c == 'x'",
    "has(b)&&c=='x'",
    "has(b)  &&  c == \"x\"",
];

const NETS: &[&str] = &[
    "10.0.0.1/32",
    "10.0.0.2/32",
    "10.0.0.3/32",
    "10.0.0.0/24",
    "10.0.0.0/16",
    "10.0.0.77/24",
    "10.0.0.0/31",
    "10.0.0.0/32",
    "10.1.0.0/16",
    "10.0.0.0/8",
    "0.0.0.0/0",
    "128.0.0.0/1",
    "fd00::1/128",
    "fd00::/64",
    "fd00::/16",
    "::/0",
    "a00::/32",
    "255.255.255.255/32",
];

#[derive(Clone, Debug)]
enum Op {
    SetItem { item: u8, labels: Vec<(char, String)>, parents: Vec<u8>, nets: Vec<Cidr>, ports: Vec<EndpointPort> },
    RemoveItem(u8),
    SetParent(u8, Vec<(char, String)>),
    RemoveParent(u8),
    SetSelector { key: u8, selector: &'static str, named_port: Option<NamedPort> },
    RemoveSelector(u8),
    Count(u8, &'static str),
    ReleaseCount(u8),
    Settle,
    Flush,
}

fn labels() -> impl Strategy<Value = Vec<(char, String)>> {
    let value = prop_oneof![4 => Just("x"), 3 => Just("y"), 1 => Just("z"), 1 => Just("")].prop_map(String::from);
    subsequence(vec!['a', 'b', 'c', 'd'], 0..=4)
        .prop_flat_map(move |keys| keys.into_iter().map(|key| (Just(key), value.clone())).collect::<Vec<_>>())
}

fn nets() -> impl Strategy<Value = Vec<Cidr>> {
    let net = |text: &str| text.parse::<Cidr>().unwrap();
    let hosts: Vec<Cidr> = NETS[..3].iter().map(|text| net(text)).collect();
    let all: Vec<Cidr> = NETS.iter().map(|text| net(text)).collect();
    prop_oneof![2 => prop::collection::vec(select(hosts), 0..3), 1 => prop::collection::vec(select(all), 0..5)]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(vec![
        Protocol::Named(NamedProtocol::Tcp),
        Protocol::Named(NamedProtocol::Udp),
        Protocol::Named(NamedProtocol::Icmp),
        Protocol::Number(6),
        Protocol::Number(0),
    ])
}

fn ports() -> impl Strategy<Value = Vec<EndpointPort>> {
    let port = (select(vec!["http", "dns"]), protocol(), select(vec![80, 53]));
    let port = port.prop_map(|(name, protocol, port)| EndpointPort { name: name.into(), protocol, port });
    prop::collection::vec(port, 0..4)
}

fn named_port() -> impl Strategy<Value = Option<NamedPort>> {
    let protocol = select(vec![None, Some(PortProtocol::Tcp), Some(PortProtocol::Udp)]);
    let named = (select(vec!["http", "dns"]), protocol);
    prop::option::weighted(0.3, named.prop_map(|(name, protocol)| NamedPort { protocol, name: name.into() }))
}

fn op() -> impl Strategy<Value = Op> {
    let parents = prop::collection::vec(0..4_u8, 0..3);
    let item = (0..ITEMS, labels(), parents, nets(), ports());
    prop_oneof![
        6 => item.prop_map(|(item, labels, parents, nets, ports)| Op::SetItem { item, labels, parents, nets, ports }),
        2 => (0..ITEMS).prop_map(Op::RemoveItem),
        2 => (0..4_u8, labels()).prop_map(|(parent, labels)| Op::SetParent(parent, labels)),
        1 => (0..4_u8).prop_map(Op::RemoveParent),
        5 => (0..KEYS, select(SELECTORS), named_port())
            .prop_map(|(key, selector, named_port)| Op::SetSelector { key, selector, named_port }),
        2 => (0..KEYS).prop_map(Op::RemoveSelector),
        2 => (0..KEYS, select(SELECTORS)).prop_map(|(key, selector)| Op::Count(key, selector)),
        1 => (0..KEYS).prop_map(Op::ReleaseCount),
        1 => Just(Op::Settle),
        2 => Just(Op::Flush),
    ]
}

/// One change, or the removal of all items.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let all_removed: Vec<Op> = (0..ITEMS).map(Op::RemoveItem).collect();
    prop_oneof![30 => op().prop_map(|op| vec![op]), 1 => Just(all_removed)]
}

/// Generates a history that ends with the removal of everything, in random order.
fn history() -> impl Strategy<Value = Vec<Op>> {
    let teardown: Vec<Op> = (0..ITEMS)
        .map(Op::RemoveItem)
        .chain((0..KEYS).map(Op::RemoveSelector))
        .chain((0..KEYS).map(Op::ReleaseCount))
        .chain((0..4).map(Op::RemoveParent))
        .chain([Op::Flush, Op::Flush])
        .collect();
    (prop::collection::vec(ops(), 0..120), Just(teardown).prop_shuffle()).prop_map(|(ops, teardown)| {
        let mut ops = ops.concat();
        ops.push(Op::Flush);
        ops.extend(teardown);
        ops.push(Op::Flush);
        ops
    })
}

fn labels_of(pairs: &[(char, String)]) -> Labels {
    Labels::from_pairs(pairs.iter().map(|(key, value)| (key.to_string(), value))).unwrap()
}

fn parent(number: u8) -> ProfileName {
    ProfileName::new(format!("parent-{number}"))
}

fn parents_of(numbers: &[u8]) -> Arc<[ProfileName]> {
    numbers.iter().map(|&number| parent(number)).collect()
}

fn selector(text: &str) -> Selector {
    Selector::parse(text).unwrap()
}

#[test]
fn all_items_may_be_removed_before_a_flush() {
    let mut ops = vec![Op::SetSelector { key: 0, selector: "!has(a)", named_port: None }, Op::Flush];
    let value = |item: u8| vec![('b', item.to_string())];
    let set =
        |item| Op::SetItem { item, labels: value(item), parents: Vec::new(), nets: Vec::new(), ports: Vec::new() };
    ops.extend((0..ITEMS).map(set));
    // A selector that compares values keeps items in different groups.
    ops.insert(1, Op::SetSelector { key: 1, selector: "b != ''", named_port: None });
    ops.extend((0..ITEMS).map(Op::RemoveItem));
    ops.extend([Op::Flush, Op::RemoveSelector(0), Op::RemoveSelector(1), Op::Flush]);
    check_matches(&ops, None);
    check_members(&ops, Overlap::Keep);
}

/// Every `events`-th flush also compares events for pairs of items and selectors.
fn check_matches(ops: &[Op], events: Option<usize>) {
    let (mut index, mut oracle) = (MatchIndex::new(), oracle::MatchIndex::new());
    let (mut flushes, mut reported) = (0, BTreeSet::new());
    let mut known: HashMap<ProfileName, Labels> = HashMap::new();
    for op in ops {
        match op {
            Op::SetItem { item, labels, parents, .. } => {
                let (labels, parents) = (labels_of(labels), parents_of(parents));
                index.set_item_with_parents(item, &labels, &parents, &known);
                oracle.set_item(item, &labels, &parents);
            }
            Op::RemoveItem(item) => {
                index.remove_item(item);
                oracle.remove_item(item);
            }
            Op::SetParent(number, labels) => {
                known.insert(parent(*number), labels_of(labels));
                index.set_parent(&parent(*number), Some(&labels_of(labels)));
                oracle.set_parent(&parent(*number), Some(&labels_of(labels)));
            }
            Op::RemoveParent(number) => {
                known.remove(&parent(*number));
                index.set_parent(&parent(*number), None);
                oracle.set_parent(&parent(*number), None);
            }
            Op::SetSelector { key, selector: text, .. } => {
                index.set_selector(key, &selector(text));
                oracle.set_selector(key, &selector(text));
            }
            Op::RemoveSelector(key) => {
                index.remove_selector(key);
                oracle.remove_selector(key);
            }
            Op::Count(..) | Op::ReleaseCount(_) | Op::Settle => {}
            Op::Flush => {
                flushes += 1;
                if events.is_some_and(|every| flushes % every == 0) {
                    oracle.flush();
                    check_events(&index.flush_events(), &mut reported, &oracle);
                } else {
                    assert_eq!(index.flush(), oracle.flush());
                }
                check_answers(&index, &oracle);
            }
        }
    }
    if events.is_some() {
        check_events(&index.flush_events(), &mut reported, &oracle);
    }
    assert!(index.is_empty(), "{index:#?}");
}

/// Asserts that each event changes the emitted pairs, and that the result equals the current
/// matches.
fn check_events(events: &[MatchEvent<u8, u8>], reported: &mut BTreeSet<(u8, u8)>, oracle: &oracle::MatchIndex<u8, u8>) {
    let pair = |event: &MatchEvent<u8, u8>| match *event {
        MatchEvent::Started { item, selector } | MatchEvent::Stopped { item, selector } => (item, selector),
    };
    assert!(events.is_sorted_by_key(pair), "{events:?}");
    for event in events {
        match event {
            MatchEvent::Started { .. } => assert!(reported.insert(pair(event)), "{event:?}"),
            MatchEvent::Stopped { .. } => assert!(reported.remove(&pair(event)), "{event:?}"),
        }
    }
    let now = (0..KEYS).flat_map(|key| oracle.items_matching(&key).into_iter().map(move |item| (item, key)));
    assert_eq!(*reported, now.collect());
}

fn check_answers(index: &MatchIndex<u8, u8>, oracle: &oracle::MatchIndex<u8, u8>) {
    let mut seen: Vec<(_, Vec<u8>)> = Vec::new();
    for item in 0..ITEMS {
        let set = index.match_set(&item);
        let mut keys: Option<Vec<u8>> = set.map(|set| index.matches(set).copied().collect());
        keys.iter_mut().for_each(|keys| keys.sort_unstable());
        assert_eq!(keys.as_ref(), oracle.match_set(&item));
        let (Some(set), Some(keys)) = (set, keys) else { continue };
        for (other_set, other_keys) in &seen {
            assert_eq!(set == *other_set, keys == *other_keys, "equal ids are equal sets");
        }
        seen.push((set, keys));
    }
    for key in 0..KEYS {
        let mut items: Vec<u8> = index.items_matching(&key).copied().collect();
        items.sort_unstable();
        assert_eq!(items, oracle.items_matching(&key));
        let mut with: Vec<_> = seen.iter().filter(|(_, keys)| keys.contains(&key)).map(|(set, _)| *set).collect();
        with.sort_unstable();
        with.dedup();
        assert_eq!(index.match_sets_with(&key).collect::<Vec<_>>(), with);
    }
}

fn check_members(ops: &[Op], overlap: Overlap) {
    let (mut index, mut oracle) = (MemberIndex::new(overlap), oracle::MemberIndex::new(overlap));
    let mut known: HashMap<ProfileName, Labels> = HashMap::new();
    let id = |key: u8| IpSetId::new(format!("set-{key}"));
    let mut counted: BTreeMap<u8, (CountedSelector, Selector)> = BTreeMap::new();
    for op in ops {
        match op {
            Op::SetItem { item, labels, parents, nets, ports } => {
                let (labels, parents) = (labels_of(labels), parents_of(parents));
                let change = index.set_item(*item, &labels, &parents, &known, nets.iter().copied(), ports);
                let before = oracle.set_item(item, &labels, &parents, nets.iter().copied(), ports);
                assert_eq!((change.key, change.is_new), (item, before.is_none()));
                assert!(change.nets_before.iter().eq(before.unwrap_or_default()));
            }
            Op::RemoveItem(item) => {
                let (reported, expected) = (index.remove_item(item), oracle.remove_item(item));
                assert_eq!(reported.map(|nets| nets.iter().collect()), expected);
            }
            Op::SetParent(number, labels) => {
                known.insert(parent(*number), labels_of(labels));
                index.set_parent(&parent(*number), Some(&labels_of(labels)));
                oracle.set_parent(&parent(*number), Some(&labels_of(labels)));
            }
            Op::RemoveParent(number) => {
                known.remove(&parent(*number));
                index.set_parent(&parent(*number), None);
                oracle.set_parent(&parent(*number), None);
            }
            Op::SetSelector { key, selector: text, named_port } => {
                let definition = SetDefinition { selector: selector(text), named_port: named_port.clone() };
                index.add_set(&id(*key), definition.clone());
                oracle.add_set(&id(*key), definition);
            }
            Op::RemoveSelector(key) => {
                index.remove_set(&id(*key));
                oracle.remove_set(&id(*key));
            }
            Op::Count(key, text) => {
                let selector = selector(text);
                if let Some((before, _)) = counted.insert(*key, (index.count_selector(&selector), selector)) {
                    index.release_count(before);
                }
            }
            Op::ReleaseCount(key) => {
                if let Some((before, _)) = counted.remove(key) {
                    index.release_count(before);
                }
            }
            Op::Settle | Op::Flush => {
                if matches!(op, Op::Settle) {
                    index.settle();
                } else {
                    let (mut reported, mut expected) = (Vec::new(), Vec::new());
                    index.flush(&mut reported);
                    oracle.flush(&mut expected);
                    assert_eq!(reported, expected);
                }
                for (counted, selector) in counted.values() {
                    assert_eq!(index.count(counted), oracle.count(selector), "{selector:?}");
                }
                assert_eq!(index.net_count(), oracle.count(&Selector::all()));
            }
        }
    }
    assert!(index.is_empty(), "{index:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matches_are_those_of_the_oracle(ops in history()) {
        check_matches(&ops, None);
    }

    #[test]
    fn events_add_up_to_the_matches_of_the_oracle(ops in history(), every in 1..4_usize) {
        check_matches(&ops, Some(every));
    }

    #[test]
    fn members_are_those_of_the_oracle(ops in history()) {
        check_members(&ops, Overlap::Keep);
    }

    #[test]
    fn suppressed_members_are_those_of_the_oracle(ops in history()) {
        check_members(&ops, Overlap::Suppress);
    }
}
