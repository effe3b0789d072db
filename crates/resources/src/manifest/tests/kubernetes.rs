use insta::assert_debug_snapshot;
use tortie_model::{Policy, PolicyTypes, PortSpec, QosControls, Update, Valid};

use super::{Outcome, contributions, manifest, only, problems};

fn policy(spec: &str) -> Valid<Policy> {
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: ns}}\nspec: {spec}"
    );
    match only(&text) {
        Update::Policy(_, Some(policy)) => policy,
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
  - {name: side, restartPolicy: Always, ports: [{name: side, containerPort: 9, protocol: SCTP}]}
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
fn ports_of_ordinary_init_containers_count_while_these_run() {
    let ports = |init: &str, status: &str| -> String {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: ns}}\nspec:\n  nodeName: n1\n  containers: \
             [{{name: c, ports: [{{name: web, containerPort: 80}}]}}]\n  initContainers: [{{name: i, {init}ports: \
             [{{name: web, containerPort: 90}}]}}]\nstatus: {{podIP: 10.0.0.1, {status}}}\n"
        );
        assert_eq!(problems(&pod), "");
        let updates = contributions(&pod);
        let [Update::WorkloadEndpoint(_, Some(endpoint))] = &updates[..] else { panic!("{updates:?}") };
        endpoint.ports.iter().map(|port| format!("{} ", port.port)).collect()
    };
    let state = |state: &str| format!("phase: Pending, initContainerStatuses: [{{name: i, state: {state}}}]");
    for (status, expected) in [
        (String::new(), "80 "),
        ("phase: Running".into(), "80 "),
        ("phase: Pending".into(), "80 90 "),
        (state("{running: {startedAt: '2026-01-01T00:00:00Z'}}"), "80 90 "),
        (state("{terminated: {exitCode: 0}}"), "80 "),
        (state("{waiting: {reason: PodInitializing}}"), "80 "),
        ("phase: Running, initContainerStatuses: [{name: other, state: {running: {}}}]".into(), "80 "),
        ("phase: Running, initContainerStatuses: {}".into(), "80 "),
    ] {
        assert_eq!(ports("", &status), expected, "{status}");
        assert_eq!(ports("restartPolicy: OnFailure, ", &status), expected, "{status}");
        assert_eq!(ports("restartPolicy: Always, ", &status), "80 90 ", "{status}");
    }
}

#[test]
fn endpoints_are_slices_of_the_service_with_their_name() {
    let text = "
apiVersion: v1
kind: Endpoints
metadata: {name: db, namespace: shop, labels: {a: b}}
subsets:
- addresses: [{ip: 10.0.0.5, nodeName: node-1}]
  notReadyAddresses: [{ip: 10.0.0.6}]
  ports: [{name: sql, port: 5432}]
- addresses: [{ip: 'fd00::5'}]
  ports: [{port: 53, protocol: UDP}]
";
    let updates = contributions(text);
    let service = tortie_model::NamespacedName::new("shop", "db");
    for (update, expected) in
        updates.iter().zip(["[10.0.0.5, 10.0.0.6] [10.0.0.6] Some(5432)", "[fd00::5] [] Some(53)"])
    {
        let Update::EndpointSlice(name, Some(slice)) = update else { panic!("{update:?}") };
        assert!(name.is_slice_of_endpoints() && slice.service.as_ref() == Some(&service));
        assert_eq!(format!("{:?} {:?} {:?}", slice.addresses, slice.not_ready, slice.ports[0].port), expected);
    }
    assert_eq!(updates.len(), 2);
    let skipped = text.replace("{a: b}", "{endpointslice.kubernetes.io/skip-mirror: 'true'}");
    assert_eq!(contributions(&skipped), []);
    assert_eq!(contributions("{apiVersion: v1, kind: Endpoints, metadata: {name: a, namespace: b}}"), []);
    assert!(problems(&text.replace("port: 53", "port: 70000")).contains("subsets[1].ports[0].port: must be between"));
    // An address that is both ready and not ready is ready.
    let both = contributions(&text.replace("{ip: 10.0.0.6}", "{ip: 10.0.0.6}, {ip: 10.0.0.5}"));
    assert_eq!(both, updates);
}

