use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};
use tortie_analysis::line_diff::changed_lines;
use tortie_analysis::plan::Existence;
use tortie_config::{Config, Sources, settings};
use tortie_dataplane::{Dataplane, Rendered};
use tortie_iptables::Backend;
use tortie_model::{Family, Hostname, Key, Update};

use super::super::Failure;
use super::super::cluster::config_of;
use super::super::render::calculate;
use super::words::existence;

pub(super) struct NodeChange {
    node: Hostname,
    parts: Vec<Part>,
}

struct Part {
    /// `iptables filter`, `ip6tables nat`, `ipset IPv4`.
    program: String,
    name: String,
    change: Existence,
    /// Removed (`false`) and added (`true`) lines, in the order of the chain; for a set, its
    /// members.
    lines: Vec<(bool, String)>,
}

type Lines = BTreeMap<(String, String), Vec<String>>;

impl NodeChange {
    /// Compares a clean node before and after the change.
    pub(super) fn new(
        node: &Hostname,
        (sources, local): (&Sources, &Config),
        before: &[Update],
        change: &[Update],
    ) -> Result<Self, Failure> {
        let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
        for update in before.iter().chain(change) {
            update.clone().apply_to(&mut objects);
        }
        let after: Vec<Update> = objects.into_values().collect();
        let render = |objects: &[Update]| -> Result<Lines, Failure> {
            let config =
                config_of(sources, local, objects.iter(), node).map_err(Failure::failed_at(format!("node {node}")))?;
            let (desired, _) = calculate(&config, node, objects.to_vec());
            let config = settings::dataplane(&config, node.clone(), Backend::Nft);
            let mut dataplane = Dataplane::new(config.map_err(Failure::failed_at(format!("node {node}")))?);
            desired.into_iter().for_each(|update| dataplane.on_update(update));
            Ok(lines(&dataplane.render()))
        };
        let parts = parts(&render(before)?, &render(&after)?);
        Ok(Self { node: node.clone(), parts })
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!("on node {}\n", self.node);
        for part in &self.parts {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(out, "  {} {}, {}", part.program, part.name, existence(part.change));
            for (comes, line) in &part.lines {
                let _ = writeln!(out, "    {} {line}", if *comes { '+' } else { '-' });
            }
        }
        if self.parts.is_empty() {
            out.push_str("  nothing\n");
        }
        out
    }

    pub(super) fn whole(&self) -> Value {
        let lines = |part: &Part, which: bool| -> Vec<String> {
            part.lines.iter().filter(|(comes, _)| *comes == which).map(|(_, line)| line.clone()).collect()
        };
        let part = |part: &Part| {
            json!({
                "program": part.program,
                "name": part.name,
                "change": existence(part.change),
                "added": lines(part, true),
                "removed": lines(part, false),
            })
        };
        json!({"node": self.node.as_str(), "parts": self.parts.iter().map(part).collect::<Vec<_>>()})
    }
}

fn lines(rendered: &Rendered) -> Lines {
    let mut lines = Lines::new();
    for (family, text) in &rendered.ip_sets {
        let program = format!("ipset {family}");
        for line in text.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(command), Some(name)) = (words.next(), words.next()) else { continue };
            let members = lines.entry((program.clone(), name.to_owned())).or_default();
            if command == "add" {
                members.extend(words.next().map(str::to_owned));
            }
        }
    }
    for (family, table, text) in &rendered.tables {
        let program = if *family == Family::V4 { "iptables" } else { "ip6tables" };
        let program = format!("{program} {}", table.as_str());
        for line in text.lines() {
            if let Some(chain) = line.strip_prefix(':').and_then(|line| line.split(' ').next()) {
                lines.entry((program.clone(), chain.to_owned())).or_default();
            } else if let Some((chain, rule)) = rule_of(line) {
                lines.entry((program.clone(), chain.to_owned())).or_default().push(rule.to_owned());
            }
        }
    }
    lines
}

fn rule_of(line: &str) -> Option<(&str, &str)> {
    let rest = ["-A ", "-I ", "--append ", "--insert "].iter().find_map(|command| line.strip_prefix(command))?;
    rest.split_once(' ')
}

/// Removes the comment that identifies the rule, as it depends on the rules before it.
fn without_hash(rule: &str) -> String {
    const BEFORE: &str = "-m comment --comment \"cali:";
    let Some((before, rest)) = rule.split_once(BEFORE) else { return rule.to_owned() };
    rest.split_once('"').map_or_else(|| rule.to_owned(), |(_, after)| format!("{before}{}", after.trim_start()))
}

fn parts(before: &Lines, after: &Lines) -> Vec<Part> {
    let mut parts = Vec::new();
    let names: BTreeSet<&(String, String)> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (old, new) = (before.get(name), after.get(name));
        let of = |lines: Option<&Vec<String>>| -> Vec<String> {
            lines.into_iter().flatten().map(|line| without_hash(line)).collect()
        };
        let lines = changed_lines(&of(old), &of(new));
        let change = match (old, new) {
            (None, _) => Existence::Added,
            (_, None) => Existence::Removed,
            _ if lines.is_empty() => continue,
            _ => Existence::Changed,
        };
        parts.push(Part { program: name.0.clone(), name: name.1.clone(), change, lines });
    }
    parts
}
