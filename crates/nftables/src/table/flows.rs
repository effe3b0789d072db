//! The flow table: interfaces between which established connections bypass the chains.
//!
//! A missing interface makes the kernel refuse the whole transaction. Interfaces are then added one
//! by one, so that the kernel reports the missing one, which is retried later. The kernel removes
//! deleted interfaces itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tortie_net::InterfaceName;

use super::Table;
use super::observed::Observed;
use crate::expression::Expression;
use crate::transaction::{Command, FLOW_TABLE, ProgramRule, Transaction};

/// As in Felix.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The flow table as the kernel is to have it.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    wanted: BTreeSet<InterfaceName>,
    /// Interfaces that the kernel does not know, with the times of their retries.
    missing: BTreeMap<InterfaceName, Duration>,
    /// Time of the next retry if the kernel accepts no flow table at all.
    refused_until: Option<Duration>,
    /// Whether interfaces are added one by one, as the kernel refuses some.
    one_by_one: bool,
}

impl FlowTable {
    pub(super) fn present(&self) -> usize {
        if self.refused_until.is_some() { 0 } else { self.wanted.len() - self.missing.len() }
    }

    pub(super) fn missing(&self) -> usize {
        self.wanted.len() - self.present()
    }

    pub(super) fn retry_at(&self) -> Option<Duration> {
        self.missing.values().copied().chain(self.refused_until).min()
    }

    /// Starts due retries. Returns whether there are any.
    pub(super) fn retry(&mut self, now: Duration) -> bool {
        let before = self.missing.len();
        self.missing.retain(|_, at| *at > now);
        let is_due = self.refused_until.is_some_and(|at| at <= now);
        if is_due {
            self.refused_until = None;
        }
        is_due || self.missing.len() < before
    }

    pub(super) fn on_accepted(&mut self) {
        self.one_by_one &= !self.missing.is_empty();
    }

    fn refuse(&mut self, devices: &[InterfaceName], now: Duration) {
        match devices {
            [] => self.refused_until = Some(now + RETRY_PAUSE),
            [device] => {
                self.missing.insert(*device, now + RETRY_PAUSE);
            }
            _ => self.one_by_one = true,
        }
    }

    fn additions(&self, known: Option<&BTreeSet<InterfaceName>>) -> Vec<Command> {
        if self.refused_until.is_some() {
            return Vec::new();
        }
        let is_new = |device: &&InterfaceName| {
            !self.missing.contains_key(*device) && known.is_none_or(|known| !known.contains(*device))
        };
        let devices: Vec<InterfaceName> = self.wanted.iter().filter(is_new).copied().collect();
        if !self.one_by_one {
            let is_needed = known.is_none() || !devices.is_empty();
            return is_needed.then_some(Command::AddFlowTable { devices }).into_iter().collect();
        }
        let table = known.is_none().then_some(Command::AddFlowTable { devices: Vec::new() });
        let devices = devices.into_iter().map(|device| Command::AddFlowTable { devices: vec![device] });
        table.into_iter().chain(devices).collect()
    }
}

impl Table {
    /// Lets established connections between these interfaces bypass the chains, as far as rules
    /// offload them to the flow table. Missing interfaces are added once they exist.
    pub fn offload_between(&mut self, devices: impl IntoIterator<Item = InterfaceName>) {
        let devices: BTreeSet<InterfaceName> = devices.into_iter().collect();
        let flows = self.desired.flows.get_or_insert_default();
        // An interface that comes back may be another one.
        let gone: Vec<InterfaceName> = flows.wanted.difference(&devices).copied().collect();
        flows.missing.retain(|device, _| devices.contains(device));
        flows.wanted = devices;
        let known = self.kernel.observed.as_mut().and_then(|observed| observed.flow_tables.get_mut(FLOW_TABLE));
        known.into_iter().for_each(|known| known.retain(|device| !gone.contains(device)));
        self.pending.flows = true;
    }

    /// Returns the commands that create or change the flow table, and those that remove other flow
    /// tables, behind the rules that may refer to them.
    pub(super) fn flow_changes(&self, observed: &Observed, all: bool) -> (Vec<Command>, Vec<Command>) {
        if !all && !self.pending.flows {
            return (Vec::new(), Vec::new());
        }
        let known = observed.flow_tables.get(FLOW_TABLE);
        let mut additions = self.desired.flows.as_ref().map(|flows| flows.additions(known)).unwrap_or_default();
        let surplus = self.desired.flows.as_ref().zip(known).filter(|_| all);
        let surplus: Vec<InterfaceName> =
            surplus.map(|(flows, known)| known.difference(&flows.wanted).copied().collect()).unwrap_or_default();
        additions.extend((!surplus.is_empty()).then_some(Command::DeleteFlowDevices { devices: surplus }));
        let is_foreign = |name: &&String| name.as_str() != FLOW_TABLE || self.desired.flows.is_none();
        let foreign = observed.flow_tables.keys().filter(is_foreign);
        let deletions = foreign.map(|name| Command::DeleteFlowTable { name: name.as_str().into() });
        (additions, deletions.collect())
    }

    /// Handles a refused change of the flow table.
    pub(super) fn refuse_flows(&mut self, command: &Command, now: Duration) -> bool {
        match (command, &mut self.desired.flows) {
            (Command::AddFlowTable { devices }, Some(flows)) => flows.refuse(devices, now),
            // The interfaces are gone already.
            (Command::DeleteFlowDevices { devices }, _) => {
                let known = self.kernel.observed.as_mut().and_then(|observed| observed.flow_tables.get_mut(FLOW_TABLE));
                known.into_iter().for_each(|known| known.retain(|device| !devices.contains(device)));
            }
            _ => return false,
        }
        self.pending.flows = true;
        true
    }
}

/// Reports whether the kernel refuses to create the flow table, so that rules with it are refused
/// only for that reason.
pub(super) fn lacks_flow_table(transaction: &Transaction, refused: &[(usize, String)]) -> bool {
    let command = |(at, _): &(usize, String)| transaction.commands.get(*at);
    refused.iter().filter_map(command).any(|command| matches!(command, Command::AddFlowTable { .. }))
}

pub(super) fn offloads(rule: &ProgramRule) -> bool {
    rule.expressions.iter().any(|expression| matches!(expression, Expression::FlowOffload { .. }))
}
