//! Policies of `projectcalico.org/v3`.

use std::sync::Arc;

use tortie_model::{Order, Policy, PolicyId, PolicyKind, PolicyTypes, StagedAction, TierName, Update, with_causes};
use tortie_selector::Selector;

use super::rule::{RuleContext, rules, selector};
use super::selectors::{combination, global_policy, namespaced_policy};
use super::tiers::{DEFAULT_TIER_ORDER, built_in_tier};
use crate::object::{Contributions, Kind, Meta, Object, PolicyNames, STORED_VERSION, StoredMeta, UnknownFields};
use crate::spelling::suggestion;
use crate::tree::{Cursor, Map, Sink};

/// Returns the name of a policy: that in the annotation with the metadata, or else without the
/// prefix that older releases put before names of the default tier; see [`PolicyNames`].
pub(crate) fn stored_policy_name(
    meta: &Meta<'_>,
    stored: Option<&StoredMeta<'_>>,
    names: PolicyNames,
    map: Map<'_, '_>,
) -> Arc<str> {
    if let Some(name) = stored.and_then(StoredMeta::name) {
        return name.into();
    }
    let mut quiet = Sink::default();
    let is_plain = match names {
        PolicyNames::Plain => true,
        PolicyNames::Prefixed => false,
        PolicyNames::Written => map.text("apiVersion", &mut quiet) != Some(STORED_VERSION),
    };
    if stored.is_none() && is_plain {
        return meta.name.into();
    }
    let tier = map.field("spec").and_then(|spec| spec.map(&mut quiet)?.text("tier", &mut quiet)).unwrap_or_default();
    match meta.name.strip_prefix("default.") {
        Some(name) if !name.is_empty() && matches!(tier, "" | "default") => name.into(),
        _ => meta.name.into(),
    }
}

pub(crate) fn policy_kind(kind: Kind) -> Option<PolicyKind> {
    Some(match kind {
        Kind::NetworkPolicy => PolicyKind::NetworkPolicy,
        Kind::GlobalNetworkPolicy => PolicyKind::GlobalNetworkPolicy,
        Kind::StagedNetworkPolicy => PolicyKind::StagedNetworkPolicy,
        Kind::StagedGlobalNetworkPolicy => PolicyKind::StagedGlobalNetworkPolicy,
        Kind::StagedKubernetesNetworkPolicy => PolicyKind::StagedKubernetesNetworkPolicy,
        Kind::KubernetesNetworkPolicy => PolicyKind::KubernetesNetworkPolicy,
        _ => return None,
    })
}

pub(crate) fn policy_id(object: &Object<'_, '_>) -> Option<PolicyId> {
    let kind = policy_kind(object.id.kind)?;
    Some(PolicyId::new(kind, Arc::clone(&object.id.namespace), Arc::clone(&object.id.name)))
}

const FIELDS: [&str; 9] = [
    "tier",
    "order",
    "ingress",
    "egress",
    "selector",
    "types",
    "serviceAccountSelector",
    "performanceHints",
    "stagedAction",
];
const GLOBAL_FIELDS: [&str; 4] = ["doNotTrack", "preDNAT", "applyOnForward", "namespaceSelector"];

/// Converts a policy; a staged deletion contributes nothing.
pub(crate) fn policy(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let global = matches!(object.id.kind, Kind::GlobalNetworkPolicy | Kind::StagedGlobalNetworkPolicy);
    let staged = matches!(object.id.kind, Kind::StagedGlobalNetworkPolicy | Kind::StagedNetworkPolicy);
    let spec = object.required_spec(sink)?;
    let known = FIELDS.iter().filter(|name| staged || **name != "stagedAction");
    let known: Vec<&str> = known.chain(if global { &GLOBAL_FIELDS[..] } else { &[] }).copied().collect();
    spec.known(&known, sink);

    let staged_action = if staged { staged_action(spec, sink) } else { None };
    if staged_action == Some(Staged::Delete) {
        // The types are dropped when the policy is stored.
        let deletable = ["stagedAction", "tier", "order", "types"];
        if let Some((name, field)) = spec.fields().find(|(name, _)| !deletable.contains(name)) {
            field.error(sink, format!("`{name}` has no meaning when the staged action is Delete"));
        }
        return Some(Vec::new());
    }
    let namespace = &*object.id.namespace;
    let untracked = global && spec.flag("doNotTrack", sink);
    let no_domains = untracked.then_some("cannot be combined with doNotTrack");
    let inbound = rules(spec, "ingress", RuleContext { namespace, ingress: true, no_domains }, sink);
    let outbound = rules(spec, "egress", RuleContext { namespace, ingress: false, no_domains }, sink);
    let policy = Policy {
        namespace: (!global).then(|| Arc::clone(&object.id.namespace)),
        tier: tier_name(spec, sink),
        order: order(spec, sink),
        selector: combined_selector(namespace, global, spec, sink),
        types: types(spec, object.options.unknown_fields, !inbound.is_empty(), !outbound.is_empty(), sink),
        untracked,
        pre_dnat: global && spec.flag("preDNAT", sink),
        apply_on_forward: global && spec.flag("applyOnForward", sink),
        needed_on_every_node: hints(spec, sink),
        staged_action: match staged_action {
            Some(Staged::Action(action)) => Some(action),
            _ => None,
        },
        deny_action: if staged { None } else { object.deny_action(sink) },
        inbound,
        outbound,
    };
    check(spec, &policy, sink);
    Some(vec![Update::Policy(policy_id(object)?, Some(object.root.valid(policy, sink)?))])
}

