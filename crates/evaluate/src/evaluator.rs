//! Evaluation of packets: tiers in order, then the default of the layer.

use std::net::IpAddr;

use tortie_model::desired::{DesiredUpdate, HostEndpointState, Rules, TierPolicies, WorkloadEndpointState};
use tortie_model::{
    AdminState, Direction, HostEndpointName, PolicyId, ProfileName, TierDefaultAction, TierName, WorkloadEndpointId,
};

use crate::answer::{Alternative, Answer, DecidedBy, Guard, Layer, Missing, Verdict};
use crate::explanation::{Explanation, Ruling, Step};
use crate::named::{NamedPacket, Names};
use crate::packet::Packet;
use crate::ruling::{Decision, Possible};
use crate::settings::{EndpointToHost, Settings, is_router_icmpv6};
use crate::state::{State, UpdateError};

/// Desired state of a node, and its verdicts on packets. See the crate's documentation.
#[derive(Debug, Clone, Default)]
pub struct Evaluator {
    state: State,
    settings: Settings,
}

/// Evaluation steps so far, if requested.
type Steps<'a> = Option<&'a mut Vec<Step>>;

/// Question to policies.
#[derive(Clone, Copy)]
struct Query<'a> {
    layer: Layer,
    direction: Direction,
    packet: NamedPacket<'a>,
    committed: Committed<'a>,
}

/// Staged policies that count as enforced.
#[derive(Clone, Copy)]
enum Committed<'a> {
    /// None.
    No,
    /// This one, in place of another.
    One { staged: &'a PolicyId, replaced: &'a PolicyId },
    /// All of them.
    All,
}

impl<'a> Query<'a> {
    /// Names count on the way out of the endpoint that has learned them. Forwarded packets come
    /// from another one.
    fn new(layer: Layer, direction: Direction, packet: impl Into<NamedPacket<'a>>) -> Self {
        let mut packet = packet.into();
        if (layer, direction) != (Layer::Normal, Direction::Egress) {
            packet.names = Names::Known(&[]);
        }
        Self { layer, direction, packet, committed: Committed::No }
    }

    /// Returns the query with a staged policy in force in place of the one that it replaces.
    fn with(self, staged: &'a PolicyId, replaced: &'a Option<PolicyId>) -> Self {
        let committed = replaced.as_ref().map_or(Committed::No, |replaced| Committed::One { staged, replaced });
        Self { committed, ..self }
    }

    /// Returns the query with all staged policies in force.
    fn with_all(self) -> Self {
        Self { committed: Committed::All, ..self }
    }

    fn is_staged(&self, id: &PolicyId) -> bool {
        id.kind.is_staged()
            && match self.committed {
                Committed::No => true,
                Committed::One { staged, .. } => staged != id,
                Committed::All => false,
            }
    }

    /// Reports whether a staged policy of the same tier replaces a policy.
    fn is_replaced(&self, id: &PolicyId, tier: &[PolicyId]) -> bool {
        match self.committed {
            Committed::No => false,
            Committed::One { replaced, .. } => replaced == id,
            Committed::All => {
                let by = |other: &PolicyId| other.name == id.name && other.committed().is_some_and(|new| new == *id);
                !id.kind.is_staged() && tier.iter().any(by)
            }
        }
    }
}

