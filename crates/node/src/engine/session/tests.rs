mod held_changes;
mod hold;

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{SyncSender, TryRecvError, channel as channel_of_unit, sync_channel};
use std::thread;
use std::time::Duration;

use tortie_config::Raw;
use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Clock as _, LinkEvent};
use tortie_datastore::{DirState, Feed, FileContent, channel};
use tortie_iptables::Backend;
use tortie_linux::monitor::MonitorEvent;
use tortie_model::desired::ConfigSource;
use tortie_resources::manifest::Options;

use super::*;
use crate::engine::{Companions, EventSender, InKernel, event_queue};

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
";
const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1}
";
const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
";

struct Bench {
    directory: DirState,
    feed: Feed,
    sender: SyncSender<Input>,
    events: EventSender<MonitorEvent>,
    stop: Stop,
    inputs: Option<Inputs>,
    health: Health,
    metrics: SharedMetrics,
    session: Option<Session<InKernel<FakeKernel>>>,
}

impl Bench {
    fn new(parameters: &[(&str, &str)], unreadable: Unreadable) -> Self {
        Self::with_companions(parameters, unreadable, Companions::default())
    }

    fn with_companions(parameters: &[(&str, &str)], unreadable: Unreadable, companions: Companions) -> Self {
        let mut sources = Sources::default();
        let raw: Raw = parameters.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        sources.set(ConfigSource::Environment, raw);
        let resolved = sources.resolve().unwrap();
        let hostname = Hostname::new("n1");
        let health = Health::default();
        health.expect(Reporter::CalculationGraph, Duration::ZERO);
        health.expect(Reporter::Dataplane, Duration::ZERO);
        let metrics = SharedMetrics::default();
        let (sender, others) = sync_channel(100);
        let (event_sender, events) = event_queue(100, sender.clone());
        let enforcement = InKernel::new(
            settings::dataplane(&resolved.config, hostname.clone(), Backend::Nft).unwrap(),
            FakeKernel::new(Backend::Nft, []),
            health.clone(),
            metrics.clone(),
        );
        let setup = Setup {
            number: 1,
            enforcement: enforcement.with_companions(companions),
            events,
            observers: Vec::new(),
            hostname,
            sources,
            resolved,
            unreadable,
            node_is_known: false,
            host_changes: None,
            health: health.clone(),
            metrics: metrics.clone(),
        };
        let (feed, watching) = channel();
        let wake = sender.clone();
        watching.events.wake_with(move || {
            let _ = wake.try_send(Input::Datastore);
        });
        feed.begin_resync().unwrap();
        let stop = Stop::new().unwrap();
        let inputs = Inputs { others, datastore: watching.events, stop: stop.clone(), reload: Arc::default() };
        let session = Some(Session::new(setup));
        let directory = DirState::new(Options::default());
        Self { directory, feed, sender, events: event_sender, stop, inputs: Some(inputs), health, metrics, session }
    }

    fn file(&mut self, path: &str, text: &str) {
        let updates = self.directory.set_file(path.as_ref(), Some(FileContent::Text(text)));
        self.feed.problems(self.directory.problems().collect()).unwrap();
        self.feed.send(updates, Instant::now()).unwrap();
    }

    fn send(&self, input: Input) {
        self.sender.send(input).unwrap();
    }

    fn links(&self, event: MonitorEvent) {
        assert!(self.events.send(event));
    }

    fn in_sync(&self) {
        self.feed.end_resync().unwrap();
        self.links(MonitorEvent::InSync);
    }

    /// Runs the session on a thread until `done`, then stops it.
    fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> (Result<SessionEnd, SessionError>, FakeKernel) {
        let (mut session, inputs) = (self.session.take().unwrap(), self.inputs.take().unwrap());
        let running = thread::spawn(move || {
            let end = session.run(&inputs);
            (end, session.enforcement.into_kernel())
        });
        let patience = Instant::now() + Duration::from_secs(20);
        while !running.is_finished() && !done(self) {
            assert!(Instant::now() < patience, "{}", self.health.answer("/readiness").body);
            thread::sleep(Duration::from_millis(5));
        }
        self.stop.set();
        let _ = self.sender.try_send(Input::Wake);
        running.join().unwrap()
    }

    fn is_ready(&self) -> bool {
        self.health.answer("/readiness").status == 200
    }

    /// Takes turns here, each a while later by the kernel's clock, until all that is known has had
    /// its effect.
    fn run_to_idle(&mut self) {
        assert!(self.run_until_idle().is_none());
    }

