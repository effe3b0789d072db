//! A server that takes flows, or does not.

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream, UnixListenerStream};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tortie_lab::certificates::Issued;

use crate::flows::goldmane::proto::{FlowReceipt, FlowUpdate};

/// Reaction to a flow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behaviour {
    /// Confirms it.
    Confirms,
    /// Confirms it twice.
    ConfirmsTwice,
    /// Does not answer.
    Hangs,
    /// Confirms so many, and ends the connection at the next.
    BreaksOff { after: usize },
}

/// Address of the server.
#[derive(Debug)]
pub(super) enum Listening {
    At(SocketAddr),
    Socket(PathBuf),
    /// Anywhere, with this certificate, for those who have one of the same authority.
    Tls(Issued),
}

impl Listening {
    pub(super) fn any() -> Self {
        Self::At((Ipv4Addr::LOCALHOST, 0).into())
    }
}

#[derive(Debug)]
struct State {
    behaviour: Mutex<Behaviour>,
    /// The start times of the flows of each stream.
    received: Mutex<Vec<Vec<i64>>>,
}

/// A server, until it is dropped.
#[derive(Debug)]
pub(super) struct Fake {
    state: Arc<State>,
    address: Option<SocketAddr>,
    accepted: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Fake {
    pub(super) fn start(listening: Listening, behaviour: Behaviour) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let state = Arc::new(State { behaviour: Mutex::new(behaviour), received: Mutex::default() });
        let accepted = Arc::new(AtomicUsize::new(0));
        let service = Collects(Arc::clone(&state));
        let address = runtime.block_on(async {
            let mut server = Server::builder();
            if let Listening::Tls(issued) = &listening {
                let read = |path: &PathBuf| std::fs::read(path).unwrap();
                let tls = ServerTlsConfig::new()
                    .identity(Identity::from_pem(read(&issued.certificate), read(&issued.key)))
                    .client_ca_root(Certificate::from_pem(read(&issued.authority)));
                server = server.tls_config(tls).unwrap();
            }
            let router = server.add_service(service);
            match listening {
                Listening::Socket(path) => {
                    let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
                    tokio::spawn(router.serve_with_incoming(incoming));
                    None
                }
                Listening::At(_) | Listening::Tls(_) => {
                    let at = match listening {
                        Listening::At(address) => address,
                        _ => (Ipv4Addr::LOCALHOST, 0).into(),
                    };
                    let listener = TcpListener::bind(at).await.unwrap();
                    let address = listener.local_addr().unwrap();
                    let accepted = Arc::clone(&accepted);
                    let incoming = tokio_stream::StreamExt::map(TcpListenerStream::new(listener), move |stream| {
                        accepted.fetch_add(1, Ordering::Relaxed);
                        stream
                    });
                    tokio::spawn(router.serve_with_incoming(incoming));
                    Some(address)
                }
            }
        });
        Self { state, address, accepted, runtime: Some(runtime) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        *self.state.behaviour.lock().unwrap() = behaviour;
    }

    /// Returns the flows of each stream that brought any.
    pub(super) fn received(&self) -> Vec<Vec<i64>> {
        self.state.received.lock().unwrap().clone()
    }

    /// Returns the number of connections without such a stream.
    pub(super) fn refused(&self) -> usize {
        self.accepted.load(Ordering::Relaxed) - self.received().len()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // Ends all connections.
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[derive(Clone)]
struct Collects(Arc<State>);

impl Collects {
    /// Takes an update of a stream; returns false if the connection is to end.
    fn take(
        &self,
        stream: usize,
        update: &FlowUpdate,
        receipts: &UnboundedSender<Result<FlowReceipt, Status>>,
    ) -> bool {
        let mut received = self.0.received.lock().unwrap();
        let flows = &mut received[stream];
        flows.push(update.flow.as_ref().unwrap().start_time);
        let times = match *self.0.behaviour.lock().unwrap() {
            Behaviour::ConfirmsTwice => 2,
            Behaviour::Hangs => 0,
            Behaviour::BreaksOff { after } if flows.len() > after => return false,
            Behaviour::Confirms | Behaviour::BreaksOff { .. } => 1,
        };
        (0..times).all(|_| receipts.send(Ok(FlowReceipt {})).is_ok())
    }
}

impl NamedService for Collects {
    const NAME: &'static str = "goldmane.FlowCollector";
}

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Collects {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), "/goldmane.FlowCollector/Connect");
        let method = Method(self.clone());
        let mut grpc = Grpc::new(ProstCodec::<FlowReceipt, FlowUpdate>::default());
        Box::pin(async move { Ok(grpc.streaming(method, request).await) })
    }
}

struct Method(Collects);

impl StreamingService<FlowUpdate> for Method {
    type Response = FlowReceipt;
    type ResponseStream = UnboundedReceiverStream<Result<FlowReceipt, Status>>;
    type Future = Answer<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<FlowUpdate>>) -> Self::Future {
        let collects = self.0.clone();
        Box::pin(async move {
            let mut updates = request.into_inner();
            // As a server in Go, which says nothing at all before it has something to say.
            let first = updates.message().await?.ok_or_else(|| Status::cancelled("nothing came"))?;
            let stream = {
                let mut received = collects.0.received.lock().unwrap();
                received.push(Vec::new());
                received.len() - 1
            };
            let (receipts, answer) = unbounded_channel();
            if collects.take(stream, &first, &receipts) {
                tokio::spawn(async move {
                    while let Ok(Some(update)) = updates.message().await {
                        if !collects.take(stream, &update, &receipts) {
                            break;
                        }
                    }
                });
            }
            Ok(Response::new(UnboundedReceiverStream::new(answer)))
        })
    }
}
