//! Any bytes are a netfilter message or rejected: a logged or queued packet, or the begin or end of
//! a connection. The parsed fields of a packet do not depend on later bytes.

use tortie_linux::netlink::{ConnectionEvent, Flow, LoggedHeaders, LoggedPacket, Queued, Transport, TransportPacket};

/// `NFNL_SUBSYS_CTNETLINK << 8`, with `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_DELETE`.
const NEW: u16 = 0x100;
const DELETE: u16 = 0x102;

/// The first byte chooses the type of the rest.
pub(crate) fn check(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 5 {
        0 => check_packet(rest),
        1 => check_logged(rest),
        2 => check_event(rest),
        3 => check_queued(rest),
        _ => check_transport(rest),
    }
}

fn check_packet(packet: &[u8]) {
    let Some(headers) = LoggedHeaders::parse(packet) else { return };
    assert_eq!(headers.tuple.source.is_ipv4(), headers.tuple.destination.is_ipv4());
    assert_eq!(headers.tuple.source.is_ipv4(), packet[0] >> 4 == 4);
    let mut longer = packet.to_vec();
    longer.extend([0xff; 8]);
    let again = LoggedHeaders::parse(&longer).expect("the longer message is as valid");
    assert_eq!((again.tuple.source, again.tuple.destination), (headers.tuple.source, headers.tuple.destination));
    if headers.tuple.flow != Flow::Other {
        assert_eq!(again, headers);
    }
}

fn check_logged(message: &[u8]) {
    let Ok(packet) = LoggedPacket::parse(message) else { return };
    assert!(!packet.prefix.contains(&0));
    assert!(packet.original.is_some() || !packet.is_reply);
    // An unknown attribute changes nothing.
    let mut longer = message.to_vec();
    longer.resize(message.len().next_multiple_of(4), 0);
    longer.extend([4_u16.to_ne_bytes(), 0x3ffe_u16.to_ne_bytes()].concat());
    assert_eq!(LoggedPacket::parse(&longer).ok(), Some(packet));
}

fn check_event(message: &[u8]) {
    let begun = ConnectionEvent::parse(NEW, message).ok().flatten();
    let ended = ConnectionEvent::parse(DELETE, message).ok().flatten();
    assert_eq!(begun.map(|event| ConnectionEvent { ended: true, ..event }), ended);
    assert!(ConnectionEvent::parse(NEW + 1, message).is_ok_and(|event| event.is_none()));
}

fn check_queued(message: &[u8]) {
    let Ok(queued) = Queued::parse(message) else { return };
    assert!(queued.packet.len() <= message.len());
    // An unknown attribute changes nothing.
    let mut longer = message.to_vec();
    longer.resize(message.len().next_multiple_of(4), 0);
    longer.extend([4_u16.to_ne_bytes(), 0x3ffe_u16.to_ne_bytes()].concat());
    assert_eq!(Queued::parse(&longer).ok(), Some(queued));
}

fn check_transport(packet: &[u8]) {
    let Some(decoded) = TransportPacket::parse(packet) else { return };
    let headers = LoggedHeaders::parse(packet).expect("a whole packet has headers");
    assert_eq!((decoded.source.ip(), decoded.destination.ip()), (headers.tuple.source, headers.tuple.destination));
    let (source, destination) = (decoded.source.port(), decoded.destination.port());
    assert_eq!(headers.tuple.flow, Flow::Ports { source, destination });
    let (protocol, payload) = match decoded.transport {
        Transport::Udp(payload) => (17, payload),
        Transport::Tcp(segment) => (6, segment.payload),
    };
    assert_eq!(headers.tuple.protocol, protocol);
    assert!(payload.len() < packet.len());
    let longer = [packet, &[0xff; 8]].concat();
    assert_eq!(TransportPacket::parse(&longer), Some(decoded));
}
