//! Whole tables: the input of `iptables-restore` for an empty kernel table.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tortie_iptables::{Chain, ChainName, Features, RenderedChain, Renderer as Lines, Table};
use tortie_model::{Family, HostInterface};
use tortie_rules::names::chain;
use tortie_rules::{EndpointMarks, HostDispatch, Renderer};
use tortie_testkit::golden::assert_count;

use super::chains::{blocked_cidrs, dscp_rules, nat_address_of_other_family, nat_map};
use super::load::{self, list, text};

/// Returns all chains of a table in the recorded scenario: one workload, one host endpoint, their
/// policies and profiles.
fn desired(json: &Value, renderer: &Renderer, table: Table, family: Family, recorded: &Value) -> Vec<Chain> {
    let hep = &json["hep_inputs"];
    let eth0 = load::interface(&hep["iface"]);
    let interface = HostInterface::Named(eth0);
    let hep_profiles = load::profiles(&hep["profiles"]);
    let host = |purpose| renderer.host_dispatch(purpose, [eth0], false);
    let mut chains = renderer.fixed_chains(table, family);
    match table {
        Table::Raw => {
            chains.extend(host(HostDispatch::Raw));
            chains.extend(renderer.host_endpoint_raw(interface, &[]));
            chains.push(renderer.rpf_skip(&BTreeMap::new(), family));
        }
        Table::Mangle => {
            chains.extend(host(HostDispatch::MangleIngress));
            chains.extend(host(HostDispatch::MangleEgress));
            chains.push(renderer.host_endpoint_mangle_ingress(interface, &[]));
            chains.push(renderer.host_endpoint_mangle_egress(interface, &[], &hep_profiles));
            let profile = load::profile(&json["restore_input_notes"]["profile_used_for_every_profile_chain"], family);
            chains.extend(hep_profiles.iter().map(|name| renderer.profile(name, &profile, family).outbound));
            chains.push(renderer.egress_dscp(&dscp_rules()));
        }
        Table::Nat => {
            let map = nat_map(&recorded["nat_map"]);
            chains.push(renderer.nat_outgoing(true, family));
            chains.extend([renderer.fip_dnat(&map), renderer.fip_snat(&map)]);
        }
        Table::Filter => {
            let wep = &json["endpoint_inputs"][3];
            let wep_tiers = load::tiers(&wep["tiers"]);
            let hep_tiers = load::tiers(&hep["tiers"]);
            let forward_tiers = load::tiers(&hep["forward_tiers"]);
            let wep_profiles = load::profiles(&wep["profiles"]);
            let cali = load::interface(&wep["iface"]);
            chains.push(renderer.cidr_block(blocked_cidrs(), family));
            chains.extend(renderer.workload_dispatch([cali]));
            chains.extend(host(HostDispatch::Filter));
            chains.extend(renderer.workload_endpoint(
                cali,
                tortie_model::AdminState::Active,
                &wep_tiers,
                &wep_profiles,
                None,
            ));
            chains.extend(renderer.host_endpoint_filter(interface, &hep_tiers, &forward_tiers, &hep_profiles));
            let notes = &json["restore_input_notes"];
            let policy = load::policy(&notes["policy_used_for_every_policy_chain"], family);
            let profile = load::profile(&notes["profile_used_for_every_profile_chain"], family);
            for group in wep_tiers
                .iter()
                .chain(&hep_tiers)
                .chain(&forward_tiers)
                .flat_map(|tier| tier.ingress.iter().chain(&tier.egress))
            {
                chains.push(renderer.policy_group(group));
                for id in group.enforced() {
                    let made = renderer.policy(id, &policy, family).unwrap();
                    chains.extend([made.inbound, made.outbound]);
                }
            }
            for name in wep_profiles.iter().chain(&hep_profiles) {
                let made = renderer.profile(name, &profile, family);
                chains.extend([made.inbound, made.outbound]);
            }
        }
    }
    chains
}

const IPVS_DISPATCH: [ChainName; 2] = [chain::SET_ENDPOINT_MARK, chain::FROM_ENDPOINT_MARK];

