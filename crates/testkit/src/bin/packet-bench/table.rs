//! What was measured, as a table.

use std::time::Duration;

use crate::Backend;
use crate::policy::Peers;
use crate::traffic::Cost;

/// One policy under one back end.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) peers: Peers,
    pub(crate) backend: Backend,
    pub(crate) rules: u16,
    pub(crate) first: Cost,
    pub(crate) last: Cost,
    pub(crate) none: Cost,
    /// From the start of the agent until the policy was in force.
    pub(crate) in_force: Duration,
}

/// All of them, in Markdown.
#[derive(Debug)]
pub(crate) struct Table {
    /// Of a packet that nobody looks at.
    bare: Cost,
}

impl Table {
    pub(crate) const fn new(bare: Cost) -> Self {
        Self { bare }
    }

    pub(crate) fn print_head(&self) {
        println!("| rules ask for | back end | rules | first rule | last rule | no rule | in force after |");
        println!("|---|---|---|---|---|---|---|");
        println!("| nothing | none | 0 | {0} | {0} | {0} | |", nanoseconds(self.bare));
    }

    pub(crate) fn print(&self, row: &Row) {
        let Row { peers, backend, rules, first, last, none, in_force } = row;
        let [first, last, none] = [first, last, none].map(|cost| nanoseconds(*cost));
        println!("| {peers} | {backend} | {rules} | {first} | {last} | {none} | {:.2} s |", in_force.as_secs_f64());
    }
}

fn nanoseconds(cost: Cost) -> String {
    format!("{:.0} ns", cost.0)
}
