use std::sync::Arc;

use tortie_model::WorkloadEndpoint;
use tortie_model::desired::ComputedFields;

use super::*;

fn id(orchestrator: &str, workload: &str, endpoint: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: orchestrator.into(), workload: workload.into(), endpoint: endpoint.into() }
}

#[test]
fn names_are_the_parts_escaped_as_segments_of_a_path() {
    for (id, expected) in [
        (id("k8s", "default/pod-1", "eth0"), "k8s default%2Fpod-1 eth0"),
        (id("open stack", "a;b,c?d", "e%f"), "open%20stack a%3Bb%2Cc%3Fd e%25f"),
        (id("a$&+=:@~_.-", "", "\u{e4}"), "a$&+=:@~_.-  %C3%A4"),
    ] {
        assert_eq!(name(&id), expected);
        assert!(is_name(expected), "{expected}");
    }
    for foreign in
        ["", "notes.txt", "k8s default%2Fpod-1", "k8s default%2fpod-1 eth0", "k8s a/b eth0", "a b c d", "a b %4"]
    {
        assert!(!is_name(foreign), "{foreign}");
    }
}

#[test]
fn contents_omit_empty_fields() {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali12345".parse().unwrap()),
        mac: Some("01:02:03:04:05:06".parse().unwrap()),
        ipv4_nets: ["10.0.0.1/32".parse().unwrap(), "10.0.0.2/32".parse().unwrap()].into_iter().collect(),
        ipv6_nets: ["fe80::1/128".parse().unwrap()].into_iter().collect(),
        ..WorkloadEndpoint::default()
    };
    let computed = ComputedFields { local_bgp_peer: Some("a<b>&c".into()), ..ComputedFields::default() };
    let whole = WorkloadEndpointState {
        endpoint: Arc::new(endpoint),
        computed: Some(Box::new(computed)),
        ..WorkloadEndpointState::default()
    };
    assert_eq!(
        content(&whole),
        r#"{"ifaceName":"cali12345","mac":"01:02:03:04:05:06","ipv4Nets":["10.0.0.1/32","10.0.0.2/32"],"ipv6Nets":["fe80::1/128"],"bgpPeerName":"a\u003cb\u003e\u0026c"}"#
    );
    assert_eq!(content(&WorkloadEndpointState::default()), "{}");
}
