//! Changes of a table that take effect together or not at all.

use std::fmt;
use std::sync::Arc;

use tortie_net::{Family, InterfaceName};
use tortie_netfilter::{MapKey, MapKind, Member};

use crate::expression::{Expression, RuleVerdict};
use crate::names::{LayeredName, SetName};
use crate::render::RenderedRule;
use crate::set::{ElementText, SetKind};
use crate::text::{ip, needs_quotes};

/// A table of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: &'static str,
    /// Whether it sees ARP packets instead of the family's. The family, IPv4, is that of the
    /// addresses in them.
    pub is_arp: bool,
}

impl TableId {
    /// Felix's table, which Tortie uses as well, so that either takes over the other's rules.
    #[must_use]
    pub const fn calico(family: Family) -> Self {
        Self::of(family, "calico")
    }

    /// Felix's table of ARP packets, which Tortie uses as well.
    pub const CALICO_ARP: Self = Self { family: Family::V4, name: "calico-arp", is_arp: true };

    /// Returns a table for packets of a family.
    #[must_use]
    pub const fn of(family: Family, name: &'static str) -> Self {
        Self { family, name, is_arp: false }
    }

    /// Label in metrics: `4`, `6` or `arp`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self { is_arp: true, .. } => "arp",
            Self { family: Family::V4, .. } => "4",
            Self { family: Family::V6, .. } => "6",
        }
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.is_arp { "arp" } else { ip(self.family) };
        write!(f, "{family} {}", self.name)
    }
}

/// Type, hook and priority of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseChain {
    /// Its type.
    pub kind: ChainKind,
    /// Its netfilter hook.
    pub hook: Hook,
    /// Its place among others at the hook.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum ChainKind {
    Filter,
    Nat,
    Route,
}

impl ChainKind {
    /// The kernel's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// Netfilter hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl Hook {
    /// The name in `nft` syntax.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}

impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, hook) = (self.kind.as_str(), self.hook.as_str());
        write!(f, "{{ type {kind} hook {hook} priority {} ; }}", self.priority)
    }
}

/// A rule as it is shown, and as the kernel runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRule {
    /// Text, comment and hash.
    pub shown: RenderedRule,
    /// Its program in the kernel.
    pub expressions: Vec<Expression>,
}

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names describe the fields")]
pub enum Command {
    /// Creates the table, unless it exists.
    AddTable,
    /// Removes the table with all that is in it.
    DeleteTable,
    /// Creates a chain, unless it exists.
    AddChain { chain: LayeredName, base: Option<BaseChain> },
    /// Removes all rules of a chain.
    FlushChain { chain: LayeredName },
    /// Removes a chain that is empty and unreferenced.
    DeleteChain { chain: LayeredName },
    /// Appends a rule to its chain.
    AddRule { chain: LayeredName, rule: Arc<ProgramRule> },
    /// Replaces a rule.
    ReplaceRule { chain: LayeredName, handle: u64, rule: Arc<ProgramRule> },
    /// Removes a rule.
    DeleteRule { chain: LayeredName, handle: u64 },
    /// Creates a verdict map, unless it exists.
    AddMap { map: LayeredName, kind: MapKind },
    /// Removes all elements of a map.
    FlushMap { map: LayeredName },
    /// Removes a map that no rule refers to.
    DeleteMap { map: LayeredName },
    /// Adds verdicts to a map.
    AddMapElements { map: LayeredName, elements: Vec<(MapKey, RuleVerdict)> },
    /// Removes verdicts from a map.
    DeleteMapElements { map: LayeredName, elements: Vec<(MapKey, RuleVerdict)> },
    /// Creates the flow table, unless it exists, and adds interfaces to it.
    AddFlowTable { devices: Vec<InterfaceName> },
    /// Removes interfaces from the flow table.
    DeleteFlowDevices { devices: Vec<InterfaceName> },
    /// Removes a flow table that no rule refers to, of any program.
    DeleteFlowTable { name: Arc<str> },
    /// Creates a set, unless it exists.
    AddSet { set: SetName, kind: SetKind },
    /// Removes a set that no rule refers to, of any program.
    DeleteSet { set: Arc<str> },
    /// Adds elements to a set.
    AddElements { set: SetName, kind: SetKind, elements: Vec<Member> },
    /// Removes elements of a set.
    DeleteElements { set: SetName, kind: SetKind, elements: Vec<Member> },
}

/// Changes of a table in their order.
///
/// It displays as the input of `nft -f`, one element per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The table.
    pub table: TableId,
    /// The changes.
    pub commands: Vec<Command>,
}

impl Transaction {
    /// Without changes.
    #[must_use]
    pub const fn new(table: TableId) -> Self {
        Self { table, commands: Vec::new() }
    }

    /// Reports whether it changes sets or their elements.
    #[must_use]
    pub fn changes_sets(&self) -> bool {
        self.commands.iter().any(|command| {
            matches!(
                command,
                Command::AddSet { .. }
                    | Command::DeleteSet { .. }
                    | Command::AddElements { .. }
                    | Command::DeleteElements { .. }
            )
        })
    }

