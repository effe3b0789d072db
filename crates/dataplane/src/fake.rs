//! A fake kernel for tests: tables, IP sets, routes, neighbours and sysctls in memory, and a clock
//! that advances only with sleeps and commands.
//!
//! It combines the fakes of the drivers. So it refuses rules that refer to missing sets, and the
//! destruction of sets in use. Each subsystem is a separate field.

mod conntrack;
mod learner;
mod links;
mod neighbours;
mod netfilter;
mod routing;
mod sysctls;
mod wireguard;

use std::time::Duration;

use tortie_iptables::fake::FakeKernel as FakeTables;
use tortie_iptables::{Backend, Table};
use tortie_model::Family;

pub use self::conntrack::FakeConntrack;
pub use self::learner::FakeLearner;
pub use self::links::FakeLinks;
pub use self::neighbours::FakeNeighbours;
pub use self::netfilter::FakeNetfilter;
pub use self::routing::FakeRouting;
pub use self::sysctls::FakeSysctls;
use crate::domains::DomainLearner;
use crate::kernel::{CallTimes, Clock, Conntrack, Kernel, Links, Measured, Neighbours, Routing, Sysctls};
use crate::kernel_error::KernelError;
use crate::route::RouteTableIndex;

/// Duration of each command.
const RUN_TIME: Duration = Duration::from_millis(1);

/// Write operations of the dataplane on a [`FakeKernel`]; reads are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// `iptables-restore` calls.
    pub table_restores: usize,
    /// `ipset restore` calls, except those that only destroy sets.
    pub set_restores: usize,
    /// Sets destroyed by `ipset restore` calls that only destroy sets.
    pub set_destroys: usize,
    /// Routes replaced or deleted.
    pub routes: usize,
    /// Routing rules added or removed.
    pub routing_rules: usize,
    /// Neighbour and forwarding entries set or removed.
    pub neighbours: usize,
    /// Devices created, changed or removed, and addresses added or removed.
    pub devices: usize,
    /// Peers of devices changed.
    pub peers: usize,
    /// Sysctls written.
    pub sysctls: usize,
    /// Attempts to delete the conntrack entries of an address.
    pub flushes: usize,
}

/// The fake kernel.
#[derive(Clone, Debug)]
pub struct FakeKernel {
    /// Tables and IP sets.
    pub netfilter: FakeNetfilter,
    /// Sysctls.
    pub sysctls: FakeSysctls,
    /// Connection tracking.
    pub conntrack: FakeConntrack,
    /// Routes and routing rules.
    pub routing: FakeRouting,
    /// Devices.
    pub links: FakeLinks,
    /// Neighbours.
    pub neighbours: FakeNeighbours,
    /// The learner of DNS answers; `None` is a kernel without one.
    pub learner: Option<FakeLearner>,
    /// Number of following lists (neighbours, forwarding entries, routes and others) that fail as
    /// interrupted.
    pub interrupted_lists: usize,
    writes: Writes,
    times: CallTimes,
    now: Duration,
}

