//! Known and reported state of the monitor; without sockets and clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use regex::Regex;
use tortie_dataplane::LinkEvent;
use tortie_model::InterfaceName;

use super::damping::Damper;
use crate::netlink::{LinkState, Notice, OddLink};

/// Converts the kernel's messages about links and addresses to [`LinkEvent`]s, as
/// `felix/ifacemonitor` does.
///
/// Events depend only on the known state. An interface is reported if exactly one link has its
/// name, and only differences from the last report are sent. So a rename is the end of one
/// interface and the start of another. A link that takes the name of a link whose end has not been
/// received yet stays unreported until then.
#[derive(Debug, Default)]
pub struct Monitor {
    excluded: Vec<Regex>,
    damper: Damper,
    links: BTreeMap<u32, Link>,
    /// Links that are not reported because of these names.
    odd: BTreeMap<u32, String>,
    indices: BTreeMap<InterfaceName, BTreeSet<u32>>,
    reported: BTreeMap<InterfaceName, ReportedLink>,
    /// Links whose addresses must be read again.
    stale: BTreeSet<u32>,
    events: Vec<LinkEvent>,
}

/// A link that exists.
#[derive(Debug)]
struct Link {
    name: InterfaceName,
    is_up: bool,
    is_running: bool,
    /// `None` until they have been read.
    addresses: Option<BTreeSet<IpAddr>>,
}

/// Last report about a name.
#[derive(Debug, PartialEq, Eq)]
struct ReportedLink {
    index: u32,
    is_up: bool,
    addresses: Option<BTreeSet<IpAddr>>,
}

impl Monitor {
    /// Creates a monitor without links. Addresses of interfaces whose names match one of `excluded`
    /// (`InterfaceExclude`) are not reported.
    #[must_use]
    pub fn new(excluded: Vec<Regex>) -> Self {
        Self { excluded, ..Self::default() }
    }

    /// Processes a change. It takes effect at once, unless it is held back because it may be half
    /// of a flap, or follows one that is held back.
    pub(crate) fn on_notice(&mut self, notice: Notice, now: Duration) {
        if self.is_of_idle_link(&notice) {
            self.take(notice);
        } else if let Some(notice) = self.damper.hold(notice, now) {
            self.take(notice);
        }
    }

    /// Reports whether a notice concerns a link that is down, and so loses nothing. A new link is
    /// created down, and must not wait before it is up.
    fn is_of_idle_link(&self, notice: &Notice) -> bool {
        let Notice::Link(LinkState { index, .. }) = notice else { return false };
        !self.damper.holds(*index) && self.links.get(index).is_none_or(|known| !known.is_running)
    }

    /// Applies changes that have been held back long enough.
    pub fn advance(&mut self, now: Duration) {
        for notice in self.damper.release(now) {
            self.take(notice);
        }
    }

    /// Returns the time at which [`advance`](Self::advance) has to be called if nothing changes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.damper.next_deadline()
    }

    /// Processes a complete list of the links and addresses. Links with changes that are held back
    /// stay as they are until these take effect.
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

    /// Drops the changes that are held back, because changes were lost; [`resync`](Self::resync)
    /// must follow.
    pub fn discard_held(&mut self) {
        self.damper = Damper::default();
    }

    /// Returns the links whose addresses must be read again, and clears the list: links of unknown
    /// addresses, and links that were set down, as the kernel may remove their IPv6 addresses
    /// without messages (`net.ipv6.conf.*.skip_notify_on_dev_down`). All other changes of
    /// addresses have messages.
    #[must_use]
    pub fn take_stale(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.stale)
    }

    /// Processes the complete addresses of a link.
    pub fn on_addresses(&mut self, index: u32, addresses: BTreeSet<IpAddr>) {
        self.stale.remove(&index);
        let Some(link) = self.links.get_mut(&index) else { return };
        link.addresses = Some(addresses);
        let name = link.name;
        self.report(name);
    }

    /// Returns the events since the last call.
    #[must_use]
    pub fn take_events(&mut self) -> Vec<LinkEvent> {
        std::mem::take(&mut self.events)
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Link(link) => {
                let index = link.index;
                let was_stale = self.stale.contains(&index);
                let went_down = self.links.get(&index).is_some_and(|known| known.is_up && !link.is_up);
                self.store(link);
                if was_stale || went_down || self.links.get(&index).is_some_and(|known| known.addresses.is_none()) {
                    self.stale.insert(index);
                }
            }
            Notice::OddLink(link) => self.store_odd(link),
            Notice::LinkGone { index } => self.remove(index),
            Notice::Address { interface, address, is_present } => {
                // If the addresses are unknown, all of them are about to be read.
                let Some(link) = self.links.get_mut(&interface) else { return };
                let Some(addresses) = &mut link.addresses else { return };
                let is_changed = if is_present { addresses.insert(address) } else { addresses.remove(&address) };
                if is_changed {
                    let name = link.name;
                    self.report(name);
                }
            }
        }
    }

    fn store(&mut self, LinkState { index, name, is_up, is_running, .. }: LinkState) {
        let mut addresses = None;
        if let Some(known) = self.links.get_mut(&index) {
            addresses = known.addresses.take();
            if known.name != name {
                self.remove(index);
            }
        }
        self.odd.remove(&index);
        self.links.insert(index, Link { name, is_up, is_running, addresses });
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
            "an interface is ignored because rules cannot contain its name; its addresses do not count as the host's"
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

    /// Reports the differences of a name from the last report.
    fn report(&mut self, name: InterfaceName) {
        let Some(indices) = self.indices.get(&name) else {
            if self.reported.remove(&name).is_some() {
                self.events.push(LinkEvent::Gone { name });
            }
            return;
        };
        // While several links have the name, it is ambiguous.
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
        self.reported.insert(name, ReportedLink { index, is_up: link.is_running, addresses });
    }
}

#[cfg(test)]
mod tests;
