//! nftables tables with a broken `nft` program.

use std::time::{Duration, Instant};

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
}
