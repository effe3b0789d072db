//! Random histories: however a state came about, and whatever was interrupted on the way, the
//! kernel ends up the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use tortie_dataplane::fake::{FakeKernel, Writes};
use tortie_dataplane::{
    AddressPlace, Clock, Command, Conntrack, Dataplane, DataplaneProblem, Device, DeviceChange, FdbEntry, Kernel,
    KernelError, LinkEvent, Links, Neighbour, NeighbourChange, Neighbours, Netfilter, Outcome, ProxyNeighbour,
    ProxyNeighbourChange, Qdisc, QdiscChange, Route, RouteChange, RouteTableIndex, Routing, RoutingRule,
    RoutingRuleChange, SysctlPath, Sysctls, WireguardChange, WireguardDevice,
};
use tortie_iptables::{Backend, Table, TableSnapshot};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{AdminState, Cidr, EncapMode, Family, InterfaceName, IpPool, WorkloadExtras};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, TableId, Transaction};

use crate::common::{
    addresses, apply_until_in_sync, cidr, config, host, host_endpoint, kernel, pod, policy, policy_id, profile, set,
    up, workload, workload_id,
};
use crate::walk::assert_unknown_workloads_are_denied;

const WORKLOADS: [&str; 4] = ["w0", "w1", "w2", "w3"];
const IFACES: [&str; 3] = ["cali1", "cali2", "cali3"];
const POLICIES: [&str; 4] = ["p0", "p1", "p2", "p3"];
const SETS: [&str; 2] = ["s:0", "s:1"];
const HOSTS: [&str; 3] = ["h0", "h1", "h2"];

/// A state, encoded in small numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// Interface, last byte of the address, policies as a bit set, kind.
    workloads: BTreeMap<usize, (usize, u8, u8, u8)>,
    /// Selector, set.
    policies: BTreeMap<usize, (u8, Option<usize>)>,
    /// Members as a bit set.
    sets: BTreeMap<usize, u8>,
    /// Kind, policies as a bit set.
    hosts: BTreeMap<usize, (u8, u8)>,
    masquerade: Option<bool>,
    /// Interfaces that are up, as a bit set.
    up: u8,
}

pub(crate) fn state() -> impl Strategy<Value = State> {
    let workloads = prop::collection::btree_map(0..4usize, (0..3usize, 1..5u8, 0..16u8, 0..4u8), 0..4);
    let policies = prop::collection::btree_map(0..4usize, (0..2u8, prop::option::of(0..2usize)), 0..4);
    let sets = prop::collection::btree_map(0..2usize, 0..8u8, 0..3);
    let hosts = prop::collection::btree_map(0..3usize, (0..4u8, 0..16u8), 0..3);
    (workloads, policies, sets, hosts, prop::option::of(any::<bool>()), 0..8u8).prop_map(
        |(workloads, policies, sets, hosts, masquerade, up)| {
            State { workloads, policies, sets, hosts, masquerade, up }.closed()
        },
    )
}

impl State {
    /// Adds all objects that others refer to, as the calculation graph guarantees.
    fn closed(mut self) -> Self {
        let bits = self.workloads.values().map(|w| w.2).chain(self.hosts.values().map(|h| h.1));
        let used: BTreeSet<usize> = bits.flat_map(|bits| (0..4).filter(move |i| bits >> i & 1 == 1)).collect();
        for policy in used {
            self.policies.entry(policy).or_insert((0, None));
        }
        for set in self.policies.values().filter_map(|policy| policy.1).collect::<Vec<_>>() {
            self.sets.entry(set).or_insert(0);
        }
        self
    }

