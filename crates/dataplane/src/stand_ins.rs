//! Stand-ins: replacements for chains that the kernel refuses, and for chains that do not exist yet
//! while the reconciler searches for a refused one.
//!
//! A stand-in must deny, and must not lead to other chains, which may be missing as well. A chain
//! that sees the host's own packets cannot just drop them: failsafe ports and known connections,
//! which policy never cuts, pass there, too.

use std::collections::BTreeMap;

use tortie_iptables::{Action, Chain, ChainName, ConntrackStates, Matches, Rule, StandIn, Table};
use tortie_model::Family;
use tortie_rules::Renderer;
use tortie_rules::names::chain;

/// Stand-ins for chains that see the host's own packets, by table and by the failsafe chain of
/// their direction.
#[derive(Debug, Default)]
pub(crate) struct HostStandIns {
    by_failsafe: BTreeMap<(Table, ChainName), StandIn>,
}

impl HostStandIns {
    pub(crate) fn new(renderer: &Renderer, family: Family) -> Self {
        let mut by_failsafe = BTreeMap::new();
        for table in [Table::Raw, Table::Mangle, Table::Filter] {
            for fixed in renderer.fixed_chains(table, family) {
                if is_failsafe(fixed.name) {
                    by_failsafe.insert((table, fixed.name), all_but_failsafe(table, fixed.rules));
                }
            }
        }
        Self { by_failsafe }
    }

    /// Returns the stand-in of a chain in the path of the host's own packets, in the direction of a
    /// failsafe chain.
    pub(crate) fn get(&self, table: Table, failsafe: ChainName) -> StandIn {
        self.by_failsafe.get(&(table, failsafe)).cloned().unwrap_or_default()
    }

    /// Returns the stand-in of a chain that depends on the configuration only.
    pub(crate) fn of_fixed(&self, table: Table, fixed: &Chain) -> StandIn {
        match fixed.name {
            // All packets to the host pass this chain.
            chain::FORWARD_CHECK => self.get(table, chain::FAILSAFE_IN),
            // Only packets of workloads pass the first two, and only denied packets the last one.
            chain::WORKLOAD_TO_HOST | chain::FORWARD_ENDPOINT_MARK | chain::REJECT => StandIn::Drop,
            // A DNS answer that cannot be read passes, and opens nothing.
            chain::DNS_LIMIT => StandIn::Rules(Renderer::dns_without_limit()),
            chain::DNS_QUEUE => StandIn::Rules(Vec::new()),
            // Chains that lead to none of our chains stand in for themselves.
            _ if fixed.targets().next().is_none_or(|target| !tortie_iptables::is_own_chain(target.as_str())) => {
                StandIn::Rules(fixed.rules.clone())
            }
            // Netfilter hooks lead to the others.
            _ => StandIn::Never,
        }
    }
}

pub(crate) fn is_failsafe(name: ChainName) -> bool {
    [chain::FAILSAFE_IN, chain::FAILSAFE_OUT].contains(&name)
}

/// Returns rules that accept known connections and failsafe ports, and drop everything else.
fn all_but_failsafe(table: Table, failsafe: Vec<Rule>) -> StandIn {
    let mut rules = Vec::new();
    if table != Table::Raw {
        // `raw` comes before connection tracking; its failsafe rules accept replies themselves.
        let known = Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
        rules.push(Rule::when(known, Action::Accept));
    }
    rules.extend(failsafe);
    rules.push(Rule::new(Action::Drop).comment("Stands in for a chain that could not be programmed"));
    StandIn::Rules(rules)
}
