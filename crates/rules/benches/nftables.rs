//! Time to write and to change a node's tables: by the nftables reconciler, in iptables-nft with IP
//! sets, and by plain `nft -f` of the same nftables text. Prints a table; `--test` runs once with a
//! small node.
#![allow(clippy::disallowed_methods, reason = "measures, and runs programs in private network namespaces")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the benchmark")]

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use tortie_ipsets::{CommandFailure, IpSets, Member, Plan as SetPlan, SetSpec, SetType};
use tortie_iptables::{
    Backend, Chain, CommandError, InterfaceName, MapKey, Matches, Plan, PortList, Protocol, Reconciler,
    ReconcilerConfig, Rule, Side, Table as Layer,
};
use tortie_lab::kernel::again_in_user_namespace;
use tortie_lab::netns::{Namespace, NetnsError};
use tortie_lab::nft::Nft;
use tortie_model::{AdminState, Cidr, Direction, Family, IpSetId, PolicyId, PolicyKind, TierDefaultAction};
use tortie_nftables::{Features, Table, TableConfig, TableId, Transaction};
use tortie_rules::names::{ip_set_name as set_name, policy_chain};
use tortie_rules::{HostDispatch, NftablesConfig, PacketFilter, PolicyGroup, Renderer, RulesConfig, TierGroups};

const ID: TableId = TableId::calico(Family::V4);

/// A node with so many pods, on which so many policies select a pod each, and admit one client to
/// one port.
#[derive(Clone, Copy)]
struct Size {
    pods: usize,
    policies: usize,
    members: u32,
    runs: usize,
}

const LARGE: Size = Size { pods: 500, policies: 2_000, members: 250_000, runs: 3 };
const SMALL: Size = Size { pods: 5, policies: 20, members: 2_000, runs: 1 };

fn main() -> ExitCode {
    let size = if std::env::args().any(|arg| arg == "--test") { SMALL } else { LARGE };
    if let Err(NetnsError::Create(_)) = Namespace::new() {
        // Without privileges, run again as root of a user namespace.
        return again_in_user_namespace();
    }
    let columns: Vec<Vec<(&str, Measured)>> = (0..size.runs).map(|_| run(size)).reduce(fastest).into_iter().collect();
    println!(
        "| {} pods, {} policies | nftables, here | iptables-nft, ipset | bare `nft -f` |",
        size.pods, size.policies
    );
    println!("|---|---|---|---|");
    for (operation, measured) in columns.into_iter().flatten() {
        let shown = measured.map(|time| time.map_or_else(String::new, milliseconds));
        println!("| {operation} | {} | {} | {} |", shown[0], shown[1], shown[2]);
    }
    ExitCode::SUCCESS
}

/// Here, iptables-nft and bare `nft`.
type Measured = [Option<Duration>; 3];

