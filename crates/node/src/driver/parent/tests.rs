use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tempfile::TempDir;
use tortie_datastore::{Feed, channel};
use tortie_linux::stop::Stop;
use tortie_model::desired::{ConfigSource, IpSetType, IpSetUpdate, Members};
use tortie_model::{Cidr, EncapMode, IpPool, IpSetId, Update};
use tortie_protocol::frame::FrameReader;
use tortie_protocol::{Received, receive};

use super::*;
use crate::engine::{Input, Inputs, Session, SessionEnd, SessionError, Setup, Unreadable, event_queue};
use crate::metrics::SharedMetrics;

const PATIENCE: Duration = Duration::from_secs(20);

struct Bench {
    folder: TempDir,
    sender: SyncSender<Input>,
    inputs: Receiver<Input>,
    events: Receiver<DriverEvent>,
    health: Health,
    driver: Driver,
}

/// A driver that is a shell script; `OUT` in it stands for a file.
fn bench(script: &str) -> Bench {
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("driver");
    let out = folder.path().join("out").display().to_string();
    fs::write(&program, format!("#!/bin/sh\n{}\n", script.replace("OUT", &out))).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (sender, inputs) = sync_channel(64);
    let (event_sender, events) = event_queue(64, sender.clone());
    let health = Health::default();
    health.expect(Reporter::Dataplane, Duration::ZERO);
    let driver =
        Driver::new(DriverSetup { program, node: Hostname::new("n1"), events: event_sender, health: health.clone() });
    Bench { folder, sender, inputs, events, health, driver }
}

impl Bench {
    fn configure(&mut self) {
        let mut sources = Sources::default();
        sources.set(ConfigSource::Environment, [("logprefix".to_owned(), "p".to_owned())].into());
        self.driver.on_config(&sources, &sources.resolve().unwrap()).unwrap();
    }

    /// Enforces and takes events until `done`, or until there is an error.
    fn until(&mut self, done: impl Fn(&Driver) -> bool) -> Result<(), DriverError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.driver.enforce()?;
            if done(&self.driver) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok(event) => self.driver.on_event(event)?,
                Err(_) => assert!(!left.is_zero(), "{:?}", self.driver),
            }
        }
    }

    fn written(&self) -> Vec<Received> {
        written(&self.folder)
    }

    fn is_ready(&self) -> bool {
        self.health.answer("/readiness").status == 200
    }
}

/// The messages that the driver has received, if it writes them to `OUT`.
fn written(folder: &TempDir) -> Vec<Received> {
    let bytes = fs::read(folder.path().join("out")).unwrap_or_default();
    let mut frames = FrameReader::new(bytes.as_slice());
    let mut messages = Vec::new();
    while let Ok(Some(bytes)) = frames.next_frame() {
        messages.push(receive(bytes).unwrap());
    }
    messages
}

fn big_set(number: u32) -> DesiredUpdate {
    let members = (0..2000u32).map(|i| Cidr::host(std::net::Ipv4Addr::from(i).into())).collect();
    let id = IpSetId::new(format!("s:{number}"));
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members: Members::Nets(members) })
}

#[test]
fn a_driver_receives_its_configuration_first_and_updates_in_order() {
    let mut bench = bench(r"printf '\002\000\000\000\000\000\000\000R\000' >&4; cat <&3 >OUT");
    assert!(bench.driver.process.is_none(), "not started before the configuration is known");
    bench.configure();
    for number in 0..3 {
        bench.driver.on_update(big_set(number));
    }
    bench.driver.on_update(DesiredUpdate::InSync);
    bench.until(|driver| driver.in_sync_written.is_some() && driver.ready).unwrap();
    assert!(bench.is_ready() && bench.driver.has_enforced());
    let deadline = Instant::now() + PATIENCE;
    let mut written = bench.written();
    while written.len() < 5 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        written = bench.written();
    }
    assert_eq!(written.len(), 5, "{written:?}");
    let Received::Config(config) = &written[0] else { panic!("{written:?}") };
    assert_eq!((config.config["FelixHostname"].as_str(), config.config["LogPrefix"].as_str()), ("n1", "p"));
    for (number, message) in (0..).zip(&written[1..4]) {
        assert_eq!(*message, Received::Update(big_set(number)));
    }
}

