//! The threads against the kernel: a client and servers in namespaces, with rules like those of the
//! dataplane.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use tortie_dataplane::{DomainSetPart, Shard};
use tortie_dns::Scope;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_linux::netlink::{NetlinkError, Nfqueue};
use tortie_model::IpSetId;

use super::kernel_sets::{Sets, SetsError};
use super::machine::tests::answer;
use super::writes::{Batch, KernelMember};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const SET: &str = "d:test";
const QUEUE: u16 = 101;

/// Addresses of one family.
struct Addresses {
    family: Family,
    iptables: String,
    set: &'static str,
    client: &'static str,
    server: &'static str,
    stranger: &'static str,
}

impl Addresses {
    fn of(family: Family, implementation: &str) -> Self {
        match family {
            Family::V4 => Self {
                family,
                iptables: format!("iptables-{implementation}"),
                set: "cali40d:test.0",
                client: "10.0.1.2",
                server: "10.0.2.2",
                stranger: "10.0.3.2",
            },
            Family::V6 => Self {
                family,
                iptables: format!("ip6tables-{implementation}"),
                set: "cali60d:test.0",
                client: "fd00:1::2",
                server: "fd00:2::2",
                stranger: "fd00:3::2",
            },
        }
    }

    /// Returns an address behind the server.
    fn target(&self, number: u8) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::from([192, 0, 2, number]),
            Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()]),
        }
    }

    fn targets(&self) -> &'static str {
        match self.family {
            Family::V4 => "192.0.2.0/24",
            Family::V6 => "2001:db8::/64",
        }
    }

    fn server(&self) -> SocketAddr {
        SocketAddr::new(self.server.parse().unwrap(), 53)
    }

    /// Returns the commands that make the rules and sets of the node.
    fn rules(&self) -> String {
        let Self { iptables, set, client, server, stranger, .. } = self;
        let (inet, prefix) = match self.family {
            Family::V4 => ("inet", "cali40"),
            Family::V6 => ("inet6", "cali60"),
        };
        let mut lines = vec![
            format!("ipset create {prefix}dns-servers hash:ip,port family {inet}"),
            format!("ipset create {prefix}dns-clients hash:ip family {inet}"),
            format!("ipset add {prefix}dns-clients {client}"),
            format!("ipset create {set} hash:net,iface family {inet}"),
            format!("{iptables} -w -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT"),
            format!("{iptables} -w -A FORWARD -i cali1 -m set --match-set {set} dst,src -j ACCEPT"),
        ];
        for protocol in ["udp", "tcp"] {
            lines.push(format!("ipset add {prefix}dns-servers {server},{protocol}:53"));
            lines.push(format!(
                "{iptables} -w -t mangle -A POSTROUTING -p {protocol} -m conntrack --ctstate ESTABLISHED --ctdir REPLY \
                 -m set --match-set {prefix}dns-servers src,src -m set --match-set {prefix}dns-clients dst \
                 -j NFQUEUE --queue-num {QUEUE} --queue-bypass"
            ));
            for resolver in [server, stranger] {
                lines.push(format!(
                    "{iptables} -w -A FORWARD -i cali1 -d {resolver} -p {protocol} --dport 53 -j ACCEPT"
                ));
            }
        }
        // Neighbour discovery does not pass here.
        lines.push(format!("{iptables} -w -A FORWARD -i cali1 -j DROP"));
        lines.join("\n")
    }
}

/// A node with a client that learns, a DNS server before all targets, and a stranger.
struct World {
    node: Namespace,
    client: Namespace,
    server: Namespace,
    stranger: Namespace,
    families: Vec<Addresses>,
}

