//! What a change does.

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

/// What a plan depends on besides objects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The parameters of the calculation. The name of the node means nothing.
    pub graph: GraphConfig,
    /// The parameters that verdicts depend on, before the change.
    pub settings: Settings,
    /// The same of nodes that have their own.
    pub node_settings: BTreeMap<Hostname, Settings>,
    /// Both after the change, if they are others then.
    pub settings_after: Option<(Settings, BTreeMap<Hostname, Settings>)>,
    /// Memory bounds on verdict tables, as nodes have them; those of [`Budget`] by default.
    pub budget: Budget,
    /// The TCP ports by which nodes are managed.
    pub management_ports: Vec<u16>,
}

impl Options {
    /// Nodes are managed by SSH.
    #[must_use]
    pub fn new(graph: GraphConfig, settings: Settings) -> Self {
        let (node_settings, budget) = (BTreeMap::new(), Budget::default());
        Self { graph, settings, node_settings, settings_after: None, budget, management_ports: vec![22] }
    }
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Existence {
    /// It is new.
    Added,
    /// It is another.
    Changed,
    /// It is gone.
    Removed,
}

/// What nodes have to program, each the part that concerns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Programming {
    /// IP sets that are new or replaced.
    pub ip_sets: usize,
    /// IP sets that are gone.
    pub ip_sets_removed: usize,
    /// Members that join IP sets.
    pub members_added: usize,
    /// Members that leave IP sets.
    pub members_removed: usize,
    /// Policies and profiles that are new or other ones.
    pub policies: usize,
    /// Policies and profiles that are gone.
    pub policies_removed: usize,
    /// Endpoints that are new, or have other policies.
    pub endpoints: usize,
    /// Endpoints that are gone.
    pub endpoints_removed: usize,
}

/// What a change of objects does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The objects that change, in order.
    pub objects: Vec<(Key, Existence)>,
    /// Connections of workloads that open or close: exactly these, of workloads that are there before and after. Host
    /// endpoints on the way count; a connection with the workload's own node has no part in it.
    pub connections: Vec<Connections>,
    /// Packets that host endpoints let through or stop.
    pub hosts: Vec<HostPackets>,
    /// What is true after the change and was not before, in order.
    pub findings: Vec<Finding>,
    /// What nodes have to program.
    pub programming: Programming,
}

impl Plan {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

/// The updates that make the one state of a cluster the other.
#[must_use]
pub fn between(before: &[Update], after: &[Update]) -> Vec<Update> {
    let kept: BTreeSet<Key> = after.iter().map(Update::key).collect();
    let gone = before.iter().map(Update::key).filter(|key| !kept.contains(key)).map(Update::delete);
    gone.chain(after.iter().cloned()).collect()
}

/// What becomes of a cluster if some of its objects change.
///
/// # Errors
/// If the calculation contradicts itself.
pub fn plan(cluster: Vec<Update>, change: Vec<Update>, options: &Options) -> Result<Plan, UpdateError> {
    let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
    for update in cluster {
        update.apply_to(&mut objects);
    }
    let mut whole = Cluster::new(&options.graph, options.settings.clone());
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

    let names = Names::new(objects.values());
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
    })
}

fn losing_policy(before: &State, after: &State, names: &Names) -> Option<Finding> {
    let had = before.told.has_policy.iter().filter(|(_, has)| **has).map(|(id, _)| id);
    let lost: Vec<_> = had.filter(|id| after.told.has_policy.get(*id) == Some(&false)).cloned().collect();
    let is_any = !lost.is_empty();
    let workloads = names.ends([Party::Workloads(lost)].iter(), 1);
    is_any.then_some(Finding::LoseAllPolicy { workloads })
}

fn losing_management<'a>(hosts: &'a [HostPackets], options: &'a Options) -> impl Iterator<Item = Finding> + 'a {
    let closing = hosts.iter().filter(|host| {
        !host.packets.opens && host.packets.why.direction == Direction::Ingress && host.layer != Layer::Forward
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
