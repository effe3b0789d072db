//! One table of a kernel in memory, which accepts and refuses transactions like the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Cidr, InterfaceName};
use tortie_netfilter::{MapKey, MapKind, Member};

use crate::expression::{Expression, RuleVerdict, SetReference};
use crate::names::{LayeredName, MAX_NAME_LEN, SetName};
use crate::set::{ElementText, SetKind, element, map_key_bytes};
use crate::table::{CommitError, Plan, ReadError, Table, TableError};
use crate::transaction::{BaseChain, Command, FLOW_TABLE, ProgramRule, TableId, Transaction};
use crate::wire::{ObservedChain, ObservedRule, ObservedSet, SetShape, Snapshot};

/// Why a change is refused, if it is.
pub type Refusal = Arc<dyn Fn(&Command) -> Option<String> + Send + Sync>;

/// A kernel with one table.
#[derive(Clone)]
pub struct FakeKernel {
    table: TableId,
    content: Option<Content>,
    next_handle: u64,
    /// Additional refusals, besides the kernel's.
    pub refuse: Option<Refusal>,
    /// Number of transactions that fail without a reason.
    pub failures: u32,
    /// Number of transactions that fail halfway for lack of memory.
    pub out_of_memory: u32,
    /// Missing interfaces.
    pub missing_devices: BTreeSet<InterfaceName>,
    /// Number of readings that fail.
    pub read_failures: u32,
    /// Transactions that were made.
    pub transactions: Vec<Transaction>,
}

impl fmt::Debug for FakeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeKernel").field("content", &self.content).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    chains: BTreeMap<LayeredName, Chain>,
    sets: BTreeMap<String, (SetKind, BTreeSet<Member>)>,
    maps: BTreeMap<String, (MapKind, BTreeMap<MapKey, RuleVerdict>)>,
    flow_tables: BTreeMap<String, BTreeSet<InterfaceName>>,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    base: Option<BaseChain>,
    rules: Vec<(u64, Arc<ProgramRule>)>,
}

impl FakeKernel {
    /// Without the table.
    #[must_use]
    pub const fn new(table: TableId) -> Self {
        Self {
            table,
            content: None,
            next_handle: 1,
            refuse: None,
            failures: 0,
            out_of_memory: 0,
            missing_devices: BTreeSet::new(),
            read_failures: 0,
            transactions: Vec::new(),
        }
    }

    /// Executes the table's plans until it is done, and advances the time as they require.
    ///
    /// # Errors
    /// If a plan is [`Plan::Failed`].
    pub fn apply(&mut self, table: &mut Table, now: &mut Duration) -> Result<Option<Duration>, TableError> {
        loop {
            match table.plan(*now) {
                Plan::Read => {
                    let result = self.read();
                    table.on_read(*now, result);
                }
                Plan::Commit(transaction) => {
                    let result = self.commit(&transaction);
                    table.on_committed(*now, result);
                }
                Plan::Sleep { until } => *now = until,
                Plan::Done { recheck_after, .. } => return Ok(recheck_after),
                Plan::Failed(error) => return Err(error),
            }
        }
    }

