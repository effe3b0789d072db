use tortie_model::Family;

use super::*;
use crate::line::L4_END;

fn ports(protocol: u8, ports: impl IntoIterator<Item = (u16, u16)>) -> Intervals {
    Intervals::ports(ports.into_iter()).as_destination(protocol)
}

#[test]
fn traffic_is_formatted() {
    let text = |intervals: &Intervals| Traffic::new(Family::V4, intervals).to_string();
    let everything = Intervals::between(0, L4_END);
    assert_eq!(text(&everything), "everything");
    assert_eq!(text(&ports(TCP, [(80, 80), (8080, 8090)])), "TCP 80, TCP 8080-8090");
    assert_eq!(text(&Intervals::protocol(UDP)), "UDP");
    assert_eq!(text(&Intervals::protocol(47)), "protocol 47");
    assert_eq!(text(&Intervals::icmp(ICMP, Some((8, None)))), "ICMP type 8");
    assert_eq!(text(&Intervals::icmp(ICMP, Some((3, Some(4))))), "ICMP type 3 code 4");
    let but_web = everything.and(&ports(TCP, [(80, 80)]).not(L4_END));
    let transports = Intervals::ascending(
        [TCP, UDP].iter().flat_map(|protocol| Intervals::protocol(*protocol).iter().collect::<Vec<_>>()),
    );
    assert_eq!(text(&transports), "TCP, UDP");
    assert_eq!(text(&transports.not(L4_END)), "everything but TCP, UDP");
    assert_eq!(text(&but_web), "everything but TCP 80");
}

#[test]
fn each_family_has_its_own_icmp() {
    assert_eq!(Traffic::new(Family::V6, &Intervals::protocol(ICMP)).to_string(), "");
    assert!(Traffic::new(Family::V6, &Intervals::protocol(ICMP).not(L4_END)).is_everything());
}

#[test]
fn packets_are_found() {
    let traffic = Traffic::new(Family::V4, &ports(TCP, [(80, 90)]));
    let has = |protocol, port| traffic.contains(protocol, L4Detail::Port(port));
    assert_eq!([79, 80, 90, 91].map(|port| has(TCP, port)), [false, true, true, false]);
    assert!(!has(UDP, 80) && !traffic.contains(TCP, L4Detail::Other));
}
