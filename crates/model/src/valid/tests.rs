use crate::{
    EndpointPort, EntityMatch, HostEndpoint, Labels, NamedProtocol, NamespacedName, NetworkSet, Policy, PortSpec,
    ProfileRules, Protocol, Rule, RuleAction, Valid, Validate, WorkloadEndpoint,
};

fn with_rule(rule: Rule) -> Policy {
    Policy { inbound: [Rule::new(RuleAction::Allow), rule].into(), ..Policy::default() }
}

/// Returns field and reason; `None` if the policy is valid.
fn complaint(policy: &Policy) -> Option<String> {
    policy.validate().err().map(|invalid| format!("{}: {}", invalid.field, invalid.reason))
}

#[test]
fn numeric_ports_need_a_protocol_with_ports() {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.ports = [PortSpec::Named("http".into()), PortSpec::single(80)].into();
    assert_eq!(
        complaint(&with_rule(rule.clone())).unwrap(),
        "inbound_rules[1].src_ports[1]: numeric ports need the protocol TCP, UDP or SCTP"
    );
    rule.protocol = Some(Protocol::Number(6));
    assert_eq!(complaint(&with_rule(rule.clone())), None);
    rule.protocol = Some(Protocol::Named(NamedProtocol::UdpLite));
    assert_eq!(complaint(&with_rule(rule)).unwrap(), "inbound_rules[1].src_ports[0]: protocol udplite has no ports");
}

/// Returns a rule to these domains.
fn to_domains(action: RuleAction) -> Rule {
    let mut rule = Rule::new(action);
    rule.destination.extras.domains = ["a.io".parse().unwrap(), "*.b.io".parse().unwrap()].into();
    rule
}

#[test]
fn domains_are_allowed_in_egress_rules_that_allow_and_alone() {
    let egress = |rule: Rule| Policy { outbound: [rule].into(), ..Policy::default() };
    let allow = || to_domains(RuleAction::Allow);
    assert_eq!(complaint(&egress(allow())), None);
    let with_ports = |rule: &mut Rule| {
        rule.protocol = Some(Protocol::TCP);
        rule.destination.ports = [PortSpec::single(443)].into();
        rule.destination.extras.not_ports = [PortSpec::single(80)].into();
        rule.source.selector = Some("has(a)".parse().unwrap());
    };
    let mut rule = allow();
    with_ports(&mut rule);
    assert_eq!(complaint(&egress(rule)), None);

    let field = "outbound_rules[0].dst_domains";
    let action = "domains are allowed only in rules with the action Allow";
    for other in [RuleAction::Unspecified, RuleAction::Deny, RuleAction::Log, RuleAction::NextTier] {
        assert_eq!(complaint(&egress(to_domains(other))).unwrap(), format!("{field}: {action}"), "{other:?}");
    }
    let sets: [fn(&mut EntityMatch); 5] = [
        |side| side.nets = ["10.0.0.0/8".parse().unwrap()].into(),
        |side| side.extras.not_nets = ["10.0.0.0/8".parse().unwrap()].into(),
        |side| side.selector = Some("has(a)".parse().unwrap()),
        |side| side.extras.not_selector = Some("has(a)".parse().unwrap()),
        |side| side.extras.service = Some(Box::new(NamespacedName::new("a", "b"))),
    ];
    for set in sets {
        let mut rule = allow();
        set(&mut rule.destination);
        let alone = "domains cannot be combined with networks, selectors or services";
        assert_eq!(complaint(&egress(rule)).unwrap(), format!("{field}: {alone}"));
    }
    let outside = "domains are allowed only as destinations of egress rules";
    assert_eq!(complaint(&with_rule(allow())).unwrap(), format!("inbound_rules[1].dst_domains: {outside}"));
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.extras.domains = ["a.io".parse().unwrap()].into();
    assert_eq!(complaint(&egress(rule)).unwrap(), format!("outbound_rules[0].src_domains: {outside}"));

    let untracked = Policy { untracked: true, ..egress(allow()) };
    assert_eq!(complaint(&untracked).unwrap(), format!("{field}: domains cannot be combined with `untracked`"));
    let profile = ProfileRules { outbound: [allow()].into(), ..ProfileRules::default() };
    let error = profile.validate_stored().unwrap_err();
    assert_eq!(error.to_string(), format!("ProfileRules: {field}: domains are allowed only in rules of policies"));
}

#[test]
fn lists_of_domains_count_as_selectors_and_their_entries_as_items() {
    let rule = |number: usize, count: usize| {
        let mut rule = Rule::new(RuleAction::Allow);
        rule.destination.extras.domains =
            (0..count).map(|n| format!("n{n}.r{number}.io").parse().unwrap()).collect::<Vec<_>>().into();
        rule
    };
    let policy = |rules: Vec<Rule>| Policy { outbound: rules.into(), ..Policy::default() };
    let lists = |count| policy((0..count).map(|number| rule(number, 1)).collect());
    assert_eq!(complaint(&lists(1_000)), None);
    let many = complaint(&lists(1_001)).unwrap();
    assert_eq!(many, "outbound_rules: 1001 different selectors in rules, at most 1000 are allowed");
    let many = complaint(&policy(vec![rule(0, 25_001), rule(1, 25_000)])).unwrap();
    assert_eq!(many, "outbound_rules: 50001 networks, ports and domains in rules, at most 50000 are allowed");
}

