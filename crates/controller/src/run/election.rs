//! Thread of the leader election.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Instant, SystemTime};

use crate::elector::{Answer, ElectorConfig, LeaderElector, Request};
use serde_json::Value;
use tortie_datastore::kubernetes::{ApiError, ApiResource, Client};
use tortie_net::with_causes;

use super::Shared;

/// Holds the lease, or competes for it, until all work is done; then gives it up.
pub(super) fn run(config: ElectorConfig, shared: &Shared, client: &Client) {
    let lease = Lease { namespace: config.namespace.clone(), name: config.name.clone(), client: client.clone() };
    let identity = config.identity.clone();
    let mut elector = LeaderElector::new(config, Instant::now());
    let mut leader = String::new();
    loop {
        match elector.next(Instant::now(), SystemTime::now(), chance()) {
            Request::Rest(until) => {
                let mut state = shared.lock();
                while !state.stopped && Instant::now() < until {
                    // The condition variable also signals other changes.
                    state = shared.wait(state, Some(until));
                }
                if state.stopped {
                    break;
                }
            }
            request => {
                let (answer, problem) = lease.ask(&request);
                elector.answer(answer, Instant::now());
                shared.fence.set(elector.leads_until(), elector.term());
                shared.lock().election = problem;
                // A new leader may begin. A controller that lost the lease has stopped by the fence
                // already.
                shared.changed.notify_all();
            }
        }
        if elector.holder() != leader {
            elector.holder().clone_into(&mut leader);
            tracing::info!(%leader, me = %identity, "the lease has a new holder");
        }
    }
    shared.fence.set(None, elector.term());
    if let Some(released) = elector.release(Instant::now(), SystemTime::now()) {
        match lease.ask(&Request::Update(released)).1 {
            None => tracing::info!("the lease is given up"),
            Some(why) => tracing::warn!(%why, "the lease cannot be given up"),
        }
    }
}

struct Lease {
    namespace: String,
    name: String,
    client: Client,
}

impl Lease {
    /// Sends a request to the API server. Returns the answer, and the problem if the request
    /// failed.
    fn ask(&self, request: &Request) -> (Answer, Option<String>) {
        let (namespace, name) = (&*self.namespace, &*self.name);
        let asked: Result<Value, ApiError> = match request {
            Request::Get => match self.client.get(ApiResource::LEASES, namespace, name) {
                Ok(lease) => return (Answer::Found(lease), None),
                Err(error) if error.is_not_found() => return (Answer::Absent, None),
                Err(error) => Err(error),
            },
            Request::Create(lease) => self.client.create(ApiResource::LEASES, namespace, lease),
            Request::Update(lease) => self.client.replace(ApiResource::LEASES, namespace, name, lease),
            Request::Rest(_) => return (Answer::Failed, None),
        };
        match asked {
            Ok(lease) => (Answer::Written(lease), None),
            Err(error) if error.is_conflict() || error.is_already_exists() => (Answer::Overtaken, None),
            Err(error) => (Answer::Failed, Some(with_causes(&error))),
        }
    }
}

/// Returns a random number between 0 and 1.
fn chance() -> f64 {
    f64::from(u32::try_from(random() >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// Returns a random number.
#[must_use]
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
