//! What is known of the addresses that nodes and pods have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use tortie_net::Cidr;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use super::followed::Followed;
use super::task::Item;
use crate::Observed;
use crate::ipam::{
    BlockVerdict, Collector, Counts, MetricFamily, NodeState, PodFacts, PodName, Pools, Reclaimed, ReleaseTask,
    Settled, Touched, View, affinity_at, block_at, families, is_leaving,
};
use crate::json::field;

const CONFIG: &str = "/calico/ipam/v2/config";

/// Blocks of addresses, and the pods that may have them.
#[derive(Debug)]
pub(super) struct Addresses {
    collector: Collector,
    pools: Pools,
    pods: Followed<PodFacts>,
    /// How long an address that was released is not allocated again; `None` if that is not understood.
    cooldown: Option<Duration>,
    /// Nothing is done while somebody changes the datastore as a whole.
    is_ready: bool,
    /// It has been said whether it is ready.
    is_informed: bool,
    config_is_mentioned: bool,
    reclaimed: Reclaimed,
    /// Handles that say more than they have, and by how much.
    owed: BTreeMap<String, Counts>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            collector: Collector::default(),
            pools: Pools::default(),
            pods: Followed::default(),
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
    /// Takes note of what Kubernetes says of pods, and says what is to be looked at.
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

    /// The keys of resources that are known.
    pub(super) fn keys(&self) -> impl Iterator<Item = ResourceKey> {
        let information = ResourceKey::new(ResourceKind::ClusterInformation, "", "default").ok();
        self.pools.keys().chain(information.filter(|_| self.is_informed))
    }

    /// Takes note of what is under a path, and says what is to be looked at; `None` if the path is of something else.
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

    /// Takes note of a resource. Says whether everything is to be looked at.
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
                // What cannot be read says nothing.
                Some(object) => {
                    self.is_ready = field(object, &["spec", "datastoreReady"]).as_bool().unwrap_or(before);
                }
            }
        }
        self.is_ready && !before
    }

    /// Everything that there is to look at.
    pub(super) fn items(&self) -> impl Iterator<Item = Item> {
        let nodes = self.collector.nodes().into_iter().map(|node| Item::Addresses(node.into()));
        nodes.chain(self.all_blocks()).chain(self.owed.keys().cloned().map(Item::Handle))
    }

    fn all_blocks(&self) -> impl Iterator<Item = Item> {
        self.collector.idle_blocks().map(Item::Block)
    }

    /// What to do about the addresses of a node, and when to look again.
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
        let verdict = self.collector.judge_node(name, View { node, may_have: &may_have, grace }, now);
        let task = if !verdict.leaks.is_empty() {
            Some(ReleaseTask::Leaks { leaks: verdict.leaks, cooldown })
        } else if verdict.is_abandoned {
            Some(ReleaseTask::Node { node: name.to_owned(), blocks: self.collector.blocks_of(name) })
        } else {
            None
        };
        (task, verdict.due)
    }

    /// What to do about a block, and when to look again. Nodes are looked up with `node`.
    pub(super) fn block_task<'n>(
        &mut self,
        cidr: Cidr,
        node: impl FnOnce(&str) -> NodeState<'n>,
        grace: Duration,
        now: Instant,
    ) -> (Option<ReleaseTask>, Option<Instant>) {
        let Some(cooldown) = self.cooldown.filter(|_| self.is_ready) else { return (None, None) };
        match self.collector.judge_block(cidr, node, (grace, cooldown), now) {
            BlockVerdict::Wait(due) => (None, due),
            BlockVerdict::Release(node) | BlockVerdict::Leave(node) => {
                (Some(ReleaseTask::Block { cidr, node: node.into() }), None)
            }
            BlockVerdict::EndDeletion => (Some(ReleaseTask::EndDeletion { cidr }), None),
            BlockVerdict::EndCooldown => (Some(ReleaseTask::EndCooldown { cidr, cooldown }), None),
        }
    }

    /// What to do about a handle.
    pub(super) fn handle_task(&self, handle: &str) -> Option<ReleaseTask> {
        let counts = self.owed.get(handle).filter(|_| self.is_ready)?.clone();
        Some(ReleaseTask::Handle { handle: handle.to_owned(), counts })
    }

    /// A task about this is over.
    pub(super) fn task_ended(&mut self, item: &Item) {
        if let Item::Block(cidr) = item {
            self.collector.release_ended(*cidr);
        }
    }

    /// Takes note of what came of a task, and says what is to be looked at.
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
        let config = self.cooldown.is_none().then(|| format!("{CONFIG}: is not understood; no address is released"));
        config.into_iter().chain(self.collector.problems())
    }
}

fn items(touched: Touched) -> BTreeSet<Item> {
    let nodes = touched.nodes.into_iter().filter(|node| !node.is_empty()).map(|node| Item::Addresses(node.into()));
    nodes.chain(touched.blocks.into_iter().map(Item::Block)).collect()
}

/// Reads how long addresses cool down; `None` if that is not understood.
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