impl World {
    fn new(implementation: &str) -> Self {
        let [node, client, server, stranger] = [(); 4].map(|()| Namespace::new().unwrap());
        let families: Vec<Addresses> = Family::ALL.map(|family| Addresses::of(family, implementation)).into();
        node.shell("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").unwrap();
        for (number, namespace) in [(1, &client), (2, &server), (3, &stranger)] {
            let peer = namespace.path().display().to_string();
            node.shell(&format!(
                "ip link add cali{number} type veth peer name eth0 netns {peer}
                 ip addr add 10.0.{number}.1/24 dev cali{number}
                 ip -6 addr add fd00:{number}::1/64 dev cali{number} nodad
                 ip link set cali{number} up"
            ))
            .unwrap();
            namespace
                .shell(&format!(
                    "ip addr add 10.0.{number}.2/24 dev eth0
                 ip -6 addr add fd00:{number}::2/64 dev eth0 nodad
                 ip link set eth0 up
                 ip route add default via 10.0.{number}.1
                 ip -6 route add default via fd00:{number}::1"
                ))
                .unwrap();
        }
        for addresses in &families {
            let (targets, server_address) = (addresses.targets(), addresses.server);
            server.shell(&format!("ip route add local {targets} dev lo")).unwrap();
            node.shell(&format!("ip route add {targets} via {server_address}")).unwrap();
            node.shell(&addresses.rules()).unwrap();
        }
        let world = Self { node, client, server, stranger, families };
        for addresses in &world.families {
            world.serve(&world.server, addresses, addresses.server);
            world.serve(&world.stranger, addresses, addresses.stranger);
        }
        // All addresses of both families.
        let targets = world.server.run(|| bind_tcp("[::]:80".parse().unwrap())).unwrap();
        thread::spawn(move || targets.incoming().for_each(drop));
        world
    }

    /// Answers questions by UDP and TCP: one byte, the number of the target.
    fn serve(&self, namespace: &Namespace, addresses: &Addresses, address: &str) {
        let listen = SocketAddr::new(address.parse().unwrap(), 53);
        let (udp, tcp) = namespace.run(|| (UdpSocket::bind(listen).unwrap(), bind_tcp(listen))).unwrap();
        let targets: Vec<IpAddr> = (0..=u8::MAX).map(|number| addresses.target(number)).collect();
        let reply = move |number: u8| answer(&format!("n{number}.a.io"), &[targets[usize::from(number)]]);
        let reply_by_tcp = reply.clone();
        thread::spawn(move || {
            let mut question = [0; 1];
            while let Ok((_, from)) = udp.recv_from(&mut question) {
                let _ = udp.send_to(&reply(question[0]), from);
            }
        });
        thread::spawn(move || {
            for stream in tcp.incoming() {
                let (Ok(mut stream), mut question) = (stream, [0; 1]) else { return };
                stream.set_nodelay(true).unwrap();
                while stream.read_exact(&mut question).is_ok() {
                    let reply = reply_by_tcp(question[0]);
                    let framed = [&u16::try_from(reply.len()).unwrap().to_be_bytes()[..], &reply].concat();
                    // In two segments.
                    let (first, second) = framed.split_at(7);
                    stream.write_all(first).unwrap();
                    stream.write_all(second).unwrap();
                }
            }
        });
    }

    fn options(&self, folder: &Path) -> DnsOptions {
        DnsOptions {
            queue: QUEUE,
            // Longer than any delay of this machine, so that no packet is let go early.
            hold: PATIENCE,
            cache_file: Some(folder.join("cache")),
            ..DnsOptions::new(DnsSets::IpSets, Family::ALL.into(), PATIENCE)
        }
    }

    /// Starts to learn, and waits until the queue has a listener.
    fn start(&self, folder: &Path) -> (DnsReader, SharedDnsMetrics) {
        let (mut reader, metrics) = self.start_without_queue(folder);
        self.wait_for_queue();
        reader.apply(Vec::new()).unwrap();
        (reader, metrics)
    }

    fn start_without_queue(&self, folder: &Path) -> (DnsReader, SharedDnsMetrics) {
        let metrics = SharedDnsMetrics::default();
        let mut reader = DnsReader::new(self.options(folder), metrics.clone(), Pulse::default());
        self.node.run(|| reader.apply(commands())).unwrap().unwrap();
        (reader, metrics)
    }

