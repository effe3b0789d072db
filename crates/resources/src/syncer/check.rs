//! Checks of resources that Calico makes before it passes them on: by the tags of its types
//! (`api/pkg/apis/projectcalico/v3`) and by `libcalico-go/lib/validator/v3`.

use tortie_model::Family;

use crate::object::{Kind, Object};
use crate::scalar;
use crate::tree::{Cursor, Map, Sink};
use crate::v3;

/// Reports the problems of a resource that the readers for Felix ignore or read only in part.
pub(super) fn resource(object: &Object<'_, '_>, sink: &mut Sink) {
    match object.id.kind {
        Kind::BgpFilter => bgp_filter(object, sink),
        Kind::CalicoNodeStatus => node_status(object, sink),
        Kind::Node => {
            let Some(spec) = object.map.field("spec").and_then(|spec| spec.map(sink)) else { return };
            spec.list("interfaces", sink, |interface, sink| {
                let interface = interface.map(sink)?;
                interface.text("name", sink);
                Some(interface.texts("addresses", sink))
            });
            spec.list("orchRefs", sink, |reference, sink| {
                let reference = reference.map(sink)?;
                reference.text("nodeName", sink);
                reference.text("orchestrator", sink)
            });
        }
        _ => {}
    }
}

fn node_status(object: &Object<'_, '_>, sink: &mut Sink) {
    let Some(spec) = object.required_spec(sink) else { return };
    spec.known(&["node", "classes", "updatePeriodSeconds"], sink);
    if spec.text_or_empty("node", sink).is_empty() {
        spec.missing("node", sink);
    }
    let mut seen = Vec::new();
    spec.list("classes", sink, |class, sink| {
        let text = class.text(sink)?;
        if !matches!(text, "Agent" | "BGP" | "Routes") {
            class.error(sink, format!("`{text}` is none of Agent, BGP, Routes"));
        }
        if seen.contains(&text) {
            class.error(sink, format!("`{text}` is given twice"));
        }
        seen.push(text);
        Some(())
    });
    if seen.is_empty() && !sink.has_errors() {
        spec.missing("classes", sink);
    }
    match spec.field("updatePeriodSeconds") {
        Some(period) => {
            period.int::<u32>(0, 86_400, sink);
        }
        None => spec.missing("updatePeriodSeconds", sink),
    }
}

fn bgp_filter(object: &Object<'_, '_>, sink: &mut Sink) {
    let Some(spec) = object.spec(sink) else { return };
    spec.known(&["exportV4", "importV4", "exportV6", "importV6"], sink);
    for (name, family) in
        [("exportV4", Family::V4), ("importV4", Family::V4), ("exportV6", Family::V6), ("importV6", Family::V6)]
    {
        spec.list(name, sink, |rule, sink| {
            filter_rule(rule.map(sink)?, family, sink);
            Some(())
        });
    }
}

const RULE: [&str; 11] = [
    "cidr",
    "prefixLength",
    "source",
    "interface",
    "matchOperator",
    "peerType",
    "communities",
    "asPathPrefix",
    "priority",
    "action",
    "operations",
];

fn filter_rule(rule: Map<'_, '_>, family: Family, sink: &mut Sink) {
    rule.known(&RULE, sink);
    if let Some(field) = rule.field("cidr").filter(|field| field.text(&mut Sink::default()) != Some(""))
        && let Some(cidr) = scalar::cidr(field, sink)
        && (cidr.family() != family || cidr != cidr.masked())
    {
        field.error(sink, format!("`{cidr}` is not an IPv{} network", family.number()));
    }
    if let Some(length) = rule.field("prefixLength").and_then(|length| length.map(sink)) {
        for name in ["min", "max"] {
            if let Some(field) = length.field(name) {
                field.int::<u8>(0, family.max_prefix_len().into(), sink);
            }
        }
    }
    one_of(rule, "source", &["RemotePeers"], sink);
    one_of(rule, "matchOperator", &["Equal", "NotEqual", "In", "NotIn"], sink);
    one_of(rule, "peerType", &["eBGP", "iBGP"], sink);
    if rule.text_or_empty("action", sink).is_empty() {
        rule.missing("action", sink);
    }
    one_of(rule, "action", &["Accept", "Reject"], sink);
    if let Some(field) = rule.field("interface")
        && let Some(text) = field.text(sink).filter(|text| !is_interface_pattern(text))
    {
        field.error(sink, format!("`{text}` is not the name of an interface, or a pattern of one"));
    }
    if let Some(communities) = rule.field("communities").and_then(|communities| communities.map(sink))
        && communities.texts("values", sink).is_empty()
    {
        communities.missing("values", sink);
    }
    rule.list("asPathPrefix", sink, v3::as_number);
    if let Some(field) = rule.field("priority") {
        priority(&field, sink);
    }
    rule.list("operations", sink, |operation, sink| {
        operation_of(operation.map(sink)?, sink);
        Some(())
    });
}

fn operation_of(operation: Map<'_, '_>, sink: &mut Sink) {
    operation.known(&["addCommunity", "prependASPath", "setPriority"], sink);
    if let Some(add) = operation.field("addCommunity").and_then(|add| add.map(sink))
        && add.text("value", sink).is_none()
    {
        add.missing("value", sink);
    }
    if let Some(prepend) = operation.field("prependASPath").and_then(|prepend| prepend.map(sink))
        && prepend.list("prefix", sink, v3::as_number).is_empty()
    {
        prepend.missing("prefix", sink);
    }
    if let Some(set) = operation.field("setPriority").and_then(|set| set.map(sink)) {
        match set.field("value") {
            Some(field) => priority(&field, sink),
            None => set.missing("value", sink),
        }
    }
}

fn priority(field: &Cursor<'_, '_>, sink: &mut Sink) {
    field.int::<u32>(1, 2_147_483_646, sink);
}

/// Checks that a field is empty or one of these words.
fn one_of(map: Map<'_, '_>, name: &str, words: &[&str], sink: &mut Sink) {
    if let Some(field) = map.field(name)
        && let Some(text) = field.text(sink)
        && !text.is_empty()
        && !words.contains(&text)
    {
        field.error(sink, format!("`{text}` is none of {}", words.join(", ")));
    }
}

fn is_interface_pattern(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'*' | b'-');
    text.len() <= 15 && text.bytes().all(known)
}
