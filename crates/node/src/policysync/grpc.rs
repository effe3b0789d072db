//! The service `felix.PolicySync` on one connection, whose socket identifies the client.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, UnboundedSender, channel};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::codegen::tokio_stream::Stream;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tortie_model::WorkloadEndpointId;

use super::authority::WithoutAuthority;
use super::state::ClientId;

const MAX_CALLS: u32 = 4;
/// The longest headers of a call, bytes.
const MAX_HEADERS: u32 = 16 * 1024;
/// The longest message of a client, bytes.
const MAX_REQUEST: usize = 64 * 1024;
/// Unread bytes of a client, for one call and for a whole connection; the library's default is 1
/// MiB.
const WINDOW: u32 = 64 * 1024;

#[derive(Debug)]
pub(super) enum ClientRequest {
    /// Follow the policy of an endpoint. The messages are sent to `replies`, once for each
    /// [`ClientRequest::More`].
    Join { client: ClientId, endpoint: WorkloadEndpointId, replies: tokio::sync::mpsc::Sender<Reply> },
    /// Send the waiting messages, now or as soon as there are any.
    More(ClientId),
    /// Send nothing more.
    Leave(ClientId),
}

/// Messages, each a serialised `felix.ToDataplane`, or the reason why there are no more.
pub(super) type Reply = Result<Vec<Bytes>, Status>;

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) endpoint: WorkloadEndpointId,
    pub(super) requests: UnboundedSender<ClientRequest>,
    pub(super) next_client: Arc<AtomicU64>,
}

impl Service {
    pub(super) async fn serve(self, connection: UnixStream) {
        let answer = service_fn(|request| self.clone().answer(request));
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.max_concurrent_streams(MAX_CALLS).max_header_list_size(MAX_HEADERS);
        server.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let connection = TokioIo::new(WithoutAuthority::new(connection));
        if let Err(error) = server.serve_connection(connection, answer).await {
            tracing::debug!(endpoint = %self.endpoint, %error, "a connection of a policy sync client failed");
        }
    }

    async fn answer(self, request: http::Request<Incoming>) -> Result<http::Response<Body>, Infallible> {
        let mut grpc = Grpc::new(Serialised).max_decoding_message_size(MAX_REQUEST);
        Ok(match request.uri().path() {
            "/felix.PolicySync/Sync" => grpc.server_streaming(Sync(self), request).await,
            "/felix.PolicySync/Report" => grpc.unary(Report, request).await,
            _ => Status::unimplemented("there is no such method").into_http(),
        })
    }
}

#[derive(Debug)]
struct Sync(Service);

impl ServerStreamingService<()> for Sync {
    type Response = Bytes;
    type ResponseStream = Updates;
    type Future = Ready<Result<Response<Updates>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let Service { endpoint, requests, next_client } = self.0.clone();
        let client = ClientId(next_client.fetch_add(1, Ordering::Relaxed));
        let (replies, received) = channel(1);
        let _ = requests.send(ClientRequest::Join { client, endpoint, replies });
        ready(Ok(Response::new(Updates { client, requests, received, next: VecDeque::new(), has_asked: false })))
    }
}

/// Reports of a proxy about flows are refused, as by a Felix without a collector.
#[derive(Debug)]
struct Report;

impl UnaryService<()> for Report {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        // A `ReportResult` whose only field, `successful`, is false has no bytes.
        ready(Ok(Response::new(Bytes::new())))
    }
}

/// The messages of a client. It requests more when the connection has room, so that unread messages
/// do not pile up.
#[derive(Debug)]
struct Updates {
    client: ClientId,
    requests: UnboundedSender<ClientRequest>,
    received: Receiver<Reply>,
    next: VecDeque<Bytes>,
    has_asked: bool,
}

impl Stream for Updates {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.next.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            if !self.has_asked {
                self.has_asked = true;
                let _ = self.requests.send(ClientRequest::More(self.client));
            }
            match ready!(self.received.poll_recv(context)) {
                Some(Ok(messages)) => {
                    self.next = messages.into();
                    self.has_asked = false;
                }
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        let _ = self.requests.send(ClientRequest::Leave(self.client));
    }
}

/// The server's messages are serialised already; the content of clients' messages is ignored.
#[derive(Clone, Copy, Debug)]
struct Serialised;

impl Codec for Serialised {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Serialised {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(message.len());
        to.put(message);
        Ok(())
    }
}

impl Decoder for Serialised {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}
