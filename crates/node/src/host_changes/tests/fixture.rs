//! A node that is managed from `198.51.100.7` by `eth0`, and its dataplane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_calc::{Graph, GraphConfig};
use tortie_datastore::{DirState, FileContent};
use tortie_evaluate::{Evaluator, FailsafePort, Settings};
use tortie_model::desired::{ConfigUpdate, DesiredUpdate};
use tortie_model::{Hostname, Protocol, SyncStatus, Update};
use tortie_resources::manifest::Options;
use tortie_testkit::mock::MockDataplane;

use crate::host_changes::admission::admissions;
use crate::host_changes::{HeldChanges, HostChanges, ManagementConnection, Observe, ObserveError, Observed};

pub(super) const ADMIN: &str = "198.51.100.7:54321";

/// The observed state, and the identifier of the boot of the machine.
#[derive(Clone, Debug)]
pub(super) struct FakeObserver(pub(super) Arc<Mutex<(Result<Observed, String>, String)>>);

impl Observe for FakeObserver {
    fn observe(&mut self) -> Result<Observed, ObserveError> {
        self.0.lock().unwrap().0.clone().map_err(|error| ObserveError::Other(error.into()))
    }

    fn boot(&self) -> String {
        self.0.lock().unwrap().1.clone()
    }
}

pub(super) fn observed(remotes: &[&str]) -> Observed {
    let connection = |remote: &&str| ManagementConnection {
        remote: remote.parse().unwrap(),
        local: "192.0.2.1:22".parse().unwrap(),
        interface: Some("eth0".into()),
    };
    Observed {
        connections: remotes.iter().map(connection).collect(),
        addresses: BTreeMap::from([("eth0".parse().unwrap(), BTreeSet::from(["192.0.2.1".parse().unwrap()]))]),
    }
}

fn settings_of(config: &ConfigUpdate) -> Option<Settings> {
    let open = config.global.get("FailsafeInboundHostPorts").is_some_and(|ports| ports.contains("22"));
    let port = FailsafePort { protocol: Protocol::TCP, port: 22, net: None };
    Some(Settings { failsafe_inbound: open.then_some(port).into_iter().collect(), ..Settings::default() })
}

pub(super) struct Node {
    pub(super) files: BTreeMap<String, String>,
    pub(super) directory: DirState,
    graph: Graph,
    pub(super) changes: HostChanges,
    pub(super) observer: FakeObserver,
    pub(super) state: TempDir,
    /// The dataplane: the updates that it has received, and their effect on packets.
    pub(super) dataplane: MockDataplane,
    pub(super) evaluator: Evaluator,
    settings: Settings,
    now: Duration,
    /// A change has been confirmed since the last turn.
    is_confirmed: bool,
}

fn graph() -> Graph {
    Graph::new(&GraphConfig::new(Hostname::new("n1")))
}

fn changes(observer: &FakeObserver, state: &TempDir) -> HostChanges {
    HostChanges::new(Hostname::new("n1"), Box::new(observer.clone()), Some(state.path()), "file:/etc/tortie")
}

impl Node {
    /// A started agent with these files, and with these administrators connected.
    pub(super) fn start(admins: &[&str], files: &[(&str, &str)]) -> Self {
        let observer = FakeObserver(Arc::new(Mutex::new((Ok(observed(admins)), "boot-1".into()))));
        let state = TempDir::new().unwrap();
        let mut node = Self {
            files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect(),
            directory: DirState::new(Options::default()),
            graph: graph(),
            changes: changes(&observer, &state),
            observer,
            state,
            dataplane: MockDataplane::default(),
            evaluator: Evaluator::default(),
            settings: Settings::default(),
            now: Duration::ZERO,
            is_confirmed: false,
        };
        node.begin_session();
        node
    }

    /// The agent is killed and started again. The kernel's state is unchanged.
    pub(super) fn restart(&mut self) {
        self.changes = changes(&self.observer, &self.state);
        self.begin_session();
    }

    pub(super) fn reboot(&mut self, admins: &[&str]) {
        let number = self.observer.0.lock().unwrap().1.clone();
        *self.observer.0.lock().unwrap() = (Ok(observed(admins)), format!("{number}+"));
        self.restart();
    }

    /// The source sends everything again, as after a change of parameters.
    pub(super) fn begin_session(&mut self) {
        self.graph = graph();
        self.dataplane = MockDataplane::default();
        for update in self.changes.begin(Settings::default()) {
            self.graph.on_update(update.clone());
        }
        self.directory = DirState::new(Options::default());
        let mut updates = self.directory.take_updates();
        for (path, text) in &self.files {
            updates.extend(self.directory.set_file(path.as_ref(), Some(FileContent::Text(text))));
        }
        self.apply(updates);
        self.graph.on_status(SyncStatus::InSync);
        self.changes.remove_unsent(Instant::now());
        // The policy in force is still that of before; it is compared with the next.
        let before = self.evaluator.clone();
        self.evaluator = Evaluator::default();
        self.turn_from(&before);
    }

