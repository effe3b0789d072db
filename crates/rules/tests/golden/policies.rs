//! Single rules, whole policies, whole profiles.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tortie_iptables::{Action, Chain, Features, Rule, write_rest};
use tortie_model::{Cidr, Family};
use tortie_rules::{Renderer, RulesConfig};
use tortie_testkit::golden::assert_count;

use super::load::{self, list, text};
use super::{Lines, equals};

/// Why a rendering differs from the recorded one on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Divergence {
    /// An ICMP type in the table of the other family: Felix writes a line for which the kernel
    /// refuses the whole table. Tortie writes nothing, as no packet there can match.
    IcmpOfOtherFamily,
    /// Three or more match blocks of alternatives: in Felix, the second block decides for the later
    /// ones. Tortie writes `--jump MARK --set-mark 0/0x100000` before each later one.
    LaterMatchBlocks,
    /// A profile with a pass rule: Felix takes a pass mark of a tier or an earlier profile for one
    /// of the profile itself, and skips the rules behind it. Tortie writes `--jump MARK --set-mark
    /// 0/0x20000` first.
    EarlierPass,
    /// A network without prefix length, which the message allows and the model does not: `10.0.0.1`
    /// is `10.0.0.1/32`.
    BareAddress,
}

const CLEAR_SCRATCH1: &str = "--jump MARK --set-mark 0/0x100000";
const CLEAR_PASS: &str = "--jump MARK --set-mark 0/0x20000";

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

/// Returns the part behind the hash comment of each recorded line.
fn recorded_rests(chain: &Value) -> Vec<String> {
    let rest = |line: &String| line.split_once("\"cali:").unwrap().1[17..].trim_start().to_owned();
    load::strings(&chain["lines"]).iter().map(rest).collect()
}

fn rests(rules: &[Rule]) -> Vec<String> {
    let rest = |rule| {
        let mut text = String::new();
        write_rest(rule, &Features::ALL, &mut text);
        text
    };
    rules.iter().map(rest).collect()
}

/// Returns the listed reason for a difference of these rules' chain, if it differs; panics without
/// one.
#[track_caller]
fn explain(case_name: &str, ours: &Chain, recorded: &Value, rules: &[Value], family: Family) -> Option<Divergence> {
    if equals(&Lines::new(Features::ALL).chain(ours), recorded) {
        return None;
    }
    let (mut ours, mut theirs) = (rests(&ours.rules), recorded_rests(recorded));
    let mut reason = None;
    // The chain's comment is on its first line.
    if let Some(comment) = ours.first().and_then(|line| line.strip_suffix(CLEAR_PASS)).map(str::to_owned) {
        ours.remove(0);
        let (_, first) = theirs[0].split_once(&comment).unwrap_or_else(|| panic!("{case_name}: {comment}"));
        theirs[0] = theirs[0].strip_suffix(first).unwrap().strip_suffix(&comment).unwrap().to_owned() + first;
        assert!(theirs.iter().any(|line| line.starts_with("-m mark --mark 0x20000/0x20000 ")), "{case_name}");
        reason = Some(Divergence::EarlierPass);
    }
    if ours.iter().any(|line| line == CLEAR_SCRATCH1) {
        ours.retain(|line| line != CLEAR_SCRATCH1);
        assert!(!theirs.iter().any(|line| line == CLEAR_SCRATCH1), "{case_name}");
        reason = Some(Divergence::LaterMatchBlocks);
    }
    if rules.iter().any(|rule| bare_addresses(rule).next().is_some()) {
        for net in rules.iter().flat_map(bare_addresses) {
            let cidr: Cidr = net.parse().unwrap();
            for line in &mut theirs {
                *line = line.replace(&format!(" {net} "), &format!(" {cidr} "));
            }
        }
        reason = Some(Divergence::BareAddress);
    }
    if rules.iter().any(|rule| is_icmp_of_other_family(rule, family)) {
        reason = Some(Divergence::IcmpOfOtherFamily);
        // All lines of the other rules are present, in order. The comment of the first line moves.
        let comment = |line: &str| line.starts_with("-m comment");
        let mut theirs = theirs.iter();
        for line in ours.iter().filter(|line| !comment(line)) {
            assert!(theirs.any(|their| their == line), "{case_name}: {line}");
        }
        return reason;
    }
    assert_eq!(ours, theirs, "{case_name}");
    assert!(reason.is_some(), "{case_name}: same lines but other hashes");
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
    let is_ingress = match text(&rendered["dir"]) {
        "Ingress" => true,
        "Egress" => false,
        other => panic!("{other}"),
    };
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
    let Some(json) = load::rules_json() else { return };
    let mut divergences: BTreeMap<Divergence, usize> = BTreeMap::new();
    let mut compared = 0;
    for case in list(&json["rules"]) {
        for rendered in list(&case["rendered"]) {
            let family = load::family(&rendered["ip_version"]);
            let config = load::config(&json["configs"][text(&rendered["config"])]);
            let recorded = &rendered["out"]["chain"];
            let ours = rendered_alone(case, rendered, config, family);
            let chain = Chain::new(text(&recorded["name"]).parse().unwrap(), ours);
            let case_name = format!("{}", case["rule"]);
            if let Some(why) = explain(&case_name, &chain, recorded, std::slice::from_ref(&case["rule"]), family) {
                *divergences.entry(why).or_default() += 1;
            } else {
                compared += 1;
            }
        }
    }
    let expected =
        [(Divergence::IcmpOfOtherFamily, 81), (Divergence::LaterMatchBlocks, 5), (Divergence::BareAddress, 4)];
    assert_count("rules", (compared, divergences), (1038, BTreeMap::from(expected)));
}

