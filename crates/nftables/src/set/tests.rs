use proptest::prelude::*;

use super::*;

fn net(text: &str) -> Cidr {
    text.parse().expect("a network")
}

fn texts(nets: &[Cidr]) -> Vec<String> {
    nets.iter().map(ToString::to_string).collect()
}

#[test]
fn a_covering_network_replaces_others_until_its_removal() {
    let mut nets = Networks::default();
    for inner in ["10.1.0.0/16", "10.2.0.0/16", "10.2.3.0/24", "192.0.2.1/32"] {
        nets.insert(net(inner));
    }
    let covered = nets.insert(net("10.0.0.0/8"));
    assert_eq!(texts(&covered.removed), ["10.1.0.0/16", "10.2.0.0/16"]);
    assert_eq!(texts(&covered.added), ["10.0.0.0/8"]);
    // Covered networks come and go without a change in the kernel.
    assert_eq!(nets.insert(net("10.3.0.0/16")), NetworkChange::default());
    assert_eq!(nets.remove(net("10.2.0.0/16")), NetworkChange::default());
    let uncovered = nets.remove(net("10.0.0.0/8"));
    assert_eq!(texts(&uncovered.added), ["10.1.0.0/16", "10.2.3.0/24", "10.3.0.0/16"]);
    assert_eq!(nets.remove(net("10.0.0.0/8")), NetworkChange::default());
}

#[test]
fn networks_at_the_end_have_nothing_behind_them() {
    for (text, end) in [
        ("0.0.0.0/0", None),
        ("128.0.0.0/1", None),
        ("255.255.255.255/32", None),
        ("0.0.0.0/1", Some("128.0.0.0")),
        ("10.0.0.0/8", Some("11.0.0.0")),
        ("::/0", None),
        ("8000::/1", None),
        ("fd00::/8", Some("fe00::")),
        ("fd00::1/128", Some("fd00::2")),
    ] {
        assert_eq!(behind(net(text)).map(|end| end.to_string()).as_deref(), end, "{text}");
    }
}

fn networks() -> impl Strategy<Value = Cidr> {
    (0_u8..4, prop_oneof![Just(0_u8), 1_u8..8, 24_u8..=32]).prop_map(|(bits, len)| {
        let address = u32::from(bits) << 30 | u32::from(bits) << 6 | u32::from(bits);
        Cidr::new(IpAddr::V4(address.into()), len).expect("a length").masked()
    })
}

proptest! {
    #[test]
    fn changes_add_up_to_the_largest_networks(edits in prop::collection::vec((any::<bool>(), networks()), 1..60)) {
        let (mut nets, mut all, mut kernel) = (Networks::default(), BTreeSet::new(), BTreeSet::new());
        for (inserts, net) in edits {
            let change = if inserts { all.insert(net); nets.insert(net) } else { all.remove(&net); nets.remove(net) };
            for gone in change.removed {
                prop_assert!(kernel.remove(&gone));
            }
            for new in change.added {
                prop_assert!(kernel.insert(new));
            }
            let tops = all.iter().filter(|net| {
                !all.iter().any(|other| other != *net && has_inside(*other, **net))
            });
            prop_assert_eq!(&kernel, &tops.copied().collect::<BTreeSet<Cidr>>());
            prop_assert_eq!(nets.effective().collect::<BTreeSet<Cidr>>(), kernel.clone());
        }
    }
}
