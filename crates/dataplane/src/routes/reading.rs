//! Reading of the kernel's routes: all of them, or those of changed interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tortie_model::InterfaceName;

use super::{Holder, Ownership, RouteTable};
use crate::kernel::Routing;
use crate::report::DataplaneProblem;
use crate::route::{Route, RouteKey, RouteTarget};

impl RouteTable {
    /// Reads the whole table. Returns whether that succeeded.
    pub(super) fn read(
        &mut self,
        now: Duration,
        kernel: &mut dyn Routing,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> bool {
        let family = self.family;
        let listed = match self.flushes.read_marks(family, kernel).and_then(|()| kernel.routes(family, self.table)) {
            Ok(listed) => listed,
            Err(error) => {
                problems.push(DataplaneProblem::Routes { family, error });
                return false;
            }
        };
        let mut observed: BTreeMap<RouteKey, RouteTarget> = BTreeMap::new();
        self.duplicates.clear();
        // Tables may be large, and most of their routes do not concern us.
        let listed: Vec<Route> = listed.into_iter().filter(|route| self.matters(route, ownership)).collect();
        for Route { key, target } in listed {
            let wanted = self.routes.desired(&key) == Some(&target);
            match observed.get_mut(&key) {
                Some(first) if wanted => {
                    let target = std::mem::replace(first, target);
                    self.duplicates.push(Route { key, target });
                }
                Some(_) => self.duplicates.push(Route { key, target }),
                None => {
                    observed.insert(key, target);
                }
            }
        }
        self.routes.replace_observed(observed);
        let found: Vec<(RouteKey, Holder)> = self
            .routes
            .iter_observed()
            .filter_map(|(key, target)| Some((*key, self.holder_of(key, target, ownership)?)))
            .collect();
        self.note_holders(found);
        self.last_read = Some(now);
        self.must_read = false;
        self.stale.clear();
        true
    }

    /// Reads the routes of changed interfaces: the kernel may have dropped some of these, and no
    /// others. Returns whether that succeeded.
    pub(super) fn read_interfaces(
        &mut self,
        kernel: &mut dyn Routing,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> bool {
        let family = self.family;
        for name in std::mem::take(&mut self.stale) {
            let index = ownership.links.get(name).map(|link| link.index);
            match index.map_or(Ok(Vec::new()), |index| kernel.routes_of(family, self.table, index)) {
                Ok(listed) => self.observe_interface(name, index, listed, ownership),
                Err(error) => {
                    problems.push(DataplaneProblem::Routes { family, error });
                    self.must_read = true;
                    return false;
                }
            }
        }
        true
    }

    /// Notes that the interface has exactly these routes, under this index; none if the interface
    /// is gone.
    fn observe_interface(
        &mut self,
        name: InterfaceName,
        index: Option<u32>,
        listed: Vec<Route>,
        ownership: &Ownership<'_>,
    ) {
        // The interface may have had another index before.
        let is_outdated = |target: &RouteTarget| {
            let of = target.interface;
            of.is_some_and(|of| Some(of) == index || ownership.links.name(of).is_none())
        };
        // An observed route that is not pending equals its desired route. So each observed route of
        // this interface is desired there, or pending.
        let pending = self.routes.pending_writes().map(|(key, _)| *key);
        let pending = pending.chain(self.routes.pending_removals().map(|(key, _)| *key));
        let is_affected = |key: &RouteKey| self.routes.observed(key).is_some_and(is_outdated);
        let affected: BTreeSet<RouteKey> =
            self.slots.keys_of_interface(name).chain(pending).filter(is_affected).collect();
        self.duplicates.retain(|route| !is_outdated(&route.target));
        for key in affected {
            self.routes.observe_absent(&key);
            if let Some(at) = self.duplicates.iter().position(|route| route.key == key) {
                let Route { key, target } = self.duplicates.swap_remove(at);
                self.routes.observe(key, target);
            }
        }
        for route in listed {
            if self.matters(&route, ownership) {
                let holder = self.holder_of(&route.key, &route.target, ownership).map(|holder| (route.key, holder));
                self.note_holders(holder);
                self.observe(route);
            }
        }
    }

    /// Adds a route to the observed ones.
    fn observe(&mut self, route: Route) {
        let Some(first) = self.routes.observed(&route.key) else {
            self.routes.observe(route.key, route.target);
            return;
        };
        if *first == route.target {
            return;
        }
        if self.routes.desired(&route.key) == Some(&route.target) {
            let first = Route { key: route.key, target: first.clone() };
            self.routes.observe(route.key, route.target);
            self.duplicates.push(first);
        } else {
            self.duplicates.push(route);
        }
    }

    fn matters(&self, route: &Route, ownership: &Ownership<'_>) -> bool {
        self.routes.desired(&route.key).is_some() || ownership.concerns(route)
    }

    /// Returns the holder of the address of a route that is as desired: a route that is in sync
    /// after a restart was in sync before.
    fn holder_of(&self, key: &RouteKey, target: &RouteTarget, ownership: &Ownership<'_>) -> Option<Holder> {
        let interface = target.interface.filter(|_| key.destination.is_host())?;
        let is_remote = !ownership.leads_to_workload(target);
        (self.routes.desired(key) == Some(target)).then_some(Holder { interface, is_remote })
    }

    fn note_holders(&mut self, found: impl IntoIterator<Item = (RouteKey, Holder)>) {
        for (key, holder) in found {
            self.holders.entry(key.destination.address()).or_insert(holder);
        }
    }
}
