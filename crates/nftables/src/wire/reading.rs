//! Content of a table, from the kernel's listings.

use std::collections::VecDeque;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    ANONYMOUS, ARP_OUTPUT, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_TYPE, DATA_VALUE, DATA_VERDICT,
    ELEMENT_DATA, ELEMENT_FLAGS, ELEMENT_KEY, ELEMENTS_LIST, ELEMENTS_SET, ELEMENTS_TABLE, FLOW_HOOK_DEVICES,
    FLOW_TABLE_HOOK, FLOW_TABLE_NAME, FLOW_TABLE_TABLE, GETCHAIN, GETFLOWTABLE, GETRULE, GETSET, GETSETELEM, GETTABLE,
    HEADER_LEN, HOOK_NUMBER, HOOK_PRIORITY, INTERVAL, INTERVAL_END, MAP, NEWCHAIN, NEWFLOWTABLE, NEWRULE, NEWSET,
    NEWSETELEM, NEWTABLE, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE, RULE_USERDATA, SET_DATA_TYPE,
    SET_FLAGS, SET_KEY_LEN, SET_KEY_TYPE, SET_NAME, SET_TABLE, TABLE_FLAGS, TABLE_NAME, USERDATA_COMMENT,
    family_number, map_shape, shape, value_type,
};
use tortie_net::InterfaceName;
use tortie_netfilter::MapKind;

use crate::attribute::{Attribute, Writer, find};
use crate::expression::{Counted, Expression, RuleVerdict, SetReference, counted, decode, verdict};
use crate::names::LayeredName;
use crate::set::SetKind;
use crate::transaction::{BaseChain, ChainKind, Hook, TableId};

/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// A table as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// `NFT_TABLE_F_*`: Tortie sets none. With `dormant` (1), none of the table's chains sees
    /// packets.
    pub flags: u32,
    /// Its chains.
    pub chains: BTreeMap<LayeredName, ObservedChain>,
    /// Its sets and maps, but those of single rules.
    pub sets: BTreeMap<String, ObservedSet>,
    /// Its flow tables, with the interfaces that they have.
    pub flow_tables: BTreeMap<String, BTreeSet<InterfaceName>>,
    /// Whether other processes created chains, sets or flow tables whose names are not valid text.
    /// They stay, as their names cannot be written.
    pub has_unreadable_names: bool,
}

/// A message of a listing without a part that all messages of its kind have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a listed {object} lacks its {part}")]
#[allow(clippy::exhaustive_structs, reason = "there is nothing more to say")]
pub struct Malformed {
    /// The kind of object.
    pub object: &'static str,
    /// The missing part.
    pub part: &'static str,
}

/// The attribute that all messages about such an object have.
fn required<'a>(
    attributes: &'a [u8],
    kind: u16,
    object: &'static str,
    part: &'static str,
) -> Result<Attribute<'a>, Malformed> {
    find(attributes, kind).ok_or(Malformed { object, part })
}

/// A chain as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedChain {
    /// Its hook; `Some(None)` for a base chain of a kind that Tortie does not create, such as one
    /// that drops at its end.
    pub base: Option<Option<BaseChain>>,
    /// Its rules, in order.
    pub rules: Vec<ObservedRule>,
}

/// A rule as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRule {
    /// Its number in the table.
    pub handle: u64,
    /// Its comment, empty if there is none.
    pub comment: String,
    /// Its program.
    pub expressions: Vec<Expression>,
    /// Values of its counter, if it has one.
    pub counted: Option<Counted>,
}

/// A set or map as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSet {
    /// Its type.
    pub shape: SetShape,
    /// Its elements by key; in a set of intervals with the first key behind the interval, if there
    /// is one.
    pub elements: BTreeSet<(Vec<u8>, Option<Vec<u8>>)>,
    /// Verdicts of a map, by key.
    pub verdicts: BTreeMap<Vec<u8>, RuleVerdict>,
}

/// Type of a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetShape {
    /// A set of a kind that Tortie creates.
    Set(SetKind),
    /// A map of verdicts.
    Map(MapKind),
    /// A verdict map of a kind that Tortie does not create.
    OtherMap,
    /// Anything else.
    Other,
}

/// A listing to request from the kernel, by `NLM_F_DUMP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The message's type.
    pub kind: u16,
    /// Payload behind the netlink header.
    pub payload: Vec<u8>,
}

