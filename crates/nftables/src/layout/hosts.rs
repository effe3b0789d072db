//! Dispatch from single addresses to rules, updated member by member.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_net::{Cidr, IpSetName};
use tortie_netfilter::{AddressUnion, Chain, ChainName, ChainPrefix, MapKey, MapVerdict, Rule};

use super::Sets;
use super::cost::{HELD, HOST, RULE};
use super::naming::{UNNAMED, content_name};

/// Maximum number of addresses in one map.
const MAX_HOSTS: usize = 1 << 18;
/// Maximum number of rules behind one map. They count once for all addresses with the same rules.
const MAX_RULES: usize = 1 << 16;
/// Maximum number of counted members of rules, 8 bytes each. Above it the map is dropped, and
/// packets meet the rules one after the other.
const MAX_HELD: usize = 1 << 22;
const CLASS: ChainPrefix = ChainPrefix::new("cali-pa-");

/// Rules that each match an address, and the addresses that each has.
///
/// A verdict map leads from each single address in their networks and sets, such as a pod's, to a
/// chain of all rules that have it, including rules with networks around it. Other addresses are
/// not in the map. For these, the [rules with networks](Self::with_networks) follow behind it; no
/// other rule could match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    map: ChainName,
    /// Whether these rules are the end of the chain.
    is_end: bool,
    /// Without the match on the address.
    rules: Vec<Rule>,
    by_set: BTreeMap<IpSetName, Vec<u32>>,
    hosts: BTreeMap<IpAddr, Host>,
    /// Networks by length and first address, with the rules that have them, and the number of
    /// members that give them.
    nets: BTreeMap<(u8, IpAddr), MemberCounts>,
    /// Number of networks of each rule.
    nets_of: BTreeMap<u32, usize>,
    classes: BTreeMap<Arc<[u32]>, Class>,
    /// The rules of all classes.
    total: usize,
    /// Members of all rules.
    counts: usize,
    /// Memory bound, in bytes.
    room: usize,
    /// Bytes of dropped layouts.
    given_up: usize,
}

/// Numbers of rules, in order, each with its number of members that are this address or network.
type MemberCounts = Vec<(u32, u32)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Host {
    counts: MemberCounts,
    class: Option<Arc<[u32]>>,
}

/// Addresses with the same rules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    chain: ChainName,
    hosts: usize,
}

/// Changes that follow from a change of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "all that there is to do")]
pub struct HostChanges {
    /// New verdicts of addresses; `None` for addresses without one.
    pub verdicts: BTreeMap<MapKey, Option<MapVerdict>>,
    /// New chains.
    pub new: Vec<Chain>,
    /// Chains that are no longer used.
    pub unused: Vec<ChainName>,
    /// Whether the chain with the map must be laid out again.
    pub lay_out: bool,
}

impl Hosts {
    /// Builds the map for rules, by the networks and sets that they match. The map has no name yet.
    /// Also returns the bytes that it needed: more than `room` if it must be dropped.
    pub(super) fn new(
        rules: Vec<Rule>,
        wanted: &[AddressUnion],
        is_end: bool,
        sets: &impl Sets,
        room: usize,
    ) -> (Self, usize) {
        let mut made = Self {
            map: UNNAMED,
            is_end,
            rules,
            by_set: BTreeMap::new(),
            hosts: BTreeMap::new(),
            nets: BTreeMap::new(),
            nets_of: BTreeMap::new(),
            classes: BTreeMap::new(),
            total: 0,
            counts: 0,
            room,
            given_up: 0,
        };
        for (number, of) in (0..).zip(wanted) {
            for set in &of.sets {
                made.by_set.entry(*set).or_default().push(number);
            }
            of.nets.iter().for_each(|net| made.count(*net, number, true));
        }
        for (set, numbers) in std::mem::take(&mut made.by_set) {
            sets.members(set, &mut |member| {
                if !made.is_excessive() {
                    numbers.iter().for_each(|number| made.count(member, *number, true));
                }
            });
            made.by_set.insert(set, numbers);
        }
        let all: BTreeSet<IpAddr> = made.hosts.keys().copied().collect();
        let _ = made.follow(all);
        let needed = made.bytes().max(made.given_up);
        (made, needed)
    }

    /// Estimated bytes besides those of its rules.
    pub(crate) fn bytes(&self) -> usize {
        HOST * self.hosts.len() + HELD * (self.counts + self.nets.len()) + RULE * self.total
    }

    /// Names the map and the chains of its verdicts.
    pub(super) fn name(&mut self, map: ChainName) {
        self.map = map;
        let classes: Vec<Arc<[u32]>> = self.classes.keys().map(Arc::clone).collect();
        for class in classes {
            let chain = self.class_name(&class);
            self.classes.entry(class).and_modify(|known| known.chain = chain);
        }
    }

