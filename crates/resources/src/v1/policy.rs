//! Policies, tiers and the rules of profiles.

use std::sync::Arc;

use tortie_model::{
    Cidr, DenyAction, EntityExtras, EntityMatch, Family, HttpMatch, HttpPath, List, NamespacedName, Order,
    OriginalMatch, Policy, PolicyId, PolicyTypes, ProfileRules, Rule, RuleAction, RuleExtras, ServiceAccountMatch,
    StagedAction, Tier, TierDefaultAction, TierName, Valid,
};
use tortie_selector::Selector;

use crate::scalar::{self, Spelling};
use crate::tree::{Cursor, Map, Sink};

pub(super) fn policy(map: Map<'_, '_>, tier: Option<TierName>, sink: &mut Sink) -> Policy {
    let tier = tier.or_else(|| map.text("tier", sink).filter(|t| !t.is_empty()).map(TierName::from));
    Policy {
        namespace: map.text("namespace", sink).filter(|ns| !ns.is_empty()).map(Arc::from),
        tier: tier.unwrap_or_else(TierName::default_tier),
        order: order(map, sink),
        selector: selector(map, "selector", sink).unwrap_or_default(),
        types: types(map, sink),
        inbound: rules(map, "inbound_rules", sink),
        outbound: rules(map, "outbound_rules", sink),
        untracked: map.flag("untracked", sink),
        pre_dnat: map.flag("pre_dnat", sink),
        apply_on_forward: map.flag("apply_on_forward", sink),
        needed_on_every_node: needed_on_every_node(map, sink),
        staged_action: map.field("staged_action").and_then(|action| match action.text(sink)? {
            "" => None,
            "Set" => Some(StagedAction::Set),
            "Learn" => Some(StagedAction::Learn),
            "Ignore" => Some(StagedAction::Ignore),
            other => {
                action.error(sink, format!("`{other}` is not a staged action of a policy that exists"));
                None
            }
        }),
        deny_action: deny_action(map),
    }
}

/// Returns the action on denied traffic, which calculations before this one have checked: an
/// annotation of another value drops.
fn deny_action(map: Map<'_, '_>) -> Option<DenyAction> {
    // Other annotations do not matter, whatever their form.
    let quiet = &mut Sink::default();
    let annotations = map.field("annotations")?.map(quiet)?;
    let text = annotations.text(DenyAction::ANNOTATION, quiet)?;
    Some(DenyAction::parse(text).unwrap_or(DenyAction::Drop))
}

/// Returns the denial in place of an unreadable policy: of the endpoints that it selects, or else
/// of all that it could select; `None` for a staged policy, which is never enforced.
pub(super) fn denial(id: &PolicyId, tier: Option<TierName>, root: Option<Cursor<'_, '_>>) -> Option<Valid<Policy>> {
    if id.kind.is_staged() {
        return None;
    }
    // Each field is read separately, because an unreadable one does not affect the others.
    let quiet = &mut Sink::default();
    let map = root.and_then(|root| root.map(quiet));
    let Some(map) = map else {
        let tier = tier.unwrap_or_else(TierName::default_tier);
        let place = Policy { tier, order: FIRST, types: PolicyTypes::BOTH, ..Policy::default() };
        return Some(place.denying(&id.kind, id.widest_selector()));
    };
    let mut of_types = Sink::default();
    let types = types(map, &mut of_types);
    let flag = |name: &str| map.field(name).and_then(|field| field.boolean(&mut Sink::default())).unwrap_or_default();
    let selector = match map.field("selector") {
        None => Selector::default(),
        Some(field) => scalar::selector(field, quiet).unwrap_or_else(|| id.widest_selector()),
    };
    let place = Policy {
        namespace: map.text("namespace", quiet).filter(|ns| !ns.is_empty()).map(Arc::from),
        tier: tier
            .or_else(|| map.text("tier", quiet).filter(|tier| !tier.is_empty()).map(TierName::from))
            .unwrap_or_else(TierName::default_tier),
        order: if map.field("order").is_some() { order(map, quiet).or(FIRST) } else { None },
        types: if of_types.has_errors() { PolicyTypes::BOTH } else { types },
        untracked: flag("untracked"),
        pre_dnat: flag("pre_dnat"),
        apply_on_forward: flag("apply_on_forward"),
        ..Policy::default()
    };
    Some(place.denying(&id.kind, selector))
}

