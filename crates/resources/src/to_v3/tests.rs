//! Facts of Calico's converters, and restrictions that must survive the conversion.

use serde_json::{Value as Json, json};
use tortie_model::Interner;

use super::*;
use crate::manifest::{self, Format, read};

fn sound(converted: Converted) -> Json {
    let others = converted.problems.iter().filter(|problem| {
        !problem.message.starts_with("has no effect: ") && !problem.message.starts_with("is reserved for the platform")
    });
    assert_eq!(others.count(), 0, "{:?}", converted.problems);
    match converted.outcome {
        Conversion::Resource(resource) => resource,
        other => panic!("no resource but {other:?}"),
    }
}

/// Reads a resource back.
fn read_back(resource: &Json) -> manifest::Resource {
    let text = resource.to_string();
    let mut manifest = read(&text, Format::Json, &Options::default(), &mut Interner::new());
    assert_eq!(manifest.resources.len(), 1, "{text}");
    manifest.resources.remove(0)
}

fn readable(resource: &Json) {
    let read = read_back(resource);
    assert!(read.problems.is_empty() && matches!(read.outcome, manifest::Outcome::Valid(_)), "{read:?}");
}

fn policy(name: &str, spec: &Json) -> Json {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
           "metadata": {"name": name, "namespace": "default", "uid": "u", "resourceVersion": "7"}, "spec": spec})
}

#[test]
fn the_action_on_denied_traffic_is_taken_over() {
    let convert = |action: &str| {
        let mut policy = policy("p", &json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        policy["metadata"]["annotations"] = json!({DENY_ACTION: action, "note": "x"});
        network_policy(&policy)
    };
    for action in ["Reject", "Drop"] {
        let converted = sound(convert(action));
        assert_eq!(converted["metadata"]["annotations"], json!({DENY_ACTION: action}));
        readable(&converted);
    }
    let unknown = convert("reject");
    let Conversion::Resource(converted) = &unknown.outcome else { panic!("{unknown:?}") };
    assert_eq!(converted["metadata"]["annotations"], json!({DENY_ACTION: "Drop"}));
    assert!(unknown.problems[0].message.contains("neither Drop nor Reject"), "{:?}", unknown.problems);
}

/// `kube-controllers/pkg/converter/networkpolicy_converter_test.go`.
mod policies_of_the_original {
    use super::*;

    #[test]
    fn a_basic_policy() {
        let converted = sound(network_policy(&policy(
            "test-policy",
            &json!({"podSelector": {"matchLabels": {"label2": "value2", "label": "value"}},
                    "ingress": [{"ports": [{"port": 80}], "from": [{"podSelector": {"matchLabels": {"k2": "v2", "k": "v"}}}]}],
                    "policyTypes": ["Ingress"]}),
        )));
        assert_eq!(
            converted,
            json!({
                "apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
                "metadata": {"name": "knp.default.test-policy", "namespace": "default"},
                "spec": {
                    "tier": "default", "order": 1000.0,
                    "selector": "projectcalico.org/orchestrator == 'k8s' && label == 'value' && label2 == 'value2'",
                    "types": ["Ingress"],
                    "ingress": [{
                        "action": "Allow", "protocol": "TCP",
                        "source": {"selector": "projectcalico.org/orchestrator == 'k8s' && k == 'v' && k2 == 'v2'"},
                        "destination": {"ports": [80]},
                    }],
                },
            })
        );
    }

    #[test]
    fn selectors_that_select_all() {
        let spec =
            &sound(network_policy(&policy("p", &json!({"podSelector": {}, "policyTypes": ["Ingress"]}))))["spec"];
        assert_eq!(spec["selector"], "projectcalico.org/orchestrator == 'k8s'");
        assert_eq!((spec.get("ingress"), spec.get("egress")), (None, None));
        let converted = sound(network_policy(&policy(
            "p",
            &json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}], "policyTypes": ["Ingress"]}),
        )));
        let rule = json!([{"action": "Allow", "source": {"selector": "projectcalico.org/orchestrator == 'k8s'",
                                                         "namespaceSelector": "all()"}}]);
        assert_eq!(converted["spec"]["ingress"], rule);
    }

    #[test]
    fn egress_to_address_blocks() {
        let converted = sound(network_policy(&policy(
            "p",
            &json!({"podSelector": {}, "policyTypes": ["Egress", "Ingress"],
                    "egress": [{"ports": [{"port": 50, "endPort": 60}, {"port": 80}, {"port": 81}, {"port": "web"}],
                                "to": [{"ipBlock": {"cidr": "192.168.0.0/16", "except": ["192.168.3.0/24"]}}]}]}),
        )));
        assert_eq!(converted["spec"]["types"], json!(["Ingress", "Egress"]));
        let rule = json!([{"action": "Allow", "protocol": "TCP",
                           "destination": {"nets": ["192.168.0.0/16"], "notNets": ["192.168.3.0/24"],
                                           "ports": ["web", "50:60", "80:81"]}}]);
        assert_eq!(converted["spec"]["egress"], rule);
    }
}

