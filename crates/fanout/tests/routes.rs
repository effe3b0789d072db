//! An agent behind a fan-out calculates the same routes and tunnels as from the datastore itself.
#![allow(clippy::disallowed_methods, reason = "tests look at clocks")]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_calc::{Graph, GraphConfig};
use tortie_datastore::{DirSource, Event, Watching, watch};
use tortie_fanout::client::{ClientConfig, FanoutSource};
use tortie_fanout::server::Server;
use tortie_fanout::typha::{TyphaOptions, TyphaSource};
use tortie_lab::sources::{Edit, Folder};
use tortie_resources::manifest::{BlockSource, Kind, ObjectId, Options};
use tortie_testkit::mock::MockDataplane;

/// A block of node-1.
const BLOCK: &str = "10.1.1.0/30";

/// Agent of node-1, with a mock of the dataplane.
struct Agent {
    name: &'static str,
    watching: Watching,
    graph: Graph,
    dataplane: MockDataplane,
}

impl Agent {
    fn new(name: &'static str, watching: Watching) -> Self {
        let graph = Graph::new(&GraphConfig::new("node-1".into()));
        Self { name, watching, graph, dataplane: MockDataplane::default() }
    }

    /// Takes the next event, if it comes soon.
    fn turn(&mut self) {
        match self.watching.events.recv_timeout(Duration::from_millis(5)) {
            Some(Event::Status(status)) => self.graph.on_status(status),
            Some(Event::Updates { updates, .. }) => {
                for update in updates {
                    self.graph.on_update(update);
                }
            }
            Some(_) | None => {}
        }
        let mut messages = Vec::new();
        self.graph.flush(&mut messages);
        self.dataplane.apply_batch(messages);
    }

    fn has_route(&self, net: &str) -> bool {
        net.parse().is_ok_and(|net| self.dataplane.routes.contains_key(&net))
    }
}

fn id(kind: Kind, name: &str) -> ObjectId {
    ObjectId { kind, namespace: "".into(), name: name.into() }
}

fn put(kind: Kind, name: &str, spec: &Value) -> Edit {
    let object = json!({
        "apiVersion": "projectcalico.org/v3", "kind": kind.as_str(), "metadata": {"name": name}, "spec": spec,
    });
    Edit::Put(id(kind, name), object)
}

fn node(number: u8, tunnel: &str, mac: &str) -> Edit {
    let spec = json!({
        "bgp": {"ipv4Address": format!("192.168.0.{number}/24"), "ipv6Address": format!("fd00::{number}/64")},
        "ipv4VXLANTunnelAddr": tunnel, "ipv6VXLANTunnelAddr": format!("fd01::{number}"), "vxlanTunnelMACAddr": mac,
    });
    put(Kind::Node, &format!("node-{number}"), &spec)
}

fn block(third: u8, node: &str) -> Edit {
    let spec = json!({
        "cidr": format!("10.1.{third}.0/30"), "affinity": format!("host:{node}"),
        "allocations": [0, null, null, 1], "unallocated": [1, 2],
        "attributes": [{"secondary": {"node": node}}, {"secondary": {"node": "node-1"}}],
    });
    put(Kind::IpamBlock, &format!("10-1-{third}-0-30"), &spec)
}

#[test]
fn routes_and_tunnel_ends_are_those_of_the_datastore_itself() {
    let mut folder = Folder::new().expect("a directory");
    let source = || {
        let options = Options { block_source: BlockSource::IpamBlocks, ..Options::default() };
        let source = DirSource::new(folder.path(), options).rescan_every(Duration::from_millis(50));
        watch(source).expect("a thread")
    };
    let server = Server::start(support::quick(), source()).expect("a server");
    let address = server.addresses()[0];
    let config = |blocks| ClientConfig { blocks, ..support::client_config(&[address], Some("node-1")) };
    let ours = |blocks| watch(FanoutSource::new(config(blocks)).expect("no certificates")).expect("a thread");
    let typha = TyphaOptions::new(vec![address.to_string()], "node-1");
    let typha = TyphaSource::new(TyphaOptions { blocks: true, ..typha }).expect("no certificates");
    let mut agents = [
        Agent::new("direct", source()),
        Agent::new("behind a fan-out", ours(true)),
        Agent::new("behind a fan-out, by the protocol of Typha", watch(typha).expect("a thread")),
        Agent::new("without blocks", ours(false)),
    ];

    let pool =
        |mode: &str| put(Kind::IpPool, "pool", &json!({"cidr": "10.1.0.0/16", "vxlanMode": mode, "natOutgoing": true}));
    let delete = |kind, name: &str| Edit::Delete(id(kind, name));
    // Edits; a route that exists afterwards, one that does not, and the number of tunnel endpoints.
    let steps = [
        (vec![pool("CrossSubnet"), node(1, "10.1.1.1", ""), node(2, "10.1.2.1", "")], "fd01::2/128", BLOCK, 2),
        (vec![block(1, "node-1"), block(2, "node-2"), block(3, "node-3")], "10.1.3.3/32", "10.1.3.1/32", 2),
        (vec![node(3, "10.1.3.1", "66:0a:0b:0c:0d:0e")], "10.1.3.1/32", "10.1.3.2/32", 3),
        (vec![node(3, "10.1.3.2", "66:0a:0b:0c:0d:0f")], "10.1.3.2/32", "10.1.3.1/32", 3),
        (vec![block(3, "node-2"), delete(Kind::IpamBlock, "10-1-2-0-30")], "10.1.3.0/30", "10.1.2.0/30", 3),
        (vec![delete(Kind::Node, "node-3")], "192.168.0.2/32", "192.168.0.3/32", 2),
        (vec![pool("Always"), delete(Kind::IpamBlock, "10-1-1-0-30")], "10.1.0.0/16", BLOCK, 2),
        (vec![node(2, "", "")], "10.1.3.0/30", "10.1.2.1/32", 2),
        (vec![delete(Kind::IpPool, "pool")], "", "10.1.0.0/16", 0),
    ];
    for (edits, present, absent, vteps) in steps {
        folder.edit(&edits).expect("files are written");
        let deadline = Instant::now() + support::SOON;
        loop {
            let [direct, behind @ .., without_blocks] = &agents;
            let is_done = (present.is_empty() || direct.has_route(present))
                && !direct.has_route(absent)
                && direct.dataplane.vteps.len() == vteps;
            let differ = behind.iter().find(|agent| agent.dataplane != direct.dataplane);
            if is_done && differ.is_none() && without_blocks.dataplane.vteps == direct.dataplane.vteps {
                assert!(!without_blocks.has_route(BLOCK));
                break;
            }
            assert!(
                Instant::now() < deadline,
                "after {edits:?}: done: {is_done}; {:#?}\n{:?}: {:#?}",
                direct.dataplane,
                differ.map(|agent| agent.name),
                differ.map(|agent| &agent.dataplane)
            );
            agents.iter_mut().for_each(Agent::turn);
        }
    }
}
