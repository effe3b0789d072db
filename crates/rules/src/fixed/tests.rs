//! Cases that the recorded configurations do not cover: IPVS, Istio, failsafes for some networks
//! only.

use tortie_iptables::{
    Action, Chain, Features, HookPosition, PacketRate, PortRange, Protocol, Rule, Table, write_rest,
};
use tortie_model::{Family, InterfaceName, QosControls};

use super::nat::wider_side_of;
use crate::marks::tests::marks_written;
use crate::names::chain;
use crate::{
    DenyAction, FailsafePort, IpvsConfig, Marks, PolicyBackend, RejectReply, Renderer, RulesConfig, TunnelConfig,
};

fn config() -> RulesConfig {
    RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap()
}

fn lines(chains: &[Chain], name: &str) -> Vec<String> {
    let chain = chains.iter().find(|chain| chain.name.as_str() == name).unwrap();
    let line = |rule| {
        let mut text = String::new();
        write_rest(rule, &Features::ALL, &mut text);
        text
    };
    chain.rules.iter().map(line).collect()
}

fn ipvs() -> Renderer {
    let node_ports = vec![PortRange::new(30030, 30040).unwrap(), PortRange::single(30000)];
    Renderer::new(RulesConfig {
        marks: Marks::allocate(Marks::DEFAULT_MASK, false, true).unwrap(),
        ipvs: Some(IpvsConfig { node_ports }),
        ..config()
    })
}

/// As `felix/rules/static_test.go` expects with `KubeIPVSSupportEnabled`.
#[test]
fn ipvs_chains() {
    let filter = ipvs().fixed_chains(Table::Filter, Family::V6);
    assert_eq!(
        lines(&filter, "cali-forward-check"),
        [
            "-m conntrack --ctstate RELATED,ESTABLISHED --jump RETURN",
            "-m comment --comment \"To kubernetes NodePort service\" -p tcp -m multiport \
             --destination-ports 30030:30040,30000 -m set --match-set cali60this-host dst \
             --goto cali-set-endpoint-mark",
            "-m comment --comment \"To kubernetes NodePort service\" -p udp -m multiport \
             --destination-ports 30030:30040,30000 -m set --match-set cali60this-host dst \
             --goto cali-set-endpoint-mark",
            "-m comment --comment \"To kubernetes service\" -m set ! --match-set cali60this-host dst \
             --jump cali-set-endpoint-mark",
        ]
    );
    assert_eq!(
        lines(&filter, "cali-forward-endpoint-mark"),
        [
            "-m mark ! --mark 0x200000/0xffe00000 --jump cali-from-endpoint-mark",
            "--out-interface cali+ --jump cali-to-wl-dispatch",
            "--jump cali-to-hep-forward",
            "--jump MARK --set-mark 0/0xffe00000",
            "-m comment --comment \"Policy explicitly accepted packet.\" -m mark --mark 0x10000/0x10000 --jump ACCEPT",
        ]
    );
    assert_eq!(
        lines(&filter, "cali-INPUT")[..4],
        [
            "--jump MARK --set-mark 0/0xffe00000",
            "--jump cali-forward-check",
            "-m mark ! --mark 0/0xffe00000 --jump RETURN",
            "--in-interface cali+ --goto cali-wl-to-host",
        ]
    );
    assert_eq!(lines(&filter, "cali-OUTPUT")[1], "-m mark ! --mark 0/0xffe00000 --goto cali-forward-endpoint-mark");
    let mangle = ipvs().fixed_chains(Table::Mangle, Family::V4);
    assert_eq!(lines(&mangle, "cali-POSTROUTING")[2], "-m mark ! --mark 0/0xffe00000 --jump RETURN");
}

#[test]
fn istio_mesh_traffic_gets_its_dscp_value() {
    let renderer = Renderer::new(RulesConfig { istio_dscp: Some(23), ..config() });
    assert_eq!(
        lines(&renderer.fixed_chains(Table::Mangle, Family::V4), "cali-POSTROUTING")[0],
        "-p tcp -m conntrack --ctstate NEW --out-interface cali+ -m set --match-set cali40all-istio-weps dst \
         -m set --match-set cali40all-istio-weps src --jump DSCP --set-dscp 23"
    );
}

