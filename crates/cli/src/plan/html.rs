//! Effects of a change, as a web page: one file that needs no network.

use std::fmt::Write as _;

use tortie_analysis::map::Escaped;
use tortie_analysis::plan::{Ends, Existence, Packets};

use super::super::decision::direction;
use super::answer::Answer;
use super::words::{self, existence, few, finding, layer, notes, of_nodes, packets};

const HEAD: &str = concat!(include_str!("../page_head.html"), include_str!("head.html"));
const TAIL: &str = include_str!("tail.html");
/// Maximum number of listed workloads and networks of an end; the rest is only counted.
const LISTED: usize = 200;

/// Writing to a string cannot fail, here and below.
pub(super) fn page(answer: &Answer<'_>) -> String {
    let plan = answer.plan;
    let mut out = String::from(HEAD);
    let opened = plan.connections.iter().filter(|found| found.packets.opens).count();
    let counts = [
        (plan.objects.len(), "objects", ""),
        (plan.findings.len(), "findings", "finding"),
        (opened, "opened", "opened"),
        (plan.connections.len() - opened, "closed", "closed"),
        (plan.hosts.len(), "at host endpoints", ""),
    ];
    out.push_str("<p class=\"counts\">");
    for (count, label, class) in counts {
        let _ = write!(out, "<span class=\"{class}\"><b>{count}</b> {label}</span>");
    }
    out.push_str("</p>\n");
    if plan.is_empty() {
        out.push_str("<p>Nothing changes.</p>\n");
    }
    findings(&mut out, answer);
    connections(&mut out, answer);
    hosts(&mut out, answer);
    objects(&mut out, answer);
    if let Some(node) = answer.node {
        let text = Escaped(node.text());
        let _ = writeln!(out, "<details><summary>Chains and IP sets</summary><pre>{text}</pre></details>");
    }
    out.push_str(TAIL);
    out
}

fn findings(out: &mut String, answer: &Answer<'_>) {
    if answer.plan.findings.is_empty() {
        return;
    }
    out.push_str("<h2>Findings</h2>\n<ul class=\"findings\">\n");
    for found in &answer.plan.findings {
        let _ = write!(out, "<li>{}", Escaped(finding(found).1));
        if let Some(place) = answer.place(found) {
            let _ = write!(out, " <code>{}</code>", Escaped(place));
        }
        out.push_str("</li>\n");
    }
    out.push_str("</ul>\n");
}

fn connections(out: &mut String, answer: &Answer<'_>) {
    if answer.plan.connections.is_empty() {
        return;
    }
    out.push_str("<h2>Connections</h2>\n");
    table(out, ["", "From", "To", "Packets", "Decided by"], |out| {
        for found in &answer.plan.connections {
            let way = words::end(&found.packets.decision);
            row(out, &found.packets, |out| {
                end(out, &found.from, "");
                end(out, &found.to, of_nodes(found.nodes));
                decision(out, answer, &found.packets, &way);
            });
        }
    });
}

fn hosts(out: &mut String, answer: &Answer<'_>) {
    if answer.plan.hosts.is_empty() {
        return;
    }
    out.push_str("<h2>Host endpoints</h2>\n");
    table(out, ["", "Endpoints", "Other end", "Packets", "Decided by"], |out| {
        for found in &answer.plan.hosts {
            let way = direction(found.packets.decision.direction);
            row(out, &found.packets, |out| {
                let _ = write!(out, "<td>{} <i>{way}, {}</i></td>", Escaped(few(&found.endpoints)), layer(found.layer));
                end(out, &found.peers, "");
                decision(out, answer, &found.packets, way);
            });
        }
    });
    for note in notes(answer.plan) {
        let _ = writeln!(out, "<p>{}.</p>", Escaped(note));
    }
}

fn objects(out: &mut String, answer: &Answer<'_>) {
    if answer.plan.objects.is_empty() {
        return;
    }
    out.push_str("<h2>Objects</h2>\n<ul>\n");
    for (key, change) in &answer.plan.objects {
        let class = match change {
            Existence::Added => "opened",
            Existence::Changed => "",
            Existence::Removed => "closed",
        };
        let _ = writeln!(out, "<li><span class=\"{class}\">{}</span> {}</li>", existence(*change), Escaped(key));
    }
    out.push_str("</ul>\n");
}

fn table(out: &mut String, titles: [&str; 5], rows: impl FnOnce(&mut String)) {
    out.push_str("<table>\n<thead><tr>");
    for title in titles {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    rows(out);
    out.push_str("</tbody>\n</table>\n");
}

fn row(out: &mut String, packets: &Packets, cells: impl FnOnce(&mut String)) {
    let change = if packets.opens { "opened" } else { "closed" };
    let _ = write!(out, "<tr class=\"{change}\"><td class=\"change\">{change}</td>");
    cells(out);
    out.push_str("</tr>\n");
}

fn end(out: &mut String, ends: &Ends, nodes: &str) {
    let networks = ends.networks.iter().map(ToString::to_string);
    let all: Vec<String> =
        ends.workloads.iter().map(ToString::to_string).chain(networks).chain(ends.domains.iter().cloned()).collect();
    if let [_] = &all[..] {
        let _ = write!(out, "<td>{}{nodes}</td>", Escaped(ends));
        return;
    }
    let mut listed = all.iter().take(LISTED).cloned().collect::<Vec<_>>().join("\n");
    if let Some(more) = all.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let _ = write!(listed, "\nand {more} more");
    }
    let _ = write!(
        out,
        "<td><details><summary>{}{nodes}</summary><pre>{}</pre></details></td>",
        Escaped(ends),
        Escaped(listed)
    );
}

fn decision(out: &mut String, answer: &Answer<'_>, found: &Packets, way: &str) {
    let (label, by) = (Escaped(packets(found)), Escaped(answer.decision(found)));
    let _ = write!(out, "<td>{label}</td><td><i>{way}</i> {by}</td>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for part in [HEAD, TAIL] {
            assert!(!part.contains("://") && !part.contains("url(") && !part.contains("src="), "{part}");
        }
    }
}
