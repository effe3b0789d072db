//! Discovery of the API by which Calico's custom resources are read and written.

use std::time::{Duration, Instant};

use tortie_datastore::kubernetes::{ApiError, CalicoApi, Client, Waker};
use tortie_net::with_causes;

use super::{Shared, State};

/// Interval between queries while the API is unknown.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Interval between queries for another API.
const KNOWN: Duration = Duration::from_secs(15);

/// Queries the server until the controller stops. The first answer counts; another one ends the
/// controller, because all that it knows is of the first API.
pub(super) fn run(shared: &Shared, client: &Client, waker: &Waker) {
    let mut state = shared.lock();
    while !state.stopped {
        let known = state.calico.get().copied();
        drop(state);
        let answer = client.served_calico_api(known);
        state = shared.lock();
        state.discovered(answer);
        waker.wake();
        shared.changed.notify_all();
        let pause = if state.calico.get().is_some() { KNOWN } else { UNKNOWN };
        let until = Instant::now() + pause;
        while !state.stopped && Instant::now() < until {
            state = shared.wait(state, Some(until));
        }
    }
}

impl State {
    fn discovered(&mut self, answer: Result<Option<CalicoApi>, ApiError>) {
        let found = match answer {
            Ok(found) => found,
            // The lists report this too.
            Err(_) if self.calico.get().is_some() => return,
            Err(error) => {
                self.undiscovered = Some(with_causes(&error));
                return;
            }
        };
        let Some(found) = found else {
            self.undiscovered = Some("the API server does not have them".into());
            return;
        };
        self.undiscovered = None;
        if *self.calico.get_or_init(|| found) != found {
            self.moved_to = Some(found);
            self.stopping = true;
        }
    }
}