impl Evaluator {
    /// Returns the evaluator of a node without any desired state.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { state: State::default(), settings }
    }

    /// Replaces the settings.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Returns the state of the evaluation.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Replaces the state.
    pub fn set_state(&mut self, state: State) {
        self.state = state;
    }

    /// Applies one update ([`State::apply`]).
    ///
    /// # Errors
    /// If members change of an IP set that does not exist or is of another type; see
    /// [`State::apply`].
    pub fn apply(&mut self, update: &DesiredUpdate) -> Result<(), UpdateError> {
        self.state.apply(update)
    }

    /// Returns the workloads of this node with this address; more than one if it is assigned twice.
    #[must_use]
    pub fn workloads_with_address(&self, address: IpAddr) -> &[WorkloadEndpointId] {
        self.state.workloads_with_address(address)
    }

    /// Returns a workload of this node.
    #[must_use]
    pub fn workload_endpoint(&self, id: &WorkloadEndpointId) -> Option<&WorkloadEndpointState> {
        self.state.workloads.get(id)
    }

    /// Reports whether the state is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// Returns all host endpoints of this node in arbitrary order.
    pub fn host_endpoints(&self) -> impl Iterator<Item = (&HostEndpointName, &HostEndpointState)> {
        self.state.hosts.iter()
    }

    /// Evaluates the policies of a workload for a packet to it (ingress) or from it (egress).
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn workload<'p>(
        &self,
        id: &WorkloadEndpointId,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Answer, Missing> {
        self.workload_query(id, Query::new(Layer::Normal, direction, packet), None)
    }

    /// As [`Evaluator::workload`], with the evaluated rules.
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn explain_workload<'p>(
        &self,
        id: &WorkloadEndpointId,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Explanation, Missing> {
        let query = Query::new(Layer::Normal, direction, packet);
        explain(|steps| self.workload_query(id, query, steps))
    }

    /// As [`Evaluator::workload`], with a staged policy in force in place of the policy of the same
    /// name that it replaces.
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn preview_workload<'p>(
        &self,
        id: &WorkloadEndpointId,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
        staged: &PolicyId,
    ) -> Result<Answer, Missing> {
        self.workload_query(id, Query::new(Layer::Normal, direction, packet).with(staged, &staged.committed()), None)
    }

    /// As [`Evaluator::explain_workload`], with all staged policies in force in place of the
    /// policies of the same names that they replace.
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn explain_pending_workload<'p>(
        &self,
        id: &WorkloadEndpointId,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Explanation, Missing> {
        let query = Query::new(Layer::Normal, direction, packet).with_all();
        explain(|steps| self.workload_query(id, query, steps))
    }

    /// Evaluates a packet from a workload to the host itself at the workload: its egress policy,
    /// then `DefaultEndpointToHostAction`. Policies of host endpoints do not count.
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn workload_to_host<'p>(
        &self,
        id: &WorkloadEndpointId,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Answer, Missing> {
        self.workload_to_host_query(id, Query::new(Layer::Normal, Direction::Egress, packet), None)
    }

    /// As [`Evaluator::workload_to_host`], with the evaluated rules.
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn explain_workload_to_host<'p>(
        &self,
        id: &WorkloadEndpointId,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Explanation, Missing> {
        let query = Query::new(Layer::Normal, Direction::Egress, packet);
        explain(|steps| self.workload_to_host_query(id, query, steps))
    }

    /// As [`Evaluator::explain_workload_to_host`], with all staged policies in force in place of
    /// the policies of the same names that they replace.
    ///
    /// # Errors
    /// If the workload, or something it refers to, does not exist.
    pub fn explain_pending_workload_to_host<'p>(
        &self,
        id: &WorkloadEndpointId,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Explanation, Missing> {
        let query = Query::new(Layer::Normal, Direction::Egress, packet).with_all();
        explain(|steps| self.workload_to_host_query(id, query, steps))
    }

    /// Evaluates one layer of a host endpoint for a packet that enters (ingress) or leaves (egress)
    /// the node there.
    ///
    /// # Errors
    /// If the endpoint, or something it refers to, does not exist.
    pub fn host<'p>(
        &self,
        name: &HostEndpointName,
        layer: Layer,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Answer, Missing> {
        self.host_query(name, Query::new(layer, direction, packet), None)
    }

    /// As [`Evaluator::host`], with the evaluated rules.
    ///
    /// # Errors
    /// If the endpoint, or something it refers to, does not exist.
    pub fn explain_host<'p>(
        &self,
        name: &HostEndpointName,
        layer: Layer,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Explanation, Missing> {
        let query = Query::new(layer, direction, packet);
        explain(|steps| self.host_query(name, query, steps))
    }

    /// As [`Evaluator::host`], with a staged policy in force in place of the policy of the same
    /// name that it replaces.
    ///
    /// # Errors
    /// If the endpoint, or something it refers to, does not exist.
    pub fn preview_host<'p>(
        &self,
        name: &HostEndpointName,
        layer: Layer,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
        staged: &PolicyId,
    ) -> Result<Answer, Missing> {
        self.host_query(name, Query::new(layer, direction, packet).with(staged, &staged.committed()), None)
    }

    /// As [`Evaluator::explain_host`], with all staged policies in force in place of the policies
    /// of the same names that they replace.
    ///
    /// # Errors
    /// If the endpoint, or something it refers to, does not exist.
    pub fn explain_pending_host<'p>(
        &self,
        name: &HostEndpointName,
        layer: Layer,
        direction: Direction,
        packet: impl Into<NamedPacket<'p>>,
    ) -> Result<Explanation, Missing> {
        let query = Query::new(layer, direction, packet).with_all();
        explain(|steps| self.host_query(name, query, steps))
    }

    fn workload_query(
        &self,
        id: &WorkloadEndpointId,
        query: Query<'_>,
        mut steps: Steps<'_>,
    ) -> Result<Answer, Missing> {
        let state = self.state.workloads.get(id).ok_or_else(|| Missing::Workload(id.clone()))?;
        if state.endpoint.state == AdminState::Inactive {
            let contest = state.computed.as_ref().and_then(|computed| computed.contest.clone());
            let decided_by =
                contest.map_or(DecidedBy::EndpointInactive, |contest| DecidedBy::Contested(contest.into()));
            return Ok(Answer::new(Verdict::Deny, decided_by));
        }
        if query.direction == Direction::Egress
            && let Some(guard) = self.guard(query.packet.packet(), &mut steps)
        {
            return Ok(Answer::new(Verdict::Deny, DecidedBy::Guard(guard)));
        }
        self.endpoint(&state.tiers, &state.endpoint.profiles, &query, &mut steps)
    }

    fn workload_to_host_query(
        &self,
        id: &WorkloadEndpointId,
        query: Query<'_>,
        mut steps: Steps<'_>,
    ) -> Result<Answer, Missing> {
        if is_router_icmpv6(query.packet.packet()) {
            record(&mut steps, || Step::Guard { guard: Guard::RouterIcmpv6, matched: true });
            return Ok(Answer::new(Verdict::Allow, DecidedBy::Guard(Guard::RouterIcmpv6)));
        }
        let answer = self.workload_query(id, query, steps)?;
        let mut at_host = self.at_host(answer);
        let alternative = at_host.alternative.take().map(|possible| {
            let Alternative { unknown, answer } = *possible;
            Alternative { unknown, answer: self.at_host(answer) }
        });
        at_host.alternative = alternative.filter(|other| other.answer.verdict != at_host.verdict).map(Box::new);
        Ok(at_host)
    }

    /// Returns the answer of `DefaultEndpointToHostAction` after that of a workload's policy.
    fn at_host(&self, answer: Answer) -> Answer {
        let verdict = match (answer.verdict, self.settings.endpoint_to_host) {
            (Verdict::Deny | Verdict::Undecided, _) => return answer,
            (Verdict::Allow, EndpointToHost::Allow) => Verdict::Allow,
            (Verdict::Allow, EndpointToHost::Deny) => Verdict::Deny,
            (Verdict::Allow, EndpointToHost::Undecided) => Verdict::Undecided,
        };
        Answer { alternative: answer.alternative, ..Answer::new(verdict, DecidedBy::EndpointToHostAction) }
    }

    fn host_query(&self, name: &HostEndpointName, query: Query<'_>, mut steps: Steps<'_>) -> Result<Answer, Missing> {
        let state = self.state.hosts.get(name).ok_or_else(|| Missing::Host(name.clone()))?;
        if query.layer != Layer::Forward {
            let port = self.settings.failsafe(query.layer, query.direction, query.packet.packet());
            record(&mut steps, || Step::Failsafe { matched: port.is_some() });
            if let Some(port) = port {
                return Ok(Answer::new(Verdict::Allow, DecidedBy::Failsafe(port)));
            }
        }
        self.endpoint(host_tiers(state, query.layer), &state.endpoint.profiles, &query, &mut steps)
    }

    /// Returns the check that denies a packet of a workload before its policies.
    fn guard(&self, packet: &Packet, steps: &mut Steps<'_>) -> Option<Guard> {
        for (guard, matched) in self.settings.guards(packet) {
            record(steps, || Step::Guard { guard, matched });
            if matched {
                return Some(guard);
            }
        }
        None
    }

    fn endpoint(
        &self,
        tiers: &[TierPolicies],
        profiles: &[ProfileName],
        query: &Query<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<Answer, Missing> {
        let mut possible = Possible::new();
        let mut answer = self.deciding(tiers, profiles, query, steps, &mut possible)?;
        let differs = |other: &Alternative| other.answer.verdict != answer.verdict;
        answer.alternative = possible.into_iter().find(differs).map(Box::new);
        Ok(answer)
    }

    /// Returns the answer without its alternative. Adds those of rules that may match.
    fn deciding(
        &self,
        tiers: &[TierPolicies],
        profiles: &[ProfileName],
        query: &Query<'_>,
        steps: &mut Steps<'_>,
        possible: &mut Possible,
    ) -> Result<Answer, Missing> {
        for tier in tiers {
            if let Some(answer) = self.tier(tier, query, steps, possible)? {
                return Ok(answer);
            }
        }
        match query.layer {
            Layer::Normal => self.profiles(profiles, query, steps, possible),
            Layer::Forward if tiers.is_empty() => Ok(Answer::new(Verdict::Allow, DecidedBy::NoForwardPolicy)),
            Layer::Forward | Layer::Untracked | Layer::PreDnat => {
                Ok(Answer::new(Verdict::Undecided, DecidedBy::Nothing))
            }
        }
    }

    /// Evaluates a tier; `None` if the next tier decides.
    fn tier(
        &self,
        tier: &TierPolicies,
        query: &Query<'_>,
        steps: &mut Steps<'_>,
        possible: &mut Possible,
    ) -> Result<Option<Answer>, Missing> {
        let ids = match query.direction {
            Direction::Ingress => &tier.ingress,
            Direction::Egress => &tier.egress,
        };
        let mut anything_enforced = false;
        for id in ids.iter().filter(|id| !query.is_replaced(id, ids)) {
            let staged = query.is_staged(id);
            // A tier with staged policies alone is not enforced, and neither is its end.
            anything_enforced |= !staged;
            if staged && steps.is_none() {
                continue;
            }
            let decision = self.policy(&tier.name, id, query, steps)?;
            if staged {
                continue;
            }
            let rule = |index| DecidedBy::PolicyRule { tier: tier.name.clone(), policy: id.clone(), index };
            decision.note_possible(rule, possible);
            match decision.ruling {
                Ruling::Allow | Ruling::Deny => return Ok(decision.answer(rule)),
                Ruling::Pass => return Ok(None),
                Ruling::Silent => {}
            }
        }
        if !anything_enforced || matches!(query.layer, Layer::Untracked | Layer::PreDnat) {
            return Ok(None);
        }
        let denies = tier.default_action != Some(TierDefaultAction::Pass);
        let ruling = if denies { Ruling::Deny } else { Ruling::Pass };
        record(steps, || Step::EndOfTier { tier: tier.name.clone(), ruling });
        Ok(denies.then(|| Answer::new(Verdict::Deny, DecidedBy::EndOfTier { tier: tier.name.clone() })))
    }

    fn policy(
        &self,
        tier: &TierName,
        id: &PolicyId,
        query: &Query<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<Decision, Missing> {
        let policy = self.state.policies.get(id).ok_or_else(|| Missing::Policy(id.clone()))?;
        let mut looked_at = steps.is_some().then(Vec::new);
        let rules = side(query.direction, &policy.inbound, &policy.outbound);
        let decision = self.state.ruling(rules, query.packet, &mut looked_at)?;
        let ruling = decision.ruling;
        record(steps, || Step::Policy {
            tier: tier.clone(),
            policy: id.clone(),
            staged: query.is_staged(id),
            rules: looked_at.unwrap_or_default(),
            ruling,
        });
        Ok(decision)
    }

    fn profiles(
        &self,
        profiles: &[ProfileName],
        query: &Query<'_>,
        steps: &mut Steps<'_>,
        possible: &mut Possible,
    ) -> Result<Answer, Missing> {
        for name in profiles {
            let profile = self.state.profiles.get(name).ok_or_else(|| Missing::Profile(name.clone()))?;
            let mut looked_at = steps.is_some().then(Vec::new);
            let rules = side(query.direction, &profile.inbound, &profile.outbound);
            let decision = self.state.ruling(rules, query.packet, &mut looked_at)?;
            let (ruling, rules) = (decision.ruling, looked_at.unwrap_or_default());
            record(steps, || Step::Profile { profile: name.clone(), rules, ruling });
            let rule = |index| DecidedBy::ProfileRule { profile: name.clone(), index };
            decision.note_possible(rule, possible);
            if let Some(answer) = decision.answer(rule) {
                return Ok(answer);
            }
        }
        record(steps, || Step::EndOfProfiles);
        Ok(Answer::new(Verdict::Deny, DecidedBy::EndOfProfiles))
    }
}

/// Returns the tiers of a layer of a host endpoint.
fn host_tiers(state: &HostEndpointState, layer: Layer) -> &[TierPolicies] {
    match layer {
        Layer::Normal => &state.tiers,
        Layer::Forward => &state.forward_tiers,
        Layer::Untracked => &state.untracked_tiers,
        Layer::PreDnat => &state.pre_dnat_tiers,
    }
}

fn side<'a>(direction: Direction, inbound: &'a Rules, outbound: &'a Rules) -> &'a Rules {
    match direction {
        Direction::Ingress => inbound,
        Direction::Egress => outbound,
    }
}

fn record(steps: &mut Steps<'_>, step: impl FnOnce() -> Step) {
    if let Some(steps) = steps {
        steps.push(step());
    }
}

fn explain(ask: impl FnOnce(Steps<'_>) -> Result<Answer, Missing>) -> Result<Explanation, Missing> {
    let mut steps = Vec::new();
    let answer = ask(Some(&mut steps))?;
    Ok(Explanation { answer, steps })
}
