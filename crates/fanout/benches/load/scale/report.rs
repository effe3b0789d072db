//! Results in Markdown.

use super::{Engines, Level, Memory, Phase, Snapshots};
use crate::cluster::Cluster;

/// Assumed capacity of a server in the extrapolation: processors, Gbit/s, connections.
const PROCESSORS: f64 = 2.0;
const GIGABITS: f64 = 10.0;
const CONNECTIONS: f64 = 10_000.0;
/// Seconds between two writes to a client that keeps up.
const PACE: f64 = 0.02;

/// Adds a row with a figure of each phase.
type AddRow<'r> = dyn FnMut(&str, &dyn Fn(&Phase) -> String) + 'r;

/// All measurements.
pub(super) struct Report {
    pub(super) cluster: Cluster,
    pub(super) engines: usize,
    pub(super) rate: f64,
    pub(super) fanouts: usize,
    pub(super) snapshots: Snapshots,
    pub(super) engines_alone: Phase,
    pub(super) all_nodes: Phase,
    /// Servers alone; with engines; with all nodes; after the changes.
    pub(super) memory: [Memory; 4],
}

impl Report {
    /// Returns the table of the costs of a change.
    pub(super) fn costs(&self) -> String {
        let phases = [&self.engines_alone, &self.all_nodes];
        let mut rows = vec![
            format!(
                "| | {} engines alone | all nodes, {} of them counted connections |",
                self.engines, self.all_nodes.connections
            ),
            "|---|---|---|".into(),
        ];
        let mut row = |what: &str, figure: &dyn Fn(&Phase) -> String| {
            rows.push(format!("| {what} | {} |", phases.map(figure).join(" | ")));
        };
        row("changes a second, sent; arrived everywhere", &|phase| {
            format!("{:.0}; {:.0}", phase.changes / phase.sending, phase.changes / phase.seconds)
        });
        let last = self.all_nodes.levels.len() - 1;
        for level in 0..=last {
            let count = if level == last { self.fanouts } else { 1 };
            let name = format!("server of level {}", level + 1);
            row(&format!("{name}: processor time of a change"), &|phase| {
                format!("{:.0} µs", phase.levels[level].cpu / count as f64 / phase.changes * 1e6)
            });
            row(&format!("{name}: share of a processor"), &|phase| {
                format!("{:.0} %", phase.levels[level].cpu / count as f64 / phase.seconds * 100.0)
            });
        }
        row("… of the last level: of a change, for each client more", &|phase| match phase.connections {
            0 => "–".into(),
            _ => format!("{:.2} µs", self.per_client()),
        });
        row("… of the last level: a write to a client; changes in it", &|phase| {
            let Level { objects, writes, .. } = phase.levels[last];
            let changes = objects / writes.max(1.0);
            match phase.connections {
                0 => format!("–; {changes:.0}"),
                _ => format!("{:.0} µs; {changes:.0}", self.per_write()),
            }
        });
        self.engine_costs(&mut row);
        row("from a change to the node's flush: median; 99 %", &|phase| {
            let [median, most] = phase.latency;
            format!("{median:.0} ms; {most:.0} ms")
        });
        row("a change alone, until the last node has it", &|phase| format!("{:.0} ms", phase.alone));
        row("to one node", &|phase| match phase.connections {
            0 => "–".into(),
            _ => format!(
                "{:.0} kB/s, {:.0} B a change",
                phase.egress / phase.seconds / 1e3,
                phase.egress / phase.changes
            ),
        });
        row("the load itself: datastore and counted connections", &|phase| {
            format!("{:.0} % of a processor", phase.load_cpu / phase.seconds * 100.0)
        });
        rows.join("\n") + "\n"
    }

    fn engine_costs(&self, row: &mut AddRow<'_>) {
        row("engine of a node: processor time of a change", &|phase| format!("{:.1} µs", self.engine_cost(phase)));
        row("engine of a node: share of a processor", &|phase| {
            format!("{:.1} %", phase.engine.cpu / self.engines as f64 / phase.seconds * 100.0)
        });
        row("… of it flushing; messages to the dataplane a second", &|phase| {
            let Engines { flushing, messages, cpu, .. } = phase.engine;
            format!("{:.0} %; {:.1}", flushing / cpu.max(0.01) * 100.0, messages / self.engines as f64 / phase.seconds)
        });
    }

    /// Returns the time of a server of the last level for each change and client, in microseconds.
    fn per_client(&self) -> f64 {
        let cost = |phase: &Phase| phase.levels.last().map_or(0.0, |level| level.cpu) / phase.changes * 1e6;
        let more = cost(&self.all_nodes) - cost(&self.engines_alone);
        // Each client has one of the servers.
        more / self.all_nodes.connections.max(1) as f64
    }

    /// Returns the time of a server of the last level for a write to a client, in microseconds.
    fn per_write(&self) -> f64 {
        let Level { objects, writes, .. } = self.all_nodes.levels.last().copied().unwrap_or_default();
        self.per_client() * objects / writes.max(1.0)
    }

