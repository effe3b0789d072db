//! Policies and profiles.

use std::sync::Arc;

use tortie_model::desired::{DesiredUpdate, Policy, Profile, RuleSets, Rules};
use tortie_model::{PolicyId, PolicyKind, ProfileName, Rule, RuleAction, TierName};

use super::flaw::{Flaw, Unusable, required};
use super::rule::rules;
use super::{Received, felix, in_object, name};

/// Performance hint that the policy is needed on every node (`api/pkg/apis/projectcalico/v3`).
const NEEDED_ON_EVERY_NODE: &str = "AssumeNeededOnEveryNode";

pub(super) fn policy_id(id: felix::PolicyId) -> PolicyId {
    PolicyId::new(PolicyKind::from_name(&id.kind), id.namespace, id.name)
}

pub(super) fn update(update: felix::ActivePolicyUpdate) -> Result<Received, Unusable> {
    let id = policy_id(required("id", update.id).map_err(in_object("a policy"))?);
    let message = update.policy.unwrap_or_default();
    let attributes = tortie_model::Policy {
        namespace: name(message.namespace),
        tier: if message.tier.is_empty() { TierName::default_tier() } else { TierName::new(message.tier) },
        untracked: message.untracked,
        pre_dnat: message.pre_dnat,
        needed_on_every_node: message.perf_hints.iter().any(|hint| hint == NEEDED_ON_EVERY_NODE),
        ..tortie_model::Policy::default()
    };
    let both = rules(message.inbound_rules).and_then(|inbound| Ok((inbound, rules(message.outbound_rules)?)));
    let (both, why) = or_denying(both, &id.to_string());
    let ((inbound, inbound_sets), (outbound, outbound_sets)) = both;
    let policy = Policy {
        selector: message.original_selector.into(),
        source: Arc::new(tortie_model::Policy { inbound, outbound, ..attributes }),
        inbound: inbound_sets,
        outbound: outbound_sets,
    };
    Ok(received(DesiredUpdate::Policy(id, Arc::new(policy)), why))
}

pub(super) fn remove(remove: felix::ActivePolicyRemove) -> Result<DesiredUpdate, Unusable> {
    let id = required("id", remove.id).map_err(in_object("the removal of a policy"))?;
    Ok(DesiredUpdate::PolicyRemove(policy_id(id)))
}

pub(super) fn profile_update(update: felix::ActiveProfileUpdate) -> Result<Received, Unusable> {
    let name = ProfileName::new(required("id", update.id).map_err(in_object("a profile"))?.name);
    let message = update.profile.unwrap_or_default();
    let both = rules(message.inbound_rules).and_then(|inbound| Ok((inbound, rules(message.outbound_rules)?)));
    let (((_, inbound), (_, outbound)), why) = or_denying(both, &format!("profile {name}"));
    Ok(received(DesiredUpdate::Profile(name, Arc::new(Profile { inbound, outbound })), why))
}

pub(super) fn profile_remove(remove: felix::ActiveProfileRemove) -> Result<DesiredUpdate, Unusable> {
    let id = required("id", remove.id).map_err(in_object("the removal of a profile"))?;
    Ok(DesiredUpdate::ProfileRemove(ProfileName::new(id.name)))
}

fn received(update: DesiredUpdate, why: Option<Unusable>) -> Received {
    match why {
        None => Received::Update(update),
        Some(why) => Received::Denied { update, why },
    }
}

/// The rules of one direction, without and with their IP sets.
type OneWay = (Arc<[Rule]>, Rules);

/// Returns the rules, or rules that deny everything and the reason if a rule is invalid.
#[expect(clippy::expect_used, reason = "a denial of everything needs no set")]
fn or_denying(both: Result<(OneWay, OneWay), Flaw>, object: &str) -> ((OneWay, OneWay), Option<Unusable>) {
    let denying = || -> OneWay {
        let rules: Arc<[Rule]> = Arc::new([Rule::new(RuleAction::Deny)]);
        let joined =
            Rules::new(Arc::clone(&rules), Arc::new([RuleSets::default()])).expect("a denial of all needs no set");
        (rules, joined)
    };
    match both {
        Ok(both) => (both, None),
        Err(flaw) => ((denying(), denying()), Some(in_object(object)(flaw))),
    }
}
