use std::net::IpAddr;

use tortie_iptables::ConntrackState;

use super::{Ruleset, Walk, WalkError};
use crate::{
    packet::{Packet, Payload},
    walker::{PacketOutcome, Skb},
};

/// Parses a table with these lines, in which `T` stands for the table.
fn table(lines: &str) -> Ruleset {
    read(lines).unwrap()
}

fn read(lines: &str) -> Result<Ruleset, super::NotATable> {
    Ruleset::parse(&format!("add table ip calico\n{lines}").replace(" T ", " ip calico "))
}

fn packet(protocol: u8, source: &str, destination: &str, port: u16) -> Packet {
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    Packet::with_ports(protocol, (address(source), 1000), (address(destination), port))
}

fn skb() -> Skb {
    Skb::new(packet(6, "10.0.0.1", "10.0.0.2", 80), "cali1", "eth0")
}

/// Walks a chain with one rule.
fn by_rule(rule: &str, skb: &Skb) -> Walk {
    let declared = "add set T nets { type ipv4_addr ; flags interval ; }\nadd element T nets { 10.0.0.0/30 }\n\
                    add set T ports { type ipv4_addr . inet_proto . inet_service ; }\n\
                    add element T ports { 10.0.0.2 . tcp . 80 }\nadd chain T a\n";
    table(&format!("{declared}add rule T a {rule} comment \"x; y\"")).walk("a", skb).unwrap()
}

fn drops(rule: &str, skb: &Skb) -> bool {
    by_rule(&format!("{rule} counter drop"), skb).outcome == PacketOutcome::Dropped
}

#[test]
fn matches_are_true_or_not() {
    let skb = &Skb { mark: 0x30, ..skb() };
    for (rule, so) in [
        ("ip saddr 10.0.0.0/31", true),
        ("ip saddr != 10.0.0.0/31", false),
        ("ip daddr 10.0.0.1", false),
        ("ip saddr @nets", true),
        ("ip saddr != @nets", false),
        ("ip daddr . meta l4proto . th dport @ports", true),
        ("ip saddr . meta l4proto . th sport @ports", false),
        ("ip saddr . meta l4proto . th sport != @ports", true),
        ("meta l4proto tcp tcp dport { 1-79, 80 }", true),
        ("meta l4proto tcp tcp dport != { 1-79, 80 }", false),
        ("udp dport 80", false),
        ("udp dport != 81", false),
        ("meta l4proto != 17", true),
        ("meta mark & 0x30 == 0x30", true),
        ("meta mark & 0x10 == 0", false),
        ("meta mark & 0x40 == 0x0", true),
        ("meta mark & 0x30 != 0x10", true),
        ("iifname cali1", true),
        ("iifname cali*", true),
        ("oifname \"eth1*\"", false),
        ("ct state new,related", true),
        ("ct state established", false),
        ("ct status dnat", false),
        ("ct status & dnat == 0", true),
        ("fib saddr type local", false),
        ("fib daddr . oif type != local", true),
        ("fib saddr . mark . iif oif 0", false),
        ("limit rate 5/second burst 3 packets", true),
        ("limit rate over 5/second burst 3 packets", false),
        ("ct count over 0", false),
        ("icmp type 8", false),
    ] {
        assert_eq!(drops(rule, skb), so, "{rule}");
    }
}

#[test]
fn statements_have_the_semantics_of_the_kernel() {
    // Felix's expression for "not translated" compares the complete status with one bit.
    let translated = Skb { conntrack: [ConntrackState::Established, ConntrackState::Dnat].into(), ..skb() };
    assert!(drops("ct status != dnat", &translated) && drops("ct status dnat", &translated));
    assert!(!drops("ct status & dnat == 0", &translated));
    let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let echo = Skb::new(Packet::icmp(source, destination, 8, 0), "cali1", "eth0");
    for (rule, so) in [
        ("icmp type 8", true),
        ("icmp type != 8", false),
        ("@th,0,16 0x0800", true),
        ("@th,0,16 != 0x0801", true),
        // A packet without the header never matches, negated or not.
        ("tcp dport != 80", false),
    ] {
        assert_eq!(drops(rule, &echo), so, "{rule}");
    }
    assert!(!drops("icmp type != 8", &Skb::new(Packet { payload: Payload::Opaque, ..echo.packet }, "", "")));
}

#[test]
fn marks_are_written_bit_by_bit() {
    for (expression, mark) in [
        ("mark or 0x4", 0x34),
        ("mark & 0xffffffef", 0x20),
        ("mark & 0xffffffcf ^ 0x10", 0x10),
        ("mark ^ 0x11", 0x21),
        ("0x7", 0x7),
    ] {
        let walk = by_rule(&format!("counter meta mark set {expression}"), &Skb { mark: 0x30, ..skb() });
        assert_eq!((walk.outcome, walk.mark), (PacketOutcome::Returned, mark), "{expression}");
    }
    assert!(read("add chain T a\nadd rule T a meta mark set mark or 0x1 ^ 0x1").is_err());
}

