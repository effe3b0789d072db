use super::*;

fn cycle() -> Cycle {
    Cycle::new(Timing::default())
}

fn refused(code: u16, reason: &str) -> ApiError {
    ApiError::Status { code, reason: reason.into(), message: String::new(), retry_after: None }
}

fn away() -> ApiError {
    ApiError::Unreachable("connection refused".into())
}

/// Returns a cycle that watches from version 7.
fn watching() -> Cycle {
    let mut cycle = cycle();
    assert_eq!(cycle.listed("7".into()), Duration::ZERO);
    assert_eq!(cycle.step(), Step::Watch("7".into()));
    cycle
}

#[test]
fn lists_first_and_watches_from_the_listed_version() {
    let mut cycle = cycle();
    assert_eq!(cycle.step(), Step::List);
    cycle.listed("7".into());
    cycle.progressed("9");
    assert_eq!(cycle.step(), Step::Watch("9".into()));
    assert_eq!(cycle.watch_ended(Duration::from_secs(300), true, 1.0), Duration::ZERO);
    assert_eq!(cycle.step(), Step::Watch("9".into()));
}

#[test]
fn an_expired_version_is_listed_again_after_a_pause() {
    let start = Instant::now();
    let mut cycle = cycle();
    assert_eq!(cycle.begin_list(start), Duration::ZERO);
    cycle.listed("7".into());
    assert_eq!(cycle.watch_failed(&refused(410, "Expired"), 1.0), (Duration::ZERO, FailureEffect::Fine));
    assert_eq!(cycle.step(), Step::List);
    assert_eq!(cycle.begin_list(start + Duration::from_millis(100)), Duration::from_millis(400));
    assert_eq!(cycle.begin_list(start + Duration::from_millis(500)), Duration::from_millis(500));
    assert_eq!(cycle.begin_list(start + Duration::from_secs(10)), Duration::ZERO);
}

#[test]
fn a_server_that_is_away_is_asked_for_the_same_version_for_ever() {
    let mut cycle = watching();
    let mut last = Duration::ZERO;
    for _ in 0..100 {
        let (pause, effect) = cycle.watch_failed(&away(), 1.0);
        assert_eq!((effect, cycle.step()), (FailureEffect::Unavailable, Step::Compare("7".into())));
        assert!(pause >= last && pause <= Duration::from_secs(30));
        last = pause;
    }
    assert!(!cycle.compared("7") && cycle.step() == Step::Watch("7".into()));
    cycle.progressed("8");
    assert_eq!(cycle.watch_failed(&away(), 1.0).0, Duration::from_millis(500));
}

#[test]
fn a_server_that_is_back_is_asked_soon_and_believed_late_that_roles_allow_nothing() {
    let mut cycle = watching();
    for _ in 0..10 {
        let _ = cycle.watch_failed(&away(), 1.0);
    }
    let forbidden = refused(403, "Forbidden");
    for (pause, effect) in [
        (500, FailureEffect::Fine),
        (1000, FailureEffect::Fine),
        (2000, FailureEffect::Fine),
        (4000, FailureEffect::Unavailable),
    ] {
        assert_eq!(cycle.watch_failed(&forbidden, 1.0), (Duration::from_millis(pause), effect));
    }
    // A refusal by a server that was reachable counts.
    cycle.progressed("8");
    assert_eq!(cycle.watch_failed(&forbidden, 1.0).1, FailureEffect::Unavailable);
}

#[test]
fn a_watch_that_fails_again_and_again_is_given_up() {
    let mut cycle = watching();
    for failure in 1..=MAX_FAILURES {
        assert_eq!(cycle.step(), Step::Watch("7".into()), "{failure}");
        let _ = cycle.watch_failed(&refused(500, "InternalError"), 1.0);
    }
    assert_eq!(cycle.step(), Step::List);
    let mut cycle = watching();
    for version in 8..100 {
        let _ = cycle.watch_failed(&ApiError::Malformed("".into()), 1.0);
        cycle.progressed(&version.to_string());
    }
    assert_eq!(cycle.step(), Step::Watch("99".into()), "it gets on");
}

#[test]
fn a_retry_after_is_honoured_up_to_a_bound() {
    let mut cycle = cycle();
    let wish = |seconds| ApiError::Status {
        code: 429,
        reason: "TooManyRequests".into(),
        message: String::new(),
        retry_after: Some(Duration::from_secs(seconds)),
    };
    assert_eq!(cycle.list_failed(&wish(7), false, 1.0), (Duration::from_secs(7), FailureEffect::Unavailable));
    assert_eq!(cycle.list_failed(&wish(0), false, 1.0).0, Duration::from_secs(1));
    assert_eq!(cycle.list_failed(&wish(100_000), false, 1.0).0, Duration::from_secs(120));
}

