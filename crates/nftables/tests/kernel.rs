//! A table on a real kernel.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(clippy::disallowed_methods, reason = "runs nft, sends packets and measures, in private network namespaces")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_net::{Cidr, Family, IpPortMember, IpSetId, IpSetName, PortProtocol};
use tortie_netfilter::{
    Action, Chain, ChainName, ConntrackStates, DispatchBy, HookPosition, MapKey, MapVerdict, Match, Matches, Member,
    NetMember, NetPair, PacketRate, PortList, Protocol, RejectWith, Rule, SetType, Side, Table as Layer, kernel_chain,
};
use tortie_nftables::{Features, Table, TableConfig, TableId};

const V4: TableId = TableId::calico(Family::V4);
const SET: &str = "cali40s:clients";

fn interface(name: &str) -> MapKey {
    MapKey::Interface(name.parse().unwrap())
}

fn name(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

fn table(members: &[&str]) -> Table {
    let mut table = Table::new(TableConfig::new(V4), Features::ALL);
    let members = members.iter().map(|net| Member::from(net.parse::<Cidr>().unwrap()));
    let set = IpSetName::new(SET).unwrap();
    table.replace_set(&IpSetId::from("s:clients"), set, SetType::HashNet, members).unwrap();
    let jump = vec![Rule::new(Action::Jump(name("cali-FORWARD")))];
    table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, jump);
    let clients = Matches::new().protocol(Protocol::TCP).ip_set(Side::Source, set);
    let ports = PortList::split(&["80", "443"].map(|port| tortie_netfilter::PortRange::single(port.parse().unwrap())));
    table.update_chain(
        Layer::Filter,
        Chain::new(
            name("cali-FORWARD"),
            vec![
                Rule::when(clients.ports(Side::Destination, ports[0].clone()), Action::Accept).comment("clients"),
                Rule::new(Action::Dispatch { by: DispatchBy::InInterface, map: name("cali-from-wl-dispatch") }),
                Rule::new(Action::Drop),
            ],
        ),
    );
    let to = name("cali-fw-cali1");
    table.update_chain(Layer::Filter, Chain::new(to, vec![Rule::new(Action::Return)]));
    table.set_verdict(Layer::Filter, name("cali-from-wl-dispatch"), interface("cali1"), Some(MapVerdict::Goto(to)));
    table
}

/// Applies the table; returns the number of transactions.
fn apply(namespace: &Namespace, table: &mut Table) -> usize {
    namespace.run(|| Nft::open().unwrap().apply(table)).unwrap().unwrap().len()
}

fn listed(namespace: &Namespace) -> String {
    namespace.shell("nft list table ip calico").unwrap()
}

