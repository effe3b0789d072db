//! The dataplane against real kernels, in private network namespaces: tables and IP sets are real,
//! the rest is in memory.
#![allow(clippy::disallowed_methods, reason = "runs the real programs, in private network namespaces")]

#[path = "kernel/domains.rs"]
mod domains;
#[path = "kernel/reject.rs"]
mod reject;

use std::net::UdpSocket;
use std::process::Command as Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    CleanupConfig, Clock, Command, CommandStatus, Conntrack, Dataplane, DataplaneConfig, DomainLearner, Kernel,
    KernelError, LinkEvent, Links, Neighbours, Netfilter, Outcome, Routing, Sysctls, cleanup,
};
use tortie_iptables::{Backend, Programs};
use tortie_lab::kernel_test;
use tortie_lab::netns::{Namespace, NetnsError};
use tortie_lab::pods::{Lab, LabOptions, Pod, interface_name};
use tortie_model::desired::{
    DesiredUpdate, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{Family, IpPool, PolicyId, PolicyKind, Rule, RuleAction, WorkloadEndpoint, WorkloadEndpointId};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};
use tortie_rules::{Marks, RulesConfig};

/// Runs commands in a network namespace.
struct RealKernel<'a> {
    namespace: &'a Namespace,
    rest: FakeKernel,
    /// Programs that were run with input to write.
    writes: Vec<String>,
    /// A program that cannot be run.
    broken: Option<&'static str>,
}

impl<'a> RealKernel<'a> {
    fn new(namespace: &'a Namespace, backend: Backend, interfaces: [&str; 2]) -> Self {
        Self { namespace, rest: FakeKernel::new(backend, interfaces), writes: Vec::new(), broken: None }
    }

    fn output(&self, program: &str, args: &[&str]) -> String {
        let output = self.namespace.output(Process::new(program).args(args), "").expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Kernel for RealKernel<'_> {
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        self.rest.sysctls()
    }

    fn domains(&mut self) -> Option<&mut dyn DomainLearner> {
        self.rest.domains()
    }

    fn conntrack(&mut self) -> Option<&mut dyn Conntrack> {
        self.rest.conntrack()
    }

    fn routing(&mut self) -> Option<&mut dyn Routing> {
        self.rest.routing()
    }

    fn links(&mut self) -> Option<&mut dyn Links> {
        self.rest.links()
    }

    fn neighbours(&mut self) -> Option<&mut dyn Neighbours> {
        self.rest.neighbours()
    }
}

impl Clock for RealKernel<'_> {
    fn now(&mut self) -> Duration {
        self.rest.now()
    }

    fn sleep(&mut self, duration: Duration) {
        self.rest.sleep(duration);
    }
}

impl Netfilter for RealKernel<'_> {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        for command in &commands {
            if command.program.ends_with("-restore") || command.args.iter().any(|a| a == "restore" || a == "destroy") {
                self.writes.push(format!("{command}\n{}", command.input));
            }
        }
        let (namespace, broken) = (self.namespace, self.broken);
        let run = move |command: Command| {
            if broken == Some(command.program.as_str()) {
                return Outcome::not_run("Too many open files");
            }
            match namespace.output(Process::new(&command.program).args(&command.args), &command.input) {
                Ok(output) => Outcome::success(output.stdout),
                Err(NetnsError::Command { stderr, .. }) => {
                    Outcome { status: CommandStatus::Code(1), stdout: Vec::new(), stderr }
                }
                Err(error) => Outcome::not_run(error.to_string()),
            }
        };
        // Concurrently, as in the agent.
        std::thread::scope(|scope| {
            let running: Vec<_> = commands.into_iter().map(|command| scope.spawn(move || run(command))).collect();
            running.into_iter().map(|running| running.join().expect("it does not panic")).collect()
        })
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.rest.read_nftables(table)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.rest.commit_nftables(transaction)
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        None
    }
}

/// Two workloads that only clients may reach.
fn updates(interfaces: [&str; 2]) -> Vec<DesiredUpdate> {
    let clients = vec!["10.1.0.0/16".parse().expect("CIDR"), "fd01::/64".parse().expect("CIDR")];
    let set = IpSetUpdate { id: "s:clients".into(), set_type: IpSetType::Net, members: Members::Nets(clients) };
    let mut updates = vec![DesiredUpdate::IpSet(set)];
    let allow = Rule::new(RuleAction::Allow);
    let sets = RuleSets { src: ["s:clients".into()].into_iter().collect(), ..RuleSets::default() };
    let ids: Arc<[PolicyId]> = ["a", "b"].map(|name| PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)).into();
    for id in ids.iter() {
        let policy = Policy {
            source: Arc::default(),
            selector: "all()".into(),
            inbound: Rules::new([allow.clone()].into(), [sets.clone()].into()).expect("one each"),
            outbound: Rules::default(),
        };
        updates.push(DesiredUpdate::Policy(id.clone(), policy.into()));
    }
    let tier = TierPolicies { name: "default".into(), default_action: None, ingress: Arc::clone(&ids), egress: ids };
    for name in interfaces {
        let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() };
        let endpoint =
            WorkloadEndpoint { iface: Some(name.parse().expect("an interface name")), ..WorkloadEndpoint::default() };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier.clone()].into(), computed: None };
        updates.push(DesiredUpdate::WorkloadEndpoint(id, state));
    }
    let pool = IpPool {
        cidr: "10.65.0.0/16".parse().expect("CIDR"),
        ipip_mode: Default::default(),
        vxlan_mode: Default::default(),
        masquerade: true,
        disabled: false,
        allowed_uses: Box::default(),
    };
    updates.push(DesiredUpdate::IpPool(pool.into()));
    updates
}