    /// As [`Bench::settle`], but the session may end.
    fn run_until_idle(&mut self) -> Option<SessionEnd> {
        let (Some(session), Some(inputs)) = (&mut self.session, &self.inputs) else { panic!("running elsewhere") };
        for _ in 0..20 {
            match session.turn(inputs, Duration::ZERO).unwrap() {
                Turn::Next(_) => session.enforcement.kernel_mut().sleep(Duration::from_millis(500)),
                Turn::Over(end) => return Some(end),
            }
        }
        None
    }

    fn kernel(&mut self) -> &mut FakeKernel {
        self.session.as_mut().unwrap().enforcement.kernel_mut()
    }

    fn without_file(&mut self, path: &str) {
        let updates = self.directory.set_file(path.as_ref(), None);
        self.feed.problems(self.directory.problems().collect()).unwrap();
        self.feed.send(updates, Instant::now()).unwrap();
    }
}

#[test]
fn nothing_is_written_before_both_sides_are_in_sync_and_then_everything() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("a.yaml", CLUSTER);
    bench.file("b.yaml", POLICY);
    bench.in_sync();
    // The session reports ready a moment before the end of that turn.
    let is_counted = |bench: &Bench| bench.is_ready() && bench.metrics.lock().main_loop.event_to_kernel.count() > 0;
    let (end, kernel) = bench.run_until(is_counted);
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert!(kernel.state().contains("cali-tw-"), "{}", kernel.state());
    let metrics = bench.metrics.lock();
    assert_eq!((metrics.datastore.resync_state, metrics.calculation.active_local.endpoints), (3, 1));
    assert!(metrics.dataplane.initial_resync.is_some());
    drop(metrics);

    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("a.yaml", CLUSTER);
    bench.feed.end_resync().unwrap();
    let (_, kernel) = bench.run_until(|bench| bench.metrics.lock().datastore.resync_state == 3);
    assert!(!kernel.state().contains("cali-"), "{}", kernel.state());
    assert!(!bench.is_ready());
}

#[test]
fn a_long_turn_is_logged_once_with_its_longest_parts() {
    let (lines, _guard) = tortie_telemetry::logging::capture();
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("a.yaml", CLUSTER);
    bench.in_sync();
    assert!(bench.run_until_idle().is_none());
    for port in [80, 81] {
        // Until the last of the attempts that are made before a failure is reported, with pauses of
        // a second in total.
        bench.kernel().netfilter.tables_v4.fail_restores(10);
        bench.file(
            "b.yaml",
            &POLICY.replace("Ingress]", &format!("Ingress], ingress: [{{ports: [{{port: {port}}}]}}]")),
        );
        assert!(bench.run_until_idle().is_none());
    }
    let logged = lines.containing("a turn of the main loop took long");
    let [line] = &logged[..] else { panic!("{logged:#?}") };
    let field = |name: &str| -> u64 { line.split(name).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap() };
    assert!(line.contains("WARN") && line.contains("turn=\"datastore\""), "{line}");
    assert!(field("took_ms=") > 1000 && field("write_ms=") == field("took_ms="), "{line}");
    assert!(line.contains("events_ms=0 updates_ms=0 flush_ms=0 render_ms=0") && line.contains("updates=1"), "{line}");
    let metrics = bench.metrics.lock();
    let turns: u64 = metrics.main_loop.turns.values().map(tortie_telemetry::exposition::Histogram::count).sum();
    assert_eq!(turns, 60);
    assert_eq!(metrics.main_loop.turn_parts["write"].count(), turns);
}

#[test]
fn unusable_input_stops_the_start_if_that_is_wanted() {
    let broken = POLICY.replace("podSelector: {}", "podSelector: {matchLabels: 7}");
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("b.yaml", &broken);
    let (end, kernel) = bench.run_until(|_| false);
    let Err(SessionError::UnusableInput(problems)) = end else { panic!("{end:?}") };
    assert!(problems[0].to_string().starts_with("b.yaml:5:"), "{problems:?}");
    assert!(!kernel.state().contains("cali-"));

    let mut bench = Bench::new(&[], Unreadable::Skip);
    bench.file("a.yaml", CLUSTER);
    bench.file("b.yaml", &broken);
    bench.in_sync();
    let (end, _) = bench.run_until(Bench::is_ready);
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert!(bench.health.answer("/readiness").body.contains("b.yaml:5:"), "{}", bench.health.answer("/readiness").body);
    assert_eq!(bench.metrics.lock().datastore.input_problems, 1);
}