#[test]
fn a_slow_driver_is_waited_for_without_blocking() {
    let mut bench = bench("until [ -e OUT ]; do sleep 0.05; done; exec cat <&3 >/dev/null");
    bench.configure();
    for number in 0..500 {
        bench.driver.on_update(big_set(number));
    }
    // It reads nothing before this returns.
    assert!(!bench.driver.enforce().unwrap().done);
    fs::write(bench.folder.path().join("out"), "").unwrap();
    assert!(!bench.driver.takes_more(), "pending updates stay in the calculation");
    bench.until(Driver::takes_more).unwrap();
    assert!(!bench.is_ready());
}

#[test]
fn a_driver_that_stops_reading_fails_liveness_and_an_idle_one_does_not() {
    let mut bench =
        bench("head -c 100000 <&3 >/dev/null; until [ -e OUT ]; do sleep 0.05; done; exec cat <&3 >/dev/null");
    let health = bench.health.clone();
    let is_live = |_: &Driver| health.answer("/liveness").status == 200;
    health.override_timeouts([("DriverWriter".to_owned(), Duration::from_millis(200))].into());
    bench.configure();
    let begin = Instant::now();
    bench
        .until(|driver| {
            assert!(is_live(driver), "nothing waits for the driver");
            begin.elapsed() > Duration::from_millis(600)
        })
        .unwrap();
    (0..20).for_each(|number| bench.driver.on_update(big_set(number)));
    bench.until(|driver| !is_live(driver)).unwrap();
    assert!(
        health
            .answer("/liveness")
            .body
            .lines()
            .any(|line| line.starts_with("DriverWriter") && line.contains("no report"))
    );
    fs::write(bench.folder.path().join("out"), "").unwrap();
    bench.until(is_live).unwrap();
}

#[test]
fn the_exit_of_a_driver_is_an_error_with_its_status() {
    for script in ["exit 3", "head -c 1000 <&3 >/dev/null; exit 3"] {
        let mut bench = bench(script);
        bench.configure();
        (0..100).for_each(|number| bench.driver.on_update(big_set(number)));
        let error = bench.until(|_| false).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }
}

#[test]
fn a_driver_that_closes_its_pipe_is_an_error() {
    let mut bench = bench("exec 4>&-; exec sleep 60");
    bench.configure();
    let error = bench.until(|_| false).unwrap_err().to_string();
    assert!(error.contains("it closed its end of the pipe"), "{error}");
}

#[test]
fn a_driver_that_talks_nonsense_is_an_error() {
    let mut bench = bench("echo 'hello, world of pipes' >&4; exec sleep 60");
    bench.configure();
    let error = bench.until(|_| false).unwrap_err().to_string();
    assert!(error.contains("at most 16777216 are taken"), "{error}");
}

#[test]
fn a_driver_that_cannot_be_started_is_an_error() {
    let mut bench = bench("exit 0");
    bench.driver.setup.program = "/does/not/exist".into();
    let sources = Sources::default();
    let error = bench.driver.on_config(&sources, &sources.resolve().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("the dataplane driver /does/not/exist cannot be started"), "{error}");
}

#[test]
fn a_driver_has_its_pipes_and_nothing_else_of_ours() {
    let mut bench = bench("exec 5<&3; ls /proc/self/fd >OUT; exec cat <&3 >/dev/null");
    bench.configure();
    let out = bench.folder.path().join("out");
    bench.until(|_| fs::read_to_string(&out).is_ok_and(|text| text.contains('5'))).unwrap();
    let listed = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let open = listed(&fs::read_to_string(&out).unwrap());
    // The parent of this test may have left descriptors open for all programs.
    let inherited = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let inherited = listed(&String::from_utf8(inherited.stdout).unwrap());
    let new: Vec<_> = open.difference(&inherited).collect();
    // The two pipes, the copy that the script made of one, and the directory that is being listed.
    assert!(open.contains("3") && open.contains("4") && new.len() <= 4, "{new:?} besides {inherited:?}");
}

