//! Addresses of a cluster as they were listed: usage of the pools, and inconsistencies
//! (`calicoctl/calicoctl/commands/ipam`).

mod check;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;
use tortie_net::{Cidr, parse_address};
use tortie_resources::stored::{ResourceKey, ResourceKind};

use crate::ipam::{Block, PodAddresses, PodFacts, Pools, affinity_at, assigned_addresses, block_at, is_deleted};
use crate::json::field;

pub use check::{Problem, ProblemKind};
pub use usage::{Allocation, BorrowedAddress, PoolUsage, Usage};

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
/// State of an affinity whose block exists.
const CONFIRMED: &str = "confirmed";

/// IPAM entries, pools and users of addresses.
///
/// ```
/// use serde_json::json;
/// use tortie_controller::addresses::{Addresses, ProblemKind};
/// use tortie_resources::stored::{ResourceKey, ResourceKind};
///
/// let mut addresses = Addresses::default();
/// let pool = ResourceKey::new(ResourceKind::IpPool, "", "pods")?;
/// addresses.take_resource(&pool, &json!({"spec": {"cidr": "10.0.0.0/24"}}));
/// let block = json!({"cidr": "10.0.0.0/31", "allocations": [0, null], "unallocated": [1], "attributes": [{"handle_id": "h"}]});
/// addresses.take_text("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-31", &block.to_string());
/// let problems = addresses.check();
/// assert_eq!((problems[0].kind, &*problems[0].subject), (ProblemKind::LeakedAddress, "10.0.0.0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Addresses {
    pools: Pools,
    blocks: BTreeMap<Cidr, Block>,
    /// Confirmed affinities: block and node.
    affinities: BTreeSet<(Cidr, String)>,
    handles: BTreeSet<String>,
    /// Endpoints and nodes that have an address.
    users: BTreeMap<IpAddr, BTreeSet<String>>,
    /// Addresses that something else may have: Services, and networks of other plugins.
    in_other_use: BTreeSet<IpAddr>,
    /// Whether addresses of Services were taken.
    knows_services: bool,
    unreadable: Vec<Problem>,
    unreadable_blocks: BTreeSet<Cidr>,
    /// Whether there are blocks whose networks are unknown.
    has_unknown_blocks: bool,
}

impl Addresses {
    /// Prefixes of the paths of all entries that [`Addresses::take_text`] reads.
    pub const PREFIXES: [&str; 3] = [BLOCKS, "/calico/ipam/v2/host/", HANDLES];
    /// Kinds of resources with networks, which [`Addresses::take_resource`] reads.
    pub const NETWORKS: [ResourceKind; 2] = [ResourceKind::IpPool, ResourceKind::IpReservation];
    /// Kinds of resources that have addresses, which [`Addresses::take_resource`] reads. Only
    /// [`Addresses::check`] needs them.
    pub const USERS: [ResourceKind; 2] = [ResourceKind::Node, ResourceKind::WorkloadEndpoint];

    /// Takes the text of an IPAM block, an affinity or a handle. Entries that are marked as deleted
    /// count as absent.
    pub fn take_text(&mut self, path: &str, text: &str) {
        let object = || serde_json::from_str::<Value>(text).unwrap_or_default();
        if let Some(cidr) = block_at(path) {
            match Block::read(cidr, text) {
                Ok(block) if block.is_deleted() => {}
                Ok(block) => drop(self.blocks.insert(cidr, block)),
                Err(error) => {
                    self.unreadable_blocks.insert(cidr);
                    self.take_unreadable(cidr.to_string(), error.to_string());
                }
            }
        } else if let Some((node, cidr)) = affinity_at(path) {
            let affinity = object();
            if field(&affinity, &["state"]) == CONFIRMED && !is_deleted(&affinity) {
                self.affinities.insert((cidr, node.to_owned()));
            }
        } else if let Some(handle) = path.strip_prefix(HANDLES)
            && !is_deleted(&object())
        {
            self.handles.insert(handle.to_owned());
        } else if !path.starts_with(HANDLES) {
            self.has_unknown_blocks |= path.starts_with(BLOCKS);
            self.take_unreadable(path.to_owned(), "is not the path of an IPAM entry".to_owned());
        }
    }

    /// Takes a resource of one of these kinds; others have no effect.
    pub fn take_resource(&mut self, key: &ResourceKey, object: &Value) {
        match key.kind() {
            ResourceKind::Node => {
                for path in [
                    &["spec", "ipv4VXLANTunnelAddr"][..],
                    &["spec", "ipv6VXLANTunnelAddr"],
                    &["spec", "wireguard", "interfaceIPv4Address"],
                    &["spec", "wireguard", "interfaceIPv6Address"],
                    &["spec", "bgp", "ipv4IPIPTunnelAddr"],
                ] {
                    self.take_user(&key.to_string(), field(object, path));
                }
            }
            ResourceKind::WorkloadEndpoint => {
                let networks = field(object, &["spec", "ipNetworks"]).as_array();
                networks.into_iter().flatten().for_each(|network| self.take_user(&key.to_string(), network));
            }
            _ => drop(self.pools.set(key, Some(object))),
        }
    }

    /// Takes a pod, in a cluster without resources for workload endpoints. A pod on the host
    /// network has no address of a pool.
    pub fn take_pod(&mut self, pod: &Value) {
        if *field(pod, &["spec", "hostNetwork"]) == true {
            return;
        }
        let known = match PodFacts::read(pod).addresses {
            // It has ended.
            PodAddresses::Known(known) if known.is_empty() => return,
            PodAddresses::Known(known) => known,
            PodAddresses::Unknown => Box::default(),
        };
        self.in_other_use.extend(known);
        for address in assigned_addresses(pod) {
            self.users.entry(address).or_default().insert(name_of("Pod", pod));
        }
    }

    /// Takes all Services, whose external addresses may be allocated. Without them, no address of a
    /// block for Services counts as leaked.
    pub fn take_services<'v>(&mut self, services: impl IntoIterator<Item = &'v Value>) {
        self.knows_services = true;
        for service in services {
            let ingress = field(service, &["status", "loadBalancer", "ingress"]).as_array();
            for entry in ingress.into_iter().flatten() {
                self.in_other_use.extend(address_of(field(entry, &["ip"])));
            }
        }
    }

    /// Takes an object that cannot be read.
    pub fn take_unreadable(&mut self, subject: String, why: String) {
        self.unreadable.push(Problem { kind: ProblemKind::Unreadable, subject, detail: why });
    }

    fn take_user(&mut self, name: &str, address: &Value) {
        if let Some(address) = address_of(address) {
            self.users.entry(address).or_default().insert(name.to_owned());
        }
    }
}

/// Returns the address of a text, with or without the length of its prefix.
fn address_of(text: &Value) -> Option<IpAddr> {
    let text = text.as_str().unwrap_or_default();
    parse_address(text).or_else(|| text.parse().ok().map(Cidr::address))
}

fn name_of(kind: &str, object: &Value) -> String {
    let text = |name| field(object, &["metadata", name]).as_str().unwrap_or_default();
    format!("{kind}/{}/{}", text("namespace"), text("name"))
}

#[cfg(test)]
mod tests;
