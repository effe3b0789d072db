//! Networks with addresses that no longer network covers, and addresses that no endpoint has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_model::{Cidr, Family};

/// The unspecified address of a family, which no endpoint has.
pub(crate) fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Reports for each network whether it has addresses that are in none of the others that it covers.
/// The networks must be in order, each before the networks that it covers, and without duplicates.
pub(crate) fn not_filled(nets: &[Cidr]) -> Vec<bool> {
    // Addresses, of all of them for an IPv6 network of length 0 one less.
    let size = |net: Cidr| {
        let bits = match net.family() {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        1_u128.checked_shl(bits - u32::from(net.prefix_len())).unwrap_or(u128::MAX)
    };
    let mut covered = vec![0_u128; nets.len()];
    let mut enclosing: Vec<(usize, Cidr)> = Vec::new();
    for (place, net) in nets.iter().enumerate() {
        while enclosing.last().is_some_and(|(_, outer)| !outer.contains(net.address())) {
            enclosing.pop();
        }
        if let Some(covered) = enclosing.last().and_then(|(outer, _)| covered.get_mut(*outer)) {
            *covered = covered.saturating_add(size(*net));
        }
        enclosing.push((place, *net));
    }
    nets.iter().zip(covered).map(|(net, covered)| covered < size(*net)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(nets: &[&str]) -> Vec<usize> {
        let nets: Vec<Cidr> = nets.iter().filter_map(|net| net.parse().ok()).collect();
        let kept = not_filled(&nets);
        (0..nets.len()).filter(|place| !kept[*place]).collect()
    }

    #[test]
    fn covered_networks_are_reported() {
        assert_eq!(filled(&["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"]), [0]);
        assert_eq!(filled(&["::/0", "::/1", "8000::/1"]), [0]);
        assert_eq!(filled(&["10.0.0.0/30", "10.0.0.0/31", "10.0.0.2/32", "10.0.0.3/32"]), [0]);
        assert_eq!(filled(&["10.0.0.0/30", "10.0.0.0/31", "10.0.0.0/32", "10.0.0.1/32", "10.0.0.2/32"]), [1]);
        assert_eq!(filled(&["10.0.0.0/31", "10.0.0.4/31", "10.0.0.5/32"]), [0_usize; 0]);
    }
}
