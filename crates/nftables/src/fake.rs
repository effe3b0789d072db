//! One table of a kernel in memory, which takes and refuses transactions as the kernel does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Cidr, InterfaceName};
use tortie_netfilter::{MapKey, MapKind, Member};

use crate::expression::{Expression, SetReference, Verdict};
use crate::names::{LayeredName, MAX_NAME_LEN};
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
    /// What is refused besides what the kernel refuses.
    pub refuse: Option<Refusal>,
    /// So many transactions fail, without a word about why.
    pub failures: u32,
    /// So many transactions end in their midst for want of memory.
    pub out_of_memory: u32,
    /// Interfaces that are not there.
    pub missing_devices: BTreeSet<InterfaceName>,
    /// So many readings fail.
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
    maps: BTreeMap<String, (MapKind, BTreeMap<MapKey, Verdict>)>,
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

    /// Does what a table asks for until it is done, letting time pass as it likes.
    ///
    /// # Errors
    /// If the table gives up.
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
    /// If something is refused.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(CommitError::Failed("injected failure".to_owned()));
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
            let result = match injected {
                Some(reason) => Err(reason),
                None => make(&mut content, &mut handle, &self.missing_devices, command),
            };
            refused.extend(result.err().map(|reason| (at, reason)));
        }
        if !refused.is_empty() {
            return Err(CommitError::Refused(refused));
        }
        (self.content, self.next_handle) = (content, handle);
        self.transactions.push(transaction.clone());
        Ok(())
    }

    /// What there is.
    ///
    /// # Errors
    /// If that is to fail.
    pub fn read(&mut self) -> Result<Option<Snapshot>, ReadError> {
        if self.read_failures > 0 {
            self.read_failures -= 1;
            return Err(ReadError::Failed("injected failure".to_owned()));
        }
        Ok(self.content.as_ref().map(Content::snapshot))
    }

    /// Somebody deletes the table.
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

fn make(
    content: &mut Option<Content>,
    handle: &mut u64,
    missing: &BTreeSet<InterfaceName>,
    command: &Command,
) -> Result<(), String> {
    match (content, command) {
        (content @ None, Command::AddTable) => {
            *content = Some(Content::default());
            Ok(())
        }
        (Some(_), Command::AddTable) => Ok(()),
        (None, _) => Err(NOT_THERE.to_owned()),
        (content, Command::DeleteTable) => {
            *content = None;
            Ok(())
        }
        (Some(content), command) => content.make(handle, missing, command),
    }
}

const NOT_THERE: &str = "No such file or directory";
const BUSY: &str = "Device or resource busy";

fn there<T>(found: Option<T>) -> Result<T, String> {
    found.ok_or_else(|| NOT_THERE.to_owned())
}