#[test]
fn an_invalid_policy_without_a_valid_version_denies_and_blocks_readiness() {
    let broken = POLICY.replace("podSelector: {}", "podSelector: {matchLabels: 7}");
    let mut bench = Bench::new(&[], Unreadable::Deny);
    bench.directory = DirState::new(Options::default()).close_unknown();
    bench.file("a.yaml", CLUSTER);
    bench.file("b.yaml", &broken);
    bench.in_sync();
    let directory = RefCell::new(std::mem::replace(&mut bench.directory, DirState::new(Options::default())));
    let resolved = Cell::new(false);
    let (end, kernel) = bench.run_until(|bench| {
        let answer = bench.health.answer("/readiness");
        if !resolved.get() && bench.metrics.lock().main_loop.event_to_kernel.count() > 0 {
            assert_eq!(answer.status, 503);
            assert!(answer.body.contains("b.yaml:5:"), "{}", answer.body);
            let mut directory = directory.borrow_mut();
            let updates = directory.set_file("b.yaml".as_ref(), Some(FileContent::Text(POLICY)));
            assert!(updates.iter().any(|update| !update.exists()), "the fail-closed object is removed");
            bench.feed.problems(directory.problems().collect()).unwrap();
            bench.feed.send(updates, Instant::now()).unwrap();
            resolved.set(true);
        }
        resolved.get() && bench.is_ready()
    });
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert!(kernel.state().contains("cali-tw-"), "{}", kernel.state());
}

#[test]
fn calculation_problems_are_reported_until_they_are_resolved() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("node.yaml", NODE);
    let spoofing = "metadata: {annotations: {cni.projectcalico.org/allowedSourcePrefixes: '[\"192.0.2.0/24\"]'}, ";
    bench.file("a.yaml", &CLUSTER.replace("metadata: {name: web", &format!("{spoofing}name: web")));
    bench.in_sync();
    let is_reported =
        |bench: &Bench| bench.health.answer("/readiness").body.contains("which WorkloadSourceSpoofing forbids");
    let resolved = Cell::new(false);
    let directory = RefCell::new(std::mem::replace(&mut bench.directory, DirState::new(Options::default())));
    let (end, _) = bench.run_until(|bench| {
        if !resolved.get() && bench.is_ready() && is_reported(bench) {
            assert_eq!(bench.metrics.lock().datastore.input_problems, 1);
            let updates = directory.borrow_mut().set_file("a.yaml".as_ref(), Some(FileContent::Text(CLUSTER)));
            bench.feed.send(updates, Instant::now()).unwrap();
            resolved.set(true);
        }
        resolved.get() && !is_reported(bench) && bench.metrics.lock().datastore.input_problems == 0
    });
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
}

#[test]
fn a_calculation_that_hangs_is_not_alive_and_the_dataplane_is() {
    let mut bench = Bench::new(&[("DebugSimulateCalcGraphHangAfter", "0.001")], Unreadable::Exit);
    bench.health.expect(Reporter::CalculationGraph, Duration::from_millis(100));
    bench.health.expect(Reporter::Dataplane, Duration::from_millis(100));
    bench.file("cluster.yaml", CLUSTER);
    bench.in_sync();
    let alive =
        |health: &Health| health.conditions().into_iter().map(|(_, condition)| condition.live).collect::<Vec<_>>();
    bench.session.as_mut().unwrap().enforcement.kernel_mut().sleep(Duration::from_secs(1));
    // Stopping ends it all the same.
    let (end, kernel) = bench.run_until(|bench| alive(&bench.health) == [false, true]);
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert!(!kernel.state().contains("cali-"), "it hung before anything was calculated");
}

#[test]
fn a_program_that_is_to_end_with_an_error_does() {
    let mut bench = Bench::new(&[("DebugPanicAfter", "60")], Unreadable::Exit);
    bench.file("cluster.yaml", CLUSTER);
    bench.in_sync();
    let (Some(session), Some(inputs)) = (&mut bench.session, &bench.inputs) else { panic!("running elsewhere") };
    for _ in 0..10 {
        let Turn::Next(next) = session.turn(inputs, Duration::ZERO).unwrap() else { panic!("it ends too early") };
        assert!(next <= Duration::from_secs(60));
    }
    session.enforcement.kernel_mut().sleep(Duration::from_secs(60));
    assert!(matches!(session.turn(inputs, Duration::ZERO), Err(SessionError::Simulated)));
}

