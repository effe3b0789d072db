//! State of the allocated addresses and of the pods and nodes that have them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use tortie_net::Cidr;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use super::followed::FollowedObjects;
use super::task::Item;
use crate::Observed;
use crate::ipam::{
    BlockDecision, Collector, Counts, MetricFamily, NodeState, PodFacts, PodName, Pools, Reclaimed, ReleaseTask,
    Settled, Touched, View, affinity_at, block_at, families, is_leaving,
};
use crate::json::field;

const CONFIG: &str = "/calico/ipam/v2/config";

/// IPAM blocks, and the pods that may have their addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    collector: Collector,
    pools: Pools,
    pods: FollowedObjects<PodFacts>,
    /// Time for which a released address is not allocated again; `None` if the setting is invalid.
    cooldown: Option<Duration>,
    /// False while another process changes the datastore as a whole; nothing is done then.
    is_ready: bool,
    /// The `ClusterInformation` resource, which states readiness, exists.
    is_informed: bool,
    config_is_mentioned: bool,
    reclaimed: Reclaimed,
    /// Handles that count too many addresses, and the excess.
    owed: BTreeMap<String, Counts>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            collector: Collector::default(),
            pools: Pools::default(),
            pods: FollowedObjects::default(),
            cooldown: Some(Duration::ZERO),
            is_ready: true,
            is_informed: false,
            config_is_mentioned: false,
            reclaimed: Reclaimed::default(),
            owed: BTreeMap::new(),
        }
    }
}

impl Addresses {
    /// Records a pod event and returns the items to evaluate.
    pub(super) fn observe_pods(&mut self, observed: Observed<'_>) -> BTreeSet<Item> {
        let changed = self.pods.observe(observed, PodFacts::read);
        for (pod, _) in &changed {
            if let Some(facts) = self.pods.get(&pod.0, &pod.1) {
                self.collector.clear_suspicions(pod, |address| facts.may_have(address, None));
            }
        }
        let nodes = changed.iter().flat_map(|(pod, _)| self.collector.nodes_of_pod(pod));
        nodes.map(|node| Item::Addresses(node.into())).collect()
    }

    pub(super) fn pods_synced(&self) -> bool {
        self.pods.synced()
    }

    pub(super) fn list_begins(&mut self) {
        self.collector.list_begins();
        self.config_is_mentioned = false;
    }

    pub(super) fn list_ends(&mut self) -> BTreeSet<Item> {
        if !self.config_is_mentioned {
            self.cooldown = Some(Duration::ZERO);
        }
        items(self.collector.list_ends())
    }

    /// Returns the keys of all known resources.
    pub(super) fn keys(&self) -> impl Iterator<Item = ResourceKey> {
        let information = ResourceKey::new(ResourceKind::ClusterInformation, "", "default").ok();
        self.pools.keys().chain(information.filter(|_| self.is_informed))
    }

    /// Records the text at a path and returns the items to evaluate; `None` if the path does not
    /// concern addresses.
    pub(super) fn set_path(&mut self, path: &str, text: Option<(&str, Revision)>) -> Option<BTreeSet<Item>> {
        if path == CONFIG {
            self.config_is_mentioned = true;
            self.cooldown = text.map_or(Some(Duration::ZERO), |(text, _)| cooldown(text));
            return Some(self.all_blocks().collect());
        }
        if let Some((node, cidr)) = affinity_at(path) {
            let is_leaving = text.map(|(text, _)| is_leaving(text));
            return Some(items(self.collector.set_affinity(node, cidr, is_leaving)));
        }
        block_at(path).map(|cidr| items(self.collector.set_block(cidr, text)))
    }

    /// Records a resource. Reports whether everything has to be evaluated.
    pub(super) fn set_resource(&mut self, key: &ResourceKey, object: Option<&Value>) -> bool {
        if self.pools.set(key, object) {
            self.reclaimed.retain(&self.pools);
        }
        let is_information = key.kind() == ResourceKind::ClusterInformation && key.name() == "default";
        let before = self.is_ready;
        if is_information {
            self.is_informed = object.is_some();
            match object {
                None => self.is_ready = false,
                // An unreadable resource changes nothing.
                Some(object) => {
                    self.is_ready = field(object, &["spec", "datastoreReady"]).as_bool().unwrap_or(before);
                }
            }
        }
        self.is_ready && !before
    }

    /// Returns all items.
    pub(super) fn items(&self) -> impl Iterator<Item = Item> {
        let nodes = self.collector.nodes().into_iter().map(|node| Item::Addresses(node.into()));
        nodes.chain(self.all_blocks()).chain(self.owed.keys().cloned().map(Item::Handle))
    }

