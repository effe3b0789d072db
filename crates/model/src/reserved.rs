//! Addresses that no workload or service endpoint can have.

use std::net::IpAddr;

/// Returns the kind of a reserved address (RFC 6890); `None` for an address that a workload can
/// have.
///
/// ```
/// use tortie_model::reserved_range;
/// assert_eq!(reserved_range([127, 0, 0, 1].into()), Some("a loopback address"));
/// assert_eq!(reserved_range([10, 0, 0, 1].into()), None);
/// ```
#[must_use]
pub fn reserved_range(address: IpAddr) -> Option<&'static str> {
    let (is_link_local, is_broadcast, is_mapped) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.is_broadcast(), false),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), false, v6.to_ipv4_mapped().is_some()),
    };
    let is_unspecified =
        address.is_unspecified() || matches!(address, IpAddr::V4(v4) if v4.octets().first() == Some(&0));
    let kinds = [
        (is_mapped, "an IPv4-mapped address"),
        (is_unspecified, "an unspecified address"),
        (address.is_loopback(), "a loopback address"),
        (is_link_local, "a link-local address"),
        (address.is_multicast(), "a multicast address"),
        (is_broadcast, "the broadcast address"),
    ];
    kinds.into_iter().find_map(|(is_kind, name)| is_kind.then_some(name))
}
