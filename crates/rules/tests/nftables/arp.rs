//! The table of ARP packets: as recorded, and on a kernel.
#![allow(clippy::disallowed_methods, reason = "sends frames, in private network namespaces")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tortie_iptables::{InterfaceName, MapKey, MapVerdict, Table as Layer};
use tortie_lab::ethernet::{FrameSender, arp_request};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_nftables::fake::FakeKernel;
use tortie_nftables::{Features, Table, TableConfig, TableId};
use tortie_rules::names::chain;
use tortie_rules::{arp_dispatch, arp_hook, arp_workload};

use super::load::{self, list, text};

fn table() -> Table {
    let mut table = Table::new(TableConfig::new(TableId::CALICO_ARP), Features::ALL);
    let hook = arp_hook();
    table.set_hook(hook.table, hook.kernel_chain, hook.position, hook.rules);
    table.update_chain(Layer::Filter, arp_dispatch());
    table
}

fn workload(table: &mut Table, interface: &str, addresses: &[&str]) {
    let interface: InterfaceName = interface.parse().unwrap();
    let chain = arp_workload(interface, addresses.iter().map(|address| address.parse().unwrap()));
    table.set_verdict(
        Layer::Filter,
        chain::ARP_DISPATCH,
        MapKey::Interface(interface),
        Some(MapVerdict::Goto(chain.name)),
    );
    table.update_chain(Layer::Filter, chain);
}

/// At the start, and after another workload was added.
#[test]
fn replies_to_workloads_about_their_own_addresses_are_dropped_as_recorded() {
    let Some(json) = crate::nftables_json() else { return };
    let recorded = &json["base_chains"];
    let (mut kernel, mut now) = (FakeKernel::new(TableId::CALICO_ARP), Duration::ZERO);
    let mut table = table();
    let workloads = [("cali1234", &["10.0.0.5"][..]), ("cali5678", &["10.0.0.6", "10.0.0.7"])];
    for (step, (interface, addresses)) in list(&recorded["arp"]).iter().zip(workloads) {
        assert!(text(&step["step"]).contains(interface));
        workload(&mut table, interface, addresses);
        kernel.apply(&mut table, &mut now).unwrap();
        let ours = kernel.transactions.last().unwrap().line_count();
        let theirs = list(&step["transactions"][0]["lines"]).len();
        assert!(ours <= theirs, "{ours} lines, recorded are {theirs}");
    }
    let (mut ours, mut theirs) = (kernel.dump(), load::strings(&recorded["arp_dump"]));
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

kernel_test! {
    fn arp_probes_of_a_workload_for_its_own_address_are_not_answered() {
        const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
        let (node, pod) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let pod_at = pod.path();
        node.ip([
            format!("link add cali1 type veth peer name eth0 address 02:00:00:00:00:02 netns {}", pod_at.display()),
            "link set cali1 up".to_owned(),
            "link add out type veth peer name out1".to_owned(),
            "link set out1 up".to_owned(),
            "link set out up".to_owned(),
            // There is no route to the workload yet, so its own address seems to be elsewhere.
            "route add default dev out".to_owned(),
        ])
        .unwrap();
        pod.ip(["link set eth0 up"]).unwrap();
        let settings = ["ip_forward", "conf/cali1/proxy_arp"].map(|name| (format!("ipv4/{name}"), "1"));
        node.sysctl(&settings).unwrap();
        node.sysctl(&[("ipv4/neigh/cali1/proxy_delay".to_owned(), "0")]).unwrap();
        pod.shell(
            "nft add table arp seen
             nft 'add chain arp seen input { type filter hook input priority 0; }'
             nft add rule arp seen input arp operation reply counter",
        )
        .unwrap();
        let replies = || {
            let listed = pod.shell("nft list chain arp seen input").unwrap();
            listed.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let sender = FrameSender::open(&pod, "eth0").unwrap();
        let own = Ipv4Addr::new(10, 65, 0, 5);
        let ask = |of: &str| sender.send(&arp_request(MAC, own, of.parse().unwrap())).unwrap();
        let until = |count: u64| {
            let give_up = Instant::now() + Duration::from_secs(10);
            while replies() < count {
                assert!(Instant::now() < give_up, "{} of {count} replies", replies());
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        ask("10.65.0.5");
        until(1);
        let mut table = table();
        workload(&mut table, "cali1", &["10.65.0.5"]);
        let mut apply = || node.run(|| Nft::open().unwrap().apply(&mut table)).unwrap().unwrap().len();
        assert_eq!((apply(), apply()), (1, 0));
        ask("10.65.0.5");
        // The node still answers for other addresses; the reply for the first address is dropped.
        ask("10.65.0.6");
        until(2);
        let listed = node.shell("nft list chain arp calico-arp filter-cali-arp-cali1").unwrap();
        assert!(listed.contains("arp saddr ip 10.65.0.5 counter packets 1 "), "{listed}");
        assert_eq!(replies(), 2);
        // After a restart, the table in the kernel is recognized as unchanged.
        let mut restarted = self::table();
        workload(&mut restarted, "cali1", &["10.65.0.5"]);
        assert_eq!(node.run(|| Nft::open().unwrap().apply(&mut restarted)).unwrap().unwrap(), []);
    }

    fn arp_expressions_match_those_of_nft() {
        let (by_nft, by_us) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let mut table = table();
        workload(&mut table, "cali1", &["10.65.0.5", "10.65.0.6"]);
        let made = by_us.run(|| Nft::open().unwrap().apply(&mut table)).unwrap().unwrap();
        by_nft.output(std::process::Command::new("nft").args(["-f", "-"]), &made[0].to_string()).unwrap();
        let read = |namespace: &Namespace| {
            let mut read = namespace.run(|| Nft::open().unwrap().read(TableId::CALICO_ARP)).unwrap().unwrap();
            read.chains.values_mut().flat_map(|chain| &mut chain.rules).for_each(|rule| rule.handle = 0);
            read
        };
        assert_eq!(read(&by_nft), read(&by_us));
    }
}
