//! Decoding of messages about queued packets.

use crate::netlink::error::NetlinkError;
use crate::netlink::wire;

const NFQA_PACKET_HDR: u16 = 1;
const NFQA_IFINDEX_OUTDEV: u16 = 6;
const NFQA_PAYLOAD: u16 = 10;
const NFQA_CT_INFO: u16 = 12;
/// Values of `enum ip_conntrack_info`: the first one for replies, and that of packets without a
/// connection.
const IP_CT_IS_REPLY: u32 = 3;
const IP_CT_UNTRACKED: u32 = 7;

const SUBJECT: &str = "queued packet";
const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: SUBJECT };

/// Point of the kernel at which a rule has queued a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueHook {
    /// Before the packet is routed.
    Prerouting,
    /// Before the host itself receives it.
    Input,
    /// Before it is forwarded.
    Forward,
    /// After the host itself has sent it.
    Output,
    /// Before it leaves.
    Postrouting,
}

impl QueueHook {
    /// Returns the hook with a number of `enum nf_inet_hooks`.
    const fn of(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Prerouting),
            1 => Some(Self::Input),
            2 => Some(Self::Forward),
            3 => Some(Self::Output),
            4 => Some(Self::Postrouting),
            _ => None,
        }
    }
}

/// Packet that waits for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued<'a> {
    /// Number of the packet in its queue, for the verdict. They count up, and wrap.
    pub id: u32,
    /// Point of the kernel at which the packet waits.
    pub hook: QueueHook,
    /// Index of the interface by which it leaves; `None` for packets to the host itself, and where
    /// that is not decided yet.
    pub out_interface: Option<u32>,
    /// Whether it goes in the opposite direction of the first packet of its connection; `None` if
    /// the kernel does not track it, or does not tell
    /// ([`Nfqueue::provides_connections`](super::Nfqueue::provides_connections)).
    pub is_reply: Option<bool>,
    /// The packet from its IP header on, at most 65,535 bytes; see
    /// [`TransportPacket::parse`](super::TransportPacket::parse).
    pub packet: &'a [u8],
}

impl<'a> Queued<'a> {
    /// Decodes a message about a packet (`NFQNL_MSG_PACKET`), without its netlink header.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(message: &'a [u8]) -> Result<Self, NetlinkError> {
        // `struct nfgenmsg`.
        let (_, attributes) = message.split_first_chunk::<4>().ok_or(MALFORMED)?;
        let (mut header, mut packet, mut out_interface, mut info) = (None, &[][..], None, None);
        wire::for_each_attribute(SUBJECT, attributes, |kind, value| {
            match kind {
                NFQA_PACKET_HDR => header = Some(packet_header(value)?),
                NFQA_IFINDEX_OUTDEV => out_interface = Some(number(value)?),
                NFQA_PAYLOAD => packet = value,
                NFQA_CT_INFO => info = Some(number(value)?),
                _ => {}
            }
            Some(())
        })?;
        let (id, hook) = header.ok_or(MALFORMED)?;
        let is_reply = info.filter(|info| *info != IP_CT_UNTRACKED).map(|info| info >= IP_CT_IS_REPLY);
        Ok(Self { id, hook, out_interface, is_reply, packet })
    }
}

/// Decodes `struct nfqnl_msg_packet_hdr`.
fn packet_header(value: &[u8]) -> Option<(u32, QueueHook)> {
    let &[i0, i1, i2, i3, _, _, hook] = value.first_chunk()?;
    Some((u32::from_be_bytes([i0, i1, i2, i3]), QueueHook::of(hook)?))
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        wire::attribute(kind, value)
    }

    fn message(hook: u8, rest: &[Vec<u8>]) -> Vec<u8> {
        let header = attribute(NFQA_PACKET_HDR, &[0, 0, 1, 2, 8, 0, hook]);
        [vec![2, 0, 0, 101], header, rest.concat()].concat()
    }

    #[test]
    fn messages_are_decoded() {
        let rest = [
            attribute(NFQA_IFINDEX_OUTDEV, &[0, 0, 0, 9]),
            attribute(NFQA_CT_INFO, &[0, 0, 0, 3]),
            attribute(NFQA_PAYLOAD, b"packet"),
        ];
        let message_of_reply = message(4, &rest);
        let queued = Queued::parse(&message_of_reply).unwrap();
        let expected = Queued {
            id: 258,
            hook: QueueHook::Postrouting,
            out_interface: Some(9),
            is_reply: Some(true),
            packet: b"packet",
        };
        assert_eq!(queued, expected);
        let message_to_host = message(1, &[attribute(NFQA_CT_INFO, &[0, 0, 0, 0])]);
        let queued = Queued::parse(&message_to_host).unwrap();
        assert_eq!((queued.hook, queued.out_interface, queued.is_reply), (QueueHook::Input, None, Some(false)));
        let untracked = message(4, &[attribute(NFQA_CT_INFO, &[0, 0, 0, 7])]);
        assert_eq!(Queued::parse(&untracked).unwrap().is_reply, None);
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bytes in [&[][..], &[2, 0, 0], &[2, 0, 0, 101], &message(5, &[]), &message(4, &[vec![3, 0]])] {
            assert!(Queued::parse(bytes).is_err(), "{bytes:?}");
        }
        let short = [vec![2, 0, 0, 101], attribute(NFQA_PACKET_HDR, &[0; 6])].concat();
        assert!(Queued::parse(&short).is_err());
    }

    proptest! {
        #[test]
        fn no_message_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Queued::parse(&bytes);
            let _ = Queued::parse(&message(4, &[bytes]));
        }
    }
}
