//! Interfaces of a node that host endpoints claim.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_model::{HostEndpointName, InterfaceName};

/// Name of the loopback interface.
pub const LOOPBACK: &str = "lo";
/// Devices of tunnels between nodes.
const TUNNELS: [&str; 5] = ["tunl0", "vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali"];

/// Claim of a host endpoint to a single interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "callers write all fields")]
pub struct InterfaceClaim<'a> {
    /// The host endpoint.
    pub name: &'a HostEndpointName,
    /// The interface that it names; `None` for the one with an expected address.
    pub interface: Option<InterfaceName>,
    /// The addresses that it expects.
    pub expected: Vec<IpAddr>,
}

/// An interface with the host endpoints that claim it.
#[derive(Default)]
struct Interface<'a> {
    claimants: BTreeSet<&'a HostEndpointName>,
    expected: BTreeSet<IpAddr>,
}

/// Returns the host endpoints that are enforced at the interfaces to other nodes and the outside:
/// the first by name of each interface. `own` is the node's address in a packet; `None` if the node
/// forwards the packet.
///
/// The packet's interface is unknown. The result is the host endpoints of interfaces for which its
/// address is expected, else those of interfaces for which none is expected. If the node forwards
/// the packet, the result is those of all these interfaces. It is empty if no such interface is
/// claimed.
#[must_use]
pub fn network_owners<'a>(claims: &[InterfaceClaim<'a>], own: Option<IpAddr>) -> BTreeSet<&'a HostEndpointName> {
    let interfaces = interfaces(claims);
    let expects = |interface: &Interface<'a>| own.is_some_and(|own| interface.expected.contains(&own));
    let is_expected = interfaces.iter().any(expects);
    let is_candidate = |interface: &&Interface<'a>| match own {
        Some(_) if is_expected => expects(interface),
        Some(_) => interface.expected.is_empty(),
        None => true,
    };
    interfaces.iter().filter(is_candidate).filter_map(|interface| interface.claimants.first().copied()).collect()
}

fn interfaces<'a>(claims: &[InterfaceClaim<'a>]) -> Vec<Interface<'a>> {
    let is_local = |name: InterfaceName| name.as_str() == LOOPBACK || TUNNELS.contains(&name.as_str());
    let mut by_name: BTreeMap<InterfaceName, Interface<'a>> = BTreeMap::new();
    for claim in claims {
        if let Some(name) = claim.interface.filter(|name| !is_local(*name)) {
            let known = by_name.entry(name).or_default();
            known.claimants.insert(claim.name);
            known.expected.extend(&claim.expected);
        }
    }
    let mut interfaces: Vec<Interface<'a>> = by_name.into_values().collect();
    for claim in claims.iter().filter(|claim| claim.interface.is_none()) {
        let expected: BTreeSet<IpAddr> = claim.expected.iter().copied().filter(|own| !own.is_loopback()).collect();
        let mut is_known = expected.is_empty();
        for known in interfaces.iter_mut().filter(|known| !known.expected.is_disjoint(&expected)) {
            known.claimants.insert(claim.name);
            is_known = true;
        }
        if !is_known {
            interfaces.push(Interface { claimants: [claim.name].into(), expected });
        }
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_claimant_by_name_has_an_interface() {
        let names: [HostEndpointName; 5] = ["a", "b", "c", "d", "e"].map(Into::into);
        let claim = |number: usize, interface: Option<&str>, expected: &[&str]| InterfaceClaim {
            name: &names[number],
            interface: interface.map(|name| name.parse().unwrap()),
            expected: expected.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let claims = [
            claim(1, Some("eth0"), &["192.0.2.1"]),
            claim(0, None, &["192.0.2.1"]),
            claim(2, Some("eth1"), &[]),
            claim(3, Some("lo"), &[]),
            claim(4, None, &["127.0.0.1"]),
        ];
        let owners = |own: Option<&str>| -> Vec<String> {
            let owners = network_owners(&claims, own.map(|own| own.parse().unwrap()));
            owners.into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(owners(Some("192.0.2.1")), ["a"]);
        assert_eq!(owners(Some("198.51.100.1")), ["c"]);
        assert_eq!(owners(None), ["a", "c"]);
    }
}
