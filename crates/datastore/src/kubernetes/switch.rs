//! Preparation of a switch to another API of Calico's kinds.

use std::collections::BTreeSet;
use std::ops::Range;

use super::kinds::CalicoApi;
use super::reflector::Event;

/// Lists of the API to which the source switches. Their events wait until all lists are complete,
/// so that the lists of the previous API stay in force until then, and no object seems to be gone
/// in between.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) api: CalicoApi,
    pub(super) lists: Range<usize>,
    complete: BTreeSet<usize>,
    events: Vec<(usize, Event)>,
}

impl Switch {
    pub(super) fn new(api: CalicoApi, lists: Range<usize>) -> Self {
        Self { api, lists, complete: BTreeSet::new(), events: Vec::new() }
    }

    /// Keeps an event of one of these lists.
    pub(super) fn keep(&mut self, list: usize, event: Event) {
        match event {
            Event::Begin => {
                self.complete.remove(&list);
                self.events.retain(|(other, _)| *other != list);
            }
            Event::End | Event::NotInstalled => _ = self.complete.insert(list),
            _ => {}
        }
        self.events.push((list, event));
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete.len() == self.lists.len()
    }

    /// Returns the kept events, in the order in which they arrived.
    pub(super) fn into_events(self) -> Vec<(usize, Event)> {
        self.events
    }
}
