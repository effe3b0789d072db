//! The policy sync API: each workload with a socket follows its own policy, for a proxy that enforces what is above
//! connections (`PolicySyncPathPrefix`; Felix's `felix/policysync` and `pod2daemon/binder`, the client is Dikastes).
//!
//! # What clients see, as with Felix
//!
//! - Below the prefix, a CSI driver makes a folder `mount/VOLUME` for each volume, which is a folder of the pod as well, and
//!   then the file `creds/VOLUME.json`, a JSON object with `Namespace`, `Workload` (the pod), `UID` and `ServiceAccount`. A
//!   tenth of a second later there is a gRPC server of `felix.PolicySync` on `mount/VOLUME/socket`, without TLS, which all
//!   users may connect to. The socket alone says who asks; `SyncRequest` has no fields.
//! - `Sync` sends: the IP sets that the endpoint `k8s`, `NAMESPACE/POD`, `eth0` needs, its policies, its profiles, the endpoint;
//!   all service accounts and namespaces of the cluster; that all is in sync. Afterwards, what changes of these; what the
//!   endpoint no longer refers to is removed after the endpoint has been sent. Sequence numbers are 0. Routes and tunnels, which
//!   the protocol names, are not sent. Sets of many members come in several messages, the first one an `IPSetUpdate`.
//! - An endpoint that is not there yet may be followed; the others are sent. When it is removed, that is sent and the stream
//!   ends well. When the workload calls `Sync` once more, the stream before ends well.
//! - `Report` is answered with `successful: false`: what is said of a flow is not collected. Felix, with a collector, enters the
//!   addresses and ports of the flow there, and nothing else of it.
//!
//! # What is different on purpose
//!
//! - Felix waits for a client that does not read, and with it everything else does. Here a client is made its messages when
//!   it has room for some, from what is true then: of several changes in the meantime it sees the last. One that is behind by
//!   more members of an IP set than there are, and more than 100,000, is ended with `RESOURCE_EXHAUSTED` and may call again.
//! - Felix's configuration changes end its process and all streams. Here clients stay connected, and are sent the difference.
//! - Nothing is sent twice if it is the same. A delta may remove what is not there, or add what is.
//! - A socket is made again if it is gone, or if credentials or folder are other ones than before, and its connections end with
//!   its credentials; a socket that cannot be made is tried again. Felix does it once.
//! - Links are not followed in the pod's folder; credentials count in regular files of root or the agent's user that nobody
//!   else can write, and only with names. A socket takes four connections.
//!
//! # How
//!
//! One thread with an async runtime of its own. `State` is all that is known, with the members of each IP set once; `Table`
//! says what has changed since a client was told, so that a client costs a number for each set, and a set that nobody
//! follows costs its members. `Sockets` makes sockets come and go, `Service` speaks gRPC, and asks for more when HTTP/2
//! says that there is room.

mod authority;
#[cfg(test)]
mod fixture;
mod grpc;
mod members;
mod sockets;
mod state;
mod table;
mod workload;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;
use tokio::time::sleep;
use tonic::Status;
use tortie_model::desired::DesiredUpdate;

use crate::engine::{Observer, Progress};
use tortie_telemetry::health::{Health, Pulse, Reporter};

use grpc::{Reply, Wish};
use sockets::Sockets;
use state::{ClientId, End, Limits, State, Taken};

/// Interval of signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// How much is taken note of before clients are looked after.
const MAX_NOTED: usize = 10_000;

/// The policy sync API, from session to session.
#[derive(Debug)]
pub struct PolicySync {
    health: Health,
    running: Option<Running>,
}

/// Where the engine says what it enforces.
#[derive(Clone, Debug)]
pub struct Feed(UnboundedSender<Told>);

#[derive(Debug)]
enum Told {
    /// Everything will be told again.
    Restart,
    Update(DesiredUpdate),
    /// There is nobody to tell anything any more.
    End,
}

#[derive(Debug)]
struct Running {
    prefix: PathBuf,
    feed: Feed,
    thread: JoinHandle<()>,
}

impl PolicySync {
    /// An API that does not run yet and reports to `health` once it does.
    #[must_use]
    pub fn new(health: Health) -> Self {
        Self { health, running: None }
    }

    /// A session begins, which will tell everything. Clients of the session before stay, if `prefix` is the same. An empty one
    /// is for no API.
    pub fn begin(&mut self, prefix: &str) -> Option<Feed> {
        let prefix = Path::new(prefix);
        if let Some(running) = self.running.take_if(|running| running.prefix != prefix || running.thread.is_finished())
        {
            running.end();
        }
        if prefix.as_os_str().is_empty() {
            return None;
        }
        if let Some(running) = &self.running {
            let _ = running.feed.0.send(Told::Restart);
            return Some(running.feed.clone());
        }
        match Running::start(prefix, self.health.pulse(Reporter::PolicySync, Pulse::TIMEOUT)) {
            Ok(running) => Some(self.running.insert(running).feed.clone()),
            Err(error) => {
                tracing::error!(%error, "there is no policy sync API");
                None
            }
        }
    }
}

