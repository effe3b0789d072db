use std::io::{PipeReader, PipeWriter, pipe};
use std::sync::Arc;
use std::thread::JoinHandle;

use tortie_config::settings;
use tortie_dataplane::LinkEvent;
use tortie_dataplane::fake::FakeKernel;
use tortie_iptables::Backend;
use tortie_model::desired::{ConfigSource, RuleSets, RuleView, Rules, WorkloadEndpointState};
use tortie_model::{Family, Hostname, Rule, RuleAction, WorkloadEndpoint};
use tortie_protocol::{encode, encode_config};

use super::*;
use crate::driver::config::to_message;
use crate::metrics::SharedMetrics;
use tortie_telemetry::health::Health;

struct Bench {
    engine: Option<PipeWriter>,
    reports: FrameReader<PipeReader>,
    sender: SyncSender<ServeInput>,
    stop: Stop,
    running: JoinHandle<(Result<ServedEnd, ServeError>, String)>,
}

fn message(parameters: &[(&str, &str)]) -> felix::ConfigUpdate {
    let mut sources = Sources::default();
    let raw = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sources.set(ConfigSource::DatastoreGlobal, raw);
    to_message(&sources, &sources.resolve().unwrap(), &Hostname::new("n1"))
}

impl Bench {
    fn new() -> Self {
        let (messages, engine) = pipe().unwrap();
        let (reports, of_driver) = pipe().unwrap();
        let (sender, inputs) = sync_channel(64);
        let (_, resolved) = configuration(&message(&[]), &Raw::new()).unwrap();
        let config = settings::dataplane(&resolved.config, Hostname::new("n1"), Backend::Nft).unwrap();
        let kernel = FakeKernel::new(Backend::Nft, ["cali1"]);
        let in_kernel = InKernel::new(config, kernel, Health::default(), SharedMetrics::default());
        let stop = Stop::new().unwrap();
        let setup =
            ServeSetup { in_kernel, environment: Raw::new(), resolved, started: Instant::now(), stop: stop.clone() };
        follow_peer(messages, sender.clone()).unwrap();
        let mut served = Served::new(setup, of_driver, sender.clone()).unwrap();
        let running = thread::spawn(move || {
            let end = served.run(&inputs);
            (end, served.setup.in_kernel.into_kernel().state())
        });
        sender
            .send(ServeInput::Links(MonitorEvent::Link(LinkEvent::Up { name: "cali1".parse().unwrap(), index: 7 })))
            .unwrap();
        sender.send(ServeInput::Links(MonitorEvent::InSync)).unwrap();
        Self { engine: Some(engine), reports: FrameReader::new(reports), sender, stop, running }
    }

    fn send(&mut self, bytes: &[u8]) {
        write_frame(self.engine.as_mut().unwrap(), bytes).unwrap();
    }

    fn update(&mut self, update: &DesiredUpdate) {
        self.send(&encode(update, 0).unwrap());
    }

    fn report(&mut self) -> Report {
        Report::decode(self.reports.next_frame().unwrap().expect("a report")).unwrap()
    }

    fn end(self) -> (Result<ServedEnd, ServeError>, String) {
        self.running.join().unwrap()
    }
}

fn id() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

fn endpoint() -> DesiredUpdate {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        ipv4_nets: ["10.65.0.2".parse().unwrap()].into(),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: Arc::new(endpoint), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(id(), state)
}

#[test]
fn updates_of_the_engine_are_enforced_and_reported() {
    let mut bench = Bench::new();
    bench.update(&endpoint());
    bench.update(&DesiredUpdate::InSync);
    let Report::Workload { id: reported, status, endpoint } = bench.report() else { panic!("no status") };
    assert_eq!((reported, status.as_deref()), (id(), Some("up")));
    assert_eq!(endpoint.unwrap().ipv4_nets, ["10.65.0.2/32"]);
    for family in Family::ALL {
        let none = Report::Wireguard { public_key: String::new(), family: Some(family) };
        assert_eq!(bench.report(), none, "as Felix's dataplane reports without WireGuard");
    }
    assert_eq!(bench.report(), Report::InSync);
    drop(bench.engine.take());
    let (end, kernel) = bench.end();
    assert_eq!(end.unwrap(), ServedEnd::PeerGone);
    assert!(kernel.contains("cali-FORWARD") && kernel.contains("cali-tw-cali1"), "{kernel}");
}

