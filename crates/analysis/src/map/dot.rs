//! Graphviz output of the picture.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::map::edges::Anchor;
use crate::map::layout::{Crowd, Site, access};
use crate::map::names::Group;
use crate::map::picture::Map;
use crate::map::svg::Describe;

/// Returns a quoted string with escapes, so that no content can end it early.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Returns the picture as a Graphviz graph. The tooltip of an edge has its deciding rules. Writing
/// to a string cannot fail.
#[must_use]
pub fn dot(map: &Map, describe: &Describe<'_>) -> String {
    let mut out = String::from(
        "digraph reachability {\n  rankdir=LR;\n  compound=true;\n  node [shape=box, style=rounded, fontsize=11];\n  \
         edge [fontsize=10];\n",
    );
    for (number, group) in map.groups.iter().enumerate() {
        let style = if matches!(group, Group::Networks | Group::Domains) { "dashed" } else { "solid" };
        let _ = writeln!(out, "  subgraph cluster{number} {{\n    label={}; style={style};", quoted(&group.title()));
        // Edges of the whole group are attached to this point.
        let is_used = map.edges.iter().any(|edge| [edge.from, edge.to].contains(&Anchor::Group(number)));
        if is_used {
            let _ = writeln!(out, "    group{number} [label=\"*\", shape=circle, width=0.3];");
        }
        for (number, node) in map.nodes.iter().enumerate().filter(|(_, node)| node.group == number) {
            let lines: Vec<String> =
                [node.title.clone(), node.count(), access(node)].into_iter().filter(|line| !line.is_empty()).collect();
            let _ = writeln!(out, "    node{number} [label={}];", quoted(&lines.join("\n")));
        }
        out.push_str("  }\n");
    }
    let sites = map.edges.iter().flat_map(|edge| [Site::of(edge.from, true), Site::of(edge.to, false)]);
    for crowd in sites.filter_map(Site::crowd).collect::<BTreeSet<Crowd>>() {
        let _ = writeln!(out, "  {} [label={}, style=dashed];", id_of(crowd), quoted(crowd.title()));
    }
    for edge in &map.edges {
        let end = |anchor: Anchor, is_source: bool| match Site::of(anchor, is_source) {
            Site::Node(number) => format!("node{number}"),
            Site::Group(number) => format!("group{number}"),
            Site::Crowd(crowd) => id_of(crowd).to_owned(),
        };
        let by: Vec<String> = edge.deciders.iter().map(|decider| describe(&decider.by, decider.direction)).collect();
        let style = if edge.is_part { ", style=dashed" } else { "" };
        let _ = writeln!(
            out,
            "  {} -> {} [label={}, tooltip={}{style}];",
            end(edge.from, true),
            end(edge.to, false),
            quoted(&edge.label),
            quoted(&by.join("\n"))
        );
    }
    for remark in map.remarks() {
        let _ = writeln!(out, "  // {remark}");
    }
    out.push_str("}\n");
    out
}

fn id_of(crowd: Crowd) -> &'static str {
    match crowd {
        Crowd::FromAnyPeer => "anybody",
        Crowd::FromAllPods => "from_all_pods",
        Crowd::ToAllPods => "to_all_pods",
        Crowd::ToAnyPeer => "anywhere",
    }
}
