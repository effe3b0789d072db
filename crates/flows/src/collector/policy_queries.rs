//! Queries of the policies of this node: governing policies of a connection, and verdicts of staged
//! policies.

use tortie_analysis::trace::{HostStage, Link, Traffic};
use tortie_evaluate::{DecidedBy, Layer, Packet, Ruling, Step, Verdict};
use tortie_model::desired::{HostEndpointState, TierPolicies};
use tortie_model::{Direction, HostEndpointName, PolicyId, TierName, WorkloadEndpointId};
use tortie_rules::PrefixVerdict;

use super::{Collector, policies};
use crate::aggregate::Aggregate;
use crate::flow::{Flow, Name, StagedVerdict};
use crate::hits::Hit;

const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// An end of a connection, as seen by this node.
#[derive(Clone, Copy)]
enum End {
    Workload,
    Node,
    Elsewhere,
}

impl Collector {
    /// Returns the hits on the latest of these connections, at the end that reports it, as if all
    /// staged policies were in force, in order. Empty if previews are off or the state is
    /// incomplete.
    #[must_use]
    pub fn pending(&self, aggregate: &Aggregate) -> Vec<Hit> {
        let (flow, direction) = (&aggregate.latest, aggregate.key.reporter);
        if !self.previews {
            return Vec::new();
        }
        let mut steps = Vec::new();
        if aggregate.key.at_host {
            for stages in self.host_stages(names_of(flow), &flow.id.packet, direction) {
                for stage in stages {
                    let HostStage { endpoint, layer } = &stage;
                    let explained = self.evaluator.explain_pending_host(endpoint, *layer, direction, &flow.id.packet);
                    // An incomplete state gives no verdict.
                    let Ok(explained) = explained else { return Vec::new() };
                    let ends = stage.ends(&explained.answer);
                    steps.extend(explained.steps);
                    if ends {
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

    /// Returns the policies of a tier that apply to these connections at the end that reports them,
    /// staged ones included, in order.
    #[must_use]
    pub fn governing(&self, aggregate: &Aggregate, tier: &TierName) -> Vec<&PolicyId> {
        let (flow, direction) = (&aggregate.latest, aggregate.key.reporter);
        let of_tier = |tiers: &'_ [TierPolicies]| tiers.iter().position(|candidate| candidate.name == *tier);
        if aggregate.key.at_host {
            let stages = self.host_stages(names_of(flow), &flow.id.packet, direction).into_iter().flatten();
            let tiers = stages.map(|stage| tiers(self.host_endpoint(&stage.endpoint), stage.layer));
            let governing = tiers.filter_map(|tiers| tiers.get(of_tier(tiers)?));
            let mut lists = governing.map(|tier| policies(tier, direction).collect::<Vec<_>>());
            return lists.find(|policies| !policies.is_empty()).unwrap_or_default();
        }
        let state = workload_at(names_of(flow), direction).and_then(|id| self.evaluator.workload_endpoint(&id));
        let tier = state.and_then(|state| state.tiers.get(of_tier(&state.tiers)?));
        tier.into_iter().flat_map(|tier| policies(tier, direction)).collect()
    }

    /// Reports whether host endpoints of this node report these connections for the node itself,
    /// and not for forwarded traffic. Felix reports only such connections (`applyPacketInfo` in
    /// `felix/collector/collector.go`).
    #[must_use]
    pub fn is_of_own_end(&self, aggregate: &Aggregate) -> bool {
        let [source, destination] = names_of(&aggregate.latest);
        let end = if aggregate.key.reporter == Direction::Egress { source } else { destination };
        aggregate.key.at_host && matches!(end, Name::Node(_)) && self.is_here(end)
    }

    /// Reports whether this node has host endpoints.
    #[must_use]
    pub fn has_host_endpoints(&self) -> bool {
        self.evaluator.host_endpoints().next().is_some()
    }

    /// Returns the verdicts of staged policies on the first packet of a connection.
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
            // An incomplete state gives no verdict, and neither do names that are unknown.
            let answer = self.evaluator.preview_workload(&id, direction, packet, policy);
            if let Ok(answer) = answer
                && answer.alternative.is_none()
            {
                let (policy, verdict) = (policy.clone(), answer.verdict);
                verdicts.push(StagedVerdict { policy, direction, at_host: false, verdict });
            }
        }
    }

    /// Adds the verdicts of the staged policies of host endpoints. If several host endpoints may
    /// see the packet, all of them must allow it.
    fn staged_at_host(
        &self,
        names: [&Name; 2],
        packet: &Packet,
        direction: Direction,
        verdicts: &mut Vec<StagedVerdict>,
    ) {
        let first = verdicts.len();
        for stages in self.host_stages(names, packet, direction) {
            let tiers = stages.iter().flat_map(|stage| tiers(self.host_endpoint(&stage.endpoint), stage.layer));
            let mut staged: Vec<&PolicyId> = Vec::new();
            for policy in tiers.flat_map(|tier| policies(tier, direction)).filter(|policy| policy.kind.is_staged()) {
                if !staged.contains(&policy) {
                    staged.push(policy);
                }
            }
            for policy in staged {
                let Some(verdict) = self.preview_host(&stages, direction, packet, policy) else { continue };
                let known = verdicts.iter_mut().skip(first).find(|known| known.policy == *policy);
                match known {
                    Some(known) if verdict == Verdict::Deny => known.verdict = verdict,
                    Some(_) => {}
                    None => {
                        verdicts.push(StagedVerdict { policy: policy.clone(), direction, at_host: true, verdict });
                    }
                }
            }
        }
    }

    /// Returns the verdict of all layers of host endpoints at an interface; `None` if their state
    /// is incomplete, or if it depends on names that are unknown.
    fn preview_host(
        &self,
        stages: &[HostStage],
        direction: Direction,
        packet: &Packet,
        staged: &PolicyId,
    ) -> Option<Verdict> {
        for stage in stages {
            let answer = self.evaluator.preview_host(&stage.endpoint, stage.layer, direction, packet, staged).ok()?;
            if answer.alternative.is_some() {
                return None;
            }
            if stage.ends(&answer) {
                return Some(answer.verdict);
            }
        }
        Some(Verdict::Allow)
    }

    /// Returns the layers of host endpoints of this node that evaluate a connection on its way in
    /// or out, a list for each interface that it may use. Connections that the node forwards
    /// between other places are reported from logged rules.
    fn host_stages(
        &self,
        [source, destination]: [&Name; 2],
        packet: &Packet,
        direction: Direction,
    ) -> Vec<Vec<HostStage>> {
        use Direction::{Egress, Ingress};
        use End::{Elsewhere, Node, Workload};

        if !self.has_host_endpoints() {
            return Vec::new();
        }
        let is_between = matches!((source, destination), (Name::Workload(_), Name::Workload(_)));
        let outer = |own| if is_between { Link::Tunnel { device: None, address: None } } else { Link::Network(own) };
        let (traffic, link) = match (direction, self.side_of(source), self.side_of(destination)) {
            (Ingress, Workload, Node) => (Traffic::WorkloadToHost, Link::Workload),
            (Ingress, Workload, _) | (Egress, Workload | Elsewhere, Workload) => (Traffic::Forwarded, Link::Workload),
            (_, Node, Node) => (Traffic::Own, Link::Loopback),
            (Ingress, Elsewhere, Node) => (Traffic::Own, outer(Some(packet.destination()))),
            (Egress, Node, Elsewhere) => (Traffic::Own, outer(Some(packet.source()))),
            (Ingress, Elsewhere, Workload) | (Egress, Workload, Elsewhere) => (Traffic::Forwarded, outer(None)),
            (Ingress, Node, _) | (Egress, _, Node) | (Egress, Node, Workload) | (_, Elsewhere, Elsewhere) => {
                return Vec::new();
            }
        };
        traffic.stages(&self.evaluator, link, direction, &[])
    }

    /// Returns the state of a host endpoint in [`Self::host_stages`].
    #[expect(clippy::expect_used, reason = "the names come from the evaluator")]
    fn host_endpoint(&self, name: &HostEndpointName) -> &HostEndpointState {
        let found = self.evaluator.host_endpoints().find(|(other, _)| *other == name);
        found.expect("the evaluator has the host endpoint").1
    }

    fn side_of(&self, name: &Name) -> End {
        match name {
            _ if !self.is_here(name) => End::Elsewhere,
            Name::Workload(_) => End::Workload,
            _ => End::Node,
        }
    }

    /// Reports whether an end is a workload of this node, or this node, which is recognised by its
    /// host endpoints. Callers handle host endpoints only.
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

/// Returns the workload whose rules of this direction decide.
fn workload_at([source, destination]: [&Name; 2], direction: Direction) -> Option<WorkloadEndpointId> {
    let end = if direction == Direction::Egress { source } else { destination };
    match end {
        Name::Workload(key) => Some(key.id()),
        Name::Node(_) | Name::NetworkSet(_) | Name::Outside => None,
    }
}

/// Returns the hit of an evaluation step, if it decides or passes.
pub(super) fn hit_of(step: Step, direction: Direction) -> Option<Hit> {
    let (ruling, decided_by) = match step {
        Step::Policy { tier, policy, rules, ruling, staged: false } => {
            // The last evaluated rule decided.
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
        Ruling::Allow => PrefixVerdict::Allow,
        Ruling::Deny => PrefixVerdict::Deny,
        Ruling::Pass => PrefixVerdict::Pass,
        Ruling::Silent => return None,
    };
    Some(Hit { direction, verdict, decided_by })
}
