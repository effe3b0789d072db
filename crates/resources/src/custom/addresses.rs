//! IPAM blocks, affinities and handles: etcd stores them as texts under paths, Kubernetes as
//! separate kinds (`ipam_*.go` in `libcalico-go/lib/backend/k8s/resources`).

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tortie_model::{Cidr, Family};

/// Kind of IPAM object. Its `spec` is the text in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// `IPAMBlock`: the owners of the addresses of a network.
    Block,
    /// `BlockAffinity`: the claim of a node on a block.
    Affinity,
    /// `IPAMHandle`: the number of addresses per block that are allocated to a name.
    Handle,
    /// `IPAMConfig`: the settings of address allocation.
    Config,
}

/// Error of an IPAM object that cannot be identified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// A field is missing or invalid.
    #[error("{0}: is missing or invalid")]
    Field(&'static str),
    /// The name of the object does not follow from its fields, so a lookup would not find it.
    #[error("metadata.name: is not `{0}`, as the object would be called")]
    Name(String),
}

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const AFFINITIES: &str = "/calico/ipam/v2/host/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const CONFIG: &str = "/calico/ipam/v2/config";
/// Name of the only configuration.
const DEFAULT: &str = "default";
/// Shortest length of an object name that is too long.
const TOO_LONG: usize = 253;

impl AddressKind {
    /// Returns the plural as in API paths of `crd.projectcalico.org/v1`.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Block => "ipamblocks",
            Self::Affinity => "blockaffinities",
            Self::Handle => "ipamhandles",
            Self::Config => "ipamconfigs",
        }
    }

    /// Returns the prefix of the paths in etcd of all entries of this kind.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Block => BLOCKS,
            Self::Affinity => AFFINITIES,
            Self::Handle => HANDLES,
            Self::Config => CONFIG,
        }
    }

    /// Returns the kind and the name of the object for a path in etcd; `None` if no object
    /// represents the path.
    #[must_use]
    pub fn at(path: &str) -> Option<(Self, String)> {
        if path == CONFIG {
            return Some((Self::Config, DEFAULT.into()));
        }
        if let Some(handle) = path.strip_prefix(HANDLES) {
            return Some((Self::Handle, handle.to_lowercase()));
        }
        if let Some(block) = path.strip_prefix(BLOCKS) {
            return Some((Self::Block, block_name(network_at(block)?)));
        }
        let (node, block) = path.strip_prefix(AFFINITIES)?.split_once('/')?;
        Some((Self::Affinity, affinity_name(node, network_at(block)?)))
    }

    /// Returns the path in etcd of the entry that this object represents. `None` for an object
    /// without an entry: an affinity of an owner other than a node, or a configuration without
    /// effect.
    ///
    /// # Errors
    /// If the path does not follow from the fields, or the name of the object does not match them.
    pub fn path(self, object: &Value) -> Result<Option<String>, AddressError> {
        let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
        let text = |field: &str| object.get("spec").and_then(|spec| spec.get(field)).and_then(Value::as_str);
        let network = || {
            let cidr = text("cidr").and_then(|text| text.parse::<Cidr>().ok());
            cidr.map(Cidr::masked).ok_or(AddressError::Field("spec.cidr"))
        };
        let path = match self {
            Self::Config if name != Some(DEFAULT) => return Ok(None),
            Self::Config => CONFIG.to_owned(),
            Self::Handle => {
                let handle = text("handleID").filter(|handle| !handle.is_empty());
                format!("{HANDLES}{}", handle.ok_or(AddressError::Field("spec.handleID"))?)
            }
            Self::Block => format!("{BLOCKS}{}", path_of_network(network()?)),
            Self::Affinity if !matches!(text("type"), None | Some("" | "host")) => return Ok(None),
            Self::Affinity => {
                let node = text("node").filter(|node| !node.is_empty() && !node.contains('/'));
                let node = node.ok_or(AddressError::Field("spec.node"))?;
                format!("{AFFINITIES}{node}/{}", path_of_network(network()?))
            }
        };
        match Self::at(&path) {
            Some((_, expected)) if Some(&*expected) != name => Err(AddressError::Name(expected)),
            _ => Ok(Some(path)),
        }
    }
}

fn family(cidr: Cidr) -> &'static str {
    match cidr.family() {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

fn path_of_network(cidr: Cidr) -> String {
    format!("{}/block/{}", family(cidr), cidr.to_string().replace('/', "-"))
}

fn network_at(rest: &str) -> Option<Cidr> {
    let (family_name, network) = rest.split_once("/block/")?;
    let cidr: Cidr = network.replace('-', "/").parse().ok()?;
    (family(cidr) == family_name).then(|| cidr.masked())
}

/// Returns the name of a block (`CIDRToName` of `libcalico-go/lib/names/cidr.go`).
fn block_name(cidr: Cidr) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

fn affinity_name(node: &str, cidr: Cidr) -> String {
    let block = block_name(cidr);
    let name = format!("{node}-{block}");
    if name.len() < TOO_LONG {
        return name;
    }
    // The rest of the node name, the block, two hyphens and 11 digits of the hash make 252
    // characters.
    let mut end = TOO_LONG - 1 - block.len() - 13;
    while !node.is_char_boundary(end) {
        end -= 1;
    }
    let hash = Sha256::digest(format!("{node}+{block}").as_bytes());
    let mut hex = String::new();
    for byte in hash.iter().take(6) {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(11);
    format!("{}-{block}-{hex}", node.get(..end).unwrap_or_default())
}
