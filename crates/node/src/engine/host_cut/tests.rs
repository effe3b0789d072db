use std::sync::Arc;

use tortie_model::desired::{Policy, Profile, RuleSets, TierPolicies};
use tortie_model::{HostEndpoint, PolicyKind, Rule};

use super::*;

fn rules(action: Option<RuleAction>) -> Rules {
    let rules: Arc<[Rule]> = action.into_iter().map(Rule::new).collect();
    let sets: Arc<[RuleSets]> = rules.iter().map(|_| RuleSets::default()).collect();
    Rules::new(rules, sets).unwrap()
}

fn id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

fn policy(inbound: Option<RuleAction>, outbound: Option<RuleAction>) -> DesiredUpdate {
    let policy =
        Policy { source: Arc::default(), selector: "all()".into(), inbound: rules(inbound), outbound: rules(outbound) };
    DesiredUpdate::Policy(id("p"), policy.into())
}

fn endpoint(has_policy: bool, default_action: TierDefaultAction, profiles: &[&str]) -> DesiredUpdate {
    let policies: Arc<[PolicyId]> = has_policy.then(|| id("p")).into_iter().collect();
    let tier = TierPolicies {
        name: "default".into(),
        default_action: Some(default_action),
        ingress: Arc::clone(&policies),
        egress: policies,
    };
    let profiles = profiles.iter().map(|name| ProfileName::from(*name)).collect();
    let endpoint = HostEndpoint { iface: Some("eth0".parse().unwrap()), profiles, ..HostEndpoint::default() };
    let state = HostEndpointState {
        endpoint: endpoint.into(),
        tiers: has_policy.then_some(tier).into_iter().collect(),
        ..HostEndpointState::default()
    };
    DesiredUpdate::HostEndpoint("host".into(), state)
}

fn warnings_after(cut: &mut HostCut, updates: &[DesiredUpdate]) -> Vec<String> {
    updates.iter().for_each(|update| cut.on_update(update));
    cut.warnings()
}

const NOTHING: [&str; 0] = [];

#[test]
fn an_endpoint_without_policies_is_warned_of_once() {
    let mut cut = HostCut::default();
    let bare = endpoint(false, TierDefaultAction::Deny, &[]);
    let expected = "host endpoint host: no policy allows anything, so all incoming and outgoing traffic of the host on \
                    interface eth0 is cut off, but for failsafe ports and established connections";
    assert_eq!(warnings_after(&mut cut, std::slice::from_ref(&bare)), [expected]);
    assert_eq!(warnings_after(&mut cut, std::slice::from_ref(&bare)), NOTHING);
    // Another state, and the first again.
    let allows = policy(Some(RuleAction::Allow), None);
    let out = warnings_after(&mut cut, &[allows, endpoint(true, TierDefaultAction::Deny, &[])]);
    assert!(out.len() == 1 && out[0].contains("all outgoing traffic"), "{out:?}");
    assert_eq!(warnings_after(&mut cut, &[policy(Some(RuleAction::Allow), Some(RuleAction::Unspecified))]), NOTHING);
    assert_eq!(warnings_after(&mut cut, &[bare]), [expected]);
    assert_eq!(warnings_after(&mut cut, &[DesiredUpdate::HostEndpointRemove("host".into())]), NOTHING);
}

#[test]
fn a_policy_that_only_denies_passes_or_logs_allows_nothing() {
    for action in [RuleAction::Deny, RuleAction::NextTier, RuleAction::Log] {
        let mut cut = HostCut::default();
        let updates = [policy(Some(action), Some(action)), endpoint(true, TierDefaultAction::Deny, &[])];
        assert_eq!(warnings_after(&mut cut, &updates).len(), 1, "{action:?}");
    }
}

#[test]
fn a_profile_counts_if_it_is_reached() {
    let profile = Profile { inbound: rules(Some(RuleAction::Allow)), outbound: rules(Some(RuleAction::Allow)) };
    let profile = DesiredUpdate::Profile("open".into(), profile.into());
    let denies = policy(Some(RuleAction::Deny), Some(RuleAction::Deny));
    for (has_policy, default_action, warned) in [
        (false, TierDefaultAction::Deny, false),
        (true, TierDefaultAction::Pass, false),
        (true, TierDefaultAction::Deny, true),
    ] {
        let mut cut = HostCut::default();
        let updates = [profile.clone(), denies.clone(), endpoint(has_policy, default_action, &["open"])];
        assert_eq!(!warnings_after(&mut cut, &updates).is_empty(), warned, "{has_policy} {default_action:?}");
    }
    // When the profile goes, the endpoint is cut off.
    let mut cut = HostCut::default();
    assert_eq!(warnings_after(&mut cut, &[profile, endpoint(false, TierDefaultAction::Deny, &["open"])]), NOTHING);
    assert_eq!(warnings_after(&mut cut, &[DesiredUpdate::ProfileRemove("open".into())]).len(), 1);
}