/// Reads a table: requests one listing after another, and takes their messages.
///
/// A listing of a missing object (`ENOENT`) is empty.
#[derive(Debug)]
pub struct SnapshotReader {
    table: TableId,
    snapshot: Snapshot,
    requests: VecDeque<Request>,
    /// Sets of ports of single rules.
    ports: BTreeMap<String, ObservedSet>,
    /// Elements in the order of arrival: key, and whether it ends an interval.
    elements: BTreeMap<String, Vec<(Vec<u8>, bool)>>,
}

impl SnapshotReader {
    /// A reader without requests so far.
    #[must_use]
    pub fn new(table: TableId) -> Self {
        let request = |kind, attribute| Request {
            kind,
            payload: {
                let mut out = Writer::with_header(&[family_number(table), 0, 0, 0]);
                out.text(attribute, table.name);
                out.finish()
            },
        };
        let listings = [
            (GETCHAIN, CHAIN_TABLE),
            (GETRULE, RULE_TABLE),
            (GETSET, SET_TABLE),
            (GETFLOWTABLE, FLOW_TABLE_TABLE),
            (GETTABLE, TABLE_NAME),
        ];
        let requests = listings.map(|(kind, attribute)| request(kind, attribute)).into();
        Self { table, snapshot: Snapshot::default(), requests, ports: BTreeMap::new(), elements: BTreeMap::new() }
    }

    /// Reader of the rules alone, for their counters.
    #[must_use]
    pub fn of_rules(table: TableId) -> Self {
        let mut reader = Self::new(table);
        reader.requests.retain(|request| request.kind == GETRULE);
        reader
    }

    /// Returns the next request, once all messages of the previous ones have been passed in; `None`
    /// at the end.
    pub fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Takes a message of a listing. A message of another table is ignored.
    ///
    /// # Errors
    /// If the message cannot be understood, so that the listing is not complete.
    pub fn on_message(&mut self, kind: u16, payload: &[u8]) -> Result<(), Malformed> {
        let attributes = payload.get(HEADER_LEN..).ok_or(Malformed { object: "object", part: "header" })?;
        match kind {
            NEWTABLE if self.is_ours(attributes, TABLE_NAME) => {
                self.snapshot.flags = find(attributes, TABLE_FLAGS).and_then(Attribute::u32).unwrap_or(0);
            }
            NEWCHAIN if self.is_ours(attributes, CHAIN_TABLE) => self.chain(attributes)?,
            NEWRULE if self.is_ours(attributes, RULE_TABLE) => self.rule(attributes)?,
            NEWSET if self.is_ours(attributes, SET_TABLE) => self.set(attributes)?,
            NEWFLOWTABLE if self.is_ours(attributes, FLOW_TABLE_TABLE) => self.flow_table(attributes)?,
            NEWSETELEM if self.is_ours(attributes, ELEMENTS_TABLE) => self.elements(attributes)?,
            _ => {}
        }
        Ok(())
    }

    fn is_ours(&self, attributes: &[u8], table: u16) -> bool {
        find(attributes, table).is_some_and(|name| name.text() == Some(self.table.name))
    }

