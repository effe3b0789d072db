//! The policies of a group of endpoints as one list of clauses, each with the step to take if it
//! holds.

use std::ops::Range;
use std::sync::Arc;

use tortie_evaluate::{DecidedBy, Layer, Missing, Ruling, Verdict};
use tortie_model::desired::TierPolicies;
use tortie_model::{Direction, PolicyId, ProfileName, TierDefaultAction, TierName};

use crate::clause::{Action, Clause, CompiledRule};
use crate::line::{Intervals, L4_END, PORTS_END};

/// The rules of a policy or profile for one direction.
pub(crate) type CompiledRules = Result<Arc<[CompiledRule]>, Missing>;

/// Policies of endpoints whose traffic in one direction is evaluated alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub(crate) layer: Layer,
    pub(crate) direction: Direction,
    pub(crate) tiers: Box<[GroupTier]>,
    pub(crate) profiles: Arc<[ProfileName]>,
}

/// The policies of a tier that govern a direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupTier {
    pub(crate) name: TierName,
    pub(crate) default_action: Option<TierDefaultAction>,
    pub(crate) policies: Arc<[PolicyId]>,
}

impl GroupKey {
    pub(crate) fn new(
        (layer, direction): (Layer, Direction),
        tiers: &[TierPolicies],
        profiles: &Arc<[ProfileName]>,
    ) -> Self {
        let tier = |tier: &TierPolicies| GroupTier {
            name: tier.name.clone(),
            default_action: tier.default_action,
            policies: Arc::clone(match direction {
                Direction::Ingress => &tier.ingress,
                Direction::Egress => &tier.egress,
            }),
        };
        let profiles = if layer == Layer::Normal { Arc::clone(profiles) } else { Arc::default() };
        Self { layer, direction, tiers: tiers.iter().map(tier).collect(), profiles }
    }

    pub(crate) fn policies(&self) -> impl Iterator<Item = &PolicyId> {
        self.tiers.iter().flat_map(|tier| tier.policies.iter())
    }

    /// The namespace of the endpoints, by their profiles or else by a namespaced policy; empty for
    /// host endpoints.
    pub(crate) fn namespace(&self) -> &str {
        let of_profile = self.profiles.iter().find_map(|profile| profile.as_str().strip_prefix("kns."));
        let of_policy = || self.policies().map(|policy| &*policy.namespace).find(|namespace| !namespace.is_empty());
        of_profile.or_else(of_policy).unwrap_or_default()
    }
}

/// Identity and order of a group of endpoints in every process: its policies and profiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName(pub(crate) Arc<GroupKey>);

impl GroupName {
    /// The namespace that the cost of the group counts for: that of its endpoints, by their
    /// profiles or else by a namespaced policy. Empty for groups of the platform, such as those of
    /// host endpoints.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }
}

/// Ruling of a staged policy, which is not enforced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StagedRuling {
    /// The tier.
    pub tier: TierName,
    /// The policy.
    pub policy: PolicyId,
    /// The ruling.
    pub ruling: Ruling,
    /// Place of the rule in the policy, counted from 0.
    pub index: usize,
}

/// Step to take if a clause is the first that holds.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// This one of the decisions is made.
    Decide(usize),
    /// Clauses from here on decide.
    Jump(usize),
    /// This one of the staged rulings is noted, and clauses from here on decide.
    Note(usize, usize),
}

/// All clauses of a group, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// Clauses of rules, shared with their policies.
    pub(crate) rules: Vec<Arc<[Clause]>>,
    /// One for each clause.
    pub(crate) steps: Vec<Step>,
    pub(crate) decisions: Vec<(Verdict, DecidedBy)>,
    pub(crate) staged: Vec<StagedRuling>,
    /// The rules of policies whose clauses neither decide nor are noted.
    pub(crate) passing: Vec<PassingRule>,
}

/// A rule of a policy that passes or logs.
#[derive(Clone, Debug)]
pub(crate) struct PassingRule {
    /// The places of its clauses.
    pub(crate) steps: Range<usize>,
    pub(crate) policy: PolicyId,
    pub(crate) index: usize,
}

/// Finds the rules of a policy or profile.
pub(crate) trait RuleSource {
    fn policy(&self, id: &PolicyId, direction: Direction) -> CompiledRules;
    fn profile(&self, name: &ProfileName, direction: Direction) -> CompiledRules;
}

impl Program {
    /// Counts the clauses of the policies and profiles of a group; policies with the most come
    /// first.
    pub(crate) fn sizes(key: &GroupKey, rules: &impl RuleSource) -> Result<(usize, Vec<(usize, PolicyId)>), Missing> {
        let count = |rules: &[CompiledRule]| rules.iter().map(|rule| rule.clauses.len()).sum::<usize>();
        let mut policies = Vec::new();
        for id in key.policies() {
            policies.push((count(&rules.policy(id, key.direction)?), id.clone()));
        }
        let mut clauses: usize = policies.iter().map(|(count, _)| count).sum();
        for name in &*key.profiles {
            clauses += count(&rules.profile(name, key.direction)?);
        }
        policies.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        Ok((clauses, policies))
    }

