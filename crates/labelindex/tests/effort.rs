//! Effort and memory in numbers that do not depend on the machine, and cases that random histories
//! may miss.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::collections::HashMap;
use std::sync::Arc;

use tortie_labelindex::{MatchIndex, MemberIndex, Overlap, Scans, ScansByFact, SetChange, SetDefinition};
use tortie_model::desired::Members;
use tortie_model::{Cidr, Interner, IpSetId, Labels, ProfileName};
use tortie_selector::Selector;

/// Labels of parents that exist before the first item with the parent.
type ParentMap = HashMap<ProfileName, Labels>;

fn address(n: u32) -> Cidr {
    Cidr::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into())
}

fn parents(n: u32) -> Arc<[ProfileName]> {
    [ProfileName::new(format!("parent-{n}"))].into()
}

fn selector(text: &str) -> Selector {
    Selector::parse(text).unwrap()
}

fn add_set(index: &mut MemberIndex<u32>, text: &str) -> IpSetId {
    let selector = selector(text);
    let id = IpSetId::new(selector.id().as_str());
    index.add_set(&id, SetDefinition { selector, named_port: None });
    id
}

fn flush(index: &mut MemberIndex<u32>) -> Vec<SetChange> {
    let mut out = Vec::new();
    index.flush(&mut out);
    out
}

/// Returns an index of items in all combinations of one of 29 marker labels and one of 100 parents,
/// with five labels that no selector uses.
fn tagged(items: u32) -> MemberIndex<u32> {
    let mut interner = Interner::new();
    let mut index = MemberIndex::new(Overlap::Suppress);
    for n in 0..items {
        let noise = (0..5).map(|i| (format!("noise-{i}"), (n / (i + 1) % 7).to_string()));
        let labels = interner.labels(noise.chain([(format!("tag-{}", n % 29), "true".into())])).unwrap();
        index.set_item(n, &labels, &parents(n % 100), &ParentMap::new(), [address(n)], &[]);
    }
    index
}

#[test]
fn presence_is_matched_once_for_a_shape_and_its_parents() {
    let mut index = tagged(2 * 2_900);
    for tag in 0..29 {
        add_set(&mut index, &format!("has(tag-{tag})"));
    }
    assert_eq!(flush(&mut index).len(), 29);
    assert_eq!(index.stats().groups, 2_900);
    assert_eq!(index.stats().evaluations, 0, "the facts decide all selectors");
}