    /// Makes all changes, or none.
    ///
    /// # Errors
    /// If a change is refused, or a failure is injected.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(CommitError::Failed("injected failure".into()));
        }
        if self.out_of_memory > 0 {
            self.out_of_memory -= 1;
            return Err(CommitError::answered([(
                transaction.commands.len() / 2,
                12,
                "Cannot allocate memory".to_owned(),
            )]));
        }
        let (mut content, mut handle) = (self.content.clone(), self.next_handle);
        let mut refused = Vec::new();
        for (at, command) in transaction.commands.iter().enumerate() {
            let injected = self.refuse.as_ref().and_then(|refuse| refuse(command));
            let reason = injected.or_else(|| {
                let made = make(&mut content, &mut handle, &self.missing_devices, command);
                made.err().map(|refused| refused.to_string())
            });
            refused.extend(reason.map(|reason| (at, reason)));
        }
        if !refused.is_empty() {
            return Err(CommitError::Refused(refused));
        }
        (self.content, self.next_handle) = (content, handle);
        self.transactions.push(transaction.clone());
        Ok(())
    }

    /// Returns the content of the table; `None` if there is no table.
    ///
    /// # Errors
    /// If a failure is injected.
    pub fn read(&mut self) -> Result<Option<Snapshot>, ReadError> {
        if self.read_failures > 0 {
            self.read_failures -= 1;
            return Err(ReadError::Failed("injected failure".into()));
        }
        Ok(self.content.as_ref().map(Content::snapshot))
    }

    /// Deletes the table, as another process would.
    pub fn delete_table(&mut self) {
        self.content = None;
    }

    /// Lines of `nft` that make the table, in a fixed order.
    #[must_use]
    pub fn dump(&self) -> Vec<String> {
        let Some(content) = &self.content else { return Vec::new() };
        let mut transaction = Transaction::new(self.table);
        let commands = &mut transaction.commands;
        commands.push(Command::AddTable);
        for (chain, content) in &content.chains {
            commands.push(Command::AddChain { chain: chain.clone(), base: content.base });
        }
        for (map, (kind, elements)) in &content.maps {
            let map = LayeredName::from_kernel(map);
            commands.push(Command::AddMap { map: map.clone(), kind: *kind });
            let elements = elements.iter().map(|(key, verdict)| (*key, verdict.clone())).collect();
            commands.push(Command::AddMapElements { map, elements });
        }
        for devices in content.flow_tables.values() {
            commands.push(Command::AddFlowTable { devices: devices.iter().copied().collect() });
        }
        for (chain, content) in &content.chains {
            let rules = content.rules.iter();
            commands.extend(rules.map(|(_, rule)| Command::AddRule { chain: chain.clone(), rule: Arc::clone(rule) }));
        }
        let mut lines: Vec<String> = transaction.to_string().lines().map(str::to_owned).collect();
        for (set, (kind, members)) in &content.sets {
            lines.push(format!("add set {} {set} {}", self.table, kind.declaration(self.table.family)));
            let elements = members.iter().map(|member| ElementText(*kind, member));
            lines.extend(elements.map(|element| format!("add element {} {set} {{ {element} }}", self.table)));
        }
        lines
    }
}

/// The kernel's message about a refused change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("No such file or directory")]
    NotThere,
    #[error("Device or resource busy")]
    Busy,
    #[error("File exists")]
    Exists,
    #[error("File name too long")]
    NameTooLong,
    #[error("Invalid argument")]
    Invalid,
    #[error("interval overlaps with an existing one")]
    Overlap,
}

fn make(
    content: &mut Option<Content>,
    handle: &mut u64,
    missing: &BTreeSet<InterfaceName>,
    command: &Command,
) -> Result<(), Refused> {
    match (content, command) {
        (content @ None, Command::AddTable) => {
            *content = Some(Content::default());
            Ok(())
        }
        (Some(_), Command::AddTable) => Ok(()),
        (None, _) => Err(Refused::NotThere),
        (content, Command::DeleteTable) => {
            *content = None;
            Ok(())
        }
        (Some(content), command) => content.make(handle, missing, command),
    }
}

fn existing<T>(found: Option<T>) -> Result<T, Refused> {
    found.ok_or(Refused::NotThere)
}

impl Content {
    fn make(&mut self, handle: &mut u64, missing: &BTreeSet<InterfaceName>, command: &Command) -> Result<(), Refused> {
        match command {
            Command::AddTable | Command::DeleteTable => Ok(()),
            Command::AddChain { chain, base } => self.add_chain(chain, *base),
            Command::FlushChain { chain } => self.rules(chain).map(Vec::clear),
            Command::DeleteChain { chain } => self.delete_chain(chain),
            Command::AddRule { chain, rule } => {
                self.check(rule)?;
                *handle += 1;
                self.rules(chain)?.push((*handle, Arc::clone(rule)));
                Ok(())
            }
            Command::ReplaceRule { chain, handle: replaced, rule } => {
                self.check(rule)?;
                *handle += 1;
                let mut rules = self.rules(chain)?.iter_mut();
                *existing(rules.find(|(known, _)| known == replaced))? = (*handle, Arc::clone(rule));
                Ok(())
            }
            Command::DeleteRule { chain, handle } => {
                let rules = self.rules(chain)?;
                let at = existing(rules.iter().position(|(known, _)| known == handle))?;
                rules.remove(at);
                Ok(())
            }
            Command::AddMap { map, kind } => self.add_map(map, *kind),
            Command::FlushMap { map } => existing(self.maps.get_mut(map.as_str())).map(|(_, members)| members.clear()),
            Command::DeleteMap { map } => self.delete_set(map.as_str()),
            Command::AddMapElements { map, elements } => self.add_map_elements(map, elements),
            Command::DeleteMapElements { map, elements } => elements.iter().try_for_each(|(key, _)| {
                let (_, members) = existing(self.maps.get_mut(map.as_str()))?;
                existing(members.remove(key)).map(drop)
            }),
            Command::AddFlowTable { devices } => self.add_flow_table(devices, missing),
            Command::DeleteFlowDevices { devices } => {
                let known = existing(self.flow_tables.get_mut(FLOW_TABLE))?;
                devices.iter().try_for_each(|device| existing(known.remove(device).then_some(())))
            }
            Command::DeleteFlowTable { name } => self.delete_flow_table(name),
            Command::AddSet { set, kind } => self.add_set(set, *kind),
            Command::DeleteSet { set } => self.delete_set(set),
            Command::AddElements { set, kind, elements } => self.add_elements(set, *kind, elements),
            Command::DeleteElements { set, elements, .. } => {
                let (_, members) = existing(self.sets.get_mut(set.as_str()))?;
                elements.iter().try_for_each(|member| existing(members.remove(member).then_some(())))
            }
        }
    }

