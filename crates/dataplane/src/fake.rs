//! A kernel to test against: tables, IP sets, routes, neighbours and sysctls in memory, and a clock that only moves when
//! it is asked to.
//!
//! It is put together from the fakes of the drivers, so that rules that refer to missing sets are refused, and sets that
//! rules refer to cannot be destroyed.

mod proxy;
mod routing;
mod wireguard;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_ipsets::fake::FakeIpset;
use tortie_ipsets::{IpSetName, Plan};
use tortie_iptables::fake::FakeKernel as FakeTables;
use tortie_iptables::{Backend, Command, CommandError, Table};
use tortie_model::{Cidr, Family, IfaceName, Mac};
use tortie_nftables::fake::FakeKernel as FakeNftables;
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, ReadError, TableId, Transaction};

use crate::device::{Device, DeviceChange, DeviceKind, FdbEntry};
use crate::kernel::{
    AddressPlace, CommandOutcome, CommandStatus, Kernel, KernelCommand, KernelError, Neighbour, NeighbourChange,
    SysctlPath,
};
use crate::proxy_neighbours::{ProxyNeighbour, ProxyNeighbourChange};
use crate::qdisc::{Qdisc, QdiscChange, QdiscKind};
use crate::route::{Route, RouteChange, RouteTableIndex};
use crate::routing_rule::{RoutingRule, RoutingRuleChange};
use crate::wireguard_device::{WireguardChange, WireguardDevice};

/// How long every call takes.
const RUN_TIME: Duration = Duration::from_millis(1);

/// What the dataplane did to a [`FakeKernel`]; reading is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// `iptables-restore` calls.
    pub table_restores: usize,
    /// `ipset restore` calls, but for those that only destroy sets.
    pub set_restores: usize,
    /// Sets destroyed by those that only destroy sets.
    pub set_destroys: usize,
    /// Routes replaced or deleted.
    pub routes: usize,
    /// Routing rules made or removed.
    pub routing_rules: usize,
    /// Neighbour and forwarding entries set or removed.
    pub neighbours: usize,
    /// Devices made, changed or removed, and addresses given to them or taken away.
    pub devices: usize,
    /// Peers of devices changed.
    pub peers: usize,
    /// Sysctls written.
    pub sysctls: usize,
    /// Attempts to flush the connections of an address.
    pub flushes: usize,
}

