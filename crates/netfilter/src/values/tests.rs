use std::net::IpAddr;

use proptest::prelude::*;
use tortie_net::{Cidr, NamedProtocol, Protocol};

use super::{Net, PortList, PortRange, Rate};

fn ranges() -> impl Strategy<Value = Vec<PortRange>> {
    let range = (any::<u16>(), 0u16..20).prop_map(|(first, extra)| {
        PortRange::new(first, first.saturating_add(extra)).expect("last is not below first")
    });
    proptest::collection::vec(range, 0..60)
}

proptest! {
    #[test]
    fn splitting_keeps_every_range_in_order(ports in ranges()) {
        let lists = PortList::split(&ports);
        let joined: Vec<PortRange> =
            lists.iter().flat_map(|list| list.ranges().iter().copied()).collect();
        prop_assert_eq!(joined, ports);
    }

    #[test]
    fn every_list_is_filled_but_not_over_filled(ports in ranges()) {
        let slots = |list: &PortList| list.ranges().iter().map(|r| r.slots()).sum::<usize>();
        let lists = PortList::split(&ports);
        for list in &lists {
            prop_assert!((1..=PortList::MAX_SLOTS).contains(&slots(list)));
        }
        for pair in lists.windows(2) {
            let next = pair[1].ranges()[0].slots();
            prop_assert!(slots(&pair[0]) + next > PortList::MAX_SLOTS);
        }
    }
}

#[test]
fn an_address_is_written_with_its_length_or_without() {
    let address = IpAddr::from([10, 1, 2, 3]);
    assert_eq!(Net::from(address).to_string(), "10.1.2.3");
    assert_eq!(Net::from(Cidr::host(address)).to_string(), "10.1.2.3/32");
    assert_eq!(Net::from(address).cidr(), Net::from(Cidr::host(address)).cidr());
    for text in ["10.1.2.3", "10.1.2.3/32", "10.1.2.3/8", "fd00::1", "fd00::/8"] {
        assert_eq!(text.parse::<Net>().unwrap().to_string(), text);
    }
    assert!("10.1.2.3/33".parse::<Net>().is_err() && "10.1.2.3/".parse::<Net>().is_err());
}

#[test]
fn rates() {
    assert_eq!("10/minute".parse::<Rate>().unwrap().to_string(), "10/minute");
    for bad in ["", "10", "0/second", "10001/second", "10/sec", "-1/day", "1/second x"] {
        assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
    }
}

#[test]
fn protocols_with_ports_are_those_that_multiport_takes() {
    for name in ["tcp", "udp", "udplite", "sctp"] {
        assert!(PortList::accepts(Protocol::Named(NamedProtocol::from_name(name).unwrap())), "{name}");
    }
    assert!(!PortList::accepts(Protocol::ICMP) && !PortList::accepts(Protocol::ICMPV6));
    assert!(PortList::accepts(Protocol::Number(6)));
    assert!(!PortList::accepts(Protocol::Number(0)));
}