    /// Notes a name that is no text.
    fn readable<'a>(&mut self, name: Attribute<'a>) -> Option<&'a str> {
        let text = name.text();
        self.snapshot.has_unreadable_names |= text.is_none();
        text
    }

    fn chain(&mut self, attributes: &[u8]) -> Result<(), Malformed> {
        let name = required(attributes, CHAIN_NAME, "chain", "name")?;
        let is_arp = self.table.is_arp;
        let base = find(attributes, CHAIN_HOOK).map(|hook| base_chain(attributes, hook, is_arp));
        if let Some(name) = self.readable(name) {
            self.snapshot.chains.entry(LayeredName::from_kernel(name)).or_default().base = base;
        }
        Ok(())
    }

    fn rule(&mut self, attributes: &[u8]) -> Result<(), Malformed> {
        let chain = required(attributes, RULE_CHAIN, "rule", "chain")?;
        let handle = required(attributes, RULE_HANDLE, "rule", "handle")?.u64();
        let handle = handle.ok_or(Malformed { object: "rule", part: "handle" })?;
        let comment = find(attributes, RULE_USERDATA).and_then(|data| comment(data.value)).unwrap_or_default();
        let list = find(attributes, RULE_EXPRESSIONS).map_or(&[][..], |list| list.value);
        let (expressions, counted) = (decode(list), counted(list));
        if let Some(chain) = self.readable(chain) {
            let chain = self.snapshot.chains.entry(LayeredName::from_kernel(chain)).or_default();
            chain.rules.push(ObservedRule { handle, comment, expressions, counted });
        }
        Ok(())
    }

    fn flow_table(&mut self, attributes: &[u8]) -> Result<(), Malformed> {
        let name = required(attributes, FLOW_TABLE_NAME, "flow table", "name")?;
        let hook = find(attributes, FLOW_TABLE_HOOK);
        let devices = hook.and_then(|hook| find(hook.value, FLOW_HOOK_DEVICES));
        let devices = devices.iter().flat_map(|devices| devices.nested());
        // Interfaces with names that cannot be desired, which another process has added, stay in a
        // flow table.
        let wantable = devices.filter_map(|device| InterfaceName::new(device.text()?).ok());
        if let Some(name) = self.readable(name) {
            self.snapshot.flow_tables.entry(name.to_owned()).or_default().extend(wantable);
        }
        Ok(())
    }

    fn set(&mut self, attributes: &[u8]) -> Result<(), Malformed> {
        let name = required(attributes, SET_NAME, "set", "name")?;
        let Some(name) = self.readable(name).map(str::to_owned) else { return Ok(()) };
        let number = |kind| find(attributes, kind).and_then(Attribute::u32).unwrap_or(0);
        let (flags, key) = (number(SET_FLAGS), (number(SET_KEY_TYPE), number(SET_KEY_LEN)));
        let kinds = [
            SetKind::Addresses,
            SetKind::Networks,
            SetKind::AddressPorts,
            SetKind::AddressPairs,
            SetKind::InterfaceAddresses,
            SetKind::Ports,
            SetKind::Buckets,
        ];
        let is_kind = |kind: &SetKind| (key.0, key.1, flags) == shape(*kind, self.table.family);
        let maps = [MapKind::Interface, MapKind::Mark, MapKind::Port, MapKind::Address];
        let map = maps.into_iter().find(|kind| key == map_shape(*kind, self.table.family));
        let shape = if flags & MAP != 0 && number(SET_DATA_TYPE) == value_type::VERDICT {
            map.filter(|_| flags == MAP).map_or(SetShape::OtherMap, SetShape::Map)
        } else {
            kinds.into_iter().find(is_kind).map_or(SetShape::Other, SetShape::Set)
        };
        let set = ObservedSet { shape, elements: BTreeSet::new(), verdicts: BTreeMap::new() };
        // Rules of the packet path change the elements of others at any time.
        if shape != SetShape::Set(SetKind::Buckets) {
            let mut out = Writer::with_header(&[family_number(self.table), 0, 0, 0]);
            out.text(ELEMENTS_TABLE, self.table.name);
            out.text(ELEMENTS_SET, &name);
            self.requests.push_back(Request { kind: GETSETELEM, payload: out.finish() });
        }
        if flags & INTERVAL != 0 {
            self.elements.insert(name.clone(), Vec::new());
        }
        if flags & ANONYMOUS == 0 {
            self.snapshot.sets.insert(name, set);
        } else {
            self.ports.insert(name, set);
        }
        Ok(())
    }

    fn elements(&mut self, attributes: &[u8]) -> Result<(), Malformed> {
        let unlisted = Malformed { object: "element", part: "set" };
        let name = required(attributes, ELEMENTS_SET, unlisted.object, unlisted.part)?.text().ok_or(unlisted)?;
        // An empty set has none.
        let Some(list) = find(attributes, ELEMENTS_LIST) else { return Ok(()) };
        let mut intervals = self.elements.get_mut(name);
        let set = self.snapshot.sets.get_mut(name).or_else(|| self.ports.get_mut(name)).ok_or(unlisted)?;
        for element in list.nested() {
            let value = find(element.value, ELEMENT_KEY).and_then(|key| find(key.value, DATA_VALUE));
            // The catch-all element, which another process may have added, has no key.
            let Some(key) = value.map(|value| value.value.to_vec()) else { continue };
            let data = find(element.value, ELEMENT_DATA).and_then(|data| find(data.value, DATA_VERDICT));
            if let Some(verdict) = data.and_then(|data| verdict(data.value)) {
                set.verdicts.insert(key, verdict);
                continue;
            }
            let flags = find(element.value, ELEMENT_FLAGS).and_then(Attribute::u32).unwrap_or(0);
            match &mut intervals {
                Some(intervals) => intervals.push((key, flags & INTERVAL_END != 0)),
                None => {
                    set.elements.insert((key, None));
                }
            }
        }
        Ok(())
    }

    /// Returns the table; `None` if it does not exist.
    #[must_use]
    #[expect(clippy::expect_used, reason = "elements are kept of sets that were listed")]
    pub fn finish(mut self) -> Option<Snapshot> {
        let mut of_ranges: BTreeSet<String> = BTreeSet::new();
        for (name, intervals) in std::mem::take(&mut self.elements) {
            let set = self.snapshot.sets.get_mut(&name).or_else(|| self.ports.get_mut(&name));
            set.expect("a set of intervals was listed").elements = joined(intervals);
            of_ranges.insert(name);
        }
        let rules = self.snapshot.chains.values_mut().flat_map(|chain| &mut chain.rules);
        for expression in rules.flat_map(|rule| &mut rule.expressions) {
            if let Expression::Lookup { set: reference, .. } = expression
                && let SetReference::Named(name) = reference
                && let Some(ports) = self.ports.get(&**name)
            {
                *reference = SetReference::Ports(port_ranges(ports, of_ranges.contains(&**name)));
            }
        }
        let Snapshot { chains, sets, flow_tables, .. } = &self.snapshot;
        let is_bare = chains.is_empty() && sets.is_empty() && flow_tables.is_empty();
        let is_there = !is_bare || self.snapshot.flags != 0 || self.snapshot.has_unreadable_names;
        is_there.then_some(self.snapshot)
    }
}

