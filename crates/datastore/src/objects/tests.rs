use std::collections::BTreeSet;

use proptest::prelude::*;
use tortie_model::{Interner, Key, Update};
use tortie_resources::manifest::{Options, PolicyNames, UnknownFields, read_object};

use super::*;

fn id(kind: Kind, name: &str) -> ObjectId {
    let namespace = if kind.is_namespaced() { "shop" } else { "" };
    ObjectId { kind, namespace: namespace.into(), name: name.into() }
}

fn resource(id: &ObjectId, rest: &str) -> Resource {
    resource_with(id, rest, &mut Interner::new())
}

fn resource_with(id: &ObjectId, rest: &str, interner: &mut Interner) -> Resource {
    let options =
        Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Prefixed, ..Options::default() };
    let json = format!(r#"{{"metadata": {{"name": "{}", "namespace": "{}"}}{rest}}}"#, id.name, id.namespace);
    read_object(&json, id.kind, &options, interner).expect("JSON")
}

fn pod(name: &str, node: &str, address: &str, interner: &mut Interner) -> (ObjectId, Resource) {
    let id = id(Kind::Pod, name);
    let ports = r#""containers": [{"ports": [{"name": "http", "containerPort": 80}]}]"#;
    let rest = format!(
        r#", "spec": {{"nodeName": "{node}", "serviceAccountName": "a", {ports}}}, "status": {{"podIPs": [{{"ip": "{address}"}}]}}"#
    );
    let resource = resource_with(&id, &rest, interner);
    (id, resource)
}

/// Returns objects whose updates have been taken.
fn objects_in_force() -> Objects {
    let mut objects = Objects::new();
    assert_eq!(objects.take_updates().len(), crate::built_in::COUNT, "the built-in objects");
    objects
}

#[test]
fn endpoints_of_other_nodes_are_reduced_and_share_equal_parts() {
    let (mut objects, mut interner) = (Objects::of_node(Hostname::new("n1")), Interner::new());
    for (name, node, address) in [("a", "n1", "10.0.0.1"), ("b", "n2", "10.0.0.2"), ("c", "n2", "10.0.0.3")] {
        let (id, resource) = pod(name, node, address, &mut interner);
        objects.set(&id, resource);
    }
    let endpoints: Vec<_> = objects
        .take_updates()
        .into_iter()
        .filter_map(|update| match update {
            Update::WorkloadEndpoint(_, endpoint) => endpoint,
            _ => None,
        })
        .collect();
    let [a, b, c] = &endpoints[..] else { panic!("{endpoints:?}") };
    assert!(a.iface.is_some_and(|iface| iface.as_str().starts_with("cali")));
    assert_eq!(b.iface, Some("remote".parse().unwrap()));
    assert_eq!((b.nets().count(), b.ports.len(), b.profiles.len()), (1, 1, 2));
    assert!(Arc::ptr_eq(&a.profiles, &c.profiles));
    assert!(Arc::ptr_eq(&a.ports[0].name, &c.ports[0].name));
}

