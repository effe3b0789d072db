use super::*;

#[test]
fn integers_in_every_base_of_go() {
    for (raw, value) in [("10", 10), ("0x1F", 31), ("010", 8), ("0b101", 5), ("0o17", 15), ("-3", -3), ("0", 0)] {
        assert_eq!(integer(raw), Ok(value), "{raw}");
    }
    for raw in ["", "x", "1.5", "0x", "--1", "0x-1", "9223372036854775808"] {
        assert!(integer(raw).is_err(), "{raw}");
    }
}

#[test]
fn durations_as_go_writes_them() {
    for (raw, millis) in [("90s", 90_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("250ms", 250), ("0", 0)] {
        assert_eq!(go_duration(raw), Ok(Duration::from_millis(millis)), "{raw}");
    }
    for raw in ["", "90", "s", "1x", "1..2s"] {
        assert!(go_duration(raw).is_err(), "{raw}");
    }
}

#[test]
fn failsafe_ports_in_all_forms() {
    let ports = failsafe_ports("22, udp:68,tcp:10.0.0.1/8:179,tcp:[fd00::/8]:22,").unwrap();
    let shown: Vec<_> = ports.iter().map(|p| (p.tcp, p.net.map(|n| n.to_string()), p.port)).collect();
    assert_eq!(
        shown,
        [
            (true, None, 22),
            (false, None, 68),
            (true, Some("10.0.0.0/8".into()), 179),
            (true, Some("fd00::/8".into()), 22)
        ]
    );
    for raw in ["sctp:22", "tcp:22:33:44:55", "tcp:x:22", "70000", "[fd00::/8]:22", "tcp:fd00::/8:22"] {
        assert!(failsafe_ports(raw).is_err(), "{raw}");
    }
}

#[test]
fn marks_need_six_bits() {
    assert_eq!(mark_mask("0xffff0000"), Ok(0xffff_0000));
    assert_eq!(mark_mask("4278190080"), Ok(0xff00_0000));
    assert_eq!(mark_mask("0x3f"), Ok(0x3f));
    assert_eq!(mark_mask("0x1f").unwrap_err().to_string(), "must have at least 6 bits set");
    assert!(mark_mask("0x1ffff0000").is_err());
}

#[test]
fn timers_may_be_switched_off_by_negative_numbers() {
    assert_eq!(seconds("-1"), Ok(Duration::ZERO));
    assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    assert!(seconds("soon").is_err() && seconds("NaN").is_ok_and(|d| d.is_zero()));
}

#[test]
fn interface_patterns() {
    let patterns = iface_patterns("kube-ipvs0,/^veth/").unwrap();
    assert!(patterns[0].is_match("kube-ipvs0") && !patterns[0].is_match("kube-ipvs01"));
    assert!(patterns[1].is_match("veth7"));
    assert!(iface_patterns("a b").is_err() && iface_patterns("/(/").is_err());
    assert!(iface_list("cali,").is_err() && iface_list("a-name-that-is-too-long").is_err());
    assert_eq!(iface_filter("eth+"), Ok(Some("eth+".into())));
}

#[test]
fn log_rates() {
    assert!(log_rate("10/minute").is_ok_and(|r| r.is_some()));
    for raw in ["0/second", "10/week", "10", "10000/day"] {
        assert!(log_rate(raw).is_err(), "{raw}");
    }
}

#[test]
fn ranges_of_tables() {
    let range = |first, last| TableRange { first, last };
    assert_eq!(table_range("1-250"), Ok(Some(range(1, 250))));
    for raw in ["", "1", "0-5", "5-4", "1-251", "1-2,3-4", "+1-2", "1-2 "] {
        assert!(table_range(raw).is_err(), "{raw}");
    }
    assert_eq!(table_ranges("10-20, 1-5;x7-7-8-9"), Ok(vec![range(10, 20), range(1, 5), range(7, 7), range(8, 9)]));
    assert_eq!(table_ranges("1-65535").map(|ranges| ranges.len()), Ok(1));
    for raw in ["", "7", "7-", "-7", "0-5", "5-4", "1-65536", "1-40000,50000-80000", "1-4294967296", "4294967296-1"] {
        assert!(table_ranges(raw).is_err(), "{raw}");
    }
}

#[test]
fn mapped_addresses_are_ipv4_or_refused() {
    assert_eq!(ipv4("::ffff:192.0.2.1"), ipv4("192.0.2.1"));
    assert!(ipv6("::ffff:192.0.2.1").is_err());
    assert_eq!(host_address("::ffff:127.0.0.1").as_deref(), Ok("127.0.0.1"));
    assert_eq!(cidrs("::ffff:10.0.0.0/104"), cidrs("10.0.0.0/8"));
    assert!(cidrs("::ffff:0.0.0.0/95").is_err());
    assert_eq!(failsafe_ports("tcp:[::ffff:10.0.0.0/104]:22"), failsafe_ports("tcp:10.0.0.0/8:22"));
}
