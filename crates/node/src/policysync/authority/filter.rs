//! Replacement of the authorities of calls in the bytes of a connection.

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const HEAD: usize = 9;
pub(super) const HEADERS: u8 = 1;
/// Flags of a HEADERS frame: it has all headers; it has padding; it has a priority.
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;
/// The longest frame that a server with default settings reads.
const MAX_FRAME: usize = 16 * 1024;
const AUTHORITY: usize = 1;
/// One letter, not compressed.
pub(super) const VALUE: [u8; 2] = [1, b'x'];

/// Filter of the bytes of a client, in pieces of any size. Pure.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// Number of bytes of the preface that have passed. After any other beginning all bytes pass
    /// unchanged.
    preface: usize,
    is_other: bool,
    /// Head of a frame, or a whole HEADERS frame, as far as it has arrived.
    held: Vec<u8>,
    /// Number of bytes of another frame that are still to come.
    left: usize,
}

impl Filter {
    /// Appends to `out` the filtered bytes that are complete after this piece.
    pub(super) fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some(&byte) = bytes.first() {
            if self.is_other {
                out.extend_from_slice(bytes);
                return;
            }
            if let Some(&expected) = PREFACE.get(self.preface) {
                self.is_other = byte != expected;
                self.preface += 1;
                out.push(byte);
                bytes = bytes.get(1..).unwrap_or_default();
                continue;
            }
            if self.left > 0 {
                let (passed, rest) = bytes.split_at(self.left.min(bytes.len()));
                out.extend_from_slice(passed);
                self.left -= passed.len();
                bytes = rest;
                continue;
            }
            let missing = self.missing() - self.held.len();
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.held.extend_from_slice(taken);
            bytes = rest;
            if self.held.len() < HEAD {
                continue;
            }
            let length = length_of(&self.held);
            if !self.is_headers() {
                self.left = length;
                out.append(&mut self.held);
            } else if self.held.len() == HEAD + length {
                let frame = std::mem::take(&mut self.held);
                out.extend(without_authority(&frame).unwrap_or(frame));
            }
        }
    }

    fn missing(&self) -> usize {
        if self.held.len() < HEAD { HEAD } else { HEAD + length_of(&self.held) }
    }

    /// Whether this is a HEADERS frame to be filtered. Longer ones are not; the server refuses
    /// them.
    fn is_headers(&self) -> bool {
        self.held.get(3) == Some(&HEADERS) && length_of(&self.held) <= MAX_FRAME
    }
}

fn length_of(head: &[u8]) -> usize {
    head.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// Returns a HEADERS frame with the authority replaced; `None` if it does not hold all headers, or
/// cannot be decoded.
fn without_authority(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(HEAD)?;
    let flags = *head.get(4)?;
    if flags & END_HEADERS == 0 {
        return None;
    }
    let (before, padding) = if flags & PADDED == 0 { (0, 0) } else { (1, usize::from(*payload.first()?)) };
    let before = before + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    let mut written = payload.get(..before)?.to_vec();
    written.extend(replaced(payload.get(before..end)?)?);
    written.extend_from_slice(payload.get(end..)?);
    let length = u32::try_from(written.len()).ok()?.to_be_bytes();
    let mut frame = length.get(1..)?.to_vec();
    frame.extend_from_slice(head.get(3..)?);
    frame.append(&mut written);
    Some(frame)
}

/// Returns a header block with literal values of `:authority` replaced; `None` if it cannot be
/// decoded.
pub(super) fn replaced(block: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::with_capacity(block.len());
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let field = rest;
        // Indexed; literal with incremental indexing; size update of the dynamic table; literal
        // without indexing (section 6).
        let (bits, is_spelled_out) = match first {
            0x80.. => (7, false),
            0x40..=0x7f => (6, true),
            0x20..=0x3f => (5, false),
            _ => (4, true),
        };
        let number = integer(&mut rest, bits)?;
        if is_spelled_out && number == 0 {
            text(&mut rest)?;
        }
        let named = field.get(..field.len() - rest.len())?;
        written.extend_from_slice(named);
        if is_spelled_out {
            let value = text(&mut rest)?;
            // A value of length 0 has one byte: its length.
            let value = if number == AUTHORITY && value.len() > 1 { &VALUE } else { value };
            written.extend_from_slice(value);
        }
    }
    Some(written)
}

/// Takes an integer from the front, with so many bits in the first byte (section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Option<usize> {
    let (&first, mut more) = rest.split_first()?;
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (&byte, after) = more.split_first()?;
            more = after;
            value = value.checked_add(usize::from(byte & 0x7f) << shift)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 21 {
                // No header is that long.
                return None;
            }
        }
    }
    *rest = more;
    Some(value)
}

/// Takes a string from the front, with its length (section 5.2).
fn text<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let begin = *rest;
    let length = integer(rest, 7)?;
    let (_, after) = rest.split_at_checked(length)?;
    *rest = after;
    begin.get(..begin.len() - after.len())
}