#[test]
fn pairs_of_address_and_port_are_bounded_for_a_whole_object() {
    let addresses = |count: usize| vec!["{ip: 10.0.0.1}"; count].join(", ");
    let ports = "{port: 1}, {port: 2}";
    let object = |subsets: &str| {
        format!("{{apiVersion: v1, kind: Endpoints, metadata: {{name: a, namespace: b}}, subsets: [{subsets}]}}")
    };
    let subset = |addresses: &str, ports: &str| format!("{{addresses: [{addresses}], ports: [{ports}]}}");
    let half = subset(&addresses(25_000), ports);
    assert_eq!(problems(&object(&format!("{half}, {half}"))), "");
    let without_ports = subset(&addresses(1), "");
    let found = problems(&object(&format!("{half}, {half}, {without_ports}")));
    assert!(found.contains("has 100001 pairs of address and port; at most 100000 are allowed"), "{found}");
    let slice = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: a, namespace: b}}, endpoints: \
         [{{addresses: [{}]}}]}}",
        vec!["10.0.0.1"; 100_001].join(", ")
    );
    assert!(problems(&slice).contains("has 100001 pairs of address and port"), "{}", problems(&slice));
}

#[test]
fn an_address_of_a_ready_endpoint_is_ready() {
    let text = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-x, namespace: shop, labels: {kubernetes.io/service-name: db}}
endpoints:
- {addresses: [10.0.0.5], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.5], conditions: {ready: true}}
- {addresses: [10.0.0.6], conditions: {ready: false, serving: true, terminating: true}}
";
    let Update::EndpointSlice(_, Some(slice)) = only(text) else { panic!() };
    let rest: Box<[std::net::IpAddr]> = ["10.0.0.6".parse().unwrap()].into();
    assert_eq!((&slice.not_ready, &slice.draining), (&rest, &rest));
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
fn addresses_of_annotations_are_single_ones_that_a_pod_can_have() {
    let claims = |annotation: &str, text: &str| {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: ns, annotations: {{{annotation}: '{text}'}}}}\nspec: \
             {{nodeName: n1}}\nstatus: {{phase: Pending}}"
        );
        let mut nets = Vec::new();
        for resource in manifest(&pod).resources {
            let Outcome::Valid(updates) = resource.outcome else { panic!("{:?}", resource.outcome) };
            for update in updates {
                let Update::WorkloadEndpoint(_, Some(endpoint)) = update else { continue };
                assert_eq!(endpoint.claimed_by().map(|name| &**name), Some(annotation));
                nets.extend(endpoint.nets().map(|net| net.to_string()));
            }
        }
        (nets.join(" "), problems(&pod))
    };
    const PODIP: &str = "cni.projectcalico.org/podIP";
    assert_eq!(claims(PODIP, "10.0.0.1/32"), ("10.0.0.1/32".to_owned(), String::new()));
    let aws = claims("vpc.amazonaws.com/pod-ips", "10.0.0.1,fd00::1");
    assert_eq!(aws, ("10.0.0.1/32 fd00::1/128".to_owned(), String::new()));
    for (text, flaw) in [
        ("10.0.0.0/8", "`10.0.0.0/8` is a network with more than one address"),
        ("0.0.0.0/0", "`0.0.0.0/0` is a network"),
        ("127.0.0.1", "a loopback address"),
        ("169.254.1.1/32", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "an unspecified address"),
        ("::", "an unspecified address"),
        ("255.255.255.255", "the broadcast address"),
        ("10.0.0.x", "annotation cni.projectcalico.org/podIP: `10.0.0.x`"),
    ] {
        let (nets, problems) = claims(PODIP, text);
        assert!(nets.is_empty() && problems.contains(flaw), "{text}: {nets} {problems}");
    }
    let (nets, problems) = claims("cni.projectcalico.org/podIPs", "10.0.0.1/32,10.0.0.2/32,fd00::1/128");
    assert_eq!(nets, "10.0.0.1/32 fd00::1/128");
    assert!(problems.contains("`10.0.0.2/32` is a second address of its family"), "{problems}");
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
            {key: c, operator: In, values: [x, 'y']}, {key: d, operator: NotIn, values: [z]},
            {key: e, operator: Exists}, {key: f/g, operator: DoesNotExist}]}}",
    );
    assert_eq!(
        policy.selector.text(),
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
            Some(selector) => selector.text().to_owned(),
            None => format!("{:?} not {:?}", rule.source.nets, rule.source.extras.not_nets),
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
        policy.outbound.iter().map(|r| (r.protocol.map(|p| p.to_string()), &*r.destination.ports)).collect();
    assert_eq!(rules.len(), 3);
    assert_eq!(rules[0], (Some("sctp".into()), &[][..]));
    assert_eq!(rules[1].0.as_deref(), Some("tcp"));
    assert_eq!(*rules[1].1, [PortSpec::Named("web".into()), PortSpec::Range { first: 80, last: 90 }]);
    assert_eq!(rules[2], (None, &[][..]));
}

