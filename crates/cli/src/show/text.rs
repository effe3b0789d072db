use std::fmt::Write as _;

use super::super::columns::table;
use tortie_node::engine::inspect::{DecisionCounters, Endpoint, IpSet, Policy, RuleCounters, Tier};
use tortie_node::local_api::{DomainAddress, LearnedDomains};

pub(super) fn endpoints(endpoints: &[Endpoint]) -> String {
    let count = |endpoint: &Endpoint| {
        let lists = [&endpoint.tiers, &endpoint.untracked_tiers, &endpoint.pre_dnat_tiers, &endpoint.forward_tiers];
        let mut policies: Vec<&String> =
            lists.into_iter().flatten().flat_map(|tier| tier.ingress.iter().chain(&tier.egress)).collect();
        policies.sort();
        policies.dedup();
        policies.len().to_string()
    };
    let rows = endpoints.iter().map(|endpoint| {
        vec![
            endpoint.name.clone(),
            endpoint.kind.clone(),
            endpoint.interface.clone().unwrap_or_default(),
            endpoint.addresses.join(","),
            count(endpoint),
            endpoint.status.clone().unwrap_or_default(),
        ]
    });
    table(&["NAME", "KIND", "INTERFACE", "ADDRESSES", "POLICIES", "STATUS"], rows)
}

/// Each address has a row, which repeats neither endpoint nor name.
pub(super) fn domains(found: &LearnedDomains) -> String {
    let mut rows = Vec::new();
    for endpoint in &found.endpoints {
        let mut endpoint_cell = endpoint.name.as_str();
        for name in &endpoint.names {
            let policies = match (&name.near_miss, &*name.policies) {
                (Some(near), _) => format!("none; {near} matches"),
                (None, []) => "none".to_owned(),
                (None, policies) => policies.join(", "),
            };
            let (mut name_cell, mut policies_cell) = (name.name.as_str(), policies.as_str());
            for DomainAddress { address, remaining_seconds } in &name.addresses {
                let cells = [endpoint_cell, name_cell, address, &format!("{remaining_seconds} s"), policies_cell];
                rows.push(cells.map(str::to_owned).to_vec());
                (endpoint_cell, name_cell, policies_cell) = ("", "", "");
            }
        }
        if endpoint.names.is_empty() {
            rows.push(vec![endpoint.name.clone(), "none".to_owned(), String::new(), String::new(), String::new()]);
        }
    }
    let mut out = table(&["ENDPOINT", "NAME", "ADDRESS", "REMAINING", "POLICIES"], rows);
    if found.left_out > 0 {
        let _ = writeln!(out, "{} more addresses are not listed", found.left_out);
    }
    out
}

pub(super) fn policies(policies: &[Policy]) -> String {
    let rows = policies.iter().map(|policy| {
        vec![
            policy.id.clone(),
            policy.tier.clone(),
            policy.order.map_or_else(String::new, |order| order.to_string()),
            policy.endpoints.len().to_string(),
            policy.selector.clone(),
        ]
    });
    table(&["POLICY", "TIER", "ORDER", "ENDPOINTS", "SELECTOR"], rows)
}

/// Writing to a string cannot fail, here and below.
pub(super) fn policy(policy: &Policy) -> String {
    let mut out = String::new();
    let staged = if policy.staged { ", staged: nothing is enforced" } else { "" };
    let order = policy.order.map_or_else(String::new, |order| format!(", order {order}"));
    let _ = writeln!(out, "{}: tier {}{order}{staged}", policy.id, policy.tier);
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(out, "  {name:<11}{value}");
        }
    };
    line("selector", &policy.selector);
    line("endpoints", &policy.endpoints.join(", "));
    let way = |rules: usize, chain: &Option<String>| match chain {
        _ if rules == 0 => "no rules".to_owned(),
        Some(chain) => format!("{rules} rules, chain {chain}"),
        None => format!("{rules} rules"),
    };
    line("ingress", &way(policy.ingress_rules, &policy.ingress_chain));
    line("egress", &way(policy.egress_rules, &policy.egress_chain));
    line("IP sets", &policy.ip_sets.join(", "));
    if let Some(last) = &policy.last_hit {
        line("last hit", &format!("{}, {} in all", last.time, last.hits));
    }
    if policy.counters.as_ref().is_some_and(|counters| !counters.is_empty()) {
        out.push_str(&rules(&policy.id, policy.counters.iter().flatten()));
    }
    if policy.decisions.as_ref().is_some_and(|decisions| !decisions.is_empty()) {
        let rows = policy.decisions.iter().flatten().map(|decision| {
            let place = format!("  {}", decision.direction.as_deref().unwrap_or_default());
            let rule = decision.rule.map_or_else(String::new, |rule| rule.to_string());
            let (packets, bytes) = (decision.packets.to_string(), decision.bytes.to_string());
            vec![place, rule, decision.verdict.clone(), packets, bytes]
        });
        out.push_str(&table(&["  DIRECTION", "RULE", "VERDICT", "PACKETS", "BYTES"], rows));
    }
    out
}

