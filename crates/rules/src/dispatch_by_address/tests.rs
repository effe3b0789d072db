use std::net::IpAddr;

use proptest::prelude::*;
use tortie_iptables::{Action, Chain, InterfaceName, Match, Side, matches_text};
use tortie_model::{Cidr, Family};

use super::{WorkloadAddress, WorkloadAttachment};
use crate::{Renderer, RulesConfig, WorkloadDispatch};

fn name(text: &str) -> InterfaceName {
    InterfaceName::new(text).unwrap()
}

fn renderer() -> Renderer {
    let prefixes = vec![name("veth"), name("cni")];
    Renderer::new(RulesConfig {
        workloads: WorkloadDispatch::Address,
        workload_prefixes: prefixes,
        ..RulesConfig::default()
    })
}

/// The fields of a packet that these chains match.
#[derive(Clone, Copy, Debug)]
struct PacketFields {
    address: IpAddr,
    interface: InterfaceName,
    port: Option<InterfaceName>,
}

fn passes(question: &Match, side: Side, fields: PacketFields) -> bool {
    match question {
        Match::Net { side: of, net, negated: false } => *of == side && net.cidr().contains(fields.address),
        Match::InInterface(pattern) => side == Side::Source && pattern.matches(fields.interface.as_str()),
        Match::OutInterface(pattern) => side == Side::Destination && pattern.matches(fields.interface.as_str()),
        Match::InBridgePort(port) => fields.port == Some(*port),
        // None of these packets is of ICMP.
        Match::Protocol { .. } | Match::Icmp { .. } | Match::Bridged => false,
        other => panic!("unexpected {other:?}"),
    }
}

/// Returns the end of a packet's path, following gotos from the root chain.
fn walk(chains: &[Chain], chain: &str, side: Side, fields: PacketFields) -> String {
    let Some(chain) = chains.iter().find(|known| known.name.as_str() == chain) else { return chain.to_owned() };
    let rule = chain.rules.iter().find(|rule| rule.matches.iter().all(|question| passes(question, side, fields)));
    match rule.and_then(|rule| rule.action.as_ref()) {
        Some(Action::Goto(target)) => walk(chains, target.as_str(), side, fields),
        Some(Action::Drop) => "denied".to_owned(),
        Some(other) => panic!("unexpected {other:?}"),
        None => "left alone".to_owned(),
    }
}

fn addresses() -> impl Strategy<Value = Vec<WorkloadAddress>> {
    let place = proptest::option::of((0..4u8, proptest::option::of(0..3u8)));
    let one = (0..60u8, any::<bool>(), place);
    proptest::collection::vec(one, 0..20).prop_map(|all| {
        let mut found: Vec<WorkloadAddress> = Vec::new();
        for (index, (last, is_v6, place)) in all.into_iter().enumerate() {
            let address: IpAddr =
                if is_v6 { format!("fd00::{last:x}").parse().unwrap() } else { [10, 0, 0, last].into() };
            let net = Cidr::host(address);
            if found.iter().all(|other| other.net != net) {
                let place = place.map(|(interface, port)| WorkloadAttachment {
                    interface: name(["veth1", "veth2", "cni0", "lxc7"][usize::from(interface)]),
                    port: port.map(|port| name(&format!("p{port}"))),
                });
                found.push(WorkloadAddress { net, endpoint: name(&format!("cali{index}")), place });
            }
        }
        found
    })
}

proptest! {
    #[test]
    fn an_address_reaches_its_endpoint_from_its_own_interface_only(
        known in addresses(), last in 0..60u8, is_v6: bool, interface in 0..5usize, port in 0..4u8,
    ) {
        let address: IpAddr = if is_v6 { format!("fd00::{last:x}").parse().unwrap() } else { [10, 0, 0, last].into() };
        let interface = name(["veth1", "veth2", "cni0", "lxc7", "eth0"][interface]);
        let port = (port < 3).then(|| name(&format!("p{port}")));
        let fields = PacketFields { address, interface, port };
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let chains = renderer().workload_dispatch_by_address(family, known.iter().copied());
        let owner = known.iter().find(|known| known.net == Cidr::host(address));
        let looks_like_workload = interface.as_str().starts_with("veth") || interface.as_str().starts_with("cni");
        for (side, root, prefix) in
            [(Side::Source, "cali-from-wl-dispatch", "cali-fw-"), (Side::Destination, "cali-to-wl-dispatch", "cali-tw-")]
        {
            let expected = match owner {
                None if looks_like_workload => "denied".to_owned(),
                None => "left alone".to_owned(),
                Some(WorkloadAddress { endpoint, place: Some(place), .. })
                    if place.interface == interface
                        && (side == Side::Destination || place.port.is_none() || place.port == port) =>
                {
                    format!("{prefix}{endpoint}")
                }
                Some(_) => "denied".to_owned(),
            };
            prop_assert_eq!(walk(&chains, root, side, fields), expected, "{:?} {:?}", side, fields);
        }
    }
}

#[test]
fn neighbour_discovery_between_bridge_ports_is_allowed_for_ipv6_only() {
    let text = |family| {
        let chains = renderer().workload_dispatch_by_address(family, []);
        chains
            .iter()
            .flat_map(|chain| &chain.rules)
            .map(|rule| matches_text(&rule.matches))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert!(!text(Family::V4).contains("physdev"), "{}", text(Family::V4));
    assert_eq!(text(Family::V6).matches("--icmpv6-type 135 -m physdev --physdev-is-bridged").count(), 2);
}
