//! Preparation of a switch to another API of Calico's kinds.

use std::collections::BTreeMap;
use std::ops::Range;

use super::kinds::CalicoApi;
use super::reflector::{Event, ObjectMeta};

/// Lists of the API to which the source switches. Their events wait until all lists are complete,
/// so that the lists of the previous API stay in force until then, and no object seems to be gone
/// in between.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) api: CalicoApi,
    pub(super) lists: Range<usize>,
    waiting: BTreeMap<usize, Waiting>,
}

/// Events of a list. Their number is bounded by that of the objects, however long they wait.
#[derive(Debug, Default)]
struct Waiting {
    /// The list itself, in order.
    listed: Vec<Event>,
    /// The last change of each object since, by namespace and name.
    changes: BTreeMap<(String, String), Event>,
    is_complete: bool,
}

impl Switch {
    pub(super) fn new(api: CalicoApi, lists: Range<usize>) -> Self {
        Self { api, lists, waiting: BTreeMap::new() }
    }

    /// Keeps an event of one of these lists.
    pub(super) fn keep(&mut self, list: usize, event: Event) {
        let waiting = self.waiting.entry(list).or_default();
        let changed = match &event {
            Event::Changed(object) => ObjectMeta::read(object),
            Event::Deleted(meta) => Some(meta.clone()),
            Event::Begin => {
                *waiting = Waiting::default();
                None
            }
            // The objects of a kind that vanishes stay.
            Event::NotInstalled if waiting.is_complete => return,
            Event::End | Event::NotInstalled => {
                waiting.is_complete = true;
                None
            }
            Event::Item(_) | Event::Unavailable(_) | Event::Available => None,
        };
        match changed {
            Some(meta) => _ = waiting.changes.insert((meta.namespace, meta.name), event),
            None => waiting.listed.push(event),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.waiting.values().filter(|waiting| waiting.is_complete).count() == self.lists.len()
    }

    /// Returns the kept events, those of each list in order.
    pub(super) fn into_events(self) -> impl Iterator<Item = (usize, Event)> {
        self.waiting.into_iter().flat_map(|(list, Waiting { listed, changes, .. })| {
            listed.into_iter().chain(changes.into_values()).map(move |event| (list, event))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_change_of_each_object_waits() {
        let object = |version: u32| format!(r#"{{"metadata": {{"name": "a", "resourceVersion": "{version}"}}}}"#);
        let mut switch = Switch::new(CalicoApi::V3, 4..6);
        switch.keep(4, Event::Begin);
        switch.keep(4, Event::Item(object(1)));
        switch.keep(4, Event::End);
        (2..1_000).for_each(|version| switch.keep(4, Event::Changed(object(version))));
        assert!(!switch.is_complete());
        (0..10).for_each(|_| switch.keep(5, Event::NotInstalled));
        assert!(switch.is_complete());
        let kept: Vec<String> = switch.into_events().map(|(list, event)| format!("{list} {event:?}")).collect();
        assert_eq!(kept.len(), 5, "{kept:?}");
        assert!(kept[3].starts_with("4 Changed") && kept[3].contains("999"), "{kept:?}");
        assert_eq!(kept[4], "5 NotInstalled");
    }
}
