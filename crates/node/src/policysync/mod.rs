//! The policy sync API: each workload with a socket follows its own policy, for a proxy that
//! enforces application-layer policy (`PolicySyncPathPrefix`; Felix's `felix/policysync` and
//! `pod2daemon/binder`, the client is Dikastes).
//!
//! # Behaviour as in Felix
//!
//! - Below the prefix, a CSI driver creates a folder `mount/VOLUME` for each volume, which is a
//!   folder of the pod as well, and then the file `creds/VOLUME.json`, a JSON object with
//!   `Namespace`, `Workload` (the pod), `UID` and `ServiceAccount`. A tenth of a second later, a
//!   gRPC server of `felix.PolicySync` listens on `mount/VOLUME/socket`, without TLS; all users may
//!   connect. The socket alone identifies the client; `SyncRequest` has no fields.
//! - `Sync` sends: the IP sets that the endpoint `k8s`, `NAMESPACE/POD`, `eth0` needs, its
//!   policies, its profiles, the endpoint; all service accounts and namespaces of the cluster;
//!   `InSync`. Afterwards it sends the changes of these. Objects that the endpoint no longer refers
//!   to are removed after the endpoint has been sent. All sequence
//!   numbers are zero. Routes and tunnels, which the protocol has, are not sent. Large IP sets come
//!   in several messages, the first one an `IPSetUpdate`.
//! - A client may follow an endpoint that does not exist yet; all other objects are sent. When the
//!   endpoint is removed, that is sent and the stream ends without an error. When the workload
//!   calls `Sync` again, the earlier stream ends without an error.
//! - `Report` is answered with `successful: false`: reports about flows are not collected. Felix,
//!   with a collector, records the addresses and ports of the flow, and nothing else of the report.
//!
//! # Deliberate differences
//!
//! - Felix waits for a client that does not read, and everything else waits with it. Here the
//!   messages of a client are made when it has room for some, from the current state: of several
//!   changes in the meantime it gets the last. A client that is behind by more members of an IP set
//!   than the set has, and by more than 100,000, is ended with `RESOURCE_EXHAUSTED` and may call
//!   again.
//! - Felix's configuration changes end its process and all streams. Here clients stay connected,
//!   and are sent the difference.
//! - Nothing is sent twice if it is the same. A delta may remove members that the client does not
//!   have, or add members that it has.
//! - A socket is created again if it is missing, or if its credentials or folder have been
//!   replaced, and its connections end with its credentials; a failed creation is retried. Felix
//!   creates it once.
//! - Links in the pod's folder are not followed. Credentials count only in regular files of root or
//!   the agent's user that no other user can write, and only if they have names. A socket takes
//!   four connections.
//!
//! # Implementation
//!
//! One thread runs a separate async runtime. `State` holds the desired state, with the members of
//! each IP set once. `Table` records the changes that a client has not been sent, so that a client
//! costs a number for each set, and a set without clients costs only its members. `Sockets` creates
//! and removes sockets. `Service` implements gRPC, and requests more messages when HTTP/2 has room.

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

use grpc::{ClientRequest, Reply};
use sockets::Sockets;
use state::{ClientId, ClientOutput, End, Limits, State};

const BEAT: Duration = Duration::from_secs(1);
/// Maximum number of updates that are taken before clients are served.
const MAX_NOTED: usize = 10_000;

/// The policy sync API, from session to session.
#[derive(Debug)]
pub struct PolicySync {
    health: Health,
    running: Option<Running>,
}

/// Sender of the engine's updates.
#[derive(Clone, Debug)]
pub struct Feed(UnboundedSender<FeedMessage>);

#[derive(Debug)]
enum FeedMessage {
    /// The engine will send everything again.
    Restart,
    Update(DesiredUpdate),
    End,
}

#[derive(Debug)]
struct Running {
    prefix: PathBuf,
    feed: Feed,
    thread: JoinHandle<()>,
}

impl PolicySync {
    /// An API that does not run yet, and reports to `health` once it does.
    #[must_use]
    pub fn new(health: Health) -> Self {
        Self { health, running: None }
    }

