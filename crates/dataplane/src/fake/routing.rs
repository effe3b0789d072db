//! Routes and routing rules of the fake kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_model::Family;

use super::FakeKernel;
use crate::kernel::Routing;
use crate::kernel_error::KernelError;
use crate::route::{Route, RouteChange, RouteTableIndex};
use crate::routing_rule::{RoutingRule, RoutingRuleChange};

/// Routes and routing rules.
#[derive(Clone, Debug, Default)]
pub struct FakeRouting {
    /// The routes of the main table.
    pub routes: Vec<Route>,
    /// The routes of other tables.
    pub other_routes: BTreeMap<RouteTableIndex, Vec<Route>>,
    /// Routing rules, in order of evaluation.
    pub rules: Vec<RoutingRule>,
    /// Whether changes of routing rules fail.
    pub rules_fail: bool,
    /// Interfaces to which routes cannot be added.
    pub broken_interfaces: BTreeSet<u32>,
    /// The number of routes listed so far.
    pub listed_routes: usize,
}

impl FakeKernel {
    /// Reports whether an on-link IPv6 gateway is reached by another interface.
    fn has_mismatched_gateway(&self, route: &Route) -> bool {
        let Some(gateway @ IpAddr::V6(_)) = route.target.gateway.filter(|_| route.target.on_link) else { return false };
        let found = self.routing.routes.iter().filter(|other| other.key.destination.contains(gateway));
        let best = found.max_by_key(|other| other.key.destination.prefix_len());
        best.is_some_and(|best| best.target.interface.is_some() && best.target.interface != route.target.interface)
    }

    fn table(&self, table: RouteTableIndex) -> &[Route] {
        match table {
            RouteTableIndex::MAIN => &self.routing.routes,
            other => self.routing.other_routes.get(&other).map_or(&[], Vec::as_slice),
        }
    }

    fn change_route(&mut self, table: RouteTableIndex, change: &RouteChange) -> Result<(), KernelError> {
        self.writes.routes += 1;
        let route = change.route();
        match change {
            RouteChange::Replace(route) => {
                if route.target.interface.is_some_and(|index| self.links.removed.contains(&index)) {
                    return Err(KernelError::NotFound);
                }
                if route.target.interface.is_some_and(|index| self.routing.broken_interfaces.contains(&index)) {
                    return Err(KernelError::Failed("Invalid argument".into()));
                }
                if self.has_mismatched_gateway(route) {
                    return Err(KernelError::Failed("Nexthop has invalid gateway or device mismatch".into()));
                }
                let routes = self.table_mut(table);
                match routes.iter_mut().find(|old| old.key == route.key) {
                    Some(old) => *old = route.clone(),
                    None => routes.push(route.clone()),
                }
                Ok(())
            }
            RouteChange::Delete(_) => {
                let routes = self.table_mut(table);
                let at = routes.iter().position(|old| old == route).ok_or(KernelError::NotFound)?;
                routes.remove(at);
                Ok(())
            }
        }
    }

    fn table_mut(&mut self, table: RouteTableIndex) -> &mut Vec<Route> {
        match table {
            RouteTableIndex::MAIN => &mut self.routing.routes,
            other => self.routing.other_routes.entry(other).or_default(),
        }
    }

    fn change_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.writes.routing_rules += 1;
        if self.routing.rules_fail {
            return Err(KernelError::Failed("Operation not permitted".into()));
        }
        match change {
            RoutingRuleChange::Add(rule) if self.routing.rules.contains(rule) => Err(KernelError::Exists),
            RoutingRuleChange::Add(rule) => {
                self.routing.rules.push(*rule);
                self.routing.rules.sort_by_key(|rule| rule.priority);
                Ok(())
            }
            RoutingRuleChange::Delete(rule) => {
                let compared = |rule: &RoutingRule| (rule.family, rule.priority, rule.mark, rule.mask, rule.table);
                let at = self.routing.rules.iter().position(|other| compared(other) == compared(rule));
                self.routing.rules.remove(at.ok_or(KernelError::NotFound)?);
                Ok(())
            }
        }
    }
}

impl Routing for FakeKernel {
    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError> {
        self.list()?;
        let of_family = |route: &&Route| route.key.destination.family() == family;
        let listed: Vec<Route> = self.table(table).iter().filter(of_family).cloned().collect();
        self.routing.listed_routes += listed.len();
        self.times.route_lists.push(Duration::ZERO);
        Ok(listed)
    }

    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError> {
        self.list()?;
        let is_of =
            |route: &&Route| route.key.destination.family() == family && route.target.interface == Some(interface);
        let listed: Vec<Route> = self.table(table).iter().filter(is_of).cloned().collect();
        self.routing.listed_routes += listed.len();
        self.times.interface_lists.push(Duration::ZERO);
        Ok(listed)
    }

    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>> {
        changes.iter().map(|change| self.change_route(table, change)).collect()
    }

    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        self.list()?;
        let leads_there = |rule: &&RoutingRule| (rule.family, rule.table) == (family, table);
        Ok(self.routing.rules.iter().filter(leads_there).copied().collect())
    }

    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.change_rule(change)
    }
}
