//! The names to which a question leads.

use std::net::IpAddr;

use super::error::{MessageError, MessageLimits};
use super::records::{Data, Records, Service, WireName};

/// A name, and the record that leads to it.
struct Link {
    name: WireName,
    /// The name with the record, and its TTL; `None` for the question.
    from: Option<(usize, u32)>,
}

/// The records that lead from one name to another.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) steps: usize,
    /// The least TTL of the records, in seconds.
    pub(super) ttl: u32,
}

/// The question, the names that it stands for, and their addresses.
pub(super) struct Chain {
    links: Vec<Link>,
    /// Number of the owner, address, TTL.
    pub(super) addresses: Vec<(usize, IpAddr, u32)>,
    /// Addresses beyond the limit.
    pub(super) unread: usize,
}

impl Chain {
    /// Follows the aliases of a question and collects the addresses of all names.
    pub(super) fn follow(
        question: WireName,
        records: &mut Records<'_>,
        limits: &MessageLimits,
    ) -> Result<Self, MessageError> {
        let links = vec![Link { name: question, from: None }];
        let mut chain = Self { links, addresses: Vec::new(), unread: 0 };
        while let Some((target, ttl)) = chain.next_alias(records) {
            if chain.number(&target).is_some() {
                return Err(MessageError::Loop);
            }
            if chain.links.len() > limits.links {
                return Err(MessageError::LongChain(limits.links));
            }
            chain.links.push(Link { name: target, from: Some((chain.links.len() - 1, ttl)) });
        }
        chain.services(records, limits);
        chain.collect(records, limits);
        Ok(chain)
    }

    /// Returns the target of the newest name, if that is an alias, and marks the record. The first
    /// of several aliases of one name counts.
    fn next_alias(&self, records: &mut Records<'_>) -> Option<(WireName, u32)> {
        let newest = &self.links.last()?.name;
        let candidates = records.list.iter_mut().filter(|record| record.is_alias_type && record.owner == *newest);
        for record in candidates {
            let ttl = record.ttl;
            let target = match record.data() {
                Some(Data::Alias(target)) => target.clone(),
                // The root as a target says that the service does not exist.
                Some(Data::Service(Service { is_alias: true, target, .. })) if !target.is_empty() => target.clone(),
                _ => continue,
            };
            record.is_used = true;
            return Some((target, ttl));
        }
        None
    }

    /// Adds the targets and hints of services whose owners are in the chain of aliases.
    fn services(&mut self, records: &mut Records<'_>, limits: &MessageLimits) {
        let aliases = self.links.len();
        for record in records.list.iter_mut().filter(|record| record.is_alias_type && !record.is_used) {
            let Some(owner) = self.number(&record.owner).filter(|owner| *owner < aliases) else { continue };
            let ttl = record.ttl;
            let Some(Data::Service(Service { is_alias: false, target, hints })) = record.data() else { continue };
            // The root stands for the owner itself.
            let is_new = !target.is_empty() && self.number(target).is_none();
            if is_new && self.links.len() < aliases + limits.links {
                self.links.push(Link { name: target.clone(), from: Some((owner, ttl)) });
            }
            // Resolvers pass hints on unchecked: they are a statement of the owner's zone, which
            // says nothing about the addresses of the target, whose zone may be another's.
            hints.iter().for_each(|hint| self.add((owner, *hint, ttl), limits));
            record.is_used = true;
        }
    }

    /// Adds the addresses whose owners are in the chain.
    fn collect(&mut self, records: &mut Records<'_>, limits: &MessageLimits) {
        for record in records.list.iter_mut().filter(|record| !record.is_alias_type) {
            let Some(owner) = self.number(&record.owner) else { continue };
            let Some(Data::Address(address)) = record.data() else { continue };
            let address = *address;
            record.is_used = true;
            self.add((owner, address, record.ttl), limits);
        }
    }

    fn add(&mut self, address: (usize, IpAddr, u32), limits: &MessageLimits) {
        if self.addresses.len() < limits.addresses {
            self.addresses.push(address);
        } else {
            self.unread += 1;
        }
    }

    fn number(&self, name: &WireName) -> Option<usize> {
        self.links.iter().position(|link| link.name == *name)
    }

    /// Returns the names in the order of their numbers.
    pub(super) fn names(&self) -> impl Iterator<Item = &WireName> {
        self.links.iter().map(|link| &link.name)
    }

    /// Returns, for each name, the number of the name whose record leads to it.
    pub(super) fn origins(&self) -> impl Iterator<Item = Option<usize>> {
        self.links.iter().map(|link| link.from.map(|(owner, _)| owner))
    }

    /// Returns, for each name, the way from the name `first` to it; `None` if there is none.
    pub(super) fn ways(&self, first: usize) -> Vec<Option<Way>> {
        let mut ways: Vec<Option<Way>> = Vec::with_capacity(self.links.len());
        // A name comes after the one that leads to it.
        for (number, link) in self.links.iter().enumerate() {
            let longer = link.from.and_then(|(owner, ttl)| {
                let way = ways.get(owner).copied().flatten()?;
                Some(Way { steps: way.steps + 1, ttl: way.ttl.min(super::seconds(ttl)) })
            });
            ways.push(if number == first { Some(Way { steps: 0, ttl: u32::MAX }) } else { longer });
        }
        ways
    }
}
