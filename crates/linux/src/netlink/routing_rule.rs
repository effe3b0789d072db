//! Routing rules (`linux/fib_rules.h`).

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use tortie_dataplane::{RouteTableIndex, RoutingRule, RoutingRuleChange};
use tortie_model::Family;

use super::Netlink;
use super::error::NetlinkError;
use super::wire::{self, RTM_DELRULE, RTM_GETRULE, RTM_NEWRULE};

const HEADER_LEN: usize = 12;
const DESTINATION_LEN: usize = 1;
const SOURCE_LEN: usize = 2;
const TOS: usize = 3;
const TABLE: usize = 4;
const ACTION: usize = 7;
const FLAGS: usize = 8;

const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;
/// Number in the header for tables with numbers of more than a byte.
const RT_TABLE_UNSPEC: u8 = 0;

const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
/// Value of the kernel for a rule that suppresses nothing.
const NOTHING: u32 = u32::MAX;

/// Decodes a rule of the family; `None` for rules that do not lead to a table.
pub(super) fn parse(family: Family, kind: u16, payload: &[u8]) -> Result<Option<RoutingRule>, NetlinkError> {
    const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "rule" };
    if kind != RTM_NEWRULE {
        return Ok(None);
    }
    let Some((header, attributes)) = payload.split_first_chunk::<HEADER_LEN>() else { return Err(MALFORMED) };
    let at = |offset: usize| header.get(offset).copied().unwrap_or_default();
    if at(0) != wire::family_number(family) || at(ACTION) != FR_ACT_TO_TBL {
        return Ok(None);
    }
    let flags = header.get(FLAGS..).and_then(wire::number).ok_or(MALFORMED)?;
    let mut rule = RoutingRule {
        family,
        priority: 0,
        mark: 0,
        mask: 0,
        is_inverted: flags & FIB_RULE_INVERT != 0,
        table: RouteTableIndex(u32::from(at(TABLE))),
        has_more: at(DESTINATION_LEN) != 0 || at(SOURCE_LEN) != 0 || at(TOS) != 0,
    };
    wire::for_each_attribute("rule", attributes, |kind, value| {
        match kind {
            FRA_PRIORITY => rule.priority = wire::number(value)?,
            FRA_FWMARK => rule.mark = wire::number(value)?,
            FRA_FWMASK => rule.mask = wire::number(value)?,
            FRA_TABLE => rule.table = RouteTableIndex(wire::number(value)?),
            FRA_SUPPRESS_PREFIXLEN | FRA_SUPPRESS_IFGROUP => rule.has_more |= wire::number(value)? != NOTHING,
            FRA_PROTOCOL | FRA_PAD => {}
            _ => rule.has_more = true,
        }
        Some(())
    })?;
    Ok(Some(rule))
}

/// Encodes a rule to create, or to find for removal.
pub(super) fn encode(rule: &RoutingRule) -> Vec<u8> {
    let table = u8::try_from(rule.table.0).unwrap_or(RT_TABLE_UNSPEC);
    let mut payload = vec![wire::family_number(rule.family), 0, 0, 0, table, 0, 0, FR_ACT_TO_TBL];
    let flags = if rule.is_inverted { FIB_RULE_INVERT } else { 0 };
    payload.extend(flags.to_ne_bytes());
    for (kind, value) in
        [(FRA_PRIORITY, rule.priority), (FRA_FWMARK, rule.mark), (FRA_FWMASK, rule.mask), (FRA_TABLE, rule.table.0)]
    {
        payload.extend(wire::attribute(kind, &value.to_ne_bytes()));
    }
    payload
}

impl Netlink {
    /// Returns the rules of a family that lead to a table, in the order of their evaluation; none
    /// if the kernel lacks the family.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn routing_rules(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<RoutingRule>, NetlinkError> {
        let mut header = [0; HEADER_LEN];
        if let Some(first) = header.first_mut() {
            *first = wire::family_number(family);
        }
        let parse = |kind, payload: &[u8]| parse(family, kind, payload);
        let rules = match self.socket.dump_raw(RTM_GETRULE, &header, "rules", parse) {
            Err(error) if error.is_unsupported_family() => Vec::new(),
            rules => rules?,
        };
        Ok(rules.into_iter().filter(|rule| rule.table == table).collect())
    }

    /// Creates or removes a rule.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn change_routing_rule(&mut self, change: &RoutingRuleChange) -> Result<(), NetlinkError> {
        match change {
            RoutingRuleChange::Add(rule) => {
                self.socket.request_raw(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &encode(rule), "rule create")
            }
            RoutingRuleChange::Delete(rule) => self.socket.request_raw(RTM_DELRULE, 0, &encode(rule), "rule delete"),
        }
    }
}