/// The fake kernel.
#[derive(Clone, Debug)]
pub struct FakeKernel {
    /// The IPv4 tables.
    pub tables_v4: FakeTables,
    /// The IPv6 tables.
    pub tables_v6: FakeTables,
    /// The IPv4 tables of the other implementation of iptables.
    pub other_v4: FakeTables,
    /// The IPv6 tables of the other implementation of iptables.
    pub other_v6: FakeTables,
    /// The table of nftables of each family.
    pub nftables: BTreeMap<Family, FakeNftables>,
    /// The table of ARP packets.
    pub arp: FakeNftables,
    /// All IP sets.
    pub sets: FakeIpset,
    /// The routes of the main table.
    pub routes: Vec<Route>,
    /// The routes of other tables.
    pub other_routes: BTreeMap<RouteTableIndex, Vec<Route>>,
    /// Routing rules, in the order in which they are asked.
    pub routing_rules: Vec<RoutingRule>,
    /// Routing rules can be neither made nor removed.
    pub routing_rules_fail: bool,
    /// Permanent neighbour entries.
    pub neighbours: BTreeMap<(u32, IpAddr), Mac>,
    /// Addresses that requests are answered for.
    pub proxied: BTreeSet<ProxyNeighbour>,
    /// Addresses that were announced, in order.
    pub announced: Vec<ProxyNeighbour>,
    /// Interfaces on which nothing can be answered.
    pub mute_interfaces: BTreeSet<u32>,
    /// Forwarding entries of devices.
    pub fdb: BTreeMap<(u32, Mac), IpAddr>,
    /// Devices besides those that only events tell of, and their addresses.
    pub devices: BTreeMap<String, (Device, BTreeSet<Cidr>)>,
    /// `WireGuard` devices, by their index.
    pub wireguards: BTreeMap<u32, WireguardDevice>,
    /// `WireGuard` devices cannot be changed.
    pub wireguards_fail: bool,
    /// There is no `WireGuard`.
    pub lacks_wireguard: bool,
    /// Which devices have threads, by their name.
    pub threaded: BTreeMap<String, bool>,
    /// Devices that cannot be made or changed, by their name.
    pub broken_devices: BTreeSet<String>,
    /// The checksum offload of devices cannot be changed.
    pub broken_offload: bool,
    /// Devices without checksum offload, by their name.
    pub without_checksum_offload: BTreeSet<String>,
    /// How many of the next lists of neighbours, forwarding entries and routes are interrupted.
    pub interrupted_lists: usize,
    /// How many routes were listed so far.
    pub listed_routes: usize,
    /// Sysctls by path; only those that are there can be written.
    pub sysctls: BTreeMap<String, String>,
    /// Sysctls that cannot be written, by a part of their path.
    pub read_only: Vec<String>,
    /// Interfaces that routes cannot be made on.
    pub broken_interfaces: BTreeSet<u32>,
    /// Queueing disciplines that are not the kernel's own.
    pub qdiscs: Vec<Qdisc>,
    /// Where filters of incoming packets send them.
    pub redirections: BTreeMap<u32, Vec<Option<u32>>>,
    /// Where addresses are.
    pub places: BTreeMap<IpAddr, AddressPlace>,
    /// Addresses whose connections cannot be flushed.
    pub unflushable: BTreeSet<IpAddr>,
    /// Programs that cannot be run, by a part of their name.
    pub not_runnable: Vec<String>,
    /// Addresses whose connections were flushed, in order.
    pub flushed: Vec<IpAddr>,
    /// Addresses whose connections are still to be flushed.
    pub marked_flushes: BTreeSet<IpAddr>,
    backend: Backend,
    writes: Writes,
    next_index: u32,
    removed_devices: BTreeSet<u32>,
    now: Duration,
}

