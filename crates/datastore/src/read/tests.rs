use std::time::{Duration, Instant};

use tortie_model::Update;

use crate::{ReadError, from_fn, read};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_read_returns_everything_after_the_initial_sync() {
    let source = from_fn("scripted", |feed| {
        feed.begin_resync()?;
        feed.send([Update::Ready(Some(false))], Instant::now())?;
        feed.send([Update::Ready(Some(true))], Instant::now())?;
        feed.end_resync()
    });
    let all = read(source, LONG, |_| ()).unwrap();
    assert_eq!(all.updates, [Update::Ready(Some(true))]);
    assert!(all.problems.is_empty());
}

#[test]
fn a_refusal_is_not_waited_for() {
    let error = read(from_fn("scripted", |feed| feed.refused("wrong password")), LONG, |_| ()).unwrap_err();
    assert!(matches!(&error, ReadError::Refused(why) if why == "wrong password"), "{error:?}");
}

#[test]
fn patience_ends() {
    let source = from_fn("scripted", |feed| {
        feed.unavailable("connection refused")?;
        loop {
            std::thread::sleep(Duration::from_millis(5));
            feed.unavailable("connection refused")?;
        }
    });
    let mut waits = Vec::new();
    let error = read(source, Duration::from_millis(30), |why| waits.push(why.to_owned())).unwrap_err();
    assert!(matches!(&error, ReadError::Unavailable(why) if why == "connection refused"), "{error:?}");
    assert_eq!(waits, ["connection refused"]);
}

#[test]
fn a_source_that_ends_before_the_sync_is_an_error() {
    let error = read(from_fn("scripted", |_| Ok(())), LONG, |_| ()).unwrap_err();
    assert!(matches!(error, ReadError::Ended), "{error:?}");
}
