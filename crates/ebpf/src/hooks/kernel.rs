//! Layout of the kernel structures that programs read.

use super::Attachment;
use crate::btf::Btf;
use crate::instruction::KernelFunction;

/// Offsets in the structures of a kernel, and numbers of its functions, as programs need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    pub(super) skb_conntrack: i16,
    pub(super) skb_route: i16,
    pub(super) route_device: i16,
    pub(super) device_index: i16,
    pub(super) device_name: i16,
    pub(super) tuple: Tuple,
    pub(super) access: Access,
}

/// Access of programs to kernel structures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Programs receive netfilter's structures, and read them in place.
    Direct(Direct),
    /// Programs receive a packet, and copy structures to their stack.
    Copied {
        /// Offset of the device in the packet.
        skb_device: i16,
    },
}

/// Offsets, types and functions for reading structures in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Direct {
    pub(super) skb_length: i16,
    pub(super) skb_length_of_rest: i16,
    pub(super) skb_data: i16,
    pub(super) state_in: i16,
    pub(super) state_out: i16,
    pub(super) route: u32,
    /// Type of a structure of at least six 8-byte numbers, as which bytes of packets are read.
    pub(super) numbers: u32,
    pub(super) dynptr_from_skb: KernelFunction,
    pub(super) cast: KernelFunction,
}

/// Offsets of the addresses and ports of a connection's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    /// Offset of the tuple in the connection.
    pub(super) begin: i32,
    // Offsets in the tuple.
    pub(super) source: i16,
    pub(super) source_port: i16,
    pub(super) destination: i16,
    pub(super) destination_port: i16,
    pub(super) protocol: i16,
}

/// A type or function that programs need and the kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// A structure or its member is missing, or the member's offset is too large.
    #[error("the kernel has no {structure}.{member} that programs could read")]
    Member {
        /// The structure.
        structure: &'static str,
        /// The member.
        member: &'static str,
    },
    /// A structure.
    #[error("the kernel has no {name} that programs could read")]
    Structure {
        /// Its name.
        name: &'static str,
    },
    /// A function that programs may call.
    #[error("the kernel has no function {name} that programs could call")]
    Function {
        /// Its name.
        name: &'static str,
    },
}

/// Size of a device name in bytes, including the final 0.
pub(super) const NAME: i16 = 16;
/// Number of bytes of a tuple that programs read.
pub(super) const TUPLE: i16 = 40;

/// A structure of 8-byte numbers, and its first members.
const STATISTICS: &str = "rtnl_link_stats64";
const NUMBERS: [&str; 6] = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors"];

impl KernelLayout {
    /// Returns the layout of no real kernel, for programs that are not loaded.
    #[must_use]
    pub const fn placeholder() -> Self {
        let direct = Direct {
            skb_length: 8,
            skb_length_of_rest: 8,
            skb_data: 8,
            state_in: 8,
            state_out: 8,
            route: 1,
            numbers: 1,
            dynptr_from_skb: KernelFunction { number: 2, arguments: 3 },
            cast: KernelFunction { number: 2, arguments: 2 },
        };
        Self {
            skb_conntrack: 8,
            skb_route: 8,
            route_device: 8,
            device_index: 8,
            device_name: 8,
            tuple: Tuple { begin: 8, source: 8, source_port: 8, destination: 8, destination_port: 8, protocol: 8 },
            access: Access::Direct(direct),
        }
    }

    /// Returns the attachment for which the layout is.
    #[must_use]
    pub const fn attachment(&self) -> Attachment {
        match self.access {
            Access::Direct(_) => Attachment::Link,
            Access::Copied { .. } => Attachment::Rule,
        }
    }

    /// Reads the layout from the kernel's BTF.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn read(attachment: Attachment, btf: &Btf) -> Result<Self, Missing> {
        Self::new(
            attachment,
            |structure, member| btf.offset(structure, member),
            |name| btf.structure(name),
            |name| btf.function(name),
        )
    }

    /// Returns the layout, given functions for the offset of a member, and for the numbers of
    /// structures and functions.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn new(
        attachment: Attachment,
        offset: impl Fn(&str, &str) -> Option<u32>,
        structure: impl Fn(&str) -> Option<u32>,
        function: impl Fn(&str) -> Option<u32>,
    ) -> Result<Self, Missing> {
        let near = |structure, member| {
            let found = offset(structure, member).and_then(|offset| i16::try_from(offset).ok());
            found.ok_or(Missing::Member { structure, member })
        };
        let within = |structure: &'static str, member: &'static str| {
            let room = if member.ends_with("u3") { 16 } else { 2 };
            let fits = |offset: &i16| *offset <= TUPLE - room;
            near(structure, member).ok().filter(fits).ok_or(Missing::Member { structure, member })
        };
        let structure = |name| structure(name).ok_or(Missing::Structure { name });
        let function = |name, arguments| {
            let number = function(name).ok_or(Missing::Function { name })?;
            Ok(KernelFunction { number, arguments })
        };
        let access = match attachment {
            Attachment::Link => {
                for (number, begin) in NUMBERS.into_iter().zip((0..).step_by(8)) {
                    if near(STATISTICS, number)? != begin {
                        return Err(Missing::Structure { name: STATISTICS });
                    }
                }
                Access::Direct(Direct {
                    skb_length: near("sk_buff", "len")?,
                    skb_length_of_rest: near("sk_buff", "data_len")?,
                    skb_data: near("sk_buff", "data")?,
                    state_in: near("nf_hook_state", "in")?,
                    state_out: near("nf_hook_state", "out")?,
                    route: structure("dst_entry")?,
                    numbers: structure(STATISTICS)?,
                    dynptr_from_skb: function("bpf_dynptr_from_skb", 3)?,
                    cast: function("bpf_rdonly_cast", 2)?,
                })
            }
            Attachment::Rule => Access::Copied { skb_device: near("sk_buff", "dev")? },
        };
        let tuple = "nf_conntrack_tuple";
        let in_tuple_hash = near("nf_conntrack_tuple_hash", "tuple")?;
        Ok(Self {
            skb_conntrack: near("sk_buff", "_nfct")?,
            skb_route: near("sk_buff", "_skb_refdst")?,
            route_device: near("dst_entry", "dev")?,
            device_index: near("net_device", "ifindex")?,
            device_name: near("net_device", "name")
                .ok()
                .filter(|offset| *offset <= i16::MAX - NAME)
                .ok_or(Missing::Member { structure: "net_device", member: "name" })?,
            tuple: Tuple {
                // The first of two tuples is that of the original direction.
                begin: i32::from(near("nf_conn", "tuplehash")?) + i32::from(in_tuple_hash),
                source: within(tuple, "src.u3")?,
                source_port: within(tuple, "src.u")?,
                destination: within(tuple, "dst.u3")?,
                destination_port: within(tuple, "dst.u")?,
                protocol: within(tuple, "dst.protonum")?,
            },
            access,
        })
    }
}
