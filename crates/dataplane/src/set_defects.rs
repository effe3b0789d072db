//! What becomes of rules whose IP sets are not in the kernel as they should be.

use std::collections::BTreeMap;

use tortie_ipsets::SetFailure;
use tortie_model::desired::{RuleSets, SetIds};
use tortie_model::{Family, IpSetId, RuleAction};

/// How a set in the kernel differs from what it should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetDefect {
    /// There is none; the kernel refuses rules that refer to it.
    pub(crate) absent: bool,
    /// It may lack members.
    pub(crate) lacks: bool,
    /// It may hold members that it should not.
    pub(crate) exceeds: bool,
}

/// All sets that are not as they should be.
pub(crate) type SetDefects = BTreeMap<(Family, IpSetId), SetDefect>;

impl From<&SetFailure> for SetDefect {
    fn from(failure: &SetFailure) -> Self {
        if failure.exists {
            Self { absent: false, lacks: failure.lacks, exceeds: failure.exceeds }
        } else {
            Self { absent: true, lacks: false, exceeds: false }
        }
    }
}

/// What must become of a rule, so that nothing gets through that the rule with sets as they should be would not let
/// through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It stays as it is: at worst it lets less through.
    Stays,
    /// It is left out, which never lets more through.
    LeftOut,
    /// Whatever it keeps from the rules behind it could get through these: nothing may.
    Closes,
}

/// What becomes of a rule, given the defects of its sets.
pub(crate) fn effect(action: RuleAction, sets: &RuleSets, defect: impl Fn(&IpSetId) -> SetDefect) -> Effect {
    let required = [&sets.src, &sets.src_named_ports, &sets.dst, &sets.dst_named_ports, &sets.dst_ip_ports];
    let excluded = [&sets.not_src, &sets.not_src_named_ports, &sets.not_dst, &sets.not_dst_named_ports];
    let some = |all: &[&SetIds], is: fn(SetDefect) -> bool| all.iter().any(|ids| ids.iter().any(|id| is(defect(id))));
    let absent = some(&required, |d| d.absent) || some(&excluded, |d| d.absent);
    let matches_less = some(&required, |d| d.lacks) || some(&excluded, |d| d.exceeds);
    let matches_more = some(&required, |d| d.exceeds) || some(&excluded, |d| d.lacks);
    match action {
        RuleAction::Allow | RuleAction::Unspecified if absent || matches_more => Effect::LeftOut,
        RuleAction::Log if absent => Effect::LeftOut,
        RuleAction::Deny if absent || matches_less => Effect::Closes,
        // The next tier, or the next rule: either may be the one that allows.
        RuleAction::NextTier if absent || matches_less || matches_more => Effect::Closes,
        RuleAction::Allow | RuleAction::Unspecified | RuleAction::Log | RuleAction::Deny | RuleAction::NextTier => {
            Effect::Stays
        }
    }
}

#[cfg(test)]
mod tests;
