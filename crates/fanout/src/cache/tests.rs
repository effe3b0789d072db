use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use tortie_datastore::{Event, Fallback};
use tortie_model::{
    Cidr, IpamBlock, Key, Labels, Policy, PolicyId, PolicyKind, ProfileRules, Rule, RuleAction, SyncStatus, Update,
    Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_resources::path;

use super::{
    Audience, Breadcrumb, Cache, CacheLimits, Change, Entry, Hub, Instance, OwnPrefix, RemoteView, WireFormat,
    WireSnapshot,
};

fn config(name: &str, value: &str) -> Update {
    Update::GlobalConfig(name.into(), Some(value.into()))
}

fn updates(updates: Vec<Update>, noticed: Instant) -> Event {
    Event::Updates { updates, noticed }
}

fn deltas(breadcrumb: &Breadcrumb) -> Vec<(&str, Change)> {
    breadcrumb.deltas.iter().map(|delta| (&*delta.path, delta.change)).collect()
}

#[test]
fn breadcrumbs_split_changes_and_only_the_last_one_is_in_sync() {
    let now = Instant::now();
    let limits = CacheLimits { breadcrumb_deltas: 2, ..CacheLimits::default() };
    let mut cache = Cache::new(Instance(1), limits, now);
    let start = Arc::clone(cache.head());
    cache.apply(Event::Status(SyncStatus::Resync), now);
    assert!(start.next().is_none(), "nothing is seen before it is published");
    assert!(cache.publish(now));
    cache.apply(updates(vec![config("A", "1"), config("B", "1"), config("C", "1")], now), now);
    cache.apply(Event::Status(SyncStatus::InSync), now);
    assert!(cache.publish(now) && !cache.publish(now));

    let resync = start.next().unwrap();
    assert_eq!((resync.status, resync.deltas.len()), (SyncStatus::Resync, 0));
    let first = resync.next().unwrap();
    assert_eq!(first.status, SyncStatus::Resync);
    assert_eq!(deltas(first), [("/calico/v1/config/A", Change::New), ("/calico/v1/config/B", Change::New)]);
    let second = first.next().unwrap();
    assert_eq!((second.status, second.sequence), (SyncStatus::InSync, 3));
    assert!(second.next().is_none());

    // Updates without an effect make no breadcrumb.
    let unknown = Update::delete(Key::GlobalConfig("Z".into()));
    cache.apply(updates(vec![config("A", "1"), unknown], now), now);
    assert!(!cache.publish(now));
    cache.apply(updates(vec![config("A", "2"), Update::delete(Key::GlobalConfig("B".into()))], now), now);
    assert!(cache.publish(now));
    let third = second.next().unwrap();
    assert_eq!(deltas(third), [("/calico/v1/config/A", Change::Updated), ("/calico/v1/config/B", Change::Deleted)]);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.updates, stats.skipped, stats.deltas), (2, 7, 2, 5));
}

/// An encoded snapshot keeps all later breadcrumbs alive, but not for as long as the datastore is
/// busy.
#[tokio::test]
async fn a_written_snapshot_is_let_go_while_changes_come_without_pause() {
    let now = Instant::now();
    let hub = Hub::new(Cache::new(Instance(1), CacheLimits::default(), now));
    let write = |base| WireSnapshot::new(base, Vec::new(), 0);
    let written = hub.written(WireFormat::AllNodes, write).await.unwrap();
    for (seconds, holders) in [(1, 2), (60, 1)] {
        let later = now + Duration::from_secs(seconds);
        hub.take(updates(vec![config("A", &seconds.to_string())], later));
        hub.publish(later);
        assert_eq!(Arc::strong_count(&written), holders, "after {seconds} s");
    }
}

#[test]
fn blocks_are_held_once_and_are_for_nodes_that_ask_for_them() {
    let text: Arc<str> = r#"{"cidr":"10.0.0.0/26"}"#.into();
    let block = IpamBlock { text: Arc::clone(&text), affinity: None, borrowed: [].into() };
    let entry = Entry::new(&Update::Block("10.0.0.0/26".parse().unwrap(), Some(block.into())), None).unwrap();
    assert_eq!(
        (&*entry.path, &entry.value[..]),
        ("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26", text.as_bytes())
    );
    assert_eq!(entry.value.as_ptr(), text.as_ptr());
    assert_eq!(entry.value_in(WireFormat::OneNode), None);
    assert_eq!(entry.value_in(WireFormat::OneNodeWithBlocks).as_ref(), Some(&entry.value));
    assert_eq!(Audience::of(None, Some(&entry)), Audience::Blocks);
    assert_eq!(Audience::of(Some(&entry), None), Audience::Blocks);
    assert_eq!(Audience::of(Some(&entry), Some(&entry)), Audience::Own);
}

