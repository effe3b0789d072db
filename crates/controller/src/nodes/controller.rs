//! State machine that schedules the jobs about nodes.

mod kubernetes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use tortie_net::with_causes;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use super::addresses::Addresses;
use super::config::{self, NodeConfig, Overrides};
use super::custom::CustomResources;
use super::followed::{FollowedObjects, NodeFacts};
use super::labels::LabelsError;
use super::stored_endpoints::{self, StoredEndpoints};
use super::task::{Done, Item, Job, Task, is_as_wanted};
use super::{host_endpoints, labels};
use crate::Observed;
use crate::access::{JobError, LiveKind, kubernetes_name};
use crate::ipam::{MetricFamily, NodeState, ReleaseTask};
use crate::json::field;
use crate::queue::{RateLimiter, WorkQueue};
use crate::same::same;

/// Interval between passes over everything (`timer` of
/// `kube-controllers/pkg/controllers/node/controller.go`).
const PERIOD: Duration = Duration::from_secs(300);
/// Longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Watch event of the datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredEvent<'k> {
    /// A list begins: all entries follow, also known ones.
    ListBegins,
    /// An entry exists.
    Text {
        /// Its path.
        path: &'k str,
        /// Its text.
        text: &'k str,
        /// Its version.
        revision: Revision,
    },
    /// An entry was deleted.
    Deleted {
        /// Its path.
        path: &'k str,
    },
    /// The list is complete: an entry that was not in it does not exist.
    ListEnds,
}

/// Next action of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Run this job, then call [`NodeController::done`].
    Job(Job),
    /// Wait until this time or the next event; `None`: until the next event.
    Wait(Option<Instant>),
}

/// Keeps Calico nodes and their dependent resources in sync with the nodes of Kubernetes
/// (`kube-controllers/pkg/controllers/node`).
///
/// It receives events of Kubernetes nodes and pods, and of the datastore entries below
/// [`NodeController::PREFIXES`]. If Kubernetes is the datastore, it receives events of each
/// [`CustomKind`](super::CustomKind) instead, and Calico nodes are the Kubernetes nodes.
///
/// It writes nothing before both sides are known and before [`NodeController::lead`]. Then it
/// repairs differences when an event arrives and every five minutes. A failing write is retried
/// with growing pauses of at most 30 s for as long as the difference exists.
#[derive(Debug)]
pub struct NodeController {
    overrides: Overrides,
    config: NodeConfig,
    config_problems: Vec<String>,
    /// Source of the configuration.
    configured: Configured,
    nodes: FollowedObjects<NodeFacts>,
    /// Custom resources, if Kubernetes is the datastore.
    custom: Option<CustomResources>,
    /// Calico nodes; null for an unreadable one.
    stored_nodes: BTreeMap<String, Value>,
    /// Names of Calico nodes by Kubernetes node.
    named: BTreeMap<String, BTreeSet<String>>,
    endpoints: StoredEndpoints,
    addresses: Addresses,
    stored_synced: bool,
    /// During a list: known resources that the list has not contained so far.
    unmentioned: Option<BTreeSet<ResourceKey>>,
    leads: bool,
    /// The first pass since the controller leads and knows everything has begun.
    began: bool,
    again_at: Option<Instant>,
    queue: WorkQueue<Item>,
    limiter: RateLimiter<Item>,
    failing: BTreeMap<Item, String>,
    totals: Done,
}

/// State of the configuration resource.
#[derive(Debug, PartialEq)]
enum Configured {
    Unknown,
    Absent,
    Unreadable,
    Resource(Value),
}

impl NodeController {
    /// Prefixes of the datastore entries that the caller has to pass to
    /// [`NodeController::observe_stored`].
    pub const PREFIXES: [&'static str; 9] = [
        "/calico/ipam/v2/assignment/",
        "/calico/ipam/v2/config",
        "/calico/ipam/v2/host/",
        "/calico/resources/v3/projectcalico.org/clusterinformations/",
        "/calico/resources/v3/projectcalico.org/hostendpoints/",
        "/calico/resources/v3/projectcalico.org/ippools/",
        "/calico/resources/v3/projectcalico.org/ipreservations/",
        "/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/",
        "/calico/resources/v3/projectcalico.org/nodes/",
    ];