    pub(crate) fn new(key: &GroupKey, rules: &impl RuleSource) -> Result<Self, Missing> {
        let mut program = Self::default();
        for tier in &key.tiers {
            program.tier(tier, key, rules)?;
        }
        let (verdict, by) = match key.layer {
            Layer::Normal => {
                for name in &*key.profiles {
                    program.profile(name, &rules.profile(name, key.direction)?);
                }
                (Verdict::Deny, DecidedBy::EndOfProfiles)
            }
            Layer::Forward if key.tiers.is_empty() => (Verdict::Allow, DecidedBy::NoForwardPolicy),
            Layer::Forward | Layer::Untracked | Layer::PreDnat => (Verdict::Undecided, DecidedBy::Nothing),
        };
        program.always(verdict, by);
        Ok(program)
    }

    fn tier(&mut self, tier: &GroupTier, key: &GroupKey, rules: &impl RuleSource) -> Result<(), Missing> {
        let mut passes = Vec::new();
        let mut is_enforced = false;
        for id in &*tier.policies {
            let rules = rules.policy(id, key.direction)?;
            if id.kind.is_staged() {
                self.staged_policy(tier, id, &rules);
                continue;
            }
            is_enforced = true;
            for rule in &*rules {
                let by = || DecidedBy::PolicyRule { tier: tier.name.clone(), policy: id.clone(), index: rule.index };
                match rule.action {
                    Action::Allow => self.decide(rule, Verdict::Allow, by()),
                    Action::Deny => self.decide(rule, Verdict::Deny, by()),
                    Action::Pass => {
                        self.note_passing(id, rule);
                        self.push(rule, &mut passes);
                    }
                    Action::Log => self.log(id, rule),
                }
            }
        }
        // A tier whose policies are all staged only previews, and so does its end.
        let has_end = is_enforced && !matches!(key.layer, Layer::Untracked | Layer::PreDnat);
        if has_end && tier.default_action != Some(TierDefaultAction::Pass) {
            self.always(Verdict::Deny, DecidedBy::EndOfTier { tier: tier.name.clone() });
        }
        self.land(&passes);
        Ok(())
    }

    fn staged_policy(&mut self, tier: &GroupTier, id: &PolicyId, rules: &[CompiledRule]) {
        let mut notes = Vec::new();
        for rule in rules {
            let ruling = match rule.action {
                Action::Allow => Ruling::Allow,
                Action::Deny => Ruling::Deny,
                Action::Pass => Ruling::Pass,
                Action::Log => {
                    self.log(id, rule);
                    continue;
                }
            };
            self.push(rule, &mut notes);
            let (tier, policy) = (tier.name.clone(), id.clone());
            let noted = self.staged.len();
            self.staged.push(StagedRuling { tier, policy, ruling, index: rule.index });
            for step in self.steps.iter_mut().rev().take(rule.clauses.len()) {
                *step = Step::Note(noted, 0);
            }
        }
        self.land(&notes);
    }

    fn profile(&mut self, name: &ProfileName, rules: &[CompiledRule]) {
        let mut passes = Vec::new();
        for rule in rules {
            let by = || DecidedBy::ProfileRule { profile: name.clone(), index: rule.index };
            match rule.action {
                Action::Allow => self.decide(rule, Verdict::Allow, by()),
                Action::Deny => self.decide(rule, Verdict::Deny, by()),
                Action::Pass => self.push(rule, &mut passes),
                Action::Log => {}
            }
        }
        self.land(&passes);
    }

    /// Adds a rule that never decides: evaluation continues with the next rule.
    fn log(&mut self, policy: &PolicyId, rule: &CompiledRule) {
        self.note_passing(policy, rule);
        let mut places = Vec::new();
        self.push(rule, &mut places);
        self.land(&places);
    }

    /// Notes a policy rule whose clauses are added next.
    fn note_passing(&mut self, policy: &PolicyId, rule: &CompiledRule) {
        let steps = self.steps.len()..self.steps.len() + rule.clauses.len();
        self.passing.push(PassingRule { steps, policy: policy.clone(), index: rule.index });
    }

    fn decide(&mut self, rule: &CompiledRule, verdict: Verdict, by: DecidedBy) {
        self.rules.push(Arc::clone(&rule.clauses));
        self.steps.extend(rule.clauses.iter().map(|_| Step::Decide(self.decisions.len())));
        self.decisions.push((verdict, by));
    }

    /// Adds clauses that jump to a later clause; their places are added to `places` until the
    /// target is known.
    fn push(&mut self, rule: &CompiledRule, places: &mut Vec<usize>) {
        places.extend(self.steps.len()..self.steps.len() + rule.clauses.len());
        self.rules.push(Arc::clone(&rule.clauses));
        self.steps.extend(rule.clauses.iter().map(|_| Step::Jump(0)));
    }

    /// Makes the clauses at these places, from [`Self::push`], jump here.
    #[expect(clippy::indexing_slicing, clippy::unreachable, reason = "the places are of steps that go on somewhere")]
    fn land(&mut self, places: &[usize]) {
        let here = self.steps.len();
        for place in places {
            match &mut self.steps[*place] {
                Step::Jump(target) | Step::Note(_, target) => *target = here,
                Step::Decide(_) => unreachable!("nothing goes on behind a decision"),
            }
        }
    }

    fn always(&mut self, verdict: Verdict, by: DecidedBy) {
        let all = Clause {
            families: [true, true],
            source: Default::default(),
            destination: Default::default(),
            l4: Intervals::between(0, L4_END),
            source_port: Intervals::between(0, PORTS_END),
            is_learned: false,
        };
        self.rules.push([all].into());
        self.steps.push(Step::Decide(self.decisions.len()));
        self.decisions.push((verdict, by));
    }
}
