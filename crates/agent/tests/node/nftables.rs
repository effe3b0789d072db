//! nftables tables with a broken `nft` program.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::CLUSTER;

use super::agent::Node;

tortie_lab::kernel_test! {
    /// Felix assumes that nftables works if an `nft` is installed. It ends in any mode if its table
    /// of ARP packets cannot be written, so that a program that crashes disables all policy. Tortie
    /// runs no `nft`, and writes the table where the kernel supports it.
    fn d12_a_broken_nft_keeps_nothing_from_being_enforced() {
        for mode in ["Disabled", "Enabled"] {
            let mut node = Node::new("nft", CLUSTER);
            node.wrap("nft", "kill -SEGV $$");
            node.set("FELIX_NFTABLESMODE", mode);
            node.start();
            let listed = |object: &str| node.shell(&format!("PATH=/usr/sbin:/sbin:/usr/bin:/bin nft list {object}"));
            match mode {
                "Enabled" => assert!(listed("table ip calico").contains("filter-cali-tw-")),
                _ => assert!(node.kernel_state().contains("cali-tw-")),
            }
            let arp = listed("table arp calico-arp");
            assert!(arp.contains("arp saddr ip 10.65.0.2 counter packets 0 bytes 0 drop"), "{arp}");
            assert_eq!(node.metric("tortie_dataplane_problems"), 0.0, "{}", node.log());
            assert!(node.metric("felix_nft_calls") >= 1.0);
        }
    }

    /// Iptables has the same test, `a_restart_writes_nothing_and_foreign_rules_survive`.
    fn a_restart_makes_no_transaction() {
        for (mode, layout, counters) in [
            ("FELIX_NFTABLESMODE=Enabled", "Felix", vec![]),
            ("FELIX_NFTABLESMODE=Enabled", "Fast", vec![]),
            ("FELIX_BPFENABLED=true", "Felix", vec!["tortie_bpf_map_writes", "tortie_bpf_generations_built"]),
        ] {
            let mut node = Node::new("nft", CLUSTER);
            let (name, value) = mode.split_once('=').unwrap();
            node.set(name, value);
            node.set("FELIX_NFTABLESLAYOUT", layout);
            node.start();
            node.stop(Signal::TERM);
            let generation = node.ruleset_generation();
            node.start();
            assert_eq!(node.ruleset_generation(), generation, "{mode} {layout}\n{}", node.log());
            for counter in counters {
                assert_eq!(node.metric(counter), 0.0, "{counter}");
            }
        }
    }

    fn programs_of_iptables_that_hang_are_not_waited_for() {
        let mut node = Node::new("nft", CLUSTER);
        for program in ["iptables", "iptables-nft", "iptables-legacy", "ip6tables", "ip6tables-nft", "ip6tables-legacy"] {
            for part in ["", "-save", "-restore"] {
                node.wrap(&format!("{program}{part}"), "sleep 600");
            }
        }
        node.wrap("ipset", "sleep 600");
        node.wrap("nft", "sleep 600");
        node.set("FELIX_NFTABLESMODE", "Enabled");
        let begun = Instant::now();
        node.start();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let table = node.shell("PATH=/usr/sbin:/sbin:/usr/bin:/bin nft list table ip calico");
        assert!(table.contains("filter-cali-tw-"), "{table}");
    }
    fn a_change_of_the_back_end_is_named_and_leaves_no_tables_behind() {
        let mut node = Node::new("nft", CLUSTER);
        // All back ends need chains for it.
        let pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n";
        node.write("pool.yaml", &format!("{pool}spec: {{cidr: 10.65.0.0/16, natOutgoing: true}}\n"));
        node.start();
        let tables = |node: &Node| node.shell("nft list tables");
        let enforces = |by: &str| {
            let status = String::from_utf8(node.ask(&["status", "--output", "json"]).stdout).unwrap();
            status.contains(&format!("\"enforced_by\": \"{by}\""))
        };
        assert!(enforces("iptables"));
        let changes = [
            ("nftablesMode: Enabled", "nftables", "nftables, ", true),
            ("bpfEnabled: true", "programs", "eBPF programs, IPv4", false),
            ("bpfEnabled: true, nftablesMode: Enabled", "programs", "eBPF programs, nftables, ", true),
            ("nftablesMode: Disabled", "iptables", "iptables nft, ", false),
        ];
        for (spec, by, logged, has_tables) in changes {
            let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\n";
            node.write("felix.yaml", &format!("{felix}spec: {{{spec}}}\n"));
            node.until("the other back end enforces policy alone", |iptables| {
                let has = (tables(&node).contains("table ip calico\n"), iptables.contains("cali"));
                enforces(by) && has == (has_tables, !has_tables)
            });
            let log = node.log();
            let restarted = log.lines().rfind(|line| line.contains("the engine has restarted")).unwrap();
            assert!(restarted.contains(&format!("\"dataplane\":\"{logged}")), "{restarted}");
        }
        assert!(node.log().contains("a leftover of Felix or another back end is removed"), "{}", node.log());
        // All back ends use the table of ARP packets.
        assert!(tables(&node).contains("table arp calico-arp"), "{}", tables(&node));
        node.stop(Signal::TERM);
        node.cleanup();
        assert!(!tables(&node).contains("calico"), "{}", tables(&node));
    }
}