#[test]
fn policies_that_need_the_same_tier_do_not_contend() {
    let mut objects = objects_in_force();
    let tier = id(Kind::Tier, "adminnetworkpolicy");
    for name in ["a", "b"] {
        let id = id(Kind::AdminNetworkPolicy, name);
        objects.set(&id, resource(&id, r#", "spec": {"priority": 1, "subject": {"namespaces": {}}}"#));
    }
    objects.set(&tier, resource(&tier, r#", "spec": {"order": 1000, "defaultAction": "Pass"}"#));
    let tiers = |updates: &[Update]| updates.iter().filter(|update| matches!(update.key(), Key::Tier(_))).count();
    assert_eq!((tiers(&objects.take_updates()), objects.problems()), (1, Vec::new()));
    objects.remove(&tier);
    objects.remove(&id(Kind::AdminNetworkPolicy, "a"));
    assert_eq!(tiers(&objects.take_updates()), 0, "another policy still needs the tier");
    objects.remove(&id(Kind::AdminNetworkPolicy, "b"));
    assert_eq!(tiers(&objects.take_updates()), 1);
}

#[test]
fn the_tiers_of_every_cluster_have_their_places() {
    let mut objects = Objects::new();
    for name in ["last", "unplaced"] {
        let id = id(Kind::Tier, name);
        objects.set(&id, resource(&id, if name == "last" { r#", "spec": {"order": 2000000}"# } else { "" }));
    }
    let mut tiers: Vec<(f64, String)> = objects
        .take_updates()
        .iter()
        .filter_map(|update| match update {
            Update::Tier(name, Some(tier)) => {
                Some((tier.order.map_or(f64::INFINITY, tortie_model::Order::get), name.to_string()))
            }
            _ => None,
        })
        .collect();
    tiers.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let names: Vec<&str> = tiers.iter().map(|(_, name)| &**name).collect();
    assert_eq!(names, ["kube-admin", "default", "unplaced", "last", "kube-baseline"]);
}

#[test]
fn a_datastore_is_ready_unless_cluster_information_denies_it() {
    let mut objects = Objects::new();
    let ready = |updates: &[Update]| {
        updates.iter().filter(|update| matches!(update, Update::Ready(_))).cloned().collect::<Vec<_>>()
    };
    let expected = |ready: bool| vec![Update::Ready(Some(ready))];
    assert_eq!(ready(&objects.take_updates()), expected(true));
    let information = id(Kind::ClusterInformation, "default");
    objects.set(&information, resource(&information, r#", "spec": {"datastoreReady": false}"#));
    assert_eq!(ready(&objects.take_updates()), expected(false));
    objects.remove(&information);
    assert_eq!(ready(&objects.take_updates()), expected(true));
}

#[test]
fn a_written_object_overrides_a_built_in_one_while_it_exists() {
    let mut objects = objects_in_force();
    let profile = id(Kind::Profile, "projectcalico-default-allow");
    objects.set(&profile, resource(&profile, r#", "spec": {"labelsToApply": {"a": "b"}}"#));
    assert_eq!(objects.take_updates().len(), 2);
    objects.remove(&profile);
    let restored = objects.take_updates();
    assert!(restored.len() == 2 && restored.iter().all(Update::exists));
    assert!(objects.is_empty());
}

#[test]
fn a_policy_goes_by_its_name_in_the_datastore() {
    let mut objects = objects_in_force();
    let policy = id(Kind::NetworkPolicy, "default.web");
    objects.set(&policy, resource(&policy, r#", "spec": {"selector": "all()"}"#));
    let updates = objects.take_updates();
    assert!(matches!(&updates[0].key(), Key::Policy(id) if &*id.name == "web"), "{updates:?}");
    objects.remove(&policy);
    assert_eq!(objects.take_updates().len(), 1);
}

#[test]
fn problems_are_returned_when_they_may_have_changed() {
    let mut objects = objects_in_force();
    assert_eq!(objects.changed_problems(), Some(vec![]));
    let pools = ["b", "a"].map(|name| id(Kind::IpPool, name));
    for (pool, nat) in pools.iter().zip([true, false]) {
        objects.set(pool, resource(pool, &format!(r#", "spec": {{"cidr": "10.0.0.0/16", "natOutgoing": {nat}}}"#)));
    }
    let texts: Vec<String> = objects.changed_problems().unwrap_or_default().iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["IPPool/b: stands for the same as IPPool/a, which counts"]);
    assert_eq!(objects.changed_problems(), None);
    let broken = Resource::unreadable(
        "IPPool/a",
        tortie_resources::SyntaxError { position: Position::default(), message: "is not JSON".into() },
    );
    objects.set(&pools[1], broken);
    let problems = objects.changed_problems().unwrap_or_default();
    assert_eq!(problems[0].fallback, Fallback::LastGood);
    objects.remove(&pools[1]);
    assert_eq!(objects.changed_problems(), Some(vec![]));
}

const KINDS: [Kind; 3] = [Kind::GlobalNetworkPolicy, Kind::IpPool, Kind::Namespace];
const NAMES: [&str; 3] = ["x", "y", "z"];

/// Operation of a datastore.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An object is this version; odd ones are not valid.
    Set {
        kind: usize,
        name: usize,
        version: u8,
    },
    Remove {
        kind: usize,
        name: usize,
    },
    Begin {
        kind: usize,
    },
    End {
        kind: usize,
    },
    Take,
}

/// Returns a version of an object. Versions 0, 2 and 4 are valid; of a policy 1 and 5 have a
/// substitute. Pools x and y claim one network, and so does z in version 2.
fn version(id: &ObjectId, version: u8) -> Resource {
    if version == 3 {
        return Resource::unreadable(
            id.to_string(),
            tortie_resources::SyntaxError { position: Position::default(), message: "is not JSON".into() },
        );
    }
    let rest = match (id.kind, version) {
        (Kind::GlobalNetworkPolicy, 1 | 5) => {
            format!(r#", "spec": {{"selector": "has(v{version})", "ingress": [{{"action": "No"}}]}}"#)
        }
        (Kind::GlobalNetworkPolicy, _) => format!(r#", "spec": {{"selector": "all()", "order": {version}}}"#),
        (Kind::IpPool, 1 | 5) => r#", "spec": {"cidr": "10.0.0.0/99"}"#.to_owned(),
        (Kind::IpPool, _) => {
            let cidr = if &*id.name == "z" && version == 0 { "10.1.0.0/16" } else { "10.0.0.0/16" };
            format!(r#", "spec": {{"cidr": "{cidr}", "natOutgoing": {}}}"#, version == 2)
        }
        (_, 1 | 5) => r#", "metadata": {}"#.to_owned(),
        (_, _) => format!(r#", "spec": {{"v": {version}}}"#),
    };
    resource(id, &rest)
}

fn step() -> impl Strategy<Value = Step> {
    let (kind, name) = (0..KINDS.len(), 0..NAMES.len());
    prop_oneof![
        8 => (kind.clone(), name.clone(), 0..6u8).prop_map(|(kind, name, version)| Step::Set { kind, name, version }),
        2 => (kind.clone(), name).prop_map(|(kind, name)| Step::Remove { kind, name }),
        1 => kind.clone().prop_map(|kind| Step::Begin { kind }),
        2 => kind.prop_map(|kind| Step::End { kind }),
        2 => Just(Step::Take),
    ]
}

/// The documented rules: the versions of each object that take effect.
#[derive(Debug, Default)]
struct Model {
    /// The last valid version, or else the last one with a substitute, of each existing object.
    versions: BTreeMap<(usize, usize), Option<u8>>,
    listed: BTreeMap<usize, BTreeSet<usize>>,
}

impl Model {
    fn take(&mut self, step: Step) {
        match step {
            Step::Set { kind, name, version } => {
                self.listed.entry(kind).or_default().insert(name);
                let counts = self.versions.entry((kind, name)).or_default();
                let good = version % 2 == 0;
                let substituted = KINDS[kind] == Kind::GlobalNetworkPolicy && matches!(version, 1 | 5);
                if good || substituted && counts.is_none_or(|counts| counts % 2 == 1) {
                    *counts = Some(version);
                }
            }
            Step::Remove { kind, name } => {
                self.versions.remove(&(kind, name));
            }
            Step::Begin { kind } => {
                self.listed.insert(kind, BTreeSet::new());
            }
            Step::End { kind } => {
                let listed = self.listed.entry(kind).or_default();
                self.versions.retain(|(of, name), _| *of != kind || listed.contains(name));
            }
            Step::Take => {}
        }
    }

    /// Returns the objects in force: the first of the objects that claim a key.
    fn in_force(&self) -> BTreeMap<Key, Update> {
        let mut claims: Vec<(ObjectId, u8)> = Vec::new();
        for ((kind, name), counts) in &self.versions {
            claims.extend(counts.map(|counts| (id(KINDS[*kind], NAMES[*name]), counts)));
        }
        claims.sort();
        let mut in_force = BTreeMap::new();
        for (id, counts) in claims.into_iter().rev() {
            use tortie_resources::manifest::Outcome;
            let (Outcome::Valid(found) | Outcome::Invalid { substitute: Some(found) }) = version(&id, counts).outcome
            else {
                panic!("{id}: {counts}")
            };
            in_force.extend(found.into_iter().map(|update| (update.key(), update)));
        }
        for update in crate::built_in::objects() {
            in_force.entry(update.key()).or_insert(update);
        }
        in_force
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_history_matches_the_model(steps in prop::collection::vec(step(), 0..60)) {
        let (mut objects, mut model) = (Objects::new(), Model::default());
        let mut known = BTreeMap::new();
        for step in steps.into_iter().chain([Step::Take]) {
            model.take(step);
            match step {
                Step::Set { kind, name, version: number } => {
                    let id = id(KINDS[kind], NAMES[name]);
                    objects.set(&id, version(&id, number));
                }
                Step::Remove { kind, name } => objects.remove(&id(KINDS[kind], NAMES[name])),
                Step::Begin { kind } => objects.begin_list(KINDS[kind]),
                Step::End { kind } => objects.end_list(KINDS[kind]),
                Step::Take => {
                    let updates = objects.take_updates();
                    prop_assert!(updates.is_sorted_by_key(Update::key));
                    for update in updates {
                        let old = update.clone().apply_to(&mut known);
                        let changes = if update.exists() { old.as_ref() != Some(&update) } else { old.is_some() };
                        prop_assert!(changes, "{update:?} changes nothing");
                    }
                    prop_assert_eq!(&known, &model.in_force());
                    let snapshot: Vec<_> = known.values().cloned().collect();
                    prop_assert_eq!(objects.snapshot(), snapshot);
                    prop_assert_eq!(objects.len(), model.versions.len());
                }
            }
        }
        for kind in KINDS {
            objects.begin_list(kind);
            objects.end_list(kind);
        }
        let before = known.len();
        prop_assert_eq!(objects.take_updates().len() , before - crate::built_in::COUNT);
        prop_assert!(objects.is_empty() && objects.register.is_empty() && objects.problems().is_empty());
    }
}

#[test]
fn versions_are_kept_where_they_are_wanted() {
    let policy = id(Kind::NetworkPolicy, "p");
    let spec = |order: &str| format!(r#", "spec": {{"order": {order}, "ingress": []}}"#);
    let mut without = Objects::new();
    without.set(&policy, resource(&policy, &spec("1")));
    without.set_version(&policy, 1);
    let updates = without.take_updates();
    assert!(without.at_versions(updates).all(|(_, version)| version.is_none()));

    let (mut objects, mut interner) = (Objects::new().with_versions(), Interner::new());
    let sent_versions = |objects: &Objects| -> Vec<(String, String)> {
        let versions = objects.at_versions(objects.snapshot());
        versions.filter_map(|(update, version)| Some((update.key().to_string(), version?.to_string()))).collect()
    };
    let (pod_id, pod) = pod("a", "n1", "10.0.0.1", &mut interner);
    objects.set(&pod_id, pod);
    objects.set_version(&pod_id, 3);
    objects.set(&policy, resource(&policy, &spec("1")));
    objects.set_version(&policy, 4);
    let [(pod, at), (name, _)] = &sent_versions(&objects)[..] else { panic!("{:?}", sent_versions(&objects)) };
    let (pod, name) = ((pod.clone(), at.clone()), name.clone());
    assert_eq!((pod.1.as_str(), sent_versions(&objects)), ("3", vec![pod.clone(), (name.clone(), "4".to_owned())]));
    // Another object with the same claims, which is ignored.
    let other = id(Kind::Pod, "b");
    let (_, claims) = self::pod("a", "n1", "10.0.0.1", &mut interner);
    objects.set(&other, claims);
    objects.set_version(&other, 9);
    assert_eq!(sent_versions(&objects)[0], pod, "the first one counts");
    objects.remove(&other);
    // An object that equals a built-in one.
    let default = id(Kind::Tier, "default");
    let tier = r#", "spec": {"order": 1000000, "defaultAction": "Deny"}"#;
    let versions_of = |objects: &Objects, updates: Vec<Update>| -> Vec<Option<String>> {
        objects.at_versions(updates).map(|(_, version)| version.map(|version| version.to_string())).collect()
    };
    objects.take_updates();
    objects.set(&default, resource(&default, tier));
    objects.set_version(&default, 6);
    let updates = objects.take_updates();
    assert_eq!(versions_of(&objects, updates), [Some("6".to_owned())]);
    objects.remove(&default);
    let updates = objects.take_updates();
    assert_eq!(versions_of(&objects, updates), [None], "built-in objects have no version");
    // An unusable object has its own version, while its last valid version is in force.
    objects.set(&policy, resource(&policy, &spec("\"high\"")));
    objects.set_version(&policy, 5);
    assert_eq!((sent_versions(&objects), objects.problems().len()), (vec![pod, (name, "5".to_owned())], 1));
    objects.remove(&pod_id);
    objects.remove(&policy);
    assert_eq!(sent_versions(&objects), []);
    objects.set(&policy, resource(&policy, &spec("1")));
    objects.set_version(&policy, 7);
    objects.begin_list(Kind::NetworkPolicy);
    objects.end_list(Kind::NetworkPolicy);
    assert_eq!(sent_versions(&objects), []);
}

#[test]
fn an_object_that_stands_for_the_same_policy_closes_selected_endpoints() {
    let spec =
        |selector: &str| format!(r#", "spec": {{"selector": "{selector}", "ingress": [{{"action": "Allow"}}]}}"#);
    let policies = |objects: &Objects| {
        let policy = |update: Update| match update {
            Update::Policy(id, Some(policy)) => Some(format!("{}: {}", id.name, policy.selector.text())),
            _ => None,
        };
        objects.snapshot().into_iter().filter_map(policy).collect::<Vec<_>>()
    };
    let mut objects = objects_in_force();
    let [prefixed, plain] = ["default.web", "web"].map(|name| id(Kind::GlobalNetworkPolicy, name));
    objects.set(&plain, resource(&plain, &spec("has(b)")));
    objects.set(&prefixed, resource(&prefixed, &spec("has(a)")));
    objects.take_updates();
    assert_eq!(policies(&objects), ["tortie-contested.web.0: has(b)", "web: has(a)"]);
    assert_eq!(objects.len(), 2);
    let fallbacks: Vec<Fallback> = objects.problems().iter().map(|problem| problem.fallback).collect();
    assert_eq!(fallbacks, [Fallback::Denied]);
    // A new listing without the denial, which is no object of the datastore.
    objects.begin_list(Kind::GlobalNetworkPolicy);
    objects.set(&plain, resource(&plain, &spec("has(c)")));
    objects.set(&prefixed, resource(&prefixed, &spec("has(a)")));
    objects.end_list(Kind::GlobalNetworkPolicy);
    objects.take_updates();
    assert_eq!(policies(&objects), ["tortie-contested.web.0: has(c)", "web: has(a)"]);
    // A policy with the name of the denial does not remove the denial.
    let imposter = id(Kind::GlobalNetworkPolicy, "tortie-contested.web.0");
    objects.set(&imposter, resource(&imposter, &spec("has(d)")));
    objects.take_updates();
    let renamed = "tortie-contested.tortie-contested.web.0.0: has(c)";
    assert_eq!(policies(&objects), [renamed, "tortie-contested.web.0: has(d)", "web: has(a)"]);
    objects.remove(&imposter);
    objects.set(&plain, resource(&plain, &spec("has(a)")));
    objects.take_updates();
    assert_eq!(policies(&objects), ["web: has(a)"]);
    objects.remove(&plain);
    objects.remove(&prefixed);
    objects.take_updates();
    assert!(objects.is_empty() && policies(&objects).is_empty());
}
