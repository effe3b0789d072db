use proptest::prelude::*;

use super::{Net, PortList, PortRange, Protocol, Rate};

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

    #[test]
    fn a_net_reads_back_what_it_prints(bits in any::<u128>(), len in 0u8..=128, v4 in any::<bool>()) {
        let net = if v4 {
            #[allow(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
            let addr = std::net::Ipv4Addr::from_bits(bits as u32);
            Net::new(addr.into(), len % 33)
        } else {
            Net::new(std::net::Ipv6Addr::from_bits(bits).into(), len)
        }.unwrap();
        prop_assert_eq!(net.to_string().parse::<Net>().unwrap(), net);
        prop_assert!(net.contains(net.addr()));
    }
}

#[test]
fn nets() {
    let net: Net = "10.1.2.3/8".parse().unwrap();
    assert_eq!(net.to_string(), "10.1.2.3/8");
    assert!(net.contains([10, 255, 0, 0].into()));
    assert!(!net.contains([11, 0, 0, 0].into()));
    assert!("0.0.0.0/0".parse::<Net>().unwrap().contains([1, 2, 3, 4].into()));
    assert!("::/0".parse::<Net>().unwrap().contains("fd00::1".parse().unwrap()));
    assert!(!"::/0".parse::<Net>().unwrap().contains([1, 2, 3, 4].into()));
    for bad in ["", "10.0.0.0/33", "::1/129", "10.0.0/8", "10.0.0.0/", "x"] {
        assert!(bad.parse::<Net>().is_err(), "{bad:?}");
    }
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
        assert!(Protocol::from_name(name).unwrap().has_ports(), "{name}");
    }
    for name in ["icmp", "icmpv6"] {
        assert!(!Protocol::from_name(name).unwrap().has_ports(), "{name}");
    }
    assert!(Protocol::Number(6).has_ports());
    assert!(!Protocol::Number(0).has_ports());
    assert_eq!(Protocol::from_name("ospf"), None);
}
