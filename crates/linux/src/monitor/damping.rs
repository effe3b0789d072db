//! Delay of changes that may be half of a flap (`felix/ifacemonitor/update_filter.go`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::netlink::Notice;

/// Time for which losses of links and addresses are held back.
pub const FLAP_DAMPING: Duration = Duration::from_millis(100);

/// Changes that are held back, in order for each link.
///
/// Some DHCP clients remove the address for a moment when they renew its lease; policy must not
/// follow that.
#[derive(Debug, Default)]
pub(super) struct Damper {
    held: BTreeMap<u32, VecDeque<HeldNotice>>,
}

#[derive(Debug)]
struct HeldNotice {
    until: Duration,
    notice: Notice,
}

impl Damper {
    /// Returns a change that takes effect at once; keeps others.
    pub(super) fn hold(&mut self, notice: Notice, now: Duration) -> Option<Notice> {
        let index = index_of(&notice);
        let is_up_event = match &notice {
            Notice::Link(link) => link.is_running,
            Notice::OddLink(_) | Notice::LinkGone { .. } => false,
            Notice::Address { is_present, .. } => *is_present,
        };
        if is_up_event && !self.holds(index) {
            return Some(notice);
        }
        let queue = self.held.entry(index).or_default();
        if let Notice::Address { address: new, .. } = &notice {
            queue.retain(|held| !matches!(&held.notice, Notice::Address { address, .. } if address == new));
        }
        let until = if is_up_event { now } else { now + FLAP_DAMPING };
        queue.push_back(HeldNotice { until, notice });
        None
    }

    /// Reports whether changes of a link are held back.
    pub(super) fn holds(&self, index: u32) -> bool {
        self.held.contains_key(&index)
    }

    /// Returns the changes that have been held back long enough, and those that wait behind them.
    pub(super) fn release(&mut self, now: Duration) -> Vec<Notice> {
        let mut released = Vec::new();
        self.held.retain(|_, queue| {
            let ready = queue.iter().take_while(|held| held.until <= now).count();
            released.extend(queue.drain(..ready).map(|held| held.notice));
            !queue.is_empty()
        });
        released
    }

    /// Returns the time at which the next change is released.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.held.values().filter_map(|queue| queue.front()).map(|held| held.until).min()
    }
}

const fn index_of(notice: &Notice) -> u32 {
    match notice {
        Notice::Link(link) => link.index,
        Notice::OddLink(link) => link.index,
        Notice::LinkGone { index } => *index,
        Notice::Address { interface, .. } => *interface,
    }
}
