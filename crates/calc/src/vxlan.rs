//! The ends of VXLAN tunnels of all nodes (`felix/calc/vxlan_resolver.go`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ahash::AHashMap;
use sha1::{Digest, Sha1};
use tortie_model::desired::{Vtep, VtepAddresses};
use tortie_model::{Cidr, Family, HostConfigKey, Hostname, Mac, Node, parse_address};

/// Changes since the last flush, by ascending node, one at the most for each.
#[derive(Debug, Default)]
pub(crate) struct VtepChanges {
    pub(crate) updated: Vec<(Hostname, Vtep)>,
    pub(crate) removed: Vec<Hostname>,
}

/// Addresses of a node's tunnel in one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    node_address: Option<IpAddr>,
    tunnel_address: Option<IpAddr>,
    /// Configured MAC address; `None` derives it from the node's name.
    mac: Option<Mac>,
}

#[derive(Debug, Default)]
struct NodeParts {
    v4: Parts,
    v6: Parts,
    /// The tunnel end that was last sent.
    sent: Option<Box<Vtep>>,
}

/// Calculates tunnel ends while they are needed. Their inputs are filed at all times.
#[derive(Debug, Default)]
pub(crate) struct VxlanResolver {
    is_wanted: bool,
    nodes: AHashMap<Hostname, NodeParts>,
    /// Nodes whose tunnel end may have changed.
    dirty: BTreeSet<Hostname>,
}

impl VxlanResolver {
    /// Sets whether tunnel ends are needed.
    pub(crate) fn set_wanted(&mut self, is_wanted: bool) {
        if is_wanted != self.is_wanted {
            self.is_wanted = is_wanted;
            self.dirty = self.nodes.keys().cloned().collect();
        }
    }

    /// Records a node; `None` removes it. Of its BGP section only the addresses count.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) {
        let address = |text: &str, family| {
            let net = text.parse::<Cidr>().ok().filter(|net| net.family() == family);
            net.map(Cidr::address)
        };
        let bgp = node.and_then(|node| node.bgp.as_ref());
        let v4 = bgp.and_then(|bgp| address(&bgp.ipv4_address, Family::V4));
        let v6 = bgp.and_then(|bgp| address(&bgp.ipv6_address, Family::V6));
        self.change(name, |node| {
            node.v4.node_address = v4;
            node.v6.node_address = v6;
        });
    }

    /// Records a parameter of a node; `None` removes it.
    pub(crate) fn on_host_config(&mut self, key: &HostConfigKey, value: Option<&str>) {
        let address = |family| value.and_then(parse_address).filter(|&address| Family::of(address) == family);
        let mac = || value.and_then(|text| text.parse().ok());
        match key.name.as_str() {
            "IPv4VXLANTunnelAddr" => self.change(&key.host, |node| node.v4.tunnel_address = address(Family::V4)),
            "IPv6VXLANTunnelAddr" => self.change(&key.host, |node| node.v6.tunnel_address = address(Family::V6)),
            "VXLANTunnelMACAddr" => self.change(&key.host, |node| node.v4.mac = mac()),
            "VXLANTunnelMACAddrV6" => self.change(&key.host, |node| node.v6.mac = mac()),
            _ => {}
        }
    }

    fn change(&mut self, name: &Hostname, change: impl FnOnce(&mut NodeParts)) {
        let node = self.nodes.entry(name.clone()).or_default();
        let old = (node.v4, node.v6);
        change(node);
        if old != (node.v4, node.v6) && self.is_wanted {
            self.dirty.insert(name.clone());
        }
        self.drop_unknown(name);
    }

    fn drop_unknown(&mut self, name: &Hostname) {
        let nothing = Parts::default();
        if self.nodes.get(name).is_some_and(|node| node.v4 == nothing && node.v6 == nothing && node.sent.is_none()) {
            self.nodes.remove(name);
        }
    }

    /// Adds the tunnel ends that have changed.
    pub(crate) fn flush(&mut self, changes: &mut VtepChanges) {
        for name in std::mem::take(&mut self.dirty) {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            let new = if self.is_wanted { vtep(&name, node) } else { None };
            if new.as_ref() != node.sent.as_deref() {
                node.sent = new.clone().map(Box::new);
                match new {
                    Some(vtep) => changes.updated.push((name.clone(), vtep)),
                    None => changes.removed.push(name.clone()),
                }
            }
            self.drop_unknown(&name);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.dirty.is_empty()
    }
}

/// Returns the families that are complete; `None` if none is.
fn vtep(name: &Hostname, node: &NodeParts) -> Option<Vtep> {
    let of_family = |parts: Parts, suffix: &str| {
        Some(VtepAddresses {
            tunnel: parts.tunnel_address?,
            parent: parts.node_address?,
            mac: parts.mac.unwrap_or_else(|| derived_mac(name, suffix)),
        })
    };
    let vtep = Vtep { v4: of_family(node.v4, ""), v6: of_family(node.v6, "-v6") };
    (vtep.v4.is_some() || vtep.v6.is_some()).then_some(vtep)
}

/// Returns the MAC address that a node gives its tunnel interface. Other nodes can calculate it.
fn derived_mac(name: &Hostname, suffix: &str) -> Mac {
    let digest = Sha1::new().chain_update(name.as_str()).chain_update(suffix).finalize();
    let [a, b, c, d, e, ..] = <[u8; 20]>::from(digest);
    Mac([b'f', a, b, c, d, e])
}

#[cfg(test)]
mod tests;
