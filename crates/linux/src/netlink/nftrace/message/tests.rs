use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::netlink::conntrack::{Flow, Tuple};
use crate::netlink::wire::attribute;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Messages of Linux 6.18 about a SYN to 127.0.0.1:99, in a chain INPUT that jumps to a chain
/// cali-x, which drops it.
const JUMP: &str = "
    0200000008000f00000000020800040000000003080006007fd57d810a000200494e5055540000000b00010066696c74657200000c00030000000000
    000000031800050008000100fffffffd0b00020063616c692d78000008000a000000000106000b0003040000180008004500003c8cfc40004006afbd
    7f0000017f00000118000900d858006377d88e3c00000000a002ffd7fe3000001200070000000000000000000000000008000000";
const DROP: &str = "
    0200000008000f00000000020800040000000003080006007fd57d810b00020063616c692d7800000b00010066696c74657200000c00030000000000
    000000040c0005000800010000000000";
const END: &str = "
    0200000008000f0000000002080004000000000308000600757164380b0002006f7574707574000006000100740000000c00050008000100ffffffff";
const POLICY: &str = "
    0200000008000f0000000002080004000000000108000600757164380b0002006f7574707574000006000100740000000800100000000001";

fn chain(table: &str, name: &str) -> Chain {
    Chain { family: 2, table: table.into(), name: name.into() }
}

#[test]
fn trace_messages_of_the_kernel_are_parsed() {
    let jump = TraceMessage::parse(&bytes(JUMP)).unwrap();
    assert_eq!(jump.event, Event::Rule { handle: 3, verdict: TraceVerdict::Goto("cali-x".into()) });
    assert_eq!((jump.id, jump.in_interface, jump.out_interface), (0x7fd5_7d81, Some(1), None));
    assert_eq!((jump.tcp_flags, &jump.chain), (Some(2), &chain("filter", "INPUT")));
    let tuple = Tuple {
        source: Ipv4Addr::LOCALHOST.into(),
        destination: Ipv4Addr::LOCALHOST.into(),
        protocol: 6,
        flow: Flow::Ports { source: 55384, destination: 99 },
    };
    assert_eq!(jump.headers, Some(LoggedHeaders { tuple, length: 60 }));
    let drop = TraceMessage::parse(&bytes(DROP)).unwrap();
    assert_eq!(drop.event, Event::Rule { handle: 4, verdict: TraceVerdict::Drop });
    assert_eq!((drop.id, drop.headers, drop.chain), (jump.id, None, chain("filter", "cali-x")));
    let end = TraceMessage::parse(&bytes(END)).unwrap();
    assert_eq!((end.event, end.chain), (Event::Return, chain("t", "output")));
    assert_eq!(TraceMessage::parse(&bytes(POLICY)).unwrap().event, Event::Policy(TraceVerdict::Accept));
}

#[test]
fn a_rule_that_returns_is_a_rule() {
    let message = [
        vec![2, 0, 0, 0],
        attribute(NFTA_TRACE_TYPE, &NFT_TRACETYPE_RETURN.to_be_bytes()),
        attribute(NFTA_TRACE_ID, &7_u32.to_be_bytes()),
        attribute(NFTA_TRACE_RULE_HANDLE, &9_u64.to_be_bytes()),
        attribute(NFTA_TRACE_VERDICT, &attribute(NFTA_VERDICT_CODE, &(-5_i32).to_be_bytes())),
    ];
    let event = TraceMessage::parse(&message.concat()).unwrap().event;
    assert_eq!(event, Event::Rule { handle: 9, verdict: TraceVerdict::Return });
}

#[test]
fn refusals_with_a_reason_are_refusals() {
    assert_eq!(code(0x0016_0000, None), TraceVerdict::Drop);
    assert_eq!(code(3, None), TraceVerdict::Other(3));
    assert_eq!(code(-4, Some("cali-x".into())), TraceVerdict::Goto("cali-x".into()));
}

#[test]
fn a_message_without_a_required_attribute_is_malformed() {
    let whole = bytes(DROP);
    for end in 0..whole.len() {
        let _ = TraceMessage::parse(&whole[..end]);
    }
    for none in [&[][..], &[2, 0, 0], &[2, 0, 0, 0], &whole[..12]] {
        assert!(TraceMessage::parse(none).is_err(), "{none:?}");
    }
}

proptest! {
    #[test]
    fn no_message_is_too_strange(
        noise in proptest::collection::vec(any::<u8>(), 0..80),
        at in 0_usize..200,
        byte: u8,
    ) {
        let _ = TraceMessage::parse(&noise);
        let mut message = bytes(JUMP);
        let at = at % message.len();
        message[at] = byte;
        let _ = TraceMessage::parse(&message);
    }
}
