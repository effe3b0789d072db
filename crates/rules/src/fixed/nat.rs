//! `nat`: floating addresses, masquerading of pools, and of the host's own packets into tunnels.

use std::net::{IpAddr, Ipv4Addr};

use tortie_model::{Cidr, Family};
use tortie_netfilter::{Action, Chain, InterfaceName, Matches, PortList, PortRange, Protocol, Rule};

use super::protocol::UDP;
use crate::names::chain;
use crate::renderer::Renderer;

const IPIP_DEVICE: InterfaceName = InterfaceName::from_static("tunl0");
const VXLAN_DEVICE_V4: InterfaceName = InterfaceName::from_static("vxlan.calico");
const VXLAN_DEVICE_V6: InterfaceName = InterfaceName::from_static("vxlan-v6.calico");

impl Renderer {
    pub(super) fn nat_chains(&self, family: Family) -> Vec<Chain> {
        let to_fip = || Rule::new(Action::Jump(chain::FIP_DNAT));
        let prerouting = [to_fip()].into_iter().chain(self.openstack_metadata(family)).collect();
        vec![
            Chain::new(chain::PREROUTING, prerouting),
            self.nat_postrouting(family),
            Chain::new(chain::OUTPUT, vec![to_fip()]),
        ]
    }

    fn openstack_metadata(&self, family: Family) -> Option<Rule> {
        let (addr, port) = self.config().openstack?.metadata?;
        if family == Family::V6 {
            return None;
        }
        let well_known = Cidr::host(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)));
        let matches =
            Matches::new().protocol(Protocol::TCP).destination_ports(PortList::single(80)).destination(well_known);
        Some(Rule::when(matches, Action::Dnat { addr: addr.into(), port: Some(port) }))
    }

    fn nat_postrouting(&self, family: Family) -> Chain {
        let mut rules = vec![Rule::new(Action::Jump(chain::FIP_SNAT)), Rule::new(Action::Jump(chain::NAT_OUTGOING))];
        // The reply to a packet that was given the VXLAN port as source would look like VXLAN, and
        // be dropped.
        let off_vxlan_port =
            self.config().vxlan(family).enabled.then(|| wider_side_of(self.config().vxlan_port)).flatten();
        for device in self.tunnel_devices(family) {
            // A local source that is not the tunnel's own: the kernel chose it before the
            // destination was translated.
            let wrong_source =
                |matches: Matches| matches.out_interface(device).source_is_not_of_out_interface().source_is_local();
            if let Some(ports) = off_vxlan_port {
                let udp = wrong_source(Matches::new().protocol(UDP));
                rules.push(Rule::when(udp, Action::Masquerade { ports: Some(ports) }));
            }
            rules.push(Rule::when(wrong_source(Matches::new()), Action::Masquerade { ports: None }));
        }
        Chain::new(chain::POSTROUTING, rules)
    }

    /// Returns the tunnel devices whose address can replace a wrong source.
    fn tunnel_devices(&self, family: Family) -> impl Iterator<Item = InterfaceName> {
        let config = self.config();
        let ready = |tunnel: crate::TunnelConfig| tunnel.enabled && tunnel.has_address;
        let vxlan_device = match family {
            Family::V4 => VXLAN_DEVICE_V4,
            Family::V6 => VXLAN_DEVICE_V6,
        };
        let wireguard = config.wireguard.tunnel(family);
        [
            (family == Family::V4 && ready(config.ipip)).then_some(IPIP_DEVICE),
            ready(config.vxlan(family)).then_some(vxlan_device),
            wireguard.enabled.then_some(wireguard.interface),
        ]
        .into_iter()
        .flatten()
    }
}

/// Returns the unprivileged ports below or above `port`, whichever are more; `None` for port 0.
pub(super) fn wider_side_of(port: u16) -> Option<PortRange> {
    const LOWEST: u16 = 1024;
    if port == 0 {
        return None;
    }
    let below = i32::from(port) - i32::from(LOWEST);
    let above = i32::from(u16::MAX) - i32::from(port);
    if below >= above { PortRange::new(LOWEST, port - 1) } else { PortRange::new(port + 1, u16::MAX) }
}
