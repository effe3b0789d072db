//! Parameters of verdicts besides policies and endpoints.

use tortie_model::{Direction, Family, Protocol};

use crate::answer::{Guard, Layer};
use crate::failsafe::FailsafePort;
use crate::packet::Packet;

/// Parameters of verdicts besides policies and endpoints. Names in backquotes are Felix parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Connections to the host that no policy can deny, `FailsafeInboundHostPorts`.
    pub failsafe_inbound: Vec<FailsafePort>,
    /// Connections from the host that no policy can deny, `FailsafeOutboundHostPorts`.
    pub failsafe_outbound: Vec<FailsafePort>,
    /// Action on packets from a workload to the host that its egress policy allows,
    /// `DefaultEndpointToHostAction`.
    pub endpoint_to_host: EndpointToHost,
    /// The UDP port of VXLAN, `VXLANPort`.
    pub vxlan_port: u16,
    /// Whether workloads may send VXLAN packets, `AllowVXLANPacketsFromWorkloads`.
    pub vxlan_from_workloads: bool,
    /// Whether workloads may send IP-in-IP packets, `AllowIPIPPacketsFromWorkloads`.
    pub ipip_from_workloads: bool,
}

impl Default for Settings {
    /// Returns Felix's defaults, but no failsafe ports.
    fn default() -> Self {
        Self {
            failsafe_inbound: Vec::new(),
            failsafe_outbound: Vec::new(),
            endpoint_to_host: EndpointToHost::Deny,
            vxlan_port: 4789,
            vxlan_from_workloads: false,
            ipip_from_workloads: false,
        }
    }
}

impl Settings {
    /// Returns the failsafe port that the packet is for, or before conntrack also one that it
    /// answers. `None` for [`Layer::Forward`], which has no failsafe ports.
    #[must_use]
    pub fn failsafe(&self, layer: Layer, direction: Direction, packet: &Packet) -> Option<FailsafePort> {
        let inbound = direction == Direction::Ingress;
        let (ours, answered) = if inbound {
            (&self.failsafe_inbound, &self.failsafe_outbound)
        } else {
            (&self.failsafe_outbound, &self.failsafe_inbound)
        };
        let answered = || answered.iter().find(|port| port.is_answered_by(inbound, packet));
        let found = match layer {
            Layer::Forward => None,
            Layer::Untracked => ours.iter().find(|port| port.is_for(inbound, packet)).or_else(answered),
            Layer::Normal | Layer::PreDnat => ours.iter().find(|port| port.is_for(inbound, packet)),
        };
        found.copied()
    }

    /// Returns the enabled checks of packets of workloads before their policies, in order, each
    /// with whether it denies this packet. Without these checks, tunnels could carry any traffic
    /// around policy.
    pub fn guards(&self, packet: &Packet) -> impl Iterator<Item = (Guard, bool)> + use<> {
        const IPIP: u8 = 4;
        let is_vxlan =
            packet.protocol() == Protocol::UDP.number() && packet.destination_port() == Some(self.vxlan_port);
        let guards = [
            (Guard::Vxlan, self.vxlan_from_workloads, is_vxlan),
            (Guard::IpIp, self.ipip_from_workloads, packet.protocol() == IPIP),
        ];
        guards.into_iter().filter(|(_, is_off, _)| !is_off).map(|(guard, _, matched)| (guard, matched))
    }
}

/// Action on packets from a workload to the host that its egress policy allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndpointToHost {
    /// They reach the host.
    Allow,
    /// They do not.
    Deny,
    /// Rules of other programs decide.
    Undecided,
}

/// Reports whether a packet is an `ICMPv6` message that the host must receive to act as a router,
/// regardless of policy: multicast listener query, report and done, router solicitation, neighbour
/// solicitation and advertisement (RFC 2710, RFC 4861).
pub(crate) fn is_router_icmpv6(packet: &Packet) -> bool {
    let crate::Payload::Icmp { icmp_type, .. } = packet.payload() else { return false };
    packet.family() == Family::V6
        && packet.protocol() == Protocol::ICMPV6.number()
        && matches!(icmp_type, 130 | 131 | 132 | 133 | 135 | 136)
}
