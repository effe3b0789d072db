//! Rulings of lists of rules.

use smallvec::SmallVec;
use tortie_model::desired::Rules;
use tortie_model::{IpSetId, RuleAction};

use crate::answer::{Alternative, Answer, DecidedBy, Missing, Unknown, Verdict};
use crate::explanation::{RuleOutcome, RuleStep, Ruling};
use crate::named::NamedPacket;
use crate::rule::Applied;
use crate::state::State;

/// Answers of rules that may match, in order.
pub(crate) type Possible = SmallVec<[Alternative; 1]>;

/// Ruling of a list of rules.
pub(crate) struct Decision {
    pub(crate) ruling: Ruling,
    /// The deciding rule.
    index: usize,
    by_name: Option<IpSetId>,
    /// The rules before it that may match.
    possible: SmallVec<[PossibleRule; 1]>,
}

/// A rule that may match.
pub(crate) struct PossibleRule {
    index: usize,
    verdict: Verdict,
    unknown: Unknown,
    by_name: Option<IpSetId>,
}

impl Decision {
    /// Returns the answer of the deciding rule; `None` if none decides.
    pub(crate) fn answer(self, rule: impl Fn(usize) -> DecidedBy) -> Option<Answer> {
        let verdict = match self.ruling {
            Ruling::Allow => Verdict::Allow,
            Ruling::Deny => Verdict::Deny,
            Ruling::Pass | Ruling::Silent => return None,
        };
        Some(Answer { by_name: self.by_name, ..Answer::new(verdict, rule(self.index)) })
    }

    /// Adds the answers of rules that may match.
    pub(crate) fn note_possible(&self, rule: impl Fn(usize) -> DecidedBy, possible: &mut Possible) {
        possible.extend(self.possible.iter().map(|found| {
            let answer = Answer { by_name: found.by_name.clone(), ..Answer::new(found.verdict, rule(found.index)) };
            Alternative { unknown: found.unknown, answer }
        }));
    }
}

impl State {
    /// Returns the ruling of the first rule that matches and decides.
    pub(crate) fn ruling(
        &self,
        rules: &Rules,
        packet: NamedPacket<'_>,
        looked_at: &mut Option<Vec<RuleStep>>,
    ) -> Result<Decision, Missing> {
        let mut possible = SmallVec::new();
        for (index, rule) in rules.iter().enumerate() {
            let Applied { action, outcome, by_name } = self.apply_rule(rule, packet)?;
            let ruling = match action {
                RuleAction::Allow | RuleAction::Unspecified => Some(Ruling::Allow),
                RuleAction::Deny => Some(Ruling::Deny),
                RuleAction::NextTier => Some(Ruling::Pass),
                RuleAction::Log => None,
            };
            let ruling = match outcome {
                RuleOutcome::Matched => ruling,
                RuleOutcome::Unknown(unknown) => {
                    let verdict = ruling.map(|ruling| match ruling {
                        Ruling::Allow => Verdict::Allow,
                        Ruling::Deny => Verdict::Deny,
                        Ruling::Pass | Ruling::Silent => Verdict::Undecided,
                    });
                    let by_name = by_name.clone();
                    possible.extend(verdict.map(|verdict| PossibleRule { index, verdict, unknown, by_name }));
                    None
                }
                RuleOutcome::Mismatch(_) | RuleOutcome::LeftOut(_) => None,
            };
            if let Some(steps) = looked_at {
                steps.push(RuleStep { index, action, outcome, by_name: by_name.clone() });
            }
            if let Some(ruling) = ruling {
                return Ok(Decision { ruling, index, by_name, possible });
            }
        }
        Ok(Decision { ruling: Ruling::Silent, index: rules.len(), by_name: None, possible })
    }
}
