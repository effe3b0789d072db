use serde_json::{Value, json};
use tortie_analysis::map::{Access, Anchor, Describe, Edge, Map, Node};
use tortie_analysis::plan::classes::Ruling;
use tortie_analysis::plan::classes::evaluate::Verdict;
use tortie_model::Direction;

use super::super::decision::direction;

/// Maximum number of listed members of a node, and rules of an edge; the rest is only counted.
const LISTED: usize = 200;

pub(super) fn of(map: &Map, describe: &Describe<'_>) -> Value {
    let nodes: Vec<Value> = map.nodes.iter().enumerate().map(|node| of_node(map, node)).collect();
    let edges: Vec<Value> = map.edges.iter().map(|edge| of_edge(map, edge, describe)).collect();
    json!({
        "family": map.family.to_string(),
        "tiers": map.tiers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "remarks": map.remarks(),
        "nodes": nodes,
        "edges": edges,
        "ends": ends(map, describe),
        "passing": map.passing_texts().collect::<Vec<_>>(),
    })
}

fn of_node(map: &Map, (number, node): (usize, &Node)) -> Value {
    let access = |access: &Access| match access {
        Access::Everything => "everything, with any peer".to_owned(),
        Access::Nothing => "nothing".to_owned(),
        Access::Some(label) => format!("{label}, with any peer"),
        Access::Depends => "depends on the peer".to_owned(),
        Access::NotEvaluated => String::new(),
    };
    json!({
        "name": map.name(Anchor::Node(number)),
        "group": node.group,
        "isNetworks": node.is_networks(),
        "isDomains": node.is_domains,
        "count": node.members.len(),
        "about": node.count(),
        "members": node.members.iter().take(LISTED).collect::<Vec<_>>(),
        "labels": node.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "ingress": {
            "access": access(&node.ingress),
            "policies": node.ingress_policies.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "rulings": map.ruling_numbers(number, Direction::Ingress),
        },
        "egress": {
            "access": access(&node.egress),
            "policies": node.egress_policies.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "rulings": map.ruling_numbers(number, Direction::Egress),
        },
    })
}

fn of_edge(map: &Map, edge: &Edge, describe: &Describe<'_>) -> Value {
    let by = edge.deciders.iter().take(LISTED);
    let by: Vec<[String; 2]> =
        by.map(|decider| [direction(decider.direction).to_owned(), describe(&decider.by, decider.direction)]).collect();
    let to = if edge.to == Anchor::AnyPeer { "anywhere".to_owned() } else { map.name(edge.to) };
    json!({
        "from": map.name(edge.from),
        "to": to,
        "fromNodes": nodes_at(map, edge.from),
        "toNodes": nodes_at(map, edge.to),
        "label": edge.label,
        "isPart": edge.is_part,
        "tiers": edge.tiers,
        "by": by,
        "more": edge.deciders.len().saturating_sub(LISTED),
    })
}

fn nodes_at(map: &Map, anchor: Anchor) -> Value {
    match anchor {
        Anchor::Node(number) => json!([number]),
        Anchor::Group(group) => {
            (0..map.nodes.len()).filter(|node| map.nodes.get(*node).is_some_and(|node| node.group == group)).collect()
        }
        Anchor::AllPods | Anchor::AnyPeer => Value::Null,
    }
}

/// The direction of an end follows from the node that refers to it.
fn ends(map: &Map, describe: &Describe<'_>) -> Vec<Value> {
    let mut directions = vec![Direction::Ingress; map.ends().len()];
    for node in 0..map.nodes.len() {
        for end in map.ruling_numbers(node, Direction::Egress).iter().filter_map(|(_, end)| *end) {
            directions.iter_mut().skip(end).take(1).for_each(|direction| *direction = Direction::Egress);
        }
    }
    let decision = |ruling: &Ruling, direction| {
        let from = ruling.source_ports.map(|(first, last)| format!(" from ports {first}-{last}"));
        let match_text = format!("{}{}", ruling.traffic, from.unwrap_or_default());
        json!([ruling.verdict != Verdict::Deny, match_text, describe(&ruling.by, direction)])
    };
    let ends = map.ends().enumerate().zip(directions);
    ends.map(|((number, rulings), direction)| {
        let decisions: Vec<Value> = rulings.iter().map(|ruling| decision(ruling, direction)).collect();
        json!({"passing": map.passing_number(number), "decisions": decisions})
    })
    .collect()
}
