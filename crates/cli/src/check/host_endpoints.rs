use std::collections::{BTreeMap, BTreeSet};

use tortie_datastore::InputProblem;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{HostEndpoint, HostEndpointKey, HostEndpointName, HostInterface, Hostname, Key, PolicyId, Update};

use super::super::origin::Origins;
use super::lint::{Lint, warn};

/// Returns a warning for each untracked policy that selects host endpoints of all interfaces.
pub(super) fn untracked_for_all(desired: &[DesiredUpdate], origins: &Origins) -> Vec<(Lint, InputProblem)> {
    let mut hosts: BTreeMap<&PolicyId, BTreeSet<&HostEndpointName>> = BTreeMap::new();
    for update in desired {
        let DesiredUpdate::HostEndpoint(name, state) = update else { continue };
        if state.endpoint.iface == Some(HostInterface::All) {
            let policies = state.untracked_tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()));
            policies.filter(|policy| !policy.kind.is_staged()).for_each(|policy| {
                hosts.entry(policy).or_default().insert(name);
            });
        }
    }
    let warning = |(policy, names): (&PolicyId, BTreeSet<&HostEndpointName>)| {
        let others = match names.len() - 1 {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let text = format!(
            "is not enforced for host endpoint {}{others}: untracked policy (doNotTrack) does not apply to \
             `interfaceName: \"*\"`",
            names.first()?
        );
        warn(Lint::UntrackedForAllInterfaces, policy.to_string(), origins.policy(policy), text)
    };
    hosts.into_iter().filter_map(warning).collect()
}

/// Returns a warning for each host endpoint whose interface has another one, which is first by
/// name.
pub(super) fn of_one_interface(updates: &[Update], origins: &Origins) -> Vec<(Lint, InputProblem)> {
    let mut by_node: BTreeMap<&Hostname, BTreeMap<&str, (&HostEndpointKey, &HostEndpoint)>> = BTreeMap::new();
    for update in updates {
        if let Update::HostEndpoint(key, Some(endpoint)) = update {
            by_node.entry(&key.host).or_default().insert(key.name.as_str(), (key, endpoint));
        }
    }
    let mut found = Vec::new();
    for hosts in by_node.values() {
        for (place, (key, endpoint)) in hosts.values().enumerate() {
            let mut earlier = hosts.values().take(place);
            let Some((first, interface)) =
                earlier.find_map(|(first, other)| Some((first, shared_interface(endpoint, other)?)))
            else {
                continue;
            };
            let text =
                format!("is not enforced: host endpoint {}, the first by name, has {interface} as well", first.name);
            let key = Key::HostEndpoint((*key).clone());
            found.extend(warn(Lint::HostEndpointOfSameInterface, key.to_string(), origins.object(&key), text));
        }
    }
    found
}

/// Describes the interface of two host endpoints of a node; `None` if they may have different ones.
fn shared_interface(one: &HostEndpoint, other: &HostEndpoint) -> Option<String> {
    match (one.iface, other.iface) {
        (Some(HostInterface::All), Some(HostInterface::All)) => Some("all interfaces".to_owned()),
        (Some(HostInterface::Named(name)), Some(HostInterface::Named(same))) if name == same => {
            Some(format!("interface {name}"))
        }
        (None, None | Some(HostInterface::Named(_))) | (Some(HostInterface::Named(_)), None) => {
            let expected = one.expected_ipv4.iter().chain(&one.expected_ipv6);
            let mut shared = expected
                .filter(|address| other.expected_ipv4.iter().chain(&other.expected_ipv6).any(|own| own == *address));
            shared.next().map(|address| format!("the interface with address {address}"))
        }
        _ => None,
    }
}
