//! Messages that wait for a driver.

use std::collections::VecDeque;

use tortie_model::desired::DesiredUpdate;
use tortie_protocol::felix;

use super::process::Outgoing;

/// Messages in the order in which they will be sent; each is serialised when its turn comes.
#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    waiting: VecDeque<Item>,
    /// Serialised already, but there was no room for it.
    refused: Option<Outgoing>,
    sequence_number: u64,
}

#[derive(Debug)]
enum Item {
    Update(DesiredUpdate),
    Config(felix::ConfigUpdate),
}

impl MessageQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.refused.is_some())
    }

    pub(super) fn update(&mut self, update: DesiredUpdate) {
        self.waiting.push_back(Item::Update(update));
    }

    pub(super) fn config(&mut self, config: felix::ConfigUpdate) {
        self.waiting.push_back(Item::Config(config));
    }

    /// Offers one message after the other until one is refused. Returns whether any was taken.
    pub(super) fn offer_to(&mut self, mut take: impl FnMut(Outgoing) -> Result<(), Outgoing>) -> bool {
        let mut taken = false;
        while let Some(message) = self.refused.take().or_else(|| self.next()) {
            match take(message) {
                Ok(()) => taken = true,
                Err(message) => {
                    self.refused = Some(message);
                    break;
                }
            }
        }
        taken
    }

    fn next(&mut self) -> Option<Outgoing> {
        loop {
            let (bytes, is_in_sync) = match self.waiting.pop_front()? {
                Item::Config(config) => (tortie_protocol::encode_config(config, self.sequence_number), false),
                Item::Update(update) => {
                    let is_in_sync = update == DesiredUpdate::InSync;
                    // There is no message for a datastore that is not ready; nothing is sent while
                    // it is not.
                    let Some(bytes) = tortie_protocol::encode(&update, self.sequence_number) else { continue };
                    (bytes, is_in_sync)
                }
            };
            self.sequence_number += 1;
            return Some(Outgoing { bytes, is_in_sync });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tortie_model::IpSetId;
    use tortie_model::desired::DesiredUpdate;
    use tortie_protocol::{felix, receive};

    use super::MessageQueue;

    #[test]
    fn order_and_numbers_survive_a_full_queue() {
        let mut queue = MessageQueue::default();
        queue.config(felix::ConfigUpdate { config: BTreeMap::new(), ..Default::default() });
        queue.update(DesiredUpdate::DatastoreNotReady);
        for id in ["a", "b", "c"] {
            queue.update(DesiredUpdate::IpSetRemove(IpSetId::new(id)));
        }
        queue.update(DesiredUpdate::InSync);
        let mut taken = Vec::new();
        // Every second message is refused once.
        let mut refuse = true;
        while !queue.is_empty() {
            queue.offer_to(|message| {
                refuse = !refuse;
                if refuse {
                    return Err(message);
                }
                taken.push(message);
                Ok(())
            });
        }
        assert!(!queue.offer_to(|_| panic!("nothing is left")));
        let numbers: Vec<u64> =
            taken.iter().map(|message| tortie_protocol::decode(&message.bytes).unwrap().sequence_number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        let removed: Vec<_> =
            taken[1..4].iter().map(|message| format!("{:?}", receive(&message.bytes).unwrap())).collect();
        assert!(removed[0].contains("\"a\"") && removed[2].contains("\"c\""), "{removed:?}");
        assert_eq!(taken.iter().map(|m| m.is_in_sync).collect::<Vec<_>>(), [false, false, false, false, true]);
    }
}