    /// Returns a controller without any state.
    #[must_use]
    pub fn new(overrides: Overrides) -> Self {
        let (config, config_problems) = NodeConfig::read(&config::default_resource(), &overrides);
        let custom = overrides.kubernetes_datastore.then(CustomResources::default);
        let mut controller = Self {
            overrides,
            config,
            config_problems,
            configured: Configured::Unknown,
            nodes: FollowedObjects::default(),
            custom,
            stored_nodes: BTreeMap::new(),
            named: BTreeMap::new(),
            endpoints: StoredEndpoints::default(),
            addresses: Addresses::default(),
            stored_synced: false,
            unmentioned: None,
            leads: false,
            began: false,
            again_at: None,
            queue: WorkQueue::default(),
            limiter: RateLimiter::default(),
            failing: BTreeMap::new(),
            totals: Done::default(),
        };
        if controller.custom.is_some() {
            // The first lists of all kinds count as one list.
            controller.observe_stored(StoredEvent::ListBegins);
        }
        controller
    }

    /// Records a watch event of Kubernetes.
    pub fn observe(&mut self, kind: LiveKind, observed: Observed<'_>) {
        match kind {
            LiveKind::Nodes => {
                let changed = self.nodes.observe(observed, NodeFacts::read);
                if self.custom.is_some() {
                    self.observe_node(observed);
                }
                for ((_, name), _) in changed {
                    if self.custom.is_some() && self.nodes.get("", &name).is_none() {
                        self.set_node(&name, None);
                    }
                    for node in self.named.get(&*name).into_iter().flatten() {
                        add(&mut self.queue, &mut self.limiter, Item::Node(node.clone()));
                        add(&mut self.queue, &mut self.limiter, Item::Addresses(node.clone()));
                    }
                }
            }
            LiveKind::Pods => {
                let items = self.addresses.observe_pods(observed);
                self.add_all(items);
            }
        }
    }

    /// Records a watch event of the datastore.
    pub fn observe_stored(&mut self, stored: StoredEvent<'_>) {
        match stored {
            StoredEvent::ListBegins => {
                let key = |kind| move |name: &String| ResourceKey::new(kind, "", name.as_str()).ok();
                let nodes = self.stored_nodes.keys().filter_map(key(ResourceKind::Node));
                let endpoints = self.endpoints.names().filter_map(key(ResourceKind::HostEndpoint));
                let mut known: BTreeSet<ResourceKey> = nodes.chain(endpoints).chain(self.addresses.keys()).collect();
                known.extend(configuration_key());
                self.addresses.list_begins();
                self.unmentioned = Some(known);
            }
            StoredEvent::Text { path, text, revision } => {
                if let Some(items) = self.addresses.set_path(path, Some((text, revision))) {
                    self.add_all(items);
                    return;
                }
                let Some(key) = ResourceKey::from_path(path) else { return };
                if let Some(unmentioned) = &mut self.unmentioned {
                    unmentioned.remove(&key);
                }
                let object = stored_endpoints::object(&key, text, revision);
                self.set(&key, Some((object.unwrap_or_default(), revision)));
            }
            StoredEvent::Deleted { path } => {
                if let Some(items) = self.addresses.set_path(path, None) {
                    self.add_all(items);
                } else if let Some(key) = ResourceKey::from_path(path) {
                    self.set(&key, None);
                }
            }
            StoredEvent::ListEnds => {
                for key in self.unmentioned.take().unwrap_or_default() {
                    self.set(&key, None);
                }
                let items = self.addresses.list_ends();
                self.add_all(items);
                self.stored_synced = true;
            }
        }
    }

