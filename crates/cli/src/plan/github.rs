//! Effects of a change, as annotations of pull requests by GitHub's workflows: `::warning
//! file=F,line=L,col=C::TEXT`.

use tortie_analysis::plan::Packets;

use super::super::decision::direction;
use super::super::github::line;
use super::answer::Answer;
use super::words::{few, finding, layer, notes, of_nodes, packets};

/// A warning for each finding, and a notice at the deciding rule for each opened or closed
/// connection.
pub(super) fn annotations(answer: &Answer<'_>) -> String {
    let mut out = String::new();
    for found in &answer.plan.findings {
        out += &line("warning", answer.place(found).and_then(|place| place.parts()), &finding(found).1);
    }
    for found in &answer.plan.connections {
        let between = format!("{} -> {}{}", found.from, found.to, of_nodes(found.nodes));
        let at = found.packets.decision.layer.map(|at| format!("at host endpoints ({}), ", layer(at)));
        out += &notice(answer, &found.packets, &between, &at.unwrap_or_default());
    }
    for found in &answer.plan.hosts {
        let way = direction(found.packets.decision.direction);
        let subject =
            format!("host endpoint {}, {way}, {}, {}", few(&found.endpoints), layer(found.layer), found.peers);
        out += &notice(answer, &found.packets, &subject, "");
    }
    for note in notes(answer.plan) {
        out += &line("notice", None, note);
    }
    out
}

fn notice(answer: &Answer<'_>, found: &Packets, between: &str, at: &str) -> String {
    let (subject, by) = (packets(found), answer.decision(found));
    let change = if found.opens { "opened" } else { "closed" };
    let place = answer.rule(&found.decision.after, &found.decision).and_then(|place| place.parts());
    line("notice", place, &format!("{change}: {between}: {subject}, {at}by {by}"))
}