    fn rules(&mut self, chain: &LayeredName) -> Result<&mut Vec<(u64, Arc<ProgramRule>)>, Refused> {
        existing(self.chains.get_mut(chain)).map(|chain| &mut chain.rules)
    }

    fn add_chain(&mut self, chain: &LayeredName, base: Option<BaseChain>) -> Result<(), Refused> {
        if chain.as_str().len() > MAX_NAME_LEN {
            return Err(Refused::NameTooLong);
        }
        let known = self.chains.entry(chain.clone()).or_insert_with(|| Chain { base, rules: Vec::new() });
        if known.base == base { Ok(()) } else { Err(Refused::Exists) }
    }

    fn delete_chain(&mut self, chain: &LayeredName) -> Result<(), Refused> {
        if !self.rules(chain)?.is_empty() || self.jumps_to(chain) {
            return Err(Refused::Busy);
        }
        self.chains.remove(chain);
        Ok(())
    }

    fn add_map(&mut self, map: &LayeredName, kind: MapKind) -> Result<(), Refused> {
        if self.sets.contains_key(map.as_str()) {
            return Err(Refused::Exists);
        }
        let known = self.maps.entry(map.to_string()).or_insert_with(|| (kind, BTreeMap::new()));
        if known.0 == kind { Ok(()) } else { Err(Refused::Exists) }
    }

    fn add_map_elements(&mut self, map: &LayeredName, elements: &[(MapKey, RuleVerdict)]) -> Result<(), Refused> {
        for (key, verdict) in elements {
            if let RuleVerdict::Jump(chain) | RuleVerdict::Goto(chain) = verdict {
                existing(self.chains.get(&LayeredName::from_kernel(chain)))?;
            }
            let (kind, known) = existing(self.maps.get_mut(map.as_str()))?;
            if key.kind() != *kind {
                return Err(Refused::Invalid);
            }
            if known.insert(*key, verdict.clone()).is_some_and(|old| old != *verdict) {
                return Err(Refused::Exists);
            }
        }
        Ok(())
    }

    fn add_flow_table(&mut self, devices: &[InterfaceName], missing: &BTreeSet<InterfaceName>) -> Result<(), Refused> {
        existing(devices.iter().all(|device| !missing.contains(device)).then_some(()))?;
        self.flow_tables.entry(FLOW_TABLE.to_owned()).or_default().extend(devices.iter().copied());
        Ok(())
    }

    fn delete_flow_table(&mut self, name: &str) -> Result<(), Refused> {
        let offloads_to = |it: &Expression| matches!(it, Expression::FlowOffload { table } if &**table == name);
        let mut rules = self.chains.values().flat_map(|chain| &chain.rules);
        if rules.any(|(_, rule)| rule.expressions.iter().any(offloads_to)) {
            return Err(Refused::Busy);
        }
        existing(self.flow_tables.remove(name)).map(drop)
    }

    fn add_set(&mut self, set: &SetName, kind: SetKind) -> Result<(), Refused> {
        let known = self.sets.entry(set.to_string()).or_insert_with(|| (kind, BTreeSet::new()));
        if known.0 != kind || self.maps.contains_key(set.as_str()) { Err(Refused::Exists) } else { Ok(()) }
    }

