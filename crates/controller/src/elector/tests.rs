#![allow(clippy::disallowed_methods, reason = "the time of a test has to begin somewhere")]

use proptest::prelude::*;
use serde_json::json;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn candidate(name: &str, now: Instant) -> LeaderElector {
    LeaderElector::new(ElectorConfig::new("kube-system", "lease", name), now)
}

/// API server with one lease.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
}

impl Server {
    fn handle(&mut self, request: &Request) -> Answer {
        let current = self.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        let new = match (request, current) {
            (Request::Get, _) => return self.lease.clone().map_or(Answer::Absent, Answer::Found),
            (Request::Create(lease), None) => lease,
            (Request::Update(lease), Some(version)) if lease["metadata"]["resourceVersion"] == version => lease,
            _ => return Answer::Overtaken,
        };
        self.version += 1;
        let mut new = new.clone();
        new["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(new.clone());
        Answer::Written(new)
    }

    /// Executes the requests of a candidate until it waits.
    fn drive(&mut self, elector: &mut LeaderElector, now: Instant) -> Instant {
        loop {
            // Times in leases are informational; a renewal only has to change the record.
            let wall = SystemTime::UNIX_EPOCH + SECOND * u32::try_from(self.version).expect("few versions");
            match elector.next(now, wall, 0.0) {
                Request::Rest(until) => return until,
                request => {
                    let answer = self.handle(&request);
                    elector.answer(answer, now);
                }
            }
        }
    }

    fn holder(&self) -> &str {
        self.lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str()).unwrap_or_default()
    }
}

#[test]
fn the_first_leads_and_the_second_waits_for_the_lease_to_run_out() {
    let (mut server, mut now) = (Server::default(), Instant::now());
    let (mut a, mut b) = (candidate("a", now), candidate("b", now));
    server.drive(&mut a, now);
    server.drive(&mut b, now);
    assert!(a.leads(now) && !b.leads(now));
    assert_eq!((server.holder(), b.holder()), ("a", "a"));
    for _ in 0..20 {
        now += 2 * SECOND;
        server.drive(&mut a, now);
        server.drive(&mut b, now);
        assert!(a.leads(now) && !b.leads(now));
    }
    // `a` stops; its last record has just been seen.
    let mut waited = 0;
    while !b.leads(now) {
        now += SECOND;
        waited += 1;
        server.drive(&mut b, now);
    }
    assert!((15..=17).contains(&waited), "{waited}");
    assert!(!a.leads(now));
    let spec = &server.lease.as_ref().expect("a lease")["spec"];
    assert_eq!(
        (&spec["holderIdentity"], &spec["leaseTransitions"], &spec["leaseDurationSeconds"]),
        (&json!("b"), &json!(1), &json!(15))
    );
    // `a` returns and finds that it has lost.
    server.drive(&mut a, now);
    assert!(!a.leads(now) && a.holder() == "b");
}

#[test]
fn a_lease_that_is_given_up_is_taken_at_once() {
    let (mut server, now) = (Server::default(), Instant::now());
    let (mut a, mut b) = (candidate("a", now), candidate("b", now));
    server.drive(&mut a, now);
    let until = server.drive(&mut b, now);
    let released = a.release(now, SystemTime::UNIX_EPOCH).expect("it is a's");
    assert!(!a.leads(now));
    assert!(matches!(server.handle(&Request::Update(released)), Answer::Written(_)));
    server.drive(&mut b, until);
    assert!(b.leads(until));
    assert_eq!(a.release(now, SystemTime::UNIX_EPOCH), None);
}

#[test]
fn a_leader_that_cannot_renew_stops_in_time_and_may_come_back() {
    let (mut server, start) = (Server::default(), Instant::now());
    let mut a = candidate("a", start);
    server.drive(&mut a, start);
    let mut now = start;
    while now < start + 14 * SECOND {
        match a.next(now, SystemTime::UNIX_EPOCH, 0.0) {
            Request::Rest(until) => now = until,
            _ => a.answer(Answer::Failed, now),
        }
        assert_eq!(a.leads(now), now < start + 10 * SECOND);
    }
    assert_eq!(a.term(), 1);
    server.drive(&mut a, now);
    assert!(a.leads(now));
    assert_eq!(a.term(), 2);
    assert_eq!(server.lease.as_ref().expect("a lease")["spec"]["leaseTransitions"], 0);
}

