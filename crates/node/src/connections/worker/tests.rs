use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};

use super::super::tests::fixture::{self, evaluator, node_addresses, policy, tcp, updates};
use super::*;
use tortie_model::desired::DesiredUpdate;
use tortie_telemetry::health::{Health, Reporter};

/// Connections in memory.
struct Fake {
    tracked: Vec<Connection>,
    listed: usize,
    cut: Vec<Connection>,
    /// Messages that are sent while connections are listed.
    meanwhile: RefCell<Vec<CutterMessage>>,
    sender: Sender<CutterMessage>,
    failures: usize,
}

impl Tracking for Fake {
    fn node_addresses(&mut self) -> Result<NodeAddresses, NetlinkError> {
        Ok(node_addresses())
    }

    fn connections(&mut self, keep: &dyn Fn(&Connection) -> bool) -> Result<Vec<Connection>, NetlinkError> {
        self.listed += 1;
        self.meanwhile.take().into_iter().for_each(|message| self.sender.send(message).unwrap());
        if self.failures > 0 {
            self.failures -= 1;
            return Err(NetlinkError::Overflow);
        }
        Ok(self.tracked.iter().filter(|connection| keep(connection)).copied().collect())
    }

    fn interface_to(&mut self, _: IpAddr) -> Result<Option<InterfaceName>, NetlinkError> {
        Ok(Some("eth0".parse().unwrap()))
    }

    fn cut(&mut self, connections: &[Connection]) -> Result<Vec<Result<bool, NetlinkError>>, NetlinkError> {
        assert!(connections.len() <= SLICE);
        let mut found = Vec::new();
        for connection in connections {
            let before = self.tracked.len();
            self.tracked.retain(|tracked| tracked != connection);
            self.cut.push(*connection);
            found.push(Ok(self.tracked.len() < before));
        }
        Ok(found)
    }
}

/// Follows a node whose server is reached at TCP 8080 and 9090, with a connection to each.
fn worker() -> (Worker<Fake>, Sender<CutterMessage>) {
    let (sender, messages) = channel();
    let tracked = vec![tcp("10.0.0.1", ("10.0.0.2", 8080)), tcp("10.0.0.1", ("10.0.0.2", 9090))];
    let tracking = Fake {
        tracked,
        listed: 0,
        cut: Vec::new(),
        meanwhile: RefCell::default(),
        sender: sender.clone(),
        failures: 0,
    };
    let worker = Worker {
        messages,
        tracking,
        evaluator: evaluator(&[]),
        exceptions: Exceptions::default(),
        counts: SharedCutCounts::default(),
        state: State::default(),
    };
    sender.send(fixture::desired(policy("server", &[8080, 9090]))).unwrap();
    (worker, sender)
}

/// Does all that there is to do now.
fn settle(worker: &mut Worker<Fake>) {
    loop {
        worker.drain().unwrap();
        if !worker.is_pass_due() {
            return;
        }
        worker.turn().unwrap();
    }
}

fn send_all(
    worker: &mut Worker<Fake>,
    sender: &Sender<CutterMessage>,
    messages: impl IntoIterator<Item = CutterMessage>,
) {
    messages.into_iter().for_each(|message| sender.send(message).unwrap());
    settle(worker);
}

#[test]
fn newly_denied_connections_are_cut_once_the_change_is_in_force() {
    let (mut worker, sender) = worker();
    settle(&mut worker);
    assert_eq!(worker.tracking.listed, 0, "nothing is in force yet");
    send_all(&mut worker, &sender, [CutterMessage::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (1, 0));

    send_all(&mut worker, &sender, [fixture::desired(policy("server", &[8080])), CutterMessage::InForce(false)]);
    assert_eq!(worker.tracking.listed, 1, "the change is not in force");
    send_all(&mut worker, &sender, [CutterMessage::InForce(true), CutterMessage::InForce(true)]);
    assert_eq!(worker.tracking.cut, [tcp("10.0.0.1", ("10.0.0.2", 9090))]);
    assert_eq!(worker.tracking.tracked, [tcp("10.0.0.1", ("10.0.0.2", 8080))]);
    let counts = worker.counts.lock();
    assert_eq!(counts.cut, 1);
    assert!(counts.last_check.is_some());
}

#[test]
fn changes_that_come_together_are_one_pass() {
    let (mut worker, sender) = worker();
    let changes = (1..200).flat_map(|port| [fixture::desired(policy("server", &[port])), CutterMessage::InForce(true)]);
    send_all(&mut worker, &sender, changes);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (1, 2));
}

#[test]
fn connections_that_are_allowed_again_before_the_cut_stay() {
    let (mut worker, sender) = worker();
    send_all(&mut worker, &sender, [CutterMessage::InForce(true)]);
    *worker.tracking.meanwhile.borrow_mut() =
        vec![fixture::desired(policy("server", &[9090])), CutterMessage::InForce(false), CutterMessage::InForce(true)];
    send_all(&mut worker, &sender, [fixture::desired(policy("server", &[8080])), CutterMessage::InForce(true)]);
    assert_eq!(worker.tracking.cut, [tcp("10.0.0.1", ("10.0.0.2", 8080))]);
}

#[test]
fn a_pass_that_waits_for_a_change_to_be_in_force_does_not_fail_liveness() {
    let (mut worker, sender) = worker();
    let (health, timeout) = (Health::default(), Duration::from_millis(500));
    worker.state.pulse = health.pulse(Reporter::Connections, timeout);
    *worker.tracking.meanwhile.borrow_mut() =
        vec![fixture::desired(policy("server", &[9090])), CutterMessage::InForce(false)];
    for message in [fixture::desired(policy("server", &[8080])), CutterMessage::InForce(true)] {
        sender.send(message).unwrap();
    }
    let settled = std::thread::spawn(move || {
        settle(&mut worker);
        worker.tracking
    });
    std::thread::sleep(timeout * 3);
    assert_eq!(health.answer("/liveness").status, 200);
    assert!(!settled.is_finished());
    sender.send(CutterMessage::InForce(true)).unwrap();
    assert_eq!(settled.join().unwrap().cut, [tcp("10.0.0.1", ("10.0.0.2", 8080))]);
}

#[test]
fn a_pass_that_fails_is_tried_again() {
    let (mut worker, sender) = worker();
    worker.tracking.failures = 1;
    send_all(&mut worker, &sender, [fixture::desired(policy("server", &[8080])), CutterMessage::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (2, 1));
}

#[test]
fn nothing_is_cut_by_messages_that_do_not_fit_together() {
    let (mut worker, sender) = worker();
    let of_no_set = tortie_model::desired::IpSetDelta {
        id: "s:none".into(),
        added: tortie_model::desired::Members::Nets(Vec::new()),
        removed: tortie_model::desired::Members::Nets(Vec::new()),
    };
    let mut broken = evaluator(&updates());
    assert!(broken.apply(&DesiredUpdate::IpSetDelta(of_no_set)).is_err());
    let broken = CutterMessage::Desired(Box::new(broken.state().clone()));
    send_all(&mut worker, &sender, [broken, fixture::desired(policy("server", &[])), CutterMessage::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (0, 0));
}

#[test]
fn many_are_cut_in_slices() {
    let (mut worker, sender) = worker();
    let from = |n: u32| tcp(&format!("10.1.{}.{}", n / 250, n % 250 + 1), ("10.0.0.2", 9090));
    worker.tracking.tracked = (0..1000).map(from).collect();
    send_all(&mut worker, &sender, [fixture::desired(policy("server", &[8080])), CutterMessage::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len(), worker.tracking.tracked.len()), (1, 1000, 0));
}
