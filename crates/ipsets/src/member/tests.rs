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
    assert_eq!(size_of::<Net>(), 17);
    assert_eq!(size_of::<IpPort>(), 20);
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
fn what_the_kernel_refuses_for_its_value() {
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
fn from_bits() {
    let net = |family, bits, prefix| Net::new(family, bits, prefix).map(|net| net.to_string());
    assert_eq!(net(V4, 0x0a01_0203, 16), Ok("10.1.0.0/16".to_owned()));
    assert_eq!(net(V4, 0x0a01_0203, 0), Ok("0.0.0.0/0".to_owned()));
    assert_eq!(net(V6, 1, 128), Ok("::1".to_owned()));
    assert_eq!(net(V6, u128::MAX, 0), Ok("::/0".to_owned()));
    assert_eq!(net(V4, 0, 33), Err(MemberError::PrefixTooLong { family: V4, prefix: 33 }));
    assert_eq!(net(V6, 0, 129), Err(MemberError::PrefixTooLong { family: V6, prefix: 129 }));
    assert_eq!(net(V4, 1 << 32, 32), Err(MemberError::BitsTooLarge(1 << 32)));
}

#[test]
fn halves() {
    let halves = |text: &str| Net::parse(text).unwrap().halves().map(|h| h.map(|net| net.to_string()));
    assert_eq!(halves("0.0.0.0/0"), Some(["0.0.0.0/1", "128.0.0.0/1"].map(str::to_owned)));
    assert_eq!(halves("::/0"), Some(["::/1", "8000::/1"].map(str::to_owned)));
    assert_eq!(halves("0.0.0.0/1"), None);
}

proptest! {
    #[test]
    fn nets_round_trip(v6: bool, bits: u128, prefix in 0u8..=128) {
        let family = if v6 { V6 } else { V4 };
        let bits = if v6 { bits } else { bits & u128::from(u32::MAX) };
        let prefix = prefix.min(family.max_prefix_len());
        let net = Net::new(family, bits, prefix).unwrap();
        prop_assert_eq!((net.family(), net.prefix()), (family, prefix));
        prop_assert_eq!(Net::new(family, net.bits(), prefix).unwrap(), net);
        prop_assert_eq!(Net::parse(&net.to_string()), Some(net));
        let text = format!("{}/{}", net.addr(), net.prefix());
        prop_assert_eq!(Net::from(text.parse::<IpNet>().unwrap()), net);
    }

    #[test]
    fn what_parses_prints_as_itself(text in "[0-9a-f:.,/v]{0,24}", v6: bool, kind in 0usize..5) {
        let (set_type, family) = (SetType::ALL[kind], if v6 { V6 } else { V4 });
        if let Ok(Some(member)) = Member::parse(set_type, family, &text) {
            prop_assert_eq!(Member::parse(set_type, family, &member.to_string()), Ok(Some(member)));
        }
    }
}
