//! The agents of the guide about embedding, on a real kernel, with pods as a CNI plugin connects
//! them.

#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "a test that makes pods and connects them")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tortie_lab::netns::Namespace;

#[allow(dead_code, unreachable_pub, reason = "where it is a program, it is public, and has a command line")]
#[path = "../../../examples/cni_agent.rs"]
mod cni_agent;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/own_source.rs"]
mod own_source;

const PORT: u16 = 5432;

/// A pod with this last byte of its address, which serves a port.
struct Pod {
    namespace: Namespace,
    address: IpAddr,
    _server: TcpListener,
}

impl Pod {
    fn new(node: &Namespace, prefix: &str, last: u8) -> Self {
        let namespace = Namespace::new().unwrap();
        let address = Ipv4Addr::new(10, 65, 1, last);
        let path = namespace.path();
        let device = format!("{prefix}{last}");
        let cable = format!("ip link add {device} type veth peer name eth0 netns {}", path.display());
        let up = format!(
            "ip link set {device} up; ip addr add 10.65.1.254/32 dev {device}; ip route add {address} dev {device}"
        );
        node.shell(&format!("{cable}; {up}")).unwrap();
        let routes = "ip route add 10.65.1.254 dev eth0; ip route add default via 10.65.1.254";
        namespace.shell(&format!("ip addr add {address}/32 dev eth0; ip link set eth0 up; {routes}")).unwrap();
        let server = namespace.run(|| TcpListener::bind((address, PORT))).unwrap().unwrap();
        Self { namespace, address: address.into(), _server: server }
    }

    fn reaches(&self, other: &Self) -> bool {
        let address = SocketAddr::new(other.address, PORT);
        self.namespace.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()).unwrap()
    }
}

fn until(condition: &str, log: &Mutex<Vec<String>>, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waiting until {condition}: {:?}", log.lock().unwrap());
        thread::sleep(Duration::from_millis(50));
    }
}

tortie_lab::kernel_test! {
    fn pods_that_policy_admits_talk_and_others_do_not() {
        let node = Arc::new(Namespace::new().unwrap());
        node.shell("sysctl -qw net.ipv4.ip_forward=1").unwrap();
        let (web, api, db) = (Pod::new(&node, "veth", 1), Pod::new(&node, "veth", 2), Pod::new(&node, "veth", 3));
        let log = Arc::new(Mutex::new(Vec::new()));
        until("pods are connected", &log, || web.reaches(&db) && api.reaches(&db));

        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");
        let (on, shared_log) = (Arc::clone(&node), Arc::clone(&log));
        thread::spawn(move || {
            // Processes that this thread starts are on the node.
            on.enter().unwrap();
            let print = |line| shared_log.lock().unwrap().push(line);
            cni_agent::enforce(directory, "demo-node", print).unwrap();
        });
        until("the web server is kept from the database", &log, || !web.reaches(&db));
        assert!(api.reaches(&db), "{:?}", log.lock().unwrap());
        let rules = node.shell("iptables-nft-save -t filter").unwrap();
        assert!(rules.contains("NetworkPolicy shop/db-clients ingress"), "{rules}");
    }

    fn an_agent_enforces_the_objects_of_its_embedder_until_that_ends_it() {
        let node = Arc::new(Namespace::new().unwrap());
        node.shell("sysctl -qw net.ipv4.ip_forward=1").unwrap();
        let (web, api, db) = (Pod::new(&node, "cali", 1), Pod::new(&node, "cali", 2), Pod::new(&node, "cali", 3));
        until("pods are connected", &Mutex::default(), || web.reaches(&db) && api.reaches(&db));

        // It returns once the agent has ended, and leaves everything in force.
        let on = Arc::clone(&node);
        let agent = thread::spawn(move || {
            on.enter().unwrap();
            own_source::main().map_err(|error| error.to_string())
        });
        agent.join().unwrap().unwrap();
        assert!(!web.reaches(&db) && !db.reaches(&api));
        assert!(api.reaches(&db) && api.reaches(&web));
        let rules = node.shell("iptables-nft-save -t filter").unwrap();
        assert!(rules.contains("GlobalNetworkPolicy api ingress"), "{rules}");
        let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
        let names: Vec<String> = threads.filter_map(|comm| std::fs::read_to_string(comm).ok()).collect();
        assert!(!names.iter().any(|name| name.trim() == "agent"), "{names:?}");
    }
}
