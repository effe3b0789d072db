//! Usage of pools and blocks, and owners of addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use tortie_net::Cidr;

use super::Addresses;
use crate::ipam::{Block, NO_POOL, sane_handle, size};
use crate::json::field;

/// Numbers of addresses of a network. Those of IPv6 exceed integers, and lose precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// The network.
    pub cidr: Cidr,
    /// All addresses.
    pub total: f64,
    /// Addresses that are allocated, or in cooldown.
    pub in_use: f64,
    /// Addresses in reservations; allocated ones count as well.
    pub reserved: f64,
    /// Addresses that are neither in use nor reserved.
    pub free: f64,
}

/// Usage of a pool and of its blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolUsage {
    /// Name and usage of the pool; `None` for blocks that are in no pool.
    pub pool: Option<(String, Usage)>,
    /// The blocks, each with the owner to which it has an affinity, such as `host:n1`.
    pub blocks: Vec<(Usage, Option<String>)>,
}

/// An allocated address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The block.
    pub block: Cidr,
    /// The handle, if it has one.
    pub handle: Option<String>,
    /// Attributes of the owner, such as `pod`, `namespace` and `node`.
    pub active: BTreeMap<String, String>,
    /// Attributes of the second owner, during a live migration.
    pub alternate: BTreeMap<String, String>,
}

/// An address that is allocated on another node than the one to which its block has an affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BorrowedAddress {
    /// The address.
    pub address: IpAddr,
    /// Node on which it is allocated.
    pub node: String,
    /// Its block.
    pub block: Cidr,
    /// Owner of the block; empty if it has none.
    pub owner: String,
    /// Kind of its owner: `vmi`, `pod`, or the use of a node's own address.
    pub kind: String,
    /// Namespace and name of its owner; empty for an address of a node.
    pub to: String,
}

impl Addresses {
    /// Returns the usage of each pool by name, and of the blocks that are in none.
    #[must_use]
    pub fn usage(&self) -> Vec<PoolUsage> {
        let mut all: BTreeMap<&str, PoolUsage> = BTreeMap::new();
        for (name, cidr) in self.pools.all() {
            let reserved = self.pools.reserved(cidr);
            let total = size(cidr);
            let usage = Usage { cidr, total, in_use: 0.0, reserved, free: total - reserved };
            all.insert(name, PoolUsage { pool: Some((name.to_owned(), usage)), blocks: Vec::new() });
        }
        let mut lost = PoolUsage { pool: None, blocks: Vec::new() };
        for (cidr, block) in &self.blocks {
            let usage = self.usage_of(*cidr, block);
            let name = self.pools.of_block(*cidr);
            let of_pool = if name == NO_POOL { &mut lost } else { all.get_mut(name).unwrap_or(&mut lost) };
            if let Some((_, pool)) = &mut of_pool.pool {
                pool.in_use += usage.in_use;
                pool.free -= usage.total - usage.reserved - usage.free;
            }
            of_pool.blocks.push((usage, block.affinity().map(str::to_owned)));
        }
        all.into_values().chain(Some(lost).filter(|lost| !lost.blocks.is_empty())).collect()
    }

    fn usage_of(&self, cidr: Cidr, block: &Block) -> Usage {
        let (mut in_use, mut taken) = (0.0, 0.0);
        for address in block.not_free() {
            in_use += 1.0;
            taken += 1.0 - self.pools.reserved(Cidr::host(address));
        }
        let (total, reserved) = (size(cidr), self.pools.reserved(cidr));
        Usage { cidr, total, in_use, reserved, free: total - reserved - taken }
    }

    /// Returns the number of allocated addresses.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.blocks.values().map(|block| block.allocated().count()).sum()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the owner of an address; `None` if it is not allocated.
    #[must_use]
    pub fn allocation(&self, address: IpAddr) -> Option<Allocation> {
        let (cidr, block) = self.blocks.iter().find(|(cidr, _)| cidr.contains(address))?;
        let allocated = block.allocated().find(|allocated| allocated.address == address)?;
        let attributes = |attributes: &Value| {
            let texts = attributes.as_object().into_iter().flatten();
            texts.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
        };
        Some(Allocation {
            block: *cidr,
            handle: allocated.handle.map(|handle| sane_handle(handle).to_owned()),
            active: attributes(allocated.owner),
            alternate: attributes(block.alternate_owner(allocated.ordinal)),
        })
    }

    /// Returns all borrowed addresses, and the number of allocated addresses without a node, which
    /// may be borrowed.
    #[must_use]
    pub fn borrowed(&self) -> (Vec<BorrowedAddress>, usize) {
        let (mut borrowed, mut unknown) = (Vec::new(), 0);
        for (cidr, block) in &self.blocks {
            let owner = block.affinity().unwrap_or_default();
            let owner = owner.split_once(':').map_or(owner, |(_, name)| name);
            for allocated in block.allocated() {
                let text = |name: &str| field(allocated.owner, &[name]).as_str();
                let Some(node) = text("node") else {
                    unknown += 1;
                    continue;
                };
                if node == owner {
                    continue;
                }
                let of_namespace = |name: &str| format!("{}/{name}", text("namespace").unwrap_or_default());
                let (kind, to) = match (text("vmi-name"), text("pod")) {
                    (Some(machine), _) => ("vmi", of_namespace(machine)),
                    (None, Some(pod)) => ("pod", of_namespace(pod)),
                    (None, None) => (text("type").unwrap_or_default(), String::new()),
                };
                borrowed.push(BorrowedAddress {
                    address: allocated.address,
                    node: node.to_owned(),
                    block: *cidr,
                    owner: owner.to_owned(),
                    kind: kind.to_owned(),
                    to,
                });
            }
        }
        (borrowed, unknown)
    }
}
