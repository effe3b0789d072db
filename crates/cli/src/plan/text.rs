use std::fmt::Write as _;

use tortie_analysis::plan::{Existence, Programming};

use super::super::decision::direction;
use super::answer::Answer;
use super::kernel::NodeChange;
use super::words::{end, few, finding, layer, notes, of_nodes, packets};

/// Maximum number of named objects; the rest is only counted.
const OBJECTS: usize = 10;

/// Writing to a string cannot fail, here and below.
pub(super) fn text(answer: &Answer<'_>) -> String {
    let plan = answer.plan;
    if plan.is_empty() {
        return "nothing changes\n".to_owned();
    }
    let mut out = String::from("objects\n");
    for (key, existence) in plan.objects.iter().take(OBJECTS) {
        let sign = match existence {
            Existence::Added => '+',
            Existence::Changed => '~',
            Existence::Removed => '-',
        };
        let _ = writeln!(out, "  {sign} {key}");
    }
    if let Some(more) = plan.objects.len().checked_sub(OBJECTS).filter(|more| *more > 0) {
        let _ = writeln!(out, "  and {more} more");
    }
    if !plan.findings.is_empty() {
        out.push_str("findings\n");
    }
    for found in &plan.findings {
        let _ = write!(out, "  ! {}", finding(found).1);
        if let Some(place) = answer.place(found) {
            let _ = write!(out, ": {place}");
        }
        out.push('\n');
    }
    if !plan.connections.is_empty() {
        out.push_str("connections\n");
    }
    for found in &plan.connections {
        let sign = if found.packets.opens { "+ opened" } else { "- closed" };
        let label = packets(&found.packets);
        let _ = writeln!(out, "  {sign}  {} -> {}{}: {label}", found.from, found.to, of_nodes(found.nodes));
        let (end, by) = (end(&found.packets.decision), answer.decision(&found.packets));
        let _ = writeln!(out, "            {end}, by {by}");
    }
    if !plan.hosts.is_empty() {
        out.push_str("host endpoints\n");
    }
    for found in &plan.hosts {
        let sign = if found.packets.opens { "+ opened" } else { "- closed" };
        let way = direction(found.packets.decision.direction);
        let label = packets(&found.packets);
        let (names, layer) = (few(&found.endpoints), layer(found.layer));
        let _ = writeln!(out, "  {sign}  {names}, {way}, {layer}, {}: {label}", found.peers);
        let _ = writeln!(out, "            by {}", answer.decision(&found.packets));
    }
    for note in notes(plan) {
        let _ = writeln!(out, "note: {note}");
    }
    if plan.connections.is_empty() && plan.hosts.is_empty() {
        out.push_str("no connection opens or closes\n");
    }
    let _ = writeln!(out, "programmed on nodes: {}", programming(&plan.programming));
    out.extend(answer.node.map(NodeChange::text));
    out
}

fn programming(programming: &Programming) -> String {
    let Programming { members_added, members_removed, .. } = *programming;
    let parts = [
        ("IP sets", written(programming.ip_sets, programming.ip_sets_removed)),
        ("members of IP sets", both(members_added, "added", members_removed)),
        ("policies and profiles", written(programming.policies, programming.policies_removed)),
        ("endpoints", written(programming.endpoints, programming.endpoints_removed)),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, counts)| !counts.is_empty())
        .map(|(label, counts)| format!("{label}: {counts}"))
        .collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

fn written(written: usize, removed: usize) -> String {
    both(written, "written", removed)
}

fn both(count: usize, label: &str, removed: usize) -> String {
    let counts = [(count, label), (removed, "removed")];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, label)| format!("{count} {label}"));
    counts.collect::<Vec<_>>().join(", ")
}
