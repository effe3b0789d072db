//! Fixed, dispatch, endpoint, group and list chains under each recorded configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;
use tortie_iptables::{Chain, Features, HookPosition, InterfaceName, Table, write_rest};
use tortie_model::{AdminState, Cidr, Family, HostInterface, ProfileName};
use tortie_rules::names::chain;
use tortie_rules::{DscpRule, EndpointMarks, HostDispatch, Renderer, TierGroups};
use tortie_testkit::golden::assert_count;

use super::load::{self, list, text};
use super::{OLD_FEATURES, assert_chain, assert_chain_for, assert_chains, assert_same_rules, equals, hook, lines_of};

/// Returns every recorded configuration with its chains.
fn configs(json: &Value) -> impl Iterator<Item = (&str, Renderer, &Value)> {
    let chains = json["config_chains"].as_object().unwrap();
    assert_count("configurations", chains.len(), 9);
    chains
        .iter()
        .map(|(name, chains)| (name.as_str(), Renderer::new(load::config(&json["configs"][name.as_str()])), chains))
}

fn by_family(chains: &Value) -> [(Family, &Value); 2] {
    [(Family::V4, &chains["v4"]), (Family::V6, &chains["v6"])]
}

pub(super) fn nat_map(json: &Value) -> BTreeMap<IpAddr, IpAddr> {
    let entry = |(from, to): (&String, &Value)| (from.parse().unwrap(), text(to).parse().unwrap());
    json.as_object().unwrap().iter().map(entry).collect()
}

#[test]
fn fixed_chains() {
    let Some(json) = load::rules_json() else { return };
    let mut without_wireguard = 0;
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            for (table, field) in
                [(Table::Raw, "raw"), (Table::Mangle, "mangle"), (Table::Nat, "nat"), (Table::Filter, "filter")]
            {
                let mut expected = list(&recorded[field]).to_vec();
                if table == Table::Raw && renderer.config().marks.wireguard.is_none() {
                    // Divergence: without WireGuard, Felix creates an unreferenced chain that ends
                    // in `--set-mark 0x0/0x0`.
                    let before = expected.len();
                    expected.retain(|chain| chain["name"] != chain::WIREGUARD_INCOMING_MARK.as_str());
                    assert_eq!(before, expected.len() + 1);
                    without_wireguard += 1;
                }
                let case_name = format!("{config} {table} {family:?}");
                let mut ours = renderer.fixed_chains(table, family);
                // Nothing leads there unless it is asked for.
                ours.retain(|chain| chain.name != chain::REJECT);
                assert_chains(&case_name, &ours, &expected);
            }
            let old = renderer.fixed_chains(Table::Nat, family);
            for (ours, recorded) in old.iter().zip(list(&recorded["nat_static_old_features"])) {
                assert_chain_for(config, ours, recorded, OLD_FEATURES);
            }
        }
    }
    assert_count("chains without WireGuard", without_wireguard, 16);
}

#[test]
fn wireguard_incoming_mark() {
    let Some(json) = load::rules_json() else { return };
    let mut compared = 0;
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            let raw = renderer.fixed_chains(Table::Raw, family);
            let ours = raw.iter().find(|ours| ours.name == chain::WIREGUARD_INCOMING_MARK);
            assert_eq!(ours.is_some(), renderer.config().marks.wireguard.is_some());
            if let Some(ours) = ours {
                assert_chain(config, ours, &recorded["wireguard_incoming_mark"]);
                compared += 1;
            }
        }
    }
    assert_count("compared", compared, 2);
}

#[test]
fn forward_append_rules() {
    let Some(json) = load::rules_json() else { return };
    for (config, renderer, recorded) in configs(json) {
        let hooks = renderer.hooks();
        let append =
            hooks.iter().find(|hook| hook.table == Table::Filter && hook.position == HookPosition::Append).unwrap();
        for (_, recorded) in by_family(recorded) {
            // Recorded with the hashes of a chain named FORWARD; the real ones are in the restore
            // inputs.
            let ours = hook("FORWARD", HookPosition::Insert, &append.rules);
            assert!(equals(&ours, &recorded["filter_forward_append_rules"]), "{config}: {:?}", lines_of(&ours));
        }
    }
}

