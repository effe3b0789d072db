//! DNS messages as clients and servers write them.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) const A: u16 = 1;
const CNAME: u16 = 5;
/// Length of the part of a message before its question.
pub(super) const HEADER: usize = 12;
pub(super) const AAAA: u16 = 28;
pub(super) const HTTPS: u16 = 65;

/// Section of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Answer,
    Authority,
    Additional,
}

#[derive(Clone)]
pub(super) enum Data {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Alias(String),
    /// The record of a service with one address as a hint.
    Hint(Ipv4Addr),
}

#[derive(Clone)]
pub(super) struct Record {
    pub(super) section: Section,
    pub(super) owner: String,
    pub(super) ttl: u32,
    pub(super) data: Data,
}

impl Record {
    /// Returns a record of the answer section that lives for 5 minutes.
    pub(super) fn new(owner: &str, data: Data) -> Self {
        Self { section: Section::Answer, owner: owner.to_owned(), ttl: 300, data }
    }

    pub(super) fn v4(owner: &str, address: Ipv4Addr) -> Self {
        Self::new(owner, Data::V4(address))
    }

    fn write(&self, message: &mut Vec<u8>) {
        message.extend(name(&self.owner));
        let (kind, data) = match &self.data {
            Data::V4(address) => (A, address.octets().to_vec()),
            Data::V6(address) => (AAAA, address.octets().to_vec()),
            Data::Alias(target) => (CNAME, name(target)),
            // Priority 1, the owner as the target, key 4: addresses of IPv4.
            Data::Hint(address) => (HTTPS, [&[0, 1, 0, 0, 4, 0, 4][..], &address.octets()].concat()),
        };
        message.extend([kind.to_be_bytes(), 1_u16.to_be_bytes()].concat());
        message.extend(self.ttl.to_be_bytes());
        message.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        message.extend(data);
    }
}

fn name(text: &str) -> Vec<u8> {
    let labels = text.split('.').flat_map(|label| {
        let length = u8::try_from(label.len()).unwrap();
        std::iter::once(length).chain(label.bytes())
    });
    labels.chain([0]).collect()
}

pub(super) fn question(text: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(name(text));
    message.extend([kind.to_be_bytes(), 1_u16.to_be_bytes()].concat());
    message
}

/// Returns the name of a question in lower case, and the kind.
pub(super) fn read_question(message: &[u8]) -> (String, u16) {
    let (mut labels, mut at) = (Vec::new(), HEADER);
    while message[at] != 0 {
        let end = at + 1 + usize::from(message[at]);
        labels.push(String::from_utf8_lossy(&message[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    (labels.join("."), u16::from_be_bytes([message[at + 1], message[at + 2]]))
}

/// Returns the answer to a question, which it repeats as it is.
pub(super) fn answer(question: &[u8], records: &[Record]) -> Vec<u8> {
    let mut message = question.to_vec();
    (message[2], message[3]) = (0x81, 0x80);
    let mut records: Vec<&Record> = records.iter().collect();
    records.sort_by_key(|record| record.section);
    for (number, section) in [Section::Answer, Section::Authority, Section::Additional].into_iter().enumerate() {
        let count = records.iter().filter(|record| record.section == section).count();
        message[6 + 2 * number..8 + 2 * number].copy_from_slice(&u16::try_from(count).unwrap().to_be_bytes());
    }
    records.iter().for_each(|record| record.write(&mut message));
    message
}
