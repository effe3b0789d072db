use super::*;

#[test]
fn setting_it_ends_every_wait_at_once_and_stays() {
    let stop = Stop::new().unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let stop = stop.clone();
            thread::spawn(move || stop.wait(Duration::from_secs(60)))
        })
        .collect();
    assert!(!stop.wait(Duration::from_millis(20)) && !stop.is_set());
    assert!(!stop.set());
    let begin = Instant::now();
    assert!(waiting.into_iter().all(|thread| thread.join().unwrap()));
    assert!(stop.set() && stop.wait(Duration::from_secs(60)));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn by_default_it_is_never_set() {
    let stop = Stop::default();
    assert!(!stop.set() && !stop.is_set() && !stop.wait(Duration::from_millis(1)));
}
