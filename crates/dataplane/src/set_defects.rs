//! Treatment of rules whose IP sets are not in the kernel as desired.

use std::collections::BTreeMap;

use tortie_ipsets::SetFailure;
use tortie_model::desired::{RuleSets, SetIds};
use tortie_model::{Family, IpSetId, RuleAction};

/// Difference between a set in the kernel and the desired set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetDefect {
    /// The set is missing; the kernel refuses rules that refer to it.
    pub(crate) absent: bool,
    /// It may lack members.
    pub(crate) lacks: bool,
    /// It may hold unwanted members.
    pub(crate) exceeds: bool,
}

/// All defective sets.
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

/// Treatment of a rule with defective sets. With it, the chain never allows a packet that it would
/// not allow with the desired sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The rule stays as it is: at worst it allows less.
    Stays,
    /// The rule is left out, which never allows more.
    LeftOut,
    /// The chain denies everything: otherwise a later rule or tier could allow packets that this
    /// rule should have decided on.
    Closes,
}

/// Returns the treatment of a rule, given the defects of its sets.
pub(crate) fn effect(action: RuleAction, sets: &RuleSets, defect: impl Fn(&IpSetId) -> SetDefect) -> Effect {
    let required =
        [&sets.src, &sets.src_named_ports, &sets.dst, &sets.dst_named_ports, &sets.dst_ip_ports, &sets.dst_domains];
    let excluded = [&sets.not_src, &sets.not_src_named_ports, &sets.not_dst, &sets.not_dst_named_ports];
    let some = |all: &[&SetIds], is: fn(SetDefect) -> bool| all.iter().any(|ids| ids.iter().any(|id| is(defect(id))));
    let absent = some(&required, |d| d.absent) || some(&excluded, |d| d.absent);
    let matches_less = some(&required, |d| d.lacks) || some(&excluded, |d| d.exceeds);
    let matches_more = some(&required, |d| d.exceeds) || some(&excluded, |d| d.lacks);
    match action {
        RuleAction::Allow | RuleAction::Unspecified if absent || matches_more => Effect::LeftOut,
        RuleAction::Log if absent => Effect::LeftOut,
        RuleAction::Deny if absent || matches_less => Effect::Closes,
        // Both the next tier and the next rule of this one may allow the packet.
        RuleAction::NextTier if absent || matches_less || matches_more => Effect::Closes,
        RuleAction::Allow | RuleAction::Unspecified | RuleAction::Log | RuleAction::Deny | RuleAction::NextTier => {
            Effect::Stays
        }
    }
}

#[cfg(test)]
mod tests;
