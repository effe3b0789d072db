//! Match of a rule against a packet.

use std::net::IpAddr;

use tortie_model::{
    Cidr, EntityMatch, Family, IpSetId,
    desired::{Members, RuleView},
};

use super::{DesiredState, Missing};
use crate::packet::{Packet, Payload, in_network};

/// One end of a packet.
#[derive(Clone, Copy)]
struct Side {
    address: IpAddr,
    protocol: u8,
    port: Option<u16>,
}

impl DesiredState {
    /// Reports whether all conditions of a rule hold; see [`tortie_model::desired::RuleSets`] for
    /// the combination of sets.
    pub(super) fn rule_matches(&self, view: RuleView<'_>, packet: &Packet) -> Result<bool, Missing> {
        let (rule, sets) = (view.rule, view.sets);
        let source = Side { address: packet.source, protocol: packet.protocol, port: packet.source_port() };
        let destination =
            Side { address: packet.destination, protocol: packet.protocol, port: packet.destination_port() };
        let version = view.ip_version().is_none_or(|family| (family == Family::V4) == packet.is_ipv4());
        let protocol = rule.protocol.is_none_or(|protocol| protocol.number() == packet.protocol)
            && rule.extras.not_protocol.is_none_or(|protocol| protocol.number() != packet.protocol);
        // Nothing is learned here.
        Ok(!view.is_by_domains_only()
            && version
            && protocol
            && icmp_matches(rule, packet)
            && nets_match(&rule.source, source.address)
            && nets_match(&rule.destination, destination.address)
            && self.ports_match(&rule.source, &sets.src_named_ports, &sets.not_src_named_ports, source)?
            && self.ports_match(&rule.destination, &sets.dst_named_ports, &sets.not_dst_named_ports, destination)?
            && self.in_all(&sets.src, source)?
            && self.in_all(&sets.dst, destination)?
            && self.in_all(&sets.dst_ip_ports, destination)?
            && !self.in_any(&sets.not_src, source)?
            && !self.in_any(&sets.not_dst, destination)?)
    }

    fn ports_match(
        &self,
        side: &EntityMatch,
        named: &[IpSetId],
        not_named: &[IpSetId],
        end: Side,
    ) -> Result<bool, Missing> {
        let listed = |(first, last): (u16, u16)| end.port.is_some_and(|port| first <= port && port <= last);
        let any_port = named.is_empty() && side.numeric_ports().next().is_none();
        let wanted = any_port || side.numeric_ports().any(listed) || self.in_any(named, end)?;
        Ok(wanted && !side.not_numeric_ports().any(listed) && !self.in_any(not_named, end)?)
    }

    fn in_all(&self, ids: &[IpSetId], end: Side) -> Result<bool, Missing> {
        ids.iter().try_fold(true, |so_far, id| Ok(so_far && self.in_set(id, end)?))
    }

    fn in_any(&self, ids: &[IpSetId], end: Side) -> Result<bool, Missing> {
        ids.iter().try_fold(false, |so_far, id| Ok(so_far || self.in_set(id, end)?))
    }

    fn in_set(&self, id: &IpSetId, end: Side) -> Result<bool, Missing> {
        Ok(match self.ip_sets.get(id).ok_or_else(|| Missing::IpSet(id.clone()))? {
            Members::Nets(nets) => nets.iter().any(|net| contains(*net, end.address)),
            Members::Domains(_) => false,
            Members::IpPorts(members) => members.iter().any(|member| {
                let protocol = tortie_model::NamedProtocol::from(member.protocol()).number();
                member.address() == end.address && protocol == end.protocol && Some(member.port()) == end.port
            }),
        })
    }
}

/// Reports whether the networks of a side match. A list with networks of only the other family
/// restricts the rule to that family, negated or not (`felix/rules/policy.go`, `filterNets`).
fn nets_match(side: &EntityMatch, address: IpAddr) -> bool {
    let for_this_family =
        |nets: &[Cidr]| nets.is_empty() || nets.iter().any(|net| net.address().is_ipv4() == address.is_ipv4());
    for_this_family(&side.nets)
        && for_this_family(&side.extras.not_nets)
        && (side.nets.is_empty() || side.nets.iter().any(|net| contains(*net, address)))
        && !side.extras.not_nets.iter().any(|net| contains(*net, address))
}

fn contains(net: Cidr, address: IpAddr) -> bool {
    in_network(address, net.address(), net.prefix_len())
}

fn icmp_matches(rule: &tortie_model::Rule, packet: &Packet) -> bool {
    let is = |wanted_kind: Option<u8>, wanted_code: Option<u8>| match packet.payload {
        Payload::Icmp { kind, code } => {
            wanted_kind.is_none_or(|wanted| wanted == kind) && wanted_code.is_none_or(|wanted| wanted == code)
        }
        Payload::Ports { .. } | Payload::Opaque => false,
    };
    let wanted = rule.extras.icmp_type.is_none() || is(rule.extras.icmp_type, rule.extras.icmp_code);
    let unwanted = rule.extras.not_icmp_type.is_some() && is(rule.extras.not_icmp_type, rule.extras.not_icmp_code);
    wanted && !unwanted
}