/// Order of a denial without a readable order: first, or another policy might allow before it
/// denies.
const FIRST: Option<Order> = Order::new(f64::MIN);

fn order(map: Map<'_, '_>, sink: &mut Sink) -> Option<Order> {
    let field = map.field("order")?;
    let order = Order::new(field.float(sink)?);
    if order.is_none() {
        field.error(sink, "must be a number");
    }
    order
}

fn types(map: Map<'_, '_>, sink: &mut Sink) -> PolicyTypes {
    let mut types = PolicyTypes { ingress: false, egress: false };
    let words = map.list("types", sink, |word, sink| {
        match word.text(sink)? {
            "ingress" => types.ingress = true,
            "egress" => types.egress = true,
            other => word.error(sink, format!("`{other}` is neither ingress nor egress")),
        }
        Some(())
    });
    if words.is_empty() { PolicyTypes::BOTH } else { types }
}

fn needed_on_every_node(map: Map<'_, '_>, sink: &mut Sink) -> bool {
    const HINT: &str = "AssumeNeededOnEveryNode";
    let mut needed = false;
    map.list("performance_hints", sink, |hint, sink| {
        match hint.text(sink)? {
            HINT if needed => hint.error(sink, "is given twice"),
            HINT => needed = true,
            other => hint.error(sink, format!("`{other}` is not a known hint")),
        }
        Some(())
    });
    needed
}

pub(super) fn tier(map: Map<'_, '_>, sink: &mut Sink) -> Tier {
    let default_action = map.field("defaultAction").and_then(|action| match action.text(sink)? {
        "" => None,
        "Deny" => Some(TierDefaultAction::Deny),
        "Pass" => Some(TierDefaultAction::Pass),
        other => {
            action.error(sink, format!("`{other}` is neither Deny nor Pass"));
            None
        }
    });
    let order = order(map, sink);
    Tier { order, default_action: default_action.map(|action| action.denying_with(deny_action(map))) }
}

pub(super) fn profile_rules(map: Map<'_, '_>, sink: &mut Sink) -> ProfileRules {
    ProfileRules { inbound: rules(map, "inbound_rules", sink), outbound: rules(map, "outbound_rules", sink) }
}

