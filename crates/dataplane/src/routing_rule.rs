//! Types of routing rules (`ip-rule(8)`).

use tortie_model::Family;

use crate::route::RouteTableIndex;

/// A routing rule, which directs packets to a routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoutingRule {
    /// Its family.
    pub family: Family,
    /// Its priority; the kernel evaluates rules in ascending order.
    pub priority: u32,
    /// Value of the bits of `mask` in the marks of matching packets.
    pub mark: u32,
    /// Bits of the mark that are compared.
    pub mask: u32,
    /// Whether the rule matches all other packets instead (`not` in `ip rule`).
    pub is_inverted: bool,
    /// Table to which the rule directs packets.
    pub table: RouteTableIndex,
    /// Whether the rule has further conditions; only true for rules that were read from the kernel.
    pub has_more: bool,
}

/// A change of a routing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum RoutingRuleChange {
    /// Add the rule.
    Add(RoutingRule),
    /// Remove a rule with the same priority, mark, mask and table. The kernel removes the first
    /// such rule, whatever further conditions it has.
    Delete(RoutingRule),
}