    fn policy_names(bits: u8) -> Vec<&'static str> {
        (0..4).filter(|i| bits >> i & 1 == 1).map(|i| POLICIES[i]).collect()
    }

    /// Returns all objects by kind and name. An object refers to objects of smaller kinds only.
    fn objects(&self) -> BTreeMap<(u8, &'static str), DesiredUpdate> {
        let mut objects = BTreeMap::new();
        for (set_index, bits) in &self.sets {
            let all = ["10.1.0.0/16", "10.2.0.1/32", "fd00:1::/64"];
            let members: Vec<&str> = (0..3).filter(|i| bits >> i & 1 == 1).map(|i| all[i]).collect();
            objects.insert((0, SETS[*set_index]), set(SETS[*set_index], &members));
        }
        for (index, (selector, of_set)) in &self.policies {
            let selector = ["all()", "has(a)"][usize::from(*selector)];
            objects.insert((1, POLICIES[*index]), policy(POLICIES[*index], selector, of_set.map(|s| SETS[s])));
        }
        if !self.workloads.is_empty() {
            objects.insert((1, "kns.default"), profile("kns.default"));
        }
        for (index, (iface, number, policies, kind)) in &self.workloads {
            let mut endpoint = pod(IFACES[*iface], *number);
            match kind {
                1 => endpoint.state = AdminState::Inactive,
                2 => {
                    let prefixes = [cidr("192.168.0.0/24"), cidr("fd99::/64")];
                    endpoint.extras = Some(Box::new(WorkloadExtras {
                        allowed_source_prefixes: prefixes.into(),
                        ..Default::default()
                    }));
                }
                _ => {}
            }
            let update = workload(WORKLOADS[*index], endpoint, &Self::policy_names(*policies));
            objects.insert((2, WORKLOADS[*index]), update);
        }
        for (index, (kind, policies)) in &self.hosts {
            let endpoint = match kind {
                0 => host_endpoint(Some("eth0"), &[]),
                1 => host_endpoint(Some("*"), &[]),
                2 => host_endpoint(None, &["172.16.0.1"]),
                _ => host_endpoint(Some("eth9"), &["172.16.0.1"]),
            };
            objects.insert((2, HOSTS[*index]), host(HOSTS[*index], endpoint, &Self::policy_names(*policies)));
        }
        if let Some(masquerade) = self.masquerade {
            let pool = IpPool {
                cidr: cidr("10.65.0.0/16"),
                ipip_mode: EncapMode::Never,
                vxlan_mode: EncapMode::Never,
                masquerade,
                disabled: false,
                allowed_uses: Box::default(),
            };
            objects.insert((3, "pool"), DesiredUpdate::IpPool(pool.into()));
        }
        objects
    }

    fn links(&self) -> Vec<LinkEvent> {
        let mut events = vec![up("eth0", 1), addresses("eth0", &["172.16.0.1", "fe80::1"])];
        for (bit, iface) in IFACES.into_iter().enumerate() {
            let index = u32::try_from(bit).expect("small") + 10;
            let name = iface.parse().expect("an interface name");
            let is_up = self.up >> bit & 1 == 1;
            events.push(if is_up { LinkEvent::Up { name, index } } else { LinkEvent::Down { name, index } });
        }
        events
    }

    /// Drops the routes of interfaces that are down, as the kernel does.
    fn drop_routes(&self, kernel: &mut FakeKernel) {
        let is_down = |index: u32| (10..13).contains(&index) && self.up >> (index - 10) & 1 == 0;
        kernel.routing.routes.retain(|route| !route.target.interface.is_some_and(is_down));
    }
}

fn removal(kind: u8, name: &str) -> DesiredUpdate {
    match (kind, name) {
        (0, id) => DesiredUpdate::IpSetRemove(id.into()),
        (1, "kns.default") => DesiredUpdate::ProfileRemove(name.into()),
        (1, name) => DesiredUpdate::PolicyRemove(policy_id(name)),
        (2, name) if name.starts_with('w') => DesiredUpdate::WorkloadEndpointRemove(workload_id(name)),
        (2, name) => DesiredUpdate::HostEndpointRemove(name.into()),
        _ => DesiredUpdate::IpPoolRemove(cidr("10.65.0.0/16")),
    }
}

