//! A virtual machine that moves to the node.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tortie_lab::ethernet::{FrameSender, gratuitous_arp, reverse_arp};
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

const PATIENCE: Duration = Duration::from_secs(90);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 2);

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: vm-new, namespace: shop, labels: {vmi.kubevirt.io/id: vm, kubevirt.io/migrationJobUID: job}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}, {ip: 'fd00:65::2'}]}
";

/// The migration, whose removal ends it.
const MOVE: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: move, namespace: shop, uid: job}
spec: {vmiName: vm}
status: {phase: Running, migrationState: {sourcePod: vm-old}}
";

/// A node with the interface of the machine's new pod.
struct Bench {
    node: Node,
    interface: String,
    machine: FrameSender,
    /// Output of `ip monitor route`.
    log: Arc<Mutex<Vec<String>>>,
    _pod: Namespace,
}

impl Bench {
    fn new(backend: &'static str) -> Self {
        let mut node = Node::new(backend, CLUSTER);
        node.write("move.yaml", MOVE);
        node.set("FELIX_LIVEMIGRATIONROUTECONVERGENCETIME", "3");
        let interface = interface_name(&LabHost::pod("shop", "vm-new")).unwrap();
        let pod = Namespace::new().unwrap();
        node.shell(&format!(
            "ip link add {interface} type veth peer name eth0 netns {}; ip link set {interface} up",
            pod.path().display()
        ));
        pod.shell("ip link set eth0 up").unwrap();
        let machine = FrameSender::open(&pod, "eth0").unwrap();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut bench = Self { node, interface, machine, log, _pod: pod };
        bench.listen();
        bench
    }

    /// Records each change of the routes, in the order in which the kernel makes them.
    fn listen(&mut self) {
        let mut ip = Command::new("ip");
        ip.args(["monitor", "route"]).stdout(Stdio::piped());
        let lines = self.node.start_beside(&mut ip);
        let log = Arc::clone(&self.log);
        thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                log.lock().unwrap().push(line);
            }
        });
        // Waits until the monitor has started.
        self.until("changes of routes are reported", |bench| {
            bench.node.shell("ip route replace blackhole 192.0.2.1; ip route del blackhole 192.0.2.1");
            !bench.log.lock().unwrap().is_empty()
        });
    }

    /// Returns the metrics of the routes to the machine.
    fn metrics(&self) -> Vec<String> {
        let routes = ["-4", "-6"]
            .map(|family| self.node.shell(&format!("ip {family} route show dev {} table main", self.interface)));
        let routes = routes.concat();
        let to_machine = |line: &&str| ["10.65.0.2 ", "fd00:65::2 "].iter().any(|to| line.starts_with(to));
        let metric =
            |line: &str| line.split_once("metric ").map(|(_, rest)| rest.split(' ').next().unwrap().to_owned());
        routes.lines().filter(to_machine).map(|line| metric(line).unwrap_or_default()).collect()
    }

    /// Returns the number of manifest files with a recorded last valid version.
    fn records(&self) -> usize {
        let records = self.node.shell(&format!("find {} -type f", self.node.state().join("last-good").display()));
        records.lines().count()
    }

    fn until(&self, condition: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "waiting until {condition}\n{:?}\n{}", self.metrics(), self.node.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_state(&self, state: &str) {
        let wanted = format!("\"to\":\"{state}\"");
        self.until(state, |bench| bench.node.log().contains(&wanted));
    }

    /// Returns the changes of routes to the machine's IPv4 address: `+` for a new route, `-` for a
    /// deleted one, with the metric.
    fn changes(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let of_machine = log.iter().filter(|line| line.contains("10.65.0.2 ") && line.contains("metric"));
        let short = |line: &String| {
            let sign = if line.starts_with("Deleted") { '-' } else { '+' };
            format!("{sign}{}", line.split_once("metric ").unwrap().1.split(' ').next().unwrap())
        };
        of_machine.map(short).collect()
    }
}

tortie_lab::kernel_test! {
    fn a_machine_that_announces_itself_gets_routes_and_keeps_them() {
        for (backend, announcement) in [("nft", reverse_arp(MAC)), ("legacy", gratuitous_arp(MAC, ADDRESS))] {
            let mut bench = Bench::new(backend);
            bench.node.start();
            bench.until_state("Target");
            assert_eq!(bench.metrics(), [] as [&str; 0], "it runs elsewhere");
            bench.until("it has announced itself", |bench| {
                bench.machine.send(&announcement).unwrap();
                bench.metrics() == ["512", "512"]
            });

            // An agent that starts after a kill leaves the routes unchanged.
            bench.node.stop(Signal::KILL);
            bench.node.start();
            assert_eq!(bench.metrics(), ["512", "512"]);

            std::fs::remove_file(bench.node.manifests().join("move.yaml")).unwrap();
            bench.until_state("TimeWait");
            bench.until("the routes have the usual metric", |bench| bench.metrics() == ["1024", "1024"]);
            bench.until("the end of the migration is reported", |bench| bench.changes().len() >= 3);
            assert_eq!(bench.changes(), ["+512", "+1024", "-512"], "there is a route at any time");

            // A restart after the migration changes nothing.
            bench.node.stop(Signal::TERM);
            bench.node.start();
            assert_eq!(bench.metrics(), ["1024", "1024"]);
            assert_eq!(bench.changes().len(), 3);
        }
    }

    fn a_kill_in_any_state_is_made_up_for() {
        let mut bench = Bench::new("nft");
        // So long that the kill comes first.
        bench.node.set("FELIX_LIVEMIGRATIONROUTECONVERGENCETIME", "3600");
        bench.node.start();
        bench.until_state("Target");
        bench.node.stop(Signal::KILL);
        bench.node.start();
        assert_eq!(bench.metrics(), [] as [&str; 0]);
        bench.until("it has announced itself", |bench| {
            bench.machine.send(&reverse_arp(MAC)).unwrap();
            bench.metrics() == ["512", "512"]
        });
        std::fs::remove_file(bench.node.manifests().join("move.yaml")).unwrap();
        bench.until_state("TimeWait");
        // A start with a recorded migration continues it until the file has settled.
        bench.until("only the machine's own manifest is known from before", |bench| bench.records() == 1);
        bench.node.stop(Signal::KILL);
        assert_eq!(bench.metrics(), ["512", "512"]);
        // The end of the migration is not recorded.
        bench.node.start();
        bench.until("the routes have the usual metric", |bench| bench.metrics() == ["1024", "1024"]);
        bench.until("the end of the migration is reported", |bench| bench.changes().len() >= 3);
        assert_eq!(bench.changes(), ["+512", "+1024", "-512"]);
    }
}
