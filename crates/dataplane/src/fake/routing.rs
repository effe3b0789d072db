//! Routes and routing rules of the fake kernel.

use std::net::IpAddr;

use super::FakeKernel;
use crate::kernel::KernelError;
use crate::route::{Route, RouteChange, RouteTableIndex};
use crate::routing_rule::{RoutingRule, RoutingRuleChange};

impl FakeKernel {
    /// Whether an IPv6 gateway that is said to be on the link is reached by another interface.
    fn has_mismatched_gateway(&self, route: &Route) -> bool {
        let Some(gateway @ IpAddr::V6(_)) = route.target.gateway.filter(|_| route.target.on_link) else { return false };
        let found = self.routes.iter().filter(|other| other.key.destination.contains(gateway));
        let best = found.max_by_key(|other| other.key.destination.prefix_len());
        best.is_some_and(|best| best.target.interface.is_some() && best.target.interface != route.target.interface)
    }

    pub(super) fn table(&self, table: RouteTableIndex) -> &[Route] {
        match table {
            RouteTableIndex::MAIN => &self.routes,
            other => self.other_routes.get(&other).map_or(&[], Vec::as_slice),
        }
    }

    pub(super) fn change_route(&mut self, table: RouteTableIndex, change: &RouteChange) -> Result<(), KernelError> {
        self.writes.routes += 1;
        let route = change.route();
        match change {
            RouteChange::Replace(route) => {
                if route.target.interface.is_some_and(|index| self.removed_devices.contains(&index)) {
                    return Err(KernelError::NotFound);
                }
                if route.target.interface.is_some_and(|index| self.broken_interfaces.contains(&index)) {
                    return Err(KernelError::Failed("Invalid argument".to_owned()));
                }
                if self.has_mismatched_gateway(route) {
                    return Err(KernelError::Failed("Nexthop has invalid gateway or device mismatch".to_owned()));
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
            RouteTableIndex::MAIN => &mut self.routes,
            other => self.other_routes.entry(other).or_default(),
        }
    }

    pub(super) fn change_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.writes.routing_rules += 1;
        if self.routing_rules_fail {
            return Err(KernelError::Failed("Operation not permitted".to_owned()));
        }
        match change {
            RoutingRuleChange::Add(rule) if self.routing_rules.contains(rule) => Err(KernelError::Exists),
            RoutingRuleChange::Add(rule) => {
                self.routing_rules.push(*rule);
                self.routing_rules.sort_by_key(|rule| rule.priority);
                Ok(())
            }
            RoutingRuleChange::Delete(rule) => {
                let compared = |rule: &RoutingRule| (rule.family, rule.priority, rule.mark, rule.mask, rule.table);
                let at = self.routing_rules.iter().position(|other| compared(other) == compared(rule));
                self.routing_rules.remove(at.ok_or(KernelError::NotFound)?);
                Ok(())
            }
        }
    }
}