#[test]
fn failsafes_for_networks() {
    let port = |protocol, port, net: &str| FailsafePort { protocol, port, net: net.parse().ok() };
    let renderer = Renderer::new(RulesConfig {
        failsafe_inbound: vec![
            port(Protocol::TCP, 22, "10.0.0.0/8"),
            port(Protocol::UDP, 68, "fd00::/64"),
            port(Protocol::TCP, 179, ""),
        ],
        failsafe_outbound: vec![port(Protocol::UDP, 53, "192.0.2.1")],
        ..config()
    });
    let raw = renderer.fixed_chains(Table::Raw, Family::V4);
    assert_eq!(
        lines(&raw, "cali-failsafe-in"),
        [
            "-p tcp -m multiport --destination-ports 22 --source 10.0.0.0/8 --jump ACCEPT",
            "-p tcp -m multiport --destination-ports 179 --jump ACCEPT",
            "-p udp -m multiport --source-ports 53 --source 192.0.2.1/32 --jump ACCEPT",
        ]
    );
    assert_eq!(
        lines(&raw, "cali-failsafe-out"),
        [
            "-p udp -m multiport --destination-ports 53 --destination 192.0.2.1/32 --jump ACCEPT",
            "-p tcp -m multiport --source-ports 22 --destination 10.0.0.0/8 --jump ACCEPT",
            "-p tcp -m multiport --source-ports 179 --jump ACCEPT",
        ]
    );
    let filter = renderer.fixed_chains(Table::Filter, Family::V6);
    assert_eq!(
        lines(&filter, "cali-failsafe-in"),
        [
            "-p udp -m multiport --destination-ports 68 --source fd00::/64 --jump ACCEPT",
            "-p tcp -m multiport --destination-ports 179 --jump ACCEPT",
        ]
    );
    assert_eq!(lines(&filter, "cali-failsafe-out"), [""; 0]);
}

/// Every chain that some fixed chain refers to is either fixed or one that a manager always
/// provides.
#[test]
fn fixed_chains_jump_to_existing_chains() {
    let programs = Renderer::new(RulesConfig { policy_backend: PolicyBackend::Programs, ..config() });
    for renderer in [Renderer::new(config()), ipvs(), programs] {
        for (table, provided) in [
            (Table::Raw, vec!["cali-rpf-skip", "cali-from-host-endpoint", "cali-to-host-endpoint"]),
            (Table::Mangle, vec!["cali-egress-dscp", "cali-from-host-endpoint", "cali-to-host-endpoint"]),
            (Table::Nat, vec!["cali-fip-dnat", "cali-fip-snat", "cali-nat-outgoing"]),
            (
                Table::Filter,
                vec![
                    "cali-from-wl-dispatch",
                    "cali-to-wl-dispatch",
                    "cali-from-host-endpoint",
                    "cali-to-host-endpoint",
                    "cali-from-hep-forward",
                    "cali-to-hep-forward",
                    "cali-cidr-block",
                    "cali-set-endpoint-mark",
                    "cali-from-endpoint-mark",
                ],
            ),
        ] {
            let fixed = renderer.fixed_chains(table, Family::V4);
            let hooks = renderer.hooks().into_iter().filter(|hook| hook.table == table);
            let hooked = hooks.flat_map(|hook| hook.rules).filter_map(|rule| rule.target());
            for target in fixed.iter().flat_map(Chain::targets).chain(hooked) {
                assert!(
                    provided.contains(&target.as_str()) || fixed.iter().any(|chain| chain.name == target),
                    "{table}: {target}"
                );
            }
        }
    }
}

#[test]
fn chains_beside_programs_deny_nothing_that_policy_decides() {
    let mut all = RulesConfig { policy_backend: PolicyBackend::Programs, istio_dscp: Some(23), ..config() };
    all.vxlan_v4 = TunnelConfig { enabled: true, has_address: true };
    all.wireguard.encrypt_host_traffic = true;
    all.wireguard.v4.enabled = true;
    all.marks = Marks::allocate(Marks::DEFAULT_MASK, true, false).unwrap();
    let renderer = Renderer::new(all);
    let text = |table| {
        let chains = renderer.fixed_chains(table, Family::V4);
        chains.iter().flat_map(|chain| lines(&chains, chain.name.as_str())).collect::<Vec<_>>().join("\n")
    };
    assert!(text(Table::Raw).contains("cali-wireguard-incoming-mark") && !text(Table::Raw).contains("DROP"));
    assert!(text(Table::Mangle).contains("--set-dscp 23") && !text(Table::Mangle).contains("cali-to-host-endpoint"));
    assert!(text(Table::Filter).contains("Drop IPv4 VXLAN packets from non-allowed hosts"));
    let dispatch = renderer.workload_limits(&[]);
    assert_eq!(["cali-from-wl-dispatch", "cali-to-wl-dispatch"].map(|root| lines(&dispatch, root)), [[""; 0]; 2]);
    let plain = Renderer::new(RulesConfig { policy_backend: PolicyBackend::Programs, ..config() });
    assert!(plain.fixed_chains(Table::Raw, Family::V4).is_empty());
    assert!(!plain.hooks().iter().any(|hook| hook.table == Table::Raw));
}

