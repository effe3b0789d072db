use super::*;
use crate::metrics::Metrics;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A turn that begins then: the updates of the datastore take a tenth of the time, rendering two,
/// writing seven.
fn turn(begin: Duration, tenth: Duration) -> (TurnTimes, Duration) {
    let mut turn = TurnTimes::begin(begin);
    turn.add_cause(TurnCause::Event("links"));
    turn.add_cause(TurnCause::Datastore);
    turn.updates(3);
    let end = begin + 10 * tenth;
    turn.done(Part::Updates, begin + tenth);
    turn.done(Part::Flush, begin + tenth);
    turn.enforced(end, 7 * tenth);
    (turn, end)
}

#[test]
fn parts_add_up_to_the_turn() {
    let mut turn = TurnTimes::begin(ms(100));
    assert_eq!(turn.done(Part::Events, ms(101)), ms(1));
    assert_eq!(turn.done(Part::Updates, ms(111)), ms(10));
    turn.done(Part::Events, ms(113));
    turn.done(Part::Flush, ms(153));
    turn.enforced(ms(200), ms(40));
    assert_eq!(Part::ALL.map(|part| turn.took(part)), [ms(3), ms(10), ms(40), ms(7), ms(40)]);
}

#[test]
fn a_clock_that_stands_still_and_a_write_that_seems_longer_than_the_turn_do_no_harm() {
    let mut turn = TurnTimes::begin(ms(5));
    turn.done(Part::Events, ms(4));
    turn.enforced(ms(6), ms(9));
    assert_eq!(Part::ALL.map(|part| turn.took(part)), [ms(0), ms(0), ms(0), ms(0), ms(2)]);
}

#[test]
fn a_long_turn_is_logged_with_its_parts_in_one_line() {
    let (lines, _guard) = tortie_telemetry::logging::capture();
    let mut metrics = Metrics::default();
    let (turn, end) = turn(ms(0), ms(200));
    LongTurns::default().finished(turn, end, LONG_TURN, &mut metrics.main_loop).unwrap().log();
    let logged = lines.containing("took long");
    let [line] = &logged[..] else { panic!("{logged:#?}") };
    let parts = "events_ms=0 updates_ms=200 flush_ms=0 render_ms=400 write_ms=1400 updates=3 unlogged=0";
    assert!(line.contains("WARN") && line.contains("datastore") && line.contains("took_ms=2000"), "{line}");
    assert!(line.contains(parts), "{line}");
}

#[test]
fn only_turns_above_the_bound_are_logged_and_no_more_than_one_a_minute() {
    let mut metrics = Metrics::default();
    let mut turns = LongTurns::default();
    let mut logged = Vec::new();
    let mut now = Duration::ZERO;
    // Five minutes of turns that take a second and a half, and of others that take exactly the
    // bound.
    for number in 0..240 {
        let tenth = if number % 2 == 0 { ms(150) } else { ms(100) };
        let (turn, end) = turn(now, tenth);
        let long = turns.finished(turn, end, LONG_TURN, &mut metrics.main_loop);
        assert!(long.is_none() || number % 2 == 0);
        logged.extend(long.map(|long| long.unlogged));
        now = end;
    }
    assert_eq!(logged, [0, 23, 23, 23, 23]);
    let mut all = Metrics::default();
    let (turn, end) = turn(now, ms(900));
    assert!(turns.finished(turn, end, LONG_FIRST_TURN, &mut all.main_loop).is_none());
}

#[test]
fn all_turns_are_in_the_histograms() {
    let mut metrics = Metrics::default();
    let mut turns = LongTurns::default();
    for tenth in [ms(1), ms(10), ms(1000)] {
        let (turn, end) = turn(ms(0), tenth);
        turns.finished(turn, end, LONG_TURN, &mut metrics.main_loop);
    }
    turns.finished(TurnTimes::begin(ms(7)), ms(7), LONG_TURN, &mut metrics.main_loop);
    let text = metrics.expose();
    for line in [
        "# TYPE tortie_turn_seconds histogram",
        "tortie_turn_seconds_bucket{turn=\"datastore\",le=\"0.1\"} 2",
        "tortie_turn_seconds_bucket{turn=\"datastore\",le=\"+Inf\"} 3",
        "tortie_turn_seconds_count{turn=\"datastore\"} 3",
        "tortie_turn_seconds_count{turn=\"timer\"} 1",
        "tortie_turn_part_seconds_bucket{part=\"write\",le=\"0.01\"} 2",
        "tortie_turn_part_seconds_sum{part=\"events\"} 0",
        "tortie_turn_part_seconds_count{part=\"write\"} 4",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    assert_eq!(text.matches("# TYPE tortie_turn_part_seconds histogram").count(), 1);
}
