//! Conversion of aggregates to Goldmane's messages (`felix/collector/goldmane/client.go`).

use tortie_analysis::trace::ServicePortName;
use tortie_evaluate::DecidedBy;
use tortie_flows::{Aggregate, Collector, EndGroup, Hit};
use tortie_model::{Direction, Labels, PolicyId, PolicyKind, TierName};
use tortie_rules::PrefixVerdict;

use super::proto::{self, Action, EndpointType, Flow, FlowKey, PolicyHit, PolicyTrace, Reporter};

const NONE: &str = "-";
/// Felix's name for the profile of an endpoint none of whose profiles decides.
const NO_MATCH: &str = "__NO_MATCH__";
/// Labels that Calico gives its objects are left out.
const OWN_LABELS: &str = "projectcalico.org/";

pub(super) fn flow(aggregate: &Aggregate, collector: &Collector) -> Flow {
    let key = &aggregate.key;
    let (source_type, source_namespace, source_name) = end(&key.source);
    let (dest_type, dest_namespace, dest_name) = end(&key.destination);
    let governing = |tier: &TierName| collector.governing(aggregate, tier);
    // The end of a tier is triggered by the last enforced policy of the tier; for pending policies
    // it is the first.
    let last_enforced = |tier: &TierName| governing(tier).into_iter().rev().find(|policy| !policy.kind.is_staged());
    let first = |tier: &TierName| governing(tier).into_iter().next();
    let pending = collector.pending(aggregate);
    let policies = PolicyTrace {
        enforced_policies: trace(key.trail.hits(), last_enforced),
        pending_policies: trace(pending.iter(), first),
    };
    let (forward, reverse) = (aggregate.traffic.original, aggregate.traffic.reply);
    // Traffic towards the reporting end, and from it.
    let (reporter, into, out) = match key.reporter {
        Direction::Egress => (Reporter::Src, reverse, forward),
        Direction::Ingress => (Reporter::Dst, forward, reverse),
    };
    let none = || (NONE.to_owned(), NONE.to_owned(), NONE.to_owned(), 0);
    let named = |found: &ServicePortName| {
        let ServicePortName { service, name, port, .. } = found;
        let port_name = if name.is_empty() { NONE } else { name };
        ((*service.name).to_owned(), (*service.namespace).to_owned(), port_name.to_owned(), i64::from(*port))
    };
    let (dest_service_name, dest_service_namespace, dest_service_port_name, dest_service_port) =
        key.service.as_ref().map_or_else(none, named);
    let action = if key.allowed { Action::Allow } else { Action::Deny };
    Flow {
        key: Some(FlowKey {
            source_name,
            source_namespace,
            source_type: source_type.into(),
            dest_name,
            dest_namespace,
            dest_type: dest_type.into(),
            dest_port: key.port.map_or(0, i64::from),
            dest_service_name,
            dest_service_namespace,
            dest_service_port_name,
            dest_service_port,
            proto: protocol(key.protocol),
            reporter: reporter.into(),
            action: action.into(),
            policies: Some(policies),
        }),
        start_time: int(aggregate.from.as_secs()),
        end_time: int(aggregate.until.as_secs()),
        source_labels: labels(&aggregate.source_labels),
        dest_labels: labels(&aggregate.destination_labels),
        packets_in: int(into.packets),
        packets_out: int(out.packets),
        bytes_in: int(into.bytes),
        bytes_out: int(out.bytes),
        num_connections_started: int(aggregate.started),
        num_connections_completed: int(aggregate.ended),
        num_connections_live: int(aggregate.live),
    }
}

/// Goldmane has no larger numbers than this.
fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn end(group: &EndGroup) -> (EndpointType, String, String) {
    let none = || NONE.to_owned();
    match group {
        EndGroup::Workloads { namespace, name } => {
            (EndpointType::WorkloadEndpoint, (**namespace).to_owned(), (**name).to_owned())
        }
        EndGroup::Node(name) => (EndpointType::HostEndpoint, none(), (**name).to_owned()),
        EndGroup::NetworkSet(name) => match name.as_str().split_once('/') {
            Some((namespace, name)) => (EndpointType::NetworkSet, namespace.to_owned(), name.to_owned()),
            None => (EndpointType::NetworkSet, none(), name.as_str().to_owned()),
        },
        EndGroup::Private => (EndpointType::Network, none(), "pvt".to_owned()),
        EndGroup::Public => (EndpointType::Network, none(), "pub".to_owned()),
    }
}

