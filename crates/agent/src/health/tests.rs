use std::path::Path;
use std::sync::mpsc::sync_channel;

use tempfile::TempDir;
use tortie_datastore::{DirSource, Source, channel, watch};
use tortie_resources::manifest::Options;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

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
    assert_eq!(health.answer("/liveness").status, 503, "nothing was heard of the one that is waited for");
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

/// A source of each kind. The servers of all but the first are away.
fn sources(folder: &Path) -> Vec<Box<dyn Source>> {
    vec![
        Box::new(DirSource::new(folder, Options::default())),
        #[cfg(feature = "etcd")]
        Box::new(tortie_datastore::etcd::EtcdSource::new("etcd://127.0.0.1:1".parse().unwrap(), Options::default())),
        #[cfg(feature = "kubernetes")]
        Box::new({
            use tortie_datastore::kubernetes::{KubeConfig, KubernetesSource};
            KubernetesSource::new(KubeConfig::file(folder.join("kubeconfig")), Options::default())
        }),
        #[cfg(feature = "fanout")]
        Box::new({
            use tortie_fanout::client::{ClientConfig, FanoutSource};
            FanoutSource::new(ClientConfig::new(vec!["127.0.0.1:1".into()], None)).unwrap()
        }),
        #[cfg(feature = "fanout")]
        Box::new({
            use tortie_fanout::typha::{TyphaOptions, TyphaSource};
            TyphaSource::new(TyphaOptions::new(vec!["127.0.0.1:1".into()], "n1")).unwrap()
        }),
    ]
}

#[test]
fn each_source_shows_life_also_while_its_server_is_away() {
    let folder = TempDir::new().unwrap();
    let started = sources(folder.path()).into_iter().map(|source| {
        let name = source.name();
        let watching = watch(source).unwrap();
        let (sign, signs) = sync_channel(1);
        watching.resend.on_life(move || {
            let _ = sign.try_send(());
        });
        (name, watching, signs)
    });
    for (name, _watching, signs) in started.collect::<Vec<_>>() {
        for _ in 0..3 {
            assert_eq!(signs.recv_timeout(PATIENCE), Ok(()), "{name}");
        }
    }
}

#[test]
fn a_source_that_is_stuck_fails_liveness_until_it_goes_on() {
    let folder = TempDir::new().unwrap();
    let started = sources(folder.path()).into_iter().map(|source| {
        let name = source.name();
        let (feed, watching) = channel();
        let health = Health::default();
        let pulse = health.pulse(Reporter::Datastore, Duration::from_secs(8));
        watching.resend.on_life(move || pulse.beat());
        // The source's thread calls this and waits in it, but for the first call.
        let (release, released) = sync_channel::<()>(0);
        let first = std::sync::atomic::AtomicBool::new(true);
        watching.events.wake_with(move || {
            if !first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                let _ = released.recv();
            }
        });
        std::thread::spawn(move || source.run(&feed));
        (name, health, watching, release)
    });
    let started: Vec<_> = started.collect();
    let until = |name: &str, health: &Health, status: u16| {
        let deadline = Instant::now() + PATIENCE;
        while health.answer("/liveness").status != status {
            assert!(Instant::now() < deadline, "{name}: {}", health.answer("/liveness").body);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for (name, health, _, _) in &started {
        until(name, health, 503);
    }
    for (name, health, watching, release) in started {
        drop(release);
        until(name, &health, 200);
        drop(watching);
    }
}