    fn add_elements(&mut self, set: &SetName, kind: SetKind, elements: &[Member]) -> Result<(), Refused> {
        let (known, members) = existing(self.sets.get_mut(set.as_str()))?;
        if *known != kind {
            return Err(Refused::Invalid);
        }
        for member in elements {
            if kind == SetKind::Networks && members.iter().any(|known| known != member && overlap(known, member)) {
                return Err(Refused::Overlap);
            }
            members.insert(*member);
        }
        Ok(())
    }

    fn delete_set(&mut self, name: &str) -> Result<(), Refused> {
        let asks = |rule: &Arc<ProgramRule>| rule.expressions.iter().any(|expression| uses_set(expression, name));
        if self.chains.values().flat_map(|chain| &chain.rules).any(|(_, rule)| asks(rule)) {
            return Err(Refused::Busy);
        }
        let was_there = self.sets.remove(name).is_some() | self.maps.remove(name).is_some();
        existing(was_there.then_some(()))
    }

    fn jumps_to(&self, chain: &LayeredName) -> bool {
        let by_rule = |rule: &Arc<ProgramRule>| rule.expressions.iter().any(|it| target(it) == Some(chain.as_str()));
        self.chains.values().flat_map(|chain| &chain.rules).any(|(_, rule)| by_rule(rule))
            || self.maps.values().flat_map(|(_, members)| members.values()).any(|to| jumps_to(to, chain.as_str()))
    }

    /// Checks that all objects that a rule refers to exist.
    fn check(&self, rule: &ProgramRule) -> Result<(), Refused> {
        for expression in &rule.expressions {
            if let Some(chain) = target(expression) {
                existing(self.chains.get(&LayeredName::from_kernel(chain)))?;
            }
            match expression {
                Expression::Lookup { set: SetReference::Named(set), .. } => {
                    existing(self.sets.get(&**set))?;
                }
                Expression::VerdictMap { map, .. } => {
                    existing(self.maps.get(&**map))?;
                }
                Expression::FlowOffload { table } => {
                    existing(self.flow_tables.get(&**table))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        let rule = |(handle, rule): &(u64, Arc<ProgramRule>)| ObservedRule {
            handle: *handle,
            comment: rule.shown.comment.clone(),
            expressions: rule.expressions.clone(),
            counted: None,
        };
        let chain = |(name, chain): (&LayeredName, &Chain)| {
            (name.clone(), ObservedChain { base: chain.base.map(Some), rules: chain.rules.iter().map(rule).collect() })
        };
        let set = |(name, (kind, members)): (&String, &(SetKind, BTreeSet<Member>))| {
            let elements = members.iter().map(|member| {
                let (begin, end) = element(*kind, member);
                (begin.as_bytes().to_vec(), end.map(|end| end.as_bytes().to_vec()))
            });
            let shape = SetShape::Set(*kind);
            (name.clone(), ObservedSet { shape, elements: elements.collect(), verdicts: BTreeMap::new() })
        };
        let map = |(name, (kind, members)): (&String, &(MapKind, BTreeMap<MapKey, RuleVerdict>))| {
            let verdicts = members.iter().map(|(key, verdict)| (map_key_bytes(*key), verdict.clone()));
            let (shape, elements) = (SetShape::Map(*kind), BTreeSet::new());
            (name.clone(), ObservedSet { shape, elements, verdicts: verdicts.collect() })
        };
        Snapshot {
            flags: 0,
            has_unreadable_names: false,
            flow_tables: self.flow_tables.clone(),
            chains: self.chains.iter().map(chain).collect(),
            sets: self.sets.iter().map(set).chain(self.maps.iter().map(map)).collect(),
        }
    }
}

fn jumps_to(verdict: &RuleVerdict, chain: &str) -> bool {
    matches!(verdict, RuleVerdict::Jump(to) | RuleVerdict::Goto(to) if &**to == chain)
}

fn target(expression: &Expression) -> Option<&str> {
    match expression {
        Expression::Verdict(RuleVerdict::Jump(chain) | RuleVerdict::Goto(chain)) => Some(chain),
        _ => None,
    }
}

fn uses_set(expression: &Expression, name: &str) -> bool {
    match expression {
        Expression::Lookup { set: SetReference::Named(set), .. } => &**set == name,
        Expression::VerdictMap { map, .. } => &**map == name,
        _ => false,
    }
}

fn overlap(a: &Member, b: &Member) -> bool {
    let net = |member: &Member| match member {
        Member::Net(net) => Some(net.cidr()),
        _ => None,
    };
    let has = |outer: Cidr, inner: Cidr| outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.address());
    net(a).zip(net(b)).is_some_and(|(a, b)| has(a, b) || has(b, a))
}
