//! The datastores of these tests, and the observed state of a node.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tortie_lab::etcd::{Etcd, EtcdOptions, Proxy};
use tortie_lab::netns::Namespace;

use crate::agent::Node;

const PATIENCE: Duration = Duration::from_secs(90);

/// An etcd, with the commands that write into it.
pub(crate) struct Cluster {
    pub(crate) etcd: Etcd,
}

impl Cluster {
    pub(crate) fn start(resources: &str) -> Self {
        let cluster = Self { etcd: Etcd::start(EtcdOptions::default()).unwrap() };
        cluster.apply(resources);
        cluster
    }

    pub(crate) fn apply(&self, resources: &str) {
        self.tortie("apply", resources);
    }

    pub(crate) fn delete(&self, resources: &str) {
        self.tortie("delete", resources);
    }

    fn tortie(&self, verb: &str, resources: &str) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args([verb, "--datastore", &self.etcd.url(), "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(resources.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// `tortie fanout` on loopback.
pub(crate) struct FanOut {
    child: Child,
    /// Address for agents of both protocols.
    pub(crate) address: SocketAddr,
    log: TempDir,
}

impl FanOut {
    /// Serves this datastore at this address; port 0 is any.
    pub(crate) fn start(datastore: &str, address: SocketAddr) -> Self {
        let log = TempDir::new().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["fanout", "--datastore", datastore, "--listen", &address.to_string(), "--log-format", "json"])
            .args(["--shutdown-timeout", "10"])
            .stdin(Stdio::null())
            .stderr(File::create(log.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut fan_out = Self { child, address, log };
        let until = Instant::now() + PATIENCE;
        fan_out.address = loop {
            let log = fan_out.log();
            let line = log.lines().find(|line| line.contains("listening for agents"));
            if let Some(rest) = line.and_then(|line| line.split_once("\"address\":\"")) {
                break rest.1.split('"').next().unwrap().parse().unwrap();
            }
            assert!(Instant::now() < until, "{log}");
            thread::sleep(Duration::from_millis(10));
        };
        fan_out
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log.path().join("log")).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with a workload, and the proxies to its datastore.
pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) pod: Namespace,
    links: Vec<Proxy>,
}

/// Number of writes to the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) restores: f64,
    pub(crate) set_lines: f64,
}

impl Site {
    /// Returns a node whose agent reads this datastore at these addresses.
    pub(crate) fn new(datastore: String, addresses: &[SocketAddr]) -> Self {
        let node = Node::reading("nft", datastore);
        let pod = Namespace::new().unwrap();
        node.shell(&format!(
            "ip link add cali0web address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}\n\
             ip link set cali0web up\nip address add 192.0.2.1/32 dev lo\n\
             iptables-nft -A FORWARD -s 192.0.2.7 -j DROP\niptables-nft -N KUBE-SOMETHING\nipset create mine hash:ip",
            pod.path().display()
        ));
        pod.shell(
            "ip link set eth0 up\nip address add 10.65.0.2/32 dev eth0\nip route add 169.254.1.1 dev eth0\n\
             ip neighbour add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0\nip route add default via 169.254.1.1",
        )
        .unwrap();
        let links = addresses.iter().map(|address| node.carry(*address)).collect();
        Self { node, pod, links }
    }

    pub(crate) fn started(datastore: String, addresses: &[SocketAddr]) -> Self {
        let mut site = Self::new(datastore, addresses);
        site.node.start();
        site
    }

    /// Makes the datastore unreachable.
    pub(crate) fn cut(&self) {
        self.links.iter().for_each(Proxy::cut);
    }

    pub(crate) fn heal(&self) {
        self.links.iter().for_each(Proxy::heal);
    }

    /// Returns rules, sets and routes.
    pub(crate) fn state(&self) -> String {
        self.node.kernel_state() + "\n" + &self.node.shell("ip -4 route show")
    }

    pub(crate) fn work(&self) -> Work {
        Work {
            restores: self.node.metric("felix_iptables_restore_calls"),
            set_lines: self.node.metric("felix_ipset_lines_executed"),
        }
    }

    /// Sends packets of the workload, which rules count.
    pub(crate) fn send(&self) {
        let send = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in 9..12 {
                socket.send_to(b"x", ("192.0.2.1", port)).unwrap();
            }
        };
        self.pod.run(send).unwrap();
    }

    /// Returns the packet counts of the rules in the filter table that have any.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for line in self.node.shell("iptables-nft-save -c -t filter").lines() {
            let Some((counted, rule)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) else { continue };
            let packets: u64 = counted.split(':').next().unwrap().parse().unwrap();
            *counters.entry(rule.to_owned()).or_default() += packets;
        }
        counters.retain(|_, packets| *packets > 0);
        counters
    }

    pub(crate) fn until_unavailable(&mut self) {
        self.until_unavailable_within(PATIENCE);
    }

    pub(crate) fn until_unavailable_within(&mut self, patience: Duration) {
        self.node.until_within(patience, "200", |answer| answer.contains("the datastore cannot be read: "));
    }

    pub(crate) fn until_available(&mut self) {
        self.node.until_readiness("200", |answer| !answer.contains("cannot be read"));
    }
}

/// Waits until the kernels are as wanted and equal, and returns their state.
pub(crate) fn equal(condition: &str, sites: &[&Site], is_expected: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut states = sites.iter().map(|site| site.state());
        let first = states.next().unwrap();
        if is_expected(&first) && states.all(|state| state == first) {
            return first;
        }
        if Instant::now() > until {
            let all: Vec<String> =
                sites.iter().map(|site| format!("{}\n{}\n", site.state(), site.node.log())).collect();
            panic!("waiting until {condition}\n{}", all.join("\n======\n"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the lines that only `before` has, and those that only `after` has.
pub(crate) fn differences<'s>(before: &'s str, after: &'s str) -> (Vec<&'s str>, Vec<&'s str>) {
    let only = |of: &'s str, other: &'s str| {
        let other: Vec<&str> = other.lines().collect();
        of.lines().filter(|line| !other.contains(line)).collect()
    };
    (only(before, after), only(after, before))
}
