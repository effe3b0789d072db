//! IPAM blocks as stored (`libcalico-go/lib/backend/model/block.go`,
//! `libcalico-go/lib/ipam/ipam_block.go`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use tortie_datastore::store::timestamp;
use tortie_net::{Cidr, Family};

use crate::json::field;

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const AFFINITIES: &str = "/calico/ipam/v2/host/";
/// State of an affinity that is about to be deleted.
const PENDING_DELETION: &str = "pendingDeletion";
/// Handle of addresses that Windows reserves.
const WINDOWS_HANDLE: &str = "windows-reserved-ipam-handle";
/// Largest size of a block: a /20 of IPv4 or a /116 of IPv6.
const MOST_ADDRESSES: usize = 1 << 12;

/// Returns the path of the block with this network.
pub(crate) fn block_path(cidr: Cidr) -> String {
    format!("{BLOCKS}{}/block/{}", family(cidr), dashed(cidr))
}

/// Returns the path of the affinity of a node to a block.
pub(crate) fn affinity_path(node: &str, cidr: Cidr) -> String {
    format!("{AFFINITIES}{node}/{}/block/{}", family(cidr), dashed(cidr))
}

pub(crate) fn handle_path(handle: &str) -> String {
    format!("/calico/ipam/v2/handle/{handle}")
}

/// Returns the network of the block at a path; `None` for other paths.
pub(crate) fn block_at(path: &str) -> Option<Cidr> {
    network(path.strip_prefix(BLOCKS)?)
}

/// Returns the node and the block of the affinity at a path; `None` for other paths.
pub(crate) fn affinity_at(path: &str) -> Option<(&str, Cidr)> {
    let (node, rest) = path.strip_prefix(AFFINITIES)?.split_once('/')?;
    (!node.is_empty()).then_some((node, network(rest)?))
}

/// Reports whether an affinity is marked for deletion. It is marked before its block is released if
/// the datastore has no transactions.
pub(crate) fn is_leaving(affinity: &str) -> bool {
    let affinity: Value = serde_json::from_str(affinity).unwrap_or_default();
    field(&affinity, &["state"]) == PENDING_DELETION || is_deleted(&affinity)
}

/// Error of the text of a block or of an affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TextError {
    #[error("is no object")]
    NoObject,
    #[error("cidr: is not that of the path")]
    OtherCidr,
    #[error("{0}: is no list")]
    NoList(&'static str),
    #[error("allocations: their number is not that of the addresses of the network")]
    AllocationCount,
    #[error("allocations: have no attributes")]
    NoAttributes,
    #[error("sequenceNumber: is no number")]
    SequenceNumber,
    #[error("sequenceNumberForAllocation: is no mapping")]
    SequenceNumbers,
}

/// Returns the affinity with the mark for deletion.
pub(crate) fn marked(affinity: &str) -> Result<String, TextError> {
    match serde_json::from_str(affinity) {
        Ok(Value::Object(mut fields)) => {
            fields.insert("state".into(), PENDING_DELETION.into());
            Ok(Value::Object(fields).to_string())
        }
        _ => Err(TextError::NoObject),
    }
}

/// Reports whether an object is marked as deleted, so that every client treats it as absent. Some
/// kinds store the mark as a string.
pub(crate) fn is_deleted(object: &Value) -> bool {
    let mark = field(object, &["deleted"]);
    *mark == true || mark.as_str().is_some_and(|text| matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

fn network(rest: &str) -> Option<Cidr> {
    let (family_name, network) = rest.split_once("/block/")?;
    let cidr: Cidr = network.replace('-', "/").parse().ok()?;
    (family(cidr) == family_name).then(|| cidr.masked())
}

fn family(cidr: Cidr) -> &'static str {
    match cidr.family() {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

fn dashed(cidr: Cidr) -> String {
    cidr.masked().to_string().replace('/', "-")
}

/// Returns a handle without the residue of a migration from host-local.
pub(crate) fn sane_handle(handle: &str) -> &str {
    handle.split('\r').next().unwrap_or_default()
}

/// IPAM block. Unknown fields stay unchanged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Block {
    cidr: Cidr,
    fields: Map<String, Value>,
    /// Index of the attributes of each address; `None` if it is free.
    allocations: Vec<Option<usize>>,
    unallocated: Vec<Value>,
    attributes: Vec<Value>,
    sequence: u64,
    /// Sequence number at allocation, for each allocated address.
    sequences: Map<String, Value>,
}

/// Allocated address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allocated<'b> {
    /// Its offset in the block.
    pub(crate) ordinal: usize,
    pub(crate) address: IpAddr,
    /// Without a handle, only its allocator can release it.
    pub(crate) handle: Option<&'b str>,
    /// Sequence number at allocation, which distinguishes it from a later allocation to the same
    /// handle.
    pub(crate) sequence: u64,
    /// Attributes that identify its owner.
    pub(crate) owner: &'b Value,
}

/// Address to release, if its allocation is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) ordinal: usize,
    pub(crate) handle: String,
    pub(crate) sequence: u64,
}