    fn apply(&mut self, updates: Vec<Update>) {
        for update in updates {
            if let Some(update) = self.changes.take(update, Instant::now()) {
                self.graph.on_update(update);
            }
        }
    }

    pub(super) fn set(&mut self, path: &str, text: Option<&str>) {
        match text {
            Some(text) => self.files.insert(path.to_owned(), text.to_owned()),
            None => self.files.remove(path),
        };
        let updates = self.directory.set_file(path.as_ref(), text.map(FileContent::Text));
        self.apply(updates);
    }

    /// Sets a file, and lets the agent take a turn.
    pub(super) fn write(&mut self, path: &str, text: &str) {
        self.set(path, Some(text));
        self.turn();
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.set(path, None);
        self.turn();
    }

    pub(super) fn connect(&mut self, admins: &[&str]) {
        self.observer.0.lock().unwrap().0 = Ok(observed(admins));
    }

    /// Some seconds later, the agent takes a turn.
    pub(super) fn later(&mut self) {
        self.now += Duration::from_secs(5);
        self.turn();
    }

    pub(super) fn turn(&mut self) {
        let before = self.evaluator.clone();
        self.turn_from(&before);
    }

    fn turn_from(&mut self, before: &Evaluator) {
        let mut messages = Vec::new();
        self.graph.flush(&mut messages);
        messages.iter().for_each(|message| self.changes.on_update(message, &settings_of));
        let settled = self.changes.settle(&mut self.graph, self.now, &settings_of);
        messages.extend(settled.messages);
        for message in messages {
            if let DesiredUpdate::Config(config) = &message {
                self.settings = settings_of(config).unwrap();
                self.evaluator.set_settings(self.settings.clone());
            }
            self.evaluator.apply(&message).unwrap();
            self.dataplane.apply(message);
        }
        if let Ok(observed) = &self.observer.0.lock().unwrap().0
            && !std::mem::take(&mut self.is_confirmed)
        {
            let verdicts = admissions(before, observed).into_iter().zip(admissions(&self.evaluator, observed));
            for (connection, (before, after)) in observed.connections.iter().zip(verdicts) {
                assert!(!before.is_cut_by(after), "{connection} is cut without a confirmation");
            }
        }
    }

    /// `tortie confirm`; returns the changes that were held back.
    pub(super) fn confirm(&mut self) -> Option<HeldChanges> {
        self.try_confirm().expect("the held changes are known")
    }

    /// `None` if that is not known yet.
    #[allow(clippy::option_option, reason = "nothing is held back, or it is not known")]
    pub(super) fn try_confirm(&mut self) -> Option<Option<HeldChanges>> {
        let (confirmed, settled) = self.changes.confirm(&self.graph)?;
        assert_eq!(confirmed.not_kept, None);
        settled.accepted.into_iter().for_each(|(update, _, _)| self.graph.on_update(update));
        self.is_confirmed |= confirmed.confirmed.is_some();
        Some(confirmed.confirmed)
    }

    /// The objects that are held back.
    pub(super) fn held(&self) -> Vec<String> {
        self.changes.held().map(|held| held.objects).unwrap_or_default()
    }

    /// Whether a policy of this name is in force.
    pub(super) fn enforces(&self, policy: &str) -> bool {
        self.dataplane.policies.keys().any(|id| &*id.name == policy)
    }

    pub(super) fn has_host_endpoint(&self) -> bool {
        !self.dataplane.host_endpoints.is_empty()
    }

    /// Whether the enforced policy allows the administrator's connection.
    pub(super) fn admits(&self) -> bool {
        let observed = observed(&[ADMIN]);
        admissions(&self.evaluator, &observed) == [crate::host_changes::admission::Admission::Open]
    }

    /// Returns the dataplane that would result if nothing were ever held back.
    pub(super) fn plain(&self) -> MockDataplane {
        let mut directory = DirState::new(Options::default());
        let mut graph = graph();
        let mut updates = directory.take_updates();
        for (path, text) in &self.files {
            updates.extend(directory.set_file(path.as_ref(), Some(FileContent::Text(text))));
        }
        updates.into_iter().for_each(|update| graph.on_update(update));
        graph.on_status(SyncStatus::InSync);
        let mut messages = Vec::new();
        graph.flush(&mut messages);
        let mut dataplane = MockDataplane::default();
        dataplane.apply_batch(messages);
        dataplane
    }
}

pub(super) const HOST: &str = "
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: eth0, labels: {role: host}}
spec: {node: n1, interfaceName: eth0}
";

pub(super) const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
";

/// A policy for the pod.
pub(super) const PODS: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: pods, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
";

/// A policy of host endpoints with one rule.
pub(super) fn policy(name: &str, rule: &str) -> String {
    policy_with(name, rule, "order: 10")
}

pub(super) fn policy_with(name: &str, rule: &str, more: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{selector: role == 'host', types: [Ingress], ingress: [{rule}], {more}}}\n"
    )
}

pub(super) fn allow(port: u16) -> String {
    format!("{{action: Allow, protocol: TCP, destination: {{ports: [{port}]}}}}")
}
