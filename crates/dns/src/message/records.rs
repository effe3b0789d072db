//! The records of an answer section that can teach something.

use std::net::IpAddr;

use domain::base::iana::{Class, Rtype};
use domain::base::message::RecordSection;
use domain::base::name::{ParsedName, ToName};
use domain::base::record::ParsedRecord;
use domain::rdata::svcb::{Https, Svcb};
use domain::rdata::{A, Aaaa, Cname};
use tortie_net::DomainName;

use super::error::MessageError;

/// A name in the form of the wire, without compression and in lower case, so that names compare as
/// bytes and a dot inside a label stays one.
pub(super) type WireName = Vec<u8>;

/// Returns the wire form of a name.
pub(super) fn wire_name(name: &ParsedName<&[u8]>) -> WireName {
    let mut wire = match name.as_flat_slice() {
        Some(flat) => flat.strip_suffix(&[0]).unwrap_or(flat).to_vec(),
        None => {
            let mut wire = Vec::with_capacity(64);
            for label in name.iter().filter(|label| !label.is_root()) {
                wire.extend(u8::try_from(label.len()));
                wire.extend_from_slice(label.as_slice());
            }
            wire
        }
    };
    // The length of a label, at most 63, is no letter.
    wire.make_ascii_lowercase();
    wire
}

/// Returns a name in the form of policies; `None` if it has other characters than these may have.
pub(super) fn domain_name(mut wire: &[u8]) -> Option<DomainName> {
    let mut text = String::with_capacity(wire.len());
    while let Some((length, rest)) = wire.split_first() {
        let (label, rest) = rest.split_at_checked(usize::from(*length))?;
        if label.contains(&b'.') {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(str::from_utf8(label).ok()?);
        wire = rest;
    }
    text.parse().ok()
}

/// The content of a record.
pub(super) enum Data {
    Address(IpAddr),
    /// The target of a CNAME record.
    Alias(WireName),
    Service(Service),
}

/// The content of an SVCB or HTTPS record.
pub(super) struct Service {
    /// The record stands for its target, as a CNAME record does (RFC 9460, section 2.4.2).
    pub(super) is_alias: bool,
    /// Empty for the owner itself.
    pub(super) target: WireName,
    pub(super) hints: Vec<IpAddr>,
}

/// A record of a type that teaches addresses.
pub(super) struct Record<'m> {
    pub(super) owner: WireName,
    pub(super) ttl: u32,
    pub(super) is_alias_type: bool,
    pub(super) is_used: bool,
    raw: ParsedRecord<'m, [u8]>,
    /// Read on demand, since most owners of a hostile message are foreign, and once, since names
    /// with many pointers are expensive.
    data: Option<Option<Data>>,
}

impl Record<'_> {
    /// Returns the content; `None` if it is malformed.
    pub(super) fn data(&mut self) -> Option<&Data> {
        let raw = &self.raw;
        self.data.get_or_insert_with(|| Data::parse(raw)).as_ref()
    }
}

impl Data {
    fn parse(raw: &ParsedRecord<'_, [u8]>) -> Option<Self> {
        match raw.rtype() {
            Rtype::A => {
                let record = raw.to_record::<A>().ok()??;
                Some(Self::Address(record.data().addr().into()))
            }
            Rtype::AAAA => {
                let record = raw.to_record::<Aaaa>().ok()??;
                Some(Self::Address(IpAddr::from(record.data().addr()).to_canonical()))
            }
            Rtype::CNAME => {
                let record = raw.to_record::<Cname<ParsedName<&[u8]>>>().ok()??;
                Some(Self::Alias(wire_name(record.data().cname())))
            }
            Rtype::SVCB => {
                let record = raw.to_record::<Svcb<&[u8], ParsedName<&[u8]>>>().ok()??;
                let data = record.data();
                let params = data.params().iter_raw().map(|param| (param.key().to_int(), *param.value()));
                service(data.is_alias(), data.target(), params)
            }
            Rtype::HTTPS => {
                let record = raw.to_record::<Https<&[u8], ParsedName<&[u8]>>>().ok()??;
                let data = record.data();
                let params = data.params().iter_raw().map(|param| (param.key().to_int(), *param.value()));
                service(data.is_alias(), data.target(), params)
            }
            _ => None,
        }
    }
}

/// The parameter `ipv4hint` (RFC 9460, section 14.3.2).
const IPV4_HINT: u16 = 4;
/// The parameter `ipv6hint`.
const IPV6_HINT: u16 = 6;

/// Returns a service with its address hints; `None` if these are malformed.
fn service<'m>(
    is_alias: bool,
    target: &ParsedName<&[u8]>,
    params: impl Iterator<Item = (u16, &'m [u8])>,
) -> Option<Data> {
    let mut hints: Vec<IpAddr> = Vec::new();
    for (key, value) in params.filter(|_| !is_alias) {
        let rest = match key {
            IPV4_HINT => {
                let (addresses, rest) = value.as_chunks::<4>();
                hints.extend(addresses.iter().map(|octets| IpAddr::from(*octets)));
                rest
            }
            IPV6_HINT => {
                let (addresses, rest) = value.as_chunks::<16>();
                hints.extend(addresses.iter().map(|octets| IpAddr::from(*octets).to_canonical()));
                rest
            }
            _ => &[],
        };
        if !rest.is_empty() {
            return None;
        }
    }
    Some(Data::Service(Service { is_alias, target: wire_name(target), hints }))
}

/// The records of a section, and the number of the others.
pub(super) struct Records<'m> {
    pub(super) list: Vec<Record<'m>>,
    pub(super) ignored: usize,
    pub(super) unread: usize,
}

impl<'m> Records<'m> {
    /// Collects the first records of a section, up to a limit that the section reaches unless it is
    /// malformed. In a truncated message, the section ends before the first incomplete record.
    pub(super) fn collect(
        mut section: RecordSection<'m, [u8]>,
        limit: usize,
        is_truncated: bool,
    ) -> Result<Self, MessageError> {
        let mut records = Self { list: Vec::with_capacity(limit.min(16)), ignored: 0, unread: 0 };
        for number in 1..=limit {
            match section.next() {
                Some(Ok(raw)) => records.add(raw),
                _ if is_truncated => {
                    records.unread = limit + 1 - number;
                    break;
                }
                _ => return Err(MessageError::Record(number)),
            }
        }
        Ok(records)
    }

    fn add(&mut self, raw: ParsedRecord<'m, [u8]>) {
        let is_alias_type = match raw.rtype() {
            Rtype::A | Rtype::AAAA => false,
            Rtype::CNAME | Rtype::SVCB | Rtype::HTTPS => true,
            _ => {
                self.ignored += 1;
                return;
            }
        };
        if raw.class() != Class::IN {
            self.ignored += 1;
            return;
        }
        let owner = wire_name(&raw.owner().deref_octets());
        self.list.push(Record { owner, ttl: raw.ttl().as_secs(), is_alias_type, is_used: false, raw, data: None });
    }

    /// Returns the number of collected records that taught nothing.
    pub(super) fn unused(&self) -> usize {
        self.list.iter().filter(|record| !record.is_used).count()
    }
}
