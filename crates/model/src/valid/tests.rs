use crate::{EndpointPort, NamedProtocol, Policy, PortSpec, Protocol, Rule, Valid, Validate, WorkloadEndpoint};

fn with_rule(rule: Rule) -> Policy {
    Policy { inbound: [Rule::default(), rule].into(), ..Policy::default() }
}

/// The field and the reason, or nothing if the policy is valid.
fn complaint(policy: &Policy) -> Option<String> {
    policy.validate().err().map(|invalid| invalid.to_string())
}

#[test]
fn numeric_ports_need_a_protocol_with_ports() {
    let mut rule = Rule::default();
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

#[test]
fn workload_ports_carry_a_protocol_by_name() {
    let endpoint = |protocol, port| WorkloadEndpoint {
        iface: Some("cali1".into()),
        ports: [EndpointPort { name: "http".into(), protocol, port }].into(),
        ..WorkloadEndpoint::default()
    };
    let tcp = Protocol::Named(NamedProtocol::Tcp);
    assert!(Valid::new(endpoint(tcp, 80)).is_ok());
    assert!(Valid::new(endpoint(tcp, 0)).is_err());
    assert!(Valid::new(endpoint(Protocol::Number(6), 80)).is_err());
    assert!(Valid::new(WorkloadEndpoint { iface: None, ..endpoint(tcp, 80) }).is_err());
}
