//! Both ends of the chain of servers: the datastore, and the hello of a client.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tortie_datastore::{Feed, channel};
use tortie_fanout::protocol::frame::{self, Compression};
use tortie_fanout::protocol::{ClientHello, MAGIC, ToServer, VERSION, client};
use tortie_fanout::server::{Server, ServerConfig};
use tortie_model::Update;

/// Server in this program that sends each change at once.
#[derive(Debug)]
pub(crate) struct Datastore {
    feed: Feed,
    server: Server,
}

impl Datastore {
    pub(crate) fn start(updates: impl Iterator<Item = Update>) -> Self {
        let (feed, watching) = channel();
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let config = ServerConfig { listen, pace: Duration::ZERO, threads: 1, ..ServerConfig::default() };
        let datastore = Self { server: Server::start(config, watching).unwrap(), feed };
        datastore.feed.begin_resync().unwrap();
        updates.for_each(|update| datastore.send(update));
        datastore.feed.end_resync().unwrap();
        datastore
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    pub(crate) fn send(&self, update: Update) {
        self.feed.send([update], Instant::now()).unwrap();
    }
}

/// Sends the hello of a client of this node.
pub(crate) async fn greet(writer: &mut (impl AsyncWrite + Unpin), node: String) -> std::io::Result<()> {
    let hello = ClientHello { version: VERSION, node, software: "load".into(), ..ClientHello::default() };
    let hello = ToServer { message: Some(client::Message::Hello(hello)) };
    writer.write_all(&MAGIC).await?;
    writer.write_all(&frame::encode(&hello, Compression::None)).await
}
