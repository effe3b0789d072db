//! Addresses that an answer cannot open.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::{AHashMap, AHashSet};
use tortie_net::{Cidr, DomainName, Family};

use crate::types::ClusterAddresses;

/// The reason for which an address of an answer is not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `0.0.0.0/8`, which Linux connects to the host itself, and `::`.
    Unspecified,
    /// `169.254.0.0/16`, which has the metadata services of clouds, and `fe80::/10`.
    LinkLocal,
    /// `fd00:ec2::254`, the metadata service of AWS over IPv6.
    Metadata,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// An address of a pool or of a node, for a name that may not have it, or from a record whose
    /// owner may not.
    Cluster,
    /// The answer alone exceeds a limit, would evict more addresses than an answer may, or other
    /// scopes have taken the limit of the node.
    NoRoom,
}

impl Refusal {
    /// All reasons, in order.
    pub const ALL: [Self; 8] = [
        Self::Loopback,
        Self::Unspecified,
        Self::LinkLocal,
        Self::Metadata,
        Self::Multicast,
        Self::Broadcast,
        Self::Cluster,
        Self::NoRoom,
    ];

    /// Returns the reason as one word, for the label of a metric.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Unspecified => "unspecified",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Cluster => "cluster",
            Self::NoRoom => "no-room",
        }
    }
}

/// The metadata service of AWS over IPv6.
const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Addresses of pools and nodes, and the domain whose names may have them.
///
/// A name has them only from records whose owner is below the domain, too, with all aliases
/// between: a Service of type `ExternalName` leads from the domain to a name outside, whose owner
/// could otherwise open any pod or node.
///
/// A lookup costs one probe for each prefix length in use, whatever the number of networks.
///
/// ```
/// use tortie_dns::Cluster;
/// let nets = ["10.244.0.0/16".parse()?, "192.0.2.7/32".parse()?];
/// let cluster = Cluster::new(nets, Some("cluster.local".parse()?));
/// assert!(cluster.contains("10.244.3.4".parse()?));
/// assert!(!cluster.contains("192.0.2.8".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    nets: AHashMap<(Family, u8), AHashSet<Cidr>>,
    domain: Option<DomainName>,
}

impl Cluster {
    /// Makes a value from the networks of pools, the addresses of nodes, and the cluster domain.
    #[must_use]
    pub fn new(nets: impl IntoIterator<Item = Cidr>, domain: Option<DomainName>) -> Self {
        let mut lengths: AHashMap<_, AHashSet<_>> = AHashMap::default();
        for net in nets {
            lengths.entry((net.family(), net.prefix_len())).or_default().insert(net.masked());
        }
        Self { nets: lengths, domain }
    }

    /// Reports whether an address belongs to a pool or a node.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let family = Family::of(address);
        self.nets.iter().any(|((of, length), nets)| {
            *of == family && Cidr::new(address, *length).is_some_and(|net| nets.contains(&net.masked()))
        })
    }

    /// Reports whether a name is below the cluster domain.
    pub(crate) fn owns(&self, name: &DomainName) -> bool {
        self.domain.as_ref().is_some_and(|domain| name.is_below(domain))
    }

    pub(crate) fn domain(&self) -> Option<&DomainName> {
        self.domain.as_ref()
    }

    /// Returns the reason for which no name may open an address, or not a name that the cluster
    /// domain does not own together with the owner of the address and all names between
    /// (`is_inside`).
    pub(crate) fn refusal(&self, is_inside: bool, address: IpAddr, cluster: ClusterAddresses) -> Option<Refusal> {
        let address = embedded(address);
        if let Some(refusal) = of_any_name(address) {
            return Some(refusal);
        }
        let may_have = match cluster {
            ClusterAddresses::Always => true,
            ClusterAddresses::Never => false,
            ClusterAddresses::ClusterDomain => is_inside,
        };
        (!may_have && self.contains(address)).then_some(Refusal::Cluster)
    }
}

/// Returns the IPv4 address in an IPv4-mapped or NAT64 address (RFC 6052, `64:ff9b::/96`), any
/// other address as it is.
fn embedded(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
                let [.., a, b, c, d] = v6.octets();
                Ipv4Addr::new(a, b, c, d).into()
            }
            _ => v6.to_canonical(),
        },
        IpAddr::V4(_) => address,
    }
}

