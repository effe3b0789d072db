//! Any bytes are a netfilter message or rejected: a logged packet, or the begin or end of a
//! connection. The parsed fields of a packet do not depend on later bytes.

use tortie_linux::netlink::{ConnectionEvent, Flow, LoggedHeaders, LoggedPacket};

/// `NFNL_SUBSYS_CTNETLINK << 8`, with `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_DELETE`.
const NEW: u16 = 0x100;
const DELETE: u16 = 0x102;

/// The first byte chooses the type of the rest.
pub(crate) fn check(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 3 {
        0 => check_packet(rest),
        1 => check_logged(rest),
        _ => check_event(rest),
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
