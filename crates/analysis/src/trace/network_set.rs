//! Addresses of a network set, as far as policies distinguish them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_model::{Cidr, Family, Key, NetworkSetName, Rule, Update};

use crate::trace::cluster::Cluster;
use crate::trace::connection::Place;

/// Network, completely or partly in a network set, whose addresses no policy distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetNetwork {
    /// The network. It stands for its addresses that are neither in a longer network of the same
    /// set nor in the cluster.
    pub net: Cidr,
    /// One of those addresses.
    pub example: IpAddr,
}

impl Cluster {
    /// Returns the networks of a network set in a family, and the longer networks in them that
    /// policies, services or other network sets name. The first address of each stands for all.
    /// `None` if the network set does not exist.
    ///
    /// Networks precede those inside them. A network is left out if all its addresses are in others
    /// or in the cluster.
    #[must_use]
    pub fn networks_of_set(&self, name: &NetworkSetName, family: Family) -> Option<Vec<SetNetwork>> {
        let Some(Update::NetworkSet(_, Some(set))) = self.object(&Key::NetworkSet(name.clone())) else { return None };
        let of_family = |net: &Cidr| net.family() == family;
        let roots: BTreeSet<Cidr> = set.nets.iter().map(Cidr::masked).filter(of_family).collect();
        let named = self.objects().flat_map(named_networks).map(Cidr::masked).filter(of_family);
        let mut nets: Vec<Cidr> = named.filter(|net| is_within(&roots, *net)).chain(roots.iter().copied()).collect();
        // Networks precede those inside them.
        nets.sort_unstable_by_key(|net| (bits(net.address()), net.prefix_len()));
        nets.dedup();
        let mut networks = Vec::new();
        for (index, net) in nets.iter().enumerate() {
            let inside = nets.iter().skip(index + 1).take_while(|inner| net.contains(inner.address()));
            if let Some(example) = self.address_of_its_own(*net, inside.copied()) {
                networks.push(SetNetwork { net: *net, example });
            }
        }
        Some(networks)
    }

    /// Returns the first address of a network that is neither in one of the networks inside it,
    /// which are sorted, nor in the cluster.
    fn address_of_its_own(&self, net: Cidr, inside: impl Iterator<Item = Cidr>) -> Option<IpAddr> {
        let last = bits(net.last_host().address());
        let mut next = bits(net.address());
        let mut inside = inside.peekable();
        loop {
            while let Some(inner) = inside.next_if(|inner| bits(inner.address()) <= next) {
                next = next.max(bits(inner.last_host().address()).checked_add(1)?);
            }
            if next > last {
                return None;
            }
            let address = address(next, net.family());
            if self.place_of(address) == Place::Outside {
                return Some(address);
            }
            next = next.checked_add(1)?;
        }
    }
}

/// Reports whether this network, or one that contains it, is among these.
fn is_within(roots: &BTreeSet<Cidr>, net: Cidr) -> bool {
    (0..=net.prefix_len())
        .any(|length| Cidr::new(net.address(), length).is_some_and(|net| roots.contains(&net.masked())))
}

