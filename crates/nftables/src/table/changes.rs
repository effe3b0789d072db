//! The differences as one transaction, or as two if there are new sets, or if maps are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_net::{Cidr, Family, IpPortMember, PortProtocol};
use tortie_netfilter::{ChainName, MapKey, MapKind, MapVerdict, Member, NetMember, NetPair, Table as Layer};

use super::desired::DesiredRule;
use super::observed::{self, Elements, Observed};
use super::sets::{ChangedMembers, DesiredSet};
use super::{Table, VerdictMap};
use crate::digest::Digest;
use crate::expression::RuleVerdict;
use crate::names::{LayeredName, SetName};
use crate::set::{Key, SetKind, element, map_key, map_key_bytes};
use crate::transaction::{Command, FLOW_TABLE, ProgramRule, Transaction};
use crate::wire::SetShape;

impl Table {
    /// Returns the changes from the kernel's to the desired state, in an order in which the kernel
    /// accepts each of them, and whether these are all changes.
    ///
    /// If a rule changes, new sets are filled before everything else. In a transaction the kernel
    /// switches to the new rules first, and the elements of a set of networks become visible a
    /// moment later. Until then every packet would find the set empty.
    ///
    /// A packet continues with the rules that were in force when it arrived, but looks up current
    /// elements. So a chain is created before a map leads to it by port or address: such a packet
    /// would find a new chain without rules.
    ///
    /// Maps that no rule uses any more are removed in a later transaction. A packet on its way
    /// through the old rules during the switch must still find their elements.
    #[expect(clippy::expect_used, reason = "plans read the table first")]
    pub(super) fn changes(&self) -> (Transaction, bool) {
        let mut transaction = Transaction::new(self.config.id);
        let observed = self.kernel.observed.as_ref().expect("the table was read");
        if self.config.is_sparse && self.desired.is_empty() {
            return self.removal(observed);
        }
        let rewrites = self.must_rewrite_table(observed);
        let nothing = Observed::default();
        if rewrites {
            transaction.commands.push(Command::DeleteTable);
        }
        let observed = if rewrites { &nothing } else { observed };
        if !observed.exists {
            transaction.commands.push(Command::AddTable);
        }
        let all = rewrites || self.pending.all || !observed.exists;
        let mut parts = Parts::default();
        self.set_changes(observed, all, &mut parts);
        self.map_changes(observed, all, &mut parts);
        self.chain_changes(observed, all, &mut parts);
        let has_rules = !parts.rules.is_empty();
        let chains_first = !rewrites && parts.jumps_to_parts && !parts.new_chains.is_empty();
        if (has_rules && !rewrites && !parts.new_elements.is_empty()) || chains_first {
            transaction.commands.extend(parts.new_sets.into_iter().chain(parts.new_elements));
            if chains_first {
                let is_new = |command: &Command| match command {
                    Command::AddRule { chain, .. } => !observed.chains.contains_key(chain),
                    Command::AddMapElements { map, .. } => !observed.sets.contains_key(map.as_str()),
                    _ => false,
                };
                transaction.commands.extend(parts.new_maps.into_iter().chain(parts.new_chains));
                transaction.commands.extend(parts.rules.into_iter().chain(parts.added_map_elements).filter(is_new));
            }
            return (transaction, false);
        }
        let (flow_tables, deleted_flow_tables) = self.flow_changes(observed, all);
        let go_later = has_rules && !rewrites && !parts.emptied_maps.is_empty();
        let order = [
            parts.new_sets,
            parts.new_elements,
            parts.new_maps,
            parts.elements,
            flow_tables,
            parts.new_chains,
            parts.deleted_map_elements,
            parts.rules,
            parts.added_map_elements,
        ];
        transaction.commands.extend(order.into_iter().flatten());
        if go_later {
            return (transaction, false);
        }
        // Chains that a map leads to are among them.
        let removals =
            [parts.emptied_maps, parts.emptied, parts.deleted_chains, parts.deleted_sets, deleted_flow_tables];
        transaction.commands.extend(removals.into_iter().flatten());
        if transaction.commands == [Command::AddTable] {
            transaction.commands.clear();
        }
        (transaction, true)
    }

