//! Answers to denied packets on real kernels, by each back end.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_dataplane::{Dataplane, DataplaneConfig, LinkEvent, NftablesConfig};
use tortie_iptables::{Backend, Layout, PacketRate};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{Lab, LabHost, LabOptions, NODE_ADDRESSES, Pod, interface_name};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    DenyAction, HostEndpoint, PolicyId, PolicyKind, ProfileName, Rule, RuleAction, TierDefaultAction, WorkloadEndpoint,
    WorkloadEndpointId,
};
use tortie_rules::{PacketFilter, RejectReply, RulesConfig};

use super::RealKernel;

/// Wait for an answer that must not come.
const SILENCE: Duration = Duration::from_millis(400);
/// Wait for an answer that must come. The kernel sends it at once.
const PATIENCE: Duration = Duration::from_secs(5);
const PORT: u16 = 80;
const SSH: u16 = 22;

/// Mechanism that programs the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Iptables(Backend),
    Nftables(Layout),
}

const ALL: [By; 4] = [
    By::Iptables(Backend::Nft),
    By::Iptables(Backend::Legacy),
    By::Nftables(Layout::Felix),
    By::Nftables(Layout::Fast),
];

/// A client and a server on one node, where policy denies all traffic to the server.
struct Scene {
    lab: Lab,
    names: [String; 2],
    server: Vec<IpAddr>,
}

impl Scene {
    fn new() -> Self {
        let pods = [("a", 11), ("b", 12)].map(|(name, last)| {
            let addresses = [format!("10.65.0.{last}"), format!("fd00:65::{last}")];
            Pod::new("default", name, addresses.map(|address| address.parse().expect("an address")), [])
        });
        let lab = Lab::new(&pods, &LabOptions::default()).expect("a laboratory");
        let names = pods.each_ref().map(|pod| interface_name(&pod.place).expect("a pod has one"));
        // Each answer counts here, whatever the rate of the kernel's own limit.
        let unlimited = "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0";
        lab.node().shell(unlimited).expect("its own settings");
        Self { lab, names, server: pods[1].addresses.clone() }
    }

    fn client(&self) -> &Namespace {
        self.lab.namespace(&LabHost::pod("default", "a")).expect("it stands")
    }

    fn outside(&self) -> &Namespace {
        self.lab.namespace(&LabHost::Outside).expect("it stands")
    }

    fn dataplane(&self, by: By, config: &RulesConfig, updates: Vec<DesiredUpdate>) -> Dataplane {
        let mut rules = config.clone();
        let (backend, nftables) = match by {
            By::Iptables(backend) => (backend, None),
            By::Nftables(layout) => {
                rules.packet_filter =
                    PacketFilter::Nftables(tortie_rules::NftablesConfig { layout, ..Default::default() });
                (Backend::Nft, Some(NftablesConfig::default()))
            }
        };
        let mut dataplane =
            Dataplane::new(DataplaneConfig { nftables, ..DataplaneConfig::new("node-1".into(), rules, backend) });
        updates.into_iter().for_each(|update| dataplane.on_update(update));
        for (index, name) in (7..).zip(self.names.iter().map(String::as_str).chain(["eth0"])) {
            dataplane.on_link(LinkEvent::Up { name: name.parse().expect("an interface name"), index });
        }
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        dataplane
    }

    /// Programs the node.
    fn enforce(&self, by: By, config: &RulesConfig, updates: Vec<DesiredUpdate>) {
        let mut dataplane = self.dataplane(by, config, updates);
        if let By::Nftables(_) = by {
            // The text is for a clean node.
            clear(self, by);
            for (_, text) in dataplane.render().nftables {
                let mut nft = std::process::Command::new("nft");
                self.lab.node().output(nft.args(["-f", "-"]), &text).expect("the kernel takes the table");
            }
            return;
        }
        let interfaces = self.names.each_ref().map(String::as_str);
        let By::Iptables(backend) = by else { unreachable!("nftables is above") };
        let report = dataplane.apply(&mut RealKernel::new(self.lab.node(), backend, interfaces));
        assert!(report.is_complete(), "{by:?}: {:?}", report.problems);
    }