fn dataplane(backend: Backend, interfaces: [&str; 2], sweep: Option<Backend>) -> Dataplane {
    let rules = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).expect("large enough");
    let mut config = DataplaneConfig::new("node-1".into(), rules, backend);
    config.iptables.sweep = Family::ALL.into_iter().filter_map(|family| Some((family, sweep?))).collect();
    let mut dataplane = Dataplane::new(config);
    updates(interfaces).into_iter().for_each(|update| dataplane.on_update(update));
    dataplane.on_link(LinkEvent::Up { name: interfaces[0].parse().expect("an interface name"), index: 7 });
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

kernel_test! {
    fn a_life_on_a_real_kernel() {
        for backend in [Backend::Legacy, Backend::Nft] {
            let namespace = Namespace::new().expect("a namespace");
            let interfaces = ["cali1", "cali2"];
            let mut kernel = RealKernel::new(&namespace, backend, interfaces);
            let report = dataplane(backend, interfaces, None).apply(&mut kernel);
            assert!(report.is_complete(), "{backend}: {:?}", report.problems);
            let save = format!("iptables-{backend}-save");
            assert!(kernel.output(&save, &["-t", "filter"]).contains("-i cali1 -"), "{backend}");

            // Restarted, it finds everything in sync.
            kernel.writes.clear();
            let mut again = dataplane(backend, interfaces, None);
            assert!(again.apply(&mut kernel).is_complete());
            assert_eq!(kernel.writes, [] as [&str; 0], "{backend}");

            // Without the policy, the second workload is reachable directly, and nothing of the
            // first is left.
            let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "a");
            for update in updates(interfaces) {
                if let DesiredUpdate::WorkloadEndpoint(id, mut state) = update {
                    state.tiers = Arc::new([]);
                    again.on_update(DesiredUpdate::WorkloadEndpoint(id, state));
                }
            }
            again.on_update(DesiredUpdate::PolicyRemove(id));
            assert!(again.apply(&mut kernel).is_complete());
            assert!(!kernel.output(&save, &["-t", "filter"]).contains("gnp/a"), "{backend}");

            let programs = |family| Programs::specific(backend, family);
            let wanted = CleanupConfig {
                tables: vec![
                    (Family::V4, backend, programs(Family::V4)),
                    (Family::V6, backend, programs(Family::V6)),
                ],
                interfaces: vec![("cali1".parse().unwrap(), 7)],
                workload_prefixes: vec!["cali".to_owned()],
            };
            let report = cleanup(&mut kernel, &wanted);
            assert_eq!((report.problems, report.ip_sets_left), (vec![], 0), "{backend}");
            for program in [save.clone(), format!("ip6tables-{backend}-save")] {
                assert!(!kernel.output(&program, &[]).contains("cali"), "{backend}");
            }
            assert_eq!(kernel.output("ipset", &["list", "-name"]), "", "{backend}");
        }
    }

    fn a_change_of_the_implementation_lets_no_denied_packet_through() {
        let pods = [("a", "10.65.0.11"), ("b", "10.65.0.12")].map(|(name, address)| {
            Pod::new("default", name, [address.parse().expect("address")], [])
        });
        let lab = Lab::new(&pods, &LabOptions::default()).expect("a laboratory");
        let names = pods.each_ref().map(|pod| interface_name(&pod.place).expect("a pod has one"));
        let interfaces = names.each_ref().map(String::as_str);
        let flood = || Flood::begin(&lab, &pods);
        let through = |flood: Flood| flood.end();

        let control = flood();
        std::thread::sleep(Duration::from_millis(50));
        assert!(through(control) > 0, "nothing denies yet");

        for (old, new) in [(Backend::Legacy, Backend::Nft), (Backend::Nft, Backend::Legacy)] {
            let mut kernel = RealKernel::new(lab.node(), old, interfaces);
            assert!(dataplane(old, interfaces, None).apply(&mut kernel).enforced(), "{old}");
            let saves = ["iptables", "ip6tables"].map(|name| format!("{name}-{old}-save"));

            // While one table program is missing, the old rules stay; once all exist, they are
            // removed. No packet passes meanwhile.
            let switch = flood();
            let mut next = dataplane(new, interfaces, Some(old));
            kernel.broken = Some(if new == Backend::Nft { "ip6tables-nft-restore" } else { "ip6tables-legacy-restore" });
            assert!(!next.apply(&mut kernel).enforced(), "{old} to {new}");
            assert!(saves.iter().all(|save| kernel.output(save, &[]).contains("cali-")), "{old} to {new}");
            kernel.broken = None;
            assert!(next.apply(&mut kernel).enforced(), "{old} to {new}");
            assert!(!saves.iter().any(|save| kernel.output(save, &[]).contains("cali-")), "{old} to {new}");
            assert_eq!(through(switch), 0, "{old} to {new}");
        }
    }
}

/// Packets from one pod to the other, sent continuously.
struct Flood {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<()>,
    receiver: UdpSocket,
}

impl Flood {
    fn begin(lab: &Lab, [from, to]: &[Pod; 2]) -> Self {
        let socket = |pod: &Pod| {
            let namespace = lab.namespace(&pod.place).expect("it stands");
            namespace.run(|| UdpSocket::bind((pod.addresses[0], 0))).expect("entered").expect("bound")
        };
        let (sending, receiver) = (socket(from), socket(to));
        receiver.set_nonblocking(true).expect("possible");
        sending.connect(receiver.local_addr().expect("bound")).expect("possible");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // An error does not stop the flood.
                let _ = sending.send(b"?");
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        Self { stop, sender, receiver }
    }

    /// Returns the number of received packets.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().expect("it only sends");
        let mut packet = [0; 1];
        std::iter::from_fn(|| self.receiver.recv(&mut packet).ok()).count()
    }
}