/// Returns the networks by which policies may distinguish addresses outside the cluster.
fn named_networks(object: &Update) -> Vec<Cidr> {
    let of_rules = |rules: &[Rule]| -> Vec<Cidr> {
        let ends = rules.iter().flat_map(|rule| [&rule.source, &rule.destination]);
        ends.flat_map(|end| end.nets.iter().chain(end.extras.not_nets.iter())).copied().collect()
    };
    match object {
        Update::Policy(_, Some(policy)) => [of_rules(&policy.inbound), of_rules(&policy.outbound)].concat(),
        Update::ProfileRules(_, Some(rules)) => [of_rules(&rules.inbound), of_rules(&rules.outbound)].concat(),
        Update::NetworkSet(_, Some(set)) => set.nets.iter().collect(),
        Update::EndpointSlice(_, Some(slice)) => slice.addresses.iter().copied().map(Cidr::host).collect(),
        _ => Vec::new(),
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(bits: u128, family: Family) -> IpAddr {
    match family {
        #[expect(clippy::cast_possible_truncation, reason = "the bits of an IPv4 address")]
        Family::V4 => Ipv4Addr::from_bits(bits as u32).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tortie_calc::GraphConfig;
    use tortie_evaluate::Settings;
    use tortie_model::{Hostname, NetworkSet, Node, NodeAddress, NodeAddressKind, Valid};

    use super::*;

    fn set(name: &str, nets: &[Cidr]) -> Update {
        let set = NetworkSet { nets: nets.iter().copied().collect(), ..NetworkSet::default() };
        Update::NetworkSet(NetworkSetName::new(name), Some(Valid::new(set).unwrap()))
    }

    fn cluster(updates: impl IntoIterator<Item = Update>) -> Cluster {
        let mut cluster = Cluster::new(GraphConfig::new(Hostname::new("")), Settings::default());
        updates.into_iter().for_each(|update| cluster.apply(update));
        cluster
    }

    fn node(address: &str) -> Update {
        let addresses = [NodeAddress { address: address.into(), kind: NodeAddressKind::InternalIp }].into();
        Update::Node(Hostname::new("n"), Some(Valid::new(Node { addresses, ..Node::default() }).unwrap()))
    }

    fn example_networks(cluster: &Cluster, family: Family) -> Vec<String> {
        let networks = cluster.networks_of_set(&NetworkSetName::new("s"), family).expect("it is there");
        networks.iter().map(|network| format!("{} {}", network.net, network.example)).collect()
    }

    #[test]
    fn networks_named_by_other_sets_are_separate() {
        let net = |text: &str| -> Cidr { text.parse().unwrap() };
        let mut cluster = cluster([
            set("s", &[net("192.0.2.7/24"), net("198.51.100.0/32"), net("2001:db8::/64")]),
            set("other", &[net("192.0.2.0/25"), net("192.0.2.64/26"), net("192.0.0.0/16"), net("203.0.113.0/24")]),
            node("192.0.2.128"),
        ]);
        assert_eq!(
            example_networks(&cluster, Family::V4),
            [
                "192.0.2.0/24 192.0.2.129",
                "192.0.2.0/25 192.0.2.0",
                "192.0.2.64/26 192.0.2.64",
                "198.51.100.0/32 198.51.100.0"
            ]
        );
        assert_eq!(example_networks(&cluster, Family::V6), ["2001:db8::/64 2001:db8::"]);
        // The networks inside a network and the cluster take all its addresses.
        cluster.apply(set("other", &[net("192.0.2.0/25"), net("192.0.2.128/25")]));
        cluster.apply(node("198.51.100.0"));
        assert_eq!(example_networks(&cluster, Family::V4), ["192.0.2.0/25 192.0.2.0", "192.0.2.128/25 192.0.2.128"]);
        assert_eq!(cluster.networks_of_set(&NetworkSetName::new("none"), Family::V4), None);
        cluster.apply(set("s", &[net("0.0.0.0/0"), net("::/0")]));
        assert_eq!(example_networks(&cluster, Family::V6), ["::/0 ::"]);
    }

    fn nets() -> impl Strategy<Value = Vec<Cidr>> {
        let net = (0..64_u32, 24..=32_u8)
            .prop_map(|(host, length)| Cidr::new(Ipv4Addr::from_bits(0xc000_0200 + host * 4).into(), length).unwrap());
        proptest::collection::vec(net, 0..6)
    }

    proptest! {
        #[test]
        fn addresses_are_in_the_same_networks_as_their_example(of_set in nets(), named in nets(), own in 0..=255_u32) {
            let own: IpAddr = Ipv4Addr::from_bits(0xc000_0200 + own).into();
            let cluster = cluster([set("s", &of_set), set("other", &named), node(&own.to_string())]);
            let networks = cluster.networks_of_set(&NetworkSetName::new("s"), Family::V4).unwrap();
            for host in 0..=255_u32 {
                let address: IpAddr = Ipv4Addr::from_bits(0xc000_0200 + host).into();
                let holding = networks.iter().filter(|network| network.net.contains(address));
                let smallest = holding.max_by_key(|network| network.net.prefix_len());
                if !of_set.iter().any(|net| net.contains(address)) {
                    prop_assert_eq!(smallest, None);
                } else if address != own {
                    let network = smallest.unwrap();
                    prop_assert_ne!(network.example, own);
                    for net in of_set.iter().chain(&named) {
                        prop_assert_eq!(net.contains(address), net.contains(network.example), "{} {}", address, net);
                    }
                }
            }
        }
    }
}
