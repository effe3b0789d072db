//! The configuration of this node in the datastore (`felix/calc/config_batcher.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::desired::ConfigUpdate;
use tortie_model::{ConfigName, HostConfigKey, Hostname, Labels, Node, ScopedConfig};

use crate::ReadyFlag;
use crate::sequencer::Sequencer;

type RawConfig = BTreeMap<Arc<str>, Arc<str>>;

/// Collects parameters and sends all of them once the datastore has been read, and after each
/// change.
#[derive(Debug)]
pub(crate) struct ConfigBatcher {
    hostname: Hostname,
    global: RawConfig,
    host: RawConfig,
    scoped: BTreeMap<ConfigName, Arc<ScopedConfig>>,
    /// Of this node; `None` while it is unknown, which no selector matches.
    node_labels: Option<Labels>,
    ready_flag: ReadyFlag,
    ready: bool,
    dirty: bool,
}

impl ConfigBatcher {
    pub(crate) fn new(hostname: Hostname, ready_flag: ReadyFlag) -> Self {
        Self {
            hostname,
            global: RawConfig::new(),
            host: RawConfig::new(),
            scoped: BTreeMap::new(),
            node_labels: None,
            ready_flag,
            ready: ready_flag.is_ready(None),
            dirty: true,
        }
    }

    /// Records a parameter for all nodes; `None` removes it.
    pub(crate) fn on_global(&mut self, name: &ConfigName, value: Option<&Arc<str>>) {
        self.dirty |= set(&mut self.global, name, value);
    }

    /// Records a parameter for one node, perhaps this one; `None` removes it.
    pub(crate) fn on_host(&mut self, key: &HostConfigKey, value: Option<&Arc<str>>) {
        if key.host == self.hostname {
            self.dirty |= set(&mut self.host, &key.name, value);
        }
    }

    /// Parameters for the nodes that a selector picks.
    pub(crate) fn on_scoped(&mut self, name: &ConfigName, value: Option<&Arc<ScopedConfig>>) {
        let was = match value {
            Some(value) => self.scoped.insert(name.clone(), Arc::clone(value)),
            None => self.scoped.remove(name),
        };
        self.dirty |= was.as_ref() != value;
    }

    /// Records a node, perhaps this one; `None` removes it.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) {
        if *name == self.hostname {
            let labels = node.map(|node| node.labels.clone());
            self.dirty |= labels != self.node_labels;
            self.node_labels = labels;
        }
    }

    /// Sets the ready flag of the datastore; `None` if it has none. A change sends the
    /// configuration, with `DesiredUpdate::DatastoreNotReady` before it if the datastore must not
    /// be used.
    pub(crate) fn on_ready(&mut self, ready: Option<bool>) {
        let ready = self.ready_flag.is_ready(ready);
        self.dirty |= ready != self.ready;
        self.ready = ready;
    }

    /// Sends the configuration if it has changed. Must not be called before the datastore has been
    /// read completely.
    pub(crate) fn flush(&mut self, sequencer: &mut Sequencer) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        sequencer.not_ready = !self.ready;
        sequencer.config =
            Some(ConfigUpdate { global: self.global.clone(), selector: self.selected(), host: self.host.clone() });
    }

    /// Returns the oldest configuration whose selector matches; of several with the same age, the
    /// first by name. Configurations are not merged.
    fn selected(&self) -> RawConfig {
        let Some(labels) = &self.node_labels else { return RawConfig::new() };
        self.scoped
            .iter()
            .filter(|(_, config)| config.selector.matches(labels))
            .min_by(|(a_name, a), (b_name, b)| a.created.cmp(&b.created).then_with(|| a_name.cmp(b_name)))
            .map(|(_, config)| config.parameters.iter().map(|(name, value)| (name.as_str().into(), Arc::clone(value))))
            .map(Iterator::collect)
            .unwrap_or_default()
    }

    /// Reports whether there are parameters for this node alone.
    pub(crate) fn has_own(&self) -> bool {
        !self.host.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.global.is_empty() && self.host.is_empty() && self.scoped.is_empty() && self.node_labels.is_none()
    }
}

/// Sets or removes a parameter; returns whether the configuration has changed.
fn set(config: &mut RawConfig, name: &ConfigName, value: Option<&Arc<str>>) -> bool {
    let was = match value {
        Some(value) => config.insert(name.as_str().into(), Arc::clone(value)),
        None => config.remove(name.as_str()),
    };
    was.as_ref() != value
}

#[cfg(test)]
mod tests;