fn combined_selector(namespace: &str, global: bool, spec: Map<'_, '_>, sink: &mut Sink) -> Selector {
    let sound = sink.problems.reports();
    let own = selector(spec, "selector", false, sink);
    let accounts = selector(spec, "serviceAccountSelector", false, sink);
    let combined = if global {
        let namespaces = selector(spec, "namespaceSelector", false, sink);
        global_policy(own, namespaces, accounts, &mut sink.selectors)
    } else {
        namespaced_policy(namespace, own, accounts, &mut sink.selectors)
    };
    combination(&combined, &mut sink.selectors).unwrap_or_else(|error| {
        if sink.problems.reports() == sound {
            spec.error(sink, with_causes(&error));
        }
        Selector::none()
    })
}

pub(crate) fn tier_name(spec: Map<'_, '_>, sink: &mut Sink) -> TierName {
    spec.text("tier", sink).filter(|tier| !tier.is_empty()).map_or_else(TierName::default_tier, TierName::from)
}

pub(crate) fn order(spec: Map<'_, '_>, sink: &mut Sink) -> Option<Order> {
    let field = spec.field("order")?;
    let order = Order::new(field.float(sink)?).filter(|order| order.get().is_finite());
    if order.is_none() {
        field.error(sink, "must be a finite number");
    }
    order
}

/// Returns the declared types. If none is declared, these are the types with rules, as Calico fills
/// in when a policy is written (`api/pkg/defaults`). For a datastore, which another program has
/// written, they are both (`felix/calc/policy_sorter.go`).
fn types(spec: Map<'_, '_>, source: UnknownFields, ingress: bool, egress: bool, sink: &mut Sink) -> PolicyTypes {
    let mut types = PolicyTypes { ingress: false, egress: false };
    let count = spec.list("types", sink, |word, sink| {
        let seen = match word.text(sink)? {
            "Ingress" => &mut types.ingress,
            "Egress" => &mut types.egress,
            other => {
                let suggestion = suggestion(other, &["Ingress", "Egress"]);
                word.error(sink, format!("`{other}` is neither Ingress nor Egress{suggestion}"));
                return Some(());
            }
        };
        if *seen {
            word.error(sink, "is given twice");
        }
        *seen = true;
        Some(())
    });
    match source {
        _ if !count.is_empty() => types,
        UnknownFields::Refuse => PolicyTypes { ingress: ingress || !egress, egress },
        UnknownFields::Ignore => PolicyTypes::BOTH,
    }
}