/// A write with an unknown outcome is never repeated without a read.
#[test]
fn no_write_without_the_version_that_it_replaces() {
    let (mut server, mut now) = (Server::default(), Instant::now());
    let mut a = candidate("a", now);
    server.drive(&mut a, now);
    now += 2 * SECOND;
    let Request::Update(lease) = a.next(now, SystemTime::UNIX_EPOCH, 0.0) else { panic!("it is due") };
    assert_eq!(lease["metadata"]["resourceVersion"], "1");
    a.answer(Answer::Failed, now);
    assert_eq!(a.release(now, SystemTime::UNIX_EPOCH), None);
    let mut a = candidate("a", now);
    server.drive(&mut a, now);
    now += 2 * SECOND;
    let _lost = a.next(now, SystemTime::UNIX_EPOCH, 0.0);
    a.answer(Answer::Overtaken, now);
    now += 2 * SECOND;
    assert_eq!(a.next(now, SystemTime::UNIX_EPOCH, 0.0), Request::Get);
}

#[test]
fn a_deleted_lease_has_no_holder() {
    let (mut server, now) = (Server::default(), Instant::now());
    let mut a = candidate("a", now);
    server.drive(&mut a, now);
    server.lease = None;
    let now = now + 2 * SECOND;
    server.drive(&mut a, now);
    let now = now + 2 * SECOND;
    assert_eq!(a.next(now, SystemTime::UNIX_EPOCH, 0.0), Request::Get);
    a.answer(Answer::Absent, now);
    assert!(!a.leads(now));
    server.drive(&mut a, now);
    assert!(a.leads(now));
}

/// State of a waiting candidate: end of the wait in true time, request in flight, and its answer.
type Waiting = (u64, Option<(Request, RequestFaults)>, Option<Answer>);

/// Delays and losses of a request.
#[derive(Clone, Debug)]
struct RequestFaults {
    /// Delays to the server and back, in milliseconds.
    there: u64,
    back: u64,
    lost: bool,
    answer_lost: bool,
}

fn request_faults() -> impl Strategy<Value = RequestFaults> {
    let delay = || prop_oneof![3 => 0..50u64, 1 => 0..20_000u64];
    (delay(), delay(), prop::bool::weighted(0.15), prop::bool::weighted(0.15))
        .prop_map(|(there, back, lost, answer_lost)| RequestFaults { there, back, lost, answer_lost })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Two candidates never lead at once, however slow and lossy the network is, with clocks of
    /// different speeds and times. Once the network works, one candidate leads.
    #[test]
    fn never_two_leaders(
        all_faults in prop::collection::vec(request_faults(), 60..150),
        speeds in prop::collection::vec(0.85..1.15f64, 3),
        pauses in prop::collection::vec((0..3usize, 0..100_000u64, 0..40_000u64), 0..4),
    ) {
        let start = Instant::now();
        let mut server = Server::default();
        let clock = |who: usize, ms: u64| start + Duration::from_millis(ms).mul_f64(speeds[who]);
        let wall = |who: usize, ms: u64| {
            SystemTime::UNIX_EPOCH + [0, 5000, 90][who] * SECOND + Duration::from_millis(ms)
        };
        let mut electors: Vec<LeaderElector> = ["a", "b", "c"].map(|name| candidate(name, start)).into();
        let mut waiting: Vec<Waiting> = vec![(0, None, None); 3];
        let mut all_faults = all_faults.into_iter();
        let mut calm = None;
        for ms in (0..400_000u64).step_by(20) {
            for who in 0..3 {
                if pauses.iter().any(|(paused, from, length)| *paused == who && (*from..from + length).contains(&ms)) {
                    continue;
                }
                let now = clock(who, ms);
                let (until, request, answer) = &mut waiting[who];
                if ms < *until {
                    continue;
                }
                if let Some((request, request_faults)) = request.take() {
                    let found = if request_faults.lost { Answer::Failed } else { server.handle(&request) };
                    *answer = Some(if request_faults.answer_lost { Answer::Failed } else { found });
                    *until = ms + request_faults.back;
                    continue;
                }
                if let Some(answer) = answer.take() {
                    electors[who].answer(answer, now);
                }
                match electors[who].next(now, wall(who, ms), 0.3) {
                    Request::Rest(_) => *until = ms + 100,
                    next => {
                        let request_faults = all_faults.next().unwrap_or_else(|| {
                            calm.get_or_insert(ms);
                            RequestFaults { there: 20, back: 20, lost: false, answer_lost: false }
                        });
                        *until = ms + request_faults.there;
                        *request = Some((next, request_faults));
                    }
                }
            }
            let leaders = (0..3).filter(|who| electors[*who].leads(clock(*who, ms))).count();
            prop_assert!(leaders <= 1, "at {ms}");
            if let Some(calm) = calm && ms > calm + 60_000 && pauses.iter().all(|(_, from, length)| ms > from + length + 60_000) {
                prop_assert_eq!(leaders, 1, "at {}", ms);
                break;
            }
        }
    }
}
