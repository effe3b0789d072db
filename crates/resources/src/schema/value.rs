//! Values with a format.

use std::net::IpAddr;

use tortie_model::{Family, parse_address};

use crate::object::{check_labels, is_dns_subdomain};
use crate::tree::{Cursor, Sink};
use crate::{scalar, v3};

/// Reads a text that must satisfy a condition.
pub(super) fn is(field: Cursor<'_, '_>, noun: &str, holds: impl FnOnce(&str) -> bool, sink: &mut Sink) {
    if let Some(text) = field.text(sink)
        && !holds(text)
    {
        field.error(sink, format!("`{text}` is not {noun}"));
    }
}

pub(super) fn name(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "a name", is_dns_subdomain, sink);
}

pub(super) fn selector(field: Cursor<'_, '_>, sink: &mut Sink) {
    scalar::selector(field, sink);
}

pub(super) fn as_number(field: Cursor<'_, '_>, sink: &mut Sink) {
    v3::as_number(field, sink);
}

pub(super) fn duration(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "a duration such as `90s` or `1m30s`", |text| crate::duration::parse(text).is_some(), sink);
}

/// Reads a network or an address.
pub(super) fn cidr(field: Cursor<'_, '_>, sink: &mut Sink) {
    scalar::cidr(field, sink);
}

/// Reads a network without host bits, or an address.
pub(super) fn net(field: Cursor<'_, '_>, sink: &mut Sink) {
    read_net(field, None, sink);
}

pub(super) fn net_v4(field: Cursor<'_, '_>, sink: &mut Sink) {
    read_net(field, Some(Family::V4), sink);
}

pub(super) fn net_v6(field: Cursor<'_, '_>, sink: &mut Sink) {
    read_net(field, Some(Family::V6), sink);
}

fn read_net(field: Cursor<'_, '_>, family: Option<Family>, sink: &mut Sink) {
    let Some(cidr) = scalar::cidr(field, sink) else { return };
    if cidr != cidr.masked() {
        field.error(sink, format!("`{cidr}` has host bits; the network is {}", cidr.masked()));
    }
    if let Some(family) = family.filter(|family| *family != cidr.family()) {
        field.error(sink, format!("`{cidr}` is not an IPv{} network", family.number()));
    }
}

pub(super) fn cidr_v4(field: Cursor<'_, '_>, sink: &mut Sink) {
    if let Some(cidr) = scalar::cidr(field, sink)
        && cidr.family() != Family::V4
    {
        field.error(sink, format!("`{cidr}` is not an IPv4 network"));
    }
}

pub(super) fn address(field: Cursor<'_, '_>, sink: &mut Sink) {
    scalar::address(field, sink);
}

pub(super) fn ipv4(field: Cursor<'_, '_>, sink: &mut Sink) {
    scalar::address_of(Family::V4, field, sink);
}

pub(super) fn ipv6(field: Cursor<'_, '_>, sink: &mut Sink) {
    scalar::address_of(Family::V6, field, sink);
}

pub(super) fn mac(field: Cursor<'_, '_>, sink: &mut Sink) {
    scalar::mac(field, sink);
}

pub(super) fn labels(field: Cursor<'_, '_>, sink: &mut Sink) {
    check_labels(&field.text_map(sink), field, sink);
}

/// Reads `ADDRESS`, `IPv4:PORT` or `[IPv6]:PORT`.
pub(super) fn peer_address(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "an address, `IPv4:PORT` or `[IPv6]:PORT`", |text| parse_peer(text).is_some(), sink);
}

/// Returns the address of a peer, which may have a port.
pub(super) fn parse_peer(text: &str) -> Option<IpAddr> {
    if let Some(address) = parse_address(text) {
        return Some(address);
    }
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => text.split_once(':')?,
    };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    parse_address(address).filter(|address| is_port && address.is_ipv6() == text.starts_with('['))
}

pub(super) fn community(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "a community such as `65001:20` or `65001:20:1`", is_community, sink);
}

/// Reports whether a text is a community of two numbers of 16 bits, or of three of 32 bits.
pub(super) fn is_community(text: &str) -> bool {
    let numbers: Vec<Option<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
    let most = match numbers.len() {
        2 => u32::from(u16::MAX),
        3 => u32::MAX,
        _ => return false,
    };
    let has_digits_only = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    has_digits_only && numbers.into_iter().all(|number| number.is_some_and(|number| number <= most))
}

fn is_pattern(text: &str, extra: &[u8]) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') || extra.contains(&byte);
    (1..=15).contains(&text.len()) && text.bytes().all(known)
}

/// Reads the name of an interface, or a pattern with `*`.
pub(super) fn interface_pattern(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "the name of an interface, or a pattern of one", |text| is_pattern(text, b"*"), sink);
}

/// As [`interface_pattern`], but not all interfaces.
pub(super) fn ignored_interface(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "the name of an interface, or a pattern of some", |text| text != "*" && is_pattern(text, b"*"), sink);
}

/// Reads the name of an interface, or a pattern that ends in `+`.
pub(super) fn interface_filter(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "the name of an interface, or a pattern of one", |text| is_pattern(text, b"+:"), sink);
}

pub(super) fn is_interface(text: &str) -> bool {
    is_pattern(text, b"")
}

pub(super) fn interface(field: Cursor<'_, '_>, sink: &mut Sink) {
    is(field, "the name of an interface", is_interface, sink);
}
