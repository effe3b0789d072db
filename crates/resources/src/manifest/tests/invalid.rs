use insta::assert_snapshot;
use tortie_model::Update;

use super::{Outcome, manifest, problems};

fn calico(kind: &str, spec: &str) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: p}}\nspec: {spec}\n")
}

#[test]
fn kubernetes_policy() {
    assert_snapshot!(problems(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: ns}
spec:
  podSelector:
    matchLabels: {app: web, m: 1, 'x y': a, v: \"a' || all()\"}
    matchExpressions:
    - {key: a, operator: In}
    - {key: a, operator: Exists, values: [x]}
    - {key: a, operator: Near}
  policyTypes: [Ingress, Sideways]
  ingres: []
  ingress:
  - from:
    - {}
    - {ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/8, 10.0.0.0/8]}}
    - {ipBlock: {cidr: 10.0.0.1}, podSelector: {}}
    ports:
    - {port: 0}
    - {port: 90, endPort: 80}
    - {port: HTTP}
    - {protocol: ICMP}
    - {port: http, endPort: 5}
  - to: []
"
    ));
}

#[test]
fn calico_policy() {
    assert_snapshot!(problems(&calico(
        "GlobalNetworkPolicy",
        "
  selector: a = 'b'
  namespaceSelector: global()
  types: [Ingress, Ingress]
  order: .nan
  doNotTrack: true
  preDNAT: true
  serviceAcountSelector: all()
  ingress:
  - action: allow
    protocol: TPC
  - {action: Allow, source: {ports: [80]}}
  - {action: Allow, protocol: ICMP, ipVersion: 6, destination: {ports: [80]}}
  - {action: Allow, icmp: {code: 1}}
  - {action: Allow, source: {nets: [10.0.0.0/8, 'fd00::/8', 300.0.0.1]}}
  - {action: Deny, source: {notNets: [0.0.0.0/0], namespaceSelector: 'global() && has(x)'}}
  - {action: Deny, http: {}, destination: {services: {name: s}}}
  - {action: Allow, source: {services: {name: s, namespace: 'n'}, selector: has(x)}}
  egress:
  - {action: Deny}
"
    )));
}

#[test]
fn other_kinds() {
    let text = [
        calico("Tier", "{order: first, defaultAction: Allow}"),
        calico("NetworkSet", "{nets: [10.0.0.0/40], net: x}"),
        calico("HostEndpoint", "{node: m, ports: [{name: a, protocol: ICMP, port: 0}]}"),
        calico("IPPool", "{cidr: 10.0.0.1/16, ipipMode: Always, vxlanMode: Always, blockSize: 10}"),
        calico("IPPool", "{cidr: 169.254.0.0/24, ipipMode: Sometimes}"),
        calico("WorkloadEndpoint", "{interfaceName: cali1}"),
        calico("Node", "{bgp: {}}"),
        calico("FelixConfiguration", "{ipipMTU: big, noSuchThing: 1, iptablesRefreshInterval: 90}"),
    ]
    .join("---\n");
    assert_snapshot!(problems(&text));
}

#[test]
fn identity() {
    assert_snapshot!(problems(
        "
- 1
---
kind: Pod
---
apiVersion: v1
kind: Pod
---
apiVersion: v1
kind: Namespace
metadata: {name: A_b, labels: {'-x': z}, nmae: z}
---
apiVersion: v1
kind: Namespace
metadata: {name: 1}
---
apiVersion: v1
kind: Namespace
kind: Pod
metadata: {name: a}
"
    ));
}

fn substitute(text: &str) -> Option<String> {
    match &manifest(text).resources[0].outcome {
        Outcome::Invalid { substitute } => substitute.as_ref().map(|contributions| match &contributions[0] {
            Update::Policy(_, Some(policy)) => format!(
                "{} {:?} order {:?} rules {}/{}",
                policy.selector.text(),
                policy.types,
                policy.order.map(tortie_model::Order::get),
                policy.inbound.len(),
                policy.outbound.len()
            ),
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn substitutes() {
    let kubernetes = |spec: &str| {
        substitute(&format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p}}, spec: {spec}}}"
        ))
    };
    let found = [
        kubernetes("{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: x}}]}]}"),
        kubernetes("{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{}]}]}"),
        kubernetes("{podSelektor: {}}"),
        kubernetes("{podSelector: {matchLabel: {}}}"),
        substitute(&calico(
            "GlobalNetworkPolicy",
            "{selector: has(a), types: [Egress], order: 5, egress: [{action: X}]}",
        )),
        substitute(&calico("GlobalNetworkPolicy", "{selector: has(a), order: x, types: [Out]}")),
        substitute(&calico("GlobalNetworkPolicy", "{selector: has(a}")),
        substitute(&calico("GlobalNetworkPolicy", "{selektor: has(a)}")),
        substitute(&calico("GlobalNetworkPolicy", "{selector: has(a), preDNAT: true, egress: [{action: Allow}]}")),
        substitute(&calico("NetworkPolicy", "{ingress: [{action: X}]}")),
        substitute(&calico("StagedNetworkPolicy", "{ingress: [{action: X}]}")),
        substitute(&calico("NetworkSet", "{nets: [x]}")),
    ];
    assert_snapshot!(found.map(|s| s.unwrap_or_else(|| "none".into())).join("\n"));
}