#[test]
fn a_session_releases_the_kernel_once_it_has_enforced() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    let (waiting, gone) = channel_of_unit();
    bench.send(Input::Release(waiting));
    bench.file("cluster.yaml", CLUSTER);
    bench.run_to_idle();
    assert_eq!(gone.try_recv(), Err(TryRecvError::Disconnected), "nothing is enforced yet");

    bench.in_sync();
    bench.run_to_idle();
    assert!(bench.is_ready());
    let (waiting, gone) = channel_of_unit();
    bench.send(Input::Release(waiting));
    let Some(SessionEnd::Release(waiting)) = bench.run_until_idle() else { panic!("the session goes on") };
    assert_eq!(gone.try_recv(), Err(TryRecvError::Empty), "not before the session is gone");
    drop(waiting);
    assert_eq!(gone.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn a_parameter_of_the_datastore_ends_the_session_before_anything_is_written() {
    let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                 {defaultEndpointToHostAction: Accept}\n";
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("node.yaml", NODE);
    bench.file("felix.yaml", felix);
    bench.in_sync();
    let (end, kernel) = bench.run_until(|_| false);
    let Ok(SessionEnd::Reconfigured(update)) = end else { panic!("{end:?}") };
    assert_eq!(&*update.global["DefaultEndpointToHostAction"], "Accept");
    assert!(!kernel.state().contains("cali-"));

    // The environment has the last word, so there is nothing to reconfigure.
    let mut bench = Bench::new(&[("DefaultEndpointToHostAction", "DROP")], Unreadable::Exit);
    bench.file("node.yaml", NODE);
    bench.file("felix.yaml", felix);
    bench.in_sync();
    let (end, _) = bench.run_until(Bench::is_ready);
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
}

#[test]
fn an_invalid_vital_parameter_keeps_the_enforced_state() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("a.yaml", CLUSTER);
    bench.in_sync();
    let updates = bench.directory.set_file("felix.yaml".as_ref(), Some(FileContent::Text(WITHOUT_PREFIX)));
    assert!(!updates.is_empty());
    let sent = Cell::new(false);
    let (end, _) = bench.run_until(|bench| {
        if bench.is_ready() && !sent.replace(true) {
            bench.feed.send(updates.clone(), Instant::now()).unwrap();
        }
        bench.is_ready() && names_the_prefix(bench)
    });
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
}

const WITHOUT_PREFIX: &str = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                              {interfacePrefix: 'not an interface'}\n";

fn names_the_prefix(bench: &Bench) -> bool {
    let place = "InterfacePrefix (spec.interfacePrefix of FelixConfiguration/default): `not an interface` is not an";
    let body = bench.health.answer("/readiness").body;
    body.contains(place) && body.contains("the default is used: cali")
}

#[test]
fn a_session_starts_with_the_default_in_place_of_an_invalid_vital_parameter() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.file("a.yaml", CLUSTER);
    bench.file("felix.yaml", WITHOUT_PREFIX);
    bench.in_sync();
    let (end, kernel) = bench.run_until(|bench| bench.is_ready() && names_the_prefix(bench));
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert!(kernel.state().contains("cali-"));
}

#[test]
fn updates_of_another_session_do_not_make_this_one_ready() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    let (feed, watching) = channel();
    let wake = bench.sender.clone();
    watching.events.wake_with(move || {
        let _ = wake.try_send(Input::Datastore);
    });
    let Some(inputs) = &mut bench.inputs else { panic!() };
    inputs.datastore = watching.events;
    feed.end_resync().unwrap();
    bench.links(MonitorEvent::InSync);
    let away = "the datastore cannot be read: away";
    let node = bench.directory.set_file("node.yaml".as_ref(), Some(FileContent::Text(NODE)));
    assert!(!node.is_empty());
    let step = Cell::new(0);
    let (end, _) = bench.run_until(|bench| {
        let answer = bench.health.answer("/readiness");
        match step.get() {
            0 => feed.unavailable("away").unwrap(),
            1 if answer.body.contains(away) => {
                assert_ne!(answer.status, 200);
                feed.begin_resync().unwrap();
                feed.send(node.clone(), Instant::now()).unwrap();
                feed.end_resync().unwrap();
                feed.available().unwrap();
            }
            2 if answer.status == 200 => {
                assert!(!answer.body.contains(away), "{}", answer.body);
                feed.unavailable("away").unwrap();
            }
            // It stays ready: the policy in force stays in force.
            3 if answer.status == 200 && answer.body.contains(away) => feed.available().unwrap(),
            4 => return answer.status == 200 && !answer.body.contains(away),
            _ => return false,
        }
        step.set(step.get() + 1);
        false
    });
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert_eq!(step.get(), 4);
}

#[test]
fn a_source_that_ends_ends_the_session() {
    let mut bench = Bench::new(&[], Unreadable::Exit);
    bench.feed = channel().0;
    let (end, _) = bench.run_until(|_| false);
    assert!(matches!(end, Err(SessionError::InputEnded)), "{end:?}");
}

#[test]
fn a_stop_is_handled_with_a_full_queue() {
    let mut bench = Bench::new(&[], Unreadable::default());
    while bench.sender.try_send(Input::Datastore).is_ok() {}
    bench.stop.set();
    assert!(bench.sender.try_send(Input::Wake).is_err(), "the queue has no room for it");
    let begin = Instant::now();
    let end = bench.session.take().unwrap().run(&bench.inputs.take().unwrap());
    assert!(matches!(end, Ok(SessionEnd::Stopped)), "{end:?}");
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}