    /// Returns two workloads, where the second one denies all packets to it.
    fn workloads(&self, action: Option<DenyAction>) -> Vec<DesiredUpdate> {
        let closed = policy("closed", &[Rule::new(RuleAction::Deny)], action);
        let open = policy("open", &[Rule::new(RuleAction::Allow)], None);
        let tier = |ingress, egress| tier(None, ingress, egress);
        let endpoints = [tier(&open.0, &open.0), tier(&closed.0, &open.0)];
        let endpoints = self.names.iter().zip(endpoints).map(|(name, tier)| workload(name, tier));
        let policies = [closed, open].map(|(id, policy)| DesiredUpdate::Policy(id, policy));
        policies.into_iter().chain(endpoints).collect()
    }
}

fn policy(name: &str, rules: &[Rule], deny_action: Option<DenyAction>) -> (PolicyId, Arc<Policy>) {
    let rules = Rules::new(rules.into(), vec![RuleSets::default(); rules.len()].into()).expect("one each");
    let source = tortie_model::Policy { deny_action, ..tortie_model::Policy::default() };
    let policy = Policy { source: source.into(), selector: name.into(), inbound: rules.clone(), outbound: rules };
    (PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name), policy.into())
}

fn tier(default_action: Option<TierDefaultAction>, ingress: &PolicyId, egress: &PolicyId) -> TierPolicies {
    let (ingress, egress) = ([ingress.clone()].into(), [egress.clone()].into());
    TierPolicies { name: "default".into(), default_action, ingress, egress }
}

fn workload(interface: &str, tier: TierPolicies) -> DesiredUpdate {
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: interface.into(), endpoint: "eth0".into() };
    let iface = Some(interface.parse().expect("an interface name"));
    let endpoint = WorkloadEndpoint { iface, ..WorkloadEndpoint::default() }.into();
    let state = WorkloadEndpointState { endpoint, tiers: [tier].into(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(id, state)
}

/// Result of an attempt to open a connection.
#[derive(Debug, PartialEq)]
enum Answer {
    Open,
    /// A reset for TCP, an ICMP error for UDP.
    Rejected,
    Silent,
}

fn tcp(from: &Namespace, to: IpAddr, port: u16, wait: Duration) -> Answer {
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, port), wait);
    match from.run(connect).expect("entered") {
        Ok(_) => Answer::Open,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::Rejected,
        Err(error) if error.kind() == ErrorKind::TimedOut => Answer::Silent,
        Err(error) => panic!("{to}: {error}"),
    }
}

/// ICMP "administratively prohibited" is another error of the socket than "port unreachable".
fn udp(from: &Namespace, to: IpAddr, prohibited: bool, wait: Duration) -> Answer {
    let socket = from
        .run(|| UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0)))
        .expect("entered")
        .expect("bound");
    socket.set_read_timeout(Some(wait)).expect("possible");
    socket.connect((to, PORT)).expect("possible");
    socket.send(b"?").expect("sent");
    let expected = match (prohibited, to.is_ipv4()) {
        (true, true) => ErrorKind::HostUnreachable,
        (true, false) => ErrorKind::PermissionDenied,
        (false, _) => ErrorKind::ConnectionRefused,
    };
    match socket.recv(&mut [0; 8]) {
        Ok(_) => Answer::Open,
        Err(error) if error.kind() == expected => Answer::Rejected,
        Err(error) if error.kind() == ErrorKind::WouldBlock => Answer::Silent,
        Err(error) => panic!("{to}: {error}"),
    }
}