impl FakeKernel {
    /// A kernel with nothing of ours, and with the sysctls of these interfaces.
    #[must_use]
    pub fn new<'a>(backend: Backend, interfaces: impl IntoIterator<Item = &'a str>) -> Self {
        let mut kernel = Self {
            tables_v4: FakeTables::new(backend),
            tables_v6: FakeTables::new(backend),
            other_v4: FakeTables::new(other(backend)),
            other_v6: FakeTables::new(other(backend)),
            arp: FakeNftables::new(TableId::CALICO_ARP),
            nftables: Family::ALL.map(|family| (family, FakeNftables::new(TableId::calico(family)))).into(),
            sets: FakeIpset::new(),
            routes: Vec::new(),
            other_routes: BTreeMap::new(),
            routing_rules: Vec::new(),
            routing_rules_fail: false,
            neighbours: BTreeMap::new(),
            proxied: BTreeSet::new(),
            announced: Vec::new(),
            mute_interfaces: BTreeSet::new(),
            fdb: BTreeMap::new(),
            devices: BTreeMap::new(),
            wireguards: BTreeMap::new(),
            wireguards_fail: false,
            lacks_wireguard: false,
            threaded: BTreeMap::new(),
            broken_devices: BTreeSet::new(),
            broken_offload: false,
            without_checksum_offload: BTreeSet::new(),
            interrupted_lists: 0,
            listed_routes: 0,
            next_index: 1000,
            removed_devices: BTreeSet::new(),
            sysctls: BTreeMap::new(),
            read_only: Vec::new(),
            broken_interfaces: BTreeSet::new(),
            qdiscs: Vec::new(),
            redirections: BTreeMap::new(),
            places: BTreeMap::new(),
            unflushable: BTreeSet::new(),
            not_runnable: Vec::new(),
            flushed: Vec::new(),
            marked_flushes: BTreeSet::new(),
            backend,
            writes: Writes::default(),
            now: Duration::from_secs(1000),
        };
        for (path, value) in [
            ("net/ipv4/ip_forward", "0"),
            ("net/ipv6/conf/all/forwarding", "0"),
            ("net/netfilter/nf_conntrack_acct", "0"),
            ("net/ipv4/conf/default/rp_filter", "2"),
            ("net/ipv4/conf/all/src_valid_mark", "0"),
        ] {
            kernel.sysctls.insert(path.to_owned(), value.to_owned());
        }
        for interface in interfaces {
            kernel.add_interface(interface);
        }
        kernel
    }

    /// An interface with the sysctls of a new one.
    pub fn add_interface(&mut self, name: &str) {
        for (path, value) in [
            (format!("net/ipv4/conf/{name}/route_localnet"), "0"),
            (format!("net/ipv4/neigh/{name}/proxy_delay"), "80"),
            (format!("net/ipv4/conf/{name}/proxy_arp"), "0"),
            (format!("net/ipv4/conf/{name}/forwarding"), "0"),
            (format!("net/ipv4/conf/{name}/rp_filter"), "2"),
            (format!("net/ipv6/conf/{name}/accept_ra"), "1"),
            (format!("net/ipv6/conf/{name}/proxy_ndp"), "0"),
            (format!("net/ipv6/conf/{name}/forwarding"), "0"),
        ] {
            self.sysctls.insert(path, value.to_owned());
        }
    }

    /// The tables of a family.
    #[must_use]
    pub fn tables(&self, family: Family) -> &FakeTables {
        match family {
            Family::V4 => &self.tables_v4,
            Family::V6 => &self.tables_v6,
        }
    }

    /// The implementation of iptables that [`tables`](Self::tables) are of.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// What the dataplane did since the start, or since [`reset_writes`](Self::reset_writes).
    #[must_use]
    pub const fn writes(&self) -> Writes {
        self.writes
    }

    /// Counts from zero again.
    pub fn reset_writes(&mut self) {
        self.writes = Writes::default();
    }

    /// Everything that is in the kernel, as text, to compare two of them by.
    #[must_use]
    pub fn state(&self) -> String {
        let mut lines = Vec::new();
        for family in Family::ALL {
            for table in Table::ALL {
                // A table that was never written is as good as an empty one.
                let saved = self.tables(family).saved(table);
                lines.extend(saved.lines().map(|line| format!("{family:?} {table} {line}")));
            }
        }
        for name in self.sets.names() {
            lines.push(format!("set {name} {:?}", self.sets.members(name)));
        }
        let mut routes: Vec<String> = self.routes.iter().map(|route| format!("{route:?}")).collect();
        routes.sort();
        lines.extend(routes);
        for (RouteTableIndex(table), routes) in &self.other_routes {
            let mut routes: Vec<String> = routes.iter().map(|route| format!("table {table} {route:?}")).collect();
            routes.sort();
            lines.extend(routes);
        }
        lines.extend(self.routing_rules.iter().map(|rule| format!("{rule:?}")));
        lines.extend(self.marked_flushes.iter().map(|address| format!("connections of {address} to be flushed")));
        lines.extend(self.neighbours.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.fdb.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.devices.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.wireguards.iter().map(|entry| format!("{entry:?}")));
        lines.extend(self.threaded.iter().map(|entry| format!("threads of {entry:?}")));
        lines.extend(self.sysctls.iter().map(|(path, value)| format!("{path} = {value}")));
        lines.join("\n")
    }

    /// Removes a device as somebody with a terminal does; its routes and entries go with it.
    pub fn remove_device(&mut self, index: u32) -> Option<()> {
        let name = self.devices.iter().find(|(_, (device, _))| device.index == index).map(|(name, _)| name.clone())?;
        self.devices.remove(&name);
        self.removed_devices.insert(index);
        let tables = std::iter::once(&mut self.routes).chain(self.other_routes.values_mut());
        tables.for_each(|routes| routes.retain(|route| route.target.interface != Some(index)));
        self.neighbours.retain(|(interface, _), _| *interface != index);
        self.fdb.retain(|(interface, _), _| *interface != index);
        self.qdiscs.retain(|qdisc| qdisc.interface != index);
        self.redirections.remove(&index);
        self.wireguards.remove(&index);
        self.threaded.remove(&name);
        self.without_checksum_offload.remove(&name);
        Some(())
    }

    fn list(&mut self) -> Result<(), KernelError> {
        if self.interrupted_lists == 0 {
            return Ok(());
        }
        self.interrupted_lists -= 1;
        Err(KernelError::Failed("changed at every attempt to list it".to_owned()))
    }

    /// Runs one command; what [`Kernel::run`] does with each.
    pub fn run_one(&mut self, command: &KernelCommand) -> CommandOutcome {
        self.now += RUN_TIME;
        if self.not_runnable.iter().any(|part| command.program.contains(part.as_str())) {
            return CommandOutcome::not_run("Too many open files");
        }
        if command.program == "ipset" {
            return self.run_ipset(command);
        }
        let family = if command.program.starts_with("ip6tables") { Family::V6 } else { Family::V4 };
        let is_other = command.program.contains(&format!("-{}-", other(self.backend)));
        if command.program.ends_with("-save") {
            let result = self.tables_mut(family, is_other).save(&table_command(command));
            return result.map_or_else(table_failure, CommandOutcome::success);
        }
        if !command.program.ends_with("-restore") {
            return CommandOutcome::not_run(format!("{}: not found", command.program));
        }
        self.writes.table_restores += 1;
        let sets: Vec<String> = self.sets.names().into_iter().map(str::to_owned).collect();
        let tables = self.tables_mut(family, is_other);
        tables.set_ip_sets(sets);
        let result = tables.restore(&table_command(command), &command.input);
        self.note_sets_in_use();
        result.map_or_else(table_failure, |()| CommandOutcome::success(""))
    }

    fn tables_mut(&mut self, family: Family, is_other: bool) -> &mut FakeTables {
        match (family, is_other) {
            (Family::V4, false) => &mut self.tables_v4,
            (Family::V6, false) => &mut self.tables_v6,
            (Family::V4, true) => &mut self.other_v4,
            (Family::V6, true) => &mut self.other_v6,
        }
    }

    fn run_ipset(&mut self, command: &KernelCommand) -> CommandOutcome {
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        let plan = match args[..] {
            ["list"] => Some(Plan::ListAll),
            ["list", "-name"] => Some(Plan::ListNames),
            ["list", name] => IpSetName::new(name).ok().map(Plan::List),
            ["restore"] => Some(Plan::Restore(command.input.clone())),
            _ => None,
        };
        let Some(plan) = plan else { return CommandOutcome::not_run(format!("cannot run {command}")) };
        let before = self.sets.counts();
        let (stdout, result) = self.sets.run(&plan);
        let after = self.sets.counts();
        self.writes.set_restores += after.restores - before.restores;
        self.writes.set_destroys += after.destroyed - before.destroyed;
        match result {
            Ok(()) => CommandOutcome::success(stdout),
            Err(failure) => CommandOutcome {
                status: CommandStatus::Code(1),
                stdout: stdout.into_bytes(),
                stderr: failure.stderr().to_owned(),
            },
        }
    }

    fn note_sets_in_use(&mut self) {
        let mut in_use = BTreeSet::new();
        for tables in [&self.tables_v4, &self.tables_v6, &self.other_v4, &self.other_v6] {
            for table in Table::ALL {
                let saved = tables.saved(table);
                let mut words = saved.split_whitespace();
                while let Some(word) = words.next() {
                    if word == "--match-set" {
                        in_use.extend(words.next().map(str::to_owned));
                    }
                }
            }
        }
        let names: Vec<String> = self.sets.names().into_iter().map(str::to_owned).collect();
        for name in names {
            self.sets.set_in_use(&name, in_use.contains(&name));
        }
    }
}

