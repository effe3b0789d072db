//! Changes that would cut management connections of the host, in a session with a kernel.

use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

use proptest::prelude::*;

use super::*;
use crate::connections::ConnectionCutter;
use crate::engine::inspect::{Answer, Query, Question};
use crate::flows::FlowCollector;
use crate::host_changes::{ConfirmedChanges, HostChanges, ManagementConnection, Observe, ObserveError, Observed};

const HOST: &str = "
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: eth0}
spec: {node: n1, interfaceName: eth0}
";

/// The current connections.
#[derive(Clone, Debug)]
struct FakeObserver(Arc<Mutex<Observed>>);

impl Observe for FakeObserver {
    fn observe(&mut self) -> Result<Observed, ObserveError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn boot(&self) -> String {
        "boot".into()
    }
}

/// A node without failsafe ports that holds back changes that would cut the connection to port 22.
fn managed() -> (Bench, FakeObserver) {
    managed_with(Companions::default())
}

fn managed_with(companions: Companions) -> (Bench, FakeObserver) {
    let connection = ManagementConnection {
        remote: "198.51.100.7:54321".parse().unwrap(),
        local: "192.0.2.1:22".parse().unwrap(),
        interface: Some("eth0".into()),
    };
    let observer =
        FakeObserver(Arc::new(Mutex::new(Observed { connections: [connection].into(), ..Observed::default() })));
    let parameters = [("FailsafeInboundHostPorts", "none")];
    let mut bench = Bench::with_companions(&parameters, Unreadable::Exit, companions);
    let mut changes = HostChanges::new(Hostname::new("n1"), Box::new(observer.clone()), None, "file:/etc/tortie");
    assert_eq!(changes.begin(tortie_evaluate::Settings::default()).count(), 0);
    bench.session.as_mut().unwrap().host_changes = Some(changes);
    bench.has_uplink();
    (bench, observer)
}

impl Bench {
    fn has_uplink(&self) {
        self.links(MonitorEvent::Link(LinkEvent::Up { name: "eth0".parse().unwrap(), index: 2 }));
    }

    fn confirm(&mut self) -> Answer {
        let (reply, answer) = sync_channel(1);
        self.send(Input::Question(Question { query: Query::ConfirmHostChanges, reply }));
        self.run_to_idle();
        answer.recv().unwrap()
    }

    fn protects_host(&mut self) -> bool {
        self.kernel().state().contains("cali-fh-eth0")
    }
}

#[test]
fn disconnecting_changes_are_held_until_confirmed_and_others_apply() {
    let (mut bench, _) = managed();
    // Only the host endpoint names this node.
    bench.file("host.yaml", HOST);
    assert_eq!(bench.confirm(), Answer::Busy, "nothing is known yet");
    bench.in_sync();
    bench.run_to_idle();
    bench.file("a.yaml", CLUSTER);
    bench.file("b.yaml", POLICY);
    bench.run_to_idle();
    assert!(bench.kernel().state().contains(":cali-tw-cali") && !bench.protects_host(), "{}", bench.kernel().state());
    let answer = bench.health.answer("/readiness");
    assert_eq!(answer.status, 503);
    let why = "held back until `tortie confirm` comes: host endpoint n1/eth0: they would cut the connection of 198.51.100.7:54321";
    assert!(answer.body.contains(why), "{}", answer.body);
    assert_eq!(bench.metrics.lock().datastore.held_changes, 1);

    let Answer::Confirmed(ConfirmedChanges { confirmed: Some(confirmed), .. }) = bench.confirm() else {
        panic!("nothing was held back")
    };
    assert_eq!(confirmed.objects, ["host endpoint n1/eth0"]);
    assert!(bench.protects_host() && bench.is_ready());
    assert_eq!(bench.metrics.lock().datastore.held_changes, 0);
    assert_eq!(bench.confirm(), Answer::Confirmed(ConfirmedChanges::default()));
}

#[test]
fn held_changes_are_rechecked_periodically() {
    let (mut bench, observer) = managed();
    bench.file("host.yaml", HOST);
    bench.in_sync();
    bench.run_to_idle();
    assert!(!bench.protects_host() && !bench.is_ready());
    let next = |bench: &mut Bench| {
        let (Some(session), Some(inputs)) = (&mut bench.session, &bench.inputs) else { panic!("running elsewhere") };
        let Turn::Next(next) = session.turn(inputs, Duration::ZERO).unwrap() else { panic!("it ends") };
        next
    };
    assert!(next(&mut bench) <= Duration::from_secs(2));
    observer.0.lock().unwrap().connections.clear();
    bench.run_to_idle();
    assert!(bench.protects_host() && bench.is_ready());
}

#[test]
fn without_the_flag_nothing_is_held_back_and_nothing_confirmed() {
    let mut bench = Bench::new(&[("FailsafeInboundHostPorts", "none")], Unreadable::Exit);
    bench.has_uplink();
    bench.file("host.yaml", HOST);
    bench.in_sync();
    bench.run_to_idle();
    assert!(bench.protects_host() && bench.is_ready());
    assert_eq!(bench.confirm(), Answer::Confirmed(ConfirmedChanges::default()));
}

#[test]
fn a_session_that_waits_for_the_datastore_does_not_look_again_and_again() {
    let (mut bench, _) = managed();
    bench.file("host.yaml", HOST);
    bench.in_sync();
    bench.run_to_idle();
    let information = "apiVersion: projectcalico.org/v3\nkind: ClusterInformation\nmetadata: {name: default}\nspec: \
                       {datastoreReady: false}\n";
    bench.file("information.yaml", information);
    bench.run_to_idle();
    let (Some(session), Some(inputs)) = (&mut bench.session, &bench.inputs) else { panic!("running elsewhere") };
    let Turn::Next(next) = session.turn(inputs, Duration::ZERO).unwrap() else { panic!("it ends") };
    assert!(next > Duration::from_secs(2), "{next:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_three_evaluators_have_one_state_after_any_order_of_events(
        events in prop::collection::vec((0..4usize, any::<bool>(), any::<bool>(), any::<bool>()), 1..12),
    ) {
        let (cutter, mut revision_of_connections) = ConnectionCutter::without_thread();
        let (flows, mut revision_of_flows) = FlowCollector::without_thread();
        let companions = Companions { cutter: Some(cutter), flows: Some(flows), ..Companions::default() };
        let (mut bench, observer) = managed_with(companions);
        let connected = observer.0.lock().unwrap().clone();
        bench.in_sync();
        for (file, exists, is_connected, waits) in events {
            let (path, text) = [("a.yaml", CLUSTER), ("b.yaml", POLICY), ("c.yaml", HOST), ("d.yaml", NODE)][file];
            if exists { bench.file(path, text) } else { bench.without_file(path) }
            *observer.0.lock().unwrap() = if is_connected { connected.clone() } else { Observed::default() };
            if waits {
                continue;
            }
            bench.run_to_idle();
            let host_changes = bench.session.as_ref().unwrap().host_changes.as_ref().unwrap();
            let revision = host_changes.state().revision();
            prop_assert_eq!([revision_of_connections(), revision_of_flows()], [revision; 2]);
        }
    }
}
