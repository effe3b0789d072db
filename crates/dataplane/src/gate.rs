//! Gates that hold back routes, neighbour entries and sysctls of workloads until policy is in
//! force.

use std::collections::BTreeSet;

use tortie_iptables::{InterfaceName, Table};
use tortie_model::Family;

/// Reports whether a table can deny anything. Without `raw`, anti-spoofing and untracked policy
/// would be missing; without `mangle`, pre-DNAT policy; without `filter`, the rest of policy. `nat`
/// denies nothing, and policy does not depend on it.
pub(crate) const fn denies(table: Table) -> bool {
    !matches!(table, Table::Nat)
}

/// Gate for the routes, neighbour entries and sysctls of a family. It opens once policy has been in
/// force, whether written by this process or found in the kernel. From then on, nothing is added
/// for endpoints that changed since policy was last in force.
#[derive(Debug)]
pub(crate) struct PolicyGate {
    family: Family,
    is_open: bool,
    in_force: bool,
    unconfirmed: BTreeSet<InterfaceName>,
    hosts_unconfirmed: bool,
}

impl PolicyGate {
    pub(crate) const fn new(family: Family) -> Self {
        Self { family, is_open: false, in_force: false, unconfirmed: BTreeSet::new(), hosts_unconfirmed: true }
    }

    pub(crate) const fn family(&self) -> Family {
        self.family
    }

    /// Notes that the endpoints of these interfaces changed, and, if `hosts`, host endpoints.
    pub(crate) fn on_changed(&mut self, workloads: &BTreeSet<InterfaceName>, hosts: bool) {
        self.unconfirmed.extend(workloads);
        self.hosts_unconfirmed |= hosts;
    }

    /// Notes whether tables and sets reached their desired state.
    pub(crate) fn on_applied(&mut self, in_force: bool) {
        self.in_force = in_force;
        if in_force {
            self.is_open = true;
            self.unconfirmed.clear();
            self.hosts_unconfirmed = false;
        }
    }

    /// Reports whether policy has been in force once.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Reports whether all policy was in force after the last apply.
    pub(crate) const fn in_force(&self) -> bool {
        self.in_force
    }

    /// Interfaces whose endpoint changed since policy was last in force.
    pub(crate) const fn unconfirmed(&self) -> &BTreeSet<InterfaceName> {
        &self.unconfirmed
    }

    /// Reports whether host endpoints changed since policy was last in force.
    pub(crate) const fn hosts_unconfirmed(&self) -> bool {
        self.hosts_unconfirmed
    }
}
