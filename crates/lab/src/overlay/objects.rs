//! Objects for nodes, pools and IPAM blocks.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{
    cases::{Cluster, ClusterPod},
    pods::node_name,
};

/// Encapsulation of packets between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// Always in VXLAN.
    Always,
    /// In VXLAN between subnets only.
    CrossSubnet,
    /// Never.
    Never,
}

/// Returns the addresses of a node's tunnels, in a separate network.
#[must_use]
pub fn tunnel_addresses(number: usize) -> [IpAddr; 2] {
    let last = u16::try_from(number + 1).unwrap_or(u16::MAX);
    let v4 = Ipv4Addr::from([10, 67, last.to_be_bytes()[0], last.to_be_bytes()[1]]);
    [v4.into(), Ipv6Addr::new(0xfd00, 0x67, 0, 0, 0, 0, 0, last).into()]
}

/// Returns a node with Calico's annotations, and its name as label `kubernetes.io/hostname`.
#[must_use]
pub fn node(name: &str, addresses: [IpAddr; 2], tunnels: [IpAddr; 2]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name },
            "annotations": {
                "projectcalico.org/IPv4Address": format!("{}/24", addresses[0]),
                "projectcalico.org/IPv6Address": format!("{}/64", addresses[1]),
                "projectcalico.org/IPv4VXLANTunnelAddr": tunnels[0],
                "projectcalico.org/IPv6VXLANTunnelAddr": tunnels[1],
            },
        },
        "spec": {},
    })
}

/// Returns a pool without outgoing NAT.
#[must_use]
pub fn pool(name: &str, cidr: &str, encapsulation: Encapsulation) -> Value {
    json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPPool",
        "metadata": { "name": name },
        "spec": { "cidr": cidr, "vxlanMode": format!("{encapsulation:?}"), "ipipMode": "Never", "natOutgoing": false },
    })
}

/// Returns an IPAM block with affinity to a node, and its allocated addresses with the nodes that
/// use them.
#[must_use]
pub fn block(cidr: IpNet, affinity: &str, allocated: &[(IpAddr, String)]) -> Value {
    let size = 1_usize << (cidr.max_prefix_len() - cidr.prefix_len());
    let mut allocations = vec![Value::Null; size];
    let mut attributes = Vec::new();
    for (address, node) in allocated {
        if let Some(slot) = allocations.get_mut(ordinal(cidr, *address)) {
            *slot = attributes.len().into();
            attributes.push(json!({ "handle_id": address.to_string(), "secondary": { "node": node } }));
        }
    }
    let unallocated: Vec<usize> = (0..size).filter(|ordinal| allocations[*ordinal].is_null()).collect();
    json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMBlock",
        "metadata": { "name": cidr.to_string().replace(['.', ':', '/'], "-") },
        "spec": {
            "cidr": cidr.to_string(),
            "affinity": format!("host:{affinity}"),
            "allocations": allocations,
            "attributes": attributes,
            "unallocated": unallocated,
            "strictAffinity": false,
            "deleted": false,
        },
    })
}

/// Returns the IPAM blocks for the addresses of all pods. Each has affinity to the node of its
/// first pod; other nodes borrow.
#[must_use]
pub fn blocks(cluster: &Cluster) -> Vec<Value> {
    let of_pod =
        |pod: &ClusterPod| pod.addresses.iter().map(|address| (*address, node_name(pod.node))).collect::<Vec<_>>();
    blocks_of(cluster.pods.iter().flat_map(of_pod))
}

/// Returns the IPAM blocks for these addresses and their nodes. Each has affinity to the node of
/// its first address.
#[must_use]
pub fn blocks_of(addresses: impl IntoIterator<Item = (IpAddr, String)>) -> Vec<Value> {
    let mut blocks: BTreeMap<IpNet, Vec<(IpAddr, String)>> = BTreeMap::new();
    for (address, node) in addresses {
        let length = if address.is_ipv4() { 26 } else { 122 };
        if let Ok(cidr) = IpNet::new(address, length) {
            blocks.entry(cidr.trunc()).or_default().push((address, node));
        }
    }
    blocks.into_iter().map(|(cidr, allocated)| block(cidr, &allocated[0].1, &allocated)).collect()
}

/// Returns the offset of an address in the network.
fn ordinal(cidr: IpNet, address: IpAddr) -> usize {
    let distance = match (cidr.network(), address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => u128::from(u32::from(address).wrapping_sub(first.into())),
        (IpAddr::V6(first), IpAddr::V6(address)) => u128::from(address).wrapping_sub(first.into()),
        _ => u128::MAX,
    };
    usize::try_from(distance).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::block;

    #[test]
    fn a_block_lists_the_node_of_each_address() {
        let allocated = [("10.0.0.66", "node2"), ("10.0.0.64", "node1"), ("10.0.1.1", "node1")]
            .map(|(address, node)| (address.parse().unwrap(), node.to_owned()));
        let block = block("10.0.0.64/30".parse().unwrap(), "node1", &allocated);
        let spec = &block["spec"];
        assert_eq!(block["metadata"]["name"], "10-0-0-64-30");
        assert_eq!(spec["affinity"], "host:node1");
        assert_eq!(spec["allocations"], json!([1, null, 0, null]));
        assert_eq!(spec["unallocated"], json!([1, 3]));
        assert_eq!(spec["attributes"][0]["secondary"]["node"], "node2");
    }
}
