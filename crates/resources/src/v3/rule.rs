//! The rules of policies and profiles of `projectcalico.org/v3`.

use std::collections::HashSet;
use std::sync::Arc;

use tortie_model::{
    Cidr, DomainPattern, EntityExtras, EntityMatch, Family, HttpMatch, HttpPath, List, NamedProtocol, NamespacedName,
    OriginalMatch, PortSpec, Protocol, Rule, RuleAction, RuleExtras, ServiceAccountMatch, with_causes,
};
use tortie_selector::{Expr, Selector};

use super::selectors::{MISSES_NODES, SideSelectors, combination, misses_nodes, side_selector};
use crate::object::is_label_name;
use crate::scalar::{self, Spelling};
use crate::spelling::suggestion;
use crate::tree::{Cursor, Map, Sink};

/// Context of a rule that affects its meaning.
#[derive(Clone, Copy)]
pub(crate) struct RuleContext<'s> {
    /// The policy's namespace; empty for a global policy or a profile.
    pub(crate) namespace: &'s str,
    /// Whether the rule is about traffic to the endpoint.
    pub(crate) ingress: bool,
    /// Reason why egress rules of the object cannot have domains, if there is one.
    pub(crate) no_domains: Option<&'static str>,
}

pub(crate) fn rules(spec: Map<'_, '_>, name: &str, context: RuleContext<'_>, sink: &mut Sink) -> Arc<[Rule]> {
    Rule::list(spec.list(name, sink, |cursor, sink| {
        let rule = rule(cursor, context, sink)?;
        sink.rules_at(context.ingress, cursor.position(), 1);
        Some(rule)
    }))
}

fn rule(cursor: Cursor<'_, '_>, context: RuleContext<'_>, sink: &mut Sink) -> Option<Rule> {
    let map = cursor.map(sink)?;
    map.only(
        &[
            "action",
            "ipVersion",
            "protocol",
            "notProtocol",
            "icmp",
            "notICMP",
            "source",
            "destination",
            "http",
            "metadata",
        ],
        sink,
    );
    let mut protocol = |name: &str| map.field(name).and_then(|p| scalar::protocol(Spelling::Resource, p, sink));
    let (positive, negative) = (protocol("protocol"), protocol("notProtocol"));
    let (icmp_type, icmp_code) = icmp(map, "icmp", sink);
    let (not_icmp_type, not_icmp_code) = icmp(map, "notICMP", sink);
    let rule = Rule {
        action: action(map, sink),
        ip_version: map.field("ipVersion").and_then(|version| match version.int::<i64>(0, 255, sink)? {
            4 => Some(Family::V4),
            6 => Some(Family::V6),
            other => {
                version.error(sink, format!("must be 4 or 6, is {other}"));
                None
            }
        }),
        protocol: positive,
        source: side(map, "source", context, context.ingress, sink),
        destination: side(map, "destination", context, !context.ingress, sink),
        extras: RuleExtras {
            not_protocol: negative,
            icmp_type,
            icmp_code,
            not_icmp_type,
            not_icmp_code,
            http: map.field("http").and_then(|field| http(field, sink)).map(Box::new),
            annotations: annotations(map, sink),
        }
        .into(),
    };
    check(map, &rule, context, sink);
    Some(rule)
}

fn annotations(rule: Map<'_, '_>, sink: &mut Sink) -> List<(Arc<str>, Arc<str>)> {
    let Some(metadata) = rule.field("metadata").and_then(|metadata| metadata.map(sink)) else { return List::new() };
    metadata.known(&["annotations"], sink);
    let annotations = scalar::sorted_pairs(metadata, "annotations", sink);
    for (name, _) in &annotations {
        if !is_label_name(&name.to_ascii_lowercase()) {
            metadata.error(sink, format!("`{name}` is not the name of an annotation"));
        }
    }
    annotations
}

fn action(map: Map<'_, '_>, sink: &mut Sink) -> RuleAction {
    let Some(field) = map.field("action") else {
        map.missing("action", sink);
        return RuleAction::Deny;
    };
    match field.text(sink) {
        Some("Allow") => return RuleAction::Allow,
        Some("Deny") | None => return RuleAction::Deny,
        Some("Log") => return RuleAction::Log,
        Some("Pass") => return RuleAction::NextTier,
        Some(other) => {
            let message =
                format!("`{other}` is not an action; known are Allow, Deny, Log, Pass{}", action_suggestion(other));
            field.error(sink, message);
        }
    }
    RuleAction::Deny
}

