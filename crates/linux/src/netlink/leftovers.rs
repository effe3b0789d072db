//! Removal of objects of other programs: routing rules, routes outside of the main table, XDP
//! programs. Requests to remove repeat the kernel's listing.

use tortie_model::Family;

use super::Netlink;
use super::error::NetlinkError;
use super::wire::{self, RTM_DELRULE, RTM_GETRULE, RTM_NEWLINK, RTM_NEWROUTE, RTM_NEWRULE};

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const ROUTE_HEADER_LEN: usize = 12;
const RTA_TABLE: u16 = 15;
/// Route protocol of Calico (`RTPROT_CALICO`).
const PROTOCOL_CALICO: u8 = 80;

const RULE_HEADER_LEN: usize = 12;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
/// Routing tables that Felix uses (`RouteTableRanges`).
const FELIX_TABLES: std::ops::RangeInclusive<u32> = 1..=250;

const LINK_HEADER_LEN: usize = 16;
const IFLA_XDP: u16 = 43 | 0x8000;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
/// Modes of attachment, as the kernel reports them and as a request names them.
const XDP_MODES: [(u8, u32); 3] = [(1, 1 << 2), (2, 1 << 1), (3, 1 << 3)];
/// Programs are attached in several modes.
const XDP_ATTACHED_MULTI: u8 = 4;

/// Returns a header of twelve bytes with nothing but the family.
fn family_header(family: Family) -> Vec<u8> {
    let mut header = vec![0; ROUTE_HEADER_LEN];
    if let Some(first) = header.first_mut() {
        *first = wire::family_number(family);
    }
    header
}

/// Returns the table to which a rule of `WireGuard` leads; `None` for other rules.
fn wireguard_table(priority: u32, payload: &[u8]) -> Result<Option<u32>, NetlinkError> {
    let mut table = payload.get(4).map(|table| u32::from(*table));
    let (mut found_priority, mut has_mark) = (0, false);
    wire::for_each_attribute("rule", payload.get(RULE_HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            FRA_PRIORITY => found_priority = wire::number(value)?,
            FRA_FWMARK => has_mark = wire::number(value)? != 0 || has_mark,
            FRA_TABLE => table = Some(wire::number(value)?),
            _ => {}
        }
        Some(())
    })?;
    Ok(table.filter(|table| found_priority == priority && FELIX_TABLES.contains(table) && has_mark))
}

/// Reports whether a route is Calico's and in a table that only rules lead to.
fn is_outside_main(family: Family, payload: &[u8]) -> Result<bool, NetlinkError> {
    let mut table = payload.get(4).map(|table| u32::from(*table));
    wire::for_each_attribute("route", payload.get(ROUTE_HEADER_LEN..).unwrap_or_default(), |kind, value| {
        if kind == RTA_TABLE {
            table = Some(wire::number(value)?);
        }
        Some(())
    })?;
    let is_of_family = payload.first() == Some(&wire::family_number(family));
    Ok(is_of_family
        && payload.get(5) == Some(&PROTOCOL_CALICO)
        && table.is_some_and(|table| FELIX_TABLES.contains(&table)))
}

impl Netlink {
    /// Removes rules of a family that direct marked packets to Felix's tables; returns these
    /// tables.
    ///
    /// # Errors
    /// If the kernel cannot list them, or refuses.
    pub fn remove_wireguard_rules(&mut self, family: Family, priority: u32) -> Result<Vec<u32>, NetlinkError> {
        let found = self.socket.dump_raw(RTM_GETRULE, &family_header(family), "rules", |kind, payload| {
            let is_of_family = payload.first() == Some(&wire::family_number(family));
            let table = if kind == RTM_NEWRULE && is_of_family { wireguard_table(priority, payload)? } else { None };
            Ok(table.map(|table| (table, payload.to_vec())))
        })?;
        let mut tables = Vec::new();
        for (table, payload) in found {
            match self.socket.request_raw(RTM_DELRULE, 0, &aligned(payload), "rule delete") {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => tables.push(table),
            }
        }
        Ok(tables)
    }

    /// Removes Calico's routes in tables that only rules lead to; returns their number.
    ///
    /// # Errors
    /// If the kernel cannot list them, or refuses.
    pub fn remove_routes_outside_main(&mut self, family: Family) -> Result<usize, NetlinkError> {
        let found = self.socket.dump_raw(RTM_GETROUTE, &family_header(family), "routes", |kind, payload| {
            let is_ours = kind == RTM_NEWROUTE && is_outside_main(family, payload)?;
            Ok(is_ours.then(|| payload.to_vec()))
        })?;
        let mut count = 0;
        for payload in found {
            match self.socket.request_raw(RTM_DELROUTE, 0, &aligned(payload), "route delete") {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => count += 1,
            }
        }
        Ok(count)
    }

    /// Detaches the XDP program of an interface; reports whether there was one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach_xdp(&mut self, interface: u32) -> Result<bool, NetlinkError> {
        let mut header = vec![0_u8; LINK_HEADER_LEN];
        if let Some(index) = header.get_mut(4..8) {
            index.copy_from_slice(&interface.to_ne_bytes());
        }
        let attached = self.socket.query(RTM_GETLINK, &header, "device", |kind, payload| {
            let mut attached = 0;
            if kind != RTM_NEWLINK {
                return Ok(None);
            }
            wire::for_each_attribute("device", payload.get(LINK_HEADER_LEN..).unwrap_or_default(), |kind, value| {
                if kind == IFLA_XDP & 0x7fff {
                    let parsed = wire::for_each_attribute("XDP", value, |kind, value| {
                        if kind == IFLA_XDP_ATTACHED {
                            attached = *value.first()?;
                        }
                        Some(())
                    });
                    parsed.ok()?;
                }
                Some(())
            })?;
            Ok(Some(attached))
        })?;
        let is_attached = |mode: u8| attached == mode || attached == XDP_ATTACHED_MULTI;
        for (_, flag) in XDP_MODES.into_iter().filter(|(mode, _)| is_attached(*mode)) {
            self.detach_xdp_from(&header, flag)?;
        }
        Ok(attached != 0)
    }

    fn detach_xdp_from(&mut self, header: &[u8], flag: u32) -> Result<(), NetlinkError> {
        // An invalid file descriptor means no program.
        let descriptor = wire::attribute(IFLA_XDP_FD, &(-1_i32).to_ne_bytes());
        let flags = wire::attribute(IFLA_XDP_FLAGS, &flag.to_ne_bytes());
        let attribute = wire::attribute(IFLA_XDP, &[descriptor, flags].concat());
        self.socket.request_raw(RTM_SETLINK, 0, &[header, &attribute].concat(), "removal of an XDP program")
    }
}

/// Pads a payload of the kernel, whose last attribute may end anywhere.
fn aligned(mut payload: Vec<u8>) -> Vec<u8> {
    payload.resize(payload.len().next_multiple_of(4), 0);
    payload
}