impl Block {
    /// Reads the block of this network.
    ///
    /// # Errors
    /// If the text is not a valid block of this network.
    pub(crate) fn read(cidr: Cidr, text: &str) -> Result<Self, TextError> {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else { return Err(TextError::NoObject) };
        let named = fields.get("cidr").and_then(Value::as_str).and_then(|text| text.parse::<Cidr>().ok());
        if named.map(Cidr::masked) != Some(cidr.masked()) {
            return Err(TextError::OtherCidr);
        }
        let mut list = |name| match fields.get_mut(name).map(Value::take) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(TextError::NoList(name)),
        };
        let (allocations, unallocated, attributes) = (list("allocations")?, list("unallocated")?, list("attributes")?);
        let free_bits = u32::from(cidr.family().max_prefix_len() - cidr.prefix_len());
        let size = 1_usize.checked_shl(free_bits).filter(|size| *size <= MOST_ADDRESSES);
        if size != Some(allocations.len()) {
            return Err(TextError::AllocationCount);
        }
        let index = |item: &Value| match item {
            Value::Null => Ok(None),
            item => {
                let index = item.as_u64().and_then(|index| usize::try_from(index).ok());
                index.filter(|index| *index < attributes.len()).map(Some).ok_or(TextError::NoAttributes)
            }
        };
        let allocations = allocations.iter().map(index).collect::<Result<_, _>>()?;
        let sequence = match fields.get("sequenceNumber") {
            None | Some(Value::Null) => 0,
            Some(number) => number.as_u64().ok_or(TextError::SequenceNumber)?,
        };
        let sequences = match fields.get_mut("sequenceNumberForAllocation").map(Value::take) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(sequences)) => sequences,
            Some(_) => return Err(TextError::SequenceNumbers),
        };
        Ok(Self { cidr: cidr.masked(), fields, allocations, unallocated, attributes, sequence, sequences })
    }

    /// Returns the text of the next version of the block.
    pub(crate) fn into_text(mut self) -> String {
        let allocations: Vec<Value> = self.allocations.iter().map(|index| json!(index)).collect();
        for (name, value) in [
            ("allocations", allocations.into()),
            ("unallocated", self.unallocated.into()),
            ("attributes", self.attributes.into()),
            ("sequenceNumber", self.sequence.saturating_add(1).into()),
            ("sequenceNumberForAllocation", self.sequences.into()),
        ] {
            self.fields.insert(name.into(), value);
        }
        Value::Object(self.fields).to_string()
    }

    /// Returns the owner to which the block has an affinity.
    pub(crate) fn affinity(&self) -> Option<&str> {
        self.fields.get("affinity").and_then(Value::as_str)
    }

    /// Reports whether it is marked as deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        self.fields.get("deleted") == Some(&Value::Bool(true))
    }

    /// Returns the node to which it has an affinity.
    pub(crate) fn node(&self) -> Option<&str> {
        self.affinity()?.strip_prefix("host:")
    }

    /// Returns every address that is not free, except released ones in cooldown.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = Allocated<'_>> {
        self.allocations.iter().enumerate().filter_map(|(ordinal, index)| {
            let attributes = self.attributes.get((*index)?)?;
            if is_released(attributes) {
                return None;
            }
            Some(Allocated {
                ordinal,
                address: nth_address(self.cidr, ordinal)?,
                handle: field(attributes, &["handle_id"]).as_str(),
                sequence: self.sequence_of(ordinal),
                owner: field(attributes, &["secondary"]),
            })
        })
    }

    /// Returns every address that is allocated or in cooldown.
    pub(crate) fn not_free(&self) -> impl Iterator<Item = IpAddr> {
        let ordinals = self.allocations.iter().enumerate().filter(|(_, index)| index.is_some());
        ordinals.filter_map(|(ordinal, _)| nth_address(self.cidr, ordinal))
    }

    /// Returns the handles to which addresses are allocated.
    pub(crate) fn handles(&self) -> impl Iterator<Item = &str> {
        self.allocated().filter_map(|allocated| allocated.handle)
    }

    /// Returns the attributes of the second owner of an address, during a live migration.
    pub(crate) fn alternate_owner(&self, ordinal: usize) -> &Value {
        let index = self.allocations.get(ordinal).copied().flatten();
        index
            .and_then(|index| self.attributes.get(index))
            .map_or(&Value::Null, |attributes| field(attributes, &["alternateOwnerAttrs"]))
    }

    /// Reports whether a released address is in cooldown.
    pub(crate) fn cools_down(&self) -> bool {
        self.used_attributes().any(is_released)
    }

    /// Returns the number of addresses that are not free.
    pub(crate) fn used(&self) -> usize {
        self.used_attributes().count()
    }

    /// Reports whether no address is allocated, except those that Windows reserves.
    pub(crate) fn is_empty(&self) -> bool {
        self.used_attributes()
            .all(|attributes| field(attributes, &["handle_id"]).as_str().is_some_and(is_windows_handle))
    }

    fn used_attributes(&self) -> impl Iterator<Item = &Value> {
        self.allocations.iter().flatten().filter_map(|index| self.attributes.get(*index))
    }

    fn sequence_of(&self, ordinal: usize) -> u64 {
        self.sequences.get(&ordinal.to_string()).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Releases the addresses whose allocation is unchanged, and returns them.
    pub(crate) fn release<'r>(
        &mut self,
        releases: impl IntoIterator<Item = &'r Release>,
        now: SystemTime,
        cooldown: Duration,
    ) -> Vec<&'r Release> {
        let is_same = |release: &&Release| {
            self.allocated().find(|allocated| allocated.ordinal == release.ordinal).is_some_and(|allocated| {
                allocated.sequence == release.sequence
                    && allocated.handle.is_some_and(|handle| sane_handle(handle) == release.handle)
            })
        };
        let released: Vec<&Release> = releases.into_iter().filter(is_same).collect();
        if released.is_empty() {
            return released;
        }
        let cooling = self.attributes.len();
        self.attributes.push(json!({"releasedAt": timestamp(now)}));
        for release in &released {
            if let Some(index) = self.allocations.get_mut(release.ordinal) {
                *index = Some(cooling);
            }
            self.sequences.insert(release.ordinal.to_string(), self.sequence.into());
        }
        if !self.end_cooldown(now, cooldown) {
            self.drop_unused_attributes();
        }
        released
    }

    /// Frees the addresses whose cooldown is over. Reports whether any existed.
    pub(crate) fn end_cooldown(&mut self, now: SystemTime, cooldown: Duration) -> bool {
        let limit = timestamp(now.checked_sub(cooldown).unwrap_or(SystemTime::UNIX_EPOCH));
        let is_over = |attributes: &Value| {
            let released = field(attributes, &["releasedAt"]).as_str().unwrap_or_default();
            // Times of this format compare like their texts.
            cooldown.is_zero() || (released.len() == limit.len() && released.ends_with('Z') && *released < *limit)
        };
        let mut freed = false;
        for (ordinal, index) in self.allocations.iter_mut().enumerate() {
            let attributes = index.and_then(|index| self.attributes.get(index));
            if attributes.is_some_and(|attributes| is_released(attributes) && is_over(attributes)) {
                *index = None;
                self.unallocated.push(ordinal.into());
                self.sequences.remove(&ordinal.to_string());
                freed = true;
            }
        }
        if freed {
            self.drop_unused_attributes();
        }
        freed
    }

    fn drop_unused_attributes(&mut self) {
        let mut places = BTreeMap::new();
        for index in self.allocations.iter().flatten() {
            places.insert(*index, 0);
        }
        for (new, place) in places.values_mut().enumerate() {
            *place = new;
        }
        let mut index = 0;
        self.attributes.retain(|_| {
            index += 1;
            places.contains_key(&(index - 1))
        });
        for index in self.allocations.iter_mut().flatten() {
            *index = places.get(index).copied().unwrap_or_default();
        }
    }
}