#[test]
fn every_policy() {
    let Some(json) = load::rules_json() else { return };
    let mut divergences: BTreeMap<Divergence, usize> = BTreeMap::new();
    let (mut compared, mut staged) = (0, 0);
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
            for (chain, rules, recorded) in [
                (&chains.inbound, "inbound_rules", &rendered["chains"][0]),
                (&chains.outbound, "outbound_rules", &rendered["chains"][1]),
            ] {
                assert_eq!(chain.name.as_str(), text(&recorded["name"]));
                let rules = list(&case["policy"][rules]);
                match explain(&id.to_string(), chain, recorded, rules, family) {
                    Some(why) => *divergences.entry(why).or_default() += 1,
                    None => compared += 1,
                }
            }
        }
    }
    let expected = [(Divergence::IcmpOfOtherFamily, 30)];
    assert_count("policies", (compared, staged, divergences), (202, 16, BTreeMap::from(expected)));
}

#[test]
fn every_profile() {
    let Some(json) = load::rules_json() else { return };
    let mut divergences: BTreeMap<Divergence, usize> = BTreeMap::new();
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
                assert_eq!(chain.name.as_str(), text(&recorded["name"]));
                match explain(name.as_str(), chain, recorded, list(&case["profile"][rules]), family) {
                    Some(why) => *divergences.entry(why).or_default() += 1,
                    None => compared += 1,
                }
            }
        }
    }
    let expected = [(Divergence::IcmpOfOtherFamily, 6), (Divergence::EarlierPass, 15)];
    assert_count("profiles", (compared, divergences), (75, BTreeMap::from(expected)));
}

/// The recorded fragments are those of the recorded lines, so comparing lines compares them too.
#[test]
fn fragments_are_the_pieces_of_lines() {
    let Some(json) = load::rules_json() else { return };
    for rendered in list(&json["rules"]).iter().flat_map(|case| list(&case["rendered"])) {
        let lines = recorded_rests(&rendered["out"]["chain"]);
        let fragments: Vec<String> = list(&rendered["out"]["fragments"])
            .iter()
            .map(|piece| {
                let parts = [text(&piece["match"]), text(&piece["action"])];
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(lines.len(), fragments.len());
        for (line, fragment) in lines.iter().zip(&fragments) {
            assert!(line.ends_with(fragment.as_str()), "{line} / {fragment}");
        }
    }
}

#[test]
fn the_end_of_a_chain_has_no_return() {
    let Some(json) = load::rules_json() else { return };
    let renderer = Renderer::new(load::config(&json["configs"]["default"]));
    for case in list(&json["policies"]) {
        let id = load::policy_id(&case["id"]);
        for family in Family::ALL {
            let policy = load::policy(&case["policy"], family);
            if let Some(chains) = renderer.policy(&id, &policy, family) {
                for chain in [chains.inbound, chains.outbound] {
                    assert_ne!(chain.rules.last().unwrap().action, Some(Action::Return));
                }
            }
        }
    }
}
