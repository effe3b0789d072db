use std::fmt::Write as _;

use tortie_model::{HttpMatch, Interner, Update};

use super::{Format, Manifest, Options, Outcome, read, read_written};
use crate::Lint;

mod calico;
mod datastore;
mod deny_action;
mod domains;
mod invalid;
mod kubernetes;
mod switches;
mod tenants;
mod without_effect;

fn manifest(text: &str) -> Manifest {
    read(text, Format::Yaml, &Options::default(), &mut Interner::new())
}

/// Returns the contributions of a manifest. It must have no problems except known fields without
/// effect and HTTP matches.
fn contributions(text: &str) -> Vec<Update> {
    let manifest = manifest(text);
    assert_eq!(manifest.unreadable, []);
    let mut all = Vec::new();
    for resource in manifest.resources {
        let is_known = |message: &str| {
            message.starts_with(HttpMatch::NOT_ENFORCED)
                || message.starts_with("has no effect: ")
                || message.starts_with("is reserved for the platform")
        };
        let problems = resource.problems.iter().find(|problem| !is_known(&problem.message));
        assert_eq!(problems, None, "{}", resource.subject);
        match resource.outcome {
            Outcome::Valid(contributions) => all.extend(contributions),
            other => panic!("{other:?}"),
        }
    }
    all
}

fn only(text: &str) -> Update {
    contributions(text).swap_remove(0)
}

/// Returns the problems, one per line, in the format of `tortie check`.
fn problems(text: &str) -> String {
    let manifest = manifest(text);
    let mut lines = String::new();
    for error in &manifest.unreadable {
        let _ = writeln!(lines, "{error}");
    }
    for resource in &manifest.resources {
        for problem in &resource.problems {
            let _ = writeln!(lines, "{}: {}: {}: {problem}", problem.position, problem.severity, resource.subject);
        }
    }
    lines
}

#[test]
fn documents_and_lists() {
    let text = "
# nothing
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: a}}
- apiVersion: v1
  kind: NamespaceList
  items: [{apiVersion: v1, kind: Namespace, metadata: {name: b}}]
---
apiVersion: v1
kind: Namespace
metadata:
  name: c
---
";
    let names: Vec<_> = manifest(text).resources.into_iter().map(|r| r.subject).collect();
    assert_eq!(names, ["Namespace/a", "Namespace/b", "Namespace/c"]);
}

#[test]
fn json() {
    let text = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"x": "😀"}}}"#;
    let manifest = read(text, Format::Json, &Options::default(), &mut Interner::new());
    let problem = &manifest.resources[0].problems[0];
    assert_eq!(problem.position.to_string(), "1:79");
    assert_eq!(problem.field, "metadata.labels");
}

#[test]
fn a_broken_document_spares_the_others() {
    let text = "
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: [v1
kind: Namespace
---
apiVersion: v1
kind: Namespace
metadata: {name: c}
";
    let manifest = manifest(text);
    assert_eq!(manifest.unreadable.len(), 1);
    assert!(manifest.unreadable[0].position.line >= 6);
    let names: Vec<_> = manifest.resources.iter().map(|r| r.subject.as_str()).collect();
    assert_eq!(names, ["Namespace/a", "Namespace/c"]);
}

#[test]
fn an_unknown_kind_is_a_warning() {
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}";
    assert_eq!(
        problems(text),
        "1:29: warning: Deployment/a: kind: kind Deployment of apps/v1 is not known here and has no effect\n"
    );
    assert_eq!(manifest(text).resources[0].outcome, Outcome::Unknown);
}

#[test]
fn a_kind_that_looks_like_a_policy_is_an_error() {
    let text = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolcy, metadata: {name: a}}";
    assert_eq!(
        problems(text),
        "1:42: error: NetworkPolcy/a: kind: kind NetworkPolcy of networking.k8s.io/v1 is not known; is NetworkPolicy meant?\n"
    );
    assert_eq!(manifest(text).resources[0].outcome, Outcome::Invalid { substitute: None });
    for (api, kind) in [("networking.k8s.io/v1", "Ingress"), ("projectcalico.org/v3", "IPReservation")] {
        let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}}}");
        assert_eq!(manifest(&text).resources[0].outcome, Outcome::Unknown);
    }
}

