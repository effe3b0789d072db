//! Effect of a change.

use std::collections::{BTreeMap, BTreeSet};

use tortie_calc::{AddressClaims, GraphConfig};
use tortie_classes::evaluate::{Layer, Settings, UpdateError};
use tortie_classes::{Budget, Difference, L4Detail, Party};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Direction, Family, Hostname, Key, Protocol, Update};

use crate::plan::cluster::{Cluster, State};
use crate::plan::connections::{Connections, HostPackets, of_hosts, of_workloads};
use crate::plan::ends::Names;
use crate::plan::findings::{Finding, of_claims};
use crate::plan::name_rows::NameRows;

/// Parameters of a plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Parameters of the calculation. The name of the node has no effect.
    pub graph: GraphConfig,
    /// Parameters of the evaluation before the change.
    pub settings: Settings,
    /// Such parameters of nodes with different ones.
    pub node_settings: BTreeMap<Hostname, Settings>,
    /// Both after the change, if they change.
    pub settings_after: Option<(Settings, BTreeMap<Hostname, Settings>)>,
    /// Memory bounds on verdict tables, as nodes have them; those of [`Budget`] by default.
    pub budget: Budget,
    /// TCP ports by which operators manage nodes; 22 by default.
    pub management_ports: Vec<u16>,
}

impl Options {
    /// Returns options with SSH as the management port.
    #[must_use]
    pub fn new(graph: GraphConfig, settings: Settings) -> Self {
        let (node_settings, budget) = (BTreeMap::new(), Budget::default());
        Self { graph, settings, node_settings, settings_after: None, budget, management_ports: vec![22] }
    }
}

/// Kind of change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Existence {
    /// It is new.
    Added,
    /// It changes.
    Changed,
    /// It is deleted.
    Removed,
}

/// Numbers of changes that nodes have to program, each node its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Programming {
    /// IP sets that are new or replaced.
    pub ip_sets: usize,
    /// IP sets that are removed.
    pub ip_sets_removed: usize,
    /// Members added to IP sets.
    pub members_added: usize,
    /// Members removed from IP sets.
    pub members_removed: usize,
    /// Policies and profiles that are new or changed.
    pub policies: usize,
    /// Policies and profiles that are removed.
    pub policies_removed: usize,
    /// Endpoints that are new or have other policies.
    pub endpoints: usize,
    /// Endpoints that are removed.
    pub endpoints_removed: usize,
}

/// Effect of a change of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The objects that change, in order.
    pub objects: Vec<(Key, Existence)>,
    /// Connections of workloads that open or close: exactly these, of workloads that exist before
    /// and after. Host endpoints on the way count. Connections with the workload's node are not
    /// included.
    pub connections: Vec<Connections>,
    /// Packets that host endpoints start or stop to allow.
    pub hosts: Vec<HostPackets>,
    /// Findings after the change that did not exist before, in order.
    pub findings: Vec<Finding>,
    /// Changes that nodes have to program.
    pub programming: Programming,
    /// Whether connections to some domain names are left out: the patterns of rules can match too
    /// many different names, or the networks of policies cover all addresses.
    pub names_left_out: bool,
}

