//! Single rules, whole policies, whole profiles.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tortie_iptables::{Chain, Rule, Table};
use tortie_model::{Cidr, Family};
use tortie_rules::{Renderer, RulesConfig};
use tortie_testkit::golden::assert_count;

use super::load::{self, list, text};
use super::{Divergence, Divergences, corrected, render};

const CLEAR_SCRATCH1: &str = "counter meta mark set mark & 0xffefffff";
const CLEAR_PASS: &str = "counter meta mark set mark & 0xfffdffff";

/// Reports whether the rule matches an ICMP type and the protocol of the other family.
fn is_icmp_of_other_family(rule: &Value, family: Family) -> bool {
    let asks = ["icmp_type", "icmp_type_code", "not_icmp_type", "not_icmp_type_code"];
    let (model, _) = load::rule(rule, family);
    let other = match family {
        Family::V4 => 58,
        Family::V6 => 1,
    };
    asks.iter().any(|field| !rule[*field].is_null()) && model.protocol.is_some_and(|p| p.number() == other)
}

fn bare_addresses(rule: &Value) -> impl Iterator<Item = &str> {
    ["src_net", "dst_net", "not_src_net", "not_dst_net"]
        .into_iter()
        .flat_map(|field| list(&rule[field]))
        .map(text)
        .filter(|net| !net.contains('/'))
}

/// Returns the listed reason for a difference of these rules' chain, if it differs; panics without
/// one.
#[track_caller]
fn explain(
    case_name: &str,
    chain: &Chain,
    recorded: &Value,
    rules: &[Value],
    (layer, family): (Table, Family),
) -> Option<Divergence> {
    let rendered = render(chain, layer, family);
    if rendered.equals(recorded) {
        return None;
    }
    let mut ours = rendered.texts();
    let mut reason = None;
    let mut theirs: Vec<String> = load::strings(&recorded["rules"])
        .iter()
        .map(|their| {
            let (their, why) = corrected(their);
            reason = reason.or(why);
            their
        })
        .collect();
    if ours.first().is_some_and(|first| first == CLEAR_PASS) {
        ours.remove(0);
        assert!(theirs.iter().any(|rule| rule.starts_with("meta mark & 0x20000 == 0x20000 ")), "{case_name}");
        reason = Some(Divergence::EarlierPass);
    }
    if ours.iter().any(|rule| rule == CLEAR_SCRATCH1) {
        ours.retain(|rule| rule != CLEAR_SCRATCH1);
        assert!(!theirs.iter().any(|rule| rule == CLEAR_SCRATCH1), "{case_name}");
        reason = Some(Divergence::LaterMatchBlocks);
    }
    if rules.iter().any(|rule| bare_addresses(rule).next().is_some()) {
        for net in rules.iter().flat_map(bare_addresses) {
            let cidr: Cidr = net.parse().unwrap();
            for rule in &mut theirs {
                *rule = rule.replace(&format!(" {net} "), &format!(" {cidr} "));
            }
        }
        reason = Some(Divergence::BareAddress);
    }
    if rules.iter().any(|rule| is_icmp_of_other_family(rule, family)) {
        // All other rules are present, in order. A chain without rules has one that only names its
        // owner.
        let mut theirs = theirs.iter();
        for rule in ours.iter().filter(|rule| *rule != "continue") {
            assert!(theirs.any(|their| their == rule), "{case_name}: {rule}");
        }
        return Some(Divergence::IcmpOfOtherFamily);
    }
    assert_eq!(ours, theirs, "{case_name}");
    assert!(reason.is_some(), "{case_name}: same texts but other comments or hashes");
    reason
}

/// Renders a rule at the recorded place of a policy or profile.
fn rendered_alone(case: &Value, rendered: &Value, mut config: RulesConfig, family: Family) -> Vec<Rule> {
    let index = load::number(&rendered["idx"]);
    // Rules before it give it its number. The one behind it keeps its return, which it would not
    // need at the end of a chain.
    let other = || json!({"action": "deny"});
    let before = (0..index).map(|_| other());
    let rules: Value = before.chain([case["rule"].clone(), other()]).collect();
    let is_ingress = text(&rendered["dir"]) == "Ingress";
    let list = if is_ingress { "inbound_rules" } else { "outbound_rules" };
    let owner = json!({"tier": rendered["tier"], "untracked": rendered["untracked"], list: rules});
    let chains = match text(&rendered["owner"]) {
        "Policy" => {
            let id = load::policy_id(&case["policy_id"]);
            Renderer::new(config).policy(&id, &load::policy(&owner, family), family).unwrap()
        }
        "Profile" => {
            // A profile is never untracked. Recorded are some nevertheless, which differ by the
            // lack of flow logs.
            config.flow_logs &= !rendered["untracked"].as_bool().unwrap();
            Renderer::new(config).profile(&text(&case["profile_id"]).into(), &load::profile(&owner, family), family)
        }
        other => panic!("{other}"),
    };
    assert_eq!(chains.problems, []);
    let mut rules = if is_ingress { chains.inbound.rules } else { chains.outbound.rules };
    // The comment of the whole chain.
    let comments = &mut rules[0].comments;
    *comments = comments[..comments.len() - 1].iter().cloned().collect();
    rules.retain(|rule| rule.origin.as_ref().and_then(|origin| origin.part).map(i64::from) == Some(index));
    rules
}