/// Returns the updates from one state to another: referenced objects come first and are removed
/// last.
pub(crate) fn transition(from: &State, to: &State) -> Vec<DesiredUpdate> {
    let (old, new) = (from.objects(), to.objects());
    let added = new.iter().filter(|(key, update)| old.get(*key) != Some(update)).map(|(_, update)| update.clone());
    let removed = old.keys().rev().filter(|key| !new.contains_key(*key)).map(|(kind, name)| removal(*kind, name));
    added.chain(removed).collect()
}

fn fresh(backend: Backend) -> Dataplane {
    let mut dataplane = Dataplane::new(config(backend));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

fn of_state(backend: Backend, state: &State) -> Dataplane {
    let mut dataplane = fresh(backend);
    transition(&State::default(), state).into_iter().for_each(|update| dataplane.on_update(update));
    state.links().into_iter().for_each(|event| dataplane.on_link(event));
    dataplane
}

/// Returns the part of the state that must not depend on history. Sysctls and ARP entries do: they
/// stay until their interface is removed.
fn comparable(mut kernel: FakeKernel) -> String {
    kernel.neighbours.entries.clear();
    kernel.sysctls.values.clear();
    kernel.state()
}

fn assert_desired_state(problems: &[DataplaneProblem]) {
    let unexpected: Vec<_> = problems.iter().filter(|p| !matches!(p, DataplaneProblem::Endpoint { .. })).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Records the kernel after each write, and checks it.
struct Recorder {
    kernel: FakeKernel,
    moments: Vec<FakeKernel>,
    /// A clean kernel to which the same state was applied.
    converged: FakeKernel,
}

impl Recorder {
    fn new(kernel: FakeKernel, backend: Backend, state: &State) -> Self {
        Self { moments: vec![kernel.clone()], kernel, converged: converged(backend, state) }
    }

    fn note(&mut self) {
        assert_unknown_workloads_are_denied(&self.kernel);
        assert_paths_follow_policy(&self.kernel);
        self.moments.push(self.kernel.clone());
    }

    /// Reports whether a table is as desired, or reduced because sets are missing or out of date.
    fn is_written(&self, family: Family, table: Table) -> bool {
        let (wanted, sets) = (&self.converged.netfilter.sets, &self.kernel.netfilter.sets);
        let is_in_sync = |name: &&str| sets.names().contains(name) && sets.members(name) == wanted.members(name);
        let lacks_sets = !wanted.names().iter().all(is_in_sync);
        lacks_sets || self.kernel.tables(family).saved(table) == self.converged.tables(family).saved(table)
    }
}

/// Returns a clean kernel to which this state was applied.
fn converged(backend: Backend, state: &State) -> FakeKernel {
    let mut kernel = kernel(backend);
    apply_until_in_sync(&mut of_state(backend, state), &mut kernel);
    kernel
}

/// If anything leads to a workload, the kernel enters our chains.
fn assert_paths_follow_policy(kernel: &FakeKernel) {
    for (family, forwarding) in [(Family::V4, "net/ipv4/ip_forward"), (Family::V6, "net/ipv6/conf/all/forwarding")] {
        let routed = kernel.routing.routes.iter().any(|route| route.key.destination.family() == family);
        let known = family == Family::V4 && !kernel.neighbours.entries.is_empty();
        if !routed && !known && kernel.sysctls.values[forwarding] == "0" {
            continue;
        }
        for (table, chain) in [(Table::Filter, "FORWARD"), (Table::Raw, "PREROUTING"), (Table::Mangle, "PREROUTING")] {
            let rules = kernel.tables(family).rules(table, chain).unwrap_or_default().concat();
            assert!(rules.contains("-j cali-"), "{family:?} {table} {chain}\n{}", kernel.state());
        }
    }
}

impl Kernel for Recorder {
    fn sysctls(&mut self) -> Option<&mut dyn Sysctls> {
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
}

impl Clock for Recorder {
    fn now(&mut self) -> Duration {
        self.kernel.now()
    }

    fn sleep(&mut self, duration: Duration) {
        self.kernel.sleep(duration);
    }
}

impl Netfilter for Recorder {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let run = |command: Command| {
            if command.program.ends_with("-restore")
                && !command.program.contains(&format!("-{}-", self.kernel.backend()))
            {
                for (family, table) in Family::ALL.into_iter().flat_map(|f| Table::ALL.map(|table| (f, table))) {
                    assert!(self.is_written(family, table), "{command} before {family:?} {table} is written");
                }
            }
            if command.program.ends_with("-restore") {
                // A kill between two transactions of one input.
                let mut cut = self.kernel.clone();
                match command.program.starts_with("ip6") {
                    true => cut.netfilter.tables_v6.crash_after(1),
                    false => cut.netfilter.tables_v4.crash_after(1),
                }
                cut.run_one(&command);
                assert_unknown_workloads_are_denied(&cut);
                self.moments.push(cut);
            }
            let outcome = self.kernel.run_one(&command);
            if !command.args.iter().any(|arg| arg == "list" || arg == "-t") {
                self.note();
            }
            outcome
        };
        commands.into_iter().map(run).collect()
    }

    fn read_legacy(&mut self, tables: &[(Family, Table)]) -> Vec<Option<TableSnapshot>> {
        self.kernel.read_legacy(tables)
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        self.kernel.read_nftables(table)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.kernel.commit_nftables(transaction)
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        None
    }
}

impl Sysctls for Recorder {
    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError> {
        self.kernel.read_sysctl(path)
    }

    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError> {
        let result = self.kernel.write_sysctl(path, value);
        self.note();
        result
    }
}

impl Conntrack for Recorder {
    fn flush_conntrack(&mut self, addresses: &[IpAddr]) -> Vec<Result<(), KernelError>> {
        self.kernel.flush_conntrack(addresses)
    }

    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError> {
        self.kernel.marked_flushes(family)
    }

    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError> {
        let result = self.kernel.mark_flush(address, is_pending);
        self.note();
        result
    }
}

impl Routing for Recorder {
    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError> {
        self.kernel.routes(family, table)
    }

    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError> {
        self.kernel.routes_of(family, table, interface)
    }

    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>> {
        let change = |change: &RouteChange| {
            if let RouteChange::Replace(route) = change {
                let family = route.key.destination.family();
                for table in [Table::Raw, Table::Mangle, Table::Filter] {
                    assert!(self.is_written(family, table), "{route:?} before {family:?} {table} is written");
                }
            }
            let result = self.kernel.change_routes(table, std::slice::from_ref(change));
            self.note();
            result
        };
        changes.iter().flat_map(change).collect()
    }

    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        self.kernel.routing_rules(family, table)
    }

    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.kernel.change_routing_rule(change)
    }
}