/// Returns the reason for which no name may have an address.
fn of_any_name(address: IpAddr) -> Option<Refusal> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let is_unspecified = match address {
        IpAddr::V4(v4) => matches!(v4.octets(), [0, ..]),
        IpAddr::V6(v6) => v6.is_unspecified(),
    };
    match address {
        _ if is_unspecified => Some(Refusal::Unspecified),
        _ if address.is_loopback() => Some(Refusal::Loopback),
        _ if is_link_local => Some(Refusal::LinkLocal),
        _ if address == IpAddr::V6(METADATA) => Some(Refusal::Metadata),
        _ if address.is_multicast() => Some(Refusal::Multicast),
        _ if address == IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Refusal::Broadcast),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(cluster: &Cluster, name: &str, address: &str, setting: ClusterAddresses) -> Option<Refusal> {
        cluster.refusal(cluster.owns(&name.parse().unwrap()), address.parse().unwrap(), setting)
    }

    #[test]
    fn no_name_opens_special_addresses() {
        let cluster = Cluster::default();
        let cases = [
            ("127.0.0.1", Refusal::Loopback),
            ("127.255.0.9", Refusal::Loopback),
            ("::1", Refusal::Loopback),
            ("0.0.0.0", Refusal::Unspecified),
            ("0.1.2.3", Refusal::Unspecified),
            ("::", Refusal::Unspecified),
            ("169.254.169.254", Refusal::LinkLocal),
            ("fe80::1", Refusal::LinkLocal),
            ("febf::1", Refusal::LinkLocal),
            ("fd00:ec2::254", Refusal::Metadata),
            ("224.0.0.1", Refusal::Multicast),
            ("239.255.255.255", Refusal::Multicast),
            ("ff02::1", Refusal::Multicast),
            ("255.255.255.255", Refusal::Broadcast),
            ("::ffff:127.0.0.1", Refusal::Loopback),
            ("::ffff:169.254.169.254", Refusal::LinkLocal),
            ("64:ff9b::169.254.169.254", Refusal::LinkLocal),
            ("64:ff9b::7f00:1", Refusal::Loopback),
            ("64:ff9b::", Refusal::Unspecified),
        ];
        for (address, expected) in cases {
            for setting in [ClusterAddresses::Always, ClusterAddresses::ClusterDomain, ClusterAddresses::Never] {
                assert_eq!(refusal(&cluster, "a.io", address, setting), Some(expected), "{address}");
            }
        }
        for address in
            ["1.1.1.1", "255.255.255.254", "128.0.0.1", "fd00:ec2::255", "64:ff9b::1.1.1.1", "2000::", "fec0::1"]
        {
            assert_eq!(refusal(&cluster, "a.io", address, ClusterAddresses::Never), None, "{address}");
        }
    }

    #[test]
    fn names_of_the_cluster_have_its_addresses() {
        let nets = ["10.244.0.0/16", "192.0.2.7/32", "fd10::/48", "fd20::7/128"].map(|net| net.parse().unwrap());
        let cluster = Cluster::new(nets, Some("cluster.local".parse().unwrap()));
        let judge = |name, address, setting| refusal(&cluster, name, address, setting);
        let inside = ["10.244.0.0", "10.244.255.255", "192.0.2.7", "fd10::1", "fd20::7", "::ffff:10.244.1.1"];
        for address in inside.into_iter().chain(["64:ff9b::192.0.2.7"]) {
            let (outer, inner) = ("a.io", "db.ns.svc.cluster.local");
            assert_eq!(judge(outer, address, ClusterAddresses::ClusterDomain), Some(Refusal::Cluster), "{address}");
            assert_eq!(judge(inner, address, ClusterAddresses::ClusterDomain), None, "{address}");
            assert_eq!(judge("cluster.local", address, ClusterAddresses::ClusterDomain), Some(Refusal::Cluster));
            assert_eq!(judge(outer, address, ClusterAddresses::Always), None, "{address}");
            assert_eq!(judge(inner, address, ClusterAddresses::Never), Some(Refusal::Cluster), "{address}");
        }
        for address in ["10.245.0.0", "10.243.255.255", "192.0.2.6", "fd10:0:1::", "fd20::8"] {
            assert_eq!(judge("a.io", address, ClusterAddresses::Never), None, "{address}");
        }
        let without = Cluster::new(["10.0.0.0/8".parse().unwrap()], None);
        let name = "a.cluster.local";
        assert_eq!(refusal(&without, name, "10.0.0.1", ClusterAddresses::ClusterDomain), Some(Refusal::Cluster));
    }
}
