//! A program that is to end leaves the rest undone.

use std::net::IpAddr;
use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    Clock, Command, Conntrack, Kernel, KernelError, Links, Neighbours, Netfilter, Outcome, Route, RouteChange,
    RouteTableIndex, Routing, RoutingRule, RoutingRuleChange, Sysctls,
};
use tortie_iptables::Backend;
use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

use crate::common::{apply_until_in_sync, dataplane, kernel, pod, policy, profile, set, up, workload};
use crate::walk::assert_unknown_workloads_are_denied;

/// A kernel during whose so-manieth call the program is told to end.
struct Ending {
    kernel: FakeKernel,
    calls_left: usize,
}

impl Ending {
    fn call(&mut self) -> &mut FakeKernel {
        assert!(!self.is_stopping(), "something was begun although the program is to end");
        self.calls_left -= 1;
        &mut self.kernel
    }
}

impl Kernel for Ending {
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
        // A call that takes no time need not be stopped.
        self.kernel.sysctls()
    }

    fn routing(&mut self) -> Option<&mut dyn Routing> {
        Some(self)
    }

    fn links(&mut self) -> Option<&mut dyn Links> {
        self.kernel.links()
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
            // They may have been killed; their effects are unknown.
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
    fn flush_conntrack(&mut self, address: IpAddr) -> Result<(), KernelError> {
        self.call().flush_conntrack(address)
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
        // A call that takes no time need not be stopped.
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

#[test]
fn wherever_it_is_told_to_end_nothing_more_is_begun_or_reported_and_the_next_start_converges() {
    for backend in [Backend::Legacy, Backend::Nft] {
        let updates = || -> Vec<DesiredUpdate> {
            vec![
                set("s:clients", &["10.1.0.0/16", "fd01::/64"]),
                policy("a", "all()", Some("s:clients")),
                profile("kns.default"),
                workload("one", pod("cali1", 1), &["a"]),
                workload("two", pod("cali2", 2), &["a"]),
            ]
        };
        let links = || [up("cali1", 1), up("cali2", 2)];
        let mut good = kernel(backend);
        apply_until_in_sync(&mut dataplane(backend, updates(), links()), &mut good);
        let mut complete = 0;
        for calls_left in 1..200 {
            let mut ending = Ending { kernel: kernel(backend), calls_left };
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
        }
        assert!(complete > 5, "{backend}: the apply made too few calls to be stopped between them: {complete}");
    }
}