impl Links for Recorder {
    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        self.kernel.device(name)
    }

    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        self.kernel.addresses(interface, family)
    }

    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        let result = self.kernel.change_device(change);
        self.note();
        result
    }

    fn disable_checksum_offload(&mut self, interface: u32, name: InterfaceName) -> Result<(), KernelError> {
        self.kernel.disable_checksum_offload(interface, name)
    }

    fn set_threaded(&mut self, device: InterfaceName, is_threaded: bool) -> Result<(), KernelError> {
        self.kernel.set_threaded(device, is_threaded)
    }

    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        self.kernel.qdiscs()
    }

    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        self.kernel.change_qdisc(change)
    }

    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        self.kernel.redirections(interface)
    }

    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.kernel.wireguard(interface)
    }

    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.kernel.change_wireguard(interface, change)
    }
}

impl Neighbours for Recorder {
    fn permanent_neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError> {
        self.kernel.permanent_neighbours(family)
    }

    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError> {
        self.kernel.fdb(interface)
    }

    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>> {
        let result = self.kernel.change_neighbours(changes);
        self.note();
        result
    }

    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError> {
        self.kernel.proxy_neighbours(family)
    }

    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>> {
        self.kernel.change_proxy_neighbours(changes)
    }

    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>> {
        self.kernel.announce(neighbours)
    }

    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError> {
        self.kernel.locate(addresses)
    }
}

