//! MTUs of tunnels and of workloads (`ConfigureDefaultMTUs` and `determinePodMTU` of
//! `felix/dataplane/linux/int_dataplane.go`).

use crate::Config;

/// MTU that is assumed for a machine whose MTU is unknown: the smallest that clouds have.
pub const HOST_MTU_IF_UNKNOWN: u32 = 1460;

const IPIP_HEADERS: u32 = 20;
const VXLAN_HEADERS: u32 = 50;
const VXLAN_V6_HEADERS: u32 = 70;
const WIREGUARD_HEADERS: u32 = 60;
const WIREGUARD_V6_HEADERS: u32 = 80;

/// Bytes by which packets that must not be fragmented, as those of `WireGuard`, must be smaller on
/// Azure than the MTU of its machines.
const AZURE_LESS: u32 = 100;

/// The MTU of the machine and of the devices of its tunnels, whether there are any or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mtus {
    /// Of the interfaces that lead outside.
    pub host: u32,
    /// `IpInIpMtu`.
    pub ipip: u32,
    /// `VXLANMTU`.
    pub vxlan_v4: u32,
    /// `VXLANMTUV6`.
    pub vxlan_v6: u32,
    /// `WireguardMTU`.
    pub wireguard_v4: u32,
    /// `WireguardMTUV6`.
    pub wireguard_v6: u32,
}

/// Tunnels in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each exists or not")]
#[expect(clippy::exhaustive_structs, reason = "these are all there are")]
pub struct Tunnels {
    /// IP-in-IP.
    pub ipip: bool,
    /// VXLAN, IPv4.
    pub vxlan_v4: bool,
    /// VXLAN, IPv6.
    pub vxlan_v6: bool,
    /// `WireGuard`, IPv4.
    pub wireguard_v4: bool,
    /// `WireGuard`, IPv6.
    pub wireguard_v6: bool,
}

impl Mtus {
    /// Returns the configured MTUs; those that are not configured are the host's less the headers
    /// of the tunnel.
    #[must_use]
    pub fn new(config: &Config, host: u32) -> Self {
        let or_less = |configured: u32, headers: u32| match configured {
            0 => host.saturating_sub(headers),
            configured => configured,
        };
        // As in Felix, only if the hosts' packets are encrypted.
        let is_on_azure = config.on_aks && config.wireguard_host_encryption_enabled;
        let wireguard = if is_on_azure { AZURE_LESS } else { 0 };
        Self {
            host,
            ipip: or_less(config.ipip_mtu, IPIP_HEADERS),
            vxlan_v4: or_less(config.vxlan_mtu, VXLAN_HEADERS),
            vxlan_v6: or_less(config.vxlan_mtu_v6, VXLAN_V6_HEADERS),
            wireguard_v4: or_less(config.wireguard_mtu, wireguard + WIREGUARD_HEADERS),
            wireguard_v6: or_less(config.wireguard_mtu_v6, wireguard + WIREGUARD_V6_HEADERS),
        }
    }

    /// The MTU of workloads: the least of the tunnels in use, or the host's without any.
    #[must_use]
    pub fn of_workloads(&self, tunnels: Tunnels) -> u32 {
        let each = [
            (tunnels.ipip, self.ipip),
            (tunnels.vxlan_v4, self.vxlan_v4),
            (tunnels.vxlan_v6, self.vxlan_v6),
            (tunnels.wireguard_v4, self.wireguard_v4),
            (tunnels.wireguard_v6, self.wireguard_v6),
        ];
        let of_tunnels = each.into_iter().filter(|(is_there, mtu)| *is_there && *mtu != 0).map(|(_, mtu)| mtu).min();
        of_tunnels.unwrap_or(self.host)
    }
}

#[cfg(test)]
mod tests;