    /// Returns the removal of the table. Packets are kept from its chains first: one on its way
    /// through them would find maps without elements.
    fn removal(&self, observed: &Observed) -> (Transaction, bool) {
        let is_hooked = |chain: &observed::Chain| chain.base.is_some() && !chain.rules.is_empty();
        let hooked = observed.chains.iter().filter(|(_, chain)| is_hooked(chain));
        let mut commands: Vec<Command> = hooked.map(|(name, _)| Command::FlushChain { chain: name.clone() }).collect();
        let is_all = commands.is_empty();
        if is_all && observed.exists {
            commands.push(Command::DeleteTable);
        }
        (Transaction { table: self.config.id, commands }, is_all)
    }

    /// Reports whether the whole table must be written again, in one transaction. The type of a set
    /// or map cannot be changed, nor can it be removed while rules use it. A dormant table sees no
    /// packet.
    fn must_rewrite_table(&self, observed: &Observed) -> bool {
        let differs = |name: &str, shape: SetShape| observed.sets.get(name).is_some_and(|set| set.shape != shape);
        observed.flags != 0
            || self.desired.sets.iter().any(|(name, set)| differs(name.as_str(), SetShape::Set(set.kind)))
            || self.desired.maps.iter().any(|((layer, name), map)| {
                differs(LayeredName::new(*layer, name.as_str()).as_str(), SetShape::Map(map.kind))
            })
    }

    fn set_changes(&self, observed: &Observed, all: bool, parts: &mut Parts) {
        let names: BTreeSet<SetName> =
            if all { self.desired.sets.keys().copied().collect() } else { self.pending.sets.clone() };
        for name in names {
            let known = observed.sets.get(name.as_str());
            let Some(set) = self.desired.sets.get(&name) else {
                parts.deleted_sets.extend(known.map(|_| Command::DeleteSet { set: name.as_str().into() }));
                continue;
            };
            if set.is_refused() {
                // It stays as it is. Rules with a missing set are refused, and their chains closed.
                continue;
            }
            let kind = set.kind;
            if known.is_none() {
                parts.new_sets.push(Command::AddSet { set: name, kind });
            }
            if set.has_foreign_members {
                continue;
            }
            let empty = Elements::default();
            let had = known.map_or(&empty, |known| &known.elements);
            let (gone, new) = match set.changed_members() {
                ChangedMembers::Some(changed_members) if known.is_some() => {
                    let changed_members: BTreeSet<&Member> = changed_members.iter().collect();
                    let differing = changed_members
                        .into_iter()
                        .filter(|member| set.has(member) != had.contains(&element(kind, member)));
                    differing.copied().partition(|member| !set.has(member))
                }
                _ => self.all_elements(set, had),
            };
            // New elements come behind the removed ones that they may replace.
            parts.elements.extend((!gone.is_empty()).then_some(Command::DeleteElements {
                set: name,
                kind,
                elements: gone,
            }));
            let place = if known.is_none() { &mut parts.new_elements } else { &mut parts.elements };
            place.extend((!new.is_empty()).then_some(Command::AddElements { set: name, kind, elements: new }));
        }
        if all {
            let sets = self.desired.sets.keys().map(|name| name.as_str().to_owned());
            let maps = self.desired.maps.keys().map(|(layer, map)| LayeredName::new(*layer, map.as_str()));
            let wanted: BTreeSet<String> = sets.chain(maps.map(|name| name.as_str().to_owned())).collect();
            for (name, set) in observed.sets.iter().filter(|(name, _)| !wanted.contains(*name)) {
                match set.shape {
                    SetShape::Map(_) | SetShape::OtherMap => parts.delete_map(LayeredName::from_kernel(name)),
                    SetShape::Set(_) | SetShape::Other => {
                        parts.deleted_sets.push(Command::DeleteSet { set: name.as_str().into() });
                    }
                }
            }
        }
    }

