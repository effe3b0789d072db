use super::*;

#[test]
fn ready_only_when_every_reporter_is() {
    let health = Health::default();
    health.expect(Reporter::CalculationGraph, Duration::ZERO);
    health.expect(Reporter::Dataplane, Duration::ZERO);
    assert_eq!(health.answer("/liveness").status, 200);
    assert_eq!(health.answer("/readiness").status, 503);
    health.report(Reporter::CalculationGraph, Condition::good());
    health.report(Reporter::Dataplane, Condition::waiting("first apply has not happened"));
    let answer = health.answer("/readiness");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("first apply has not happened"), "{}", answer.body);
    health.report(Reporter::Dataplane, Condition::good());
    assert_eq!(health.answer("/readiness").status, 200);
    assert_eq!(health.answer("/metrics").status, 404);
}

#[test]
fn silence_is_neither_live_nor_ready() {
    let health = Health::default();
    health.expect(Reporter::Dataplane, Duration::from_millis(20));
    health.report(Reporter::Dataplane, Condition::good());
    assert_eq!(health.answer("/readiness").status, 200);
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(health.answer("/liveness").status, 503);
    health.still_alive(Reporter::Dataplane);
    assert_eq!(health.answer("/liveness").status, 200);
}

#[test]
fn another_timeout_changes_nothing_but_the_timeout() {
    let health = Health::default();
    health.expect(Reporter::Dataplane, Duration::ZERO);
    health.report(Reporter::Dataplane, Condition::good());
    health.expect(Reporter::Dataplane, Duration::from_secs(7));
    let answer = health.answer("/readiness");
    assert!(answer.status == 200 && answer.body.contains("7s"), "{}", answer.body);
}

#[test]
fn a_part_that_waits_for_another_does_not_grow_old_but_the_other_does() {
    let health = Health::default();
    let moment = Duration::from_millis(20);
    health.expect(Reporter::CalculationGraph, moment);
    health.expect(Reporter::Dataplane, moment * 5);
    health.report(Reporter::CalculationGraph, Condition::good());
    health.report(Reporter::Dataplane, Condition::good());
    health.pause(Reporter::CalculationGraph);
    std::thread::sleep(moment * 2);
    assert_eq!(health.answer("/liveness").status, 200);
    std::thread::sleep(moment * 4);
    assert_eq!(health.answer("/liveness").status, 503, "the required reporter has not reported");
    health.still_alive(Reporter::Dataplane);
    assert_eq!(health.answer("/liveness").status, 200);
    health.still_alive(Reporter::CalculationGraph);
    std::thread::sleep(moment * 2);
    assert_eq!(health.answer("/liveness").status, 503, "it does not wait any more");
}

#[test]
fn a_thread_without_a_sign_of_life_fails_unless_it_rests() {
    for reporter in [
        Reporter::Datastore,
        Reporter::Interfaces,
        Reporter::Ruleset,
        Reporter::Connections,
        Reporter::DnsReader,
        Reporter::DriverWriter,
        Reporter::PolicySync,
    ] {
        let health = Health::default();
        let status = || (health.answer("/liveness").status, health.answer("/readiness").status);
        let moment = Duration::from_millis(20);
        let pulse = health.pulse(reporter, moment);
        pulse.rest();
        std::thread::sleep(moment * 2);
        assert_eq!(status(), (200, 200), "{reporter:?} rests");
        pulse.beat();
        std::thread::sleep(moment * 2);
        assert_eq!(status(), (503, 503), "{reporter:?} is stuck");
        pulse.beat();
        drop(pulse);
        std::thread::sleep(moment * 2);
        assert_eq!(status(), (503, 503), "the thread of {reporter:?} has panicked");
    }
}

#[test]
fn overrides_hold_for_reporters_that_come_later_and_until_they_are_replaced() {
    let health = Health::default();
    let (moment, long) = (Duration::from_millis(20), Duration::from_secs(3600));
    let silence = |overrides: &[(&str, Duration)]| {
        health.override_timeouts(overrides.iter().map(|(name, timeout)| ((*name).to_owned(), *timeout)).collect());
        std::thread::sleep(moment * 2);
        health.answer("/liveness").status
    };
    assert_eq!(silence(&[("Datastore", moment), ("FelixStartup", moment)]), 200);
    health.expect(Reporter::Startup, Duration::ZERO);
    let _pulse = health.pulse(Reporter::Datastore, long);
    assert_eq!(silence(&[("Datastore", moment), ("FelixStartup", moment)]), 503);
    assert_eq!(silence(&[("FelixStartup", moment)]), 200, "a reporter that reports once does not grow old");
    assert_eq!(silence(&[("Datastore", Duration::ZERO)]), 200);
}

#[test]
fn a_report_of_this_program_is_not_taken_for_one_of_felix() {
    let health = Health::default();
    for reporter in [Reporter::Startup, Reporter::CalculationGraph, Reporter::Dataplane] {
        health.expect(reporter, Duration::ZERO);
    }
    let server = crate::http::serve("127.0.0.1:0", "health", move |path| health.answer(path)).unwrap();
    assert_eq!(tortie_linux::leftovers::felix_at_work("localhost", server.address().port()), None);
}