    /// Number of lines as input of `nft`.
    #[must_use]
    pub fn line_count(&self) -> usize {
        let lines = |command: &Command| match command {
            Command::AddElements { elements, .. } | Command::DeleteElements { elements, .. } => elements.len(),
            Command::AddMapElements { elements, .. } | Command::DeleteMapElements { elements, .. } => elements.len(),
            _ => 1,
        };
        self.commands.iter().map(lines).sum()
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.commands.iter().try_for_each(|command| write_command(&self.table, command, f))
    }
}

fn write_command(table: &TableId, command: &Command, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match command {
        Command::AddTable => writeln!(f, "add table {table}"),
        Command::DeleteTable => writeln!(f, "delete table {table}"),
        Command::AddChain { chain, base: None } => writeln!(f, "add chain {table} {chain}"),
        Command::AddChain { chain, base: Some(base) } => writeln!(f, "add chain {table} {chain} {base}"),
        Command::FlushChain { chain } => writeln!(f, "flush chain {table} {chain}"),
        Command::DeleteChain { chain } => writeln!(f, "delete chain {table} {chain}"),
        Command::AddRule { chain, rule } => writeln!(f, "add rule {table} {chain} {}", RuleText(&rule.shown)),
        Command::ReplaceRule { chain, handle, rule } => {
            writeln!(f, "replace rule {table} {chain} handle {handle} {}", RuleText(&rule.shown))
        }
        Command::DeleteRule { chain, handle } => writeln!(f, "delete rule {table} {chain} handle {handle}"),
        Command::AddMap { map, kind } => {
            let key = match kind {
                MapKind::Interface => "ifname",
                MapKind::Mark => "mark",
                MapKind::Port => "inet_proto . inet_service",
                MapKind::Address => match table.family {
                    Family::V4 => "ipv4_addr",
                    Family::V6 => "ipv6_addr",
                },
            };
            writeln!(f, "add map {table} {map} {{ type {key} : verdict ; }}")
        }
        Command::FlushMap { map } => writeln!(f, "flush map {table} {map}"),
        Command::DeleteMap { map } => writeln!(f, "delete map {table} {map}"),
        Command::AddMapElements { map, elements } => elements
            .iter()
            .try_for_each(|element| writeln!(f, "add element {table} {map} {{ {} }}", MapElementText(element))),
        Command::DeleteMapElements { map, elements } => elements
            .iter()
            .try_for_each(|element| writeln!(f, "delete element {table} {map} {{ {} }}", MapElementText(element))),
        Command::AddFlowTable { devices } => writeln!(f, "add flowtable {table} {FLOW_TABLE} {}", FlowDevices(devices)),
        Command::DeleteFlowDevices { devices } => {
            writeln!(f, "delete flowtable {table} {FLOW_TABLE} {}", FlowDevices(devices))
        }
        Command::DeleteFlowTable { name } => writeln!(f, "delete flowtable {table} {name}"),
        Command::AddSet { set, kind } => writeln!(f, "add set {table} {set} {}", kind.declaration(table.family)),
        Command::DeleteSet { set } => writeln!(f, "delete set {table} {set}"),
        Command::AddElements { set, kind, elements } => elements
            .iter()
            .try_for_each(|member| writeln!(f, "add element {table} {set} {{ {} }}", ElementText(*kind, member))),
        Command::DeleteElements { set, kind, elements } => elements
            .iter()
            .try_for_each(|member| writeln!(f, "delete element {table} {set} {{ {} }}", ElementText(*kind, member))),
    }
}

/// The name of the flow table.
pub(crate) const FLOW_TABLE: &str = "calico";

struct FlowDevices<'a>(&'a [InterfaceName]);

impl fmt::Display for FlowDevices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{ hook ingress priority filter ; ")?;
        for (at, device) in self.0.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "devices = { " } else { ", " }, Interface(*device))?;
        }
        f.write_str(if self.0.is_empty() { "}" } else { " } ; }" })
    }
}

/// In quotes where `nft` would misread the name.
struct Interface(InterfaceName);

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if needs_quotes(self.0) { write!(f, "\"{}\"", self.0) } else { self.0.fmt(f) }
    }
}

struct MapElementText<'a>(&'a (MapKey, RuleVerdict));

impl fmt::Display for MapElementText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, verdict) = self.0;
        match key {
            MapKey::Interface(name) => write!(f, "{}", Interface(*name))?,
            MapKey::Mark(mark) => write!(f, "{mark:#x}")?,
            MapKey::Port(protocol, port) => write!(f, "{protocol} . {port}")?,
            MapKey::Address(address) => write!(f, "{address}")?,
        }
        match verdict {
            RuleVerdict::Accept => f.write_str(" : accept"),
            RuleVerdict::Drop => f.write_str(" : drop"),
            RuleVerdict::Continue => f.write_str(" : continue"),
            RuleVerdict::Return => f.write_str(" : return"),
            RuleVerdict::Jump(chain) => write!(f, " : jump {chain}"),
            RuleVerdict::Goto(chain) => write!(f, " : goto {chain}"),
        }
    }
}

struct RuleText<'a>(&'a RenderedRule);

impl fmt::Display for RuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} comment \"{}\"", self.0.text, self.0.comment)
    }
}