impl FakeKernel {
    /// Returns a kernel without any of our objects, and with the sysctls of these interfaces.
    #[must_use]
    pub fn new<'a>(backend: Backend, interfaces: impl IntoIterator<Item = &'a str>) -> Self {
        let mut kernel = Self {
            netfilter: FakeNetfilter::new(backend),
            sysctls: FakeSysctls::default(),
            conntrack: FakeConntrack::default(),
            routing: FakeRouting::default(),
            links: FakeLinks { next_index: 1000, ..FakeLinks::default() },
            neighbours: FakeNeighbours::default(),
            learner: Some(FakeLearner::default()),
            interrupted_lists: 0,
            writes: Writes::default(),
            times: CallTimes::default(),
            now: Duration::from_secs(1000),
        };
        for interface in interfaces {
            kernel.add_interface(interface);
        }
        kernel
    }

    /// Returns the tables of a family.
    #[must_use]
    pub fn tables(&self, family: Family) -> &FakeTables {
        match family {
            Family::V4 => &self.netfilter.tables_v4,
            Family::V6 => &self.netfilter.tables_v6,
        }
    }

    /// Returns the iptables implementation of [`tables`](Self::tables).
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.netfilter.backend
    }

    /// Returns the write operations since the start, or since [`reset_writes`](Self::reset_writes).
    #[must_use]
    pub const fn writes(&self) -> Writes {
        self.writes
    }

    /// Resets the counters of [`writes`](Self::writes).
    pub fn reset_writes(&mut self) {
        self.writes = Writes::default();
    }

    /// Returns the whole state of the kernel as text, for comparison.
    #[must_use]
    pub fn state(&self) -> String {
        let mut lines = Vec::new();
        for family in Family::ALL {
            for table in Table::ALL {
                // A table that was never written is equal to an empty one.
                let saved = self.tables(family).saved(table);
                lines.extend(saved.lines().map(|line| format!("{family:?} {table} {line}")));
            }
        }
        for name in self.netfilter.sets.names() {
            lines.push(format!("set {name} {:?}", self.netfilter.sets.members(name)));
        }
        let mut routes: Vec<String> = self.routing.routes.iter().map(|route| format!("{route:?}")).collect();
        routes.sort();
        lines.extend(routes);
        for (RouteTableIndex(table), routes) in &self.routing.other_routes {
            let mut routes: Vec<String> = routes.iter().map(|route| format!("table {table} {route:?}")).collect();
            routes.sort();
            lines.extend(routes);
        }
        lines.extend(self.routing.rules.iter().map(|rule| format!("{rule:?}")));
        lines.extend(self.conntrack.marked.iter().map(|address| format!("connections of {address} to be flushed")));
        lines.extend(self.neighbours.entries.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.neighbours.fdb.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.links.devices.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.links.wireguards.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.links.threaded.iter().map(|entry| format!("threads of {entry:?}")));
        lines.extend(self.sysctls.values.iter().map(|(path, value)| format!("{path} = {value}")));
        lines.join("\n")
    }

    /// Removes a device, as an operator may do; its routes and entries vanish with it.
    pub fn remove_device(&mut self, index: u32) -> Option<()> {
        let name =
            self.links.devices.iter().find(|(_, (device, _))| device.index == index).map(|(name, _)| name.clone())?;
        self.links.devices.remove(&name);
        self.links.removed.insert(index);
        let tables = std::iter::once(&mut self.routing.routes).chain(self.routing.other_routes.values_mut());
        tables.for_each(|routes| routes.retain(|route| route.target.interface != Some(index)));
        self.neighbours.entries.retain(|(interface, _), _| *interface != index);
        self.neighbours.fdb.retain(|(interface, _), _| *interface != index);
        self.links.qdiscs.retain(|qdisc| qdisc.interface != index);
        self.links.redirections.remove(&index);
        self.links.wireguards.remove(&index);
        self.links.threaded.remove(&name);
        self.links.without_checksum_offload.remove(&name);
        Some(())
    }

    fn list(&mut self) -> Result<(), KernelError> {
        if self.interrupted_lists == 0 {
            return Ok(());
        }
        self.interrupted_lists -= 1;
        Err(KernelError::Failed("changed at every attempt to list it".into()))
    }

    fn spend(&mut self, duration: Duration) {
        self.now += duration;
        self.times.spent += duration;
    }
}

impl Kernel for FakeKernel {
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        Some(self)
    }

    fn conntrack(&mut self) -> Option<&mut dyn Conntrack> {
        Some(self)
    }

    fn routing(&mut self) -> Option<&mut dyn Routing> {
        Some(self)
    }

    fn links(&mut self) -> Option<&mut dyn Links> {
        Some(self)
    }

    fn neighbours(&mut self) -> Option<&mut dyn Neighbours> {
        Some(self)
    }

    fn domains(&mut self) -> Option<&mut dyn DomainLearner> {
        self.learner.as_mut().map(|learner| learner as &mut dyn DomainLearner)
    }
}

impl Clock for FakeKernel {
    fn now(&mut self) -> Duration {
        self.now
    }

    fn sleep(&mut self, duration: Duration) {
        self.spend(duration);
    }
}

impl Measured for FakeKernel {
    fn take_call_times(&mut self) -> CallTimes {
        std::mem::take(&mut self.times)
    }
}
