//! Rendering of the desired state for a clean node.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tortie_ipsets::{IpSets, Plan as SetPlan};
use tortie_iptables::Table;
use tortie_model::{Family, with_causes};

use crate::dataplane::Dataplane;
use crate::report::DataplaneProblem;

/// Restore input for a node that holds none of our rules and sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rendered {
    /// Input of `ipset restore`.
    pub ip_sets: Vec<(Family, String)>,
    /// Input of `iptables-restore` or `ip6tables-restore`, one text for each table.
    pub tables: Vec<(Family, Table, String)>,
    /// Input of `nft -f`, if nftables replaces iptables and IP sets.
    pub nftables: Vec<(Family, String)>,
}

impl Rendered {
    /// Returns the input of `ipset restore` for a family; `None` if the node does not have the
    /// family.
    #[must_use]
    pub fn ip_sets(&self, family: Family) -> Option<&str> {
        self.ip_sets.iter().find(|(of, _)| *of == family).map(|(_, text)| text.as_str())
    }

    /// Returns the input of `nft -f` for a family; `None` if the node does not have the family, or
    /// does not use nftables.
    #[must_use]
    pub fn nftables(&self, family: Family) -> Option<&str> {
        self.nftables.iter().find(|(of, _)| *of == family).map(|(_, text)| text.as_str())
    }

    /// Returns the input of `iptables-restore` or `ip6tables-restore` for a table; `None` if the
    /// node does not have the family.
    #[must_use]
    pub fn table(&self, family: Family, table: Table) -> Option<&str> {
        self.tables.iter().find(|(f, t, _)| (*f, *t) == (family, table)).map(|(_, _, text)| text.as_str())
    }
}

impl fmt::Display for Rendered {
    /// Writes all texts, each below a comment with the program and the table or IP version.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (family, text) in &self.ip_sets {
            write!(f, "# ipset restore, IPv{}\n{text}", family.number())?;
        }
        for (family, table, text) in &self.tables {
            let program = if *family == Family::V4 { "iptables-restore" } else { "ip6tables-restore" };
            write!(f, "# {program}, {}\n{text}", table.as_str())?;
        }
        for (family, text) in &self.nftables {
            write!(f, "# nft -f, IPv{}\n{text}", family.number())?;
        }
        Ok(())
    }
}

impl Dataplane {
    /// Returns the restore input for a clean node and the desired state so far. Host endpoints that
    /// name an interface are rendered even if the interface was not reported.
    #[must_use]
    pub fn render(mut self) -> Rendered {
        self.assume_interfaces();
        let mut rendered = Rendered::default();
        for output in &mut self.output.families {
            if let Some(table) = &mut output.nftables {
                let transactions = or_empty(table.render());
                let text = transactions.iter().map(ToString::to_string).collect();
                rendered.nftables.push((output.family, text));
                continue;
            }
            rendered.ip_sets.push((output.family, render_sets(&mut output.ip_sets)));
            for table in &mut output.tables {
                let kind = table.config().table;
                rendered.tables.push((output.family, kind, or_empty(table.render())));
            }
        }
        rendered
    }

    /// Returns the nftables chains that a clean node would not hold as desired, such as those whose
    /// layout exceeds the memory budget, for the desired state so far.
    #[must_use]
    pub fn chain_problems(mut self) -> Vec<DataplaneProblem> {
        self.assume_interfaces();
        for table in self.output.families.iter_mut().filter_map(|output| output.nftables.as_mut()) {
            or_empty(table.render());
        }
        let tables = self.output.families.iter().filter_map(|output| Some((output.family, output.nftables.as_ref()?)));
        let problems =
            tables.flat_map(|(family, table)| table.problems().into_iter().map(move |found| (family, found)));
        problems.map(|(family, (layer, problem))| self.chain_problem(family, layer, problem)).collect()
    }

    fn assume_interfaces(&mut self) {
        self.managers.hosts.assume_interfaces();
        self.complete();
        self.complete_workload_addresses(None);
        self.complete_sets(&[]);
    }
}

/// Renders sets by answering their plans like a kernel that holds none of our sets and refuses
/// nothing.
fn render_sets(sets: &mut IpSets) -> String {
    let mut text = String::new();
    let mut now = Duration::ZERO;
    loop {
        match sets.plan(now) {
            SetPlan::Restore(input) => text.push_str(&input),
            SetPlan::Sleep(time) => {
                now += time;
                continue;
            }
            SetPlan::Done(_) => return text,
            _ => {}
        }
        sets.on_exit(now, Ok(()));
    }
}

/// Returns an empty text for a table that the reconciler refuses as a whole.
fn or_empty<T: Default>(rendered: Result<T, impl Error>) -> T {
    rendered.unwrap_or_else(|error| {
        tracing::error!(error = with_causes(&error), "a table cannot be rendered");
        T::default()
    })
}
