//! Fixed, dispatch, endpoint, group and list chains under each recorded configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use tortie_iptables::{Chain, HookPosition, InterfaceName, MapVerdict, Table};
use tortie_model::{AdminState, Cidr, Family, HostInterface, ProfileName};
use tortie_rules::names::chain;
use tortie_rules::{DscpRule, EndpointMarks, HostDispatch, Renderer, TierGroups};
use tortie_testkit::golden::assert_count;

use super::load::{self, list, text};
use super::{
    Divergence, Divergences, OLD_FEATURES, assert_chain_for, assert_chains, assert_same_rules, render, render_for,
    texts,
};

/// Returns every recorded configuration with its chains.
fn configs(json: &Value) -> impl Iterator<Item = (&str, Renderer, &Value)> {
    let chains = json["config_chains"].as_object().unwrap();
    assert_count("configurations", chains.len(), 10);
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
    let Some(json) = crate::nftables_json() else { return };
    let mut divergences = Divergences::new();
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            for (layer, field) in
                [(Table::Raw, "raw"), (Table::Mangle, "mangle"), (Table::Nat, "nat"), (Table::Filter, "filter")]
            {
                let mut expected = list(&recorded[field]).to_vec();
                if layer == Table::Raw && renderer.config().marks.wireguard.is_none() {
                    let before = expected.len();
                    expected.retain(|chain| chain["name"] != format!("raw-{}", chain::WIREGUARD_INCOMING_MARK));
                    assert_eq!(before, expected.len() + 1);
                    *divergences.entry(Divergence::WithoutWireguard).or_default() += 1;
                }
                let case_name = format!("{config} {layer} {family:?}");
                let mut ours = renderer.fixed_chains(layer, family);
                // Nothing leads there unless it is asked for.
                ours.retain(|chain| chain.name != chain::REJECT);
                assert_chains(&case_name, &ours, &expected, layer, family, &mut divergences);
            }
            let old = renderer.fixed_chains(Table::Nat, family);
            for (ours, recorded) in old.iter().zip(list(&recorded["nat_static_old_features"])) {
                let ours = render_for(ours, Table::Nat, family, OLD_FEATURES);
                assert_chain_for(config, &ours, recorded, &mut divergences);
            }
        }
    }
    let expected = [(Divergence::NotDnat, 20), (Divergence::WithoutWireguard, 18)];
    assert_count("divergences", divergences, BTreeMap::from(expected));
}

/// The rules are those of IPv4 in both families, and so are the hashes.
#[test]
fn forward_append_rules() {
    let Some(json) = crate::nftables_json() else { return };
    for (config, renderer, recorded) in configs(json) {
        let hooks = renderer.hooks();
        let append =
            hooks.iter().find(|hook| hook.table == Table::Filter && hook.position == HookPosition::Append).unwrap();
        for (_, recorded) in by_family(recorded) {
            let recorded = &recorded["filter_forward_append_rules"];
            let names = tortie_nftables::FullNames::default();
            let context = tortie_nftables::Context {
                family: Family::V4,
                layer: Table::Filter,
                names: &names,
                features: tortie_nftables::Features::ALL,
            };
            let ours: Vec<_> = tortie_nftables::rules(text(&recorded["hash_seed"]), &append.rules, context).collect();
            let name = tortie_nftables::LayeredName::from_kernel("filter-FORWARD");
            let ours = super::Rendered { name, rules: ours, deviations: Vec::new() };
            assert!(ours.equals(recorded), "{config}: {:?}", ours.texts());
        }
    }
}

#[test]
fn nat_chains() {
    let Some(json) = crate::nftables_json() else { return };
    let mut divergences = Divergences::new();
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            let check = |chain: &Chain, features, recorded: &Value, divergences: &mut Divergences| {
                let ours = render_for(chain, Table::Nat, family, features);
                assert_chain_for(config, &ours, recorded, divergences);
            };
            let features = super::Features::ALL;
            let inactive = renderer.nat_outgoing(false, family);
            check(&inactive, features, &recorded["nat_outgoing_inactive"], &mut divergences);
            for (features, field) in
                [(features, "nat_outgoing_active"), (OLD_FEATURES, "nat_outgoing_active_old_features")]
            {
                let ours = renderer.nat_outgoing(true, family);
                let other = renderer.config().nat.address.filter(|at| at.is_ipv4() != (family == Family::V4));
                if let Some(address) = other {
                    let address = address.to_string();
                    let ours = render_for(&ours, Table::Nat, family, features).texts().concat();
                    assert!(load::strings(&recorded[field]["rules"]).concat().contains(&address));
                    assert!(!ours.contains(&address) && ours.contains("masquerade"));
                    *divergences.entry(Divergence::NatAddress).or_default() += 1;
                    continue;
                }
                check(&ours, features, &recorded[field], &mut divergences);
            }
            let map = nat_map(&recorded["nat_map"]);
            for (ours, field) in [(renderer.fip_dnat(&map), "fip_dnat"), (renderer.fip_snat(&map), "fip_snat")] {
                assert_chains(config, &[ours], list(&recorded[field]), Table::Nat, family, &mut divergences);
            }
        }
    }
    assert_count("divergences", divergences, BTreeMap::from([(Divergence::NatAddress, 2)]));
}