    /// Returns the surplus members of the kernel's set, and the missing ones.
    fn all_elements(&self, set: &DesiredSet, had: &Elements) -> (Vec<Member>, Vec<Member>) {
        let (kind, family) = (set.kind, self.config.id.family);
        let wanted: BTreeMap<(Key, Option<Key>), Member> =
            set.elements().map(|member| (element(kind, &member), member)).collect();
        let gone = had.iter().filter(|element| !wanted.contains_key(element));
        let new = wanted.iter().filter(|(element, _)| !had.contains(element));
        (
            gone.filter_map(|element| member_of(kind, family, element)).collect(),
            new.map(|(_, member)| *member).collect(),
        )
    }

    fn map_changes(&self, observed: &Observed, all: bool, parts: &mut Parts) {
        let names: BTreeMap<(Layer, ChainName), Option<&BTreeSet<MapKey>>> = if all {
            self.desired.maps.keys().map(|name| (*name, None)).collect()
        } else {
            self.pending.maps.iter().map(|(name, keys)| (*name, keys.as_ref())).collect()
        };
        for ((layer, map), keys) in names {
            let name = LayeredName::new(layer, map.as_str());
            let known = observed.sets.get(name.as_str());
            let Some(VerdictMap { kind, members }) = self.desired.maps.get(&(layer, map)) else {
                if known.is_some() {
                    parts.delete_map(name);
                }
                continue;
            };
            if known.is_none() {
                parts.new_maps.push(Command::AddMap { map: name.clone(), kind: *kind });
            }
            let (had, wanted): (BTreeMap<MapKey, &RuleVerdict>, BTreeMap<MapKey, RuleVerdict>) = match keys {
                Some(keys) => {
                    let had = |key: &MapKey| Some((*key, known?.verdicts.get(&map_key_bytes(*key))?));
                    let wanted = |key: &MapKey| Some((*key, self.verdict(layer, *members.get(key)?)));
                    (keys.iter().filter_map(had).collect(), keys.iter().filter_map(wanted).collect())
                }
                None => {
                    let had = known.into_iter().flat_map(|known| &known.verdicts);
                    let wanted = members.iter().map(|(key, verdict)| (*key, self.verdict(layer, *verdict)));
                    (had.filter_map(|(key, verdict)| Some((map_key(*kind, key)?, verdict))).collect(), wanted.collect())
                }
            };
            let differs = |(key, verdict): &(&MapKey, &RuleVerdict), other: Option<&RuleVerdict>| {
                other != Some(*verdict) && (**key).kind() == *kind
            };
            let lost: Vec<(MapKey, RuleVerdict)> = had
                .iter()
                .filter(|(key, verdict)| differs(&(key, verdict), wanted.get(key)))
                .map(|(key, verdict)| (*key, (*verdict).clone()))
                .collect();
            let new: Vec<(MapKey, RuleVerdict)> = wanted
                .iter()
                .filter(|(key, verdict)| differs(&(key, verdict), had.get(key).copied()))
                .map(|(key, verdict)| (*key, verdict.clone()))
                .collect();
            parts
                .deleted_map_elements
                .extend((!lost.is_empty()).then(|| Command::DeleteMapElements { map: name.clone(), elements: lost }));
            parts.jumps_to_parts |=
                known.is_some() && matches!(kind, MapKind::Port | MapKind::Address) && !new.is_empty();
            parts
                .added_map_elements
                .extend((!new.is_empty()).then(|| Command::AddMapElements { map: name.clone(), elements: new }));
        }
    }

    fn verdict(&self, layer: Layer, verdict: MapVerdict) -> RuleVerdict {
        let name = |chain| self.layered(layer, chain).as_str().into();
        match verdict {
            MapVerdict::Accept => RuleVerdict::Accept,
            MapVerdict::Jump(chain) => RuleVerdict::Jump(name(chain)),
            MapVerdict::Goto(chain) => RuleVerdict::Goto(name(chain)),
        }
    }

