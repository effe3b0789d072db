//! The rules of `Learned` as lists that are searched from end to end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_dns::{Cluster, ClusterAddresses, MatchNames, Member, Millis, Scope, Settings};
use tortie_net::{Cidr, DomainName, DomainPattern, IpSetId};

/// An address with its end, and whether all its owners were below the cluster domain.
type Address = (IpAddr, Millis, bool);

/// A name with its addresses, the least recently answered first.
type Name = (DomainName, Vec<Address>);

/// A statement of an answer: a name, an address, a TTL in seconds, and whether the name, the owner
/// of the address, and all names between are below the cluster domain.
pub(crate) type Statement = (DomainName, IpAddr, u32, bool);

#[derive(Clone)]
struct Learner {
    owner: u64,
    group: String,
    sets: Vec<IpSetId>,
    /// The least recently answered first.
    names: Vec<Name>,
    kept: BTreeSet<(IpSetId, IpAddr)>,
    kept_until: Millis,
}

pub(crate) struct Naive {
    pub(crate) settings: Settings,
    nets: Vec<Cidr>,
    sets: BTreeMap<IpSetId, Vec<DomainPattern>>,
    scopes: BTreeMap<Scope, Learner>,
}

/// Numbers of an answer: added, renewed, matched, evicted, refused.
type Effect = [usize; 5];

