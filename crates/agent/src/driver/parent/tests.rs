use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, sync_channel};

use tempfile::TempDir;
use tortie_datastore::channel;
use tortie_model::desired::{ConfigSource, IpSetType, IpSetUpdate, Members};
use tortie_model::{Cidr, IpSetId, Key, Update, Value};
use tortie_protocol::frame::FrameReader;
use tortie_protocol::{Received, receive};

use super::*;
use crate::engine::{Inputs, Session, SessionError, Setup};
use crate::metrics::SharedMetrics;

const PATIENCE: Duration = Duration::from_secs(20);

struct Bench {
    folder: TempDir,
    sender: SyncSender<Input>,
    inputs: Receiver<Input>,
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
    let health = Health::default();
    health.expect(Reporter::Dataplane, Duration::ZERO);
    let driver = Driver::new(DriverSetup {
        program,
        node: Hostname::new("n1"),
        session: 1,
        events: sender.clone(),
        health: health.clone(),
    });
    Bench { folder, sender, inputs, health, driver }
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
            self.driver.enforce(true)?;
            if done(&self.driver) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inputs.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok(Input::Driver { event, .. }) => self.driver.on_driver(event)?,
                Ok(other) => panic!("{other:?}"),
                Err(_) => assert!(!left.is_zero(), "{:?}", self.driver),
            }
        }
    }

    fn written(&self) -> Vec<Received> {
        let bytes = fs::read(self.folder.path().join("out")).unwrap_or_default();
        let mut frames = FrameReader::new(bytes.as_slice());
        let mut messages = Vec::new();
        while let Ok(Some(bytes)) = frames.next_frame() {
            messages.push(receive(bytes).unwrap());
        }
        messages
    }

    fn is_ready(&self) -> bool {
        self.health.answer("/readiness").status == 200
    }
}

fn big_set(number: u32) -> DesiredUpdate {
    let members = (0..2000u32).map(|i| Cidr::host(std::net::Ipv4Addr::from(i).into())).collect();
    let id = IpSetId::new(format!("s:{number}"));
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members: Members::Nets(members) })
}

#[test]
fn a_driver_is_told_its_configuration_first_and_everything_else_in_order() {
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
    assert!(!bench.driver.enforce(true).unwrap().done);
    fs::write(bench.folder.path().join("out"), "").unwrap();
    assert!(!bench.driver.takes_more(true), "what is not taken stays in the calculation");
    bench.until(|driver| driver.takes_more(true)).unwrap();
    assert!(!bench.driver.takes_more(false), "nothing is sent while the datastore may not be used");
    assert!(!bench.is_ready());
}

#[test]
fn a_driver_that_ends_is_an_error_that_says_how() {
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
    // Whoever started this test may have left descriptors open for all programs.
    let inherited = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let inherited = listed(&String::from_utf8(inherited.stdout).unwrap());
    let new: Vec<_> = open.difference(&inherited).collect();
    // The two pipes, the copy that the script made of one, and the directory that is being listed.
    assert!(open.contains("3") && open.contains("4") && new.len() <= 4, "{new:?} besides {inherited:?}");
}

#[test]
fn a_driver_is_not_started_while_the_datastore_is_not_ready() {
    let bench = bench("touch OUT; exec cat <&3 >/dev/null");
    let Bench { folder, sender, inputs, health, driver } = bench;
    let sources = Sources::default();
    let setup = Setup {
        number: 1,
        hostname: Hostname::new("n1"),
        resolved: sources.resolve().unwrap(),
        sources,
        lenient: false,
        enforcement: driver,
        health,
        metrics: SharedMetrics::default(),
    };
    let (feed, watching) = channel();
    let wake = sender.clone();
    watching.events.wake_with(move || {
        let _ = wake.try_send(Input::Datastore);
    });
    let ready = |ready| feed.tell([Update::set(Key::Ready, Value::Ready(ready))], Instant::now()).unwrap();
    let inputs = Inputs { others: inputs, datastore: watching.events };
    let run = std::thread::spawn(move || Session::new(setup).run(&inputs));
    feed.begin_resync().unwrap();
    ready(false);
    feed.end_resync().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let started = || folder.path().join("out").exists();
    assert!(!started());
    ready(true);
    let deadline = Instant::now() + PATIENCE;
    while !started() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    sender.send(Input::Stop).unwrap();
    let end: Result<_, SessionError> = run.join().unwrap();
    assert!(end.is_ok(), "{end:?}");
}