    #[expect(clippy::expect_used, reason = "the plan has compiled all wanted chains that have changed")]
    fn chain_changes(&self, observed: &Observed, all: bool, parts: &mut Parts) {
        let names: BTreeSet<&LayeredName> = if all {
            self.desired.chains.keys().chain(observed.chains.keys()).collect()
        } else {
            self.pending.chains.iter().collect()
        };
        for name in names {
            let known = observed.chains.get(name);
            let Some(wanted) = self.desired.chains.get(name) else {
                if let Some(known) = known {
                    let flush = || Command::FlushChain { chain: name.clone() };
                    // The rules of a base chain end with those that are replaced.
                    let place = if known.base.is_some() { &mut parts.rules } else { &mut parts.emptied };
                    place.extend((!known.rules.is_empty()).then(flush));
                    if !self.faults.undeletable.contains_key(name) {
                        parts.deleted_chains.push(Command::DeleteChain { chain: name.clone() });
                    }
                }
                continue;
            };
            if self.is_left_alone(name) {
                continue;
            }
            let add = || Command::AddChain { chain: name.clone(), base: wanted.base };
            let same_rules = |known: &[observed::Rule]| {
                known.len() == wanted.len() && known.iter().zip(&wanted.rules).all(|pair| is_same(&pair))
            };
            if known.is_some_and(|known| known.base == wanted.base.map(Some) && same_rules(&known.rules)) {
                continue;
            }
            let rules = self.complete(name, wanted).expect("a wanted chain is defined, and was compiled");
            match known {
                None => {
                    parts.new_chains.push(add());
                    parts.rules.extend(rules.iter().map(|rule| added(name, rule)));
                }
                Some(known) if known.base != wanted.base.map(Some) => {
                    // Hook and priority of a chain cannot be changed.
                    parts.rules.extend((!known.rules.is_empty()).then(|| Command::FlushChain { chain: name.clone() }));
                    parts.rules.push(Command::DeleteChain { chain: name.clone() });
                    parts.rules.push(add());
                    parts.rules.extend(rules.iter().map(|rule| added(name, rule)));
                }
                Some(known) => rule_changes(name, &known.rules, &rules, &mut parts.rules),
            }
        }
    }

    /// Marks everything as compared.
    pub(super) fn settle(&mut self) {
        if self.pending.all {
            self.desired.sets.values_mut().for_each(DesiredSet::settle);
        }
        for name in &self.pending.sets {
            self.desired.sets.get_mut(name).into_iter().for_each(DesiredSet::settle);
        }
        self.forget_contents();
        self.pending = super::Pending::default();
    }

    /// Applies a committed transaction to the observed state.
    #[expect(clippy::expect_used, reason = "a transaction is made of the difference to an observed table")]
    pub(super) fn take_effect(&mut self, transaction: &Transaction, is_all: bool) {
        let observed = self.kernel.observed.as_mut().expect("the table was read before it was written");
        for command in &transaction.commands {
            observed.take(command);
        }
        if is_all {
            self.settle();
        }
    }
}

/// Commands, by their order in a transaction.
#[derive(Default)]
struct Parts {
    new_sets: Vec<Command>,
    /// Of new sets.
    new_elements: Vec<Command>,
    new_maps: Vec<Command>,
    elements: Vec<Command>,
    new_chains: Vec<Command>,
    deleted_map_elements: Vec<Command>,
    rules: Vec<Command>,
    added_map_elements: Vec<Command>,
    /// Whether some of these lead to rules of policies by port or address.
    jumps_to_parts: bool,
    emptied_maps: Vec<Command>,
    emptied: Vec<Command>,
    deleted_chains: Vec<Command>,
    deleted_sets: Vec<Command>,
}

impl Parts {
    /// Removes a map. Chains that it leads to can be removed only after its elements.
    fn delete_map(&mut self, map: LayeredName) {
        self.emptied_maps.push(Command::FlushMap { map: map.clone() });
        self.deleted_sets.push(Command::DeleteMap { map });
    }
}

