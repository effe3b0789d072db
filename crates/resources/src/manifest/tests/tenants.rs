//! Objects of one namespace with labels of other namespaces.

use tortie_model::{Labels, PolicyKind, RuleAction};

use super::*;
use crate::Severity;
use crate::manifest::{PolicyNames, Resource, UnknownFields};

/// As in the inputs of a security review.
const NETWORK_SET: &str = r#"{"apiVersion": "projectcalico.org/v3", "kind": "NetworkSet", "metadata": {"name": "evil", "namespace": "dev",
 "labels": {"pcns.kubernetes.io/metadata.name": "prod", "projectcalico.org/orchestrator": "k8s",
  "projectcalico.org/namespace": "prod", "pcsa.app": "x", "projectcalico.org/other": "x", "app": "web"}},
 "spec": {"nets": ["0.0.0.0/0"]}}"#;
const POSING_POLICY: &str = r#"{"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy", "metadata": {"name": "default.e",
 "namespace": "dev", "annotations": {"projectcalico.org/metadata": METADATA}},
 "spec": {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow"}]}}"#;

fn only(text: &str, options: &Options) -> Resource {
    let mut manifest = read(text, Format::Yaml, options, &mut Interner::new());
    assert_eq!((manifest.resources.len(), &manifest.unreadable[..]), (1, &[][..]));
    manifest.resources.remove(0)
}

fn updates(resource: &Resource) -> &[Update] {
    match &resource.outcome {
        Outcome::Valid(updates) | Outcome::Invalid { substitute: Some(updates) } => updates,
        _ => &[],
    }
}

fn shown(labels: &Labels) -> Vec<String> {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[test]
fn a_network_set_takes_no_labels_of_the_platform() {
    let set = only(NETWORK_SET, &Options::default());
    let [Update::NetworkSet(_, Some(value))] = updates(&set) else { panic!("{set:?}") };
    assert_eq!(shown(&value.labels), ["app=web", "projectcalico.org/namespace=dev"]);
    assert_eq!(&*value.profiles, ["kns.dev".into()]);
    assert_eq!(set.problems.len(), 5, "{:?}", set.problems);
    for problem in &set.problems {
        assert_eq!((problem.severity, problem.position.line > 1), (Severity::Warning, true), "{problem}");
        assert!(problem.field.starts_with("metadata.labels[\"p"), "{problem}");
    }
}

#[test]
fn labels_of_the_platform_are_reserved_on_every_kind_that_selectors_match() {
    let labels = "labels: {pcns.a: x, pcsa.a: x, projectcalico.org/namespace: x, projectcalico.org/serviceaccount: x, \
                  projectcalico.org/orchestrator: x, projectcalico.org/created-by: kc, a: b}";
    for (text, expected) in [
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: dev, LABELS}, spec: {nodeName: n1}, status: \
             {podIP: 10.0.0.1}}",
            &[
                "a=b",
                "projectcalico.org/namespace=dev",
                "projectcalico.org/orchestrator=k8s",
                "projectcalico.org/serviceaccount=default",
            ][..],
        ),
        (
            "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: s, LABELS}}",
            &["a=b", "projectcalico.org/created-by=kc"],
        ),
        (
            "{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, LABELS}, spec: {node: n1, \
             interfaceName: eth0}}",
            &["a=b", "projectcalico.org/created-by=kc"],
        ),
        (
            "{apiVersion: projectcalico.org/v3, kind: WorkloadEndpoint, metadata: {name: n-k8s-p-eth0, namespace: dev, \
             LABELS}, spec: {node: 'n', orchestrator: k8s, pod: p, endpoint: eth0, interfaceName: cali1, \
             serviceAccountName: s, ipNetworks: [10.0.0.1/32]}}",
            &[
                "a=b",
                "projectcalico.org/created-by=kc",
                "projectcalico.org/namespace=dev",
                "projectcalico.org/orchestrator=k8s",
                "projectcalico.org/serviceaccount=s",
            ],
        ),
    ] {
        let resource = only(&text.replace("LABELS", labels), &Options::default());
        let labels = match updates(&resource) {
            [Update::WorkloadEndpoint(_, Some(endpoint))] => &endpoint.labels,
            [Update::HostEndpoint(_, Some(endpoint))] => &endpoint.labels,
            [Update::NetworkSet(_, Some(set))] => &set.labels,
            other => panic!("{other:?} {:?}", resource.problems),
        };
        assert_eq!(shown(labels), expected, "{text}");
        let warned = |label: &str| resource.problems.iter().any(|problem| problem.field.contains(label));
        assert!(warned("pcns.a") && warned("pcsa.a"), "{text}: {:?}", resource.problems);
    }
}