/// `kube-controllers/pkg/converter/{namespace,serviceaccount,pod}_converter_test.go`.
#[test]
fn profiles_of_calico() {
    let metadata = json!({"name": "default", "labels": {"foo.org/bar": "baz", "roger": "rabbit"}});
    let namespace = sound(namespace(&json!({"metadata": metadata})));
    assert_eq!(
        namespace,
        json!({"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "kns.default"}, "spec": {
            "ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}],
            "labelsToApply": {"pcns.foo.org/bar": "baz", "pcns.projectcalico.org/name": "default", "pcns.roger": "rabbit"},
        }})
    );
    let account =
        sound(service_account(&json!({"metadata": {"name": "sa.1", "namespace": "ns", "labels": {"a": "b"}}})));
    assert_eq!(account["metadata"], json!({"name": "ksa.ns.sa.1"}));
    assert_eq!(account["spec"], json!({"labelsToApply": {"pcsa.a": "b", "pcsa.projectcalico.org/name": "sa.1"}}));
    readable(&namespace);
    readable(&account);
}

#[test]
fn facts_of_pods() {
    let pod = |spec: Json| json!({"metadata": {"name": "p", "namespace": "n", "labels": {"l": "v", "pcns.x": "forged"}}, "spec": spec});
    let facts = endpoint_facts(&pod(json!({"serviceAccountName": "sa", "nodeName": "w"}))).expect("it is sound");
    let facts = facts.expect("it has endpoints");
    let labels = json!({"l": "v", "projectcalico.org/namespace": "n", "projectcalico.org/orchestrator": "k8s",
                        "projectcalico.org/serviceaccount": "sa"});
    assert_eq!((json!(facts.labels), &*facts.service_account, &*facts.node), (labels, "sa", "w"));
    assert_eq!(endpoint_facts(&pod(json!({"hostNetwork": true}))), Ok(None));
    let long = "s".repeat(63);
    let facts =
        endpoint_facts(&pod(json!({"serviceAccountName": long}))).expect("it is sound").expect("it has endpoints");
    assert!(!facts.labels.contains_key("projectcalico.org/serviceaccount") && facts.service_account == long);
}

/// `libcalico-go/lib/names/workloadendpoint_test.go`.
#[test]
fn names_of_endpoints() {
    assert_eq!(workload_endpoint_name("node-1", "pod-a--b").as_deref(), Ok("node--1-k8s-pod--a----b-eth0"));
    for (node, pod) in [("", "p"), ("n", ""), ("-n", "p"), ("n", "p-")] {
        assert!(workload_endpoint_name(node, pod).is_err(), "{node} {pod}");
    }
}

#[test]
fn a_bad_rule_invalidates_only_itself() {
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"ports": [{"port": 80}]},
            {"ports": [{"port": 443}, {"port": "Not-A-Port"}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]},
            {"from": [{"podSelector": {}}, {"podSelector": {"matchLabels": {"a": "b' || all() || a == '"}}}]},
            {"ports": [{"port": 90, "endport": 95}]},
            {"from": [{}]},
            "nonsense",
        ],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/24"]}}]}]});
    let converted = network_policy(&policy("p", &spec));
    let Conversion::Resource(resource) = &converted.outcome else { panic!("{converted:?}") };
    let tcp = |port: u16| json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [port]}});
    assert_eq!(resource["spec"]["ingress"], json!([tcp(80)]));
    assert_eq!(resource["spec"].get("egress"), None);
    let fields: Vec<&str> = converted.problems.iter().map(|problem| &*problem.field).collect();
    assert_eq!(
        fields,
        [
            "spec.ingress[1].ports[1].port",
            "spec.ingress[2].from[0].ipBlock.cidr",
            "spec.ingress[3].from[1].podSelector.matchLabels",
            "spec.ingress[4].ports[0].endport",
            "spec.ingress[5].from[0]",
            "spec.ingress[6]",
            "spec.egress[0].to[0].ipBlock.except[0]",
        ]
    );
    readable(resource);
}

