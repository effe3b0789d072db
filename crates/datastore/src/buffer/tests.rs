use tortie_model::{Tier, TierName};

use super::*;

fn tier(name: &str, order: Option<f64>) -> Update {
    let tier = order.map(|order| Value::Tier(Tier { order: tortie_model::Order::new(order), ..Tier::default() }));
    Update { key: Key::Tier(TierName::new(name)), value: tier }
}

#[test]
fn what_was_not_told_again_is_deleted_and_the_newest_value_counts() {
    let (mut buffer, now) = (DedupeBuffer::default(), Instant::now());
    buffer.begin_resync();
    buffer.update(tier("a", Some(1.0)), now);
    buffer.update(tier("b", Some(1.0)), now);
    buffer.update(tier("a", Some(2.0)), now);
    buffer.update(tier("never", None), now);
    buffer.end_resync(now);
    assert_eq!(buffer.take(9), Some(Next::Status(SyncStatus::Resync)));
    assert_eq!(buffer.take(9), Some(Next::Updates(vec![tier("a", Some(2.0)), tier("b", Some(1.0))], now)));
    assert_eq!(buffer.take(9), Some(Next::Status(SyncStatus::InSync)));
    buffer.begin_resync();
    buffer.update(tier("b", Some(1.0)), now);
    buffer.end_resync(now);
    buffer.take(9);
    assert_eq!(buffer.take(9), Some(Next::Updates(vec![tier("b", Some(1.0)), tier("a", None)], now)));
}