/// Cases of `libcalico-go/lib/validator/v3/validator_test.go`.
#[test]
fn workload_endpoints() {
    let endpoint = |spec: &str| {
        problems(&format!(
            "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\nmetadata: {{name: n-k8s-p-eth0}}\nspec: {spec}\n"
        ))
    };
    assert_eq!(endpoint("{interfaceName: Valid_Iface.0-9, ipNetworks: [1.2.3.4/32, 'fd00::1']}"), "");
    assert_eq!(
        endpoint(
            "{interfaceName: e, ipNetworks: [1.2.3.4], ipNATs: [{internalIP: 1.2.3.4, externalIP: 5.6.7.8}], \
             ports: [{protocol: TCP, port: 1, hostPort: 2, hostIP: 1.2.3.4}]}"
        ),
        ""
    );
    assert_snapshot!(endpoint(
        "
  interfaceName: interfaceTooLong
  ipNetworks: [1.2.3.4, 1.2.3.0/26, 'fd00::/122']
  ipNATs:
  - {internalIP: 9.9.9.9, externalIP: 1.2.3.4}
  ports:
  - {protocol: TCP, port: 1234}
  - {protocol: TCP, port: 1234, hostPort: 2345, hostIP: 999.999.999.999}
"
    ));
}

/// Cases of `libcalico-go/lib/validator/v3/validator_test.go`.
#[test]
fn http_matches_and_annotations() {
    let rule = |rule: &str| {
        problems(&calico("GlobalNetworkPolicy", &format!("{{selector: all(), ingress: [{{action: Allow, {rule}}}]}}")))
    };
    let enforced = rule("http: {methods: [GET, Foo], paths: [{exact: /foo}, {prefix: /bar}]}");
    assert!(
        enforced.contains(
            "http: nothing enforces a match on HTTP without `PolicySyncPathPrefix`; the rule is then left out"
        ),
        "{enforced}"
    );
    assert!(!enforced.contains("error"), "{enforced}");
    assert_eq!(rule("metadata: {annotations: {example.com/Why: because}}"), "");
    for bad in [
        "http: {methods: [GET, GET]}",
        "http: {paths: [{exact: foo}]}",
        "http: {paths: [{exact: /fo?o}]}",
        "http: {paths: [{exact: '/fo o'}]}",
        "http: {paths: [{prefix: '/f#oo'}]}",
        "http: {paths: [{prefix: /a, exact: /b}]}",
        "metadata: {annotations: {...: because}}",
    ] {
        assert!(rule(bad).contains("error"), "{bad}");
    }
}

/// Cases of `libcalico-go/lib/validator/v3/validator_test.go`.
#[test]
fn labels_of_profiles() {
    let profile = |label: &str| problems(&calico("Profile", &format!("{{labelsToApply: {{{label}: v}}}}")));
    assert_eq!(profile("project.calico.org/my-valid-label"), "");
    for bad in [".mylabel", "my!nvalid-label", "my-invalid-label$"] {
        assert!(profile(bad).contains("is not a valid label name"), "{bad}");
    }
}

#[test]
fn failsafe_ports_have_a_protocol_with_ports() {
    let ports =
        |port: &str| problems(&calico("FelixConfiguration", &format!("{{failsafeInboundHostPorts: [{port}]}}")));
    assert_eq!(ports("{protocol: SCTP, port: 20}"), "");
    assert!(ports("{protocol: jolly-UDP, port: 20}").contains("none of TCP, UDP, SCTP"));
    assert!(ports("{port: 20}").contains("protocol: is required"));
}