    fn wait_for_queue(&self) {
        let begin = Instant::now();
        let is_bound = || {
            let queues = self.node.shell("cat /proc/net/netfilter/nfnetlink_queue").unwrap();
            queues.lines().any(|line| line.split_whitespace().next() == Some(&QUEUE.to_string()))
        };
        while !is_bound() {
            assert!(begin.elapsed() < PATIENCE, "the queue is not bound");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn udp(&self, addresses: &Addresses) -> UdpSocket {
        let bind = || UdpSocket::bind(SocketAddr::new(addresses.client.parse().unwrap(), 0)).unwrap();
        let socket = self.client.run(bind).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Connects to a target from the client; whether it worked.
    fn connects(&self, target: IpAddr, patience: Duration) -> bool {
        self.client.run(|| TcpStream::connect_timeout(&SocketAddr::new(target, 80), patience).is_ok()).unwrap()
    }

    /// Returns the number of packets that the last rule dropped.
    fn dropped(&self, addresses: &Addresses) -> u64 {
        let listed = self.node.shell(&format!("{} -w -nvxL FORWARD", addresses.iptables)).unwrap();
        let line = listed.lines().find(|line| line.contains("DROP") && line.contains("cali1")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn members(&self, addresses: &Addresses) -> Vec<String> {
        let listed = self.node.shell(&format!("ipset list {}", addresses.set)).unwrap();
        let mut members: Vec<String> =
            listed.lines().skip_while(|line| *line != "Members:").skip(1).map(str::to_owned).collect();
        members.sort();
        members
    }
}

fn bind_tcp(address: SocketAddr) -> TcpListener {
    TcpListener::bind(address).unwrap()
}

fn commands() -> Vec<LearnerCommand> {
    let set = IpSetId::new(SET);
    vec![
        LearnerCommand::SetDomains { set: set.clone(), patterns: ["*.a.io".parse().unwrap()].into() },
        LearnerCommand::SetScope {
            scope: Scope::Interface("cali1".parse().unwrap()),
            owner: 1,
            namespace: "shop".into(),
            shard: Shard(0),
            sets: vec![set],
        },
    ]
}

/// Asks for targets and connects to each at once. No first packet may be dropped.
fn look_up_and_connect(implementation: &str, count: u8) {
    let (world, folder) = (World::new(implementation), tempfile::tempdir().unwrap());
    let (reader, metrics) = world.start(folder.path());
    for addresses in &world.families {
        let socket = world.udp(addresses);
        let mut times = Vec::new();
        for number in 1..=count {
            let begin = Instant::now();
            socket.send_to(&[number], addresses.server()).unwrap();
            socket.recv_from(&mut [0; 512]).unwrap();
            times.push(begin.elapsed());
            assert!(world.connects(addresses.target(number), PATIENCE), "{number}");
        }
        times.sort_unstable();
        println!("{:?}: held lookup p50 {:?}", addresses.family, times[times.len() / 2]);
        assert_eq!(world.dropped(addresses), 0, "a first packet is lost");
        assert_eq!(world.members(addresses).len(), usize::from(count));
        // The client has not asked for this one.
        assert!(!world.connects(addresses.target(255), Duration::from_millis(50)));
        assert!(world.dropped(addresses) > 0);
    }
    drop(reader);
    let metrics = metrics.lock().clone().expect("published at the end");
    let lookups = 2 * u64::from(count);
    assert_eq!((metrics.tally.responses, metrics.tally.released_programmed), (lookups, lookups));
    assert_eq!((metrics.tally.released_timeout, metrics.held), (0, 0));
    assert_eq!(metrics.hold_time.count(), lookups);
    // Without a reader answers pass, and open nothing.
    for addresses in &world.families {
        let socket = world.udp(addresses);
        socket.send_to(&[254], addresses.server()).unwrap();
        socket.recv_from(&mut [0; 512]).unwrap();
        assert_eq!(world.members(addresses).len(), usize::from(count));
    }
}

#[test]
fn threads_start_when_a_set_or_scope_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = DnsOptions {
        cache_file: Some(folder.path().join("cache")),
        ..DnsOptions::new(DnsSets::IpSets, Vec::new(), PATIENCE)
    };
    let mut reader = DnsReader::new(options, SharedDnsMetrics::default(), Pulse::default());
    let settings = |seconds| {
        let min_ttl = Duration::from_secs(seconds);
        LearnerCommand::SetSettings(tortie_dns::Settings { min_ttl, ..tortie_dns::Settings::default() })
    };
    reader.apply(vec![settings(1), LearnerCommand::SetCluster(tortie_dns::Cluster::default())]).unwrap();
    reader.apply(vec![settings(2), LearnerCommand::RemoveDomains(IpSetId::new(SET))]).unwrap();
    assert!(reader.running.is_none() && reader.early.contains(&settings(2)) && !reader.early.contains(&settings(1)));
}

/// Sets whose writes take longer than a reply is held.
struct Hanging;

impl Sets for Hanging {
    fn list(&mut self, _: &[(IpSetId, DomainSetPart)]) -> Result<Vec<KernelMember>, SetsError> {
        Ok(Vec::new())
    }

    fn write(&mut self, _: &Batch) -> Result<Vec<(usize, String)>, SetsError> {
        thread::sleep(Duration::from_secs(2));
        Ok(Vec::new())
    }
}

/// Sets in memory.
#[derive(Clone, Default)]
struct FakeSets(Arc<Mutex<FakeState>>);

#[derive(Default)]
struct FakeState {
    members: BTreeSet<KernelMember>,
    failing_lists: usize,
    panics: bool,
}

impl FakeSets {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sets for FakeSets {
    fn list(&mut self, sets: &[(IpSetId, DomainSetPart)]) -> Result<Vec<KernelMember>, SetsError> {
        let mut state = self.state();
        if state.failing_lists > 0 {
            state.failing_lists -= 1;
            return Err(NetlinkError::Timeout { subject: "a listing" }.into());
        }
        let is_listed = |member: &&KernelMember| sets.contains(&(member.set.clone(), member.part));
        Ok(state.members.iter().filter(is_listed).cloned().collect())
    }

    fn write(&mut self, batch: &Batch) -> Result<Vec<(usize, String)>, SetsError> {
        let mut state = self.state();
        assert!(!state.panics, "a fault of the writer");
        for (member, is_added) in &batch.changes {
            match is_added {
                true => drop(state.members.insert(member.clone())),
                false => drop(state.members.remove(member)),
            }
        }
        Ok(Vec::new())
    }
}

/// A member that no cache explains, but that a restart keeps for a while.
fn stray() -> KernelMember {
    let interface = Some("cali1".parse().unwrap());
    let part = DomainSetPart::Interfaces(Shard(0));
    KernelMember { set: IpSetId::new(SET), part, interface, owner: 0, address: "192.0.2.1".parse().unwrap() }
}

fn set_owner(owner: u64) -> LearnerCommand {
    let LearnerCommand::SetScope { scope, namespace, shard, sets, .. } = commands().remove(1) else { panic!() };
    LearnerCommand::SetScope { scope, owner, namespace, shard, sets }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
}

/// A reader with sets in memory, in a namespace without rules.
fn reader_of(sets: &FakeSets, folder: &Path) -> (Namespace, DnsReader) {
    let namespace = Namespace::new().unwrap();
    let options = DnsOptions {
        cache_file: Some(folder.join("cache")),
        ..DnsOptions::new(DnsSets::IpSets, Family::ALL.into(), PATIENCE)
    };
    let mut reader = DnsReader::new(options, SharedDnsMetrics::default(), Pulse::default());
    reader.comparison = Duration::from_millis(20);
    namespace.run(|| reader.running = Some(reader.start_with(sets.clone()).unwrap())).unwrap();
    (namespace, reader)
}

kernel_test! {
    fn commands_fail_until_the_members_of_their_sets_are_known() {
        let (sets, folder) = (FakeSets::default(), tempfile::tempdir().unwrap());
        sets.state().failing_lists = 2;
        let gone = KernelMember { interface: Some("cali9".parse().unwrap()), ..stray() };
        sets.state().members.insert(gone);
        let (_namespace, mut reader) = reader_of(&sets, folder.path());
        for _ in 0..2 {
            let error = reader.apply(commands()).unwrap_err();
            assert!(matches!(error, LearnerError::Kernel(_)), "{error}");
            assert_eq!(sets.state().members.len(), 1, "nothing is restored");
        }
        reader.apply(commands()).unwrap();
        assert!(sets.state().members.is_empty());
    }

    fn members_that_another_program_adds_go() {
        let (sets, folder) = (FakeSets::default(), tempfile::tempdir().unwrap());
        let (_namespace, mut reader) = reader_of(&sets, folder.path());
        reader.apply(commands()).unwrap();
        sets.state().members.insert(stray());
        wait_until(|| sets.state().members.is_empty());
    }

    fn a_slow_disk_holds_no_member() {
        let (sets, folder) = (FakeSets::default(), tempfile::tempdir().unwrap());
        sets.state().members.insert(stray());
        let draft = folder.path().join("cache.tmp");
        rustix::fs::mkfifoat(rustix::fs::CWD, &draft, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        let (_namespace, mut reader) = reader_of(&sets, folder.path());
        // Without a reader of the pipe, the save does not end.
        reader.apply(commands()).unwrap();
        assert_eq!(sets.state().members.len(), 1, "kept for the grace time");
        for owner in 2..5 {
            reader.apply(vec![set_owner(owner)]).unwrap();
            assert!(sets.state().members.is_empty());
        }
        let mut saved = Vec::new();
        fs::File::open(&draft).unwrap().read_to_end(&mut saved).unwrap();
        assert!(saved.starts_with(b"tortie-dns-cache"));
    }

    fn the_threads_start_again_after_a_fault() {
        let (sets, folder) = (FakeSets::default(), tempfile::tempdir().unwrap());
        sets.state().members.insert(stray());
        let (namespace, mut reader) = reader_of(&sets, folder.path());
        reader.apply(commands()).unwrap();
        assert!(!reader.has_ended());
        sets.state().panics = true;
        assert_eq!(reader.apply(vec![set_owner(2)]), Err(LearnerError::Ended));
        wait_until(|| reader.has_ended());
        assert!(!reader.has_ended(), "reported once");
        namespace.run(|| reader.apply(commands())).unwrap().unwrap();
        assert!(!reader.has_ended());
    }
}

kernel_test! {
    fn a_write_that_hangs_delays_an_answer_for_the_hold_duration() {
        let (world, folder) = (World::new("nft"), tempfile::tempdir().unwrap());
        let addresses = &world.families[0];
        let options = DnsOptions { hold: Duration::from_millis(300), ..world.options(folder.path()) };
        let metrics = SharedDnsMetrics::default();
        let mut reader = DnsReader::new(options, metrics.clone(), Pulse::default());
        world.node.run(|| reader.running = Some(reader.start_with(Hanging).unwrap())).unwrap();
        reader.apply(commands()).unwrap();
        world.wait_for_queue();
        reader.apply(Vec::new()).unwrap();
        let (socket, begin) = (world.udp(addresses), Instant::now());
        socket.send_to(&[1], addresses.server()).unwrap();
        socket.recv_from(&mut [0; 512]).unwrap();
        let took = begin.elapsed();
        // The reader counts whole milliseconds.
        assert!(took >= Duration::from_millis(299), "{took:?}");
        assert!(took < Duration::from_millis(1_900), "{took:?}: the write is still going on");
        drop(reader);
        assert_eq!(metrics.lock().as_ref().unwrap().tally.released_timeout, 1);
    }

    fn a_connection_after_a_lookup_finds_its_address_open() {
        look_up_and_connect("nft", 200);
    }

    fn a_connection_after_a_lookup_finds_its_address_open_with_legacy_tables() {
        look_up_and_connect("legacy", 20);
    }

    #[ignore = "prints times that only an optimized build on a quiet machine has; tests of the same code assert the members"]
    fn lookups_direct_held_and_with_a_new_member() {
        let world = World::new("nft");
        let addresses = &world.families[0];
        let socket = world.udp(addresses);
        let median = |numbers: &mut dyn Iterator<Item = u8>| {
            let mut times: Vec<Duration> = numbers
                .map(|number| {
                    let begin = Instant::now();
                    socket.send_to(&[number], addresses.server()).unwrap();
                    socket.recv_from(&mut [0; 512]).unwrap();
                    begin.elapsed()
                })
                .collect();
            times.sort_unstable();
            times[times.len() / 2]
        };
        for round in 0..5 {
            let direct = median(&mut std::iter::repeat_n(1, 1_000));
            let folder = tempfile::tempdir().unwrap();
            let reader = world.start(folder.path());
            let new = median(&mut (0..=u8::MAX));
            let held = median(&mut std::iter::repeat_n(1, 1_000));
            drop(reader);
            world.node.shell(&format!("ipset flush {}", addresses.set)).unwrap();
            println!("round {round}: direct {direct:?}, held {held:?}, with a new member {new:?}");
        }
    }

    fn answers_by_tcp_open_their_addresses() {
        let (world, folder) = (World::new("nft"), tempfile::tempdir().unwrap());
        let (_reader, _) = world.start(folder.path());
        for addresses in &world.families {
            let server = addresses.server();
            let mut stream = world.client.run(|| TcpStream::connect_timeout(&server, PATIENCE)).unwrap().unwrap();
            for number in 1..=10 {
                stream.write_all(&[number]).unwrap();
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                stream.read_exact(&mut vec![0; u16::from_be_bytes(length).into()]).unwrap();
                assert!(world.connects(addresses.target(number), PATIENCE), "{number}");
            }
            assert_eq!((world.dropped(addresses), world.members(addresses).len()), (0, 10));
        }
    }

    fn an_answer_of_another_server_opens_nothing() {
        let (world, folder) = (World::new("nft"), tempfile::tempdir().unwrap());
        let (_reader, _) = world.start(folder.path());
        for addresses in &world.families {
            let socket = world.udp(addresses);
            for (server, number) in [(addresses.stranger, 2), (addresses.server, 1)] {
                socket.send_to(&[number], SocketAddr::new(server.parse().unwrap(), 53)).unwrap();
                socket.recv_from(&mut [0; 512]).unwrap();
            }
            assert_eq!(world.members(addresses), [format!("{},cali1", addresses.target(1))]);
            assert!(!world.connects(addresses.target(2), Duration::from_millis(50)));
        }
    }

    fn learned_addresses_outlive_a_restart_and_go_with_their_owner() {
        let (world, folder) = (World::new("nft"), tempfile::tempdir().unwrap());
        let addresses = &world.families[0];
        let socket = world.udp(addresses);
        let (reader, _) = world.start(folder.path());
        socket.send_to(&[1], addresses.server()).unwrap();
        socket.recv_from(&mut [0; 512]).unwrap();
        drop(reader);
        let known = [format!("{},cali1", addresses.target(1))];
        assert_eq!(world.members(addresses), known);
        // A member of an interface that no longer learns.
        world.node.shell(&format!("ipset add {} 192.0.2.9,cali9", addresses.set)).unwrap();
        let metrics = SharedDnsMetrics::default();
        let mut reader = DnsReader::new(world.options(folder.path()), metrics.clone(), Pulse::default());
        // The cache waits for the sets.
        let [domains, scope_of_client] = <[LearnerCommand; 2]>::try_from(commands()).unwrap();
        for command in [scope_of_client, domains] {
            world.node.run(|| reader.apply(vec![command])).unwrap().unwrap();
        }
        assert_eq!(world.members(addresses), known);
        let [_, LearnerCommand::SetScope { scope, namespace, shard, sets, .. }] = &commands()[..] else { panic!() };
        let (namespace, shard, sets) = (namespace.clone(), *shard, sets.clone());
        reader.apply(vec![LearnerCommand::SetScope { scope: *scope, owner: 2, namespace, shard, sets }]).unwrap();
        assert_eq!(world.members(addresses), [""; 0], "nothing of the former owner is open");
        let removals = [LearnerCommand::RemoveScope(*scope), LearnerCommand::RemoveDomains(IpSetId::new(SET))];
        reader.apply(removals.into()).unwrap();
        drop(reader);
        assert_eq!(metrics.lock().clone().unwrap().learned, tortie_dns::Counts::default());

        // A file of another program stays.
        fs::write(folder.path().join("cache"), "of another program").unwrap();
        drop(world.start(folder.path()));
        assert_eq!(fs::read(folder.path().join("cache")).unwrap(), b"of another program");
        // A torn one is replaced.
        fs::write(folder.path().join("cache"), b"tortie-dns-cache\n\x02").unwrap();
        drop(world.start(folder.path()));
        assert!(fs::read(folder.path().join("cache")).unwrap().len() > 30);
    }

    fn a_queue_that_another_process_has_is_bound_when_it_is_free() {
        let (world, folder) = (World::new("nft"), tempfile::tempdir().unwrap());
        let addresses = &world.families[0];
        let taken = world.node.run(|| Nfqueue::open(QUEUE, 16)).unwrap().unwrap();
        let (mut reader, _) = world.start_without_queue(folder.path());
        // Commands are in force without the queue.
        reader.apply(commands()).unwrap();
        taken.close().unwrap();
        world.wait_for_queue();
        let socket = world.udp(addresses);
        socket.send_to(&[1], addresses.server()).unwrap();
        socket.recv_from(&mut [0; 512]).unwrap();
        assert_eq!(world.members(addresses), [format!("{},cali1", addresses.target(1))]);
    }
}