#[test]
fn limits_beside_programs_apply_to_their_workload_before_packets_are_accepted() {
    let config = RulesConfig { policy_backend: PolicyBackend::Programs, accepts_beside_programs: true, ..config() };
    let renderer = Renderer::new(config);
    let rate = QosControls { ingress_packet_rate: 10, ..QosControls::default() };
    let connections = QosControls { egress_max_connections: 5, ingress_max_connections: 7, ..QosControls::default() };
    let none = QosControls { egress_bandwidth: 1000, ..QosControls::default() };
    let of = |name: &'static str, qos| (InterfaceName::from_static(name), qos);
    let chains = renderer.workload_limits(&[of("cali1", &rate), of("cali2", &connections), of("cali3", &none)]);
    assert_eq!(lines(&chains, "cali-from-wl-dispatch"), ["--in-interface cali2 --goto cali-fw-cali2"]);
    assert_eq!(
        lines(&chains, "cali-to-wl-dispatch"),
        ["--out-interface cali1 --goto cali-tw-cali1", "--out-interface cali2 --goto cali-tw-cali2"]
    );
    assert!(lines(&chains, "cali-tw-cali1").concat().contains("--limit 10/sec"), "{chains:?}");
    let [known, limit] = &lines(&chains, "cali-fw-cali2")[..] else { panic!("{chains:?}") };
    assert!(known.ends_with("--jump RETURN") && limit.contains("--connlimit-above 5"), "{known} {limit}");
    assert_eq!(chains.len(), 5);

    let fixed = renderer.fixed_chains(Table::Filter, Family::V6);
    let to_host = lines(&fixed, "cali-INPUT").join("\n");
    assert!(to_host.contains("! -p 58 --jump cali-from-wl-dispatch"), "{to_host}");
    let fixed = renderer.fixed_chains(Table::Filter, Family::V4);
    for (chain, dispatch) in [("cali-FORWARD", 2), ("cali-INPUT", 1)] {
        let text = lines(&fixed, chain).join("\n");
        assert_eq!(text.matches("-wl-dispatch").count(), dispatch, "{text}");
        assert!(text.rfind("-wl-dispatch") < text.find("ACCEPT").or(Some(text.len())), "{text}");
    }
}

#[test]
fn packets_allowed_by_programs_are_accepted_before_other_rules() {
    let text = |config: RulesConfig| {
        let renderer = Renderer::new(RulesConfig { policy_backend: PolicyBackend::Programs, ..config });
        let chains = renderer.fixed_chains(Table::Filter, Family::V6);
        ["cali-FORWARD", "cali-INPUT"].map(|chain| lines(&chains, chain).join("\n"))
    };
    let accepting = RulesConfig { accepts_beside_programs: true, ..config() };
    let [forward, input] = text(accepting.clone());
    assert!(forward.contains("--in-interface cali+ --jump ACCEPT"), "{forward}");
    assert!(forward.contains("--out-interface cali+ --jump ACCEPT"), "{forward}");
    assert!(forward.find("cali-cidr-block") < forward.find("ACCEPT"), "{forward}");
    assert!(!input.contains("ACCEPT"), "{input}");
    let [_, input] = text(RulesConfig { endpoint_to_host: crate::EndpointToHostAction::Accept, ..accepting.clone() });
    assert!(input.contains("--in-interface cali+ --jump ACCEPT"), "{input}");
    let [forward, _] = text(RulesConfig { filter_allow: crate::AllowAction::Return, ..accepting });
    assert!(!forward.contains("ACCEPT"), "{forward}");
    assert!(!text(config()).concat().contains("ACCEPT"));
}

#[test]
fn marks_are_written_within_the_mask_only() {
    let marks = Marks::allocate(0x0ff0_0000, true, true).unwrap();
    let renderer = Renderer::new(RulesConfig { marks, ipvs: Some(IpvsConfig { node_ports: vec![] }), ..config() });
    let hooks = renderer.hooks().into_iter().flat_map(|hook| hook.rules);
    let fixed = Table::ALL.iter().flat_map(|table| renderer.fixed_chains(*table, Family::V4));
    for rule in fixed.flat_map(|chain| chain.rules).chain(hooks) {
        let written = rule.action.as_ref().map_or(0, marks_written);
        assert_eq!(written & !0x0ff0_0000, 0, "{rule:?}");
    }
}

