//! The header filter of policy sync accepts any bytes, in any pieces, and writes no more bytes than
//! it reads.

#[path = "../../crates/node/src/policysync/authority/filter.rs"]
#[allow(dead_code, reason = "its own tests read the constants")]
mod filter;

use filter::{Filter, PREFACE};

/// The first byte is the length of the pieces; the HTTP/2 preface precedes the rest.
pub(crate) fn check(data: &[u8]) {
    let Some((&step, bytes)) = data.split_first() else { return };
    let sent = [PREFACE, bytes].concat();
    let whole = passed(&sent, sent.len());
    assert!(whole.len() <= sent.len(), "{} bytes of {}", whole.len(), sent.len());
    assert_eq!(passed(&sent, usize::from(step).max(1)), whole, "pieces make no difference");
}

fn passed(bytes: &[u8], step: usize) -> Vec<u8> {
    let (mut filter, mut out) = (Filter::default(), Vec::new());
    bytes.chunks(step).for_each(|piece| filter.pass(piece, &mut out));
    out
}
