use super::*;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns a packet every 4 ms up to `end`; those sent while `open` returns true arrive half a
/// millisecond later.
fn traffic(end: u64, open: impl Fn(u64) -> bool) -> Vec<Probe> {
    let probe = |at| Probe { sent: ms(at), arrived: open(at).then(|| ms(at) + Duration::from_micros(500)) };
    (0..end).step_by(4).map(probe).collect()
}

fn always(expect: Expect) -> Timeline {
    let mut timeline = Timeline::default();
    timeline.change(ms(0), expect);
    timeline
}

#[test]
fn an_opening_of_5_ms_is_found_wherever_it_begins() {
    for begin in 500..520 {
        let probes = traffic(1000, |at| (begin..begin + 5).contains(&at));
        let found = intervals(&probes, &always(Expect::Denied));
        assert_eq!(found.len(), 1, "an opening from {begin} ms on: {found:?}");
        let [opening] = found[..] else { unreachable!() };
        assert!(opening.violation == Violation::Allowed && !opening.announced);
        assert!(opening.last - opening.first <= ms(5) && opening.between.1 - opening.between.0 >= ms(5));
    }
}

#[test]
fn correct_outcomes_are_no_violations() {
    assert_eq!(intervals(&traffic(1000, |_| false), &always(Expect::Denied)), []);
    assert_eq!(intervals(&traffic(1000, |_| true), &always(Expect::Allowed)), []);
    assert_eq!(intervals(&traffic(1000, |at| at % 3 == 0), &always(Expect::Either)), []);
    assert_eq!(intervals(&traffic(1000, |at| at % 3 == 0), &Timeline::default()), []);
}

#[test]
fn a_cut_is_found_and_measured() {
    let found = intervals(&traffic(1000, |at| !(300..400).contains(&at)), &always(Expect::Allowed));
    assert_eq!(
        found,
        [Interval {
            violation: Violation::Denied,
            announced: false,
            probes: 25,
            first: ms(300),
            last: ms(396),
            between: (ms(296), ms(400)),
        }]
    );
}

#[test]
fn between_an_edit_and_its_confirmation_both_outcomes_are_correct() {
    let mut timeline = always(Expect::Allowed);
    timeline.change(ms(400), Expect::Either);
    timeline.change(ms(600), Expect::Denied);
    assert_eq!(intervals(&traffic(1000, |at| at < 500), &timeline), []);
    let early = intervals(&traffic(1000, |at| at < 300), &timeline);
    assert_eq!((early.len(), early[0].violation, early[0].first), (1, Violation::Denied, ms(300)));
    let late = intervals(&traffic(1000, |at| at < 700), &timeline);
    assert_eq!((late.len(), late[0].violation, late[0].first), (1, Violation::Allowed, ms(600)));
}

#[test]
fn a_packet_under_way_during_a_change_is_ignored() {
    let mut timeline = always(Expect::Denied);
    timeline.change(ms(100), Expect::Either);
    timeline.change(ms(200), Expect::Denied);
    let late = Probe { sent: ms(99), arrived: Some(ms(150)) };
    let before = Probe { sent: ms(99), arrived: Some(Duration::from_micros(99_500)) };
    assert_eq!(intervals(&[late], &timeline), []);
    assert_eq!(intervals(&[before], &timeline).len(), 1);
    let mut timeline = always(Expect::Allowed);
    timeline.change(ms(100), Expect::Either);
    assert_eq!(intervals(&[Probe { sent: ms(99), arrived: None }], &timeline), []);
    assert_eq!(intervals(&[Probe { sent: ms(20), arrived: None }], &timeline).len(), 1);
}

#[test]
fn announced_effects_are_counted_apart_and_only_in_their_time() {
    let mut timeline = always(Expect::Denied);
    timeline.announce_effect(Violation::Allowed, ms(100), ms(200));
    let found = intervals(&traffic(400, |at| (120..220).contains(&at)), &timeline);
    let intervals_found: Vec<_> =
        found.iter().map(|interval| (interval.announced, interval.first, interval.last)).collect();
    assert_eq!(intervals_found, [(true, ms(120), ms(200)), (false, ms(204), ms(216))]);
    let mut timeline = always(Expect::Denied);
    timeline.announce_effect(Violation::Denied, ms(0), ms(400));
    assert!(intervals(&traffic(400, |_| true), &timeline).iter().all(|interval| !interval.announced));
}

#[test]
fn a_packet_under_way_when_an_effect_begins_is_covered_by_it() {
    let mut timeline = always(Expect::Denied);
    timeline.announce_effect(Violation::Allowed, ms(100), ms(200));
    let announced = |probe| intervals(&[probe], &timeline).iter().map(|found| found.announced).collect::<Vec<_>>();
    let arrived = |sent, arrived| Probe { sent: ms(sent), arrived: Some(ms(arrived)) };
    assert_eq!(announced(arrived(99, 101)), [true]);
    assert_eq!(announced(arrived(98, 99)), [false], "it had come through before");
    assert_eq!(announced(arrived(201, 202)), [false], "it was sent when all was over");
}

#[test]
fn an_interval_ends_at_a_correct_outcome() {
    let found =
        intervals(&traffic(400, |at| (100..120).contains(&at) || (124..140).contains(&at)), &always(Expect::Denied));
    let intervals_found: Vec<_> = found.iter().map(|interval| (interval.probes, interval.between)).collect();
    assert_eq!(intervals_found, [(5, (ms(96), ms(120))), (4, (ms(120), ms(140)))]);
}

#[test]
fn a_channel_is_settled_when_its_newest_certain_outcomes_match() {
    let probes = traffic(400, |at| at < 200);
    let settled_at = |expect, since, now| settled(&probes, expect, 10, ms(since), ms(now));
    assert!(settled_at(Expect::Allowed, 0, 200) && !settled_at(Expect::Denied, 0, 200));
    assert!(settled_at(Expect::Denied, 200, 400) && !settled_at(Expect::Allowed, 200, 400));
    assert!(!settled_at(Expect::Denied, 0, 280), "outcomes of before are among the newest ten");
    assert!(!settled_at(Expect::Denied, 340, 400), "too few are certain");
    assert!(!settled(&[], Expect::Either, 1, ms(0), ms(400)), "silence proves nothing");
}

#[test]
fn overlapping_intervals_are_summed_once() {
    assert_eq!(union([(ms(10), ms(20)), (ms(15), ms(30)), (ms(40), ms(50)), (ms(41), ms(42))]), ms(30));
    assert_eq!(union([]), ms(0));
}
