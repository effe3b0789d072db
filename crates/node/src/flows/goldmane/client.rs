//! Sends the flows of an outbox, for ever.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use tortie_model::with_causes;

use super::outbox::SharedOutbox;
use super::proto::{FlowReceipt, FlowUpdate};
use super::receiver::{ConnectError, Receiver};

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) patience: Duration,
    pub(super) looks: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { first_pause: secs(1), longest_pause: secs(10), patience: secs(30), looks: secs(10) }
    }
}

#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("no connection")]
    Connect(#[from] ConnectError),
    #[error("no connection")]
    NotReady(#[source] tonic::transport::Error),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Status(#[from] Status),
    #[error("the server ended the connection")]
    Closed,
    #[error("the server confirmed a flow that was not sent")]
    Unasked,
    #[error("no answer within {} s", .0.as_secs_f32())]
    Silent(Duration),
}

#[derive(Debug)]
pub(super) struct Sender {
    receiver: Receiver,
    outbox: Arc<SharedOutbox>,
    pace: Pace,
    has_received: bool,
}

impl Sender {
    pub(super) fn new(receiver: Receiver, outbox: Arc<SharedOutbox>, pace: Pace) -> Self {
        Self { receiver, outbox, pace, has_received: false }
    }

    pub(super) async fn run(mut self) {
        let mut pause = self.pace.first_pause;
        let mut is_logged = false;
        loop {
            if let Receiver::Socket(path) = &self.receiver {
                let is_there = path.exists();
                self.outbox.set_wanted(is_there);
                if !is_there {
                    sleep(self.pace.looks).await;
                    continue;
                }
            }
            self.has_received = false;
            let Err(error) = self.session(is_logged).await;
            self.outbox.disconnected();
            if self.has_received {
                (pause, is_logged) = (self.pace.first_pause, false);
            }
            if !std::mem::replace(&mut is_logged, true) {
                let error = with_causes(&error);
                tracing::warn!(receiver = %self.receiver, %error, "the receiver takes no flows; retrying");
            }
            sleep(pause).await;
            pause = self.pace.longest_pause.min(pause * 2);
        }
    }

    async fn session(&mut self, was_lost: bool) -> Result<Infallible, SessionError> {
        let patience = self.pace.patience;
        let connect = timeout(patience, self.receiver.connect(patience));
        let mut client = Grpc::new(connect.await.map_err(|_| SessionError::Silent(patience))??);
        // A server may not answer at all before it has received a flow.
        let first = self.outbox.next().await;
        timeout(patience, client.ready())
            .await
            .map_err(|_| SessionError::Silent(patience))?
            .map_err(SessionError::NotReady)?;
        let (updates, requests) = mpsc::channel(1);
        let update = |flow: Arc<super::proto::Flow>| FlowUpdate { flow: Some(Arc::unwrap_or_clone(flow)) };
        updates.send(update(first)).await.map_err(|_| SessionError::Closed)?;
        let path = PathAndQuery::from_static("/goldmane.FlowCollector/Connect");
        let codec = ProstCodec::<FlowUpdate, FlowReceipt>::default();
        let stream = client.streaming(Request::new(ReceiverStream::new(requests)), path, codec);
        let mut receipts = timeout(patience, stream).await.map_err(|_| SessionError::Silent(patience))??.into_inner();
        loop {
            let receipt = timeout(patience, receipts.message()).await.map_err(|_| SessionError::Silent(patience))??;
            receipt.ok_or(SessionError::Closed)?;
            self.outbox.received();
            if !std::mem::replace(&mut self.has_received, true) {
                tracing::info!(receiver = %self.receiver, again = was_lost, "flows are received");
            }
            let flow = tokio::select! {
                biased;
                // Nothing is to be sent now, but the end of the connection is noticed at once.
                receipt = receipts.message() => return Err(receipt?.map_or(SessionError::Closed, |_| SessionError::Unasked)),
                flow = self.outbox.next() => flow,
            };
            updates.send(update(flow)).await.map_err(|_| SessionError::Closed)?;
        }
    }
}
