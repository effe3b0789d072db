use proptest::prelude::*;

use super::Outbox;

fn flush(outbox: &mut Outbox<u8, u8>) -> Vec<String> {
    let mut sent = Vec::new();
    outbox.send_updates(|key, value| sent.push(format!("{key}={value}")));
    outbox.send_removals(|key| sent.push(format!("-{key}")));
    sent
}

#[test]
fn changes_between_flushes_coalesce() {
    let mut outbox = Outbox::default();
    outbox.update(2, 0);
    outbox.update(1, 0);
    outbox.update(2, 1);
    outbox.update(3, 0);
    outbox.remove(3);
    assert_eq!(flush(&mut outbox), ["1=0", "2=1"]);
    outbox.remove(1);
    outbox.update(1, 5);
    outbox.remove(2);
    outbox.remove(9);
    assert_eq!(flush(&mut outbox), ["1=5", "-2"]);
    outbox.update(1, 6);
    outbox.remove(1);
    assert_eq!(flush(&mut outbox), ["-1"]);
    assert!(outbox.is_empty());
}

proptest! {
    /// A replay of the messages gives the desired state, and no message removes a missing object.
    #[test]
    fn replay_gives_the_desired_state(steps in prop::collection::vec((0u8..6, 0u8..5, any::<bool>()), 0..80)) {
        let mut outbox = Outbox::default();
        let mut wanted = std::collections::BTreeMap::new();
        let mut got = std::collections::BTreeMap::new();
        for (key, value, is_flush_point) in steps {
            if value == 0 {
                wanted.remove(&key);
                outbox.remove(key);
            } else {
                wanted.insert(key, value);
                outbox.update(key, value);
            }
            if is_flush_point {
                let mut sent = 0;
                outbox.send_updates(|key, value| {
                    got.insert(key, value);
                    sent += 1;
                });
                outbox.send_removals(|key| {
                    assert!(got.remove(&key).is_some(), "removal of an absent object");
                    sent += 1;
                });
                prop_assert!(sent <= 6);
                prop_assert_eq!(&got, &wanted);
            }
        }
    }
}
