use std::net::IpAddr;

use super::matches_text;
use crate::{
    Cidr, ConntrackStates, Family, IcmpType, InterfaceName, InterfacePattern, IpSetName, MarkBits, MaskedMark, Match,
    Matches, PacketRate, PortList, PortRange, Protocol, Side,
};

fn check(build: impl FnOnce(Matches) -> Matches, text: &str) {
    assert_eq!(matches_text(&build(Matches::new())), text);
}

#[test]
fn every_match_has_its_text() {
    let bits = MarkBits::new(0x30000).unwrap();
    let value = MaskedMark::new(0x10000, bits);
    let eth0 = InterfaceName::new("eth0").unwrap();
    let cali = InterfacePattern::prefix(InterfaceName::new("cali").unwrap());
    let set = IpSetName::new("cali40s:abc").unwrap();
    let net: Cidr = "10.0.0.0/8".parse().unwrap();
    let host: IpAddr = "fd00::1".parse().unwrap();
    let ports = PortList::split(&[PortRange::single(80), PortRange::new(8080, 8090).unwrap()]);
    let [ports] = ports.as_slice() else { panic!("one list") };
    let ping = IcmpType { number: 8, code: None };
    let ping0 = IcmpType { number: 128, code: Some(0) };
    use Side::{Destination, Source};

    check(|m| m, "");
    check(|m| m.mark_clear(bits), "-m mark --mark 0/0x30000");
    check(|m| m.mark_not_clear(bits), "-m mark ! --mark 0/0x30000");
    check(|m| m.mark_set(bits), "-m mark --mark 0x30000/0x30000");
    check(|m| m.mark_not_set(bits), "-m mark ! --mark 0x30000/0x30000");
    check(|m| m.mark_is(value), "-m mark --mark 0x10000/0x30000");
    check(|m| m.mark_is_not(value), "-m mark ! --mark 0x10000/0x30000");
    check(|m| m.in_interface(eth0), "--in-interface eth0");
    check(|m| m.out_interface(cali), "--out-interface cali+");
    check(Matches::reverse_path_fails, "-m rpfilter --invert --validmark");
    check(Matches::source_is_local, "-m addrtype --src-type LOCAL");
    check(Matches::source_is_not_of_out_interface, "-m addrtype ! --src-type LOCAL --limit-iface-out");
    check(Matches::destination_is_local, "-m addrtype --dst-type LOCAL");
    check(|m| m.conntrack(ConntrackStates::RELATED_OR_ESTABLISHED), "-m conntrack --ctstate RELATED,ESTABLISHED");
    check(|m| m.not_conntrack(ConntrackStates::DNAT), "-m conntrack ! --ctstate DNAT");
    check(|m| m.protocol(Protocol::TCP), "-p tcp");
    check(|m| m.not_protocol(Protocol::Number(17)), "! -p 17");
    check(|m| m.source(net), "--source 10.0.0.0/8");
    check(|m| m.not_net(Destination, host), "! --destination fd00::1");
    check(|m| m.ip_set(Source, set), "-m set --match-set cali40s:abc src");
    check(|m| m.not_ip_set(Destination, set), "-m set ! --match-set cali40s:abc dst");
    check(|m| m.ip_port_set(Destination, set), "-m set --match-set cali40s:abc dst,dst");
    check(|m| m.not_ip_port_set(Source, set), "-m set ! --match-set cali40s:abc src,src");
    check(|m| m.destination_by_interface(set), "-m set --match-set cali40s:abc dst,src");
    check(Matches::reply, "-m conntrack --ctdir REPLY");
    check(|m| m.conntrack(ConntrackStates::UNTRACKED), "-m conntrack --ctstate UNTRACKED");
    let limit = PacketRate::new(1000, 500).unwrap();
    check(
        |m| m.and(Match::AboveRateOfDestination { limit, name: set }),
        "-m hashlimit --hashlimit-above 1000/sec --hashlimit-burst 500 --hashlimit-mode dstip \
         --hashlimit-name cali40s:abc",
    );
    check(|m| m.source_ports(ports.clone()), "-m multiport --source-ports 80,8080:8090");
    check(|m| m.not_ports(Destination, ports.clone()), "-m multiport ! --destination-ports 80,8080:8090");
    check(|m| m.destination_port(4789), "--dport 4789");
    check(|m| m.icmp(Family::V4, ping), "-m icmp --icmp-type 8");
    check(|m| m.not_icmp(Family::V6, ping0), "-m icmp6 ! --icmpv6-type 128/0");
    check(|m| m.limit("10/second".parse().unwrap(), None), "-m limit --limit 10/second");
    check(
        |m| m.limit("1/day".parse().unwrap(), Some(7)).protocol(Protocol::SCTP),
        "-m limit --limit 1/day --limit-burst 7 -p sctp",
    );
}