kernel_test! {
    fn denied_packets_get_the_answer_that_the_policy_or_the_node_requests() {
        use DenyAction::{Drop, Reject};
        use RejectReply::{PortUnreachable, ResetOrProhibited};

        let scene = Scene::new();
        for by in ALL {
            for (own, deny, reject_with, answers) in [
                (None, Drop, PortUnreachable, false),
                (None, Reject, PortUnreachable, true),
                (Some(Reject), Drop, PortUnreachable, true),
                (None, Reject, ResetOrProhibited, true),
                (Some(Drop), Reject, ResetOrProhibited, false),
            ] {
                let config = RulesConfig { deny, reject_with, ..RulesConfig::default() };
                scene.enforce(by, &config, scene.workloads(own));
                for address in &scene.server {
                    let case = format!("{by:?} {own:?} {deny:?} {reject_with:?} {address}");
                    let (expected, wait) =
                        if answers { (Answer::Rejected, PATIENCE) } else { (Answer::Silent, SILENCE) };
                    let in_felix = own.is_none() && reject_with == PortUnreachable;
                    // A TCP client may not notice an ICMP error before it repeats its first packet.
                    if !in_felix {
                        assert_eq!(tcp(scene.client(), *address, PORT, wait), expected, "{case}");
                    }
                    assert_eq!(udp(scene.client(), *address, !in_felix, wait), expected, "{case}");
                }
            }
            clear(&scene, by);
        }
    }

    fn the_end_of_a_tier_and_of_profiles_rejects_as_well() {
        let scene = Scene::new();
        let (open, policy_open) = policy("open", &[Rule::new(RuleAction::Allow)], None);
        // It decides nothing.
        let (empty, policy_empty) = policy("empty", &[], None);
        for by in ALL {
            for end in [Some(TierDefaultAction::DenyWith(DenyAction::Reject)), Some(TierDefaultAction::Pass)] {
                let mut updates = vec![
                    DesiredUpdate::Policy(open.clone(), Arc::clone(&policy_open)),
                    DesiredUpdate::Policy(empty.clone(), Arc::clone(&policy_empty)),
                ];
                updates.push(workload(&scene.names[0], tier(None, &open, &open)));
                updates.push(workload(&scene.names[1], tier(end, &empty, &open)));
                // No profile allows a packet that the tier passes: the node's action applies.
                let config = RulesConfig {
                    deny: if end == Some(TierDefaultAction::Pass) { DenyAction::Reject } else { DenyAction::Drop },
                    reject_with: RejectReply::ResetOrProhibited,
                    ..RulesConfig::default()
                };
                scene.enforce(by, &config, updates);
                for address in &scene.server {
                    let answer = tcp(scene.client(), *address, PORT, PATIENCE);
                    assert_eq!(answer, Answer::Rejected, "{by:?} {end:?} {address}");
                }
            }
            clear(&scene, by);
        }
    }

    fn the_number_of_answers_is_limited() {
        const ATTEMPTS: usize = 40;
        const BURST: u16 = 5;
        let scene = Scene::new();
        let config =
            RulesConfig { reject_rate: PacketRate::new(1, BURST).expect("in range"), ..RulesConfig::default() };
        for by in ALL {
            scene.enforce(by, &config, scene.workloads(Some(DenyAction::Reject)));
            let (begun, address) = (Instant::now(), scene.server[0]);
            let refused = |number: &usize| {
                // Within the burst, each packet gets an answer, however late this test notices it.
                let wait = if *number < usize::from(BURST) { PATIENCE } else { Duration::from_millis(20) };
                tcp(scene.client(), address, PORT, wait) == Answer::Rejected
            };
            let answers = (0..ATTEMPTS).filter(refused).count();
            let most = usize::from(BURST) + 1 + usize::try_from(begun.elapsed().as_secs()).expect("few");
            assert!((usize::from(BURST)..=most).contains(&answers), "{by:?}: {answers}, at most {most}");
            clear(&scene, by);
        }
    }

    /// Conntrack loses a connection, and policy denies everything: the next packet of the server
    /// must not end the connection with a reset.
    fn failsafe_ports_are_never_rejected() {
        for by in ALL {
            // In a new namespace, conntrack does not know connections from before the first rules.
            let scene = Scene::new();
            let (closed, denies) = policy("closed", &[Rule::new(RuleAction::Deny)], Some(DenyAction::Reject));
            let iface = Some("eth0".parse().expect("an interface"));
            let endpoint = HostEndpoint { iface, profiles: Arc::<[ProfileName]>::default(), ..HostEndpoint::default() };
            let tiers = [tier(None, &closed, &closed)].into();
            let state = HostEndpointState { endpoint: endpoint.into(), tiers, ..HostEndpointState::default() };
            let updates =
                vec![DesiredUpdate::Policy(closed, denies), DesiredUpdate::HostEndpoint("eth0".into(), state)];
            let listen = |port| {
                let bind = || TcpListener::bind(("::", port));
                scene.lab.node().run(bind).expect("entered").expect("bound")
            };
            let (ssh, other) = (listen(SSH), listen(PORT));
            let mut connections = Vec::new();
            for address in NODE_ADDRESSES {
                let connect = || TcpStream::connect_timeout(&SocketAddr::new(address, SSH), Duration::from_secs(5));
                let client = scene.outside().run(connect).expect("entered").expect("connected");
                connections.push((client, ssh.accept().expect("a connection").0));
            }
            let config = RulesConfig {
                deny: DenyAction::Reject,
                reject_with: RejectReply::ResetOrProhibited,
                ..RulesConfig::default()
            };
            scene.enforce(by, &config, updates);
            for (client, server) in &mut connections {
                client.set_read_timeout(Some(Duration::from_secs(10))).expect("possible");
                server.set_read_timeout(Some(Duration::from_secs(10))).expect("possible");
                server.write_all(b"s").expect("not reset");
                std::thread::sleep(Duration::from_millis(50));
                client.write_all(b"c").expect("not reset");
                let mut byte = [0];
                server.read_exact(&mut byte).unwrap_or_else(|error| panic!("{by:?}: {error}"));
                client.read_exact(&mut byte).unwrap_or_else(|error| panic!("{by:?}: {error}"));
            }
            for address in NODE_ADDRESSES {
                assert_eq!(tcp(scene.outside(), address, SSH, PATIENCE), Answer::Open, "{by:?} {address}");
                assert_eq!(tcp(scene.outside(), address, PORT, PATIENCE), Answer::Rejected, "{by:?} {address}");
            }
            drop(other);
        }
    }

    fn another_action_rewrites_one_policy() {
        for backend in [Backend::Nft, Backend::Legacy] {
            let scene = Scene::new();
            let interfaces = scene.names.each_ref().map(String::as_str);
            let mut kernel = RealKernel::new(scene.lab.node(), backend, interfaces);
            let config = RulesConfig::default();
            let mut dataplane = scene.dataplane(By::Iptables(backend), &config, scene.workloads(None));
            assert!(dataplane.apply(&mut kernel).is_complete());
            let (reject, drop) = (DenyAction::Reject, DenyAction::Drop);
            for (action, changed) in [(reject, true), (reject, false), (drop, true)] {
                kernel.writes.clear();
                let (id, closed) = policy("closed", &[Rule::new(RuleAction::Deny)], Some(action));
                dataplane.on_update(DesiredUpdate::Policy(id, closed));
                assert!(dataplane.apply(&mut kernel).is_complete());
                let written: Vec<&str> = kernel.writes.iter().flat_map(|text| text.lines()).collect();
                let mut rules = written.iter().filter(|line| line.starts_with("-A") || line.starts_with("-R"));
                let own = ["cali-reject", "cali-pi-", "cali-po-"];
                let is_of_it = |line: &str| own.iter().any(|name| line.contains(name));
                assert_eq!(rules.find(|line| !is_of_it(line)), None, "{backend}");
                assert_eq!(kernel.writes.len(), if changed { 2 } else { 0 }, "{backend}: a write for each family");
                let answers = written.iter().any(|line| line.contains("--reject-with"));
                assert_eq!(answers, changed && action == DenyAction::Reject, "{backend}");
            }
        }
    }
}

/// Removes the rules of a back end, so that those of the next one decide alone.
fn clear(scene: &Scene, by: By) {
    let clear = match by {
        By::Nftables(_) => "nft flush ruleset".to_owned(),
        By::Iptables(backend) => ["iptables", "ip6tables"]
            .iter()
            .flat_map(|program| {
                ["raw", "mangle", "nat", "filter"].map(|table| format!("{program}-{backend} -t {table}"))
            })
            .map(|table| format!("{table} -F; {table} -X"))
            .collect::<Vec<_>>()
            .join("; "),
    };
    scene.lab.node().shell(&clear).expect("cleared");
}
