//! Discovery of the API by which Calico's own kinds are read and written.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::client::Client;
use super::error::ApiError;
use super::kinds::CalicoApi;
use super::reflector::Waker;
use super::resource::ApiResource;
use super::timing::Timing;
use crate::Backoff;
use crate::backoff::chance;

/// API by which a server has Calico's kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    By(CalicoApi),
    /// By this one so far: the server does not report that it has read all definitions, or this
    /// client may not read the lock of the other one.
    Unconfirmed(CalicoApi),
    /// Both, and neither is ready, as during a migration.
    Undecided,
    /// None: their definitions are not installed.
    Absent,
    /// None so far: the server does not report that it has read all definitions.
    Unsettled,
}

impl Served {
    /// Returns the API to use now, after the current one. A migration does not go back.
    pub(super) fn api(self, current: Option<CalicoApi>) -> Option<CalicoApi> {
        match self {
            Self::By(api) => Some(api),
            Self::Unconfirmed(api) => current.or(Some(api)),
            Self::Undecided => current.or(Some(CalicoApi::CrdV1)),
            Self::Absent | Self::Unsettled => None,
        }
    }
}

/// Queries the server for the API of Calico's kinds.
///
/// Of both APIs, a client that may read the lock of v3 only uses v3: either v1 was migrated to it,
/// or Calico's API server makes v3 of v1.
///
/// `CALICO_API_GROUP` decides. Without it, an only API counts; of both, `crd.projectcalico.org/v1`,
/// as Calico's API server makes the other one of it (`UsingV3CRDs` of
/// `libcalico-go/lib/backend/k8s/discovery.go`). A migration ends with v1 locked and v3 ready
/// (`kube-controllers/pkg/controllers/migration`); from then on v3 counts, also while v1 vanishes.
/// A starting server may list only one of both; a ready one lists the groups of all definitions.
///
/// # Errors
/// [`ApiError::UnclearApi`] if a missing right leaves it open; any other [`ApiError`].
pub(super) fn discover(client: &Client) -> Result<Served, ApiError> {
    let first = groups(client)?;
    if first.len() > 1 {
        return of_both(client);
    }
    if !client.is_ready()? {
        return Ok(first.first().map_or(Served::Unsettled, |api| Served::Unconfirmed(*api)));
    }
    match groups(client)?[..] {
        [] => Ok(Served::Absent),
        [api] => Ok(Served::By(api)),
        _ => of_both(client),
    }
}

fn of_both(client: &Client) -> Result<Served, ApiError> {
    let is_v1_ready = || ready_flag(client, CalicoApi::CrdV1).map(|ready| ready == Some(true));
    match is_v1_ready() {
        Ok(true) => return Ok(Served::By(CalicoApi::CrdV1)),
        Err(error) if error.is_forbidden() => return by_v3_alone(client),
        Err(error) => return Err(error),
        Ok(false) => {}
    }
    // Calico's API server, which may make v3 of v1, may be away. Then both are unlocked together.
    let is_migrated = match ready_flag(client, CalicoApi::V3) {
        Err(error) if error.is_forbidden() => return Err(unclear(CalicoApi::V3)),
        flag => matches!(flag, Ok(Some(true))) && !is_v1_ready()?,
    };
    Ok(if is_migrated { Served::By(CalicoApi::V3) } else { Served::Undecided })
}

/// Decides for a client without the right to read the lock of v1.
fn by_v3_alone(client: &Client) -> Result<Served, ApiError> {
    match ready_flag(client, CalicoApi::V3) {
        Ok(Some(true)) => {
            client.note_missing_right(lock(CalicoApi::CrdV1));
            Ok(Served::Unconfirmed(CalicoApi::V3))
        }
        Ok(_) => Err(unclear(CalicoApi::CrdV1)),
        Err(error) if error.is_forbidden() => Err(unclear(CalicoApi::CrdV1)),
        Err(error) => Err(error),
    }
}

fn lock(api: CalicoApi) -> ApiResource {
    api.resource("clusterinformations")
}

fn unclear(api: CalicoApi) -> ApiError {
    ApiError::UnclearApi { unreadable: lock(api) }
}

impl Client {
    /// Queries the server for the API of Calico's kinds, after the current one, which stays until
    /// another one is confirmed. `None`: there is no current one, and the server has none, or has
    /// not read all definitions yet.
    ///
    /// # Errors
    /// [`ApiError::UnclearApi`] if a missing right leaves it open; any other [`ApiError`].
    pub fn served_calico_api(&self, current: Option<CalicoApi>) -> Result<Option<CalicoApi>, ApiError> {
        Ok(match discover(self)? {
            served @ (Served::By(_) | Served::Undecided) => served.api(current),
            Served::Unconfirmed(api) => current.or(Some(api)),
            Served::Absent | Served::Unsettled => current,
        })
    }
}