    /// Returns the time of an engine for a change, in microseconds.
    fn engine_cost(&self, phase: &Phase) -> f64 {
        phase.engine.cpu / self.engines as f64 / phase.changes * 1e6
    }

    pub(super) fn memory(&self) -> String {
        let [empty, without, with, after] = &self.memory;
        let mut rows = vec![
            "| resident | without clients | with engines, after changes | with all nodes | after more changes |"
                .to_owned(),
        ];
        rows.push("|---|---|---|---|---|".into());
        let mut row = |what: String, sizes: [f64; 4]| {
            let sizes = sizes.map(|size| if size > 0.0 { format!("{size:.0} MB") } else { "–".into() });
            rows.push(format!("| {what} | {} |", sizes.join(" | ")));
        };
        let all = [empty, without, with, after];
        for level in 0..empty.levels.len() {
            row(format!("server of level {}", level + 1), all.map(|memory| memory.levels[level]));
        }
        row("engine of a node".into(), all.map(|memory| memory.engine));
        let (more, clients) = (last(with) - last(without), self.all_nodes.connections as f64 / self.fanouts as f64);
        rows.push(format!("\nA client takes {:.1} kB of a server of the last level.", more * 1e3 / clients.max(1.0)));
        let Snapshots { seconds, cpu, bytes } = self.snapshots;
        let each = self.all_nodes.connections.max(1) as f64;
        rows.push(format!(
            "The snapshot has {:.1} MB on the wire and takes a server {:.2} ms for each client; {} had it after {seconds:.0} s.",
            bytes / 1e6,
            cpu / each * 1e3,
            self.all_nodes.connections
        ));
        rows.join("\n") + "\n"
    }

    /// Returns the table of the resources that a larger cluster would need, if all figures are
    /// proportional.
    pub(super) fn paper(&self, nodes: usize) -> String {
        let grown = nodes as f64 / self.cluster.nodes as f64;
        let columns = [self.on_paper(nodes as f64, self.rate), self.on_paper(nodes as f64, self.rate * grown)];
        let mut rows = vec![
            format!(
                "| {nodes} nodes, {:.0} pods | {:.0} changes a second | {:.0} changes a second |",
                self.cluster.pods as f64 * grown,
                self.rate,
                self.rate * grown
            ),
            "|---|---|---|".into(),
        ];
        let names = [
            "servers of the last level, for connections",
            "…, for their processors",
            "…, for their network",
            "processors of all servers of the last level",
            "network of the server above them",
            "network of all servers of the last level",
            "to one node",
            "processor of a node's engine",
            "memory of a server",
            "memory of a node's engine",
        ];
        for (name, figures) in names.iter().zip(std::iter::zip(&columns[0], &columns[1])) {
            rows.push(format!("| {name} | {} | {} |", figures.0, figures.1));
        }
        rows.join("\n") + "\n"
    }

    fn on_paper(&self, nodes: f64, rate: f64) -> [String; 10] {
        let grown = nodes / self.cluster.nodes as f64;
        let all = &self.all_nodes;
        let bytes = all.egress / all.changes * rate;
        // Cost of the changes that does not depend on the clients; the cost for each client
        // follows.
        let fixed = self.engines_alone.levels.last().map_or(0.0, |level| level.cpu)
            / self.fanouts as f64
            / self.engines_alone.changes
            * rate;
        // Either many changes in each write, as measured, or as few as occur within the pace.
        let in_large_writes = self.per_client() / 1e6 * rate;
        let at_pace = self.per_write() / 1e6 * rate.min(1.0 / PACE);
        let clients = in_large_writes.max(at_pace) * nodes;
        let by_connections = (nodes / CONNECTIONS).ceil();
        let by_network = (bytes * nodes * 8.0 / (GIGABITS * 1e9)).ceil();
        let room = PROCESSORS - fixed;
        let by_processor = if room > 0.0 { Some((clients / room).ceil()) } else { None };
        let servers = by_connections.max(by_network).max(by_processor.unwrap_or(0.0));
        // A server of the last level gets all changes.
        let above = all
            .levels
            .len()
            .checked_sub(2)
            .map_or(f64::NAN, |above| all.levels[above].bytes / self.fanouts as f64 / all.changes * rate);
        let network = |bytes: f64| match bytes * 8.0 {
            bits if bits >= 1e9 => format!("{:.1} Gbit/s", bits / 1e9),
            bits => format!("{:.1} Mbit/s", bits / 1e6),
        };
        let memory = &self.memory[3];
        [
            format!("{by_connections:.0}"),
            by_processor.map_or("none suffices".into(), |servers| format!("{servers:.0}")),
            format!("{by_network:.0}"),
            format!("{:.0}", clients + fixed * servers),
            network(above * servers),
            network(bytes * nodes),
            network(bytes),
            format!("{:.0} %", self.engine_cost(all) / 1e6 * rate * 100.0),
            format!("{:.1} GB", last(memory) * grown / 1e3),
            format!("{:.1} GB", memory.engine * grown / 1e3),
        ]
    }
}

/// Of a server of the last level.
fn last(memory: &Memory) -> f64 {
    memory.levels.last().copied().unwrap_or_default()
}
