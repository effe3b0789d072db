//! Leftovers of Felix, or of an earlier agent.

use rustix::process::Signal;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;
use crate::CLUSTER;

fn limited(annotations: &str) -> String {
    CLUSTER.replacen("labels: {app: web}}", &format!("labels: {{app: web}}, annotations: {{{annotations}}}}}"), 1)
}

tortie_lab::kernel_test! {
    fn tables_of_the_nftables_mode_go_once_policy_is_in_force() {
        let mut node = Node::new("nft", CLUSTER);
        node.shell(
            "nft add table ip calico; nft 'add chain ip calico filter-FORWARD { type filter hook forward priority 0; policy drop; }'
             nft add table ip6 calico; nft add table arp calico-arp; nft add table ip mine",
        );
        node.start();
        let tables = || node.shell("nft list tables");
        // The table of ARP packets exists in every mode.
        let gone = || !["ip calico", "ip6 calico"].iter().any(|table| tables().contains(&format!("{table}\n")));
        node.until("Felix's tables are gone", |state| state.contains("cali-pi-") && gone());
        assert!(tables().contains("ip mine") && node.shell("nft list table arp calico-arp").contains("10.65.0.2"));
        assert!(node.log().contains(r#""leftover":"nftables table ip calico""#), "{}", node.log());
    }

    fn annotations_limit_bandwidth() {
        let limits = "kubernetes.io/ingress-bandwidth: 8M, qos.projectcalico.org/egressBandwidth: 16M, \
                      qos.projectcalico.org/egressBurst: 100k";
        let mut node = Node::new("nft", &limited(limits));
        let web = interface_name(&LabHost::pod("shop", "web")).unwrap();
        node.shell(&format!("ip link add {web} type veth peer name eth9; ip link set eth9 up; ip link set {web} up"));
        node.start();
        let shown = |node: &Node| node.shell(&format!("tc qdisc; ip link; tc filter show dev {web} ingress"));
        node.until("both directions are limited", |_| {
            let shown = shown(&node);
            shown.contains("rate 8Mbit") && shown.contains("rate 16Mbit") && shown.contains("Redirect to device bwcali")
        });
        let before = shown(&node);
        node.stop(Signal::TERM);
        node.start();
        let tbf = |text: &str| text.lines().filter(|line| line.contains("tbf")).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(tbf(&shown(&node)), tbf(&before), "a restart changes nothing");
        node.write("cluster.yaml", &limited("qos.projectcalico.org/egressBandwidth: 4M"));
        node.until("the limits have changed", |_| {
            let shown = shown(&node);
            !shown.contains("rate 8Mbit") && shown.contains("rate 4Mbit")
        });
        node.write("cluster.yaml", CLUSTER);
        node.until("nothing is limited", |_| {
            let shown = shown(&node);
            !["tbf", "bwcali", "ingress"].iter().any(|word| shown.contains(word))
        });
        node.write("cluster.yaml", &limited(limits));
        node.until("it is limited again", |_| shown(&node).contains("rate 16Mbit"));
        node.stop(Signal::TERM);
        node.cleanup();
        assert!(!["tbf", "bwcali", "ingress"].iter().any(|word| shown(&node).contains(word)), "{}", shown(&node));
    }
}
