//! Which single addresses lead to which rules, kept up to date member by member.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_net::{Cidr, IpSetName};
use tortie_netfilter::{AddressUnion, Chain, ChainName, ChainPrefix, MapKey, MapVerdict, Rule};

use super::Sets;
use super::cost::{HELD, HOST, RULE};
use super::naming::{UNNAMED, content_name};

/// More addresses are not put into one map.
const MAX_HOSTS: usize = 1 << 18;
/// Nor more rules behind it, each once for all addresses that lead to the same rules.
const MAX_RULES: usize = 1 << 16;
/// Members of rules that are counted, 8 bytes each: more are given up, and packets meet the rules one after the other.
const MAX_HELD: usize = 1 << 22;
const CLASS: ChainPrefix = ChainPrefix::new("cali-pa-");

/// Rules that each ask for an address, and which of them hold for it.
///
/// A verdict map leads from each single address in what they ask for, such as a pod's, to a chain of all rules that hold it, those
/// with networks around it included. Other addresses are not in the map: behind it stand the [rules with
/// networks](Self::with_networks), and no other could match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    map: ChainName,
    /// The chain has nothing behind these rules.
    is_end: bool,
    /// Without the question for the address.
    rules: Vec<Rule>,
    by_set: BTreeMap<IpSetName, Vec<u32>>,
    hosts: BTreeMap<IpAddr, Host>,
    /// By length and first address: which rules hold them, and by how many members.
    nets: BTreeMap<(u8, IpAddr), Held>,
    /// How many networks each rule has.
    nets_of: BTreeMap<u32, usize>,
    classes: BTreeMap<Arc<[u32]>, Class>,
    /// The rules of all classes.
    total: usize,
    /// Members of all rules.
    held: usize,
    /// Bytes that it may take.
    room: usize,
    /// Bytes of layouts that were given up.
    given_up: usize,
}

/// Numbers of rules, in order, and by how many members each holds something.
type Held = Vec<(u32, u32)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Host {
    held: Held,
    class: Option<Arc<[u32]>>,
}

/// Addresses that the same rules hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    chain: ChainName,
    hosts: usize,
}

/// What changes with members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "all that there is to do")]
pub struct HostChanges {
    /// What addresses lead to now, if to anything.
    pub leads: BTreeMap<MapKey, Option<MapVerdict>>,
    /// Chains that are led to now.
    pub new: Vec<Chain>,
    /// Chains that are led to no more.
    pub gone: Vec<ChainName>,
    /// The chain that asks the map is to be laid out again.
    pub lay_out: bool,
}

impl Hosts {
    /// Rules that a map finds by the networks and sets of their addresses. The map has no name yet. Also returns the bytes that
    /// it took to find out: more than `room` if it is to be given up for want of it.
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
            held: 0,
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
        HOST * self.hosts.len() + HELD * (self.held + self.nets.len()) + RULE * self.total
    }

    /// Gives names to the map and to what it leads to.
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

    /// Whether a map is worth it, and within bounds.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let is_within = self.hosts.len() <= MAX_HOSTS && self.total <= MAX_RULES;
        !self.hosts.is_empty() && is_within && 2 * self.nets_of.len() <= self.rules.len()
    }

    /// The places of rules that hold more than single addresses.
    pub fn with_networks(&self) -> impl Iterator<Item = usize> + '_ {
        self.nets_of.keys().map(|number| *number as usize)
    }

    /// What the map holds.
    #[must_use]
    #[expect(clippy::expect_used, reason = "an address that is held is in a class")]
    pub fn members(&self) -> BTreeMap<MapKey, MapVerdict> {
        let verdict = |host| self.verdict(host).expect("a held address leads to its class");
        self.hosts.keys().map(|host| (MapKey::Address(*host), verdict(*host))).collect()
    }

    /// All chains that the map leads to.
    pub fn chains(&self) -> impl Iterator<Item = Chain> + '_ {
        self.classes.iter().map(|(class, Class { chain, .. })| self.chain(*chain, class))
    }

    /// Members of a set have come and gone.
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

    /// Whether more is counted than is kept of a map that is out of bounds.
    fn is_excessive(&self) -> bool {
        let is_large = self.held > MAX_HELD || self.hosts.len() > 2 * MAX_HOSTS || self.total > 2 * MAX_RULES;
        is_large || self.bytes() > self.room
    }

    /// Forgets all members until the chain is laid out again.
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
            held: 0,
            room: self.room,
            given_up,
        };
    }

    /// One member of a rule more or less.
    fn count(&mut self, net: Cidr, number: u32, is_new: bool) {
        let net = net.masked();
        step(&mut self.held, is_new);
        if net.is_host() {
            let host = self.hosts.entry(net.address()).or_default();
            count(&mut host.held, number, is_new);
            return;
        }
        let key = (net.prefix_len(), net.address());
        let held = self.nets.entry(key).or_default();
        count(held, number, is_new);
        if held.is_empty() {
            self.nets.remove(&key);
        }
        let of_rule = self.nets_of.entry(number).or_default();
        step(of_rule, is_new);
        if *of_rule == 0 {
            self.nets_of.remove(&number);
        }
    }

    /// Puts addresses, all of which are held, into the classes that they are in now.
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
            changes.leads.insert(MapKey::Address(address), self.verdict(address));
        }
        if self.is_excessive() {
            self.give_up();
            return HostChanges::default();
        }
        for class in classes {
            if let Some(Class { chain, hosts: 0 }) = self.classes.get(&class) {
                // One that was made meanwhile was never told of.
                if !new.remove(&class) {
                    changes.gone.push(*chain);
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

    /// An address more in a class. Returns whether there was one.
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

    /// The rules that hold an address, as such or in a network; `None` if it is not a member by itself.
    fn rules_at(&self, address: IpAddr) -> Option<Vec<u32>> {
        let held = &self.hosts.get(&address)?.held;
        if held.is_empty() {
            return None;
        }
        let mut numbers: BTreeSet<u32> = held.iter().map(|(number, _)| *number).collect();
        let mut at = 0;
        while let Some((len, _)) = self.nets.range((at, FIRST)..).next().map(|(key, _)| *key) {
            let around = Cidr::new(address, len).and_then(|net| self.nets.get(&(len, net.masked().address())));
            numbers.extend(around.into_iter().flatten().map(|(number, _)| *number));
            at = len + 1;
        }
        Some(numbers.into_iter().collect())
    }
}

/// No address comes before it.
const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// Counts one more, or one of those that were counted less.
#[expect(clippy::expect_used, reason = "members that go were counted when they came")]
fn step(count: &mut usize, is_new: bool) {
    let next = if is_new { count.checked_add(1) } else { count.checked_sub(1) };
    *count = next.expect("a member that goes was counted when it came");
}

#[expect(clippy::expect_used, clippy::indexing_slicing, reason = "members that go were counted when they came")]
fn count(held: &mut Held, number: u32, is_new: bool) {
    let found = held.binary_search_by_key(&number, |(known, _)| *known);
    if is_new {
        match found {
            Ok(at) => held[at].1 += 1,
            Err(at) => held.insert(at, (number, 1)),
        }
        return;
    }
    let at = found.expect("a member that goes was counted when it came");
    held[at].1 -= 1;
    if held[at].1 == 0 {
        held.remove(at);
    }
}

/// A rule without the question at this place.
pub(super) fn without_question(rule: &Rule, at: usize) -> Rule {
    let others = rule.matches.iter().enumerate().filter(|(place, _)| *place != at);
    Rule { matches: others.map(|(_, question)| question.clone()).collect(), ..rule.clone() }
}

#[cfg(test)]
mod tests;