kernel_test! {
    fn a_start_is_one_transaction_behind_that_of_its_sets_and_a_restart_is_none() {
        let namespace = Namespace::new().unwrap();
        assert_eq!(apply(&namespace, &mut table(&["10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/1"])), 2);
        let shown = listed(&namespace);
        for text in [
            "type filter hook forward priority filter; policy accept;",
            "elements = { 0.0.0.0/1 }",
            "elements = { \"cali1\" : goto filter-cali-fw-cali1 }",
            "tcp dport { 80, 443 } counter packets 0 bytes 0 accept comment \"cali:",
        ] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let mut restarted = table(&["10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/1"]);
        assert_eq!(apply(&namespace, &mut restarted), 0);
        // The network that covered the others is removed: the covered ones are added.
        restarted = table(&["10.0.0.0/8", "10.1.0.0/16"]);
        assert_eq!(apply(&namespace, &mut restarted), 1);
        assert!(listed(&namespace).contains("elements = { 10.0.0.0/8 }"));
        // The table in the kernel equals the written one.
        let mut table = table(&["10.0.0.0/8"]);
        assert_eq!(apply(&namespace, &mut table), 0);
        let to = MapVerdict::Goto(name("cali-fw-cali1"));
        table.set_verdict(Layer::Filter, name("cali-from-wl-dispatch"), interface("cali2"), Some(to));
        assert_eq!(apply(&namespace, &mut table), 1);
        table.invalidate();
        assert_eq!(apply(&namespace, &mut table), 0);
        assert_eq!(table.stats().clobbered, 0);
    }

    fn sets_of_every_kind_hold_their_members() {
        let namespace = Namespace::new().unwrap();
        let member = |text: &str| -> Member {
            if let Ok(net) = text.parse::<Cidr>() {
                return net.into();
            }
            if let Ok(port) = text.parse() {
                return Member::Port(port);
            }
            let (address, port) = text.split_once(':').unwrap();
            match port.parse() {
                Ok(port) => IpPortMember::new(address.parse().unwrap(), PortProtocol::Udp, port).into(),
                Err(_) => {
                    let host = |text: &str| NetMember::from(Cidr::host(text.parse().unwrap()));
                    Member::NetPair(NetPair::new(host(address), host(port)))
                }
            }
        };
        let kinds = [
            (SetType::HashIp, ["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32"]),
            (SetType::HashNet, ["10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0"]),
            (SetType::HashIpPort, ["10.0.0.1:53", "10.0.0.1:54", "10.0.0.2:53"]),
            (SetType::HashNetNet, ["10.0.0.1:10.0.0.2", "10.0.0.1:10.0.0.3", "10.0.0.2:10.0.0.1"]),
            (SetType::BitmapPort, ["53", "54", "65535"]),
        ];
        let set = |at: usize| IpSetName::new(&format!("cali40s:{at}")).unwrap();
        let new = |members: std::ops::Range<usize>| {
            let mut table = Table::new(TableConfig::new(V4), Features::ALL);
            for (at, (set_type, texts)) in kinds.iter().enumerate() {
                let members: Vec<_> = texts[members.clone()].iter().map(|text| member(text)).collect();
                table.replace_set(&IpSetId::from(at.to_string().as_str()), set(at), *set_type, members).unwrap();
            }
            table
        };
        let mut table = new(0..2);
        assert_eq!(apply(&namespace, &mut table), 1);
        assert_eq!(apply(&namespace, &mut new(0..2)), 0, "a restart changes nothing");
        assert_eq!(apply(&namespace, &mut new(1..3)), 1);
        assert_eq!(apply(&namespace, &mut new(1..3)), 0, "nor does one after a change");
        let listed = listed(&namespace);
        for element in ["10.0.0.3", "0.0.0.0/0", "10.0.0.2 . udp . 53", "10.0.0.2 . 10.0.0.1", "65535"] {
            assert!(listed.contains(element), "{element} in\n{listed}");
        }
    }

    fn members_of_sets_that_another_program_keeps_stay() {
        let namespace = Namespace::new().unwrap();
        let learned = IpSetName::new("cali40d:x.0").unwrap();
        let host = IpSetName::new("cali40d:x.h").unwrap();
        let new = || {
            let mut table = Table::new(TableConfig::new(V4), Features { queue: false, ..Features::ALL });
            table.define_foreign_set(&"d:x.0".into(), learned, SetType::HashNetIface).unwrap();
            table.define_foreign_set(&"d:x.h".into(), host, SetType::HashIp).unwrap();
            let matches = [
                Matches::new().destination_by_interface(learned),
                Matches::new().source_is_local().ip_set(Side::Destination, host),
            ];
            let mut rules: Vec<Rule> = matches.into_iter().map(|one| Rule::when(one, Action::Accept)).collect();
            let reply = Matches::new().conntrack(ConntrackStates::ESTABLISHED).reply();
            rules.push(Rule::when(reply, Action::Queue(101)));
            rules.push(Rule::when(Matches::new().conntrack(ConntrackStates::UNTRACKED), Action::Queue(101)));
            rules.push(Rule::new(Action::Drop));
            table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, rules);
            table
        };
        let mut table = new();
        apply(&namespace, &mut table);
        assert_eq!(apply(&namespace, &mut new()), 0, "a restart writes nothing");
        namespace.shell("ip link set lo up; ip addr add 10.9.0.1/32 dev lo; ip addr add 10.9.0.2/32 dev lo").unwrap();
        namespace.shell("ping -c1 -W1 10.9.0.1").unwrap_err();
        for element in ["d-x.0 { \"cali1\" . 10.9.0.1 }", "d-x.h { 10.9.0.1 }"] {
            namespace.shell(&format!("nft 'add element ip calico cali40{element}'")).unwrap();
        }
        table.invalidate();
        assert_eq!(apply(&namespace, &mut table), 0, "members of another program are no difference");
        assert_eq!(apply(&namespace, &mut new()), 0, "nor are they at a restart");
        // The reply leaves by the queue without a listener, and is dropped by the rule behind.
        namespace.shell("ping -c1 -W1 10.9.0.1").unwrap_err();
        let shown = listed(&namespace);
        for text in ["\"cali1\" . 10.9.0.1", "elements = { 10.9.0.1 }", "queue", "iifname . ip daddr @cali40d-x.0"] {
            assert!(shown.contains(text), "{text} in {shown}");
        }
        table.remove_set(learned);
        table.remove_set(host);
        table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, Vec::new());
        apply(&namespace, &mut table);
        assert!(!listed(&namespace).contains("cali40d"));
    }

    fn each_destination_has_a_token_bucket_of_its_own() {
        let name = IpSetName::new("cali40dns-buckets").unwrap();
        let limit = PacketRate::new(1, 3).unwrap();
        let new = || {
            let mut table = Table::new(TableConfig::new(V4), Features::ALL);
            table.define_buckets(&"dns-buckets".into(), name).unwrap();
            let above = Matches::new().protocol(Protocol::UDP).and(Match::AboveRateOfDestination { limit, name });
            let rules = vec![Rule::when(above, Action::Drop)];
            table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, rules);
            table
        };
        let namespace = Namespace::new().unwrap();
        let mut table = new();
        let transactions = namespace.run(|| Nft::open().unwrap().apply(&mut table)).unwrap().unwrap();
        assert_eq!(apply(&namespace, &mut new()), 0, "a restart writes nothing");
        // `nft` makes the same of the text.
        let by_nft = Namespace::new().unwrap();
        let text: String = transactions.iter().map(ToString::to_string).collect();
        by_nft.output(Command::new("nft").args(["-f", "-"]), &text).unwrap();
        assert_eq!(apply(&by_nft, &mut new()), 0, "{text}");

        let sent = |address: &'static str, count: usize| {
            namespace.run(|| {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                let to = std::net::UdpSocket::bind((address, 0)).unwrap();
                let port = to.local_addr().unwrap().port();
                // The sender is told of a packet that is dropped.
                (0..count).filter(|_| socket.send_to(b"x", (address, port)).is_ok()).count()
            })
            .unwrap()
        };
        let began = Instant::now();
        let passed = sent("127.0.0.2", 20);
        let by_time = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
        assert!((3..=3 + by_time).contains(&passed), "{passed}");
        assert_eq!(sent("127.0.0.3", 3), 3, "other destinations do not count");
        let shown = listed(&namespace);
        assert!(shown.contains("127.0.0.2") && shown.contains("127.0.0.3"), "{shown}");
        // Buckets come and go without a write.
        table.invalidate();
        assert_eq!((apply(&namespace, &mut table), apply(&namespace, &mut new())), (0, 0));
        table.remove_set(name);
        table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, Vec::new());
        apply(&namespace, &mut table);
        assert!(!listed(&namespace).contains("dns-buckets"));
    }

    fn foreign_changes_are_found_and_repaired() {
        let namespace = Namespace::new().unwrap();
        let mut table = table(&["10.0.0.0/8"]);
        apply(&namespace, &mut table);
        let good = listed(&namespace);
        for change in [
            "nft flush set ip calico cali40s-clients".to_owned(),
            "nft flush chain ip calico filter-cali-FORWARD".to_owned(),
            "nft 'insert rule ip calico filter-FORWARD accept'".to_owned(),
            "nft 'delete element ip calico filter-cali-from-wl-dispatch { cali1 }'".to_owned(),
            "nft 'add element ip calico filter-cali-from-wl-dispatch { eth9 : accept }'".to_owned(),
            "nft 'add element ip calico filter-cali-from-wl-dispatch { eth9 : jump filter-cali-fw-cali1 }'".to_owned(),
            "nft 'add chain ip calico mine; add rule ip calico mine drop'".to_owned(),
            "nft 'add set ip calico mine { type inet_service; }'".to_owned(),
            // Another priority.
            "nft 'delete chain ip calico raw-PREROUTING; \
             add chain ip calico raw-PREROUTING { type filter hook prerouting priority -10; }'".to_owned(),
            // Another policy.
            "nft 'add chain ip calico filter-INPUT { policy drop; }'".to_owned(),
            "nft delete table ip calico".to_owned(),
            // No chain would see packets.
            "nft 'add table ip calico { flags dormant; }'".to_owned(),
            "nft 'delete table ip calico; add table ip calico { flags dormant; }'".to_owned(),
        ] {
            namespace.shell(&change).unwrap();
            table.invalidate();
            // Missing sets are written before rules.
            let count = if change.starts_with("nft delete table") { 2 } else { 1 };
            assert_eq!(apply(&namespace, &mut table), count, "{change}");
            let sorted = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort_unstable();
                lines
            };
            assert_eq!(sorted(&listed(&namespace)), sorted(&good), "{change}");
            table.invalidate();
            assert_eq!(apply(&namespace, &mut table), 0, "{change}");
        }
    }

    fn counters_before_a_change_are_kept() {
        let namespace = Namespace::new().unwrap();
        let mut table = table(&["10.0.0.0/8"]);
        namespace.shell("ip link set lo up").unwrap();
        let output = |rules: Vec<Rule>| Chain::new(name("cali-OUTPUT"), rules);
        let jump = vec![Rule::new(Action::Jump(name("cali-OUTPUT")))];
        table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, jump);
        let discard = || Rule::when(Matches::new().protocol(Protocol::UDP).destination_port(9), Action::Accept);
        table.update_chain(Layer::Filter, output(vec![discard(), Rule::new(Action::Return)]));
        apply(&namespace, &mut table);
        let sent = namespace.run(|| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            // The ICMP errors for the closed port come to the same socket.
            (0..3).filter(|_| socket.send_to(b"x", "127.0.0.1:9").is_ok()).count()
        });
        assert_eq!(sent.unwrap(), 3);
        table.invalidate();
        apply(&namespace, &mut table);
        let reject = Rule::new(Action::Reject(RejectWith::PortUnreachable));
        table.update_chain(Layer::Filter, output(vec![discard(), reject]));
        apply(&namespace, &mut table);
        let shown = namespace.shell("nft list chain ip calico filter-cali-OUTPUT").unwrap();
        assert!(shown.contains("counter packets 3 "), "{shown}");
        assert!(shown.contains("reject"), "{shown}");
    }

    fn the_kernel_names_the_chain_that_it_refuses() {
        let namespace = Namespace::new().unwrap();
        let mut table = table(&["10.0.0.0/8"]);
        // The kernel refuses reverse path lookups at OUTPUT.
        let spoofed = Rule::when(Matches::new().reverse_path_fails(), Action::Drop);
        table.update_chain(Layer::Filter, Chain::new(name("cali-x"), vec![spoofed]));
        let jump = vec![Rule::new(Action::Jump(name("cali-x")))];
        table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, jump);
        assert_eq!(apply(&namespace, &mut table), 2);
        let problems = format!("{:?}", table.problems());
        assert!(problems.contains("cali-x") && table.problems().len() == 1, "{problems}");
        let shown = listed(&namespace);
        assert!(shown.contains("tcp dport { 80, 443 }") && shown.contains("jump filter-cali-x"), "{shown}");
        assert!(namespace.shell("nft list chain ip calico filter-cali-x").unwrap().contains("drop"));
    }

    fn a_set_of_many_members_is_loaded_as_fast_as_by_nft() {
        let members: Vec<String> = (0..250_000_u32).map(|i| format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255)).collect();
        let text = format!(
            "add table ip calico\nadd set ip calico s {{ type ipv4_addr ; flags interval ; }}\nadd element ip calico s {{ {} }}\n",
            members.join(", ")
        );
        let by_nft = Namespace::new().unwrap();
        let begun = Instant::now();
        let output = by_nft.output(Command::new("nft").args(["-f", "-"]), &text).unwrap();
        assert!(output.status.success());
        let theirs = begun.elapsed();
        let namespace = Namespace::new().unwrap();
        let mut table = table(&["192.0.2.0/24"]);
        apply(&namespace, &mut table);
        let members = members.iter().map(|address| Member::from(Cidr::host(address.parse().unwrap())));
        let set = IpSetName::new(SET).unwrap();
        table.replace_set(&IpSetId::from("s:clients"), set, SetType::HashNet, members).unwrap();
        let begun = Instant::now();
        assert_eq!(apply(&namespace, &mut table), 1);
        let ours = begun.elapsed();
        println!("250,000 members: nft {theirs:?}, here {ours:?}");
        let one = [Member::from("192.0.2.9/32".parse::<Cidr>().unwrap())];
        table.edit_set(&IpSetId::from("s:clients"), set, one, []).unwrap();
        let begun = Instant::now();
        assert_eq!(apply(&namespace, &mut table), 1);
        println!("one more: {:?}", begun.elapsed());
    }

    /// A lookup always finds an address that stays covered, while a network replaces those inside
    /// it, or they replace it.
    fn a_member_that_stays_covered_is_found_while_networks_are_exchanged() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("ip link set lo up").unwrap();
        let large: &[&str] = &["127.0.0.0/8"];
        let small: &[&str] = &["127.0.0.0/16", "127.1.0.0/16", "127.2.3.0/24"];
        let clients = IpSetName::new(SET).unwrap();
        let mut table = table(large);
        let jump = vec![Rule::new(Action::Jump(name("cali-OUTPUT")))];
        table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, jump);
        let udp = || Matches::new().protocol(Protocol::UDP);
        let accept = Rule::when(udp().ip_set(Side::Source, clients), Action::Accept);
        let drop = Rule::when(udp(), Action::Drop);
        table.update_chain(Layer::Filter, Chain::new(name("cali-OUTPUT"), vec![accept, drop]));
        apply(&namespace, &mut table);
        let is_over = AtomicBool::new(false);
        let probe = || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let (mut sent, mut dropped) = (0_u64, 0_u64);
            while !is_over.load(Ordering::Relaxed) {
                // The sender gets an error for a packet that is dropped at OUTPUT.
                let result = socket.send_to(b"x", "127.0.0.1:9");
                dropped += u64::from(result.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied));
                sent += 1;
            }
            (sent, dropped)
        };
        let (sent, dropped) = std::thread::scope(|scope| {
            let prober = scope.spawn(|| namespace.run(probe).unwrap());
            for round in 0..200 {
                let members = if round % 2 == 0 { small } else { large };
                let members = members.iter().map(|net| Member::from(net.parse::<Cidr>().unwrap()));
                table.replace_set(&IpSetId::from("s:clients"), clients, SetType::HashNet, members).unwrap();
                assert_eq!(apply(&namespace, &mut table), 1);
            }
            is_over.store(true, Ordering::Relaxed);
            prober.join().unwrap()
        });
        assert!(sent > 1000, "{sent}");
        assert_eq!(dropped, 0, "of {sent}");
    }
}
