//! DNS messages, read as far as they teach addresses of names.

mod chain;
mod error;
mod records;

use std::net::IpAddr;

use domain::base::Message;
use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use tortie_net::DomainName;

use chain::Chain;
pub use error::{MessageError, MessageLimits};
use records::{Records, wire_name};

/// The names and addresses of an answer.
///
/// Holds the name of the question and the targets of its aliases, and for each of them the
/// addresses that the answer gives it. A name that no [`DomainName`] can express is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    names: Vec<DomainName>,
    /// The first name is that of the question.
    has_question: bool,
    /// In the order of names and addresses, without repetitions.
    addresses: Vec<Found>,
    /// Records of the answer section that teach nothing: other types, foreign owners, invalid data.
    pub ignored: usize,
    /// Records, addresses and pairs beyond the limits, and records that are cut off in a truncated
    /// message.
    pub unread: usize,
}

/// An address of a name, with the least TTL of the records that lead from the name to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    name: usize,
    address: IpAddr,
    ttl: u32,
}

impl Answer {
    /// Makes an answer from a name and its addresses with their TTLs in seconds, for names that
    /// were resolved by other means. IPv4-mapped addresses become IPv4.
    ///
    /// ```
    /// use tortie_dns::Answer;
    /// let answer = Answer::new("example.com".parse()?, [("192.0.2.1".parse()?, 300)]);
    /// assert_eq!(answer.addresses().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(question: DomainName, addresses: impl IntoIterator<Item = (IpAddr, u32)>) -> Self {
        let found =
            |(address, ttl): (IpAddr, u32)| Found { name: 0, address: address.to_canonical(), ttl: seconds(ttl) };
        let addresses = without_repetitions(addresses.into_iter().map(found).collect());
        Self { names: vec![question], has_question: true, addresses, ignored: 0, unread: 0 }
    }

    /// Returns the name of the question, unless no [`DomainName`] can express it.
    #[must_use]
    pub fn question(&self) -> Option<&DomainName> {
        self.names.first().filter(|_| self.has_question)
    }

    /// Returns all names: the question, then the targets of aliases as they lead from it.
    #[must_use]
    pub fn names(&self) -> &[DomainName] {
        &self.names
    }

    /// Returns the addresses of each name with their TTL in seconds, in the order of names and
    /// addresses; no pair occurs twice.
    pub fn addresses(&self) -> impl Iterator<Item = (&DomainName, IpAddr, u32)> {
        self.addresses.iter().filter_map(|found| Some((self.names.get(found.name)?, found.address, found.ttl)))
    }
}

/// Returns a TTL in seconds; one with the top bit set is 0 (RFC 2181, section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX.unsigned_abs() { 0 } else { ttl }
}

/// Sorts addresses, and keeps the longest lifetime of each one.
fn without_repetitions(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_unstable_by_key(|found| (found.name, found.address, std::cmp::Reverse(found.ttl)));
    found.dedup_by_key(|found| (found.name, found.address));
    found
}

/// Reads an answer.
///
/// Learnable are the addresses in the answer section that belong to the question or to a name to
/// which its CNAME records and SVCB or HTTPS records in alias mode lead, in any order of records,
/// and the address hints of SVCB and HTTPS records with such owners. Of a message with the bit TC,
/// the complete records count.
///
/// Cost: proportional to the number of records that are read, for names at most 127 labels and 255
/// pointers each; below 1 ms of processor time for any message of 64 KiB with the default limits.
///
/// # Errors
/// If the message is no answer of the kind that teaches addresses, or is malformed; if its aliases
/// form a loop, or are more than `limits.links`.
pub fn read(message: &[u8], limits: &MessageLimits) -> Result<Answer, MessageError> {
    let message = Message::from_slice(message).map_err(|_| MessageError::Short)?;
    let header = message.header();
    match (header.qr(), header.opcode(), header.rcode(), message.header_counts().qdcount()) {
        (false, ..) => return Err(MessageError::Query),
        (_, opcode, ..) if opcode != Opcode::QUERY => return Err(MessageError::Opcode(opcode.to_int())),
        (_, _, rcode, _) if rcode != Rcode::NOERROR => return Err(MessageError::Failed(rcode.to_int())),
        (.., 1) => {}
        (.., questions) => return Err(MessageError::Questions(questions)),
    }
    let mut questions = message.question();
    let question = questions.next().and_then(Result::ok).ok_or(MessageError::Question)?;
    if question.qclass() != Class::IN {
        return Err(MessageError::Class(question.qclass().to_int()));
    }
    if !matches!(question.qtype(), Rtype::A | Rtype::AAAA | Rtype::HTTPS | Rtype::SVCB | Rtype::ANY) {
        return Err(MessageError::Type(question.qtype().to_int()));
    }
    let section = questions.answer().map_err(|_| MessageError::Question)?;
    let declared = usize::from(message.header_counts().ancount());
    let mut records = Records::collect(section, declared.min(limits.records), header.tc())?;
    records.unread += declared.saturating_sub(limits.records);
    let chain = Chain::follow(wire_name(question.qname()), &mut records, limits)?;
    let mut answer = answer(&chain, &records);
    answer.unread += answer.addresses.len().saturating_sub(limits.pairs);
    answer.addresses.truncate(limits.pairs);
    Ok(answer)
}

/// Gives each name of a chain the addresses to which it leads.
fn answer(chain: &Chain, records: &Records<'_>) -> Answer {
    let mut names = Vec::new();
    let numbers: Vec<Option<usize>> = (chain.names())
        .map(|wire| {
            names.push(records::domain_name(wire)?);
            Some(names.len() - 1)
        })
        .collect();
    let mut found = Vec::new();
    for (owner, address, ttl) in &chain.addresses {
        let mut ttl = seconds(*ttl);
        for (name, link) in chain.way(*owner) {
            if let Some(Some(name)) = numbers.get(name) {
                found.push(Found { name: *name, address: *address, ttl });
            }
            ttl = ttl.min(seconds(link));
        }
    }
    let has_question = matches!(numbers.first(), Some(Some(_)));
    let ignored = records.ignored + records.unused();
    let addresses = without_repetitions(found);
    Answer { names, has_question, addresses, ignored, unread: records.unread + chain.unread }
}

#[cfg(test)]
mod tests;
