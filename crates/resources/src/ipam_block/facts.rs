//! Facts of an IPAM block (`libcalico-go/lib/backend/model/block.go`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_model::{Cidr, Hostname, IpamBlock, NodeAllocation};

use crate::tree::{Content, Cursor, Map, Sink};

/// A block without its network and its text.
#[derive(Default)]
pub(crate) struct BlockFacts<'n> {
    affinity: &'n str,
    /// Index of the attributes of each address; `None` if it is free.
    allocations: Vec<Option<u32>>,
    /// Node of each of the attributes; empty if they name none.
    nodes: Vec<&'n str>,
}

impl<'n> BlockFacts<'n> {
    /// Returns the facts of a block whose addresses are all for one node.
    pub(crate) fn of_node(affinity: &'n str) -> Self {
        Self { affinity, ..Self::default() }
    }

    /// Reads the facts of a block, in the form of etcd or of the API server.
    pub(crate) fn read(map: Map<'n, '_>, sink: &mut Sink) -> Self {
        let affinity = map.text_or_empty("affinity", sink);
        let allocations = map.list("allocations", sink, |item, sink| match item.content() {
            Content::Null => Some(None),
            _ => item.int::<u32>(0, u32::MAX.into(), sink).map(Some),
        });
        map.list("unallocated", sink, |item, sink| item.int::<u32>(0, u32::MAX.into(), sink));
        let nodes = map.list("attributes", sink, node_of);
        if let Some(field) = map.field("sequenceNumber") {
            field.int::<u64>(0, i64::MAX, sink);
        }
        if let Some(field) = map.field("sequenceNumberForAllocation") {
            field.map(sink);
        }
        map.flag("deleted", sink);
        Self { affinity, allocations, nodes }
    }

    /// Returns the block with this network and text.
    pub(crate) fn block(&self, cidr: Cidr, text: Arc<str>) -> IpamBlock {
        let affinity = ["host:", "virtual:"].into_iter().find_map(|kind| self.affinity.strip_prefix(kind));
        let affinity = affinity.unwrap_or_default();
        let node_of = |attributes: u32| self.nodes.get(usize::try_from(attributes).ok()?).copied();
        let borrowed = (0u128..).zip(&self.allocations).filter_map(|(ordinal, attributes)| {
            let node = attributes.and_then(node_of).filter(|node| !node.is_empty() && *node != affinity)?;
            Some(NodeAllocation { address: nth_address(cidr, ordinal)?, node: Hostname::new(node) })
        });
        let borrowed = borrowed.collect();
        IpamBlock { text, affinity: (!affinity.is_empty()).then(|| affinity.into()), borrowed }
    }
}

/// Returns the node that attributes of an allocation name; empty if they name none.
fn node_of<'n>(attributes: Cursor<'n, '_>, sink: &mut Sink) -> Option<&'n str> {
    let map = attributes.map(sink)?;
    let owner = map.field("secondary").and_then(|owner| owner.map(sink));
    Some(owner.map_or("", |owner| owner.text_or_empty("node", sink)))
}

/// Returns the address at an offset in the network; `None` beyond its end.
fn nth_address(cidr: Cidr, ordinal: u128) -> Option<IpAddr> {
    let address: IpAddr = match cidr.masked().address() {
        IpAddr::V4(first) => Ipv4Addr::from(u32::from(first).checked_add(u32::try_from(ordinal).ok()?)?).into(),
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first).checked_add(ordinal)?).into(),
    };
    cidr.contains(address).then_some(address)
}
