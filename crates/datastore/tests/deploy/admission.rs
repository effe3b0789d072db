//! The expressions of `deploy/tenants.yaml` decide as documented, evaluated with a stub of the API
//! server's authorizer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cel::extractors::This;
use cel::{Context, Program, to_value};
use serde_json::{Value, json};

use super::{deploy, documents};

/// The number of checks that the API server's cost limit leaves to one expression: 350,000 each of
/// 1,000,000.
const CHECKS: usize = 2;

/// A rule of RBAC and the namespace of its binding, or `None` for a cluster-wide binding.
type Grant = (Value, Option<&'static str>);

fn object(kind: &str, name: &str) -> Value {
    let found = documents(&deploy().join("tenants.yaml"))
        .into_iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("{kind} {name} is missing"))
}

/// Returns the rules of a shipped role.
fn role(name: &str, namespace: Option<&'static str>) -> Vec<Grant> {
    let rules = object("ClusterRole", name)["rules"].as_array().unwrap().clone();
    rules.into_iter().map(|rule| (rule, namespace)).collect()
}

/// Rights on a tier, as Calico's documentation grants them.
fn on_tier(tier: &str, resource: &str, name: &str, verb: &str, namespace: Option<&'static str>) -> Vec<Grant> {
    vec![
        (
            json!({"apiGroups": ["projectcalico.org"], "resources": ["tiers"], "resourceNames": [tier], "verbs": ["get"]}),
            None,
        ),
        (
            json!({"apiGroups": ["projectcalico.org"], "resources": [resource], "resourceNames": [name], "verbs": [verb]}),
            namespace,
        ),
    ]
}

/// Returns the decision of RBAC on a check, which is a map of `group`, `resource`, `namespace`,
/// `name` and `verb`.
fn allows((rule, bound_in): &Grant, check: &HashMap<String, String>) -> bool {
    let of = |field: &str| check.get(field).map_or("", String::as_str);
    let has =
        |field: &str, value: &str| rule[field].as_array().unwrap().iter().any(|text| text == value || text == "*");
    let named =
        rule.get("resourceNames").is_none_or(|names| names.as_array().unwrap().iter().any(|text| text == of("name")));
    bound_in.is_none_or(|namespace| namespace == of("namespace"))
        && has("apiGroups", of("group"))
        && has("resources", of("resource"))
        && has("verbs", of("verb"))
        && named
}

/// One request as the API server admits it.
struct Request {
    operation: &'static str,
    resource: &'static str,
    namespace: Option<&'static str>,
    object: Value,
    old: Value,
}

impl Request {
    fn new(operation: &'static str, resource: &'static str, object: Value, old: Value) -> Self {
        Self { operation, resource, namespace: Some("dev"), object, old }
    }

    fn create(resource: &'static str, object: Value) -> Self {
        Self::new("CREATE", resource, object, Value::Null)
    }

    fn context(
        &self,
        variables: &serde_json::Map<String, Value>,
        grants: &[Grant],
        count: &Arc<AtomicUsize>,
    ) -> Context<'static, 'static> {
        let mut context = Context::default();
        let mut request = json!({"operation": self.operation, "resource": {"resource": self.resource}});
        if let Some(namespace) = self.namespace {
            request["namespace"] = namespace.into();
        }
        for (name, value) in [
            ("request", &request),
            ("object", &self.object),
            ("oldObject", &self.old),
            ("variables", &Value::Object(variables.clone())),
            ("authorizer", &Value::from("")),
        ] {
            context.add_variable_from_value(name, to_value(value).unwrap());
        }
        // The stub collects lines of a field and its value; the API server has separate types.
        for field in ["group", "resource", "namespace", "name", "check"] {
            let of = if field == "check" { "verb" } else { field };
            let add = move |This(this): This<Arc<String>>, value: Arc<String>| format!("{this}{of}={value}\n");
            context.add_function(field, add).unwrap();
        }
        let (grants, count) = (grants.to_vec(), Arc::clone(count));
        let allowed = move |This(this): This<Arc<String>>| {
            count.fetch_add(1, Ordering::Relaxed);
            let fields = this.lines().filter_map(|line| line.split_once('='));
            let check = fields.map(|(field, value)| (field.to_owned(), value.to_owned())).collect();
            grants.iter().any(|grant| allows(grant, &check))
        };
        context.add_function("allowed", allowed).unwrap();
        context
    }

