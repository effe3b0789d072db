//! Packets of the host's interfaces.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;

use tortie_ebpf::hooks::HookSettings;
use tortie_evaluate::{FailsafePort, Settings};
use tortie_lab::kernel_test;
use tortie_lab::pods::{Family, Lab, LabHost, Port};
use tortie_model::{Protocol, Rule, RuleAction};

use crate::content::{Content, Host, Rulings, allow, allow_all, rule};
use crate::generation::Generation;
use crate::workloads::{content, lab, place};
use crate::{check, check_of};

fn failsafes() -> HookSettings {
    let tcp = |port, net: &str| FailsafePort { protocol: Protocol::TCP, port, net: Some(net.parse().unwrap()) };
    let policy = Settings {
        failsafe_inbound: vec![
            tcp(22, "10.65.0.0/24"),
            tcp(22, "fd00:65::/64"),
            tcp(80, "192.0.2.0/24"),
            tcp(80, "fd00:66::/64"),
        ],
        failsafe_outbound: vec![FailsafePort { protocol: Protocol::UDP, port: 53, net: None }],
        ..Settings::default()
    };
    HookSettings { policy, ..HookSettings::default() }
}

/// Allows neighbour discovery, whose messages are not tracked and therefore subject to policy.
fn neighbours() -> Rule {
    Rule { protocol: Some(Protocol::ICMPV6), ..Rule::new(RuleAction::Allow) }
}

fn attach_programs(lab: &Lab, interface: &'static str, host: Host, settings: &HookSettings) -> Generation {
    let mut generation = Generation::load(settings);
    let hosts = BTreeMap::from([(interface, host)]);
    Content { hosts, ..everything_of_pods() }.write(lab, &generation);
    generation.attach(lab, 0).unwrap();
    generation
}

/// Allows all traffic of pods, so that host policy alone decides.
fn everything_of_pods() -> Content {
    let mut content = content();
    for (_, rulings) in &mut content.pods {
        *rulings = Rulings { ingress: vec![allow_all()], egress: vec![allow_all()] };
    }
    content
}

fn serve(lab: &mut Lab) {
    let ports = [Port::tcp(22), Port::tcp(80), Port::tcp(81), Port::tcp(82), Port::udp(90), Port::udp(91)];
    lab.serve(&LabHost::Node, &ports).unwrap();
}

