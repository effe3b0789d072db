//! Random updates with few names and values, so that most objects are related.

use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tortie_model::{
    Cidr, DenyAction, DomainPattern, EndpointPort, EndpointSlice, EndpointSlicePort, EntityExtras, EntityMatch,
    HostEndpoint, HostEndpointKey, Labels, List, NamedProtocol, NamespacedName, NetworkSet, Order, Policy, PolicyId,
    PolicyKind, PolicyTypes, PortSpec, Profile, ProfileName, ProfileRules, Protocol, Rule, RuleAction, Tier,
    TierDefaultAction, Update, Valid, Validate, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;

use crate::computed::{migration, peer};
use crate::overlays;
use crate::passed::any_update;

pub(crate) use tortie_testkit::oracle::HOST;

pub(crate) fn labels() -> impl Strategy<Value = Labels> {
    let label = |key: &'static str| prop::option::of((Just(key), select(vec!["x", "y", ""])));
    let mesh = prop::option::weighted(0.2, (Just("istio.io/dataplane-mode"), select(vec!["ambient", "none"])));
    let of_namespace = prop::option::weighted(0.2, Just(("pcns.istio.io/dataplane-mode", "ambient")));
    let orchestrator = prop::option::weighted(0.4, Just(("projectcalico.org/orchestrator", "k8s")));
    (label("a"), label("b"), label("c"), mesh, of_namespace, orchestrator)
        .prop_map(|(a, b, c, d, e, f)| Labels::from_pairs([a, b, c, d, e, f].into_iter().flatten()).unwrap())
}

fn selector() -> impl Strategy<Value = Selector> {
    let texts = vec![
        "",
        "all()",
        "!all()",
        "a == 'x'",
        "a==\"x\"",
        "a != 'x'",
        "has(b)",
        "!has(b)",
        "b in {'x', 'y'}",
        "a == 'x' && has(c)",
        "a == 'y' || c == 'x'",
        "b starts with ''",
        "has(a) && !has(c)",
        "c not in {'y'}",
        "has(pcnode.projectcalico.org/node)",
        "pcnode.a == 'x' && !has(pcnode.b)",
        "has(pcnode.a) && b != 'y'",
        "!has(pcnode.a)",
        "has(pcnode.a) || has(b)",
        "pcnode.a == 'x' || has(pcnode.b)",
    ];
    select(texts).prop_map(|text| Selector::parse(text).unwrap())
}

fn profiles() -> impl Strategy<Value = Arc<[ProfileName]>> {
    prop_oneof![
        8 => subsequence(vec!["p0", "p1", "kns.p"], 0..3).prop_shuffle(),
        1 => Just(vec!["p0", "p0"]),
    ]
    .prop_map(|names| names.into_iter().map(ProfileName::new).collect())
}

fn cidrs(texts: &[&'static str], most: usize) -> impl Strategy<Value = Vec<Cidr>> + use<> {
    let cidrs: Vec<Cidr> = texts.iter().map(|text| text.parse().unwrap()).collect();
    subsequence(cidrs, 0..=most)
}

fn ports() -> impl Strategy<Value = Box<[EndpointPort]>> {
    let port =
        |name: &str, protocol, port| EndpointPort { name: name.into(), protocol: Protocol::Named(protocol), port };
    let all = vec![
        port("http", NamedProtocol::Tcp, 80),
        port("http", NamedProtocol::Tcp, 8080),
        port("http", NamedProtocol::Udp, 80),
        port("dns", NamedProtocol::Udp, 53),
    ];
    subsequence(all, 0..=3).prop_map(Into::into)
}

/// Validates a value. Invalid values do not reach the graph: they count as deleted.
fn valid<T: Validate>(value: Option<T>) -> Option<Valid<T>> {
    Valid::new(value?).ok()
}

fn workload() -> impl Strategy<Value = Update> {
    let orchestrator = prop_oneof![5 => Just("k8s"), 1 => Just("openstack")];
    let key = (select(vec![HOST, HOST, "there"]), orchestrator, 0..3).prop_map(|(host, orchestrator, n)| {
        WorkloadEndpointKey::new(host, orchestrator, &format!("ns/pod{n}"), "eth0")
    });
    let nets = cidrs(&["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "fd00::1/128"], 2);
    let value = (labels(), profiles(), nets, ports());
    (key, prop::option::weighted(0.8, value)).prop_map(|(key, value)| {
        let endpoint = value.map(|(labels, profiles, nets, ports)| {
            let (ipv4_nets, ipv6_nets) = nets.into_iter().partition(|n| n.family() == tortie_model::Family::V4);
            let iface = Some("cali0".parse().unwrap());
            WorkloadEndpoint { iface, labels, profiles, ipv4_nets, ipv6_nets, ports, ..Default::default() }
        });
        Update::WorkloadEndpoint(key, valid(endpoint))
    })
}

fn host_endpoint() -> impl Strategy<Value = Update> {
    let key = (select(vec![HOST, "there"]), 0..2)
        .prop_map(|(host, n)| HostEndpointKey { host: host.into(), name: format!("hep{n}").as_str().into() });
    let value = (labels(), profiles(), cidrs(&["10.0.0.1/32", "10.0.0.9/32"], 2), ports());
    (key, prop::option::weighted(0.8, value)).prop_map(|(key, value)| {
        let endpoint = value.map(|(labels, profiles, nets, ports)| {
            let expected_ipv4 = nets.into_iter().map(Cidr::address).collect();
            HostEndpoint { labels, profiles, expected_ipv4, ports, ..Default::default() }
        });
        Update::HostEndpoint(key, valid(endpoint))
    })
}

fn network_set() -> impl Strategy<Value = Update> {
    let nets = ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/30", "10.0.0.1/32", "::/0", "fd00::/64", "128.0.0.0/1"];
    let domains = subsequence(vec!["*.a.io", "a.io", "c.io"], 0..=2);
    let value = (labels(), profiles(), cidrs(&nets, 4), domains);
    (0..3, prop::option::weighted(0.8, value)).prop_map(|(n, value)| {
        let set = value.map(|(labels, profiles, nets, domains)| NetworkSet {
            labels,
            profiles,
            nets: nets.into(),
            domains: domains.into_iter().map(|name| name.parse().unwrap()).collect(),
        });
        Update::NetworkSet(format!("set{n}").as_str().into(), valid(set))
    })
}

fn port_specs() -> impl Strategy<Value = List<PortSpec>> {
    let specs = vec![PortSpec::single(80), PortSpec::Named("http".into()), PortSpec::Named("dns".into())];
    prop_oneof![3 => Just(Vec::new()), 2 => subsequence(specs, 1..=3)].prop_map(Into::into)
}

fn service() -> impl Strategy<Value = Option<NamespacedName>> {
    prop::option::weighted(0.2, (0..2).prop_map(|n| NamespacedName::new("ns", format!("svc{n}"))))
}

fn side() -> impl Strategy<Value = EntityMatch> {
    // Empty text restricts nothing; it is no selector of a rule.
    let selector = || selector().prop_filter("empty", |selector| !selector.text().is_empty());
    let selectors = (prop::option::of(selector()), prop::option::weighted(0.3, selector()));
    (selectors, port_specs(), port_specs(), service()).prop_map(
        |((selector, not_selector), ports, not_ports, service)| EntityMatch {
            selector,
            ports,
            extras: EntityExtras { not_selector, not_ports, service: service.map(Box::new), ..EntityExtras::default() }
                .into(),
            ..EntityMatch::default()
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    let protocol = prop_oneof![
        5 => Just(Some(Protocol::Named(NamedProtocol::Tcp))),
        2 => Just(Some(Protocol::Number(17))),
        1 => Just(None),
    ];
    (select(vec![RuleAction::Allow, RuleAction::Deny, RuleAction::NextTier]), protocol, side(), side())
        .prop_map(|(action, protocol, source, destination)| Rule { protocol, source, destination, ..Rule::new(action) })
}

fn rules() -> impl Strategy<Value = Arc<[Rule]>> {
    prop::collection::vec(rule(), 0..3).prop_map(Into::into)
}

/// Rules for traffic from endpoints, which may name domains.
fn egress_rules() -> impl Strategy<Value = Arc<[Rule]>> {
    let names = ["a.io", "*.a.io", "b.io"].map(|name| name.parse::<DomainPattern>().unwrap());
    let by_domains = (subsequence(names.to_vec(), 1..=2), port_specs()).prop_map(|(mut domains, ports)| {
        domains.sort();
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.destination.ports = ports;
        rule.destination.extras.domains = domains.into();
        rule
    });
    let rule = prop_oneof![3 => rule().boxed(), 1 => by_domains.boxed()];
    prop::collection::vec(rule, 0..3).prop_map(Into::into)
}

/// The rules without those by domains, which untracked policies cannot have.
fn without_domains(rules: &[Rule]) -> Arc<[Rule]> {
    rules.iter().filter(|rule| rule.destination.extras.domains.is_empty()).cloned().collect()
}

fn policy() -> impl Strategy<Value = Update> {
    let ids = vec![
        PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "a"),
        PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "a-b"),
        PolicyId::new(PolicyKind::NetworkPolicy, "ns", "a"),
        PolicyId::new(PolicyKind::StagedGlobalNetworkPolicy, "", "a"),
        PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "z"),
    ];
    let place = (select(vec!["default", "t1", "t2"]), select(vec![None, Some(1.0), Some(1.0), Some(-2.0)]));
    let types = select(vec![(true, true), (true, false), (false, true)]);
    let flags =
        (prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let deny_action = select(vec![None, None, Some(DenyAction::Drop), Some(DenyAction::Reject)]);
    let value = (place, types, (flags, deny_action), selector(), rules(), egress_rules());
    (select(ids), prop::option::weighted(0.8, value)).prop_map(|(id, value)| {
        let policy = value.map(|((tier, order), (ingress, egress), flags, selector, inbound, outbound)| {
            let ((untracked, pre_dnat, apply_on_forward, needed_on_every_node), deny_action) = flags;
            Policy {
                tier: tier.into(),
                order: order.and_then(Order::new),
                selector,
                types: PolicyTypes { ingress, egress },
                inbound,
                outbound: if untracked { without_domains(&outbound) } else { outbound },
                untracked,
                pre_dnat,
                apply_on_forward,
                needed_on_every_node,
                deny_action,
                ..Policy::default()
            }
        });
        Update::Policy(id, valid(policy))
    })
}

fn tier() -> impl Strategy<Value = Update> {
    let rejects = TierDefaultAction::DenyWith(DenyAction::Reject);
    let action = select(vec![None, Some(TierDefaultAction::Deny), Some(rejects), Some(TierDefaultAction::Pass)]);
    let value = (select(vec![None, Some(1.0), Some(2.0)]), action);
    (select(vec!["default", "t1", "t2"]), prop::option::weighted(0.7, value)).prop_map(|(name, value)| {
        let tier = value.map(|(order, default_action)| Tier { order: order.and_then(Order::new), default_action });
        Update::Tier(name.into(), tier)
    })
}

fn profile() -> impl Strategy<Value = Update> {
    let name = || select(vec!["p0", "p1", "kns.p"]).prop_map(ProfileName::new);
    let of_rules = (name(), prop::option::weighted(0.7, (rules(), rules()))).prop_map(|(name, value)| {
        Update::ProfileRules(name, valid(value.map(|(inbound, outbound)| ProfileRules { inbound, outbound })))
    });
    let of_labels = (name(), prop::option::weighted(0.7, labels()))
        .prop_map(|(name, value)| Update::Profile(name, valid(value.map(|labels| Profile { labels }))));
    prop_oneof![of_rules, of_labels]
}

fn slice() -> impl Strategy<Value = Update> {
    let address = |n: u8| IpAddr::from([10, 1, 0, n]);
    let name = prop_oneof![
        2 => (0..3).prop_map(|n| NamespacedName::new("ns", format!("slice{n}"))),
        1 => (0..2, 0..2_usize).prop_map(|(n, subset)| {
            NamespacedName::new("ns", format!("svc{n}")).slice_of_endpoints(subset)
        }),
    ];
    let value = (
        prop::option::weighted(0.9, (0..2).prop_map(|n| NamespacedName::new("ns", format!("svc{n}")))),
        subsequence((1..4).map(address).collect::<Vec<_>>(), 0..=3),
        subsequence(vec![None, Some(80), Some(443)], 0..=2),
        any::<[(bool, bool); 3]>(),
    );
    (name, prop::option::weighted(0.8, value)).prop_map(|(name, value)| {
        let slice = value.map(|(service, addresses, ports, readiness)| {
            let ports = ports
                .into_iter()
                .map(|port| EndpointSlicePort { name: "".into(), protocol: NamedProtocol::Tcp, port })
                .collect();
            let with = |has: fn(bool, bool) -> bool| {
                let states = addresses.iter().zip(readiness);
                states.filter(|(_, (is_ready, serves))| has(*is_ready, *serves)).map(|(address, _)| *address).collect()
            };
            let not_ready = with(|is_ready, _| !is_ready);
            let draining = with(|is_ready, serves| !is_ready && serves);
            EndpointSlice { service, addresses: addresses.into(), ports, not_ready, draining }.into()
        });
        Update::EndpointSlice(name, slice)
    })
}

/// Generates any update.
pub(crate) fn update() -> impl Strategy<Value = Update> {
    prop_oneof![
        5 => workload(),
        2 => host_endpoint(),
        3 => network_set(),
        6 => policy(),
        2 => tier(),
        4 => profile(),
        2 => slice(),
        3 => migration(),
        2 => peer(),
        9 => any_update(),
        2 => overlays::block(),
        2 => overlays::host_config(),
    ]
}

/// Updates that routes and tunnels depend on.
pub(crate) fn overlay_update() -> impl Strategy<Value = Update> {
    prop_oneof![1 => workload(), 4 => overlays::update()]
}