/// Felix's names (`felix/collector/utils/utils.go`).
fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        4 => "ipip".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        50 => "esp".to_owned(),
        58 => "icmp6".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    }
}

fn labels(labels: &Labels) -> Vec<String> {
    let shared = labels.iter().filter(|(name, _)| !name.starts_with(OWN_LABELS));
    let mut pairs: Vec<String> = shared.map(|(name, value)| format!("{name}={value}")).collect();
    pairs.sort();
    pairs
}

fn trace<'a>(
    hits: impl Iterator<Item = &'a Hit>,
    trigger: impl Fn(&TierName) -> Option<&'a PolicyId>,
) -> Vec<PolicyHit> {
    let hits = hits.filter_map(|hit| policy_hit(hit, &trigger));
    (0..).zip(hits).map(|(policy_index, hit)| PolicyHit { policy_index, ..hit }).collect()
}

fn policy_hit<'a>(hit: &Hit, trigger: impl Fn(&TierName) -> Option<&'a PolicyId>) -> Option<PolicyHit> {
    let action = match hit.verdict {
        PrefixVerdict::Allow => Action::Allow,
        PrefixVerdict::Deny => Action::Deny,
        PrefixVerdict::Pass => Action::Pass,
    };
    let decided = PolicyHit { action: action.into(), ..PolicyHit::default() };
    let index = |index: &usize| int(*index as u64);
    let profile = |name: &str, rule_index| PolicyHit {
        kind: proto::PolicyKind::Profile.into(),
        name: name.to_owned(),
        rule_index,
        ..decided.clone()
    };
    Some(match &hit.decided_by {
        DecidedBy::PolicyRule { tier, policy: id, index: rule } => {
            PolicyHit { action: action.into(), rule_index: index(rule), ..policy(id, tier) }
        }
        DecidedBy::EndOfTier { tier } => {
            // Goldmane requires a trigger, even if the policy is gone.
            let nobody = || PolicyHit { tier: tier.to_string(), ..PolicyHit::default() };
            let trigger = trigger(tier).map_or_else(nobody, |id| policy(id, tier));
            PolicyHit {
                kind: proto::PolicyKind::EndOfTier.into(),
                tier: tier.to_string(),
                rule_index: -1,
                trigger: Some(Box::new(trigger)),
                ..decided
            }
        }
        DecidedBy::ProfileRule { profile: name, index: rule } => profile(name.as_str(), index(rule)),
        DecidedBy::EndOfProfiles => profile(NO_MATCH, 0),
        _ => return None,
    })
}

fn policy(id: &PolicyId, tier: &TierName) -> PolicyHit {
    use proto::PolicyKind as Kind;
    let kind = match id.kind {
        PolicyKind::NetworkPolicy => Kind::CalicoNetworkPolicy,
        PolicyKind::GlobalNetworkPolicy => Kind::GlobalNetworkPolicy,
        PolicyKind::KubernetesNetworkPolicy => Kind::NetworkPolicy,
        PolicyKind::KubernetesClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
        PolicyKind::StagedNetworkPolicy => Kind::StagedNetworkPolicy,
        PolicyKind::StagedGlobalNetworkPolicy => Kind::StagedGlobalNetworkPolicy,
        PolicyKind::StagedKubernetesNetworkPolicy => Kind::StagedKubernetesNetworkPolicy,
        _ => Kind::KindUnspecified,
    };
    PolicyHit {
        kind: kind.into(),
        namespace: (*id.namespace).to_owned(),
        name: (*id.name).to_owned(),
        tier: tier.to_string(),
        ..PolicyHit::default()
    }
}

#[cfg(test)]
mod tests;
