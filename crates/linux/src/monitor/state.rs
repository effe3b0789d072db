//! What the monitor knows, and what it has reported; no sockets, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use regex::Regex;
use tortie_dataplane::LinkEvent;
use tortie_model::InterfaceName;

use super::damping::Damper;
use crate::netlink::{LinkState, Notice, OddLink};

/// Turns what the kernel tells of links and addresses into [`LinkEvent`]s, as `felix/ifacemonitor` does.
///
/// Events depend on what is known only: an interface is reported if exactly one link has its name, and only what
/// differs from what was last reported is. So a rename is one interface that goes and another that comes, and a link
/// that takes the name of one whose end has not been heard of yet stays unreported until then.
#[derive(Debug, Default)]
pub struct Monitor {
    excluded: Vec<Regex>,
    damper: Damper,
    links: BTreeMap<u32, Link>,
    /// Names of links that are not reported because of these.
    odd: BTreeMap<u32, String>,
    indices: BTreeMap<InterfaceName, BTreeSet<u32>>,
    reported: BTreeMap<InterfaceName, Reported>,
    /// Links whose addresses must be read again.
    stale: BTreeSet<u32>,
    events: Vec<LinkEvent>,
}

/// A link that exists.
#[derive(Debug)]
struct Link {
    name: InterfaceName,
    is_running: bool,
    /// `None` until they are read.
    addresses: Option<BTreeSet<IpAddr>>,
}

/// What was reported of a name.
#[derive(Debug, PartialEq, Eq)]
struct Reported {
    index: u32,
    is_up: bool,
    addresses: Option<BTreeSet<IpAddr>>,
}

impl Monitor {
    /// A monitor that knows of no link. Addresses of interfaces whose names match one of `excluded`
    /// (`InterfaceExclude`) are not reported.
    #[must_use]
    pub fn new(excluded: Vec<Regex>) -> Self {
        Self { excluded, ..Self::default() }
    }

    /// Takes a change. It counts at once, unless it is held back because it may be half of a flap, or follows one that
    /// is.
    pub(crate) fn on_notice(&mut self, notice: Notice, now: Duration) {
        if let Some(notice) = self.damper.hold(notice, now) {
            self.take(notice);
        }
    }

    /// Lets changes count that have been held back long enough.
    pub fn advance(&mut self, now: Duration) {
        for notice in self.damper.release(now) {
            self.take(notice);
        }
    }

    /// When [`advance`](Self::advance) has something to do, if nothing changes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.damper.next_deadline()
    }

    /// Takes a complete list of the links and addresses. Links about which something is held back stay as they are
    /// until that counts.
    pub fn resync(
        &mut self,
        mut links: Vec<Result<LinkState, OddLink>>,
        mut addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
    ) {
        let index_of =
            |link: &Result<LinkState, OddLink>| link.as_ref().map_or_else(|odd| odd.index, |link| link.index);
        let listed: BTreeSet<u32> = links.iter().map(index_of).collect();
        let known = self.links.keys().chain(self.odd.keys()).copied();
        let gone: Vec<u32> = known.filter(|index| !listed.contains(index) && !self.damper.holds(*index)).collect();
        gone.into_iter().for_each(|index| self.remove(index));
        links.retain(|link| !self.damper.holds(index_of(link)));
        for link in links {
            match link {
                Ok(link) => {
                    let index = link.index;
                    self.store(link);
                    self.on_addresses(index, addresses.remove(&index).unwrap_or_default());
                }
                Err(odd) => self.store_odd(odd),
            }
        }
    }

    /// Forgets what is held back, because changes were lost; [`resync`](Self::resync) must follow.
    pub fn forget_held(&mut self) {
        self.damper = Damper::default();
    }

    /// The links whose addresses must be read again, as of now. What comes and goes with
    /// the state of a link must not depend on being told of each.
    #[must_use]
    pub fn take_stale(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.stale)
    }

    /// Takes all addresses of a link.
    pub fn on_addresses(&mut self, index: u32, addresses: BTreeSet<IpAddr>) {
        self.stale.remove(&index);
        let Some(link) = self.links.get_mut(&index) else { return };
        link.addresses = Some(addresses);
        let name = link.name;
        self.report(name);
    }

    /// What is to be reported.
    #[must_use]
    pub fn take_events(&mut self) -> Vec<LinkEvent> {
        std::mem::take(&mut self.events)
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Link(link) => {
                self.stale.insert(link.index);
                self.store(link);
            }
            Notice::OddLink(link) => self.store_odd(link),
            Notice::LinkGone { index } => self.remove(index),
            Notice::Address { interface, address, is_present } => {
                // If they are not known yet, all are about to be read.
                let Some(link) = self.links.get_mut(&interface) else { return };
                let Some(addresses) = &mut link.addresses else { return };
                let is_news = if is_present { addresses.insert(address) } else { addresses.remove(&address) };
                if is_news {
                    let name = link.name;
                    self.report(name);
                }
            }
        }
    }

    fn store(&mut self, LinkState { index, name, is_running, .. }: LinkState) {
        if self.links.get(&index).is_some_and(|known| known.name != name) {
            self.remove(index);
            self.stale.insert(index);
        }
        self.odd.remove(&index);
        let known = self.links.entry(index).or_insert_with(|| Link { name, is_running, addresses: None });
        known.is_running = is_running;
        self.indices.entry(name).or_default().insert(index);
        self.report(name);
    }

    /// A link with an odd name counts as gone.
    fn store_odd(&mut self, OddLink { index, name }: OddLink) {
        if self.odd.get(&index) == Some(&name) {
            return;
        }
        self.remove(index);
        tracing::warn!(
            interface = name,
            index,
            "Ignoring an interface whose name no rule can be written with: its addresses do not count as the host's, and no \
             endpoint can be there"
        );
        self.odd.insert(index, name);
    }

    fn remove(&mut self, index: u32) {
        self.stale.remove(&index);
        self.odd.remove(&index);
        let Some(link) = self.links.remove(&index) else { return };
        if let Some(indices) = self.indices.get_mut(&link.name) {
            indices.remove(&index);
            if indices.is_empty() {
                self.indices.remove(&link.name);
            }
        }
        self.report(link.name);
    }

    /// Reports what is different now of a name.
    fn report(&mut self, name: InterfaceName) {
        let Some(indices) = self.indices.get(&name) else {
            if self.reported.remove(&name).is_some() {
                self.events.push(LinkEvent::Gone { name });
            }
            return;
        };
        // Until one is left there is no telling which of them the name means.
        let [index] = indices.iter().copied().collect::<Vec<_>>()[..] else { return };
        let Some(link) = self.links.get(&index) else { return };
        let is_excluded = || self.excluded.iter().any(|pattern| pattern.is_match(name.as_str()));

        let reported = self.reported.get(&name);
        if reported.is_none_or(|reported| (reported.index, reported.is_up) != (index, link.is_running)) {
            self.events.push(if link.is_running {
                LinkEvent::Up { name, index }
            } else {
                LinkEvent::Down { name, index }
            });
        }
        let reported_addresses = reported.and_then(|reported| reported.addresses.as_ref());
        let addresses = match &link.addresses {
            Some(addresses) if reported_addresses != Some(addresses) && !is_excluded() => {
                self.events.push(LinkEvent::Addresses { name, addresses: addresses.clone() });
                Some(addresses.clone())
            }
            _ => reported_addresses.cloned(),
        };
        self.reported.insert(name, Reported { index, is_up: link.is_running, addresses });
    }
}

#[cfg(test)]
mod tests;
