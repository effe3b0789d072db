//! Common test suite of all sources, for a directory that a server serves over an interruptible
//! connection.
#![allow(clippy::disallowed_methods, reason = "tests look at clocks")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use tortie_datastore::{DirSource, Source, watch};
use tortie_fanout::client::FanoutSource;
use tortie_fanout::server::{Server, ServerConfig};
use tortie_fanout::typha::{TyphaOptions, TyphaSource};
use tortie_lab::etcd::Proxy;
use tortie_lab::sources::{self, Edit, Folder, Need, SourceUnderTest};
use tortie_resources::manifest::Options;

struct UnderTest {
    folder: Folder,
    address: SocketAddr,
    server: Option<Server>,
    proxy: Proxy,
    protocol: Protocol,
}

#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    Ours,
    Typha,
}

fn serve(folder: &Folder, listen: SocketAddr) -> Server {
    let source = DirSource::new(folder.path(), Options::default()).rescan_every(Duration::from_millis(100));
    let config = ServerConfig { listen: vec![listen], ..support::quick() };
    Server::start(config, watch(source).expect("a thread")).expect("a server")
}

impl UnderTest {
    fn new(protocol: Protocol) -> Self {
        let folder = Folder::new().expect("a directory");
        let server = serve(&folder, SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = server.addresses()[0];
        let proxy = Proxy::to(address).expect("a proxy");
        Self { folder, address, server: Some(server), proxy, protocol }
    }
}

impl SourceUnderTest for UnderTest {
    fn source(&mut self) -> Box<dyn Source> {
        let server = self.proxy.address();
        match self.protocol {
            Protocol::Ours => {
                let config = support::client_config(&[server], Some("node-1"));
                Box::new(FanoutSource::new(config).expect("no certificates are needed"))
            }
            Protocol::Typha => {
                let mut options = TyphaOptions::new(vec![server.to_string()], "node-1");
                options.min_pause = Duration::from_millis(20);
                options.max_pause = Duration::from_millis(100);
                Box::new(TyphaSource::new(options).expect("no certificates are needed"))
            }
        }
    }

    fn edit(&mut self, edits: &[Edit]) {
        self.folder.edit(edits).expect("files are written");
    }

    fn lacks(&self) -> Vec<(Need, &'static str)> {
        match self.protocol {
            Protocol::Ours => Vec::new(),
            Protocol::Typha => vec![(Need::Problems, "the protocol does not carry them")],
        }
    }

    fn stop(&mut self) {
        self.server = None;
    }

    fn start(&mut self) {
        self.server = Some(serve(&self.folder, self.address));
    }

    fn cut(&mut self) {
        self.proxy.hang_up();
    }

    fn partition(&mut self) {
        self.proxy.hold_data();
    }

    fn heal(&mut self) {
        self.proxy.heal();
    }

    /// A server that restarts has no history.
    fn compact(&mut self) {
        self.stop();
        self.start();
    }
}

#[test]
fn passes_the_suite_of_all_sources() {
    let report = sources::run(|| UnderTest::new(Protocol::Ours));
    assert!(report.not_supported.is_empty(), "{report}");
}

#[test]
fn passes_the_suite_of_all_sources_by_the_protocol_of_typha() {
    let report = sources::run(|| UnderTest::new(Protocol::Typha));
    assert_eq!(report.not_supported.len(), 1, "{report}");
}