    /// Returns the messages of the validations that refuse the request.
    fn refusals(&self, policy: &str, grants: &[Grant]) -> Vec<String> {
        let policy = object("ValidatingAdmissionPolicy", policy);
        let mut variables = serde_json::Map::new();
        let evaluate = |variables: &serde_json::Map<String, Value>, expression: &Value| {
            let (text, count) = (expression.as_str().unwrap(), Arc::default());
            let program = Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let value = program.execute(&self.context(variables, grants, &count));
            let value = value.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(count.load(Ordering::Relaxed) <= CHECKS, "{text} costs more than the API server allows");
            value.json().unwrap()
        };
        for variable in policy["spec"]["variables"].as_array().unwrap() {
            let value = evaluate(&variables, &variable["expression"]);
            variables.insert(variable["name"].as_str().unwrap().to_owned(), value);
        }
        let mut refusals = Vec::new();
        for validation in policy["spec"]["validations"].as_array().unwrap() {
            if evaluate(&variables, &validation["expression"]) == Value::Bool(false) {
                let message = evaluate(&variables, &validation["messageExpression"]);
                refusals.push(message.as_str().unwrap().to_owned());
            }
        }
        refusals
    }

    #[track_caller]
    fn allowed(&self, policy: &str, grants: &[Grant]) {
        assert_eq!(self.refusals(policy, grants), Vec::<String>::new());
    }

    #[track_caller]
    fn refused(&self, policy: &str, grants: &[Grant], message: &str) {
        let refusals = self.refusals(policy, grants);
        assert!(refusals.iter().any(|refusal| refusal == message), "{message}: {refusals:?}");
    }
}

const TIERS: &str = "tortie-tenants-tiers";
const ADDRESSES: &str = "tortie-tenants-addresses";
const LABELS: &str = "tortie-tenants-labels";
const POLICIES: &str = "tier.networkpolicies";

fn policy(name: &str, tier: Option<&str>) -> Value {
    let mut policy =
        json!({"metadata": {"name": name, "namespace": "dev"}, "spec": {"selector": "all()", "order": -1}});
    if let Some(tier) = tier {
        policy["spec"]["tier"] = tier.into();
    }
    policy
}

/// Returns the permissions of an editor of the namespace `dev`.
fn editor() -> Vec<Grant> {
    [role("tortie-default-tier", None), role("tortie-default-tier-policies", Some("dev"))].concat()
}

#[test]
fn an_editor_of_a_namespace_writes_in_the_default_tier_only() {
    for tier in [None, Some(""), Some("default")] {
        Request::create("networkpolicies", policy("default.web", tier)).allowed(TIERS, &editor());
        Request::new("DELETE", "networkpolicies", Value::Null, policy("default.web", tier)).allowed(TIERS, &editor());
    }
    let open = policy("platform.open", Some("platform"));
    let create = Request::create("networkpolicies", open.clone());
    let refusals =
        ["no right to get the tier platform", "no right to create tier.networkpolicies platform.* or platform.open"];
    assert_eq!(create.refusals(TIERS, &editor()), refusals);
    let delete = Request::new("DELETE", "networkpolicies", Value::Null, open);
    delete.refused(TIERS, &editor(), "no right to delete tier.networkpolicies platform.* or platform.open");
    let mut elsewhere = Request::create("networkpolicies", policy("default.web", None));
    elsewhere.namespace = Some("prod");
    elsewhere.refused(TIERS, &editor(), "no right to create tier.networkpolicies default.* or default.web");
    Request::create("stagednetworkpolicies", policy("platform.open", Some("platform"))).refused(
        TIERS,
        &editor(),
        "no right to get the tier platform",
    );
}

#[test]
fn a_policy_of_a_tier_needs_its_verb_and_its_name() {
    let create = Request::create("networkpolicies", policy("platform.open", Some("platform")));
    for name in ["platform.*", "platform.open"] {
        create.allowed(TIERS, &on_tier("platform", POLICIES, name, "create", Some("dev")));
    }
    let message = "no right to create tier.networkpolicies platform.* or platform.open";
    for (resource, name, verb, namespace) in [
        (POLICIES, "platform.*", "update", "dev"),
        (POLICIES, "platform.other", "create", "dev"),
        (POLICIES, "other.*", "create", "dev"),
        (POLICIES, "platform.*", "create", "prod"),
        ("tier.globalnetworkpolicies", "platform.*", "create", "dev"),
    ] {
        create.refused(TIERS, &on_tier("platform", resource, name, verb, Some(namespace)), message);
    }
    let without_tier = &on_tier("platform", POLICIES, "platform.*", "create", None)[1..];
    assert_eq!(create.refusals(TIERS, without_tier), ["no right to get the tier platform"]);
    create.allowed(TIERS, &role("tortie-all-tiers", None));
}

