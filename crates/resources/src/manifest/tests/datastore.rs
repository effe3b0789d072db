//! Objects in the form of datastores and API servers.

use tortie_model::{Interner, Update};

use crate::Severity;
use crate::manifest::{Kind, Options, Outcome, PolicyNames, Resource, UnknownFields, read_object};

fn object(kind: Kind, json: &str) -> Resource {
    let options =
        Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Prefixed, ..Options::default() };
    read_object(json, kind, &options, &mut Interner::new()).expect("JSON")
}

fn contributions(kind: Kind, json: &str) -> Vec<Update> {
    let resource = object(kind, json);
    assert_eq!(resource.problems, [], "{}", resource.subject);
    match resource.outcome {
        Outcome::Valid(contributions) => contributions,
        other => panic!("{other:?}"),
    }
}

/// The form is that of `calicoctl` in etcd.
#[test]
fn objects_of_etcd() {
    let policy = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.deny",
        "uid":"4a7f1b57-6f2e-4a2b-9f0f-0c1d5a3f9d11","creationTimestamp":"2026-01-02T03:04:05Z"},
        "spec":{"tier":"default","selector":"all()","types":["Ingress"]}}"#;
    let found = contributions(Kind::GlobalNetworkPolicy, policy);
    assert!(matches!(&found[0], Update::Policy(id, _) if &*id.name == "deny"), "{found:?}");
    let endpoint = r#"{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{
        "name":"n1-k8s-web--1-eth0","namespace":"shop","creationTimestamp":null,"resourceVersion":"",
        "labels":{"app":"web","projectcalico.org/namespace":"shop","projectcalico.org/orchestrator":"k8s"}},
        "spec":{"orchestrator":"k8s","node":"n1","pod":"web-1","endpoint":"eth0","ipNetworks":["10.0.0.1/32"],
        "profiles":["kns.shop"],"interfaceName":"cali1","newerField":{"a":1}}}"#;
    let found = contributions(Kind::WorkloadEndpoint, endpoint);
    assert!(matches!(&found[0], Update::WorkloadEndpoint(key, _) if key.workload() == "shop/web-1"));
}

/// The metadata of `crd.projectcalico.org/v1` objects cannot hold Calico's labels and names.
#[test]
fn metadata_kept_in_an_annotation() {
    let policy = r#"{"apiVersion":"crd.projectcalico.org/v1","kind":"NetworkPolicy","metadata":{"name":"default.web",
        "namespace":"shop","uid":"1","generation":3,"resourceVersion":"77","creationTimestamp":"2026-01-02T03:04:05Z",
        "managedFields":[{"manager":"Go-http-client","operation":"Update","fieldsV1":{"f:metadata":{}}}],
        "annotations":{"projectcalico.org/metadata":"{\"name\":\"default.web\",\"creationTimestamp\":null}"}},
        "spec":{"selector":"all()"}}"#;
    let resource = object(Kind::NetworkPolicy, policy);
    assert_eq!(resource.subject, "NetworkPolicy/shop/default.web");
    // Without an annotation `x` and `default.x` are two policies there; older releases wrote one
    // without a name.
    let plain =
        Options { policy_names: PolicyNames::Plain, unknown_fields: UnknownFields::Ignore, ..Options::default() };
    for (annotations, name) in [("{}", "default.web"), (r#"{"projectcalico.org/metadata":"{}"}"#, "web")] {
        let policy = format!(
            r#"{{"metadata":{{"name":"default.web","namespace":"shop","annotations":{annotations}}},"spec":{{}}}}"#
        );
        let resource = read_object(&policy, Kind::NetworkPolicy, &plain, &mut Interner::new()).unwrap();
        assert_eq!(resource.subject, format!("NetworkPolicy/shop/{name}"));
    }
    let set = r#"{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkSet","metadata":{"name":"s",
        "labels":{"operator.tigera.io/x":"1","role":"old"},"annotations":{"projectcalico.org/metadata":
        "{\"creationTimestamp\":\"2026-01-02T03:04:05Z\",\"labels\":{\"role\":\"db\"}}"}},"spec":{"nets":["10.0.0.0/8"]}}"#;
    let found = contributions(Kind::GlobalNetworkSet, set);
    let Update::NetworkSet(_, Some(set)) = &found[0] else { panic!() };
    assert_eq!(set.labels.get("role"), Some("db"));
    assert_eq!(set.labels.get("operator.tigera.io/x"), Some("1"));
    let broken = r#"{"metadata":{"name":"s","annotations":{"projectcalico.org/metadata":"{"}},"spec":{}}"#;
    let broken = object(Kind::GlobalNetworkSet, broken);
    assert!(matches!(broken.outcome, Outcome::Invalid { .. }));
    assert!(broken.problems[0].message.contains("is not JSON"));
}

