//! Blocks of addresses, affinities and handles: texts under paths in etcd, kinds of their own here
//! (`libcalico-go/lib/backend/k8s/resources/{ipam_block,ipam_affinity_v1,ipam_handle,ipam_config_v1}.go`).

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tortie_model::{Cidr, Family};

/// A kind of object about addresses. What etcd has as the text is the object's `spec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// `IPAMBlock`: who has which address of a network.
    Block,
    /// `BlockAffinity`: that a node says that a block is its own.
    Affinity,
    /// `IPAMHandle`: how many addresses of which blocks have been allocated to a name.
    Handle,
    /// `IPAMConfig`: how addresses are allocated.
    Config,
}

/// Why an object about addresses cannot be told from others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// A field does not say what it must.
    #[error("{0}: is missing, or not understood")]
    Field(&'static str),
    /// It is not where it would be looked for.
    #[error("metadata.name: is not `{0}`, as the object would be called")]
    Name(String),
}

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const AFFINITIES: &str = "/calico/ipam/v2/host/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const CONFIG: &str = "/calico/ipam/v2/config";
/// The only configuration.
const DEFAULT: &str = "default";
/// The longest name of an object, and one more.
const TOO_LONG: usize = 253;

impl AddressKind {
    /// The plural, as it stands in paths of the API.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Block => "ipamblocks",
            Self::Affinity => "blockaffinities",
            Self::Handle => "ipamhandles",
            Self::Config => "ipamconfigs",
        }
    }

    /// What objects are marked with that are about to be deleted.
    #[must_use]
    pub fn deletion_mark(self) -> Value {
        // The field is older than the others, and was text by mistake.
        if self == Self::Affinity { "true".into() } else { true.into() }
    }

    /// The kind and the name of the object that stands for what is under a path in etcd; `None` if none does.
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

    /// Under which path etcd would have what this object stands for; `None` if it has no place there: affinities of other
    /// than nodes, and configurations that do not count.
    ///
    /// # Errors
    /// If that cannot be said, or the object is not called as it would be.
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

/// `CIDRToName` of `libcalico-go/lib/names/cidr.go`.
fn block_name(cidr: Cidr) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

fn affinity_name(node: &str, cidr: Cidr) -> String {
    let block = block_name(cidr);
    let name = format!("{node}-{block}");
    if name.len() < TOO_LONG {
        return name;
    }
    // What is left of the node, two hyphens, and the beginning of a hash make 252 characters.
    let mut end = TOO_LONG - 1 - block.len() - 13;
    while !node.is_char_boundary(end) {
        end -= 1;
    }
    let hash = Sha256::digest(format!("{node}+{block}").as_bytes());
    let mut hex = String::new();
    for byte in hash.iter().take(6) {
        // Text takes all that is written.
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(11);
    format!("{}-{block}-{hex}", node.get(..end).unwrap_or_default())
}
