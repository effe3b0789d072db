//! Worst cases of a cluster: endpoints, labels, selectors, rules or members of the most expensive
//! sort, each loaded and then changed.

use std::net::Ipv6Addr;
use std::sync::Arc;

use tortie_model::{
    Cidr, EntityMatch, Interner, Key, Labels, NetworkSet, NetworkSetName, Policy, PolicyId, PolicyKind, Profile,
    ProfileName, Rule, RuleAction, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;

use crate::snapshot::{self, NAMESPACES};
use crate::{Counts, Input, LOCAL, REMOTE, Scenario, address};

/// Endpoints of this node in each case; policies that must become active select all of them.
const LOCALS: u32 = 100;
/// Number of profiles that endpoints use in turn, unless all use one. They have no other contents.
const PROFILES: u32 = 100;
/// Number of configuration messages.
const CONFIGURATION: usize = 3;

/// A label in selectors has a different value on every endpoint; then selectors use another label.
pub(crate) fn own_group(endpoints: u32) -> Scenario {
    let labels = |n: u32| [("pod".to_owned(), format!("pod-{n}")), ("env".to_owned(), format!("env-{}", n % 7))];
    let all = (endpoints + LOCALS) as usize;
    Scenario {
        input: Input {
            feeds: feeds(vec![policy("guard", ["pod != 'x'"])], endpoints_with(endpoints, PROFILES, labels)),
            changes: vec![policy("late", ["env != 'x'"])],
            ..Input::default()
        },
        expected: two_policies(2 * all),
        unit: Some(("endpoint", endpoints + LOCALS)),
        ..Scenario::default()
    }
}

/// Every endpoint has a unique label; then a selector matches one of them.
pub(crate) fn own_shape(endpoints: u32) -> Scenario {
    let labels = |n: u32| [("app".to_owned(), "web".to_owned()), (format!("label-{n}"), "true".to_owned())];
    Scenario {
        input: Input {
            feeds: feeds(vec![policy("guard", ["has(label-1)"])], endpoints_with(endpoints, PROFILES, labels)),
            changes: vec![policy("late", ["has(label-2)"])],
            ..Input::default()
        },
        expected: two_policies(2),
        unit: Some(("endpoint", endpoints + LOCALS)),
        ..Scenario::default()
    }
}

/// Selectors first use labels when all endpoints exist.
pub(crate) fn late_labels(endpoints: u32, number: usize) -> Scenario {
    let labels = &SHARES[..number];
    let rules = labels.iter().map(|&share| format!("one-in-{share} == 'value-3'"));
    let members = labels.iter().map(|&share| tagged(endpoints).filter(|(seed, _)| seed % share == 3).count()).sum();
    let locals = LOCALS as usize;
    let mut scenario = tagged_cluster(endpoints, Vec::new(), vec![policy("late", rules)]);
    scenario.expected = Counts {
        messages: scenario.expected.messages + labels.len() + 1 + locals,
        sets: labels.len(),
        members,
        policies: 1,
        endpoints: 2 * locals,
        references: 2 * locals,
        ..Counts::default()
    };
    scenario
}

/// All children of a profile, distinguished by another label, move from one set to another.
pub(crate) fn children(endpoints: u32) -> Scenario {
    let labels = |n: u32| [("pod".to_owned(), format!("pod-{n}"))];
    let all = (endpoints + LOCALS) as usize;
    let locals = LOCALS as usize;
    let rules = ["pod != 'x'", "team == 'a'", "team == 'b'"];
    let mut feeds = feeds(vec![policy("guard", rules)], endpoints_with(endpoints, 1, labels));
    feeds.insert(1, ("profile", vec![team("a")]));
    Scenario {
        input: Input { feeds, changes: vec![team("b")], ..Input::default() },
        expected: Counts {
            messages: CONFIGURATION + 1 + (3 + 1 + locals) + 2,
            sets: 3,
            members: 2 * all,
            joined: all,
            left: all,
            policies: 1,
            endpoints: locals,
            references: 2 * locals,
            ..Counts::default()
        },
        unit: Some(("endpoint", endpoints + LOCALS)),
        ..Scenario::default()
    }
}

/// With many groups, a selector matches all of them.
pub(crate) fn all(endpoints: u32) -> Scenario {
    let locals = LOCALS as usize;
    let before = ["one-in-30 == 'value-3'", "one-in-20 == 'value-3'"];
    let of_before = [30, 20].map(|share| tagged(endpoints).filter(|(seed, _)| seed % share == 3).count());
    let mut scenario = tagged_cluster(endpoints, vec![policy("guard", before)], vec![policy("late", ["all()"])]);
    scenario.expected = Counts {
        messages: scenario.expected.messages + (2 + 1) + (1 + 1 + locals),
        sets: 3,
        members: of_before.iter().sum::<usize>() + (endpoints + LOCALS) as usize,
        policies: 2,
        endpoints: 2 * locals,
        references: 2 * locals + 4 * locals,
        ..Counts::default()
    };
    scenario
}

/// The only policy that uses five labels is deleted, and groups that differ only in these are
/// merged some flushes later.
pub(crate) fn labels_without_users(endpoints: u32) -> Scenario {
    let rules = SHARES.map(|share| format!("one-in-{share} == 'value-3'"));
    let members = SHARES.map(|share| tagged(endpoints).filter(|(seed, _)| seed % share == 3).count());
    let locals = LOCALS as usize;
    let Update::Policy(id, _) = policy("guard", ["all()"]) else { unreachable!("a policy") };
    let deletions = vec![Update::delete(Key::Policy(id))];
    let mut scenario = tagged_cluster(endpoints, vec![policy("guard", rules)], deletions);
    scenario.input.idle_flushes = 100;
    scenario.expected = Counts {
        messages: scenario.expected.messages + (SHARES.len() + 1) + (SHARES.len() + 1 + locals),
        sets: SHARES.len(),
        members: members.iter().sum(),
        policies: 1,
        endpoints: 2 * locals,
        references: 2 * locals,
        ..Counts::default()
    };
    scenario
}

/// A policy with this number of rules, each with a distinct selector, of which one changes.
pub(crate) fn policy_of_rules(rules: u32) -> Scenario {
    let labels = |n: u32| [("app".to_owned(), format!("app-{n}"))];
    let selectors = |first: u32| (first..first + rules).map(|n| format!("app == 'app-{n}'")).collect::<Vec<_>>();
    let locals = LOCALS as usize;
    let mut changed = selectors(0);
    changed[0] = format!("app == 'app-{rules}'");
    Scenario {
        input: Input {
            feeds: feeds(vec![policy("guard", selectors(0))], endpoints_with(rules, PROFILES, labels)),
            changes: vec![policy("guard", changed)],
            ..Input::default()
        },
        expected: Counts {
            messages: CONFIGURATION + PROFILES as usize + (rules as usize + 1 + locals) + (1 + 1 + 1),
            sets: rules as usize + 1,
            members: rules as usize + 1,
            policies: 2,
            endpoints: locals,
            references: 2 * locals,
            ..Counts::default()
        },
        unit: Some(("rule", rules)),
        ..Scenario::default()
    }
}

/// Network sets of a thousand members each that form one IP set; one member is replaced.
pub(crate) fn set_of_a_thousand_each(network_sets: u32, length: u8) -> Scenario {
    let locals = LOCALS as usize;
    let net = |n: u32| {
        let address = Ipv6Addr::from_bits(0xfd << 120 | u128::from(n) << 64);
        Cidr::new(address.into(), length).expect("a length of IPv6")
    };
    let labels = Labels::from_pairs([("role", "blocked")]).expect("short values");
    let set = |n: u32, first: u32| {
        let nets = (first..first + 1_000).map(net).collect();
        let value = NetworkSet { nets, labels: labels.clone(), ..NetworkSet::default() };
        let value = Valid::new(value).expect("valid");
        Update::NetworkSet(NetworkSetName::new(format!("blocked-{n}")), Some(value))
    };
    let mut feeds = feeds(vec![policy("guard", ["role == 'blocked'"])], endpoints_with(0, PROFILES, |_| []));
    feeds.push(("network sets", (0..network_sets).map(|n| set(n, 1_000 * n)).collect()));
    let last = network_sets - 1;
    Scenario {
        input: Input { feeds, changes: vec![set(last, 1_000 * last + 1)], ..Input::default() },
        expected: Counts {
            messages: CONFIGURATION + PROFILES as usize + (1 + 1 + locals) + 1,
            sets: 1,
            members: 1_000 * network_sets as usize,
            joined: 1,
            left: 1,
            policies: 1,
            endpoints: locals,
            references: 2 * locals,
            ..Counts::default()
        },
        unit: Some(("member", 1_000 * network_sets)),
        ..Scenario::default()
    }
}

/// Returns the messages for two successive policies with one IP set each.
fn two_policies(members: usize) -> Counts {
    let locals = LOCALS as usize;
    Counts {
        messages: CONFIGURATION + PROFILES as usize + 2 * (1 + 1 + locals),
        sets: 2,
        members,
        policies: 2,
        endpoints: 2 * locals,
        references: 2 * locals + 4 * locals,
        ..Counts::default()
    }
}

/// Labels of tagged endpoints; each has as many values as its name states.
const SHARES: [u32; 5] = [10, 11, 20, 30, 40];

/// Returns endpoints with one of 29 tags and five labels, in 100 namespaces. The expected messages
/// are those without policies.
fn tagged_cluster(endpoints: u32, policies: Vec<Update>, changes: Vec<Update>) -> Scenario {
    let (namespaces, remote, local) = snapshot::tagged_endpoints(endpoints, LOCALS);
    let (locals, namespaces_sent) = (LOCALS as usize, NAMESPACES as usize);
    let of_namespaces = locals.min(namespaces_sent) + namespaces_sent;
    Scenario {
        input: Input {
            feeds: vec![
                ("policies", policies),
                ("profiles", namespaces),
                ("remote endpoints", remote),
                ("local endpoints", local),
            ],
            changes,
            ..Input::default()
        },
        expected: Counts { messages: CONFIGURATION + of_namespaces + locals, ..Counts::default() },
        unit: Some(("endpoint", endpoints + LOCALS)),
        ..Scenario::default()
    }
}

/// Returns the seeds of tagged endpoints, which determine their labels, and their namespaces.
fn tagged(endpoints: u32) -> impl Iterator<Item = (u32, u32)> {
    let numbers = (0..endpoints).chain(0..LOCALS);
    (1..).zip(numbers).map(|(seed, n)| (seed, n % NAMESPACES))
}

fn feeds(policies: Vec<Update>, endpoints: Vec<Update>) -> Vec<(&'static str, Vec<Update>)> {
    vec![("policies", policies), ("endpoints", endpoints)]
}

/// Returns this number of endpoints of another node and [`LOCALS`] of this one, with these labels
/// and profiles in turn.
fn endpoints_with<const N: usize>(
    remote: u32,
    profiles: u32,
    labels: impl Fn(u32) -> [(String, String); N],
) -> Vec<Update> {
    let mut interner = Interner::new();
    let profiles: Vec<Arc<[ProfileName]>> = (0..profiles).map(|n| [profile(n)].into()).collect();
    let mut endpoint = |n: u32| {
        let host = if n < remote { REMOTE } else { LOCAL };
        let endpoint = WorkloadEndpoint {
            iface: Some(format!("cali{n:x}").parse().expect("an interface name")),
            profiles: Arc::clone(&profiles[n as usize % profiles.len()]),
            ipv6_nets: [address(n + 1)].into_iter().collect(),
            labels: interner.labels(labels(n)).expect("short values"),
            ..WorkloadEndpoint::default()
        };
        let key = WorkloadEndpointKey::new(host, "k8s", &format!("wep-{n}"), "eth0");
        interner.share(Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).expect("valid"))))
    };
    (0..remote + LOCALS).map(&mut endpoint).collect()
}

fn profile(n: u32) -> ProfileName {
    ProfileName::new(format!("profile-{n}"))
}

fn team(name: &str) -> Update {
    let labels = Labels::from_pairs([("team", name)]).expect("short values");
    Update::Profile(profile(0), Some(Valid::new(Profile { labels }).expect("valid")))
}

/// Returns a policy for all endpoints that allows ingress from the endpoints of these selectors.
fn policy<S: AsRef<str>>(name: &str, sources: impl IntoIterator<Item = S>) -> Update {
    let allow_from = |selector: S| {
        let selector = Some(Selector::parse(selector.as_ref()).expect("a selector"));
        Rule { source: EntityMatch { selector, ..EntityMatch::default() }, ..Rule::new(RuleAction::Allow) }
    };
    let policy = Policy { inbound: sources.into_iter().map(allow_from).collect(), ..Policy::default() };
    Update::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name), Some(Valid::new(policy).expect("valid")))
}
