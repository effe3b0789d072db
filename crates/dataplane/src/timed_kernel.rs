//! Measurement of the time that an apply passes in the kernel.

use std::net::IpAddr;
use std::time::Duration;

use tortie_model::{Cidr, Family, IfaceName};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

use crate::{
    AddressPlace, CommandOutcome, Device, DeviceChange, FdbEntry, Kernel, KernelCommand, KernelError, Neighbour,
    NeighbourChange, ProxyNeighbour, ProxyNeighbourChange, Qdisc, QdiscChange, Route, RouteChange, RouteTableIndex,
    RoutingRule, RoutingRuleChange, SysctlPath, WireguardChange, WireguardDevice,
};

/// A kernel that measures the duration of its calls by its own clock ([`Kernel::now`]).
#[derive(Debug)]
pub struct TimedKernel<'a, K> {
    kernel: &'a mut K,
    spent: Duration,
    route_lists: Vec<Duration>,
    interface_lists: Vec<Duration>,
    conntrack_waits: Vec<Duration>,
}

impl<'a, K: Kernel> TimedKernel<'a, K> {
    /// Measures the calls of this kernel, none so far.
    pub fn new(kernel: &'a mut K) -> Self {
        Self {
            kernel,
            spent: Duration::ZERO,
            route_lists: Vec::new(),
            interface_lists: Vec::new(),
            conntrack_waits: Vec::new(),
        }
    }

    /// Total duration of all calls.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Duration of each list of routes.
    #[must_use]
    pub fn route_lists(&self) -> &[Duration] {
        &self.route_lists
    }

    /// Duration of each list of the routes of one interface.
    #[must_use]
    pub fn interface_lists(&self) -> &[Duration] {
        &self.interface_lists
    }

    /// Duration of each deletion of conntrack entries.
    #[must_use]
    pub fn conntrack_waits(&self) -> &[Duration] {
        &self.conntrack_waits
    }

    fn timed<T>(&mut self, call: impl FnOnce(&mut K) -> T) -> T {
        let begin = self.kernel.now();
        let result = call(self.kernel);
        self.spent += self.kernel.now().saturating_sub(begin);
        result
    }
}

impl<K: Kernel> Kernel for TimedKernel<'_, K> {
    fn run(&mut self, commands: Vec<KernelCommand>) -> Vec<CommandOutcome> {
        self.timed(|kernel| kernel.run(commands))
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        self.timed(K::ruleset_generation)
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.timed(|kernel| kernel.read_nftables(table))
    }

    fn count_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.timed(|kernel| kernel.count_nftables(table))
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.timed(|kernel| kernel.commit_nftables(transaction))
    }

    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError> {
        let before = self.spent;
        let routes = self.timed(|kernel| kernel.routes(family, table));
        self.route_lists.push(self.spent.saturating_sub(before));
        routes
    }

    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError> {
        let before = self.spent;
        let routes = self.timed(|kernel| kernel.routes_of(family, table, interface));
        self.interface_lists.push(self.spent.saturating_sub(before));
        routes
    }

    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>> {
        self.timed(|kernel| kernel.change_routes(table, changes))
    }

    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        self.timed(|kernel| kernel.routing_rules(family, table))
    }

    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.change_routing_rule(change))
    }

    fn neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError> {
        self.timed(|kernel| kernel.neighbours(family))
    }

    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError> {
        self.timed(|kernel| kernel.fdb(interface))
    }

    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>> {
        self.timed(|kernel| kernel.change_neighbours(changes))
    }

    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError> {
        self.timed(|kernel| kernel.proxy_neighbours(family))
    }

    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>> {
        self.timed(|kernel| kernel.change_proxy_neighbours(changes))
    }

    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>> {
        self.timed(|kernel| kernel.announce(neighbours))
    }

    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        self.timed(|kernel| kernel.device(name))
    }

    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        self.timed(|kernel| kernel.addresses(interface, family))
    }

    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.change_device(change))
    }

    fn disable_checksum_offload(&mut self, interface: u32, name: &IfaceName) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.disable_checksum_offload(interface, name))
    }

    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError> {
        self.timed(|kernel| kernel.read_sysctl(path))
    }

    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.write_sysctl(path, value))
    }

    fn flush_conntrack(&mut self, address: IpAddr) -> Result<(), KernelError> {
        let before = self.spent;
        let flushed = self.timed(|kernel| kernel.flush_conntrack(address));
        self.conntrack_waits.push(self.spent.saturating_sub(before));
        flushed
    }

    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError> {
        self.timed(|kernel| kernel.marked_flushes(family))
    }

    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.mark_flush(address, is_pending))
    }

    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        self.timed(K::qdiscs)
    }

    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.change_qdisc(change))
    }

    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        self.timed(|kernel| kernel.redirections(interface))
    }

    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.timed(|kernel| kernel.wireguard(interface))
    }

    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.change_wireguard(interface, change))
    }

    fn set_threaded(&mut self, device: &IfaceName, is_threaded: bool) -> Result<(), KernelError> {
        self.timed(|kernel| kernel.set_threaded(device, is_threaded))
    }

    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError> {
        self.timed(|kernel| kernel.locate(addresses))
    }

    fn sleep(&mut self, duration: Duration) {
        self.timed(|kernel| kernel.sleep(duration));
    }

    fn is_stopping(&mut self) -> bool {
        self.kernel.is_stopping()
    }

    fn now(&mut self) -> Duration {
        self.kernel.now()
    }
}
