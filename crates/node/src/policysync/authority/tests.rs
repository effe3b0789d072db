use super::filter::{END_HEADERS, Filter, HEAD, HEADERS, PADDED, PREFACE, PRIORITY, VALUE, replaced};

/// Bytes that Calico's client of the API (`app-policy/syncher`, grpc-go 1.82) sends when it calls
/// `Sync` at `/run/nodeagent/socket`, once the server has sent its settings.
pub(in crate::policysync) fn recorded() -> Vec<u8> {
    let text = "505249202a20485454502f322e300d0a0d0a534d0d0a0d0a0000000400000000\
                0000000004010000000000004f010400000001838645916252d06f2beb3d0627\
                addeaa231bbd544f419454586cb6a54586a3c851cc5a92a8b0a0e4ea54ff5f8b\
                1d75d0620d263d4c4d65647a8a9acac8b4c7602bbc15c340027465864d833505\
                b11f0000050001000000010000000000";
    let digit = |at: usize| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..text.len()).step_by(2).map(|at| digit(at).expect("hexadecimal")).collect()
}

fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
    let (mut filter, mut out) = (Filter::default(), Vec::new());
    bytes.chunks(piece).for_each(|piece| filter.pass(piece, &mut out));
    out
}

#[test]
fn the_authority_is_replaced_and_nothing_else() {
    let recorded = recorded();
    // Name index 1, literal with incremental indexing; its value has 20 bytes.
    let at = recorded.windows(2).position(|bytes| bytes == [0x41, 0x80 | 20]).expect("an authority");
    let mut expected = recorded.clone();
    expected.splice(at + 1..at + 22, VALUE);
    let head = PREFACE.len() + HEAD + HEAD;
    assert_eq!(recorded[head..head + 4], [0, 0, 0x4f, HEADERS]);
    expected[head + 2] -= 21 - 2;
    for piece in 1..=recorded.len() {
        assert_eq!(passed(&recorded, piece), expected, "{piece} bytes at a time");
    }
}

#[test]
fn padding_and_priorities_stay() {
    let block = [0x82, 0x01, 0x03, b'%', b'2', b'F', 0x84];
    let frame = |flags: u8, before: &[u8], block: &[u8], padding: &[u8]| {
        let length = u8::try_from(before.len() + block.len() + padding.len()).unwrap();
        let head = [0, 0, length, HEADERS, flags, 0, 0, 0, 1];
        [PREFACE, &head, before, block, padding].concat()
    };
    let other = [0x82, 0x01, 0x01, b'x', 0x84];
    let flags = END_HEADERS | PADDED | PRIORITY;
    for (flags, before, padding) in [
        (END_HEADERS, &[][..], &[][..]),
        (END_HEADERS | PADDED, &[2], &[0, 0]),
        (END_HEADERS | PRIORITY, &[0, 0, 0, 0, 7], &[]),
        (flags, &[1, 0, 0, 0, 0, 7], &[0]),
    ] {
        assert_eq!(passed(&frame(flags, before, &block, padding), 5), frame(flags, before, &other, padding));
    }
}

#[test]
fn unparsed_frames_pass_unchanged() {
    let frame = |flags: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [PREFACE, &[0, 0, length, HEADERS, flags, 0, 0, 0, 1], payload, b"and so on"].concat()
    };
    let cut = [0x41, 0x05, b'%'];
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: %\r\n\r\n".to_vec(),
        frame(0, &[0x41, 0x01, b'%']),
        frame(END_HEADERS, &cut),
        frame(END_HEADERS, &[0x41]),
        frame(END_HEADERS, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x01]),
        frame(END_HEADERS | PADDED, &[9, 0x82]),
        frame(END_HEADERS | PADDED, &[]),
        // An empty value has nothing shorter.
        frame(END_HEADERS, &[0x41, 0x00]),
    ] {
        for piece in [1, 3, bytes.len()] {
            assert_eq!(passed(&bytes, piece), bytes);
        }
    }
}

#[test]
fn later_headers_may_refer_to_earlier_ones() {
    // By the number of a name, the number of a header, a name that is spelled out, and with another
    // size of the table.
    let block =
        [0x01, 0x01, b'%', 0xbe, 0x40, 0x01, b'a', 0x01, b'%', 0x3f, 0xe1, 0x1f, 0x10, 0x01, b'b', 0x02, b'%', b'%'];
    let mut expected = block;
    expected[2] = b'x';
    assert_eq!(replaced(&block), Some(expected.to_vec()));
}