fn backend() -> impl Strategy<Value = Backend> {
    prop_oneof![Just(Backend::Legacy), Just(Backend::Nft)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A long history, a new start, and any order of updates end with the same kernel, and then
    /// nothing is left to write.
    #[test]
    fn history_leaves_no_trace(
        backend in backend(),
        states in prop::collection::vec((state(), any::<bool>()), 1..5),
        order in any::<prop::sample::Index>(),
    ) {
        let mut kernel = kernel(backend);
        let mut lived = fresh(backend);
        let mut before = State::default();
        for (state, applied) in &states {
            transition(&before, state).into_iter().for_each(|update| lived.on_update(update));
            state.drop_routes(&mut kernel);
            state.links().into_iter().for_each(|event| lived.on_link(event));
            if *applied {
                assert_desired_state(&lived.apply(&mut kernel).problems);
            }
            before = state.clone();
        }
        assert_desired_state(&apply_until_in_sync(&mut lived, &mut kernel).problems);
        assert_unknown_workloads_are_denied(&kernel);

        let mut other = crate::common::kernel(backend);
        let mut shuffled = transition(&State::default(), &before);
        if !shuffled.is_empty() {
            let middle = order.index(shuffled.len());
            shuffled.rotate_left(middle);
            shuffled.reverse();
        }
        let mut born = fresh(backend);
        before.links().into_iter().for_each(|event| born.on_link(event));
        shuffled.into_iter().for_each(|update| born.on_update(update));
        assert_desired_state(&apply_until_in_sync(&mut born, &mut other).problems);
        prop_assert_eq!(comparable(kernel.clone()), comparable(other));

        // This includes sysctls and ARP entries: the present ones are right.
        kernel.reset_writes();
        assert_desired_state(&apply_until_in_sync(&mut lived, &mut kernel).problems);
        prop_assert_eq!(kernel.writes(), Writes::default());
        assert_desired_state(&apply_until_in_sync(&mut of_state(backend, &before), &mut kernel).problems);
        prop_assert_eq!(kernel.writes(), Writes::default());
        prop_assert_eq!(lived.workload_statuses().collect::<Vec<_>>(), born.workload_statuses().collect::<Vec<_>>());
    }

    /// After a kill between any two writes, the next start reaches the same kernel, and no workload
    /// is open at any moment.
    #[test]
    fn a_kill_at_any_moment_is_made_good(
        backend in backend(),
        first in state(),
        second in state(),
        moment in any::<prop::sample::Index>(),
    ) {
        let mut recorder = Recorder::new(kernel(backend), backend, &first);
        let mut dataplane = of_state(backend, &first);
        apply_until_in_sync(&mut dataplane, &mut recorder);
        recorder.converged = converged(backend, &second);
        transition(&first, &second).into_iter().for_each(|update| dataplane.on_update(update));
        second.drop_routes(&mut recorder.kernel);
        second.links().into_iter().for_each(|event| dataplane.on_link(event));
        apply_until_in_sync(&mut dataplane, &mut recorder);

        let mut killed = recorder.moments[moment.index(recorder.moments.len())].clone();
        second.drop_routes(&mut killed);
        let mut recorder_of_next = Recorder::new(killed, backend, &second);
        let mut next = of_state(backend, &second);
        assert_desired_state(&apply_until_in_sync(&mut next, &mut recorder_of_next).problems);
        prop_assert_eq!(comparable(recorder_of_next.kernel), comparable(recorder.kernel));
    }

    /// Under faults of any kind and duration, nothing leads to a workload before its policy is in
    /// force, and the rules of another iptables implementation are removed last.
    #[test]
    fn paths_are_opened_after_policy_under_any_fault(
        backend in backend(),
        left in state(),
        begins_well in any::<bool>(),
        states in prop::collection::vec((state(), fault(), 1..3usize), 1..4),
    ) {
        let other = match backend {
            Backend::Legacy => Backend::Nft,
            Backend::Nft => Backend::Legacy,
        };
        let old = converged(other, &left);
        let mut clean = kernel(backend);
        (clean.netfilter.other_v4, clean.netfilter.other_v6, clean.netfilter.sets) = (old.netfilter.tables_v4, old.netfilter.tables_v6, old.netfilter.sets);
        let mut options = config(backend);
        options.iptables.sweep = Family::ALL.map(|family| (family, other)).into();
        let mut dataplane = Dataplane::new(options);
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();

        let mut recorder = Recorder::new(clean, backend, &State::default());
        let mut before = State::default();
        for (index, (state, fault, applies)) in states.iter().enumerate() {
            recorder.converged = converged(backend, state);
            transition(&before, state).into_iter().for_each(|update| dataplane.on_update(update));
            state.drop_routes(&mut recorder.kernel);
            state.links().into_iter().for_each(|event| dataplane.on_link(event));
            if index > 0 || !begins_well {
                fault.begin(&mut recorder.kernel);
            }
            for _ in 0..*applies {
                let report = dataplane.apply(&mut recorder);
                recorder.sleep(report.next.unwrap_or_default());
            }
            Fault::end(&mut recorder.kernel);
            before = state.clone();
        }
        // Deletions of conntrack entries are retried within a minute.
        recorder.sleep(Duration::from_secs(60));
        assert_desired_state(&apply_until_in_sync(&mut dataplane, &mut recorder).problems);
        for tables in [&recorder.kernel.netfilter.other_v4, &recorder.kernel.netfilter.other_v6] {
            prop_assert!(Table::ALL.iter().all(|table| !tables.saved(*table).contains("cali")));
        }
        prop_assert_eq!(comparable(recorder.kernel), comparable(recorder.converged));
    }
}

/// A temporary fault.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Nothing,
    /// Programs that fail, by a substring of their name.
    Program(&'static str),
    Unreadable(Family, Table),
    Conntrack,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Nothing),
        prop::sample::select(vec!["iptables-", "ip6tables-", "tables-restore", "-restore", "-save", "ipset", ""])
            .prop_map(Fault::Program),
        (prop::sample::select(Family::ALL.to_vec()), prop::sample::select(Table::ALL.to_vec()))
            .prop_map(|(family, table)| Fault::Unreadable(family, table)),
        Just(Fault::Conntrack),
    ]
}

impl Fault {
    fn begin(self, kernel: &mut FakeKernel) {
        match self {
            Self::Nothing => {}
            Self::Program(part) => kernel.netfilter.not_runnable.push(part.to_owned()),
            Self::Unreadable(Family::V4, table) => kernel.netfilter.tables_v4.set_incompatible(table, true),
            Self::Unreadable(Family::V6, table) => kernel.netfilter.tables_v6.set_incompatible(table, true),
            Self::Conntrack => kernel.conntrack.unflushable.extend((1..5).map(|n| IpAddr::from([10, 65, 0, n]))),
        }
    }

    fn end(kernel: &mut FakeKernel) {
        kernel.netfilter.not_runnable.clear();
        kernel.conntrack.unflushable.clear();
        for table in Table::ALL {
            kernel.netfilter.tables_v4.set_incompatible(table, false);
            kernel.netfilter.tables_v6.set_incompatible(table, false);
        }
    }
}
