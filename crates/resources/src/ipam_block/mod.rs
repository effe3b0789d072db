//! IPAM blocks.

mod facts;

use serde_json::{Value as Json, json};
use tortie_model::{Cidr, Update};

use crate::object::{Contributions, Object};
use crate::tree::Sink;

pub(crate) use facts::BlockFacts;

/// Returns the blocks of a node's pod networks
/// (`libcalico-go/lib/backend/syncersv1/updateprocessors/felixnodeprocessor.go`).
pub(crate) fn pod_blocks(object: &Object<'_, '_>, cidrs: &[&str], sink: &mut Sink) -> Contributions {
    let mut blocks = Contributions::new();
    for text in cidrs {
        let Ok(cidr) = text.parse::<Cidr>() else {
            object.root.warn(sink, format!("`{text}` is not a network for pods; it is not used"));
            continue;
        };
        let affinity = format!("host:{}", object.id.name);
        let block = json!({
            "cidr": cidr.masked().to_string(),
            "affinity": affinity,
            "allocations": null,
            "unallocated": null,
            "attributes": null,
            "sequenceNumber": 0,
            "sequenceNumberForAllocation": null,
            "deleted": false,
        });
        blocks.push(written_block(cidr.masked(), &BlockFacts::of_node(&affinity), &block));
    }
    blocks
}

pub(crate) fn written_block(cidr: Cidr, facts: &BlockFacts<'_>, text: &Json) -> Update {
    Update::Block(cidr, Some(facts.block(cidr, text.to_string().into()).into()))
}
