use tortie_model::desired::{DesiredUpdate, IpSetType, IpSetUpdate, Members};

use super::super::tests::fixture::{
    evaluator, host_endpoint, ip, node_addresses, policy, policy_by_name, tcp, tier, translated, updates, workload,
};
use super::*;

/// Whether the connection is denied where everything else is reached by `interface`.
fn denied(more: &[DesiredUpdate], connection: Connection, interface: Option<&str>) -> bool {
    let evaluator = evaluator(&[updates(), more.to_vec()].concat());
    let exceptions = Exceptions { tunnel_ports: vec![4789], workloads_to_host: false };
    let node_addresses = node_addresses();
    let connection_evaluator = ConnectionEvaluator::new(&evaluator, &node_addresses, &exceptions);
    let denies = connection_evaluator.denies(&connection, |_| interface.map(|name| name.parse().unwrap()));
    assert!(connection_evaluator.may_deny(&connection) || !denies, "a connection that is denied must be looked at");
    denies
}

#[test]
fn connections_of_workloads_need_an_allow_at_both_ends() {
    for (connection, expected) in [
        (tcp("10.0.0.1", ("10.0.0.2", 8080)), false),
        (tcp("10.0.0.1", ("10.0.0.2", 8081)), true),
        (tcp("203.0.113.9", ("10.0.0.2", 8081)), true),
        // No policy of the other end is known here.
        (tcp("10.0.0.2", ("203.0.113.9", 8081)), false),
        (tcp("203.0.113.9", ("203.0.113.10", 8081)), false),
        // A service, by the port that answers.
        (translated("10.0.0.1", ("10.96.0.1", 80), ("10.0.0.2", 8080)), false),
        (translated("10.0.0.1", ("10.96.0.1", 8080), ("10.0.0.2", 80)), true),
        // A floating address.
        (translated("203.0.113.9", ("192.0.2.77", 80), ("10.0.0.2", 80)), true),
    ] {
        assert_eq!(denied(&[], connection, Some("eth0")), expected, "{connection:?}");
    }
}

#[test]
fn a_translated_source_is_evaluated_by_the_workloads_own_address() {
    let egress = {
        let mut all = vec![policy("few", &[443])];
        let tiers = tortie_model::desired::TierPolicies {
            name: tortie_model::TierName::default_tier(),
            default_action: None,
            ingress: [].into(),
            egress: [tortie_model::PolicyId::new(tortie_model::PolicyKind::GlobalNetworkPolicy, "", "few")].into(),
        };
        all.push(workload("shop/client", "10.0.0.1", [tiers].into()));
        all
    };
    for (port, expected) in [(443, false), (80, true)] {
        let mut connection = tcp("10.0.0.1", ("203.0.113.9", port));
        connection.reply.destination = ip("192.0.2.1");
        assert_eq!(denied(&egress, connection, Some("eth0")), expected);
    }
    // Packets to the host meet egress policy before the action that applies to all of them.
    assert!(denied(&egress, tcp("10.0.0.1", ("192.0.2.1", 80)), None));
}

/// The names of an address are not known here, so the rule alone counts.
#[test]
fn a_rule_by_domain_name_keeps_connections_until_it_is_gone() {
    let set = |id: &str, set_type, members| DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type, members });
    let names = set("d:x", IpSetType::Domains, Members::Domains(["*.a.io".parse().unwrap()].into()));
    let nets = set("s:y", IpSetType::Net, Members::Nets(vec!["198.51.100.7/32".parse().unwrap()]));
    let client = |policy| workload("shop/client", "10.0.0.1", tier(&[], &[policy]));
    let (learned, other) = (tcp("10.0.0.1", ("203.0.113.9", 443)), tcp("10.0.0.1", ("203.0.113.9", 80)));
    for dst in [&[][..], &["s:y"]] {
        let with = [names.clone(), nets.clone(), policy_by_name("names", 443, dst), client("names")];
        assert!(!denied(&with, learned, Some("eth0")), "{dst:?}");
        assert!(denied(&with, other, Some("eth0")), "{dst:?}");
    }
    let without = [policy("names", &[22]), client("names")];
    assert!(denied(&without, learned, Some("eth0")));
}