#[test]
fn objects_of_the_api_server() {
    // A list item has neither `kind` nor `apiVersion`.
    let pod = r#"{"metadata":{"name":"p","namespace":"shop","uid":"1","ownerReferences":[{"kind":"ReplicaSet"}],
        "labels":{"app":"web"}},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i","ports":[
        {"name":"http","containerPort":80,"protocol":"TCP"}],"securityContext":{}}],"tolerations":[{}]},
        "status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"conditions":[{}]}}"#;
    let found = contributions(Kind::Pod, pod);
    let Update::WorkloadEndpoint(_, Some(endpoint)) = &found[0] else { panic!() };
    assert_eq!(endpoint.ports.len(), 1);
    let policy = r#"{"metadata":{"name":"p","namespace":"shop"},"spec":{"podSelector":{},"policyTypes":["Ingress"],
        "ingress":null},"status":{}}"#;
    assert_eq!(contributions(Kind::KubernetesNetworkPolicy, policy).len(), 1);
}

#[test]
fn an_unknown_field_is_ignored_unless_it_may_narrow_a_match() {
    let policy = |spec: &str| {
        let json = format!(r#"{{"metadata":{{"name":"p","namespace":"n"}},"spec":{spec}}}"#);
        object(Kind::NetworkPolicy, &json)
    };
    let outer = policy(r#"{"selector":"all()","newer":1,"ingress":[{"action":"Allow","metadata":{"newer":1}}]}"#);
    assert!(matches!(outer.outcome, Outcome::Valid(_)));
    let severities: Vec<_> = outer.problems.iter().map(|problem| (&*problem.field, problem.severity)).collect();
    assert_eq!(severities, [("spec.newer", Severity::Warning), ("spec.ingress[0].metadata.newer", Severity::Warning)]);
    for rule in [
        r#"{"action":"Allow","newer":1}"#,
        r#"{"action":"Allow","source":{"newer":1}}"#,
        r#"{"action":"Allow","source":{"serviceAccounts":{"newer":1}}}"#,
        r#"{"action":"Allow","protocol":"TCP","http":{"newer":1}}"#,
    ] {
        let policy = policy(&format!(r#"{{"selector":"all()","ingress":[{rule}]}}"#));
        assert!(matches!(policy.outcome, Outcome::Invalid { substitute: Some(_) }), "{rule}");
    }
    let kubernetes = |spec: &str| {
        let json = format!(r#"{{"metadata":{{"name":"p","namespace":"n"}},"spec":{spec}}}"#);
        object(Kind::KubernetesNetworkPolicy, &json).outcome
    };
    assert!(matches!(kubernetes(r#"{"podSelector":{},"newer":1}"#), Outcome::Valid(_)));
    for spec in [
        r#"{"podSelector":{"newer":1}}"#,
        r#"{"podSelector":{},"ingress":[{"newer":1}]}"#,
        r#"{"podSelector":{},"ingress":[{"from":[{"podSelector":{},"newer":1}]}]}"#,
        r#"{"podSelector":{},"ingress":[{"ports":[{"port":1,"newer":1}]}]}"#,
    ] {
        assert!(matches!(kubernetes(spec), Outcome::Invalid { .. }), "{spec}");
    }
}

#[test]
fn misplaced_objects_are_invalid() {
    let other = object(Kind::Pod, r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}"#);
    assert_eq!((other.id, other.outcome), (None, Outcome::Invalid { substitute: None }));
    let unknown = object(Kind::Pod, r#"{"apiVersion":"v9","kind":"Pod","metadata":{"name":"a"}}"#);
    assert_eq!(unknown.outcome, Outcome::Invalid { substitute: None });
    assert_eq!(object(Kind::Pod, "[]").outcome, Outcome::Invalid { substitute: None });
    let text = read_object("{", Kind::Pod, &Options::default(), &mut Interner::new());
    assert!(text.is_err());
}
