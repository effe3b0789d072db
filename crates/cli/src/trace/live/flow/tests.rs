use tortie_model::Protocol;

use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_flow_is_matched_both_ways_and_behind_its_service() {
    let transport = question::Transport::Ports { protocol: Protocol::TCP, source: 1, destination: 80 };
    let (client, service) = (address("10.0.0.1"), address("10.96.0.1"));
    let backends = vec!["10.0.0.2:8080".parse().unwrap()];
    let flow = TracedFlow::new(transport, client, service, Some(50001), backends);
    assert_eq!(flow.to_string(), "TCP 10.0.0.1:50001 -> 10.96.0.1:80");
    let ends = |filter: &Filter| (filter.source, filter.destination, filter.transport);
    let ports = |source, destination| Transport::Ports { source: Some(source), destination: Some(destination) };
    let backend = address("10.0.0.2");
    assert_eq!(
        flow.filters().iter().map(ends).collect::<Vec<_>>(),
        [
            (client, service, ports(50001, 80)),
            (service, client, ports(80, 50001)),
            (client, backend, ports(50001, 8080)),
            (backend, client, ports(8080, 50001)),
        ]
    );
    let watched = TracedFlow::new(transport, client, service, None, Vec::new());
    assert_eq!(watched.filters()[1].transport, Transport::Ports { source: Some(80), destination: None });
    assert_eq!(watched.to_string(), "TCP 10.0.0.1 -> 10.96.0.1:80");
}

#[test]
fn an_icmp_request_is_matched_with_its_answer() {
    let transport = question::Transport::Icmp { icmp_type: None, code: 0 };
    let flow = TracedFlow::new(transport, address("fd00::1"), address("fd00::2"), Some(7), Vec::new());
    assert_eq!(flow.protocol, ICMPV6);
    let expected = [
        Transport::Icmp { icmp_type: 128, code: Some(0), id: Some(7) },
        Transport::Icmp { icmp_type: 129, code: None, id: Some(7) },
    ];
    assert_eq!(flow.filters().iter().map(|filter| filter.transport).collect::<Vec<_>>(), expected);
    let error = question::Transport::Icmp { icmp_type: Some(3), code: 1 };
    let flow = TracedFlow::new(error, address("10.0.0.1"), address("10.0.0.2"), Some(7), Vec::new());
    assert_eq!(flow.filters().len(), 1, "nothing answers an error");
}