    fn set(&mut self, key: &ResourceKey, stored: Option<(Value, Revision)>) {
        match key.kind() {
            ResourceKind::Node => self.set_node(key.name(), stored.map(|(object, _)| object)),
            ResourceKind::HostEndpoint => {
                for node in self.endpoints.set(key.name(), stored) {
                    self.add(Item::HostEndpoints(node));
                }
            }
            ResourceKind::KubeControllersConfiguration if key.name() == "default" => {
                self.configure(stored.map(|(object, _)| object));
            }
            _ => {
                if self.addresses.set_resource(key, stored.as_ref().map(|(object, _)| object)) {
                    self.began = false;
                }
            }
        }
    }

    fn set_node(&mut self, name: &str, object: Option<Value>) {
        if self.stored_nodes.get(name) == object.as_ref() {
            return;
        }
        if let Some(before) = self.stored_nodes.remove(name)
            && let Some(kubernetes) = kubernetes_name(&before)
            && let Some(names) = self.named.get_mut(kubernetes)
        {
            names.remove(name);
            if names.is_empty() {
                self.named.remove(kubernetes);
            }
        }
        if let Some(object) = object {
            if let Some(kubernetes) = kubernetes_name(&object) {
                self.named.entry(kubernetes.to_owned()).or_default().insert(name.to_owned());
            }
            self.stored_nodes.insert(name.to_owned(), object);
        }
        self.add(Item::Node(name.to_owned()));
        self.add(Item::HostEndpoints(name.to_owned()));
        self.add(Item::Addresses(name.to_owned()));
    }

    fn configure(&mut self, resource: Option<Value>) {
        let configured = match resource {
            None => Configured::Absent,
            Some(Value::Null) => Configured::Unreadable,
            Some(resource) => Configured::Resource(resource),
        };
        if configured == self.configured {
            return;
        }
        self.add(Item::Configuration);
        let before = std::mem::replace(&mut self.configured, configured);
        let default = config::default_resource();
        let read = match (&self.configured, &before) {
            (Configured::Resource(now), Configured::Resource(before))
                if field(now, &["spec"]) == field(before, &["spec"]) =>
            {
                return;
            }
            (Configured::Unknown | Configured::Unreadable, _) => {
                // The configuration stays, and no host endpoint counts as unwanted.
                self.config.host_endpoints.is_incomplete = true;
                self.config_problems = vec!["KubeControllersConfiguration/default: cannot be read".into()];
                return;
            }
            (Configured::Absent, _) => &default,
            (Configured::Resource(resource), _) => resource,
        };
        (self.config, self.config_problems) = NodeConfig::read(read, &self.overrides);
        // The new configuration may concern every item.
        self.began = false;
    }

    fn add(&mut self, item: Item) {
        add(&mut self.queue, &mut self.limiter, item);
    }

    fn add_all(&mut self, items: BTreeSet<Item>) {
        for item in items {
            self.add(item);
        }
    }

    /// Allows the controller to write. It begins with a pass over everything, unless it leads
    /// already.
    pub fn lead(&mut self) {
        self.leads = true;
    }

    /// Forbids the controller to write. Running jobs should be abandoned.
    pub fn follow(&mut self) {
        if self.leads {
            self.leads = false;
            self.began = false;
            self.queue.clear();
            self.limiter.clear();
            self.failing.clear();
        }
    }

