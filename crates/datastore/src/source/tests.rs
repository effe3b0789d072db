use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tortie_model::{Tier, TierName};

use super::*;

fn update(name: usize) -> Update {
    Update::Tier(TierName::new(format!("t{name:06}")), Some(Tier::default()))
}

fn updates(names: std::ops::Range<usize>) -> Vec<Update> {
    names.map(update).collect()
}

/// Returns the number of queued updates.
fn waiting(feed: &Feed) -> usize {
    feed.shared.lock().buffer.len()
}

#[test]
fn a_source_waits_for_its_consumer() {
    let (feed, watching) = channel();
    const ALL: usize = PENDING * 3;
    let source = thread::spawn(move || {
        feed.begin_resync()?;
        feed.send(updates(0..ALL), Instant::now())?;
        feed.end_resync()
    });
    let mut known = 0;
    let mut most = 0;
    loop {
        match watching.events.recv() {
            Some(Event::Updates { updates, .. }) => known += updates.len(),
            Some(Event::Status(SyncStatus::InSync)) => break,
            Some(_) => {}
            None => panic!("the source has ended"),
        }
        most = most.max(watching.events.shared.lock().buffer.len());
    }
    assert_eq!(known, ALL);
    assert!((1..=PENDING).contains(&most), "{most} waited");
    assert_eq!(source.join().unwrap(), Ok(()));
    assert!(watching.events.recv().is_none());
}

#[test]
fn queued_values_may_change_while_the_buffer_is_full() {
    let (feed, watching) = channel();
    feed.send(updates(0..PENDING), Instant::now()).unwrap();
    feed.send(updates(0..10), Instant::now()).unwrap();
    assert_eq!((waiting(&feed), watching.resend.waiting()), (PENDING, PENDING));
    drop(watching);
    assert_eq!(feed.send(updates(0..1), Instant::now()), Err(Closed));
}

type Blocked = thread::JoinHandle<(Result<(), Closed>, Feed)>;

/// Starts a source that sends more than the queue holds, and waits until it is blocked.
fn blocked_source() -> (Blocked, Watching) {
    let (feed, watching) = channel();
    let source = thread::spawn(move || {
        let sent = feed.begin_resync().and_then(|()| feed.send(updates(0..PENDING * 2), Instant::now()));
        (sent, feed)
    });
    while watching.events.shared.lock().buffer.len() < PENDING {
        thread::sleep(Duration::from_millis(1));
    }
    (source, watching)
}