impl Drop for PolicySync {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

impl Running {
    fn start(prefix: &Path, pulse: Pulse) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (feed, told) = unbounded_channel();
        let (wishes, wished) = unbounded_channel();
        let sockets = Sockets::new(prefix.to_owned(), wishes);
        let serve = move || {
            runtime.block_on(async {
                let sockets = tokio::spawn(sockets.keep());
                let heart = async {
                    loop {
                        if !sockets.is_finished() {
                            pulse.beat();
                        }
                        sleep(BEAT).await;
                    }
                };
                let mut clients = Clients::new(Limits::default());
                tokio::select! {
                    () = clients.serve(told, wished) => {}
                    () = heart => {}
                }
                pulse.rest();
                // It removes the sockets, and clients see their connections end before their calls do.
                sockets.abort();
                let _ = sockets.await;
            });
        };
        let thread = thread::Builder::new().name("policysync".into()).spawn(serve)?;
        Ok(Self { prefix: prefix.to_owned(), feed: Feed(feed), thread })
    }

    fn end(self) {
        let _ = self.feed.0.send(Told::End);
        let _ = self.thread.join();
    }
}

impl Observer for Feed {
    fn on_update(&mut self, update: &DesiredUpdate) {
        if is_for_clients(update) {
            // A thread that has ended has said why.
            let _ = self.0.send(Told::Update(update.clone()));
        }
    }

    /// Clients are told what is to be enforced, whether or not it is already.
    fn on_progress(&mut self, _: &Progress, _: bool) {}
}

fn is_for_clients(update: &DesiredUpdate) -> bool {
    use DesiredUpdate::{
        InSync, IpSet, IpSetDelta, IpSetRemove, Namespace, NamespaceRemove, Policy, PolicyRemove, Profile,
        ProfileRemove, ServiceAccount, ServiceAccountRemove, WorkloadEndpoint, WorkloadEndpointRemove,
    };
    matches!(
        update,
        InSync
            | IpSet(_)
            | IpSetDelta(_)
            | IpSetRemove(_)
            | Policy(..)
            | PolicyRemove(_)
            | Profile(..)
            | ProfileRemove(_)
            | WorkloadEndpoint(..)
            | WorkloadEndpointRemove(_)
            | ServiceAccount(..)
            | ServiceAccountRemove(_)
            | Namespace(..)
            | NamespaceRemove(_)
    )
}

/// Those who follow, and what they are sent.
#[derive(Debug)]
struct Clients {
    state: State,
    replies: HashMap<ClientId, Sender<Reply>>,
    /// Those with room for more.
    waiting: BTreeSet<ClientId>,
}

impl Clients {
    fn new(limits: Limits) -> Self {
        Self { state: State::new(limits), replies: HashMap::new(), waiting: BTreeSet::new() }
    }

    /// Serves until there is no engine any more.
    async fn serve(&mut self, mut told: UnboundedReceiver<Told>, mut wished: UnboundedReceiver<Wish>) {
        loop {
            tokio::select! {
                Some(wish) = wished.recv() => self.on_wish(wish),
                told = told.recv() => match told {
                    Some(told) => if self.on_told(told).is_break() { return },
                    None => return,
                },
            }
            for _ in 0..MAX_NOTED {
                let Ok(told) = told.try_recv() else { break };
                if self.on_told(told).is_break() {
                    return;
                }
            }
            while let Ok(wish) = wished.try_recv() {
                self.on_wish(wish);
            }
            self.reply().await;
        }
    }

    fn on_told(&mut self, told: Told) -> ControlFlow<()> {
        match told {
            Told::Restart => self.state.on_restart(),
            Told::Update(update) => self.state.on_update(update),
            Told::End => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn on_wish(&mut self, wish: Wish) {
        match wish {
            Wish::Join { client, endpoint, replies } => {
                tracing::info!(%endpoint, client = client.0, "a policy sync client begins");
                self.state.join(client, endpoint);
                self.replies.insert(client, replies);
            }
            Wish::More(client) => {
                self.waiting.insert(client);
            }
            Wish::Leave(client) => {
                tracing::debug!(client = client.0, "a policy sync client is gone");
                self.state.leave(client);
                self.replies.remove(&client);
                self.waiting.remove(&client);
            }
        }
    }

    /// Sends those with room what there is.
    async fn reply(&mut self) {
        for client in self.waiting.clone() {
            let (reply, is_last) = match self.state.take(client) {
                Taken::Nothing => continue,
                Taken::Messages(messages) => (Ok(messages.iter().filter_map(serialise).collect()), false),
                Taken::End(end) => (last_words(end), true),
            };
            self.waiting.remove(&client);
            if let Some(replies) = self.replies.get(&client) {
                // There is room for one, which the client has asked for; one that is gone says so.
                let _ = replies.try_send(reply);
            }
            if is_last {
                tracing::info!(client = client.0, "a policy sync client is sent nothing more");
                self.replies.remove(&client);
            }
            // The connections have their turn.
            yield_now().await;
        }
    }
}

fn serialise(message: &DesiredUpdate) -> Option<Bytes> {
    tortie_protocol::encode(message, 0).map(Bytes::from)
}

fn last_words(end: End) -> Reply {
    match end {
        End::Removed(endpoint) => Ok(serialise(&DesiredUpdate::WorkloadEndpointRemove(endpoint)).into_iter().collect()),
        End::Replaced => Ok(Vec::new()),
        End::Behind => Err(Status::resource_exhausted("too much has changed that was not read; call again")),
    }
}

#[cfg(test)]
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic, reason = "generated code")]
#[path = "generated/client.rs"]
mod generated;
#[cfg(test)]
mod tests;