    fn all_blocks(&self) -> impl Iterator<Item = Item> {
        self.collector.idle_blocks().map(Item::Block)
    }

    /// Returns the task for the addresses of a node, and the time of the next evaluation.
    pub(super) fn node_task(
        &mut self,
        name: &str,
        node: NodeState<'_>,
        grace: Duration,
        now: Instant,
    ) -> (Option<ReleaseTask>, Option<Instant>) {
        let Some(cooldown) = self.cooldown.filter(|_| self.is_ready) else { return (None, None) };
        let pods = &self.pods;
        let may_have = |(namespace, name): &PodName, address, node: Option<&str>| match pods.get(namespace, name) {
            Some(pod) => pod.may_have(address, node),
            None => !pods.is_complete(),
        };
        let decision = self.collector.evaluate_node(name, View { node, may_have: &may_have, grace }, now);
        let task = if !decision.leaks.is_empty() {
            Some(ReleaseTask::Leaks { leaks: decision.leaks, cooldown })
        } else if decision.is_abandoned {
            Some(ReleaseTask::Node { node: name.to_owned(), blocks: self.collector.blocks_of(name) })
        } else {
            None
        };
        (task, decision.due)
    }

    /// Returns the task for a block, and the time of the next evaluation. `node` looks up a node.
    pub(super) fn block_task<'n>(
        &mut self,
        cidr: Cidr,
        node: impl FnOnce(&str) -> NodeState<'n>,
        grace: Duration,
        now: Instant,
    ) -> (Option<ReleaseTask>, Option<Instant>) {
        let Some(cooldown) = self.cooldown.filter(|_| self.is_ready) else { return (None, None) };
        match self.collector.evaluate_block(cidr, node, (grace, cooldown), now) {
            BlockDecision::Wait(due) => (None, due),
            BlockDecision::Release(node) | BlockDecision::Leave(node) => {
                (Some(ReleaseTask::Block { cidr, node: node.into() }), None)
            }
            BlockDecision::EndDeletion => (Some(ReleaseTask::EndDeletion { cidr }), None),
            BlockDecision::EndCooldown => (Some(ReleaseTask::EndCooldown { cidr, cooldown }), None),
        }
    }

    /// Returns the task for a handle.
    pub(super) fn handle_task(&self, handle: &str) -> Option<ReleaseTask> {
        let counts = self.owed.get(handle).filter(|_| self.is_ready)?.clone();
        Some(ReleaseTask::Handle { handle: handle.to_owned(), counts })
    }

    /// Records the end of a task.
    pub(super) fn task_ended(&mut self, item: &Item) {
        if let Item::Block(cidr) = item {
            self.collector.release_ended(*cidr);
        }
    }

    /// Records the outcome of a task and returns the items to evaluate.
    pub(super) fn settle(&mut self, settled: &Settled) -> BTreeSet<Item> {
        self.reclaimed.count(settled, &self.pools);
        if let Some(handle) = &settled.paid {
            self.owed.remove(handle);
        }
        let mut items = items(self.collector.settle(settled));
        for (handle, counts) in &settled.owed {
            let owed = self.owed.entry(handle.clone()).or_default();
            for (cidr, count) in counts {
                *owed.entry(*cidr).or_default() += count;
            }
            items.insert(Item::Handle(handle.clone()));
        }
        items
    }

    pub(super) fn metrics<'n>(&'n self, nodes: &[&'n str]) -> Vec<MetricFamily> {
        families(&self.collector, &self.pools, nodes, &self.reclaimed)
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let config = self.cooldown.is_none().then(|| format!("{CONFIG}: is invalid; no address is released"));
        config.into_iter().chain(self.collector.problems())
    }
}

fn items(touched: Touched) -> BTreeSet<Item> {
    let nodes = touched.nodes.into_iter().filter(|node| !node.is_empty()).map(|node| Item::Addresses(node.into()));
    nodes.chain(touched.blocks.into_iter().map(Item::Block)).collect()
}

/// Reads the cooldown of addresses; `None` if it is invalid.
fn cooldown(config: &str) -> Option<Duration> {
    let config: Value = serde_json::from_str(config).ok().filter(Value::is_object)?;
    match field(&config, &["ipCooldownSeconds"]) {
        Value::Null => Some(Duration::ZERO),
        seconds => match seconds.as_i64()? {
            ..=0 => Some(Duration::ZERO),
            seconds => u64::try_from(seconds).ok().map(|seconds| Duration::from_secs(seconds.min(u64::from(u32::MAX)))),
        },
    }
}

#[cfg(test)]
mod tests;
