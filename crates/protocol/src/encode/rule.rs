//! The `Rule` message (`felix/calc/rule_convert.go`).

use std::sync::Arc;

use tortie_model::desired::{RuleView, SetIds};
use tortie_model::{Family, HttpMatch, HttpPath, NamespacedName, Protocol, ServiceAccountMatch};
use tortie_selector::Selector;

use super::Message;

/// Writes all fields except the rule id.
pub(super) fn rule<M: Message>(m: &mut M, view: RuleView<'_>) {
    let (rule, sets) = (view.rule, view.sets);
    let (src, dst) = (&rule.source, &rule.destination);
    m.text(1, "action", rule.action.as_str());
    m.choice(2, "ip_version", ip_version(view.ip_version()));
    protocol(m, 3, "protocol", rule.protocol);
    m.texts(4, "src_net", &src.nets);
    ports(m, 5, "src_ports", src.numeric_ports());
    m.texts(6, "dst_net", &dst.nets);
    ports(m, 7, "dst_ports", dst.numeric_ports());
    set_ids(m, 10, "src_ip_set_ids", &sets.src);
    set_ids(m, 11, "dst_ip_set_ids", &sets.dst);
    set_ids(m, 12, "src_named_port_ip_set_ids", &sets.src_named_ports);
    set_ids(m, 13, "dst_named_port_ip_set_ids", &sets.dst_named_ports);
    set_ids(m, 15, "dst_ip_port_set_ids", &sets.dst_ip_ports);
    protocol(m, 102, "not_protocol", rule.extras.not_protocol);
    m.texts(103, "not_src_net", &src.extras.not_nets);
    ports(m, 104, "not_src_ports", src.not_numeric_ports());
    m.texts(105, "not_dst_net", &dst.extras.not_nets);
    ports(m, 106, "not_dst_ports", dst.not_numeric_ports());
    set_ids(m, 109, "not_src_ip_set_ids", &sets.not_src);
    set_ids(m, 110, "not_dst_ip_set_ids", &sets.not_dst);
    set_ids(m, 112, "not_src_named_port_ip_set_ids", &sets.not_src_named_ports);
    set_ids(m, 113, "not_dst_named_port_ip_set_ids", &sets.not_dst_named_ports);
    let (src_original, dst_original) = (&src.extras.original, &dst.extras.original);
    let selectors = [
        (114, "original_src_selector", &src_original.selector),
        (115, "original_dst_selector", &dst_original.selector),
        (116, "original_src_namespace_selector", &src_original.namespace_selector),
        (117, "original_dst_namespace_selector", &dst_original.namespace_selector),
        (118, "original_not_src_selector", &src_original.not_selector),
        (119, "original_not_dst_selector", &dst_original.not_selector),
    ];
    for (number, name, selector) in selectors {
        m.text(number, name, selector.as_ref().map_or("", Selector::text));
    }
    service_accounts(m, 120, "src_service_account_match", &src_original.service_accounts);
    service_accounts(m, 121, "dst_service_account_match", &dst_original.service_accounts);
    if let Some(http) = &rule.extras.http {
        m.message(122, "http_match", |m| http_match(m, http));
    }
    if !rule.extras.annotations.is_empty() {
        m.message(123, "metadata", |m| m.map(1, "annotations", rule.extras.annotations.iter().map(text_pair)));
    }
    service(m, [(130, "original_dst_service"), (131, "original_dst_service_namespace")], dst.extras.service.as_deref());
    service(m, [(132, "original_src_service"), (133, "original_src_service_namespace")], src.extras.service.as_deref());
    // Go's serialiser writes the members of a `oneof` after all other fields, and rule ids hash its
    // output.
    icmp(m, [(8, "icmp_type"), (9, "icmp_type_code")], rule.extras.icmp_type, rule.extras.icmp_code);
    icmp(
        m,
        [(107, "not_icmp_type"), (108, "not_icmp_type_code")],
        rule.extras.not_icmp_type,
        rule.extras.not_icmp_code,
    );
}

fn text_pair((key, value): &(Arc<str>, Arc<str>)) -> (&str, &str) {
    (key, value)
}

fn ip_version(family: Option<Family>) -> (i64, &'static str) {
    match family {
        None => (0, "ANY"),
        Some(Family::V4) => (4, "IPV4"),
        Some(Family::V6) => (6, "IPV6"),
    }
}

fn protocol<M: Message>(m: &mut M, number: u32, name: &'static str, protocol: Option<Protocol>) {
    match protocol {
        None => {}
        Some(Protocol::Number(value)) => m.message(number, name, |m| m.present_integer(1, "number", value.into())),
        Some(Protocol::Named(value)) => m.message(number, name, |m| m.text(2, "name", value.as_str())),
    }
}

fn ports<M: Message>(m: &mut M, number: u32, name: &'static str, ports: impl Iterator<Item = (u16, u16)>) {
    m.messages(number, name, ports, |m, (first, last)| {
        m.integer(1, "first", first.into());
        m.integer(2, "last", last.into());
    });
}

/// Writes an ICMP type and code. As in Felix, a code without a type is lost.
fn icmp<M: Message>(m: &mut M, fields: [(u32, &'static str); 2], icmp_type: Option<u8>, code: Option<u8>) {
    let [(type_number, type_name), (both_number, both_name)] = fields;
    match (icmp_type, code) {
        (None, _) => {}
        (Some(icmp_type), None) => m.present_integer(type_number, type_name, icmp_type.into()),
        (Some(icmp_type), Some(code)) => m.message(both_number, both_name, |m| {
            m.integer(1, "type", icmp_type.into());
            m.integer(2, "code", code.into());
        }),
    }
}

fn set_ids<M: Message>(m: &mut M, number: u32, name: &'static str, ids: &SetIds) {
    m.texts(number, name, ids);
}

fn service_accounts<M: Message>(m: &mut M, number: u32, name: &'static str, accounts: &ServiceAccountMatch) {
    if *accounts != ServiceAccountMatch::default() {
        m.message(number, name, |m| {
            m.text(1, "selector", accounts.selector.as_ref().map_or("", Selector::text));
            m.texts(2, "names", &accounts.names);
        });
    }
}

fn http_match<M: Message>(m: &mut M, http: &HttpMatch) {
    m.texts(1, "methods", &http.methods);
    m.messages(2, "paths", &http.paths, |m, path| match path {
        HttpPath::Exact(path) => m.present_text(1, "exact", path),
        HttpPath::Prefix(path) => m.present_text(2, "prefix", path),
    });
}

fn service<M: Message>(m: &mut M, fields: [(u32, &'static str); 2], service: Option<&NamespacedName>) {
    let [name, namespace] = fields;
    if let Some(service) = service {
        m.text(name.0, name.1, &service.name);
        m.text(namespace.0, namespace.1, &service.namespace);
    }
}
