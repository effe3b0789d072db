//! Contents of the kernel's table, and the time at which they are written.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tortie_ipsets::Member;
use tortie_iptables::{Action, Chain, ChainName, HookPosition, Matches, Rule, Side, Table as Layer, kernel_chain};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_model::{Cidr, Family, IpSetId};
use tortie_nftables::{Features, Table, TableConfig};

use super::super::pair::{HOST, PEER, Pair, V4, apply, nft, renderer, set, set_name, table};

const SET: &str = "s:strangers";

fn name(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

/// Returns a table in which `filter` INPUT leads to a chain with these rules.
fn input(rules: Vec<Rule>) -> Table {
    let mut table = Table::new(TableConfig::new(V4), Features::ALL);
    let jump = vec![Rule::new(Action::Jump(name("cali-x")))];
    table.set_hook(Layer::Filter, kernel_chain::INPUT, HookPosition::Insert, jump);
    table.update_chain(Layer::Filter, Chain::new(name("cali-x"), rules));
    table
}

/// Accepts packets from all sources outside a set.
fn all_but_strangers() -> Table {
    let stranger = |matches: Matches| matches.not_ip_set(Side::Source, set_name(Family::V4, SET));
    let mut table = input(vec![Rule::when(stranger(Matches::new()), Action::Accept), Rule::new(Action::Drop)]);
    set(&mut table, SET, &["192.0.2.2/32"]);
    table
}

fn listed(namespace: &Namespace) -> Vec<String> {
    let listed = namespace.shell("nft -s list table ip calico").unwrap();
    let mut lines: Vec<String> = listed.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort_unstable();
    lines
}

kernel_test! {
    /// When Felix has to recreate its table, it creates the sets without members. Members follow
    /// with the next change of a set or the next refresh; until then, `saddr != @set` matches every
    /// source. Tortie writes members, rules and table in one transaction. At most a packet that is
    /// between the chains of the old and the new table at that moment passes.
    fn d5_a_recreated_table_has_its_members_at_once() {
        const TIMES: usize = 20;
        let pair = Pair::new();
        let mut table = all_but_strangers();
        pair.apply(&mut table);
        let (before, stop, sent) = (listed(&pair.host), AtomicBool::new(false), AtomicUsize::new(0));
        let receiver = pair.host.run(|| UdpSocket::bind("0.0.0.0:7000")).unwrap().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let passed = || (0..).take_while(|_| receiver.recv(&mut [0; 8]).is_ok()).count();
        let sender = pair.peer.run(|| UdpSocket::bind((PEER[0], 0))).unwrap().unwrap();
        sender.connect((HOST[0], 7000)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    sent.fetch_add(usize::from(sender.send(b"x").is_ok()), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            let mut at_the_moment = 0;
            for _ in 0..TIMES {
                // The type of a set cannot be changed: the whole table is created again.
                let lines = "flush chain ip calico filter-INPUT
                             flush chain ip calico filter-cali-x
                             delete set ip calico cali40s-strangers
                             add set ip calico cali40s-strangers { type inet_service ; }
                             add rule ip calico filter-INPUT drop";
                nft(&pair.host, lines).unwrap();
                assert_eq!(passed(), 0);
                table.invalidate();
                let made = pair.apply(&mut table);
                assert_eq!(made.len(), 1);
                assert!(made[0].to_string().starts_with("delete table ip calico\n"), "{}", made[0]);
                at_the_moment += passed();
                let until = sent.load(Ordering::Relaxed) + 100;
                while sent.load(Ordering::Relaxed) < until {
                    std::thread::yield_now();
                }
                assert_eq!(passed(), 0);
                assert_eq!(listed(&pair.host), before);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(at_the_moment <= TIMES, "{at_the_moment} of {sent:?}");
        });
        // The same after another process deleted it.
        nft(&pair.host, "delete table ip calico").unwrap();
        table.invalidate();
        let made = pair.apply(&mut table);
        assert_eq!(made.len(), 2);
        assert!(made[0].to_string().contains("add element") && !made[0].to_string().contains("rule"), "{}", made[0]);
        assert_eq!(listed(&pair.host), before);
    }

    /// On a node without workloads, Felix does not remember that it created its two maps, and
    /// creates them in each apply.
    fn d6_maps_without_members_are_made_once() {
        let pair = Pair::new();
        let mut table = table(&renderer(|_| ()), V4);
        let start = pair.apply(&mut table);
        assert_eq!(start.iter().map(|made| made.to_string().matches("add map ").count()).sum::<usize>(), 2);
        for round in 0..5 {
            assert_eq!(pair.apply(&mut table), []);
            let pool = format!("10.{round}.0.0/16");
            set(&mut table, "network-ip-pools", &[&pool]);
            let made = pair.apply(&mut table);
            assert!(made.len() == 1 && !made[0].to_string().contains("map"), "{made:?}");
        }
        table.invalidate();
        assert_eq!(pair.apply(&mut table), []);
    }

    /// Felix never writes a change of comments alone, since its hashes do not cover comments. In
    /// nftables mode it has no unreferenced chains, though `AssumeNeededOnEveryNode` requires them.
    fn d13_comments_are_kept_true_and_chains_are_programmed_in_advance() {
        let pair = Pair::new();
        let rule = |comment: &str| Rule::new(Action::Return).comment(comment.to_owned());
        let mut table = input(vec![rule("first"), rule("old")]);
        pair.apply(&mut table);
        for is_read in [false, true] {
            if is_read {
                table.invalidate();
                pair.apply(&mut table);
            }
            let comment = if is_read { "newest" } else { "new" };
            table.update_chain(Layer::Filter, Chain::new(name("cali-x"), vec![rule("first"), rule(comment)]));
            assert_eq!(pair.apply(&mut table).len(), 1);
            assert!(listed(&pair.host).iter().any(|line| line.ends_with(&format!("; {comment}\""))));
            assert_eq!(pair.apply(&mut table), []);
        }
        // Another process may have changed one.
        let before = listed(&pair.host);
        let handles = pair.host.shell("nft -a list chain ip calico filter-cali-x").unwrap();
        let rule = handles.lines().find(|line| line.contains("newest")).unwrap().trim();
        let (text, handle) = rule.split_once(" # handle ").unwrap();
        let text = text.replace("newest", "other");
        nft(&pair.host, &format!("replace rule ip calico filter-cali-x handle {handle} {text}")).unwrap();
        table.invalidate();
        assert_eq!(pair.apply(&mut table)[0].commands.len(), 1);
        assert_eq!(listed(&pair.host), before);

        table.pin_chain(Layer::Filter, name("cali-pi-ahead"), true);
        table.update_chain(Layer::Filter, Chain::new(name("cali-pi-ahead"), vec![Rule::new(Action::Drop)]));
        table.update_chain(Layer::Filter, Chain::new(name("cali-pi-unused"), vec![Rule::new(Action::Drop)]));
        pair.apply(&mut table);
        let shown = listed(&pair.host).concat();
        assert!(shown.contains("filter-cali-pi-ahead") && !shown.contains("filter-cali-pi-unused"), "{shown}");
    }

    /// Felix reads comments, not rules, and no types of sets. A rule that another process changed
    /// under its comment stays. A set of another type, as from another version, refuses its members
    /// until Felix exits. Tortie repairs both.
    fn d14_rules_and_types_are_read_and_not_only_names() {
        let pair = Pair::new();
        let mut table = all_but_strangers();
        pair.apply(&mut table);
        let before = listed(&pair.host);
        let handles = pair.host.shell("nft -a list chain ip calico filter-cali-x").unwrap();
        let rule = handles.lines().find(|line| line.contains("drop")).unwrap().trim();
        let (text, handle) = rule.split_once(" # handle ").unwrap();
        let comment = text.split_once("comment ").unwrap().1;
        for change in [
            format!("replace rule ip calico filter-cali-x handle {handle} counter accept comment {comment}"),
            "flush chain ip calico filter-cali-x
             delete set ip calico cali40s-strangers
             add set ip calico cali40s-strangers { type inet_service ; }".to_owned(),
            "add set ip calico cali40s-later { type inet_service ; }".to_owned(),
        ] {
            nft(&pair.host, &change).unwrap();
            table.invalidate();
            assert_eq!(pair.apply(&mut table).len(), 1, "{change}");
            assert_eq!(listed(&pair.host), before, "{change}");
        }
        let receiver = pair.host.run(|| UdpSocket::bind("0.0.0.0:7000")).unwrap().unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let sender = pair.peer.run(|| UdpSocket::bind((PEER[0], 0))).unwrap().unwrap();
        sender.send_to(b"x", (HOST[0], 7000)).unwrap();
        assert!(receiver.recv(&mut [0; 8]).is_err());
    }

    /// An interval set refuses overlapping networks, whereupon Felix exits, unless its calculation
    /// removed the overlap. Tortie accepts any members, in any order of changes: it writes only
    /// networks that no other member contains.
    fn d15_networks_may_contain_each_other() {
        let namespace = Namespace::new().unwrap();
        let lines = "add table ip t\nadd set ip t s { type ipv4_addr ; flags interval ; }\n";
        assert!(nft(&namespace, &format!("{lines}add element ip t s {{ 10.0.0.0/8 }}\nadd element ip t s {{ 10.1.0.0/16 }}")).is_err());
        let net = (0..4_u8, 0..4_u8, prop_oneof![Just(0_u8), Just(6), Just(8), Just(15), Just(16), Just(24), Just(32)])
            .prop_map(|(a, b, len)| Cidr::new(IpAddr::from([a << 6, b << 6, 1, 1]), len).unwrap().masked());
        let edits = prop::collection::vec(prop::collection::btree_set(net, 0..12), 1..6);
        let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
        runner
            .run(&edits, |edits| {
                let namespace = Namespace::new().unwrap();
                let mut table = all_but_strangers();
                apply(&namespace, &mut table);
                let mut had: BTreeSet<Cidr> = ["192.0.2.2/32".parse().unwrap()].into();
                for nets in edits {
                    let members = |nets: Vec<&Cidr>| nets.into_iter().map(|net| Member::from(*net)).collect::<Vec<_>>();
                    let (added, removed) = (nets.difference(&had).collect(), had.difference(&nets).collect());
                    let id = IpSetId::from(SET);
                    table.edit_set(&id, set_name(Family::V4, SET), members(added), members(removed)).unwrap();
                    apply(&namespace, &mut table);
                    prop_assert_eq!(table.set_problems().count(), 0);
                    let read = namespace.run(|| Nft::open().unwrap().read(V4)).unwrap().unwrap();
                    let elements = &read.sets["cali40s-strangers"].elements;
                    for address in (0..=255_u8).map(|a| [a, a.rotate_left(2), 1, 1]) {
                        let is_in = elements.iter().any(|(begin, end)| {
                            begin[..] <= address[..] && end.as_ref().is_none_or(|end| address[..] < end[..])
                        });
                        let is_expected = nets.iter().any(|net| net.contains(IpAddr::from(address)));
                        prop_assert_eq!(is_in, is_expected, "{:?} in {:?}", address, &nets);
                    }
                    had = nets;
                }
                Ok(())
            })
            .unwrap();
    }
}
