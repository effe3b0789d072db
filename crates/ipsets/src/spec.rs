//! The type and size of a set.

use std::fmt::Write as _;

use tortie_net::{Family, IpSetName};
use tortie_netfilter::SetType;

use crate::names::family_word;

/// Type and size of a set at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetSpec {
    set_type: SetType,
    limit: Limit,
    has_foreign_members: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Limit {
    MaxElements(u32),
    Ports { first: u16, last: u16 },
}

impl SetSpec {
    /// Felix's default for `MaxIpsetSize`.
    pub const DEFAULT_MAX_ELEMENTS: u32 = 1 << 20;

    /// Returns a specification of that type and of default size: 1,048,576 elements, or all ports.
    #[must_use]
    pub const fn new(set_type: SetType) -> Self {
        let limit = match set_type {
            SetType::BitmapPort => Limit::Ports { first: 0, last: u16::MAX },
            _ => Limit::MaxElements(Self::DEFAULT_MAX_ELEMENTS),
        };
        Self { set_type, limit, has_foreign_members: false }
    }

    /// Returns a `bitmap:port` set of the ports between `first` and `last`, in either order.
    #[must_use]
    pub fn port_range(first: u16, last: u16) -> Self {
        let limit = Limit::Ports { first: first.min(last), last: first.max(last) };
        Self { limit, ..Self::new(SetType::BitmapPort) }
    }

    /// Sets the maximum number of elements (`MaxIpsetSize`), at least one. Without effect on
    /// `bitmap:port`, whose size is its range.
    #[must_use]
    pub fn with_max_elements(mut self, max: u32) -> Self {
        if let Limit::MaxElements(limit) = &mut self.limit {
            *limit = max.max(1);
        }
        self
    }

    /// Leaves the members of the set to another program: the set is created without members,
    /// destroyed with all of them, and replaced only if its type differs. Members cannot be added.
    #[must_use]
    pub const fn with_foreign_members(self) -> Self {
        Self { has_foreign_members: true, ..self }
    }

    /// Reports whether another program keeps the members.
    #[must_use]
    pub const fn has_foreign_members(&self) -> bool {
        self.has_foreign_members
    }

    /// The type.
    #[must_use]
    pub const fn set_type(&self) -> SetType {
        self.set_type
    }

    /// Returns the maximum number of members.
    #[must_use]
    pub fn max_elements(&self) -> usize {
        match self.limit {
            Limit::MaxElements(max) => max as usize,
            Limit::Ports { first, last } => usize::from(last - first) + 1,
        }
    }

    /// Reports whether `port` is in the range of this `bitmap:port` set; false for other types.
    #[must_use]
    pub fn has_port(&self, port: u16) -> bool {
        matches!(self.limit, Limit::Ports { first, last } if (first..=last).contains(&port))
    }

    /// Writes the `create` line of a set with this specification.
    pub(crate) fn write_create(&self, out: &mut String, name: &IpSetName, family: Family) {
        let set_type = self.set_type;
        // Writing to a String cannot fail.
        let _ = match self.limit {
            Limit::MaxElements(max) => {
                let family = family_word(family);
                writeln!(out, "create {name} {set_type} family {family} maxelem {max}")
            }
            Limit::Ports { first, last } => {
                writeln!(out, "create {name} {set_type} range {first}-{last}")
            }
        };
    }
}