#[test]
fn nat_chains() {
    let Some(json) = load::rules_json() else { return };
    let mut v4_address_in_v6_table = 0;
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            assert_chain(config, &renderer.nat_outgoing(false, family), &recorded["nat_outgoing_inactive"]);
            for (features, field) in
                [(Features::ALL, "nat_outgoing_active"), (OLD_FEATURES, "nat_outgoing_active_old_features")]
            {
                let ours = renderer.nat_outgoing(true, family);
                if let Some(address) = nat_address_of_other_family(&renderer, family) {
                    // Divergence: Felix writes the IPv4 address of NATOutgoingAddress into the IPv6
                    // table, which ip6tables-restore refuses.
                    let address = address.to_string();
                    let ours = lines_of(&super::Lines::new(features).chain(&ours)).concat();
                    assert!(list(&recorded[field]["lines"]).iter().any(|line| text(line).contains(&address)));
                    assert!(!ours.contains(&address) && ours.contains("--jump MASQUERADE"));
                    v4_address_in_v6_table += 1;
                    continue;
                }
                assert_chain_for(config, &ours, &recorded[field], features);
            }
            let map = nat_map(&recorded["nat_map"]);
            assert_chains(config, &[renderer.fip_dnat(&map)], list(&recorded["fip_dnat"]));
            assert_chains(config, &[renderer.fip_snat(&map)], list(&recorded["fip_snat"]));
        }
    }
    assert_count("IPv4 addresses in IPv6 tables", v4_address_in_v6_table, 2);
}

/// Returns the configured source address of masqueraded packets, if it is of the other family.
pub(super) fn nat_address_of_other_family(renderer: &Renderer, family: Family) -> Option<IpAddr> {
    renderer.config().nat.address.filter(|address| address.is_ipv4() != (family == Family::V4))
}

#[test]
fn list_chains() {
    let Some(json) = load::rules_json() else { return };
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            let chain = renderer.cidr_block(blocked_cidrs(), family);
            assert_chains(config, &[chain], list(&recorded["blocked_cidrs"]));
        }
    }
}

pub(super) fn blocked_cidrs() -> Vec<Cidr> {
    ["10.96.0.0/12", "fd00:96::/112", "192.0.2.0/24"].map(|cidr| cidr.parse().unwrap()).to_vec()
}

pub(super) fn dscp_rules() -> Vec<DscpRule> {
    [("10.0.0.3", 0), ("10.0.0.2/32", 46), ("10.0.0.1/32", 46)]
        .map(|(source, value)| DscpRule { source: source.parse().unwrap(), value })
        .to_vec()
}

/// Divergence: Felix writes the addresses of an endpoint into one rule. The kernel stores it as
/// several rules with one hash, so Felix never reads back the rule that it wrote.
#[test]
fn dscp_has_one_rule_for_each_address() {
    let Some(json) = load::rules_json() else { return };
    let mut compared = 0;
    for (_, renderer, recorded) in configs(json) {
        let ours: Vec<String> = renderer
            .egress_dscp(&dscp_rules())
            .rules
            .iter()
            .map(|rule| {
                let mut text = String::new();
                write_rest(rule, &Features::ALL, &mut text);
                text
            })
            .collect();
        for (_, recorded) in by_family(recorded) {
            let theirs: Vec<String> = load::strings(&recorded["egress_dscp"]["lines"])
                .iter()
                .flat_map(|line| {
                    let rest = line.split_once("--source ").unwrap().1;
                    let (sources, action) = rest.split_once(' ').unwrap();
                    sources.split(',').map(move |source| format!("--source {source} {action}")).collect::<Vec<_>>()
                })
                .collect();
            assert_eq!(ours, theirs);
            compared += 1;
        }
    }
    assert_count("compared", compared, 18);
}

#[test]
fn dispatch_chains() {
    let Some(json) = load::rules_json() else { return };
    for (config, renderer, recorded) in configs(json) {
        let dispatch = recorded["dispatch"].as_object().unwrap();
        assert_count("inputs", dispatch.len(), 5);
        for (input, recorded) in dispatch {
            let names: Vec<InterfaceName> = list(&json["dispatch_inputs"][input]).iter().map(load::interface).collect();
            let host = |purpose, any| renderer.host_dispatch(purpose, names.iter().copied(), any);
            let case_name = format!("{config} {input}");
            let check = |chains: &[Chain], field: &str| {
                assert_chains(&format!("{case_name} {field}"), chains, list(&recorded[field]));
            };
            check(&renderer.workload_dispatch(names.iter().copied()), "workload");
            check(&host(HostDispatch::Filter, false), "host_forward");
            check(&host(HostDispatch::Filter, true), "host_default_forward");
            check(&host(HostDispatch::Raw, false), "host");
            check(&host(HostDispatch::Raw, true), "host");
            check(&host(HostDispatch::MangleIngress, false), "from_host");
            check(&host(HostDispatch::MangleIngress, true), "from_host_default");
            check(&host(HostDispatch::MangleEgress, false), "to_host");
            check(&host(HostDispatch::MangleEgress, true), "to_host_default");
            let both = [host(HostDispatch::MangleIngress, true), host(HostDispatch::MangleEgress, true)].concat();
            check(&both, "host_default");
            // `workload_allow` is for the eBPF dataplane.
            assert_count("kinds of dispatch", recorded.as_object().unwrap().len(), 10);
        }
    }
}

