//! State of each client, and the messages that follow from it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Policy, Profile, RuleSets, Rules, WorkloadEndpointState,
    is_domain_set,
};
use tortie_model::{IpSetId, Labels, NamespacedName, PolicyId, ProfileName, WorkloadEndpointId};

use super::members::{self, Member};
use super::table::{Progress, Table, TableChanges};

/// Number of a call of `Sync`; numbers increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClientId(pub(super) u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Messages that are taken at once; each member of an IP set counts as one more.
    pub(super) batch: usize,
    /// Members of an IP set in one message while all are listed.
    pub(super) listed: usize,
    /// Members of an IP set in one delta message. Clients take messages of 4 MiB.
    pub(super) changed: usize,
    /// Changes of an IP set that are kept for a client, unless the set is larger.
    pub(super) behind: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch: 8_192, listed: 8_192, changed: 82_200, behind: 100_000 }
    }
}

/// The engine's desired state, and the part of it that each client has. A client is identified by
/// its endpoint. Its messages are made when it requests them with [`State::take`], from the current
/// state: no messages wait for a client.
#[derive(Debug)]
pub(super) struct State {
    endpoints: HashMap<WorkloadEndpointId, Versioned<WorkloadEndpointState>>,
    policies: HashMap<PolicyId, Versioned<Arc<Policy>>>,
    profiles: HashMap<ProfileName, Versioned<Arc<Profile>>>,
    sets: HashMap<IpSetId, Set>,
    service_accounts: Table<NamespacedName, Labels>,
    namespaces: Table<Arc<str>, Labels>,
    in_sync: bool,
    /// Objects of the last session that have not been sent again in this one.
    stale: Stale,
    clients: BTreeMap<ClientId, Client>,
    joined: HashMap<WorkloadEndpointId, ClientId>,
    ended: HashMap<ClientId, End>,
    version: u64,
    limits: Limits,
}

#[derive(Debug)]
struct Versioned<T> {
    value: T,
    version: u64,
    sets: Box<[IpSetId]>,
}

#[derive(Debug)]
struct Set {
    set_type: IpSetType,
    members: Table<Member, ()>,
    /// Whether it is kept only because clients still have it.
    removed: bool,
}

#[derive(Debug, Default)]
struct Stale {
    endpoints: HashSet<WorkloadEndpointId>,
    policies: HashSet<PolicyId>,
    profiles: HashSet<ProfileName>,
    sets: HashSet<IpSetId>,
    service_accounts: HashSet<NamespacedName>,
    namespaces: HashSet<Arc<str>>,
}