fn hints(spec: Map<'_, '_>, sink: &mut Sink) -> bool {
    let mut needed = false;
    spec.list("performanceHints", sink, |hint, sink| {
        match hint.text(sink)? {
            "AssumeNeededOnEveryNode" if needed => hint.error(sink, "is given twice"),
            "AssumeNeededOnEveryNode" => needed = true,
            other => {
                let suggestion = suggestion(other, &["AssumeNeededOnEveryNode"]);
                hint.error(sink, format!("`{other}` is not a known hint{suggestion}"));
            }
        }
        Some(())
    });
    needed
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staged {
    Delete,
    Action(StagedAction),
}

/// Returns the action of a staged policy; `Set` if it is absent (`api/config/crd`).
pub(crate) fn staged_action(spec: Map<'_, '_>, sink: &mut Sink) -> Option<Staged> {
    let Some(field) = spec.field("stagedAction") else { return Some(Staged::Action(StagedAction::Set)) };
    match field.text(sink)? {
        "" => None,
        "Set" => Some(Staged::Action(StagedAction::Set)),
        "Learn" => Some(Staged::Action(StagedAction::Learn)),
        "Ignore" => Some(Staged::Action(StagedAction::Ignore)),
        "Delete" => Some(Staged::Delete),
        other => {
            let suggestion = suggestion(other, &["Set", "Delete", "Learn", "Ignore"]);
            field.error(
                sink,
                format!("`{other}` is not a staged action; known are Set, Delete, Learn, Ignore{suggestion}"),
            );
            None
        }
    }
}

fn check(spec: Map<'_, '_>, policy: &Policy, sink: &mut Sink) {
    let mut blame = |name: &str, message: &str| {
        if let Some(field) = spec.field(name) {
            field.error(sink, message);
        }
    };
    if policy.untracked && policy.pre_dnat {
        blame("preDNAT", "cannot be combined with doNotTrack");
    }
    if policy.pre_dnat {
        if !policy.outbound.is_empty() {
            blame("egress", "cannot be given with preDNAT");
        }
        if policy.types.egress {
            blame("types", "cannot include Egress with preDNAT");
        }
    }
    if !policy.apply_on_forward {
        for (set, name) in [(policy.untracked, "doNotTrack"), (policy.pre_dnat, "preDNAT")] {
            if set {
                blame(name, "needs applyOnForward");
            }
        }
    }
}

/// Returns a policy that denies the endpoints selected by an invalid one, in its declared
/// directions or else in both. If its selector is unreadable, it selects the whole namespace, or
/// the cluster, in a datastore; in a file the result is `None`.
pub(crate) fn substitute_policy(object: &Object<'_, '_>) -> Option<Contributions> {
    let sink = &mut Sink::default();
    let global = object.id.kind == Kind::GlobalNetworkPolicy;
    let spec = object.map.field("spec")?.map(sink)?;
    let selector_fields = ["selector", "namespaceSelector", "serviceAccountSelector"];
    let known = |name: &str| FIELDS.contains(&name) || GLOBAL_FIELDS.contains(&name);
    // An unknown field may be a misspelt selector.
    if spec.fields().any(|(name, _)| !known(name)) && spec.field("selector").is_none() {
        return None;
    }
    if !global && spec.field("namespaceSelector").is_some() {
        return None;
    }
    let id = policy_id(object)?;
    let selector = combined_selector(&object.id.namespace, global, spec, sink);
    let selector = match object.options.unknown_fields {
        // A reader of a datastore continues, so it needs a substitute; an invalid policy in a file
        // prevents the start.
        UnknownFields::Ignore if sink.has_errors() => id.widest_selector(),
        _ if sink.has_errors() => return None,
        _ => selector,
    };
    if selector_fields.iter().all(|name| spec.field(name).is_none()) && spec.is_empty() {
        return None;
    }
    let mut quiet = Sink::default();
    let types = match spec.field("types") {
        Some(_) => types(spec, object.options.unknown_fields, true, true, &mut quiet),
        None => PolicyTypes::BOTH,
    };
    let flag = |name: &str| spec.field(name).and_then(|field| field.boolean(&mut Sink::default())).unwrap_or_default();
    let place = Policy {
        namespace: (!global).then(|| Arc::clone(&object.id.namespace)),
        tier: tier_name(spec, &mut Sink::default()),
        // Without a readable order it must come first, or another policy might allow before it
        // denies.
        order: match spec.field("order") {
            Some(_) => order(spec, &mut Sink::default()).or_else(|| Order::new(f64::MIN)),
            None => None,
        },
        types: if quiet.has_errors() { PolicyTypes::BOTH } else { types },
        untracked: global && flag("doNotTrack"),
        pre_dnat: global && flag("preDNAT"),
        apply_on_forward: global && flag("applyOnForward"),
        ..Policy::default()
    };
    let denial = place.denying(&id.kind, selector);
    Some(vec![Update::Policy(id, Some(denial))])
}

/// Reads a `Tier`. A tier without an order has that of the default tier, also in a datastore
/// (`libcalico-go/lib/resources/tier.go`, `libcalico-go/lib/backend/k8s/resources/tiers.go`). The
/// annotation of its action on denied traffic is no part of its specification, so that a built-in
/// tier may have it as well.
pub(crate) fn tier(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    use tortie_model::{DenyAction, Tier, TierDefaultAction};
    let spec = object.spec(sink);
    let mut tier = Tier { order: Order::new(DEFAULT_TIER_ORDER.into()), default_action: Some(TierDefaultAction::Deny) };
    if let Some(spec) = spec {
        spec.known(&["order", "defaultAction"], sink);
        if spec.field("order").is_some() {
            tier.order = order(spec, sink);
        }
        if let Some(field) = spec.field("defaultAction") {
            match field.text(sink) {
                Some("Pass") => tier.default_action = Some(TierDefaultAction::Pass),
                Some("Deny" | "") | None => {}
                Some(other) => {
                    let suggestion = suggestion(other, &["Deny", "Pass"]);
                    field.error(sink, format!("`{other}` is neither Deny nor Pass{suggestion}"));
                }
            }
        }
    }
    check_built_in(object.root, &object.id.name, &tier, sink);
    if let Some(action) = object.deny_action(sink) {
        if tier.default_action == Some(TierDefaultAction::Pass) {
            object.warn_of_annotation(
                DenyAction::ANNOTATION,
                "has no effect: the tier passes traffic at its end",
                sink,
            );
        }
        tier.default_action = tier.default_action.map(|end| end.denying_with(Some(action)));
    }
    Some(vec![Update::Tier(TierName::new(Arc::clone(&object.id.name)), Some(tier))])
}

/// Checks that built-in tiers have their fixed order and default action.
fn check_built_in(root: Cursor<'_, '_>, name: &str, tier: &tortie_model::Tier, sink: &mut Sink) {
    let Some(built_in) = built_in_tier(name) else { return };
    if *tier != built_in.tier() {
        let (order, action) = (built_in.order, built_in.default_action.as_str());
        root.error(sink, format!("tier {name} must have order {order} and default action {action}"));
    }
}