#[test]
fn only_masquerading_and_the_forward_verdict_are_appended() {
    let appended: Vec<String> = Renderer::new(config())
        .hooks()
        .iter()
        .filter(|hook| hook.position == HookPosition::Append)
        .map(|hook| format!("{} {}", hook.table, hook.kernel_chain))
        .collect();
    assert_eq!(appended, ["nat POSTROUTING", "filter FORWARD"]);
}

#[test]
fn the_wider_side_leaves_out_the_port_and_privileged_ports() {
    assert_eq!(wider_side_of(4789), PortRange::new(4790, 65535));
    assert_eq!(wider_side_of(60000), PortRange::new(1024, 59999));
    assert_eq!(wider_side_of(1), PortRange::new(2, 65535));
    assert_eq!(wider_side_of(65535), PortRange::new(1024, 65534));
    assert_eq!(wider_side_of(0), None);
}

fn reject_chain(config: RulesConfig, table: Table, family: Family) -> Chain {
    let chains = Renderer::new(config).fixed_chains(table, family);
    chains.into_iter().find(|chain| chain.name == chain::REJECT).unwrap()
}

#[test]
fn rejected_packets_get_a_limited_number_of_answers() {
    for (family, error) in [(Family::V4, "icmp-admin-prohibited"), (Family::V6, "icmp6-adm-prohibited")] {
        let reject_rate = PacketRate::new(7, 9).unwrap();
        let chain = reject_chain(RulesConfig { reject_rate, ..config() }, Table::Filter, family);
        let no_answer = "-m comment --comment \"No answer to failsafe ports\"";
        assert_eq!(
            lines(&[chain], "cali-reject"),
            [
                format!(
                    "{no_answer} -p tcp -m multiport --source-ports 22,179,2379,2380,5473,6443,6666,6667 --jump DROP"
                ),
                format!("{no_answer} -p udp -m multiport --source-ports 53,67,68 --jump DROP"),
                "-p tcp -m limit --limit 7/second --limit-burst 9 --jump REJECT --reject-with tcp-reset".to_owned(),
                format!("! -p tcp -m limit --limit 7/second --limit-burst 9 --jump REJECT --reject-with {error}"),
                "-m comment --comment \"Denied without an answer\" --jump DROP".to_owned(),
            ]
        );
    }
}

#[test]
fn the_rejecting_chain_lets_no_packet_pass_and_answers_in_filter_only() {
    for table in [Table::Raw, Table::Mangle, Table::Filter] {
        for family in [Family::V4, Family::V6] {
            let chain = reject_chain(config(), table, family);
            let denies = |rule: &Rule| matches!(rule.action, Some(Action::Drop | Action::Reject(_)));
            assert!(chain.rules.iter().all(denies), "{chain:?}");
            assert!(chain.rules.last().is_some_and(|last| last.matches.is_empty()), "{chain:?}");
            assert_eq!(chain.rules.iter().any(Rule::rejects), table == Table::Filter, "{chain:?}");
        }
    }
}

/// Guards see packets before failsafe ports do, and packets that conntrack does not know.
#[test]
fn guards_reject_in_the_form_of_felix_only() {
    let tunnels = RulesConfig {
        deny: DenyAction::Reject,
        ipip: TunnelConfig { enabled: true, has_address: true },
        vxlan_v6: TunnelConfig { enabled: true, has_address: true },
        ..config()
    };
    let input = |reject_with, family| {
        let renderer = Renderer::new(RulesConfig { reject_with, ..tunnels.clone() });
        lines(&renderer.fixed_chains(Table::Filter, family), "cali-INPUT").join("\n")
    };
    for (family, packets) in [(Family::V4, "IPIP"), (Family::V6, "IPv6 VXLAN")] {
        let felix = input(RejectReply::PortUnreachable, family);
        assert!(felix.contains(&format!("\"Reject {packets} ")) && felix.contains("--jump REJECT"), "{felix}");
        let ours = input(RejectReply::ResetOrProhibited, family);
        assert!(ours.contains(&format!("\"Drop {packets} ")), "{ours}");
        assert!(!ours.contains("REJECT") && !ours.contains("cali-reject"), "{ours}");
    }
}
