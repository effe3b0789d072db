//! What is asked of the policies of this node: who governs a connection, and what staged policies would say of it.

use tortie_analysis::trace::Traffic;
use tortie_evaluate::{DecidedBy, Layer, Packet, Ruling, Step, Verdict as Evaluated};
use tortie_model::desired::{HostEndpointState, TierPolicies};
use tortie_model::{Direction, HostEndpointName, PolicyId, TierName, WorkloadEndpointId};
use tortie_rules::Verdict;

use super::{Collector, policies};
use crate::aggregate::Aggregate;
use crate::flow::{Flow, Name, StagedVerdict};
use crate::hits::Hit;

const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

impl Collector {
    /// What would decide about the latest of these connections, at the end that reports it, if all staged policies were in
    /// force, in order; empty if that is not to be asked or cannot be told.
    #[must_use]
    pub fn pending(&self, aggregate: &Aggregate) -> Vec<Hit> {
        let (flow, direction) = (&aggregate.latest, aggregate.key.reporter);
        if !self.previews {
            return Vec::new();
        }
        let mut steps = Vec::new();
        if aggregate.key.at_host {
            let Some((traffic, names)) = self.host_endpoints(names_of(flow), &flow.id.packet, direction) else {
                return Vec::new();
            };
            for name in names {
                for layer in traffic.layers(direction) {
                    let explained = self.evaluator.explain_pending_host(&name, *layer, direction, &flow.id.packet);
                    // A state that lacks something says nothing.
                    let Ok(explained) = explained else { return Vec::new() };
                    steps.extend(explained.steps);
                    if traffic.ends(*layer, explained.answer.verdict) {
                        break;
                    }
                }
            }
        } else if let Some(id) = workload_at(names_of(flow), direction) {
            let explained = self.evaluator.explain_pending_workload(&id, direction, &flow.id.packet);
            steps = explained.map(|explanation| explanation.steps).unwrap_or_default();
        }
        steps.into_iter().filter_map(|step| hit_of(step, direction)).collect()
    }

    /// The policies of a tier by which it governs these connections at the end that reports them, staged ones included, in
    /// order.
    #[must_use]
    pub fn governing(&self, aggregate: &Aggregate, tier: &TierName) -> Vec<&PolicyId> {
        let (flow, direction) = (&aggregate.latest, aggregate.key.reporter);
        let of_tier = |tiers: &'_ [TierPolicies]| tiers.iter().position(|candidate| candidate.name == *tier);
        if aggregate.key.at_host {
            let found = self.host_endpoints(names_of(flow), &flow.id.packet, direction);
            let Some((traffic, names)) = found else { return Vec::new() };
            let states = names.iter().map(|name| self.host_endpoint(name));
            let tiers = states.flat_map(|state| traffic.layers(direction).iter().map(|layer| tiers(state, *layer)));
            let governing = tiers.filter_map(|tiers| tiers.get(of_tier(tiers)?));
            let mut lists = governing.map(|tier| policies(tier, direction).collect::<Vec<_>>());
            return lists.find(|policies| !policies.is_empty()).unwrap_or_default();
        }
        let state = workload_at(names_of(flow), direction).and_then(|id| self.evaluator.workload_endpoint(&id));
        let tier = state.and_then(|state| state.tiers.get(of_tier(&state.tiers)?));
        tier.into_iter().flat_map(|tier| policies(tier, direction)).collect()
    }

    /// Whether these connections are reported by host endpoints of the node that is itself the end at which they report: not
    /// for what it forwards. Only of such ones does the original tell (`applyPacketInfo` in `felix/collector/collector.go`).
    #[must_use]
    pub fn is_of_own_end(&self, aggregate: &Aggregate) -> bool {
        let [source, destination] = names_of(&aggregate.latest);
        let end = if aggregate.key.reporter == Direction::Egress { source } else { destination };
        aggregate.key.at_host && matches!(end, Name::Node(_)) && self.is_here(end)
    }

    /// Whether this node has host endpoints.
    #[must_use]
    pub fn has_host_endpoints(&self) -> bool {
        self.evaluator.host_endpoints().next().is_some()
    }

    /// What staged policies say about the first packet of a connection.
    pub(super) fn staged(&self, names: [&Name; 2], packet: &Packet) -> Vec<StagedVerdict> {
        let mut verdicts = Vec::new();
        if !self.previews {
            return verdicts;
        }
        for direction in DIRECTIONS {
            self.staged_at_workload(names, packet, direction, &mut verdicts);
            self.staged_at_host(names, packet, direction, &mut verdicts);
        }
        verdicts
    }

    fn staged_at_workload(
        &self,
        names: [&Name; 2],
        packet: &Packet,
        direction: Direction,
        verdicts: &mut Vec<StagedVerdict>,
    ) {
        let Some(id) = workload_at(names, direction) else { return };
        let Some(state) = self.evaluator.workload_endpoint(&id) else { return };
        let policies = state.tiers.iter().flat_map(|tier| policies(tier, direction));
        for policy in policies.filter(|policy| policy.kind.is_staged()) {
            // A state that lacks something says nothing.
            if let Ok(answer) = self.evaluator.preview_workload(&id, direction, packet, policy) {
                let (policy, verdict) = (policy.clone(), answer.verdict);
                verdicts.push(StagedVerdict { policy, direction, at_host: false, verdict });
            }
        }
    }

