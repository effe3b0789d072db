//! An endpoint's chain must evaluate tiers, policies and profiles in order, for any grouping.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tortie_iptables::{Action, Chain, ChainName, Match, Rule};
use tortie_model::{
    AdminState, Direction, HostInterface, InterfaceName, PolicyId, PolicyKind, ProfileName, TierDefaultAction, TierName,
};

use crate::names::{chain, policy_chain, profile_chain};
use crate::{DenyAction, PolicyGroup, RejectReply, Renderer, RulesConfig, TierGroups};

/// Verdict of a policy, a profile or a whole endpoint on the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChainOutcome {
    Accept,
    Pass,
    Deny,
    None,
}

#[derive(Debug, Clone)]
struct TierInput {
    default_action: Option<TierDefaultAction>,
    /// Verdict, whether the policy is staged, and whether it has the selector of the one before.
    policies: Vec<(ChainOutcome, bool, bool)>,
}

fn verdict() -> impl Strategy<Value = ChainOutcome> {
    prop_oneof![
        6 => Just(ChainOutcome::None),
        1 => Just(ChainOutcome::Accept),
        1 => Just(ChainOutcome::Pass),
        1 => Just(ChainOutcome::Deny),
    ]
}

fn tier() -> impl Strategy<Value = TierInput> {
    let default_action = prop::sample::select(vec![
        None,
        Some(TierDefaultAction::Deny),
        Some(TierDefaultAction::DenyWith(DenyAction::Drop)),
        Some(TierDefaultAction::DenyWith(DenyAction::Reject)),
        Some(TierDefaultAction::Pass),
    ]);
    let policy = (verdict(), prop::bool::weighted(0.2), prop::bool::weighted(0.8));
    (default_action, prop::collection::vec(policy, 0..14))
        .prop_map(|(default_action, policies)| TierInput { default_action, policies })
}

/// Chains that give the verdicts, and the tiers that refer to them.
struct Scene {
    renderer: Renderer,
    chains: BTreeMap<ChainName, Chain>,
    tiers: Vec<TierGroups>,
    profiles: Vec<ProfileName>,
}

impl Scene {
    fn new(tiers: &[TierInput], profiles: &[ChainOutcome], (deny, reject_with): (DenyAction, RejectReply)) -> Self {
        let renderer = Renderer::new(RulesConfig { deny, reject_with, ..RulesConfig::default() });
        let marks = renderer.config().marks;
        let mut scene = Self { renderer, chains: BTreeMap::new(), tiers: Vec::new(), profiles: Vec::new() };
        let giving = |name, verdict| {
            let action = match verdict {
                ChainOutcome::Accept => Some(Action::SetMark(marks.accept)),
                ChainOutcome::Pass => Some(Action::SetMark(marks.pass)),
                ChainOutcome::Deny => Some(Action::Drop),
                ChainOutcome::None => None,
            };
            Chain::new(name, vec![Rule { action, ..Rule::default() }])
        };
        for (t, tier) in tiers.iter().enumerate() {
            let mut ids = Vec::new();
            let mut selectors: BTreeMap<PolicyId, String> = BTreeMap::new();
            for (p, (verdict, staged, same_selector)) in tier.policies.iter().enumerate() {
                let kind = if *staged { PolicyKind::StagedNetworkPolicy } else { PolicyKind::NetworkPolicy };
                let id = PolicyId::new(kind, format!("t{t}"), format!("p{p}"));
                let before = ids.last().and_then(|before| selectors.get(before)).cloned();
                let selector = before.filter(|_| *same_selector).unwrap_or_else(|| format!("s{p}"));
                selectors.insert(id.clone(), selector);
                scene.add(giving(policy_chain(Direction::Egress, &id), *verdict));
                ids.push(id);
            }
            let groups = PolicyGroup::of_tier(Direction::Egress, &ids, |id| selectors.get(id).map(String::as_str));
            for group in &groups {
                let chain = scene.renderer.policy_group(group);
                scene.add(chain);
            }
            scene.tiers.push(TierGroups {
                name: TierName::new(format!("t{t}")),
                default_action: tier.default_action,
                ingress: Vec::new(),
                egress: groups,
            });
        }
        for (i, verdict) in profiles.iter().enumerate() {
            let name = ProfileName::new(format!("profile{i}"));
            scene.add(giving(profile_chain(Direction::Egress, &name), *verdict));
            scene.profiles.push(name);
        }
        scene
    }

    fn add(&mut self, chain: Chain) {
        self.chains.insert(chain.name, chain);
    }