fn rules<'a>(policy: &str, rules: impl Iterator<Item = &'a RuleCounters>) -> String {
    let rules: Vec<&RuleCounters> = rules.collect();
    let with_numbers = rules.iter().any(|rule| !rule.counts_for.is_empty());
    let rows = rules.into_iter().map(|rule| {
        let chain = if with_numbers { rule.chain.clone() } else { format!("{} {}", rule.table, rule.chain) };
        let place = format!("  IPv{} {chain}", rule.ip_version);
        let mut row = vec![place, rule.packets.to_string(), rule.bytes.to_string()];
        row.extend(with_numbers.then(|| counted_for(policy, rule)));
        row.push(match rule.kernel_rules {
            0 | 1 => rule.rule.clone(),
            several => format!("{} (the sum of {several} places)", rule.rule),
        });
        row
    });
    let heads = ["  CHAIN", "PACKETS", "BYTES", "COUNTS FOR", "RULE"];
    table(&heads.into_iter().filter(|head| with_numbers || *head != "COUNTS FOR").collect::<Vec<_>>(), rows)
}

/// Returns the numbers of the policy's own rules, and the number of others that share the count.
fn counted_for(policy: &str, rule: &RuleCounters) -> String {
    let own = rule.counts_for.iter().filter_map(|named| named.strip_prefix(policy)?.strip_prefix(' '));
    let own: Vec<&str> = own.collect();
    let mut text = own.join(", ");
    let others = rule.counted_together.saturating_sub(own.len());
    if others > 0 {
        let first = rule.counts_for.get(own.len()).map_or("", String::as_str);
        let _ = match others {
            1 => write!(text, " and {first}"),
            more => write!(text, " and {more} more, such as {first}"),
        };
    }
    text
}

pub(super) fn decisions(decisions: &[DecisionCounters]) -> String {
    let rows = decisions.iter().map(|decision| {
        let direction = decision.direction.clone().unwrap_or_default();
        let (packets, bytes) = (decision.packets.to_string(), decision.bytes.to_string());
        vec![direction, decision.verdict.clone(), packets, bytes, decision.decided_by.clone()]
    });
    table(&["DIRECTION", "VERDICT", "PACKETS", "BYTES", "DECIDED BY"], rows)
}

pub(super) fn counters(policies: &[Policy]) -> String {
    let mut out = String::new();
    for policy in policies.iter().filter(|policy| policy.counters.as_ref().is_some_and(|rules| !rules.is_empty())) {
        let _ = writeln!(out, "{}", policy.id);
        out.push_str(&rules(&policy.id, policy.counters.iter().flatten()));
    }
    out
}

pub(super) fn policies_of(endpoint: &Endpoint) -> String {
    let mut out = String::new();
    let status = endpoint.status.as_deref().map_or_else(String::new, |status| format!(", {status}"));
    let interface = endpoint.interface.as_deref().map_or_else(String::new, |name| format!(" on {name}"));
    let _ = writeln!(out, "{} endpoint {}{interface}{status}", endpoint.kind, endpoint.name);
    let lists = [
        ("", &endpoint.tiers),
        ("untracked ", &endpoint.untracked_tiers),
        ("pre-DNAT ", &endpoint.pre_dnat_tiers),
        ("forwarded ", &endpoint.forward_tiers),
    ];
    for (kind, tiers) in lists {
        evaluation(&mut out, &format!("{kind}ingress"), tiers, |tier| &tier.ingress);
        evaluation(&mut out, &format!("{kind}egress"), tiers, |tier| &tier.egress);
    }
    if !endpoint.profiles.is_empty() {
        let _ = writeln!(out, "  profiles: {}", endpoint.profiles.join(", "));
    }
    out
}

fn evaluation(out: &mut String, name: &str, tiers: &[Tier], policies: impl Fn(&Tier) -> &Vec<String>) {
    let mut tiers = tiers.iter().filter(|tier| !policies(tier).is_empty()).peekable();
    if tiers.peek().is_some() {
        let _ = writeln!(out, "  {name}");
    }
    for tier in tiers {
        let _ = writeln!(out, "    tier {}, then {}", tier.name, tier.default_action.to_lowercase());
        for policy in policies(tier) {
            let _ = writeln!(out, "      {policy}");
        }
    }
}

pub(super) fn sets(sets: &[IpSet]) -> String {
    let rows = sets.iter().map(|set| {
        vec![
            set.id.clone(),
            set.set_type.clone(),
            set.size.to_string(),
            set.kernel_names.join(","),
            set.users.join(","),
        ]
    });
    table(&["ID", "TYPE", "SIZE", "IN THE KERNEL", "USED BY"], rows)
}

pub(super) fn set(set: &IpSet) -> String {
    let mut out = sets(std::slice::from_ref(set));
    match &set.members {
        Some(members) => members.iter().for_each(|member| {
            let _ = writeln!(out, "  {member}");
        }),
        None => {
            out.push_str(
                "  its members are unknown: another program enforces policy, or eBPF programs, which need no IP sets\n",
            );
        }
    }
    out
}
