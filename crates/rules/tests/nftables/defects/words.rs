//! Rules that `nft` refuses in Felix's text, or that have another meaning there.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::json;
use tortie_iptables::{
    Action, Chain, ChainName, HookPosition, IcmpType, InterfaceName, MapKey, MapVerdict, Matches, Rule, Table as Layer,
    kernel_chain,
};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::{AdminState, Family, PolicyId, PolicyKind, ProfileName};
use tortie_nftables::{Deviation, Features, MAX_NAME_LEN, Table, TableConfig, deviations};
use tortie_rules::names::static_set;
use tortie_rules::{DenyAction, DscpRule};

use super::super::load;
use super::super::pair::{self, HOST, PEER, Pair, SERVICE, V4, V6, nft, renderer, set, table, update};

fn name(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

/// Returns a table in which `filter` OUTPUT leads to a chain with these rules.
fn output(rules: Vec<Rule>) -> Table {
    let mut table = Table::new(TableConfig::new(V4), Features::ALL);
    let jump = vec![Rule::new(Action::Jump(name("cali-x")))];
    table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, jump);
    table.update_chain(Layer::Filter, Chain::new(name("cali-x"), rules));
    table
}

kernel_test! {
    /// `filter` OUTPUT must leave translated connections to `mangle` POSTROUTING, where their
    /// outgoing interface is known. Felix matches `ct status != dnat`, which compares all bits.
    /// That is true of translated packets as well, so policy of host endpoints applies to them
    /// twice. Tortie matches the bit.
    fn d1_policy_of_host_endpoints_meets_translated_packets_once() {
        let pair = Pair::new();
        pair::translate(&pair);
        let theirs = "add table ip theirs
            add chain ip theirs output { type filter hook output priority 0 ; }
            add rule ip theirs output udp dport 7000 ct status != dnat counter";
        nft(&pair.host, theirs).unwrap();
        let renderer = renderer(|_| ());
        let mut table = table(&renderer, V4);
        pair::host(&mut table, &renderer, Some(("eth0", json!([{"action": "allow"}]))));
        pair.apply(&mut table);
        assert_eq!(pair.send(HOST[0], SERVICE).unwrap().ip().to_string(), HOST[0]);
        assert!(pair.send(HOST[0], PEER[0]).is_some());
        let filter = pair.packets("ip calico", "filter-cali-OUTPUT", "jump filter-cali-to-host-endpoint");
        let mangle = pair.packets("ip calico", "mangle-cali-POSTROUTING", "jump mangle-cali-to-host-endpoint");
        assert_eq!((filter, mangle), (1, 1), "the direct one here, the translated one there");
        assert_eq!(pair.packets("ip theirs", "output", "status"), 2, "the original's words are true of both");
    }

    /// For a policy with an ICMP type and code, Felix writes `icmp type 8 code 0`. `nft` refuses
    /// that together with everything else, whereupon Felix exits, again and again. As two matches,
    /// the negation would exclude the type and the code instead of the pair. Tortie compares both
    /// bytes at once.
    fn d2_type_and_code_of_icmp_are_one_match() {
        let pair = Pair::new();
        let theirs = |rule: &str| nft(&pair.host, &format!("add table ip t\nadd chain ip t c\nadd rule ip t c {rule}"));
        assert!(theirs("icmp type 8 code 1 counter accept").is_err());
        let pair_of = |kind, code| IcmpType { number: kind, code };
        let count = |matches: Matches| Rule { action: Some(Action::SetMark(renderer(|_| ()).config().marks.accept)), ..Rule::when(matches, Action::Accept) };
        let icmp = |family, icmp| match family {
            Family::V4 => Matches::new().protocol(tortie_iptables::Protocol::Number(1)).icmp(family, icmp),
            Family::V6 => Matches::new().protocol(tortie_iptables::Protocol::Number(58)).icmp(family, icmp),
        };
        let not = Matches::new()
            .protocol(tortie_iptables::Protocol::Number(1))
            .not_icmp(Family::V4, pair_of(8, Some(1)));
        let rules = vec![count(icmp(Family::V4, pair_of(8, Some(1)))), count(not)];
        assert!(rules.iter().all(|rule| deviations(rule).eq([Deviation::IcmpCode])));
        let mut v4 = output(rules);
        pair.apply(&mut v4);
        for (kind, code) in [(8, 0), (8, 1), (13, 1), (13, 0)] {
            pair.send_icmp(PEER[0], kind, code);
        }
        let counted = |text| pair.packets("ip calico", "filter-cali-x", text);
        assert_eq!((counted("icmp type 8 icmp code 1 "), counted("icmp type != 8 icmp code != 1 ")), (1, 3));

        let rules = vec![count(icmp(Family::V6, pair_of(128, Some(0)))), count(icmp(Family::V6, pair_of(128, Some(1))))];
        let mut v6 = Table::new(TableConfig::new(V6), Features::ALL);
        let jump = vec![Rule::new(Action::Jump(name("cali-x")))];
        v6.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, jump);
        v6.update_chain(Layer::Filter, Chain::new(name("cali-x"), rules));
        pair.apply(&mut v6);
        for code in [0, 1, 1] {
            pair.send_icmp(PEER[1], 128, code);
        }
        let counted = |text| pair.packets("ip6 calico", "filter-cali-x", text);
        assert_eq!((counted("icmpv6 code 0 "), counted("icmpv6 code 1 ")), (1, 2));
    }

    /// With `NftablesFilterDenyAction=REJECT`, Felix writes `reject` into the chain of a host
    /// endpoint in `mangle`, which POSTROUTING jumps to. The kernel refuses it there. In Tortie,
    /// such a rule drops, and packets that `filter` denies are rejected.
    fn d3_rules_behind_postrouting_do_not_reject() {
        let pair = Pair::new();
        let theirs = "add table ip t
            add chain ip t c { type filter hook postrouting priority -150 ; }
            add rule ip t c counter reject";
        let refusal = nft(&pair.host, theirs).unwrap_err();
        assert!(refusal.contains("Operation not supported"), "{refusal}");
        pair::translate(&pair);
        let renderer = renderer(|config| config.deny = DenyAction::Reject);
        let mut table = table(&renderer, V4);
        pair::host(&mut table, &renderer, Some(("eth0", json!([]))));
        pair.apply(&mut table);
        let answer = |to: &str| {
            let socket = pair.host.run(|| UdpSocket::bind((HOST[0], 0))).unwrap().unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            socket.connect((to, 7000)).unwrap();
            let _ = socket.send(b"x");
            socket.recv(&mut [0; 8]).unwrap_err().kind()
        };
        assert_eq!((pair.send(HOST[0], PEER[0]), pair.send(HOST[0], SERVICE)), (None, None));
        assert_eq!(answer(PEER[0]), std::io::ErrorKind::ConnectionRefused);
        assert!(pair.packets("ip calico", "filter-cali-th-eth0", "reject") > 0);
        assert!(pair.packets("ip calico", "mangle-cali-th-eth0", "drop") > 0);
    }

    /// Felix writes the addresses of an endpoint with a DSCP value as `ip saddr A,B`, which `nft`
    /// refuses. Tortie writes a rule for each.
    fn d4_each_address_of_an_endpoint_gets_its_dscp_value() {
        let pair = Pair::new();
        let theirs = "add table ip t\nadd chain ip t c\nadd rule ip t c ip saddr 10.65.0.1,10.65.0.2 counter ip dscp set 20";
        assert!(nft(&pair.host, theirs).is_err());
        let renderer = renderer(|_| ());
        let mut table = table(&renderer, V4);
        set(&mut table, static_set::DSCP_SOURCES, &["10.65.0.1/32", "10.65.0.2/32"]);
        let value = |source: &str| DscpRule { source: source.parse().unwrap(), value: 20 };
        update(&mut table, Layer::Mangle, [renderer.egress_dscp(&[value(HOST[2]), value(HOST[3])])]);
        pair.apply(&mut table);
        let seen = "add table ip seen
            add chain ip seen input { type filter hook input priority 0 ; }
            add rule ip seen input udp dport 7000 ip dscp 20 counter
            add rule ip seen input udp dport 7000 ip dscp 0 counter";
        nft(&pair.peer, seen).unwrap();
        for from in [HOST[2], HOST[3], HOST[0]] {
            assert!(pair.send(from, PEER[0]).is_some(), "{from}");
        }
        let seen = |text| pair::packets(&pair.peer, "ip seen", "input", text);
        assert_eq!((seen("dscp 0x14"), seen("dscp 0x00")), (2, 1));
    }

    /// `IptablesNATOutgoingInterfaceFilter` ends with `+` where it stands for several interfaces.
    /// Felix passes it to `nft` unchanged, which is a syntax error. Tortie writes `*`.
    fn d7_masquerading_is_limited_to_interfaces_that_begin_so() {
        let pair = Pair::new();
        let theirs = "add table ip t\nadd chain ip t c\nadd rule ip t c oifname eth+ counter accept";
        assert!(nft(&pair.host, theirs).is_err());
        for (filter, source) in [("eth+", HOST[0]), ("lan+", HOST[2]), ("eth0", HOST[0]), ("eth", HOST[2])] {
            let renderer = renderer(|config| config.nat.out_interface = Some(filter.parse().unwrap()));
            let mut table = table(&renderer, V4);
            set(&mut table, static_set::MASQUERADE_POOLS, &["10.65.0.0/16"]);
            set(&mut table, static_set::NETWORK_POOLS, &["10.65.0.0/16"]);
            update(&mut table, Layer::Nat, [renderer.nat_outgoing(true, Family::V4)]);
            pair.apply(&mut table);
            let seen = pair.send(HOST[2], PEER[0]).unwrap();
            assert_eq!(seen.ip().to_string(), source, "{filter}");
        }
    }

    /// Felix exits if a rule has protocol 0, or ports with a protocol that has none. Tortie reports
    /// such a rule as a problem. If it allows, it is left out; if it denies, it denies all packets
    /// that its other conditions match. All other rules are in force.
    fn d8_rules_that_nft_cannot_express_close_their_chain_only() {
        let pair = Pair::new();
        let renderer = renderer(|_| ());
        let ports = json!([{"first": 7000, "last": 7000}]);
        for bad in [
            json!({"protocol": {"number": 0}}),
            json!({"dst_ports": ports}),
            json!({"protocol": {"number": 47}, "dst_ports": ports}),
        ] {
            // A deny rule for protocol 47 closes only that protocol, and the sent packets are UDP.
            for (action, is_open) in [("allow", true), ("deny", bad["protocol"]["number"] == 47)] {
                let mut rule = bad.clone();
                rule["action"] = json!(action);
                let policy = json!({"tier": "default", "outbound_rules": [rule, {"action": "allow"}]});
                let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "out");
                let made = renderer.policy(&id, &load::policy(&policy, Family::V4), Family::V4).unwrap();
                assert_eq!(made.problems.len(), 1, "{policy}");
                let mut table = table(&renderer, V4);
                pair::host(&mut table, &renderer, Some(("eth0", policy["outbound_rules"].clone())));
                pair.apply(&mut table);
                assert_eq!(pair.send(HOST[0], PEER[0]).is_some(), is_open, "{policy}");
                assert!(pair.send(HOST[1], PEER[1]).is_some(), "the other family has nothing against it");
            }
        }
    }

    /// Felix allows 256 bytes for names of chains, without its prefix; the kernel takes 255 bytes
    /// with the prefix. Policies with long names are refused, or make Felix exit. Tortie shortens
    /// longer names by a hash.
    fn d9_chains_of_policies_with_long_names_are_accepted() {
        let namespace = Namespace::new().unwrap();
        let refusal = nft(&namespace, &format!("add table ip t\nadd chain ip t {}", "x".repeat(MAX_NAME_LEN + 1)));
        assert!(refusal.is_err());
        let renderer = renderer(|_| ());
        let mut table = Table::new(TableConfig::new(V4), Features::ALL);
        let mut chains = 0;
        for len in 225..=253 {
            for end in ["a", "b"] {
                let text = "n".repeat(len - 1) + end;
                let ids = [
                    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", &*text),
                    PolicyId::new(PolicyKind::NetworkPolicy, "ns", &*text),
                ];
                let allow = json!({"tier": "default", "inbound_rules": [{"action": "allow"}]});
                let mut made = vec![renderer.profile(&ProfileName::from(text.as_str()), &load::profile(&allow, Family::V4), Family::V4)];
                made.extend(ids.iter().map(|id| renderer.policy(id, &load::policy(&allow, Family::V4), Family::V4).unwrap()));
                for chain in made.into_iter().flat_map(|made| [made.inbound, made.outbound]) {
                    table.pin_chain(Layer::Filter, chain.name, true);
                    table.update_chain(Layer::Filter, chain);
                    chains += 1;
                }
            }
        }
        assert_eq!(pair::apply(&namespace, &mut table).len(), 1);
        assert_eq!(table.problems(), []);
        let listed = namespace.shell("nft list chains ip").unwrap();
        let names = listed.lines().filter_map(|line| line.trim().strip_prefix("chain filter-cali-p")).count();
        assert_eq!(names, chains, "each has one of its own");
    }

    /// Interface names that begin with a digit, or contain a special character, are syntax errors
    /// if `nft` reads them without quotes, as Felix writes them in rules and maps. Tortie quotes
    /// them in text, and sends them to the kernel as bytes.
    fn d10_every_interface_name_of_the_kernel_is_accepted() {
        for interface in ["0eth", "7", "eth0@lan", "eth0.100", "a+b"] {
            let pair = Pair::with_interface(interface);
            let name_of: InterfaceName = interface.parse().unwrap();
            let renderer = renderer(|_| ());
            let mut table = table(&renderer, V4);
            pair::host(&mut table, &renderer, Some((interface, json!([{"action": "deny"}]))));
            for (map, verdict) in renderer.workload_maps(name_of, Some((AdminState::Active, None))) {
                let target = verdict.and_then(MapVerdict::target).unwrap();
                table.update_chain(Layer::Filter, Chain::new(target, vec![Rule::new(Action::Return)]));
                table.set_verdict(Layer::Filter, map, MapKey::Interface(name_of), verdict);
            }
            let made = pair.apply(&mut table);
            assert_eq!(pair.send(HOST[0], PEER[0]), None, "{interface}");
            if interface.contains(['@', '+']) {
                // Names of chains contain it, and `nft` cannot read these either.
                continue;
            }
            // `nft` reads the printed text as the same table.
            let by_nft = Namespace::new().unwrap();
            nft(&by_nft, &made[0].to_string()).unwrap();
            let listed = |namespace: &Namespace| {
                let listed = namespace.shell("nft -s list table ip calico").unwrap();
                let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
                lines.sort_unstable();
                lines
            };
            assert_eq!(listed(&by_nft), listed(&pair.host), "{interface}");
        }
    }

    /// Felix writes an IPv4 `NATOutgoingAddress` into the IPv6 table as well, which `nft` refuses.
    /// In Tortie, packets of the other family get the address of the interface.
    fn d11_an_address_for_leaving_packets_is_used_in_its_own_family() {
        let pair = Pair::new();
        let theirs = "add table ip6 t
            add chain ip6 t c { type nat hook postrouting priority 110 ; }
            add rule ip6 t c counter snat to 192.0.2.77";
        assert!(nft(&pair.host, theirs).is_err());
        let renderer = renderer(|config| config.nat.address = Some("192.0.2.77".parse().unwrap()));
        pair.host.ip(["addr add 192.0.2.77/24 dev eth0", "addr add fd65::1/128 dev lo nodad"]).unwrap();
        pair.peer.ip(["route add fd65::/64 via fd00::1"]).unwrap();
        for (id, from, to, pool, seen_as) in
            [(V4, HOST[2], PEER[0], "10.65.0.0/16", "192.0.2.77"), (V6, "fd65::1", PEER[1], "fd65::/64", HOST[1])]
        {
            let mut table = table(&renderer, id);
            set(&mut table, static_set::MASQUERADE_POOLS, &[pool]);
            set(&mut table, static_set::NETWORK_POOLS, &[pool]);
            update(&mut table, Layer::Nat, [renderer.nat_outgoing(true, id.family)]);
            pair.apply(&mut table);
            assert_eq!(pair.send(from, to).unwrap().ip().to_string(), seen_as);
        }
    }
}

#[test]
fn each_deviation_of_a_text_has_the_number_of_its_defect() {
    assert_eq!(
        [Deviation::NotDnat, Deviation::IcmpCode, Deviation::QuotedInterface].map(Deviation::defect),
        [1, 2, 10]
    );
}