    /// Returns the verdict of an endpoint's chain on the first packet of a connection.
    fn walk(&self, chain: &Chain) -> ChainOutcome {
        let marks = &self.renderer.config().marks;
        // Any marks that other tables have left set.
        let mut mark = marks.policy().get();
        if self.pass_through(chain, &mut mark) {
            return ChainOutcome::Deny;
        }
        if mark & marks.accept.get() != 0 { ChainOutcome::Accept } else { ChainOutcome::None }
    }

    /// Evaluates a chain; returns whether the packet was dropped.
    fn pass_through(&self, chain: &Chain, mark: &mut u32) -> bool {
        for rule in &chain.rules {
            let passes = rule.matches.iter().all(|question| match question {
                Match::Mark { want, negated } => (*mark & want.mask().get() == want.value()) != *negated,
                // A new TCP connection that is no tunnel.
                Match::Conntrack { .. } => false,
                Match::Protocol { protocol, negated } => (protocol.number() == 6) != *negated,
                other => panic!("unexpected {other:?}"),
            });
            if !passes {
                continue;
            }
            match &rule.action {
                // The chain for rejected packets lets none pass.
                Some(Action::Drop | Action::Reject(_) | Action::Goto(chain::REJECT)) => return true,
                Some(Action::Return) => return false,
                Some(Action::Jump(target)) => {
                    if let Some(target) = self.chains.get(target)
                        && self.pass_through(target, mark)
                    {
                        return true;
                    }
                }
                Some(Action::SetMark(bits)) => *mark |= bits.get(),
                Some(Action::ClearMark(bits)) => *mark &= !bits.get(),
                Some(Action::NoTrack) | None => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        false
    }
}

/// Returns the verdict of tiers; `ends` is whether a tier's end decides.
fn meaning_of_tiers(tiers: &[TierInput], ends: bool) -> ChainOutcome {
    'tiers: for tier in tiers {
        let mut enforced = tier.policies.iter().filter(|(_, staged, _)| !staged).peekable();
        let any = enforced.peek().is_some();
        for (verdict, ..) in enforced {
            match verdict {
                ChainOutcome::Accept | ChainOutcome::Deny => return *verdict,
                ChainOutcome::Pass => continue 'tiers,
                ChainOutcome::None => {}
            }
        }
        if any && ends && tier.default_action != Some(TierDefaultAction::Pass) {
            return ChainOutcome::Deny;
        }
    }
    ChainOutcome::None
}

fn meaning_of_profiles(profiles: &[ChainOutcome]) -> ChainOutcome {
    profiles
        .iter()
        .copied()
        .find(|verdict| matches!(verdict, ChainOutcome::Accept | ChainOutcome::Deny))
        .unwrap_or(ChainOutcome::Deny)
}

proptest! {
    #[test]
    fn endpoint_chains_evaluate_policies_in_order(
        tiers in prop::collection::vec(tier(), 0..4),
        profiles in prop::collection::vec(verdict(), 0..3),
        deny in (
            prop::sample::select(vec![DenyAction::Drop, DenyAction::Reject]),
            prop::sample::select(vec![RejectReply::PortUnreachable, RejectReply::ResetOrProhibited]),
        ),
    ) {
        let scene = Scene::new(&tiers, &profiles, deny);
        let interface = InterfaceName::from_static("eth0");
        let host_interface = HostInterface::Named(interface);
        let normal = match meaning_of_tiers(&tiers, true) {
            ChainOutcome::None => meaning_of_profiles(&profiles),
            decided => decided,
        };

        let [_, from] =
            scene.renderer.workload_endpoint(interface, AdminState::Active, &scene.tiers, &scene.profiles, None);
        prop_assert_eq!(scene.walk(&from), normal);
        let [to, _, forward, _] =
            scene.renderer.host_endpoint_filter(host_interface, &scene.tiers, &scene.tiers, &scene.profiles);
        prop_assert_eq!(scene.walk(&to), normal);
        let mangle = scene.renderer.host_endpoint_mangle_egress(host_interface, &scene.tiers, &scene.profiles);
        prop_assert_eq!(scene.walk(&mangle), normal);

        let forwarded = if tiers.is_empty() { ChainOutcome::Accept } else { meaning_of_tiers(&tiers, true) };
        prop_assert_eq!(scene.walk(&forward), forwarded);
        let [raw, _] = scene.renderer.host_endpoint_raw(host_interface, &scene.tiers);
        prop_assert_eq!(scene.walk(&raw), meaning_of_tiers(&tiers, false));
    }
}