kernel_test! {
    fn a_host_endpoint_governs_its_interface_but_for_failsafe_ports() {
        let mut lab = lab();
        serve(&mut lab);
        let (a, node, outside) = (place("a"), LabHost::Node, LabHost::Outside);
        for interface in ["eth0", "*"] {
            let normal = Rulings { ingress: vec![neighbours(), allow(Protocol::TCP, &[81])], egress: vec![neighbours(), allow(Protocol::TCP, &[80])] };
            let host = Host { normal: Some(normal), ..Host::default() };
            let _generation = attach_programs(&lab, interface, host, &failsafes());
            check(&lab, &[
                (&outside, &node, Port::tcp(81), true),
                (&outside, &node, Port::tcp(22), true),
                (&outside, &node, Port::tcp(80), false),
                (&outside, &node, Port::udp(90), false),
                (&node, &outside, Port::tcp(80), true),
                (&node, &outside, Port::udp(53), true),
                (&node, &outside, Port::tcp(22), false),
                // Forwarded packets are not subject to this layer.
                (&outside, &a, Port::tcp(80), true),
                (&a, &outside, Port::tcp(22), true),
                (&node, &a, Port::tcp(81), true),
            ]);
        }
    }

    fn a_host_endpoint_without_policy_denies() {
        let mut lab = lab();
        serve(&mut lab);
        let (a, node, outside) = (place("a"), LabHost::Node, LabHost::Outside);
        let _generation = attach_programs(&lab, "eth0", Host::default(), &HookSettings::default());
        check_of(&[Family::V4], &lab, &[
            (&outside, &node, Port::tcp(22), false),
            (&node, &outside, Port::tcp(80), false),
            (&outside, &a, Port::tcp(80), true),
        ]);
    }

    fn policy_of_forwarded_packets_governs_both_ways_through_the_host() {
        let lab = lab();
        let (a, b, node, outside) = (place("a"), place("b"), LabHost::Node, LabHost::Outside);
        for (interface, within) in [("eth0", true), ("*", false)] {
            let forward = Rulings {
                ingress: vec![rule(RuleAction::Deny, Protocol::TCP, &[81]), allow_all()],
                egress: vec![rule(RuleAction::Deny, Protocol::TCP, &[22]), allow_all()],
            };
            let normal = Rulings { ingress: vec![allow_all()], egress: vec![allow_all()] };
            let host = Host { normal: Some(normal), forward: Some(forward), ..Host::default() };
            let _generation = attach_programs(&lab, interface, host, &HookSettings::default());
            check(&lab, &[
                (&outside, &a, Port::tcp(80), true),
                (&outside, &a, Port::tcp(81), false),
                (&a, &outside, Port::tcp(80), true),
                (&a, &outside, Port::tcp(22), false),
                // The endpoint of all interfaces includes workload interfaces in this layer.
                (&a, &b, Port::tcp(81), within),
                (&a, &b, Port::tcp(80), true),
                (&node, &outside, Port::tcp(22), true),
                (&outside, &node, Port::tcp(22), true),
            ]);
        }
    }

    fn pre_dnat_policy_sees_the_original_destination_and_is_final() {
        let mut lab = lab();
        serve(&mut lab);
        let (a, node, outside) = (place("a"), LabHost::Node, LabHost::Outside);
        for family in ["ip", "ip6"] {
            lab.node()
                .shell(&format!(
                    "nft -f - <<END
table {family} first {{
    chain prerouting {{
        type nat hook prerouting priority dstnat;
        tcp dport 8080 redirect to :80
        tcp dport 8081 redirect to :81
        tcp dport 8082 redirect to :82
    }}
}}
END"
                ))
                .unwrap();
        }
        for interface in ["eth0", "*"] {
            let pre_dnat = Rulings {
                ingress: vec![allow(Protocol::TCP, &[8081]), rule(RuleAction::Deny, Protocol::TCP, &[8080, 82])],
                egress: vec![],
            };
            let normal = Rulings { ingress: vec![neighbours(), allow(Protocol::TCP, &[80])], egress: vec![neighbours()] };
            let host = Host { normal: Some(normal), pre_dnat: Some(pre_dnat), ..Host::default() };
            let _generation = attach_programs(&lab, interface, host, &failsafes());
            // The servers answer with the name of their place, independent of the port.
            check(&lab, &[
                (&outside, &node, Port::tcp(80), true),
                (&outside, &node, Port::tcp(8080), false),
                (&outside, &node, Port::tcp(8081), true),
                // Not decided before DNAT, and denied after it.
                (&outside, &node, Port::tcp(8082), false),
                (&outside, &node, Port::tcp(81), false),
                (&outside, &node, Port::tcp(82), false),
                (&outside, &node, Port::tcp(22), true),
                (&outside, &a, Port::tcp(80), true),
            ]);
        }
    }

    fn untracked_policy_decides_before_all_others() {
        let mut lab = lab();
        serve(&mut lab);
        let (node, outside) = (LabHost::Node, LabHost::Outside);
        let untracked = Rulings {
            ingress: vec![allow(Protocol::UDP, &[90]), rule(RuleAction::Deny, Protocol::TCP, &[80, 22])],
            egress: vec![rule(RuleAction::Deny, Protocol::TCP, &[80])],
        };
        let normal = Rulings {
            ingress: vec![neighbours(), allow(Protocol::TCP, &[80, 81]), Rule::new(RuleAction::Deny)],
            egress: vec![allow_all()],
        };
        let host = Host { normal: Some(normal), untracked: Some(untracked), ..Host::default() };
        {
            let _generation = attach_programs(&lab, "eth0", host.clone(), &failsafes());
            check(&lab, &[
                (&outside, &node, Port::udp(90), true),
                (&outside, &node, Port::udp(91), false),
                (&outside, &node, Port::tcp(80), false),
                (&outside, &node, Port::tcp(81), true),
                (&outside, &node, Port::tcp(22), true),
                (&node, &outside, Port::tcp(80), false),
                (&node, &outside, Port::tcp(22), true),
                (&node, &outside, Port::udp(53), true),
            ]);
        }
        // The endpoint of all interfaces has no effect in this layer.
        let _generation = attach_programs(&lab, "*", host, &failsafes());
        check(&lab, &[
            (&outside, &node, Port::udp(90), false),
            (&outside, &node, Port::tcp(80), true),
            (&node, &outside, Port::tcp(80), true),
        ]);
    }

    fn translated_packets_of_the_host_are_filtered_where_they_leave() {
        let mut lab = lab();
        serve(&mut lab);
        // Before DNAT, the route to a service leads to the interface of the host endpoint.
        lab.node()
            .shell(
                "nft -f - <<END
table inet services {
    chain output {
        type nat hook output priority -100;
        ip daddr 10.96.0.1 tcp dport 90 dnat ip to 192.168.1.10:81
        ip daddr 10.96.0.2 tcp dport 90 dnat ip to 10.65.0.254:80
        ip daddr 10.96.0.3 tcp dport 80 dnat ip to 10.65.0.254:22
    }
}
END",
            )
            .unwrap();
        for interface in ["eth0", "*"] {
            let normal = Rulings { ingress: vec![], egress: vec![neighbours(), allow(Protocol::TCP, &[80])] };
            let host = Host { normal: Some(normal), ..Host::default() };
            let _generation = attach_programs(&lab, interface, host, &HookSettings::default());
            let connects = |target: &str, patience| {
                let target = target.parse().unwrap();
                let connected = lab.node().run(|| TcpStream::connect_timeout(&target, patience));
                connected.unwrap().is_ok()
            };
            let (long, short) = (Duration::from_secs(10), Duration::from_millis(300));
            assert!(connects("10.96.0.1:90", long), "to a pod");
            assert!(connects("10.96.0.2:90", long), "to an allowed port outside");
            assert!(!connects("10.96.0.3:80", short), "to a denied port outside");
        }
    }
}
