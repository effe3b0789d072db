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
#[derive(Clone)]
struct Interface<'a> {
    claimants: BTreeSet<&'a HostEndpointName>,
    /// Whether a claim names it. Its host endpoints then hold for all its addresses.
    is_named: bool,
    expected: BTreeSet<IpAddr>,
}

/// Returns the host endpoints that are enforced at the interfaces to other nodes and the outside:
/// the first by name of each interface. `own` is the node's address in a packet; `None` if the node
/// forwards the packet.
///
/// The packet's interface is unknown. The result is the host endpoints of interfaces for which its
/// address is expected; else those of named interfaces for which no address of its family is
/// expected; else those of all named interfaces. If the node forwards the packet, the result is
/// those of all these interfaces. It is empty if no such interface is claimed.
#[must_use]
pub fn network_owners<'a>(claims: &[InterfaceClaim<'a>], own: Option<IpAddr>) -> BTreeSet<&'a HostEndpointName> {
    let interfaces = interfaces(claims);
    let of = |is_candidate: &dyn Fn(&Interface<'a>) -> bool| -> BTreeSet<_> {
        let candidates = interfaces.iter().filter(|interface| is_candidate(interface));
        candidates.filter_map(|interface| interface.claimants.first().copied()).collect()
    };
    let Some(own) = own else { return of(&|_| true) };
    let is_open = |interface: &Interface<'_>| !interface.expected.iter().any(|of| of.is_ipv4() == own.is_ipv4());
    let candidates: [&dyn Fn(&Interface<'a>) -> bool; 3] = [
        &|interface| interface.expected.contains(&own),
        &|interface| interface.is_named && is_open(interface),
        &|interface| interface.is_named,
    ];
    candidates.into_iter().map(of).find(|owners| !owners.is_empty()).unwrap_or_default()
}

fn interfaces<'a>(claims: &[InterfaceClaim<'a>]) -> Vec<Interface<'a>> {
    let is_local = |name: InterfaceName| name.as_str() == LOOPBACK || TUNNELS.contains(&name.as_str());
    let new = |is_named| Interface { claimants: BTreeSet::new(), is_named, expected: BTreeSet::new() };
    let mut by_name: BTreeMap<InterfaceName, Interface<'a>> = BTreeMap::new();
    for claim in claims {
        if let Some(name) = claim.interface.filter(|name| !is_local(*name)) {
            let known = by_name.entry(name).or_insert_with(|| new(true));
            known.claimants.insert(claim.name);
            known.expected.extend(&claim.expected);
        }
    }
    let mut interfaces: Vec<Interface<'a>> = by_name.into_values().collect();
    for claim in claims.iter().filter(|claim| claim.interface.is_none()) {
        let expected: BTreeSet<IpAddr> = claim.expected.iter().copied().filter(|own| !own.is_loopback()).collect();
        let mut others = expected.clone();
        for known in interfaces.iter_mut().filter(|known| !known.expected.is_disjoint(&expected)) {
            known.claimants.insert(claim.name);
            others.retain(|own| !known.expected.contains(own));
        }
        // Its other addresses may be on an interface that nothing else claims.
        if !others.is_empty() {
            interfaces.push(Interface { claimants: [claim.name].into(), expected: others, ..new(false) });
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
        // An interface that is named has addresses of the other family as well.
        assert_eq!(owners(Some("2001:db8::1")), ["a", "c"]);
    }

    #[test]
    fn named_interfaces_have_addresses_that_no_host_endpoint_expects() {
        let names: [HostEndpointName; 2] = ["a", "b"].map(Into::into);
        let expecting = |interface: Option<&str>, number: usize, expected: &[&str]| InterfaceClaim {
            name: &names[number],
            interface: interface.map(|name| name.parse().unwrap()),
            expected: expected.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let owners = |claims: &[InterfaceClaim<'_>], own: &str| -> Vec<String> {
            network_owners(claims, Some(own.parse().unwrap())).into_iter().map(ToString::to_string).collect()
        };
        let claims = [expecting(Some("eth0"), 0, &["192.0.2.1"]), expecting(None, 1, &["192.0.2.1", "192.0.2.9"])];
        assert_eq!(owners(&claims, "198.51.100.1"), ["a"]);
        assert_eq!(owners(&claims, "192.0.2.9"), ["b"]);
        assert!(owners(&claims[1..], "198.51.100.1").is_empty());
    }
}