#[test]
fn the_subject_of_a_policy_must_be_known() {
    let unusable = |spec: Json| match network_policy(&policy("p", &spec)) {
        Converted { outcome: Conversion::Unusable { substitute }, problems } if !problems.is_empty() => substitute,
        other => panic!("{spec}: {other:?}"),
    };
    assert_eq!(unusable(json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}})), None);
    assert_eq!(unusable(json!("nonsense")), None);
    let closed =
        unusable(json!({"podSelector": {}, "ingress": [{}], "policyTypes": ["Ingres"]})).expect("a substitute");
    assert_eq!(closed["spec"]["types"], json!(["Ingress", "Egress"]));
    assert_eq!((closed["spec"].get("ingress"), closed["spec"].get("egress")), (None, None));
    readable(&closed);
    let nameless = network_policy(&json!({"spec": {"podSelector": {}}}));
    assert!(matches!(nameless.outcome, Conversion::Unusable { substitute: None }));
}

/// Kubernetes accepts labels of 63 characters, and names of accounts and policies of 253.
#[test]
fn long_names_can_be_read_back() {
    let label = format!("{}.example/{}", "x".repeat(200), "l".repeat(63));
    let labels = json!({label: "v".repeat(63), "m".repeat(63): ""});
    let long = "n".repeat(253);
    readable(&sound(namespace(&json!({"metadata": {"name": "n".repeat(63), "labels": labels}}))));
    let account =
        sound(service_account(&json!({"metadata": {"name": long, "namespace": "n".repeat(63), "labels": labels}})));
    readable(&account);
    let pod = json!({"metadata": {"name": "p-".repeat(126) + "p", "namespace": "n".repeat(63), "labels": labels},
        "spec": {"nodeName": "w-".repeat(126) + "w", "serviceAccountName": long}, "status": {"podIP": "10.0.0.1"}});
    readable(&sound(super::pod(&pod, &Options::default())));
    let other = long[..252].to_owned() + "m";
    let names: Vec<String> = [&*long, &*other, "short"].map(policy_name).into();
    assert_eq!(names[2], "knp.default.short");
    assert!(names[0] != names[1] && names.iter().all(|name| name.len() <= 253 && name.starts_with(POLICY_PREFIX)));
    readable(&sound(network_policy(&policy(&long, &json!({"podSelector": {}})))));
    // Without the prefix of a namespace or account, such a label is a problem.
    assert_eq!(
        read_back(&json!({"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "p"},
        "spec": {"labelsToApply": {"l".repeat(64): "v"}}}))
        .problems
        .len(),
        1
    );
}

/// Every field of an endpoint is read back as it is read from the pod.
#[test]
fn pods_with_everything() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web", "pcsa.x": "forged"}, "annotations": {
            "cni.projectcalico.org/containerID": "c1",
            "cni.projectcalico.org/floatingIPs": "[\"192.0.2.7\", \"2001:db8::7\"]",
            "cni.projectcalico.org/allowedSourcePrefixes": "[\"198.51.100.0/24\"]",
            "k8s.v1.cni.cncf.io/network-status": "[]",
            "qos.projectcalico.org/ingressBandwidth": "1M", "qos.projectcalico.org/egressPacketRate": "100",
            "qos.projectcalico.org/dscp": "AF11",
        }},
        "spec": {"nodeName": "node-1", "serviceAccountName": "web",
                 "containers": [{"ports": [{"name": "http", "containerPort": 80}, {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                                           {"containerPort": 1, "hostPort": 2}]}],
                 "initContainers": [{"restartPolicy": "Always", "ports": [{"name": "s", "containerPort": 9, "protocol": "SCTP"}]}]},
        "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}]},
    });
    let resource = sound(super::pod(&pod, &Options::default()));
    assert_eq!(resource["metadata"]["name"], "node--1-k8s-web--1-eth0");
    assert_eq!(resource["spec"]["containerID"], "c1");
    readable(&resource);
    let manifest::Outcome::Valid(direct) = read_back(&pod).outcome else { panic!("the pod is sound") };
    let manifest::Outcome::Valid(again) = read_back(&resource).outcome else { panic!("the endpoint is sound") };
    assert_eq!(again, direct);
    let mut finished = pod;
    finished["status"]["phase"] = "Succeeded".into();
    assert_eq!(super::pod(&finished, &Options::default()).outcome, Conversion::Nothing);
}