fn added(chain: &LayeredName, rule: &DesiredRule) -> Command {
    Command::AddRule { chain: chain.clone(), rule: Arc::clone(&rule.content().rule) }
}

fn is_same((known, wanted): &(&observed::Rule, &DesiredRule)) -> bool {
    known.hash == Some(wanted.hash) && known.digest == wanted.digest
}

/// Appends the changes from the first differing rule on. Rules are replaced one by one if that is
/// possible, and less than all rules again.
fn rule_changes(chain: &LayeredName, known: &[observed::Rule], wanted: &[DesiredRule], out: &mut Vec<Command>) {
    // If only comments change, or programs under kept comments, the hashes of the rules behind stay
    // the same.
    let has_same_hashes =
        known.len() == wanted.len() && known.iter().zip(wanted).all(|(known, wanted)| known.hash == Some(wanted.hash));
    let same = known.iter().zip(wanted).take_while(is_same).count();
    let (old, new) = (known.split_at(same).1, wanted.split_at(same).1);
    let replace = |(old, new): (&observed::Rule, &DesiredRule)| {
        let (chain, rule) = (chain.clone(), Arc::clone(&new.content().rule));
        old.handle.map(|handle| Command::ReplaceRule { chain, handle, rule })
    };
    if has_same_hashes && old.iter().all(|rule| rule.handle.is_some()) {
        let differing = old.iter().zip(new).filter(|pair| !is_same(pair));
        out.extend(differing.filter_map(replace));
        return;
    }
    let has_handles = old.iter().all(|rule| rule.handle.is_some());
    if old.is_empty() || (has_handles && old.len().max(new.len()) <= wanted.len() + 1) {
        out.extend(old.iter().zip(new).filter_map(replace));
        let surplus = old.get(new.len()..).unwrap_or_default().iter().filter_map(|rule| rule.handle);
        out.extend(surplus.map(|handle| Command::DeleteRule { chain: chain.clone(), handle }));
        out.extend(new.get(old.len()..).unwrap_or_default().iter().map(|rule| added(chain, rule)));
        return;
    }
    out.push(Command::FlushChain { chain: chain.clone() });
    out.extend(wanted.iter().map(|rule| added(chain, rule)));
}

/// Returns the member with this element; `None` if no member has it, such as for an interval that
/// is no network.
fn member_of(kind: SetKind, family: Family, stored: &(Key, Option<Key>)) -> Option<Member> {
    let bytes = stored.0.as_bytes();
    let address = |bytes: &[u8]| match family {
        Family::V4 => <[u8; 4]>::try_from(bytes).ok().map(std::net::IpAddr::from),
        Family::V6 => <[u8; 16]>::try_from(bytes).ok().map(std::net::IpAddr::from),
    };
    let len = usize::from(family.max_prefix_len()) / 8;
    match kind {
        SetKind::Addresses => address(bytes).map(Member::from),
        SetKind::Networks => {
            let begin = address(bytes)?;
            (0..=family.max_prefix_len())
                .filter_map(|prefix| Cidr::new(begin, prefix))
                .filter(|net| net.masked().address() == begin)
                .map(Member::from)
                .find(|member| element(kind, member) == *stored)
        }
        SetKind::AddressPorts => {
            let begin = address(bytes.get(..len)?)?;
            let number = *bytes.get(len)?;
            let port = u16::from_be_bytes(bytes.get(len + 4..len + 6)?.try_into().ok()?);
            let protocol =
                PortProtocol::ALL.into_iter().find(|protocol| crate::set::protocol_number(*protocol) == number)?;
            Some(Member::from(IpPortMember::new(begin, protocol, port)))
        }
        SetKind::AddressPairs => {
            let part = |bytes: &[u8]| address(bytes).map(|address| NetMember::from(Cidr::host(address)));
            Some(Member::NetPair(NetPair::new(part(bytes.get(..len)?)?, part(bytes.get(len..2 * len)?)?)))
        }
        // Another program keeps its members.
        SetKind::InterfaceAddresses | SetKind::Buckets => None,
        SetKind::Ports => Some(Member::Port(u16::from_be_bytes(bytes.try_into().ok()?))),
    }
}

