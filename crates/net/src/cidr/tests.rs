use super::*;
use proptest::prelude::*;

#[test]
fn prefix_lengths_are_checked() {
    for bad in ["10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "", "/8", "10.0.0.0/08x", "a/8"] {
        assert!(bad.parse::<Cidr>().is_err(), "{bad}");
    }
    assert_eq!(Cidr::new("10.0.0.0".parse().unwrap(), 33), None);
}

#[test]
fn mapped_addresses_and_networks_are_ipv4() {
    for (text, same) in [
        ("::ffff:1.2.3.4", "1.2.3.4/32"),
        ("::FFFF:102:304", "1.2.3.4/32"),
        ("0:0:0:0:0:ffff:1.2.3.4/128", "1.2.3.4/32"),
        ("::ffff:1.2.3.0/120", "1.2.3.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("::1.2.3.4", "::102:304/128"),
    ] {
        assert_eq!(text.parse::<Cidr>().unwrap().to_string(), same, "{text}");
    }
    let error = "::ffff:1.2.3.4/64".parse::<Cidr>().unwrap_err().to_string();
    assert!(error.ends_with(": an IPv4-mapped network has a prefix of 96 to 128 bits"), "{error}");
    assert!(!"::1/200".parse::<Cidr>().unwrap_err().to_string().contains("mapped"));
}

#[test]
fn masking_and_containment() {
    let net: Cidr = "10.1.2.3/16".parse().unwrap();
    assert!(net.contains("10.1.255.255".parse().unwrap()));
    assert!(!net.contains("10.2.0.0".parse().unwrap()));
    assert!(!net.contains("::ffff:10.1.0.0".parse().unwrap()));
    let all: Cidr = "::/0".parse().unwrap();
    assert!(all.contains("fd00::1".parse().unwrap()) && !all.contains("10.0.0.1".parse().unwrap()));
    assert_eq!("fd00::1/0".parse::<Cidr>().unwrap().masked().to_string(), "::/0");
}

#[test]
fn default_routes_split_in_two() {
    let halves = |s: &str| s.parse::<Cidr>().unwrap().split_default_route().map(|c| c.to_string()).collect::<Vec<_>>();
    assert_eq!(halves("0.0.0.0/0"), ["0.0.0.0/1", "128.0.0.0/1"]);
    assert_eq!(halves("::/0"), ["::/1", "8000::/1"]);
    assert_eq!(halves("10.0.0.0/8"), ["10.0.0.0/8"]);
}

proptest! {
    #[test]
    fn text_round_trips(v6 in any::<bool>(), bits in any::<u128>(), len in 0u8..=128) {
        let address = if v6 {
            IpAddr::V6(bits.into())
        } else {
            IpAddr::V4(u32::try_from(bits >> 96).unwrap().into())
        };
        if let Some(net) = Cidr::new(address, len) {
            prop_assert_eq!(net.to_string().parse::<Cidr>().unwrap(), net);
            prop_assert_eq!(net.masked().contains(address), true);
            prop_assert_eq!(net.masked().masked(), net.masked());
        }
    }
}