#[test]
fn nothing_is_written_before_the_engine_is_in_sync() {
    let mut bench = Bench::new();
    bench.update(&endpoint());
    drop(bench.engine.take());
    let (end, kernel) = bench.end();
    assert_eq!(end.unwrap(), ServedEnd::PeerGone);
    assert!(!kernel.contains("cali-"), "{kernel}");
}

#[test]
fn enforced_state_stays_when_the_engine_ends_or_fails() {
    let endings: [(&[u8], &str); 3] = [
        (&[9, 0, 0], "the stream ends after 3 of 8 bytes of a length"),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 0xff], "not a ToDataplane message"),
        (b"\x09\0\0\0\0\0\0\0\x12\x07\x0a\x01s\x12\x02xx", "IP set s: members: `xx` is not understood"),
    ];
    for (bytes, error) in endings {
        let mut bench = Bench::new();
        bench.update(&endpoint());
        bench.update(&DesiredUpdate::InSync);
        while bench.report() != Report::InSync {}
        let mut engine = bench.engine.take().unwrap();
        engine.write_all(bytes).unwrap();
        drop(engine);
        let (end, kernel) = bench.end();
        let end = with_causes(&end.unwrap_err());
        assert!(end.contains(error), "{end}");
        assert!(kernel.contains("cali-tw-cali1"), "{kernel}");
    }
}

#[test]
fn a_datastore_that_is_not_ready_changes_nothing() {
    let mut bench = Bench::new();
    bench.update(&endpoint());
    bench.update(&DesiredUpdate::InSync);
    while bench.report() != Report::InSync {}
    assert_eq!(encode(&DesiredUpdate::DatastoreNotReady, 0), None, "the protocol has no word for it");
    let message = (Received::Update(DesiredUpdate::DatastoreNotReady), None);
    bench.sender.send(ServeInput::Peer(PeerEvent::Message(Box::new(message)))).unwrap();
    drop(bench.engine.take());
    let (end, kernel) = bench.end();
    assert_eq!(end.unwrap(), ServedEnd::PeerGone);
    assert!(kernel.contains("cali-FORWARD") && kernel.contains("cali-tw-cali1"), "{kernel}");
}

#[test]
fn an_engine_that_no_longer_listens_ends_it() {
    let mut bench = Bench::new();
    bench.reports = FrameReader::new(pipe().unwrap().0);
    bench.update(&endpoint());
    bench.update(&DesiredUpdate::InSync);
    let (end, kernel) = bench.end();
    assert!(matches!(end, Err(ServeError::Write(_))), "{end:?}");
    assert!(kernel.contains("cali-tw-cali1"), "{kernel}");
}

#[test]
fn only_a_parameter_with_an_effect_asks_for_a_new_beginning() {
    let mut bench = Bench::new();
    bench.send(&encode_config(message(&[("SomebodyElses", "x"), ("UsageReportingEnabled", "false")]), 0));
    let mut bad = message(&[]);
    let global = bad.source_to_raw_config.get_mut(&1).unwrap();
    global.config.insert("InterfacePrefix".into(), "not an interface".into());
    bench.send(&encode_config(bad, 0));
    bench.update(&endpoint());
    bench.update(&DesiredUpdate::InSync);
    while bench.report() != Report::InSync {}
    bench.send(&encode_config(message(&[("DefaultEndpointToHostAction", "Accept")]), 0));
    let (end, kernel) = bench.end();
    assert_eq!(end.unwrap(), ServedEnd::Reconfigured);
    assert!(kernel.contains("cali-tw-cali1"), "{kernel}");
}

#[test]
fn it_stops_when_asked_to() {
    let bench = Bench::new();
    bench.stop.set();
    bench.sender.send(ServeInput::Wake).unwrap();
    assert_eq!(bench.end().0.unwrap(), ServedEnd::Stopped);
}

#[test]
fn rules_with_http_matches_are_left_to_a_proxy_if_the_engine_has_the_policy_sync_api() {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.extras.http = Some(Box::default());
    let rules = Rules::new([rule].into(), [RuleSets::default()].into()).unwrap();
    let profile = Profile { inbound: rules.clone(), outbound: Rules::default() };
    let DesiredUpdate::Profile(_, profile) = leave_http_to_proxy(DesiredUpdate::Profile("p".into(), profile.into()))
    else {
        panic!("another update");
    };
    let unenforced = |rules: &Rules| rules.iter().any(RuleView::has_unenforced_http);
    assert_eq!([unenforced(&rules), unenforced(&profile.inbound)], [true, false]);
}