#[test]
fn a_policy_changes_its_tier_with_rights_on_both() {
    let (of_default, of_platform) = (policy("open", None), policy("open", Some("platform")));
    let raise = Request::new("UPDATE", "networkpolicies", of_platform.clone(), of_default.clone());
    raise.refused(TIERS, &editor(), "no right to get the tier platform");
    let leave = Request::new("UPDATE", "networkpolicies", of_default, of_platform);
    leave.refused(TIERS, &editor(), "no right to get the tier platform, which the policy leaves");
    leave.refused(
        TIERS,
        &editor(),
        "no right to update tier.networkpolicies platform.* or open in the tier that the policy leaves",
    );
    let both = [editor(), on_tier("platform", POLICIES, "platform.*", "update", Some("dev"))].concat();
    raise.allowed(TIERS, &both);
    leave.allowed(TIERS, &both);
}

#[test]
fn global_policies_need_their_own_right() {
    let mut create = Request::create("globalnetworkpolicies", policy("platform.open", Some("platform")));
    create.namespace = None;
    create.allowed(TIERS, &on_tier("platform", "tier.globalnetworkpolicies", "platform.*", "create", None));
    let message = "no right to create tier.globalnetworkpolicies platform.* or platform.open";
    create.refused(TIERS, &on_tier("platform", POLICIES, "platform.*", "create", None), message);
}

const ANNOTATIONS: [&str; 5] = [
    "cni.projectcalico.org/podIP",
    "cni.projectcalico.org/podIPs",
    "vpc.amazonaws.com/pod-ips",
    "cni.projectcalico.org/floatingIPs",
    "cni.projectcalico.org/allowedSourcePrefixes",
];

fn pod(annotation: &str, value: &str) -> Value {
    json!({"metadata": {"name": "web", "namespace": "dev", "annotations": {annotation: value, "note": value}}})
}

#[test]
fn addresses_of_pods_need_their_right() {
    let plain = json!({"metadata": {"name": "web", "namespace": "dev"}});
    let plugin = role("tortie-pod-addresses", None);
    for name in ANNOTATIONS {
        let message = format!("no right to set-addresses of pods, which the annotation {name} needs");
        let requests = [
            Request::create("pods", pod(name, "10.65.0.9")),
            Request::create("bindings", pod(name, "10.65.0.9")),
            Request::new("UPDATE", "pods", pod(name, "10.65.0.9"), plain.clone()),
            Request::new("UPDATE", "pods", pod(name, "10.65.0.9"), pod(name, "10.65.0.8")),
            Request::new("UPDATE", "pods", plain.clone(), pod(name, "10.65.0.9")),
        ];
        for request in requests {
            request.refused(ADDRESSES, &editor(), &message);
            request.refused(ADDRESSES, &role("tortie-pod-addresses", Some("prod")), &message);
            request.allowed(ADDRESSES, &plugin);
            request.allowed(ADDRESSES, &role("tortie-pod-addresses", Some("dev")));
        }
        Request::new("UPDATE", "pods", pod(name, "10.65.0.9"), pod(name, "10.65.0.9")).allowed(ADDRESSES, &[]);
    }
    Request::create("pods", pod("cni.projectcalico.org/ipv4pools", "x")).allowed(ADDRESSES, &[]);
    Request::new("UPDATE", "pods", plain.clone(), plain.clone()).allowed(ADDRESSES, &[]);
    Request::create("pods", plain).allowed(ADDRESSES, &[]);
}

#[test]
fn network_sets_carry_no_reserved_label() {
    let set = |label: &str| json!({"metadata": {"name": "s", "namespace": "dev", "labels": {"role": "x", label: "y"}}});
    for label in ["pcns.projectcalico.org/name", "pcns.team", "pcsa.role", "pcnode.a", "projectcalico.org/namespace"] {
        let message = format!("the label {label} is reserved for endpoints");
        Request::create("networksets", set(label)).refused(LABELS, &role("tortie-all-tiers", None), &message);
        Request::new("UPDATE", "networksets", set(label), set(label)).refused(LABELS, &[], &message);
        let mut deleted = set(label);
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        Request::new("UPDATE", "networksets", deleted, set(label)).allowed(LABELS, &[]);
    }
    Request::create("networksets", set("team")).allowed(LABELS, &[]);
    Request::create("networksets", json!({"metadata": {"name": "s"}})).allowed(LABELS, &[]);
}

/// A request that a policy cannot evaluate is refused, and each policy has a binding.
#[test]
fn each_policy_fails_closed_and_is_bound() {
    for name in [TIERS, ADDRESSES, LABELS] {
        assert_eq!(object("ValidatingAdmissionPolicy", name)["spec"]["failurePolicy"], "Fail");
        let binding = object("ValidatingAdmissionPolicyBinding", name);
        assert_eq!(binding["spec"], json!({"policyName": name, "validationActions": ["Deny"]}));
    }
}