#[derive(Debug)]
struct Client {
    id: WorkloadEndpointId,
    endpoint: Option<u64>,
    policies: BTreeMap<PolicyId, u64>,
    profiles: BTreeMap<ProfileName, u64>,
    sets: BTreeMap<IpSetId, Progress<Member>>,
    service_accounts: Progress<NamespacedName>,
    namespaces: Progress<Arc<str>>,
    in_sync: bool,
    is_up_to_date: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Removed(WorkloadEndpointId),
    Replaced,
    /// It does not read.
    Behind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClientOutput {
    Nothing,
    Messages(Vec<DesiredUpdate>),
    End(End),
}

#[derive(Debug)]
struct Batch {
    messages: Vec<DesiredUpdate>,
    room: usize,
}

impl Batch {
    fn push(&mut self, message: DesiredUpdate, members: usize) -> Result<(), Full> {
        self.messages.push(message);
        self.room = self.room.saturating_sub(members + 1);
        if self.room == 0 { Err(Full) } else { Ok(()) }
    }
}

struct Full;

struct Complete(bool);

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            endpoints: HashMap::new(),
            policies: HashMap::new(),
            profiles: HashMap::new(),
            sets: HashMap::new(),
            service_accounts: Table::default(),
            namespaces: Table::default(),
            in_sync: false,
            stale: Stale::default(),
            clients: BTreeMap::new(),
            joined: HashMap::new(),
            ended: HashMap::new(),
            version: 0,
            limits,
        }
    }

    /// The engine will send everything again. Objects that it does not send before `InSync` are
    /// gone.
    pub(super) fn on_restart(&mut self) {
        self.stale = Stale {
            endpoints: self.endpoints.keys().cloned().collect(),
            policies: self.policies.keys().cloned().collect(),
            profiles: self.profiles.keys().cloned().collect(),
            sets: self.sets.keys().cloned().collect(),
            service_accounts: self.service_accounts.keys().cloned().collect(),
            namespaces: self.namespaces.keys().cloned().collect(),
        };
    }

    pub(super) fn on_update(&mut self, update: DesiredUpdate) {
        self.version += 1;
        match update {
            // Messages cannot express such sets, and leave out the rules that need them.
            DesiredUpdate::IpSet(update) if is_domain_set(&update.id) => {}
            DesiredUpdate::IpSet(update) => self.on_set(update),
            DesiredUpdate::IpSetDelta(delta) => self.on_set_delta(delta),
            DesiredUpdate::IpSetRemove(id) => self.on_set_remove(&id),
            DesiredUpdate::Policy(id, policy) => self.on_policy(&id, policy),
            DesiredUpdate::PolicyRemove(id) => {
                self.stale.policies.remove(&id);
                self.policies.remove(&id);
            }
            DesiredUpdate::Profile(id, profile) => self.on_profile(&id, profile),
            DesiredUpdate::ProfileRemove(id) => {
                self.stale.profiles.remove(&id);
                self.profiles.remove(&id);
            }
            DesiredUpdate::WorkloadEndpoint(id, endpoint) => self.on_endpoint(&id, endpoint),
            DesiredUpdate::WorkloadEndpointRemove(id) => {
                self.stale.endpoints.remove(&id);
                self.remove_endpoint(id);
            }
            DesiredUpdate::ServiceAccount(id, labels) => {
                self.stale.service_accounts.remove(&id);
                self.review_service_accounts();
                self.service_accounts.insert(id, labels);
                self.wake(|_| true);
            }
            DesiredUpdate::ServiceAccountRemove(id) => {
                self.stale.service_accounts.remove(&id);
                self.service_accounts.remove(&id);
                self.wake(|_| true);
            }
            DesiredUpdate::Namespace(name, labels) => {
                self.stale.namespaces.remove(&name);
                self.review_namespaces();
                self.namespaces.insert(name, labels);
                self.wake(|_| true);
            }
            DesiredUpdate::NamespaceRemove(name) => {
                self.stale.namespaces.remove(&name);
                self.namespaces.remove(&name);
                self.wake(|_| true);
            }
            DesiredUpdate::InSync => self.on_in_sync(),
            _ => {}
        }
    }

    fn on_policy(&mut self, id: &PolicyId, value: Arc<Policy>) {
        self.stale.policies.remove(id);
        let sets = sets_of(&value.inbound, &value.outbound);
        if set(&mut self.policies, id, Versioned { value, version: self.version, sets }) {
            self.wake(|client| client.policies.contains_key(id));
        }
    }

    fn on_profile(&mut self, id: &ProfileName, value: Arc<Profile>) {
        self.stale.profiles.remove(id);
        let sets = sets_of(&value.inbound, &value.outbound);
        if set(&mut self.profiles, id, Versioned { value, version: self.version, sets }) {
            self.wake(|client| client.profiles.contains_key(id));
        }
    }

    fn on_endpoint(&mut self, id: &WorkloadEndpointId, value: WorkloadEndpointState) {
        self.stale.endpoints.remove(id);
        set(&mut self.endpoints, id, Versioned { value, version: self.version, sets: Box::default() });
        if let Some(client) = self.joined.get(id).and_then(|client| self.clients.get_mut(client)) {
            client.is_up_to_date = false;
        }
    }

    fn on_in_sync(&mut self) {
        let stale = mem::take(&mut self.stale);
        stale.endpoints.into_iter().for_each(|id| self.remove_endpoint(id));
        stale.profiles.iter().for_each(|id| drop(self.profiles.remove(id)));
        stale.policies.iter().for_each(|id| drop(self.policies.remove(id)));
        stale.sets.iter().for_each(|id| self.on_set_remove(id));
        stale.service_accounts.iter().for_each(|id| self.service_accounts.remove(id));
        stale.namespaces.iter().for_each(|name| self.namespaces.remove(name));
        self.in_sync = true;
        self.wake(|_| true);
    }

    fn wake(&mut self, concerns: impl Fn(&Client) -> bool) {
        for client in self.clients.values_mut().filter(|client| client.is_up_to_date) {
            client.is_up_to_date = !concerns(client);
        }
    }

    fn remove_endpoint(&mut self, id: WorkloadEndpointId) {
        self.endpoints.remove(&id);
        if let Some(client) = self.joined.get(&id).copied() {
            self.end(client, End::Removed(id));
        }
    }

    fn on_set(&mut self, IpSetUpdate { id, set_type, members: new }: IpSetUpdate) {
        self.stale.sets.remove(&id);
        let values = members::of(&new).map(|member| (member, ())).collect();
        if self.sets.get(&id).is_some_and(|set| set.set_type != set_type) {
            // No message changes the type of a set, and its name contains the type.
            self.end_subscribers_of(&id);
            self.sets.remove(&id);
        }
        self.review_set(&id);
        let new = || Set { set_type, members: Table::default(), removed: false };
        let set = self.sets.entry(id.clone()).or_insert_with(new);
        set.removed = false;
        set.members.replace(values);
        self.wake(|client| client.sets.contains_key(&id));
    }

    fn on_set_delta(&mut self, IpSetDelta { id, added, removed }: IpSetDelta) {
        self.review_set(&id);
        let Some(set) = self.sets.get_mut(&id) else { return };
        members::of(&added).for_each(|member| set.members.insert(member, ()));
        members::of(&removed).for_each(|member| set.members.remove(&member));
        if set.members.has_subscribers() {
            self.wake(|client| client.sets.contains_key(&id));
        }
    }

    fn on_set_remove(&mut self, id: &IpSetId) {
        self.stale.sets.remove(id);
        if let Some(set) = self.sets.get_mut(id) {
            set.removed = true;
            if !set.members.has_subscribers() {
                self.sets.remove(id);
            }
        }
    }

    /// Adds a client of an endpoint, which need not exist. It replaces any other client of the
    /// endpoint.
    pub(super) fn join(&mut self, client: ClientId, id: WorkloadEndpointId) {
        if let Some(other) = self.joined.get(&id).copied() {
            self.end(other, End::Replaced);
        }
        self.joined.insert(id.clone(), client);
        let client_state = Client {
            id,
            endpoint: None,
            policies: BTreeMap::new(),
            profiles: BTreeMap::new(),
            sets: BTreeMap::new(),
            service_accounts: self.service_accounts.begin(),
            namespaces: self.namespaces.begin(),
            in_sync: false,
            is_up_to_date: false,
        };
        self.clients.insert(client, client_state);
    }

    pub(super) fn leave(&mut self, id: ClientId) {
        self.ended.remove(&id);
        let Some(client) = self.clients.remove(&id) else { return };
        if self.joined.get(&client.id) == Some(&id) {
            self.joined.remove(&client.id);
        }
        self.service_accounts.end();
        self.namespaces.end();
        client.sets.keys().for_each(|set| release(&mut self.sets, set));
    }

    fn end(&mut self, client: ClientId, why: End) {
        self.leave(client);
        self.ended.insert(client, why);
    }

    /// Returns the next messages for a client, which count as sent.
    pub(super) fn take(&mut self, id: ClientId) -> ClientOutput {
        if let Some(end) = self.ended.remove(&id) {
            return ClientOutput::End(end);
        }
        let Some(mut client) = self.clients.remove(&id) else { return ClientOutput::Nothing };
        let mut batch = Batch { messages: Vec::new(), room: self.limits.batch };
        if !client.is_up_to_date {
            client.is_up_to_date = matches!(self.collect(&mut client, &mut batch), Ok(Complete(true)));
        }
        self.clients.insert(id, client);
        if batch.messages.is_empty() { ClientOutput::Nothing } else { ClientOutput::Messages(batch.messages) }
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    fn collect(&mut self, client: &mut Client, batch: &mut Batch) -> Result<Complete, Full> {
        let complete = self.collect_endpoint(client, batch)?;
        let Self { service_accounts, namespaces, .. } = self;
        collect_table(service_accounts, &mut client.service_accounts, batch, |id, labels| match labels {
            Some(labels) => DesiredUpdate::ServiceAccount(id.clone(), labels.clone()),
            None => DesiredUpdate::ServiceAccountRemove(id.clone()),
        })?;
        collect_table(namespaces, &mut client.namespaces, batch, |name, labels| match labels {
            Some(labels) => DesiredUpdate::Namespace(Arc::clone(name), labels.clone()),
            None => DesiredUpdate::NamespaceRemove(Arc::clone(name)),
        })?;
        if self.in_sync && !mem::replace(&mut client.in_sync, true) {
            batch.push(DesiredUpdate::InSync, 0)?;
        }
        Ok(complete)
    }

    /// Sends what the endpoint refers to, then the endpoint, then the removal of what it no longer
    /// refers to.
    fn collect_endpoint(&mut self, client: &mut Client, batch: &mut Batch) -> Result<Complete, Full> {
        let Self { endpoints, policies, profiles, sets, limits, .. } = self;
        let Some(endpoint) = endpoints.get(&client.id) else { return Ok(Complete(true)) };
        let Some(needs) = Needs::of(&endpoint.value, policies, profiles, sets) else { return Ok(Complete(false)) };
        for id in &needs.sets {
            if let Some(set) = sets.get_mut(*id) {
                let progress = client.sets.entry((*id).clone()).or_insert_with(|| set.members.begin());
                collect_set(id, set, progress, limits, batch)?;
            }
        }
        for (id, policy) in &needs.policies {
            if client.policies.get(*id) != Some(&policy.version) {
                client.policies.insert((*id).clone(), policy.version);
                batch.push(DesiredUpdate::Policy((*id).clone(), Arc::clone(&policy.value)), 0)?;
            }
        }
        for (id, profile) in &needs.profiles {
            if client.profiles.get(*id) != Some(&profile.version) {
                client.profiles.insert((*id).clone(), profile.version);
                batch.push(DesiredUpdate::Profile((*id).clone(), Arc::clone(&profile.value)), 0)?;
            }
        }
        if client.endpoint != Some(endpoint.version) {
            client.endpoint = Some(endpoint.version);
            batch.push(DesiredUpdate::WorkloadEndpoint(client.id.clone(), endpoint.value.clone()), 0)?;
        }
        let unneeded = client.policies.keys().filter(|id| !needs.policies.contains_key(id));
        for id in unneeded.cloned().collect::<Vec<_>>() {
            client.policies.remove(&id);
            batch.push(DesiredUpdate::PolicyRemove(id), 0)?;
        }
        let unneeded = client.profiles.keys().filter(|id| !needs.profiles.contains_key(id));
        for id in unneeded.cloned().collect::<Vec<_>>() {
            client.profiles.remove(&id);
            batch.push(DesiredUpdate::ProfileRemove(id), 0)?;
        }
        let unneeded = client.sets.keys().filter(|id| !needs.sets.contains(id));
        for id in unneeded.cloned().collect::<Vec<_>>() {
            client.sets.remove(&id);
            release(sets, &id);
            batch.push(DesiredUpdate::IpSetRemove(id), 0)?;
        }
        Ok(Complete(true))
    }

    fn review_set(&mut self, id: &IpSetId) {
        let Some(set) = self.sets.get_mut(id).filter(|set| set.members.wants_review()) else { return };
        let progress = self.clients.iter().filter_map(|(client, state)| Some((*client, state.sets.get(id)?)));
        let bound = self.limits.behind.max(set.members.len());
        let too_slow = set.members.review(progress, bound);
        too_slow.into_iter().for_each(|client| self.end(client, End::Behind));
    }

    fn review_service_accounts(&mut self) {
        if self.service_accounts.wants_review() {
            let progress = self.clients.iter().map(|(client, state)| (*client, &state.service_accounts));
            let bound = self.limits.behind.max(self.service_accounts.len());
            let too_slow = self.service_accounts.review(progress, bound);
            too_slow.into_iter().for_each(|client| self.end(client, End::Behind));
        }
    }

    fn review_namespaces(&mut self) {
        if self.namespaces.wants_review() {
            let progress = self.clients.iter().map(|(client, state)| (*client, &state.namespaces));
            let bound = self.limits.behind.max(self.namespaces.len());
            let too_slow = self.namespaces.review(progress, bound);
            too_slow.into_iter().for_each(|client| self.end(client, End::Behind));
        }
    }

    fn end_subscribers_of(&mut self, set: &IpSetId) {
        let subscribers = self.clients.iter().filter(|(_, client)| client.sets.contains_key(set));
        let subscribers: Vec<ClientId> = subscribers.map(|(id, _)| *id).collect();
        subscribers.into_iter().for_each(|client| self.end(client, End::Behind));
    }
}