#[test]
fn list_chains() {
    let Some(json) = crate::nftables_json() else { return };
    let cidrs: Vec<Cidr> = load::strings(&json["blocked_cidrs_input"]).iter().map(|net| net.parse().unwrap()).collect();
    for (config, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            let chain = renderer.cidr_block(cidrs.clone(), family);
            let mut divergences = Divergences::new();
            let expected = list(&recorded["blocked_cidrs"]);
            assert_chains(config, &[chain], expected, Table::Filter, family, &mut divergences);
            assert_eq!(divergences, BTreeMap::new());
        }
    }
}

/// Felix writes the addresses of an endpoint as a list without braces into one rule.
#[test]
fn dscp_has_one_rule_for_each_address() {
    let Some(json) = crate::nftables_json() else { return };
    let mut compared = 0;
    for (_, renderer, recorded) in configs(json) {
        for (family, recorded) in by_family(recorded) {
            let field = if family == Family::V4 { "v4" } else { "v6" };
            let rules: Vec<DscpRule> = list(&json["egress_dscp_inputs"][field])
                .iter()
                .flat_map(|rule| {
                    let value = u8::try_from(load::number(&rule["Value"])).unwrap();
                    text(&rule["SrcAddrs"])
                        .split(',')
                        .map(move |source| DscpRule { source: source.parse().unwrap(), value })
                        .collect::<Vec<_>>()
                })
                .collect();
            let theirs: Vec<String> = load::strings(&recorded["egress_dscp"]["rules"])
                .iter()
                .flat_map(|rule| {
                    let (before, rest) = rule.split_once("saddr ").unwrap();
                    let (sources, action) = rest.split_once(' ').unwrap();
                    sources.split(',').map(|source| format!("{before}saddr {source} {action}")).collect::<Vec<_>>()
                })
                .collect();
            assert_eq!(texts(&renderer.egress_dscp(&rules).rules, Table::Mangle, family), theirs);
            compared += 1;
        }
    }
    assert_count("compared", compared, 20);
}

#[test]
fn dispatch_chains_and_maps() {
    let Some(json) = crate::nftables_json() else { return };
    for (config, renderer, recorded) in configs(json) {
        let dispatch = recorded["dispatch"].as_object().unwrap();
        assert_count("inputs", dispatch.len(), 5);
        for (input, recorded) in dispatch {
            let names: Vec<InterfaceName> = list(&json["dispatch_inputs"][input]).iter().map(load::interface).collect();
            let host = |purpose, any| renderer.host_dispatch(purpose, names.iter().copied(), any);
            let case_name = format!("{config} {input}");
            let check = |chains: &[Chain], field: &str, layer| {
                let mut divergences = Divergences::new();
                let case_name = format!("{case_name} {field}");
                assert_chains(&case_name, chains, list(&recorded[field]), layer, Family::V4, &mut divergences);
                assert_eq!(divergences, BTreeMap::new());
            };
            let (filter, mangle) = (Table::Filter, Table::Mangle);
            check(&renderer.workload_dispatch(names.iter().copied()), "workload", filter);
            check(&host(HostDispatch::Filter, false), "host_forward", filter);
            check(&host(HostDispatch::Filter, true), "host_default_forward", filter);
            check(&host(HostDispatch::Raw, false), "host", filter);
            check(&host(HostDispatch::MangleIngress, false), "from_host", mangle);
            check(&host(HostDispatch::MangleIngress, true), "from_host_default", mangle);
            check(&host(HostDispatch::MangleEgress, false), "to_host", mangle);
            check(&host(HostDispatch::MangleEgress, true), "to_host_default", mangle);
            let both = [host(HostDispatch::MangleIngress, true), host(HostDispatch::MangleEgress, true)].concat();
            check(&both, "host_default", filter);

            let mut maps: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
            for recorded in list(&recorded["workload_maps"]) {
                let elements = recorded["elements"].as_object().unwrap().iter();
                let elements = elements.map(|(key, to)| (key.clone(), text(to).to_owned())).collect();
                maps.insert(text(&recorded["name"]).to_owned(), elements);
            }
            let mut ours: BTreeMap<String, BTreeMap<String, String>> =
                maps.keys().map(|map| (map.clone(), BTreeMap::new())).collect();
            for interface in &names {
                for (map, verdict) in renderer.workload_maps(*interface, Some((AdminState::Active, None))) {
                    let members = ours.get_mut(&format!("filter-{map}")).unwrap();
                    let target = verdict.and_then(MapVerdict::target).unwrap();
                    members.insert(interface.to_string(), format!("goto filter-{target}"));
                }
            }
            assert_eq!(ours, maps, "{case_name}");
            // `workload_allow` is for the eBPF dataplane.
            assert_count("kinds of dispatch", recorded.as_object().unwrap().len(), 11);
        }
    }
}

