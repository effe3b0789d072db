use insta::assert_debug_snapshot;
use tortie_model::{Key, PolicyTypes, PortSpec, Value};

use super::{contributions, problems, value};

fn policy(spec: &str) -> std::sync::Arc<tortie_model::Policy> {
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: ns}}\nspec: {spec}"
    );
    match value(&text) {
        Value::Policy(policy) => policy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn namespace() {
    assert_debug_snapshot!(contributions(
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {env: prod}}}"
    ));
}

#[test]
fn service_account() {
    assert_debug_snapshot!(contributions(
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: bot, namespace: shop, labels: {team: a}}}"
    ));
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: nginx
  labels: {app: nginx, pcns.forged: yes-it-is}
  annotations:
    cni.projectcalico.org/floatingIPs: '[\"192.0.2.7\"]'
    cni.projectcalico.org/allowedSourcePrefixes: '[\"8.8.8.0/24\"]'
    qos.projectcalico.org/ingressBandwidth: 1M
spec:
  nodeName: node-1
  serviceAccountName: default
  containers:
  - ports:
    - {name: http, containerPort: 80}
    - {containerPort: 81, hostPort: 8081}
  initContainers:
  - ports: [{name: side, containerPort: 9, protocol: SCTP}]
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]
";

#[test]
fn pod() {
    assert_debug_snapshot!(contributions(POD));
}

#[test]
fn pods_without_endpoint() {
    for (from, to) in [
        ("nodeName: node-1", "nodeName: ''"),
        ("nodeName: node-1", "nodeName: node-1\n  hostNetwork: true"),
        ("phase: Running", "phase: Succeeded"),
        ("phase: Running", "phase: Failed"),
        ("  name: nginx\n", "  name: nginx\n  deletionTimestamp: 2024-01-01T00:00:00Z\n"),
    ] {
        let text = POD.replace(from, to);
        let text = if to.contains("deletion") {
            text.replace("  annotations:", "  annotations:\n    cni.projectcalico.org/podIP: ''")
        } else {
            text
        };
        assert_eq!(contributions(&text), [], "{to}");
    }
}

#[test]
fn pod_with_bad_address() {
    assert!(problems(&POD.replace("fd00::1", "fd00::x")).contains("status.podIPs[1].ip: `fd00::x` is neither"));
}

#[test]
fn service_and_slice() {
    assert_debug_snapshot!(contributions(
        "
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: kube-system}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30053, targetPort: 53}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-x, namespace: kube-system, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.5, host.example], conditions: {ready: false}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: any}]
"
    ));
}

#[test]
fn node() {
    assert_debug_snapshot!(contributions(
        "
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {zone: a}
  annotations: {projectcalico.org/IPv4Address: 172.16.0.1/24, projectcalico.org/IPv4VXLANTunnelAddr: 10.9.0.1}
status:
  addresses: [{type: InternalIP, address: 172.16.0.1}, {type: Hostname, address: n1}]
"
    ));
}

#[test]
fn published_policy() {
    assert_debug_snapshot!(contributions(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: access-nginx, namespace: policy-demo}
spec:
  podSelector: {matchLabels: {app: nginx}}
  ingress:
  - from: [{podSelector: {matchLabels: {run: access}}}]
"
    ));
}

#[test]
fn default_types() {
    let types = |ingress, egress| PolicyTypes { ingress, egress };
    for (spec, expected) in [
        ("{podSelector: {}}", types(true, false)),
        ("{podSelector: {}, egress: []}", types(true, false)),
        ("{podSelector: {}, egress: [{}]}", types(true, true)),
        ("{podSelector: {}, policyTypes: [Egress]}", types(false, true)),
        ("{podSelector: {}, policyTypes: [Ingress], egress: [{}]}", types(true, false)),
    ] {
        assert_eq!(policy(spec).types, expected, "{spec}");
    }
}

#[test]
fn every_operator() {
    let policy = policy(
        "{podSelector: {matchLabels: {b: '1', a: ''}, matchExpressions: [
            {key: c, operator: In, values: [x, y]}, {key: d, operator: NotIn, values: [z]},
            {key: e, operator: Exists}, {key: f/g, operator: DoesNotExist}]}}",
    );
    assert_eq!(
        policy.selector.as_str(),
        "(projectcalico.org/orchestrator == 'k8s' && a == '' && b == '1' && c in { 'x', 'y' } && \
         d not in { 'z' } && has(e) && ! has(f/g)) && projectcalico.org/namespace == 'ns'"
    );
}

#[test]
fn peers() {
    let policy = policy(
        "{podSelector: {}, ingress: [{from: [
            {podSelector: {}}, {namespaceSelector: {}}, {namespaceSelector: {matchLabels: {k: v}}, podSelector: {}},
            {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}",
    );
    let sources: Vec<String> = policy
        .inbound
        .iter()
        .map(|rule| match &rule.source.selector {
            Some(selector) => selector.to_string(),
            None => format!("{:?} not {:?}", rule.source.nets, rule.source.not_nets),
        })
        .collect();
    assert_eq!(
        sources,
        [
            "(projectcalico.org/namespace == 'ns') && (projectcalico.org/orchestrator == 'k8s')",
            "(has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s')",
            "(pcns.k == \"v\") && (projectcalico.org/orchestrator == 'k8s')",
            "[10.0.0.0/8] not [10.1.0.0/16]",
        ]
    );
}

#[test]
fn ports_of_egress_rules() {
    let policy = policy(
        "{podSelector: {}, policyTypes: [Egress], egress: [
            {ports: [{port: 80}, {port: 81, endPort: 90}, {port: web}, {protocol: SCTP}]}, {}]}",
    );
    let rules: Vec<_> =
        policy.outbound.iter().map(|r| (r.protocol.map(|p| p.to_string()), &r.destination.ports)).collect();
    assert_eq!(rules.len(), 3);
    assert_eq!(rules[0], (Some("sctp".into()), &Box::default()));
    assert_eq!(rules[1].0.as_deref(), Some("tcp"));
    assert_eq!(**rules[1].1, [PortSpec::Named("web".into()), PortSpec::Range { first: 80, last: 90 }]);
    assert_eq!(rules[2], (None, &Box::default()));
}

#[test]
fn identity() {
    let contributions = contributions(
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}}}",
    );
    assert!(matches!(&contributions[0].0, Key::Policy(id) if id.to_string() == "KubernetesNetworkPolicy/default/p"));
}