    /// Reports whether it may write.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads
    }

    fn is_synced(&self) -> bool {
        self.stored_synced && self.nodes.synced() && self.addresses.pods_synced()
    }

    fn queue_everything(&mut self, now: Instant) {
        self.began = true;
        self.again_at = Some(now + PERIOD);
        let nodes = self.stored_nodes.keys().cloned();
        let items: Vec<Item> = std::iter::once(Item::Configuration)
            .chain(nodes.clone().map(Item::Node))
            .chain(nodes.map(Item::HostEndpoints))
            .chain(self.endpoints.nodes().map(|node| Item::HostEndpoints(node.to_owned())))
            .chain(self.addresses.items())
            .collect();
        for item in items {
            self.queue.add(item);
        }
    }

    /// Returns the next action of a worker.
    pub fn next(&mut self, now: Instant) -> Next {
        if !self.leads || !self.is_synced() {
            return Next::Wait(None);
        }
        if !self.began || self.again_at.is_some_and(|at| at <= now) {
            self.queue_everything(now);
        }
        while let Some(item) = self.queue.take(now) {
            match self.task(&item, now) {
                Ok(Some(task)) => return Next::Job(Job { item, task }),
                Ok(None) => self.settle(&item),
                Err(error) => {
                    self.queue.done(&item);
                    self.failing.insert(item, with_causes(&error));
                }
            }
        }
        Next::Wait(self.again_at.into_iter().chain(self.queue.next_due()).min())
    }

    fn settle(&mut self, item: &Item) {
        self.queue.done(item);
        self.limiter.forget(item);
        self.failing.remove(item);
    }

    /// Returns the task for an item; `None` if it is in sync.
    fn task(&mut self, item: &Item, now: Instant) -> Result<Option<Task>, LabelsError> {
        match item {
            Item::Configuration if self.overrides.leaves_status => Ok(None),
            Item::Configuration => {
                let status = self.config.status(&self.overrides);
                let is_told = match &self.configured {
                    Configured::Resource(resource) => same(field(resource, &["status"]), &status),
                    Configured::Unknown | Configured::Absent => false,
                    Configured::Unreadable => true,
                };
                Ok((!is_told).then_some(Task::Configuration { status }))
            }
            _ if !self.config.enabled => Ok(None),
            Item::Node(name) => self.node_task(name),
            Item::HostEndpoints(node) => Ok(self.endpoints_task(node)),
            Item::Addresses(_) | Item::Block(_) | Item::Handle(_) => {
                Ok(self.addresses_task(item, now).map(Task::Addresses))
            }
        }
    }

    fn node_task(&self, name: &str) -> Result<Option<Task>, LabelsError> {
        if self.custom.is_some() {
            // The Calico node is the Kubernetes node.
            return Ok(None);
        }
        let Some(stored) = self.stored_nodes.get(name) else { return Ok(None) };
        let Some(kubernetes) = kubernetes_name(stored) else { return Ok(None) };
        let (node, kubernetes_node) = (name.to_owned(), kubernetes.to_owned());
        let Some(facts) = self.nodes.get("", kubernetes) else {
            let gone = self.nodes.is_complete();
            return Ok(gone.then_some(Task::DeleteNode { node, kubernetes: kubernetes_node }));
        };
        if !self.config.sync_labels {
            return Ok(None);
        }
        let labels = facts.labels.as_ref().ok_or(LabelsError::OfKubernetes)?;
        let is_different = labels::synced(stored, labels)?.is_some();
        Ok(is_different.then(|| Task::Labels { node, kubernetes: kubernetes_node, labels: labels.clone() }))
    }

    /// Returns the task for an address item, and schedules its next evaluation.
    fn addresses_task(&mut self, item: &Item, now: Instant) -> Option<ReleaseTask> {
        let grace = self.config.leak_grace;
        let may_be_unknown = self.may_have_more_nodes();
        let state = |name: &str| match node_state(&self.stored_nodes, &self.nodes, name) {
            NodeState::Gone if may_be_unknown => NodeState::Foreign,
            state => state,
        };
        let (task, due) = match item {
            Item::Addresses(name) => self.addresses.node_task(name, state(name), grace, now),
            Item::Block(cidr) => self.addresses.block_task(*cidr, state, grace, now),
            Item::Handle(handle) => (self.addresses.handle_task(handle), None),
            Item::Configuration | Item::Node(_) | Item::HostEndpoints(_) => (None, None),
        };
        if let Some(due) = due {
            self.queue.add_at(item.clone(), due);
        }
        task
    }

    fn endpoints_task(&self, node: &str) -> Option<Task> {
        let config = &self.config.host_endpoints;
        let stored = self.stored_nodes.get(node);
        if stored.is_some_and(Value::is_null) || stored.is_none() && self.may_have_more_nodes() {
            return None;
        }
        let wanted = stored.map(|stored| host_endpoints::wanted(node, stored, config)).unwrap_or_default();
        // Host endpoints of an invalid template stay.
        let may_delete = stored.is_none() || !config.is_incomplete;
        let unwanted: Vec<(String, Revision)> = self
            .endpoints
            .of_node(node)
            .filter(|name| may_delete && !wanted.contains_key(*name))
            .filter_map(|name| Some((name.to_owned(), self.endpoints.get(name)?.revision)))
            .collect();
        let differs = |(name, endpoint): &(String, Value)| {
            let key = ResourceKey::new(ResourceKind::HostEndpoint, "", name.as_str());
            let stored = self.endpoints.get(name);
            !key.is_ok_and(|key| stored.is_some_and(|stored| is_as_wanted(&key, &stored.object, endpoint)))
        };
        let wanted: Vec<(String, Value)> = wanted.into_iter().filter(differs).collect();
        (!wanted.is_empty() || !unwanted.is_empty()).then_some(Task::HostEndpoints { wanted, unwanted })
    }

    /// Records the result of a job.
    pub fn done(&mut self, job: Job, result: Result<Done, JobError>, now: Instant) {
        let Job { item, .. } = job;
        self.addresses.task_ended(&item);
        match result {
            Ok(done) => {
                self.totals.created += done.created;
                self.totals.updated += done.updated;
                self.totals.deleted += done.deleted;
                self.totals.released += done.released;
                self.settle(&item);
                if let Some(settled) = &done.settled {
                    let items = self.addresses.settle(settled);
                    if self.leads {
                        self.add_all(items);
                    }
                }
            }
            Err(error) => {
                self.queue.done(&item);
                if self.leads {
                    let pause = self.limiter.failed(item.clone(), now).min(LONGEST_PAUSE);
                    self.queue.add_at(item.clone(), now + pause);
                    self.failing.insert(item, with_causes(&error));
                }
            }
        }
    }

    /// Returns the numbers of created, updated and deleted resources and of released addresses.
    #[must_use]
    pub fn totals(&self) -> &Done {
        &self.totals
    }

    /// Returns the metrics of allocated and leaked addresses; none before the initial sync.
    #[must_use]
    pub fn address_metrics(&self) -> Vec<MetricFamily> {
        if !self.is_synced() {
            return Vec::new();
        }
        let nodes: Vec<&str> = self.stored_nodes.keys().map(String::as_str).collect();
        self.addresses.metrics(&nodes)
    }

    /// Returns the number of items that wait or are in work.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.queue.working()
    }

    /// Reports whether the initial sync is complete and, on the leader, the first pass has begun.
    #[must_use]
    pub fn in_sync(&self) -> bool {
        self.is_synced() && (!self.leads || self.began)
    }

    /// Returns the current problems.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let failing = self.failing.iter().map(|(item, error)| format!("{item}: {error}"));
        let custom = self.custom.iter().flat_map(CustomResources::problems);
        self.config_problems.iter().cloned().chain(custom).chain(self.addresses.problems()).chain(failing).collect()
    }
}

/// Returns the state of a Calico node, as far as it is known.
fn node_state<'n>(
    stored: &'n BTreeMap<String, Value>,
    nodes: &FollowedObjects<NodeFacts>,
    name: &str,
) -> NodeState<'n> {
    let Some(node) = stored.get(name) else { return NodeState::Gone };
    let Some(kubernetes) = kubernetes_name(node) else { return NodeState::Foreign };
    match nodes.get("", kubernetes) {
        Some(facts) => NodeState::Exists { kubernetes, migrates: facts.migrates },
        None if nodes.is_complete() => NodeState::Leaves { kubernetes },
        None => NodeState::Foreign,
    }
}

fn configuration_key() -> Option<ResourceKey> {
    ResourceKey::new(ResourceKind::KubeControllersConfiguration, "", "default").ok()
}

/// Queues an item. Its state is new, so earlier failures do not count.
fn add(queue: &mut WorkQueue<Item>, limiter: &mut RateLimiter<Item>, item: Item) {
    limiter.forget(&item);
    queue.add(item);
}

#[cfg(test)]
mod tests;