/// Returns the chain that marks an interface's packets for IPVS, with the first number.
fn set_endpoint_mark(renderer: &Renderer, interface: InterfaceName) -> Option<Chain> {
    renderer.config().ipvs.as_ref()?;
    let mark = EndpointMarks::new(&renderer.config().marks).assign(interface);
    Some(renderer.set_endpoint_mark(interface, mark))
}

#[test]
fn workload_endpoints() {
    let Some(json) = crate::nftables_json() else { return };
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
            let mut divergences = Divergences::new();
            let check = |chains: &[Chain], recorded: &Value, divergences: &mut Divergences| {
                assert_chains(config, chains, list(recorded), Table::Filter, Family::V4, divergences);
            };
            if interface.as_str() == input["iface"] {
                check(&chains, &recorded["chains"], &mut divergences);
            } else {
                assert_same_rules(config, &chains, list(&recorded["chains"]));
            }
            let groups: Vec<Chain> = tiers
                .iter()
                .flat_map(|tier| tier.ingress.iter().chain(&tier.egress))
                .filter(|group| !group.is_inlined())
                .map(|group| renderer.policy_group(group))
                .collect();
            check(&groups, &recorded["groups"], &mut divergences);
            assert_eq!(divergences, BTreeMap::new());
            compared += 1;
        }
    }
    assert_count("compared", compared, 10 * 5);
}

#[test]
fn host_endpoints() {
    let Some(json) = crate::nftables_json() else { return };
    let input = &json["hep_inputs"];
    let name = load::interface(&input["iface"]);
    let interface = HostInterface::Named(name);
    let (tiers, forward) = (load::tiers(&input["tiers"]), load::tiers(&input["forward_tiers"]));
    let profiles = load::profiles(&input["profiles"]);
    for (config, renderer, recorded) in configs(json) {
        let check = |chains: &[Chain], field: &str, layer| {
            let mut divergences = Divergences::new();
            let case_name = format!("{config} {field}");
            assert_chains(&case_name, chains, list(&recorded[field]), layer, Family::V4, &mut divergences);
            assert_eq!(divergences, BTreeMap::new());
        };
        let filter = |interface, forward: &[TierGroups], profiles: &[ProfileName]| {
            renderer.host_endpoint_filter(interface, &tiers, forward, profiles).to_vec()
        };
        let mut named = filter(interface, &forward, &profiles);
        named.extend(set_endpoint_mark(&renderer, name));
        check(&named, "host_endpoint_filter", Table::Filter);
        check(&filter(HostInterface::All, &[], &[]), "host_endpoint_filter_all_interfaces", Table::Filter);
        let egress = renderer.host_endpoint_mangle_egress(interface, &tiers, &profiles);
        check(&[egress], "host_endpoint_mangle_egress", Table::Mangle);
        let ingress = renderer.host_endpoint_mangle_ingress(interface, &tiers);
        check(&[ingress], "host_endpoint_mangle_ingress", Table::Mangle);
        let raw = renderer.host_endpoint_raw(interface, &tiers);
        check(&raw, "host_endpoint_raw", Table::Raw);
        assert!(render(&raw[0], Table::Raw, Family::V4).equals(&recorded["host_endpoint_raw_egress"]), "{config}");
    }
}