#[test]
fn connections_outside_policy_are_left_alone() {
    let mut zoned = tcp("10.0.0.1", ("10.0.0.2", 1));
    zoned.zone = 3;
    let twice = workload("shop/other", "10.0.0.2", [].into());
    for (more, connection) in [
        (vec![], zoned),
        // The host reaches its workloads.
        (vec![], tcp("192.0.2.1", ("10.0.0.2", 1))),
        (vec![], tcp("127.0.0.1", ("127.0.0.1", 1))),
        (vec![], translated("127.0.0.1", ("127.0.0.1", 80), ("10.0.0.2", 1))),
        (vec![], tcp("192.0.2.1", ("198.51.100.1", 1))),
        (vec![], tcp("203.0.113.9", ("192.0.2.1", 1))),
        // It is not known which of the two has the address.
        (vec![twice], tcp("10.0.0.1", ("10.0.0.2", 1))),
        // Nor whether it is the node's.
        (vec![workload("shop/own", "192.0.2.1", [].into())], tcp("192.0.2.1", ("10.0.0.2", 1))),
    ] {
        assert!(!denied(&more, connection, Some("eth0")), "{connection:?}");
    }
}

#[test]
fn host_endpoints_are_found_by_the_way_there() {
    let of_eth0 = vec![policy("host", &[80]), policy("forward", &[81]), host_endpoint("eth0")];
    let of_all = vec![policy("host", &[80]), policy("forward", &[81]), host_endpoint("*")];
    for (more, connection, interface, expected) in [
        (&of_eth0, tcp("203.0.113.9", ("192.0.2.1", 80)), Some("eth0"), false),
        (&of_eth0, tcp("203.0.113.9", ("192.0.2.1", 9)), Some("eth0"), true),
        (&of_eth0, tcp("203.0.113.9", ("192.0.2.1", 9)), Some("eth1"), false),
        (&of_eth0, tcp("203.0.113.9", ("192.0.2.1", 9)), None, false),
        (&of_eth0, tcp("203.0.113.9", ("192.0.2.1", 22)), Some("eth0"), false),
        (&of_all, tcp("203.0.113.9", ("192.0.2.1", 9)), Some("eth1"), true),
        // From the host, and to its own workloads.
        (&of_eth0, tcp("192.0.2.1", ("203.0.113.9", 9)), Some("eth0"), true),
        (&of_all, tcp("192.0.2.1", ("10.0.0.2", 9)), None, false),
        // Forwarded.
        (&of_eth0, tcp("203.0.113.9", ("10.0.0.1", 81)), Some("eth0"), false),
        (&of_eth0, tcp("203.0.113.9", ("10.0.0.1", 9)), Some("eth0"), true),
        (&of_eth0, tcp("10.0.0.1", ("203.0.113.9", 9)), Some("eth0"), true),
        (&of_eth0, tcp("10.0.0.1", ("203.0.113.9", 9)), Some("eth1"), false),
        (&of_all, tcp("10.0.0.1", ("10.0.0.2", 8080)), None, true),
    ] {
        assert_eq!(denied(more, connection, interface), expected, "{connection:?} by {interface:?}");
    }
    let mut tunnel = tcp("203.0.113.9", ("192.0.2.1", 4789));
    tunnel.original.protocol = 17;
    assert!(!denied(&of_eth0, tunnel, Some("eth0")));
}

#[test]
fn other_protocols_are_evaluated_too() {
    let mut ping = tcp("10.0.0.1", ("10.0.0.2", 0));
    (ping.original.protocol, ping.reply.protocol) = (1, 1);
    ping.original.flow = Flow::Icmp { id: 1, icmp_type: 8, code: 0 };
    ping.reply.flow = Flow::Icmp { id: 1, icmp_type: 0, code: 0 };
    assert!(denied(&[], ping, None));
    ping.reply.source = ip("203.0.113.9");
    assert!(!denied(&[], ping, None));
    let mut gre = tcp("10.0.0.1", ("10.0.0.2", 0));
    (gre.original.protocol, gre.original.flow, gre.reply.flow) = (47, Flow::Other, Flow::Other);
    assert!(denied(&[], gre, None));
}