impl Observed {
    /// Applies a committed change.
    fn take(&mut self, command: &Command) {
        match command {
            Command::AddTable => self.exists = true,
            Command::DeleteTable => *self = Self::default(),
            Command::AddChain { chain, base } => {
                self.chains.entry(chain.clone()).or_default().base = base.map(Some);
            }
            Command::FlushChain { chain } => self.with_rules(chain, Vec::clear),
            Command::DeleteChain { chain } => drop(self.chains.remove(chain)),
            Command::AddRule { chain, rule } => {
                self.chains.entry(chain.clone()).or_default().rules.push(written(rule));
            }
            Command::ReplaceRule { chain, handle, rule } => self.with_rules(chain, |rules| {
                let replaced = rules.iter_mut().filter(|known| known.handle == Some(*handle));
                // The kernel gives it a new handle.
                replaced.for_each(|known| *known = written(rule));
            }),
            Command::DeleteRule { chain, handle } => {
                self.with_rules(chain, |rules| rules.retain(|rule| rule.handle != Some(*handle)));
            }
            Command::AddMap { map, kind } => self.add_set(map.as_str(), SetShape::Map(*kind)),
            Command::FlushMap { map } => self.with_set(map.as_str(), |known| known.verdicts.clear()),
            Command::DeleteMap { map } => drop(self.sets.remove(map.as_str())),
            Command::AddMapElements { map, elements } => self.with_set(map.as_str(), |known| {
                known.verdicts.extend(elements.iter().map(|(key, verdict)| (map_key_bytes(*key), verdict.clone())));
            }),
            Command::DeleteMapElements { map, elements } => self.with_set(map.as_str(), |known| {
                for (key, _) in elements {
                    known.verdicts.remove(&map_key_bytes(*key));
                }
            }),
            Command::AddFlowTable { devices } => {
                self.flow_tables.entry(FLOW_TABLE.to_owned()).or_default().extend(devices.iter().copied());
            }
            Command::DeleteFlowDevices { devices } => {
                let known = self.flow_tables.get_mut(FLOW_TABLE);
                known.into_iter().for_each(|known| known.retain(|device| !devices.contains(device)));
            }
            Command::DeleteFlowTable { name } => drop(self.flow_tables.remove(&**name)),
            Command::AddSet { set, kind } => self.add_set(set.as_str(), SetShape::Set(*kind)),
            Command::DeleteSet { set } => drop(self.sets.remove(&**set)),
            Command::AddElements { set, kind, elements } => self.with_set(set.as_str(), |known| {
                known.elements.add(elements.iter().map(|member| element(*kind, member)));
            }),
            Command::DeleteElements { set, kind, elements } => self.with_set(set.as_str(), |known| {
                known.elements.remove(&elements.iter().map(|member| element(*kind, member)).collect());
            }),
        }
    }

    fn with_rules(&mut self, chain: &LayeredName, change: impl FnOnce(&mut Vec<observed::Rule>)) {
        if let Some(known) = self.chains.get_mut(chain) {
            change(&mut known.rules);
        }
    }

    fn add_set(&mut self, name: &str, shape: SetShape) {
        self.sets.entry(name.to_owned()).or_insert_with(|| observed::Set::new(shape));
    }

    fn with_set(&mut self, name: &str, change: impl FnOnce(&mut observed::Set)) {
        if let Some(known) = self.sets.get_mut(name) {
            change(known);
        }
    }
}

fn written(rule: &ProgramRule) -> observed::Rule {
    let digest = Digest::of(&rule.expressions, &rule.shown.comment);
    observed::Rule { handle: None, hash: Some(rule.shown.hash), digest }
}
