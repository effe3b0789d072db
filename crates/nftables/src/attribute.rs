//! Attributes of netlink messages as bytes (`include/net/netlink.h`).

const HEADER_LEN: usize = 4;
const NESTED: u16 = 0x8000;
/// Mask of an attribute's kind, without its flags.
const KIND_MASK: u16 = 0x3fff;

/// Appends attributes to bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn with_header(header: &[u8]) -> Self {
        Self { bytes: header.to_vec() }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let begin = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end(begin);
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        let begin = self.begin(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.end(begin);
    }

    pub(crate) fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub(crate) fn u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(crate) fn nested(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        let begin = self.begin(kind | NESTED);
        write(self);
        self.end(begin);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        begin
    }

    #[expect(clippy::expect_used, clippy::indexing_slicing, reason = "lists are split, and rules have few expressions")]
    fn end(&mut self, begin: usize) {
        let len = u16::try_from(self.bytes.len() - begin).expect("an attribute is shorter than 64 KiB");
        self.bytes[begin..begin + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns the bytes before the first zero; `None` if they are not valid text. Names from other
    /// processes may not be.
    pub(crate) fn text(self) -> Option<&'a str> {
        let len = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        std::str::from_utf8(self.value.split_at(len).0).ok()
    }

    pub(crate) fn u8(self) -> Option<u8> {
        self.value.first().copied()
    }

    pub(crate) fn u16(self) -> Option<u16> {
        Some(u16::from_be_bytes(self.value.try_into().ok()?))
    }

    pub(crate) fn u32(self) -> Option<u32> {
        Some(u32::from_be_bytes(self.value.try_into().ok()?))
    }

    pub(crate) fn u64(self) -> Option<u64> {
        Some(u64::from_be_bytes(self.value.try_into().ok()?))
    }

    pub(crate) fn nested(self) -> impl Iterator<Item = Attribute<'a>> {
        attributes(self.value)
    }
}

/// The attributes in some bytes; ends where they make no sense.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let (&[a, b, c, d], _) = rest.split_first_chunk::<HEADER_LEN>()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(HEADER_LEN..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind: u16::from_ne_bytes([c, d]) & KIND_MASK, value })
    })
}

/// The first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<Attribute<'_>> {
    attributes(bytes).find(|attribute| attribute.kind == kind)
}