#[test]
fn identity() {
    let contributions = contributions(
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}}}",
    );
    assert!(
        matches!(&contributions[0], Update::Policy(id, _) if id.to_string() == "KubernetesNetworkPolicy/default/p")
    );
}

fn qos(annotations: &[(&str, &str)]) -> Option<QosControls> {
    let lines: String = annotations.iter().map(|(name, value)| format!("    {name}: '{value}'\n")).collect();
    let text = POD.replace("    qos.projectcalico.org/ingressBandwidth: 1M\n", &lines);
    let Outcome::Valid(contributions) = manifest(&text).resources.remove(0).outcome else { panic!("{text}") };
    match &contributions[0] {
        Update::WorkloadEndpoint(_, Some(endpoint)) => endpoint.extras.as_ref()?.qos.clone(),
        other => panic!("{other:?}"),
    }
}

/// The cases of `libcalico-go/lib/backend/k8s/conversion/conversion_test.go`.
#[test]
fn limits_out_of_bounds_are_brought_back() {
    let low = qos(&[
        ("qos.projectcalico.org/ingressBandwidth", "1"),
        ("qos.projectcalico.org/ingressBurst", "3"),
        ("qos.projectcalico.org/ingressPeakrate", "5"),
        ("qos.projectcalico.org/ingressMinburst", "7"),
        ("qos.projectcalico.org/ingressPacketRate", "0"),
        ("qos.projectcalico.org/ingressPacketBurst", "0"),
        ("qos.projectcalico.org/ingressMaxConnections", "0"),
        ("qos.projectcalico.org/egressBandwidth", "20P"),
        ("qos.projectcalico.org/egressBurst", "40P"),
        ("qos.projectcalico.org/egressPeakrate", "50P"),
        ("qos.projectcalico.org/egressMinburst", "8Gi"),
        ("qos.projectcalico.org/egressPacketRate", "60P"),
        ("qos.projectcalico.org/egressPacketBurst", "70P"),
        ("qos.projectcalico.org/egressMaxConnections", "80P"),
    ]);
    let expected = QosControls {
        ingress_bandwidth: 1000,
        ingress_burst: 1000,
        ingress_peakrate: 1010,
        ingress_minburst: 1000,
        ingress_packet_rate: 1,
        ingress_packet_burst: 1,
        ingress_max_connections: 1,
        egress_bandwidth: 1_000_000_000_000_000,
        egress_burst: 34_359_738_360,
        egress_peakrate: 1_010_000_000_000_000,
        egress_minburst: 100_000_000,
        egress_packet_rate: 10_000,
        egress_packet_burst: 10_000,
        egress_max_connections: 4_294_967_295,
        dscp: None,
    };
    assert_eq!(low, Some(expected));
}

