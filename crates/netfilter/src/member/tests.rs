use std::mem::size_of;

use proptest::prelude::*;

use super::*;

const V4: Family = Family::V4;
const V6: Family = Family::V6;

/// The canonical text, `-` for a member of the other family, or the error.
#[track_caller]
fn check(set_type: SetType, family: Family, text: &str, expected: &str) {
    let got = match Member::parse(set_type, family, text) {
        Ok(Some(member)) => member.to_string(),
        Ok(None) => "-".to_owned(),
        Err(error) => format!("error: {error}"),
    };
    assert_eq!(got, expected, "{text}");
}

#[test]
fn members_are_packed() {
    assert_eq!(size_of::<NetMember>(), 17);
    assert_eq!(size_of::<IpPortMember>(), 20);
    assert_eq!(size_of::<NetPair>(), 34);
    assert!(size_of::<Member>() <= 36);
}

#[test]
fn canonical_forms() {
    use SetType::*;
    for (set_type, family, text, expected) in [
        (HashIp, V4, "10.0.0.1", "10.0.0.1"),
        (HashIp, V4, "10.0.0.1/32", "10.0.0.1"),
        (HashIp, V4, "10.0.0.1/24", "10.0.0.1"),
        (HashIp, V6, "2001:DB8:0::1/128", "2001:db8::1"),
        (HashIp, V6, "::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        (HashNet, V4, "10.1.2.3/8", "10.0.0.0/8"),
        (HashNet, V4, "10.1.2.3/32", "10.1.2.3"),
        (HashNet, V4, "0.0.0.0/0", "0.0.0.0/0"),
        (HashNet, V6, "FE80::1/10", "fe80::/10"),
        (HashNet, V6, "::1/128", "::1"),
        (HashIpPort, V4, "10.0.0.1,TCP:80", "10.0.0.1,tcp:80"),
        (HashIpPort, V4, "10.0.0.1/32,sctp:0", "10.0.0.1,sctp:0"),
        (HashIpPort, V6, "FE80:0::1,udp:53", "fe80::1,udp:53"),
        (HashNetNet, V4, "10.0.0.0/8,10.1.0.1/32", "10.0.0.0/8,10.1.0.1"),
        (BitmapPort, V4, "80", "80"),
        (BitmapPort, V4, "v4,080", "80"),
        (BitmapPort, V6, "v6,65535", "65535"),
    ] {
        check(set_type, family, text, expected);
    }
}

#[test]
fn other_family() {
    use SetType::*;
    for (set_type, family, text) in [
        (HashIp, V4, "fe80::1"),
        (HashIp, V6, "10.0.0.1"),
        (HashNet, V6, "10.0.0.0/8"),
        (HashIpPort, V4, "fe80::1,tcp:80"),
        (HashNetNet, V4, "fe80::1,fe80::2"),
        (BitmapPort, V4, "v6,80"),
        (BitmapPort, V6, "v4,80"),
    ] {
        check(set_type, family, text, "-");
    }
}

#[test]
fn nothing_unchecked_gets_through() {
    use SetType::*;
    for (set_type, text) in [
        (HashIp, ""),
        (HashIp, "host.example"),
        (HashIp, "localhost"),
        (HashIp, "10.0.0"),
        (HashIp, "10.0.0.01"),
        (HashIp, "10.0.0.1-10.0.0.9"),
        (HashIp, "10.0.0.1/"),
        (HashIp, "10.0.0.1/33"),
        (HashIp, "10.0.0.1 nomatch"),
        (HashIp, "10.0.0.1\nflush x"),
        (HashNet, "fe80::1%eth0"),
        (HashNet, "10.0.0.0/-1"),
        (HashNet, "10.0.0.0/8/8"),
        (HashIpPort, "10.0.0.1,tcp:http"),
        (HashIpPort, "10.0.0.1,tcp:+80"),
        (HashIpPort, "10.0.0.1,tcp:65536"),
        (HashIpPort, "10.0.0.1,icmp:echo-request"),
        (HashIpPort, "10.0.0.1,80"),
        (HashIpPort, "10.0.0.0/8,tcp:80"),
        (HashNetNet, "10.0.0.0/8"),
        (HashNetNet, "10.0.0.0/8,fe80::/10"),
        (BitmapPort, "http"),
        (BitmapPort, "65536"),
        (BitmapPort, "v5,80"),
        (BitmapPort, ""),
    ] {
        check(set_type, V4, text, &format!("error: {text:?} is no member of a {set_type} set"));
    }
}

#[test]
fn members_with_invalid_values_are_rejected() {
    let unspecified = "the unspecified address cannot be stored in a hash set of addresses";
    check(SetType::HashIp, V4, "0.0.0.0", &format!("error: 0.0.0.0: {unspecified}"));
    check(SetType::HashIp, V6, "::", &format!("error: ::: {unspecified}"));
    check(SetType::HashIpPort, V4, "0.0.0.0,tcp:80", &format!("error: 0.0.0.0,tcp:80: {unspecified}"));
    check(
        SetType::HashNetNet,
        V4,
        "0.0.0.0/0,10.0.0.0/8",
        "error: 0.0.0.0/0,10.0.0.0/8: a network of prefix length 0 cannot be stored in a hash:net,net set",
    );
    // But as a network it is a member.
    check(SetType::HashNet, V4, "0.0.0.0", "0.0.0.0");
}

#[test]
fn host_bits_are_cleared() {
    let net = |text: &str| NetMember::from(text.parse::<Cidr>().unwrap()).to_string();
    assert_eq!(net("10.1.2.3/16"), "10.1.0.0/16");
    assert_eq!(net("10.1.2.3/0"), "0.0.0.0/0");
    assert_eq!(net("::1/128"), "::1");
    assert_eq!(net("ffff::/0"), "::/0");
}

proptest! {
    #[test]
    fn nets_round_trip(v6: bool, bits: [u8; 16], length in 0u8..=128) {
        let address = if v6 { IpAddr::from(bits) } else { IpAddr::from([bits[0], bits[1], bits[2], bits[3]]) };
        let cidr = Cidr::new(address, length.min(Family::of(address).max_prefix_len())).unwrap();
        let net = NetMember::from(cidr);
        prop_assert_eq!(net.cidr(), cidr.masked());
        prop_assert_eq!(NetMember::parse(&net.to_string()), Some(net));
    }

    #[test]
    fn parsed_members_print_unchanged(text in "[0-9a-f:.,/v]{0,24}", v6: bool, kind in 0usize..5) {
        let (set_type, family) = (SetType::ALL[kind], if v6 { V6 } else { V4 });
        if let Ok(Some(member)) = Member::parse(set_type, family, &text) {
            prop_assert_eq!(Member::parse(set_type, family, &member.to_string()), Ok(Some(member)));
        }
    }
}
