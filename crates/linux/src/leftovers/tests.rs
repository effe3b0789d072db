use std::fs;

use tempfile::TempDir;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_nftables::{Command, Transaction};

use super::*;

fn write(root: &std::path::Path, names: &[&str]) {
    for name in names {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
}

#[test]
fn pins_of_felix_go_and_those_of_others_stay() {
    let folder = TempDir::new().unwrap();
    let ours = ["calico/xdp/prefilter_v1_eth0", "ctlb/connect4", "tc/globals/cali_v4_ct4", "tcx/cali1_ingress"];
    let others = ["cilium/globals/map", "tc/globals/map", "tcx/other", "netkit/other"];
    write(folder.path(), &ours);
    write(folder.path(), &others);
    // The link is not followed.
    std::os::unix::fs::symlink(folder.path().join("cilium"), folder.path().join("calico/link")).unwrap();
    assert!(pins::has_xdp_program(folder.path(), "eth0") && !pins::has_xdp_program(folder.path(), "eth1"));
    let mut removed = Removed::default();
    pins::remove(folder.path(), &mut removed);
    assert_eq!(removed.problems, Vec::<String>::new());
    assert!(ours.iter().all(|name| !folder.path().join(name).exists()));
    assert!(others.iter().all(|name| folder.path().join(name).exists()), "{removed:?}");
    let mut again = Removed::default();
    pins::remove(folder.path(), &mut again);
    assert_eq!(again, Removed::default());
}

kernel_test! {
    fn leftovers_of_felix_are_removed_and_foreign_objects_stay() {
        let namespace = Namespace::new().unwrap();
        namespace
            .shell(
                "nft add table ip calico; nft add table ip6 calico; nft add table arp calico-arp; nft add table ip mine; nft \
                 add table inet calico
                 nft 'add chain ip calico filter-FORWARD { type filter hook forward priority 0; policy drop; }'
                 ip link add cali1 type veth peer name eth1; ip link add eth0 type veth peer name eth2
                 ip link set cali1 up; ip link set eth0 up
                 ip link add bpfin.cali type veth peer name bpfout.cali
                 ip rule add fwmark 0x100000/0x100000 priority 99 table 7; ip rule add fwmark 0x1/0x1 priority 99 table 1000
                 ip rule add from 192.0.2.1 priority 99 table 7
                 ip route add throw 10.0.0.0/24 table 7 proto 80; ip route add throw 10.0.1.0/24 table 7 proto 5
                 ip route add throw 10.0.2.0/24 table 7 proto 3; ip route add throw 10.0.3.0/24 table 8 proto 3
                 tc qdisc add dev cali1 root handle 1: tbf rate 1mbit burst 32k latency 25ms
                 tc qdisc add dev eth0 root handle 1: tbf rate 1mbit burst 32k latency 25ms
                 tc qdisc add dev eth0 clsact
                 ip link add bwcali123456789 type ifb; tc qdisc add dev cali1 ingress
                 tc filter add dev cali1 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev \
                 bwcali123456789",
            )
            .unwrap();
        let leftovers = Leftovers {
            bpf_directory: None,
            workload_prefixes: vec!["cali".into()],
            rule_priority: 99,
            wireguard_devices: ["wireguard.cali", "wg-v6.cali"].map(InterfaceName::from_static),
            route_protocol: RouteProtocol(3),
        };
        let remove = || {
            let mut netlink = Netlink::open(Duration::from_secs(20)).unwrap();
            leftovers.remove_all(&mut netlink, Duration::from_secs(10))
        };
        let removed = namespace.run(remove).unwrap();
        assert_eq!(removed.problems, Vec::<String>::new(), "{removed:#?}");
        let shown = namespace
            .shell("nft list tables; ip link; ip rule; ip route show table all; tc qdisc; tc filter show dev cali1 ingress")
            .unwrap();
        for gone in ["ip calico", "ip6 calico", "calico-arp", "bpfin", "bwcali", "fwmark 0x100000", "10.0.0.0/24", "10.0.2.0/24", "mirred"] {
            assert!(!shown.contains(gone), "{gone}\n{shown}\n{removed:#?}");
        }
        for kept in ["ip mine", "inet calico", "from 192.0.2.1", "fwmark 0x1", "10.0.1.0/24", "10.0.3.0/24", "clsact"] {
            assert!(shown.contains(kept), "{kept}\n{shown}\n{removed:#?}");
        }
        let buckets: Vec<&str> = shown.lines().filter(|line| line.starts_with("qdisc tbf")).collect();
        assert!(buckets.len() == 1 && buckets[0].contains("eth0"), "{shown}");
        assert_eq!(namespace.run(remove).unwrap(), Removed::default());
    }

    /// Felix empties and deletes chain by chain before it deletes an unwanted table. Tortie sends
    /// one message for all rules and one for the table, regardless of its size.
    fn d16_a_table_goes_by_two_messages() {
        let namespace = Namespace::new().unwrap();
        let mut lines = String::from("add table ip calico\n");
        for chain in 0..300 {
            lines += &format!("add chain ip calico filter-cali-{chain}\nadd rule ip calico filter-cali-{chain} counter drop\n");
        }
        namespace.output(std::process::Command::new("nft").args(["-f", "-"]), &lines).unwrap();
        let mut nftables = namespace.run(|| Nftables::open(Duration::from_secs(10)).unwrap()).unwrap();
        let before = nftables.generation().unwrap();
        let table = TableId::calico(Family::V4);
        let transaction = Transaction { table, commands: vec![Command::DeleteTable] };
        assert_eq!(tortie_nftables::wire::encode(&transaction).len(), 1);
        assert!(nftables.delete(table).unwrap());
        assert_eq!(nftables.generation().unwrap(), before + 2);
        assert!(!nftables.delete(table).unwrap());
        assert_eq!(namespace.shell("nft list tables").unwrap(), "");
    }

    fn feature_detection_leaves_no_trace() {
        let namespace = Namespace::new().unwrap();
        let mut nftables = namespace.run(|| Nftables::open(Duration::from_secs(10)).unwrap()).unwrap();
        let by_nft = |lines: &str| namespace.output(std::process::Command::new("nft").args(["-f", "-"]), lines).is_ok();
        let has_arp = by_nft("add table arp t\nadd chain arp t c { type filter hook output priority 0 ; }\ndelete table arp t\n");
        let flow_table = "add flowtable ip t f { hook ingress priority 0 ; }";
        let has_flow_tables = by_nft(&format!("add table ip t\n{flow_table}\ndelete table ip t\n"));
        assert_eq!((nftables.has_arp_tables(), nftables.has_flow_tables()), (has_arp, has_flow_tables));
        let queue = "add chain ip t c\nadd rule ip t c queue flags bypass to 7\n";
        let has_queue = by_nft(&format!("add table ip t\n{queue}delete table ip t\n"));
        let before = nftables.generation().unwrap();
        assert_eq!((nftables.has_queue(), nftables.generation().unwrap()), (has_queue, before));
        assert_eq!(namespace.shell("nft list ruleset").unwrap(), "");
    }

    fn detection_of_arp_tables_writes_nothing_after_a_restart() {
        let namespace = Namespace::new().unwrap();
        let mut nftables = namespace.run(|| Nftables::open(Duration::from_secs(10)).unwrap()).unwrap();
        if !nftables.has_arp_tables() {
            return;
        }
        namespace.shell("nft add table arp calico-arp; nft add chain arp calico-arp c").unwrap();
        let before = nftables.generation().unwrap();
        assert!(nftables.has_arp_tables());
        assert_eq!(nftables.generation().unwrap(), before);
    }
}