/// Returns the APIs that the server has and the configuration permits.
fn groups(client: &Client) -> Result<Vec<CalicoApi>, ApiError> {
    let groups = client.groups()?;
    let apis = [CalicoApi::CrdV1, CalicoApi::V3].into_iter();
    let permitted = apis.filter(|api| client.calico_api().is_none_or(|only| only == *api));
    Ok(permitted.filter(|api| groups.iter().any(|group| group == api.group())).collect())
}

/// Returns `datastoreReady` of the cluster; `None` if it is unset, or not installed.
fn ready_flag(client: &Client, api: CalicoApi) -> Result<Option<bool>, ApiError> {
    // Agents may list, and not get.
    let objects = match client.list(lock(api), "", "") {
        Err(error) if error.is_not_found() => return Ok(None),
        objects => objects?,
    };
    let default = objects.iter().find(|object| object.pointer("/metadata/name").is_some_and(|name| name == "default"));
    Ok(default.and_then(|object| object.pointer("/spec/datastoreReady")?.as_bool()))
}

/// Queries the server regularly, on a separate thread. Dropping it ends the queries.
#[derive(Debug)]
pub(super) struct Discovery {
    answers: Receiver<Answer>,
    hints: Sender<()>,
}

pub(super) type Answer = Result<Served, ApiError>;

impl Discovery {
    pub(super) fn start(client: Client, timing: Timing, waker: Waker) -> io::Result<Self> {
        let (sender, answers) = channel();
        let (hints, hinted) = channel();
        thread::Builder::new().name("discovery".into()).spawn(move || {
            let mut pauses = Pauses::new(timing);
            loop {
                let answer = discover(&client);
                let pause = pauses.after(&answer, chance());
                if sender.send(answer).is_err() {
                    return;
                }
                waker.wake();
                match hinted.recv_timeout(pause) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => {
                        // One change of the cluster causes many hints.
                        thread::sleep(timing.resync);
                        hinted.try_iter().for_each(drop);
                    }
                }
            }
        })?;
        Ok(Self { answers, hints })
    }

    /// Returns the latest answer since the last call.
    pub(super) fn answer(&self) -> Option<Answer> {
        self.answers.try_iter().last()
    }

    /// Causes a query soon, because the answer may have changed.
    pub(super) fn hint(&self) {
        // Without its thread, which ends with the process only, there are no answers either.
        let _ = self.hints.send(());
    }
}

/// Pauses between queries. Pure.
struct Pauses {
    timing: Timing,
    retry: Backoff,
    missing: Backoff,
}

impl Pauses {
    fn new(timing: Timing) -> Self {
        let retry = Backoff::new(timing.retry.0, timing.retry.1);
        Self { timing, retry, missing: Backoff::new(timing.missing.0, timing.missing.1) }
    }

    /// The end of a migration causes no hint, as v3 is not followed before.
    fn after(&mut self, answer: &Answer, chance: f64) -> Duration {
        let served = match answer {
            Err(error) => return self.timing.pause(&mut self.retry, error, chance),
            Ok(served) => served,
        };
        self.retry.succeed();
        match served {
            Served::Absent | Served::Unsettled => return self.missing.fail(chance),
            Served::By(_) | Served::Unconfirmed(_) | Served::Undecided => self.missing.succeed(),
        }
        let is_final = matches!(served, Served::By(_));
        let longest = if is_final { self.timing.missing.1 } else { self.timing.retry.1 };
        Backoff::new(longest, longest).fail(chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_asked_rarely_except_during_a_migration() {
        let mut pauses = Pauses::new(Timing::default());
        let mut after = |answer| pauses.after(&answer, 1.0).as_secs_f64();
        assert_eq!([(); 3].map(|()| after(Ok(Served::Absent))), [10.0, 20.0, 40.0]);
        assert_eq!([(); 2].map(|()| after(Ok(Served::By(CalicoApi::CrdV1)))), [300.0, 300.0]);
        assert_eq!([(); 2].map(|()| after(Ok(Served::Undecided))), [30.0, 30.0]);
        assert_eq!(after(Ok(Served::Unconfirmed(CalicoApi::V3))), 30.0);
        let away = || Err(ApiError::Unreachable(String::new()));
        assert_eq!([(); 2].map(|()| after(away())), [0.5, 1.0]);
        assert_eq!([after(Ok(Served::Unsettled)), after(away())], [10.0, 0.5]);
    }
}
