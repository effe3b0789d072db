//! DNS messages, read as far as they teach addresses of names.

mod chain;
mod error;
mod records;

use std::net::IpAddr;

use domain::base::Message;
use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use tortie_net::DomainName;

use chain::{Chain, Way};
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
    /// The names with those that no [`DomainName`] can express.
    links: Vec<Link>,
    /// In the order of names and addresses, without repetitions.
    addresses: Vec<Found>,
    /// Records of the answer section that teach nothing: other types, foreign owners, invalid data.
    pub ignored: usize,
    /// Records, addresses and pairs beyond the limits, and records that are cut off in a truncated
    /// message.
    pub unread: usize,
}

/// A name of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    /// Its number among the names, if a [`DomainName`] can express it.
    name: Option<usize>,
    /// The number of the link that leads to it; `None` for the question.
    from: Option<usize>,
}

/// An address of a name, with the least TTL of the records that lead from the name to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    name: usize,
    address: IpAddr,
    ttl: u32,
    /// The number of the link that owns the record with the address.
    owner: usize,
    /// The number of records that lead from the name to the owner.
    steps: usize,
}

/// An address of a name for the learned state.
pub(crate) struct Statement<'a> {
    pub(crate) name: &'a DomainName,
    pub(crate) address: IpAddr,
    /// In seconds.
    pub(crate) ttl: u32,
    /// The name, the owner of the address, and all names between them are inside of a domain.
    pub(crate) is_inside: bool,
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
        let canonical = |(address, ttl): (IpAddr, u32)| (0, address.to_canonical(), seconds(ttl));
        let mut sources: Vec<_> = addresses.into_iter().map(canonical).collect();
        sources.sort_unstable_by_key(by_address);
        let links = vec![Link { name: Some(0), from: None }];
        let mut addresses = Vec::new();
        give(&mut addresses, 0, &[Some(Way { steps: 0, ttl: u32::MAX })], &sources);
        Self { names: vec![question], has_question: true, links, addresses, ignored: 0, unread: 0 }
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

    /// Returns the same addresses with the names that decide whether they are inside of the cluster
    /// domain.
    pub(crate) fn statements(&self, is_inside: impl Fn(&DomainName) -> bool) -> impl Iterator<Item = Statement<'_>> {
        // For each link, the number of names inside of the domain, from the link back to the
        // question, before the first one outside.
        let mut runs: Vec<usize> = Vec::with_capacity(self.links.len());
        for link in &self.links {
            let name = link.name.and_then(|name| self.names.get(name));
            let before = link.from.and_then(|from| runs.get(from)).copied().unwrap_or_default();
            runs.push(if name.is_some_and(&is_inside) { before + 1 } else { 0 });
        }
        self.addresses.iter().filter_map(move |found| {
            let is_inside = runs.get(found.owner).is_some_and(|run| found.steps < *run);
            Some(Statement { name: self.names.get(found.name)?, address: found.address, ttl: found.ttl, is_inside })
        })
    }
}

/// Returns a TTL in seconds; one with the top bit set is 0 (RFC 2181, section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX.unsigned_abs() { 0 } else { ttl }
}

/// The number of an owner, an address of it, and the TTL in seconds.
type Source = (usize, IpAddr, u32);

fn by_address((owner, address, _): &Source) -> (IpAddr, usize) {
    (*address, *owner)
}

/// Gives a name the addresses to whose owners it has a way, each with the longest lifetime. The
/// sources are in the order of [`by_address`]; those of one address need not agree about the names
/// between, so that only one of them counts.
fn give(found: &mut Vec<Found>, name: usize, ways: &[Option<Way>], sources: &[Source]) {
    let start = found.len();
    for (owner, address, ttl) in sources {
        let Some(Some(way)) = ways.get(*owner) else { continue };
        let next = Found { name, address: *address, ttl: way.ttl.min(*ttl), owner: *owner, steps: way.steps };
        match found.get_mut(start..).and_then(<[Found]>::last_mut) {
            Some(last) if last.address == *address && last.ttl >= next.ttl => {}
            Some(last) if last.address == *address => *last = next,
            _ => found.push(next),
        }
    }
}

/// Reads an answer.
///
/// Learnable are the addresses in the answer section that belong to the question or to a name to
/// which its CNAME records and SVCB or HTTPS records in alias mode lead, in any order of records,
/// and the address hints of SVCB and HTTPS records with such owners. Hints are addresses of the
/// owner of the record and of the names that lead to it, never of its target: resolvers do not
/// check them, and the owner of any zone can name any target. Of a message with the bit TC, the
/// complete records count.
///
/// Cost: proportional to the number of records that are read, for names at most 127 labels and 255
/// pointers each; and to the number of names times the number of their addresses. The most
/// expensive messages known, of 7 to 64 KiB, take 1 to 2 ms of processor time with the default
/// limits, some 500 times as much as usual ones: a caller bounds the time of each sender.
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
    let mut sources: Vec<Source> =
        chain.addresses.iter().map(|(owner, address, ttl)| (*owner, *address, seconds(*ttl))).collect();
    sources.sort_unstable_by_key(by_address);
    let mut addresses = Vec::new();
    for (link, name) in numbers.iter().enumerate() {
        if let Some(name) = name {
            give(&mut addresses, *name, &chain.ways(link), &sources);
        }
    }
    let links = numbers.iter().zip(chain.origins()).map(|(name, from)| Link { name: *name, from }).collect();
    let has_question = matches!(numbers.first(), Some(Some(_)));
    let ignored = records.ignored + records.unused();
    Answer { names, has_question, links, addresses, ignored, unread: records.unread + chain.unread }
}

#[cfg(test)]
mod tests;
