//! What a change does, for people.

use std::fmt::Write as _;

use tortie_plan::{Existence, Programming};

use super::super::decision::direction;
use super::answer::{Answer, finding, layer, packets};

/// How many objects are named before the rest is only counted.
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
        let what = packets(&found.packets);
        let _ = writeln!(out, "  {sign}  {} -> {}: {what}", found.from, found.to);
        let (end, by) = (direction(found.packets.why.direction), answer.decision(&found.packets));
        let _ = writeln!(out, "            {end}, by {by}");
    }
    if !plan.hosts.is_empty() {
        out.push_str("host endpoints\n");
    }
    for found in &plan.hosts {
        let sign = if found.packets.opens { "+ opened" } else { "- closed" };
        let names: Vec<String> = found.endpoints.iter().map(ToString::to_string).collect();
        let way = direction(found.packets.why.direction);
        let what = packets(&found.packets);
        let (names, layer) = (names.join(", "), layer(found.layer));
        let _ = writeln!(out, "  {sign}  {names}, {way}, {layer}, {}: {what}", found.peers);
        let _ = writeln!(out, "            by {}", answer.decision(&found.packets));
    }
    if plan.connections.is_empty() && plan.hosts.is_empty() {
        out.push_str("no connection opens or closes\n");
    }
    let _ = writeln!(out, "to program on nodes: {}", programming(&plan.programming));
    out
}

fn programming(programming: &Programming) -> String {
    let counts = [
        (programming.ip_sets, "IP sets anew"),
        (programming.ip_sets_removed, "IP sets less"),
        (programming.members_added, "members more"),
        (programming.members_removed, "members less"),
        (programming.policies, "policies and profiles anew"),
        (programming.policies_removed, "policies and profiles less"),
        (programming.endpoints, "endpoints anew"),
        (programming.endpoints_removed, "endpoints less"),
    ];
    let parts: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}