#[test]
fn a_consumer_that_leaves_wakes_a_source_that_waits() {
    let (source, watching) = blocked_source();
    let woken = Arc::new(AtomicUsize::new(0));
    drop(watching);
    let (sent, feed) = source.join().unwrap();
    assert_eq!(sent, Err(Closed));
    assert_eq!(feed.begin_resync(), Err(Closed));
    assert_eq!(feed.take_resend(), Err(Closed));
    let count = Arc::clone(&woken);
    feed.wake_with(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(woken.load(Ordering::Relaxed), 1, "earlier events wake the consumer at once");
}

#[test]
fn a_resend_request_drops_the_queue_and_wakes_a_waiting_source() {
    let (source, watching) = blocked_source();
    watching.resend.ask();
    let (sent, feed) = source.join().unwrap();
    assert_eq!(sent, Ok(()));
    // Updates are dropped until the source restarts.
    feed.send(updates(5..6), Instant::now()).unwrap();
    feed.end_resync().unwrap();
    feed.problems(Vec::new()).unwrap();
    assert_eq!(watching.events.try_recv().err(), Some(TryRecvError::Empty));
    assert_eq!(feed.take_resend(), Ok(true));
    assert_eq!(feed.take_resend(), Ok(false));
    feed.begin_resync().unwrap();
    feed.send(updates(0..2), Instant::now()).unwrap();
    feed.end_resync().unwrap();
    drop(feed);
    let events: Vec<String> = watching.events.map(|event| format!("{event:?}")).collect();
    assert!(
        matches!(&events[..], [first, middle, last] if first == "Status(Resync)"
        && middle.contains("t000001") && last == "Status(InSync)"),
        "{events:?}"
    );
}

#[test]
fn the_reason_of_an_outage_follows_the_status_and_problems_come_first() {
    let (feed, Watching { events, .. }) = channel();
    feed.begin_resync().unwrap();
    let versioned = updates(0..1).into_iter().map(|update| (update, Some("7".into())));
    feed.send_at(versioned, Instant::now()).unwrap();
    feed.unavailable("away").unwrap();
    feed.problems(Vec::new()).unwrap();
    let kinds: Vec<&str> = std::iter::from_fn(|| events.try_recv().ok())
        .map(|event| match event {
            Event::Status(_) => "status",
            Event::Updates { .. } => "updates",
            Event::Problems(_) => "problems",
            Event::Unavailable { .. } => "unavailable",
            Event::Available => "available",
            Event::Versions(_) => "versions",
        })
        .collect();
    assert_eq!(kinds, ["problems", "status", "unavailable", "versions", "updates"]);
    for _ in 0..2 {
        feed.available().unwrap();
    }
    assert!(matches!(events.try_recv(), Ok(Event::Available)), "although nothing has changed");
    feed.available().unwrap();
    assert_eq!(events.try_recv().err(), Some(TryRecvError::Empty), "once is enough");
    drop(feed);
    assert_eq!(events.try_recv().err(), Some(TryRecvError::Disconnected));
}

fn next_event(events: &Events) -> String {
    format!("{:?}", events.try_recv())
}

#[test]
fn a_restarted_consumer_receives_the_reason_of_an_outage_again() {
    let (feed, Watching { events, resend }) = channel();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    events.wake_with(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let away = |why, refused| format!("Ok(Unavailable {{ why: {why:?}, refused: {refused} }})");
    feed.unavailable("no route").unwrap();
    // Whether it was received before, is queued, or has just changed.
    assert_eq!(next_event(&events), away("no route", false));
    for _ in 0..2 {
        let before = woken.load(Ordering::Relaxed);
        resend.ask();
        assert!(woken.load(Ordering::Relaxed) > before, "the request wakes a sleeping consumer");
    }
    assert_eq!(next_event(&events), away("no route", false));
    feed.refused("no rights").unwrap();
    assert_eq!(next_event(&events), away("no rights", true));
    assert_eq!(next_event(&events), "Err(Empty)");
    // The source answers with its known state; that does not make the datastore available.
    assert_eq!(feed.take_resend(), Ok(true));
    feed.begin_resync().unwrap();
    feed.end_resync().unwrap();
    assert_eq!(next_event(&events), "Ok(Status(Resync))");
    assert_eq!(next_event(&events), "Ok(Status(InSync))");
    // The consumer may restart again before the source has answered.
    resend.ask();
    feed.available().unwrap();
    assert_eq!(next_event(&events), "Ok(Available)");
    resend.ask();
    assert_eq!(next_event(&events), "Err(Empty)", "nothing is wrong any more");
}

/// A consumer that takes all events at each notification misses none.
#[test]
fn a_woken_consumer_receives_everything() {
    let (feed, Watching { events, .. }) = channel();
    let (sender, woken) = std::sync::mpsc::sync_channel(1);
    events.wake_with(move || {
        // One that waits will do.
        let _ = sender.try_send(());
    });
    let source = thread::spawn(move || {
        for name in 0..2000 {
            feed.send([update(name)], Instant::now())?;
        }
        Ok::<_, Closed>(())
    });
    let mut known = BTreeMap::new();
    'all: loop {
        woken.recv_timeout(Duration::from_secs(20)).expect("woken in time");
        loop {
            match events.try_recv() {
                Ok(Event::Updates { updates, .. }) => known.extend(updates.into_iter().map(|u| (u.key(), u))),
                Ok(_) => {}
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => break 'all,
            }
        }
    }
    assert_eq!(known.len(), 2000);
    assert_eq!(source.join().unwrap(), Ok(()));
}