/// Joins each beginning of an interval with the end that follows it.
fn joined(mut keys: Vec<(Vec<u8>, bool)>) -> BTreeSet<(Vec<u8>, Option<Vec<u8>>)> {
    // An interval that ends where the next begins comes before it.
    keys.sort_by(|(a, a_ends), (b, b_ends)| a.cmp(b).then(b_ends.cmp(a_ends)));
    let mut joined = BTreeSet::new();
    let mut open: Option<Vec<u8>> = None;
    for (key, ends) in keys {
        if ends {
            if let Some(begin) = open.take() {
                joined.insert((begin, Some(key)));
            }
        } else if let Some(begin) = open.replace(key) {
            joined.insert((begin, None));
        }
    }
    joined.extend(open.map(|begin| (begin, None)));
    joined
}

fn port_ranges(set: &ObservedSet, is_interval: bool) -> Vec<(u16, u16)> {
    let port = |bytes: &[u8]| <[u8; 2]>::try_from(bytes).map_or(0, u16::from_be_bytes);
    let range = |(first, end): &(Vec<u8>, Option<Vec<u8>>)| {
        let first = port(first);
        match end {
            Some(end) => (first, port(end).wrapping_sub(1)),
            None if is_interval => (first, u16::MAX),
            None => (first, first),
        }
    };
    set.elements.iter().map(range).collect()
}

fn base_chain(attributes: &[u8], hook: Attribute<'_>, is_arp: bool) -> Option<BaseChain> {
    let policy = find(attributes, CHAIN_POLICY).and_then(Attribute::u32);
    if policy.is_some_and(|policy| policy != ACCEPT) {
        return None;
    }
    let kind = match find(attributes, CHAIN_TYPE)?.text()? {
        "filter" => ChainKind::Filter,
        "nat" => ChainKind::Nat,
        "route" => ChainKind::Route,
        _ => return None,
    };
    let number = find(hook.value, HOOK_NUMBER)?.u32()?;
    let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
    let place = usize::try_from(number).ok()?;
    let priority = find(hook.value, HOOK_PRIORITY)?.value.try_into().ok().map(i32::from_be_bytes)?;
    let hook = match is_arp {
        true => (number == ARP_OUTPUT).then_some(Hook::Output)?,
        false => *hooks.get(place)?,
    };
    Some(BaseChain { kind, hook, priority })
}

/// Returns the comment in a rule's user data, which is a sequence of kind, length and value.
fn comment(mut data: &[u8]) -> Option<String> {
    while let Some((&[kind, len], rest)) = data.split_first_chunk::<2>() {
        let value = rest.get(..usize::from(len))?;
        if kind == USERDATA_COMMENT {
            return Attribute { kind: kind.into(), value }.text().map(str::to_owned);
        }
        data = rest.get(usize::from(len)..)?;
    }
    None
}