#[test]
fn a_policy_of_another_version_is_an_error() {
    for (api, kind) in [
        ("v1", "NetworkPolicy"),
        ("projectcalico.org/v2", "GlobalNetworkPolicy"),
        ("policy.networking.k8s.io/v1", "ClusterNetworkPolicy"),
        ("policy.networking.k8s.io/v1alpha2", "AdminNetworkPolicy"),
    ] {
        let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}}}");
        let expected = format!("{kind} of {api} is not supported: nothing enforces it; is ");
        assert!(problems(&text).contains(&expected) && problems(&text).ends_with(" meant?\n"), "{}", problems(&text));
        assert_eq!(manifest(&text).resources[0].outcome, Outcome::Invalid { substitute: None });
        let text = format!("{{apiVersion: {api}, kind: {kind}List, items: [{{metadata: {{name: a}}}}]}}");
        assert_eq!(manifest(&text).resources[0].outcome, Outcome::Invalid { substitute: None });
    }
    // Every unknown kind causes a warning.
    for (api, kind) in [("cilium.io/v2", "CiliumNetworkPolicy"), ("projectcalico.org/v3", "BGPFilter")] {
        let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}}}");
        assert!(problems(&text).contains(": warning: "), "{}", problems(&text));
        assert_eq!(manifest(&text).resources[0].outcome, Outcome::Unknown);
    }
}

#[test]
fn obsolete_kinds_are_named_with_their_successors() {
    for (api, kind, severity, successor) in [
        ("extensions/v1beta1", "NetworkPolicy", "error", "write `networking.k8s.io/v1`"),
        ("v1", "policy", "error", "write `projectcalico.org/v3`, in which `policy` is GlobalNetworkPolicy"),
        ("v1", "ipPool", "warning", "write IPPool of `projectcalico.org/v3`"),
        ("policy/v1beta1", "PodSecurityPolicy", "warning", "its successor is Pod Security Admission"),
        ("discovery.k8s.io/v1beta1", "EndpointSlice", "warning", "write `discovery.k8s.io/v1`"),
    ] {
        let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}}}");
        let found = problems(&text);
        let expected = format!("{severity}: {kind}/a: kind: {kind} of {api} is obsolete (");
        assert!(found.contains(&expected) && found.contains(successor), "{found}");
        assert_eq!(found.lines().count(), 1);
        // An item of a list has no field to point at.
        let text = format!("{{apiVersion: {api}, kind: {kind}List, items: [{{metadata: {{name: a}}}}]}}");
        assert!(problems(&text).contains(&format!("{severity}: {kind}/a: {kind} of {api} is obsolete (")));
    }
    for (kind, tier) in [("AdminNetworkPolicy", "Admin"), ("BaselineAdminNetworkPolicy", "Baseline")] {
        let text = format!("{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: {kind}, metadata: {{name: a}}}}");
        let options = Options { lints: true, ..Options::default() };
        let read = read(&text, Format::Yaml, &options, &mut Interner::new());
        let lint = read.resources[0].problems.iter().find(|problem| problem.field == "apiVersion").unwrap();
        assert_eq!(lint.lint, Some(Lint::DeprecatedVersion));
        assert!(lint.message.ends_with(&format!("with `tier: {tier}`")), "{lint}");
    }
}

#[test]
fn kinds_for_other_programs_are_told_from_misspelt_ones() {
    for (api, kind, is_unused) in [
        ("apps/v1", "Deployment", true),
        ("v1", "ConfigMap", true),
        ("v1", "Secret", true),
        ("networking.k8s.io/v1", "Ingress", true),
        ("serving.knative.dev/v1", "Service", true),
        ("projectcalico.org/v3", "KubeControllersConfiguration", true),
        ("crd.projectcalico.org/v1", "IPAMHandle", true),
        ("cilium.io/v2", "CiliumNetworkPolicy", false),
        ("projectcalico.org/v3", "GlobalNetworkSett", false),
        ("projectcalico.org/v4", "Tier", false),
        ("v1", "Pods", false),
        ("discovery.k8s.io/v2", "EndpointSlice", false),
        ("policy/v1beta1", "PodSecurityPolicy", false),
    ] {
        let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}}}");
        let problems = &manifest(&text).resources[0].problems;
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].lint == Some(Lint::UnusedKind), is_unused, "{kind}: {}", problems[0]);
    }
}

