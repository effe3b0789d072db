//! All endpoints of a cluster on one node, with the contests of each endpoint's real node.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_calc::{
    AddressClaims, Graph, GraphConfig, IgnoredObject, ReadyFlag, Reason, claim_problems, standing_claims,
};
use tortie_model::desired::{Contest, DesiredUpdate, WorkloadEndpointState};
use tortie_model::{
    AdminState, HostEndpointKey, Hostname, InterfaceName, Key, SyncStatus, Update, Valid, WorkloadEndpoint,
    WorkloadEndpointId, WorkloadEndpointKey,
};

/// Name of the node with all endpoints.
const NODE: &str = "cluster";

/// Calculation graph of a node with all endpoints of a cluster.
///
/// An interface or address that endpoints of different nodes share is not contested, but the graph
/// cannot know that. Interfaces therefore get unique names. Contests about addresses are replaced
/// by those that [`claim_problems`] finds for each node, and the claimed addresses of endpoints are
/// those that [`standing_claims`] leaves them on their nodes.
pub(crate) struct OneNode {
    graph: Graph,
    claims: AddressClaims,
    /// Objects that claims depend on.
    objects: BTreeMap<Key, Update>,
    /// Whether such an object has changed since claims were evaluated.
    objects_changed: bool,
    /// Node whose endpoint keeps the name of the interface.
    interfaces: AHashMap<InterfaceName, Box<str>>,
    /// Names of interfaces of other nodes, by node and interface.
    aliases: AHashMap<(Box<str>, InterfaceName), InterfaceName>,
    denied: BTreeMap<WorkloadEndpointId, Denied>,
}

/// An endpoint that the graph denies because of a contest.
struct Denied {
    state: WorkloadEndpointState,
    /// The state on the endpoint's real node.
    corrected: Option<WorkloadEndpointState>,
}

impl OneNode {
    pub(crate) fn new(config: &GraphConfig) -> Self {
        let mut graph = Graph::new(&GraphConfig {
            hostname: Hostname::new(NODE),
            ready_flag: ReadyFlag::Ignored,
            ..config.clone()
        });
        graph.on_status(SyncStatus::InSync);
        Self {
            graph,
            claims: config.address_claims,
            objects: BTreeMap::new(),
            objects_changed: false,
            interfaces: AHashMap::new(),
            aliases: AHashMap::new(),
            denied: BTreeMap::new(),
        }
    }

    pub(crate) fn on_update(&mut self, update: Update) {
        if is_of_claims(&update) {
            update.clone().apply_to(&mut self.objects);
            self.objects_changed = true;
        }
        let update = self.on_one_node(update);
        self.graph.on_update(update);
    }

    fn on_one_node(&mut self, update: Update) -> Update {
        match update {
            Update::WorkloadEndpoint(key, endpoint) => {
                let endpoint = endpoint.map(|endpoint| self.with_own_interface(key.host(), endpoint));
                let key = WorkloadEndpointKey::new(NODE, key.orchestrator(), key.workload(), key.endpoint());
                Update::WorkloadEndpoint(key, endpoint)
            }
            Update::HostEndpoint(key, endpoint) => {
                Update::HostEndpoint(HostEndpointKey { host: Hostname::new(NODE), ..key }, endpoint)
            }
            other => other,
        }
    }

    /// Renames the interface if an endpoint of another node has an interface of this name.
    #[expect(clippy::expect_used, reason = "an endpoint that is not renamed would seem contested")]
    fn with_own_interface(&mut self, host: &str, endpoint: Valid<WorkloadEndpoint>) -> Valid<WorkloadEndpoint> {
        let Some(name) = endpoint.iface else { return endpoint };
        if **self.interfaces.entry(name).or_insert_with(|| host.into()) == *host {
            return endpoint;
        }
        let number = self.aliases.len();
        let alias = self.aliases.entry((host.into(), name));
        let alias = alias.or_insert_with(|| format!("cali_{number:x}").parse().expect("an alias is a short word"));
        let renamed = Valid::stored(WorkloadEndpoint { iface: Some(*alias), ..WorkloadEndpoint::clone(&endpoint) });
        renamed.expect("a valid endpoint stays valid with another interface of a valid name")
    }

    /// Restricts endpoints to the claimed addresses that count on their real nodes.
    #[expect(clippy::expect_used, reason = "an endpoint that is not corrected would have addresses that it has not")]
    fn bound_claims(&mut self) {
        if !std::mem::take(&mut self.objects_changed) || self.claims == AddressClaims::Any {
            return;
        }
        for (key, endpoint) in standing_claims(self.objects.values()) {
            let endpoint = endpoint.map(|endpoint| {
                let valid = Valid::stored(Arc::unwrap_or_clone(endpoint));
                valid.expect("a valid endpoint stays valid with some of its addresses")
            });
            let update = self.on_one_node(Update::WorkloadEndpoint(key, endpoint));
            self.graph.on_update(update);
        }
    }