#[derive(Debug)]
struct Needs<'a> {
    policies: BTreeMap<&'a PolicyId, &'a Versioned<Arc<Policy>>>,
    profiles: BTreeMap<&'a ProfileName, &'a Versioned<Arc<Profile>>>,
    sets: BTreeSet<&'a IpSetId>,
}

impl<'a> Needs<'a> {
    /// `None` if one of them has not been received: no message may refer to it.
    fn of(
        endpoint: &'a WorkloadEndpointState,
        policies: &'a HashMap<PolicyId, Versioned<Arc<Policy>>>,
        profiles: &'a HashMap<ProfileName, Versioned<Arc<Profile>>>,
        sets: &HashMap<IpSetId, Set>,
    ) -> Option<Self> {
        let mut needs = Self { policies: BTreeMap::new(), profiles: BTreeMap::new(), sets: BTreeSet::new() };
        for id in endpoint.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())) {
            let policy = policies.get(id)?;
            if needs.policies.insert(id, policy).is_none() {
                needs.sets.extend(policy.sets.iter());
            }
        }
        for id in endpoint.endpoint.profiles.iter() {
            let profile = profiles.get(id)?;
            if needs.profiles.insert(id, profile).is_none() {
                needs.sets.extend(profile.sets.iter());
            }
        }
        needs.sets.iter().all(|id| sets.get(*id).is_some_and(|set| !set.removed)).then_some(needs)
    }
}