/// Returns a hint for the name of an action in other firewalls.
fn action_suggestion(name: &str) -> String {
    let other = match &*name.to_ascii_lowercase() {
        "permit" | "accept" | "pass-through" => "Allow",
        "drop" | "reject" | "block" => "Deny",
        "continue" | "next" | "next-tier" => "Pass",
        "audit" => "Log",
        _ => return suggestion(name, &["Allow", "Deny", "Log", "Pass"]),
    };
    format!("; is `{other}` meant?")
}

fn icmp(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> (Option<u8>, Option<u8>) {
    let Some(fields) = map.field(name).and_then(|field| field.map(sink)) else { return (None, None) };
    fields.only(&["type", "code"], sink);
    let mut number = |name: &str, max| fields.field(name).and_then(|field| field.int(0, max, sink));
    let (kind, code) = (number("type", 254), number("code", 255));
    if kind.is_none() && code.is_some() && fields.field("type").is_none() {
        fields.error(sink, "must give a type if it gives a code");
    }
    (kind, code)
}

const SIDE_FIELDS: [&str; 10] = [
    "nets",
    "notNets",
    "selector",
    "notSelector",
    "namespaceSelector",
    "ports",
    "notPorts",
    "serviceAccounts",
    "services",
    "domains",
];

fn side(map: Map<'_, '_>, name: &str, context: RuleContext<'_>, peer: bool, sink: &mut Sink) -> EntityMatch {
    let Some(field) = map.field(name) else { return EntityMatch::default() };
    let Some(side) = field.map(sink) else { return EntityMatch::default() };
    side.only(&SIDE_FIELDS, sink);
    let sound = sink.problems.reports();
    let accounts = side.field("serviceAccounts").and_then(|accounts| accounts.map(sink));
    let (account_names, account_selector) = match &accounts {
        Some(accounts) => {
            accounts.only(&["names", "selector"], sink);
            let names = accounts.list("names", sink, account_name);
            (names, selector(*accounts, "selector", false, sink))
        }
        None => (Vec::new(), ""),
    };
    let written = SideSelectors {
        selector: selector(side, "selector", false, sink),
        not_selector: selector(side, "notSelector", false, sink),
        namespace_selector: selector(side, "namespaceSelector", true, sink),
        account_selector,
        account_names,
    };
    let is_sound = sink.problems.reports() == sound;
    let combined = side_selector(context.namespace, &written, &mut sink.selectors);
    let mut parse = |text: &str| {
        combination(text, &mut sink.selectors).unwrap_or_else(|error| {
            if is_sound {
                side.error(sink, with_causes(&error));
            }
            Selector::none()
        })
    };
    let combined = combined.map(|text| parse(&text));
    let not_selector = (!written.not_selector.is_empty()).then(|| parse(written.not_selector));
    if combined.as_ref().is_some_and(misses_nodes) {
        side.warn(sink, MISSES_NODES);
    }
    let original = OriginalMatch {
        selector: as_written(written.selector, sink),
        namespace_selector: as_written(written.namespace_selector, sink),
        not_selector: not_selector.clone(),
        service_accounts: ServiceAccountMatch {
            names: written.account_names.iter().map(|name| (*name).into()).collect(),
            selector: as_written(written.account_selector, sink),
        },
    };
    let extras = EntityExtras {
        not_nets: nets(side, "notNets", sink),
        not_selector,
        not_ports: side.list("notPorts", sink, scalar::port_spec).into(),
        service: service(side, context, peer, sink).map(Box::new),
        domains: domains(side, name, context, sink),
        original,
    };
    EntityMatch {
        nets: nets(side, "nets", sink),
        selector: combined,
        ports: side.list("ports", sink, scalar::port_spec).into(),
        extras: extras.into(),
    }
}

/// Returns a selector as written; it has been checked.
pub(crate) fn as_written(text: &str, sink: &mut Sink) -> Option<Selector> {
    if text.is_empty() { None } else { sink.selectors.parse(text).ok() }
}

fn account_name<'n>(cursor: Cursor<'n, '_>, sink: &mut Sink) -> Option<&'n str> {
    let name = cursor.text(sink)?;
    if name.is_empty() || name.contains(['"', '\'']) {
        cursor.error(sink, format!("`{name}` is not the name of a service account"));
        return None;
    }
    Some(name)
}

/// Reads a selector; empty if absent or blank. `global()` is valid only as a whole namespace
/// selector.
pub(crate) fn selector<'n>(map: Map<'n, '_>, name: &str, over_namespaces: bool, sink: &mut Sink) -> &'n str {
    let Some(field) = map.field(name) else { return "" };
    let Some(text) = field.text(sink) else { return "" };
    if text.trim_matches([' ', '\t']).is_empty() {
        return "";
    }
    match sink.selectors.parse(text) {
        Err(error) => field.error_within(sink, error.span(), format!("`{text}` is not a selector: {error}")),
        Ok(selector) => {
            let mut global = false;
            selector.expr().visit(&mut |expr| global |= *expr == Expr::Global);
            if global && over_namespaces && *selector.expr() != Expr::Global {
                field.error(sink, "`global()` must be the whole selector");
            } else if global && !over_namespaces {
                field.error(sink, "`global()` is for the namespace selector of a rule only");
            }
        }
    }
    text
}

/// Reads networks without host bits.
fn nets(side: Map<'_, '_>, name: &str, sink: &mut Sink) -> List<Cidr> {
    side.list(name, sink, scalar::net).into()
}

fn service(side: Map<'_, '_>, context: RuleContext<'_>, peer: bool, sink: &mut Sink) -> Option<NamespacedName> {
    let field = side.field("services")?;
    let map = field.map(sink)?;
    map.only(&["name", "namespace"], sink);
    let (name, namespace) = (map.text_or_empty("name", sink), map.text_or_empty("namespace", sink));
    if name.is_empty() {
        map.missing("name", sink);
    }
    for other in ["selector", "notSelector", "nets", "notNets", "serviceAccounts", "namespaceSelector"] {
        if side.field(other).is_some() {
            field.error(sink, format!("cannot be combined with `{other}`"));
        }
    }
    if !peer {
        field.error(sink, "can only be the source of an ingress rule or the destination of an egress rule");
    } else if !context.ingress && (side.field("ports").is_some() || side.field("notPorts").is_some()) {
        field.error(sink, "brings its own ports; `ports` and `notPorts` cannot be given with it");
    }
    // A service without a namespace belongs to that of the policy.
    let namespace = if namespace.is_empty() { context.namespace } else { namespace };
    if namespace.is_empty() {
        map.missing("namespace", sink);
    }
    Some(NamespacedName::new(namespace, name))
}

/// Reads the domains of a side, which only destinations of egress rules have, alone but for ports.
fn domains(side: Map<'_, '_>, name: &str, context: RuleContext<'_>, sink: &mut Sink) -> List<DomainPattern> {
    let Some(field) = side.field("domains") else { return List::new() };
    for other in SIDE_FIELDS.iter().filter(|other| !matches!(**other, "domains" | "ports" | "notPorts")) {
        if side.field(other).is_some() {
            field.error(sink, format!("cannot be combined with `{other}`"));
        }
    }
    if name != "destination" || context.ingress {
        field.error(sink, "can only be the destination of an egress rule");
    } else if let Some(reason) = context.no_domains {
        field.error(sink, reason);
    }
    scalar::domains_of_rule(side, "domains", sink)
}

fn http(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<HttpMatch> {
    let map = cursor.map(sink)?;
    map.only(&["methods", "paths"], sink);
    Some(HttpMatch {
        methods: methods(map, sink),
        paths: map
            .list("paths", sink, |path, sink| {
                let map = path.map(sink)?;
                map.only(&["exact", "prefix"], sink);
                let (exact, prefix) = (map.text("exact", sink), map.text("prefix", sink));
                for path in exact.iter().chain(&prefix) {
                    if !path.starts_with('/') || path.contains(['?', ' ', '#']) {
                        map.error(sink, format!("`{path}` is not a path: `/` first, without `?`, `#` and spaces"));
                    }
                }
                match (exact, prefix) {
                    (Some(exact), None) => Some(HttpPath::Exact(exact.into())),
                    (None, Some(prefix)) => Some(HttpPath::Prefix(prefix.into())),
                    _ => {
                        map.error(sink, "must give either `exact` or `prefix`");
                        None
                    }
                }
            })
            .into(),
    })
}

fn methods(http: Map<'_, '_>, sink: &mut Sink) -> Box<[Arc<str>]> {
    let mut earlier = HashSet::new();
    http.list("methods", sink, |method, sink| {
        let text = method.text(sink)?;
        if !earlier.insert(text) {
            method.error(sink, "is given twice");
        }
        Some(text.into())
    })
    .into()
}

/// Checks that concern several fields (`libcalico-go/lib/validator/v3/validator.go`).
fn check(map: Map<'_, '_>, rule: &Rule, context: RuleContext<'_>, sink: &mut Sink) {
    check_ports(map, rule, sink);
    check_families(map, rule, sink);
    if rule.action != RuleAction::Allow
        && let Some(side) = map.field("destination").and_then(|side| side.map(&mut Sink::default()))
        && let Some(field) = side.field("domains")
    {
        field.error(sink, "can only be part of an Allow rule");
    }
    for name in ["icmp", "notICMP"] {
        if let Some(field) = map.field(name) {
            let icmp = |p: Protocol| matches!(p.number(), 1 | 58);
            if !rule.protocol.is_some_and(icmp) {
                field.error(sink, "needs protocol ICMP or ICMPv6");
            }
        }
    }
    if let Some(field) = map.field("http") {
        field.warn(
            sink,
            format!("{} without `PolicySyncPathPrefix`; the rule is then left out", HttpMatch::NOT_ENFORCED),
        );
        if rule.action != RuleAction::Allow {
            field.error(sink, "can only be part of an Allow rule");
        }
        if rule.protocol.is_some_and(|p| p != Protocol::Named(NamedProtocol::Tcp)) {
            field.error(sink, "needs protocol TCP, or none");
        }
        if !context.ingress {
            field.error(sink, "can only be part of an ingress rule");
        }
    }
}

fn check_ports(map: Map<'_, '_>, rule: &Rule, sink: &mut Sink) {
    for (side_name, side) in [("source", &rule.source), ("destination", &rule.destination)] {
        for (name, ports) in [("ports", &side.ports), ("notPorts", &side.extras.not_ports)] {
            let message = match rule.protocol {
                None if ports.iter().any(|port| !matches!(port, PortSpec::Named(_))) => {
                    "by number need a protocol that has ports: TCP, UDP or SCTP"
                }
                Some(protocol) if !protocol.supports_ports() && !ports.is_empty() => {
                    "cannot be given with this protocol, which has none"
                }
                _ => continue,
            };
            if let Some(side) = map.field(side_name)
                && let Some(side) = side.map(&mut Sink::default())
                && let Some(field) = side.field(name)
            {
                field.error(sink, message);
            }
        }
    }
}

/// Checks that all networks of a rule belong to one family, which is that of the rule.
fn check_families(map: Map<'_, '_>, rule: &Rule, sink: &mut Sink) {
    let by_protocol = match rule.protocol.map(Protocol::number) {
        Some(1) => Some(Family::V4),
        Some(58) => Some(Family::V6),
        _ => None,
    };
    if let (Some(version), Some(family)) = (rule.ip_version, by_protocol)
        && version != family
        && let Some(field) = map.field("ipVersion")
    {
        field.error(sink, format!("does not fit the protocol, which is part of IPv{}", family.number()));
    }
    let mut family = rule.ip_version;
    for (side_name, side) in [("source", &rule.source), ("destination", &rule.destination)] {
        for (name, nets) in [("nets", &side.nets), ("notNets", &side.extras.not_nets)] {
            let foreign = nets.iter().any(|net| *family.get_or_insert(net.family()) != net.family());
            let everything = name == "notNets" && nets.iter().any(|net| net.prefix_len() == 0);
            if !foreign && !everything {
                continue;
            }
            if let Some(side) = map.field(side_name)
                && let Some(side) = side.map(&mut Sink::default())
                && let Some(field) = side.field(name)
            {
                if foreign {
                    field.error(sink, "mixes IPv4 and IPv6 within one rule");
                }
                if everything {
                    field.error(sink, "excludes every address");
                }
            }
        }
    }
}
