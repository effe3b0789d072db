//! Keeps the ways to workloads shut until policy is in force.

use std::collections::BTreeSet;

use tortie_iptables::{InterfaceName, Table};
use tortie_model::Family;

/// Whether a table can deny anything. Without `raw`, workloads could use addresses that are not theirs, and untracked
/// policy would be missing; without `mangle`, policy before address translation; without `filter`, the rest of policy.
/// `nat` denies nothing, and policy does not depend on it.
pub(crate) const fn denies(table: Table) -> bool {
    !matches!(table, Table::Nat)
}

/// What may be opened in a family: nothing before policy has been in force once, written or found so, and later nothing
/// new to endpoints that changed since it last was.
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

    /// The endpoints of these interfaces changed, and maybe those of the host.
    pub(crate) fn on_changed(&mut self, workloads: &BTreeSet<InterfaceName>, hosts: bool) {
        self.unconfirmed.extend(workloads);
        self.hosts_unconfirmed |= hosts;
    }

    /// Tables and sets were brought to what is wanted, or not.
    pub(crate) fn on_applied(&mut self, in_force: bool) {
        self.in_force = in_force;
        if in_force {
            self.is_open = true;
            self.unconfirmed.clear();
            self.hosts_unconfirmed = false;
        }
    }

    /// Whether policy has been in force once.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether all of policy was in force when it was last tried.
    pub(crate) const fn in_force(&self) -> bool {
        self.in_force
    }

    /// Interfaces whose endpoint changed since policy was last in force.
    pub(crate) const fn unconfirmed(&self) -> &BTreeSet<InterfaceName> {
        &self.unconfirmed
    }

    /// Whether host endpoints changed since policy was last in force.
    pub(crate) const fn hosts_unconfirmed(&self) -> bool {
        self.hosts_unconfirmed
    }
}