#[test]
fn a_value_that_is_too_large_leaves_the_last_one_in_force() {
    let now = Instant::now();
    let limits = CacheLimits { value_bytes: 3, ..CacheLimits::default() };
    let mut cache = Cache::new(Instance(1), limits, now);
    cache.apply(updates(vec![config("A", "abc"), config("A", "abcd")], now), now);
    cache.publish(now);
    assert_eq!(cache.snapshot().entries.get("/calico/v1/config/A").unwrap().value, "abc");
    assert_eq!(cache.stats().refused, 1);
    let refused = |cache: &mut Cache| {
        let all = cache.changed_refused().expect("something has changed");
        all.iter().map(|problem| (problem.to_string(), problem.fallback)).collect::<Vec<_>>()
    };
    let message = "has 4 bytes, more than the 3 that the fan-out sends";
    assert_eq!(refused(&mut cache), [(format!("parameter A: {message}"), Fallback::LastGood)]);
    cache.apply(updates(vec![config("A", "ab"), config("B", "abcd")], now), now);
    assert_eq!(refused(&mut cache), [(format!("parameter B: {message}"), Fallback::Nothing)]);
    cache.apply(updates(vec![Update::delete(config("B", "").key())], now), now);
    assert_eq!((refused(&mut cache), cache.changed_refused()), (Vec::new(), None));
}

#[test]
fn a_policy_that_is_too_large_denies_until_it_is_smaller() {
    let now = Instant::now();
    let limits = CacheLimits { value_bytes: 200, ..CacheLimits::default() };
    let mut cache = Cache::new(Instance(1), limits, now);
    let policy = |rules: usize| {
        let allow = vec![Rule::new(RuleAction::Allow); rules];
        let policy = Policy { selector: "has(a)".parse().unwrap(), inbound: allow.into(), ..Policy::default() };
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
        Update::Policy(id, Some(Valid::new(policy).unwrap()))
    };
    let mut publish = |rules: usize| {
        cache.apply(updates(vec![policy(rules)], now), now);
        cache.publish(now);
        let entries = cache.snapshot().entries;
        let text = entries.get("/calico/v1/policy/GlobalNetworkPolicy//p").unwrap().value.clone();
        let fallbacks: Option<Vec<Fallback>> =
            cache.changed_refused().map(|refused| refused.iter().map(|problem| problem.fallback).collect());
        (String::from_utf8_lossy(&text).matches("deny").count(), fallbacks)
    };
    assert_eq!(publish(100), (2, Some(vec![Fallback::Denied])));
    assert_eq!(publish(99), (2, Some(vec![Fallback::Denied])));
    assert_eq!(publish(1), (0, Some(Vec::new())));
    assert_eq!(publish(98), (0, Some(vec![Fallback::LastGood])));
}

#[test]
fn a_returning_client_resumes_within_the_log() {
    let start = Instant::now();
    let limits = CacheLimits { log_age: Duration::from_secs(10), log_bytes: 200, ..CacheLimits::default() };
    let mut cache = Cache::new(Instance(7), limits, start);
    let at = |second| start + Duration::from_secs(second);
    for second in 1..=5 {
        cache.apply(updates(vec![config("A", &second.to_string())], at(second)), at(second));
        cache.publish(at(second));
    }
    assert_eq!(cache.resume(Instance(7), 3).unwrap().sequence, 3);
    assert_eq!(cache.resume(Instance(7), 5).unwrap().sequence, 5);
    assert!(cache.resume(Instance(7), 6).is_none(), "from the future");
    assert!(cache.resume(Instance(8), 3).is_none(), "from another server");
    // By age.
    cache.publish(at(14));
    assert!(cache.resume(Instance(7), 3).is_none() && cache.resume(Instance(7), 4).is_some());
    // By bytes; the newest stays.
    cache.apply(updates(vec![config("A", &"x".repeat(300))], at(14)), at(14));
    cache.publish(at(14));
    assert_eq!(cache.stats().log_breadcrumbs, 1);
    assert_eq!(cache.resume(Instance(7), 6).unwrap().sequence, 6);
    cache.publish(at(100));
    assert_eq!(cache.stats().log_breadcrumbs, 1);
}