#[test]
fn workload_ports_carry_a_protocol_by_name() {
    let endpoint = |protocol, port| WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        ports: [EndpointPort { name: "http".into(), protocol, port }].into(),
        ..WorkloadEndpoint::default()
    };
    let tcp = Protocol::Named(NamedProtocol::Tcp);
    assert!(Valid::new(endpoint(tcp, 80)).is_ok());
    assert!(Valid::new(endpoint(tcp, 0)).is_err());
    assert!(Valid::new(endpoint(Protocol::Number(6), 80)).is_err());
    assert!(Valid::new(WorkloadEndpoint { iface: None, ..endpoint(tcp, 80) }).is_err());
}

#[test]
fn rules_have_bounds() {
    let policy = |rules: Vec<Rule>| Policy { outbound: rules.into(), ..Policy::default() };
    assert_eq!(complaint(&policy(vec![Rule::new(RuleAction::Allow); 10_000])), None);
    let many = complaint(&policy(vec![Rule::new(RuleAction::Allow); 10_001]));
    assert_eq!(many.unwrap(), "outbound_rules: 10001 rules, at most 10000 are allowed");

    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.ports = (0..1001).map(|n| PortSpec::Named(format!("p{n}").into())).collect();
    let many = complaint(&policy(vec![rule]));
    assert_eq!(many.unwrap(), "outbound_rules: 1001 names of ports in rules, at most 1000 are allowed");

    let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
    rule.source.ports = vec![PortSpec::single(80); 10_000].into();
    let many = complaint(&policy(vec![rule; 6]));
    assert_eq!(many.unwrap(), "outbound_rules: 60000 networks, ports and domains in rules, at most 50000 are allowed");
}

#[test]
fn selectors_are_counted_once() {
    let rules = |different: usize| -> Vec<Rule> {
        let rule = |n: usize| {
            let mut rule = Rule::new(RuleAction::Allow);
            rule.source.selector = Some(format!("a == '{}'", n % different).parse().unwrap());
            rule
        };
        (0..2000).map(rule).collect()
    };
    let policy = |different| Policy { inbound: rules(different).into(), ..Policy::default() };
    assert_eq!(complaint(&policy(1000)), None);
    let many = complaint(&policy(1001));
    assert_eq!(many.unwrap(), "inbound_rules: 1001 different selectors in rules, at most 1000 are allowed");
}

#[test]
fn endpoints_have_bounds() {
    let port = EndpointPort { name: "http".into(), protocol: Protocol::Named(NamedProtocol::Tcp), port: 80 };
    let endpoint = |ports| WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        ports: vec![port.clone(); ports].into(),
        ..WorkloadEndpoint::default()
    };
    assert!(endpoint(1000).validate().is_ok());
    assert_eq!(
        endpoint(1001).validate().unwrap_err().to_string(),
        "WorkloadEndpoint: ports: 1001 ports, at most 1000 are allowed"
    );
    let profiles = WorkloadEndpoint { profiles: vec!["p".into(); 101].into(), ..endpoint(0) };
    let error = profiles.validate().unwrap_err();
    assert_eq!(error.to_string(), "WorkloadEndpoint: profile_ids: 101 profiles, at most 100 are allowed");
}

/// Later stages (the kernel, the rendering of rules, selectors) would reject these without naming
/// the object.
#[test]
fn refusals_of_later_stages_come_first() {
    fn refused<T: Validate>(value: &T) -> String {
        assert!(value.validate_stored().is_ok(), "Felix accepts it");
        value.validate().unwrap_err().to_string()
    }
    let workload =
        |iface: &str| WorkloadEndpoint { iface: Some(iface.parse().unwrap()), ..WorkloadEndpoint::default() };
    assert_eq!(refused(&WorkloadEndpoint::default()), "WorkloadEndpoint: name: a workload endpoint needs an interface");
    for name in [".", "..", "all", "default"] {
        let reason = format!("WorkloadEndpoint: name: `{name}` is not the name of an interface");
        assert_eq!(refused(&workload(name)), reason);
    }
    for name in ["cali0123456789a", "veth@1", "tap.1"] {
        assert!(workload(name).validate().is_ok(), "{name}");
    }
    let host = HostEndpoint { iface: Some("veth@1".parse().unwrap()), ..HostEndpoint::default() };
    let error = host.validate_stored().unwrap_err();
    assert_eq!(error.to_string(), "HostEndpoint: name: `veth@1` is not the name of an interface");
    assert_eq!(
        refused(&HostEndpoint::default()),
        "HostEndpoint: name: a host endpoint needs an interface or expected addresses"
    );

    let both = Policy { untracked: true, pre_dnat: true, ..Policy::default() };
    assert_eq!(refused(&both), "Policy: pre_dnat: cannot be combined with `untracked`");
    assert!(Policy { pre_dnat: false, ..both.clone() }.validate().is_ok());
    assert!(Policy { untracked: false, ..both }.validate().is_ok());

    let long = "a".repeat(513);
    for name in ["", "bad key", "a:b", "é", &long] {
        let labels = Labels::from_pairs([(name, "x"), ("good", "x")]).unwrap();
        let reason = format!("labels: `{name}` is not a valid label name");
        let endpoint = WorkloadEndpoint { labels: labels.clone(), ..workload("cali1") };
        assert_eq!(refused(&endpoint), format!("WorkloadEndpoint: {reason}"));
        let host =
            HostEndpoint { iface: Some("*".parse().unwrap()), labels: labels.clone(), ..HostEndpoint::default() };
        assert_eq!(refused(&host), format!("HostEndpoint: {reason}"));
        assert_eq!(refused(&NetworkSet { labels, ..NetworkSet::default() }), format!("NetworkSet: {reason}"));
    }
}