impl Naive {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, nets: Vec::new(), sets: BTreeMap::new(), scopes: BTreeMap::new() }
    }

    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new(self.nets.clone(), Some("local".parse().unwrap()))
    }

    pub(crate) fn sets(&self) -> impl Iterator<Item = (&IpSetId, &Vec<DomainPattern>)> {
        self.sets.iter()
    }

    pub(crate) fn scopes(&self) -> impl Iterator<Item = (Scope, u64, Vec<IpSetId>)> {
        self.scopes.iter().map(|(scope, learner)| (*scope, learner.owner, learner.sets.clone()))
    }

    pub(crate) fn has_scope(&self, scope: Scope) -> bool {
        self.scopes.contains_key(&scope)
    }

    pub(crate) fn set_domains(&mut self, set: IpSetId, patterns: Vec<DomainPattern>) {
        self.sets.insert(set, patterns);
        self.trim();
    }

    pub(crate) fn remove_domains(&mut self, set: &IpSetId) {
        if self.sets.remove(set).is_some() {
            self.scopes.values_mut().for_each(|learner| learner.kept.retain(|(of, _)| of != set));
        }
    }

    /// Removes addresses of each scope that has more members than its limit.
    fn trim(&mut self) {
        let mut scopes = std::mem::take(&mut self.scopes);
        for learner in scopes.values_mut() {
            while self.weight(learner) > self.settings.limits.members_per_scope {
                let is_matched = |(name, _): &Name| !self.matching(learner, name).is_empty();
                let at = learner.names.iter().position(is_matched).unwrap();
                learner.names[at].1.remove(0);
                learner.names.retain(|(_, addresses)| !addresses.is_empty());
            }
        }
        self.scopes = scopes;
    }

    /// Returns the number of members of a scope, once for each name.
    fn weight(&self, learner: &Learner) -> usize {
        learner.names.iter().map(|(name, addresses)| addresses.len() * self.matching(learner, name).len()).sum()
    }

    pub(crate) fn set_scope(&mut self, scope: Scope, owner: u64, sets: Vec<IpSetId>) {
        let empty = || Learner {
            owner,
            group: String::new(),
            sets: vec![],
            names: vec![],
            kept: BTreeSet::new(),
            kept_until: Millis(0),
        };
        let learner = self.scopes.entry(scope).or_insert_with(empty);
        if learner.owner != owner {
            *learner = Learner { group: learner.group.clone(), ..empty() };
        }
        learner.kept.retain(|(set, _)| sets.contains(set));
        learner.sets = sets;
        self.trim();
    }

    pub(crate) fn set_group(&mut self, scope: Scope, group: &str) {
        if let Some(learner) = self.scopes.get_mut(&scope) {
            learner.group = group.to_owned();
        }
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (Scope, &str)> {
        self.scopes.iter().map(|(scope, learner)| (*scope, learner.group.as_str()))
    }

    pub(crate) fn remove_scope(&mut self, scope: Scope) {
        self.scopes.remove(&scope);
    }

    pub(crate) fn set_cluster(&mut self, nets: Vec<Cidr>) {
        self.nets = nets;
        self.judge_again();
    }

    pub(crate) fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.judge_again();
    }

    fn judge_again(&mut self) {
        let mut scopes = std::mem::take(&mut self.scopes);
        for learner in scopes.values_mut() {
            for (_, addresses) in &mut learner.names {
                addresses.retain(|(address, _, is_inside)| !self.is_refused(*is_inside, *address));
            }
            learner.names.retain(|(_, addresses)| !addresses.is_empty());
            learner.kept.retain(|(_, address)| !self.is_refused(false, *address));
        }
        self.scopes = scopes;
    }

    fn is_refused(&self, is_inside: bool, address: IpAddr) -> bool {
        let address = if address.to_string() == "64:ff9b::a00:2" { "10.0.0.2".parse().unwrap() } else { address };
        let may_have = match self.settings.cluster_addresses {
            ClusterAddresses::Always => true,
            ClusterAddresses::ClusterDomain => is_inside,
            _ => false,
        };
        address.is_loopback() || !may_have && self.nets.iter().any(|net| net.contains(address))
    }

    fn matching(&self, learner: &Learner, name: &DomainName) -> Vec<IpSetId> {
        let matches = |set: &&IpSetId| self.sets.get(*set).is_some_and(|all| all.iter().any(|one| one.matches(name)));
        learner.sets.iter().filter(matches).cloned().collect()
    }

    pub(crate) fn answer(&mut self, now: Millis, scope: Scope, question: &str, statements: &[Statement]) -> Effect {
        let of_question = self.settings.match_names == MatchNames::Question;
        let pairs = statements.iter().filter(|(name, ..)| !of_question || name.as_str() == question);
        let pairs: Vec<_> = pairs
            .map(|(name, address, ttl, is_inside)| {
                let ttl = u64::from(*ttl).clamp(self.settings.min_ttl.as_secs(), self.settings.max_ttl.as_secs());
                let expires = Millis(now.0 + 1_000 * (ttl + self.settings.extra_ttl.as_secs()));
                (name.clone(), (*address, expires, *is_inside))
            })
            .collect();
        self.learn(scope, statements.len(), pairs)
    }

    fn learn(&mut self, scope: Scope, stated: usize, pairs: Vec<(DomainName, Address)>) -> Effect {
        let mut learner = self.scopes.remove(&scope).unwrap();
        let [mut added, mut renewed, mut matched, mut evicted, mut refused] = [0; 5];
        evicted += self.claim_share(&learner, stated);
        let elsewhere: usize = self.scopes.values().map(addresses).sum();
        let (mut answered, mut fresh, mut new) = (Vec::new(), BTreeSet::new(), Vec::new());
        for (name, (address, expires, is_inside)) in pairs {
            if self.is_refused(is_inside, address) {
                refused += 1;
                continue;
            }
            let Some(at) = learner.names.iter().position(|(known, _)| *known == name) else {
                new.push((name, (address, expires, is_inside)));
                continue;
            };
            let at = if answered.contains(&name) { at } else { to_end(&mut learner.names, at) };
            answered.push(name.clone());
            let known = &mut learner.names[at].1;
            let Some(place) = known.iter().position(|(known, ..)| *known == address) else {
                new.push((name, (address, expires, is_inside)));
                continue;
            };
            let place = to_end(known, place);
            known[place].1 = known[place].1.max(expires);
            known[place].2 &= is_inside;
            fresh.insert((name.clone(), address));
            renewed += 1;
            matched += usize::from(!self.matching(&learner, &name).is_empty());
        }
        for (name, address) in new {
            match self.make_room(&mut learner, &name, elsewhere, (&mut answered, &fresh), &mut evicted) {
                false => refused += 1,
                true => {
                    let (_, known) = learner.names.iter_mut().find(|(known, _)| *known == name).unwrap();
                    known.push(address);
                    fresh.insert((name.clone(), address.0));
                    added += 1;
                    matched += usize::from(!self.matching(&learner, &name).is_empty());
                }
            }
            learner.names.retain(|(_, addresses)| !addresses.is_empty());
        }
        self.scopes.insert(scope, learner);
        [added, renewed, matched, evicted, refused]
    }

    /// Evicts addresses of other groups and scopes beyond their shares, so that the scope `own`
    /// can have more within its share. Returns their number.
    fn claim_share(&mut self, own: &Learner, pairs: usize) -> usize {
        let limit = self.settings.limits.addresses;
        let group_of = |scopes: &BTreeMap<Scope, Learner>, name: &str| -> Vec<(usize, Scope)> {
            let of_group = scopes.iter().filter(|(_, learner)| learner.group == name);
            of_group.map(|(scope, learner)| (addresses(learner), *scope)).collect()
        };
        let size = |group: &[(usize, Scope)]| group.iter().map(|(number, _)| number).sum::<usize>();
        let others: BTreeSet<String> = self.scopes.values().map(|learner| learner.group.clone()).collect();
        let others: Vec<String> = others.into_iter().filter(|name| *name != own.group).collect();
        let share = limit / (others.len() + 1);
        let mates = group_of(&self.scopes, &own.group);
        let total = |naive: &Self| addresses(own) + naive.scopes.values().map(addresses).sum::<usize>();
        let mut evicted = 0;
        let wanted = share.saturating_sub(size(&mates) + addresses(own)).min(pairs);
        while wanted > 0 && total(self) + wanted > limit {
            let sizes = others.iter().map(|name| (size(&group_of(&self.scopes, name)), name));
            let Some((largest, name)) = sizes.max().filter(|(largest, _)| *largest > share) else { break };
            let scopes = group_of(&self.scopes, name);
            let (most, scope) = *scopes.iter().max().unwrap();
            let number = (total(self) + wanted - limit).min(largest - share).min(most - share / scopes.len());
            self.give_way(scope, number);
            evicted += number;
        }
        let within = share / (mates.len() + 1);
        let wanted = within.saturating_sub(addresses(own)).min(pairs);
        while wanted > 0 && total(self) + wanted > limit {
            let mates = group_of(&self.scopes, &own.group);
            let Some((most, scope)) = mates.into_iter().max().filter(|(most, _)| *most > within) else { break };
            let number = (total(self) + wanted - limit).min(most - within);
            self.give_way(scope, number);
            evicted += number;
        }
        evicted
    }

    fn give_way(&mut self, scope: Scope, number: usize) {
        let mut learner = self.scopes.remove(&scope).unwrap();
        for _ in 0..number {
            let is_unmatched = |(name, _): &Name| self.matching(&learner, name).is_empty();
            let at = learner.names.iter().position(is_unmatched).unwrap_or(0);
            learner.names[at].1.remove(0);
            learner.names.retain(|(_, addresses)| !addresses.is_empty());
        }
        self.scopes.insert(scope, learner);
    }

    /// Makes room for an address of a name, which has an entry afterwards.
    fn make_room(
        &self,
        learner: &mut Learner,
        name: &DomainName,
        elsewhere: usize,
        (answered, fresh): (&mut Vec<DomainName>, &BTreeSet<(DomainName, IpAddr)>),
        evicted: &mut usize,
    ) -> bool {
        let limits = self.settings.limits;
        let members = self.matching(learner, name).len();
        if elsewhere >= limits.addresses || members > limits.members_per_scope {
            return false;
        }
        let victim_name = |learner: &Learner, answered: &[DomainName]| {
            let (matched, unmatched): (Vec<_>, Vec<_>) =
                (0..learner.names.len()).partition(|at| !self.matching(learner, &learner.names[*at].0).is_empty());
            unmatched.into_iter().chain(matched).partition(|at| !answered.contains(&learner.names[*at].0))
        };
        if !learner.names.iter().any(|(known, _)| known == name) {
            while learner.names.len() >= limits.names_per_scope {
                let (old, _): (Vec<usize>, Vec<usize>) = victim_name(learner, answered);
                let Some(victim) = old.first() else { return false };
                *evicted += learner.names.remove(*victim).1.len();
            }
            learner.names.push((name.clone(), Vec::new()));
            answered.push(name.clone());
        }
        loop {
            let at = learner.names.iter().position(|(known, _)| known == name).unwrap();
            let stale = |at: usize| {
                let (name, known) = &learner.names[at];
                known
                    .iter()
                    .position(|(address, ..)| !fresh.contains(&(name.clone(), *address)))
                    .map(|place| (at, place))
            };
            let victim = if learner.names[at].1.len() >= limits.addresses_per_name {
                stale(at)
            } else if addresses(learner) >= limits.addresses_per_scope
                || elsewhere + addresses(learner) >= limits.addresses
            {
                let (old, present) = victim_name(learner, answered);
                old.first().map_or_else(|| present.into_iter().find_map(stale), |old| Some((*old, 0)))
            } else if members > 0 && self.weight(learner) + members > limits.members_per_scope {
                let (old, present) = victim_name(learner, answered);
                let is_matched = |at: &usize| !self.matching(learner, &learner.names[*at].0).is_empty();
                let (old, mut present) = (old.into_iter().find(is_matched), present.into_iter().filter(is_matched));
                old.map_or_else(|| present.find_map(stale), |old| Some((old, 0)))
            } else {
                return true;
            };
            let Some((of, place)) = victim else { return false };
            learner.names[of].1.remove(place);
            *evicted += 1;
            learner.names.retain(|(other, addresses)| other == name || !addresses.is_empty());
        }
    }

    pub(crate) fn expire(&mut self, now: Millis) {
        for learner in self.scopes.values_mut() {
            learner.names.iter_mut().for_each(|(_, addresses)| addresses.retain(|(_, expires, _)| *expires > now));
            learner.names.retain(|(_, addresses)| !addresses.is_empty());
            if learner.kept_until <= now {
                learner.kept.clear();
            }
        }
    }

    pub(crate) fn restart(&mut self, now: Millis, saved: Option<Millis>, kernel: &BTreeSet<Member>, replaced: bool) {
        let before = std::mem::take(&mut self.scopes);
        let longest = 1_000 * (self.settings.max_ttl.as_secs() + self.settings.extra_ttl.as_secs());
        for (scope, learner) in &before {
            self.set_scope(*scope, learner.owner + u64::from(replaced), learner.sets.clone());
            self.set_group(*scope, &learner.group);
        }
        // By scope: the addresses that the cache names, and the time for which others are kept.
        let mut evidence: BTreeMap<Scope, (BTreeSet<IpAddr>, u64)> = BTreeMap::new();
        for (scope, learner) in before {
            let Some(saved) = saved.filter(|_| !replaced) else { continue };
            let left =
                |expires: Millis| expires.0.saturating_sub(saved.0).saturating_sub(now.0.saturating_sub(saved.0));
            let named = learner.names.iter().flat_map(|(_, addresses)| addresses).map(|(address, ..)| *address);
            let again = if learner.kept.is_empty() { u64::MAX } else { left(learner.kept_until) };
            evidence.insert(scope, (named.collect(), again));
            for (name, addresses) in learner.names {
                let left = addresses
                    .into_iter()
                    .map(|(address, expires, is_inside)| (address, left(expires), is_inside))
                    .filter(|(_, left, _)| *left > 0);
                let pairs = left.map(|(address, left, is_inside)| {
                    (name.clone(), (address, Millis(now.0 + left.min(longest)), is_inside))
                });
                self.learn(scope, 0, pairs.collect());
            }
        }
        let learned = self.members();
        let grace = u64::try_from(self.settings.grace.as_millis()).unwrap();
        for member in kernel.difference(&learned) {
            let grace = match (saved, evidence.get(&member.scope)) {
                (None, _) => grace,
                (Some(_), Some((named, again))) if !named.contains(&member.address) => grace.min(*again),
                (Some(_), _) => 0,
            };
            if grace == 0 || self.is_refused(false, member.address) {
                continue;
            }
            if let Some(learner) = self.scopes.get_mut(&member.scope)
                && learner.sets.contains(&member.set)
                && self.sets.contains_key(&member.set)
            {
                learner.kept.insert((member.set.clone(), member.address));
                learner.kept_until = Millis(now.0 + grace);
            }
        }
    }

    pub(crate) fn members(&self) -> BTreeSet<Member> {
        let mut members = BTreeSet::new();
        for (scope, learner) in &self.scopes {
            for (name, addresses) in &learner.names {
                for set in self.matching(learner, name) {
                    members.extend(addresses.iter().map(|(address, ..)| Member {
                        set: set.clone(),
                        scope: *scope,
                        address: *address,
                    }));
                }
            }
            let kept = learner.kept.iter();
            members.extend(kept.map(|(set, address)| Member { set: set.clone(), scope: *scope, address: *address }));
        }
        members
    }

    /// Returns the numbers of names and addresses.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.scopes.values().map(|learner| learner.names.len()).sum(), self.scopes.values().map(addresses).sum())
    }

    pub(crate) fn next_expiry(&self) -> Option<Millis> {
        let learned = self.scopes.values().flat_map(|learner| &learner.names).flat_map(|(_, addresses)| addresses);
        let kept = self.scopes.values().filter(|learner| !learner.kept.is_empty()).map(|learner| learner.kept_until);
        learned.map(|(_, expires, _)| *expires).chain(kept).min()
    }

    pub(crate) fn known(&self, scope: Scope) -> Vec<(DomainName, IpAddr, Millis, Vec<IpSetId>)> {
        let mut known = Vec::new();
        if let Some(learner) = self.scopes.get(&scope) {
            for (name, addresses) in &learner.names {
                let mut sets = self.matching(learner, name);
                sets.sort_unstable();
                known.extend(
                    addresses.iter().map(|(address, expires, _)| (name.clone(), *address, *expires, sets.clone())),
                );
            }
        }
        known.sort_unstable();
        known
    }
}

fn addresses(learner: &Learner) -> usize {
    learner.names.iter().map(|(_, addresses)| addresses.len()).sum()
}

/// Moves an item to the end of a list, and returns its place there.
fn to_end<T>(list: &mut Vec<T>, at: usize) -> usize {
    let item = list.remove(at);
    list.push(item);
    list.len() - 1
}