    /// Returns the changes of the desired state.
    pub(crate) fn flush(&mut self) -> Vec<DesiredUpdate> {
        self.bound_claims();
        let mut desired = Vec::new();
        self.graph.flush(&mut desired);
        for update in &desired {
            match update {
                DesiredUpdate::WorkloadEndpoint(id, state) if is_denied(state) => {
                    self.denied.insert(id.clone(), Denied { state: state.clone(), corrected: None });
                }
                DesiredUpdate::WorkloadEndpoint(id, _) | DesiredUpdate::WorkloadEndpointRemove(id) => {
                    self.denied.remove(id);
                }
                _ => {}
            }
        }
        let mut corrected = self.corrected();
        for update in &mut desired {
            if let DesiredUpdate::WorkloadEndpoint(id, state) = update
                && let Some(other) = corrected.remove(id)
            {
                *state = other;
            }
        }
        desired.extend(corrected.into_iter().map(|(id, state)| DesiredUpdate::WorkloadEndpoint(id, state)));
        desired
    }

    /// Returns the denied endpoints with their state on their real nodes, if it differs from the
    /// one returned before.
    #[expect(clippy::expect_used, reason = "the graph has the endpoints that are among the objects")]
    fn corrected(&mut self) -> BTreeMap<WorkloadEndpointId, WorkloadEndpointState> {
        if self.denied.is_empty() {
            return BTreeMap::new();
        }
        let mut contests: BTreeMap<WorkloadEndpointId, Contest> = BTreeMap::new();
        for IgnoredObject { key, reason, .. } in claim_problems(self.objects.values()) {
            if let (Key::WorkloadEndpoint(key), Reason::Contested(contest)) = (key, reason) {
                contests.insert(key.id(), contest);
            }
        }
        let states: BTreeMap<WorkloadEndpointId, AdminState> = self
            .objects
            .values()
            .filter_map(|update| match update {
                Update::WorkloadEndpoint(key, Some(endpoint)) => Some((key.id(), endpoint.state)),
                _ => None,
            })
            .filter(|(id, _)| self.denied.contains_key(id))
            .collect();
        let mut changed = BTreeMap::new();
        for (id, denied) in &mut self.denied {
            let own_state = *states.get(id).expect("a denied endpoint is among the objects");
            let state = on_own_node(&denied.state, contests.remove(id), own_state);
            if denied.corrected.as_ref() != Some(&state) {
                denied.corrected = Some(state.clone());
                changed.insert(id.clone(), state);
            }
        }
        changed
    }

    /// Returns objects and claims that do not count on their nodes, sorted by key.
    pub(crate) fn ignored(&self) -> Vec<IgnoredObject> {
        // Claims are evaluated per node, and the single node of all endpoints is unknown to the
        // cluster.
        let is_left_out =
            |reason: &Reason| matches!(reason, Reason::Claim { .. } | Reason::Contested(_) | Reason::UnknownHost);
        let mut ignored: Vec<_> = self.graph.problems().filter(|problem| !is_left_out(&problem.reason)).collect();
        if self.claims == AddressClaims::Bounded {
            ignored.extend(claim_problems(self.objects.values()));
        }
        ignored.sort_by(|one, other| one.key.cmp(&other.key));
        ignored
    }
}

/// Returns the desired state of all endpoints of a cluster as if they were on one node. The name of
/// the node has no effect.
#[must_use]
pub fn on_one_node(config: &GraphConfig, objects: impl IntoIterator<Item = Update>) -> Vec<DesiredUpdate> {
    let mut node = OneNode::new(config);
    objects.into_iter().for_each(|update| node.on_update(update));
    node.flush()
}

fn is_of_claims(update: &Update) -> bool {
    matches!(
        update,
        Update::WorkloadEndpoint(..)
            | Update::HostEndpoint(..)
            | Update::Node(..)
            | Update::Wireguard(..)
            | Update::HostConfig(..)
            | Update::IpPool(..)
    )
}

fn is_denied(state: &WorkloadEndpointState) -> bool {
    state.computed.as_ref().is_some_and(|computed| computed.contest.is_some())
}

/// Returns the state of a denied endpoint with the contest of its real node, if there is one.
#[expect(clippy::expect_used, reason = "only endpoints with a contest are denied")]
fn on_own_node(denied: &WorkloadEndpointState, contest: Option<Contest>, state: AdminState) -> WorkloadEndpointState {
    let mut corrected = denied.clone();
    if contest.is_none() {
        Arc::make_mut(&mut corrected.endpoint).state = state;
    }
    let mut computed = corrected.computed.take().expect("a denied endpoint has a contest");
    computed.contest = contest;
    corrected.computed = (*computed != Default::default()).then_some(computed);
    corrected
}
