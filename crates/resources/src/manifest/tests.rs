use std::fmt::Write as _;

use tortie_model::{HttpMatch, Interner, Update};

use super::{Format, Manifest, Options, Outcome, read};

mod calico;
mod datastore;
mod invalid;
mod kubernetes;
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
        let is_known = |what: &str| {
            what.starts_with(HttpMatch::NOT_ENFORCED)
                || what.starts_with("has no effect: ")
                || what.starts_with("is reserved for the platform")
        };
        let problems = resource.problems.iter().find(|problem| !is_known(&problem.what));
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
        ("extensions/v1beta1", "NetworkPolicy"),
        ("v1", "NetworkPolicy"),
        ("projectcalico.org/v2", "GlobalNetworkPolicy"),
        ("policy.networking.k8s.io/v1", "ClusterNetworkPolicy"),
        ("policy.networking.k8s.io/v1alpha2", "AdminNetworkPolicy"),
    ] {
        let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}}}");
        let said = format!("{kind} of {api} is not supported: nothing enforces it; is ");
        assert!(problems(&text).contains(&said) && problems(&text).ends_with(" meant?\n"), "{}", problems(&text));
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
fn aliases_are_read_but_not_endlessly() {
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
fn what_is_written_stays_whole() {
    let text = "
apiVersion: projectcalico.org/v3
kind: TierList
items:
- {metadata: {name: a, custom: 1}, spec: {order: 1.5, more: [true, null, 'x']}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: b}}
";
    let (manifest, written) = super::read_written(text, Format::Yaml, &Options::default(), &mut Interner::new());
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
