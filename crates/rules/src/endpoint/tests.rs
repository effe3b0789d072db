mod walk;

use tortie_iptables::{Action, Chain, Features, write_rest};
use tortie_model::{
    AdminState, Direction, InterfaceName, PolicyId, PolicyKind, QosControls, TierDefaultAction, TierName,
};

use crate::{DenyAction, Marks, PolicyGroup, RejectReply, Renderer, RulesConfig, TierGroups};

fn renderer() -> Renderer {
    Renderer::new(RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap())
}

fn lines(chain: &Chain) -> Vec<String> {
    let line = |rule| {
        let mut text = String::new();
        write_rest(rule, &Features::ALL, &mut text);
        text
    };
    chain.rules.iter().map(line).collect()
}

fn tier(default_action: Option<TierDefaultAction>, kinds: &[PolicyKind]) -> TierGroups {
    let ids: Vec<PolicyId> = kinds.iter().map(|kind| PolicyId::new(kind.clone(), "", "p")).collect();
    let ingress = vec![PolicyGroup::new(Direction::Ingress, "all()", ids)];
    TierGroups { name: TierName::from("t"), default_action, ingress, egress: Vec::new() }
}

fn to_workload(tiers: &[TierGroups], qos: Option<&QosControls>) -> Vec<String> {
    let [to, _] =
        renderer().workload_endpoint(InterfaceName::from_static("cali1"), AdminState::Active, tiers, &[], qos);
    lines(&to)
}

/// Quality-of-service values come from annotations; the kernel would refuse the table for one that
/// is out of range.
#[test]
fn limits_are_brought_into_range() {
    let qos = QosControls {
        ingress_packet_rate: 1_000_000,
        ingress_packet_burst: -1,
        ingress_max_connections: i64::MAX,
        ..QosControls::default()
    };
    let text = to_workload(&[], Some(&qos)).join("\n");
    assert!(text.contains("--limit 10000/sec --limit-burst 5 "), "{text}");
    assert!(text.contains("--connlimit-above 4294967295 "), "{text}");

    let qos = QosControls { ingress_packet_rate: -5, ingress_max_connections: -1, ..QosControls::default() };
    assert_eq!(to_workload(&[], Some(&qos)), to_workload(&[], None));
}

#[test]
fn a_tier_denies_unless_it_passes_or_only_previews() {
    let denies = |tier: TierGroups| to_workload(&[tier], None).iter().any(|line| line.contains("End of tier t. Drop"));
    let enforced = [PolicyKind::GlobalNetworkPolicy];
    let staged = [PolicyKind::StagedGlobalNetworkPolicy];
    assert!(denies(tier(Some(TierDefaultAction::Deny), &enforced)));
    assert!(denies(tier(None, &enforced)));
    assert!(!denies(tier(Some(TierDefaultAction::Pass), &enforced)));
    assert!(!denies(tier(Some(TierDefaultAction::Deny), &staged)));
}

#[test]
fn the_end_of_a_tier_has_the_action_of_the_tier() {
    let end = |action| {
        let tier = tier(Some(TierDefaultAction::DenyWith(action)), &[PolicyKind::GlobalNetworkPolicy]);
        let lines = to_workload(&[tier], None);
        lines.into_iter().find(|line| line.contains("End of tier")).unwrap()
    };
    let expected = |action: &str| {
        let (word, jump) = action.split_once(' ').unwrap();
        format!(
            "-m comment --comment \"End of tier t. {word} if no policies passed packet\" \
             -m mark --mark 0/0x20000 {jump}"
        )
    };
    assert_eq!(end(DenyAction::Reject), expected("Reject --goto cali-reject"));
    assert_eq!(end(DenyAction::Drop), expected("Drop --jump DROP"));
}

/// A reset for a packet that conntrack does not know would end a connection to a failsafe port.
#[test]
fn nothing_is_rejected_before_failsafe_ports() {
    let config = RulesConfig {
        deny: DenyAction::Reject,
        reject_with: RejectReply::ResetOrProhibited,
        ..renderer().config().clone()
    };
    let renderer = Renderer::new(config);
    let tiers = [tier(Some(TierDefaultAction::DenyWith(DenyAction::Reject)), &[PolicyKind::GlobalNetworkPolicy])];
    let mut chains: Vec<Chain> = renderer.host_endpoint_filter("eth0".parse().unwrap(), &tiers, &tiers, &[]).into();
    chains.truncate(2);
    chains.extend(renderer.host_endpoint_raw("eth0".parse().unwrap(), &tiers));
    for chain in chains {
        let lines = lines(&chain);
        let failsafe = lines.iter().position(|line| line.contains("cali-failsafe-")).unwrap();
        assert!(lines[..failsafe].iter().all(|line| !line.to_lowercase().contains("reject")), "{lines:?}");
    }
}

#[test]
fn every_workload_chain_ends_by_denying() {
    for tiers in [vec![], vec![tier(Some(TierDefaultAction::Pass), &[PolicyKind::NetworkPolicy])]] {
        for state in [AdminState::Active, AdminState::Inactive] {
            for chain in renderer().workload_endpoint(InterfaceName::from_static("cali1"), state, &tiers, &[], None) {
                let last = chain.rules.last().unwrap();
                assert!(last.matches.is_empty());
                assert_eq!(last.action, Some(Action::Drop));
            }
        }
    }
}

#[test]
fn forwarded_traffic_is_allowed_only_without_any_tier() {
    let forward = |tiers: &[TierGroups]| {
        let chains = renderer().host_endpoint_filter("eth0".parse().unwrap(), &[], tiers, &[]);
        lines(&chains[2]).join("\n")
    };
    assert!(forward(&[]).contains("Allow forwarded traffic by default"));
    // A tier for the other direction only: the packet returns undecided.
    let text = forward(&[tier(None, &[PolicyKind::GlobalNetworkPolicy])]);
    assert!(!text.contains("Allow forwarded") && !text.contains("DROP\n-m comment"), "{text}");
}