impl Content {
    fn make(&mut self, handle: &mut u64, missing: &BTreeSet<InterfaceName>, command: &Command) -> Result<(), String> {
        match command {
            Command::AddTable | Command::DeleteTable => {}
            Command::AddChain { chain, base } => {
                if chain.as_str().len() > MAX_NAME_LEN {
                    return Err("File name too long".to_owned());
                }
                let known =
                    self.chains.entry(chain.clone()).or_insert_with(|| Chain { base: *base, rules: Vec::new() });
                if known.base != *base {
                    return Err("File exists".to_owned());
                }
            }
            Command::FlushChain { chain } => there(self.chains.get_mut(chain))?.rules.clear(),
            Command::DeleteChain { chain } => {
                let is_empty = there(self.chains.get(chain))?.rules.is_empty();
                if !is_empty || self.leads_to(chain) {
                    return Err(BUSY.to_owned());
                }
                self.chains.remove(chain);
            }
            Command::AddRule { chain, rule } => {
                self.check(rule)?;
                *handle += 1;
                there(self.chains.get_mut(chain))?.rules.push((*handle, Arc::clone(rule)));
            }
            Command::ReplaceRule { chain, handle: replaced, rule } => {
                self.check(rule)?;
                *handle += 1;
                let rules = &mut there(self.chains.get_mut(chain))?.rules;
                *there(rules.iter_mut().find(|(known, _)| known == replaced))? = (*handle, Arc::clone(rule));
            }
            Command::DeleteRule { chain, handle } => {
                let rules = &mut there(self.chains.get_mut(chain))?.rules;
                let at = there(rules.iter().position(|(known, _)| known == handle))?;
                rules.remove(at);
            }
            Command::AddMap { map, kind } => {
                if self.sets.contains_key(map.as_str()) {
                    return Err("File exists".to_owned());
                }
                let known = self.maps.entry(map.to_string()).or_insert_with(|| (*kind, BTreeMap::new()));
                if known.0 != *kind {
                    return Err("File exists".to_owned());
                }
            }
            Command::FlushMap { map } => there(self.maps.get_mut(map.as_str()))?.1.clear(),
            Command::DeleteMap { map } => self.delete_set(map.as_str())?,
            Command::AddMapElements { map, elements } => {
                for (key, verdict) in elements {
                    if let Verdict::Jump(chain) | Verdict::Goto(chain) = verdict {
                        there(self.chains.get(&LayeredName::from_kernel(chain)))?;
                    }
                    let (kind, known) = there(self.maps.get_mut(map.as_str()))?;
                    if key.kind() != *kind {
                        return Err("Invalid argument".to_owned());
                    }
                    if known.insert(*key, verdict.clone()).is_some_and(|old| old != *verdict) {
                        return Err("File exists".to_owned());
                    }
                }
            }
            Command::DeleteMapElements { map, elements } => {
                for (key, _) in elements {
                    there(there(self.maps.get_mut(map.as_str()))?.1.remove(key))?;
                }
            }
            Command::AddFlowTable { devices } => {
                there(devices.iter().all(|device| !missing.contains(device)).then_some(()))?;
                self.flow_tables.entry(FLOW_TABLE.to_owned()).or_default().extend(devices.iter().copied());
            }
            Command::DeleteFlowDevices { devices } => {
                let known = there(self.flow_tables.get_mut(FLOW_TABLE))?;
                for device in devices {
                    there(known.remove(device).then_some(()))?;
                }
            }
            Command::DeleteFlowTable { name } => {
                let is_used = self.chains.values().flat_map(|chain| &chain.rules).any(|(_, rule)| {
                    rule.expressions.iter().any(|it| matches!(it, Expression::FlowOffload { table } if table == name))
                });
                if is_used {
                    return Err(BUSY.to_owned());
                }
                there(self.flow_tables.remove(&**name))?;
            }
            Command::AddSet { set, kind } => {
                let known = self.sets.entry(set.to_string()).or_insert_with(|| (*kind, BTreeSet::new()));
                if known.0 != *kind || self.maps.contains_key(set.as_str()) {
                    return Err("File exists".to_owned());
                }
            }
            Command::DeleteSet { set } => self.delete_set(set)?,
            Command::AddElements { set, kind, elements } => {
                let (known, members) = there(self.sets.get_mut(set.as_str()))?;
                if known != kind {
                    return Err("Invalid argument".to_owned());
                }
                for member in elements {
                    if *kind == SetKind::Networks
                        && members.iter().any(|known| known != member && overlap(known, member))
                    {
                        return Err("interval overlaps with an existing one".to_owned());
                    }
                    members.insert(*member);
                }
            }
            Command::DeleteElements { set, elements, .. } => {
                let (_, members) = there(self.sets.get_mut(set.as_str()))?;
                for member in elements {
                    there(members.remove(member).then_some(()))?;
                }
            }
        }
        Ok(())
    }

    fn delete_set(&mut self, name: &str) -> Result<(), String> {
        let asks = |rule: &Arc<ProgramRule>| rule.expressions.iter().any(|expression| asks_for(expression, name));
        if self.chains.values().flat_map(|chain| &chain.rules).any(|(_, rule)| asks(rule)) {
            return Err(BUSY.to_owned());
        }
        let was_there = self.sets.remove(name).is_some() | self.maps.remove(name).is_some();
        there(was_there.then_some(()))
    }

    fn leads_to(&self, chain: &LayeredName) -> bool {
        let by_rule = |rule: &Arc<ProgramRule>| rule.expressions.iter().any(|it| target(it) == Some(chain.as_str()));
        self.chains.values().flat_map(|chain| &chain.rules).any(|(_, rule)| by_rule(rule))
            || self.maps.values().flat_map(|(_, members)| members.values()).any(|to| leads_to(to, chain.as_str()))
    }

    /// Whether all that a rule refers to is there.
    fn check(&self, rule: &ProgramRule) -> Result<(), String> {
        for expression in &rule.expressions {
            if let Some(chain) = target(expression) {
                there(self.chains.get(&LayeredName::from_kernel(chain)))?;
            }
            match expression {
                Expression::Lookup { set: SetReference::Named(set), .. } => {
                    there(self.sets.get(&**set))?;
                }
                Expression::VerdictMap { map, .. } => {
                    there(self.maps.get(&**map))?;
                }
                Expression::FlowOffload { table } => {
                    there(self.flow_tables.get(&**table))?;
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
        let map = |(name, (kind, members)): (&String, &(MapKind, BTreeMap<MapKey, Verdict>))| {
            let verdicts = members.iter().map(|(key, verdict)| (map_key_bytes(*key), verdict.clone()));
            let (shape, elements) = (SetShape::Map(*kind), BTreeSet::new());
            (name.clone(), ObservedSet { shape, elements, verdicts: verdicts.collect() })
        };
        Snapshot {
            flags: 0,
            flow_tables: self.flow_tables.clone(),
            chains: self.chains.iter().map(chain).collect(),
            sets: self.sets.iter().map(set).chain(self.maps.iter().map(map)).collect(),
        }
    }
}

fn leads_to(verdict: &Verdict, chain: &str) -> bool {
    matches!(verdict, Verdict::Jump(to) | Verdict::Goto(to) if &**to == chain)
}

fn target(expression: &Expression) -> Option<&str> {
    match expression {
        Expression::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    }
}

fn asks_for(expression: &Expression, name: &str) -> bool {
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
