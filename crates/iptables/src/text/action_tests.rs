use super::write_action;
use crate::{
    Action, ChainName, Family, Features, LogPrefix, MarkBits, MaskedMark, NflogPrefix, PacketRate, PortRange,
    RejectWith,
};

fn text(action: &Action, features: &Features) -> String {
    let mut out = String::new();
    write_action(action, features, &mut out).unwrap();
    out
}

#[test]
fn every_action_has_its_text() {
    let chain = ChainName::new("cali-FORWARD").unwrap();
    let bits = MarkBits::new(0x180000).unwrap();
    let ports = PortRange::new(99, 100);
    for (action, expected) in [
        (Action::Jump(chain), "--jump cali-FORWARD"),
        (Action::Goto(chain), "--goto cali-FORWARD"),
        (Action::Return, "--jump RETURN"),
        (Action::Accept, "--jump ACCEPT"),
        (Action::Drop, "--jump DROP"),
        (Action::Reject(RejectWith::default()), "--jump REJECT"),
        (Action::Reject(RejectWith::TcpReset), "--jump REJECT --reject-with tcp-reset"),
        (Action::Reject(RejectWith::AdminProhibited(Family::V4)), "--jump REJECT --reject-with icmp-admin-prohibited"),
        (Action::Reject(RejectWith::AdminProhibited(Family::V6)), "--jump REJECT --reject-with icmp6-adm-prohibited"),
        (Action::ClearMark(bits), "--jump MARK --set-mark 0/0x180000"),
        (Action::SetMark(bits), "--jump MARK --set-mark 0x180000/0x180000"),
        (Action::SetMaskedMark(MaskedMark::new(0, bits)), "--jump MARK --set-mark 0x0/0x180000"),
        (Action::NoTrack, "--jump NOTRACK"),
        (Action::Queue(101), "--jump NFQUEUE --queue-num 101 --queue-bypass"),
        (Action::Log(LogPrefix::new("calico\"packet")), "--jump LOG --log-prefix \"calico_packet: \" --log-level 5"),
        (
            Action::Nflog { group: 1, prefix: NflogPrefix::new("API0|gnp/a b") },
            "--jump NFLOG --nflog-group 1 --nflog-prefix API0|gnp/a_b --nflog-size 80",
        ),
        (Action::Dnat { addr: [10, 0, 0, 1].into(), port: Some(80) }, "--jump DNAT --to-destination 10.0.0.1:80"),
        (
            Action::Dnat { addr: "fd00::1".parse().unwrap(), port: Some(80) },
            "--jump DNAT --to-destination [fd00::1]:80",
        ),
        (Action::Snat { addr: [10, 0, 0, 1].into(), ports: None }, "--jump SNAT --to-source 10.0.0.1 --random-fully"),
        (
            Action::Snat { addr: "fd00::1".parse().unwrap(), ports },
            "--jump SNAT --to-source [fd00::1]:99-100 --random-fully",
        ),
        (Action::Masquerade { ports: None }, "--jump MASQUERADE --random-fully"),
        (Action::Masquerade { ports }, "--jump MASQUERADE --to-ports 99-100 --random-fully"),
        (Action::SetDscp(23), "--jump DSCP --set-dscp 23"),
        (Action::SetConnectionMark(MaskedMark::new(0x80000, bits)), "--jump CONNMARK --set-mark 0x80000/0x180000"),
        (
            Action::MarkWithinRate { limit: PacketRate::new(100, 5).unwrap(), mark: bits },
            "-m limit --limit 100/sec --limit-burst 5 --jump MARK --set-mark 0x180000/0x180000",
        ),
        (
            Action::RejectConnectionsAbove(10),
            "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m connlimit --connlimit-above 10 \
             --connlimit-mask 0 -j REJECT --reject-with tcp-reset",
        ),
    ] {
        assert_eq!(text(&action, &Features::ALL), expected);
    }
}

#[test]
fn old_systems_get_supported_options() {
    let old = Features::detect(None, None);
    assert_eq!(text(&Action::Masquerade { ports: None }, &old), "--jump MASQUERADE");
    assert_eq!(
        text(&Action::Snat { addr: [10, 0, 0, 1].into(), ports: None }, &old),
        "--jump SNAT --to-source 10.0.0.1"
    );
    assert_eq!(
        text(&Action::Nflog { group: 2, prefix: NflogPrefix::new("DRE") }, &old),
        "--jump NFLOG --nflog-group 2 --nflog-prefix DRE --nflog-range 80"
    );
}

#[test]
fn packet_rates_stay_within_the_kernels_scale() {
    assert!(PacketRate::new(1, 1).is_some());
    assert!(PacketRate::new(10_000, 10_000).is_some());
    assert!(PacketRate::new(10_001, 1).is_none());
    assert!(PacketRate::new(0, 1).is_none());
    assert!(PacketRate::new(1, 0).is_none());
    assert!(PacketRate::new(1, 10_001).is_none());
}
