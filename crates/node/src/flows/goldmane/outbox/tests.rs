use proptest::prelude::*;

use super::*;

fn flow(number: usize) -> Arc<Flow> {
    Arc::new(Flow { start_time: i64::try_from(number).unwrap(), ..Flow::default() })
}

fn number(flow: &Flow) -> usize {
    usize::try_from(flow.start_time).unwrap()
}

#[test]
fn the_oldest_make_room_and_are_counted() {
    let mut outbox = Outbox::default();
    let now = Instant::now();
    outbox.push(flow(0));
    assert_eq!(outbox.next(now).map(|flow| number(&flow)), Some(0));
    for n in 1..WAITING + 4 {
        outbox.push(flow(n));
    }
    assert_eq!((outbox.dropped, outbox.waiting.len()), (3, WAITING));
    outbox.received(now);
    assert_eq!(outbox.next(now).map(|flow| number(&flow)), Some(4));
    assert_eq!(outbox.received, 1);
}

#[test]
fn so_many_that_were_received_are_kept() {
    let mut outbox = Outbox::default();
    let now = Instant::now();
    for n in 0..SENT + 2 {
        outbox.push(flow(n));
        outbox.next(now);
        outbox.received(now);
    }
    assert_eq!((outbox.sent.len(), outbox.dropped), (SENT, 0));
    outbox.begin_again();
    assert_eq!(outbox.next(now).map(|flow| number(&flow)), Some(2));
}

#[test]
fn flows_without_a_receiver_are_dropped() {
    let outbox = SharedOutbox::default();
    outbox.push([flow(1)].into_iter());
    outbox.set_wanted(false);
    outbox.push([flow(2)].into_iter());
    let metrics = outbox.metrics("");
    assert_eq!((metrics.waiting, metrics.dropped), (0, 0));
    outbox.set_wanted(true);
    outbox.push([flow(3)].into_iter());
    assert_eq!(outbox.lock().outbox.next(Instant::now()).map(|flow| number(&flow)), Some(3));
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Next,
    Received,
    Wait(u64),
    BeginAgain,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Push),
        3 => Just(Step::Next),
        3 => Just(Step::Received),
        1 => (0..200_u64).prop_map(Step::Wait),
        1 => Just(Step::BeginAgain),
    ]
}

proptest! {
    /// After each end of a connection, the next one carries the flows that were received within the
    /// time that flows are kept, in the order of their first receipt, and then all flows that were
    /// not received, in the order of their arrival.
    #[test]
    fn nothing_is_lost_between_connections(steps in prop::collection::vec(step(), 0..120)) {
        let mut outbox = Outbox::default();
        let mut now = Instant::now();
        let (mut pushed, mut in_flight) = (0, None);
        let mut received: Vec<(usize, Instant)> = Vec::new();
        for step in steps {
            match step {
                Step::Push => {
                    outbox.push(flow(pushed));
                    pushed += 1;
                }
                // One at a time.
                Step::Next if in_flight.is_none() => in_flight = outbox.next(now).map(|flow| number(&flow)),
                Step::Next => {}
                Step::Received => {
                    outbox.received(now);
                    if let Some(number) = in_flight.take().filter(|n| received.iter().all(|(known, _)| known != n)) {
                        received.push((number, now));
                    }
                }
                Step::Wait(secs) => now += Duration::from_secs(secs),
                Step::BeginAgain => {
                    outbox.begin_again();
                    in_flight = None;
                    let kept = received.iter().filter(|(_, at)| *at + KEPT > now).map(|(number, _)| *number);
                    let new = (0..pushed).filter(|number| received.iter().all(|(known, _)| known != number));
                    let expected: Vec<usize> = kept.chain(new.clone()).collect();
                    let new: Vec<usize> = new.collect();
                    let mut sent = Vec::new();
                    while let Some(flow) = outbox.next(now) {
                        sent.push(number(&flow));
                        outbox.received(now);
                    }
                    prop_assert_eq!(sent, expected);
                    received.extend(new.into_iter().map(|number| (number, now)));
                    prop_assert_eq!(outbox.received, u64::try_from(received.len()).unwrap());
                    prop_assert!(outbox.is_drained());
                }
            }
        }
        prop_assert_eq!(outbox.dropped, 0);
    }
}
