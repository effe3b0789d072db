use proptest::prelude::*;

use super::*;

fn nets() -> impl Strategy<Value = Cidr> {
    let v4 = (0..4u8, 0..4u8, 0..=32u8).prop_map(|(a, b, len)| Cidr::new([a << 6, 0, 0, b].into(), len).unwrap());
    let v6 = (0..4u16, 0..=128u8).prop_map(|(a, len)| Cidr::new([0xfd00, 0, 0, 0, 0, 0, 0, a].into(), len).unwrap());
    prop_oneof![v4, v6]
}

proptest! {
    #[test]
    fn contains_the_addresses_of_all_its_networks(
        steps in prop::collection::vec((any::<bool>(), nets()), 0..40),
        asked in prop::collection::vec(nets(), 8),
    ) {
        let (mut set, mut plain) = (NetSet::default(), std::collections::BTreeSet::new());
        for (adds, net) in steps {
            if adds {
                set.insert(net);
                plain.insert(net.masked());
            } else {
                set.remove(net);
                plain.remove(&net.masked());
            }
            for asked in &asked {
                let expected = plain.iter().any(|net| net.contains(asked.address()));
                prop_assert_eq!(set.contains(asked.address()), expected);
            }
        }
        plain.into_iter().for_each(|net| set.remove(net));
        prop_assert!(set.lengths.is_empty() && set.nets.is_empty());
    }
}

#[test]
fn a_delta_of_another_type_is_refused() {
    let mut set = MemberSet::new(&Members::Nets(vec!["10.0.0.0/8".parse().unwrap()]));
    let (nets, ports) = (Members::Nets(Vec::new()), Members::IpPorts(Vec::new()));
    assert!(set.accepts(&nets, &nets));
    assert!(!set.accepts(&nets, &ports) && !set.accepts(&ports, &nets));
    set.remove(&Members::Nets(vec!["10.0.0.0/8".parse().unwrap()]));
    assert!(matches!(set, MemberSet::Nets(nets) if !nets.contains([10, 0, 0, 1].into())));
}
