use tortie_analysis::plan::classes::Nodes;
use tortie_analysis::plan::classes::evaluate::Layer;
use tortie_analysis::plan::{DecisionChange, Existence, Finding, Packets, Plan};
use tortie_model::{HostEndpointName, PolicyId};

use super::super::decision::direction;

pub(super) fn existence(existence: Existence) -> &'static str {
    match existence {
        Existence::Added => "added",
        Existence::Changed => "changed",
        Existence::Removed => "removed",
    }
}

pub(super) fn layer(layer: Layer) -> &'static str {
    match layer {
        Layer::Normal => "own traffic",
        Layer::Forward => "forwarded",
        Layer::Untracked => "before connection tracking",
        Layer::PreDnat => "before destination NAT",
    }
}

/// `TCP 80 from ports 1-1023, IPv6`; the family is only shown if it is the only one.
pub(super) fn packets(packets: &Packets) -> String {
    let mut text = packets.traffic.to_string();
    if let Some((first, last)) = packets.source_ports {
        text += &format!(" from ports {first}-{last}");
    }
    if let [family] = &packets.families[..] {
        text += &format!(", {family}");
    }
    text
}

pub(super) fn of_nodes(nodes: Nodes) -> &'static str {
    match nodes {
        Nodes::Any => "",
        Nodes::Same => " on the same node",
        Nodes::Different => ", but not on the same node",
    }
}

pub(super) fn end(why: &DecisionChange) -> String {
    let way = direction(why.direction);
    why.layer.map_or_else(|| way.to_owned(), |at| format!("{way} at the node's host endpoint ({})", layer(at)))
}

pub(super) fn notes(plan: &Plan) -> Vec<&'static str> {
    let is_forward = plan.hosts.iter().any(|found| found.layer == Layer::Forward);
    let forward = "policy of host endpoints for forwarded packets applies to connections of pods, too; the interface by which these \
                   leave their node is unknown: host endpoints of all interfaces are evaluated, else each of the node's";
    let names = "connections to some domain names are left out: the patterns of rules can match too many different names, or \
                 networks of policies cover all addresses";
    [is_forward.then_some(forward), plan.names_left_out.then_some(names)].into_iter().flatten().collect()
}

pub(super) fn few(names: &[HostEndpointName]) -> String {
    const NAMES: usize = 5;
    let mut text = names.iter().take(NAMES).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(NAMES).filter(|more| *more > 0) {
        text += &format!(" and {more} more");
    }
    text
}

pub(super) fn finding(finding: &Finding) -> (&'static str, String) {
    let rule = |policy: &PolicyId| {
        let rule = finding.rule().map(|(way, index)| format!("{} rule {index}", direction(way)));
        format!("{policy}, {}", rule.unwrap_or_default())
    };
    match finding {
        Finding::LoseAllPolicy { workloads } => ("lose-all-policy", format!("no policy governs {workloads} any more")),
        Finding::LoseManagement { endpoints, port, from } => {
            let endpoints = few(endpoints);
            ("lose-management", format!("host endpoint {endpoints} no longer accepts TCP {port} from {from}"))
        }
        Finding::ClaimIgnored { endpoint, why } => ("claim-ignored", format!("{endpoint}: {why}")),
        Finding::OverBudget { policy, limit } => {
            let why = format!("the rules of its endpoints exceed the table budget of {limit} bytes");
            ("over-budget", format!("{policy}: eBPF programs deny all traffic: {why}"))
        }
        Finding::LayoutOverBudget { policy, limit } => {
            let why = format!("the layout of its chains exceeds the table budget of {limit} bytes");
            ("over-budget", format!("{policy}: NFTablesLayout=Fast evaluates rules one after the other: {why}"))
        }
        Finding::DeniedByPrograms { object, why } => {
            let name = finding.policy().map_or_else(|| object.to_string(), ToString::to_string);
            ("over-budget", format!("{name}: eBPF programs deny its traffic: {why}"))
        }
        Finding::SelectsNothing { policy } => ("selects-nothing", format!("{policy} selects no endpoint")),
        Finding::Shadowed { policy } => ("shadowed", format!("{policy} has no effect: others decide before its rules")),
        Finding::RuleSelectsNothing { policy, .. } => {
            ("rule-selects-nothing", format!("{} selects nothing that exists", rule(policy)))
        }
        Finding::RuleNeverMatches { policy, .. } => {
            ("rule-never-matches", format!("{} can match no packet", rule(policy)))
        }
        Finding::RuleShadowed { policy, .. } => {
            ("rule-shadowed", format!("{} has no effect: others decide before it", rule(policy)))
        }
        other => ("other", format!("{other:?}")),
    }
}
