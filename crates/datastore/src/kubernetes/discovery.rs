//! Discovery of the API by which Calico's own kinds are read.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::client::Client;
use super::error::ApiError;
use super::kinds::CalicoApi;
use super::reflector::Waker;
use super::timing::Timing;
use crate::Backoff;
use crate::backoff::chance;

/// Queries the server, on a separate thread, until it has Calico's kinds. Dropping it ends the
/// queries.
#[derive(Debug)]
pub(super) struct Discovery {
    answers: Receiver<Answer>,
    _alive: Sender<()>,
}

/// The API by which the server has Calico's kinds; `None` if it does not have them.
pub(super) type Answer = Result<Option<CalicoApi>, ApiError>;

impl Discovery {
    pub(super) fn start(client: Client, timing: Timing, waker: Waker) -> io::Result<Self> {
        let (sender, answers) = channel();
        let (alive, ended) = channel::<()>();
        thread::Builder::new().name("discovery".into()).spawn(move || {
            let mut retry = Backoff::new(timing.retry.0, timing.retry.1);
            let mut missing = Backoff::new(timing.missing.0, timing.missing.1);
            loop {
                let answer = client.groups().map(|groups| CalicoApi::of(&groups));
                let pause = match &answer {
                    Ok(Some(_)) => None,
                    Ok(None) => Some(missing.fail(chance())),
                    Err(error) => Some(timing.pause(&mut retry, error, chance())),
                };
                if sender.send(answer).is_err() {
                    return;
                }
                waker.wake();
                match pause {
                    Some(pause) if waits(&ended, pause) => {}
                    _ => return,
                }
            }
        })?;
        Ok(Self { answers, _alive: alive })
    }

    /// Returns the latest answer since the last call.
    pub(super) fn answer(&self) -> Option<Answer> {
        self.answers.try_iter().last()
    }
}

/// Waits; returns true after the pause, and false if the [`Discovery`] was dropped before.
fn waits(ended: &Receiver<()>, pause: Duration) -> bool {
    ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
}