fn is_released(attributes: &Value) -> bool {
    !field(attributes, &["releasedAt"]).is_null()
}

/// Reports whether a handle is that of an address reserved by Windows, which has no owner.
pub(crate) fn is_windows_handle(handle: &str) -> bool {
    handle.eq_ignore_ascii_case(WINDOWS_HANDLE)
}

/// Returns the address at an offset in a network; `None` beyond its end.
fn nth_address(cidr: Cidr, ordinal: usize) -> Option<IpAddr> {
    let address: IpAddr = match cidr.address() {
        IpAddr::V4(first) => Ipv4Addr::from(u32::from(first).checked_add(u32::try_from(ordinal).ok()?)?).into(),
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first).checked_add(u128::try_from(ordinal).ok()?)?).into(),
    };
    cidr.contains(address).then_some(address)
}

/// Returns a handle minus these counts of addresses per block; `None` if it does not contain them.
pub(crate) fn less(handle: &Value, counts: &BTreeMap<Cidr, u64>) -> Option<Value> {
    counts.iter().try_fold(handle.clone(), |left, (cidr, count)| decremented(&left, *cidr, *count))
}

fn decremented(handle: &Value, cidr: Cidr, by: u64) -> Option<Value> {
    let name = cidr.to_string();
    let left = field(handle, &["block", &name]).as_u64()?.checked_sub(by)?;
    let mut handle = handle.clone();
    let blocks = handle.get_mut("block")?.as_object_mut()?;
    if left == 0 {
        blocks.shift_remove(&name);
    } else {
        blocks.insert(name, left.into());
    }
    Some(handle)
}

/// Reports whether a handle has no address.
pub(crate) fn has_nothing(handle: &Value) -> bool {
    field(handle, &["block"]).as_object().is_none_or(Map::is_empty)
}

#[cfg(test)]
mod tests;
