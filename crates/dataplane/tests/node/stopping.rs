//! A stopping process leaves the rest undone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    Clock, Command, Conntrack, Device, DeviceChange, DeviceKind, Kernel, KernelError, Links, Neighbours, Netfilter,
    Outcome, Qdisc, QdiscChange, Route, RouteChange, RouteTableIndex, Routing, RoutingRule, RoutingRuleChange, Sysctls,
    WireguardChange, WireguardDevice,
};
use tortie_iptables::Backend;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Cidr, Family, InterfaceName, QosControls, WorkloadEndpoint, WorkloadExtras};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

use crate::common::{apply_until_in_sync, dataplane, kernel, pod, policy, profile, set, up, workload};
use crate::walk::assert_unknown_workloads_are_denied;

/// A kernel that begins to stop during the call with this number.
struct Ending {
    kernel: FakeKernel,
    calls_left: usize,
}

impl Ending {
    fn call(&mut self) -> &mut FakeKernel {
        assert!(!self.is_stopping(), "something was begun although the program is to end");
        self.call_within_a_step()
    }

    /// A call within a step of several calls, such as the setup of a device: the step is finished
    /// all the same.
    fn call_within_a_step(&mut self) -> &mut FakeKernel {
        self.calls_left = self.calls_left.saturating_sub(1);
        &mut self.kernel
    }
}

impl Kernel for Ending {
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        // A call that takes no time may follow the request to stop.
        self.kernel.sysctls()
    }

    fn routing(&mut self) -> Option<&mut dyn Routing> {
        Some(self)
    }

    fn links(&mut self) -> Option<&mut dyn Links> {
        Some(self)
    }

    fn neighbours(&mut self) -> Option<&mut dyn Neighbours> {
        self.kernel.neighbours()
    }
}

impl Clock for Ending {
    fn now(&mut self) -> Duration {
        self.kernel.now()
    }

    fn sleep(&mut self, duration: Duration) {
        self.call().sleep(duration);
    }

    fn is_stopping(&mut self) -> bool {
        self.calls_left == 0
    }
}

impl Netfilter for Ending {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let outcomes = self.call().run(commands);
        if self.is_stopping() {
            // The commands may have been killed; their effects are unknown.
            return outcomes.iter().map(|_| Outcome::not_run("this program is ending")).collect();
        }
        outcomes
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        self.kernel.ruleset_generation()
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.kernel.read_nftables(table)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.call().commit_nftables(transaction)
    }
}

impl Conntrack for Ending {
    fn flush_conntrack(&mut self, addresses: &[IpAddr]) -> Vec<Result<(), KernelError>> {
        self.call().flush_conntrack(addresses)
    }

    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError> {
        self.kernel.marked_flushes(family)
    }

    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError> {
        self.call().mark_flush(address, is_pending)
    }
}

impl Routing for Ending {
    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError> {
        // A call that takes no time may follow the request to stop.
        self.kernel.routes(family, table)
    }

    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError> {
        self.kernel.routes_of(family, table, interface)
    }

    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>> {
        self.call().change_routes(table, changes)
    }

    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        self.kernel.routing_rules(family, table)
    }

    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.kernel.change_routing_rule(change)
    }
}

impl Links for Ending {
    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        self.kernel.device(name)
    }

    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        self.kernel.addresses(interface, family)
    }

    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        self.call_within_a_step().change_device(change)
    }

    fn disable_checksum_offload(&mut self, interface: u32, name: InterfaceName) -> Result<(), KernelError> {
        self.call_within_a_step().disable_checksum_offload(interface, name)
    }

    fn set_threaded(&mut self, device: InterfaceName, is_threaded: bool) -> Result<(), KernelError> {
        self.call_within_a_step().set_threaded(device, is_threaded)
    }

    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        self.kernel.qdiscs()
    }

    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        self.call_within_a_step().change_qdisc(change)
    }

    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        self.kernel.redirections(interface)
    }

    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.kernel.wireguard(interface)
    }

    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.call_within_a_step().change_wireguard(interface, change)
    }
}

/// A pod with bandwidth limits in both directions.
fn limited(iface: &str, number: u8) -> WorkloadEndpoint {
    let qos = QosControls {
        ingress_bandwidth: 8_000_000,
        ingress_burst: 100_000,
        egress_bandwidth: 16_000_000,
        egress_burst: 100_000,
        ..QosControls::default()
    };
    let extras = WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() };
    WorkloadEndpoint { extras: Some(Box::new(extras)), ..pod(iface, number) }
}

#[test]
fn after_a_stop_at_any_step_nothing_starts_or_is_reported_and_the_next_start_converges() {
    for backend in [Backend::Legacy, Backend::Nft] {
        let updates = || -> Vec<DesiredUpdate> {
            vec![
                set("s:clients", &["10.1.0.0/16", "fd01::/64"]),
                policy("a", "all()", Some("s:clients")),
                profile("kns.default"),
                workload("one", limited("cali1", 1), &["a"]),
                workload("two", pod("cali2", 2), &["a"]),
            ]
        };
        let links = || [up("cali1", 1), up("cali2", 2)];
        let node = || {
            let mut kernel = kernel(backend);
            let device = Device { index: 1, mac: None, mtu: 1500, is_up: true, kind: DeviceKind::Other("veth".into()) };
            kernel.links.devices.insert("cali1".into(), (device, BTreeSet::new()));
            kernel
        };
        let mut good = node();
        apply_until_in_sync(&mut dataplane(backend, updates(), links()), &mut good);
        let mut complete = 0;
        for calls_left in 1..200 {
            let mut ending = Ending { kernel: node(), calls_left };
            let report = dataplane(backend, updates(), links()).apply(&mut ending);
            if !ending.is_stopping() {
                assert!(report.is_complete());
                complete = calls_left;
                break;
            }
            assert_eq!((report.applied, report.problems, report.statuses), (false, vec![], vec![]), "{backend}");
            if !ending.kernel.routing.routes.is_empty() {
                assert_unknown_workloads_are_denied(&ending.kernel);
            }
            let mut kernel = ending.kernel;
            assert!(apply_until_in_sync(&mut dataplane(backend, updates(), links()), &mut kernel).is_complete());
            assert_eq!(kernel.state(), good.state(), "{backend} after {calls_left} calls");
            assert_eq!(kernel.links.qdiscs, good.links.qdiscs, "{backend} after {calls_left} calls");
            assert_eq!(kernel.links.devices, good.links.devices, "{backend} after {calls_left} calls");
        }
        assert!(complete > 5, "{backend}: the apply made too few calls to be stopped between them: {complete}");
    }
}