#[test]
fn broad_selectors_are_not_evaluated_for_each_group() {
    let mut index = MemberIndex::new(Overlap::Keep);
    let item = |index: &mut MemberIndex<u32>, n: u32, marked: bool| {
        let labels = [("app", "web".to_owned()), ("a", n.to_string())].into_iter();
        let labels = Labels::from_pairs(labels.chain(marked.then(|| ("mark", String::new())))).unwrap();
        index.set_item(n, &labels, &parents(n % 10), &ParentMap::new(), [address(n)], &[]);
    };
    (0..5_000).for_each(|n| item(&mut index, n, n < 100));
    let broad = |n: u32| match n % 4 {
        0 => format!("a != '{n}' && !has(app)"),
        1 => format!("!(a == '{n}' || app == 'web')"),
        2 => format!("a starts with 'x{n}'"),
        _ => format!("a not in {{'{n}', 'y'}} && has(mark)"),
    };
    for n in 0..400 {
        add_set(&mut index, &broad(n));
    }
    let changes = flush(&mut index);
    assert_eq!(index.stats().evaluations, 0);
    let sizes: Vec<usize> = changes
        .iter()
        .map(|change| match change {
            SetChange::Full(set) => set.members.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    // A quarter of the selectors match the marked items; 25 of them exclude one item each.
    assert_eq!(sizes.iter().filter(|&&size| size == 0).count(), 300);
    assert_eq!(sizes.iter().sum::<usize>(), 100 * 100 - 25);
    // When many items change at once, the selectors that need no label are matched by set
    // operations.
    (0..5_000).for_each(|n| item(&mut index, n, n < 200));
    assert_eq!(flush(&mut index).len(), 100);
    let before = index.stats().evaluations;
    (0..5_000).for_each(|n| item(&mut index, n + 10_000, false));
    assert_eq!(flush(&mut index), []);
    assert!(index.stats().evaluations - before <= 5_000 * 200, "{:?}", index.stats());
}

#[test]
fn a_value_is_matched_once_for_those_that_have_it() {
    let mut index = tagged(2_900);
    for n in 0..1_000 {
        let labels = Labels::from_pairs([("name", format!("set-{n}"))]).unwrap();
        index.set_item(1_000_000 + n, &labels, &Arc::default(), &ParentMap::new(), [address(1_000_000 + n)], &[]);
    }
    for n in 0..1_000 {
        add_set(&mut index, &format!("name == 'set-{n}'"));
    }
    assert_eq!(flush(&mut index).len(), 1_000);
    assert_eq!((index.stats().groups, index.stats().evaluations), (3_900, 1_000));
}

#[test]
fn an_inherited_value_is_matched_once_for_its_heirs() {
    let mut interner = Interner::new();
    let mut index = MemberIndex::new(Overlap::Keep);
    for n in 0..1_000 {
        let known = ParentMap::from([(parents(n)[0].clone(), interner.labels([("ns", format!("ns-{n}"))]).unwrap())]);
        let labels = interner.labels([("pod", format!("pod-{n}"))]).unwrap();
        index.set_item(n, &labels, &parents(n), &known, [address(n)], &[]);
    }
    for n in 0..10 {
        add_set(&mut index, &format!("ns == 'ns-{n}'"));
    }
    assert_eq!(flush(&mut index).len(), 10);
    assert_eq!((index.stats().groups, index.stats().evaluations), (1_000, 10));
}

#[test]
fn lookups_for_a_new_selector_are_counted() {
    let mut index = MemberIndex::new(Overlap::Keep);
    for n in 0..20 {
        let known =
            ParentMap::from([(parents(n)[0].clone(), Labels::from_pairs([("ns", format!("ns-{n}"))]).unwrap())]);
        let labels = Labels::from_pairs([("app", format!("app-{n}")), ("tier", format!("{}", n % 2))]).unwrap();
        index.set_item(n, &labels, &parents(n), &known, [address(n)], &[]);
    }
    // A parent with a label that other items have themselves.
    let known = ParentMap::from([(parents(20)[0].clone(), Labels::from_pairs([("app", "app-1")]).unwrap())]);
    index.set_item(20, &Labels::default(), &parents(20), &known, [address(20)], &[]);
    let mut found = |selector: &str| {
        let before = index.stats().scans;
        add_set(&mut index, selector);
        flush(&mut index);
        let after = index.stats().scans;
        let of = |scans: Scans| {
            let by = |by: ScansByFact| [by.name, by.value, by.values];
            [&[scans.all][..], &by(scans.own), &by(scans.inherited), &by(scans.mixed)].concat()
        };
        let counts = of(after).into_iter().zip(of(before)).map(|(after, before)| after - before);
        let names = ["all", "own name", "own value", "own values", "inherited name", "inherited value"];
        let names = names.into_iter().chain(["inherited values", "mixed name", "mixed value", "mixed values"]);
        names.zip(counts).filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    for (selector, expected) in [
        ("all()", "all"),
        ("app != 'app-1'", "all"),
        ("has(tier)", "own name"),
        ("tier == '0'", "own value"),
        ("app in {'app-2', 'app-none'}", "own value"),
        ("app in {'app-2', 'app-3'}", "own values"),
        ("has(ns)", "inherited name"),
        ("ns == 'ns-4'", "inherited value"),
        ("ns == 'ns-4' && has(tier)", "inherited value"),
        ("ns in {'ns-4', 'ns-5'}", "inherited values"),
        ("has(app)", "mixed name"),
        ("app == 'app-1'", "mixed value"),
        ("app in {'app-1', 'app-2'}", "mixed values"),
    ] {
        assert_eq!(found(selector), [(expected, 1)], "{selector}");
    }
    for nothing in ["has(none)", "app == 'none'", "app == 'a' && app == 'b'"] {
        assert_eq!(found(nothing), [], "{nothing}");
    }
}

#[test]
fn many_selectors_against_few_items_cost_as_much_as_the_items() {
    let mut index: MatchIndex<u32, u32> = MatchIndex::new();
    for n in 0..10_000 {
        index.set_selector(&n, &selector(&format!("app == 'web' && ns == 'ns-{n}'")));
    }
    for n in 0..10 {
        let known =
            ParentMap::from([(parents(n)[0].clone(), Labels::from_pairs([("ns", format!("ns-{n}"))]).unwrap())]);
        index.set_item_with_parents(&n, &Labels::from_pairs([("app", "web")]).unwrap(), &parents(n), &known);
    }
    assert_eq!(index.flush().activated, (0..10).collect::<Vec<_>>());
    // One selector is filed under `app == 'web'`, because at first both facts have equally many
    // selectors.
    assert!(index.stats().evaluations <= 20, "{:?}", index.stats());
    index.set_item_with_parents(&10, &Labels::from_pairs([("app", "web")]).unwrap(), &parents(10), &ParentMap::new());
    index.set_parent(&parents(10)[0], Some(&Labels::from_pairs([("ns", "ns-77")]).unwrap()));
    assert_eq!(index.flush().activated, [77]);
    assert!(index.stats().evaluations <= 22, "{:?}", index.stats());
}

#[test]
fn splitting_groups_evaluates_nothing_and_sends_nothing() {
    let mut index = tagged(2 * 2_900);
    add_set(&mut index, "has(tag-3)");
    flush(&mut index);
    let before = index.stats();
    add_set(&mut index, "has(tag-3) && noise-0 == 'no such value'");
    let changes = flush(&mut index);
    assert!(matches!(&changes[..], [SetChange::Full(set)] if set.members.is_empty()), "{changes:?}");
    assert_eq!(index.stats().evaluations, before.evaluations, "the rarest need has no carrier");
    assert_eq!(index.stats().groups, 2 * before.groups);
}

#[test]
fn indistinguishable_groups_merge_after_some_time() {
    let mut index = tagged(2 * 2_900);
    let plain = add_set(&mut index, "has(tag-3)");
    flush(&mut index);
    let groups = index.stats().groups;
    let comparing = add_set(&mut index, "noise-0 != '1'");
    flush(&mut index);
    assert_eq!(index.stats().groups, 2 * groups);
    index.remove_set(&comparing);
    assert_eq!(flush(&mut index), [SetChange::Remove(comparing)]);
    for _ in 0..100 {
        assert_eq!(flush(&mut index), []);
    }
    assert_eq!(index.stats().groups, groups);
    // The matches of merged groups are still known.
    for n in 0..2 * 2_900 {
        index.remove_item(&n);
    }
    let changes = flush(&mut index);
    assert!(matches!(&changes[..], [SetChange::Delta(delta)] if delta.id == plain && delta.removed.len() == 200));
}

#[test]
fn a_parent_that_moves_several_holders_of_an_address_moves_it_once() {
    let mut index = MemberIndex::new(Overlap::Keep);
    let labels = |team: &str| Labels::from_pairs([("team", team)]).unwrap();
    let shared = address(1);
    for (item, team) in [(1, "a"), (2, "b"), (3, "c")] {
        index.set_item(item, &labels(team), &parents(0), &ParentMap::new(), [shared], &[]);
    }
    let by_team = add_set(&mut index, "has(team)");
    let by_env = add_set(&mut index, "env == 'prod' && team != 'x'");
    flush(&mut index);
    index.set_parent(&parents(0)[0], Some(&Labels::from_pairs([("env", "prod")]).unwrap()));
    let changes = flush(&mut index);
    let [SetChange::Delta(delta)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((&delta.id, &delta.added), (&by_env, &Members::Nets(vec![shared])));
    // A change and its reversal are no change.
    index.set_parent(&parents(0)[0], None);
    index.set_parent(&parents(0)[0], Some(&Labels::from_pairs([("env", "prod")]).unwrap()));
    assert_eq!(flush(&mut index), []);
    for item in [1, 2] {
        index.remove_item(&item);
    }
    assert_eq!(flush(&mut index), [], "the third still holds it in {by_team:?}");
}

#[test]
fn an_item_removed_and_added_in_one_batch_is_no_change() {
    let mut index = tagged(1_000);
    add_set(&mut index, "has(tag-1)");
    flush(&mut index);
    index.remove_item(&1);
    let labels = Labels::from_pairs([("tag-1", "other"), ("more", "")]).unwrap();
    index.set_item(1, &labels, &parents(5), &ParentMap::new(), [address(1)], &[]);
    assert_eq!(flush(&mut index), []);
}

#[test]
fn a_set_removed_and_added_in_one_batch_is_sent_in_full() {
    let mut index = tagged(100);
    let id = add_set(&mut index, "has(tag-1)");
    let first = flush(&mut index);
    index.remove_set(&id);
    add_set(&mut index, "has(tag-1)");
    assert_eq!(flush(&mut index), first);
    index.remove_set(&id);
    assert_eq!(flush(&mut index), [SetChange::Remove(id.clone())]);
    add_set(&mut index, "has(tag-1)");
    index.remove_set(&id);
    assert_eq!(flush(&mut index), []);
}

#[test]
fn mass_deletion_from_a_long_list_is_not_quadratic() {
    // 20,000 groups in one list; a linear search for each would take minutes in a debug build.
    let mut interner = Interner::new();
    let mut index = MemberIndex::new(Overlap::Keep);
    add_set(&mut index, "has(id) && id != ''");
    flush(&mut index);
    for n in 0..20_000 {
        let labels = interner.labels([("id", n.to_string())]).unwrap();
        index.set_item(n, &labels, &parents(0), &ParentMap::new(), [address(n)], &[]);
    }
    flush(&mut index);
    assert_eq!(index.stats().groups, 20_000);
    for n in 0..20_000 {
        index.remove_item(&n);
    }
    let changes = flush(&mut index);
    assert!(matches!(&changes[..], [SetChange::Delta(delta)] if delta.removed.len() == 20_000));
    assert_eq!(index.stats().items, 0);
}

#[test]
fn keys_with_the_same_matches_share_a_set_that_keeps_its_id() {
    let mut index: MatchIndex<u32, u32> = MatchIndex::new();
    for n in 0..50 {
        let labels = Labels::from_pairs([("app", if n < 40 { "web" } else { "db" })]).unwrap();
        index.set_item_with_parents(&n, &labels, &parents(n), &ParentMap::new());
    }
    for key in 0..100 {
        index.set_selector(&key, &selector("app == 'web'"));
    }
    index.flush();
    let web = index.match_set(&0).unwrap();
    assert!((0..40).all(|n| index.match_set(&n) == Some(web)));
    assert_eq!(index.matches(web).count(), 100);
    assert_eq!(index.stats().evaluations, 0, "the fact decides the matching groups");
    index.set_selector(&7, &selector("app != 'db'"));
    assert_eq!(index.flush().changed_items, [] as [u32; 0], "the same keys match");
    assert_eq!(index.match_set(&0), Some(web));
    index.remove_selector(&8);
    assert_eq!(index.flush().changed_items, (0..40).collect::<Vec<_>>());
    assert_ne!(index.match_set(&0), Some(web));
}