#[test]
fn every_single_rule() {
    let Some(json) = crate::nftables_json() else { return };
    let mut divergences = Divergences::new();
    let (mut compared, mut panics) = (0, 0);
    for case in list(&json["rules"]) {
        for rendered in list(&case["rendered"]) {
            let family = load::family(&rendered["ip_version"]);
            let config = load::config(&json["configs"][text(&rendered["config"])]);
            let recorded = &rendered["chain"];
            let ours = rendered_alone(case, rendered, config, family);
            let Some(name) = recorded["name"].as_str() else {
                // Felix crashes on this rule; the test only renders it.
                assert!(rendered.get("peer_panic").is_some() && !ours.is_empty(), "{rendered}");
                panics += 1;
                continue;
            };
            let layer = if rendered["untracked"].as_bool().unwrap() { Table::Raw } else { Table::Filter };
            let name = name.strip_prefix(&format!("{layer}-")).unwrap();
            let chain = Chain::new(name.parse().unwrap(), ours);
            let case_name = format!("{}", case["rule"]);
            let why = explain(&case_name, &chain, recorded, std::slice::from_ref(&case["rule"]), (layer, family));
            match why {
                Some(why) => *divergences.entry(why).or_default() += 1,
                None => compared += 1,
            }
        }
    }
    let expected = [
        (Divergence::IcmpOfOtherFamily, 81),
        (Divergence::LaterMatchBlocks, 5),
        (Divergence::BareAddress, 4),
        (Divergence::IcmpCode, 27),
    ];
    assert_count("rules", (compared, panics, divergences), (1011, 0, BTreeMap::from(expected)));
}

#[test]
fn every_policy() {
    let Some(json) = crate::nftables_json() else { return };
    let mut divergences = Divergences::new();
    let (mut compared, mut staged, mut panics) = (0, 0, 0);
    for case in list(&json["policies"]) {
        let id = load::policy_id(&case["id"]);
        for rendered in list(&case["rendered"]) {
            let family = load::family(&rendered["ip_version"]);
            let renderer = Renderer::new(load::config(&json["configs"][text(&rendered["config"])]));
            let policy = load::policy(&case["policy"], family);
            let Some(chains) = renderer.policy(&id, &policy, family) else {
                assert_eq!(list(&rendered["chains"]), [] as [Value; 0], "{id}");
                staged += 1;
                continue;
            };
            assert_eq!(chains.problems, []);
            if rendered.get("peer_panic").is_some() {
                panics += 1;
                continue;
            }
            for (chain, rules, recorded) in [
                (&chains.inbound, "inbound_rules", &rendered["chains"][0]),
                (&chains.outbound, "outbound_rules", &rendered["chains"][1]),
            ] {
                assert_eq!(render(chain, Table::Filter, family).name.as_str(), text(&recorded["name"]));
                let rules = list(&case["policy"][rules]);
                match explain(&id.to_string(), chain, recorded, rules, (Table::Filter, family)) {
                    Some(why) => *divergences.entry(why).or_default() += 1,
                    None => compared += 1,
                }
            }
        }
    }
    let expected = [(Divergence::IcmpOfOtherFamily, 30), (Divergence::IcmpCode, 16)];
    assert_count("policies", (compared, staged, panics, divergences), (186, 16, 0, BTreeMap::from(expected)));
}

#[test]
fn every_profile() {
    let Some(json) = crate::nftables_json() else { return };
    let mut divergences = Divergences::new();
    let mut compared = 0;
    for case in list(&json["profiles"]) {
        let name = text(&case["id"]).into();
        for rendered in list(&case["rendered"]) {
            let family = load::family(&rendered["ip_version"]);
            let renderer = Renderer::new(load::config(&json["configs"][text(&rendered["config"])]));
            let chains = renderer.profile(&name, &load::profile(&case["profile"], family), family);
            assert_eq!(chains.problems, []);
            for (chain, rules, recorded) in [
                (&chains.inbound, "inbound_rules", &rendered["chains"][0]),
                (&chains.outbound, "outbound_rules", &rendered["chains"][1]),
            ] {
                let rules = list(&case["profile"][rules]);
                match explain(name.as_str(), chain, recorded, rules, (Table::Filter, family)) {
                    Some(why) => *divergences.entry(why).or_default() += 1,
                    None => compared += 1,
                }
            }
        }
    }
    let expected = [(Divergence::IcmpOfOtherFamily, 6), (Divergence::EarlierPass, 15), (Divergence::IcmpCode, 1)];
    assert_count("profiles", (compared, divergences), (74, BTreeMap::from(expected)));
}