    /// Begins a session. Clients stay if `prefix` is the same. An empty prefix disables the API.
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
            let _ = running.feed.0.send(FeedMessage::Restart);
            return Some(running.feed.clone());
        }
        match Running::start(prefix, self.health.pulse(Reporter::PolicySync, Pulse::TIMEOUT)) {
            Ok(running) => Some(self.running.insert(running).feed.clone()),
            Err(error) => {
                tracing::error!(%error, "the policy sync API is unavailable");
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
        let (feed, messages) = unbounded_channel();
        let (request_sender, requests) = unbounded_channel();
        let sockets = Sockets::new(prefix.to_owned(), request_sender);
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
                    () = clients.serve(messages, requests) => {}
                    () = heart => {}
                }
                pulse.rest();
                // Removes the sockets; clients see their connections end before their calls do.
                sockets.abort();
                let _ = sockets.await;
            });
        };
        let thread = thread::Builder::new().name("policysync".into()).spawn(serve)?;
        Ok(Self { prefix: prefix.to_owned(), feed: Feed(feed), thread })
    }

    fn end(self) {
        let _ = self.feed.0.send(FeedMessage::End);
        let _ = self.thread.join();
    }
}

impl Observer for Feed {
    fn on_update(&mut self, update: &DesiredUpdate) {
        if is_for_clients(update) {
            // A thread that has ended has logged the reason.
            let _ = self.0.send(FeedMessage::Update(update.clone()));
        }
    }

    /// Clients are sent the desired state, whether or not it is in force already.
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

#[derive(Debug)]
struct Clients {
    state: State,
    replies: HashMap<ClientId, Sender<Reply>>,
    waiting: BTreeSet<ClientId>,
}

impl Clients {
    fn new(limits: Limits) -> Self {
        Self { state: State::new(limits), replies: HashMap::new(), waiting: BTreeSet::new() }
    }

    async fn serve(
        &mut self,
        mut messages: UnboundedReceiver<FeedMessage>,
        mut requests: UnboundedReceiver<ClientRequest>,
    ) {
        loop {
            tokio::select! {
                Some(request) = requests.recv() => self.on_request(request),
                message = messages.recv() => match message {
                    Some(message) => if self.on_message(message).is_break() { return },
                    None => return,
                },
            }
            for _ in 0..MAX_NOTED {
                let Ok(message) = messages.try_recv() else { break };
                if self.on_message(message).is_break() {
                    return;
                }
            }
            while let Ok(request) = requests.try_recv() {
                self.on_request(request);
            }
            self.reply().await;
        }
    }

    fn on_message(&mut self, message: FeedMessage) -> ControlFlow<()> {
        match message {
            FeedMessage::Restart => self.state.on_restart(),
            FeedMessage::Update(update) => self.state.on_update(update),
            FeedMessage::End => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn on_request(&mut self, request: ClientRequest) {
        match request {
            ClientRequest::Join { client, endpoint, replies } => {
                tracing::info!(%endpoint, client = client.0, "a policy sync client begins");
                self.state.join(client, endpoint);
                self.replies.insert(client, replies);
            }
            ClientRequest::More(client) => {
                self.waiting.insert(client);
            }
            ClientRequest::Leave(client) => {
                tracing::debug!(client = client.0, "a policy sync client is gone");
                self.state.leave(client);
                self.replies.remove(&client);
                self.waiting.remove(&client);
            }
        }
    }

    async fn reply(&mut self) {
        for client in self.waiting.clone() {
            let (reply, is_last) = match self.state.take(client) {
                ClientOutput::Nothing => continue,
                ClientOutput::Messages(messages) => (Ok(messages.iter().filter_map(serialise).collect()), false),
                ClientOutput::End(end) => (final_reply(end), true),
            };
            self.waiting.remove(&client);
            if let Some(replies) = self.replies.get(&client) {
                // The client requested one, so there is room; one that is gone sends
                // [`ClientRequest::Leave`].
                let _ = replies.try_send(reply);
            }
            if is_last {
                tracing::info!(client = client.0, "a policy sync client is sent nothing more");
                self.replies.remove(&client);
            }
            // Lets the connections make progress.
            yield_now().await;
        }
    }
}

fn serialise(message: &DesiredUpdate) -> Option<Bytes> {
    tortie_protocol::encode(message, 0).map(Bytes::from)
}

fn final_reply(end: End) -> Reply {
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
