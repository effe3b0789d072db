//! Interaction of the agent with other programs.

use std::fs;

use rustix::process::Signal;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;
use crate::CLUSTER;

tortie_lab::kernel_test! {
    fn an_endpoint_has_a_status_file_while_it_is_up() {
        let mut node = Node::new("nft", CLUSTER);
        let web = interface_name(&LabHost::pod("shop", "web")).unwrap();
        let files = node.folder().join("endpoint-status");
        fs::create_dir(&files).unwrap();
        fs::write(files.join("k8s shop%2Fgone eth0"), "{}").unwrap();
        node.shell(&format!("ip link add {web} type veth peer name peer; ip link set {web} up; ip link set peer up"));
        node.start();
        let file = files.join("k8s shop%2Fweb eth0");
        let content = format!(r#"{{"ifaceName":"{web}","ipv4Nets":["10.65.0.2/32"],"ipv6Nets":["fd00:65::2/128"]}}"#);
        node.until("only the existing endpoint has a file", |_| {
            fs::read_to_string(&file).is_ok_and(|text| text == content) && fs::read_dir(&files).unwrap().count() == 1
        });
        node.shell(&format!("ip link set {web} down"));
        node.until("an endpoint that is down has none", |_| !file.exists());
        node.shell(&format!("ip link set {web} up"));
        node.until("it has one again", |_| file.exists());
        node.stop(Signal::TERM);
        assert!(file.exists(), "the file stays after the end of the agent");
    }

    fn two_capabilities_and_a_writable_tree_of_settings_are_enough() {
        for (backend, nftables) in [("nft", "Disabled"), ("legacy", "Disabled"), ("nft", "Enabled")] {
            let mut node = Node::new(backend, CLUSTER);
            let web = interface_name(&LabHost::pod("shop", "web")).unwrap();
            node.shell(&format!("ip link add {web} type veth peer name peer; ip link set {web} up; ip link set peer up"));
            node.set("FELIX_NFTABLESMODE", nftables);
            node.confine();
            node.start();
            let setting = format!("/proc/sys/net/ipv4/conf/{web}/proxy_arp");
            node.until("the interface has its settings", |_| node.shell(&format!("cat {setting}")).trim() == "1");
            let tables = node.shell("nft list tables; iptables-nft-save; iptables-legacy-save");
            assert!(tables.contains("cali"), "{backend} {nftables}: {tables}");
            let capabilities = fs::read_to_string(format!("/proc/{}/status", node.process())).unwrap();
            assert!(capabilities.contains("CapEff:\t0000000000003000"), "{capabilities}");
            node.stop(Signal::TERM);
        }
    }

    fn a_change_of_kube_proxys_mode_is_followed() {
        for backend in ["nft", "legacy"] {
            for driven in [false, true] {
                let mut node = Node::new(backend, CLUSTER);
                if driven {
                    node.drive();
                }
                node.start();
                let usual = node.kernel_state();
                assert!(!usual.contains("endpoint-mark"), "{usual}");
                node.shell("ip link add kube-ipvs0 type veth peer name ipvs-peer");
                if driven {
                    // An agent with a driver ends, and is started again.
                    node.wait();
                    node.start();
                }
                node.until("marks identify forwarded traffic", |state| {
                    // Tables are written one by one; the last condition is one of `mangle`.
                    ["cali-set-endpoint-mark", "cali-from-endpoint-mark", "cali-forward-check", "--dports 30000:32767"]
                        .iter()
                        .all(|part| state.contains(part))
                        && state.lines().any(|rule| rule.starts_with("-A cali-POSTROUTING ") && rule.contains(" ! --mark 0x0/"))
                });
                node.until_ready("");
                let with_ipvs = node.kernel_state();
                node.stop(Signal::TERM);
                node.start();
                assert_eq!(node.kernel_state(), with_ipvs, "it is found at the start");
                node.shell("ip link del kube-ipvs0");
                if driven {
                    node.wait();
                    node.start();
                }
                node.until("all is as before", |state| state == usual);
            }
        }
    }

    fn the_mtu_of_workloads_follows_the_machine_and_the_pools() {
        let mut node = Node::new("nft", CLUSTER);
        node.shell("ip link add eth0 mtu 1400 type veth peer name outside; ip link set eth0 up; ip link set outside up");
        node.start();
        let file = node.folder().join("mtu");
        let holds = |text: &str| fs::read_to_string(&file).is_ok_and(|held| held == text);
        node.until("that of the machine is written", |_| holds("1400"));
        let pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\nspec: {cidr: 10.65.0.0/16, \
                    vxlanMode: Always}\n";
        node.write("pool.yaml", pool);
        node.until("the headers of VXLAN fit", |_| holds("1350"));
    }

    fn lines_go_to_a_file_as_well_that_may_be_moved_away() {
        let mut node = Node::new("nft", CLUSTER);
        let file = node.folder().join("logs").join("felix.log");
        node.set("FELIX_LOGFILEPATH", &file.display().to_string());
        node.set("FELIX_LOGSEVERITYFILE", "debug");
        node.set("FELIX_LOGDEBUGFILENAMEREGEX", "^session");
        node.start();
        let holds = |part: &str| fs::read_to_string(&file).is_ok_and(|text| text.contains(part));
        node.until("it has both", |_| holds("policy is in force") && holds("\"level\":\"DEBUG\",\"message\":\"applied\""));
        assert!(!node.log().contains("DEBUG"), "standard error has its own severity");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.lines().filter(|line| line.contains("DEBUG")).all(|line| line.contains("engine::session")), "{text}");
        fs::rename(&file, file.with_extension("1")).unwrap();
        node.write("more.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: more}\n");
        node.until("new lines go to a new file", |_| holds("applied") && !holds("starting"));
        node.stop(Signal::TERM);
        assert!(holds("stopping"), "the last line is written before the end");
    }
}