fn sets_of(inbound: &Rules, outbound: &Rules) -> Box<[IpSetId]> {
    let sets = inbound.sets().iter().chain(outbound.sets().iter()).flat_map(RuleSets::iter);
    sets.filter(|id| !is_domain_set(id)).collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

/// Stores a value; returns whether it differs from the former one.
fn set<K: Clone + Eq + Hash, V: PartialEq>(values: &mut HashMap<K, Versioned<V>>, key: &K, new: Versioned<V>) -> bool {
    let is_new = values.get(key).is_none_or(|known| known.value != new.value);
    if is_new {
        values.insert(key.clone(), new);
    }
    is_new
}

fn release(sets: &mut HashMap<IpSetId, Set>, id: &IpSetId) {
    if let Some(set) = sets.get_mut(id) {
        set.members.end();
        if set.removed && !set.members.has_subscribers() {
            sets.remove(id);
        }
    }
}

fn collect_set(
    id: &IpSetId,
    set: &Set,
    progress: &mut Progress<Member>,
    limits: &Limits,
    batch: &mut Batch,
) -> Result<(), Full> {
    let pack = |changes: &TableChanges<'_, Member, ()>, is_member: bool| {
        let members = changes.iter().filter(|(_, value)| value.is_some() == is_member).map(|(member, _)| *member);
        members::pack(set.set_type, members)
    };
    while !set.members.is_up_to_date(progress) {
        let is_new = progress.is_new();
        let at_most = if matches!(progress, Progress::Listing { .. }) { limits.listed } else { limits.changed };
        let changes = set.members.next(progress, at_most);
        let (id, added) = (id.clone(), pack(&changes, true));
        if is_new {
            batch.push(
                DesiredUpdate::IpSet(IpSetUpdate { id, set_type: set.set_type, members: added }),
                changes.len(),
            )?;
        } else if !changes.is_empty() {
            let delta = IpSetDelta { id, added, removed: pack(&changes, false) };
            batch.push(DesiredUpdate::IpSetDelta(delta), changes.len())?;
        }
    }
    Ok(())
}

fn collect_table<K: Clone + Ord + Hash, V: PartialEq>(
    table: &Table<K, V>,
    progress: &mut Progress<K>,
    batch: &mut Batch,
    message: impl Fn(&K, Option<&V>) -> DesiredUpdate,
) -> Result<(), Full> {
    while !table.is_up_to_date(progress) {
        // All taken changes are sent.
        for (key, value) in table.next(progress, batch.room) {
            batch.push(message(key, value), 0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