impl Plan {
    /// Reports whether no object changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

/// Returns the updates that turn one state of a cluster into another.
#[must_use]
pub fn between(before: &[Update], after: &[Update]) -> Vec<Update> {
    let kept: BTreeSet<Key> = after.iter().map(Update::key).collect();
    let gone = before.iter().map(Update::key).filter(|key| !kept.contains(key)).map(Update::delete);
    gone.chain(after.iter().cloned()).collect()
}

/// Returns the effect of a change of some objects of a cluster.
///
/// # Errors
/// If the calculation contradicts itself.
pub fn plan(cluster: Vec<Update>, change: Vec<Update>, options: &Options) -> Result<Plan, UpdateError> {
    let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
    for update in cluster {
        update.apply_to(&mut objects);
    }
    let rows = NameRows::of(objects.values().chain(&change));
    let mut whole = Cluster::new(&options.graph, options.settings.clone());
    whole.set_names(rows.clone());
    whole.set_settings(options.settings.clone(), options.node_settings.clone());
    whole.set_budget(options.budget);
    whole.apply(objects.values().cloned())?;
    let mut before = whole.state.clone();
    let claims = |objects: &BTreeMap<Key, Update>| match options.graph.address_claims {
        AddressClaims::Bounded => of_claims(objects.values()),
        AddressClaims::Any => BTreeSet::new(),
    };
    let mut old_findings = before.without_effect(objects.values());
    old_findings.extend(claims(&objects));

    let mut changed: BTreeMap<Key, Existence> = BTreeMap::new();
    let mut updates = Vec::new();
    for update in change {
        let key = update.key();
        let now = update.exists().then(|| update.clone());
        let was = update.clone().apply_to(&mut objects);
        let existence = match (&was, &now) {
            (None, None) => continue,
            (Some(was), Some(now)) if was == now => continue,
            (None, Some(_)) => Existence::Added,
            (Some(_), Some(_)) => Existence::Changed,
            (Some(_), None) => Existence::Removed,
        };
        changed.insert(key, existence);
        updates.push(update);
    }
    if let Some((settings, nodes)) = options.settings_after.clone() {
        whole.set_settings(settings, nodes);
    }
    let messages = whole.apply(updates.into_iter())?;
    let mut after = whole.state;
    let mut new_findings = after.without_effect(objects.values());
    new_findings.extend(claims(&objects));

    let names_left_out = rows.is_incomplete;
    let names = Names::new(objects.values(), rows);
    let differences: Vec<(Family, Difference)> = {
        let (before, after) = (before.classes.flush(), after.classes.flush());
        Family::ALL.into_iter().map(|family| (family, before.difference(&after, family))).collect()
    };
    let hosts = of_hosts(&differences, &names);
    let losing_policy = losing_policy(&before, &after, &names).into_iter();
    let mut findings: Vec<Finding> = losing_policy.chain(losing_management(&hosts, options)).collect();
    findings.extend(new_findings.difference(&old_findings).cloned());
    findings.sort_unstable();
    findings.dedup();
    Ok(Plan {
        objects: changed.into_iter().collect(),
        connections: of_workloads(&differences, &names),
        hosts,
        findings,
        programming: Programming::of(&messages),
        names_left_out,
    })
}

fn losing_policy(before: &State, after: &State, names: &Names) -> Option<Finding> {
    let had = before.policy_state.has_policy.iter().filter(|(_, has)| **has).map(|(id, _)| id);
    let lost: Vec<_> = had.filter(|id| after.policy_state.has_policy.get(*id) == Some(&false)).cloned().collect();
    let is_any = !lost.is_empty();
    let workloads = names.ends([Party::Workloads(lost)].iter(), 1);
    is_any.then_some(Finding::LoseAllPolicy { workloads })
}

fn losing_management<'a>(hosts: &'a [HostPackets], options: &'a Options) -> impl Iterator<Item = Finding> + 'a {
    let closing = hosts.iter().filter(|host| {
        !host.packets.opens && host.packets.decision.direction == Direction::Ingress && host.layer != Layer::Forward
    });
    closing.flat_map(|host| {
        let is_closed = |port: &&u16| host.packets.traffic.contains(Protocol::TCP.number(), L4Detail::Port(**port));
        options.management_ports.iter().filter(is_closed).map(|port| Finding::LoseManagement {
            endpoints: host.endpoints.clone(),
            port: *port,
            from: host.peers.to_string(),
        })
    })
}

impl Programming {
    fn of(messages: &[DesiredUpdate]) -> Self {
        let mut programming = Self::default();
        for message in messages {
            let count = match message {
                DesiredUpdate::IpSet(_) => &mut programming.ip_sets,
                DesiredUpdate::IpSetRemove(_) => &mut programming.ip_sets_removed,
                DesiredUpdate::IpSetDelta(delta) => {
                    programming.members_added += delta.added.len();
                    programming.members_removed += delta.removed.len();
                    continue;
                }
                DesiredUpdate::Policy(..) | DesiredUpdate::Profile(..) => &mut programming.policies,
                DesiredUpdate::PolicyRemove(_) | DesiredUpdate::ProfileRemove(_) => &mut programming.policies_removed,
                DesiredUpdate::WorkloadEndpoint(..) | DesiredUpdate::HostEndpoint(..) => &mut programming.endpoints,
                DesiredUpdate::WorkloadEndpointRemove(_) | DesiredUpdate::HostEndpointRemove(_) => {
                    &mut programming.endpoints_removed
                }
                _ => continue,
            };
            *count += 1;
        }
        programming
    }
}