/// Returns the chain that marks an interface's packets for IPVS, with the first number.
pub(super) fn set_endpoint_mark(renderer: &Renderer, interface: InterfaceName) -> Option<Chain> {
    renderer.config().ipvs.as_ref()?;
    let mark = EndpointMarks::new(&renderer.config().marks).assign(interface);
    Some(renderer.set_endpoint_mark(interface, mark))
}

#[test]
fn workload_endpoints() {
    let Some(json) = load::rules_json() else { return };
    let mut compared = 0;
    for (config, renderer, recorded) in configs(json) {
        for recorded in list(&recorded["workload_endpoints"]) {
            let input = &json["endpoint_inputs"][usize::try_from(load::number(&recorded["input"])).unwrap()];
            let tiers = load::tiers(&input["tiers"]);
            let state = match input["admin_up"].as_bool().unwrap() {
                true => AdminState::Active,
                false => AdminState::Inactive,
            };
            let qos = load::qos(&input["qos"]);
            let interface = load::cut_interface(&input["iface"]);
            let profiles = load::profiles(&input["profiles"]);
            let mut chains = renderer.workload_endpoint(interface, state, &tiers, &profiles, qos.as_ref()).to_vec();
            chains.extend(set_endpoint_mark(&renderer, interface));
            if interface.as_str() == input["iface"] {
                assert_chains(config, &chains, list(&recorded["chains"]));
            } else {
                assert_same_rules(config, &chains, list(&recorded["chains"]));
            }

            let expected_groups: BTreeSet<&str> =
                list(&recorded["groups"]).iter().map(|group| text(&group["name"])).collect();
            let groups: Vec<Chain> = tiers
                .iter()
                .flat_map(|tier| tier.ingress.iter().chain(&tier.egress))
                .filter(|group| !group.is_inlined())
                .map(|group| renderer.policy_group(group))
                .collect();
            assert_chains(config, &groups, list(&recorded["groups"]));
            assert_eq!(expected_groups.len(), groups.len());
            compared += 1;
        }
    }
    assert_count("compared", compared, 9 * 5);
}

#[test]
fn host_endpoints() {
    let Some(json) = load::rules_json() else { return };
    let input = &json["hep_inputs"];
    let name = load::interface(&input["iface"]);
    let interface = HostInterface::Named(name);
    let (tiers, forward) = (load::tiers(&input["tiers"]), load::tiers(&input["forward_tiers"]));
    let profiles = load::profiles(&input["profiles"]);
    for (config, renderer, recorded) in configs(json) {
        let check = |chains: &[Chain], field: &str| {
            assert_chains(&format!("{config} {field}"), chains, list(&recorded[field]));
        };
        let filter = |interface, forward: &[TierGroups], profiles: &[ProfileName]| {
            renderer.host_endpoint_filter(interface, &tiers, forward, profiles).to_vec()
        };
        let mut named = filter(interface, &forward, &profiles);
        named.extend(set_endpoint_mark(&renderer, name));
        check(&named, "host_endpoint_filter");
        check(&filter(HostInterface::All, &[], &[]), "host_endpoint_filter_all_interfaces");
        let egress = renderer.host_endpoint_mangle_egress(interface, &tiers, &profiles);
        check(&[egress], "host_endpoint_mangle_egress");
        let ingress = renderer.host_endpoint_mangle_ingress(interface, &tiers);
        check(&[ingress], "host_endpoint_mangle_ingress");
        let raw = renderer.host_endpoint_raw(interface, &tiers);
        check(&raw, "host_endpoint_raw");
        assert_chain(config, &raw[0], &recorded["host_endpoint_raw_egress"]);
    }
}