const fn other(backend: Backend) -> Backend {
    match backend {
        Backend::Legacy => Backend::Nft,
        Backend::Nft => Backend::Legacy,
    }
}

fn table_command(command: &KernelCommand) -> Command {
    Command { program: command.program.clone(), args: command.args.clone() }
}

fn table_failure(error: CommandError) -> CommandOutcome {
    let (code, stderr) = match error {
        CommandError::Exit { code, stderr } => (code.unwrap_or(1), stderr),
        other => (1, other.to_string()),
    };
    CommandOutcome { status: CommandStatus::Code(code), stdout: Vec::new(), stderr }
}

impl Kernel for FakeKernel {
    fn run(&mut self, commands: Vec<KernelCommand>) -> Vec<CommandOutcome> {
        commands.iter().map(|command| self.run_one(command)).collect()
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        let failed = |error: ReadError| KernelError::Failed(error.to_string());
        if table.is_arp {
            return self.arp.read().map_err(failed);
        }
        let nftables = self.nftables.get_mut(&table.family).ok_or(KernelError::Unsupported)?;
        nftables.read().map_err(failed)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        if transaction.table.is_arp {
            return self.arp.commit(transaction);
        }
        let nftables = self.nftables.get_mut(&transaction.table.family);
        nftables.ok_or_else(|| CommitError::Failed(KernelError::Unsupported.to_string()))?.commit(transaction)
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        // Both IP versions are in one ruleset.
        let tables = [&self.tables_v4, &self.tables_v6, &self.other_v4, &self.other_v6];
        let mut of_nftables = tables.into_iter().filter(|tables| tables.backend() == Backend::Nft);
        of_nftables.try_fold(0, |sum: u32, tables| Some(sum.wrapping_add(tables.generation()?)))
    }

    fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, KernelError> {
        self.list()?;
        let of_family = |route: &&Route| route.key.destination.family() == family;
        let listed: Vec<Route> = self.table(table).iter().filter(of_family).cloned().collect();
        self.listed_routes += listed.len();
        Ok(listed)
    }

    fn routes_of(&mut self, family: Family, table: RouteTableIndex, interface: u32) -> Result<Vec<Route>, KernelError> {
        self.list()?;
        let is_of =
            |route: &&Route| route.key.destination.family() == family && route.target.interface == Some(interface);
        let listed: Vec<Route> = self.table(table).iter().filter(is_of).cloned().collect();
        self.listed_routes += listed.len();
        Ok(listed)
    }

    fn change_routes(&mut self, table: RouteTableIndex, changes: &[RouteChange]) -> Vec<Result<(), KernelError>> {
        changes.iter().map(|change| self.change_route(table, change)).collect()
    }

    fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, KernelError> {
        self.list()?;
        let leads_there = |rule: &&RoutingRule| (rule.family, rule.table) == (family, table);
        Ok(self.routing_rules.iter().filter(leads_there).copied().collect())
    }

    fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), KernelError> {
        self.change_rule(change)
    }

    fn neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, KernelError> {
        self.list()?;
        let entries = self.neighbours.iter().filter(|((_, address), _)| Family::of(*address) == family);
        Ok(entries
            .map(|((interface, address), mac)| Neighbour { interface: *interface, address: *address, mac: *mac })
            .collect())
    }

    fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, KernelError> {
        self.list()?;
        let entries = self.fdb.iter().filter(|((index, _), _)| *index == interface);
        Ok(entries.map(|((_, mac), node)| FdbEntry { interface, mac: *mac, destination: *node }).collect())
    }

    fn change_neighbours(&mut self, changes: &[NeighbourChange]) -> Vec<Result<(), KernelError>> {
        let mut change = |change: &NeighbourChange| {
            self.writes.neighbours += 1;
            match change {
                NeighbourChange::Set(entry) if self.removed_devices.contains(&entry.interface) => {
                    Err(KernelError::NotFound)
                }
                NeighbourChange::Set(entry) => {
                    self.neighbours.insert((entry.interface, entry.address), entry.mac);
                    Ok(())
                }
                NeighbourChange::Delete(entry) => {
                    let old = self.neighbours.remove(&(entry.interface, entry.address));
                    old.map(drop).ok_or(KernelError::NotFound)
                }
                NeighbourChange::SetFdb(entry) => {
                    if !self.devices.values().any(|(device, _)| device.index == entry.interface) {
                        return Err(KernelError::NotFound);
                    }
                    self.fdb.insert((entry.interface, entry.mac), entry.destination);
                    Ok(())
                }
                NeighbourChange::DeleteFdb(entry) => {
                    self.fdb.remove(&(entry.interface, entry.mac)).map(drop).ok_or(KernelError::NotFound)
                }
            }
        };
        changes.iter().map(&mut change).collect()
    }

    fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<ProxyNeighbour>, KernelError> {
        self.list()?;
        Ok(self.proxied.iter().copied().filter(|entry| Family::of(entry.address) == family).collect())
    }

    fn change_proxy_neighbours(&mut self, changes: &[ProxyNeighbourChange]) -> Vec<Result<(), KernelError>> {
        changes.iter().map(|change| self.change_proxied(change)).collect()
    }

    fn announce(&mut self, neighbours: &[ProxyNeighbour]) -> Vec<Result<(), KernelError>> {
        neighbours.iter().map(|neighbour| self.announce_one(*neighbour)).collect()
    }

    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        Ok(self.devices.get(name).map(|(device, _)| device.clone()))
    }

    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        self.list()?;
        let device = self.devices.values().find(|(device, _)| device.index == interface);
        let addresses = device.into_iter().flat_map(|(_, addresses)| addresses);
        Ok(addresses.copied().filter(|address| address.family() == family).collect())
    }

    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        self.writes.devices += 1;
        let index = match change {
            DeviceChange::Create { name, mac, kind } => {
                if self.devices.contains_key(name.as_str()) {
                    return Err(KernelError::Exists);
                }
                if self.broken_devices.contains(name.as_str()) {
                    return Err(KernelError::Failed("Operation not supported".to_owned()));
                }
                let is_wireguard = *kind == DeviceKind::Other("wireguard".to_owned());
                if is_wireguard && self.lacks_wireguard {
                    return Err(KernelError::Unsupported);
                }
                self.next_index += 1;
                let index = self.next_index;
                if is_wireguard {
                    self.wireguards.insert(index, WireguardDevice::default());
                }
                let device = Device { index, mac: *mac, mtu: 1500, is_up: false, kind: kind.clone() };
                self.devices.insert(name.as_str().to_owned(), (device, BTreeSet::new()));
                return Ok(());
            }
            DeviceChange::Delete(index) => return self.remove_device(*index).ok_or(KernelError::NotFound),
            DeviceChange::SetMtu(index, _)
            | DeviceChange::SetUp(index)
            | DeviceChange::AddAddress(index, _)
            | DeviceChange::DeleteAddress(index, _) => *index,
        };
        let found = self.devices.iter_mut().find(|(_, (device, _))| device.index == index);
        let Some((name, (device, addresses))) = found else { return Err(KernelError::NotFound) };
        if self.broken_devices.contains(name) {
            return Err(KernelError::Failed("Operation not supported".to_owned()));
        }
        let is_done = match change {
            DeviceChange::SetMtu(_, mtu) => {
                device.mtu = *mtu;
                true
            }
            DeviceChange::SetUp(_) => {
                device.is_up = true;
                true
            }
            DeviceChange::AddAddress(_, address) if addresses.contains(address) => return Err(KernelError::Exists),
            DeviceChange::AddAddress(_, address) => addresses.insert(*address),
            DeviceChange::DeleteAddress(_, address) => addresses.remove(address),
            DeviceChange::Create { .. } | DeviceChange::Delete(_) => true,
        };
        if is_done { Ok(()) } else { Err(KernelError::NotFound) }
    }

    fn disable_checksum_offload(&mut self, interface: u32, name: &IfaceName) -> Result<(), KernelError> {
        match self.devices.get(name.as_str()) {
            Some((device, _)) if device.index == interface && !self.broken_offload => {
                self.without_checksum_offload.insert(name.as_str().to_owned());
                Ok(())
            }
            Some(_) => Err(KernelError::Failed("No such file or directory".to_owned())),
            None => Err(KernelError::NotFound),
        }
    }

    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError> {
        self.sysctls.get(path.as_str()).cloned().ok_or(KernelError::NotFound)
    }

    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError> {
        self.writes.sysctls += 1;
        if self.read_only.iter().any(|part| path.as_str().contains(part.as_str())) {
            return Err(KernelError::Failed("Read-only file system".to_owned()));
        }
        let entry = self.sysctls.get_mut(path.as_str()).ok_or(KernelError::NotFound)?;
        value.clone_into(entry);
        Ok(())
    }

    fn flush_conntrack(&mut self, address: IpAddr) -> Result<(), KernelError> {
        self.writes.flushes += 1;
        if self.unflushable.contains(&address) {
            return Err(KernelError::Failed("conntrack: exit code 1".to_owned()));
        }
        self.flushed.push(address);
        Ok(())
    }

    fn marked_flushes(&mut self, family: Family) -> Result<Vec<IpAddr>, KernelError> {
        Ok(self.marked_flushes.iter().copied().filter(|address| Cidr::host(*address).family() == family).collect())
    }

    fn mark_flush(&mut self, address: IpAddr, is_pending: bool) -> Result<(), KernelError> {
        match is_pending {
            true => self.marked_flushes.insert(address),
            false => self.marked_flushes.remove(&address),
        };
        Ok(())
    }

    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        Ok(self.qdiscs.clone())
    }

    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        let is_of =
            |index: u32, is_root: bool| move |qdisc: &Qdisc| qdisc.interface == index && qdisc.is_root == is_root;
        let (index, is_root, new) = match *change {
            QdiscChange::SetBucket(index, bucket) => (index, true, Some(QdiscKind::Bucket(bucket))),
            QdiscChange::DeleteRoot(index) => (index, true, None),
            QdiscChange::AddIngress(index) => (index, false, Some(QdiscKind::Ingress)),
            QdiscChange::DeleteIngress(index) => {
                self.redirections.remove(&index);
                (index, false, None)
            }
            QdiscChange::Redirect { from, to } => {
                self.redirections.entry(from).or_default().push(Some(to));
                return Ok(());
            }
        };
        let found = self.qdiscs.iter().any(is_of(index, is_root));
        self.qdiscs.retain(|qdisc| !is_of(index, is_root)(qdisc));
        match new {
            Some(kind) => self.qdiscs.push(Qdisc { interface: index, is_root, kind }),
            None if !found => return Err(KernelError::NotFound),
            None => {}
        }
        Ok(())
    }

    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        Ok(self.redirections.get(&interface).cloned().unwrap_or_default())
    }

    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.read_wireguard(interface)
    }

    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.write_wireguard(interface, change)
    }

    fn set_threaded(&mut self, device: &IfaceName, is_threaded: bool) -> Result<(), KernelError> {
        if !self.devices.contains_key(device.as_str()) {
            return Err(KernelError::NotFound);
        }
        self.writes.devices += usize::from(self.threaded.get(device.as_str()) != Some(&is_threaded));
        self.threaded.insert(device.as_str().to_owned(), is_threaded);
        Ok(())
    }

    fn locate(
        &mut self,
        addresses: &[(IpAddr, Option<AddressPlace>)],
    ) -> Result<Vec<Option<AddressPlace>>, KernelError> {
        self.list()?;
        Ok(addresses.iter().map(|(address, _)| self.places.get(address).cloned()).collect())
    }

    fn sleep(&mut self, duration: Duration) {
        self.now += duration;
    }

    fn now(&mut self) -> Duration {
        self.now
    }
}
