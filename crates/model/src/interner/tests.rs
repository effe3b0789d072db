use tortie_selector::Selector;

use super::*;
use crate::{
    EndpointPort, EntityMatch, NamedProtocol, Policy, PolicyId, PolicyKind, Profile, ProfileName, Protocol, Rule,
    RuleAction, TierName, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

#[test]
fn equal_values_are_held_once() {
    let mut interner = Interner::new();
    let pairs = [("b", "2"), ("a", "1")];
    let (one, other) = (interner.labels(pairs).unwrap(), interner.labels([("a", "1"), ("b", "2")]).unwrap());
    assert_eq!(one, Labels::from_pairs(pairs).unwrap());
    assert!(one.is_made_of(other.shape().unwrap(), other.parts().unwrap().1));
    assert!(std::ptr::eq(one.get("a").unwrap(), other.get("a").unwrap()));
}

fn policy(name: &str, selector: &str) -> Update {
    let parse = || Selector::parse(selector).unwrap();
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source = EntityMatch { selector: Some(parse()), ..EntityMatch::default() };
    rule.source.extras.original.selector = Some(parse());
    let policy = Policy {
        namespace: Some("shop".into()),
        tier: TierName::new("security"),
        selector: parse(),
        inbound: [rule].into(),
        ..Policy::default()
    };
    Update::Policy(PolicyId::new(PolicyKind::NetworkPolicy, "shop", name), Some(Valid::new(policy).unwrap()))
}

fn selectors(update: &Update) -> [&Selector; 3] {
    let Update::Policy(_, Some(policy)) = update else { panic!("{update:?}") };
    let source = &policy.inbound[0].source;
    [&policy.selector, source.selector.as_ref().unwrap(), source.extras.original.selector.as_ref().unwrap()]
}

#[test]
fn policies_share_selectors_tiers_and_namespaces() {
    let mut interner = Interner::new();
    let written = policy("q", " has( a )");
    let (one, other) = (interner.share(policy("p", "has(a)")), interner.share(policy("p2", "has(a)")));
    assert_eq!(one, policy("p", "has(a)"));
    let [first, ..] = selectors(&one);
    assert!(selectors(&one).iter().chain(&selectors(&other)).all(|s| std::ptr::eq(s.expr(), first.expr())));
    let (Update::Policy(id, Some(a)), Update::Policy(_, Some(b))) = (&one, &other) else { panic!("another kind") };
    assert!(Arc::ptr_eq(&id.namespace, b.namespace.as_ref().unwrap()));
    assert!(std::ptr::eq(a.tier.as_str(), b.tier.as_str()));
    // Selectors with the same meaning keep their texts.
    let written = interner.share(written);
    assert!(selectors(&written).iter().all(|selector| selector.text() == " has( a )"));
}

#[test]
fn endpoints_and_profiles_share_names() {
    let mut interner = Interner::new();
    let endpoint = |name: &str| {
        let endpoint = WorkloadEndpoint {
            iface: Some("cali1".parse().unwrap()),
            generate_name: Some("web-".into()),
            profiles: ["kns.shop".into(), "ksa.shop.web".into()].into(),
            ports: [EndpointPort { name: "http".into(), protocol: Protocol::Named(NamedProtocol::Tcp), port: 80 }]
                .into(),
            ..WorkloadEndpoint::default()
        };
        Update::WorkloadEndpoint(
            WorkloadEndpointKey::new("n", "k8s", name, "eth0"),
            Some(Valid::new(endpoint).unwrap()),
        )
    };
    let plain = endpoint("a");
    let (one, other) = (interner.share(plain.clone()), interner.share(endpoint("b")));
    assert_eq!(one, plain);
    let (Update::WorkloadEndpoint(_, Some(a)), Update::WorkloadEndpoint(_, Some(b))) = (&one, &other) else {
        panic!("another kind")
    };
    assert!(Arc::ptr_eq(&a.profiles, &b.profiles));
    assert!(Arc::ptr_eq(&a.ports[0].name, &b.ports[0].name));
    let made_from = |endpoint: &Valid<WorkloadEndpoint>| endpoint.generate_name.clone().unwrap();
    assert!(Arc::ptr_eq(&made_from(a), &made_from(b)));
    assert_eq!(a.clone().for_other_node().generate_name.as_deref(), Some("web-"));
    let profile =
        Update::Profile(ProfileName::new("kns.shop"), Some(Valid::new(Profile { labels: Labels::default() }).unwrap()));
    let Update::Profile(name, _) = interner.share(profile) else { panic!("another kind") };
    assert!(std::ptr::eq(name.as_str(), a.profiles[0].as_str()));
}

#[test]
fn of_labels_with_one_name_the_last_counts() {
    let labels = Interner::new().labels([("a", "1"), ("b", "2"), ("a", "3")]).unwrap();
    assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "3"), ("b", "2")]);
    assert_eq!(Interner::new().labels([("", ""); 0]).unwrap(), Labels::default());
}

/// A source runs for months, in a cluster that changes.
#[test]
fn unused_values_are_removed() {
    let mut interner = Interner::new();
    let kept = (interner.labels([("kept", "yes")]).unwrap(), interner.share(policy("kept", "has(kept)")));
    for n in 0..100_000 {
        interner.labels([(format!("label-{n}"), "")]).unwrap();
        drop(interner.share(policy("p", &format!("has(label-{n})"))));
        drop(interner.share(Update::Profile(ProfileName::new(format!("kns.{n}")), None)));
        assert!(interner.len() < 5_000, "{} things are held after {n}", interner.len());
    }
    assert!(Arc::ptr_eq(interner.labels([("kept", "no")]).unwrap().shape().unwrap(), kept.0.shape().unwrap()));
    let again = interner.share(policy("again", "has(kept)"));
    assert!(std::ptr::eq(selectors(&again)[0].expr(), selectors(&kept.1)[0].expr()));
}

#[test]
fn unshared_labels_are_not_all_cached() {
    let mut interner = Interner::new();
    let all: Vec<_> = (0..200_000).map(|n| interner.labels([("n", n.to_string())]).unwrap()).collect();
    assert!(interner.labels.len() <= Interner::MOST_LABELS);
    assert_eq!(all[77].get("n"), Some("77"));
}

#[test]
fn selectors_are_found_by_their_text() {
    let mut interner = Interner::new();
    let first = interner.selectors().parse("app == 'web'").unwrap();
    assert!(first.is_shared() && first.text() == "app == 'web'");
    assert_eq!(interner.selectors().parse("app == 'web'").unwrap(), first);
    assert_eq!(interner.selectors().parse("app=='web'").unwrap().text(), "app=='web'", "as it was written");
    assert_eq!(interner.selectors().len(), 3, "two selectors and a name");
    assert_eq!(interner.selectors().parse("app ==").unwrap_err(), Selector::parse("app ==").unwrap_err());
    assert_eq!(interner.len(), 3, "invalid selectors are not kept");
    for n in 0..10_000 {
        interner.selectors().parse(&format!("app == '{n}'")).unwrap();
    }
    assert!(interner.len() <= 513, "unused selectors are dropped: {}", interner.len());
    drop(first);
}