fn fastest(a: Vec<(&'static str, Measured)>, b: Vec<(&'static str, Measured)>) -> Vec<(&'static str, Measured)> {
    let lesser = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
    a.into_iter().zip(b).map(|((operation, a), (_, b))| (operation, [0, 1, 2].map(|at| lesser(a[at], b[at])))).collect()
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn timed<T>(body: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let value = body();
    (value, begun.elapsed())
}

fn run(size: Size) -> Vec<(&'static str, Measured)> {
    let (mut ours, mut theirs, bare) = (Nftables::new(size), Iptables::new(size), Bare::new());
    let mut rows = Vec::new();
    let (made, here) = timed(|| ours.apply());
    assert_eq!(made.len(), 2, "one transaction for the sets, one for the rules");
    let ((), iptables) = timed(|| theirs.apply());
    rows.push(("first apply", [Some(here), Some(iptables), Some(bare.load(&made))]));

    ours.pod(size.pods);
    theirs.pod(size.pods);
    let (made, here) = timed(|| ours.apply());
    let ((), iptables) = timed(|| theirs.apply());
    rows.push(("one more pod", [Some(here), Some(iptables), Some(bare.load(&made))]));

    ours.policy(0, 8080);
    theirs.policy(0, 8080);
    let (made, here) = timed(|| ours.apply());
    let ((), iptables) = timed(|| theirs.apply());
    rows.push(("one rule changed", [Some(here), Some(iptables), Some(bare.load(&made))]));

    ours.table.invalidate();
    theirs.invalidate();
    let (made, here) = timed(|| ours.apply());
    assert_eq!(made, []);
    let ((), iptables) = timed(|| theirs.apply());
    let list = Command::new("nft").args(["-j", "list", "table", "ip", "calico"]).timed_output(&bare.0);
    rows.push(("read again, nothing to write (`nft -j list`)", [Some(here), Some(iptables), Some(list)]));

    let (mut again, mut theirs_again) = (ours.restarted(size), theirs.restarted(size));
    let (made, here) = timed(|| again.apply());
    assert_eq!(made, [], "a restart writes nothing");
    let ((), iptables) = timed(|| theirs_again.apply());
    rows.push(("restart, nothing to write", [Some(here), Some(iptables), None]));

    let members = |range: std::ops::Range<u32>| -> Vec<Member> {
        let address = |i: u32| std::net::Ipv4Addr::from(0x0a80_0000 + i);
        range.map(|i| Member::from(Cidr::host(address(i).into()))).collect()
    };
    again.set("s:large", &members(0..size.members));
    theirs_again.set("s:large", &members(0..size.members));
    let (made, here) = timed(|| again.apply());
    let ((), iptables) = timed(|| theirs_again.apply());
    // As one command, which `nft` reads fastest.
    let list: Vec<String> = (0..size.members).map(|i| std::net::Ipv4Addr::from(0x0a80_0000 + i).to_string()).collect();
    let declared: String = made[0].to_string().lines().take(1).map(|line| format!("{line}\n")).collect();
    let name = set_name(Family::V4, &IpSetId::from("s:large")).unwrap();
    let text =
        format!("{declared}add element ip calico {} {{ {} }}\n", name.as_str().replace(':', "-"), list.join(", "));
    rows.push(("a set of many members", [Some(here), Some(iptables), Some(bare.nft(&text))]));

    again.set("s:large", &members(0..size.members + 1));
    theirs_again.set("s:large", &members(0..size.members + 1));
    let (made, here) = timed(|| again.apply());
    assert_eq!(made.iter().map(Transaction::line_count).sum::<usize>(), 1, "one more member is one line");
    let ((), iptables) = timed(|| theirs_again.apply());
    rows.push(("one more member of it", [Some(here), Some(iptables), Some(bare.load(&made))]));
    rows
}

/// Policies and pods of a node, rendered for either packet filter.
struct Node {
    renderer: Renderer,
    policies: usize,
    pods: usize,
}

impl Node {
    fn new(packet_filter: PacketFilter, size: Size) -> Self {
        let config = RulesConfig { packet_filter, ..RulesConfig::default() };
        Self { renderer: Renderer::new(config), policies: size.policies, pods: size.pods }
    }

    fn interface(number: usize) -> InterfaceName {
        format!("cali{number}").parse().unwrap()
    }

    fn policy_id(number: usize) -> PolicyId {
        PolicyId::new(PolicyKind::NetworkPolicy, "shop", format!("policy-{number}"))
    }

    fn client(number: usize) -> (IpSetId, Member) {
        let number = u32::try_from(number).unwrap();
        (
            IpSetId::from(format!("s:client-{number}").as_str()),
            Member::from(Cidr::host(std::net::Ipv4Addr::from(0x0a00_0000 + number).into())),
        )
    }

    /// Returns the chain of a policy, which allows its client to a port.
    fn policy(&self, number: usize, port: u16) -> Chain {
        let set = set_name(Family::V4, &Self::client(number).0).unwrap();
        let client = Matches::new()
            .protocol(Protocol::TCP)
            .ip_set(Side::Source, set)
            .ports(Side::Destination, PortList::single(port));
        let accept = self.renderer.config().marks.accept;
        let rules = vec![
            Rule::when(client, tortie_iptables::Action::SetMark(accept)),
            Rule::when(Matches::new().mark_set(accept), tortie_iptables::Action::Return),
        ];
        Chain::new(policy_chain(Direction::Ingress, &Self::policy_id(number)), rules)
    }

    /// Returns the chains that do not depend on the cluster's state.
    fn fixed(&self) -> Vec<Chain> {
        let mut fixed = self.renderer.fixed_chains(Layer::Filter, Family::V4);
        fixed.extend(self.renderer.host_dispatch(HostDispatch::Filter, [], false));
        fixed.push(self.renderer.cidr_block([], Family::V4));
        fixed
    }

    fn pod(&self, number: usize) -> [Chain; 2] {
        let own = (0..self.policies).filter(|policy| policy % self.pods == number % self.pods).map(Self::policy_id);
        let group = |id| PolicyGroup::new(Direction::Ingress, "all()", vec![id]);
        let tier = TierGroups {
            name: "default".into(),
            default_action: Some(TierDefaultAction::Deny),
            ingress: own.map(group).collect(),
            egress: Vec::new(),
        };
        self.renderer.workload_endpoint(Self::interface(number), AdminState::Active, &[tier], &[], None)
    }
}

struct Nftables {
    node: Node,
    namespace: Namespace,
    table: Table,
}

impl Nftables {
    fn new(size: Size) -> Self {
        Self::on(Namespace::new().unwrap(), size)
    }

    fn on(namespace: Namespace, size: Size) -> Self {
        let node = Node::new(PacketFilter::Nftables(NftablesConfig::default()), size);
        let mut ours = Self { node, namespace, table: Table::new(TableConfig::new(ID), Features::ALL) };
        for hook in ours.node.renderer.hooks().into_iter().filter(|hook| hook.table == Layer::Filter) {
            ours.table.set_hook(hook.table, hook.kernel_chain, hook.position, hook.rules);
        }
        let fixed = ours.node.fixed();
        let dispatch = ours.node.renderer.workload_dispatch([]);
        fixed.into_iter().chain(dispatch).for_each(|chain| ours.table.update_chain(Layer::Filter, chain));
        for policy in 0..size.policies {
            let (id, member) = Node::client(policy);
            ours.set_of(&id, &[member]);
            ours.policy(policy, 80);
        }
        (0..size.pods).for_each(|pod| ours.pod(pod));
        ours
    }

    fn restarted(self, size: Size) -> Self {
        let mut again = Self::on(self.namespace, size);
        again.pod(size.pods);
        again.policy(0, 8080);
        again
    }

    fn set(&mut self, id: &str, members: &[Member]) {
        self.set_of(&IpSetId::from(id), members);
    }

    fn set_of(&mut self, id: &IpSetId, members: &[Member]) {
        let name = set_name(Family::V4, id).unwrap();
        self.table.replace_set(id, name, SetType::HashNet, members.iter().copied()).unwrap();
    }

    fn policy(&mut self, number: usize, port: u16) {
        let chain = self.node.policy(number, port);
        self.table.update_chain(Layer::Filter, chain);
    }

    fn pod(&mut self, number: usize) {
        let interface = Node::interface(number);
        self.node.pod(number).into_iter().for_each(|chain| self.table.update_chain(Layer::Filter, chain));
        for (map, verdict) in self.node.renderer.workload_maps(interface, Some((AdminState::Active, None))) {
            self.table.set_verdict(Layer::Filter, map, MapKey::Interface(interface), verdict);
        }
    }

    fn apply(&mut self) -> Vec<Transaction> {
        let table = &mut self.table;
        let made = self.namespace.run(|| Nft::open().unwrap().apply(table)).unwrap().unwrap();
        assert!(self.table.problems().is_empty(), "{:?}", self.table.problems());
        made
    }
}

struct Iptables {
    node: Node,
    namespace: Namespace,
    table: Reconciler,
    sets: IpSets,
    interfaces: usize,
}

impl Iptables {
    fn new(size: Size) -> Self {
        Self::on(Namespace::new().unwrap(), size)
    }

    fn on(namespace: Namespace, size: Size) -> Self {
        let node = Node::new(PacketFilter::Iptables, size);
        let config = ReconcilerConfig::new(Layer::Filter, Family::V4, Backend::Nft);
        let mut theirs = Self {
            node,
            namespace,
            table: Reconciler::new(config, tortie_iptables::Features::ALL),
            sets: IpSets::new(Family::V4, tortie_ipsets::Config::default()),
            interfaces: 0,
        };
        for hook in theirs.node.renderer.hooks().into_iter().filter(|hook| hook.table == Layer::Filter) {
            theirs.table.set_hook(hook.kernel_chain, hook.position, hook.rules);
        }
        for chain in theirs.node.fixed() {
            theirs.table.update_chain(chain);
        }
        for policy in 0..size.policies {
            let (id, member) = Node::client(policy);
            theirs.set_of(&id, &[member]);
            theirs.policy(policy, 80);
        }
        (0..size.pods).for_each(|pod| theirs.chains(pod));
        theirs.dispatch(size.pods);
        theirs
    }

    fn restarted(self, size: Size) -> Self {
        let mut again = Self::on(self.namespace, size);
        again.pod(size.pods);
        again.policy(0, 8080);
        again
    }

    fn set(&mut self, id: &str, members: &[Member]) {
        self.set_of(&IpSetId::from(id), members);
    }

    fn set_of(&mut self, id: &IpSetId, members: &[Member]) {
        self.sets.add_or_replace(id, SetSpec::new(SetType::HashNet), members.iter().copied()).unwrap();
    }

    fn policy(&mut self, number: usize, port: u16) {
        self.table.update_chain(self.node.policy(number, port));
    }

    fn chains(&mut self, number: usize) {
        self.node.pod(number).into_iter().for_each(|chain| self.table.update_chain(chain));
    }

    fn dispatch(&mut self, interfaces: usize) {
        self.interfaces = interfaces;
        let dispatch = self.node.renderer.workload_dispatch((0..interfaces).map(Node::interface));
        dispatch.into_iter().for_each(|chain| self.table.update_chain(chain));
    }

    fn pod(&mut self, number: usize) {
        self.chains(number);
        self.dispatch(self.interfaces + 1);
    }

    fn invalidate(&mut self) {
        self.table.invalidate();
        self.sets.queue_resync(tortie_ipsets::Resync::Full);
    }

    fn apply(&mut self) {
        let mut now = Duration::ZERO;
        loop {
            let plan = self.sets.plan(now);
            if let Some(command) = plan.command() {
                let output = self.namespace.output(Command::new("ipset").args(&command.args), &command.input);
                let result = output.map(|output| self.sets.on_output(&output.stdout));
                self.sets.on_exit(now, result.map_err(|error| CommandFailure::new(error.to_string())));
                continue;
            }
            match plan {
                SetPlan::Sleep(time) => now += time,
                _ => break,
            }
        }
        loop {
            match self.table.plan(now) {
                Plan::Save(command) => {
                    let output = self.namespace.output(Command::new(&command.program).args(&command.args), "").unwrap();
                    let mut reader = self.table.save_reader();
                    reader.feed(&output.stdout);
                    self.table.on_saved(now, reader.finish().map_err(CommandError::from));
                }
                Plan::Restore(command) => {
                    let input = &command.input;
                    self.namespace.output(Command::new(&command.program).args(&command.args), input).unwrap();
                    self.table.on_restored(now, Ok(()));
                }
                Plan::Sleep { until } => now = until,
                Plan::Done { .. } => return,
                Plan::Failed(error) => panic!("{error}"),
            }
        }
    }
}

/// A namespace that `nft` alone writes to.
struct Bare(Namespace);

impl Bare {
    fn new() -> Self {
        Self(Namespace::new().unwrap())
    }

    fn load(&self, transactions: &[Transaction]) -> Duration {
        let text: String = transactions.iter().map(ToString::to_string).collect();
        self.nft(&text)
    }

    fn nft(&self, text: &str) -> Duration {
        let mut nft = Command::new("nft");
        nft.args(["-f", "-"]);
        timed(|| self.0.output(&mut nft, text).unwrap()).1
    }
}

trait TimedOutput {
    fn timed_output(&mut self, namespace: &Namespace) -> Duration;
}

impl TimedOutput for Command {
    fn timed_output(&mut self, namespace: &Namespace) -> Duration {
        timed(|| namespace.output(self, "").unwrap()).1
    }
}