#[test]
fn limits_that_need_others() {
    for name in ["Burst", "Peakrate", "Minburst", "PacketBurst"] {
        let (ingress, egress) =
            (format!("qos.projectcalico.org/ingress{name}"), format!("qos.projectcalico.org/egress{name}"));
        assert_eq!(qos(&[(&ingress, "3M"), (&egress, "4M")]), None, "{name}");
    }
    let peak_below_rate =
        qos(&[("kubernetes.io/egress-bandwidth", "2M"), ("qos.projectcalico.org/egressPeakrate", "1M")]);
    let expected = QosControls { egress_bandwidth: 2_000_000, egress_burst: 4 << 30, ..QosControls::default() };
    assert_eq!(peak_below_rate, Some(expected));
    // An unreadable Calico annotation does not restore that of Kubernetes.
    let unreadable =
        qos(&[("kubernetes.io/egress-bandwidth", "2M"), ("qos.projectcalico.org/egressBandwidth", "much")]);
    assert_eq!(unreadable, None);
}

#[test]
fn a_policy_without_pod_selector_selects_every_pod() {
    assert_eq!(policy("{}").selector, policy("{podSelector: {}}").selector);
    assert_eq!(policy("{}").types, PolicyTypes { ingress: true, egress: false });
}

#[test]
fn an_empty_annotation_allows_no_source_prefixes() {
    let text = POD.replace("'[\"8.8.8.0/24\"]'", "''");
    assert!(matches!(only(&text), Update::WorkloadEndpoint(_, Some(endpoint))
        if endpoint.extras.as_ref().is_some_and(|extras| extras.allowed_source_prefixes.is_empty())));
    for bad in ["'[\"\"]'", "'[\"gumbo\"]'", "'8.8.8.0/24'"] {
        let text = POD.replace("'[\"8.8.8.0/24\"]'", bad);
        assert!(problems(&text).contains("warning"), "{bad}");
    }
}

#[test]
fn a_long_account_name_still_identifies_the_pod() {
    let account = "a".repeat(90);
    let mut text = POD.replace("serviceAccountName: default", &format!("serviceAccountName: {account}"));
    // A pod must not pass for a pod of another account.
    text = text.replace("pcns.forged", "projectcalico.org/serviceaccount: admin, pcns.forged");
    let mut interner = tortie_model::Interner::new();
    let manifest = crate::manifest::read(&text, crate::manifest::Format::Yaml, &Default::default(), &mut interner);
    let Outcome::Valid(contributions) = &manifest.resources[0].outcome else { panic!("{manifest:?}") };
    let Update::WorkloadEndpoint(_, Some(endpoint)) = &contributions[0] else { panic!("{contributions:?}") };
    let printed = format!("{:?}", endpoint.labels);
    assert!(printed.contains(&account) && !printed.contains("admin"), "{printed}");
}

#[test]
fn tunnel_annotations_of_a_node_must_be_addresses() {
    let node = |annotations: &str| {
        let text =
            format!("apiVersion: v1\nkind: Node\nmetadata: {{name: n1, annotations: {{{annotations}}}}}\nspec: {{}}");
        let resource = manifest(&text).resources.remove(0);
        let Outcome::Valid(contributions) = resource.outcome else { panic!("{text}") };
        (contributions.len(), resource.problems.len())
    };
    // The node itself is always contributed.
    assert_eq!(node("projectcalico.org/IPv4VXLANTunnelAddr: 10.0.0.1"), (2, 0));
    assert_eq!(node("projectcalico.org/VXLANTunnelMACAddr: '66:00:00:00:00:01'"), (2, 0));
    for bad in ["IPv4VXLANTunnelAddr", "IPv6VXLANTunnelAddr", "IPv4IPIPTunnelAddr", "VXLANTunnelMACAddr"] {
        assert_eq!(node(&format!("projectcalico.org/{bad}: 10.0.0.1/24")), (1, 1), "{bad}");
    }
    assert_eq!(node("projectcalico.org/IPv4WireguardInterfaceAddr: foo.bar"), (1, 1));
}