fn rules(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> Arc<[Rule]> {
    Rule::list(map.list(name, sink, |rule, sink| rule.map(sink).map(|map| read_rule(map, sink))))
}

fn read_rule(map: Map<'_, '_>, sink: &mut Sink) -> Rule {
    let mut protocol = |name: &str| map.field(name).and_then(|p| scalar::protocol(Spelling::Lower, p, sink));
    let (positive, negative) = (protocol("protocol"), protocol("!protocol"));
    let mut icmp = |name: &str, max: i64| map.field(name).and_then(|n| n.int(0, max, sink));
    let extras = RuleExtras {
        not_protocol: negative,
        icmp_type: icmp("icmp_type", 254),
        icmp_code: icmp("icmp_code", 255),
        not_icmp_type: icmp("!icmp_type", 254),
        not_icmp_code: icmp("!icmp_code", 255),
        http: map.field("http").and_then(|http| http.map(sink)).map(|map| Box::new(http(map, sink))),
        annotations: map
            .field("metadata")
            .and_then(|metadata| metadata.map(sink))
            .map(|metadata| scalar::sorted_pairs(metadata, "annotations", sink))
            .unwrap_or_default(),
    };
    Rule {
        action: action(map, sink),
        ip_version: map.field("ip_version").and_then(|version| match version.int::<i64>(0, 255, sink)? {
            4 => Some(Family::V4),
            6 => Some(Family::V6),
            other => {
                version.error(sink, format!("must be 4 or 6, is {other}"));
                None
            }
        }),
        protocol: positive,
        source: side(&SOURCE, map, sink),
        destination: side(&DESTINATION, map, sink),
        extras: extras.into(),
    }
}

fn action(map: Map<'_, '_>, sink: &mut Sink) -> RuleAction {
    let Some(field) = map.field("action") else { return RuleAction::Unspecified };
    let Some(text) = field.text(sink) else { return RuleAction::Unspecified };
    // Old releases capitalized some of these words.
    let words = [RuleAction::Unspecified, RuleAction::Allow, RuleAction::Deny, RuleAction::Log, RuleAction::NextTier];
    words.into_iter().find(|action| action.as_str().eq_ignore_ascii_case(text)).unwrap_or_else(|| {
        field.error(sink, format!("`{text}` is not an action"));
        RuleAction::Unspecified
    })
}

/// Field names of one side of a rule.
pub(super) struct Side {
    /// The list, and the single network of older releases.
    pub(super) nets: [&'static str; 2],
    pub(super) not_nets: [&'static str; 2],
    pub(super) selector: &'static str,
    pub(super) not_selector: &'static str,
    pub(super) ports: &'static str,
    pub(super) not_ports: &'static str,
    /// Namespace and name.
    pub(super) service: [&'static str; 2],
    pub(super) domains: Option<&'static str>,
    /// Selector, namespace selector, negated selector, service account names, service account
    /// selector.
    pub(super) original: [&'static str; 5],
}

pub(super) const SOURCE: Side = Side {
    nets: ["src_nets", "src_net"],
    not_nets: ["!src_nets", "!src_net"],
    selector: "src_selector",
    not_selector: "!src_selector",
    ports: "src_ports",
    not_ports: "!src_ports",
    service: ["src_service_ns", "src_service"],
    domains: None,
    original: [
        "orig_src_selector",
        "orig_src_namespace_selector",
        "!orig_src_selector",
        "orig_src_service_acct_names",
        "orig_src_service_acct_selector",
    ],
};

pub(super) const DESTINATION: Side = Side {
    nets: ["dst_nets", "dst_net"],
    not_nets: ["!dst_nets", "!dst_net"],
    selector: "dst_selector",
    not_selector: "!dst_selector",
    ports: "dst_ports",
    not_ports: "!dst_ports",
    service: ["dst_service_ns", "dst_service"],
    domains: Some("dst_domains"),
    original: [
        "orig_dst_selector",
        "orig_dst_namespace_selector",
        "!orig_dst_selector",
        "orig_dst_service_acct_names",
        "orig_dst_service_acct_selector",
    ],
};

fn side(names: &Side, map: Map<'_, '_>, sink: &mut Sink) -> EntityMatch {
    let [own, namespace_selector, not_selector, accounts, account_selector] = names.original;
    let original = OriginalMatch {
        selector: selector(map, own, sink),
        namespace_selector: selector(map, namespace_selector, sink),
        not_selector: selector(map, not_selector, sink),
        service_accounts: ServiceAccountMatch {
            names: scalar::shared_texts(map, accounts, sink).into(),
            selector: selector(map, account_selector, sink),
        },
    };
    let [service_namespace, service] = names.service;
    let service = map.text_or_empty(service, sink);
    let service_namespace = map.text_or_empty(service_namespace, sink);
    let extras = EntityExtras {
        not_nets: nets(names.not_nets, map, sink),
        not_selector: selector(map, names.not_selector, sink),
        not_ports: map.list(names.not_ports, sink, scalar::port_spec).into(),
        service: (!service.is_empty()).then(|| NamespacedName::new(service_namespace, service).into()),
        domains: names.domains.map(|name| scalar::domains_of_rule(map, name, sink)).unwrap_or_default(),
        original,
    };
    EntityMatch {
        nets: nets(names.nets, map, sink),
        selector: selector(map, names.selector, sink),
        ports: map.list(names.ports, sink, scalar::port_spec).into(),
        extras: extras.into(),
    }
}

/// Reads the list, then the single network of older releases.
fn nets([many, one]: [&'static str; 2], map: Map<'_, '_>, sink: &mut Sink) -> List<Cidr> {
    let mut nets = map.list(many, sink, scalar::cidr);
    nets.extend(map.field(one).and_then(|net| scalar::cidr(net, sink)));
    nets.into()
}

/// Reads a selector; empty text restricts nothing.
fn selector(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> Option<Selector> {
    let field = map.field(name)?;
    field.text(sink).filter(|text| !text.is_empty())?;
    scalar::selector(field, sink)
}

fn http(map: Map<'_, '_>, sink: &mut Sink) -> HttpMatch {
    HttpMatch {
        methods: scalar::shared_texts(map, "methods", sink),
        paths: map
            .list("paths", sink, |path, sink| {
                let map = path.map(sink)?;
                let exact = map.text_or_empty("exact", sink);
                let prefix = map.text_or_empty("prefix", sink);
                Some(if exact.is_empty() { HttpPath::Prefix(prefix.into()) } else { HttpPath::Exact(exact.into()) })
            })
            .into(),
    }
}