#[test]
fn pages_that_expire_are_given_up_for_the_whole() {
    let mut cycle = cycle();
    let expired = refused(410, "Expired");
    assert_eq!(cycle.page(), Some(500));
    assert_eq!(cycle.list_failed(&expired, true, 1.0), (Duration::ZERO, FailureEffect::Fine));
    assert_eq!(cycle.page(), Some(500));
    assert_eq!(cycle.list_failed(&expired, true, 1.0), (Duration::ZERO, FailureEffect::Fine));
    assert_eq!(cycle.page(), None);
    cycle.listed("3".into());
    assert_eq!(cycle.page(), Some(500));
}

#[test]
fn absent_kinds_are_looked_for_seldom() {
    let mut cycle = cycle();
    let missing = refused(404, "NotFound");
    assert_eq!(cycle.list_failed(&missing, false, 1.0), (Duration::from_secs(10), FailureEffect::NotInstalled));
    for _ in 0..10 {
        let _ = cycle.list_failed(&missing, false, 1.0);
    }
    assert_eq!(cycle.list_failed(&missing, false, 1.0), (Duration::from_secs(300), FailureEffect::NotInstalled));
    // The kind may have been removed, so a list follows.
    let mut cycle = watching();
    assert_eq!(cycle.watch_failed(&missing, 1.0), (Duration::ZERO, FailureEffect::Fine));
    assert_eq!(cycle.step(), Step::List);
}

#[test]
fn a_silent_watch_is_repeated_at_once_and_then_is_a_failure() {
    let mut cycle = watching();
    let silent = ApiError::Silent(Duration::from_secs(150));
    assert_eq!(cycle.watch_failed(&silent, 1.0), (Duration::ZERO, FailureEffect::Fine));
    assert_eq!(cycle.step(), Step::Compare("7".into()));
    assert!(!cycle.compared("7") && cycle.step() == Step::Watch("7".into()));
    assert_eq!(cycle.watch_failed(&silent, 1.0).1, FailureEffect::Unavailable);
    assert!(!cycle.compared("12") && cycle.step() == Step::Watch("7".into()));
}

#[test]
fn a_server_that_has_gone_back_is_listed_again() {
    let mut cycle = watching();
    // The server sends nothing for versions that it has not reached, and does not report that.
    assert_eq!(cycle.watch_ended(Duration::from_secs(300), false, 1.0), Duration::ZERO);
    assert_eq!(cycle.step(), Step::Compare("7".into()));
    assert_eq!(cycle.compare_failed(&away(), 1.0).1, FailureEffect::Unavailable);
    assert_eq!(cycle.step(), Step::Compare("7".into()), "it is not known yet");
    assert!(cycle.compared("6") && cycle.step() == Step::List);
    cycle.listed("6".into());
    assert_eq!(cycle.step(), Step::Watch("6".into()));

    // After a comparison with an invalid version the watch continues.
    for newest in ["", "old", "0x1"] {
        let _ = cycle.watch_ended(Duration::from_secs(300), false, 1.0);
        assert!(!cycle.compared(newest) && cycle.step() == Step::Watch("6".into()), "{newest}");
    }
    let _ = cycle.watch_ended(Duration::from_secs(300), false, 1.0);
    assert_eq!(cycle.compare_failed(&refused(403, "Forbidden"), 1.0).1, FailureEffect::Unavailable);
    assert_eq!(cycle.step(), Step::Watch("6".into()));
}

#[test]
fn a_server_that_ends_watches_at_once_is_not_asked_without_pause() {
    let mut cycle = watching();
    let pauses: Vec<Duration> = (0..3).map(|_| cycle.watch_ended(Duration::ZERO, false, 1.0)).collect();
    assert_eq!(pauses, [500, 1000, 2000].map(Duration::from_millis));
    assert_eq!(cycle.watch_ended(Duration::ZERO, true, 1.0), Duration::ZERO);
}

#[test]
fn unwatchable_kinds_are_listed_periodically() {
    let mut cycle = cycle();
    assert_eq!(cycle.listed(String::new()), Duration::from_secs(5));
    assert_eq!(cycle.step(), Step::List);
    let mut cycle = watching();
    assert_eq!(
        cycle.watch_failed(&refused(405, "MethodNotAllowed"), 1.0),
        (Duration::from_secs(5), FailureEffect::Fine)
    );
    assert_eq!(cycle.step(), Step::List);
}
