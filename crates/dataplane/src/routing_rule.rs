//! Routing rules as data (`ip-rule(8)`).

use tortie_model::Family;

use crate::route::RouteTableIndex;

/// A rule by which packets take a table of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoutingRule {
    /// Its family.
    pub family: Family,
    /// Rules are asked in the order of their priorities.
    pub priority: u32,
    /// What the bits of `mask` are in the marks of packets that it is for.
    pub mark: u32,
    /// Which bits count.
    pub mask: u32,
    /// It is for all other packets instead (`not` in `ip rule`).
    pub is_inverted: bool,
    /// The table that packets take.
    pub table: RouteTableIndex,
    /// It asks for more than that. Only what the kernel lists is so.
    pub has_more: bool,
}

/// A change of one routing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum RoutingRuleChange {
    /// Make it.
    Add(RoutingRule),
    /// Remove one of its priority, mark, mask and table. The kernel takes the first, whatever else that asks for.
    Delete(RoutingRule),
}