#[test]
fn jumps_return_gotos_do_not_and_maps_dispatch() {
    let table = table(
        "add chain T base { type filter hook forward priority 0 ; }
         add chain T b\nadd chain T c\nadd map T m { type ifname : verdict ; }\nadd element T m { cali1 : goto c }
         add rule T base counter jump b comment \"cali:x;\"\nadd rule T base meta mark set mark or 0x8
         add rule T b iifname vmap @m\nadd rule T b meta mark set mark or 0x2
         add rule T c meta mark set mark or 0x1\nadd rule T c counter return\nadd rule T c counter drop",
    );
    assert_eq!(table.base("base"), Some("type filter hook forward priority 0"));
    let walk = table.walk("base", &skb()).unwrap();
    assert_eq!((walk.outcome, walk.mark), (PacketOutcome::Returned, 9));
    let path: Vec<_> = walk.path.iter().map(|(chain, rule)| (chain.as_str(), *rule)).collect();
    assert_eq!(path, [("base", 0), ("b", 0), ("c", 0), ("c", 1), ("base", 1)]);
    // An interface that is not in the map continues with the next rule.
    let other = Skb { in_interface: "cali2".to_owned(), ..skb() };
    assert_eq!(table.walk("base", &other).unwrap().mark, 10);
    assert_eq!(table.walk("none", &other), Err(WalkError::NoChain("none".to_owned())));
}

#[test]
fn side_effects_are_recorded() {
    let walk = by_rule("counter log prefix \"a drop: \" level info", &skb());
    assert_eq!((walk.outcome, walk.logs), (PacketOutcome::Returned, vec!["a drop: ".to_owned()]));
    assert!(by_rule("counter notrack", &skb()).untracked);
    for (rule, outcome) in [
        (
            "counter log prefix \"APE\" snaplen 80 group 1 reject with tcp reset",
            PacketOutcome::Rejected(super::RejectWith::TcpReset),
        ),
        ("counter reject", PacketOutcome::Rejected(super::RejectWith::PortUnreachable)),
        (
            "counter reject with icmp admin-prohibited",
            PacketOutcome::Rejected(super::RejectWith::AdminProhibited(tortie_iptables::Family::V4)),
        ),
        ("counter masquerade to :1000-2000 fully-random", PacketOutcome::Accepted),
        ("counter dnat to 10.0.0.9:53", PacketOutcome::Accepted),
        ("counter ct mark set ct mark & 0xffff ^ 0x10000", PacketOutcome::Returned),
        ("counter ip dscp set 10", PacketOutcome::Returned),
        ("continue", PacketOutcome::Returned),
    ] {
        assert_eq!(by_rule(rule, &skb()).outcome, outcome, "{rule}");
    }
}

#[test]
fn invalid_or_unknown_statements_are_errors() {
    let set = "add set T s { type ipv4_addr ; flags interval ; }\n";
    for (lines, reason) in [
        ("add chain T a\nadd rule T a counter jump b".to_owned(), "there is no chain b"),
        ("add chain T a { type filter hook input priority 0 ; }\nadd rule T a jump a".to_owned(), "a is a base chain"),
        ("add chain T a\nadd rule T a ip saddr @s drop".to_owned(), "there is no such set"),
        (format!("{set}add chain T a\nadd rule T a ip saddr . meta l4proto @s drop"), "there is no such set"),
        ("add chain T a\nadd rule T a ip6 saddr ::1 drop".to_owned(), "not understood"),
        ("add chain T a\nadd rule T a icmpv6 type 1 drop".to_owned(), "no port"),
        ("add chain T a\nadd rule T a drop twice".to_owned(), "not understood"),
        ("add chain T a\nadd rule T a ip saddr 10.0.0.1 frobnicate".to_owned(), "not understood"),
        (format!("{set}add element T s {{ 10.0.0.0/8 }}\nadd element T s {{ 10.1.0.0/16 }}"), "overlaps"),
        ("add set T s { type ipv4_addr ; }\nadd element T s { 10.0.0.0/8 }".to_owned(), "an interval"),
        ("add map T m { type ifname : verdict ; }\nadd element T m { a : goto b }".to_owned(), "there is no chain b"),
        ("add chain T a\ndelete chain T a".to_owned(), "not a command"),
        ("add table ip other".to_owned(), "a second table"),
    ] {
        let error = read(&lines).unwrap_err();
        assert!(error.source.to_string().contains(reason), "{lines}: {error}");
    }
}