    /// What each staged policy of host endpoints would say; of several host endpoints that may see the packet, each must agree.
    fn staged_at_host(
        &self,
        names: [&Name; 2],
        packet: &Packet,
        direction: Direction,
        verdicts: &mut Vec<StagedVerdict>,
    ) {
        let Some((traffic, hosts)) = self.host_endpoints(names, packet, direction) else { return };
        let first = verdicts.len();
        for host in &hosts {
            let state = self.host_endpoint(host);
            let tiers = traffic.layers(direction).iter().flat_map(|layer| tiers(state, *layer));
            let mut staged: Vec<&PolicyId> = Vec::new();
            for policy in tiers.flat_map(|tier| policies(tier, direction)).filter(|policy| policy.kind.is_staged()) {
                if !staged.contains(&policy) {
                    staged.push(policy);
                }
            }
            for policy in staged {
                let Some(verdict) = self.preview_host(host, traffic, direction, packet, policy) else { continue };
                let known = verdicts.iter_mut().skip(first).find(|known| known.policy == *policy);
                match known {
                    Some(known) if verdict == Evaluated::Deny => known.verdict = verdict,
                    Some(_) => {}
                    None => {
                        verdicts.push(StagedVerdict { policy: policy.clone(), direction, at_host: true, verdict });
                    }
                }
            }
        }
    }

    /// What a host endpoint would say by all its layers; `None` if its state lacks something.
    fn preview_host(
        &self,
        name: &HostEndpointName,
        traffic: Traffic,
        direction: Direction,
        packet: &Packet,
        staged: &PolicyId,
    ) -> Option<Evaluated> {
        for layer in traffic.layers(direction) {
            let said = self.evaluator.preview_host(name, *layer, direction, packet, staged).ok()?.verdict;
            if traffic.ends(*layer, said) {
                return Some(said);
            }
        }
        Some(Evaluated::Allow)
    }

    /// What a connection is to the host endpoints of this node on its way in or out, and which of them may see it; `None` if
    /// none does.
    fn host_endpoints(
        &self,
        [source, destination]: [&Name; 2],
        packet: &Packet,
        direction: Direction,
    ) -> Option<(Traffic, Vec<HostEndpointName>)> {
        self.evaluator.host_endpoints().next()?;
        let (this, other, own) = match direction {
            Direction::Egress => (source, destination, packet.source()),
            Direction::Ingress => (destination, source, packet.destination()),
        };
        // What stays on the node passes none of its interfaces; what it only forwards is told by what was logged.
        if !self.is_here(this) || self.is_here(other) {
            return None;
        }
        let traffic = match (this, other) {
            (Name::Node(_), _) => Traffic::Own,
            (Name::Workload(_), Name::Workload(_)) => Traffic::BetweenWorkloads,
            _ => Traffic::Forwarded,
        };
        Some((traffic, traffic.host_endpoints(&self.evaluator, own)))
    }

    /// One of [`Self::host_endpoints`].
    #[expect(clippy::expect_used, reason = "the names come from the evaluator")]
    fn host_endpoint(&self, name: &HostEndpointName) -> &HostEndpointState {
        let found = self.evaluator.host_endpoints().find(|(other, _)| *other == name);
        found.expect("the evaluator has the host endpoint").1
    }

    /// Whether an end is a workload of this node, or the node. It is known by its host endpoints, by which this is asked.
    fn is_here(&self, name: &Name) -> bool {
        match name {
            Name::Workload(key) => self.evaluator.workload_endpoint(&key.id()).is_some(),
            Name::Node(host) => {
                self.evaluator.host_endpoints().any(|(name, _)| self.names.is_host_endpoint_of(host, name))
            }
            Name::NetworkSet(_) | Name::Outside => false,
        }
    }
}

fn names_of(flow: &Flow) -> [&Name; 2] {
    [&flow.source.name, &flow.destination.name]
}

/// The tiers of a layer.
pub(super) fn tiers(state: &HostEndpointState, layer: Layer) -> &[TierPolicies] {
    match layer {
        Layer::Normal => &state.tiers,
        Layer::Forward => &state.forward_tiers,
        Layer::Untracked => &state.untracked_tiers,
        Layer::PreDnat => &state.pre_dnat_tiers,
    }
}

/// The workload at whose end rules of this direction decide.
fn workload_at([source, destination]: [&Name; 2], direction: Direction) -> Option<WorkloadEndpointId> {
    let end = if direction == Direction::Egress { source } else { destination };
    match end {
        Name::Workload(key) => Some(key.id()),
        Name::Node(_) | Name::NetworkSet(_) | Name::Outside => None,
    }
}

/// What a step of an evaluation says, if it says anything.
pub(super) fn hit_of(step: Step, direction: Direction) -> Option<Hit> {
    let (ruling, decided_by) = match step {
        Step::Policy { tier, policy, rules, ruling, staged: false } => {
            // The last one that was looked at decided.
            (ruling, DecidedBy::PolicyRule { tier, policy, index: rules.last()?.index })
        }
        Step::EndOfTier { tier, ruling } => (ruling, DecidedBy::EndOfTier { tier }),
        Step::Profile { profile, rules, ruling: ruling @ (Ruling::Allow | Ruling::Deny) } => {
            (ruling, DecidedBy::ProfileRule { profile, index: rules.last()?.index })
        }
        Step::EndOfProfiles => (Ruling::Deny, DecidedBy::EndOfProfiles),
        _ => return None,
    };
    let verdict = match ruling {
        Ruling::Allow => Verdict::Allow,
        Ruling::Deny => Verdict::Deny,
        Ruling::Pass => Verdict::Pass,
        Ruling::Silent => return None,
    };
    Some(Hit { direction, verdict, decided_by })
}
