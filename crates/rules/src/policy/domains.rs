//! Destinations by domain name: sets whose members are learned from DNS answers.

use tortie_model::desired::RuleView;
use tortie_model::{Direction, IpSetId, RuleAction};
use tortie_netfilter::{DomainSetPart, Matches, Side, domain_set_name};

use super::Context;
use super::conditions::{Conditions, InvalidCondition};
use crate::config::DomainRules;
use crate::renderer::Renderer;

impl Renderer {
    /// Returns the matches of which one must hold besides the other conditions of the rule; `None`
    /// for a rule without domains, or if these cannot be matched and are all that the rule has. A
    /// rule with other sets for the destination has these as an alternative, too, and no longer in
    /// its conditions. Also returns the reason why domains cannot be matched.
    pub(super) fn domains(
        &self,
        rule: RuleView<'_>,
        context: &Context<'_>,
        conditions: &mut Conditions,
    ) -> (Option<Vec<Matches>>, Option<InvalidCondition>) {
        let sets = &rule.sets.dst_domains;
        if sets.is_empty() {
            return (None, None);
        }
        let is_allowed = matches!(rule.action(), RuleAction::Allow | RuleAction::Unspecified);
        let learned = match self.config().domains {
            _ if !is_allowed || context.direction != Direction::Egress || context.untracked => {
                Err(InvalidCondition::DomainsElsewhere)
            }
            None => Err(InvalidCondition::DomainsUnlearned),
            Some(domains) => learned(sets, domains, context),
        };
        let others = std::mem::take(&mut conditions.destination.sets);
        let by_others = (!rule.sets.dst.is_empty())
            .then(|| others.into_iter().fold(Matches::new(), |all, set| all.ip_set(Side::Destination, set)));
        match learned {
            Ok(learned) => (Some(by_others.into_iter().chain(learned).collect()), None),
            Err(condition) => (by_others.map(|others| vec![others]), Some(condition)),
        }
    }
}

/// Returns a match for each part of each set.
fn learned(sets: &[IpSetId], domains: DomainRules, context: &Context<'_>) -> Result<Vec<Matches>, InvalidCondition> {
    let part = |id: &IpSetId, part| {
        let name = domain_set_name(context.family, id, part);
        let name = name.map_err(|_| InvalidCondition::IpSetId(id.as_str().to_owned()))?;
        Ok(match part {
            DomainSetPart::Interfaces(_) => Matches::new().destination_by_interface(name),
            DomainSetPart::Host => Matches::new().source_is_local().ip_set(Side::Destination, name),
        })
    };
    sets.iter().flat_map(|id| domains.parts().map(move |of| part(id, of))).collect()
}

#[cfg(test)]
mod tests;
