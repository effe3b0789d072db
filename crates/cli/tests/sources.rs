//! Sources of datastores beat while their servers are away, so that liveness knows their threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test with threads")]

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_datastore::{DirSource, Source, channel, watch};
use tortie_resources::manifest::Options;
use tortie_telemetry::health::{Health, Reporter};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a source of each kind of datastore. All servers are unreachable.
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