#[test]
fn the_name_of_a_namespace_or_an_account_cannot_be_forged() {
    for (kind, expected) in
        [("Namespace", "pcns.projectcalico.org/name=real"), ("ServiceAccount", "pcsa.projectcalico.org/name=real")]
    {
        let text = format!(
            "{{apiVersion: v1, kind: {kind}, metadata: {{name: real, labels: {{projectcalico.org/name: forged, pcns.x: z}}}}}}"
        );
        let resource = only(&text, &Options::default());
        let profile = updates(&resource).iter().find_map(|update| match update {
            Update::Profile(_, Some(profile)) => Some(shown(&profile.labels)),
            _ => None,
        });
        let labels = profile.unwrap();
        assert!(
            labels.contains(&expected.to_owned()) && labels.iter().all(|label| !label.contains("forged")),
            "{labels:?}"
        );
        assert!(labels.iter().all(|label| label.starts_with(&expected[..5])), "{labels:?}");
    }
}

#[test]
fn kept_metadata_is_checked_as_any() {
    let sources = [
        Options::default(),
        Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Plain, ..Options::default() },
        Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Prefixed, ..Options::default() },
    ];
    for (metadata, expected) in [
        (r#"{"name": "x\ny\u001b]0;title\u0007", "namespace": "prod"}"#, "is not a name"),
        (r#"{"name": "x", "namespace": "prod"}"#, "but the object is in namespace `dev`"),
        (r#"{"name": "X"}"#, "is not a name"),
        (r#"{"annotations": {"a\u001b": "x"}}"#, "is not a valid name of a label or annotation"),
        (r#"{"labels": {"a\n": "x"}}"#, "is not a valid name of a label or annotation"),
        (r#"{"labels": {"a": "x\ny"}}"#, "is not a value for label"),
    ] {
        for options in &sources {
            let text = POSING_POLICY.replace("METADATA", &serde_json::Value::from(metadata).to_string());
            let policy = only(&text, options);
            assert!(matches!(policy.outcome, Outcome::Invalid { .. }), "{metadata}");
            assert!(
                policy.problems.iter().any(|problem| problem.message.contains(expected)),
                "{metadata}: {:?}",
                policy.problems
            );
            let [Update::Policy(id, Some(denial))] = updates(&policy) else { panic!("{policy:?}") };
            assert_eq!((&id.kind, &*id.namespace), (&PolicyKind::NetworkPolicy, "dev"));
            assert!(matches!(&*id.name, "e" | "default.e"), "{id}");
            assert!(denial.inbound.iter().all(|rule| rule.action == RuleAction::Deny));
        }
    }
    let text = POSING_POLICY.replace("METADATA", r#""{\"name\": \"x\", \"namespace\": \"dev\"}""#);
    assert_eq!(only(&text, &Options::default()).id.unwrap().to_string(), "NetworkPolicy/dev/x");
}

#[test]
fn a_wrong_field_of_a_configuration_is_dropped_alone() {
    for name in ["default", "node.n", "some"] {
        let text = format!(
            "{{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {{name: {name}}}, spec: {{nodeSelector: all(), \
             chainInsertMode: 7, routeRefreshInterval: [x], failsafeInboundHostPorts: [{{protocol: TCP, port: 2222}}], \
             failsafeOutboundHostPorts: [{{protocol: TCP, port: 1}}, {{protocol: TCP, port: x}}]}}}}"
        );
        let resource = only(&text, &Options::default());
        assert!(matches!(resource.outcome, Outcome::Valid(_)), "{resource:?}");
        let fields: Vec<&str> = resource.problems.iter().map(|problem| &*problem.field).collect();
        let wrong = ["spec.chainInsertMode", "spec.routeRefreshInterval", "spec.failsafeOutboundHostPorts[1].port"];
        assert_eq!(fields, wrong);
        let names: Vec<String> = match updates(&resource) {
            [Update::ScopedConfig(_, Some(config))] => {
                config.parameters.iter().map(|(name, _)| name.to_string()).collect()
            }
            updates => updates.iter().map(|update| update.key().to_string()).collect(),
        };
        assert!(matches!(&names[..], [one] if one.contains("FailsafeInboundHostPorts")), "{names:?}");
    }
    for broken in ["spec: []", "spec: {nodeSelector: \"has(\"}", "metadata: {name: x, annotations: []}"] {
        let text =
            format!("{{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {{name: x}}, {broken}}}");
        let manifest = read(&text, Format::Yaml, &Options::default(), &mut Interner::new());
        assert!(matches!(manifest.resources[0].outcome, Outcome::Invalid { .. }), "{broken}");
    }
}

#[test]
fn mapped_networks_of_rules_are_ipv4() {
    let text = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: p}, spec: {ingress: [{action: \
                Deny, source: {nets: [\"::ffff:1.2.3.0/120\", \"::ffff:5.6.7.8\"]}}]}}";
    let policy = only(text, &Options::default());
    let [Update::Policy(_, Some(policy))] = updates(&policy) else { panic!("{policy:?}") };
    let nets: Vec<String> = policy.inbound[0].source.nets.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["1.2.3.0/24", "5.6.7.8/32"]);
}