/// A session whose enforcement is the driver of a bench.
struct Running {
    folder: TempDir,
    feed: Feed,
    health: Health,
    sender: SyncSender<Input>,
    stop: Stop,
    session: std::thread::JoinHandle<Result<SessionEnd, SessionError>>,
}

impl Running {
    fn new(bench: Bench) -> Self {
        let Bench { folder, sender, inputs, events, health, driver } = bench;
        health.expect(Reporter::CalculationGraph, Duration::ZERO);
        let sources = Sources::default();
        let setup = Setup {
            number: 1,
            hostname: Hostname::new("n1"),
            resolved: sources.resolve().unwrap(),
            sources,
            unreadable: Unreadable::Exit,
            node_is_known: true,
            host_changes: None,
            enforcement: driver,
            events,
            observers: Vec::new(),
            health: health.clone(),
            metrics: SharedMetrics::default(),
        };
        let (feed, watching) = channel();
        let wake = sender.clone();
        watching.events.wake_with(move || {
            let _ = wake.try_send(Input::Datastore);
        });
        let stop = Stop::new().unwrap();
        let inputs = Inputs { others: inputs, datastore: watching.events, stop: stop.clone(), reload: Arc::default() };
        let session = std::thread::spawn(move || Session::new(setup).run(&inputs));
        feed.begin_resync().unwrap();
        Self { folder, feed, health, sender, stop, session }
    }

    fn send(&self, update: Update) {
        self.feed.send([update], Instant::now()).unwrap();
    }

    fn ready(&self, ready: bool) {
        self.send(Update::Ready(Some(ready)));
    }

    fn pool(&self, cidr: &str) {
        let cidr: Cidr = cidr.parse().unwrap();
        let (ipip_mode, vxlan_mode) = (EncapMode::Never, EncapMode::Never);
        let pool = IpPool { cidr, ipip_mode, vxlan_mode, masquerade: false, disabled: false, allowed_uses: [].into() };
        self.send(Update::IpPool(cidr, Some(pool.into())));
    }

    fn written(&self) -> Vec<Received> {
        written(&self.folder)
    }

    fn has_pool(&self, cidr: &str) -> bool {
        let is_it = |message: &Received| matches!(message, Received::Update(DesiredUpdate::IpPool(pool)) if pool.cidr.to_string() == cidr);
        self.written().iter().any(is_it)
    }

    fn until(&self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline && !self.session.is_finished(), "{:?}", self.written());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn has_readiness(&self, code: u16, text: &str) -> bool {
        let answer = self.health.answer("/readiness");
        answer.status == code && answer.body.contains(text)
    }

    fn stop(self) {
        self.stop.set();
        self.sender.send(Input::Wake).unwrap();
        let end = self.session.join().unwrap();
        assert!(end.is_ok(), "{end:?}");
    }
}

#[test]
fn a_driver_is_not_started_while_the_datastore_is_not_ready() {
    let running = Running::new(bench("touch OUT; exec cat <&3 >/dev/null"));
    running.ready(false);
    running.feed.end_resync().unwrap();
    running.until(|running| running.has_readiness(503, "not ready (ClusterInformation default"));
    std::thread::sleep(Duration::from_millis(200));
    let started = |running: &Running| running.folder.path().join("out").exists();
    assert!(!started(&running));
    running.ready(true);
    running.until(started);
    running.stop();
}

#[test]
fn a_driver_receives_updates_once_the_datastore_is_ready() {
    let running = Running::new(bench(r"printf '\002\000\000\000\000\000\000\000R\000' >&4; cat <&3 >OUT"));
    running.pool("10.1.0.0/16");
    running.feed.end_resync().unwrap();
    running.until(|running| running.has_pool("10.1.0.0/16") && running.has_readiness(200, ""));
    running.ready(false);
    running.until(|running| running.has_readiness(503, "not ready (ClusterInformation default"));
    let before = running.written();
    running.pool("10.2.0.0/16");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(running.written(), before);
    running.ready(true);
    running.until(|running| running.has_pool("10.2.0.0/16") && running.has_readiness(200, ""));
    running.stop();
}