/// Returns the chains by which IPVS distinguishes the endpoints of the scenario.
fn ipvs_dispatch(json: &Value, renderer: &Renderer) -> Vec<Chain> {
    let cali = load::interface(&json["endpoint_inputs"][3]["iface"]);
    let eth0 = load::interface(&json["hep_inputs"]["iface"]);
    let mut marks = EndpointMarks::new(&renderer.config().marks);
    let mut chains: Vec<Chain> =
        [cali, eth0].map(|interface| renderer.set_endpoint_mark(interface, marks.assign(interface))).to_vec();
    chains.extend(renderer.endpoint_mark_dispatch(&marks, [cali], [eth0]));
    chains
}

/// Returns the input of `iptables-restore`, sorted: reachable chains, and the hooks.
fn restore_lines(renderer: &Renderer, table: Table, chains: &[Chain]) -> Vec<String> {
    let mut lines_of = Lines::new(Features::ALL);
    let rendered: BTreeMap<ChainName, RenderedChain> =
        chains.iter().map(|chain| (chain.name, lines_of.chain(chain))).collect();
    let mut lines = vec![format!("*{table}"), "COMMIT".to_owned()];
    let mut queue = Vec::new();
    for hook in renderer.hooks().into_iter().filter(|hook| hook.table == table) {
        let rendered = lines_of.hook(hook.kernel_chain, hook.position, &hook.rules);
        for i in 0..rendered.len() {
            let mut line = String::new();
            match hook.position {
                tortie_iptables::HookPosition::Insert => rendered.write_insert(i, &mut line),
                tortie_iptables::HookPosition::Append => rendered.write_append(i, &mut line),
            }
            lines.push(line);
        }
        queue.extend(rendered.targets());
    }
    let mut seen = BTreeSet::new();
    while let Some(name) = queue.pop() {
        if seen.insert(name) {
            let Some(chain) = rendered.get(&name) else {
                // With IPVS, a scenario may lack the chains that distinguish endpoints.
                assert!(IPVS_DISPATCH.contains(&name), "{table}: {name} is not defined");
                continue;
            };
            lines.push(format!(":{name} - -"));
            lines.extend(chain.append_lines());
            queue.extend(chain.targets());
        }
    }
    lines.sort();
    lines
}

#[test]
fn whole_tables() {
    let Some(json) = load::rules_json() else { return };
    let (mut compared, mut diverged) = (0, BTreeMap::new());
    for (config, recorded) in json["config_chains"].as_object().unwrap() {
        let renderer = Renderer::new(load::config(&json["configs"][config.as_str()]));
        for (family, recorded) in [(Family::V4, &recorded["v4"]), (Family::V6, &recorded["v6"])] {
            for backend in ["legacy", "nft"] {
                for table in Table::ALL {
                    let calls = list(&recorded["restore_input_full_tables"][backend][table.as_str()]);
                    let [call] = calls else { panic!("{} calls", calls.len()) };
                    let mut theirs = load::strings(&call["input_lines"]);
                    theirs.sort();
                    let mut wanted = desired(json, &renderer, table, family, recorded);
                    let start = format!("-A {} ", chain::SET_ENDPOINT_MARK);
                    if theirs.iter().any(|line| line.starts_with(&start)) {
                        wanted.extend(ipvs_dispatch(json, &renderer));
                    } else {
                        // Felix creates and deletes chains that are not defined.
                        let made = IPVS_DISPATCH.map(|name| [format!(":{name} - -"), format!("--delete-chain {name}")]);
                        theirs.retain(|line| !made.as_flattened().contains(line));
                    }
                    let mut ours = restore_lines(&renderer, table, &wanted);
                    // The two chains that differ on purpose are compared where they are rendered.
                    for (differs, name) in [
                        (table == Table::Mangle, chain::EGRESS_DSCP),
                        (
                            table == Table::Nat && nat_address_of_other_family(&renderer, family).is_some(),
                            chain::NAT_OUTGOING,
                        ),
                    ] {
                        if differs {
                            let start = format!("-A {name} ");
                            ours.retain(|line| !line.starts_with(&start));
                            theirs.retain(|line| !line.starts_with(&start));
                            *diverged.entry(name.to_string()).or_insert(0) += 1;
                        }
                    }
                    assert_eq!(ours, theirs, "{config} {family:?} {backend} {}", text(&call["cmd"]));
                    compared += 1;
                }
            }
        }
    }
    assert_count("tables", compared, 9 * 2 * 2 * 4);
    let expected = [("cali-egress-dscp".to_owned(), 36), ("cali-nat-outgoing".to_owned(), 2)];
    assert_count("divergences", diverged, BTreeMap::from(expected));
}
