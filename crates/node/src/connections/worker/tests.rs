use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};

use super::super::fixture::{self, evaluator, policy, surroundings, tcp, updates};
use super::*;
use tortie_model::desired::DesiredUpdate;
use tortie_telemetry::health::{Health, Reporter};

/// Connections in memory.
struct Fake {
    tracked: Vec<Connection>,
    listed: usize,
    cut: Vec<Connection>,
    /// Messages that are sent while connections are listed.
    meanwhile: RefCell<Vec<Told>>,
    teller: Sender<Told>,
    failures: usize,
}

impl Tracking for Fake {
    fn surroundings(&mut self) -> Result<Surroundings, NetlinkError> {
        Ok(surroundings())
    }

    fn connections(&mut self, keep: &dyn Fn(&Connection) -> bool) -> Result<Vec<Connection>, NetlinkError> {
        self.listed += 1;
        self.meanwhile.take().into_iter().for_each(|told| self.teller.send(told).unwrap());
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
fn worker() -> (Worker<Fake>, Sender<Told>) {
    let (teller, told) = channel();
    let tracked = vec![tcp("10.0.0.1", ("10.0.0.2", 8080)), tcp("10.0.0.1", ("10.0.0.2", 9090))];
    let tracking = Fake {
        tracked,
        listed: 0,
        cut: Vec::new(),
        meanwhile: RefCell::default(),
        teller: teller.clone(),
        failures: 0,
    };
    let worker = Worker {
        told,
        tracking,
        evaluator: evaluator(&[]),
        exceptions: Exceptions::default(),
        counts: SharedCutCounts::default(),
        state: State::default(),
    };
    teller.send(fixture::told(policy("server", &[8080, 9090]))).unwrap();
    (worker, teller)
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

fn tell(worker: &mut Worker<Fake>, teller: &Sender<Told>, told: impl IntoIterator<Item = Told>) {
    told.into_iter().for_each(|told| teller.send(told).unwrap());
    settle(worker);
}

#[test]
fn what_a_change_denies_is_cut_once_the_change_is_in_force() {
    let (mut worker, teller) = worker();
    settle(&mut worker);
    assert_eq!(worker.tracking.listed, 0, "nothing is in force yet");
    tell(&mut worker, &teller, [Told::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (1, 0));

    tell(&mut worker, &teller, [fixture::told(policy("server", &[8080])), Told::InForce(false)]);
    assert_eq!(worker.tracking.listed, 1, "the change is not in force");
    tell(&mut worker, &teller, [Told::InForce(true), Told::InForce(true)]);
    assert_eq!(worker.tracking.cut, [tcp("10.0.0.1", ("10.0.0.2", 9090))]);
    assert_eq!(worker.tracking.tracked, [tcp("10.0.0.1", ("10.0.0.2", 8080))]);
    let counts = worker.counts.lock();
    assert_eq!(counts.cut, 1);
    assert!(counts.last_check.is_some());
}

#[test]
fn changes_that_come_together_are_one_pass() {
    let (mut worker, teller) = worker();
    let changes = (1..200).flat_map(|port| [fixture::told(policy("server", &[port])), Told::InForce(true)]);
    tell(&mut worker, &teller, changes);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (1, 2));
}

#[test]
fn what_is_allowed_again_before_it_is_cut_is_not_cut() {
    let (mut worker, teller) = worker();
    tell(&mut worker, &teller, [Told::InForce(true)]);
    *worker.tracking.meanwhile.borrow_mut() =
        vec![fixture::told(policy("server", &[9090])), Told::InForce(false), Told::InForce(true)];
    tell(&mut worker, &teller, [fixture::told(policy("server", &[8080])), Told::InForce(true)]);
    assert_eq!(worker.tracking.cut, [tcp("10.0.0.1", ("10.0.0.2", 8080))]);
}

#[test]
fn a_pass_that_waits_for_a_change_to_be_in_force_does_not_fail_liveness() {
    let (mut worker, teller) = worker();
    let (health, timeout) = (Health::default(), Duration::from_millis(500));
    worker.state.pulse = health.pulse(Reporter::Connections, timeout);
    *worker.tracking.meanwhile.borrow_mut() = vec![fixture::told(policy("server", &[9090])), Told::InForce(false)];
    for told in [fixture::told(policy("server", &[8080])), Told::InForce(true)] {
        teller.send(told).unwrap();
    }
    let settled = std::thread::spawn(move || {
        settle(&mut worker);
        worker.tracking
    });
    std::thread::sleep(timeout * 3);
    assert_eq!(health.answer("/liveness").status, 200);
    assert!(!settled.is_finished());
    teller.send(Told::InForce(true)).unwrap();
    assert_eq!(settled.join().unwrap().cut, [tcp("10.0.0.1", ("10.0.0.2", 8080))]);
}

#[test]
fn a_pass_that_fails_is_tried_again() {
    let (mut worker, teller) = worker();
    worker.tracking.failures = 1;
    tell(&mut worker, &teller, [fixture::told(policy("server", &[8080])), Told::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (2, 1));
}

#[test]
fn nothing_is_cut_by_messages_that_do_not_fit_together() {
    let (mut worker, teller) = worker();
    let of_no_set = tortie_model::desired::IpSetDelta {
        id: "s:none".into(),
        added: tortie_model::desired::Members::Nets(Vec::new()),
        removed: tortie_model::desired::Members::Nets(Vec::new()),
    };
    let mut broken = evaluator(&updates());
    assert!(broken.apply(&DesiredUpdate::IpSetDelta(of_no_set)).is_err());
    let broken = Told::Desired(Box::new(broken.state().clone()));
    tell(&mut worker, &teller, [broken, fixture::told(policy("server", &[])), Told::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len()), (0, 0));
}

#[test]
fn many_are_cut_in_slices() {
    let (mut worker, teller) = worker();
    let from = |n: u32| tcp(&format!("10.1.{}.{}", n / 250, n % 250 + 1), ("10.0.0.2", 9090));
    worker.tracking.tracked = (0..1000).map(from).collect();
    tell(&mut worker, &teller, [fixture::told(policy("server", &[8080])), Told::InForce(true)]);
    assert_eq!((worker.tracking.listed, worker.tracking.cut.len(), worker.tracking.tracked.len()), (1, 1000, 0));
}