#[test]
fn items_of_a_list_are_of_its_kind() {
    let text = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicyList
metadata: {resourceVersion: '1'}
items:
- {metadata: {name: a}, spec: {podSelector: {}}}
- {apiVersion: v1, kind: Namespace, metadata: {name: b}}
- {kind: NetworkPolicy, metadata: {name: c}, spec: {podSelector: {}}}
---
{apiVersion: v1, kind: PodList, items: null}
---
{apiVersion: apps/v1, kind: DeploymentList, items: [{metadata: {name: d}}]}
---
{apiVersion: v1, kind: List, items: [{metadata: {name: e}}]}
";
    let resources = manifest(text).resources;
    let subjects: Vec<_> = resources.iter().map(|r| (&*r.subject, matches!(r.outcome, Outcome::Valid(_)))).collect();
    let expected = [
        ("NetworkPolicy/default/a", true),
        ("Namespace/b", true),
        ("NetworkPolicy/c", false),
        ("Deployment/d", false),
        ("document", false),
    ];
    assert_eq!(subjects, expected);
    assert_eq!(resources[3].outcome, Outcome::Unknown);
}

#[test]
fn a_document_may_be_a_list_of_resources_and_of_their_lists() {
    let text = "
- {apiVersion: v1, kind: Namespace, metadata: {name: a}}
-
  apiVersion: networking.k8s.io/v1
  kind: NetworkPolicyList
  items:
  - {metadata: {name: b}, spec: {podSelektor: {}}}
- text
- [{apiVersion: v1, kind: Namespace, metadata: {name: c}}]
---
[]
---
- apiVersion: v1
  kind: Namespace
  metadata: {name: d}
";
    let resources = manifest(text).resources;
    let found: Vec<_> = resources.iter().map(|r| (r.position.to_string(), &*r.subject, r.problems.len())).collect();
    let expected = [
        ("2:3", "Namespace/a", 0),
        ("7:5", "NetworkPolicy/default/b", 1),
        ("8:3", "document", 1),
        ("9:3", "document", 1),
        ("13:3", "Namespace/d", 0),
    ];
    assert_eq!(found, expected.map(|(position, subject, problems)| (position.to_owned(), subject, problems)));
    assert_eq!(resources[1].problems[0].position.to_string(), "7:34");
    let json = r#" [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}]"#;
    let (manifest, written) = read_written(json, Format::Json, &Options::default(), &mut Interner::new());
    assert_eq!((&*manifest.resources[0].subject, written.len()), ("Namespace/a", 1));
}

#[test]
fn aliases_are_expanded_within_a_bound() {
    let text = "
apiVersion: v1
kind: Namespace
metadata:
  name: &name a
  labels: {x: *name}
";
    assert_eq!(contributions(text).len(), 2);
    let mut bomb = String::from("a: &a [1,1,1,1,1,1,1,1,1,1]\n");
    for level in 1..10u8 {
        let (this, last) = (char::from(b'a' + level), char::from(b'a' + level - 1));
        let _ = writeln!(bomb, "{this}: &{this} [*{last},*{last},*{last},*{last},*{last},*{last},*{last},*{last}]");
    }
    assert!(problems(&bomb).contains("aliases make the document too large"));
}

#[test]
fn read_written_returns_the_complete_documents() {
    let text = "
apiVersion: projectcalico.org/v3
kind: TierList
items:
- {metadata: {name: a, custom: 1}, spec: {order: 1.5, more: [true, null, 'x']}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: b}}
";
    let (manifest, written) = read_written(text, Format::Yaml, &Options::default(), &mut Interner::new());
    assert_eq!(manifest.resources.len(), 2);
    let tier = serde_json::json!({
        "metadata": {"name": "a", "custom": 1},
        "spec": {"order": 1.5, "more": [true, null, "x"]},
        "apiVersion": "projectcalico.org/v3",
        "kind": "Tier",
    });
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}});
    assert_eq!(written, [tier, namespace]);
}