#[test]
fn only_clients_that_know_domains_get_rules_with_some() {
    let to = |action, domains: &[&str]| {
        let mut rule = Rule::new(action);
        rule.destination.extras.domains = domains.iter().map(|name| name.parse().unwrap()).collect();
        rule
    };
    let nodes = |action| {
        let mut rule = Rule::new(action);
        rule.destination.selector = Some("has(pcnode.rack)".parse().unwrap());
        rule
    };
    let entry = |rules: &[&Rule]| {
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
        let outbound = rules.iter().copied().cloned().collect();
        let policy = Policy { outbound, ..Policy::default() };
        Entry::new(&Update::Policy(id, Some(Valid::new(policy).unwrap())), None).unwrap()
    };
    let (by_name, deny) = (to(RuleAction::Allow, &["*.a.io"]), to(RuleAction::Deny, &[]));
    let formats = [
        (WireFormat::OneNode, WireFormat::OneNodeOld),
        (WireFormat::OneNodeWithBlocks, WireFormat::OneNodeWithBlocksOld),
        (WireFormat::AllNodes, WireFormat::AllNodesOld),
    ];
    let (whole, rest) = (entry(&[&by_name, &deny]), entry(&[&deny]));
    for (format, old) in formats {
        assert_eq!(whole.value_in(format).as_ref(), Some(&whole.value));
        assert_eq!(whole.value_in(old).as_ref(), Some(&rest.value));
        assert_eq!(rest.value_in(old).as_ref(), Some(&rest.value));
    }
    assert!(String::from_utf8_lossy(&whole.value).contains(r#""dst_domains":["*.a.io"]"#));
    assert_eq!(whole.value_for_typha(), &rest.value);
    assert!(whole.size() > whole.value.len() + rest.value.len());
    let both = entry(&[&by_name, &nodes(RuleAction::Allow), &deny]);
    assert_eq!(both.value_for_typha(), &rest.value);
    let expected = entry(&[&nodes(RuleAction::Allow), &deny]).value;
    assert_eq!(both.value_in(WireFormat::OneNodeOld), Some(expected));
    assert_eq!(Audience::of(Some(&whole), Some(&rest)), Audience::All);
}

#[test]
fn clients_of_typha_get_no_rule_that_names_nodes() {
    let rule = |action, selector: &str| {
        let mut rule = Rule::new(action);
        rule.source.selector = Some(selector.parse().unwrap());
        rule
    };
    let policy = |rules: Vec<Rule>| {
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
        Update::Policy(id, Some(Valid::new(Policy { inbound: rules.into(), ..Policy::default() }).unwrap()))
    };
    let plain = rule(RuleAction::Allow, "app == 'a'");
    let entry = |rules: &[&Rule]| Entry::new(&policy(rules.iter().copied().cloned().collect()), None).unwrap();
    let text = entry(&[
        &rule(RuleAction::Allow, "has(pcnode.rack)"),
        &plain,
        &rule(RuleAction::Deny, "pcnode.rack == 'b' && !has(pcnode.gpu)"),
    ]);
    assert_eq!(text.value_for_typha(), &entry(&[&plain, &Rule::new(RuleAction::Deny)]).value);
    assert_eq!(text.value_in(WireFormat::OneNode).as_ref(), Some(&text.value));
    // A negated selector of nodes matches everything where they are unknown.
    let mut negated = Rule::new(RuleAction::Allow);
    negated.source.extras.not_selector = Some("has(pcnode.rack)".parse().unwrap());
    assert_eq!(entry(&[&negated]).value_for_typha(), &entry(&[]).value);
    let profile = |rules: &[&Rule]| {
        let inbound = rules.iter().copied().cloned().collect();
        let rules = ProfileRules { inbound, outbound: Arc::default() };
        Entry::new(&Update::ProfileRules("p".into(), Some(Valid::new(rules).unwrap())), None).unwrap()
    };
    let denies_nodes = rule(RuleAction::Deny, "has(pcnode.rack)");
    let expected = profile(&[&Rule::new(RuleAction::Deny), &plain]).value;
    assert_eq!(profile(&[&denies_nodes, &negated, &plain]).value_for_typha(), &expected);
    let plain = entry(&[&plain]);
    assert_eq!((plain.value_for_typha(), &plain.remote_view), (&plain.value, &RemoteView::Same));
}

#[test]
fn other_nodes_need_less_of_a_workload() {
    let update = |endpoint: &WorkloadEndpoint| {
        let key = WorkloadEndpointKey::new("a/b", "k8s", "ns/pod", "eth0");
        Update::WorkloadEndpoint(key, Some(Valid::new(endpoint.clone()).unwrap()))
    };
    let mut endpoint = WorkloadEndpoint {
        iface: Some("cali123".parse().unwrap()),
        ipv4_nets: ["10.0.0.1/32".parse::<Cidr>().unwrap()].into_iter().collect(),
        labels: Labels::from_pairs([("app", "web")]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let entry = Entry::new(&update(&endpoint), None).unwrap();
    let own = OwnPrefix::new(&"a/b".into()).unwrap();
    assert!(own.covers(&entry.path) && !OwnPrefix::new(&"a".into()).unwrap().covers(&entry.path));
    let RemoteView::Reduced { replacement, .. } = &entry.remote_view else { panic!("{entry:?}") };
    assert!(replacement.len() < 50, "{replacement:?}");
    let reduced = entry.value_in(WireFormat::OneNode).unwrap();
    let reduced = String::from_utf8_lossy(&reduced);
    assert!(reduced.contains("10.0.0.1") && reduced.contains("web") && !reduced.contains("cali123"), "{reduced}");
    let whole = Update::WorkloadEndpoint(
        WorkloadEndpointKey::new("a/b", "k8s", "ns/pod", "eth0"),
        Some(Valid::new(endpoint.clone()).unwrap().for_other_node()),
    );
    assert_eq!(reduced.as_bytes(), Entry::new(&whole, None).unwrap().value);

    // A change of an object that the nodes do not need concerns none of them.
    let now = Instant::now();
    let mut cache = Cache::new(Instance(1), CacheLimits::default(), now);
    for iface in ["cali1", "cali2"] {
        endpoint.iface = Some(iface.parse().unwrap());
        cache.apply(updates(vec![update(&endpoint)], now), now);
        cache.publish(now);
    }
    assert_eq!((cache.head().deltas.len(), cache.head().deltas[0].audience), (1, Audience::Own));
}

#[test]
fn a_reduced_value_comes_out_as_it_was() {
    let pairs = [("aaa", "aa"), ("aa", "aaa"), ("abcabc", "abc"), ("", "x"), ("x", ""), ("xay", "xby"), ("xy", "xy")];
    for (value, reduced) in pairs {
        let remote_view = RemoteView::reduced(value.as_bytes(), reduced.as_bytes());
        let entry = Entry { path: "/a".into(), value: value.into(), version: None, remote_view };
        assert_eq!(entry.value_in(WireFormat::OneNode).unwrap(), reduced, "{entry:?}");
    }
}

#[test]
fn a_long_trail_is_let_go_of_without_a_deep_stack() {
    let now = Instant::now();
    let mut cache = Cache::new(Instance(1), CacheLimits { log_bytes: 0, ..CacheLimits::default() }, now);
    let start = Arc::clone(cache.head());
    for number in 0..200_000 {
        cache.apply(Event::Status([SyncStatus::Resync, SyncStatus::InSync][number % 2]), now);
        cache.publish(now);
    }
    drop(cache);
    drop(start);
}

/// Two policies and a parameter.
fn object(name: usize, version: u8, is_large: bool) -> Update {
    if name == 2 {
        return config("C", &if is_large { "x".repeat(201) } else { version.to_string() });
    }
    let rules = if is_large { 100 } else { 1 };
    let policy = Policy {
        selector: format!("v == '{version}'").parse().unwrap(),
        inbound: vec![Rule::new(RuleAction::Allow); rules].into(),
        ..Policy::default()
    };
    Update::Policy(policy_id(name), Some(Valid::new(policy).unwrap()))
}

fn policy_id(name: usize) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("p{name}"))
}

fn denial(name: usize, version: u8) -> Bytes {
    let Update::Policy(id, Some(policy)) = object(name, version, false) else { panic!("a policy") };
    let denial = policy.denying(&id.kind, policy.selector.clone());
    Entry::new(&Update::Policy(id, Some(denial)), None).unwrap().value
}

proptest! {
    /// A version that is too large leaves the last valid one in force, or is replaced by a denial
    /// of the endpoints that it selects.
    #[test]
    fn unsendable_values_are_replaced_as_in_the_model(
        steps in prop::collection::vec((0..3usize, prop::option::weighted(0.8, (0..3u8, any::<bool>()))), 0..40),
    ) {
        let now = Instant::now();
        let mut cache = Cache::new(Instance(1), CacheLimits { value_bytes: 200, ..CacheLimits::default() }, now);
        // The version in force, and the fallback if it is not the written one.
        let mut model: [(Option<u8>, Option<Fallback>); 3] = Default::default();
        let mut problems = Vec::new();
        for (name, written) in steps {
            let update = match written {
                Some((version, is_large)) => object(name, version, is_large),
                None => Update::delete(object(name, 0, false).key()),
            };
            let (in_force, fallback) = &mut model[name];
            (*in_force, *fallback) = match (written, *in_force, *fallback) {
                (None, ..) => (None, None),
                (Some((version, false)), ..) => (Some(version), None),
                (Some(_), Some(good), None | Some(Fallback::LastGood)) => (Some(good), Some(Fallback::LastGood)),
                (Some((version, true)), ..) if name < 2 => (Some(version), Some(Fallback::Denied)),
                (Some(_), ..) => (None, Some(Fallback::Nothing)),
            };
            cache.apply(updates(vec![update], now), now);
            cache.publish(now);
            if let Some(refused) = cache.changed_refused() {
                problems = refused;
            }
            let entries = cache.snapshot().entries;
            for (name, (in_force, fallback)) in model.iter().enumerate() {
                let key = object(name, 0, false).key();
                let found = entries.get(&path::to_path(&key).unwrap()).map(|entry| entry.value.clone());
                let expected = in_force.map(|version| match fallback {
                    Some(Fallback::Denied) => denial(name, version),
                    _ => Entry::new(&object(name, version, false), None).unwrap().value,
                });
                prop_assert_eq!(found, expected);
                let problem = problems.iter().find(|problem| problem.subject == key.to_string());
                prop_assert_eq!(problem.map(|problem| problem.fallback), *fallback);
            }
        }
        for name in 0..3 {
            cache.apply(updates(vec![Update::delete(object(name, 0, false).key())], now), now);
        }
        cache.publish(now);
        prop_assert!(cache.snapshot().entries.is_empty() && cache.refused.is_empty());
    }

    /// A client that joins at any time and follows the trail ends up with the objects of the
    /// source.
    #[test]
    fn all_subscriptions_end_up_equal(
        steps in prop::collection::vec((prop::collection::vec((0..12u8, prop::option::of(0..4u8)), 0..8), any::<bool>()), 1..30),
    ) {
        let now = Instant::now();
        let mut cache = Cache::new(Instance(1), CacheLimits { breadcrumb_deltas: 3, ..CacheLimits::default() }, now);
        let mut truth = BTreeMap::new();
        let mut joined = vec![cache.snapshot()];
        for (step, publish) in steps {
            let mut changes = Vec::new();
            for (name, value) in step {
                let name = name.to_string();
                let path = format!("/calico/v1/config/{name}");
                match value {
                    Some(value) => {
                        truth.insert(path, value.to_string());
                        changes.push(config(&name, &value.to_string()));
                    }
                    None => {
                        truth.remove(&path);
                        changes.push(Update::delete(Key::GlobalConfig(name.as_str().into())));
                    }
                }
            }
            cache.apply(updates(changes, now), now);
            if publish {
                cache.publish(now);
            }
            joined.push(cache.snapshot());
        }
        cache.publish(now);
        for snapshot in joined {
            let mut known: BTreeMap<String, String> = BTreeMap::new();
            let text = |entry: &Entry| String::from_utf8(entry.value.to_vec()).unwrap();
            known.extend(snapshot.entries.iter().map(|entry| (entry.path.to_string(), text(entry))));
            let mut breadcrumb = snapshot.breadcrumb;
            while let Some(next) = breadcrumb.next().cloned() {
                prop_assert_eq!(next.sequence, breadcrumb.sequence + 1);
                for delta in &next.deltas {
                    match &delta.entry {
                        Some(entry) => {
                            let before = known.insert(delta.path.to_string(), text(entry));
                            prop_assert_eq!(before.is_some(), delta.change == Change::Updated);
                        }
                        None => prop_assert!(known.remove(&*delta.path).is_some()),
                    }
                }
                breadcrumb = next;
            }
            prop_assert_eq!(&known, &truth);
        }
    }
}