    fn class_name(&self, class: &[u32]) -> ChainName {
        content_name(CLASS, self.map.as_str(), &self.chain(UNNAMED, class).rules)
    }

    /// The name of the map.
    #[must_use]
    pub const fn map(&self) -> ChainName {
        self.map
    }

    /// The sets whose members matter.
    pub fn sets(&self) -> impl Iterator<Item = IpSetName> + '_ {
        self.by_set.keys().copied()
    }

    /// Reports whether a map saves enough rules, and is within bounds.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let is_within = self.hosts.len() <= MAX_HOSTS && self.total <= MAX_RULES;
        !self.hosts.is_empty() && is_within && 2 * self.nets_of.len() <= self.rules.len()
    }

    /// Returns the places of rules that have networks, not only single addresses.
    pub fn with_networks(&self) -> impl Iterator<Item = usize> + '_ {
        self.nets_of.keys().map(|number| *number as usize)
    }

    /// Returns the elements of the map.
    #[must_use]
    #[expect(clippy::expect_used, reason = "an address that is held is in a class")]
    pub fn members(&self) -> BTreeMap<MapKey, MapVerdict> {
        let verdict = |host| self.verdict(host).expect("a held address leads to its class");
        self.hosts.keys().map(|host| (MapKey::Address(*host), verdict(*host))).collect()
    }

    /// Returns all chains that the map leads to.
    pub fn chains(&self) -> impl Iterator<Item = Chain> + '_ {
        self.classes.iter().map(|(class, Class { chain, .. })| self.chain(*chain, class))
    }

    /// Adds and removes members of a set.
    pub fn edit(&mut self, set: IpSetName, added: &[Cidr], removed: &[Cidr]) -> HostChanges {
        let before = (self.is_used(), self.nets_of.keys().copied().collect::<Vec<_>>());
        let numbers = self.by_set.get(&set).cloned().unwrap_or_default();
        let mut touched = BTreeSet::new();
        let changes = removed.iter().map(|net| (net, false)).chain(added.iter().map(|net| (net, true)));
        for (net, is_new) in changes {
            if self.is_excessive() {
                break;
            }
            numbers.iter().for_each(|number| self.count(*net, *number, is_new));
            let inside = self.hosts.range(net.masked().address()..).map(|(host, _)| *host);
            touched.extend(inside.take_while(|host| net.contains(*host)));
        }
        let mut changes = self.follow(touched);
        changes.lay_out = before != (self.is_used(), self.nets_of.keys().copied().collect());
        changes
    }

    /// Reports whether the counts exceed the limits for a map that is out of bounds.
    fn is_excessive(&self) -> bool {
        let is_large = self.counts > MAX_HELD || self.hosts.len() > 2 * MAX_HOSTS || self.total > 2 * MAX_RULES;
        is_large || self.bytes() > self.room
    }

    /// Drops all members until the chain is laid out again.
    fn give_up(&mut self) {
        let (rules, given_up) = (std::mem::take(&mut self.rules), self.bytes());
        *self = Self {
            map: self.map,
            is_end: self.is_end,
            rules,
            by_set: BTreeMap::new(),
            hosts: BTreeMap::new(),
            nets: BTreeMap::new(),
            nets_of: BTreeMap::new(),
            classes: BTreeMap::new(),
            total: 0,
            counts: 0,
            room: self.room,
            given_up,
        };
    }

    /// Counts one member of a rule more or less.
    fn count(&mut self, net: Cidr, number: u32, is_new: bool) {
        let net = net.masked();
        step(&mut self.counts, is_new);
        if net.is_host() {
            let host = self.hosts.entry(net.address()).or_default();
            count(&mut host.counts, number, is_new);
            return;
        }
        let key = (net.prefix_len(), net.address());
        let counts = self.nets.entry(key).or_default();
        count(counts, number, is_new);
        if counts.is_empty() {
            self.nets.remove(&key);
        }
        let of_rule = self.nets_of.entry(number).or_default();
        step(of_rule, is_new);
        if *of_rule == 0 {
            self.nets_of.remove(&number);
        }
    }

    /// Moves addresses, all of which have rules, to their current classes.
    #[expect(
        clippy::expect_used,
        reason = "callers find the addresses among those that are held, which know their classes"
    )]
    fn follow(&mut self, touched: BTreeSet<IpAddr>) -> HostChanges {
        let mut changes = HostChanges::default();
        let mut classes: BTreeSet<Arc<[u32]>> = BTreeSet::new();
        let mut new: BTreeSet<Arc<[u32]>> = BTreeSet::new();
        for address in touched {
            if self.is_excessive() {
                break;
            }
            let now: Option<Arc<[u32]>> = self.rules_at(address).map(Into::into);
            let host = self.hosts.get_mut(&address).expect("a touched address is held");
            let before = std::mem::replace(&mut host.class, now.clone());
            if now.is_none() {
                self.hosts.remove(&address);
            }
            if before == now {
                continue;
            }
            if let Some(now) = now
                && !self.join(&now)
            {
                new.insert(now);
            }
            if let Some(before) = before {
                self.classes.get_mut(&before).expect("an address is in a known class").hosts -= 1;
                classes.insert(before);
            }
            changes.verdicts.insert(MapKey::Address(address), self.verdict(address));
        }
        if self.is_excessive() {
            self.give_up();
            return HostChanges::default();
        }
        for class in classes {
            if let Some(Class { chain, hosts: 0 }) = self.classes.get(&class) {
                // A chain that was created meanwhile has not been reported.
                if !new.remove(&class) {
                    changes.unused.push(*chain);
                }
                self.classes.remove(&class);
                self.total -= class.len();
            }
        }
        let chain =
            |class: &Arc<[u32]>| self.chain(self.classes.get(class).expect("a new class is known").chain, class);
        changes.new = new.iter().map(chain).collect();
        changes
    }

    /// Adds an address to a class. Returns whether the class existed.
    fn join(&mut self, class: &Arc<[u32]>) -> bool {
        if let Some(known) = self.classes.get_mut(class) {
            known.hosts += 1;
            return true;
        }
        // Before the map has a name, its chains need none.
        let name = if self.map == UNNAMED { UNNAMED } else { self.class_name(class) };
        self.classes.insert(Arc::clone(class), Class { chain: name, hosts: 1 });
        self.total += class.len();
        false
    }

    #[expect(clippy::expect_used, reason = "rules are numbered by their places")]
    fn chain(&self, name: ChainName, class: &[u32]) -> Chain {
        let rule = |number: &u32| self.rules.get(*number as usize).expect("classes are of these rules").clone();
        Chain::new(name, class.iter().map(rule).collect())
    }

    fn verdict(&self, host: IpAddr) -> Option<MapVerdict> {
        let class = self.hosts.get(&host)?.class.as_ref()?;
        let chain = self.classes.get(class)?.chain;
        Some(if self.is_end { MapVerdict::Goto(chain) } else { MapVerdict::Jump(chain) })
    }

    /// Returns the rules with an address, as such or in a network; `None` if no rule has it as a
    /// single address.
    fn rules_at(&self, address: IpAddr) -> Option<Vec<u32>> {
        let counts = &self.hosts.get(&address)?.counts;
        if counts.is_empty() {
            return None;
        }
        let mut numbers: BTreeSet<u32> = counts.iter().map(|(number, _)| *number).collect();
        let mut at = 0;
        while let Some((len, _)) = self.nets.range((at, FIRST)..).next().map(|(key, _)| *key) {
            let around = Cidr::new(address, len).and_then(|net| self.nets.get(&(len, net.masked().address())));
            numbers.extend(around.into_iter().flatten().map(|(number, _)| *number));
            at = len + 1;
        }
        Some(numbers.into_iter().collect())
    }
}

/// The smallest address.
const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// Counts up, or down for a member that was counted before.
#[expect(clippy::expect_used, reason = "members that go were counted when they came")]
fn step(count: &mut usize, is_new: bool) {
    let next = if is_new { count.checked_add(1) } else { count.checked_sub(1) };
    *count = next.expect("a member that goes was counted when it came");
}

#[expect(clippy::expect_used, clippy::indexing_slicing, reason = "members that go were counted when they came")]
fn count(counts: &mut MemberCounts, number: u32, is_new: bool) {
    let found = counts.binary_search_by_key(&number, |(known, _)| *known);
    if is_new {
        match found {
            Ok(at) => counts[at].1 += 1,
            Err(at) => counts.insert(at, (number, 1)),
        }
        return;
    }
    let at = found.expect("a member that goes was counted when it came");
    counts[at].1 -= 1;
    if counts[at].1 == 0 {
        counts.remove(at);
    }
}

/// Returns a rule without the match at this place.
pub(super) fn without_question(rule: &Rule, at: usize) -> Rule {
    let others = rule.matches.iter().enumerate().filter(|(place, _)| *place != at);
    Rule { matches: others.map(|(_, question)| question.clone()).collect(), ..rule.clone() }
}

#[cfg(test)]
mod tests;
